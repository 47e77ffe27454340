"""Types of numpy arrays, by what they hold; docstrings say their shapes. Columns and runs that grow; numbers."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.memory import lazy_zeros

Bools = NDArray[np.bool_]
Uint8s = NDArray[np.uint8]
Uint16s = NDArray[np.uint16]
Uint32s = NDArray[np.uint32]
Uint64s = NDArray[np.uint64]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
ROWS_MIN: Final = 1_024
NO_RUN: Final = -1  # Instead of a number of values.
# Values gathered at once. It bounds the memory that this takes; and trust that moves on sees what moved just before, so
# that half as many passes are needed as if all moved at once (Gauss-Seidel).
VALUES_AT_ONCE: Final = 1 << 17
GARBAGE_MIN: Final = 1 << 16


def values_at(column: NDArray[Any], places: NDArray[Any], beyond: object) -> NDArray[Any]:
    """Return the values of a column at some places, and `beyond` for places past its end.

    >>> values_at(np.array([5, 6]), np.array([1, 7, 0]), -1)
    array([ 6, -1,  5])
    """
    inside = places < len(column)
    if inside.all():
        values: NDArray[Any] = column[places]
    else:
        values = np.full(len(places), beyond, column.dtype)
        values[inside] = column[places[inside]]
    return values


def grown(column: NDArray[Any], rows: int) -> NDArray[Any]:
    """Return a copy of a column with room for `rows` rows and more; those past the old ones are zero."""
    larger = lazy_zeros(max(ROWS_MIN, 2 * len(column), rows), column.dtype)
    larger[: len(column)] = column
    return larger


def distinct(numbers: Int64s) -> Int64s:
    """Return the distinct numbers >= 0, increasing. `np.unique` hashes and takes ten times as long."""
    ordered = np.sort(numbers)
    once: Int64s = ordered[np.diff(ordered, prepend=-1) != 0]
    return once


def turns(rows: NDArray[Any]) -> tuple[Int64s, Int64s]:
    """Return the order that sorts rows, and of each in that order how many of the same come before it, (n,) each.

    >>> [array.tolist() for array in turns(np.array([5, 3, 5]))]
    [[1, 0, 2], [0, 0, 1]]
    """
    order = np.argsort(rows, kind="stable")
    ordered, every = rows[order], np.arange(len(rows))
    again = np.append(False, ordered[1:] == ordered[:-1])[: len(rows)]
    return order, every - np.maximum.accumulate(np.where(again, 0, every))


class Runs:
    """A run of values for each row, in one array: runs are replaced, and moved together once half of it is garbage.

    `starts` and `counts` are by row; a count is NO_RUN where the row was never put. The first `used` of `values` may be
    in use. Takes 12 bytes a row, and 4 a value, twice that before runs are moved together.
    """

    def __init__(self) -> None:
        self.starts, self.counts = np.zeros(0, np.int64), np.zeros(0, np.int32)
        self.values, self.used, self._garbage = np.zeros(0, np.uint32), 0, 0

    def reserve(self, rows: int) -> None:
        """Make room for rows, new ones without a run."""
        if rows > (have := len(self.counts)):
            self.starts, self.counts = grown(self.starts, rows), grown(self.counts, rows)
            self.counts[have:] = NO_RUN

    def replace(self, rows: Int64s, counts: NDArray[Any], values: Uint32s) -> bool:
        """Replace the runs of distinct rows, given in one array; return whether all others were moved before that."""
        self.reserve(int(rows.max(initial=-1)) + 1)
        old = self.counts[rows]
        self._garbage += int(np.maximum(old, 0).sum(dtype=np.int64))
        if moves := self._garbage > GARBAGE_MIN and 2 * self._garbage > self.used:
            self.counts[rows] = np.minimum(old, 0)
            self._move_together()
        end = self.used + len(values)
        if end > len(self.values):
            self.values = grown(self.values, end)
        self.values[self.used : end] = values
        self.starts[rows] = self.used + np.cumsum(counts, dtype=np.int64) - counts
        self.counts[rows], self.used = counts, end
        return moves

    def put_back(self, rows: Int64s, starts: Int64s, counts: Int32s) -> None:
        """Take back a `replace` since which runs were not moved, given what rows had before."""
        self._garbage += int(np.maximum(self.counts[rows], 0).sum() - np.maximum(counts, 0).sum())
        self.starts[rows], self.counts[rows] = starts, counts

    def gathered(self, rows: Int64s) -> Iterator[tuple[Int64s, Uint32s, Int64s]]:
        """Yield the runs of rows that have one, about VALUES_AT_ONCE at once: rows, values, the row's index of each."""
        ends = np.cumsum(self.counts[rows], dtype=np.int64)
        first = 0
        while first < len(rows):
            before = int(ends[first - 1]) if first else 0
            end = max(first + 1, int(np.searchsorted(ends, before + VALUES_AT_ONCE, side="right")))
            some, counts = rows[first:end], self.counts[rows[first:end]]
            index = np.repeat(np.arange(len(some)), counts)
            starts = self.starts[some] - (ends[first:end] - counts - before)
            yield some, self.values[starts[index] + np.arange(len(index))], index
            first = end

    def joined(self, rows: Int64s) -> Uint32s:
        """Return the runs of rows that have one, in one array."""
        return np.concatenate([self.values[:0], *(values for _, values, _ in self.gathered(rows))])

    def _move_together(self) -> None:
        rows = np.flatnonzero(self.counts > 0)
        values = self.joined(rows)
        self.starts[rows] = np.cumsum(self.counts[rows], dtype=np.int64) - self.counts[rows]
        self.values, self.used, self._garbage = values, len(values), 0
