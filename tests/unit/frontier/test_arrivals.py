"""Pages are drawn in proportion to their weights, also while some are held, hosts rest or weights change."""

from typing import Any

import numpy as np
import pytest
from plain_pages import PlainPages
from scipy import stats

from opic.frontier.arrivals import IMPRECISE, TAKEN_MIN, Arrivals, Clock, draw_again
from opic.frontier.hot_order import HotOrder
from opic.frontier.picking import Picked, pick

CHANCE = 1e-6  # Of right frequencies that a test rejects.
WEIGHTS = [1.0, 2.0, 3.0, 4.0, 10.0]


class Weighted(Arrivals):
    """An order by a column of weights."""

    def __init__(self, hot: HotOrder, clock: Clock, column: Any) -> None:
        super().__init__(hot, clock)
        self.column_of_weights = np.array(column, np.float64)

    def weights(self, ids: Any) -> Any:
        return self.column_of_weights[ids]


class Draws:
    """Shards whose pages are drawn by weights, one after the other."""

    def __init__(self, weights: list[list[float]], hosts: list[list[int]] | None = None, delay: float = 0.0) -> None:
        pages = [PlainPages(range(len(of)) if hosts is None else hosts[at]) for at, of in enumerate(weights)]
        self.hots = [HotOrder(one, single=delay > 0) for one in pages]
        self.clock, self.delay, self.now = Clock(np.random.default_rng(3)), delay, 1.0
        self.orders = [Weighted(hot, self.clock, of) for hot, of in zip(self.hots, weights, strict=True)]

    def draw(self, count: int = 1, **terms: Any) -> Picked:
        """Take the next pages, read them and let their hosts rest."""
        found = pick(self.hots, count, [self.now] * len(self.hots), by=self.orders, **terms)
        draw_again(self.orders, found.shards, found.ids, np.ones(len(found), np.bool_), all_pages="within" not in terms)
        if self.delay:
            for shard, hot in enumerate(self.hots):
                hosts = found.hosts[found.shards == shard]
                hot.rest(hosts, np.full(len(hosts), self.now + self.delay))
        return found

    def counts(self, draws: int, count: int = 1, **terms: Any) -> list[list[int]]:
        """How often each page is drawn, by shard."""
        counts = [np.zeros(len(hot.columns), np.int64) for hot in self.hots]
        for _ in range(draws):
            found = self.draw(count, **terms)
            for shard, of_shard in enumerate(counts):
                np.add.at(of_shard, found.ids[found.shards == shard], 1)
            self.now += 1.0
        return [of_shard.tolist() for of_shard in counts]


def assert_in_proportion(counts: list[int], weights: list[float]) -> None:
    expected = np.array(weights) / sum(weights) * sum(counts)
    assert stats.chisquare(counts, expected).pvalue > CHANCE


def test_each_page_is_drawn_in_proportion_to_its_weight() -> None:
    (counts,) = Draws([WEIGHTS]).counts(600)
    assert_in_proportion(counts, WEIGHTS)


def test_pages_of_all_shards_are_drawn_by_one_time() -> None:
    first, second = Draws([WEIGHTS, [5.0, 15.0]]).counts(600)
    assert_in_proportion(first + second, [*WEIGHTS, 5.0, 15.0])


def test_batch_is_drawn_without_replacement() -> None:
    draws, pairs = Draws([[1.0, 1.0, 2.0]]), list[tuple[int, int]]()
    for _ in range(600):
        first, second = draws.draw(2).ids.tolist()
        pairs.append((first, second))
    chances = {(0, 1): 1 / 12, (0, 2): 1 / 6, (1, 0): 1 / 12, (1, 2): 1 / 6, (2, 0): 1 / 4, (2, 1): 1 / 4}
    assert_in_proportion([pairs.count(pair) for pair in chances], list(chances.values()))


def test_pages_without_a_weight_come_last_and_alike() -> None:
    draws = Draws([[0.0, 0.0, 1e-9, 0.0]])
    lasts = [draws.draw(4).ids.tolist() for _ in range(400)]
    assert {found[0] for found in lasts} == {2}
    assert_in_proportion([sum(found[1] == page for found in lasts) for page in (0, 1, 3)], [1, 1, 1])


def test_priority_multiplies_the_weight() -> None:
    draws = Draws([[1.0, 1.0]])
    draws.hots[0].columns.factors = np.array([1.0, 5.0])  # type: ignore[attr-defined]
    assert_in_proportion(draws.counts(400)[0], [1, 5])


def test_changed_weight_counts_from_then_on() -> None:
    draws = Draws([[1.0, 1.0, 1.0]])
    draws.counts(100)
    draws.orders[0].column_of_weights[1] = 8.0
    draws.hots[0].changed(np.array([1]))
    assert_in_proportion(draws.counts(400)[0], [1, 8, 1])


def test_held_page_does_not_gather_turns() -> None:
    draws = Draws([[5.0, 1.0, 1.0]])
    draws.draw()
    draws.hots[0].hold(np.array([0]), np.array([np.inf]))
    draws.counts(100)
    draws.hots[0].release(np.array([0]))
    firsts = []
    for _ in range(300):
        firsts.append(int(draws.draw().ids[0]))
        draws.hots[0].hold(np.array([0]), np.array([np.inf]))
        draws.draw(2)
        draws.hots[0].release(np.array([0]))
    assert_in_proportion([firsts.count(page) for page in range(3)], [5, 1, 1])


@pytest.mark.parametrize("batch", [1, 3])
def test_weights_count_within_a_host_that_mostly_rests(batch: int) -> None:
    """A host with nearly all pages and a long delay gives its own pages in proportion, and the others theirs."""
    weights, hosts = [9.0, 3.0] * 20 + [0.1, 0.2, 0.3], [0] * 40 + [1, 2, 3]
    draws = Draws([weights], [hosts], delay=4.0)
    counts = np.array(draws.counts(900, batch)[0])
    big = [int(counts[:40:2].sum()), int(counts[1:40:2].sum())]
    assert sum(big) > 200
    assert_in_proportion(big, [3, 1])
    for pages in (counts[:40:2], counts[1:40:2]):
        assert_in_proportion(pages.tolist(), [1.0] * 20)


def test_order_that_became_imprecise_says_so() -> None:
    draws = Draws([[1e-6, 1.0]])
    draws.draw(2)
    draws.clock.now[0] = 2 * IMPRECISE
    assert not draws.clock.is_imprecise  # It would start anew at each choice, if a page had so great a priority.
    draws.clock.taken = TAKEN_MIN
    assert draws.clock.is_imprecise
