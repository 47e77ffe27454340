"""Visits weighted by expected holds are uniform on a topic, whether or not the walk goes back."""

import random
from itertools import islice

import numpy as np
import pytest

from experiments.algorithms.matrix_pages import MatrixPages
from experiments.focused_sampling import central_page
from experiments.recorded_topics import RecordedTopic
from experiments.sampling_weights import ForwardWalk
from opic.graph.crawled import link_matrix
from opic.graph.focused_walk import Focus, FocusedWalk, WalkOptions

PAGES = 40


def topic() -> RecordedTopic:
    """Popular pages have most links; the first two thirds are the topic."""
    rng = random.Random(3)
    web = np.zeros((PAGES, PAGES), np.int64)
    for page in range(PAGES):
        web[page, (page + 1) % PAGES] = 1
        for _ in range(4):
            target = int(PAGES * rng.random() ** 2.5)
            web[page, target] = 1
            web[target, page] |= rng.random() < 0.4
    np.fill_diagonal(web, 0)
    numbers = np.arange(PAGES)
    return RecordedTopic(
        "made", "made", "even", link_matrix(*np.nonzero(web), web.shape), numbers < 27, numbers % 2 == 0
    )


@pytest.mark.parametrize("focus", [Focus.NONE, Focus.HARD])
@pytest.mark.parametrize("goes_back", [True, False])
def test_each_page_has_the_same_weight_of_visits(focus: Focus, goes_back: bool) -> None:
    made = topic()
    visits = ForwardWalk(made, 7, focus, goes_back=goes_back).walked(60_000)
    expected = np.array([visit.expected for visit in visits])
    weights = np.bincount([visit.page for visit in visits], expected, PAGES)
    allowed = made.on_topic if focus is Focus.HARD else np.ones(PAGES, np.bool_)
    assert weights[~allowed].sum() == 0
    assert weights[allowed] / weights.sum() == pytest.approx(np.full(int(allowed.sum()), 1 / allowed.sum()), rel=0.2)
    holds = np.array([visit.hold for visit in visits])
    assert expected.sum() == pytest.approx(holds.sum(), rel=0.03)


def test_walk_that_goes_back_is_the_one_that_the_service_makes() -> None:
    made = topic()
    pages, options = MatrixPages(made.links, made.on_topic), WalkOptions(Focus.HARD, window=0)
    plain = FocusedWalk(pages, central_page(made), random.Random(5), options)
    visits = ForwardWalk(made, 5, Focus.HARD).walked(500)
    assert visits == list(islice(plain.visits(), 500))


def test_walk_goes_back_only_by_a_second_edge_or_for_want_of_another() -> None:
    made = topic()
    walk = ForwardWalk(made, 5, Focus.HARD, goes_back=False)
    visits = walk.walked(5_000)
    pages = [visit.page for visit in visits]
    back = [
        (before, at) for before, at, after in zip(pages, pages[1:], pages[2:], strict=False) if before == after != at
    ]
    assert back
    assert all(walk.edges(at).count(before) > 1 or len(walk.edges(at)) == 1 for before, at in back)
