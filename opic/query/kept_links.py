"""The links of the pages that were read, as last read: loaded from the store once, then followed with the journal.

A crawl keeps them unless OPIC_KEEP_LINKS is off and no page was ever trusted. They are read when somebody first asks,
and there is one copy of them in memory, from which coverage, in-links and link scores are answered. Each shard is read
at one position of its journal; a link to a page that its shard does not know yet is one to UNKNOWN_PAGE, see
`opic.query.unknown_links`. A page that went away has no links until it is read again.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int64s, Uint32s
from opic.errors import LinksTooLarge, NotKept, ScanBroken, StoreUnavailable
from opic.graph.known_graph import ROWS_MAX
from opic.graph.link_pool import UNKNOWN_PAGE, LinkPool
from opic.model.page_links import PageLinks
from opic.model.transfer import source_of
from opic.query.crawl_numbers import PAGES_MAX, CrawlNumbers
from opic.query.link_scores import NO_LINKS, InLinkCounts, LinkScores, score_pages
from opic.query.unknown_links import LINK_BYTES as UNKNOWN_LINK_BYTES
from opic.query.unknown_links import UnknownLinks
from opic.replica import Crawl, Replica
from opic.replica.effect import Effect, Head
from opic.replica.stored_links import live_rows, read_links
from opic.store.scan import one_run

log = logging.getLogger("opic.query")

T = TypeVar("T")
QUEUED_MAX: Final = 200_000  # Pages whose new links wait for the next question; with more, all are read again then.
LOADS_MAX: Final = 5
# Memory that the links and exact importance take, about: by link; by page, for the pool of links (24), two flows (24
# each), the graph (9) and the answers (16).
LINK_BYTES: Final = 4
PAGE_BYTES: Final = 100
NEW_PAGE_BYTES: Final = 28  # By page as well, once a page has new links: for the pool of these (24) and in-links (4).
NOT_KEPT: Final = (
    "the links of pages are not kept here, because OPIC_KEEP_LINKS=off is set for the workers: take that away, and the "
    "links of a page are known from its next read on"
)
# Of a record: the links of its reads, by time; and pages that do not exist any more, are forgotten, or came back and
# were not read since.
Change = tuple[PageLinks, Uint32s]


@dataclass(frozen=True, slots=True)
class LinksRead(Generic[T]):
    """What the replicas said at the position that the links are at."""

    as_of: float  # Unix seconds; the state is at least as recent.
    heads: list[Head]
    taken: list[T]  # By shard.


class KeptLinks:
    """The kept links of a crawl, in `pool`, and in `new_links` those that the read before did not show.

    Pages have the numbers of `numbers`.

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
        self.pool, self.new_links = LinkPool(), LinkPool()
        self.numbers, self.generation = CrawlNumbers(len(crawl)), 0
        self.loads: list[int] = []  # The load counts of the replicas that the links are valid for.
        self._heads: list[Head] = []
        self._queues: list[list[Change]] = [[] for _ in crawl.shards]
        self._queued, self._lost = [0] * len(crawl), False
        self._listening = False
        self._lengths = [PAGES_MAX] * len(crawl)  # By shard: its pages as of the last `_look`; see `_far`.
        self._unknown = UnknownLinks()
        # By shard: how many entries it had sent to each other one, as of the last `_look`; how many it has taken of
        # each, as of then, and as of the last record. -1 is not known.
        self._sent: list[dict[int, tuple[int, bytes]]] = [{} for _ in crawl.shards]
        self._received, self._taken = (np.full((len(crawl), len(crawl)), -1) for _ in range(2))
        self._inlinks: InLinkCounts | None = None  # From the first question about them on.
        self._scores: LinkScores | None = None  # Of the present links.
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
            with self.crawl.locked():  # A replica that is being loaded knows of no links until that is done.
                if not self.kept:
                    raise NotKept(NOT_KEPT)
        if not self.usable:
            if self.loads:
                self.release()
            raise LinksTooLarge(self.too_large)

    @property
    def usable(self) -> bool:
        """Whether the crawl keeps links that were not found too large for this endpoint.

        They are tried again after a start, and once the crawl is restored or made again.

        Raises:
            StoreError: the crawl was not followed yet, and can't be.
        """
        if not self.crawl.as_of:
            self.crawl.follow()  # For the first time: it tells whether links are kept.
        if self.too_large and self._loads_refused != self.crawl.loads:
            self.too_large = ""
        return self.kept and not self.too_large

    @property
    def bytes_held(self) -> int:
        """How much memory the links and exact importance take, about."""
        page_bytes = PAGE_BYTES + (NEW_PAGE_BYTES if self.new_links.used else 0)
        links = LINK_BYTES * (self.pool.used + self.new_links.used) + UNKNOWN_LINK_BYTES * len(self._unknown)
        return links + page_bytes * sum(map(len, self.crawl.replicas))

    @property
    def pages_coming(self) -> int:
        """How many pages links lead to that their shards will know once deposits arrive. The caller holds `lock`."""
        return self._unknown.pages_coming

    @property
    def standing(self) -> str:
        """`kept`, `not kept`, or `too large` for this endpoint."""
        return "too large" if self.too_large else "kept" if self.kept else "not kept"

    def release(self) -> None:
        """Forget all links, and give their memory back; the next question reads them again."""
        with self.lock:
            self._lost, self.loads = True, []
            self._clear()
            for listener in self.release_listeners:
                listener()

    def _clear(self) -> None:
        self.pool, self.new_links = LinkPool(), LinkPool()
        self.numbers, self.generation = CrawlNumbers(len(self.crawl)), self.generation + 1
        self._inlinks = self._scores = self._replaced = None
        self._unknown = UnknownLinks()

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

    def catch_up(self, check: Callable[[], object], read_replica: Callable[[Replica], T]) -> LinksRead[T]:
        """Bring the links up to date with the journals. The caller holds `lock`.

        Args:
            check: called after the replicas were brought up to date, and before anything else is read; may raise.
            read_replica: called for each replica, which is then at the position that the links will be at.

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
                read = self._followed(read_replica)
            except BaseException:
                self._lost = True  # What was taken out of the queues is not in the pool.
                raise
            if read is not None:
                self._check_size()  # If they have become too large, this question is the last one that they answer.
                return read
            self._lost = True
        raise StoreUnavailable("the store was recreated or its server restarted repeatedly: try again")

    @property
    def inlinks(self) -> InLinkCounts:
        """The in-links of all pages, counted from the first call on; another object in each generation."""
        if self._inlinks is None:
            self._inlinks = InLinkCounts(self.pool)
        return self._inlinks

    def present(self) -> None:
        """Bring the links up to date, before others wait for the caller.

        Raises:
            NotKept: no links are kept.
            StoreUnavailable: as `catch_up`.
        """
        with self.lock:
            self.catch_up(self.check, lambda _: None)

    def scores(self) -> LinkScores:
        """Return the link scores of pages; see `opic.query.link_scores`.

        Raises:
            NotKept: no links are kept.
            StoreUnavailable: as `catch_up`.
        """
        with self.lock:
            self.catch_up(self.check, lambda _: None)
            if self._scores is None:
                pages, scores = score_pages(self.new_links, self.inlinks)
                ids, of_shard = list[Int64s](), list[Int64s]()
                for positions, own_ids in self.numbers.by_shard(pages):
                    order = np.argsort(own_ids)
                    ids.append(own_ids[order])
                    of_shard.append(scores[positions][order])
                self._scores = LinkScores(self.loads, ids, of_shard)
            return self._scores

    def take_replaced(self) -> dict[int, Uint32s | None] | None:
        """Return the pages whose links were read since the last call, with those that they had before.

        None are those that were not known. None instead of a dict: there are too many, or all links were read again.
        """
        replaced, self._replaced = self._replaced, {}
        return replaced

    def _load(self, loads: list[int]) -> None:
        """Read the links of all pages. What changes in the meantime waits in the queues and is taken after them."""
        if not self._listening:
            for number, replica in enumerate(self.crawl.replicas):
                replica.effect_listeners.append(partial(self._queue, number))
            self._listening = True
        self._lost, self._heads, self.loads = False, [], []
        self._clear()
        try:
            with one_run(self.crawl.client, [shard.keys.head for shard in self.crawl.shards]):
                self.crawl.follow()  # To records of this run.
                self._received[:] = self._taken[:] = -1
                self._look()
                for number in range(len(self.crawl)):
                    self._load_shard(number)
                self.crawl.follow()  # To records of this run that are at least as recent as the links.
        except ScanBroken as broken:
            log.info("reading the kept links again: %s", broken)
            self._lost = True
            return
        self.loads = loads

    def _load_shard(self, number: int) -> None:
        shard, replica = self.crawl.shards[number], self.crawl.replicas[number]
        with replica.reading():
            self._queues[number].clear()
            self._queued[number] = 0
            lsn, state, since = replica.head.lsn, replica.state.copy(), replica.keeping.since
            self._sent[number] = replica.sent
            if replica.trust is None:
                return
        for links in read_links(shard.client, shard.keys, lsn, state, since):
            self._store(*self._numbered(number, links))
            if self._check_size():
                self.release()
                raise LinksTooLarge(self.too_large)

    def _numbered(self, number: int, links: PageLinks) -> tuple[Int64s, Uint32s, Uint32s, Bools]:
        """Return the numbers of pages of a shard; how many links each has; those, in one array; and which are new."""
        linked = self.numbers.numbers_of(number, links.near.astype(np.int64))
        counts, new = links.near_counts, links.near_new
        pages = self.numbers.numbers_of(number, links.pages.astype(np.int64))
        self._unknown.drop(pages)
        if len(links.far):
            far = self._far_many(links.far, links.far_shards)
            if (lost := far == UNKNOWN_PAGE).any():
                sources, sent = np.repeat(pages, links.far_counts)[lost], self._sent[number]
                deposits = [(number, shard, sent.get(shard, (0, b""))[0]) for shard in links.far_shards[lost].tolist()]
                self._unknown.add(sources, links.far[lost], links.far_new[lost], np.array(deposits, np.int64))
            # Behind the near ones.
            positions = np.repeat(np.cumsum(links.near_counts, dtype=np.int64), links.far_counts)
            linked, new = np.insert(linked, positions, far), np.insert(new, positions, links.far_new)
            counts = links.near_counts + links.far_counts
        return pages, counts, linked.astype(np.uint32), new

    def _far_many(self, fingerprints: NDArray[np.uint64], of_shards: NDArray[np.uint16]) -> Int64s:
        """As `_far`, with one look-up for each distinct page."""
        order = np.lexsort((of_shards, fingerprints))
        prints, shards = fingerprints[order], of_shards[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (prints[1:] != prints[:-1]) | (shards[1:] != shards[:-1])
        numbers = np.empty(len(order), np.int64)
        numbers[order] = self._far(prints[new], shards[new])[np.cumsum(new) - 1]
        return numbers

    def _queue(self, number: int, effect: Effect) -> None:
        """Note the links that a record changed, and deliveries. Called while the replica's lock is held."""
        for shard in effect.taken:
            self._received[number, shard] = effect.offsets[source_of(shard)]
        if effect.ends_links:
            self._lost = True
        if self._lost or (effect.kept_from < 0 and not len(effect.gone_page) and not len(effect.forgotten)):
            return
        gone = effect.gone_page[~live_rows(self.crawl.replicas[number].state, effect.gone_page)]
        gone = np.concatenate((gone, effect.forgotten))
        self._queues[number].append((effect.kept(), gone))
        self._queued[number] += len(effect.read_page) + len(gone)
        if self._queued[number] > QUEUED_MAX:
            self._queues[number].clear()
            self._lost = True

    def _followed(self, read_replica: Callable[[Replica], T]) -> LinksRead[T] | None:
        """Take in what changed; None if a replica was reloaded in the meantime."""
        as_of, before, taken = self.crawl.as_of, self._lengths, list[T]()
        heads, changed = self._look(lambda replica: taken.append(read_replica(replica)))
        if self.crawl.loads != self.loads or self._lost:
            return None
        if heads != self._heads:
            for number, changes in enumerate(changed):
                parts = [part for links, gone in changes for part in (links, PageLinks.none_of(gone))]
                self._put(number, PageLinks.joined(parts))
            if len(self._unknown):
                for number, first in enumerate(before):
                    self._link_known(number, first)
                self._leave_out_refused()
            self._heads, self._scores = heads, None
        return LinksRead(as_of, heads, taken)

    def _look(
        self, read_replica: Callable[[Replica], object] = lambda _: None
    ) -> tuple[list[Head], list[list[Change]]]:
        """Note where each shard is, call `read_replica` for it there, and return what its queue had by then."""
        heads, changed, digests = list[Head](), list[list[Change]](), list[dict[int, bytes]]()
        self._lengths = []
        for number, replica in enumerate(self.crawl.replicas):
            with replica.reading():
                heads.append(replica.head)
                read_replica(replica)
                self._lengths.append(len(replica))
                self._sent[number], self._taken[number] = replica.sent, self._received[number]
                digests.append(replica.taken)
                changed.append(self._queues[number].copy())
                self._queues[number].clear()
                self._queued[number] = 0
        for number, last in enumerate(digests):
            for shard, digest in last.items():
                count, newest = self._sent[shard].get(number, (0, b""))
                if digest == newest:  # Nothing is on its way. After a load, only deliveries say more.
                    self._taken[number, shard] = count
        return heads, changed

    def _link_known(self, number: int, first: int) -> None:
        """Add the links to pages of a shard that have become known, those with ids from `first` on, to their rows."""
        with self.crawl.replicas[number].reading() as replica:
            prints = replica.index.fingerprints[first : self._lengths[number]].copy()
        if not len(prints) or not len((known := self._unknown.pop_known(prints)).sources):
            return
        targets = self.numbers.numbers_of(number, first + known.targets).astype(np.uint32)
        self._note_before(np.unique(known.sources))
        if self._inlinks is not None:
            self._inlinks.replace(NO_LINKS, targets)
        for pool, some in ((self.pool, np.ones(len(targets), np.bool_)), (self.new_links, known.fresh)):
            pool.drop_unknown(known.sources[some & known.coming])
            pool.add_links(known.sources[some], targets[some])

    def _leave_out_refused(self) -> None:
        sources, fresh = self._unknown.refused(self._taken)
        if len(sources):
            self._note_before(np.unique(sources))
            self.pool.drop_unknown(sources)
            self.new_links.drop_unknown(sources[fresh])

    def _put(self, number: int, links: PageLinks) -> None:
        """Replace the links of pages of a shard; of a page that is there several times, the last ones count."""
        if not len(links):
            return
        pages, counts, linked, new = self._numbered(number, links.select_rows(links.last_of_each()))
        self._note_replaced(pages, linked)
        self._store(pages, counts, linked, new)

    def _store(self, pages: Int64s, counts: Uint32s, linked: Uint32s, new: Bools) -> None:
        """Put what `_numbered` returned into both pools."""
        self.pool.put_many(pages, counts, linked)
        if len(pages) and (new.any() or self.new_links.used):
            of_new = np.bincount(np.repeat(np.arange(len(pages)), counts)[new], minlength=len(pages))
            changes = (of_new > 0) | (self.new_links.counts_to(int(pages.max()) + 1)[pages] > 0)
            self.new_links.put_many(pages[changes], of_new[changes], linked[new])

    def _note_replaced(self, pages: Int64s, linked: Uint32s) -> None:
        """Note the links that pages have, before those of all become `linked`."""
        if self._inlinks is None and self._replaced is None:
            return
        before = self._note_before(pages)
        if self._inlinks is not None:
            self._inlinks.replace(before, linked[linked != UNKNOWN_PAGE])

    def _note_before(self, pages: Int64s) -> Uint32s:
        """Note for `take_replaced` the links that pages have, and return them in one array."""
        counts = self.pool.counts_to(int(pages.max()) + 1)[pages]
        before = self.pool.joined(pages[counts > 0])
        if self._replaced is not None:
            parts = np.split(before, np.cumsum(np.maximum(counts, 0))[:-1])
            for page, count, part in zip(pages.tolist(), counts.tolist(), parts, strict=True):
                self._replaced.setdefault(page, None if count < 0 else part)
            if len(self._replaced) > ROWS_MAX:
                self._replaced = None
        return before

    def _far(self, fingerprints: NDArray[np.uint64], of_shards: NDArray[np.uint16]) -> Int64s:
        """Return the numbers of pages of other shards, UNKNOWN_PAGE for those not known there yet.

        So are those that became known since `_look`, in a replica that another thread follows: what it copied lacks
        them.
        """
        numbers = np.full(len(fingerprints), UNKNOWN_PAGE, np.int64)
        for number in np.unique(of_shards).tolist():
            positions = np.flatnonzero(of_shards == number)
            with self.crawl.replicas[number].reading() as replica:
                ids = replica.index.find(fingerprints[positions])  # Of forgotten pages too, which are as gone ones.
            known = (ids >= 0) & (ids < self._lengths[number])
            numbers[positions[known]] = self.numbers.numbers_of(number, ids[known])
        return numbers
