"""A thread can lower its own priority; other threads keep theirs."""

import os
import sys
import threading

import pytest

from opic.background import NICENESS, lower_priority


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")
def test_only_the_calling_thread_gets_a_lower_priority() -> None:
    before, found = os.getpriority(os.PRIO_PROCESS, 0), list[int]()

    def work() -> None:
        lower_priority()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [max(NICENESS, before)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
