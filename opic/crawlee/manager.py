"""The request manager: a crawler's requests wait here, their pages in the service."""

import logging
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from crawlee import Request, RequestState
from crawlee.request_loaders import RequestManager
from crawlee.storage_clients.models import ProcessedRequest

from opic.client import AsyncClient, CrawlSession, LeasedPage, retry_after_seconds
from opic.client.answers import Mode
from opic.client.crawl_session import DOMAINS_MAX
from opic.client.unsent_events import links_that_fit
from opic.crawlee.requests import (
    FAILED_FROM,
    PageAnswer,
    RequestWork,
    host_asked,
    identity_of,
    page_of,
    processed,
    put,
)
from opic.html.links import absolute_link
from opic.html.process import LinkProcess
from opic.urls.canonical import canonical_or_none, host_of

log = logging.getLogger("opic.crawlee")

BODY_BYTES_MAX: Final = 16 << 20  # Links beyond are not looked for.


class OpicRequestManager(RequestManager):
    """The requests of a crawl, in the order of the service. Use it as an async context manager.

    All requests of a page share its turn: the first one is handled under the lease, the others after it, at the pace of
    the host. A request that is tried again gives its lease back, and waits for another turn of its page.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        crawl: str | None = None,
        crawler: str = "",
        mode: Mode = "discover",
        domains: Sequence[str] | None = None,
        max_depth: int | None = None,
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
            crawl: the crawl of the service; None is its OPIC_CRAWL.
            crawler: the name of this crawler.
            mode: pages never read (discover), those read before (refresh), or both (any).
            domains: only pages of these hosts or domains, at most 100; by default the hosts of the start requests, and
                all if there are none.
            max_depth: only pages at most so many links from a seed.
            pages_at_once: how many pages are leased in one call, beside those in work.
            lease_seconds: how long a page is ours; it is renewed while it is in work.
            close_after_idle: the crawl ends after so many seconds without a page, or as soon as the service says that
                there will be none; 0 waits for that.
            nofollow: `drop` leaves out links with rel=nofollow.
            directory: where events are kept that the service has not taken at the end, for the next run.
        """
        client = AsyncClient(url, token=token, crawl=crawl, crawler=crawler)
        self._session, self._pace = CrawlSession(client, directory=directory, lease_seconds=lease_seconds), client.pace
        self._mode, self._max_depth, self._close_after_idle = mode, max_depth, close_after_idle
        self._pages_at_once, self._domains = pages_at_once, domains
        self._start_hosts = dict[str, None]()
        self._links = LinkProcess(drop_nofollow=nofollow == "drop")
        self._waiting = defaultdict[str, deque[Request]](deque)  # By page, until it is handed out.
        self._own = defaultdict[str, deque[Request]](deque)  # By host: requests that the service does not hand out.
        self._own_first = False
        self._leased = deque[LeasedPage]()  # Pages that wait for the crawler.
        self._work = dict[int, RequestWork]()  # By the identity of the request: keys of Crawlee may name several pages.
        self._seen, self._done = set[int](), set[int]()  # Hashes of all requests, and of the pages reported.
        self._handled = 0

    async def __aenter__(self) -> "OpicRequestManager":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Send what is left, and release the pages that were never started."""
        await self.drop()

    # What Crawlee asks for.

    async def get_handled_count(self) -> int:
        return self._handled

    async def get_total_count(self) -> int:
        """Return how many requests were handled, are in work or wait here. The service may have more."""
        return self._handled + len(self._work) + sum(map(len, self._own.values())) + len(self._leased)

    async def is_empty(self) -> bool:
        """Return whether no request can be handled now."""
        if not self._has_ready():
            await self._talk()
        return not self._has_ready()

    async def is_finished(self) -> bool:
        """Return whether all pages were fetched and reported."""
        if self._is_busy():
            return False
        await self._talk()
        if self._is_busy() or self._session.waiting:
            return False
        idle = 0 < self._close_after_idle <= time.monotonic() - self._session.idle_since
        if not idle and (self._own or not self._session.exhausted):
            return False
        return not self._take_left()

    def _is_busy(self) -> bool:
        """Whether there is work now or soon; a host that asked for a pause may let its requests wait for hours."""
        return bool(self._leased or self._work) or not all(map(self._pace.rests, self._own))

    def _take_left(self) -> bool:
        """Take the requests with keys of their own whose page did not come; return whether there are any."""
        left = [
            request
            for page in list(self._waiting)
            for request in self._waiting[page]
            if request.unique_key != Request.from_url(request.url).unique_key
        ]
        for request in left:
            page = page_of(request)
            assert page is not None
            self._waiting[page].remove(request)
            if not self._waiting[page]:
                del self._waiting[page]
            self._own[host_of(page)].append(request)
        return bool(left)

    async def fetch_next_request(self) -> Request | None:
        """Return a request whose host may be asked now: one of our own, and the best page, in turn."""
        if not self._has_ready():
            await self._talk()
        self._own_first = not self._own_first
        work = (self._own_first and self._next_own()) or self._next_page() or self._next_own()
        if not work:
            return None
        self._pace.start(host_asked(work.request.url))
        self._work[id(work.request)] = work
        return work.request

    def _has_ready(self) -> bool:
        self._leased = deque(filter(self._session.holds, self._leased))
        hosts = (*self._own, *(host_of(lease.page.url) for lease in self._leased))
        return any(self._pace.wait(host) <= 0 for host in hosts)

    def _next_own(self) -> RequestWork | None:
        for host in self._own:
            if self._pace.wait(host) <= 0:
                requests = self._own.pop(host)
                request = requests.popleft()
                if requests:
                    self._own[host] = requests  # Behind the other hosts.
                return RequestWork(request, page_of(request))
        return None

    def _next_page(self) -> RequestWork | None:
        for index, lease in enumerate(self._leased):
            page = lease.page
            if self._pace.wait(host_of(page.url)) <= 0:
                del self._leased[index]
                if waiting := self._waiting.pop(page.url, None):
                    request = waiting.popleft()
                    if waiting:
                        self._waiting[page.url] = waiting
                    return RequestWork(request, page.url, lease)
                request = Request.from_url(page.url)
                request.crawl_depth = page.depth or 0
                self._seen.add(identity_of(request))
                return RequestWork(request, page.url, lease)
        return None

    async def add_request(self, request: str | Request, *, forefront: bool = False) -> ProcessedRequest | None:
        """Make a page known to the service, and keep the request until the page comes.

        A request that differs from all others of its page is handled even if the page was fetched before. One with a
        method other than GET, or with a payload, is handled here.
        """
        request = self._transform_request(request)
        page, identity = page_of(request), identity_of(request)
        if identity in self._seen:
            return processed(request, known=True)
        self._seen.add(identity)
        self._session.wake()
        if page is None or hash(page) in self._done:
            put(self._own[host_asked(request.url)], request, forefront)
        else:
            if page not in self._waiting and all(work.page != page for work in self._work.values()):
                self._session.seed(page, request.crawl_depth)
            put(self._waiting[page], request, forefront)
            if request.crawl_depth == 0:
                self._start_hosts[host_of(page)] = None
        return processed(request, known=False)

    async def reclaim_request(self, request: Request, *, forefront: bool = False) -> ProcessedRequest | None:
        """Take a request back that is to be tried again."""
        work = self._pop(request)
        if work.lease is None:
            put(self._own[host_asked(request.url)], request, forefront)
        else:
            self._waiting[work.lease.page.url].appendleft(request)
            self._give_back(work, work.lease)
        return processed(request, known=True)

    async def mark_request_as_handled(self, request: Request) -> ProcessedRequest | None:
        """Report a page that is done, failed for good, or is excluded; other requests of it come next."""
        work = self._pop(request)
        self._handled += 1
        self._session.wake()
        if work.page is None:
            return processed(request, known=True, handled=True)
        if work.lease is not None and request.state == RequestState.ERROR_HANDLER and self._waiting.get(work.page):
            self._give_back(work, work.lease)  # The error handler has put another request in its place.
            return processed(request, known=True, handled=True)
        if work.lease is not None or hash(work.page) not in self._done:
            self._report(work, work.page)
        if work.lease is not None and (others := self._waiting.pop(work.page, None)):
            self._own[host_of(work.page)].extend(others)
        return processed(request, known=True, handled=True)

    def _pop(self, request: Request) -> RequestWork:
        work = self._work.pop(id(request), None) or RequestWork(request, page_of(request))
        if work.lease is not None:
            self._session.end(work.lease)
        return work

    async def purge(self) -> None:
        """Forget the requests that wait. The service forgets nothing: `AsyncClient.forget` does that."""
        for requests in (self._own, self._waiting, self._seen):
            requests.clear()

    async def drop(self) -> None:
        """Send what is left, release the pages that were never started, and close."""
        await self._session.aclose()
        if left := sum(len(requests) for kept in (self._waiting, self._own) for requests in kept.values()):
            log.warning("%d requests were not handled: their pages did not come, or their hosts rest", left)
        await self._links.aclose()

    # What pages answered.

    async def note(  # noqa: PLR0917 - what a page answers
        self,
        request: Request,
        url: str,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        addresses: Sequence[str] = (),
    ) -> None:
        """Note the answer of a page, with its links.

        Args:
            request: the request.
            url: where redirects led.
            status: the status of the answer.
            headers: its headers, by lower-case name.
            body: its body.
            addresses: the IP addresses of its host, first the one that was asked, if they are known.
        """
        work = self._work.get(id(request))
        if work is None:
            return
        answer = work.answer = PageAnswer(url, status, addresses=addresses)
        if status >= FAILED_FROM:
            answer.retry_after = retry_after_seconds(headers.get("retry-after"))
            self._pace.note(url, status, answer.retry_after)
        elif status >= 300 and "location" in headers:
            answer.redirect = absolute_link(url, headers["location"])
        is_reported = work.lease is not None or (work.page is not None and hash(work.page) not in self._done)
        if is_reported and 200 <= status < 300:
            links, _ = await self._links.read(url, body[:BODY_BYTES_MAX], headers.get("content-type"))
            answer.links = links_that_fit(url, links)

    def _give_back(self, work: RequestWork, lease: LeasedPage) -> None:
        """End a lease without a report of its page, but of the pause that its host asks for."""
        if work.answer is not None and work.answer.asks_for_pause:
            failed = {"status": work.answer.status, "retry_after": work.answer.retry_after}
            self._session.add_event(lease.page.url, fetched_at=work.answer.fetched_at, **failed)
        else:
            self._session.release(lease)

    def _report(self, work: RequestWork, page: str) -> None:
        answer, lease = work.answer, work.lease
        said: dict[str, Any] = {} if lease and lease.page.depth is None else {"depth": work.request.crawl_depth}
        if work.request.state == RequestState.SKIPPED:
            self._session.add_event(page, status=0, excluded=True, **said)
            self._done.add(hash(page))
            return
        if answer is None:  # There never was one.
            self._session.add_event(page, status=0, **said)
            return
        target, fetched_at = canonical_or_none(answer.url), answer.fetched_at
        if target not in (page, None):  # The hops in between are not told.
            self._session.add_event(page, fetched_at=fetched_at, status=302, redirect=answer.url, **said)
            said = {}  # The target is one link deeper, as the service knows by now.
        if answer.retry_after is not None:
            said["retry_after"] = answer.retry_after
        said |= {"status": answer.status, "links": answer.links, "redirect": answer.redirect}
        said |= {"addresses": answer.addresses} if answer.addresses else {}
        self._session.add_event(answer.url, fetched_at=fetched_at, **said)
        if answer.is_final:
            self._done |= {hash(page), hash(target)}

    # The service.

    async def _talk(self) -> None:
        """Send what there is, and ask for pages, if there are none to handle now."""
        leased = await self._session.turn(self._ask)
        self._leased += leased

    def _ask(self) -> dict[str, Any] | None:
        wanted = self._pages_at_once - len(self._leased)
        if self._has_ready() or wanted <= 0:
            return None
        domains = list(self._start_hosts if self._domains is None else self._domains)[:DOMAINS_MAX]
        return {"n": wanted, "domains": domains, "mode": self._mode, "max_depth": self._max_depth}
