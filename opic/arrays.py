"""Types of numpy arrays, by what they hold; docstrings say their shapes. Reading a column past its end."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Uint8s = NDArray[np.uint8]
Uint16s = NDArray[np.uint16]
Uint32s = NDArray[np.uint32]
Uint64s = NDArray[np.uint64]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]


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
