"""What each page of a shard showed at its last read, in the memory of the shard's writer: it tells which links are new.

The writer asks at a read of a page whose links differ from those of the read before, and the journal record then says
which of them are new (`Effect.near_new`, `Effect.far_new`). So all who follow the journal agree on it, and it can't get
lost. The table is filled from the kept links when it is first needed: a crawl that reads no page twice has none.

A link is 32 bits here: the id of a page of the shard, or 31 bits of the fingerprint of a page of another shard. So of
N links to other shards one in 2^31 / N that is new is taken for one that was there before. Takes 4 bytes a link, as
much again before it is compacted, and 12 bytes a page.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int32s, Int64s, Uint8s, Uint32s, grown
from opic.model.page_links import PageLinks, picked

FIRST: Final = 0  # How a read relates to the one before: there is none since the page became known or came back,
SAME: Final = 1  # or it showed the same links,
OTHER: Final = 2  # or others.
NOT_KNOWN: Final = -1
FAR_BIT: Final = np.uint32(1 << 31)  # A shard has fewer pages.
UNDO_MAX: Final = 4  # A writer has one record that is not confirmed yet.
POOL_MIN: Final = 1 << 16


class FreshLinks(NamedTuple):
    """What reads show that the read before of their page did not."""

    compared: Bools  # By read: whether the links of the read before are known.
    near: Bools  # By link to a page of the shard: whether it is new. False for reads that were not compared.
    far: Bools  # By link to a page of another shard.


class _Noted(NamedTuple):
    lsn: int
    pages: Int64s
    start: Int64s  # Where their links were before the record.
    counts: Int32s


class ShownLinks:
    """The links of pages as of one record. For one thread at a time."""

    def __init__(self, load: Callable[[], Iterable[PageLinks]]) -> None:
        """`load` returns the links of all pages as of the replica's head; of a page that comes twice the last count."""
        self._load = load
        self.forget()

    def forget(self) -> None:
        """Drop everything; it is loaded again when it is needed."""
        self.loaded, self._lsn = False, 0
        self._start, self._count = np.zeros(0, np.int64), np.zeros(0, np.int32)
        self._pool, self._used, self._live = np.zeros(0, np.uint32), 0, 0
        self._noted: deque[_Noted] = deque(maxlen=UNDO_MAX)

    def fresh(self, lsn: int, links: PageLinks, again: Uint8s) -> FreshLinks:
        """Return what is new in the links of reads.

        Args:
            lsn: the record that the reads come after.
            links: of each read, in the order of the log.
            again: FIRST, SAME or OTHER for each.
        """
        compared, rows = again == SAME, np.flatnonzero(again == OTHER)
        near, far = np.zeros(len(links.near), np.bool_), np.zeros(len(links.far), np.bool_)
        if not len(rows):
            return FreshLinks(compared, near, far)
        self.undo(lsn)
        if not self.loaded:
            self._fill(lsn)
        before, known = self._before(links, rows)
        compared[rows[known]] = True
        for new, keys, counts in (
            (near, links.near, links.near_counts),
            (far, _far_keys(links), links.far_counts),
        ):
            positions = picked(counts, rows[known])
            new[positions] = ~np.isin(_of_row(rows[known], counts[rows[known]], keys[positions]), before)
        return FreshLinks(compared, near, far)

    def _before(self, links: PageLinks, rows: Int64s) -> tuple[Int64s, Bools]:
        """Return the links that the pages of rows showed before, each with its row; and which rows are known."""
        order = np.argsort(links.pages, kind="stable")
        previous = np.full(len(links), NOT_KNOWN)
        follows = links.pages[order][1:] == links.pages[order][:-1]
        previous[order[1:][follows]] = order[:-1][follows]
        here = previous[rows] >= 0  # Read before among these.
        pages = links.pages[rows[~here]].astype(np.int64)
        self._reserve(int(pages.max(initial=-1)) + 1)
        known, counts = here.copy(), np.maximum(self._count[pages], 0)
        known[~here] = self._count[pages] != NOT_KNOWN
        positions = np.repeat(self._start[pages] - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))
        parts = [_of_row(rows[~here], counts, self._pool[positions])]
        last = previous[rows[here]]
        for keys, of_row in ((links.near, links.near_counts), (_far_keys(links), links.far_counts)):
            parts.append(_of_row(rows[here], of_row[last], keys[picked(of_row, last)]))
        return np.concatenate(parts), known

    def note(self, lsn: int, links: PageLinks) -> None:
        """Take in the reads of record `lsn`, which follows the last one, if the table is loaded."""
        self.undo(lsn - 1)
        if not self.loaded:
            return
        links = links.select_rows(links.last_of_each())
        pages = links.pages.astype(np.int64)
        self._reserve(int(pages.max(initial=-1)) + 1)
        self._noted.append(_Noted(lsn, pages, self._start[pages], self._count[pages]))
        self._put(pages, links)
        self._lsn = lsn

    def undo(self, lsn: int) -> None:
        """Forget the records after one: they were refused."""
        while self.loaded and self._lsn > lsn:
            if not self._noted:
                self.forget()
                return
            noted = self._noted.pop()
            self._live += int(np.maximum(noted.counts, 0).sum() - np.maximum(self._count[noted.pages], 0).sum())
            self._start[noted.pages], self._count[noted.pages] = noted.start, noted.counts
            self._lsn = noted.lsn - 1

    def _fill(self, lsn: int) -> None:
        self.forget()
        for links in self._load():
            some = links.select_rows(links.last_of_each())
            pages = some.pages.astype(np.int64)
            self._reserve(int(pages.max(initial=-1)) + 1)
            self._put(pages, some)
        self.loaded, self._lsn = True, lsn

    def _put(self, pages: Int64s, links: PageLinks) -> None:
        """Replace the links of distinct pages."""
        rows, keys = np.arange(len(pages)), links.near
        if len(links.far):
            owners = np.concatenate((np.repeat(rows, links.near_counts), np.repeat(rows, links.far_counts)))
            keys = np.concatenate((keys, _far_keys(links)))[np.argsort(owners, kind="stable")]
        counts = (links.near_counts + links.far_counts).astype(np.int32)
        self._live += len(keys) - int(np.maximum(self._count[pages], 0).sum())
        end = self._used + len(keys)
        if end > len(self._pool):
            if end > 2 * self._live + POOL_MIN:
                self._count[pages] = 0
                self._compact()
                end = self._used + len(keys)
            self._pool = grown(self._pool, end)
        self._pool[self._used : end] = keys
        self._start[pages] = self._used + np.cumsum(counts, dtype=np.int64) - counts
        self._count[pages] = counts
        self._used = end

    def _compact(self) -> None:
        """Move the links together. Records noted before can't be undone then."""
        rows = np.flatnonzero(self._count > 0)
        counts = self._count[rows].astype(np.int64)
        starts = np.cumsum(counts) - counts
        positions = np.repeat(self._start[rows] - starts, counts) + np.arange(int(counts.sum()))
        self._pool, self._used = self._pool[positions], len(positions)
        self._start[rows] = starts
        self._noted.clear()

    def _reserve(self, pages: int) -> None:
        if pages > (have := len(self._count)):
            self._start, self._count = grown(self._start, pages), grown(self._count, pages)
            self._count[have:] = NOT_KNOWN


def _far_keys(links: PageLinks) -> Uint32s:
    return links.far.astype(np.uint32) | FAR_BIT


def _of_row(rows: Int64s, counts: NDArray[Any], keys: Uint32s) -> Int64s:
    """Return keys with the rows that they are of, `counts` of each."""
    return np.repeat(rows, counts) << 32 | keys.astype(np.int64)
