"""What a crawl guarantees is never above the truth, and the fast crawls are the paper's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import networkx as nx
import numpy as np
import plain_rankmass
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from experiments.algorithms.rankmass import CoverageCrawl, l_neighbor, rankmass, windowed_rankmass
from experiments.algorithms.trust import Trust
from opic.graph.crawled import LinkMatrix, link_matrix
from opic.graph.pagerank import pagerank

D = 0.85
ROUNDING = 1e-11
Crawl = Callable[..., CoverageCrawl]
CRAWLS: dict[str, Crawl] = {
    "L-Neighbor": l_neighbor,
    "RankMass": rankmass,
    "RankMass, pushed first": lambda *args, **more: rankmass(*args, **more, push_from=0.125),
    "window of 5 %": lambda *args, **more: windowed_rankmass(*args, **more, window=0.05),
    "window of 30 %, three sweeps": lambda *args, **more: windowed_rankmass(
        *args, **more, window=0.3, sweeps=3, parts=2
    ),
    "window of 100 %": lambda *args, **more: windowed_rankmass(*args, **more, window=1.0, parts=1),
}


@dataclass(frozen=True)
class Web:
    """A small web whose links may be from a page to itself; pages may lack links, or be out of reach."""

    pages: int
    ends: list[tuple[int, int]]
    weights: list[int]  # Of trust.

    @property
    def links(self) -> LinkMatrix:
        ends = np.array(self.ends, np.int64).reshape(-1, 2)
        return link_matrix(ends[:, 0], ends[:, 1], (self.pages, self.pages))

    @property
    def trust(self) -> Trust:
        return Trust.weighted(np.arange(self.pages), self.weights)

    @property
    def by_page(self) -> list[list[int]]:
        return [sorted(to for by, to in self.ends if by == page) for page in range(self.pages)]

    def reached(self, trust: Trust) -> set[int]:
        graph = nx.DiGraph(self.ends)
        graph.add_nodes_from(range(self.pages))
        return set(trust.pages.tolist()).union(*(nx.descendants(graph, page) for page in trust.pages.tolist()))

    def truth(self, trust: Trust) -> np.ndarray:
        """Personalized PageRank by a dense solver; a page without links passes its rank to the trusted pages."""
        walk = self.links.toarray()
        walk /= np.maximum(walk.sum(axis=1, keepdims=True), 1)
        paths = np.linalg.solve(np.eye(self.pages) - D * walk.T, trust.vector(self.pages))
        return paths / paths.sum()


@st.composite
def webs(draw: st.DrawFn, *, dangling: bool = True) -> Web:
    pages = draw(st.integers(2, 14))
    page = st.integers(0, pages - 1)
    ends = draw(st.sets(st.tuples(page, page), max_size=3 * pages))
    if not dangling:
        ends |= {(by, draw(page)) for by in range(pages) if all(by != one for one, _ in ends)}
    weights = draw(st.lists(st.integers(0, 4), min_size=pages, max_size=pages).filter(any))
    if len(set(weights)) == 1:  # Equal trust in all pages is refused.
        weights[0] += 1
    return Web(pages, sorted(ends), weights)


@pytest.mark.parametrize("name", CRAWLS)
@given(web=webs())
def test_guarantee_is_never_above_the_truth(name: str, web: Web) -> None:
    crawl, truth = CRAWLS[name](web.links, web.trust), web.truth(web.trust)
    assert (crawl.guaranteed <= np.cumsum(truth[crawl.order]) + ROUNDING).all()
    assert (np.diff(crawl.guaranteed) >= -ROUNDING).all()
    assert set(crawl.order.tolist()) == web.reached(web.trust)
    assert len(set(crawl.order.tolist())) == len(crawl.order)
    assert crawl.guaranteed[-1] == pytest.approx(1.0, abs=ROUNDING)


@pytest.mark.parametrize("name", CRAWLS)
@given(web=webs(), count=st.integers(1, 5))
def test_guarantee_with_some_of_the_trusted_pages_is_never_above_the_truth(name: str, web: Web, count: int) -> None:
    named, truth = web.trust.most_trusted(count), web.truth(web.trust)
    crawl = CRAWLS[name](web.links, named)
    assert (crawl.guaranteed <= np.cumsum(truth[crawl.order]) + ROUNDING).all()
    assert set(crawl.order.tolist()) == web.reached(named)
    assert crawl.guaranteed[-1] <= 1 - named.missing + ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("name", CRAWLS)
@examples(50)
@given(web=webs(dangling=False), count=st.integers(1, 5))
def test_pages_reached_from_trusted_ones_are_guaranteed_their_trust(name: str, web: Web, count: int) -> None:
    named = web.trust.most_trusted(count)
    assert CRAWLS[name](web.links, named).guaranteed[-1] == pytest.approx(1 - named.missing, abs=ROUNDING)


@given(web=webs(dangling=False), count=st.integers(1, 5))
def test_levels_have_the_guarantee_of_theorem_3(web: Web, count: int) -> None:
    named, links, level = web.trust.most_trusted(count), web.by_page, 0
    crawl = l_neighbor(web.links, named)
    downloaded, pages = 0, set(named.pages.tolist())
    while pages != web.reached(named):
        assert set(crawl.order[: len(pages)].tolist()) == pages
        assert crawl.guaranteed[len(pages) - 1] == pytest.approx((1 - named.missing) * (1 - D ** (level + 1)))
        assert (crawl.guaranteed[downloaded : len(pages) - 1] <= (1 - named.missing) * (1 - D**level) + ROUNDING).all()
        downloaded, pages, level = len(pages), pages.union(*(links[page] for page in pages)), level + 1
    assert crawl.iterations == level + 1


def steps(crawl: Iterator[plain_rankmass.Step]) -> tuple[list[int], list[float]]:
    """The pages that the plain form downloads, and the guarantee after each."""
    pages, before = zip(*crawl, strict=True)
    return list(pages[:-1]), list(before[1:])


@given(web=webs(), count=st.integers(1, 14), exponent=st.integers(0, 4))
def test_rankmass_equals_the_algorithm_of_the_paper(web: Web, count: int, exponent: int) -> None:
    trust, push_from = web.trust.most_trusted(count), 2.0**-exponent
    named = dict(zip(trust.pages.tolist(), trust.shares.tolist(), strict=True))
    crawl = rankmass(web.links, trust, push_from=push_from)
    pages, guaranteed = steps(plain_rankmass.rankmass(web.by_page, named, epsilon=-1.0, push_from=push_from))
    assert crawl.order.tolist() == pages
    assert crawl.guaranteed == pytest.approx(guaranteed, abs=ROUNDING)


@given(web=webs(), count=st.integers(1, 14), window=st.floats(0.01, 1.0))
def test_windowed_rankmass_with_one_page_per_part_equals_the_algorithm_of_the_paper(
    web: Web, count: int, window: float
) -> None:
    trust = web.trust.most_trusted(count)
    named = dict(zip(trust.pages.tolist(), trust.shares.tolist(), strict=True))
    crawl = windowed_rankmass(web.links, trust, window=window, parts=web.pages)
    pages, guaranteed = steps(plain_rankmass.windowed_rankmass(web.by_page, named, window, epsilon=-1.0))
    assert crawl.order.tolist() == pages
    assert crawl.guaranteed == pytest.approx(guaranteed, abs=ROUNDING)


@given(web=webs(), window=st.floats(0.01, 1.0), sweeps=st.integers(1, 3), parts=st.integers(1, 20))
def test_sweeps_in_parts_equal_the_plain_form(web: Web, window: float, sweeps: int, parts: int) -> None:
    named = dict(zip(web.trust.pages.tolist(), web.trust.shares.tolist(), strict=True))
    crawl = windowed_rankmass(web.links, web.trust, window=window, sweeps=sweeps, parts=parts)
    split = [part.tolist() for part in np.array_split(np.arange(web.pages), parts)]
    plain = plain_rankmass.windowed_rankmass(web.by_page, named, window, epsilon=-1.0, sweeps=sweeps, parts=split)
    pages, guaranteed = steps(plain)
    assert crawl.order.tolist() == pages
    assert crawl.guaranteed == pytest.approx(guaranteed, abs=ROUNDING)


@given(web=webs())
def test_l_neighbor_equals_the_algorithm_of_the_paper(web: Web) -> None:
    named = dict(zip(web.trust.pages.tolist(), web.trust.shares.tolist(), strict=True))
    crawl = l_neighbor(web.links, web.trust)
    pages, guaranteed = steps(plain_rankmass.l_neighbor(web.by_page, named))
    assert crawl.order.tolist() == pages
    assert crawl.guaranteed == pytest.approx(guaranteed)


@given(web=webs(dangling=False))
def test_window_of_all_pages_downloads_levels_and_guarantees_no_less(web: Web) -> None:
    whole, levels = windowed_rankmass(web.links, web.trust, window=1.0, parts=1), l_neighbor(web.links, web.trust)
    assert whole.iterations == levels.iterations
    assert (whole.guaranteed >= levels.guaranteed - ROUNDING).all()


@pytest.mark.parametrize("name", CRAWLS)
@given(web=webs(), target=st.floats(0.01, 1.0), count=st.integers(0, 14))
def test_crawl_stops_at_its_target_or_at_the_limit_of_downloads(name: str, web: Web, target: float, count: int) -> None:
    whole, truth = CRAWLS[name](web.links, web.trust), web.truth(web.trust)
    until = CRAWLS[name](web.links, web.trust, target=target)
    assert until.guaranteed[-1] >= target
    assert until.order.tolist() == whole.order.tolist()[: len(until.order)]
    assert (until.guaranteed[:-1] < target).all()
    cut = CRAWLS[name](web.links, web.trust, downloads_max=count)
    assert cut.order.tolist() == whole.order.tolist()[:count]
    assert (cut.guaranteed <= np.cumsum(truth[cut.order]) + ROUNDING).all()


@given(web=webs())
def test_personalized_pagerank_equals_a_dense_solution(web: Web) -> None:
    found = pagerank(web.links, D, threshold=1e-14, teleport=web.trust.vector(web.pages))
    assert found == pytest.approx(web.truth(web.trust), abs=1e-12)
