"""The fetches that the engine works on, and the leases of their pages.

A fetch begins when the scheduler gives its request to the engine, and is over once the engine has dropped the request:
after the callback and the items of an answer, or as soon as a middleware ignored it, or put another request in its
place. Only then is its event sent. A process that is killed before has not reported the page, which is offered again.
"""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from scrapy import Request
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import Crawler
from scrapy.http import Response

from opic.client import HostPace, LeasedPage, host_pace, retry_after_seconds
from opic.html.links import redirect_target
from opic.html.media_types import MediaType
from opic.urls.canonical import canonical_or_none, host_of

MARK: Final = "opic"  # In the meta of a request for a page that the service handed out.
BODY_BYTES_MAX: Final = 16 << 20  # Links beyond are not looked for.
FAILED_FROM: Final = 400  # The least status of an answer that is no page.


def page_of(request: Request) -> str | None:
    """Return the URL of the page that a request fetches, as the service knows it; None if it fetches no page."""
    mark = request.meta.get(MARK)
    # A copy of our request, as for a retry, is for the same page. Spiders also copy meta to requests for other pages.
    if isinstance(mark, dict) and mark.get("requested") == request.url:
        return str(mark["page"])
    return None if request.method != "GET" or request.body else canonical_or_none(request.url)


def host_asked(request: Request) -> str:
    page = canonical_or_none(request.url)
    return host_pace.host_of(request.url) or "" if page is None else host_of(page)


def wait_asked(response: Response) -> float | None:
    """Return the seconds that an answer asks to wait; None if it is no failure, or asks for nothing."""
    header = (response.headers.get("Retry-After") or b"").decode("latin-1")
    return retry_after_seconds(header) if response.status >= FAILED_FROM else None


@dataclass(slots=True)
class Fetch:
    """What the engine did with the request for a page; without `event` there is nothing to report."""

    url: str
    event: dict[str, Any] | None = None
    base: str = ""  # The URL that the links of the body are relative to.
    body: bytes = b""
    content_type: str | None = None
    sets_cookie: bool = False
    asked: list[str] = field(default_factory=list)  # Pages that the callback asked for, canonical.

    def failed(self, **said: Any) -> None:
        """Note that there was no answer; `said` are other fields of the event."""
        self.event, self.body = {"status": 0, "fetched_at": time.time(), **said}, b""

    def answered(self, request: Request, response: Response) -> None:
        status = response.status
        self.event, self.body = {"status": status, "fetched_at": time.time()}, b""
        if (depth := request.meta.get("depth")) is not None:
            self.event["depth"] = depth
        if response.ip_address is not None and not request.meta.get("proxy"):  # Else it is that of the proxy.
            self.event["addresses"] = [str(response.ip_address)]
        self.sets_cookie = "Set-Cookie" in response.headers
        if (wait := wait_asked(response)) is not None:
            self.event["retry_after"] = wait
        if 300 <= status < FAILED_FROM:
            location = response.headers.get("Location")
            if location and (target := redirect_target(self.url, location)):
                self.event["redirect"] = target
        else:
            self.read(response)

    def read(self, response: Response) -> None:
        """Keep the body of a page, of which the links are read once there is something to report."""
        content_type = (response.headers.get("Content-Type") or b"").decode("latin-1")
        if 200 <= response.status < 300 and MediaType.of(content_type).may_have_links:
            self.base, self.body = response.url, response.body[:BODY_BYTES_MAX]
            self.content_type = content_type

    @property
    def may_be_repeated(self) -> bool:
        """Whether nothing was found that a further try of the same page would repeat."""
        return self.event is None or "retry_after" in self.event or self.leads_to_itself

    @property
    def leads_to_itself(self) -> bool:
        """Whether the page wants to be asked again with a cookie."""
        redirect = (self.event or {}).get("redirect")
        return self.sets_cookie and redirect is not None and canonical_or_none(redirect) == canonical_or_none(self.url)


class InFlight:
    """All fetches and leases of a crawl; the scheduler and the middlewares share it."""

    def __init__(self) -> None:
        self.fetches: dict[Request, Fetch] = {}
        self.over = deque[Fetch]()  # Those that the engine is done with, until they are reported.
        self.leases: dict[str, LeasedPage] = {}  # Of the session, by page.
        self.parents: WeakKeyDictionary[Request, Fetch] = WeakKeyDictionary()  # Of requests that a callback made.
        self.given: WeakSet[Request] = WeakSet()  # Requests that the scheduler gave to the engine.
        self.pace = HostPace()

    def begin(self, request: Request, page: str | None) -> None:
        """Note that the engine gets a request, and the page that it fetches."""
        self.given.add(request)
        if page is not None:
            self.fetches[request] = Fetch(page)

    def put_off(self, request: Request, page: str) -> LeasedPage | None:
        """Note that a page is to be asked again, by a copy of the request that it was handed out for.

        Returns:
            Its lease, which is to be given back; None if the request is for no leased page, or its page was fetched.
        """
        mark = request.meta.get(MARK)
        if not isinstance(mark, dict) or mark["page"] != page or page not in self.leases:
            return None
        begun = next(
            (candidate for candidate, fetch in self.fetches.items() if fetch.url == page and fetch.may_be_repeated),
            None,
        )
        if begun is None:
            return None
        fetch = self.fetches.pop(begun)
        if fetch.event is not None and not fetch.leads_to_itself:
            self.over.append(fetch)  # It says how long the page is to wait.
        return self.leases[page]

    def fetching(self, page: str) -> bool:
        """Tell whether a page is being fetched, or its fetch is to be reported."""
        return any(fetch.url == page for fetch in (*self.fetches.values(), *self.over))

    def source_of(self, request: Request) -> Fetch | None:
        """Return the fetch that a request goes on from, by a redirect; None if there is none."""
        source = canonical_or_none((request.meta.get("redirect_urls") or [""])[-1])
        if source is None:
            return None
        return next((fetch for fetch in self.fetches.values() if canonical_or_none(fetch.url) == source), None)

    def refreshed(self, request: Request) -> None:
        """Note that a page was read, if Scrapy follows its `<meta http-equiv=refresh>`: the spider never sees it."""
        if (request.meta.get("redirect_reasons") or [""])[-1] != "meta refresh":
            return
        if (fetch := self.source_of(request)) is not None and fetch.event is None:
            fetch.event = {"status": 200, "fetched_at": time.time()}

    def sweep(self, engine: ExecutionEngine) -> None:
        """Move the fetches that the engine is done with to `over`."""
        active = engine.downloader.active, engine.scraper.slot.active if engine.scraper.slot else ()
        done = [request for request in self.fetches if not any(request in requests for requests in active)]
        self.over.extend(self.fetches.pop(request) for request in done)

    def reported(self) -> None:
        """Take away the first fetch of `over`, and its lease if nothing is left to be done for the page."""
        page = self.over.popleft().url
        if not self.fetching(page):
            self.leases.pop(page, None)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do or to report."""
        return bool(self.leases or self.fetches or self.over)


_crawls: WeakKeyDictionary[Crawler, InFlight] = WeakKeyDictionary()


def in_flight_of(crawler: Crawler) -> InFlight:
    """Return what the components of a crawl share."""
    return _crawls.setdefault(crawler, InFlight())
