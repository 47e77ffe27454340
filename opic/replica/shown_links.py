"""What each page of a shard showed at its last read, in the memory of the shard's writer: it tells which links are new.

The writer asks at a read of a page whose links differ from those of the read before, and the journal record then says
which of them are new (`Effect.near_new`, `Effect.far_new`). So all who follow the journal agree on it, and it can't get
lost. The table is filled from the kept links when it is first needed: a crawl that reads no page twice has none.

A link is 32 bits here: the id of a page of the shard, or 31 bits of the fingerprint of a page of another shard. So of
N links to other shards one in 2^31 / N that is new is taken for one that was there before. It takes what
`Runs` do.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opic.arrays import NO_RUN, Bools, Int32s, Int64s, Runs, Uint8s, Uint32s
from opic.model.page_links import PageLinks, picked

FIRST: Final = 0  # How a read relates to the one before: there is none since the page became known or came back,
SAME: Final = 1  # or it showed the same links,
OTHER: Final = 2  # or others.
FAR_BIT: Final = np.uint32(1 << 31)  # A shard has fewer pages.
UNDO_MAX: Final = 4  # A writer has one record that is not confirmed yet.


class FreshLinks(NamedTuple):
    """What reads show that the read before of their page did not."""

    compared: Bools  # By read: whether the links of the read before are known.
    near: Bools  # By link to a page of the shard: whether it is new. False for reads that were not compared.
    far: Bools  # By link to a page of another shard.


class _Noted(NamedTuple):
    lsn: int
    pages: Int64s
    starts: Int64s  # Where their links were before the record.
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
        self._links = Runs()  # By page.
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
        previous = np.full(len(links), -1)
        follows = links.pages[order][1:] == links.pages[order][:-1]
        previous[order[1:][follows]] = order[:-1][follows]
        here = previous[rows] >= 0  # Read before among these.
        pages = links.pages[rows[~here]].astype(np.int64)
        self._links.reserve(int(pages.max(initial=-1)) + 1)
        known = here.copy()
        known[~here] = self._links.counts[pages] != NO_RUN
        some = np.flatnonzero(self._links.counts[pages] > 0)
        shown = self._links.joined(pages[some])
        parts = [_of_row(rows[~here][some], self._links.counts[pages[some]], shown)]
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
        self._links.reserve(int(pages.max(initial=-1)) + 1)
        self._noted.append(_Noted(lsn, pages, self._links.starts[pages], self._links.counts[pages]))
        self._put(pages, links)
        self._lsn = lsn

    def undo(self, lsn: int) -> None:
        """Forget the records after one: they were refused."""
        while self.loaded and self._lsn > lsn:
            if not self._noted:
                self.forget()
                return
            noted = self._noted.pop()
            self._links.put_back(noted.pages, noted.starts, noted.counts)
            self._lsn = noted.lsn - 1

    def _fill(self, lsn: int) -> None:
        self.forget()
        for links in self._load():
            some = links.select_rows(links.last_of_each())
            self._put(some.pages.astype(np.int64), some)
        self.loaded, self._lsn = True, lsn

    def _put(self, pages: Int64s, links: PageLinks) -> None:
        """Replace the links of distinct pages."""
        rows, keys = np.arange(len(pages)), links.near
        if len(links.far):
            owners = np.concatenate((np.repeat(rows, links.near_counts), np.repeat(rows, links.far_counts)))
            keys = np.concatenate((keys, _far_keys(links)))[np.argsort(owners, kind="stable")]
        if self._links.replace(pages, (links.near_counts + links.far_counts).astype(np.int32), keys):
            self._noted.clear()  # These records can't be undone any more.


def _far_keys(links: PageLinks) -> Uint32s:
    return links.far.astype(np.uint32) | FAR_BIT


def _of_row(rows: Int64s, counts: NDArray[Any], keys: Uint32s) -> Int64s:
    """Return keys with the rows that they are of, `counts` of each."""
    return np.repeat(rows, counts) << 32 | keys.astype(np.int64)
