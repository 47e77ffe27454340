"""The links of the pages that were read, as last read: loaded from the store once, then followed with the journal.

A crawl keeps them from the first trusted page on, or with OPIC_KEEP_LINKS. They are read when somebody first asks, and
there is one copy of them in memory, from which coverage, in-links and link scores are answered. Each shard is read at
one position of its journal; a link to a page that its shard does not know yet is one to UNKNOWN_PAGE, and is looked up
again later.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from opic.errors import LinksTooLarge, NotKept, ScanBroken, StoreDamaged, StoreUnavailable
from opic.graph.known_graph import ROWS_MAX
from opic.graph.link_pool import UNKNOWN_PAGE, LinkPool, Uint32s, grown
from opic.model.page_links import PageLinks
from opic.model.trust import pack_links, unpack_links
from opic.query.crawl_numbers import CrawlNumbers
from opic.replica import Crawl, Replica
from opic.replica.crawl import Place
from opic.replica.effect import Effect, Head
from opic.replica.stored_links import read_links
from opic.store.scan import one_run

log = logging.getLogger("opic.query")

Int64s = NDArray[np.int64]
T = TypeVar("T")
QUEUED_MAX: Final = 200_000  # Pages whose new links wait for the next question; with more, all are read again then.
LOADS_MAX: Final = 5
# Memory that the links and exact importance take, about: by link; by page, for the pool of links (24), two flows (24
# each), the graph (9) and the answers (16).
LINK_BYTES: Final = 4
PAGE_BYTES: Final = 100
NOT_KEPT: Final = (
    "the links of pages are not kept here: set OPIC_KEEP_LINKS=on for the workers; the links of a page are then known "
    "from its next read on"
)


@dataclass(frozen=True, slots=True)
class LinksRead(Generic[T]):
    """What the replicas said at the position that the links are at."""

    as_of: float  # Unix seconds; the state is at least as recent.
    heads: list[Head]
    taken: list[T]  # By shard.


@dataclass(frozen=True, slots=True)
class LinkScores:
    """The pages that have a link score, by shard: ids, ascending, and scores, (n,) each."""

    loads: list[int]  # The load counts of the replicas that the ids are valid for.
    ids: list[Int64s]
    scores: list[Int64s]


class KeptLinks:
    """The kept links of a crawl, in `pool`. Pages have the numbers of `numbers`.

    Hold `lock` from `catch_up` on for as long as either is read. `generation` changes when all links were read again:
    numbers may then belong to other pages.
    """

    def __init__(self, crawl: Crawl, bytes_max: int | None = None) -> None:
        """Read nothing before the first question.

        Args:
            crawl: the crawl.
            bytes_max: memory that links and exact importance may take, about; None is no limit.
        """
        self.bytes_max = float("inf") if bytes_max is None else bytes_max
        self.too_large = ""  # Why the links are not held here, if they are too large.
        self.crawl, self.lock = crawl, threading.RLock()
        self.pool, self.numbers, self.generation = LinkPool(), CrawlNumbers(len(crawl)), 0
        self.loads: list[int] = []  # The load counts of the replicas that the links are valid for.
        self._heads: list[Head] = []
        self._queues: list[deque[list[tuple[int, bytes]]]] = [deque() for _ in crawl.shards]
        self._queued, self._lost = [0] * len(crawl), False
        self._listening = False
        self._unknown: dict[Place, bytes] = {}  # Pages with links to pages that their shard did not know.
        self._scores: _ScoreColumns | None = None  # From the first question about them on.
        self._replaced: dict[int, Uint32s | None] | None = None  # See `take_replaced`.
        self.release_listeners: list[Callable[[], object]] = []  # Called when all links were forgotten.
        self._loads_refused: list[int] = []  # The load counts of the replicas when the links were found too large.

    @property
    def kept(self) -> bool:
        """Whether the crawl keeps links, as far as its replicas know, or will from its first read on."""
        if any(replica.trust is not None for replica in self.crawl.replicas):
            return True
        return bool(self.crawl.shards[0].keep_links) and not any(r.books.reads for r in self.crawl.replicas)

    def check(self) -> None:
        """Raise NotKept if the crawl keeps no links, LinksTooLarge if they were found too large; for `catch_up`."""
        if not self.kept:
            raise NotKept(NOT_KEPT)
        if not self.held:
            if self.loads:
                self.release()
            raise LinksTooLarge(self.too_large)

    @property
    def held(self) -> bool:
        """Whether the crawl keeps links that were not found too large for this endpoint.

        They are tried again after a start, and once the crawl is restored or made anew.
        """
        if self.too_large and self._loads_refused != self.crawl.loads:
            self.too_large = ""
        return self.kept and not self.too_large

    @property
    def bytes_held(self) -> int:
        """How much memory the links and exact importance take, about."""
        return LINK_BYTES * self.pool.used + PAGE_BYTES * sum(map(len, self.crawl.replicas))

    @property
    def standing(self) -> str:
        """`kept`, `not kept`, or `too large` for this endpoint."""
        return "too large" if self.too_large else "kept" if self.kept else "not kept"

    def release(self) -> None:
        """Forget all links, and give their memory back; the next question reads them again."""
        with self.lock:
            self._lost, self.loads = True, []
            self.pool, self.numbers, self.generation = LinkPool(), CrawlNumbers(len(self.crawl)), self.generation + 1
            self._scores, self._replaced = None, None
            self._unknown.clear()
            for listener in self.release_listeners:
                listener()

    def _check_size(self) -> bool:
        """Note if the links take too much memory; return whether they do."""
        if self.bytes_held <= self.bytes_max:
            return False
        links, pages = self.pool.used, sum(map(len, self.crawl.replicas))
        self.too_large = (
            f"{pages:,} pages with {links:,} links read so far need {self.bytes_held:,} bytes of memory, over "
            f"OPIC_MAX_LINKS_BYTES {self.bytes_max:,} of this endpoint: raise that, or keep no links with "
            "OPIC_KEEP_LINKS=off for workers and endpoints"
        )
        self._loads_refused = self.crawl.loads
        log.warning("the kept links are too large for this endpoint, which answers from cash: %s", self.too_large)
        return True

    def catch_up(self, check: Callable[[], object], take: Callable[[Replica], T]) -> LinksRead[T]:
        """Bring the links up to date with the journals. The caller holds `lock`.

        Args:
            check: called after the replicas were brought up to date, and before anything else is read; may raise.
            take: called for each replica, which is then at the position that the links will be at.

        Raises:
            LinksTooLarge: they need more memory than they may take.
            StoreUnavailable: the store is unavailable.
            StoreDamaged: the links of a page can't be read.
            StoreFull: there are more pages than numbers.
        """
        for _ in range(LOADS_MAX):
            self.crawl.follow()
            check()
            if self.too_large:
                self.check()
            loads = self.crawl.loads
            if loads != self.loads or self._lost:
                self._load(loads)
                continue
            try:
                read = self._followed(take)
            except BaseException:
                self._lost = True  # What was taken out of the queues is not in the pool.
                raise
            if read is not None:
                self._check_size()  # If they have become too large, this question is the last one that they answer.
                return read
            self._lost = True
        raise StoreUnavailable("the store was recreated or its server restarted repeatedly: try again")

    def scores(self) -> LinkScores:
        """Return the link scores of pages: the in-links, known at a page's last read, of the links new at that read.

        Reads count from the first call on: before that no page has a score. The last two reads of a page decide, and a
        page that links to the destination counts once, whether it is the page itself or another one.

        Raises:
            NotKept: no links are kept.
            StoreUnavailable: as `catch_up`.

        Source: Kumar, Lang, Marlow, Tomkins (2008), section III: "the sum over each outlink not present during the
        prior crawl of the number of inlinks seen so far to the destination".
        """
        with self.lock:
            self.catch_up(self.check, lambda _: None)
            if self._scores is None:
                self._scores = _ScoreColumns(self.pool)
            pages, scores = self._scores.positive()
            ids, of_shard = list[Int64s](), list[Int64s]()
            for at, found in self.numbers.by_shard(pages):
                order = np.argsort(found)
                ids.append(found[order])
                of_shard.append(scores[at][order])
            return LinkScores(self.loads, ids, of_shard)

    def take_replaced(self) -> dict[int, Uint32s | None] | None:
        """Return the pages whose links were read since the last call, with those that they had before.

        None are those that were not known. None instead of a dict: there are too many, or all links were read again.
        """
        replaced, self._replaced = self._replaced, {}
        return replaced

    def _load(self, loads: list[int]) -> None:
        """Read the links of all pages. What changes meanwhile waits in the queues and is taken after them."""
        if not self._listening:
            for number, replica in enumerate(self.crawl.replicas):
                replica.effect_listeners.append(partial(self._queue, number))
            self._listening = True
        self._lost, self._heads, self.loads = False, [], []
        self.pool, self.numbers, self.generation = LinkPool(), CrawlNumbers(len(self.crawl)), self.generation + 1
        scored, self._scores = self._scores is not None, None
        self._unknown.clear()
        self._replaced = None
        try:
            with one_run(self.crawl.client, [shard.keys.head for shard in self.crawl.shards]):
                self.crawl.follow()  # To records of this run.
                for number in range(len(self.crawl)):
                    self._load_shard(number)
                self.crawl.follow()  # To records of this run that are at least as recent as the links.
        except ScanBroken as broken:
            log.info("reading the kept links again: %s", broken)
            self._lost = True
            return
        if scored:
            self._scores = _ScoreColumns(self.pool)
        self.loads = loads

    def _load_shard(self, number: int) -> None:
        shard, replica = self.crawl.shards[number], self.crawl.replicas[number]
        with replica.reading():
            self._queues[number].clear()
            self._queued[number] = 0
            lsn, state, since = replica.head.lsn, replica.state.copy(), replica.keeping.since
            if replica.trust is None:
                return
        for links in read_links(shard.client, shard.keys, lsn, state, since):
            self._put_first(number, links)
            if self._check_size():
                self.release()
                raise LinksTooLarge(self.too_large)

    def _put_first(self, number: int, links: PageLinks) -> None:
        """Put the links of pages of a shard that were not put yet."""
        near, counts = self.numbers.of(number, links.near.astype(np.int64)), links.near_counts
        if len(links.far):
            far, starts = self._far_many(links.far, links.far_shards), np.cumsum(links.far_counts) - links.far_counts
            unknown = np.unique(np.searchsorted(starts, np.flatnonzero(far == UNKNOWN_PAGE), side="right") - 1)
            for page, ids, prints, shards in links.take(unknown).rows():
                self._unknown[number, page] = pack_links(ids, prints, shards)
            at = np.repeat(np.cumsum(links.near_counts, dtype=np.int64), links.far_counts)  # Behind the near ones.
            near, counts = np.insert(near, at, far), links.near_counts + links.far_counts
        self.pool.put_first(self.numbers.of(number, links.pages.astype(np.int64)), counts, near.astype(np.uint32))

    def _far_many(self, fingerprints: NDArray[np.uint64], of_shards: NDArray[np.uint16]) -> Int64s:
        """As `_far`, with one look-up for each distinct page."""
        order = np.lexsort((of_shards, fingerprints))
        prints, shards = fingerprints[order], of_shards[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (prints[1:] != prints[:-1]) | (shards[1:] != shards[:-1])
        found = np.empty(len(order), np.int64)
        found[order] = self._far(prints[new], shards[new])[np.cumsum(new) - 1]
        return found

    def _queue(self, number: int, effect: Effect) -> None:
        """Note the links that a record changed. Called while the replica's lock is held."""
        if effect.ends_links:
            self._lost = True
        if effect.kept_from < 0 or self._lost:
            return
        links = effect.kept_links()
        self._queues[number].append(links)
        self._queued[number] += len(links)
        if self._queued[number] > QUEUED_MAX:
            self._queues[number].clear()
            self._lost = True

    def _followed(self, take: Callable[[Replica], T]) -> LinksRead[T] | None:
        """Take in what changed; None if a replica was reloaded meanwhile."""
        as_of, heads, taken, changed = self.crawl.as_of, list[Head](), list[T](), list[tuple[Place, bytes]]()
        for number, replica in enumerate(self.crawl.replicas):
            with replica.reading():
                heads.append(replica.head)
                taken.append(take(replica))
                while self._queues[number]:
                    changed += [((number, page), links) for page, links in self._queues[number].popleft()]
                self._queued[number] = 0
        if self.crawl.loads != self.loads or self._lost:
            return None
        if heads != self._heads:
            self._put(list(self._unknown.items()))  # First: a link looked up only now is no new link of a read below.
            self._put(changed, reads=True)
            self._heads = heads
        return LinksRead(as_of, heads, taken)

    def _put(self, pages: Iterable[tuple[Place, bytes]], *, reads: bool = False) -> None:
        for (number, page), packed in pages:
            try:
                near, far, far_shards = unpack_links(packed)
            except ValueError as error:
                raise StoreDamaged(f"the links of page {page} of shard {number} are damaged: {error}") from error
            source = self.numbers.one(number, page)
            linked = self.numbers.of(number, near.astype(np.int64))
            if len(far):
                linked = np.concatenate((linked, self._far(far, far_shards)))
                if (linked == UNKNOWN_PAGE).any():
                    self._unknown[number, page] = packed
                else:
                    self._unknown.pop((number, page), None)
            elif self._unknown:
                self._unknown.pop((number, page), None)
            links = linked.astype(np.uint32)
            before = self.pool.of(source)
            if self._scores is not None:
                self._scores.put(source, before, links, read=reads)
            if self._replaced is not None:
                self._replaced.setdefault(source, None if before is None else before.copy())
                if len(self._replaced) > ROWS_MAX:
                    self._replaced = None
            self.pool.put(source, links)

    def _far(self, fingerprints: NDArray[np.uint64], of_shards: NDArray[np.uint16]) -> Int64s:
        """Return the numbers of pages of other shards, UNKNOWN_PAGE for those not known there yet."""
        found = np.full(len(fingerprints), UNKNOWN_PAGE, np.int64)
        for number in np.unique(of_shards).tolist():
            at = np.flatnonzero(of_shards == number)
            with self.crawl.replicas[number].reading() as replica:
                ids = replica.find(fingerprints[at])
            known = ids >= 0
            found[at[known]] = self.numbers.of(number, ids[known])
        return found


class _ScoreColumns:
    """By page: how many pages link to it, and its link score; 16 bytes a page."""

    def __init__(self, pool: LinkPool) -> None:
        """Count the links to each page; no page has a score."""
        pages = pool.pages_linked()
        self._inlinks, self._scores = pool.link_counts(pages), np.zeros(pages, np.int64)

    def put(self, page: int, before: NDArray[np.uint32] | None, links: NDArray[np.uint32], *, read: bool) -> None:
        """Count new links of a page in place of those before, and score them if they are those of a `read`."""
        old = np.empty(0, np.uint32) if before is None else before
        added, unknown = np.setdiff1d(links, old), int((links == UNKNOWN_PAGE).sum() - (old == UNKNOWN_PAGE).sum())
        added, removed = added[added != UNKNOWN_PAGE], np.setdiff1d(old, links)
        size = int(max(added.max(initial=0), page)) + 1
        if size > len(self._inlinks):
            self._inlinks, self._scores = grown(self._inlinks, size), grown(self._scores, size)
        self._inlinks[added] += 1
        self._inlinks[removed[removed != UNKNOWN_PAGE]] -= 1
        if read and before is not None:
            # This link is the only one known to a page that its shard does not know yet.
            self._scores[page] = int(self._inlinks[added].sum()) + max(unknown, 0)

    def positive(self) -> tuple[Int64s, Int64s]:
        """Return the pages that have a score, and the scores."""
        pages = np.flatnonzero(self._scores)
        return pages, self._scores[pages]
