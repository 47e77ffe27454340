"""Trust is what it is given for, and what can't be guaranteed is refused."""

from functools import partial

import numpy as np
import pytest

from experiments.algorithms.rankmass import CoverageCrawl, OutOfReach, l_neighbor, rankmass, windowed_rankmass
from experiments.algorithms.trust import Trust
from opic.errors import BadInput
from opic.graph.crawled import LinkMatrix, link_matrix

CRAWLS = [l_neighbor, rankmass, partial(windowed_rankmass, window=0.2)]
NAMES = ["L-Neighbor", "RankMass", "window of 20 %"]


def web(pages: int, *ends: tuple[int, int]) -> LinkMatrix:
    sources, targets = np.array(ends, np.int64).reshape(-1, 2).T
    return link_matrix(sources, targets, (pages, pages))


def ring(pages: int) -> LinkMatrix:
    return web(pages, *((page, (page + 1) % pages) for page in range(pages)))


def test_hosts_share_trust_equally_and_their_pages_a_hosts_trust() -> None:
    hosts = ["a.example", "b.example", "a.example", "c.example"]
    assert Trust.by_host([7, 5, 3, 1], hosts).vector(8)[[7, 3, 5, 1]] == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3])
    weighted = Trust.by_host([7, 5, 3, 1], hosts, {"a.example": 3, "b.example": 1})
    assert weighted.pages.tolist() == [3, 5, 7]
    assert weighted.shares == pytest.approx([3 / 8, 1 / 4, 3 / 8])


def test_most_trusted_pages_leave_the_rest_of_the_trust_missing() -> None:
    some = Trust.weighted([4, 6, 2], [1, 5, 2]).most_trusted(2)
    assert some.pages.tolist() == [2, 6]
    assert some.shares == pytest.approx([2 / 8, 5 / 8])
    assert some.missing == pytest.approx(1 / 8)
    assert some.most_trusted(1).missing == pytest.approx(3 / 8)


@pytest.mark.parametrize(
    ("pages", "weights", "complaint"),
    [
        ([], [], "trust sums to nothing: give at least one page"),
        ([1, 2], [0, 0], "trust sums to nothing: give at least one page"),
        ([1, 2], [1, -0.5], r"the trust of page 2 is -0\.5: give 0 or more"),
        ([1, 2], [float("nan"), 1], "the trust of page 1 is nan"),
        ([1, 2], [1, float("inf")], "the trust of page 2 is inf"),
        ([1, 3, 1], [1, 1, 2], "page 1 is trusted twice"),
        ([1, 3], [1], "2 trusted pages have 1 weights"),
    ],
)
def test_trust_that_sums_to_zero_is_refused(pages: list[int], weights: list[float], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        Trust.weighted(pages, weights)


def test_huge_weights_become_finite_shares() -> None:
    assert Trust.weighted([0, 1], [1e308, 1e308]).shares.tolist() == [0.5, 0.5]


def test_keeping_no_trusted_page_is_refused() -> None:
    with pytest.raises(BadInput, match="cannot keep 0 trusted pages"):
        Trust.uniform([1, 2]).most_trusted(0)


@pytest.mark.parametrize("crawl", CRAWLS, ids=NAMES)
class TestEachCrawl:
    def test_unknown_seed_is_named(self, crawl: type[CoverageCrawl]) -> None:
        with pytest.raises(BadInput, match="the graph has pages 0 to 3, but these are trusted: -1, 4, 9"):
            crawl(ring(4), Trust.uniform([9, 2, 4, -1]))

    def test_uniform_trust_in_all_pages_is_refused(self, crawl: type[CoverageCrawl]) -> None:
        with pytest.raises(BadInput, match="all 4 pages are trusted equally: nothing is guaranteed before all are"):
            crawl(ring(4), Trust.uniform(range(4)))
        assert len(crawl(ring(4), Trust.weighted(range(4), [1, 1, 1, 2])).order) == 4

    def test_web_of_one_page_is_covered_by_that_page(self, crawl: type[CoverageCrawl]) -> None:
        assert crawl(web(1), Trust.uniform([0]), target=1.0).guaranteed.tolist() == [1.0]

    def test_target_above_the_trust_of_the_seeds_is_out_of_reach(self, crawl: type[CoverageCrawl]) -> None:
        some = Trust.weighted([0, 1, 2], [4, 3, 1]).most_trusted(2)
        with pytest.raises(
            OutOfReach, match=r"0\.9 cannot be guaranteed: .* hold 0\.875 of all trust, .* than 0\.875;"
        ):
            crawl(ring(6), some, target=0.9)
        assert crawl(ring(6), some, target=0.85).guaranteed[-1] >= 0.85

    def test_target_that_missing_links_put_out_of_reach_is_detected_during_the_crawl(
        self, crawl: type[CoverageCrawl]
    ) -> None:
        some = Trust.weighted([0, 3], [3, 1]).most_trusted(1)
        with pytest.raises(OutOfReach, match=r"0\.7 cannot be guaranteed"):
            crawl(web(4, (0, 1)), some, target=0.7)

    @pytest.mark.parametrize("target", [0.0, -1.0, 1.1, float("nan")])
    def test_invalid_target_is_refused(self, crawl: type[CoverageCrawl], target: float) -> None:
        with pytest.raises(BadInput, match="is not a share of all importance"):
            crawl(ring(4), Trust.uniform([0]), target=target)

    @pytest.mark.parametrize("damping", [0.0, 1.0, -0.1])
    def test_damping_must_be_between_0_and_1(self, crawl: type[CoverageCrawl], damping: float) -> None:
        with pytest.raises(BadInput, match="is not between 0 and 1"):
            crawl(ring(4), Trust.uniform([0]), damping=damping)

    @pytest.mark.slow
    def test_pages_below_float64_precision_add_no_coverage(self, crawl: type[CoverageCrawl]) -> None:
        chain = web(4_700, *((page, page + 1) for page in range(4_699)))  # .85 ** 4,600 is below the least float64.
        assert crawl(chain, Trust.uniform([0])).guaranteed[-1] == 1.0


def test_invalid_shares_are_refused() -> None:
    trust = Trust.uniform([0])
    for window, sweeps, parts in ((0.0, 1, 1), (1.5, 1, 1), (0.5, 0, 1), (0.5, 1, 0)):
        with pytest.raises(BadInput, match="give a window above 0, up to 1, and at least one of the others"):
            windowed_rankmass(ring(3), trust, window=window, sweeps=sweeps, parts=parts)
    for push_from in (0.0, 1.5):
        with pytest.raises(BadInput, match="give a share above 0, at most 1"):
            rankmass(ring(3), trust, push_from=push_from)


def test_theorem_3_fails_where_a_named_page_has_no_links() -> None:
    links, trust = web(3, (1, 2), (2, 1)), Trust.uniform([0, 1])
    named = Trust(trust.pages[:1], trust.shares[:1], 0.5)
    truth = 0.15 / (0.15 + 1)  # Of surfers' steps: one a session from page 0, 1/0.15 from page 1.
    assert (1 - named.missing) * (1 - 0.85**2) > truth
    assert [crawl(links, named).guaranteed[-1] for crawl in CRAWLS] == pytest.approx([truth] * 3)
