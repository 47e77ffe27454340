"""Threads that work beside the answers."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

NICENESS: Final = 10  # A tenth of the CPU time of other threads, where cores are short.


def lower_priority() -> None:
    """Run the calling thread at a lower priority from now on; on Linux only.

    An endpoint computes over all pages beside its answers. At the same priority, that doubled the 99th percentile of
    their latency on two cores. Not for a thread that answers may wait for.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


@contextmanager
def repeated(
    step: Callable[[], float], first_seconds: float, name: str, end_seconds: float | None = None
) -> Iterator[None]:
    """Call a function again and again in a thread, called `name`, during the block; wait for the last call at its end.

    Args:
        step: returns how many seconds to wait before the next call.
        first_seconds: how long to wait before the first call.
        name: of the thread.
        end_seconds: how long to wait for the last call, which ends later by itself; None: for as long as it takes.
    """
    done = threading.Event()

    def run() -> None:
        wait = first_seconds
        while not done.wait(wait):
            wait = step()

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(end_seconds)
