"""Timers for integer ids, in sorted runs: the cost grows with the ids that are due; and a sparse column of times."""

from collections.abc import Callable
from typing import Final

import numpy as np

from opic.arrays import Float64s, Int64s, grown, values_at

RECENT_MAX: Final = 4_096  # Maximum number of unsorted entries; above it they become a sorted run.
BLOCK_BITS: Final = 6  # A block of a sparse column holds the times of 2**6 = 64 consecutive numbers.
RUNS_RATIO: Final = 2  # A run is merged with the one before unless that one is more than this many times as long.


class Timers:
    """A set of (time, number) entries that returns numbers when they are due, once for each time they were added.

    >>> timers = Timers()
    >>> timers.add(np.array([7, 8, 9]), np.array([3.0, 1.0, 2.0]))
    >>> timers.due(2.0), timers.due(2.5), timers.due(3.0)
    (array([8, 9]), array([], dtype=int64), array([7]))
    """

    def __init__(self) -> None:
        self._runs: list[tuple[Float64s, Int64s]] = []
        self._recent: list[tuple[Float64s, Int64s]] = []
        self._recent_count, self._soonest = 0, np.inf

    def __len__(self) -> int:
        """Return the number of entries that `due` has not returned yet."""
        return self._recent_count + sum(len(times) for times, _ in self._runs)

    def numbers(self) -> Int64s:
        """Return the numbers of all entries, in no particular order."""
        parts = [numbers for _, numbers in (*self._runs, *self._recent)]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def add(self, numbers: Int64s, until: Float64s) -> None:
        """Add numbers that are due at the given times. Entries with an infinite time are dropped."""
        finite = until < np.inf
        if not finite.all():
            numbers, until = numbers[finite], until[finite]
        if not len(numbers):
            return
        self._recent.append((until, numbers))
        self._recent_count += len(numbers)
        self._soonest = min(self._soonest, float(until.min()))
        if self._recent_count > RECENT_MAX:
            self._sort()

    def _sort(self) -> None:
        """Sort the unsorted entries into a run, and merge runs of similar lengths."""
        if not self._recent:
            return
        self._runs.append(_in_order(self._recent))
        self._recent, self._recent_count, self._soonest = [], 0, np.inf
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= RUNS_RATIO * len(self._runs[-1][0]):
            self._runs[-2:] = [_in_order(self._runs[-2:])]

    def due(self, now: float) -> Int64s:
        """Remove and return the numbers that are due, in no particular order."""
        if self._soonest <= now:
            self._sort()
        due: list[Int64s] = []
        for index, (times, numbers) in enumerate(self._runs):
            if times[0] <= now:
                end = int(np.searchsorted(times, now, side="right"))
                due.append(numbers[:end])
                self._runs[index] = times[end:], numbers[end:]
        self._runs = [run for run in self._runs if len(run[0])]
        return np.concatenate(due) if due else np.empty(0, np.int64)

    def first(self, count: int) -> tuple[Int64s, float]:
        """Return numbers that include the `count` due first, and the time up to which no due number is missing."""
        self._sort()
        parts = [numbers[:count] for _, numbers in self._runs]
        upto = min((float(times[count]) for times, _ in self._runs if len(times) > count), default=np.inf)
        return (np.concatenate(parts) if parts else np.empty(0, np.int64)), upto


def _in_order(parts: list[tuple[Float64s, Int64s]]) -> tuple[Float64s, Int64s]:
    times, numbers = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(times, kind="stable")  # A stable sort is fast if the parts are sorted already.
    return times[order], numbers[order]


class SparseTimes:
    """A sparse array of times by number. Only blocks of 64 numbers that were written to are stored; others are 0.

    >>> times = SparseTimes()
    >>> times.set(np.array([7, 900]), np.array([1.5, 2.5]), lambda: np.array([7]))
    >>> times.get(np.array([900, 8, 7]))
    array([2.5, 0. , 1.5])
    """

    def __init__(self) -> None:
        self._block = np.zeros(0, np.int32)  # The block of each range of 64 numbers; block 0 stays zero.
        self._times = np.zeros((1, 1 << BLOCK_BITS))
        self._used = 1

    def get(self, numbers: Int64s) -> Float64s:
        blocks = numbers >> BLOCK_BITS
        times: Float64s = self._times[values_at(self._block, blocks, 0), numbers & ((1 << BLOCK_BITS) - 1)]
        return times

    def set(self, numbers: Int64s, times: Float64s, kept: Callable[[], Int64s]) -> None:
        """Write times. If there is no room, first discard the blocks of all numbers other than `kept`."""
        if not len(numbers):
            return
        blocks = numbers >> BLOCK_BITS
        if int(blocks.max()) >= len(self._block):
            self._block = grown(self._block, int(blocks.max()) + 1)
        new = np.unique(blocks[self._block[blocks] == 0])
        if self._used + len(new) > len(self._times):
            self._compact(np.unique(kept() >> BLOCK_BITS), len(np.unique(blocks)))
            new = np.unique(blocks[self._block[blocks] == 0])
        if len(new):
            self._block[new] = np.arange(self._used, self._used + len(new))
            self._times[self._used : self._used + len(new)] = 0.0
            self._used += len(new)
        self._times[self._block[blocks], numbers & ((1 << BLOCK_BITS) - 1)] = times

    def _compact(self, stretches: Int64s, more: int) -> None:
        stretches = stretches[stretches < len(self._block)]
        stretches = stretches[self._block[stretches] > 0]
        times = np.zeros((2 * (1 + len(stretches) + more), 1 << BLOCK_BITS))
        times[1 : 1 + len(stretches)] = self._times[self._block[stretches]]
        self._block[:] = 0
        self._block[stretches] = np.arange(1, 1 + len(stretches))
        self._times, self._used = times, 1 + len(stretches)
