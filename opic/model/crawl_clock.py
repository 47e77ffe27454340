"""Crawl clock: combines the clocks of a crawl's shards into one.

Window policies use one time axis, the grains spent by reads of all pages. Each shard counts only the reads of its own
pages, so the clocks of two shards can't be compared. But they share real time: each shard keeps a series of (time,
rounds, clock), and interpolation between its entries gives the shard's clock at any time. The sum over the shards is
the crawl's clock. A clock value of a shard is translated to a time, and the time to the crawl's clock. The crawl's
rounds at a clock are known from their counts (`opic.model.rounds`); in between they are interpolated as well.

Clocks are interpolated linearly between two entries. So the error of a translated clock is what other shards moved
within an hour, or while the shard took a quarter of a round, whichever is shorter: little compared to a window of
rounds. Shards that a migration made share one clock up to then, and count for themselves from there on: up to there
nothing is translated. If all times are equal, the shards are assumed to have moved in step; so they are before the
oldest entry kept of some shard, where nothing is known. The axis has at most ENTRIES_MAX knots, as many as a series
has entries. With 16 full series this takes 0.1 s.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from opic.arrays import Float64s, Int64s
from opic.errors import StoreFull
from opic.model.books import Books
from opic.model.cash import CrawlRules
from opic.model.series import ENTRIES_MAX, Entry

TOTAL_LIMIT: Final = 1 << 62  # Limit of the crawl's clock, so that values computed from it fit an int64.


class Clocks:
    """The clocks of a crawl's shards, as of one state.

    >>> halves = [Books(time_us=40, clock=60, live=1), Books(time_us=40, clock=30, live=1)]
    >>> series = [[Entry(0, 0, 0), Entry(20, 0, 60)], [Entry(0, 0, 0)]]
    >>> clocks = Clocks(series, halves, CrawlRules())
    >>> clocks.translate(0, np.array([0, 30, 60])), clocks.translate(1, np.array([0, 15, 30]))
    (array([ 0, 38, 75]), array([ 0, 75, 90]))
    """

    def __init__(
        self, series: Sequence[ArrayLike], parts: Sequence[Books], rules: CrawlRules, counts: Sequence[Entry] = ()
    ) -> None:
        """Map the clocks of the shards to one axis.

        Args:
            series: for each shard (m, 3) int64, its entries in the order of its log; entries later than its books are
                ignored.
            parts: the books of each shard.
            rules: the rules of the crawl.
            counts: the counts of the crawl's rounds, in shard 0 of many; those later than the books are ignored.

        Raises:
            StoreFull: the sum of the clocks is past 2^62.
        """
        self.books = Books.merged(parts, rules)  # The end of the axis.
        self.series: list[Entry]  # The series of the crawl.
        self._knots: list[tuple[Float64s, Float64s]] = []
        # Each of n shards has, beside its own share, what the others had spent by then: in all n - 1 times the clock.
        self._shared = sum(part.elsewhere for part in parts) // max(len(parts) - 1, 1)
        if len(parts) == 1:
            self.series = [Entry(*entry) for entry in np.asarray(series[0]).tolist()]
            return
        if self.books.clock >= TOTAL_LIMIT:
            raise StoreFull(f"the clocks of all shards, {self.books.clock}, reached 2^62: use the policy static")
        lines = [_line(entries, books) for entries, books in zip(series, parts, strict=True)]
        # A shard whose first entry has a clock above 0 had moved before it; nothing earlier is known of this shard.
        start = max((times[0] for times, _, clocks in lines if clocks[0]), default=-np.inf)
        times = np.unique(np.concatenate([times for times, _, _ in lines]))
        times = times[times >= start]
        times = times[:: -max(1, -(-len(times) // ENTRIES_MAX))][::-1]
        own = [np.interp(times, entry_times, clocks) for entry_times, _, clocks in lines]
        crawl = np.sum([np.maximum(clocks - self._shared, 0) for clocks in own], axis=0)
        crawl += np.max([np.minimum(clocks, self._shared) for clocks in own], axis=0)
        self._knots = [(np.append(0.0, clocks), np.append(0.0, crawl)) for clocks in own]
        self.series = self._with_rounds(times, crawl, counts)

    def _with_rounds(self, times: Float64s, crawl: Float64s, counts: Sequence[Entry]) -> list[Entry]:
        """Return the series of the crawl, given its clock at some times: at these, and at counts of rounds between."""
        known = [count for count in counts if count.clock < self.books.clock]
        counted = np.array([count.clock for count in known], np.float64)
        between = counted[~np.isin(counted, crawl)]  # After a migration all earlier counts are at knots.
        clocks = np.append(crawl, between)
        times = np.append(times, np.interp(between, crawl, times))
        order = np.lexsort((times, clocks))
        passed = np.array([0, *(count.rounds for count in known), self.books.rounds], np.float64)
        rounds = np.interp(clocks, np.array([0, *counted.tolist(), self.books.clock], np.float64), passed)
        return [
            Entry(
                int(times[index]), min(int(rounds[index]), self.books.rounds), min(int(clocks[index]), self.books.clock)
            )
            for index in order.tolist()
        ]

    def translate(self, shard: int, clocks: Int64s) -> Int64s:
        """Convert clock values of a shard to the crawl's clock; with one shard, they are the same.

        The result is non-decreasing in the shard's clock. A value at which the shard's clock rested is converted as of
        the time when the clock reached it.

        Args:
            shard: number of the shard.
            clocks: (m,), from 0 to the clock of its books.
        """
        if not self._knots:
            return clocks
        own, crawl = self._knots[shard]
        after = np.clip(np.searchsorted(own, clocks, side="left"), 1, len(own) - 1)
        before = after - 1
        width = own[after] - own[before]
        share = np.where(width > 0, (clocks - own[before]) / np.where(width > 0, width, 1.0), 0.0)
        interpolated = crawl[before] + np.clip(share, 0.0, 1.0) * (crawl[after] - crawl[before])
        translated: Int64s = np.minimum(np.rint(interpolated).astype(np.int64), self.books.clock)
        shared: Int64s = np.where(clocks <= self._shared, clocks, translated)
        return shared


def _line(series: ArrayLike, books: Books) -> tuple[Float64s, Float64s, Float64s]:
    """Return the times, rounds and clocks of a shard's series and its books; of entries at one time, only the last."""
    entries = np.asarray(series, np.int64).reshape(-1, 3)
    times, rounds, clocks = np.vstack((entries[entries[:, 2] <= books.clock], [Entry.of(books)])).T.astype(np.float64)
    times = np.minimum.accumulate(times[::-1])[::-1]  # An entry counts as no later than those after it.
    last = np.append(np.diff(times) > 0, [True])
    return times[last], rounds[last], clocks[last]
