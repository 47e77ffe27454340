"""Memory of large arrays, taken as they are written and given back when dropped; and rarer searches for garbage."""

import ctypes
import gc
import mmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MAPPED_BYTES_MIN: Final = 1 << 18
GARBAGE_OBJECTS: Final = 50_000
M_MMAP_THRESHOLD: Final = -3  # From glibc's malloc.h.


def lazy_zeros(rows: int, dtype: Any) -> NDArray[Any]:
    """Return zeros that take memory only as they are written, shape (rows,).

    `np.zeros` does so at first; but the allocator keeps what was freed, and gives it out again as memory that is taken.
    """
    size = rows * np.dtype(dtype).itemsize
    if size < MAPPED_BYTES_MIN:
        return np.zeros(rows, dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux: fewer address translations for reads all over a column.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, rows)


def give_back_large_arrays() -> None:
    """Have the allocator of this process give the memory of large arrays back as they are dropped.

    By default glibc keeps more and more of it (up to 32 MiB an array), in each thread's arena. Another C library has no
    such call, and nothing happens.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)


def give_back_what_is_free() -> None:
    """Give back the memory that much work left free between what stays, in some milliseconds; by glibc alone."""
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        malloc_trim(0)


def search_garbage_rarely() -> None:
    """Have Python look for cyclic garbage after 50,000 new objects, not 700, and not among those that are there now.

    A batch of events makes some ten thousand objects and no cycle; looking through them was a tenth of a worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, *gc.get_threshold()[1:])
