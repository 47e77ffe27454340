"""The flow agrees with dense algebra at every step of a changing graph, and its bound is never below its error."""

import numpy as np
import pytest
from example_counts import examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from link_pools import links_of, put
from plain_flow import exact, residual, returns, transitions

from opic import arrays
from opic.arrays import Uint32s
from opic.graph import known_graph
from opic.graph.flow import Flow
from opic.graph.known_graph import KnownGraph
from opic.graph.link_pool import UNKNOWN_PAGE, LinkPool

DAMPING = 0.85
PAGES = 9
ENOUGH = 100_000_000
pages = st.integers(0, PAGES - 1)
weights = st.sampled_from([1.0, 1.0, 1.0, 0.25, 40.0])


class ChangingGraph(RuleBasedStateMachine):
    """Pages become known, are read with links, kept or not, go away, come back, change class."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.replaced = LinkPool(), dict[int, Uint32s | None]()
        self.graph = KnownGraph(self.pool)
        self.flow, self.late = Flow(DAMPING, self.graph), Flow(DAMPING, self.graph)
        self.weight = dict[int, float]()  # Of known pages.
        self.links = dict[int, list[int]]()  # Of pages read, as last read; PAGES is a page without a number.
        self.read, self.gone = set[int](), set[int]()

    @initialize(start=st.sets(pages, min_size=1))
    def begin(self, start: set[int]) -> None:
        self.weight = dict.fromkeys(start, 1.0)
        self.look()

    @rule(page=pages, shown=st.sets(pages, max_size=5), unknown=st.booleans(), rare=st.integers(0, 9))
    def fetch(self, page: int, shown: set[int], unknown: bool, rare: int) -> None:
        links = sorted(shown - {page}) + [PAGES] * (unknown and not rare)
        self.links[page] = links
        packed = np.array([UNKNOWN_PAGE if target == PAGES else target for target in links], np.uint32)
        self.replaced.setdefault(page, None if (old := links_of(self.pool, page)) is None else old.copy())
        put(self.pool, page, packed)
        for target in shown | {page}:
            self.weight.setdefault(target, 1.0)
        self.gone -= shown | {page}
        self.read.add(page)

    @rule(page=pages)
    def fetch_without_keeping(self, page: int) -> None:
        if page not in self.links:
            self.weight.setdefault(page, 1.0)
            self.gone.discard(page)
            self.read.add(page)

    @rule(page=pages)
    def leave(self, page: int) -> None:
        self.weight.setdefault(page, 1.0)
        self.gone.add(page)
        self.read.discard(page)

    @rule(page=pages, weight=weights)
    def classify(self, page: int, weight: float) -> None:
        if page in self.weight:
            self.weight[page] = weight

    @rule()
    def look(self) -> None:
        """As a reader does, a few events at a time."""
        size = max(self.weight) + 1
        flags = [np.array([page in some for page in range(size)]) for some in (self.read - self.gone, self.gone)]
        self.graph.advance(*flags, self.replaced)
        self.replaced.clear()
        weights = [0.0 if page in self.gone else self.weight.get(page, 0.0) for page in range(size)]
        self.flow.advance(np.array(weights))
        self.check()

    @rule(visits=st.lists(st.floats(0, 50), max_size=PAGES))
    def start_from_saved_vectors(self, visits: list[float]) -> None:
        self.look()
        self.flow.start(np.array(visits))
        self.check()

    @rule(bound=st.sampled_from([1.0, 0.1, 0.01, 1e-6]), links_max=st.sampled_from([0, 3, ENOUGH]))
    def settle(self, bound: float, links_max: int) -> None:
        self.look()
        done = self.flow.settle(bound, links_max)
        self.check()
        if not done:
            assert links_max < ENOUGH
        elif self.read <= self.links.keys() and not self.pool.unknown and self.flow.total:
            assert self.flow.bound <= bound

    def check(self) -> None:
        """Compare with dense algebra: r with its definition, the estimates with PageRank, the bound with the error."""
        teleport, size = self.flow.teleport, len(self.graph)
        links = {page: some for page, some in self.links.items() if page in self.read}
        visits, gone = self.flow.visits, self.graph.gone
        expected = residual(transitions(links, self.gone, size), teleport, DAMPING, visits)
        expected[gone] = (DAMPING * returns(links, self.gone, size) @ visits)[gone]
        assert self.flow.residual == pytest.approx(expected, rel=1e-9, abs=1e-9 * max(1.0, self.flow.visits.sum()))
        if not teleport.any():
            return
        known = {page: [target for target in some if target < size] for page, some in links.items()}
        not_kept = self.read - self.links.keys() - self.gone
        others = [None, *sorted(self.weight.keys() - self.gone)[:3]] if not_kept else [None]
        for other in others:  # Whatever the links are that were not kept.
            assumed = {page: [] if other in (None, page) else [other] for page in not_kept}
            truth = exact(transitions({**known, **assumed}, self.gone, size), teleport, DAMPING)
            assert float(np.abs(self.flow.shares - truth).sum()) <= self.flow.bound
        self.late.advance(teleport)  # Follows only now and then, and computes r anew where it missed a version.
        if not not_kept and not self.pool.unknown:
            assert self.late.settle(1e-7)
            assert self.late.shares == pytest.approx(truth, abs=1e-7)


TestChangingGraph = ChangingGraph.TestCase
TestChangingGraph.settings = examples(150, stateful_step_count=25)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "GARBAGE_MIN", 10)
    monkeypatch.setattr(known_graph, "ROWS_MAX", 5)  # Of at most nine pages: both ways are taken.
    monkeypatch.setattr(arrays, "VALUES_AT_ONCE", 5)
