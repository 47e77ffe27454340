"""Sums over the links of all pages at once: a sparse matrix that takes no memory of its own beside the pool of links.

The pool is one array of links, run after run. As it is, that is a matrix in compressed columns. Runs that their page
has replaced are still in it; they have weight 0, and so count for nothing.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from opic.arrays import Bools, Float64s, Int64s
from opic.graph.link_pool import LinkPool

LINKS_AT_ONCE: Final = 1 << 20
ONES: Final = np.ones(LINKS_AT_ONCE)  # They stand for the links of any matrix.


class PooledMatrix:
    """The links in a pool as they are now; of no use once the pool has changed."""

    def __init__(self, pool: LinkPool, pages: int) -> None:
        """Look at the runs of a pool whose links lead to pages below `pages`. Costs O(runs)."""
        if pool.linked_end > pages:  # The sparse product checks no index.
            raise ValueError(f"a link leads to page {pool.linked_end - 1:,}, the matrix is to have {pages:,}")
        self._pages = pages
        self._starts, self._owners, self._links = pool.runs()
        self._current = pool.current()
        self._parts = list(self._sliced())

    def spread(self, weights: Float64s) -> Float64s:
        """Return by page the sum of the weights of the pages that link to it; `weights` is by page as well."""
        of_runs = np.where(self._current, weights[self._owners], 0.0)
        received = np.zeros(self._pages)
        for first, end, part in self._parts:
            received += part @ of_runs[first:end]
        return received

    def links_to(self, flags: Bools) -> Int64s:
        """Return by page how many of its links lead to pages with a flag."""
        counts, wanted = np.zeros(len(flags), np.int64), flags.astype(np.float64)
        for first, end, part in self._parts:
            rows = np.flatnonzero(self._current[first:end])
            counts[self._owners[first:end][rows]] = (part.T @ wanted)[rows]
        return counts

    def _sliced(self) -> Iterator[tuple[int, int, Any]]:
        """Yield consecutive runs as matrices, of about LINKS_AT_ONCE links each."""
        from scipy.sparse import csc_array  # Only crawls that keep links need it.

        starts, runs, first = self._starts, len(self._owners), 0
        ones = ONES
        while first < runs:
            end = int(np.searchsorted(starts, starts[first] + LINKS_AT_ONCE, side="right")) - 1
            end = min(max(end, first + 1), runs)
            begin, stop = int(starts[first]), int(starts[end])
            if stop - begin > len(ones):
                ones = np.ones(stop - begin)
            bounds = (starts[first : end + 1] - begin).astype(np.int32)
            links = self._links[begin:stop].view(np.int32)
            yield first, end, csc_array((ones[: stop - begin], links, bounds), shape=(self._pages, end - first))
            first = end
