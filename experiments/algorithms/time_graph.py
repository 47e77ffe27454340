"""Time graphs: links that are there for a while, and the pages that most of them point to at a moment."""

from bisect import bisect_left, bisect_right
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Float64s, Int64s
from opic.errors import BadInput

WINDOW_S: Final = 7 * 86_400.0  # The paper's w: 7 days.
TARGETS: Final = 500  # The paper's k.


class TimeGraph:
    """Links between pages 0 to n - 1, each with the time it comes and the last time at which it is there.

    A link is an instance: two links from one page to another are two. A link of a page to itself says nothing about
    what others think of the page, and is left out.

    Attributes:
        pages: n.
        source, target: (m,) int64, ends of the links, in order of `start`.
        start, end: (m,) float64, seconds; a link is there at t if start <= t <= end.

    Source: Kumar, Lang, Marlow, Tomkins (2008), section III: out(u, t) are the links of u that came in [t - w, t].
    """

    def __init__(
        self, source: Int64s, target: Int64s, start: Float64s, end: Float64s, pages: int | None = None
    ) -> None:
        """Sort the links by time.

        Raises:
            BadInput: a link ends before it starts, or a page or time is not a number in range.
        """
        ends = np.concatenate((source, target))
        self.pages = int(ends.max(initial=-1)) + 1 if pages is None else pages
        if not (np.isfinite(start).all() and (end >= start).all()):
            raise BadInput("a link of a time graph needs a finite start, and an end that is not before it")
        if len(ends) and not (ends.min() >= 0 and ends.max() < self.pages):
            raise BadInput(f"pages of a time graph are numbers from 0 to {self.pages - 1}")
        order = np.flatnonzero(source != target)
        order = order[np.argsort(start[order], kind="stable")]
        self.source, self.target = np.asarray(source, np.int64)[order], np.asarray(target, np.int64)[order]
        self.start, self.end = np.asarray(start, np.float64)[order], np.asarray(end, np.float64)[order]
        self._by_source = np.argsort(self.source, kind="stable")
        self._bounds = np.searchsorted(self.source[self._by_source], np.arange(self.pages + 1)).tolist()
        self._rows: dict[int, tuple[list[int], list[float], list[float], list[float]]] = {}

    @classmethod
    def windowed(
        cls, source: Int64s, target: Int64s, time: Float64s, window_s: float = WINDOW_S, pages: int | None = None
    ) -> "TimeGraph":
        """Return the graph in which a link is there for `window_s` seconds after its time.

        Raises:
            BadInput: as the constructor.
        """
        start = np.asarray(time, np.float64)
        return cls(source, target, start, start + window_s, pages)

    def links_of(self, page: int, now: float) -> tuple[list[int], list[int]]:
        """Return what a crawl of a page sees: the numbers of the links that are there, and their targets.

        O(log m + links that are there) while a page's links end in the order in which they came.
        """
        if page not in self._rows:
            links = self._by_source[self._bounds[page] : self._bounds[page + 1]]
            until = self.end[links]
            latest = np.maximum.accumulate(until).tolist() if len(links) else []
            self._rows[page] = links.tolist(), self.start[links].tolist(), until.tolist(), latest
        numbers, starts, ends, latest = self._rows[page]
        high, low = bisect_right(starts, now), bisect_left(latest, now)
        seen = [numbers[i] for i in range(low, high) if ends[i] >= now]
        return seen, self.target[seen].tolist() if seen else []

    def in_degrees(self, now: float) -> Int64s:
        """Return the number of links to each page at a moment, (n,)."""
        high = int(np.searchsorted(self.start, now, side="right"))
        return np.bincount(self.target[:high][self.end[:high] >= now], minlength=self.pages)

    def targets(self, now: float, k: int = TARGETS) -> Int64s:
        """Return the k pages with most links to them at a moment: K_t. Fewer, where fewer have any.

        Of equal pages the lower number: the paper does not say.
        """
        return greatest(self.in_degrees(now), k)


def greatest(counts: NDArray[np.int64], k: int) -> Int64s:
    """Return the numbers of the k greatest counts above 0, greatest first; of equal ones the lower number."""
    order: Int64s = np.argsort(-counts, kind="stable")[:k]
    return order[counts[order] > 0]
