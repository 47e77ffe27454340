"""What is looked at beside a scrape: one look at a time, and nobody waits long for it."""

import threading
import time

from opic.api.scrape_cache import Beside
from opic.errors import StoreError

WAIT = 10.0  # Far more than it takes.


class Scene:
    """Something to look at; each look may be held."""

    def __init__(self) -> None:
        self.looks = 0
        self.away = False
        self.held = threading.Event()
        self.held.set()

    def look(self) -> int:
        self.looks += 1
        number = self.looks
        assert self.held.wait(WAIT)
        if self.away:
            raise StoreError("away")
        return number


def test_each_call_runs_the_probe() -> None:
    scene = Scene()
    beside = Beside("look", scene.look)
    assert [beside.now(WAIT) for _ in range(3)] == [1, 2, 3]


def test_a_slow_probe_gives_no_result_and_is_not_started_twice() -> None:
    scene = Scene()
    beside = Beside("look", scene.look)
    scene.held.clear()
    assert [beside.now(0.01) for _ in range(3)] == [None, None, None]
    scene.held.set()
    assert beside.now(WAIT) in (1, 2)  # The first one ended meanwhile, or is waited for.
    assert scene.looks <= 2


def test_an_unavailable_probe_gives_no_result_despite_an_earlier_one() -> None:
    scene = Scene()
    beside = Beside("look", scene.look)
    assert beside.now(WAIT) == 1
    scene.away = True
    assert beside.now(WAIT) is None
    scene.away = False
    assert beside.now(WAIT) == 3


def test_a_recent_result_is_returned_at_once_with_its_age() -> None:
    scene = Scene()
    beside = Beside("look", scene.look, rest_seconds=60)
    seen = beside.lately(WAIT)
    assert seen is not None
    scene.away = True
    later = beside.lately(0)
    assert later is not None
    assert (seen[0], later[0], scene.looks) == (1, 1, 1)
    assert 0 <= seen[1] <= later[1] < WAIT


def test_first_probe_is_waited_for_up_to_a_limit() -> None:
    scene = Scene()
    scene.held.clear()
    beside = Beside("look", scene.look, rest_seconds=60)
    assert beside.lately(0.01) is None
    scene.held.set()
    seen = beside.lately(WAIT)
    assert seen is not None
    assert seen[0] == 1


def test_a_slow_probe_runs_for_a_limited_share_of_the_time() -> None:
    slow = Beside("slow", lambda: time.sleep(0.05), share_max=0.001)  # A minute's rest is due.
    looks = [slow.lately(WAIT) for _ in range(3)]
    began = [time.monotonic() - seen[1] for seen in looks if seen is not None]
    assert len(began) == 3
    assert max(began) - min(began) < 0.05  # All of one look.
