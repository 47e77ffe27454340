"""How far is exact importance from PageRank, how far does its bound say that it is, and what does it cost a read?

Discovering crawls of recorded graphs from five seeds: each page is fetched once, 20 a batch, best page first. After
each batch the flow is settled as an endpoint settles it for the bound wanted. At 5, 10, 25, 50, 75, 90 % of all reads
the estimate is compared with PageRank of the known graph by the power method; the bound must not be below the error.
Beside it: estimates by cash after the same reads, under both payouts and by the best of many windows, and what
computing PageRank anew costs: by the power method to 10^-12 and to the bound wanted, by igraph and by networkit (`pip
install networkit`) where they are installed.

--pages N: a crawl of random links as well, of which a third of the pages is read at the start; then pages are read for
the first time, and others again with one link in forty replaced, 1,000 reads to a settling; and ten pages go away
before each of further settlings. Times are CPU times of this process.
"""

import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np
from harness import write_result
from measured_graphs import graph_arguments, graphs_here
from scipy.sparse.csgraph import breadth_first_order

from experiments.recorded_graphs import GRAPHS, RecordedGraph
from opic.arrays import Uint32s
from opic.graph.crawled import link_matrix
from opic.graph.flow import Flow
from opic.graph.known_graph import KnownGraph
from opic.graph.link_pool import LinkPool
from opic.graph.pagerank import pagerank
from opic.model.cash import CONTINUOUS, MILLION, CrawlRules
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.model.past_importance import PARTITION, RecordedPast
from opic.model.series import Window
from opic.query.exact import AIM
from opic.urls.canonical import canonical_url

DAMPING = 0.85
SEEDS, BATCH = 5, 20
CHECKPOINTS = (5, 10, 25, 50, 75, 90)
LINKS, REPLACED, READS_A_SETTLE, SETTLES, GONE_A_SETTLE = 40, 1, 1_000, 10, 10
MEASURES = 8  # Kept a page, for windows.
WINDOW_POLICIES = ("interpolation", "fixed", "variable", "improved")
WINDOWS = (0.5, 2.0, 8.0)  # Rounds.
WORST = ("l1", "bound", "cash_l1", "cash_continuous_l1", "cash_best_window_l1")
RANDOM_SEED = 20030520
FIRST_READ_US = 1_600_000_000 * MILLION


class Crawl:
    """A crawl of a graph of which every page is known to us; `links` are those that a read shows."""

    def __init__(self, pages: int) -> None:
        self.pool, self.replaced = LinkPool(), dict[int, Uint32s | None]()
        self.graph = KnownGraph(self.pool)
        self.flow = Flow(DAMPING, self.graph)
        self.known, self.read = np.zeros(pages, np.bool_), np.zeros(pages, np.bool_)
        self._gone, self.links = np.zeros(pages, np.bool_), dict[int, Uint32s]()

    def fetch(self, page: int, links: Uint32s) -> None:
        """Read a page."""
        self.replaced.setdefault(page, self.links.get(page))
        self.links[page] = links
        self.pool.put_many(np.array([page]), np.array([len(links)]), links)
        self.known[page] = self.read[page] = True
        self.known[links] = True

    def leave(self, page: int) -> None:
        """A page turns out to be gone."""
        self.known[page] = self.read[page] = False
        self._gone[page] = True

    def settle(self, bound: float) -> float:
        """Settle; return the seconds of CPU that it took."""
        began = time.process_time()
        self.graph.advance(self.read.copy(), self._gone.copy(), self.replaced)
        self.flow.advance(self.known.astype(np.float64))
        assert self.flow.settle(AIM * bound)
        took = time.process_time() - began
        self.replaced.clear()
        return took


class Cash:
    """The same crawl by cash alone, under both payouts."""

    def __init__(self, seeds: Iterable[int]) -> None:
        rules = CrawlRules(inflow=False, measures_max=MEASURES)
        continuous = replace(CONTINUOUS, inflow=False, measures_max=MEASURES)
        self._pasts = {"grants": RecordedPast((), rules), "continuous": RecordedPast((), continuous)}
        self._feed(encode_seeds([_url(page) for page in seeds]), "seeds")

    def _feed(self, value: bytes, kind: str = "event") -> None:
        for past in self._pasts.values():
            offset = past.ledger.next_offset(PARTITION)
            past.ledger.apply(PARTITION, [Record(offset, FIRST_READ_US + offset, value, kind)])

    def fetch(self, page: int, links: Iterable[int]) -> None:
        """Read a page."""
        self._feed(encode_crawl_event(CrawlEvent(_url(page), [_url(link) for link in links])))

    def errors(self, truth: np.ndarray) -> dict[str, float | str]:
        """Return L1 distances from the truth, which is by page of the graph: by payout, and of the best window."""
        by_window: dict[str, float] = {}
        found: dict[str, float | str] = {}
        for payout, past in self._pasts.items():
            numbers = np.array([int(url.rsplit("/", 1)[1]) for url in past.ledger.pages])

            def error(policy: str, rounds: float, past: RecordedPast = past, at: np.ndarray = numbers) -> float:
                return float(np.abs(past.importance(policy, Window(rounds)) - truth[at]).sum())

            found["cash_l1" if payout == "grants" else f"cash_{payout}_l1"] = error("static", 1.0)
            for policy in WINDOW_POLICIES:
                for rounds in WINDOWS:
                    by_window[f"{payout}, {policy}, {rounds:g} rounds"] = error(policy, rounds)
        best = min(by_window, key=by_window.__getitem__)
        return found | {"cash_best_window_l1": by_window[best], "cash_best_window": best}


def _url(page: int) -> str:
    return f"http://graph.example/{page}"


def discover(graph: RecordedGraph, bound: float) -> dict[str, object]:
    """Crawl a graph; return the errors and bounds at the checkpoints, and the CPU a read."""
    pages = len(graph)
    rng, crawl = np.random.default_rng(RANDOM_SEED), Crawl(pages)
    reachable = 0
    while 20 * reachable < pages:  # Seeds from which a part of the graph can be reached that is worth a crawl.
        seeds = rng.choice(pages, SEEDS, replace=False)
        reached = [breadth_first_order(graph.links, seed, return_predecessors=False) for seed in seeds]
        reachable = len(np.unique(np.concatenate(reached)))
    crawl.known[seeds] = True
    cash = Cash(seeds.tolist())
    marks = list(CHECKPOINTS)
    reads, spent, rows = 0, crawl.settle(bound), list[dict[str, Any]]()
    while len(due := np.flatnonzero(crawl.known & ~crawl.read)):
        held = crawl.flow.residual[due]
        batch = due[np.argsort(-held, kind="stable")[:BATCH]]
        for page in batch.tolist():
            crawl.fetch(page, graph.links_of(page).astype(np.uint32))
            cash.fetch(page, graph.links_of(page).tolist())
        spent += crawl.settle(bound)
        reads += len(batch)
        if marks and 100 * reads >= marks[0] * reachable:
            share = marks.pop(0)
            compared = compare(graph, crawl, cash, bound)
            error = compared["l1"]
            rows.append({
                "reads_percent": share, "known": int(crawl.known.sum()), "bound": crawl.flow.bound, **compared,
                "cpu_us_a_read": 1e6 * spent / reads,
            })  # fmt: skip
            if error > crawl.flow.bound:
                raise SystemExit(f"FAIL: {graph.name} at {share} %: off by {error}, the bound is {crawl.flow.bound}")
    worst = {name: max(row[name] for row in rows) for name in WORST}
    return {"reads": reads, "at": rows, "worst": worst, "cpu_us_a_read": 1e6 * spent / reads}


def compare(graph: RecordedGraph, crawl: Crawl, cash: Cash, bound: float) -> dict[str, Any]:
    """Return the L1 distances from PageRank of the known graph, and the CPU seconds of computing that anew."""
    known, sources = np.flatnonzero(crawl.known), np.flatnonzero(crawl.read)
    number = np.cumsum(crawl.known) - 1
    part = graph.links[sources]
    of, to = number[np.repeat(sources, np.diff(part.indptr))], number[part.indices]
    began = time.process_time()
    truth = pagerank(link_matrix(of, to, (len(known), len(known))), DAMPING, 1e-12)
    exactly = time.process_time()
    pagerank(link_matrix(of, to, (len(known), len(known))), DAMPING, bound * (1 - DAMPING) / DAMPING)
    to_bound = time.process_time() - exactly
    of_all = np.zeros(len(graph))
    of_all[known] = truth
    found = {
        "l1": float(np.abs(crawl.flow.shares[known] - truth).sum()),
        **cash.errors(of_all),
        "scipy_seconds": exactly - began,
        "scipy_to_bound_seconds": to_bound,
    }
    for name, ranks_of in (("igraph", by_igraph), ("networkit", by_networkit)):
        if ranks_of(of[:1], to[:1], len(known)) is None:  # Imports it.
            continue
        began = time.process_time()
        ranks = ranks_of(of, to, len(known))
        assert ranks is not None
        found[f"{name}_seconds"] = time.process_time() - began
        found[f"{name}_l1"] = float(np.abs(ranks - truth).sum())
    return found


def by_igraph(of: np.ndarray, to: np.ndarray, pages: int) -> np.ndarray | None:
    """Return PageRank of a graph by igraph's PRPACK, from its edges; None if that is not installed."""
    try:
        import igraph
    except ImportError:
        return None
    graph = igraph.Graph(n=pages, edges=np.column_stack((of, to)), directed=True)
    return np.array(graph.pagerank(damping=DAMPING, implementation="prpack"))


def by_networkit(of: np.ndarray, to: np.ndarray, pages: int) -> np.ndarray | None:
    """Return PageRank of a graph by networkit, one thread, from its edges; None if that is not installed."""
    try:
        import networkit
    except ImportError:
        return None
    networkit.setNumberOfThreads(1)
    graph = networkit.GraphFromCoo((of, to), n=pages, directed=True)
    ranking = networkit.centrality.PageRank(
        graph, DAMPING, 1e-12, distributeSinks=networkit.centrality.SinkHandling.DistributeSinks
    )
    ranking.norm = networkit.centrality.Norm.L1_NORM
    ranking.run()
    ranks = np.array(ranking.scores())
    return ranks / ranks.sum()


def large(pages: int, bound: float) -> dict[str, float]:
    """Measure on random links, in-degrees as uneven as the Web's."""
    rng, crawl = np.random.default_rng(RANDOM_SEED), Crawl(pages)

    def links() -> Uint32s:
        return np.unique((pages * rng.random(LINKS) ** 3).astype(np.uint32))

    crawl.known[:] = True
    order = rng.permutation(pages)
    third = pages // 3
    for page in order[:third].tolist():
        crawl.fetch(page, links())
    rows = {"settle from nothing, seconds": crawl.settle(bound), "bound": crawl.flow.bound}
    began = time.process_time()
    crawl.flow.check()
    rows["check of the drift, seconds"], rows["drift"] = time.process_time() - began, crawl.flow.drift
    discovering = rereading = 0.0
    for nth in range(SETTLES):
        for page in order[third + nth * READS_A_SETTLE :][:READS_A_SETTLE].tolist():
            crawl.fetch(page, links())
        discovering += crawl.settle(bound)
    for _ in range(SETTLES):
        for page in order[rng.choice(third, READS_A_SETTLE, replace=False)].tolist():
            now = crawl.links[page].copy()
            now[rng.choice(len(now), REPLACED, replace=False)] = rng.integers(pages)
            crawl.fetch(page, np.unique(now))
        rereading += crawl.settle(bound)
    leaving = 0.0
    for _ in range(SETTLES):
        for page in rng.choice(pages, GONE_A_SETTLE, replace=False).tolist():
            crawl.leave(page)
        leaving += crawl.settle(bound)
    rows["settle after ten pages went, seconds"] = leaving / SETTLES
    reads = SETTLES * READS_A_SETTLE
    rows["µs a first read"], rows["µs a read again"] = 1e6 * discovering / reads, 1e6 * rereading / reads
    return rows


def _shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def main() -> int:
    """Measure, print and write the JSON."""
    parser = graph_arguments("Error, bound and cost of exact importance.", list(GRAPHS))
    parser.add_argument("--bounds", nargs="*", type=float, default=[0.01])
    parser.add_argument("--pages", nargs="*", type=int, default=[], help="sizes of crawls of random links")
    args = parser.parse_args()
    found: dict[str, object] = {}
    for graph in graphs_here(args.graphs, args.data):
        for bound in args.bounds:
            with patch("opic.model.events.canonical_url", lru_cache(maxsize=None)(canonical_url)):
                row = found[f"{graph.name}, bound {bound:g}"] = discover(graph, bound)
            print(f"{graph.name}, bound {bound:g}: {row['cpu_us_a_read']:.0f} µs a read")
            for at in row["at"]:  # type: ignore[attr-defined]
                print("  " + ", ".join(f"{key} {_shown(value)}" for key, value in at.items()))
    for pages in args.pages:
        for bound in args.bounds:
            row = found[f"random links, {pages} pages, bound {bound:g}"] = large(pages, bound)
            print(f"{pages:,} pages, bound {bound:g}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()))
    write_result("flow", {"damping": DAMPING, "batch": BATCH, "measured": found}, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
