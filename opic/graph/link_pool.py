"""The links of pages in one flat array: replaced page by page, followed forwards, searched backwards.

Pages are numbers from 0 on, given by the caller. Takes 12 bytes a page for where its links are, 12 for who owns each
run of links, and 4 bytes a link. For one thread at a time.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Int32s, Int64s, Uint32s, grown

NOT_KEPT: Final = -1  # Instead of a number of links: the page's links are not known.
UNKNOWN_PAGE: Final = (1 << 32) - 1  # A link to a page that has no number yet.
# Links gathered at once. It bounds the memory that this takes; and trust that moves on sees what moved just before, so
# that half as many passes are needed as if all moved at once (Gauss-Seidel).
LINKS_AT_ONCE: Final = 1 << 17
GARBAGE_MIN: Final = 1 << 16


class LinkPool:
    """The links of pages. `counts` has the number of links of each page, NOT_KEPT where they are not known.

    Links to pages that have no number yet are only counted, in `unknown`, by page where there are any.
    """

    def __init__(self) -> None:
        self._start, self._count = np.zeros(0, np.int64), np.zeros(0, np.int32)
        self._pool, self._used, self._garbage = np.zeros(0, np.uint32), 0, 0
        # The runs of links in the pool, by their starts, and the page that put each there; a page's last run counts.
        self._run_start, self._run_page, self._runs = np.zeros(0, np.int64), np.zeros(0, np.uint32), 0
        self.unknown: dict[int, int] = {}
        self._linked = 0  # A number above all pages that were ever linked to.

    def put(self, page: int, links: Uint32s) -> None:
        """Replace the links of a page: distinct other pages, UNKNOWN_PAGE for each that has no number yet."""
        self.put_many(np.array([page]), np.array([len(links)]), links)

    def put_many(self, pages: Int64s, counts: NDArray[Any], links: Uint32s) -> None:
        """Replace the links of distinct pages: as `put`, page by page in one array."""
        if not len(pages):
            return
        self.reserve(int(pages.max()) + 1)
        for page in self.unknown.keys() & pages.tolist() if self.unknown else ():
            del self.unknown[page]
        if len(lost := np.flatnonzero(links == UNKNOWN_PAGE)):
            incomplete, missing = np.unique(np.searchsorted(np.cumsum(counts), lost, side="right"), return_counts=True)
            self.unknown |= dict(zip(pages[incomplete].tolist(), missing.tolist(), strict=True))
            links, counts = np.delete(links, lost), counts.astype(np.int64)
            counts[incomplete] -= missing
        old = self._count[pages]
        self._garbage += int(np.maximum(old, 0).sum(dtype=np.int64))
        if self._garbage > GARBAGE_MIN and 2 * self._garbage > self._used:
            self._count[pages] = np.minimum(old, 0)
            self._compact()
        self._linked = max(self._linked, int(links.max(initial=0)) + 1 if len(links) else 0)
        end = self._used + len(links)
        if end > len(self._pool):
            self._pool = grown(self._pool, end)
        self._pool[self._used : end] = links
        self._start[pages] = self._used + np.cumsum(counts, dtype=np.int64) - counts
        self._count[pages] = counts
        some = pages[counts > 0]
        self._add_runs(self._start[some], some)
        self._used = end

    def add_links(self, sources: Int64s, links: Uint32s) -> None:
        """Add links to those of pages, each by the page that has it."""
        if not len(sources):
            return
        pages, inverse = np.unique(sources, return_inverse=True)
        self.reserve(int(pages[-1]) + 1)
        unknown = {page: self.unknown[page] for page in self.unknown.keys() & pages.tolist()}
        counts = np.maximum(self._count[pages], 0)
        rows = np.concatenate((np.repeat(np.arange(len(pages)), counts), inverse))
        together = np.concatenate([*(some for _, some, _ in self.gathered(pages[counts > 0])), links])
        self.put_many(pages, counts + np.bincount(inverse), together[np.argsort(rows, kind="stable")])
        self.unknown |= unknown

    def drop_unknown(self, sources: Int64s) -> None:
        """Count one link less to pages that have no number, for each time that a page is in `sources`."""
        pages, counts = np.unique(sources, return_counts=True)
        for page, count in zip(pages.tolist(), counts.tolist(), strict=True):
            if (left := self.unknown.pop(page) - count) > 0:
                self.unknown[page] = left

    def links_of(self, page: int) -> Uint32s | None:
        """Return the links of a page, or None if they are not known."""
        if page >= len(self._count) or self._count[page] < 0:
            return None
        start = int(self._start[page])
        links = self._pool[start : start + int(self._count[page])]
        if (unknown := self.unknown.get(page, 0)) == 0:
            return links
        return np.concatenate((links, np.full(unknown, UNKNOWN_PAGE, np.uint32)))

    def to(self, page: int) -> Int64s:
        """Return the pages that link to a page, ascending: O(links of all pages), one comparison a link."""
        hits = np.flatnonzero(self._pool[: self._used] == page)
        runs = np.searchsorted(self._run_start[: self._runs], hits, side="right") - 1
        sources = self._run_page[runs].astype(np.int64)
        return np.sort(sources[self._start[sources] == self._run_start[runs]])

    def pages_linked(self) -> int:
        """Return a number above all pages that have links or are linked to."""
        return max(len(self._count), self._linked)

    @property
    def linked_end(self) -> int:
        """A number above all pages that were ever linked to."""
        return self._linked

    @property
    def used(self) -> int:
        """How many links are in the pool, with those replaced since it was last compacted."""
        return self._used

    def runs(self) -> tuple[Int64s, Uint32s, Uint32s]:
        """Return where each run of links starts, and the last ends; the page of each; and the array of the links."""
        starts = np.append(self._run_start[: self._runs], self._used)
        return starts, self._run_page[: self._runs], self._pool

    def current(self) -> NDArray[np.bool_]:
        """Return for each run whether its page has not replaced it yet."""
        owners = self._run_page[: self._runs]
        current: NDArray[np.bool_] = self._start[owners] == self._run_start[: self._runs]
        return current & (self._count[owners] > 0)

    def link_counts(self, pages: int, sources: Int64s | None = None) -> Int64s:
        """Return by page how many pages link to it, (pages,); of `sources` only these, distinct ones."""
        counts, rows = np.zeros(pages + 1, np.int64), np.flatnonzero(self._count > 0)
        if sources is not None:
            rows = sources[sources < len(self._count)]
            rows = rows[self._count[rows] > 0]
        for _, links, _ in self.gathered(rows):
            counts += np.bincount(np.minimum(links, pages), minlength=pages + 1)
        return counts[:pages]

    def counts(self, pages: int) -> Int32s:
        """Return the numbers of links of the pages below `pages`, to pages that have a number."""
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
            sources = np.repeat(np.arange(len(some)), counts)
            starts = self._start[some] - (ends[first:end] - counts - before)
            yield some, self._pool[starts[sources] + np.arange(len(sources))], sources
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
