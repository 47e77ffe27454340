"""The figures of Kumar, Lang, Marlow and Tomkins (2008): finding the pages most linked to, and keeping up with them.

Their graphs are not public. Figure 1 takes recorded graphs as they are, with the same share of target pages as theirs.
Figure 2 takes MathOverflow (who answered whom, by time), the history of the PEP site, and recorded graphs whose links
are given random times.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from experiments.algorithms.discovery import EXPANSIONS, POLICIES, DiscoveryCrawl, rank_performance
from experiments.algorithms.time_graph import TARGETS, WINDOW_S, TimeGraph, greatest
from experiments.recorded_graphs import RecordedGraph
from experiments.recorded_time_graphs import DAY_S, mathoverflow, pep_history, with_random_times
from experiments.skeleton import KUMAR, Axes, Experiment, Row, Run, keys
from opic.arrays import Float64s
from opic.graph.crawled import degrees

RUNS: Final = 5
POINTS: Final = 50  # Of a curve over time.
STATIC: Final = ("hollins", "gr0-california", "wikispeedia", "uk-2007-05-100000")
TARGET_SHARE: Final = 2_000 / 343_743  # The paper's K among its blogs.
TARGETS_MIN: Final = 50
MULTIPLES: Final = (1, 2, 5, 10, 20)  # Crawled pages, in multiples of k.
DYNAMIC: Final = ("Sample-U", "Crawl-AI", "Crawl-GAI")
DRAWN: Final = (  # Of figure 2: what the paper's text compares.
    ("Crawl-GAI", "OR"), ("Crawl-AI", "OR"), ("Crawl-GAI", "U"), ("Crawl-GAI", "YRU"), ("Crawl-GAI", "LDU"),
    ("Sample-U", "U"), ("Crawl-GAI", "none"),
)  # fmt: skip


def static_rows(run: Run) -> Iterator[list[object]]:
    """Crawl each graph by each algorithm; the rows are after some multiples of k pages."""
    graphs = run.graphs(STATIC)
    for graph in run.steps(graphs, lambda graph: graph.name):
        k = static_targets(graph)
        for algorithm in run.steps(EXPANSIONS):
            curve = static_curve(graph, algorithm, run.rng())
            for crawled, *figures in curve:
                if crawled in {k * multiple for multiple in MULTIPLES}:
                    yield [graph.name, len(graph), k, algorithm, crawled, *figures]
            axes = Axes("pages crawled", f"share of the {k} target pages", y_scale="linear")
            for at, figure in enumerate(("crawl", "rank"), 1) if graph in graphs[-2:] else ():
                points = [(point[0], point[at]) for point in curve]
                run.draw(f"{graph.name}: {figure} performance", algorithm, points, axes)


def static_targets(graph: RecordedGraph) -> int:
    """Return k for a graph."""
    return max(TARGETS_MIN, round(len(graph) * TARGET_SHARE))


def static_curve(graph: RecordedGraph, algorithm: str, rng: np.random.Generator) -> list[tuple[int, float, float]]:
    """Crawl a graph, and measure after each half of k pages; until all pages are crawled, or 20 k.

    Returns:
        Pages crawled, crawl performance, rank performance.
    """
    inlinks, outlinks = graph.links.sum(axis=0).astype(np.int64), degrees(graph.links).astype(np.int64)
    k = static_targets(graph)
    targets = greatest(inlinks, k)
    _, part = connected_components(graph.links, connection="strong")
    sources = np.flatnonzero(part == np.bincount(part).argmax())
    bounds, ends = graph.links.indptr.tolist(), graph.links.indices
    crawl, points = DiscoveryCrawl(EXPANSIONS[algorithm](inlinks, outlinks, rng), "none", rng), []
    page: int | None = int(rng.choice(sources))
    while page is not None and len(crawl.crawled) < min(len(graph), MULTIPLES[-1] * k):
        links = range(bounds[page], bounds[page + 1])
        crawl.fetched(page, 0.0, links, ends[links.start : links.stop].tolist())
        if len(crawl.crawled) % (k // 2) == 0:
            found = crawl.performance(targets).crawl, rank_performance(crawl.best(k), targets)
            points.append((len(crawl.crawled), *found))
        page = crawl.choose()
    return points


@dataclass(frozen=True, slots=True)
class DynamicPlan:
    """How a time graph is crawled in figure 2.

    load         returns the graph of a run
    k            number of target pages
    first_s      when the crawl starts, in seconds after the first link
    crawls       number of crawls, given the graph
    repeated     whether it is crawled in each run; once where there are many crawls
    """

    load: Callable[[Path | None, int], TimeGraph]
    k: int
    first_s: float
    crawls: Callable[[TimeGraph], int]
    repeated: bool = True


def _half_the_pages(graph: TimeGraph) -> int:
    return graph.pages // 2


PLANS: Final[Mapping[str, DynamicPlan]] = {
    "sx-mathoverflow": DynamicPlan(lambda data, _: mathoverflow(data), TARGETS, WINDOW_S, lambda g: 4 * g.pages),
    "wikispeedia": DynamicPlan(
        lambda data, run: with_random_times("wikispeedia", data, run), TARGETS, WINDOW_S, _half_the_pages
    ),
    "uk-2007-05-100000": DynamicPlan(
        lambda data, run: with_random_times("uk-2007-05-100000", data, run),
        TARGETS,
        WINDOW_S,
        _half_the_pages,
        repeated=False,
    ),
    "hollins": DynamicPlan(lambda data, run: with_random_times("hollins", data, run), 100, WINDOW_S, _half_the_pages),
    "pep-history": DynamicPlan(lambda data, _: pep_history(data), 100, DAY_S, lambda g: 3 * g.pages),
    "sx-mathoverflow, a crawl a link": DynamicPlan(
        lambda data, _: mathoverflow(data), TARGETS, WINDOW_S, lambda g: len(g.start), repeated=False
    ),
}


def dynamic_rows(run: Run) -> Iterator[list[object]]:
    """Crawl each time graph by the 15 combinations, and by those that never recrawl."""
    names = [name for name, plan in PLANS.items() if plan.repeated or not run.number]
    graphs = run.load({name: partial(PLANS[name].load, run.data, run.number) for name in names})
    for name, graph in run.steps(graphs.items(), lambda item: item[0]):
        plan = PLANS[name]
        curves = dict[tuple[str, str], Float64s]()
        crawls = min(plan.crawls(graph), run.either(plan.crawls(graph), 2_000))
        for pair in run.steps([(expansion, policy) for expansion in DYNAMIC for policy in POLICIES], " + ".join):
            curve = curves[pair] = dynamic_curve(graph, plan, crawls, pair, run.number)
            crawl, discovery, *lifts = curve.mean(axis=0)[1:].tolist()
            ends = curve[-1].tolist()
            yield [name, graph.pages, plan.k, crawls, None, *pair, "", crawl, ends[1], discovery, ends[2], *lifts]
        if name in list(graphs)[:2]:
            _draw(run, name, curves)


def dynamic_curve(graph: TimeGraph, plan: DynamicPlan, crawls: int, pair: tuple[str, str], seed: int) -> Float64s:
    """Crawl a time graph with an expansion and a recrawl policy.

    Returns:
        (POINTS, 5) float64: days since the first link, crawl performance, discovery performance, and how much more
        likely than a page of the graph a crawled page, and a crawled or seen one, is a target.
    """
    rng = np.random.default_rng(seed)
    inlinks, outlinks = (np.bincount(ends, minlength=graph.pages) for ends in (graph.target, graph.source))
    return performance_curve(
        graph, plan, crawls, DiscoveryCrawl(EXPANSIONS[pair[0]](inlinks, outlinks, rng), pair[1], rng)
    )


def performance_curve(graph: TimeGraph, plan: DynamicPlan, crawls: int, crawl: DiscoveryCrawl) -> Float64s:
    """Return the curve of a crawl that has not begun, as `dynamic_curve`."""
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


def ranked(run: Run, rows: list[Row]) -> list[Row]:
    """Return the rows of each graph best first, with their places; then those that never recrawl."""
    del run
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    rows.sort(key=lambda row: (graphs.index(row["graph"]), row["recrawl"] == "none", -row["crawl"]))
    for place, row in enumerate(rows):
        if row["recrawl"] != "none":
            row["place"] = place - rows.index(next(first for first in rows if first["graph"] == row["graph"])) + 1
    return rows


def _draw(run: Run, name: str, curves: Mapping[tuple[str, str], Float64s]) -> None:
    for title, columns, y in (
        ("performance", (1, 2), "share of the target pages"),
        ("lift", (3, 4), "times as likely a target as a random page"),
    ):
        axes = Axes("days", y, y_scale="linear")
        for kind, at, pairs in zip((", crawled", ", seen"), columns, (DRAWN, DRAWN[:1]), strict=True):
            for pair in pairs:
                points = zip(curves[pair][:, 0].tolist(), curves[pair][:, at].tolist(), strict=True)
                run.draw(f"{name}: {title}", " + ".join(pair) + kind, points, axes)


KUMAR_FIG1: Final = Experiment(
    "kumar-fig1",
    "discovery: crawl and rank performance on fixed graphs",
    KUMAR,
    {**keys("graph", "pages", "k", "algorithm", "crawled"), "crawl": 4, "rank": 4},
    static_rows,
    paper=(
        {
            "figure": "1-A",
            "says": "Crawl-GAI and Crawl-AI find targets faster than Sample-I, at least at the beginning",
        },
        {"figure": "1-A", "says": "Sample-I works better than the other sampling algorithms"},
        {"figure": "1-B", "says": "rank performance is lower, and its order nearly reversed: Crawl-GAI is the worst"},
    ),
    notes=(
        f"the paper's 343,743 blogs are not public: these are recorded graphs, with the same share of target pages, "
        f"but at least {TARGETS_MIN}; the paper prints curves only",
        f"means of {RUNS} runs, each from another page of the largest strongly connected part; `crawled` is in pages",
        "Sample-U is not defined in the paper; here it takes any page, each as likely as any other",
        "rank performance is of the k crawled pages with the most links seen to them",
    ),
    runs=RUNS,
    finish=lambda run, rows: [row for row in rows if row["runs"] == run.count],
)
KUMAR_FIG2: Final = Experiment(
    "kumar-fig2",
    "discovery and recrawl: crawl and discovery performance on graphs that change",
    KUMAR,
    {
        **keys("graph", "pages", "k", "crawls"),
        "runs": None,
        **keys("expansion", "recrawl"),
        "place": None,
        **dict.fromkeys(("crawl", "crawl_end", "discovery", "discovery_end"), 4),
        **dict.fromkeys(("lift_crawled", "lift_seen"), 2),
    },
    dynamic_rows,
    paper=(
        {"figure": "2-A", "says": "Crawl-GAI + OR performs well in crawl and discovery performance", "lift": ""},
        {"figure": "2-A", "says": "recrawling by yield and by link score is not better", "lift": ""},
        {
            "figure": "2-B",
            "says": "a page crawled by Crawl-GAI + OR is a target, relative to a random page",
            "lift": "50",
        },
        {
            "figure": "2-B",
            "says": "a page crawled or in the frontier is a target, relative to a random page",
            "lift": "> 20",
        },
    ),
    notes=(
        "the paper's 340,000 links of 24 days are not public; sx-mathoverflow has as many, over 6 years; the paper "
        "prints curves only, and does not say how many pages it crawls: here four for each person, then as many as "
        "links come, evenly in time; with so many, Sample-U has crawled everybody before long, and leads",
        "the dense graphs are recorded ones whose links come at random moments of 24 days, each for 7 days; one crawl "
        "for two pages; pep-history: a link is there while the page shows it, three crawls for a page",
        f"means of the runs in the column `runs`, over {POINTS} moments (crawl, discovery, lift_*) or at the end"
        " (*_end); `place` is among the 15 combinations by `crawl`, without `none`, which never recrawls",
        "in a week of sx-mathoverflow fewer than 500 people receive a link: the targets are all of them",
        "Sample-U is not defined in the paper; here it takes any page, also one that has no link yet",
    ),
    runs=3,
    finish=ranked,
)
