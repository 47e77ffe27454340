"""Middlewares that note what became of a fetch, and put off what a host does not want to be asked now."""

from typing import TypeVar

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from scrapy.spidermiddlewares.base import BaseSpiderMiddleware

from opic.scrapy.host_slots import HostRests
from opic.scrapy.in_flight import FAILED_FROM, host_asked, in_flight_of, wait_asked

Noting = TypeVar("Noting", bound="_DownloaderEvents")


class PageEvents(BaseSpiderMiddleware):
    """Notes each answer that reaches the spider, of whatever status, and the requests that its callback makes.

    It is the nearest to the engine: a middleware that ignores an answer, as that for HTTP errors, comes after it.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._pages = in_flight_of(crawler)

    def process_spider_input(self, response: Response) -> None:
        request = response.request
        if request is not None and (fetch := self._pages.fetches.get(request)):
            fetch.answered(request, response)

    def get_processed_request(self, request: Request, response: Response | None) -> Request:
        """Note which page a request comes from."""
        if response is not None and response.request is not None:
            fetch = self._pages.fetches.get(response.request)
            if fetch is not None:
                self._pages.parents[request] = fetch
        return request


class _DownloaderEvents:
    def __init__(self, crawler: Crawler) -> None:
        self._pages = in_flight_of(crawler)

    @classmethod
    def from_crawler(cls: type[Noting], crawler: Crawler) -> Noting:
        return cls(crawler)


class RedirectEvents(_DownloaderEvents):
    """Notes each hop of a redirect before Scrapy follows it, and what asks for a pause before Scrapy tries again."""

    def process_response(self, request: Request, response: Response) -> Response:
        """Note an answer that may not reach the spider."""
        fetch = self._pages.fetches.get(request)
        if fetch is not None and (300 <= response.status < FAILED_FROM or wait_asked(response) is not None):
            fetch.answered(request, response)
        return response


class PageBodies(_DownloaderEvents):
    """Keeps the bodies of pages, as `MetaRefreshMiddleware` may put a request in the place of one."""

    def process_response(self, request: Request, response: Response) -> Response:
        if (fetch := self._pages.fetches.get(request)) is not None:
            fetch.read(response)
        return response


class HostPauses(_DownloaderEvents):
    """Gives requests back to the scheduler whose hosts asked for a pause; the nearest to the downloader."""

    def process_request(self, request: Request) -> Request | None:
        """Look whether the host of a request rests."""
        rests = request in self._pages.given and self._pages.pace.rests(host_asked(request))
        return request.replace(dont_filter=True) if rests else None

    def process_exception(self, request: Request, exception: Exception) -> Request | None:
        """Take a request back from its slot."""
        return request.replace(dont_filter=True) if isinstance(exception, HostRests) else None


class FailureEvents(_DownloaderEvents):
    """Notes fetches without an answer, once no other middleware tries again."""

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Note a failure. A page that a middleware ignores was not fetched: its lease ends by itself."""
        fetch = self._pages.fetches.get(request)
        if fetch is not None and not isinstance(exception, IgnoreRequest):
            fetch.failed()


class RobotsTxt(RobotsTxtMiddleware):
    """Scrapy's own, which also notes the pages that robots.txt excludes."""

    async def process_request(self, request: Request, spider: Spider | None = None) -> None:
        """Ask the robots.txt of the page's host.

        Raises:
            IgnoreRequest: the page is excluded.
        """
        try:
            await super().process_request(request)
        except IgnoreRequest:
            if (fetch := in_flight_of(self.crawler).fetches.get(request)) is not None:
                fetch.failed(excluded=True)
            raise
