"""Large arrays take memory as they are written, and give it back. Linux says how much a process has."""

import subprocess
import sys

import numpy as np
import pytest

from opic.memory import MAPPED_BYTES_MIN, lazy_zeros

START = """
import os, pathlib
import numpy as np
from opic.memory import give_back_large_arrays, lazy_zeros

def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
"""


def run(code: str) -> list[int]:
    """Return what a process of its own prints."""
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_array_uses_memory_as_it_is_written_and_releases_it() -> None:
    begun, made, half, dropped = run("""
print(resident())
column = lazy_zeros(8 << 20, np.int64)
print(resident())
column[: 4 << 20] = 1
print(resident())
del column
print(resident())
""")
    assert made - begun <= 2
    assert 32 <= half - begun <= 36
    assert dropped - begun <= 2


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_memory_of_dropped_large_arrays_is_released() -> None:
    begun, ended = run("""
give_back_large_arrays()
print(resident())
kept = []
for size in range(1, 9):  # Each one frees memory of a size that the next one needs more than, and something stays.
    large = np.ones(size << 17)
    kept.append(bytes(1_000))
    del large
print(resident())
""")
    assert ended - begun <= 2


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
@pytest.mark.parametrize("kept", [False, True])
def test_retaining_memory_saves_page_faults(kept: bool) -> None:
    """In any thread; and what it keeps has a limit."""
    begun, ended, faults = run(f"""
import resource, threading
from opic.memory import KEPT_BYTES_MAX, keep_some_memory
keep_some_memory() if {kept} else give_back_large_arrays()
print(resident())

def work():
    for _ in range(200):  # As where all pages are looked at: some arrays of 2 MiB at a time.
        arrays = [np.ones(1 << 18) for _ in range(4)]
        del arrays

for _ in range(3):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
large = [np.ones(1 << 18) for _ in range(64)]
del large
print(resident())
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
""")
    assert ended - begun <= (20 if kept else 4)
    assert (faults < 200_000) == kept  # Of 1,200,000 pages that are written to.


@pytest.mark.parametrize("rows", [0, 1, MAPPED_BYTES_MIN // 8 - 1, MAPPED_BYTES_MIN // 8, MAPPED_BYTES_MIN])
def test_lazy_zeros_are_zeros_to_write_to(rows: int) -> None:
    column = lazy_zeros(rows, "i8")
    assert column.shape == (rows,)
    assert column.dtype == np.int64
    assert not column.any()
    column[:] = np.arange(rows)
    assert int(column.sum()) == rows * (rows - 1) // 2


def test_garbage_collection_starts_after_many_objects_and_skips_older_ones() -> None:
    threshold, frozen, cycles = run("""
import gc
from opic.memory import search_garbage_rarely
search_garbage_rarely()
print(gc.get_threshold()[0], gc.get_freeze_count())
class Node:
    pass
for _ in range(100_000):
    node = Node()
    node.itself = node
print(sum(isinstance(one, Node) for one in gc.get_objects()))
""")
    assert threshold == 50_000
    assert frozen > 1_000
    assert cycles < 60_000  # What refers to itself goes in the end.
