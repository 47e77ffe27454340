"""A thread that steps back has less weight than the others, and nobody else has."""

import os
import sys
import threading

import pytest

from opic.background import NICENESS, step_back


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux only")
def test_only_the_thread_that_steps_back_lets_others_go_first() -> None:
    before, found = os.getpriority(os.PRIO_PROCESS, 0), list[int]()

    def work() -> None:
        step_back()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [max(NICENESS, before)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
