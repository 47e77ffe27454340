"""Crawlee crawls what the service says, and reports what it fetched.

    async with OpicRequestManager("http://127.0.0.1:8080") as manager:
        crawler = BeautifulSoupCrawler(request_manager=manager)
        attach(crawler)
        ...
        await crawler.run(["https://a.example/"])

A request for a page is kept until the service hands that page out. A page that is done, has failed for good or is
excluded by robots.txt becomes an event, with all its links. See docs/guide/crawlee.md.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from opic.client import AsyncClient, ClientError, Page
from opic.client.answers import Mode
from opic.client.unsent_events import UnsentEvents, links_that_fit
from opic.errors import BadUrl, MissingExtra
from opic.html.media_types import MediaType
from opic.html.process import LinkProcess
from opic.urls.canonical import canonical_url, host_of

try:
    from crawlee import Request, RequestState
    from crawlee.request_loaders import RequestManager
    from crawlee.storage_clients.models import ProcessedRequest
except ModuleNotFoundError as error:
    raise MissingExtra(f"what opic.crawlee needs, such as {error.name},", "crawlee") from None

log = logging.getLogger("opic.crawlee")

POLL_SECONDS_MIN: Final = 0.05
POLL_SECONDS_MAX: Final = 1.0  # Other processes may bring new pages at any time.
AGAIN_SECONDS: Final = 2.0  # From a failed call to the next one, beside the client's own retries.
CLOSE_SECONDS: Final = 5.0
SEEDS_MAX: Final = 1_000  # In a call.
DOMAINS_MAX: Final = 100
BODY_BYTES_MAX: Final = 16 << 20  # Links beyond are not looked for.


@dataclass(slots=True)
class _Lease:
    """A page that was handed out; times are of the monotonic clock."""

    page: Page
    seconds: float
    ends: float


@dataclass(slots=True)
class _LastAnswer:
    """What a page answered when it was last fetched."""

    url: str  # Where redirects led.
    status: int
    links: list[str] = field(default_factory=list)


class OpicRequestManager(RequestManager):
    """The requests of a crawl, in the order of the service. Use it as an async context manager."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        crawler: str = "",
        mode: Mode = "discover",
        domains: Sequence[str] | None = None,
        pages_at_once: int = 10,
        lease_seconds: float | None = None,
        close_after_idle: float = 30.0,
        nofollow: str = "follow",
        directory: str | None = None,
    ) -> None:
        """Connect nothing yet.

        Args:
            url: the service.
            token: its token.
            crawler: the name of this crawler.
            mode: pages never read (discover), those read before (refresh), or both (any).
            domains: only pages of these hosts or domains, at most 100; by default the hosts of the start requests, and
                all if there are none.
            pages_at_once: how many pages are leased in one call, beside those in work.
            lease_seconds: how long a page is ours; it is renewed while it is in work.
            close_after_idle: the crawl ends after so many seconds without a page, or as soon as the service says that
                there will be none; 0 waits for that.
            nofollow: `drop` leaves out links with rel=nofollow.
            directory: where events are kept that the service has not taken at the end, for the next run.
        """
        self._client = AsyncClient(url, token=token, crawler=crawler)
        self._crawler, self._mode, self._pages_at_once = crawler, mode, pages_at_once
        self._lease_seconds, self._close_after_idle = lease_seconds, close_after_idle
        self._domains, self._start_hosts = domains, dict[str, None]()
        self._links = LinkProcess(drop_nofollow=nofollow == "drop")
        self._unsent = UnsentEvents(directory)
        self._seeds: dict[int, dict[str, None]] = {}  # By depth; ordered.
        self._kept = dict[str, Request]()  # By page, until it is handed out.
        self._own = deque[Request]()  # What the service has no part in, and retries.
        self._leased = deque[Page]()  # That wait for the crawler.
        self._leases = dict[str, _Lease]()  # By page.
        self._in_work = dict[str, str]()  # Unique key of a request -> its page, or "".
        self._answers = dict[str, _LastAnswer]()  # By unique key.
        self._poll_at, self._idle_since, self._exhausted = 0.0, time.monotonic(), False
        self._began, self._handled = False, 0
        self._turn = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "OpicRequestManager":
        """Return it."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Send what is left, and give back the pages that were not begun with."""
        await self.drop()

    # What Crawlee asks for.

    async def get_handled_count(self) -> int:
        """Return how many requests were handled."""
        return self._handled

    async def get_total_count(self) -> int:
        """Return how many requests were handled, are in work or wait here. The service may have more."""
        return self._handled + len(self._in_work) + len(self._own) + len(self._leased)

    async def is_empty(self) -> bool:
        """Return whether no request can be handled now."""
        if not (self._own or self._leased):
            await self._talk()
        return not (self._own or self._leased)

    async def is_finished(self) -> bool:
        """Return whether all pages were fetched and reported."""
        if self._own or self._leased or self._in_work:
            return False
        await self._talk()
        if self._own or self._leased or self._seeds or len(self._unsent):
            return False
        idle = time.monotonic() - self._idle_since
        return self._exhausted or 0 < self._close_after_idle <= idle

    async def fetch_next_request(self) -> Request | None:
        """Return a request: another try or one of our own first, then the best page."""
        if not (self._own or self._leased):
            await self._talk()
        if self._own:
            request = self._own.popleft()
            self._in_work.setdefault(request.unique_key, "")
            return request
        if not self._leased:
            return None
        page = self._leased.popleft()
        request = self._kept.pop(page.url) if page.url in self._kept else Request.from_url(page.url)
        self._in_work[request.unique_key] = page.url
        return request

    async def add_request(self, request: str | Request, *, forefront: bool = False) -> ProcessedRequest | None:
        """Make a page known to the service, and keep the request until the page comes.

        A request with a method other than GET, or with a payload, is handled here.
        """
        request = self._transform_request(request)
        page = _page_of(request)
        known = page is not None and (page in self._kept or page in self._leases)
        if page is None:
            self._own.appendleft(request) if forefront else self._own.append(request)
        elif not known:
            self._kept[page] = request
            self._seeds.setdefault(request.crawl_depth, {})[page] = None
            self._poll_at, self._exhausted = 0.0, False
            if request.crawl_depth == 0:
                self._start_hosts[host_of(page)] = None
        return _processed(request, known=known)

    async def reclaim_request(self, request: Request, *, forefront: bool = False) -> ProcessedRequest | None:
        """Take a request back that is to be tried again; its page stays ours."""
        self._own.appendleft(request) if forefront else self._own.append(request)
        return _processed(request, known=True)

    async def mark_request_as_handled(self, request: Request) -> ProcessedRequest | None:
        """Report a page that is done, failed for good, or is excluded."""
        page = self._in_work.pop(request.unique_key, "") or _page_of(request)
        answer = self._answers.pop(request.unique_key, None)
        self._handled += 1
        if page is not None:
            self._leases.pop(page, None)
            self._report(page, request, answer)
            self._poll_at, self._idle_since = 0.0, time.monotonic()
        return _processed(request, known=True, handled=True)

    async def purge(self) -> None:
        """Forget the requests that wait. The service forgets nothing: `AsyncClient.forget` does that."""
        self._own.clear()
        self._kept.clear()

    async def drop(self) -> None:
        """Send what is left, give back the pages that were not begun with, and close."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        try:
            async with asyncio.timeout(CLOSE_SECONDS), self._turn:
                await self._send()
                if unstarted := [page.lease for page in self._leased]:
                    await self._client.release(unstarted)
        except (ClientError, TimeoutError) as error:
            log.error("the service did not take all that was left at the end: %s", str(error) or "it is too slow")
        if not self._unsent.save():
            log.error("%d events are lost; their pages are offered again. `directory` keeps them", len(self._unsent))
        await self._links.aclose()
        await self._client.aclose()

    # What pages answered.

    async def note(self, request: Request, url: str, status: int, kind: str | None, body: bytes) -> None:
        """Note the answer of a page, with its links.

        Args:
            request: the request.
            url: where redirects led.
            status: the status of the answer.
            kind: its Content-Type, None if it had none.
            body: its body.
        """
        links = list[str]()
        if 200 <= status < 300:
            links, _ = await self._links.read(url, body[:BODY_BYTES_MAX], kind)
        self._answers[request.unique_key] = _LastAnswer(url, status, links_that_fit(url, links))

    def _report(self, page: str, request: Request, answer: _LastAnswer | None) -> None:
        said: dict[str, Any] = {"fetched_at": time.time(), "depth": request.crawl_depth}
        if self._crawler:
            said["crawler"] = self._crawler
        if request.state == RequestState.SKIPPED:
            self._unsent.add({**said, "url": page, "status": 0, "excluded": True})
            return
        if answer is None:  # There never was one.
            self._unsent.add({**said, "url": page, "status": 0})
            return
        if _canonical(answer.url) not in (page, None):  # The hops in between are not told.
            self._unsent.add({**said, "url": page, "status": 302, "redirect": answer.url})
        self._unsent.add({**said, "url": answer.url, "status": answer.status, "links": answer.links})

    # The service.

    async def _talk(self) -> None:
        """Send what there is, and ask for pages, if it is time to."""
        async with self._turn:
            if self._own or self._leased or time.monotonic() < self._poll_at:
                return
            try:
                await self._send()
                await self._poll()
                self._began = True
            except ClientError as error:
                if not self._began:
                    raise
                self._poll_at, self._exhausted = time.monotonic() + AGAIN_SECONDS, False
                self._idle_since = time.monotonic()  # Without a service nobody knows whether there is more to do.
                log.error("%s; %d events wait, and no new pages come until that works", error, len(self._unsent))

    async def _send(self) -> None:
        for depth, pages in list(self._seeds.items()):
            while pages:
                await self._seed(list(pages)[:SEEDS_MAX], depth)
            del self._seeds[depth]
        while await self._unsent.send(self._client, _refused) is not None:
            pass

    async def _seed(self, pages: list[str], depth: int) -> None:
        answer = await self._client.seed(pages, depth=depth, raise_rejected=False)
        for rejected in answer.rejected:
            log.error("%s can't be made known: %s", pages[rejected.index], rejected.error)
        for page in pages:
            del self._seeds[depth][page]

    async def _poll(self) -> None:
        now = time.monotonic()
        if self._unsent.full:
            return
        answer = await self._client.next(
            self._pages_at_once,
            lease_seconds=self._lease_seconds,
            domains=list(self._start_hosts if self._domains is None else self._domains)[:DOMAINS_MAX],
            mode=self._mode,
        )
        self._poll_at = time.monotonic() + min(max(answer.retry_after, POLL_SECONDS_MIN), POLL_SECONDS_MAX)
        self._exhausted = answer.exhausted and not answer.pages
        for page in answer.pages:
            seconds = page.lease_until - answer.as_of
            self._leases[page.url] = _Lease(page, seconds, now + seconds)
            self._leased.append(page)
        if answer.pages or self._in_work:
            self._idle_since = time.monotonic()
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())

    async def _renew(self) -> None:
        """Renew the leases of the pages that wait or are in work, once half of their time is over."""
        while True:
            await asyncio.sleep(min([lease.seconds / 4 for lease in self._leases.values()], default=1.0))
            now = time.monotonic()
            due = {one.page.lease: one for one in self._leases.values() if one.ends - now < one.seconds / 2}
            if not due:
                continue
            try:
                answer = await self._client.renew(due, lease_seconds=self._lease_seconds)
            except ClientError as error:
                log.error("%d leases are not renewed: %s", len(due), error)
                continue
            for renewed in answer.renewed:
                due[renewed.lease].ends = now + due[renewed.lease].seconds
            lost = {due[name].page.url for name in answer.lost}
            self._leased = deque(page for page in self._leased if page.url not in lost)
            for page in lost:
                self._leases.pop(page, None)


def attach(crawler: Any) -> None:
    """Have a crawler note what pages answer, for its `OpicRequestManager`: by one post-navigation hook.

    Args:
        crawler: an HTTP crawler of Crawlee (also BeautifulSoupCrawler, ParselCrawler), or a PlaywrightCrawler.
    """

    async def note(context: Any) -> None:
        manager = await crawler.get_request_manager()
        if not isinstance(manager, OpicRequestManager):
            raise TypeError("attach() is for a crawler with request_manager=OpicRequestManager(...)")
        url = context.request.loaded_url or context.request.url
        if (response := getattr(context, "http_response", None)) is not None:
            kind = response.headers.get("content-type")
            await manager.note(context.request, url, response.status_code, kind, await response.read())
        else:  # The page as the browser sees it; its text is decoded.
            response, kind = context.response, "text/plain"
            body = (await context.page.content()).encode("ascii", "xmlcharrefreplace")
            if MediaType.of(response.headers.get("content-type")).may_have_links:
                encoding = await context.page.evaluate("document.characterSet")  # Of queries.
                kind = f"text/html; charset={'utf-8' if encoding.startswith('UTF') else encoding}"
            await manager.note(context.request, context.page.url, response.status, kind, body)

    crawler.post_navigation_hook(note)


def _refused(_: bytes, why: str) -> None:
    log.error("the service refuses an event: %s", why)


def _page_of(request: Request) -> str | None:
    """Return the page that a request fetches; None if it is no plain GET."""
    return None if request.method != "GET" or request.payload else _canonical(request.url)


def _canonical(url: str) -> str | None:
    try:
        return canonical_url(url)
    except BadUrl:
        return None


def _processed(request: Request, *, known: bool, handled: bool = False) -> ProcessedRequest:
    said: Mapping[str, Any] = {"unique_key": request.unique_key, "was_already_present": known}
    return ProcessedRequest(**said, was_already_handled=handled)
