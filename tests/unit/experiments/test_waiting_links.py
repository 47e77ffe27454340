"""Recrawls by expected links: rates are learned from what the crawl sees, and the page with most is crawled again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.algorithms.time_graph import TimeGraph
from experiments.algorithms.waiting_links import CHOICES, DRAWN, MOST, WaitingLinksCrawl, still_there
from experiments.algorithms.weighted_picks import GreatestCount

DAY_S = 86_400.0


def crawl(pages: int = 10, choice: str = MOST) -> WaitingLinksCrawl:
    return WaitingLinksCrawl(GreatestCount(), np.random.default_rng(1), pages, choice)


def test_lasting_links_wait_all_of_the_time_and_others_until_they_vanish() -> None:
    times = np.array([0.0, 1.0, 10.0, 1e6])
    assert still_there(times, 0.0).tolist() == times.tolist()
    assert still_there(times, 1e-12) == pytest.approx(times, rel=1e-5)
    assert still_there(times, 0.5) == pytest.approx([(1 - np.exp(-t / 2)) * 2 for t in times])


def test_page_with_the_higher_rate_waits_less_long() -> None:
    made = crawl()
    numbers = iter(range(1_000))
    busy, quiet = list[int](), list[int]()
    for day in range(10):  # Three links a day against one in ten; all persist.
        busy += [next(numbers) for _ in range(3)]
        quiet += [next(numbers)] if day == 5 else []
        made.fetched(0, day * DAY_S, busy, [5] * len(busy))
        made.fetched(1, day * DAY_S, quiet, [6] * len(quiet))
    assert made.loss == 0
    made.fetched(0, 10 * DAY_S, busy, [5] * len(busy))
    waiting = made.waiting()
    assert waiting[1] > waiting[0], "nothing can have come since"
    made.fetched(1, 11 * DAY_S, quiet, [6] * len(quiet))
    after_a_day = made.waiting()
    assert after_a_day[0] == pytest.approx(3, rel=0.3)
    assert after_a_day[0] > 5 * after_a_day[1]
    # Nothing is left to be crawled for the first time once both targets were.
    for page in (5, 6):
        made.fetched(page, 11 * DAY_S, [], [])
    assert {made.choose() for _ in range(20)} == {0}


def test_how_long_links_last_is_learned() -> None:
    rng, lasts = np.random.default_rng(2), 3 * DAY_S
    start = np.sort(rng.uniform(0, 200 * DAY_S, 4_000))
    graph = TimeGraph(np.zeros(4_000, np.int64), np.ones(4_000, np.int64), start, start + rng.exponential(lasts, 4_000))
    made = crawl()
    for now in np.arange(10 * DAY_S, 200 * DAY_S, DAY_S / 4).tolist():
        made.fetched(0, now, *graph.links_of(0, now))
    assert 1 / made.loss == pytest.approx(lasts, rel=0.1)
    made._now += 1_000 * DAY_S
    # Twenty come in a day and last three: sixty are there, however long nobody has looked.
    assert made.waiting()[0] == pytest.approx(60, rel=0.15)


def test_page_without_links_is_expected_to_get_some_in_time() -> None:
    made = crawl()
    made.fetched(0, 0.0, [], [])
    made.fetched(1, DAY_S, [1], [2])
    assert (made.waiting() > 0).all()


def test_empty_crawl_chooses_nothing_and_a_clock_that_goes_back_is_accepted() -> None:
    made = crawl()
    assert made.choose() is None
    made.fetched(3, 100.0, [1], [4])
    made.fetched(3, 50.0, [1, 2], [4, 4])
    assert np.isfinite(made.waiting()).all()
    assert made.choose() in {3, 4}


@given(weights=st.lists(st.floats(0.1, 10), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_choice_is_the_page_with_the_most_or_a_random_one(weights: list[float], seed: int) -> None:
    waiting, rng = np.array(weights), np.random.default_rng(seed)
    assert CHOICES[MOST](waiting, rng) == weights.index(max(weights))
    assert 0 <= CHOICES[DRAWN](waiting, rng) < len(weights)
