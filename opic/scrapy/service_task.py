"""The crawl's talk with the service: seeds and events go there, pages come from there.

One task reads the links of pages that the engine is done with, and queues their events. The other sends seeds and
events and asks for pages, in turn, so that pages which an event makes known can come with the next answer.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from scrapy import Request, Spider
from scrapy.core.engine import ExecutionEngine
from scrapy.crawler import Crawler
from scrapy.robotstxt import RobotParser

from opic.client import AsyncClient, ClientError, CrawlSession, Page
from opic.client.crawl_session import CLOSE_SECONDS, DOMAINS_MAX, POLL_SECONDS_MAX, POLL_SECONDS_MIN
from opic.client.unsent_events import links_that_fit
from opic.html.process import LinkProcess
from opic.scrapy.in_flight import Fetch, InFlight, page_of
from opic.scrapy.options import CrawlOptions, concurrency_of
from opic.urls.canonical import canonical_or_none, host_of

log = logging.getLogger("opic.scrapy")

TICK_SECONDS: Final = 0.05  # How often the engine is asked what it is done with.
GATHER_SECONDS: Final = 0.1  # How long events wait for others while pages are in flight: calls cost more than events.
UNREACHABLE: Final = "opic_unreachable"  # Reasons for closing.
BROKEN: Final = "opic_error"


class ServiceTask:
    """Talks with the service as long as the spider is open."""

    def __init__(
        self,
        crawler: Crawler,
        options: CrawlOptions,
        pages: InFlight,
        directory: str | None,
        *,
        hand_over: Callable[[Page], bool],
        commit: Callable[[], None],
    ) -> None:
        """Connect nothing yet.

        Args:
            crawler: the crawl.
            options: its settings.
            pages: what the engine works on.
            directory: where unsent events are kept, JOBDIR.
            hand_over: gives a page to the engine; returns False if it does not take it.
            commit: makes the requests durable that the callbacks of the events' pages made.
        """
        self._crawler, self._options, self._pages, self._hand_over = crawler, options, pages, hand_over
        client = AsyncClient(options.url, token=options.api_token, crawl=options.crawl, crawler=options.crawler)
        self.session = CrawlSession(
            client, directory=directory, lease_seconds=options.lease_seconds, commit=commit, count=self._count
        )
        pages.pace, pages.leases = client.pace, self.session.leases
        self._links = LinkProcess(drop_nofollow=options.nofollow == "drop")
        self._told: set[str] = set()  # Pages that were made known though no page links to them.
        self._at_once = concurrency_of(crawler.settings)
        self._tasks = list[asyncio.Task[None]]()
        self._domains_at, self._closing = 0, False

    def start(self) -> None:
        """Start both tasks, once the engine has started."""
        self._tasks = [asyncio.ensure_future(task) for task in (self._read_pages(), self._talk())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        unreachable = isinstance(error, ClientError)
        if unreachable:
            log.error("the spider closes, since the service can't be used: %s", error)
        else:
            log.critical("the spider closes after an error of opic.scrapy", exc_info=error)
        closing = _engine_of(self._crawler).close_spider_async(reason=UNREACHABLE if unreachable else BROKEN)
        self._tasks.append(asyncio.ensure_future(closing))

    def keep_delay(self, robotparser: RobotParser, request: Request) -> None:
        """Note the crawl-delay of a robots.txt."""
        settings = self._crawler.settings
        delay = robotparser.crawl_delay(settings["ROBOTSTXT_USER_AGENT"] or settings["USER_AGENT"])
        if delay and (page := canonical_or_none(request.url)):
            self.session.crawl_delays[host_of(page)] = delay

    def has_been_idle(self) -> bool:
        """Tell whether there has been nothing to do for so long that the spider may close."""
        limit, busy = self._options.close_after_idle, self._pages.busy or self.session.waiting
        return limit > 0 and not busy and time.monotonic() - self.session.idle_since >= limit

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
            self.session.wake()

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
                self.session.seed(page, depth + 1)
        self.session.add_event(fetch.url, **event)

    # The service.

    async def _talk(self) -> None:
        while not self._closing:
            leased = await self.session.turn(self._ask)
            for lease in leased if not self._closing else ():
                if self._pages.fetching(lease.page.url):
                    continue  # The spider fetches it already; that event will end the lease.
                if self._hand_over(lease.page):
                    self._count("pages")
                else:
                    self.session.end(lease)
                    self._count("ignored")
            await self._pause()

    async def _pause(self) -> None:
        left = self.session.poll_at - time.monotonic()
        with suppress(TimeoutError):
            seconds = max(left, POLL_SECONDS_MIN) if self._room() else POLL_SECONDS_MAX
            await asyncio.wait_for(self.session.awake.wait(), seconds)
        if self._pages.fetches and not self._closing:
            await asyncio.sleep(GATHER_SECONDS)
        self.session.awake.clear()

    def _room(self) -> int:
        """Return how many pages to ask for: 0, or a fair part of what the downloader takes at once."""
        free = self._at_once - len(self._pages.leases)
        return 0 if self.session.unsent.full or free * 4 < self._at_once else free

    def _ask(self) -> dict[str, Any] | None:
        if not (room := self._room()):
            return None
        return {
            "n": room,
            "domains": self._next_domains(),
            "mode": self._options.mode,
            "max_depth": self._crawler.settings.getint("DEPTH_LIMIT") or None,
            "busy_hosts": self._busy_hosts(),
        }

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

    async def close(self) -> None:
        """Report what the engine did, and give back the pages that it did not begin with."""
        self._closing = True
        self.session.awake.set()
        if self._tasks:
            reading, talking, *_ = self._tasks
            await asyncio.wait([talking], timeout=CLOSE_SECONDS)
            for task in (reading, talking):
                task.cancel()
            await asyncio.gather(reading, talking, return_exceptions=True)
        await self._take_finished()
        if self._tasks:
            await self.session.aclose()
        else:  # As in `scrapy shell`: nothing is sent from there.
            await self.session.client.aclose()
        self._crawler.stats.set_value("opic/events_unsent", len(self.session.unsent))
        await self._links.aclose()

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
        left.difference_update(canonical_or_none(Request(link).url) for link in links)
    return left
