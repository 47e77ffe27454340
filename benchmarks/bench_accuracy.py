"""How far is the estimate from exact PageRank while a crawl discovers its graph, and does the error bound hold?

From five random seed pages, greedy by cash in batches of 1 % of the known pages, every page giving what it holds when
it is read. At 0.5, 1, 2, 5 and 10 reads a page of the graph the estimate (H + C) / sum(H + C) is compared with exact
PageRank of the known graph, and with what an independent simulation found for the same crawl (`ROWS`).

Exits 1 when an error bound is below the true error or a grain is missing: then the figures mean nothing. A cell says
FAIL where one of the crawls is over 1.5 times its row. The sets that ship with the repository by default, in half a
minute; all of them in about ten:

    python benchmarks/bench_accuracy.py --data DIR --sets hollins,wikispeedia,uk-2007-05-100000,gr0-california

`--engine store` crawls the same on an embedded store: the same figures, since it ends in the same state to the bit.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol
from unittest.mock import patch

import networkx as nx
import numpy as np
import numpy.typing as npt
from harness import write_result
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order
from scipy.stats import kendalltau
from workloads import LOADERS, Graph, IntArray, load

from experiments.recorded_graphs import NoGraph
from opic.ingest import ShardWriter
from opic.model.books import Books, BooksAudit
from opic.model.cash import MILLION, CrawlRules
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.model.ledger import Ledger
from opic.replica import Crawl
from opic.service.embedded import EmbeddedServer
from opic.store import Shard
from opic.store.connection import connect
from opic.urls.canonical import canonical_url

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

READS_PER_PAGE = (0.5, 1.0, 2.0, 5.0, 10.0)
SEED_PAGES = 5
CHOICES = 3  # Choices of the seed pages.
BATCH_SHARE = 100  # A batch is one in so many of the known pages.
TOP_PAGES = 1_000
DAMPING = 0.85
SOLVER_TOLERANCE = 1e-12
FIRST_READ_US = 1_600_000_000 * MILLION
PARTITION = "crawl.events/0"
ALLOWED = 1.5  # L1 may be so many times its row's.
# Which pages are known hangs on the seeds: on uk-2007 ten choices of them found 55 to 87 % within N reads, and one can
# reach no more than 61 % at all. So the row must lie within the spread of the choices, widened by this.
KNOWN_ALLOWED = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """What the simulations behind the design found: five choices of seeds, virtual page paying by grants."""

    l1: dict[float, float]  # Reads a page -> L1.
    known: dict[float, float]  # Reads a page -> share of the graph's pages that are known.


ROWS = {
    "hollins": Row({0.5: 0.18, 1: 0.20, 2: 0.06, 5: 0.005, 10: 0.006}, {1: 0.89, 2: 0.92}),
    "wikispeedia": Row({0.5: 0.18, 1: 0.17, 2: 0.11, 5: 0.022, 10: 0.002}, {1: 0.82, 2: 0.86}),
    "uk-2007-05-100000": Row({0.5: 0.16, 1: 0.13, 2: 0.11, 5: 0.007, 10: 0.003}, {1: 0.80, 2: 1.00}),
}


@dataclass(frozen=True, slots=True)
class Columns:
    """All known pages in the order of their ids; none of them is gone in these crawls."""

    urls: Sequence[str]
    cash: IntArray
    history: IntArray


class Engine(Protocol):
    """What is measured: a shard that takes a log and shows its columns."""

    @property
    def books(self) -> Books: ...

    def next_offset(self, partition: str) -> int: ...

    def apply(self, partition: str, records: Sequence[Record]) -> None: ...

    def audit(self) -> BooksAudit: ...

    def columns(self) -> Columns: ...


class LedgerEngine(Ledger):
    """The model in memory, with its columns."""

    def columns(self) -> Columns:
        """Gather the columns from the pages: 20 ms for 100,000 of them."""
        pages, known = self.pages.values(), len(self.pages)
        v = np.fromiter((page.v for page in pages), np.int64, known)
        return Columns(list(self.pages), v + self.books.credit, np.fromiter((p.spent for p in pages), np.int64, known))


class StoreEngine(ShardWriter):
    """The store, with its columns and the URLs that were fetched so far."""

    def __init__(self, shard: Shard) -> None:
        """Write to an open shard."""
        super().__init__(shard)
        self._urls: list[str] = []

    @property
    def books(self) -> Books:
        """The totals after the last record."""
        return self.replica.books

    def audit(self) -> BooksAudit:
        """Recount the books from the store's own journal and blocks."""
        return Crawl([self.shard]).audit()[0]

    def columns(self) -> Columns:
        """Return the columns, and the URLs, of which those of new pages are read."""
        urls, ids = self._urls, range(len(self._urls), len(self.replica))
        new = self.urls_of(ids)
        urls += [new[page_id] for page_id in ids]
        return Columns(urls, self.replica.cash(), self.replica.spent())


@contextmanager
def ledger_engine(rules: CrawlRules) -> Iterator[Engine]:
    """Lend a new ledger. It parses each distinct URL once: parsing one a thousand times is not the question."""
    with patch("opic.model.events.canonical_url", lru_cache(maxsize=None)(canonical_url)):
        yield LedgerEngine(rules)


@contextmanager
def store_engine(rules: CrawlRules) -> Iterator[Engine]:
    """Lend a new embedded store."""
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as data:
        server = EmbeddedServer(Path(data))
        server.start()
        try:
            yield StoreEngine(Shard.open(connect(server.url), given=asdict(rules)))
        finally:
            server.stop()


ENGINES: dict[str, Callable[[CrawlRules], AbstractContextManager[Engine]]] = {
    "ledger": ledger_engine,
    "store": store_engine,
}


# Exact PageRank.


def pagerank(graph: Graph, known: BoolArray, read: BoolArray) -> FloatArray:
    """Exact PageRank of the known graph by power iteration: read pages have their links, the others dangle.

    Args:
        known: (pages,); teleport and dangling mass go to these, uniformly. All that a read page links to is among them.
        read: (pages,); read since it became known.
    Returns:
        (pages,) float64 that sums to 1; 0 where a page is not known.
    """
    pages = len(graph)
    degrees = np.diff(graph.starts)
    gives = read & (degrees > 0)
    of_reader = np.repeat(gives, degrees)
    origins = np.repeat(np.arange(pages), degrees)[of_reader]
    walk = csr_array((1 / degrees[origins], (graph.targets[of_reader], origins)), shape=(pages, pages))
    uniform = known / known.sum()
    rank = uniform
    while True:
        after = DAMPING * (walk @ rank)
        after += (1 - after.sum()) * uniform  # Teleport and what dangles.
        if np.abs(after - rank).sum() < SOLVER_TOLERANCE:
            return np.asarray(after / after.sum(), np.float64)
        rank = after


def check_solver(graph: Graph) -> float:
    """Return the L1 distance of our PageRank of the whole graph from that of networkx; it has to be next to nothing."""
    everyone = np.ones(len(graph), bool)
    theirs_graph = nx.DiGraph()
    theirs_graph.add_nodes_from(range(len(graph)))
    theirs_graph.add_edges_from((page, int(to)) for page in range(len(graph)) for to in graph.links_of(page))
    theirs = nx.pagerank(theirs_graph, alpha=DAMPING, tol=1e-15, max_iter=1_000)
    distance = float(
        np.abs(pagerank(graph, everyone, everyone) - np.array([theirs[i] for i in everyone.nonzero()[0]])).sum()
    )
    if distance > 1e-9:
        raise SystemExit(f"our PageRank of {graph.name} is {distance:.1e} from that of networkx: mend the solver first")
    return distance


# The crawl.


@dataclass(frozen=True, slots=True)
class Point:
    """What one crawl shows at one moment."""

    workload: str
    choice: int
    reads_per_page: float
    reads: int
    known: float  # Share of the graph's pages.
    reachable: float  # Share that links lead to from the seeds.
    l1: float
    bound: float
    tau: float  # Kendall's, of the exact top 1,000.
    regrants: int
    conserved: bool
    seconds: float  # Since the crawl began, without what is measured here.

    @property
    def bound_holds(self) -> bool:
        """True when the error is within its bound, but for the floats of the comparison itself."""
        return self.l1 <= self.bound + 1e-9


def crawl(graph: Graph, engine: Engine, rules: CrawlRules, choice: int) -> Iterator[Point]:
    """Crawl a graph greedily from random seeds and look at the estimate on the way."""
    seeds = graph.seed_pages(SEED_PAGES, choice)
    reachable = reachable_share(graph, seeds)
    node_of_url = {url: node for node, url in enumerate(graph.urls)}
    nodes: list[int] = []  # Page id -> node of the graph.
    read = np.zeros(len(graph), bool)
    encoded: dict[int, bytes] = {}
    reads, begun = 0, time.perf_counter()

    def event(node: int) -> bytes:
        if node not in encoded:
            links = [graph.urls[target] for target in graph.links_of(node)]
            encoded[node] = encode_crawl_event(CrawlEvent(graph.urls[node], links))
        return encoded[node]

    def feed(values: Iterable[bytes], kind: str = "event") -> None:
        first = engine.next_offset(PARTITION)
        log = [Record(offset, FIRST_READ_US + offset, value, kind) for offset, value in enumerate(values, first)]
        engine.apply(PARTITION, log)

    feed([encode_seeds([graph.urls[node] for node in seeds])], "seeds")
    for reads_per_page in READS_PER_PAGE:
        goal = round(reads_per_page * len(graph))
        while reads < goal:
            columns = engine.columns()
            nodes += [node_of_url[url] for url in columns.urls[len(nodes) :]]
            batch = [nodes[i] for i in greedy(columns.cash, goal - reads)]
            feed(map(event, batch))
            read[batch] = True
            reads += len(batch)
        paused = time.perf_counter()
        columns = engine.columns()
        nodes += [node_of_url[url] for url in columns.urls[len(nodes) :]]
        yield Point(
            workload=graph.name,
            choice=choice,
            reads_per_page=reads_per_page,
            reads=reads,
            known=len(nodes) / len(graph),
            reachable=reachable,
            **errors(graph, engine, rules, columns, np.array(nodes), read),
            bound=engine.books.error_bound(rules.minted, rules.q),
            regrants=(engine.books.credit - rules.grant) // (rules.grant * rules.regrant_ppm // MILLION),
            conserved=engine.audit().conserved,
            seconds=round(paused - begun, 1),
        )
        begun += time.perf_counter() - paused


def greedy(cash: IntArray, reads_max: int, batch_share: int = BATCH_SHARE) -> IntArray:
    """Choose the richest pages, one in `batch_share` of all that are known: the order the service suggests; ties by id.

    While a batch exceeds a tenth of the known pages it is cut at half of its best page's cash.
    """
    size = min(max(1, len(cash) // batch_share), reads_max)
    least = np.partition(cash, -size)[-size]
    rich = np.flatnonzero(cash >= least)
    best = rich[np.argsort(-cash[rich], kind="stable")][:size]
    return best[2 * cash[best] >= cash[best[0]]] if 10 * size > len(cash) else best


def errors(
    graph: Graph, engine: Engine, rules: CrawlRules, columns: Columns, nodes: IntArray, read: BoolArray
) -> dict[str, float]:
    """Compare the estimate with the exact answer.

    Args:
        nodes: (known pages,); the graph's node of each page, in the order of the columns.
        read: (pages of the graph,).
    """
    known = np.zeros(len(graph), bool)
    known[nodes] = True
    exact = pagerank(graph, known, read)
    importance = np.zeros(len(graph))
    importance[nodes] = (columns.history + columns.cash) / engine.books.importance_total(rules.minted)
    # Twins of the graph differ by the solver's last digits only; they are ties, not an order to be found.
    top = np.argsort(-exact, kind="stable")[: min(TOP_PAGES, len(nodes))]
    tau = kendalltau(np.round(exact[top] / exact[top[0]], 9), importance[top]).statistic
    return {"l1": float(np.abs(importance - exact).sum()), "tau": float(tau)}


def reachable_share(graph: Graph, seeds: Iterable[int]) -> float:
    """Return the share of the pages that a crawl from these seeds can find."""
    walk = csr_array((np.ones(len(graph.targets)), graph.targets, graph.starts), shape=(len(graph), len(graph)))
    found = [breadth_first_order(walk, seed, return_predecessors=False) for seed in seeds]
    return len(np.unique(np.concatenate(found))) / len(graph)


# The report.


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure beside its row's."""

    workload: str
    figure: str
    reads_per_page: float
    row: float
    median: float
    each: list[float]
    passed: bool


def cells(points: Sequence[Point]) -> list[Cell]:
    """Hold the figures against their rows: the median of the choices, and each choice."""
    out = []
    for name, row in ROWS.items():
        for figure, of_row in (("l1", row.l1), ("known", row.known)):
            for reads_per_page, value in of_row.items():
                each = [getattr(p, figure) for p in points if p.workload == name and p.reads_per_page == reads_per_page]
                if each:
                    passed = max(each) <= ALLOWED * value
                    if figure == "known":
                        passed = min(each) - KNOWN_ALLOWED <= value <= max(each) + KNOWN_ALLOWED
                    out.append(Cell(name, figure, reads_per_page, value, statistics.median(each), each, passed))
    return out


def print_point(point: Point) -> None:
    """Print one line of the table."""
    remarks = ("" if point.bound_holds else " BOUND BROKEN") + ("" if point.conserved else " NOT CONSERVED")
    print(
        f"{point.workload:<18} {point.choice:>6} {point.reads_per_page:>5} {point.known:>6.1%} {point.reachable:>6.1%} "
        f"{point.l1:>9.5f} {point.bound:>8.4f} {point.bound / point.l1:>8.1f} {point.tau:>6.3f} "
        f"{point.regrants:>8,} {point.seconds:>7.1f}{remarks}",
        flush=True,
    )


def print_cells(found: Sequence[Cell]) -> None:
    """Print the comparison with the rows."""
    print(f"\n{'set':<18} {'figure':<6} {'reads':>5} {'row':>7} {'median':>8}  each choice")
    for cell in found:
        each = " ".join(f"{value:.4f}" for value in cell.each)
        print(
            f"{cell.workload:<18} {cell.figure:<6} {cell.reads_per_page:>4}N {cell.row:>7.3f} {cell.median:>8.4f}  "
            f"{each}  {'PASS' if cell.passed else 'FAIL'}"
        )


def main() -> int:
    """Run the crawls, print the tables, write the JSON."""
    parser = argparse.ArgumentParser(description="Accuracy of the estimate in a crawl that discovers its graph.")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="ledger")
    parser.add_argument("--data", type=Path, help="directory with the graphs")
    parser.add_argument("--sets", default="hollins,wikispeedia", help="comma-separated: " + ", ".join(LOADERS))
    parser.add_argument("--choices", type=int, default=CHOICES, help="choices of the seed pages")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()

    rules = CrawlRules(inflow=False)
    solver_distance: float | None = None
    try:
        solver_distance = check_solver(load("hollins", args.data))
        print(f"exact PageRank of hollins: {solver_distance:.1e} in L1 from networkx\n")
    except NoGraph as reason:
        print(f"solver not checked against networkx: {reason}")

    points: list[Point] = []
    print(
        f"{'set':<18} {'choice':>6} {'reads':>5} {'known':>6} {'reach':>6} {'L1':>9} {'bound':>8} {'bound/L1':>8} "
        f"{'tau':>6} {'regrants':>8} {'s':>7}"
    )
    for name in args.sets.split(","):
        try:
            graph = load(name, args.data)
        except NoGraph as reason:
            print(f"skipped {reason}")
            continue
        for choice in range(args.choices):
            with ENGINES[args.engine](rules) as engine:
                for point in crawl(graph, engine, rules, choice):
                    print_point(point)
                    points.append(point)

    found = cells(points)
    print_cells(found)
    answer = {
        "rules": asdict(rules),
        "networkx_l1": solver_distance,
        "points": [asdict(point) | {"bound_holds": point.bound_holds} for point in points],
        "cells": [asdict(cell) for cell in found],
    }
    write_result("accuracy", answer, args.result)
    broken = [point for point in points if not (point.bound_holds and point.conserved)]
    print(
        f"\n{len(points)} points, {len(broken)} broken; {sum(not c.passed for c in found)} of {len(found)} cells FAIL"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
