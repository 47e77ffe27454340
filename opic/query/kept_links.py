"""The links of the pages that were read, as last read: loaded from the store once, then followed with the journal.

A crawl keeps them from the first trusted page on, or with OPIC_KEEP_LINKS. They are read when somebody first asks, and
there is one copy of them in memory, from which coverage, in-links and link scores are answered. Each shard is read at
one position of its journal; a link to a page that its shard does not know yet is one to UNKNOWN_PAGE, and is looked up
again later.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from opic.errors import NotKept, StoreDamaged, StoreUnavailable
from opic.graph.link_pool import UNKNOWN_PAGE, LinkPool, grown
from opic.model.trust import unpack_links
from opic.replica import Crawl, Replica
from opic.replica.crawl import Place
from opic.replica.effect import Effect, Head
from opic.store.connection import store_errors

Int64s = NDArray[np.int64]
T = TypeVar("T")
SCAN_COUNT: Final = 1_000
QUEUED_MAX: Final = 200_000  # Pages whose new links wait for the next question; with more, all are read again then.
LOADS_MAX: Final = 5
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
    """The kept links of a crawl, in `pool`. Positions of pages: id times the number of shards, plus the shard.

    Hold `lock` from `catch_up` on for as long as `pool` is read. `generation` changes when all links were read again:
    positions may then belong to other pages.
    """

    def __init__(self, crawl: Crawl) -> None:
        """Read nothing before the first question."""
        self.crawl, self.lock = crawl, threading.RLock()
        self.pool, self.generation = LinkPool(), 0
        self.loads: list[int] = []  # The load counts of the replicas that the links are valid for.
        self._heads: list[Head] = []
        self._queues: list[deque[list[tuple[int, bytes]]]] = [deque() for _ in crawl.shards]
        self._queued, self._lost = [0] * len(crawl), False
        self._listening = False
        self._unknown: dict[Place, bytes] = {}  # Pages with links to pages that their shard did not know.
        self._scores: _ScoreColumns | None = None  # From the first question about them on.

    @property
    def kept(self) -> bool:
        """Whether the crawl keeps links, as far as its replicas know, or begins to with its next batch."""
        return self.crawl.shards[0].keep_links or any(replica.trust is not None for replica in self.crawl.replicas)

    def check(self) -> None:
        """Raise NotKept if the crawl keeps no links; for `catch_up`."""
        if not self.kept:
            raise NotKept(NOT_KEPT)

    def catch_up(self, check: Callable[[], object], take: Callable[[Replica], T]) -> LinksRead[T]:
        """Bring the links up to date with the journals. The caller holds `lock`.

        Args:
            check: called after the replicas were brought up to date, and before anything else is read; may raise.
            take: called for each replica, which is then at the position that the links will be at.

        Raises:
            StoreUnavailable: the store is unavailable.
            StoreDamaged: the links of a page can't be read.
        """
        for _ in range(LOADS_MAX):
            self.crawl.follow()
            check()
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
            positions, scores = self._scores.positive()
            shards = len(self.crawl)
            of_shard = [positions % shards == number for number in range(shards)]
            return LinkScores(self.loads, [positions[at] // shards for at in of_shard], [scores[at] for at in of_shard])

    def _load(self, loads: list[int]) -> None:
        """Read the links of all pages. What changes meanwhile waits in the queues and is taken after them."""
        if not self._listening:
            for number, replica in enumerate(self.crawl.replicas):
                replica.effect_listeners.append(partial(self._queue, number))
            self._listening = True
        for number, queue in enumerate(self._queues):
            queue.clear()
            self._queued[number] = 0
        self._lost, self._heads, self.loads = False, [], []
        self.pool, self.generation = LinkPool(), self.generation + 1
        scored, self._scores = self._scores is not None, None
        self._unknown.clear()
        for number, shard in enumerate(self.crawl.shards):
            cursor = -1
            while cursor:
                with store_errors():
                    cursor, found = shard.client.hscan(shard.keys.links, max(cursor, 0), count=SCAN_COUNT)
                self._put(((number, int(page)), links) for page, links in found.items())
        if scored:
            self._scores = _ScoreColumns(self.pool)
        self.loads = loads

    def _queue(self, number: int, effect: Effect) -> None:
        """Note the links that a record changed. Called while the replica's lock is held."""
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
        shards = len(self.crawl)
        for (number, page), packed in pages:
            try:
                near, far, far_shards = unpack_links(packed)
            except ValueError as error:
                raise StoreDamaged(f"the links of page {page} of shard {number} are damaged: {error}") from error
            positions = near.astype(np.int64) * shards + number
            if len(far):
                positions = np.concatenate((positions, self._positions(far, far_shards)))
                if (positions == UNKNOWN_PAGE).any():
                    self._unknown[number, page] = packed
                else:
                    self._unknown.pop((number, page), None)
            elif self._unknown:
                self._unknown.pop((number, page), None)
            links = positions.astype(np.uint32)
            if self._scores is not None:
                self._scores.put(page * shards + number, self.pool.of(page * shards + number), links, read=reads)
            self.pool.put(page * shards + number, links)

    def _positions(self, fingerprints: NDArray[np.uint64], of_shards: NDArray[np.uint16]) -> Int64s:
        """Return the positions of pages of other shards, UNKNOWN_PAGE for those not known there yet."""
        found = np.full(len(fingerprints), UNKNOWN_PAGE, np.int64)
        for number in np.unique(of_shards).tolist():
            at = np.flatnonzero(of_shards == number)
            with self.crawl.replicas[number].reading() as replica:
                ids = replica.find(fingerprints[at])
            found[at] = np.where(ids >= 0, ids * len(self.crawl) + number, UNKNOWN_PAGE)
        return found


class _ScoreColumns:
    """By position: the number of pages that link to a page, and its link score; 16 bytes a page."""

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
        """Return the positions of the pages that have a score, and the scores."""
        positions = np.flatnonzero(self._scores)
        return positions, self._scores[positions]
