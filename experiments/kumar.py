"""The figures of Kumar, Lang, Marlow and Tomkins (2008): finding the pages most linked to, and keeping up with them.

Their graphs are not public. Figure 1 takes recorded graphs as they are, with the same share of target pages as theirs.
Figure 2 takes MathOverflow (who answered whom, by time), the history of the PEP site, and recorded graphs whose links
are given random times.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from experiments.algorithms.discovery import EXPANSIONS, POLICIES, DiscoveryCrawl, rank_performance
from experiments.algorithms.time_graph import TARGETS, WINDOW_S, TimeGraph, greatest
from experiments.recorded_graphs import RecordedGraph, available, load_graph
from experiments.recorded_time_graphs import DAY_S, mathoverflow, pep_history, with_random_times
from experiments.result import Progress, Result
from opic.cli.pictures import Panel
from opic.graph.crawled import Float64s, degrees

RUNS: Final = 5
POINTS: Final = 50  # Of a curve over time.
STATIC: Final = ("hollins", "gr0-california", "wikispeedia", "uk-2007-05-100000")
TARGET_SHARE: Final = 2_000 / 343_743  # The paper's K among its blogs.
TARGETS_MIN: Final = 50
STATIC_COLUMNS: Final = ("graph", "pages", "k", "algorithm", "crawled", "crawl", "rank")
MULTIPLES: Final = (1, 2, 5, 10, 20)  # Crawled pages, in multiples of k.
DYNAMIC: Final = ("Sample-U", "Crawl-AI", "Crawl-GAI")
DYNAMIC_COLUMNS: Final = (
    "graph", "pages", "k", "crawls", "runs", "expansion", "recrawl", "place",
    "crawl", "crawl_end", "discovery", "discovery_end", "lift_crawled", "lift_seen",
)  # fmt: skip
DRAWN: Final = (  # Of figure 2: what the paper's text compares.
    ("Crawl-GAI", "OR"), ("Crawl-AI", "OR"), ("Crawl-GAI", "U"), ("Crawl-GAI", "YRU"), ("Crawl-GAI", "LDU"),
    ("Sample-U", "U"), ("Crawl-GAI", "none"),
)  # fmt: skip
PAPER_STATIC: Final = (
    {"figure": "1-A", "says": "Crawl-GAI and Crawl-AI find targets faster than Sample-I, at least at the beginning"},
    {"figure": "1-A", "says": "Sample-I works better than the other sampling algorithms"},
    {"figure": "1-B", "says": "rank performance is lower, and its order nearly reversed: Crawl-GAI is the worst"},
)
PAPER_DYNAMIC: Final = (
    {"figure": "2-A", "says": "Crawl-GAI + OR performs well in crawl and discovery performance", "lift": ""},
    {"figure": "2-A", "says": "recrawling by yield and by link score is not better", "lift": ""},
    {"figure": "2-B", "says": "a page crawled by Crawl-GAI + OR is a target, relative to a random page", "lift": "50"},
    {
        "figure": "2-B",
        "says": "a page crawled or in the frontier is a target, relative to a random page",
        "lift": "> 20",
    },
)
STATIC_NOTES: Final = (
    "the paper's 343,743 blogs are not public: these are recorded graphs, with the same share of target pages, but at"
    f" least {TARGETS_MIN}; the paper prints curves only",
    f"means of {RUNS} runs, each from another page of the largest strongly connected part; `crawled` is in pages",
    "Sample-U is not defined in the paper; here it takes any page, each as likely as any other",
    "rank performance is of the k crawled pages with the most links seen to them",
)
DYNAMIC_NOTES: Final = (
    "the paper's 340,000 links of 24 days are not public; sx-mathoverflow has as many, over 6 years; the paper prints"
    " curves only, and does not say how many pages it crawls: here four for each person, then as many as links come,"
    " evenly in time; with so many, Sample-U has crawled everybody before long, and leads",
    "the dense graphs are recorded ones whose links come at random moments of 24 days, each for 7 days; one crawl for"
    " two pages; pep-history: a link is there while the page shows it, three crawls for a page",
    f"means of the runs in the column `runs`, over {POINTS} moments (crawl, discovery, lift_*) or at the end"
    " (*_end); `place` is among the 15 combinations by `crawl`, without `none`, which never recrawls",
    "in a week of sx-mathoverflow fewer than 500 people receive a link: the targets are all of them",
    "Sample-U is not defined in the paper; here it takes any page, also one that has no link yet",
)


def run_static(data: Path | None, progress: Progress, quick: bool) -> Result:
    """Run figure 1: crawl performance and rank performance on fixed graphs.

    Raises:
        NoGraph: none of the recorded graphs is here.
    """
    started, missing, rows = time.perf_counter(), list[str](), list[list[object]]()
    graphs = available({name: partial(load_graph, name, data) for name in STATIC}, missing)
    runs = 1 if quick else RUNS
    curves: dict[str, dict[str, list[StaticPoint]]] = {}
    for done, (name, graph) in enumerate(graphs.items()):
        curves[name] = {}
        for at, algorithm in enumerate(EXPANSIONS):
            progress(done * len(EXPANSIONS) + at, len(graphs) * len(EXPANSIONS), f"{name}: {algorithm}")
            points = curves[name][algorithm] = static_curve(graph, algorithm, runs)
            k = static_targets(graph)
            rows += [
                [name, len(graph), k, algorithm, point.crawled, round(point.crawl, 4), round(point.rank, 4)]
                for point in points
                if point.crawled in {k * multiple for multiple in MULTIPLES}
            ]
    panels = [
        Panel(
            f"{name}: {figure} performance",
            {algorithm: [(p.crawled, getattr(p, figure)) for p in points] for algorithm, points in found.items()},
            "pages crawled",
            f"share of the {static_targets(graphs[name])} target pages",
            y_scale="linear",
        )
        for name, found in list(curves.items())[-2:]
        for figure in ("crawl", "rank")
    ]
    seconds = time.perf_counter() - started
    return Result("kumar-fig1", PAPER_STATIC, STATIC_COLUMNS, rows, seconds, panels, missing, STATIC_NOTES)


@dataclass(frozen=True, slots=True)
class StaticPoint:
    """A point of the curves of figure 1, a mean of runs."""

    crawled: int
    crawl: float
    rank: float


def static_targets(graph: RecordedGraph) -> int:
    """Return k for a graph."""
    return max(TARGETS_MIN, round(len(graph) * TARGET_SHARE))


def static_curve(graph: RecordedGraph, algorithm: str, runs: int) -> list[StaticPoint]:
    """Crawl a graph, and measure after each half of k pages; until all pages are crawled, or 20 k."""
    inlinks, outlinks = graph.links.sum(axis=0).astype(np.int64), degrees(graph.links).astype(np.int64)
    k = static_targets(graph)
    targets = greatest(inlinks, k)
    _, part = connected_components(graph.links, connection="strong")
    sources = np.flatnonzero(part == np.bincount(part).argmax())
    bounds, ends = graph.links.indptr.tolist(), graph.links.indices
    found: dict[int, list[tuple[float, float]]] = {}
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        crawl = DiscoveryCrawl(EXPANSIONS[algorithm](inlinks, outlinks, rng), "none", rng)
        page: int | None = int(rng.choice(sources))
        while page is not None and len(crawl.crawled) < min(len(graph), MULTIPLES[-1] * k):
            links = range(bounds[page], bounds[page + 1])
            crawl.fetched(page, 0.0, links, ends[links.start : links.stop].tolist())
            count = len(crawl.crawled)
            if count % (k // 2) == 0:
                point = crawl.performance(targets).crawl, rank_performance(crawl.best(k), targets)
                found.setdefault(count, []).append(point)
            page = crawl.choose()
    return [
        StaticPoint(count, *np.mean(points, axis=0).tolist()) for count, points in found.items() if len(points) == runs
    ]


@dataclass(frozen=True, slots=True)
class DynamicPlan:
    """How a time graph is crawled in figure 2.

    load         returns the graph of a run
    k            number of target pages
    first_s      when the crawl starts, in seconds after the first link
    crawls       number of crawls, given the graph
    runs         with different random choices; fewer where there are many crawls
    """

    load: Callable[[Path | None, int], TimeGraph]
    k: int
    first_s: float
    crawls: Callable[[TimeGraph], int]
    runs: int = 3


def _half_the_pages(graph: TimeGraph) -> int:
    return graph.pages // 2


PLANS: Final[Mapping[str, DynamicPlan]] = {
    "sx-mathoverflow": DynamicPlan(lambda data, _: mathoverflow(data), TARGETS, WINDOW_S, lambda g: 4 * g.pages),
    "wikispeedia": DynamicPlan(
        lambda data, run: with_random_times("wikispeedia", data, run), TARGETS, WINDOW_S, _half_the_pages
    ),
    "uk-2007-05-100000": DynamicPlan(
        lambda data, run: with_random_times("uk-2007-05-100000", data, run), TARGETS, WINDOW_S, _half_the_pages, runs=1
    ),
    "hollins": DynamicPlan(lambda data, run: with_random_times("hollins", data, run), 100, WINDOW_S, _half_the_pages),
    "pep-history": DynamicPlan(lambda data, _: pep_history(data), 100, DAY_S, lambda g: 3 * g.pages),
    "sx-mathoverflow, a crawl a link": DynamicPlan(
        lambda data, _: mathoverflow(data), TARGETS, WINDOW_S, lambda g: len(g.start), runs=1
    ),
}


def run_dynamic(data: Path | None, progress: Progress, quick: bool) -> Result:
    """Run figure 2: crawl and discovery performance of the 15 combinations, and of no recrawl, on time graphs.

    Raises:
        NoGraph: none of the recorded graphs is here.
    """
    started, missing = time.perf_counter(), list[str]()
    plans = available({name: partial(plan.load, data, 0) for name, plan in PLANS.items()}, missing)
    combinations = [(expansion, policy) for expansion in DYNAMIC for policy in POLICIES]
    curves: dict[str, dict[tuple[str, str], Float64s]] = {}
    rows: list[list[object]] = []
    done, total = 0, sum(1 if quick else PLANS[name].runs for name in plans) * len(combinations)
    for name, graph in plans.items():
        plan, runs = PLANS[name], 1 if quick else PLANS[name].runs
        crawls = min(plan.crawls(graph), 2_000) if quick else plan.crawls(graph)
        found = curves[name] = {pair: np.zeros((POINTS, 5)) for pair in combinations}
        for run in range(runs):
            of_run = plan.load(data, run) if run else graph
            for pair in combinations:
                progress(done, total, f"{name}: {' + '.join(pair)}, run {run + 1}")
                done += 1
                found[pair] += dynamic_curve(of_run, plan, crawls, pair, run) / runs
        rows += dynamic_rows([name, graph.pages, plan.k, crawls, runs], found)
    seconds = time.perf_counter() - started
    return Result(
        "kumar-fig2", PAPER_DYNAMIC, DYNAMIC_COLUMNS, rows, seconds, _dynamic_panels(curves), missing, DYNAMIC_NOTES
    )


def dynamic_curve(graph: TimeGraph, plan: DynamicPlan, crawls: int, pair: tuple[str, str], seed: int) -> Float64s:
    """Crawl a time graph with an expansion and a recrawl policy.

    Returns:
        (POINTS, 5) float64: days since the first link, crawl performance, discovery performance, and how much more
        likely than a page of the graph a crawled page, and a crawled or seen one, is a target.
    """
    rng = np.random.default_rng(seed)
    inlinks, outlinks = (np.bincount(ends, minlength=graph.pages) for ends in (graph.target, graph.source))
    crawl = DiscoveryCrawl(EXPANSIONS[pair[0]](inlinks, outlinks, rng), pair[1], rng)
    first, points = float(graph.start[0]) + plan.first_s, []
    times = np.linspace(first, graph.start[-1], crawls)
    page: int | None = source_page(graph, first)
    marks = set(np.linspace(0, crawls - 1, POINTS + 1).astype(int)[1:].tolist())
    for at, now in enumerate(times.tolist()):
        if page is not None:
            crawl.fetched(page, now, *graph.links_of(page, now))
        if at in marks:
            targets = graph.targets(now, plan.k)
            found, share = crawl.performance(targets), len(targets) / graph.pages
            seen = len(crawl.crawled.keys() | crawl.inlinks.keys())
            lifts = found.crawled / len(crawl.crawled) / share, found.seen / seen / share
            points.append(((now - graph.start[0]) / DAY_S, found.crawl, found.discovery, *lifts))
        page = crawl.choose()
    return np.array(points)


def source_page(graph: TimeGraph, now: float) -> int:
    """Return where a crawl starts: of the largest strongly connected part, the page with the most links at that time.

    The part is that of the links of all times; of equal pages the lower number.
    """
    ones = np.ones(len(graph.source), np.int8)
    links = csr_array((ones, (graph.source, graph.target)), shape=(graph.pages, graph.pages))
    _, part = connected_components(links, connection="strong")
    there = (graph.start <= now) & (graph.end >= now) & (part[graph.source] == np.bincount(part).argmax())
    return int(np.bincount(graph.source[there], minlength=graph.pages).argmax())


def dynamic_rows(about: Sequence[object], found: Mapping[tuple[str, str], Float64s]) -> list[list[object]]:
    """Return a row for each combination, best first, then those that never recrawl."""
    order = sorted(found, key=lambda pair: (pair[1] == "none", -found[pair][:, 1].mean()))
    rows: list[list[object]] = []
    for place, pair in enumerate(order, 1):
        mean, last = found[pair].mean(axis=0).round(4).tolist(), found[pair][-1].round(4).tolist()
        rank: object = "" if pair[1] == "none" else place
        rows.append([*about, *pair, rank, mean[1], last[1], mean[2], last[2], round(mean[3], 2), round(mean[4], 2)])
    return rows


def _dynamic_panels(curves: Mapping[str, Mapping[tuple[str, str], Float64s]]) -> list[Panel]:
    panels = []
    for name, found in list(curves.items())[:2]:
        for title, columns, y in (
            ("performance", (1, 2), "share of the target pages"),
            ("lift", (3, 4), "times as likely a target as a random page"),
        ):
            lines = {
                " + ".join(pair) + kind: list(zip(found[pair][:, 0].tolist(), found[pair][:, at].tolist(), strict=True))
                for kind, at in zip((", crawled", ", seen"), columns, strict=True)
                for pair in DRAWN
                if not kind.endswith("seen") or pair in DRAWN[:1]
            }
            panels.append(Panel(f"{name}: {title}", lines, "days", y, y_scale="linear"))
    return panels
