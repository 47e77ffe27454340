"""The crawl's talk with the service: seeds and events go there, pages come from there.

One task reads the links of pages that the engine is done with, and queues their events. The other sends seeds and
events, renews leases and asks for pages, in turn, so that pages which an event makes known can come with the next
answer.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

import msgspec
from scrapy import Request, Spider
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import Crawler
from scrapy.robotstxt import RobotParser

from opic.client import AsyncClient, BadRequest, ClientError, Page
from opic.client.unsent_events import UnsentEvents, links_that_fit
from opic.html.process import LinkProcess
from opic.scrapy.in_flight import Fetch, InFlight, PageLease, key_of, page_of
from opic.scrapy.options import CrawlOptions, concurrency_of
from opic.urls.canonical import host_of

log = logging.getLogger("opic.scrapy")

TICK_SECONDS: Final = 0.05  # How often the engine is asked what it is done with.
GATHER_SECONDS: Final = 0.1  # How long events wait for others while pages are in flight: calls cost more than events.
POLL_SECONDS_MIN: Final = 0.05
POLL_SECONDS_MAX: Final = 1.0  # Other processes may bring new pages at any time.
AGAIN_SECONDS: Final = 2.0  # From a failed call to the next round, beside the client's own retries.
DELAYS_SECONDS: Final = 60.0  # How often the service is asked for the delays of hosts.
CLOSE_SECONDS: Final = 5.0  # For what is left to be said when the spider closes.
DOMAINS_MAX: Final = 100  # The service's limit for one request.
SEEDS_MAX: Final = 1_000  # In a call.
UNREACHABLE: Final = "opic_unreachable"  # Reasons for closing.
BROKEN: Final = "opic_error"


class ServiceTask:
    """Talks with the service as long as the spider is open."""

    def __init__(
        self,
        crawler: Crawler,
        options: CrawlOptions,
        pages: InFlight,
        unsent: UnsentEvents,
        *,
        hand_over: Callable[[Page], bool],
        commit: Callable[[], None],
    ) -> None:
        """Connect nothing yet.

        Args:
            crawler: the crawl.
            options: its settings.
            pages: what the engine works on.
            unsent: the queue of events.
            hand_over: gives a page to the engine; returns False if it does not take it.
            commit: makes the requests durable that the callbacks of the events' pages made.
        """
        self._crawler, self._options, self._pages, self._unsent = crawler, options, pages, unsent
        self._hand_over, self._commit = hand_over, commit
        self._client = AsyncClient(options.url, token=options.api_token, crawler=options.crawler)
        pages.pace, self._delays_at = self._client.pace, 0.0
        self._unreleased = list[str]()
        self._links = LinkProcess(drop_nofollow=options.nofollow == "drop")
        self._seeds: dict[int, dict[str, None]] = defaultdict(dict)  # By depth; ordered.
        self._told: set[str] = set()  # Pages that were made known though no page links to them.
        self._delays: dict[str, float] = {}
        self._at_once = concurrency_of(crawler.settings)
        self._wake, self._tasks = asyncio.Event(), list[asyncio.Task[None]]()
        self._poll_at, self._idle_since, self._domains_at = 0.0, float("inf"), 0
        self._began = self._closing = False

    def start(self) -> None:
        """Start both tasks, once the engine has started."""
        self._tasks = [asyncio.ensure_future(task) for task in (self._read_pages(), self._talk())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the spider closes after an error of opic.scrapy", exc_info=error)
            self._close_spider(BROKEN)

    def _close_spider(self, reason: str) -> None:
        self._tasks.append(asyncio.ensure_future(_engine_of(self._crawler).close_spider_async(reason=reason)))

    def seed(self, page: str, depth: int = 0) -> None:
        """Make a page known, soon."""
        self._seeds[depth][page] = None
        self._wake.set()

    def add_event(self, **event: object) -> None:
        """Queue an event."""
        self._unsent.add({"crawler": self._options.crawler, **event})
        self._wake.set()

    def release(self, lease: str) -> None:
        """Give a page back, soon."""
        self._unreleased.append(lease)
        self._wake.set()

    def keep_delay(self, robotparser: RobotParser, request: Request) -> None:
        """Note the crawl-delay of a robots.txt."""
        settings = self._crawler.settings
        delay = robotparser.crawl_delay(settings["ROBOTSTXT_USER_AGENT"] or settings["USER_AGENT"])
        if delay and (page := key_of(request.url)):
            self._delays[host_of(page)] = delay

    def has_been_idle(self) -> bool:
        """Tell whether there has been nothing to do for so long that the spider may close."""
        limit = self._options.close_after_idle
        return limit > 0 and time.monotonic() - self._idle_since >= limit

    # The pages that the engine is done with.

    async def _read_pages(self) -> None:
        while True:
            await self._take_finished()
            await asyncio.sleep(TICK_SECONDS)

    async def _take_finished(self) -> None:
        self._pages.sweep(_engine_of(self._crawler))
        while self._pages.over:
            fetch = self._pages.over[0]  # It stays there until it is reported, even if this task is cancelled.
            if fetch.event is None:
                self._count("ignored")
            else:
                await self._report(fetch, fetch.event)
            self._pages.reported()
            self._wake.set()

    async def _report(self, fetch: Fetch, event: dict[str, object]) -> None:
        links = list[str]()
        if fetch.body:
            links, _ = await self._links.read(fetch.base, fetch.body, fetch.content_type)
            self._count("links", len(links))
            event["links"] = links = links_that_fit(fetch.url, links)
        depth = event.get("depth", 0)
        assert isinstance(depth, int)
        for page in _unlinked(fetch.asked, links):
            if page not in self._told:  # The spider goes where no link leads; depth 1 and more makes no seeds of these.
                self._told.add(page)
                self.seed(page, depth + 1)
        self.add_event(url=fetch.url, **event)

    # The service.

    async def _talk(self) -> None:
        while not self._closing:
            try:
                await self._round()
                self._began = True
                await self._pause()
            except ClientError as error:
                self._idle_since = float("inf")  # Without a service nobody knows whether there is more to do.
                self._count("service_errors")
                if not self._began:
                    log.error("the spider closes, since the service can't be used: %s", error)
                    self._close_spider(UNREACHABLE)
                    return
                log.error("%s; %d events wait, and no new pages come until that works", error, len(self._unsent))
                await asyncio.sleep(AGAIN_SECONDS)

    async def _pause(self) -> None:
        left = self._poll_at - time.monotonic()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), max(left, POLL_SECONDS_MIN) if self._room() else POLL_SECONDS_MAX)
        if self._pages.fetches and not self._closing:
            await asyncio.sleep(GATHER_SECONDS)
        self._wake.clear()

    async def _round(self) -> None:
        await self._send_seeds()
        await self._send_events()
        await self._send_releases()
        await self._renew()
        await self._poll()

    async def _send_seeds(self) -> None:
        for depth, pages in list(self._seeds.items()):
            while some := list(islice(pages, SEEDS_MAX)):
                await self._send_seed(some, depth)
                for page in some:
                    del pages[page]
                self._poll_at = 0.0

    async def _send_seed(self, pages: list[str], depth: int) -> None:
        try:
            await self._client.seed(pages, depth=depth)
        except BadRequest as error:
            if len(pages) == 1:
                log.error("%s can't be made known: %s", pages[0], error)
                return
            for page in pages:  # One that can't be taken does not hold up the others.
                await self._send_seed([page], depth)

    async def _send_events(self) -> None:
        while True:
            self._commit()  # What a page's callback asked for is kept before the page counts as read.
            if (accepted := await self._unsent.send(self._client, self._reject)) is None:
                return
            self._count("events", accepted)
            self._poll_at = 0.0

    async def _send_releases(self) -> None:
        if leases := list(self._unreleased):
            await self._client.release(leases)
            del self._unreleased[: len(leases)]
            self._poll_at = 0.0

    def _reject(self, event: bytes, why: str) -> None:
        log.error("the service refuses the event of %s: %s", msgspec.msgpack.decode(event)["url"], why)
        self._count("events_rejected")

    async def _renew(self) -> None:
        now = time.monotonic()
        due = {lease.name: page for page, lease in self._pages.leases.items() if lease.ends - now < lease.seconds / 2}
        if not due:
            return
        answer = await self._client.renew(due, lease_seconds=self._options.lease_seconds)
        for renewed in answer.renewed:
            if (lease := self._pages.leases.get(due[renewed.lease])) is not None:
                lease.renew(now)
        for name in answer.lost:
            self._pages.leases.pop(due[name], None)
        self._count("leases_lost", len(answer.lost))

    # Pages.

    def _room(self) -> int:
        """Return how many pages to ask for: 0, or a fair part of what the downloader takes at once."""
        free = self._at_once - len(self._pages.leases)
        return 0 if self._unsent.full or free * 4 < self._at_once else free

    async def _poll(self) -> None:
        now = time.monotonic()
        if not (wanted := self._room()) or now < self._poll_at:
            return
        if now >= self._delays_at:
            self._pages.pace.use(await self._client.politeness())
            self._delays_at = now + DELAYS_SECONDS
        delays, self._delays = self._delays, {}
        try:
            answer = await self._client.next(
                wanted,
                lease_seconds=self._options.lease_seconds,
                domains=self._next_domains(),
                mode=self._options.mode,
                max_depth=self._crawler.settings.getint("DEPTH_LIMIT") or None,
                busy_hosts=self._busy_hosts(),
                crawl_delays=delays,
            )
        except ClientError:
            self._delays = {**delays, **self._delays}
            raise
        self._poll_at = time.monotonic() + min(max(answer.retry_after, POLL_SECONDS_MIN), POLL_SECONDS_MAX)
        if self._closing:
            await self._client.release(answer.pages)
            return
        for page in answer.pages:
            if self._pages.knows(page.url):
                continue  # The spider fetches it without a lease; that event will end this one.
            seconds = page.lease_until - answer.as_of
            self._pages.leases[page.url] = PageLease(page.lease, seconds, now + seconds)
            if self._hand_over(page):
                self._count("pages")
            else:
                del self._pages.leases[page.url]
                self._count("ignored")
        busy = answer.pages or self._pages.busy or len(self._unsent)
        self._idle_since = float("inf") if busy else min(self._idle_since, time.monotonic())

    def _next_domains(self) -> list[str]:
        """Return the domains that the spider stays within; if there are too many for a request, some in turn."""
        spider = self._crawler.spider
        allowed = sorted(set(allowed_domains(spider)))
        some = allowed[self._domains_at : self._domains_at + DOMAINS_MAX]
        self._domains_at += DOMAINS_MAX
        if self._domains_at >= len(allowed):
            self._domains_at = 0
        return some

    def _busy_hosts(self) -> set[str]:
        """Return the hosts to which the downloader would not send another request now."""
        slots = _engine_of(self._crawler).downloader.slots.values()
        full = (slot for slot in slots if slot.queue or slot.free_transfer_slots() <= 0)
        pages = (page_of(request) for slot in full for request in slot.active)
        return {host_of(page) for page in pages if page is not None}

    # The end.

    async def close(self, unstarted: Sequence[str]) -> None:
        """Report what the engine did, and give back the pages that it did not begin with.

        Args:
            unstarted: the leases of these.
        """
        self._closing = True
        self._wake.set()
        if self._tasks:
            reading, talking, *_ = self._tasks
            await asyncio.wait([talking], timeout=CLOSE_SECONDS)
            for task in (reading, talking):
                task.cancel()
            await asyncio.gather(reading, talking, return_exceptions=True)
        await self._take_finished()
        if self._began:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._send_seeds()
                    await self._send_events()
                    self._unreleased += unstarted
                    await self._send_releases()
            except (ClientError, TimeoutError) as error:
                log.error("the service did not take all that was left at the end: %s", str(error) or "it is too slow")
        if not self._unsent.save():
            log.error(
                "%d events are lost; their pages will be offered again. With JOBDIR set they would be sent next time",
                len(self._unsent),
            )
        self._crawler.stats.set_value("opic/events_unsent", len(self._unsent))
        await self._links.aclose()
        await self._client.aclose()

    def _count(self, name: str, count: int = 1) -> None:
        self._crawler.stats.inc_value(f"opic/{name}", count)


def _engine_of(crawler: Crawler) -> ExecutionEngine:
    assert crawler.engine is not None
    return crawler.engine


def allowed_domains(spider: Spider | None) -> list[str]:
    """Return the domains that a spider stays within; none are all."""
    return [domain for domain in getattr(spider, "allowed_domains", None) or [] if domain]


def _unlinked(asked: list[str], links: list[str]) -> set[str]:
    """Return the pages asked for that are not among the links; requests may escape more of a URL than links do."""
    left = set(asked).difference(links)
    if left:
        left.difference_update(key_of(Request(link).url) for link in links)
    return left
