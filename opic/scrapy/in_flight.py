"""The fetches that the engine works on, and the leases of their pages.

A fetch begins when the scheduler gives its request to the engine, and is over once the engine has dropped the request:
after the callback and the items of an answer, or as soon as a middleware ignored it, or put another request in its
place. Only then is its event sent. A process that is killed before has not reported the page, which is offered again.
"""

import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import Crawler
from scrapy.http import Response

from opic.errors import BadUrl
from opic.html.links import absolute_link
from opic.html.media_types import MediaType
from opic.urls.canonical import canonical_url

MARK: Final = "opic"  # In the meta of a request for a page that the service handed out.
BODY_BYTES_MAX: Final = 16 << 20  # Links beyond are not looked for.
WAIT_SECONDS_MAX: Final = 86_400  # A site that asks for more is asked again after a day.


def page_of(request: Request) -> str | None:
    """Return the URL of the page that a request fetches, as the service knows it; None if it fetches no page."""
    mark = request.meta.get(MARK)
    # A copy of our request, as for a retry, is for the same page. Spiders also copy meta to requests for other pages.
    if isinstance(mark, dict) and mark.get("requested") == request.url:
        return str(mark["page"])
    return None if request.method != "GET" or request.body else key_of(request.url)


def key_of(url: str) -> str | None:
    """Return the canonical form of a URL as requests have it, which escape more than others; None if it has none."""
    try:
        return canonical_url(url)
    except BadUrl:
        return None


@dataclass(slots=True)
class PageLease:
    """The right to fetch a page; times are of the monotonic clock."""

    name: str
    seconds: float
    ends: float

    def renew(self, now: float) -> None:
        """Let it run from now on."""
        self.ends = now + self.seconds


@dataclass(slots=True)
class Fetch:
    """What the engine did with the request for a page; without `event` there is nothing to report."""

    url: str
    event: dict[str, Any] | None = None
    base: str = ""  # The URL that the links of the body are relative to.
    body: bytes = b""
    content_type: str | None = None
    asked: list[str] = field(default_factory=list)  # Pages that the callback asked for, as `key_of` names them.

    def failed(self, **said: Any) -> None:
        """Note that there was no answer; `said` are other fields of the event."""
        self.event, self.body = {"status": 0, "fetched_at": time.time(), **said}, b""

    def answered(self, request: Request, response: Response) -> None:
        """Note an answer."""
        status = response.status
        self.event, self.body = {"status": status, "fetched_at": time.time()}, b""
        if (depth := request.meta.get("depth")) is not None:
            self.event["depth"] = depth
        wait = (response.headers.get("Retry-After") or b"").decode("latin-1")
        if status in (429, 503) and wait.isdecimal():
            self.event["retry_after"] = min(int(wait), WAIT_SECONDS_MAX)
        if 300 <= status < 400:
            location = (response.headers.get("Location") or b"").decode("utf-8", "replace")
            if location and (target := absolute_link(self.url, location)):
                self.event["redirect"] = target
        else:
            self.read(response)

    def read(self, response: Response) -> None:
        """Keep the body of a page, of which the links are read once there is something to report."""
        content_type = (response.headers.get("Content-Type") or b"").decode("latin-1")
        if 200 <= response.status < 300 and MediaType.of(content_type).may_have_links:
            self.base, self.body = response.url, response.body[:BODY_BYTES_MAX]
            self.content_type = content_type


class InFlight:
    """All fetches and leases of a crawl; the scheduler and the middlewares share it."""

    def __init__(self) -> None:
        """Begin with none."""
        self.fetches: dict[Request, Fetch] = {}
        self.over = deque[Fetch]()  # Those that the engine is done with, until they are reported.
        self.leases: dict[str, PageLease] = {}  # By page.
        self.parents: WeakKeyDictionary[Request, Fetch] = WeakKeyDictionary()  # Of requests that a callback made.
        self._queued: Counter[str] = Counter()  # Leased pages whose request, as for a retry, waits in Scrapy's queue.

    def queue(self, page: str) -> None:
        """Note that another request for a page waits in Scrapy's queue."""
        if page in self.leases:
            self._queued[page] += 1

    def begin(self, request: Request, page: str) -> None:
        """Note that the engine gets a request."""
        self.fetches[request] = Fetch(page)
        if page in self._queued:
            self._queued -= Counter([page])

    def knows(self, page: str) -> bool:
        """Tell whether a page is being fetched or about to be."""
        return page in self.leases or any(fetch.url == page for fetch in (*self.fetches.values(), *self.over))

    def refreshed(self, request: Request) -> None:
        """Note that a page was read, if Scrapy follows its `<meta http-equiv=refresh>`: the spider never sees it."""
        if (request.meta.get("redirect_reasons") or [""])[-1] != "meta refresh":
            return
        source = key_of(request.meta["redirect_urls"][-1])
        for fetch in self.fetches.values():
            if key_of(fetch.url) == source and fetch.event is None:
                fetch.event = {"status": 200, "fetched_at": time.time()}

    def sweep(self, engine: ExecutionEngine) -> None:
        """Move the fetches that the engine is done with to `over`."""
        active = engine.downloader.active, engine.scraper.slot.active if engine.scraper.slot else ()
        done = [request for request in self.fetches if not any(request in requests for requests in active)]
        self.over.extend(self.fetches.pop(request) for request in done)

    def reported(self) -> None:
        """Take away the first fetch of `over`, and its lease if nothing is left to be done for the page."""
        page = self.over.popleft().url
        if page not in self._queued and not any(fetch.url == page for fetch in (*self.fetches.values(), *self.over)):
            self.leases.pop(page, None)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do or to report."""
        return bool(self.leases or self.fetches or self.over)


_crawls: WeakKeyDictionary[Crawler, InFlight] = WeakKeyDictionary()


def in_flight_of(crawler: Crawler) -> InFlight:
    """Return what the components of a crawl share."""
    return _crawls.setdefault(crawler, InFlight())
