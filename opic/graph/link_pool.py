"""The links of pages in one flat array: replaced page by page, followed forwards, searched backwards.

Pages are numbers from 0 on, given by the caller. Takes 12 bytes a page for where its links are, 12 for who owns each
run of links, and 4 bytes a link. For one thread at a time.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import NO_RUN, VALUES_AT_ONCE, Bools, Int32s, Int64s, Runs, Uint32s, grown

NOT_KEPT: Final = NO_RUN  # Instead of a number of links: the page's links are not known.
UNKNOWN_PAGE: Final = (1 << 32) - 1  # A link to a page that has no number yet.


class LinkPool(Runs):
    """The links of pages. `counts` has the number of links of each page, NOT_KEPT where they are not known.

    Links to pages that have no number yet are only counted, in `unknown`, by page where there are any.
    """

    def __init__(self) -> None:
        super().__init__()
        # The runs of links in the pool, by their starts, and the page that put each there; a page's last run counts.
        self._run_start, self._run_page, self._runs = np.zeros(0, np.int64), np.zeros(0, np.uint32), 0
        self.unknown: dict[int, int] = {}
        self.linked_end = 0  # A number above all pages that were ever linked to.

    def put_many(self, pages: Int64s, counts: NDArray[Any], links: Uint32s) -> None:
        """Replace the links of distinct pages: distinct other pages, UNKNOWN_PAGE for each that has no number yet."""
        if not len(pages):
            return
        for page in self.unknown.keys() & pages.tolist() if self.unknown else ():
            del self.unknown[page]
        if len(lost := np.flatnonzero(links == UNKNOWN_PAGE)):
            incomplete, missing = np.unique(np.searchsorted(np.cumsum(counts), lost, side="right"), return_counts=True)
            self.unknown |= dict(zip(pages[incomplete].tolist(), missing.tolist(), strict=True))
            links, counts = np.delete(links, lost), counts.astype(np.int64)
            counts[incomplete] -= missing
        self.linked_end = max(self.linked_end, int(links.max(initial=0)) + 1 if len(links) else 0)
        some = pages[counts > 0]
        if self.replace(pages, counts, links):
            self._runs, some = 0, np.flatnonzero(self.counts > 0)
            some = some[np.argsort(self.starts[some])]
        self._add_runs(some)

    def add_links(self, sources: Int64s, links: Uint32s) -> None:
        """Add links to those of pages, each by the page that has it."""
        if not len(sources):
            return
        pages, inverse = np.unique(sources, return_inverse=True)
        self.reserve(int(pages[-1]) + 1)
        unknown = {page: self.unknown[page] for page in self.unknown.keys() & pages.tolist()}
        counts = np.maximum(self.counts[pages], 0)
        rows = np.concatenate((np.repeat(np.arange(len(pages)), counts), inverse))
        together = np.concatenate((self.joined(pages[counts > 0]), links))
        self.put_many(pages, counts + np.bincount(inverse), together[np.argsort(rows, kind="stable")])
        self.unknown |= unknown

    def drop_unknown(self, sources: Int64s) -> None:
        """Count one link less to pages that have no number, for each time that a page is in `sources`."""
        pages, counts = np.unique(sources, return_counts=True)
        for page, count in zip(pages.tolist(), counts.tolist(), strict=True):
            if (left := self.unknown.pop(page) - count) > 0:
                self.unknown[page] = left

    def to(self, page: int) -> Int64s:
        """Return the pages that link to a page, ascending: O(links of all pages), one comparison a link."""
        return self._linking(np.flatnonzero(self.values[: self.used] == page))

    def to_any(self, pages: Bools) -> Int64s:
        """Return the pages that link to any with a flag, ascending: O(links of all pages), one look-up a link."""
        firsts, values = range(0, self.used, VALUES_AT_ONCE), self.values[: self.used]
        hits = [np.flatnonzero(pages[values[first : first + VALUES_AT_ONCE]]) + first for first in firsts]
        return np.unique(self._linking(np.concatenate(hits))) if hits else np.zeros(0, np.int64)

    def _linking(self, hits: Int64s) -> Int64s:
        """Return the pages whose present links are at these places, ascending, a page as often as it has some."""
        runs = np.searchsorted(self._run_start[: self._runs], hits, side="right") - 1
        sources = self._run_page[runs].astype(np.int64)
        return np.sort(sources[self.starts[sources] == self._run_start[runs]])

    def pages_linked(self) -> int:
        """Return a number above all pages that have links or are linked to."""
        return max(len(self.counts), self.linked_end)

    def runs(self) -> tuple[Int64s, Uint32s, Uint32s]:
        """Return where each run of links starts, and the last ends; the page of each; and the array of the links."""
        starts = np.append(self._run_start[: self._runs], self.used)
        return starts, self._run_page[: self._runs], self.values

    def current(self) -> Bools:
        """Return for each run whether its page has not replaced it yet."""
        owners = self._run_page[: self._runs]
        current: Bools = self.starts[owners] == self._run_start[: self._runs]
        return current & (self.counts[owners] > 0)

    def link_counts(self, pages: int, sources: Int64s | None = None) -> Int64s:
        """Return by page how many pages link to it, (pages,); of `sources` only these, distinct ones."""
        counts, rows = np.zeros(pages + 1, np.int64), np.flatnonzero(self.counts > 0)
        if sources is not None:
            rows = sources[sources < len(self.counts)]
            rows = rows[self.counts[rows] > 0]
        for _, links, _ in self.gathered(rows):
            counts += np.bincount(np.minimum(links, pages), minlength=pages + 1)
        return counts[:pages]

    def counts_to(self, pages: int) -> Int32s:
        """Return the numbers of links of the pages below `pages`, to pages that have a number."""
        self.reserve(pages)
        return self.counts[:pages]

    def _add_runs(self, pages: Int64s) -> None:
        end = self._runs + len(pages)
        if end > len(self._run_start):
            self._run_start, self._run_page = grown(self._run_start, end), grown(self._run_page, end)
        self._run_start[self._runs : end], self._run_page[self._runs : end] = self.starts[pages], pages
        self._runs = end
