"""How far is importance from PageRank of a graph that changes while it is crawled, by the order of the reads?

Recorded graphs of N pages of which all were read once. Then, while N pages are read, a share of all links lead
elsewhere: to targets drawn in proportion to in-degree, on all pages alike ("even"), or mostly on a few ("skewed": in
proportion to 1/rank of pages in a random order). After 1, 5 and 10 N reads the estimate is compared with PageRank of
the graph as it is then, in L1; means over several runs, with their standard errors. Exact importance, settled to a
bound of .01 after each batch, with pages read again in several orders; beside it OPIC by cash on the same changes,
Greedy: the estimate by grants, and the paper's payout with each of its windows.

--polled: the same on a recorded site, as of a crawler that reads a number of pages a day and never hears what changed
(`python -m experiments opic-polling` has the estimates by cash of the same site). L1 at the ends of the years, mean.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from bench_flow import Crawl
from harness import write_result
from measured_graphs import graph_arguments, graphs_here, mean_and_error

from experiments.change_models import DAMPED
from experiments.opic_engine import Engine, EngineRules, PageLinks
from experiments.polled_history import DAY_SECONDS, READS_A_DAY, YEARS
from experiments.recorded_graphs import RecordedGraph
from experiments.recorded_history import SETTLED, SiteEvent, SiteGraph, pagerank_of, site_events
from experiments.window_crawls import FIXED, IMPROVED, INTERPOLATION, MEASURES, STATIC, VARIABLE, Moment
from opic.arrays import Float64s, Int64s
from opic.graph.crawled import link_matrix
from opic.graph.pagerank import pagerank
from opic.query.fetch_order import change_rates, read_interval

GRAPHS: Final = ("hollins", "wikispeedia", "uk-2007-05-100000")
DAMPING, BOUND, BATCHES, RANDOM_SEED = 0.85, 0.01, 50, 20030520
SHARES: Final = (0.001, 0.01, 0.05)  # Of the links, that change while N pages are read.
CHECKPOINTS: Final = (1, 5, 10)  # In N reads.
WINDOWS: Final = (STATIC, *VARIABLE.values(), *FIXED.values(), *IMPROVED.values(), *INTERPOLATION.values())
NEVER: Final = 1e18  # The age of pages that were never read.
CASH: Final = "cash, Greedy, static"
NEW: Final = "sqrt(x rate) age"


@dataclass(frozen=True, slots=True)
class Known:
    """What an order of reads goes by; (n,) each."""

    importance: Float64s
    rates: Float64s
    ages: Float64s
    chance: Float64s  # Random numbers.


ORDERS: Final[dict[str, Callable[[Known], Float64s]]] = {
    "cycle": lambda known: known.ages,
    "random": lambda known: known.chance,
    "sqrt(x) age": lambda known: np.sqrt(known.importance) * known.ages,
    "x age": lambda known: known.importance * known.ages,
    NEW: lambda known: np.sqrt(known.importance * known.rates) * known.ages,
}


class Reads:
    """When each page was read, and how often it was seen to have changed. Time is counted in the caller's unit."""

    def __init__(self, pages: int) -> None:
        """No page was read."""
        self.first, self.last = np.full(pages, np.nan), np.full(pages, np.nan)
        self._changes, self._rereads = np.zeros(pages), np.zeros(pages)

    def read(self, pages: Int64s, at: float | Float64s, changed: np.ndarray) -> None:
        """Record reads of distinct pages; `changed`: whether each showed other links."""
        again = ~np.isnan(self.first[pages])
        self._changes[pages[again]] += changed[again]
        self._rereads[pages[again]] += 1
        self.first[pages] = np.where(again, self.first[pages], at)
        self.last[pages] = at

    def known(self, now: float, importance: Float64s, rng: np.random.Generator) -> Known:
        """Return what an order goes by; pages never read are older than any other."""
        observed = np.nan_to_num(self.last - self.first)
        rates = change_rates(self._changes, observed, read_interval([observed], [self._rereads]))
        return Known(importance, rates, np.nan_to_num(now - self.last, nan=NEVER), rng.random(len(rates)))


class ChangingGraph:
    """A graph whose links lead elsewhere; out-degrees stay."""

    def __init__(self, graph: RecordedGraph, share: float, seed: int, *, skewed: bool) -> None:
        """Take a recorded graph; `share` of its links change in a round of N reads."""
        starts, targets = graph.links.indptr.astype(np.int64), graph.links.indices.astype(np.int64)
        self.links = PageLinks(starts, targets.copy())
        self.version = np.zeros(len(graph), np.int64)  # By page: how often its links changed.
        self._sources = np.repeat(np.arange(len(graph)), self.links.degrees)
        self._popular, self._rng = targets, np.random.default_rng(seed)
        self._due, self._share = 0.0, share
        some = np.flatnonzero(self.links.degrees)
        chances = 1 / (1 + self._rng.permutation(len(some))) if skewed else self.links.degrees[some].astype(float)
        self._some, self._chances = some, np.cumsum(chances / chances.sum())

    def __len__(self) -> int:
        """Count the pages."""
        return len(self.version)

    def of(self, page: int) -> Int64s:
        """Return the links of a page."""
        return self.links.targets[self.links.starts[page] : self.links.starts[page + 1]]

    def change(self, rounds: float) -> None:
        """Change as many links as do in some rounds; never to a page that is linked to already, nor to itself."""
        self._due += self._share * len(self.links.targets) * rounds
        count, self._due = int(self._due), self._due % 1
        drawn = np.searchsorted(self._chances, self._rng.random(count)).clip(max=len(self._some) - 1)
        pages, to = self._some[drawn], self._rng.choice(self._popular, count)
        for page, target, place in zip(pages.tolist(), to.tolist(), self._rng.random(count).tolist(), strict=True):
            row = self.of(page)
            if target != page and not (row == target).any():
                row[int(place * len(row))] = target
                self.version[page] += 1

    def pagerank(self) -> Float64s:
        """Return PageRank of the graph as it is."""
        matrix = link_matrix(self._sources, self.links.targets, (len(self), len(self)))
        return pagerank(matrix, DAMPING, 1e-10)


def batches(pages: int) -> Iterator[tuple[int, int]]:
    """Yield the number of reads so far and those of the next batch, to the last checkpoint."""
    ends = [pages * nth // BATCHES for nth in range(BATCHES * CHECKPOINTS[-1] + 1)]
    yield from ((start, end - start) for start, end in pairwise(ends) if end > start)


def exactly(graph: ChangingGraph, order: str, seed: int) -> list[float]:
    """Crawl with exact importance; return L1 at the checkpoints."""
    pages, rng = len(graph), np.random.default_rng(seed)
    crawl, reads, errors = Crawl(pages), Reads(pages), list[float]()
    crawl.known[:] = True
    for page in range(pages):
        crawl.fetch(page, graph.of(page).astype(np.uint32))
    crawl.settle(BOUND)
    seen = graph.version.copy()
    reads.read(np.arange(pages), rng.permutation(pages) - float(pages), np.zeros(pages))
    for done, count in batches(pages):
        graph.change(count / pages)
        keys = ORDERS[order](reads.known(done, crawl.flow.shares, rng))
        batch = np.argpartition(-keys, count - 1)[:count]
        changed = graph.version[batch] != seen[batch]
        for page in batch[changed].tolist():
            crawl.fetch(page, graph.of(page).astype(np.uint32))
        seen[batch] = graph.version[batch]
        reads.read(batch, float(done), changed)
        crawl.settle(BOUND)
        if done + count in {mark * pages for mark in CHECKPOINTS}:
            errors.append(float(np.abs(crawl.flow.shares - graph.pagerank()).sum()))
    return errors


def by_cash(graph: ChangingGraph, rules: EngineRules, seed: int) -> dict[str, list[float]]:
    """Crawl by Greedy; return L1 of each estimate at the checkpoints: of windows under the paper's payout."""
    pages, rng = len(graph), np.random.default_rng(seed)
    engine, errors = Engine(graph.links, rules), dict[str, list[float]]()
    engine.know(np.arange(pages))
    engine.read(rng.permutation(pages))
    started = engine.clock
    for done, count in batches(pages):
        graph.change(count / pages)
        engine.read_greedily(count)
        if (rounds := (done + count) / pages) not in CHECKPOINTS:
            continue
        truth = graph.pagerank()
        if not rules.continuous:
            errors.setdefault(CASH, []).append(float(np.abs(engine.estimate() - truth).sum()))
            continue
        moment = Moment(int(rounds), engine.past(), (engine.clock - started) / rounds, graph.links, truth)
        for policy in WINDOWS:
            error = float(np.abs(moment.estimate(policy) - truth).sum())
            errors.setdefault(f"the paper's payout, {policy.name}", []).append(error)
    return errors


def measure(graph: RecordedGraph, share: float, runs: int, orders: Sequence[str], *, skewed: bool) -> dict[str, object]:
    """Return L1 of each way at the checkpoints: means, errors, and how many times less the new order has than cash."""
    found = dict[str, list[list[float]]]()
    for run in range(runs):
        seed, began = RANDOM_SEED + run, time.process_time()
        for order in orders:
            errors = exactly(ChangingGraph(graph, share, seed, skewed=skewed), order, seed)
            found.setdefault(f"exact, {order}", []).append(errors)
        for rules in (EngineRules(), EngineRules(q=DAMPED.q, continuous=True, measures=MEASURES)):
            for name, of in by_cash(ChangingGraph(graph, share, seed, skewed=skewed), rules, seed).items():
                found.setdefault(name, []).append(of)
        print(f"{graph.name}, {share:.1%}, skewed {skewed}, run {run}: {time.process_time() - began:.0f} s of CPU")
    windows = [name for name in found if name.startswith("the paper's")]
    best = min(windows, key=lambda name: float(np.mean(found[name])))
    rows: dict[str, object] = {
        name: mean_and_error(of) for name, of in found.items() if name not in windows or name == best
    }
    new = np.mean(found[f"exact, {NEW}"], axis=0)
    rows |= {"best window": best} | {
        f"{name} / exact, {NEW}": (np.mean(found[of], axis=0) / new).round(2).tolist()
        for name, of in ((CASH, CASH), ("best window", best), ("exact, cycle", "exact, cycle"))
    }
    for name, row in rows.items():
        print(f"  {name}: {row['mean'] if isinstance(row, dict) else row}", flush=True)
    return rows


class PolledSite:
    """What a crawler knows of a recorded site."""

    def __init__(self, events: Sequence[SiteEvent]) -> None:
        """Know nothing yet."""
        urls = dict.fromkeys([url for event in events for url in (event.url, *event.out)])
        self.site, self.number = SiteGraph(events), {url: at for at, url in enumerate(urls)}
        self._urls, self._rng = list(urls), np.random.default_rng(RANDOM_SEED)
        self._crawl, self._reads = Crawl(len(urls)), Reads(len(urls))
        self._pages = np.zeros(len(urls), np.bool_)  # Of the site, as far as the crawler knows.
        self._shown: dict[int, tuple[int, ...] | None] = {}

    def day(self, seconds: int, order: str, reads: int) -> None:
        """Learn of new pages, and read some."""
        for event in self.site.until(seconds):
            number = self.number[event.url]
            if number not in self._shown and not self._pages[number]:
                self._pages[number] = self._crawl.known[number] = True
        self._crawl.settle(BOUND)
        keys = ORDERS[order](self._reads.known(seconds, self._crawl.flow.shares, self._rng))
        keys = np.where(self._pages, np.where(np.isnan(self._reads.last), np.inf, keys), -np.inf)
        for page in np.argsort(-keys, kind="stable")[: min(reads, int(self._pages.sum()))].tolist():
            self._read(page, seconds)
        self._crawl.settle(BOUND)

    def _read(self, page: int, seconds: int) -> None:
        out = self.site.links.get(self._urls[page])
        shown = None if out is None else tuple(sorted({self.number[to] for to in out} - {page}))
        changed = np.array([shown != self._shown.get(page, shown)])
        self._reads.read(np.array([page]), float(seconds), changed)
        self._shown[page] = shown
        if shown is None:
            self._pages[page] = False
            self._crawl.leave(page)
        else:
            self._crawl.fetch(page, np.array(shown, np.uint32))

    def error(self) -> float:
        """Return L1 of the importance from PageRank of the site as it is."""
        exist, truth = [url for url in self.number if url in self.site.links], np.zeros(len(self.number))
        truth[[self.number[url] for url in exist]] = pagerank_of(exist, self.site.links)
        return float(np.abs(self._crawl.flow.shares - truth).sum())


def polled(events: Sequence[SiteEvent], order: str, reads: int) -> list[float]:
    """Poll a site from its first day; return L1 at the end of each year from SETTLED on."""
    site = PolledSite(events)
    years = [datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp() for year in YEARS if year >= SETTLED]
    first, found = events[0].t - events[0].t % DAY_SECONDS + DAY_SECONDS - 1, list[float]()
    for seconds in range(first, round(years[-1]) + 1, DAY_SECONDS):
        site.day(seconds, order, reads)
        if seconds in years:
            found.append(site.error())
    return found


def poll(data: Path | None, orders: Sequence[str], reads_a_day: Sequence[int]) -> dict[str, object]:
    """Return L1 of exact importance on the recorded site, by reads a day and order: mean and standard error."""
    events, rows = site_events(data), dict[str, object]()
    for reads in reads_a_day:
        for order in orders:
            row = mean_and_error([[error] for error in polled(events, order, reads)])
            rows[f"{reads} a day, {order}"] = {name: value[0] for name, value in row.items()}
            print(f"pep-history, {reads} a day, {order}: {rows[f'{reads} a day, {order}']}", flush=True)
    return rows


def main() -> int:
    """Measure, print and write the JSON."""
    parser = graph_arguments("Error on graphs that change while they are crawled, by order of reads.", GRAPHS)
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES), help="of the links, in N reads")
    parser.add_argument("--changes", nargs="*", choices=("even", "skewed"), default=["even", "skewed"])
    parser.add_argument("--orders", nargs="*", choices=list(ORDERS), default=list(ORDERS), metavar="ORDER")
    parser.add_argument("--runs", type=int, default=1, help="number of runs of each, with other changes")
    parser.add_argument("--polled", nargs="*", type=int, metavar="READS", help="poll the recorded site: reads a day")
    args = parser.parse_args()
    orders = list(dict.fromkeys([*args.orders, "cycle", NEW]))
    found: dict[str, object] = {
        f"{graph.name}, {100 * share:g} %, {'skewed' if skewed else 'even'}":
            measure(graph, share, args.runs, orders, skewed=skewed)
        for graph in graphs_here(args.graphs, args.data) for share in args.shares
        for skewed in (False, True) if ("even", "skewed")[skewed] in args.changes
    }  # fmt: skip
    if args.polled is not None:
        found["pep-history"] = poll(args.data, orders, args.polled or READS_A_DAY)
    settings = {"reads in N": CHECKPOINTS, "batches a round": BATCHES, "bound": BOUND, "runs": args.runs}
    write_result("changing", settings | {"l1": found}, args.result)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
