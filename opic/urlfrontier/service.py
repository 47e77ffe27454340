"""The calls of URLFrontier; see docs/guide/urlfrontier.md for what each of them means here."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

import grpc

from opic.api.metrics import Metrics
from opic.errors import BadInput, OpicError, TooManyCrawls
from opic.urlfrontier import urlfrontier_pb2 as pb
from opic.urlfrontier.crawls import DAY_SECONDS, CallRefused, Crawls, UrlFrontierCrawl
from opic.urlfrontier.items import NEVER, info_of
from opic.urlfrontier.queues import queues

log = logging.getLogger("opic.urlfrontier")

DELAY_SECONDS_MAX: Final = DAY_SECONDS  # As of a host delay that an operator sets.
LISTED_DEFAULT: Final = 100
UNANSWERED_MAX: Final = 100_000  # Unanswered items of a stream; reading pauses beyond this.
LEVELS: Final = {0: logging.DEBUG, 1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
Message = TypeVar("Message")
Ack = TypeVar("Ack")
Status = pb.AckMessage.Status


class UrlFrontier:
    """The calls: each a coroutine; what may block runs in threads."""

    def __init__(self, crawls: Crawls, address: str, metrics: Metrics, *, allow_delete: bool) -> None:
        """Answer for crawls.

        Args:
            crawls: the crawls.
            address: returned by ListNodes.
            metrics: counts items and the pages handed out.
            allow_delete: whether DeleteCrawl may forget all pages.
        """
        self._crawls, self._address, self._metrics, self._allow_delete = crawls, address, metrics, allow_delete
        self._active = True
        self._turn = 0  # Number of calls for pages of any crawl.

    # Writing.

    async def PutURLs(self, items: AsyncIterator[pb.URLItem]) -> AsyncIterator[pb.AckMessage]:
        """Record fetches and schedules of known pages, and discovered pages."""
        async for ack in _answered(items, self._put):
            yield ack

    async def _put(self, item: pb.URLItem) -> pb.AckMessage:
        known = item.known if item.WhichOneof("item") == "known" else None
        info = item.discovered.info if known is None else known.info
        return pb.AckMessage(ID=item.ID or info.url, status=await self._take(info, known))

    async def PutDiscovered(self, batches: AsyncIterator[pb.DiscoveredBatch]) -> AsyncIterator[pb.BatchAck]:
        async def put(batch: pb.DiscoveredBatch) -> pb.BatchAck:
            each = [self._take(info, batch=batch.ID) for info in batch.items]
            return pb.BatchAck(ID=batch.ID, statuses=await asyncio.gather(*each))

        async for ack in _answered(batches, put):
            yield ack

    async def _take(
        self, info: pb.URLInfo, known: pb.KnownURLItem | None = None, batch: str = ""
    ) -> "pb.AckMessage.Status":
        """Take a page, known or discovered; return its status: FAIL if the client may send it again, SKIPPED if not."""
        status = Status.OK
        try:
            crawl = await self._crawls.crawl_of(info.crawlID, make=True)
            await (crawl.put_discovered(info, batch) if known is None else crawl.put_known(known))
        except BadInput as error:
            log.info("an item is skipped: %s", error)
            status = Status.SKIPPED
        except OpicError as error:
            log.info("an item is not taken: %s", error)
            status = Status.FAIL
        self._metrics.item_answered(Status.Name(status).lower())
        return status

    # Handing out.

    async def GetURLs(self, asked: pb.GetParams) -> AsyncIterator[pb.URLInfo]:
        """Lease the best pages, within the limits on hosts and on pages of each host."""
        names, of_any = [asked.crawlID], asked.WhichOneof("item") == "anyCrawlID"
        if of_any:
            names = await asyncio.to_thread(self._crawls.names)
            self._turn += 1
            turn = self._turn % max(len(names), 1)
            names = names[turn:] + names[:turn]
        part = pb.GetParams()
        part.CopyFrom(asked)
        for name in names if self._active else ():
            try:
                crawl = await self._crawls.crawl_of(name)
            except BadInput:
                continue
            except TooManyCrawls:
                if of_any:
                    continue
                raise
            keys = set[str]()
            async with aclosing(self._leased(crawl, part, name)) as leased:  # Releases at once if the client is gone.
                async for info in leased:
                    keys.add(info.key)
                    yield info
            if keys and part.max_queues <= len(keys):  # Without a limit, one crawl is enough.
                return
            part.max_queues -= min(len(keys), part.max_queues)

    async def _leased(
        self, crawl: UrlFrontierCrawl, asked: pb.GetParams, name: str
    ) -> AsyncGenerator[pb.URLInfo, None]:
        """Lease pages of a crawl; release those that the client did not receive."""
        answer, by_host = await crawl.lease(asked)
        unsent = {page.lease for page in answer.pages}
        try:
            for host, pages in by_host.items():
                for page in pages:
                    yield info_of(page.url, host, name, page.meta)
                    unsent.discard(page.lease)
            self._metrics.handed(answer, "any", None)
        finally:
            if unsent:
                await crawl.release(sorted(unsent))

    # Looking.

    async def ListNodes(self, _: pb.Empty) -> pb.StringList:
        """Return the address of this node; it knows no others."""
        return pb.StringList(values=[self._address])

    async def ListCrawls(self, _: pb.Local) -> pb.StringList:
        return pb.StringList(values=await asyncio.to_thread(self._crawls.names))

    async def ListQueues(self, asked: pb.Pagination) -> pb.QueueList:
        """Return names of hosts."""
        crawl = await self._crawls.crawl_of(asked.crawlID)
        by_host = await asyncio.to_thread(queues, crawl.backend.crawl)
        names = sorted(name for name, queue in by_host.items() if queue.active or asked.include_inactive)
        some = names[asked.start : asked.start + (asked.size or LISTED_DEFAULT)]
        return pb.QueueList(values=some, total=len(names), start=asked.start, size=len(some), crawlID=asked.crawlID)

    async def GetStats(self, asked: pb.QueueWithinCrawlParams) -> pb.Stats:
        crawl = await self._crawls.crawl_of(asked.crawlID)
        host = await crawl.host(asked.key)
        by_host = await asyncio.to_thread(queues, crawl.backend.crawl)
        some = [queue for name, queue in by_host.items() if host in ("", name)]
        return pb.Stats(
            size=sum(queue.active for queue in some),
            inProcess=sum(queue.leased for queue in some),
            counts={
                "completed": sum(queue.completed for queue in some),
                "active_queues": sum(queue.active > 0 for queue in some),
            },
            numberOfQueues=len(some),
            crawlID=asked.crawlID or crawl.backend.settings.crawl,
        )

    async def GetURLStatus(self, asked: pb.URLStatusRequest) -> pb.URLItem:
        crawl = await self._crawls.crawl_of(asked.crawlID)
        item = await asyncio.to_thread(crawl.page, asked.url, asked.crawlID)
        if item is None:
            raise CallRefused(grpc.StatusCode.NOT_FOUND, "no such page is known")
        return item

    async def ListURLs(self, asked: pb.ListUrlParams) -> AsyncIterator[pb.URLItem]:
        crawl = await self._crawls.crawl_of(asked.crawlID)
        host = await crawl.host(asked.key)
        for item in await asyncio.to_thread(crawl.listed, asked, host, asked.size or LISTED_DEFAULT):
            yield item

    async def CountURLs(self, asked: pb.CountUrlParams) -> pb.Long:
        crawl = await self._crawls.crawl_of(asked.crawlID)
        return pb.Long(value=await asyncio.to_thread(crawl.count, asked, await crawl.host(asked.key)))

    # Changing.

    async def DeleteQueue(self, asked: pb.QueueWithinCrawlParams) -> pb.Long:
        crawl = await self._crawls.crawl_of(asked.crawlID)
        return pb.Long(value=await asyncio.to_thread(crawl.forget, await crawl.host(asked.key)))

    async def PurgeURLs(self, asked: pb.PurgeUrlParams) -> pb.Long:
        """Forget the pages that became known more than some days ago, of a host or of all."""
        crawl = await self._crawls.crawl_of(asked.crawlID)
        return pb.Long(value=await asyncio.to_thread(crawl.purge, await crawl.host(asked.key), asked.days))

    async def DeleteCrawl(self, asked: pb.DeleteCrawlMessage) -> pb.Long:
        """Forget all pages of a crawl, if that is allowed; none if there is no such crawl."""
        if not self._allow_delete:
            why = "start the service with --urlfrontier-allow-delete to let clients forget all pages of the crawl"
            raise CallRefused(grpc.StatusCode.PERMISSION_DENIED, why)
        try:
            crawl = await self._crawls.crawl_of(asked.value)
        except BadInput:
            return pb.Long(value=0)
        return pb.Long(value=await asyncio.to_thread(crawl.forget_all))

    async def SetActive(self, asked: pb.Active) -> pb.Empty:
        self._crawls.check_caller()
        self._active = asked.state
        return pb.Empty()

    async def GetActive(self, _: pb.Local) -> pb.Boolean:
        return pb.Boolean(state=self._active)

    async def SetDelay(self, asked: pb.QueueDelayParams) -> pb.Empty:
        """Set the delay of a host, for all endpoints."""
        crawl = await self._crawls.crawl_of(asked.crawlID)
        if not asked.key:
            why = "the delay of all hosts is a setting: start the service with OPIC_HOST_DELAY_SECONDS"
            raise CallRefused(grpc.StatusCode.FAILED_PRECONDITION, why)
        seconds = float(min(asked.delay_requestable, DELAY_SECONDS_MAX))
        await asyncio.to_thread(crawl.backend.frontier.report_delay, await crawl.host(asked.key), seconds)
        return pb.Empty()

    async def BlockQueueUntil(self, asked: pb.BlockQueueParams) -> pb.Empty:
        """Hand out no page of a host before a time, at all endpoints; 0 ends that."""
        crawl = await self._crawls.crawl_of(asked.crawlID)
        until = float(min(asked.time, NEVER))
        await asyncio.to_thread(crawl.backend.frontier.block, await crawl.host(asked.key), until)
        return pb.Empty()

    async def SetCrawlLimit(self, asked: pb.CrawlLimitParams) -> pb.Empty:
        """Limit how many pages of a host are read, at all endpoints; 0 removes the limit."""
        crawl = await self._crawls.crawl_of(asked.crawlID)
        if not await asyncio.to_thread(crawl.backend.frontier.limit, await crawl.host(asked.key), asked.limit):
            raise CallRefused(grpc.StatusCode.NOT_FOUND, "no page of this host is known")
        return pb.Empty()

    async def SetLogLevel(self, asked: pb.LogLevelParams) -> pb.Empty:
        """Set the level of one of this program's loggers, such as opic.frontier."""
        self._crawls.check_caller()
        name = asked.package or "opic"
        if name not in logging.root.manager.loggerDict:  # To ask for one makes it, for ever.
            raise CallRefused(grpc.StatusCode.NOT_FOUND, "no logger of this program has this name")
        if asked.level not in LEVELS:  # proto3 lets any number through.
            raise CallRefused(grpc.StatusCode.INVALID_ARGUMENT, f"level is {asked.level}: 0 (TRACE) to 4 (ERROR)")
        logging.getLogger(name).setLevel(LEVELS[asked.level])
        return pb.Empty()


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
