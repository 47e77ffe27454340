"""PageRank, the influence of a page and the open system agree with dense references and with networkx."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from stochastic_complement import exact_influence, one_step_influence, stochastic_complement

from experiments.algorithms.comparison import distance, kendall_tau
from experiments.algorithms.global_pagerank import find_global_pagerank
from experiments.davis_dhillon import inlink_counts
from opic.errors import BadInput
from opic.graph.crawled import CrawledGraph, CrawledLinks, link_matrix
from opic.graph.open_system import Outside, open_system_ranks
from opic.graph.page_selection import _influence, highest, outlink_counts, pf_scores, sc_scores
from opic.graph.pagerank import DAMPING, NotConverged, pagerank

EXACT = 1e-14


def random_web(seed: int, pages: int, density: float) -> np.ndarray:
    """A random directed graph as a matrix of booleans; some pages are dangling, none links to itself."""
    rng = np.random.default_rng(seed)
    links = rng.random((pages, pages)) < density * 2 * rng.random((1, pages))
    links[rng.random(pages) < 0.2] = False
    np.fill_diagonal(links, False)
    return links


def crawled(web: np.ndarray, local: int, fetched: int) -> CrawledLinks:
    """The first pages of a web are local, further ones are fetched."""
    links = CrawledLinks(range(local), [np.flatnonzero(web[page]) for page in range(local)])
    for page in range(local, fetched):
        links.add(page, np.flatnonzero(web[page]))
    return links


def random_crawl(seed: int) -> CrawledGraph:
    rng = np.random.default_rng(seed)
    local = int(rng.integers(1, 12))
    fetched = local + int(rng.integers(0, 6))
    return crawled(random_web(seed, fetched + 5, rng.choice([0.1, 0.25, 0.5])), local, fetched).graph()


@pytest.mark.parametrize("seed", range(20))
def test_pagerank_is_that_of_networkx(seed: int) -> None:
    web = random_web(seed, 30, 0.1)
    expected = nx.pagerank(nx.from_numpy_array(web, create_using=nx.DiGraph), tol=EXACT, max_iter=10_000)
    found = pagerank(link_matrix(*np.nonzero(web), (30, 30)), threshold=EXACT)
    assert found == pytest.approx([expected[page] for page in range(30)], abs=1e-12)


def test_pagerank_starts_anywhere() -> None:
    links = random_crawl(3).inside
    start = np.arange(1.0, links.shape[0] + 1)
    assert pagerank(links, start=start, threshold=EXACT) == pytest.approx(pagerank(links, threshold=EXACT))


def test_threshold_that_floats_cannot_reach_is_an_error() -> None:
    with pytest.raises(NotConverged, match="PageRank did not settle to 0 in"):
        pagerank(link_matrix(*np.nonzero(random_web(1, 40, 0.2)), (40, 40)), threshold=0.0)


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


def test_counts_and_flows_are_those_of_a_small_web() -> None:
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


@given(seed=st.integers(0, 1 << 32))
def test_exact_inflow_gives_the_pagerank_of_the_whole_web(seed: int) -> None:
    web = random_web(seed, 40, 0.1)
    out, truth = web.sum(axis=1), pagerank(link_matrix(*np.nonzero(web), (40, 40)), threshold=EXACT)
    graph = crawled(web, 10, 15).graph()
    rest = np.arange(15, 40)
    linked = rest[out[rest] > 0]
    inflow = 0.85 * (truth[linked] / out[linked]) @ web[linked, :15]
    outside = Outside(inflow, truth[rest][out[rest] == 0].sum(), 40)
    assert open_system_ranks(graph, outside, threshold=EXACT) == pytest.approx(truth[:15], abs=1e-12)


def test_complement_has_the_stationary_vector_of_the_whole() -> None:
    rng = np.random.default_rng(7)
    walk = rng.random((9, 9))
    walk /= walk.sum(axis=1, keepdims=True)
    part = np.array([0, 2, 5])
    whole = np.linalg.matrix_power(walk, 200)[0]
    small = np.linalg.matrix_power(stochastic_complement(walk, part), 200)[0]
    assert small == pytest.approx(whole[part] / whole[part].sum())
    with pytest.raises(BadInput, match=r"row 4 of transition sums to 1\.5, not 1"):
        stochastic_complement(walk + 0.5 / 9 * (np.arange(9) == 4)[:, None], part)


def test_fetching_everything_gives_the_global_pagerank() -> None:
    web = random_web(11, 50, 0.15)
    truth = pagerank(link_matrix(*np.nonzero(web), (50, 50)))
    links = crawled(web, 10, 10)
    rounds = list(
        find_global_pagerank(
            links, lambda pages: {p: np.flatnonzero(web[p]) for p in pages}, sc_scores, iterations=50, count=5
        )
    )
    errors = [distance(one.estimate, truth[:10]).l1 for one in rounds]
    reached = set(links.graph().fetched.tolist())
    whole = pagerank(link_matrix(*np.nonzero(web[np.ix_(sorted(reached), sorted(reached))]), (len(reached),) * 2))
    assert errors[-1] == pytest.approx(distance(whole[:10], truth[:10]).l1, abs=1e-5)
    assert rounds[-1].fetched == len(reached) - 10
    assert errors[-1] < errors[0]


def test_page_that_cannot_be_fetched_is_tried_once() -> None:
    asked: list[int] = []

    def fetch(pages: list[int]) -> dict[int, np.ndarray]:
        asked.extend(pages)
        return {page: np.array([page + 1]) for page in pages if page != 3}

    links = CrawledLinks([0], [np.array([1, 3])])
    rounds = list(find_global_pagerank(links, fetch, inlink_counts, iterations=4, count=2))
    assert asked == [
        1,
        3,
        2,
    ]
    assert rounds[-1].fetched == 3


def test_kendalls_tau_counts_ties_as_neither() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 8, 40).astype(float), rng.integers(0, 8, 40).astype(float)
    signs = [np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]) for i in range(40) for j in range(i)]
    assert kendall_tau(a, b) == pytest.approx(sum(signs) / len(signs))
    assert kendall_tau(a, np.ones(40)) == 0.0
    assert kendall_tau(a[:1], b[:1]) == 1.0


@pytest.mark.parametrize(
    ("local", "links", "complaint"), [([], [], "has no page"), ([1, 1], [[], []], "fetched before")]
)
def test_domain_must_have_distinct_pages(local: list[int], links: list[list[int]], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        CrawledLinks(local, links)


def test_domain_without_links_out_has_no_candidate() -> None:
    graph = CrawledLinks([4, 2], [[2], []]).graph()
    assert len(sc_scores(graph, pagerank(graph.inside))) == 0
