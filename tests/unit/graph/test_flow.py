"""Exact importance on recorded graphs, as they are discovered: within its bound of what networkx computes."""

import networkx as nx
import numpy as np
import pytest
from link_pools import put
from plain_flow import exact, transitions

from experiments.recorded_graphs import load_graph
from opic.arrays import Float64s, Uint32s
from opic.graph.flow import LINKS_A_STEP, Flow
from opic.graph.known_graph import KnownGraph
from opic.graph.link_pool import LinkPool
from opic.query.page_flows import LINKS_A_SETTLE

DAMPING, BOUND, BATCH = 0.85, 0.01, 50


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hollins", "wikispeedia"])
def test_importance_is_pagerank_within_the_bound_at_every_part_of_a_crawl(name: str) -> None:
    recorded = load_graph(name)
    pages, pool, replaced = len(recorded), LinkPool(), dict[int, Uint32s | None]()
    graph, whole = KnownGraph(pool), nx.DiGraph()
    flow = Flow(DAMPING, graph)
    seeds = np.argsort(-np.diff(recorded.links.indptr), kind="stable")[:5].tolist()
    whole.add_nodes_from(seeds)
    read, gone = np.zeros(pages, bool), np.zeros(pages, bool)
    looks = 0
    while True:
        graph.advance(read.copy(), gone, replaced)
        replaced.clear()
        flow.advance(np.array([float(page in whole) for page in range(pages)]))
        assert flow.settle(BOUND)
        due = [page for page in whole if not read[page]]
        if not due or read.sum() > looks * pages / 5:
            looks += 1
            truth = nx.pagerank(whole, DAMPING, tol=1e-10, max_iter=500)
            error = sum(abs(flow.shares[page] - rank) for page, rank in truth.items())
            assert error <= flow.bound <= BOUND
            assert flow.shares.sum() == pytest.approx(1.0)
        if not due:
            break
        for page in sorted(due, key=lambda page: -flow.residual[page])[:BATCH]:
            links = recorded.links_of(page).astype(np.uint32)
            read[page], replaced[page] = True, None
            put(pool, page, links)
            whole.add_edges_from((page, to) for to in links.tolist())
    assert looks >= 4
    assert flow.check() < 1e-12


def test_damping_near_1_does_not_make_settling_endless() -> None:
    """Six pages need millions of steps, each of a few links."""
    pages, pool, steps = 6, LinkPool(), 0
    links = {page: [(page + 1) % pages, (page + 2) % pages] for page in range(pages - 1)} | {pages - 1: [0]}
    for page, shown in links.items():
        put(pool, page, np.array(sorted(shown), np.uint32))

    class Counted(Flow):
        def _bound(self, waiting: Float64s) -> float:
            nonlocal steps
            steps += 1
            return super()._bound(waiting)

    flow = Counted(0.999999, graph := KnownGraph(pool))
    graph.advance(np.ones(pages, bool), np.zeros(pages, bool), None)
    flow.advance(np.ones(pages))
    assert not flow.settle(BOUND, LINKS_A_SETTLE)
    assert steps <= LINKS_A_SETTLE / LINKS_A_STEP + 1
    truth = exact(transitions(links, set(), pages), np.ones(pages), flow.damping)
    assert float(np.abs(flow.shares - truth).sum()) <= flow.bound


def test_pages_that_go_and_come_back_are_followed_without_a_pass_over_all_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most crawls some page goes between any two settlings."""
    pages, pool = 200, LinkPool()
    links = {page: sorted({(page + 1) % pages, (page + 7) % pages, 0} - {page}) for page in range(pages)}
    for page, shown in links.items():
        put(pool, page, np.array(shown, np.uint32))
    flow, gone = Flow(DAMPING, graph := KnownGraph(pool)), np.zeros(pages, bool)
    graph.advance(np.ones(pages, bool), gone, None)
    flow.advance(np.ones(pages))
    assert flow.settle(BOUND)
    monkeypatch.setattr(Flow, "define", None)  # The pass.
    for turned in ([3], [10, 11, 0], [3], [0, 150]):
        gone = gone.copy()
        gone[turned] ^= True
        graph.advance(~gone, gone, {})
        flow.advance(np.where(gone, 0.0, 1.0))
        assert flow.settle(BOUND)
        left = {page: shown for page, shown in links.items() if not gone[page]}
        truth = exact(transitions(left, set(np.flatnonzero(gone).tolist()), pages), flow.teleport, DAMPING)
        assert float(np.abs(flow.shares - truth).sum()) <= flow.bound
