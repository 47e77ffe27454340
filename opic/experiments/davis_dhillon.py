"""Tables 1 and 2 of Davis and Dhillon (2006): how near crawls of sites and topics come to the global PageRank.

Beside the paper's algorithms, the combination with a service that has read 25, 50 or 75 % of the graph, at random,
popular pages first, or breadth-first. For the combination the pages are fetched as SC-Select chooses them, so that it
differs from the paper's best only in what it makes of them. The pages are renumbered at random in each run: that is how
ties between candidates are broken.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from opic.experiments.opic_streams import ORDERS, READS, RecordedService, read_by_service
from opic.experiments.recorded_graphs import LocalDomain, NoGraph, RecordedGraph, load_graph
from opic.experiments.result import Panel, Progress, Result
from opic.graph.comparison import Distance, distance
from opic.graph.crawled import CrawledLinks, Float64s, Int64s
from opic.graph.global_pagerank import Iteration, Select, find_global_pagerank
from opic.graph.page_selection import inlink_counts, outlink_counts, pf_scores, sc_scores
from opic.graph.pagerank import pagerank
from opic.local.combination import combined_estimate

COVERAGES: Final = (0.25, 0.5, 0.75)
COLUMNS: Final = ("graph", "domain", "pages", "algorithm", "l1", "of_sc", "linf", "tau", "seconds_an_iteration")
STREAM_PAGES_MAX: Final = 50_000  # On a larger graph, all runs share the streams of the first.
RATIO_MIN: Final = 1e-6  # In geometric means: less than the threshold of PageRank can tell.
POINTS: Final = 10  # Points of a curve: the state after each tenth of the iterations.
TRUTH_THRESHOLD: Final = 1e-12


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The settings of a table.

    graphs       recorded graphs that it uses
    iterations   T
    budget       outside pages fetched, for each local page
    pages_min    least number of pages of a domain
    domains_max  number of domains of each graph
    runs         with different ties and random choices
    reads        reads of the service for each of its pages
    """

    graphs: Sequence[str]
    iterations: int
    budget: float
    pages_min: int
    domains_max: int
    runs: int = 5
    reads: int = READS
    coverages: Sequence[float] = COVERAGES


SITES: Final = TablePlan(("hollins", "gr0-california", "uk-2007-05-100000"), 50, 2.0, 30, 8)
TOPICS: Final = TablePlan(("wikispeedia",), 25, 1.0, 30, 15)
# Domain, algorithm, final L1 and Kendall's tau as the paper prints them: table 1 averages five sites.
_PAPER: Final = {
    "table1": (
        ("five computer science sites", "SC", 0.0384, 0.9257),
        ("five computer science sites", "PF", 0.0470, 0.8946),
        ("five computer science sites", "OutlinkCount", 0.0419, 0.9053),
        ("five computer science sites", "Random", 0.0407, 0.9086),
    ),
    "table2": (
        ("all politics", "SC", 0.1253, 0.8671),
        ("all politics", "PF", 0.1446, 0.8518),
        ("all politics", "OutlinkCount", 0.1470, 0.8642),
        ("all politics", "Random", 0.2055, 0.8271),
        ("conservatism", "SC", 0.0496, 0.9158),
        ("conservatism", "PF", 0.0554, 0.9028),
        ("conservatism", "OutlinkCount", 0.0602, 0.9144),
        ("conservatism", "Random", 0.1197, 0.8843),
        ("liberalism", "SC", 0.0622, 0.8848),
        ("liberalism", "PF", 0.0799, 0.8669),
        ("liberalism", "OutlinkCount", 0.0763, 0.8844),
        ("liberalism", "Random", 0.1127, 0.8372),
        ("socialism", "SC", 0.04318, 0.9604),
        ("socialism", "PF", 0.0450, 0.9559),
        ("socialism", "OutlinkCount", 0.04282, 0.9591),
        ("socialism", "Random", 0.0631, 0.9350),
    ),
}
PAPER: Final = {
    table: [dict(zip(("domain", "algorithm", "l1", "tau"), row, strict=True)) for row in rows]
    for table, rows in _PAPER.items()
}


@dataclass(frozen=True, slots=True)
class CurveSample:
    """One point of a curve: the error after a share of the iterations."""

    share: float
    error: Distance


@dataclass(slots=True)
class Curve:
    """One run of an algorithm on a domain."""

    points: list[CurveSample]
    seconds: float = 0.0  # Of all its iterations.
    iterations: int = 0


@dataclass(frozen=True, slots=True)
class DomainRun:
    """One run of all algorithms on a domain."""

    graph: str
    domain: LocalDomain
    curves: dict[str, Curve]


class RenumberedCrawl:
    """A crawl of a recorded graph whose pages are numbered anew at random."""

    def __init__(self, graph: RecordedGraph, domain: LocalDomain, rng: np.random.Generator) -> None:
        """Fetch the domain's pages."""
        self._graph, self._number = graph, rng.permutation(len(graph))
        self._page = np.argsort(self._number)
        self.links = CrawledLinks(
            self._number[domain.pages].tolist(), [self._links_of(p) for p in domain.pages.tolist()]
        )

    def fetch(self, numbers: Sequence[int]) -> dict[int, Int64s]:
        """Return the links of pages."""
        return {number: self._links_of(int(self._page[number])) for number in numbers}

    def pages(self, numbers: Int64s) -> Int64s:
        """Return the pages that have these numbers."""
        return self._page[numbers]

    def _links_of(self, page: int) -> Int64s:
        targets: Int64s = self._number[self._graph.links[[page]].indices]
        return targets


def selectors(rng: np.random.Generator) -> dict[str, Select]:
    """Return the page-selection algorithms by name."""
    return {
        "SC": sc_scores,
        "PF": pf_scores,
        "OutlinkCount": lambda graph, _: outlink_counts(graph),
        "InlinkCount": lambda graph, _: inlink_counts(graph),
        "Random": lambda graph, _: rng.random(len(graph.candidates)),
    }


def run_domain(  # noqa: PLR0917 - what one run is made of
    graph: RecordedGraph,
    truth: Float64s,
    domain: LocalDomain,
    plan: TablePlan,
    views: dict[str, RecordedService],
    seed: int,
) -> dict[str, Curve]:
    """Run all algorithms once on a domain.

    Args:
        graph: the whole graph.
        truth: (N,) its PageRank.
        domain: the pages that are crawled first.
        plan: the settings.
        views: what services say that have read parts of the graph, by name.
        seed: of the numbering of pages and of Random's choices.
    """
    goal = truth[domain.pages]
    count = max(1, round(plan.budget * len(domain.pages) / plan.iterations))
    curves: dict[str, Curve] = {}
    for name, select in selectors(np.random.default_rng(seed)).items():
        crawl = RenumberedCrawl(graph, domain, np.random.default_rng(seed))
        curve = curves[name] = Curve([])
        combined = {view: curves.setdefault(view, Curve([])) for view in views} if name == "SC" else {}
        started = time.perf_counter()
        rounds = find_global_pagerank(crawl.links, crawl.fetch, select, iterations=plan.iterations, count=count)
        for at, state in _shown(rounds, plan.iterations):
            curve.seconds += time.perf_counter() - started
            curve.iterations = at
            curve.points.append(CurveSample(at / plan.iterations, distance(state.estimate, goal)))
            for view, of_view in combined.items():
                asked = views[view].knowledge(domain, crawl.pages(state.graph.fetched))
                started = time.perf_counter()
                estimate = combined_estimate(state.graph, state.ranks, asked).importance
                took = time.perf_counter() - started  # It would be made in each iteration.
                of_view.seconds, of_view.iterations = curve.seconds + took * at, at
                of_view.points.append(CurveSample(at / plan.iterations, distance(estimate, goal)))
            started = time.perf_counter()
    return curves


def _shown(rounds: Iterator[Iteration], iterations: int) -> Iterator[tuple[int, Iteration]]:
    """Yield the states that a curve has points of: the first, each tenth part, the last."""
    step = max(1, iterations // POINTS)
    last: tuple[int, Iteration] | None = None
    for number, state in enumerate(rounds):
        last = number, state
        if number % step == 0:
            yield last
            last = None
    if last is not None:
        yield last


def views_of(graph: RecordedGraph, plan: TablePlan, seed: int) -> dict[str, RecordedService]:
    """Return what services say that have read a part of the graph, for each order and coverage."""
    found = {}
    for order, pages_in in ORDERS.items():
        pages = pages_in(graph, np.random.default_rng(seed))
        for share in plan.coverages:
            found[f"{share:.0%} {order}"] = read_by_service(graph, pages[: round(share * len(graph))], plan.reads)
    return found


def quick_plan(plan: TablePlan) -> TablePlan:
    """Return a plan of two domains of each graph, few iterations and one run."""
    return replace(plan, iterations=5, domains_max=2, runs=1, reads=2, coverages=(0.5,))


def run_table(name: str, plan: TablePlan, data: Path | None, progress: Progress) -> Result:
    """Run a table's algorithms on all its domains.

    Raises:
        NoGraph: none of its recorded graphs is here.
    """
    started, runs = time.perf_counter(), list[DomainRun]()
    graphs, missing = _loaded(plan, data)
    domains = [(graph, graph.domains(plan.pages_min, plan.domains_max)) for graph in graphs]
    total, done = plan.runs * sum(len(found) for _, found in domains), 0
    for graph, found in domains:
        truth = pagerank(graph.links, threshold=TRUTH_THRESHOLD)
        streams = plan.runs if len(graph) <= STREAM_PAGES_MAX else 1
        views: dict[str, RecordedService] = {}
        for seed in range(plan.runs):
            if seed < streams:
                progress(done, total, f"{graph.name}: streams of run {seed + 1}")
                views = views_of(graph, plan, seed)
            for domain in found:
                progress(done, total, f"{graph.name}: {domain.name}, run {seed + 1}")
                runs.append(DomainRun(graph.name, domain, run_domain(graph, truth, domain, plan, views, seed)))
                done += 1
    progress(done, total, "")
    return Result(name, PAPER[name], COLUMNS, rows_of(runs), time.perf_counter() - started, panels_of(runs), missing)


def _loaded(plan: TablePlan, data: Path | None) -> tuple[list[RecordedGraph], list[str]]:
    graphs, missing = list[RecordedGraph](), list[str]()
    for name in plan.graphs:
        try:
            graphs.append(load_graph(name, data))
        except NoGraph as error:
            missing.append(str(error))
    if not graphs:
        raise NoGraph("; ".join(missing))
    return graphs, missing


def rows_of(runs: Sequence[DomainRun]) -> list[list[object]]:
    """Return a row for each domain and algorithm, means over the runs, then one for each algorithm over all domains.

    In the rows over all domains, `of_sc` is the geometric mean over the domains.
    """
    by_domain: dict[tuple[str, str], list[DomainRun]] = {}
    for run in runs:
        by_domain.setdefault((run.graph, run.domain.name), []).append(run)
    rows: list[list[object]] = []
    overall: dict[str, list[tuple[float, ...]]] = {}
    for (graph, domain), of_domain in by_domain.items():
        figures = {name: _means(of_domain, name) for name in ("none", *of_domain[0].curves)}
        for name, (l1, linf, tau, seconds) in figures.items():
            of_sc = l1 / figures["SC"][0] if figures["SC"][0] else 1.0
            overall.setdefault(name, []).append((l1, of_sc, linf, tau, seconds))
            rows.append([graph, domain, len(of_domain[0].domain.pages), name, l1, of_sc, linf, tau, seconds])
    for name, figures_of in overall.items():
        table = np.array(figures_of)
        l1, _, linf, tau, seconds = table.mean(axis=0).tolist()
        rows.append(["all", f"{len(table)} domains", "", name, l1, _geometric_mean(table[:, 1]), linf, tau, seconds])
    return rows


def _means(runs: Sequence[DomainRun], name: str) -> tuple[float, float, float, float]:
    """Return mean L1, L-infinity, tau and seconds an iteration; "none" is the state before the first iteration."""
    if name == "none":
        errors, seconds = [run.curves["SC"].points[0].error for run in runs], 0.0
    else:
        errors = [run.curves[name].points[-1].error for run in runs]
        seconds = float(np.mean([run.curves[name].seconds / max(run.curves[name].iterations, 1) for run in runs]))
    l1, linf, tau = np.mean([(error.l1, error.linf, error.tau) for error in errors], axis=0).tolist()
    return l1, linf, tau, seconds


def _geometric_mean(values: Float64s) -> float:
    return float(np.exp(np.log(np.maximum(values, RATIO_MIN)).mean()))


def panels_of(runs: Sequence[DomainRun]) -> list[Panel]:
    """Return mean L1 against pages fetched per local page, a panel per graph; streams of one coverage are averaged."""
    panels = []
    for graph in dict.fromkeys(run.graph for run in runs):
        lines: dict[str, dict[float, list[float]]] = {}
        for run in (run for run in runs if run.graph == graph):
            for name, curve in run.curves.items():
                label = f"{name.split()[0]} seen" if "%" in name else name
                for point in curve.points:
                    lines.setdefault(label, {}).setdefault(point.share, []).append(point.error.l1)
        means = {name: [(x, float(np.mean(ys))) for x, ys in sorted(line.items())] for name, line in lines.items()}
        panels.append(Panel(graph, means, "share of the outside pages fetched", "L1 error"))
    return panels
