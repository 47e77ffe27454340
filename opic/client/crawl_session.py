"""A crawl's session with the service: what the crawl did is reported there, and the pages to fetch are leased there."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any, Final, Self

import msgspec

from opic.client.answers import Page
from opic.client.clients import AsyncClient
from opic.client.errors import BadRequest, ClientError
from opic.client.unsent_events import UnsentEvents

log = logging.getLogger("opic.client")

POLL_SECONDS_MIN: Final = 0.05
POLL_SECONDS_MAX: Final = 1.0  # Other processes may bring new pages at any time.
AGAIN_SECONDS: Final = 2.0  # From a failed call to the next one, besides the client's own retries.
DELAYS_SECONDS: Final = 60.0  # How often the service is asked for the delays of hosts.
CLOSE_SECONDS: Final = 5.0  # For sending what is left at the end.
DOMAINS_MAX: Final = 100  # The service's limit for one call.
SEEDS_MAX: Final = 1_000  # In a call.


@dataclass(slots=True, eq=False)
class LeasedPage:
    """A page and its lease, which lasts `seconds` from each renewal, until the monotonic time `ends`."""

    page: Page
    seconds: float
    ends: float


class CrawlSession:
    """Sends what a crawl has to say in batches, leases pages, and renews the leases in the background.

    `seed`, `add_event` and `release` only queue; `turn` calls the service. Leaving the context sends what is left,
    releases the leases still held, and keeps the events that the service has not accepted in `directory`.

    Attributes:
        client: for all other calls; its `pace` knows the delays and the pauses of hosts.
        unsent: the events that the service has not accepted yet.
        leases: the leases held, by page.
        crawl_delays: seconds by host, from robots.txt, for the next call for pages.
        exhausted: whether the last call for pages was told that none will come.
        poll_at: monotonic time of the next call for pages.
        idle_since: monotonic time at which pages and reports ran out; infinite while the service is unavailable.
        awake: set when there is something to send.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        directory: str | None = None,
        lease_seconds: float | None = None,
        commit: Callable[[], None] = lambda: None,
        count: Callable[[str, int], None] = lambda name, number: None,
    ) -> None:
        """Connect nothing yet.

        Args:
            client: the client, which the session closes.
            directory: where events are kept between two sessions; None keeps none.
            lease_seconds: duration of leases; OPIC_LEASE_SECONDS if None.
            commit: called before events are sent, to make durable what depends on them.
            count: called with the name and number of what happened: events, events_rejected, leases_lost,
                service_errors.

        Raises:
            msgspec.DecodeError: the file in `directory` is damaged.
        """
        self.client, self.unsent, self.leases = client, UnsentEvents(directory), dict[str, LeasedPage]()
        self.crawl_delays, self.exhausted, self.awake = dict[str, float](), False, asyncio.Event()
        self.poll_at, self.idle_since = 0.0, time.monotonic()
        self._lease_seconds, self._commit, self._count = lease_seconds, commit, count
        self._seeds: dict[int, dict[str, None]] = defaultdict(dict)  # By depth; ordered.
        self._unreleased, self._delays_at = list[str](), 0.0
        self._began, self._usable, self._calling = False, True, asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # What is queued.

    def seed(self, url: str, depth: int = 0) -> None:
        """Queue a seed."""
        self._seeds[depth][url] = None
        self.wake()

    def add_event(self, url: str, **fields: Any) -> None:
        """Queue the event of a page, which ends its lease.

        With status 429 or 503 and `retry_after`, the host rests for so long after the fetch.

        Args:
            url: URL of the page.
            fields: other fields of `Event`; `fetched_at`, in Unix seconds, is now if it is not given.
        """
        event = {"fetched_at": time.time(), "crawler": self.client.crawler or None, "url": url, **fields}
        if wait := event.get("retry_after"):
            self.client.pace.note(url, event.get("status", 200), event["fetched_at"] + wait - time.time())
        self.unsent.add(event)
        self.leases.pop(url, None)
        self.wake()

    def release(self, lease: LeasedPage) -> None:
        """Queue a lease whose page is given back without an event."""
        self.end(lease)
        self._unreleased.append(lease.page.lease)
        self.wake()

    def end(self, lease: LeasedPage) -> None:
        """Renew a lease no longer; it ends by itself."""
        if self.leases.get(lease.page.url) is lease:
            del self.leases[lease.page.url]

    def holds(self, lease: LeasedPage) -> bool:
        """Return whether a lease still runs, and end it if it does not: another crawler may have the page by now."""
        if lease.ends <= time.monotonic():
            self.end(lease)
        return self.leases.get(lease.page.url) is lease

    @property
    def waiting(self) -> bool:
        """Whether seeds or events wait to be sent."""
        return any(self._seeds.values()) or len(self.unsent) > 0

    def wake(self) -> None:
        """Ask the service for pages again at the next turn, even if it said that none will come."""
        self.poll_at, self.idle_since, self.exhausted = 0.0, max(self.idle_since, time.monotonic()), False
        self.awake.set()

    # Calls.

    async def turn(self, ask: Callable[[], Mapping[str, Any] | None]) -> list[LeasedPage]:
        """Send what is queued, then lease pages. A call that fails is logged, and takes AGAIN_SECONDS more.

        Args:
            ask: returns the arguments of `AsyncClient.next`, or None if there is no room for pages.

        Returns:
            The pages, besides those of which a lease was held already.

        Raises:
            ClientError: the service has never answered a call for pages: its address or its token is wrong.
        """
        async with self._calling:
            try:
                await self._send()
                if self.unsent.full or time.monotonic() < self.poll_at or (asked := ask()) is None:
                    return []
                return await self._next(**asked)
            except ClientError as error:
                self._count("service_errors", 1)
                self._usable = self._began
                if not self._began:
                    raise
                log.error("%s; %d events wait, and no new pages come until that works", error, len(self.unsent))
                self.idle_since, self.exhausted = inf, False  # Whether there is more to do is unknown.
                await asyncio.sleep(AGAIN_SECONDS)
                return []

    async def _send(self) -> None:
        for depth, urls in list(self._seeds.items()):
            while some := list(islice(urls, SEEDS_MAX)):
                await self._send_seeds(some, depth)
                for url in some:
                    del urls[url]
                self.poll_at = 0.0
        await self._send_events()
        if leases := list(self._unreleased):
            await self.client.release(leases)
            del self._unreleased[: len(leases)]
            self.poll_at = 0.0

    async def _send_seeds(self, urls: list[str], depth: int) -> None:
        try:
            for rejected in (await self.client.seed(urls, depth=depth, raise_rejected=False)).rejected:
                log.error("%s can't be made known: %s", urls[rejected.index], rejected.error)
        except BadRequest as error:
            if len(urls) == 1:
                log.error("%s can't be made known: %s", urls[0], error)
                return
            for url in urls:  # A seed that is refused must not block the others.
                await self._send_seeds([url], depth)

    async def _send_events(self) -> None:
        while True:
            self._commit()
            if (batch := self.unsent.batch()) is None:
                return
            key, events = batch
            try:
                answer = await self.client.events(map(msgspec.Raw, events), key=key, raise_rejected=False)
            except BadRequest as error:  # Of the call, such as one with too large a body.
                if len(events) > 1:
                    self.unsent.split()
                    continue
                self._refused(events[0], str(error))
            else:
                self._count("events", answer.accepted)
                for rejected in answer.rejected:
                    self._refused(events[rejected.index], rejected.error)
            self.unsent.done()
            self.poll_at = 0.0

    def _refused(self, event: bytes, why: str) -> None:
        log.error("the service refuses the event of %s: %s", msgspec.msgpack.decode(event)["url"], why)
        self._count("events_rejected", 1)

    async def _next(self, **asked: Any) -> list[LeasedPage]:
        if time.monotonic() >= self._delays_at:
            self.client.pace.use(await self.client.politeness())
            self._delays_at = time.monotonic() + DELAYS_SECONDS
        delays, self.crawl_delays, now = self.crawl_delays, {}, time.monotonic()
        try:
            answer = await self.client.next(lease_seconds=self._lease_seconds, crawl_delays=delays, **asked)
        except ClientError:
            self.crawl_delays = {**delays, **self.crawl_delays}
            raise
        self._began, self.exhausted = True, answer.exhausted and not answer.pages
        self.idle_since = time.monotonic() if answer.pages else min(self.idle_since, time.monotonic())
        self.poll_at = time.monotonic() + min(max(answer.retry_after, POLL_SECONDS_MIN), POLL_SECONDS_MAX)
        leased = list[LeasedPage]()
        for page in answer.pages:
            seconds = page.lease_until - answer.as_of
            new = LeasedPage(page, seconds, now + seconds)
            if (kept := self.leases.setdefault(page.url, new)) is new:
                leased.append(new)
            else:  # It was lost, and goes on with the new lease.
                kept.page, kept.seconds, kept.ends = page, seconds, new.ends
        if self.leases and (self._renewing is None or self._renewing.done()):
            self._renewing = asyncio.create_task(self._renew())
        return leased

    async def _renew(self) -> None:
        """Renew leases once half of their time is over."""
        while self.leases:
            await asyncio.sleep(max(min(lease.seconds for lease in self.leases.values()) / 4, POLL_SECONDS_MIN))
            now = time.monotonic()
            due = {lease.page.lease: lease for lease in self.leases.values() if lease.ends - now < lease.seconds / 2}
            if not due:
                continue
            try:
                answer = await self.client.renew(due, lease_seconds=self._lease_seconds)
            except ClientError as error:
                log.error("%d leases are not renewed: %s", len(due), error)
                continue
            for renewed in answer.renewed:
                due[renewed.lease].ends = now + due[renewed.lease].seconds
            for name in answer.lost:
                if due[name].page.lease == name:
                    self.end(due[name])
            self._count("leases_lost", len(answer.lost))

    async def aclose(self) -> None:
        """End the session: see the class."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        for lease in list(self.leases.values()):
            self.release(lease)
        if self._usable:
            try:
                async with asyncio.timeout(CLOSE_SECONDS), self._calling:
                    await self._send()
            except (ClientError, TimeoutError) as error:
                log.error("not everything could be sent at the end: %s", str(error) or "the service is too slow")
        if not self.unsent.save():
            log.error("%d events are lost: no directory keeps them. Their pages are offered again", len(self.unsent))
        await self.client.aclose()
