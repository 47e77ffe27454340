"""Threads that compute beside the answers."""

import os
import sys
import threading
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
