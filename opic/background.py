"""Threads that work beside the questions."""

import os
import sys
import threading
from typing import Final

NICENESS: Final = 10  # A tenth of the weight of other threads, where cores are short.


def step_back() -> None:
    """Let other threads and processes of this machine go first, from now on in the calling thread; on Linux only.

    An endpoint computes over all pages beside its answers. With as much right to a core as these, that doubled the
    99th percentile of their latency on two cores. Not for a thread that answers may wait for.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
