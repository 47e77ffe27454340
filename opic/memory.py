"""Memory management: lazily allocated arrays, returning freed memory to the system, rarer garbage collection."""

import ctypes
import gc
import mmap
import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MAPPED_BYTES_MIN: Final = 1 << 18
GARBAGE_OBJECTS: Final = 50_000
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # From glibc's malloc.h.
# What an endpoint keeps of freed memory. From 4 MiB on numpy asks for huge pages, which are cheap to take anew.
KEPT_BYTES_MAX, KEPT_ARRAY_BYTES_MAX = 16 << 20, 4 << 20
# Of a container, seen from inside: cgroup version 2, version 1.
CONTAINER_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes() -> int:
    """Return the memory of this machine, or of the container, where that is limited to less."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in CONTAINER_LIMITS:
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            size = min(size, int(text))
    return size


def lazy_zeros(rows: int, dtype: Any) -> NDArray[Any]:
    """Return zeros, shape (rows,), whose memory is allocated only as they are written.

    `np.zeros` does the same at first, but the allocator keeps freed memory and reuses it, already allocated.
    """
    size = rows * np.dtype(dtype).itemsize
    if size < MAPPED_BYTES_MIN:
        return np.zeros(rows, dtype)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux: huge pages reduce TLB misses of random reads.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, rows)


def give_back_large_arrays() -> None:
    """Make the allocator of this process return the memory of large arrays to the system when they are freed.

    By default glibc keeps more and more of it (up to 32 MiB per array), in each thread's arena. Other C libraries lack
    this call; there, this does nothing.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)


def keep_some_memory() -> None:
    """Make the allocator of this process keep up to 16 MiB of freed memory for the next arrays, for all threads alike.

    An endpoint makes arrays of all pages several times a second. Taken from the system each time, they cost a page
    fault for every 4 KiB: a tenth of a core at 200,000 pages. One arena is enough: one thread at a time runs Python.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_ARRAY_BYTES_MAX)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
        mallopt(M_ARENA_MAX, 1)


def give_back_what_is_free() -> None:
    """Return fragmented free memory to the system; takes a few milliseconds and works only with glibc."""
    if (malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        malloc_trim(0)


def collect_garbage() -> None:
    """Free what refers to itself in a circle, also what `search_garbage_rarely` excludes. Takes a tenth of a second.

    The collector counts objects, not bytes: the columns of a crawl that was closed, gigabytes in a few objects, would
    stay for hours.
    """
    excluded = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if excluded:
        gc.freeze()
    give_back_what_is_free()


def search_garbage_rarely() -> None:
    """Run the cyclic garbage collector after 50,000 new objects instead of 700, and exclude existing objects from it.

    A batch of events creates about ten thousand objects and no cycle; collecting took a tenth of a worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, *gc.get_threshold()[1:])
