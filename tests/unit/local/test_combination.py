"""The combined estimate is exact where the service is, the paper's where the service is away, and near in between."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.algorithms.comparison import distance
from opic.errors import BadInput
from opic.graph.crawled import CrawledGraph, CrawledLinks, link_matrix
from opic.graph.pagerank import DAMPING, pagerank
from opic.local.combination import COMBINED, PAPER, ServiceKnowledge, combined_estimate, outside_of

PAGES, LOCAL, FETCHED = 60, 12, 20
EXACT = 1e-14


def random_web(seed: int) -> np.ndarray:
    """Pages link to the local ones twice as often as to others; some are dangling."""
    rng = np.random.default_rng(seed)
    links = rng.random((PAGES, PAGES)) < 0.12 * np.where(np.arange(PAGES) < LOCAL, 2, 1) * rng.random(PAGES)
    links[rng.random(PAGES) < 0.15] = False
    np.fill_diagonal(links, False)
    return links


def crawled(web: np.ndarray) -> CrawledGraph:
    links = CrawledLinks(range(LOCAL), [np.flatnonzero(web[page]) for page in range(LOCAL)])
    for page in range(LOCAL, FETCHED):
        links.add(page, np.flatnonzero(web[page]))
    return links.graph()


def exact_pagerank(web: np.ndarray) -> np.ndarray:
    return pagerank(link_matrix(*np.nonzero(web), web.shape), threshold=EXACT)


def service_that_read(web: np.ndarray, read: np.ndarray) -> ServiceKnowledge:
    """What a service says whose cash has drained: exact PageRank of the pages that it has read or seen links to."""
    known = read | web[read].any(axis=0)
    seen = web & read[:, None]
    importance = np.full(PAGES, np.nan)
    importance[known] = exact_pagerank(seen[np.ix_(known, known)])
    out, mass = seen.sum(axis=1), np.nan_to_num(importance)
    outside = known & (np.arange(PAGES) >= LOCAL)
    givers = outside & (out > 0)
    return ServiceKnowledge(
        inflow=DAMPING * (mass[givers] / out[givers]) @ seen[givers][:, :LOCAL],
        importance=importance[:FETCHED],
        read=read[:FETCHED],
        outside_mass=float(mass[outside].sum()),
        unread_mass=float(mass[outside & ~read].sum()),
        dangling_mass=float(mass[outside & read & (out == 0)].sum()),
        known_pages=int(known.sum()),
    )


@given(seed=st.integers(0, 1 << 32))
def test_service_that_read_everything_gives_the_global_pagerank(seed: int) -> None:
    web = random_web(seed)
    graph, truth = crawled(web), exact_pagerank(web)[:LOCAL]
    service = service_that_read(web, np.ones(PAGES, np.bool_))
    found = combined_estimate(graph, pagerank(graph.inside), service)
    assert (found.method, found.coverage) == (COMBINED, pytest.approx(1.0))
    assert found.importance == pytest.approx(truth / truth.sum(), abs=1e-5)


@given(seed=st.integers(0, 1 << 32))
def test_service_that_read_all_fetched_pages_is_believed_about_those_that_it_has_not_read(seed: int) -> None:
    web = random_web(seed)
    graph, read = crawled(web), np.random.default_rng(seed).random(PAGES) < 0.3
    read[:FETCHED] = True
    service = service_that_read(web, read)
    found = combined_estimate(graph, pagerank(graph.inside), service)
    own = service.importance[:LOCAL]
    assert found.importance == pytest.approx(own / own.sum(), abs=1e-5)


def test_links_that_only_we_know_count_once_and_so_do_those_of_both() -> None:
    # The service has read all pages but some of those that we have fetched: together we know every link.
    read = np.ones(PAGES, np.bool_)
    read[:FETCHED:2] = False
    errors, paper = [], []
    for seed in range(60):
        web = random_web(seed)
        graph, truth = crawled(web), exact_pagerank(web)[:LOCAL]
        ranks = pagerank(graph.inside)
        errors.append(distance(combined_estimate(graph, ranks, service_that_read(web, read)).importance, truth).l1)
        paper.append(distance(ranks[:LOCAL], truth).l1)
    assert np.mean(errors) < 0.2 * np.mean(paper)


def test_without_a_service_or_with_an_empty_one_the_papers_estimate_remains() -> None:
    graph = crawled(random_web(3))
    ranks = pagerank(graph.inside)
    empty = ServiceKnowledge(np.zeros(LOCAL), np.full(FETCHED, np.nan), np.zeros(FETCHED, np.bool_), 0.0, 0.0, 0.0, 0)
    for service in (None, empty):
        found = combined_estimate(graph, ranks, service)
        assert (found.method, found.coverage) == (PAPER, 0.0)
        assert found.importance == pytest.approx(ranks[:LOCAL] / ranks[:LOCAL].sum())


def test_error_falls_as_the_service_reads_more_pages() -> None:
    errors: dict[float, list[float]] = {0.25: [], 0.5: [], 0.75: [], 1.0: []}
    paper = []
    for seed in range(40):
        web = random_web(seed)
        graph, truth = crawled(web), exact_pagerank(web)[:LOCAL]
        ranks = pagerank(graph.inside)
        paper.append(distance(ranks[:LOCAL], truth).l1)
        chance = np.random.default_rng(seed).random(PAGES)
        for share, found in errors.items():
            service = service_that_read(web, chance < share)
            found.append(distance(combined_estimate(graph, ranks, service).importance, truth).l1)
    means = [float(np.mean(found)) for found in errors.values()]
    assert means == sorted(means, reverse=True)
    assert means[0] < np.mean(paper)


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_noise_of_the_service_is_not_amplified(noise: float) -> None:
    web, rng = random_web(5), np.random.default_rng(5)
    graph, truth = crawled(web), exact_pagerank(web)[:LOCAL]
    exact = service_that_read(web, np.ones(PAGES, np.bool_))
    factor = 1 + noise * rng.standard_normal(LOCAL)
    noisy = ServiceKnowledge(
        exact.inflow * factor, exact.importance, exact.read, exact.outside_mass, 0.0, exact.dangling_mass, PAGES
    )
    found = combined_estimate(graph, pagerank(graph.inside), noisy)
    assert distance(found.importance, truth).l1 < 2 * noise


def test_crawl_of_more_than_the_service_knows_settles() -> None:
    web = random_web(2)
    links = CrawledLinks(range(LOCAL), [np.flatnonzero(web[page]) for page in range(LOCAL)])
    for page in range(LOCAL, PAGES):
        links.add(page, np.flatnonzero(web[page]))
    graph, truth = links.graph(), exact_pagerank(web)[:LOCAL]
    service = ServiceKnowledge(np.full(LOCAL, 0.01), np.full(PAGES, 0.1), np.zeros(PAGES, np.bool_), 0.0, 0.0, 0.0, 10)
    found = combined_estimate(graph, pagerank(graph.inside), service)
    assert distance(found.importance, truth).l1 < 2
    assert found.importance.sum() == pytest.approx(1)


def test_crawl_of_nearly_all_known_pages_is_left_to_the_paper() -> None:
    web = random_web(4)
    links = CrawledLinks(range(LOCAL), [np.flatnonzero(web[page]) for page in range(LOCAL)])
    for page in range(LOCAL, PAGES - 2):
        links.add(page, np.flatnonzero(web[page]))
    graph = links.graph()
    ranks = pagerank(graph.inside)
    size = len(ranks)
    for known_pages, method in ((PAGES, PAPER), (2 * PAGES, COMBINED)):
        service = ServiceKnowledge(
            np.full(LOCAL, 0.01), np.full(size, 0.01), np.ones(size, np.bool_), 0.9, 0.3, 0.0, known_pages
        )
        found = combined_estimate(graph, ranks, service)
        assert (found.method, found.coverage) == (method, pytest.approx(2 / 3))
        same = found.importance == pytest.approx(ranks[:LOCAL] / ranks[:LOCAL].sum())
        assert same == (method == PAPER)


@pytest.mark.parametrize(("unread", "scale"), [(0.0, 1.0), (0.3, 1.5), (0.899, 2.5)])
def test_inflow_grows_with_unread_mass_up_to_a_limit(unread: float, scale: float) -> None:
    graph = crawled(np.zeros((PAGES, PAGES), np.bool_))
    read = np.zeros(FETCHED, np.bool_)
    service = ServiceKnowledge(np.full(LOCAL, 0.01), np.zeros(FETCHED), read, 0.9, unread, 0.0, PAGES)
    assert outside_of(graph, service).inflow[:LOCAL] == pytest.approx(scale * 0.01)


@given(st.integers(0, LOCAL), st.integers(0, FETCHED - LOCAL))
def test_inflow_grows_as_the_service_knows_less_of_the_domain(known: int, linking: int) -> None:
    web = np.zeros((PAGES, PAGES), np.bool_)
    web[:LOCAL, LOCAL:FETCHED] = True
    web[LOCAL : LOCAL + linking, 0] = True
    graph = crawled(web)
    importance = np.full(FETCHED, 1e-3)
    importance[known:LOCAL] = np.nan
    service = ServiceKnowledge(np.full(LOCAL, 0.02), importance, np.zeros(FETCHED, np.bool_), 0.9, 0.0, 0.0, PAGES)
    inflow = outside_of(graph, service).inflow[:LOCAL]
    scale = ((LOCAL + 1) / (known + 1)) ** (3 / (3 + linking))
    assert inflow.sum() == pytest.approx(scale * 0.02 * LOCAL)
    assert inflow[0] >= inflow[1] == pytest.approx(inflow[-1])


def test_estimates_of_a_wrong_length_are_refused() -> None:
    web = random_web(1)
    graph = crawled(web)
    service = service_that_read(web, np.ones(PAGES, np.bool_))
    with pytest.raises(BadInput, match=r"the service's arrays have \(12, 20, 20\) entries, not \(12, 21, 21\)"):
        combined_estimate(graph, np.ones(21), service)
