"""When a crawl ends, told from its progress."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.model.cash import MILLION
from opic.query.convergence import PageProgress
from opic.query.forecast import IDLE_SECONDS, forecast


def crawl(*counts: tuple[int, int, int]) -> list[PageProgress]:
    return [PageProgress(seconds * MILLION, read, to_fetch, 0, 0, 0) for seconds, read, to_fetch in counts]


def test_pages_that_become_fewer_have_an_end_in_a_straight_line() -> None:
    found = forecast(crawl((0, 0, 1_000), (100, 100, 1_000), (1_100, 600, 500)), 1_100 * MILLION)
    assert (found.pace, found.seconds) == ("ending", pytest.approx(1_000))
    assert (found.reads_per_second, found.found_per_read) == (pytest.approx(0.5), pytest.approx(0))


def test_pages_found_as_fast_as_read_have_no_end() -> None:
    found = forecast(crawl((0, 0, 10), (100, 100, 100), (200, 200, 300)), 200 * MILLION)
    assert (found.pace, found.seconds) == ("growing", None)
    assert found.found_per_read == pytest.approx(3)


def test_a_silent_crawl_has_no_end() -> None:
    progress = crawl((0, 0, 1_000), (100, 500, 500))
    assert forecast(progress, 101 * MILLION).pace == "ending"
    found = forecast(progress, round((101 + IDLE_SECONDS) * MILLION))
    assert (found.pace, found.seconds, found.idle_seconds) == ("idle", None, pytest.approx(IDLE_SECONDS + 1))


def test_a_crawl_with_nothing_left_is_finished_and_one_without_reads_is_new() -> None:
    assert forecast(crawl((0, 0, 10), (10, 90, 0)), 10 * MILLION).pace == "finished"
    assert forecast(crawl((0, 0, 0)), 10 * MILLION).pace == "new"
    assert forecast(crawl((0, 0, 10), (10, 3, 900)), 10 * MILLION).pace == "new"


STEPS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1)


@given(STEPS, st.integers(-(10**6), 10**9))
def test_only_an_ending_crawl_has_an_end(steps: list[tuple[int, int, int]], later: int) -> None:
    seconds = read = 0
    counts = []
    for more_seconds, more_read, to_fetch in steps:
        seconds, read = seconds + more_seconds, read + more_read
        counts.append((seconds, read, to_fetch))
    found = forecast(crawl(*counts), (seconds + later) * MILLION)
    assert (found.seconds is None) == (found.pace != "ending")
    assert found.seconds is None or found.seconds > 0
    assert found.idle_seconds >= 0
