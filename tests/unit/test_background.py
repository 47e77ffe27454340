"""Threads beside the answers: their priority, and what they repeat."""

import os
import sys
import threading

import pytest

from opic.background import NICENESS, lower_priority, repeated


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


def test_step_is_repeated_in_a_thread_of_its_own_until_the_block_ends() -> None:
    threads, thrice = list[str](), threading.Event()

    def step() -> float:
        threads.append(threading.current_thread().name)
        if len(threads) < 3:
            return 0.0
        thrice.set()
        return 3_600.0

    with repeated(step, 0.0, "opic-test"):
        assert thrice.wait(10.0)
    assert threads == ["opic-test"] * 3
    assert "opic-test" not in [thread.name for thread in threading.enumerate()]
