"""The scheduler: pages wait in the service, all other requests in Scrapy's own queues."""

import logging
from collections import deque

import scrapy.core.scheduler
from scrapy import Request, Spider, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from scrapy.utils.job import job_dir
from twisted.internet.defer import Deferred

from opic.client import Page
from opic.errors import SettingsError
from opic.scrapy.host_slots import HostSlots
from opic.scrapy.in_flight import MARK, host_asked, in_flight_of, page_of
from opic.scrapy.kept_requests import KeptRequests, request_without_record
from opic.scrapy.options import CrawlOptions
from opic.scrapy.service_task import ServiceTask, allowed_domains
from opic.urls.canonical import canonical_or_none, host_of

log = logging.getLogger("opic.scrapy")


class Scheduler(scrapy.core.scheduler.Scheduler):
    """Scrapy's own scheduler, but for plain GET requests, which are kept until the service hands their pages out.

    Start requests become seeds. What has a body, `dont_filter`, a callback that is no method of the spider, or a host
    outside `allowed_domains` takes Scrapy's way. A page that is to be tried again waits for its next turn.
    """

    def open(self, spider: Spider) -> "Deferred[None] | None":
        """Open the queues, and talk with the service once the engine has started.

        Raises:
            SettingsError: a setting is invalid, or Scrapy does not run on asyncio.
        """
        assert self.crawler is not None
        if not is_asyncio_available():
            raise SettingsError("opic.scrapy needs asyncio: leave TWISTED_REACTOR at Scrapy's default")
        jobdir = job_dir(self.crawler.settings)
        self._pages = in_flight_of(self.crawler)
        self._kept = KeptRequests(spider, jobdir)
        self._ready = deque[tuple[str, Request]]()  # Leased pages, and their requests.
        self._leased: Request | None = None  # On its way from the service through the engine into `_ready`.
        self._resting = list[Request]()  # Of Scrapy's queues; their hosts asked for a pause.
        self._again = dict[str, Request]()  # By page: requests to be tried again, once the service hands the page out.
        self._own_first = False
        self._slots = HostSlots(self.crawler, self._pages)
        self._service = ServiceTask(
            self.crawler,
            CrawlOptions.of(self.crawler.settings),
            self._pages,
            jobdir,
            hand_over=self._hand_over,
            commit=self._kept.commit,
        )
        self._session = self._service.session
        # In `scrapy shell` the engine has started by now: nothing is polled there.
        self.crawler.signals.connect(self._service.start, signals.engine_started)
        self.crawler.signals.connect(self._service.keep_delay, signals.robots_parsed)
        self.crawler.signals.connect(self._stay_open, signals.spider_idle)
        return super().open(spider)

    def close(self, reason: str) -> "Deferred[None]":
        """Report what is left, or leave it in JOBDIR; give back the leases of pages that were not begun."""
        return deferred_from_coro(self._close(super().close(reason)))

    async def _close(self, closing: "Deferred[None] | None") -> None:
        lost = len(self._again) + sum(not self._dqpush(request) for request in self._resting)
        if lost:
            log.warning("%d requests were not tried again: their hosts, or the service, let them wait", lost)
        try:
            await self._service.close()
        finally:
            self._kept.close()
            if closing is not None:
                await maybe_deferred_to_future(closing)

    def _stay_open(self) -> None:
        if not self._service.has_been_idle():
            raise DontCloseSpider

    def __len__(self) -> int:
        """Return the number of requests that wait here.

        Pages that wait in the service are not counted, and neither is what waits for a pause of its host to end: that
        may take longer than a spider that has nothing else to do should wait.
        """
        return super().__len__() + len(self._ready)

    def enqueue_request(self, request: Request) -> bool:
        """Take a request; return False for a repeated one."""
        parent = self._pages.parents.pop(request, None)
        page = page_of(request)
        if request is self._leased:
            assert page is not None
            self._ready.append((page, request))
            self._leased = None
            return True
        self._pages.refreshed(request)
        if page is not None and self._is_put_off(request, page):
            return True
        if self._leads_back(request, page):
            return super().enqueue_request(request.replace(dont_filter=True))
        if page is None or not self._is_for_service(request, page):
            return super().enqueue_request(request)
        is_start = request.meta.get("is_start_request", False)
        if parent is not None:
            parent.asked.append(page)
        elif not request.meta.get("redirect_times"):  # Where a redirect leads is known by the redirect's event.
            self._session.seed(page)
        return self._kept.add(page, request) or is_start

    def _is_put_off(self, request: Request, page: str) -> bool:
        """Tell whether a request was for a page's turn that came to nothing, so that it waits for the next one.

        So it is with retries, pages that want a cookie, and pauses of hosts.
        """
        if (lease := self._pages.put_off(request, page)) is None:
            return False
        self._again[page] = request
        self._session.release(lease)
        return True

    def _leads_back(self, request: Request, page: str | None) -> bool:
        """Tell whether a page that has redirected is redirected to, with a cookie that it lacked."""
        source = self._pages.source_of(request)
        if source is None or not source.sets_cookie:
            return False
        if page not in map(canonical_or_none, request.meta["redirect_urls"]):
            return False
        if source.leads_to_itself:
            source.event = None
        return True

    def _is_for_service(self, request: Request, page: str) -> bool:
        """Tell whether the service may say when a request has its turn."""
        repeated = MARK in request.meta or request.meta.get("redirect_times") or request.meta.get("retry_times")
        if request.dont_filter and (repeated or not request.meta.get("is_start_request")):
            return False
        calls = [call for call in (request.callback, request.errback) if call is not None]
        if any(getattr(call, "__self__", None) is not self.spider for call in calls):
            return False
        allowed = allowed_domains(self.spider)
        host = host_of(page)
        return not allowed or any(host == domain or host.endswith(f".{domain}") for domain in allowed)

    def next_request(self) -> Request | None:
        """Return a request, from Scrapy's queues and of leased pages in turn; None while too many events are unsent."""
        if self._session.unsent.full:
            return None
        self._own_first = not self._own_first
        ways = (self._next_own, self._next_ready) if self._own_first else (self._next_ready, self._next_own)
        request = ways[0]() or ways[1]()
        if request is not None:
            self._pages.begin(request, page_of(request))
        return request

    def _next_own(self) -> Request | None:
        """Return a request of Scrapy's queues whose host does not rest."""
        for index, request in enumerate(self._resting):
            if not self._pages.pace.rests(host_asked(request)):
                return self._resting.pop(index)
        while (own := super().next_request()) is not None and self._pages.pace.rests(host_asked(own)):
            self._resting.append(own)
        return own

    def _next_ready(self) -> Request | None:
        while self._ready:
            page, request = self._ready.popleft()
            lease = self._pages.leases.get(page)
            if lease is None or not self._session.holds(lease):
                continue
            if self._pages.pace.rests(host_asked(request)):
                self._again[page] = request
                self._session.release(lease)
                continue
            return request
        return None

    def _hand_over(self, page: Page) -> bool:
        """Give a leased page to the engine; return False if nobody takes it."""
        assert self.crawler is not None
        assert self.crawler.engine is not None
        try:
            request = self._request_of(page)
        except Exception:
            log.exception("opic_request of the spider failed for %s", page.url)
            return False
        if request is None:
            self._session.add_event(page.url, status=0, excluded=True)
            return False
        request.meta[MARK] = {
            "page": page.url,
            "requested": request.url,
            "importance": page.importance,
            "fetched_before": page.fetched_before,
            "meta": page.meta,
        }
        if page.depth is not None:
            request.meta.setdefault("depth", page.depth)
        self._leased = request
        self.crawler.engine.crawl(request)  # Which asks those who may drop it, and then us.
        dropped, self._leased = self._leased is not None, None
        return not dropped

    def _request_of(self, page: Page) -> Request | None:
        if (again := self._again.pop(page.url, None)) is not None:
            return again
        kept = self._kept.get(canonical_or_none(Request(page.url).url) or page.url)
        return kept or request_without_record(self.spider, page.url)
