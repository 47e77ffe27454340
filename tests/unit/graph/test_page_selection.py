"""Scores of candidates agree with the influence that a page has by a dense stochastic complement."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_webs import crawled, random_crawl, random_web
from scipy import stats
from stochastic_complement import exact_influence, one_step_influence, stochastic_complement

from experiments.davis_dhillon import inlink_counts
from opic.errors import BadInput
from opic.graph.crawled import CrawledLinks
from opic.graph.page_selection import _influence, highest, outlink_counts, pf_scores, sc_scores
from opic.graph.pagerank import DAMPING, pagerank

EXACT = 1e-14


@pytest.mark.slow
def test_sc_scores_are_one_power_step_on_the_stochastic_complement() -> None:
    correlations = []
    for seed in range(1_000):
        graph = random_crawl(seed)
        ranks = pagerank(graph.inside, threshold=EXACT)
        scores, candidates = sc_scores(graph, ranks), range(len(graph.candidates))
        assert scores == pytest.approx([one_step_influence(graph, ranks, j) for j in candidates], abs=1e-9)
        if seed < 100 and len(candidates) > 3 and np.ptp(scores) > 1e-12:
            exact = [exact_influence(graph, ranks, j) for j in candidates]
            if np.ptp(exact) > 1e-12:
                correlations.append(stats.spearmanr(scores, exact).statistic)
    assert np.mean(correlations) > 0.8


@pytest.mark.parametrize("levels", [1, 3, 50])
@given(seed=st.integers(0, 1 << 32))
def test_discretised_scores_keep_their_bound(seed: int, levels: int) -> None:
    graph = random_crawl(seed)
    if not len(graph.candidates):
        return
    ranks = pagerank(graph.inside)
    error = np.abs(sc_scores(graph, ranks, levels=levels) - sc_scores(graph, ranks))
    terms = _influence(graph, ranks, DAMPING)
    half_a_level = np.ptp(terms.flow / terms.leak) / levels / 2
    assert (error <= (terms.leak * half_a_level * terms.gain.sum())[terms.group] + 1e-12).all()


def test_scores_do_not_depend_on_the_size_of_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = crawled(random_web(5, 60, 0.2), 20, 30).graph()
    ranks = pagerank(graph.inside)
    whole = sc_scores(graph, ranks)
    monkeypatch.setattr("opic.graph.page_selection.PAIRS_AT_ONCE", 1)
    assert sc_scores(graph, ranks) == pytest.approx(whole)


def test_counts_and_flows_of_a_small_web_are_right() -> None:
    # 0 and 1 are local, 2 is fetched; 3 and 4 are candidates.
    links = CrawledLinks([0, 1], [[1, 3, 3, 0], [3]])
    links.add(2, [0, 3, 4])
    graph = links.graph()
    assert graph.candidates.tolist() == [3, 4]
    assert outlink_counts(graph).tolist() == [2, 0]
    assert inlink_counts(graph, np.zeros(3)).tolist() == [3, 1]
    ranks = np.array([0.5, 0.3, 0.2])
    assert pf_scores(graph, ranks) == pytest.approx([0.5 / 2 + 0.3 / 1 + 0.2 / 2, 0.2 / 2])
    assert highest(np.array([1.0, 3.0, 3.0, 2.0]), 3).tolist() == [1, 2, 3]


def test_stochastic_complement_has_the_stationary_vector_of_the_whole_chain() -> None:
    rng = np.random.default_rng(7)
    walk = rng.random((9, 9))
    walk /= walk.sum(axis=1, keepdims=True)
    part = np.array([0, 2, 5])
    whole = np.linalg.matrix_power(walk, 200)[0]
    small = np.linalg.matrix_power(stochastic_complement(walk, part), 200)[0]
    assert small == pytest.approx(whole[part] / whole[part].sum())
    with pytest.raises(BadInput, match=r"row 4 of transition sums to 1\.5, not 1"):
        stochastic_complement(walk + 0.5 / 9 * (np.arange(9) == 4)[:, None], part)


def test_domain_without_outgoing_links_has_no_candidates() -> None:
    graph = CrawledLinks([4, 2], [[2], []]).graph()
    assert len(sc_scores(graph, pagerank(graph.inside))) == 0
