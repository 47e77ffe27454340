"""The crawls that URLFrontier's calls name: items put into one, pages leased and listed. Used in one event loop."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import groupby, islice
from typing import Final

import grpc

from opic.api.coalescing import Coalescer
from opic.errors import BadInput, NoSuchCrawl
from opic.frontier import PagesRequest
from opic.messages.frontier import NextPages, Page
from opic.model.cash import MILLION
from opic.model.event_checks import check_event, check_seeds
from opic.model.events import SeedList, encode_seeds, encode_without_passwords
from opic.model.ledger_page import LedgerPage
from opic.model.page_notes import unpack_meta
from opic.service.backend import Backend
from opic.service.forgetting import PageSelection, forget, forget_pages
from opic.service.moves import CLOSE_SECONDS
from opic.service.open_crawls import OpenCrawls
from opic.service.tokens import Token
from opic.urlfrontier import items
from opic.urlfrontier import urlfrontier_pb2 as pb
from opic.urlfrontier.parents import Parents, tell
from opic.urlfrontier.queues import known_before, known_since, leased, pages
from opic.urls.canonical import canonical_host, host_of, shown

INTERFACE: Final = "urlfrontier"
DEFAULT_NAMES: Final = ("", "DEFAULT")  # Of OPIC_CRAWL, in calls.
PARENT_SECONDS: Final = 10.0  # How long a Discovered item waits for the event of the page that links to it.
LEASE_SECONDS: Final = 30.0  # Lease of a call without `delay_requestable`, as in the reference implementation.
URLS_MAX: Final = 1_000  # Pages returned by a call without max_queues.
HOST_URLS: Final = 100  # Pages for each host in a call without max_urls_per_queue.
PRUNE_SECONDS: Final = 10.0  # Interval at which expired leases are removed from memory.
EVENTS_TOGETHER: Final = 1_000
DAY_SECONDS: Final = 86_400
PORT: Final = re.compile(r":\d*$")

caller: Final = ContextVar[Token | None]("caller", default=None)  # Whose call this is; None where none is required.


class CallRefused(Exception):
    """Ends a call with a status of gRPC."""

    def __init__(self, status: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.status = status


class UrlFrontierCrawl:
    """A crawl: coroutines that put items and lease pages; the other methods block."""

    def __init__(self, backend: Backend, former: "UrlFrontierCrawl | None" = None) -> None:
        """Take an open crawl, which may be in the place of a former one."""
        self.backend = backend
        self._parents: Parents = Parents() if former is None else former._parents
        # By URL: the end of the lease of each page handed out here, monotonic.
        self._own_leases: dict[str, float] = {} if former is None else former._own_leases
        self._pruned_at = time.monotonic()
        self._events = Coalescer[bytes, None](self._accept, "urlfrontier-events", EVENTS_TOGETHER)
        self._leases = Coalescer[str, bool](partial(leased, backend.crawl), "urlfrontier-leases", EVENTS_TOGETHER)
        self._seeds = Coalescer[SeedList, None](self._seed, "urlfrontier-seeds", EVENTS_TOGETHER)

    def close(self) -> None:
        self._events.close()
        self._leases.close()
        self._seeds.close()

    async def host(self, key: str) -> str:
        """Return the host, or the domain, that a call names, in any spelling; "" if it names none.

        Raises:
            BadInput: it is no host.
        """
        return await asyncio.to_thread(self._host, key) if key else ""

    def _host(self, key: str) -> str:
        crawl = self.backend.crawl
        bare = f"[{key}]" if key.count(":") > 1 and "[" not in key else PORT.sub("", key)  # Of IPv6, or with a port.
        named = canonical_host(bare, self.backend.limits.normalization)
        crawl.follow()
        names = named, named.removesuffix("."), f"{named}."  # A name with a dot at its end is another host here.
        known = (name for name in names if any(replica.hosts.number(name) is not None for replica in crawl.replicas))
        return next(known, names[1])

    # Writing.

    def _accept(self, values: Sequence[bytes]) -> Sequence[None]:
        self.backend.accept(values)
        return [None] * len(values)

    def _seed(self, asked: Sequence[SeedList]) -> Sequence[Exception | None]:
        """Add pages or update their notes; wait until this has taken effect."""
        outcomes: list[Exception | None] = []
        values: list[bytes] = []
        for (depth, meta, not_before), group in groupby(
            asked, key=lambda seed_list: (seed_list.depth, seed_list.meta, seed_list.not_before)
        ):
            urls = [url for seed_list in group for url in seed_list.urls]
            try:
                together = SeedList(urls, depth, meta, not_before=not_before)
                check_seeds(together, self.backend.clock.now_us(), self.backend.limits)
                values.append(encode_seeds(urls, depth, meta, not_before=not_before))
                outcomes += [None] * len(urls)
            except BadInput as error:
                outcomes += [error.with_traceback(None)] * len(urls)  # Whose frames hold this list.
        if values:
            self.backend.settle(self.backend.accept(values, "seeds"))
        return outcomes

    def _canonical(self, info: pb.URLInfo) -> str:
        """Return the canonical URL of an item.

        Raises:
            BadInput: the URL or its key is invalid.
        """
        url = self.backend.limits.canonical(info.url)
        items.check_key(url, info.key, self.backend.limits.normalization)
        return url

    async def put_known(self, known: pb.KnownURLItem) -> None:
        """Record a fetch of a page, or its schedule; return once that is durable.

        Raises:
            OpicError: the item is invalid; BadInput: now or later.
        """
        url, metadata = self._canonical(known.info), known.info.metadata
        leased_here = self._own_leases.get(url, 0.0) > time.monotonic()
        if not items.is_read(metadata) and not leased_here and not await self._leases.ask(url):
            said = SeedList([url], None, items.meta_of(metadata), not_before=items.refetched_from(known))
            return await self._seeds.ask(said)
        children, listed = self._parents.pop_children(url), items.LINKS in metadata
        with tell(children, linked=not listed):
            links = items.links_of(url, metadata) if listed else [child.url for child in children]
            name = self.backend.limits.name_of(known.info.url, url) or url  # Under which it answered.
            event = items.event_of(name, known, links)
            check_event(event, self.backend.clock.now_us(), self.backend.limits)
            await self._events.ask(encode_without_passwords(event))
        self._own_leases.pop(url, None)
        return None

    async def put_discovered(self, info: pb.URLInfo, batch: str) -> None:
        """Record a discovered page as a link of its parent, or make it known; return once that is durable.

        Args:
            info: the page.
            batch: ID of its batch.

        Raises:
            OpicError: as of `put_known`.
        """
        url, meta = self._canonical(info), items.meta_of(info.metadata)
        if (named := items.parent_of(info.metadata, batch)) is not None:
            parent = self.backend.limits.canonical(named)
            if await self._parents.linked(parent, url, PARENT_SECONDS) and meta is None:
                return
        await self._seeds.ask(SeedList([url], 0 if named is None else None, meta))

    # Handing out.

    async def lease(self, asked: pb.GetParams) -> tuple[NextPages, dict[str, list[Page]]]:
        """Lease the best pages of the best hosts; also return them by host, in order."""
        request = self._request(asked, await self.host(asked.key))
        answer = await asyncio.to_thread(self._lease, request)
        urls = [self.backend.limits.canonical(page.url) for page in answer.pages]  # It may be another name.
        by_host = dict[str, list[Page]]()
        for page, url in zip(answer.pages, urls, strict=True):
            by_host.setdefault(host_of(url), []).append(page)
        ends = time.monotonic() + request.seconds
        self._own_leases.update((url, ends) for url in urls)
        if (now := time.monotonic()) - self._pruned_at > PRUNE_SECONDS:
            self._own_leases = {url: ends for url, ends in self._own_leases.items() if ends > now}
            self._pruned_at = now
        return answer, by_host

    async def release(self, leases: Sequence[str]) -> None:
        """Release leases of pages that no client received."""
        await asyncio.shield(asyncio.to_thread(self.backend.frontier.release, leases))

    def _request(self, asked: pb.GetParams, domain: str) -> PagesRequest:
        most, each = self.backend.settings.max_n, asked.max_urls_per_queue or HOST_URLS
        return self.backend.frontier.request(
            min(each if asked.key else asked.max_queues * each or URLS_MAX, most),
            lease_seconds=float(asked.delay_requestable or LEASE_SECONDS),
            domain=domain or None,
            host_pages=asked.max_urls_per_queue or None,
            hosts=None if asked.key else asked.max_queues or None,
        )

    def _lease(self, request: PagesRequest) -> NextPages:
        self.backend.check_room()
        (answer,) = self.backend.frontier.next_many([request])
        return answer

    # Looking.

    def page(self, url: str, name: str) -> pb.URLItem | None:
        """Return a page as it is kept; None if it is unknown."""
        page = self.backend.crawl.page(self.backend.limits.canonical(url))
        return None if page is None else self._items([page], name)[0]

    def listed(self, asked: pb.ListUrlParams, host: str, size: int) -> list[pb.URLItem]:
        """Return pages, also those that are not due."""
        matching = pages(self.backend.crawl, host, asked.filter, ignore_case=asked.ignoreCase)
        return self._items(list(islice(matching, asked.start, asked.start + size)), asked.crawlID)

    def count(self, asked: pb.CountUrlParams, host: str) -> int:
        """Count pages, also those that are not due."""
        return sum(1 for _ in pages(self.backend.crawl, host, asked.filter, ignore_case=asked.ignoreCase))

    def _items(self, pages: Sequence[LedgerPage], name: str) -> list[pb.URLItem]:
        told, since_of = [], known_since(self.backend.crawl, [page.url for page in pages])
        for page, since in zip(pages, since_of, strict=True):
            info = items.info_of(page.url, host_of(page.url), name, unpack_meta(page.meta))
            item = pb.URLItem(ID=page.url, creation_date=since)
            if not page.reads and not page.status and not page.not_before_us:
                item.discovered.info.CopyFrom(info)
            else:
                date = page.not_before_us // MILLION
                item.known.info.CopyFrom(info)
                item.known.refetchable_from_date = 0 if date >= items.NEVER else date
            told.append(item)
        return told

    # Forgetting.

    def forget(self, host: str) -> int:
        """Forget the pages of a host; return how many there were."""
        return _until_done(partial(forget, self.backend, PageSelection.of({"host": host})))

    def forget_all(self) -> int:
        """Forget all pages; return how many there were."""
        self.backend.crawl.follow()
        names = [name for replica in self.backend.crawl.replicas for name in list(replica.hosts.names)]
        return sum(map(self.forget, names))

    def purge(self, host: str, days: int) -> int:
        """Forget the pages that became known more than some days ago, of a host, or of all if it is ""."""
        before = self.backend.clock.now_us() / MILLION - days * DAY_SECONDS
        return _until_done(partial(forget_pages, self.backend, partial(known_before, seconds=before, host=host)))


def _until_done(forgetting: Callable[[], Mapping[str, object]]) -> int:
    """Forget pages until there are no more; return how many there were."""
    count, more = 0, True
    while more:
        answer = forgetting()
        count, more = count + int(str(answer["forgotten"])), bool(answer.get("more"))
    return count


class Crawls:
    """The crawls by the names that calls give them, and whether the caller's token is for them."""

    def __init__(self, crawls: OpenCrawls) -> None:
        self._crawls, self._first = crawls, crawls.first.name

    async def crawl_of(self, name: str, *, make: bool = False) -> UrlFrontierCrawl:
        """Return a crawl; with `make`, one that does not exist yet is made, if the caller may.

        Raises:
            BadInput: there is no such crawl.
            CallRefused: the caller's token is for other crawls, or does not allow to make one.
            TooManyCrawls: no more may be open.
            StoreError: it can't be opened.
        """
        name = self._first if name in DEFAULT_NAMES else name
        self.check_caller(name)
        try:
            opened = await self._crawls.crawl(name)
        except NoSuchCrawl:
            if not make:
                raise
            if (token := caller.get()) is not None and (lacks := token.lacks("admin")) is not None:
                raise CallRefused(grpc.StatusCode.PERMISSION_DENIED, f"no crawl {shown(name)} yet: {lacks}") from None
            await self._crawls.make(name)
            opened = await self._crawls.crawl(name)
        former: UrlFrontierCrawl | None = opened.handlers.get(INTERFACE)
        if former is not None and former.backend is opened.backend:
            return former
        crawl = opened.handlers[INTERFACE] = UrlFrontierCrawl(opened.backend, former)
        if former is not None:
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, former.close)
        return crawl

    def names(self) -> list[str]:
        """Return the names of the crawls that the caller's token is for, OPIC_CRAWL first. Blocks."""
        stored = [crawl.name for crawl in self._crawls.stored() if not crawl.moved_to]  # Its other name counts.
        names = [self._first, *(name for name in stored if not self._crawls.is_first(name))]
        token = caller.get()
        return [name for name in names if token is None or token.is_for(self._crawls.names_of(name))]

    def check_caller(self, name: str = "") -> None:
        """Check that the caller's token is for a crawl, by default for OPIC_CRAWL.

        Raises:
            CallRefused: it is not.
        """
        token, name = caller.get(), name or self._first
        if token is not None and not token.is_for(self._crawls.names_of(name)):
            why = f"the token {token.name} is for {', '.join(sorted(token.crawls or ()))}, not for crawl {shown(name)}"
            raise CallRefused(grpc.StatusCode.PERMISSION_DENIED, why)

    def close(self) -> None:
        for opened in (self._crawls.first, *self._crawls.opened):
            if INTERFACE in opened.handlers:
                opened.handlers.pop(INTERFACE).close()
