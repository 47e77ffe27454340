"""The past of a shard: the measures of all its pages, in numpy, read again only where there was a read since."""

import threading

import numpy as np
from numpy.typing import NDArray

from opic.store import Shard
from opic.store.columns import Int64s, Measures
from opic.store.keys import ROWS_MEASURES

Bools = NDArray[np.bool_]


class Past:
    """The measures of all pages, kept from one look to the next: what was read since is read again, and no more.

    The step counts the reads of each bucket of 128 pages (the column `r`), so a bucket whose count stands still has the
    measures that are kept. Where it moved, the pages that spent something since are read again, and with them, of the
    same instant, the bucket's count. A page's record says how often it was read: if those numbers add up to the count,
    no other page was read, since none is ever read less often. If not, a page was read that had no cash, which moves no
    column that the mirror has; or another one in the moment in between. Then the whole bucket is read.

    So what is kept of a bucket is as new as its count was, or newer. Takes 25 bytes a page and 16 a measure, 45 for
    a page where a third were read four times, and 16 more for anchors under the continuous payout; twice that for the
    moment in which new ones take their places. A first look costs a second for a million pages.
    """

    def __init__(self, shard: Shard) -> None:
        """Nothing is read until a window is asked for."""
        self.shard = shard
        self._counts = np.zeros(0, np.int64)  # Reads of each bucket that what is kept has at least; -1 if nothing is.
        self._spent = np.zeros(0, np.int64)  # Of the last look. It says where to look first, no more.
        self._reads, self._starts = np.zeros(0, np.int64), np.zeros(1, np.int64)
        self._clock = self._cash = np.zeros(0, np.int64)
        self._dangling = np.zeros(0, np.bool_)
        self._anchors: tuple[Int64s, Int64s] | None = None  # Clock and total history; none under grants.
        if shard.rules.continuous:
            self._anchors = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._lock = threading.Lock()

    def measures(self, counts: Int64s, spent: Int64s) -> tuple[Int64s, Int64s, Int64s, tuple[Int64s, Int64s] | None]:
        """Return the measures of pages, at least as new as the columns.

        Where each page's start, the clocks and the cash of all; and of each page its anchor.

        Args:
            counts: reads of each bucket.
            spent: total history of each page, of the same instant.
        """
        with self._lock:
            self._lengthen(len(counts))
            behind = self._behind(counts)
            if len(behind):
                self._look_at_some(behind, spent)
                behind = self._behind(counts)
                if len(behind):
                    pages = (behind[:, np.newaxis] * ROWS_MEASURES + np.arange(ROWS_MEASURES)).ravel()
                    self._replace(pages, self.shard.measures(behind))
                    self._counts[behind] = counts[behind]
                self._spent = spent
            starts, anchors = self._starts[: len(spent) + 1], self._anchors
            anchors = anchors and (anchors[0][: len(spent)], anchors[1][: len(spent)])
            return starts, self._clock[: starts[-1]], self._cash[: starts[-1]], anchors

    def dangling(self, counts: Int64s, spent: Int64s) -> Bools:
        """Return which pages were without links when they were last read, at least as new as the columns."""
        self.measures(counts, spent)
        with self._lock:
            return self._dangling[: len(spent)].copy()

    def _behind(self, counts: Int64s) -> Int64s:
        return np.flatnonzero(self._counts[: len(counts)] < counts)

    def _look_at_some(self, behind: Int64s, spent: Int64s) -> None:
        """Read the pages of these buckets that spent something; where that explains all reads, that was all."""
        before = np.zeros(len(spent), np.int64)
        before[: len(self._spent)] = self._spent[: len(spent)]
        pages = np.flatnonzero(spent != before)
        known = np.zeros(len(self._counts), np.bool_)
        known[behind] = self._counts[behind] >= 0
        pages = pages[known[pages // ROWS_MEASURES]]
        if not len(pages):
            return
        counts, new = self.shard.measures_of(pages)
        self._replace(pages, new)
        buckets = np.unique(pages // ROWS_MEASURES)
        explained = self._reads.reshape(-1, ROWS_MEASURES)[buckets].sum(axis=1) == counts
        self._counts[buckets[explained]] = counts[explained]

    def _lengthen(self, buckets: int) -> None:
        more = buckets - len(self._counts)
        if more > 0:
            rows = more * ROWS_MEASURES
            self._counts = np.concatenate((self._counts, np.full(more, -1)))
            self._reads = np.concatenate((self._reads, np.zeros(rows, np.int64)))
            self._dangling = np.concatenate((self._dangling, np.zeros(rows, np.bool_)))
            self._starts = np.concatenate((self._starts, np.full(rows, self._starts[-1])))
            if self._anchors:
                clock, spent = (np.concatenate((column, np.zeros(rows, np.int64))) for column in self._anchors)
                self._anchors = clock, spent

    def _replace(self, pages: Int64s, new: Measures) -> None:
        """Put new measures in the place of the old ones, in new arrays: somebody may hold the old."""
        chosen = np.zeros(len(self._reads), np.bool_)
        chosen[pages] = True
        before = np.diff(self._starts)
        after = before.copy()
        after[pages] = np.diff(new.starts)
        self._reads[pages] = new.reads
        self._dangling[pages] = new.dangling
        stay, come = np.repeat(~chosen, before), np.repeat(chosen, after)
        self._starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(after)))
        self._clock = _merged(come, self._clock[stay], new.clock)
        self._cash = _merged(come, self._cash[stay], new.cash)
        if self._anchors:
            clock, spent = (column.copy() for column in self._anchors)
            clock[pages], spent[pages] = new.anchor_clock, new.anchor_spent
            self._anchors = clock, spent


def _merged(come: Bools, old: Int64s, new: Int64s) -> Int64s:
    column = np.empty(len(come), np.int64)
    column[~come], column[come] = old, new
    return column
