"""Types of numpy arrays, by what they hold; docstrings say their shapes. Columns that grow; numbers that repeat."""

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
