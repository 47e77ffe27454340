"""How many reads OPIC needs on recorded graphs, and how many PageRank of the same crawled pages.

A simulated crawl reads a recorded graph, by grants as the service pays, from all pages or from a few seeds. Two
estimates are compared with the PageRank of all that can be reached from the seeds: OPIC's, and the PageRank of what
is crawled so far, computed anew at intervals, as one would without OPIC.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from experiments.algorithms.comparison import kendall_tau
from experiments.opic_engine import READ, Engine, EngineRules, PageLinks, fixed_point
from experiments.skeleton import OPIC_PAPER, Axes, Experiment, Run, keys
from experiments.strategies import STRATEGIES
from opic.arrays import Float64s, Int64s
from opic.graph.pagerank import pagerank

GRAPHS: Final = ("gr0-california", "hollins", "wikispeedia", "uk-2007-05-100000")
ORDERS: Final = ("Greedy", "Cycle", "Random", "cash per link", "expected change", "batches of 1 %", "batches of 10 %")
ALL, FEW = "all pages", "5 seeds"
STRATEGY_SEED: Final = 2
SEEDS, DRAWS = 5, 20  # Of so many draws of seeds, the one that most pages can be reached from.
GRANTS: Final = EngineRules()
STEP, STEP_LATE, LATE, END = 0.1, 0.5, 3.0, 15.0  # Reads a page: between looks, early and late; and the end.
EVERY: Final = 2  # Looks between two PageRanks.
TAU_PAGES: Final = 10_000  # On a larger graph, tau is that of so many pages at random.
L1_TARGETS, TAU_TARGETS = (0.1, 0.03, 0.01), (0.9, 0.95, 0.99)
TARGETS: Final = (*(f"L1 {x:.0%}" for x in L1_TARGETS), *(f"tau {x:.2f}" for x in TAU_TARGETS))
OPIC, CRAWLED = "OPIC", "PageRank of the crawled"


@dataclass(slots=True)
class Approach:
    """An estimate's way to the targets: the reads a page at which it met each, and its curve."""

    met: dict[str, float] = field(default_factory=dict)
    curve: list[tuple[float, float]] = field(default_factory=list)  # Reads a page, L1.
    seconds: float = 0.0  # CPU, until all targets were met or the crawl ended.
    reads: float = 0.0  # Reads a page, until then.

    @property
    def done(self) -> bool:
        """Whether all targets are met."""
        return len(self.met) == len(TARGETS)

    def look(self, reads: float, estimate: Float64s, truth: Float64s, sample: Int64s) -> None:
        """Note the targets that the estimate meets now for the first time."""
        l1, self.reads = float(np.abs(estimate - truth).sum()), reads
        self.curve.append((reads, l1))
        reached = {name: l1 <= target for name, target in zip(TARGETS, L1_TARGETS, strict=False)}
        if any(name not in self.met for name in TARGETS[len(L1_TARGETS) :]):
            tau = tau_told_apart(estimate[sample], truth[sample])
            reached |= {f"tau {target:.2f}": tau >= target for target in TAU_TARGETS}
        for name in (name for name, met in reached.items() if met):
            self.met.setdefault(name, reads)


def tau_told_apart(estimate: Float64s, truth: Float64s) -> float:
    """Return Kendall's tau over the pairs of pages that the truth tells apart, to seven digits.

    Many pages have the same in-links, hence the same importance: an order of these is neither right nor wrong.
    """
    told_apart = truth.astype(np.float32).astype(np.float64)
    return kendall_tau(estimate, told_apart) / (kendall_tau(told_apart, told_apart) or 1.0)


def rows_of(run: Run) -> Iterator[list[object]]:
    """Crawl each graph with each strategy."""
    for whole in run.steps(run.graphs(GRAPHS), lambda graph: graph.name):
        links = PageLinks.of(whole.links)
        for start in run.steps((ALL, FEW)):
            graph, seeds = reachable(links, start, run.rng(1))
            truth, title = fixed_point(graph, GRANTS), f"{whole.name}, {start}"
            crawled: Approach | None = None
            for order in run.steps(run.either(ORDERS, ("Cycle", "batches of 1 %"))):
                end, about = run.either(END, 2.0), [whole.name, start, len(truth), order]
                opic, prefix = approach(
                    graph, seeds, truth, order, end=end, compiled=not run.quick, seed=STRATEGY_SEED + run.number
                )
                yield [*about, OPIC, *_figures(opic)]
                yield [*about, CRAWLED, *_figures(prefix)]
                run.draw(title, order, opic.curve)
                crawled = prefix if order == "Cycle" else crawled
            if crawled:
                run.draw(title, "PageRank of Cycle's pages", crawled.curve)


def _figures(found: Approach) -> list[float | str]:
    """Return the reads until each target, and the CPU seconds of all, and of a sweep."""
    reads = [found.met.get(target, f"> {found.reads:g}") for target in TARGETS]
    return [*reads, found.seconds, found.seconds / max(found.reads, STEP)]


def reachable(links: PageLinks, start: str, rng: np.random.Generator) -> tuple[PageLinks, Int64s]:
    """Return the graph that can be reached from the start, its pages in order of discovery, and the seeds in it."""
    if start == ALL:
        return links, np.arange(len(links.starts) - 1)
    return part_of(links, found_from_seeds(links, rng)), np.arange(SEEDS)


def found_from_seeds(links: PageLinks, rng: np.random.Generator) -> Int64s:
    """Return the pages that can be reached from a few seeds, in order of discovery, the seeds first."""
    pages = len(links.starts) - 1
    return max((_found_from(links, rng.choice(pages, SEEDS, replace=False)) for _ in range(DRAWS)), key=len)


def part_of(links: PageLinks, pages: Int64s) -> PageLinks:
    """Return the links among some pages, numbered in the order given."""
    shape = (len(links.starts) - 1, len(links.starts) - 1)
    matrix = sparse.csr_array((np.ones(len(links.targets)), links.targets, links.starts), shape=shape)
    return PageLinks.of(matrix[pages][:, pages].tocsr())


def _found_from(links: PageLinks, seeds: Int64s) -> Int64s:
    """Return the pages that a breadth-first crawl finds, in order."""
    engine = Engine(links, GRANTS, compiled=False)
    engine.know(seeds)
    place = 0
    while place < len(engine.known):
        known = engine.known[place:].copy()
        place += len(known)
        engine.read(known)
    return engine.known.copy()


def approach(
    links: PageLinks,
    seeds: Int64s,
    truth: Float64s,
    order: str,
    *,
    end: float = END,
    compiled: bool = True,
    seed: int = STRATEGY_SEED,
) -> tuple[Approach, Approach]:
    """Crawl a graph until OPIC and PageRank of the crawled pages meet all targets, or to the end.

    Args:
        links: of each page; all pages can be reached from the seeds.
        seeds: the pages known at the start.
        truth: (N,) the PageRank of the graph.
        order: name of the strategy.
        end: reads a page at which to stop.
        compiled: as in `Engine`.
        seed: of the strategy, and of the pages that tau is taken of.
    """
    pages, rng = len(truth), np.random.default_rng(seed)
    sample = np.sort(rng.permutation(pages)[:TAU_PAGES])
    engine = Engine(links, GRANTS, compiled=compiled)
    engine.know(seeds)
    if compiled:
        Engine(links, GRANTS).read_greedily(0)  # Compiled before the clock runs.
    read, opic, prefix = STRATEGIES[order](engine, rng), Approach(), Approach()
    ranks = np.zeros(pages)
    looks = [*np.arange(STEP, LATE, STEP), *np.arange(LATE, end + STEP_LATE / 2, STEP_LATE)]
    done = 0
    for number, at in enumerate(look for look in looks if look <= end):
        begun = time.process_time()
        read(round(at * pages) - done)
        done = round(at * pages)
        estimate = engine.estimate()
        if not opic.done:
            opic.seconds += time.process_time() - begun
            opic.look(float(at), estimate, truth, sample)
        if not prefix.done and number % EVERY == EVERY - 1:
            begun = time.process_time()
            ranks = prefix_pagerank(links, engine.known, engine.columns.state == READ, ranks)
            prefix.seconds += time.process_time() - begun
            prefix.look(float(at), ranks, truth, sample)
        if opic.done and prefix.done:
            break
    return opic, prefix


def prefix_pagerank(links: PageLinks, known: Int64s, read: NDArray[np.bool_], before: Float64s) -> Float64s:
    """(N,) Return the PageRank of the known pages, where pages not read have no links; 0 for pages not known.

    Args:
        links: of all pages.
        known: the known pages.
        read: (N,) which pages were read.
        before: (N,) the last result, where the iteration starts.
    """
    pages = len(links.starts) - 1
    place = np.zeros(pages, np.int64)
    place[known] = np.arange(len(known))
    crawled = np.repeat(read, links.degrees)
    sources = np.repeat(np.arange(pages), links.degrees)[crawled]
    ends = (place[sources], place[links.targets[crawled]])
    matrix = sparse.csr_array((np.ones(len(sources)), ends), shape=(len(known), len(known)))
    ranks = np.zeros(pages)
    ranks[known] = pagerank(matrix, start=np.maximum(before[known], 1 / len(known) ** 2))
    return ranks


OPIC_READS: Final = Experiment(
    "opic-reads",
    "reads until an error, beside PageRank of the crawled pages",
    OPIC_PAPER,
    {
        **keys("graph", "start"),
        "pages": None,
        **keys("strategy", "estimate"),
        **dict.fromkeys(TARGETS, 1),
        "CPU seconds": 3,
        "CPU seconds a sweep": 4,
    },
    rows_of,
    notes=(
        "reads in N, the pages of the graph that can be reached; looked at every 0.1 N to 3 N, then every 0.5 N",
        "error against the PageRank (damping 0.85) of all that can be reached, also while most of it is not known",
        f"seeds: of {DRAWS} draws of {SEEDS} pages, the one that most pages can be reached from",
        f"PageRank of the crawled: anew every {EVERY * STEP:g} N, then every N, from the last result, to a change of "
        "1e-6; it needs all links stored",
        "tau over the pairs of pages whose PageRank differs in seven digits",
        "CPU seconds until all targets are met or the crawl ends, without fetching and without looking: OPIC's in "
        f"memory, not through a store; tau of {TAU_PAGES:,} pages at random where there are more",
    ),
    axes=Axes("reads, in N", "L1 error"),
)
