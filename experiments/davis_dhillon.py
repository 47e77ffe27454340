"""Tables 1 and 2 of Davis and Dhillon (2006): how near crawls of sites and topics come to the global PageRank.

Beside the paper's algorithms, the combination with a service that has read 25, 50 or 75 % of the graph, at random,
popular pages first, or breadth-first, and that keeps links or not, on the pages that SC-Select fetches. "alone" is the
service's importance of the local pages without a crawl. "SC, focused start" begins with pages that a crawl of the
domain has fetched in vain, as section 8 proposes. The pages are renumbered at random in each run: that is how ties
between candidates are broken.
"""

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from experiments.algorithms.comparison import Distance, distance
from experiments.algorithms.global_pagerank import Iteration, Select, find_global_pagerank
from experiments.opic_streams import ORDERS, READS, RecordedService, known_by_links, read_by_service
from experiments.recorded_graphs import LocalDomain, RecordedGraph
from experiments.skeleton import DAVIS_DHILLON, Axes, Experiment, Row, Run, keys, mean
from opic.arrays import Float64s, Int64s
from opic.graph.crawled import CrawledGraph, CrawledLinks
from opic.graph.page_selection import outlink_counts, pf_scores, sc_scores
from opic.graph.pagerank import pagerank
from opic.local.combination import combined_estimate

Estimate = Callable[[Iteration], Float64s]  # Of the local pages.

COVERAGES: Final = (0.25, 0.5, 0.75)
ALONE: Final = "alone "
FOCUSED: Final = "SC, focused start"
FOCUSED_FROM: Final = 5  # Pages of the domain with which the focused crawl begins.
KEPT: Final = ", links kept"
HELD_OUT: Final = ", held out"  # After a graph's name: those of its domains on which nothing was chosen.
SEEN_DOMAINS: Final = 4  # Of a large graph: the largest ones, on which choices were checked. All others are held out.
RUNS: Final = 5  # With different ties and random choices.
LARGE_PAGES: Final = 50_000  # A larger graph is run once, and only with a service that keeps links.
RATIO_MIN: Final = 1e-6  # In geometric means: less than the threshold of PageRank can tell.
WORSE_THAN_BEST: Final = 1.1
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
    reads        reads of the service for each of its pages
    """

    graphs: Sequence[str]
    iterations: int
    budget: float
    pages_min: int
    domains_max: int
    reads: int = READS
    coverages: Sequence[float] = COVERAGES


SITES: Final = TablePlan(("hollins", "gr0-california", "uk-2007-05-100000"), 50, 2.0, 30, 8)
TOPICS: Final = TablePlan(("wikispeedia",), 25, 1.0, 30, 15)
# Domain, algorithm, final L1 and Kendall's tau as the paper prints them: table 1 averages five sites.
PAPER: Final = {
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
NOTES: Final = (
    "The paper's crawls, 4.7 million pages of .edu and 4.4 million on politics, were not published; these graphs have"
    " 4,604 to 100,000 pages, and most of the domains some hundred pages instead of 10,626 to 90,811.",
    "In a small graph the pages fetched are a large part of all pages, so that all algorithms soon fetch the same ones"
    " and differ less.",
    "Sites of the paper are whole web servers. Here they are directories of a server, hosts with the pages that answer"
    " one query, or ranges of pages in the order of their URLs. More of their rank comes from outside: L1 before the"
    " first fetch is .05 to .15 in the paper.",
    "Topics of the paper are pages up to three links from a category, here the articles of an encyclopedia's category.",
    "The paper breaks ties in a way that it does not tell; here ties are broken at random in each run.",
    "links kept: a service that keeps links, whose answers are exact for the pages that it has read; otherwise the "
    "in-flow is measured by OPIC, three reads a page.",
    "The combination selects as `opic local-rank --select combined`, but without the service's suggestions.",
    "SC, focused start: half of the outside pages are the first ones off the domain that a focused crawl of it fetched "
    "(section 8 of the paper), the others are selected by SC.",
)


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


class RenumberedCrawl:
    """A crawl of a recorded graph whose pages are numbered anew at random."""

    def __init__(self, graph: RecordedGraph, domain: LocalDomain, rng: np.random.Generator) -> None:
        """Fetch the domain's pages."""
        self._graph, self._number = graph, rng.permutation(len(graph))
        self._page = np.argsort(self._number)
        numbers = self._number[domain.pages].tolist()
        self.links, self._local = CrawledLinks(numbers, list(map(self._links_of, domain.pages.tolist()))), set(numbers)

    def fetch(self, numbers: Sequence[int]) -> dict[int, Int64s]:
        """Return the links of pages."""
        return {number: self._links_of(int(self._page[number])) for number in numbers}

    def focused(self, count: int) -> dict[int, Int64s]:
        """Return the first pages outside the domain that a focused crawl of it fetches, with their links.

        It fetches next the page that most of the domain's pages link to, of those fetched so far, and does not follow
        the links of other pages.
        """
        queue = [(0, number) for number in sorted(self._local)[:FOCUSED_FROM]]
        seen, linking, outside = set[int](), Counter[int](), dict[int, Int64s]()
        while queue and len(outside) < count:
            _, number = heapq.heappop(queue)
            if number in seen:
                continue
            seen.add(number)
            links = self._links_of(int(self._page[number]))
            if number not in self._local:
                outside[number] = links
                continue
            for to in links.tolist():
                linking[to] += 1
                heapq.heappush(queue, (-linking[to], to))
        return outside

    def pages(self, numbers: Int64s) -> Int64s:
        """Return the pages that have these numbers."""
        return self._page[numbers]

    def _links_of(self, page: int) -> Int64s:
        targets: Int64s = self._number[self._graph.links_of(page)]
        return targets


def inlink_counts(graph: CrawledGraph, _: Float64s) -> Float64s:
    """Score candidates by the number of fetched pages that link to them, local or not."""
    counts: Float64s = graph.outward.sum(axis=0)
    return counts


def selectors(rng: np.random.Generator) -> dict[str, Select]:
    """Return the page-selection algorithms by name."""
    return {
        "SC": sc_scores,
        "PF": pf_scores,
        "OutlinkCount": lambda graph, _: outlink_counts(graph),
        "InlinkCount": inlink_counts,
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
    curves: dict[str, Curve] = {}
    for name, select in selectors(np.random.default_rng(seed)).items():
        crawl = RenumberedCrawl(graph, domain, np.random.default_rng(seed))
        estimates: dict[str, Estimate] = {name: lambda state: state.estimate}
        if select is sc_scores:
            estimates |= {view: _combined(crawl, service, domain) for view, service in views.items()}
        curves |= _curves(crawl, select, estimates, goal, plan)
    curves[FOCUSED] = _focused_start(graph, domain, plan, goal, seed)
    alone = {ALONE + view: distance(service.alone(domain), goal) for view, service in views.items()}
    return curves | {name: Curve([CurveSample(1.0, error)]) for name, error in alone.items()}


def _focused_start(graph: RecordedGraph, domain: LocalDomain, plan: TablePlan, goal: Float64s, seed: int) -> Curve:
    """Run SC with half of the outside pages; the other half a focused crawl of the domain has fetched in vain."""
    crawl, half = RenumberedCrawl(graph, domain, np.random.default_rng(seed)), plan.iterations // 2
    for page, links in crawl.focused(round(plan.budget * len(domain.pages) * (1 - half / plan.iterations))).items():
        crawl.links.add(page, links)
    rest = replace(plan, iterations=half, budget=plan.budget * half / plan.iterations)
    curve = _curves(crawl, sc_scores, {FOCUSED: lambda state: state.estimate}, goal, rest)[FOCUSED]
    return replace(curve, points=curve.points[-1:])


def _combined(crawl: RenumberedCrawl, view: RecordedService, domain: LocalDomain) -> Estimate:
    def estimate(state: Iteration) -> Float64s:
        asked = view.knowledge(domain, crawl.pages(state.graph.fetched))
        return combined_estimate(state.graph, state.ranks, asked).importance

    return estimate


def _curves(
    crawl: RenumberedCrawl,
    select: Select,
    estimates: Mapping[str, Estimate],
    goal: Float64s,
    plan: TablePlan,
) -> dict[str, Curve]:
    """Crawl once, with some estimates by name; the time of each is that of all iterations, each with that estimate."""
    curves = {name: Curve([]) for name in estimates}
    count = max(1, round(plan.budget * crawl.links.local / plan.iterations))
    started = time.perf_counter()
    rounds = find_global_pagerank(crawl.links, crawl.fetch, select, iterations=plan.iterations, count=count)
    for at, state in _shown(rounds, plan.iterations):
        crawled = time.perf_counter() - started
        for name, estimate in estimates.items():
            curve, began = curves[name], time.perf_counter()
            found = estimate(state)
            curve.seconds += crawled + (time.perf_counter() - began) * (at - curve.iterations)
            curve.iterations = at
            curve.points.append(CurveSample(at / plan.iterations, distance(found, goal)))
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
            seen = pages[: round(share * len(graph))]
            if len(graph) <= LARGE_PAGES:
                found[f"{share:.0%} {order}"] = read_by_service(graph, seen, plan.reads)
            found[f"{share:.0%} {order}{KEPT}"] = known_by_links(graph, seen)
    return found


def rows_of(run: Run, plan: TablePlan) -> Iterator[list[object]]:
    """Run a table's algorithms on all its domains."""
    if run.quick:
        plan = replace(plan, iterations=5, domains_max=2, reads=2, coverages=(0.5,))
    graphs = run.graphs(plan.graphs)
    run.note(*NOTES, _run_note(graphs, run))
    for graph in run.steps(graphs, lambda graph: graph.name):
        large = len(graph) > LARGE_PAGES
        if large and run.number:
            continue
        truth = pagerank(graph.links, threshold=TRUTH_THRESHOLD)
        views, curves = views_of(graph, plan, run.number), list[dict[str, Curve]]()
        domains = graph.domains(plan.pages_min, plan.domains_max)
        for domain in run.steps(domains, lambda domain: domain.name):
            curves.append(run_domain(graph, truth, domain, plan, views, run.number))
            held_out = HELD_OUT if large and len(curves) > SEEN_DOMAINS else ""
            before, about = curves[-1]["SC"].points[0].error, [graph.name + held_out, domain.name, len(domain.pages)]
            yield [*about, "none", before.l1, None, None, before.linf, before.tau, 0.0]
            for name, curve in curves[-1].items():
                end = curve.points[-1].error
                seconds = curve.seconds / max(curve.iterations, 1)
                yield [*about, name, end.l1, None, None, end.linf, end.tau, seconds]
        _draw(run, graph.name, curves)


def _draw(run: Run, title: str, curves: Sequence[dict[str, Curve]]) -> None:
    """Draw mean L1 against pages fetched per local page; streams of one coverage are averaged."""
    lines: dict[str, dict[float, list[float]]] = {}
    for name, curve in (item for of in curves for item in of.items() if not item[0].startswith(ALONE)):
        seen = f"{name.split()[0]} seen{KEPT if name.endswith(KEPT) else ''}"
        line = lines.setdefault(seen if "%" in name else name, {})
        for point in curve.points:
            line.setdefault(point.share, []).append(point.error.l1)
    for name, line in lines.items():
        most = max(map(len, line.values()))  # A mean over some of the domains is of other domains: it would jump.
        run.draw(title, name, [(x, mean(ys)) for x, ys in sorted(line.items()) if len(ys) == most])


def compared(run: Run, rows: list[Row]) -> list[Row]:
    """Compare L1 with others, and add a row for each graph and algorithm over all its domains.

    `of_sc` is L1 over that of SC, `of_best` L1 over that of SC or of the service alone, whichever is less; in the rows
    over all domains they are geometric means over the domains. Graphs are never put together: constants of the
    combination were chosen on some of them.
    """
    l1 = {(row["graph"], row["domain"], row["algorithm"]): row["l1"] for row in rows}
    overall: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        domain, name = (row["graph"], row["domain"]), row["algorithm"]
        sc = l1[*domain, "SC"]
        row["of_sc"], row["of_best"] = (
            _ratio(row["l1"], base) for base in (sc, min(sc, l1.get((*domain, ALONE + name), sc)))
        )
        overall.setdefault((row["graph"], name), []).append(row)
    domains, summaries = list(rows), list[Row]()
    for (graph, name), of in overall.items():
        over: Row = {"graph": graph, "domain": f"all {len(of)}", "pages": "", "algorithm": name, "runs": ""}
        for column in ("l1", "of_sc", "of_best", "linf", "tau", "seconds_an_iteration"):
            values = np.array([row[column] for row in of])
            over[column] = _geometric_mean(values) if column.startswith("of") else float(values.mean())
        summaries.append(over)
    for graph in dict.fromkeys(row["graph"] for row in rows):
        run.note(*notes_of([row for row in domains if row["graph"] == graph]))
    return [*rows, *summaries]


def _ratio(l1: float, base: float) -> float:
    return l1 / base if base else 1.0


def _geometric_mean(values: Float64s) -> float:
    return float(np.exp(np.log(np.maximum(values, RATIO_MIN)).mean()))


def _run_note(graphs: Sequence[RecordedGraph], run: Run) -> str:
    large = [graph.name for graph in graphs if len(graph) > LARGE_PAGES]
    of_large = f"; on {', '.join(large)}, 1, and only a service that keeps links, to save time" if large else ""
    return f"Runs of each domain: {run.count}{of_large}."


def notes_of(rows: Sequence[Row]) -> list[str]:
    """Return sentences on which algorithm is best on a graph, and on the combination, from the rows of its domains."""
    graph, of_domain = rows[0]["graph"], dict[str, dict[str, tuple[float, float]]]()
    for row in rows:
        of_domain.setdefault(row["domain"], {})[row["algorithm"]] = row["of_sc"], row["of_best"]
    fetching = ("SC", "PF", "OutlinkCount", "InlinkCount", "Random")
    best = Counter(min(fetching, key=lambda name: figures[name][0]) for figures in of_domain.values())
    wins = ", ".join(f"{name} on {best[name]}" for name in fetching)
    means = {name: _geometric_mean(np.array([of[name][0] for of in of_domain.values()])) for name in fetching}
    behind = [name for name in fetching if means[name] < 1]
    worse = sum(figures["SC"][0] > figures["none"][0] for figures in of_domain.values())
    tuned = "nothing was chosen on them" if graph.endswith(HELD_OUT) else "the combination was tuned on it"
    notes = [
        f"{graph} ({tuned}): least L1 of the algorithms that fetch, by domain: {wins} of {len(of_domain)}. In the "
        f"geometric mean, better than SC: {', '.join(behind) or 'none'}. SC is worse than fetching nothing on {worse}.",
    ]
    views = [name for name in _algorithms(rows) if "%" in name and not name.startswith(ALONE)]
    for coverage, kept in dict.fromkeys((name.split()[0], name.endswith(KEPT)) for name in views):
        names = [name for name in views if (name.split()[0], name.endswith(KEPT)) == (coverage, kept)]
        cells = {(f[name][1], domain, name) for domain, f in of_domain.items() for name in names}
        mean_of_sc = _geometric_mean(np.array([f[name][0] for f in of_domain.values() for name in names]))
        ratio, domain, name = max(cells)
        over = sum(cell[0] > WORSE_THAN_BEST for cell in cells)
        notes.append(
            f"{graph}, the combination with {coverage} coverage{KEPT if kept else ''}: L1 is {mean_of_sc:.3f} of SC's "
            f"in the geometric mean over domains and orders; over {WORSE_THAN_BEST} times the better of SC and the "
            f"service alone in {over} of {len(cells)} cases, at most {ratio:.2f} times ({domain}, {name})."
        )
    return notes


def _algorithms(rows: Sequence[Row]) -> list[str]:
    """Return the algorithms of rows, each once."""
    return list(dict.fromkeys(row["algorithm"] for row in rows))


TABLE1, TABLE2 = (
    Experiment(
        name,
        title,
        DAVIS_DHILLON,
        {
            **keys("graph", "domain", "pages", "algorithm"),
            **dict.fromkeys(("l1", "of_sc", "of_best", "linf", "tau", "seconds_an_iteration")),
        },
        partial(rows_of, plan=plan),
        paper=[dict(zip(("domain", "algorithm", "l1", "tau"), row, strict=True)) for row in PAPER[name]],
        axes=Axes("share of the outside pages fetched", "L1 error"),
        printed={row[1]: [(1.0, row[2])] for row in PAPER[name][:4]},
        runs=RUNS,
        finish=compared,
    )
    for name, title, plan in (
        ("table1", "sites: error of the estimated global PageRank by page-selection algorithm", SITES),
        ("table2", "topics: the same, with half as many outside pages fetched", TOPICS),
    )
)
