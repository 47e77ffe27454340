"""The links of pages in one flat array: replaced page by page, followed forwards, searched backwards.

Pages are numbers from 0 on, given by the caller. Takes 12 bytes a page for where its links are, 12 for who owns each
run of links, and 4 bytes a link. For one thread at a time.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Uint32s = NDArray[np.uint32]

NOT_KEPT: Final = -1  # Instead of a number of links: the page's links are not known.
UNKNOWN_PAGE: Final = (1 << 32) - 1  # A link to a page that has no number yet.
# Links gathered at once. It bounds the memory that this takes; and trust that moves on sees what moved just before, so
# that half as many passes are needed as if all moved at once (Gauss-Seidel).
LINKS_AT_ONCE: Final = 1 << 17
GARBAGE_MIN: Final = 1 << 16


class LinkPool:
    """The links of pages. `counts` has the number of links of each page, NOT_KEPT where they are not known."""

    def __init__(self) -> None:
        """Start without links."""
        self._start, self._count = np.zeros(0, np.int64), np.zeros(0, np.int32)
        self._pool, self._used, self._garbage = np.zeros(0, np.uint32), 0, 0
        # The runs of links in the pool, by their starts, and the page that put each there; a page's last run counts.
        self._run_start, self._run_page, self._runs = np.zeros(0, np.int64), np.zeros(0, np.uint32), 0

    def put(self, page: int, links: Uint32s) -> None:
        """Replace the links of a page: distinct other pages, UNKNOWN_PAGE for each that has no number yet."""
        self.reserve(page + 1)
        if (old := int(self._count[page])) > 0:
            self._garbage += old
        if self._garbage > GARBAGE_MIN and 2 * self._garbage > self._used:
            self._count[page] = 0
            self._compact()
        end = self._used + len(links)
        if end > len(self._pool):
            self._pool = grown(self._pool, end)
        self._pool[self._used : end] = links
        self._start[page], self._count[page] = self._used, len(links)
        if len(links):
            self._add_runs(np.array([self._used]), np.array([page]))
        self._used = end

    def of(self, page: int) -> Uint32s | None:
        """Return the links of a page, or None if they are not known."""
        if page >= len(self._count) or self._count[page] < 0:
            return None
        start = int(self._start[page])
        return self._pool[start : start + int(self._count[page])]

    def to(self, page: int) -> Int64s:
        """Return the pages that link to a page, ascending: O(links of all pages), one comparison a link."""
        hits = np.flatnonzero(self._pool[: self._used] == page)
        runs = np.searchsorted(self._run_start[: self._runs], hits, side="right") - 1
        sources = self._run_page[runs].astype(np.int64)
        return np.sort(sources[self._start[sources] == self._run_start[runs]])

    def pages_linked(self) -> int:
        """Return a number above all pages that have links or are linked to."""
        linked = self._pool[: self._used]
        return max(len(self._count), int(linked[linked != UNKNOWN_PAGE].max(initial=0)) + 1)

    def link_counts(self, pages: int) -> Int64s:
        """Return by page how many pages link to it, (pages,)."""
        counts = np.zeros(pages + 1, np.int64)
        for _, links, _ in self.gathered(np.flatnonzero(self._count > 0)):
            counts += np.bincount(np.minimum(links, pages), minlength=pages + 1)
        return counts[:pages]

    def counts(self, pages: int) -> Int32s:
        """Return the numbers of links of the pages below `pages`."""
        self.reserve(pages)
        return self._count[:pages]

    def gathered(self, rows: Int64s) -> Iterator[tuple[Int64s, Uint32s, Int64s]]:
        """Yield the links of pages, about LINKS_AT_ONCE at once: the pages, their links, the page's index of each."""
        ends = np.cumsum(self._count[rows], dtype=np.int64)
        first = 0
        while first < len(rows):
            before = int(ends[first - 1]) if first else 0
            end = max(first + 1, int(np.searchsorted(ends, before + LINKS_AT_ONCE, side="right")))
            some, counts = rows[first:end], self._count[rows[first:end]]
            of = np.repeat(np.arange(len(some)), counts)
            starts = self._start[some] - (ends[first:end] - counts - before)
            yield some, self._pool[starts[of] + np.arange(len(of))], of
            first = end

    def reserve(self, pages: int) -> None:
        """Make room for pages; the links of new ones are not known."""
        if pages > (have := len(self._count)):
            self._start, self._count = grown(self._start, pages), grown(self._count, pages)
            self._count[have:] = NOT_KEPT

    def _add_runs(self, starts: Int64s, pages: Int64s) -> None:
        end = self._runs + len(starts)
        if end > len(self._run_start):
            self._run_start, self._run_page = grown(self._run_start, end), grown(self._run_page, end)
        self._run_start[self._runs : end], self._run_page[self._runs : end] = starts, pages
        self._runs = end

    def _compact(self) -> None:
        """Move the links together."""
        rows = np.flatnonzero(self._count > 0)
        pool = np.concatenate([self._pool[:0], *(links for _, links, _ in self.gathered(rows))])
        self._start[rows] = np.cumsum(self._count[rows], dtype=np.int64) - self._count[rows]
        self._pool, self._used, self._garbage, self._runs = pool, len(pool), 0, 0
        self._add_runs(self._start[rows], rows)


def grown(column: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return a copy of a column with room for `rows` rows and more, zeros after the old ones."""
    larger = np.zeros(max(1024, 2 * len(column), rows), column.dtype)
    larger[: len(column)] = column
    return larger
