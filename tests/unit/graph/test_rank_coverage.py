"""The bound of RankMass is never above the truth, whatever the pages link to that were not fetched."""

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from link_pools import put

from opic.graph.flow import Flow
from opic.graph.known_graph import KnownGraph
from opic.graph.link_pool import UNKNOWN_PAGE, LinkPool
from opic.graph.rank_coverage import LINKS_A_SETTLE, RankCoverage, coverage

DAMPING = 0.85
PAGES = 8
pages = st.integers(0, PAGES - 1)
link_sets = st.sets(pages, max_size=5)
Links = dict[int, list[int]]


class TrustFlow:
    """Coverage after each change, all of it told anew."""

    def __init__(self, damping: float, pool: LinkPool) -> None:
        self._graph = KnownGraph(pool)
        self._flow = Flow(damping, self._graph)

    def settle(self, trust: np.ndarray, fetched: np.ndarray, gone: np.ndarray, links_max: int = 10**9) -> RankCoverage:
        self._graph.advance(fetched & ~gone, gone, None)
        self._flow.advance(np.where(gone, 0.0, trust))
        return coverage(self._flow, links_max)


def exact(links: Links, trust: np.ndarray, gone: set[int]) -> np.ndarray:
    """Personalized PageRank by solving the equations; pages without links send their visitors to the trusted pages."""
    start = np.array([0.0 if page in gone else weight for page, weight in enumerate(trust)])
    moves = np.zeros((PAGES, PAGES))
    for page, targets in links.items():
        live = [target for target in targets if target not in gone]
        for target in live if page not in gone else ():
            moves[target, page] = DAMPING / len(live)
    visits = np.linalg.solve(np.eye(PAGES) - moves, start / start.sum())
    return visits / visits.sum()


@st.composite
def crawls(draw: st.DrawFn) -> tuple[list[tuple[int, list[int]]], list[float], set[int]]:
    """Reads of pages, each with the links that it shows; trust; pages that are gone at the end."""
    reads = draw(st.lists(st.tuples(pages, link_sets), max_size=12))
    trust = draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, 3.5]), min_size=PAGES, max_size=PAGES))
    gone = draw(st.sets(pages, max_size=3))
    trust[draw(pages.filter(lambda page: page not in gone))] = 1.0
    return [(page, sorted(links - {page})) for page, links in reads], trust, gone


@examples(200)
@given(
    crawls(),
    st.lists(st.fixed_dictionaries(dict.fromkeys(range(PAGES), link_sets)), min_size=1, max_size=4),
    st.sets(pages, max_size=2),
    st.sampled_from([0, 3, LINKS_A_SETTLE]),  # A step counts as many links, so that a million end in the middle.
)
def test_bound_is_never_above_the_truth_whatever_the_other_pages_link_to(
    crawl: tuple[list[tuple[int, list[int]]], list[float], set[int]],
    completions: list[dict[int, set[int]]],
    unknown: set[int],
    links_max: int,
) -> None:
    """After each read the flow goes on from where it was, under links, trust and gone pages that changed meanwhile."""
    reads, weights, gone = crawl
    trust, pool, seen = np.array(weights), LinkPool(), Links()
    flow = TrustFlow(DAMPING, pool)
    for number, (page, targets) in enumerate([*reads, (0, [1])]):
        put(pool, page, np.array(targets, np.uint32))
        seen[page] = targets
        now_gone = gone if number % 2 else set[int]()
        here = trust if number % 3 else np.where(np.arange(PAGES) == min(set(range(PAGES)) - gone), 1.0, trust)
        # Pages that were fetched, though their links are not known: before the first trusted page.
        fetched = (set(seen) | unknown) - now_gone
        flags = np.array([page in fetched for page in range(PAGES)])
        found = flow.settle(here, flags, np.array([page in now_gone for page in range(PAGES)]), links_max)
        for completion in completions:
            full = {at: sorted(links - {at}) for at, links in completion.items()} | seen
            truth = exact(full, here, now_gone)[flags].sum()
            assert 0 <= found.coverage <= truth + 1e-12
            # More trust, on pages of which nobody was told.
            more = np.where(np.arange(PAGES) == page, here.sum() * 0.25 / 0.75, 0.0)
            if page not in now_gone:
                assert found.named(0.25).coverage <= exact(full, here + more, now_gone)[flags].sum() + 1e-12
            if len(fetched | now_gone) == PAGES and not unknown and links_max > 3:
                assert found.coverage == pytest.approx(truth, abs=1e-5)


def test_bound_is_reached_by_the_worst_possible_pages() -> None:
    """A trusted page links to itself no more than to two others; if these keep all visitors, the bound is the truth."""
    flow = TrustFlow(0.5, pool := LinkPool())
    put(pool, 0, np.array([1, 2], np.uint32))
    put(pool, 1, np.array([0], np.uint32))
    found = flow.settle(np.array([1.0, 0, 0]), np.array([True, True, False]), np.zeros(3, bool))
    # Page 0 has 1 / (1 - 1/8) visits, page 1 a quarter of that, and page 2 gets as much, which lasts twice as long.
    assert found.coverage == pytest.approx(1.25 / 1.75, abs=1e-5)
    assert found.frontier_trust.tolist() == [0, 0, pytest.approx(0.25 * 8 / 7, abs=1e-5)]


def test_link_to_a_page_without_a_number_is_not_covered() -> None:
    flow = TrustFlow(0.5, pool := LinkPool())
    put(pool, 0, np.array([1, UNKNOWN_PAGE], np.uint32))
    put(pool, 1, np.array([], np.uint32))
    found = flow.settle(np.array([1.0, 0]), np.array([True, True]), np.zeros(2, bool))
    assert found.coverage == pytest.approx(1.25 / (1.25 + 0.5), abs=1e-5)


def test_trust_of_pages_not_named_may_all_be_elsewhere() -> None:
    """Theorem 3 of Cho and Schonfeld: of seeds with a trust of 1 - delta, no more can be guaranteed."""
    flow = TrustFlow(DAMPING, pool := LinkPool())
    put(pool, 0, np.array([1], np.uint32))
    put(pool, 1, np.array([0], np.uint32))
    found = flow.settle(np.array([3.0, 0.0]), np.array([True, True]), np.zeros(2, bool)).named(0.1)
    assert found.coverage == pytest.approx(0.9, abs=1e-5)
    assert found.coverage <= 0.9
    assert found.fetches_to(0.89, np.zeros(2)) == 0
    assert found.fetches_to(0.91, np.zeros(2)) is None


def test_flow_that_stops_early_goes_on_with_the_next_call() -> None:
    flow = TrustFlow(DAMPING, pool := LinkPool())
    for page in range(90):
        put(pool, page, np.array([(page + 1) % 90], np.uint32))
    trust, fetched, gone = np.eye(90)[0], np.ones(90, bool), np.zeros(90, bool)
    bounds = [flow.settle(trust, fetched, gone, links_max=8).coverage for _ in range(200)]  # A step each
    assert bounds == sorted(bounds)
    assert bounds[0] < 0.9
    assert bounds[-1] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("target", "expected"), [(0.4, 0), (0.51, 1), (0.7, 3), (0.76, None), (1.0, None)], ids=str)
def test_fetches_to_a_target_are_counted_by_the_trust_that_pages_hold(target: float, expected: int | None) -> None:
    """Half of what a fetched page moves on stays with other pages, so not every target can be reached."""
    held = np.array([0.0, 0.1, 0.2, 0.15, 0.05])
    found = RankCoverage(0.5, 1.0, 1.0, held, 0.5, settled=True)
    assert found.fetches_to(target, held) == expected
