"""The calls of URLFrontier, for one crawl; see docs/guide/urlfrontier.md for what each of them means here."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any, Final, TypeAlias, TypeVar

import grpc

from opic.api.coalescing import Coalescer
from opic.api.metrics import Metrics
from opic.errors import BadInput, OpicError
from opic.frontier import PagesRequest
from opic.model.cash import MILLION
from opic.model.events import SeedList, check_event, check_seeds, encode_seeds, encode_without_passwords
from opic.model.ledger_page import LedgerPage
from opic.model.page_notes import unpack_meta
from opic.service.forgetting import PageSelection, forget
from opic.service.service import Backend
from opic.urlfrontier import urlfrontier_pb2 as pb
from opic.urlfrontier.items import (
    LINKS,
    NEVER,
    check_key,
    event_of,
    info_of,
    is_read,
    links_of,
    meta_of,
    parent_of,
    refetched_from,
)
from opic.urlfrontier.parents import Parents, tell
from opic.urlfrontier.queues import leased, pages, queues
from opic.urls.canonical import host_of

log = logging.getLogger("opic.urlfrontier")

PARENT_SECONDS: Final = 10.0  # How long a Discovered item waits for the event of the page that links to it.
LEASE_SECONDS: Final = 30.0  # Lease of a call without `delay_requestable`, as in the reference implementation.
URLS_MAX: Final = 1_000  # Pages returned by a call without max_queues.
HOST_URLS_MAX: Final = 100  # Pages of one host returned by a call without max_urls_per_queue.
PRUNE_SECONDS: Final = 10.0  # Interval at which expired leases are removed from memory.
DELAY_SECONDS_MAX: Final = 86_400  # As of a host delay that an operator sets.
LISTED_DEFAULT: Final = 100
EVENTS_TOGETHER: Final = 1_000
UNANSWERED_MAX: Final = 100_000  # Unanswered items of a stream; reading pauses beyond this.
DEFAULT_CRAWLS: Final = ("", "DEFAULT")
LEVELS: Final = {0: logging.DEBUG, 1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
NOT_BUILT: Final = {
    "SetCrawlLimit": "set OPIC_MAX_PAGES_PER_HOST, which is for all hosts",
    "PurgeURLs": "when a page became known is not kept; forget pages by `opic forget`",
}
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Message = TypeVar("Message")
Ack = TypeVar("Ack")
Status = pb.AckMessage.Status


class UrlFrontier:
    """The calls: each a coroutine; what may block runs in threads."""

    def __init__(self, backend: Backend, address: str, metrics: Metrics, *, allow_delete: bool) -> None:
        """Answer for the crawl of `backend`.

        Args:
            backend: the open store.
            address: returned by ListNodes.
            metrics: counts items and the pages handed out.
            allow_delete: whether DeleteCrawl may forget all pages.
        """
        self._backend, self._address, self._allow_delete = backend, address, allow_delete
        self._metrics = metrics
        self._active = True
        self._parents = Parents()
        self._own_leases = dict[str, float]()  # By URL: the end of the lease of each page handed out here, monotonic.
        self._pruned_at = time.monotonic()
        self._events = Coalescer[bytes, None](self._accept, "urlfrontier-events", EVENTS_TOGETHER)
        self._leases = Coalescer[str, bool](partial(leased, backend.crawl), "urlfrontier-leases", EVENTS_TOGETHER)
        self._seeds = Coalescer[SeedList, None](self._seed, "urlfrontier-seeds", EVENTS_TOGETHER)

    # Writing.

    def _accept(self, values: Sequence[bytes]) -> Sequence[None]:
        self._backend.accept(values)
        return [None] * len(values)

    def _seed(self, asked: Sequence[SeedList]) -> Sequence[Exception | None]:
        """Add pages or update their notes; wait until this has taken effect."""
        found: list[Exception | None] = []
        values: list[bytes] = []
        for (depth, meta, not_before), group in groupby(asked, key=lambda one: (one.depth, one.meta, one.not_before)):
            urls = [url for one in group for url in one.urls]
            try:
                together = SeedList(urls, depth, meta, not_before=not_before)
                check_seeds(together, self._backend.clock.now_us(), self._backend.limits)
                values.append(encode_seeds(urls, depth, meta, not_before=not_before))
                found += [None] * len(urls)
            except BadInput as error:
                found += [error] * len(urls)
        if values:
            self._backend.settle(self._backend.accept(values, "seeds"))
        return found

    async def PutURLs(self, items: AsyncIterator[pb.URLItem], context: Context) -> AsyncIterator[pb.AckMessage]:
        """Record fetches and schedules of known pages, and discovered pages."""
        del context
        async for ack in _answered(items, self._put):
            yield ack

    async def _put(self, item: pb.URLItem) -> pb.AckMessage:
        known = item.WhichOneof("item") == "known"
        info = item.known.info if known else item.discovered.info
        status = await self._status(self._known(item.known) if known else self._discovered(info, ""))
        return pb.AckMessage(ID=item.ID or info.url, status=status)

    async def PutDiscovered(
        self, batches: AsyncIterator[pb.DiscoveredBatch], context: Context
    ) -> AsyncIterator[pb.BatchAck]:
        """Record batches of discovered pages."""
        del context

        async def put(batch: pb.DiscoveredBatch) -> pb.BatchAck:
            each = [self._status(self._discovered(info, batch.ID)) for info in batch.items]
            return pb.BatchAck(ID=batch.ID, statuses=await asyncio.gather(*each))

        async for ack in _answered(batches, put):
            yield ack

    async def _status(self, taking: Awaitable[None]) -> "pb.AckMessage.Status":
        """Return the status of an item: FAIL if the client may send it again, SKIPPED if not."""
        status = Status.OK
        try:
            await taking
        except BadInput as error:
            log.info("an item is skipped: %s", error)
            status = Status.SKIPPED
        except OpicError as error:
            log.info("an item is not taken: %s", error)
            status = Status.FAIL
        self._metrics.item_answered(Status.Name(status).lower())
        return status

    def _canonical(self, info: pb.URLInfo) -> str:
        """Return the canonical URL of an item.

        Raises:
            BadInput: the URL, its key or its crawl can't be taken.
        """
        self._check_crawl(info.crawlID)
        url = self._backend.limits.canonical(info.url)
        check_key(url, info.key)
        return url

    async def _known(self, known: pb.KnownURLItem) -> None:
        url, metadata = self._canonical(known.info), known.info.metadata
        if not is_read(metadata) and not await self._is_leased(url):
            said = SeedList([url], None, meta_of(metadata), not_before=refetched_from(known))
            return await self._seeds.ask(said)
        children, listed = self._parents.take(url), LINKS in metadata
        with tell(children, linked=not listed):
            event = event_of(url, known, links_of(url, metadata) if listed else [child.url for child in children])
            check_event(event, self._backend.clock.now_us(), self._backend.limits)
            await self._events.ask(encode_without_passwords(event))
        self._own_leases.pop(url, None)
        return None

    async def _is_leased(self, url: str) -> bool:
        return self._own_leases.get(url, 0.0) > time.monotonic() or await self._leases.ask(url)

    async def _discovered(self, info: pb.URLInfo, batch: str) -> None:
        url, meta = self._canonical(info), meta_of(info.metadata)
        if (named := parent_of(info.metadata, batch)) is not None:
            parent = self._backend.limits.canonical(named)
            if await self._parents.linked(parent, url, PARENT_SECONDS) and meta is None:
                return
        await self._seeds.ask(SeedList([url], 0 if named is None else None, meta))

    # Handing out.

    async def GetURLs(self, asked: pb.GetParams, context: Context) -> AsyncIterator[pb.URLInfo]:
        """Lease the best pages, within the limits on hosts and on pages of each host."""
        if not self._active or (asked.WhichOneof("item") == "crawlID" and not self._is_ours(asked.crawlID)):
            return
        del context
        request = self._request(asked)
        answer = await asyncio.to_thread(self._lease, request)
        given = self._within(answer["pages"], asked)
        unsent = {page["lease"] for page in answer["pages"]} - {page["lease"] for page in given}
        ends = time.monotonic() + request.seconds
        try:
            for page in given:
                unsent.add(page["lease"])
                self._own_leases[page["url"]] = ends
                yield info_of(page["url"], asked.crawlID, page.get("meta"))
                unsent.discard(page["lease"])
            self._metrics.handed({**answer, "pages": given}, "any", None)
        finally:
            if unsent:  # They exceed the limits, or the client disconnected.
                await asyncio.shield(asyncio.to_thread(self._backend.frontier.release, sorted(unsent)))
            self._prune_leases()

    def _request(self, asked: pb.GetParams) -> PagesRequest:
        settings = self._backend.settings
        each = 1 if settings.host_delay_seconds else asked.max_urls_per_queue or HOST_URLS_MAX
        # Lease no more than will be returned: releasing a page does not undo the delay of its host.
        n = each * (1 if asked.key else asked.max_queues) or URLS_MAX
        return self._backend.frontier.wish(
            min(n, settings.max_n),
            lease_seconds=float(asked.delay_requestable or LEASE_SECONDS),
            domain=asked.key or None,
        )

    def _lease(self, request: PagesRequest) -> dict[str, Any]:
        self._backend.check_room()
        (answer,) = self._backend.frontier.next_many([request])
        return answer

    def _within(self, leased_pages: Sequence[dict[str, Any]], asked: pb.GetParams) -> list[dict[str, Any]]:
        """Return the pages that are within the limits of a call."""
        counts, given = Counter[str](), list[dict[str, Any]]()
        for page in leased_pages:
            host = host_of(page["url"])
            hosts_left = not asked.max_queues or host in counts or len(counts) < asked.max_queues
            pages_left = not asked.max_urls_per_queue or counts[host] < asked.max_urls_per_queue
            if hosts_left and pages_left:
                counts[host] += 1
                given.append(page)
        return given

    def _prune_leases(self) -> None:
        now = time.monotonic()
        if now - self._pruned_at > PRUNE_SECONDS:
            self._own_leases = {url: ends for url, ends in self._own_leases.items() if ends > now}
            self._pruned_at = now

    # Looking.

    async def ListNodes(self, asked: pb.Empty, context: Context) -> pb.StringList:
        """Return the address of this node; it knows no others."""
        del asked, context
        return pb.StringList(values=[self._address])

    async def ListCrawls(self, asked: pb.Local, context: Context) -> pb.StringList:
        """Return the name of the crawl."""
        del asked, context
        return pb.StringList(values=[self._backend.settings.crawl])

    async def ListQueues(self, asked: pb.Pagination, context: Context) -> pb.QueueList:
        """Return names of hosts."""
        del context
        self._check_crawl(asked.crawlID)
        found = await asyncio.to_thread(queues, self._backend.crawl)
        names = sorted(name for name, queue in found.items() if queue.active or asked.include_inactive)
        some = names[asked.start : asked.start + (asked.size or LISTED_DEFAULT)]
        return pb.QueueList(values=some, total=len(names), start=asked.start, size=len(some), crawlID=asked.crawlID)

    async def GetStats(self, asked: pb.QueueWithinCrawlParams, context: Context) -> pb.Stats:
        """Count pages, of a host or of all."""
        del context
        self._check_crawl(asked.crawlID)
        found = await asyncio.to_thread(queues, self._backend.crawl)
        some = [queue for name, queue in found.items() if asked.key in ("", name)]
        return pb.Stats(
            size=sum(queue.active for queue in some),
            inProcess=sum(queue.leased for queue in some),
            counts={
                "completed": sum(queue.completed for queue in some),
                "active_queues": sum(queue.active > 0 for queue in some),
            },
            numberOfQueues=len(some),
            crawlID=asked.crawlID or self._backend.settings.crawl,
        )

    async def GetURLStatus(self, asked: pb.URLStatusRequest, context: Context) -> pb.URLItem:
        """Return a page as it is kept."""
        self._check_crawl(asked.crawlID)
        page = await asyncio.to_thread(self._backend.crawl.page, self._backend.limits.canonical(asked.url))
        if page is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such page is known")
        assert page is not None
        return _item(page, asked.crawlID)

    async def ListURLs(self, asked: pb.ListUrlParams, context: Context) -> AsyncIterator[pb.URLItem]:
        """Return pages, also those that are not due."""
        del context
        self._check_crawl(asked.crawlID)
        matching = pages(self._backend.crawl, asked.key, asked.filter, ignore_case=asked.ignoreCase)
        for page in await asyncio.to_thread(
            list, islice(matching, asked.start, asked.start + (asked.size or LISTED_DEFAULT))
        ):
            yield _item(page, asked.crawlID)

    async def CountURLs(self, asked: pb.CountUrlParams, context: Context) -> pb.Long:
        """Count pages, also those that are not due."""
        del context
        self._check_crawl(asked.crawlID)
        matching = pages(self._backend.crawl, asked.key, asked.filter, ignore_case=asked.ignoreCase)
        return pb.Long(value=await asyncio.to_thread(lambda: sum(1 for _ in matching)))

    # Changing.

    async def DeleteQueue(self, asked: pb.QueueWithinCrawlParams, context: Context) -> pb.Long:
        """Forget the pages of a host."""
        del context
        self._check_crawl(asked.crawlID)
        return pb.Long(value=await asyncio.to_thread(self._forget, asked.key))

    def _forget(self, host: str) -> int:
        """Forget the pages of a host; return how many there were."""
        chosen, count, more = PageSelection.of({"host": host}), 0, True
        while more:
            answer = forget(self._backend, chosen)
            count, more = count + int(str(answer["forgotten"])), bool(answer.get("more"))
        return count

    async def DeleteCrawl(self, asked: pb.DeleteCrawlMessage, context: Context) -> pb.Long:
        """Forget all pages, if that is allowed."""
        self._check_crawl(asked.value)
        if not self._allow_delete:
            why = "start the service with --urlfrontier-allow-delete to let clients forget all pages of the crawl"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)

        def forget_all() -> int:
            self._backend.crawl.follow()
            names = [name for replica in self._backend.crawl.replicas for name in list(replica.hosts.names)]
            return sum(map(self._forget, names))

        return pb.Long(value=await asyncio.to_thread(forget_all))

    async def SetActive(self, asked: pb.Active, context: Context) -> pb.Empty:
        """Let this node hand out pages, or not."""
        del context
        self._active = asked.state
        return pb.Empty()

    async def GetActive(self, asked: pb.Local, context: Context) -> pb.Boolean:
        """Return whether this node hands out pages."""
        del asked, context
        return pb.Boolean(state=self._active)

    async def SetDelay(self, asked: pb.QueueDelayParams, context: Context) -> pb.Empty:
        """Set the delay of a host, for all endpoints."""
        self._check_crawl(asked.crawlID)
        if not asked.key:
            why = "the delay of all hosts is a setting: start the service with OPIC_HOST_DELAY_SECONDS"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)

        seconds = float(min(asked.delay_requestable, DELAY_SECONDS_MAX))
        await asyncio.to_thread(self._backend.frontier.report_delay, asked.key, seconds)
        return pb.Empty()

    async def BlockQueueUntil(self, asked: pb.BlockQueueParams, context: Context) -> pb.Empty:
        """Hand out no page of a host before a time, at all endpoints; 0 ends that."""
        del context
        self._check_crawl(asked.crawlID)
        await asyncio.to_thread(self._backend.frontier.block, asked.key, float(min(asked.time, NEVER)))
        return pb.Empty()

    async def SetLogLevel(self, asked: pb.LogLevelParams, context: Context) -> pb.Empty:
        """Set the level of one of this program's loggers, such as opic.frontier."""
        del context
        logging.getLogger(asked.package or "opic").setLevel(LEVELS[asked.level])
        return pb.Empty()

    # Crawls.

    def _is_ours(self, crawl: str) -> bool:
        return crawl in (*DEFAULT_CRAWLS, self._backend.settings.crawl)

    def _check_crawl(self, crawl: str) -> None:
        if not self._is_ours(crawl):
            raise BadInput(f"this service has the crawl {self._backend.settings.crawl} alone")

    def close(self) -> None:
        """Stop the threads."""
        self._events.close()
        self._leases.close()
        self._seeds.close()


async def _answered(messages: AsyncIterator[Message], put: Callable[[Message], Awaitable[Ack]]) -> AsyncIterator[Ack]:
    """Process the messages of a stream concurrently; yield the answers as they complete, in any order."""
    room, done = asyncio.Semaphore(UNANSWERED_MAX), asyncio.Queue[asyncio.Task[Ack] | None]()
    tasks = set[asyncio.Task[Ack]]()

    async def read() -> None:
        try:
            async for message in messages:
                await room.acquire()
                task = asyncio.ensure_future(put(message))
                tasks.add(task)
                task.add_done_callback(done.put_nowait)
            if tasks:
                await asyncio.wait(tasks)
        finally:
            done.put_nowait(None)

    reader = asyncio.ensure_future(read())
    try:
        while (task := await done.get()) is not None:
            yield task.result()
            tasks.discard(task)
            room.release()
        await reader
    finally:
        reader.cancel()
        for task in tasks:
            task.cancel()


def _item(page: LedgerPage, crawl: str) -> pb.URLItem:
    info = info_of(page.url, crawl, unpack_meta(page.meta))
    if not page.reads and not page.status and not page.not_before_us:
        return pb.URLItem(discovered=pb.DiscoveredURLItem(info=info), ID=page.url)
    date = page.not_before_us // MILLION
    known = pb.KnownURLItem(info=info, refetchable_from_date=0 if date >= NEVER else date)
    return pb.URLItem(known=known, ID=page.url)
