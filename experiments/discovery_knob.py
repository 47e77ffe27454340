"""The discovery knob: what more weight on pages never read buys in a crawl, and what it costs.

The paper (section 3.3) gives cash of the virtual page to pages not read yet, to discover more. The service multiplies
the cash of these pages in the order of suggestions alone (OPIC_DISCOVERY_WEIGHT), or reserves a share of the
suggestions for them (OPIC_DISCOVERY_SHARE), so that importance stays what it is.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from experiments.opic_engine import READ, Engine, EngineRules, PageLinks, fixed_point
from experiments.opic_reads import FEW, prefix_pagerank, reachable
from experiments.skeleton import OPIC_PAPER, Axes, Experiment, Row, Run, keys
from experiments.strategies import best
from opic.arrays import Float64s, Int64s

GRAPHS: Final = ("hollins", "wikispeedia", "gr0-california", "uk-2007-05-100000")
WEIGHTS: Final = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
SHARES: Final = (0.1, 0.3, 0.5, 0.9)
AT: Final = (0.5, 1.0, 2.0)  # Reads for each page that can be reached.
BATCH_SHARE: Final = 100  # A batch has 1/BATCH_SHARE of the known pages.
RULES: Final = EngineRules()
FOUND: Final = ("known", "read", "importance_read")
PRICE: Final = ("age", "l1_known", "l1")


def rows_of(run: Run) -> Iterator[list[object]]:
    """Crawl each graph with each setting of the knob."""
    knobs = [("weight", weight) for weight in WEIGHTS] + [("share", share) for share in SHARES]
    for whole in run.steps(run.graphs(run.either(GRAPHS, GRAPHS[:1])), lambda graph: graph.name):
        graph, seeds = reachable(PageLinks.of(whole.links), FEW, run.rng(1))
        truth = fixed_point(graph, RULES)
        for knob, value in run.steps(run.either(knobs, knobs[::3]), lambda job: f"{job[0]} {job[1]:g}"):
            crawl = KnobCrawl(graph, seeds, knob, value, compiled=not run.quick)
            for at in run.either(AT, AT[:2]):
                yield [whole.name, knob, value, at, *crawl.until(at, truth)]


class KnobCrawl:
    """A crawl that reads batches of the pages with the most cash, with a knob for pages never read."""

    def __init__(self, links: PageLinks, seeds: Int64s, knob: str, value: float, *, compiled: bool) -> None:
        """Start with the seeds known.

        Args:
            links: of the pages that can be reached.
            seeds: the first known pages.
            knob: "weight" or "share".
            value: of the knob.
            compiled: see `Engine`.
        """
        self.engine = Engine(links, RULES, compiled=compiled)
        self.engine.know(seeds)
        self.weight, self.share = (value, 0.0) if knob == "weight" else (1.0, value)
        self._done, self._last = 0, np.zeros(len(self.engine), np.int64)
        self._ranks = np.zeros(len(self.engine))

    def until(self, reads: float, truth: Float64s) -> tuple[float, float, float, float, float, float]:
        """Crawl until so many reads for each page; return the figures of COLUMNS, from `known` on."""
        pages = len(self.engine)
        while self._done < reads * pages:
            batch = self._batch()
            self.engine.read(batch)
            self._done += len(batch)
            self._last[batch] = self._done
        read, known = self.engine.columns.state == READ, self.engine.known
        ages = (self._done - self._last[read]) / pages
        self._ranks = prefix_pagerank(self.engine.links, known, read, self._ranks)
        estimate = self.engine.estimate()
        return (
            len(known) / pages,
            float(read.mean()),
            float(truth[read].sum()),
            float(ages @ truth[read] / truth[read].sum()),
            float(np.abs(estimate - self._ranks).sum()),
            float(np.abs(estimate - truth).sum()),
        )

    def _batch(self) -> Int64s:
        known = self.engine.known
        new = self.engine.columns.state[known] != READ
        count = -(-len(known) // BATCH_SHARE)
        cash = self.engine.cash[known].astype(np.float64)
        reserved = np.zeros(0, np.int64)
        if self.share and new.any():
            reserved = np.flatnonzero(new)[best(cash[new], max(1, round(self.share * count)), cut=False)]
        left = np.setdiff1d(np.arange(len(known)), reserved)
        scores = np.where(new, self.weight, 1.0)[left] * cash[left]
        rest = left[best(scores, count - len(reserved), cut=False)] if count > len(reserved) else left[:0]
        return known[np.concatenate((reserved, rest))]


def draw(run: Run, rows: list[Row]) -> list[Row]:
    """Draw two panels for each graph: what is found, and what it costs, over the weight."""
    for columns, title, y, scale in (
        (FOUND, "found", "share of the pages, or of their importance", "linear"),
        (PRICE, "price", "age, L1 distance", "log"),
    ):
        axes = Axes("weight of pages never read", y, "log", scale)
        for column in columns:
            for row in rows:
                if row["knob"] == "weight" and row["reads"] in AT[:2]:
                    line = f"{column}, {row['reads']:g} N reads"
                    run.draw(f"{row['graph']}: {title}", line, [(row["value"], row[column])], axes)
    return rows


DISCOVERY_KNOB: Final = Experiment(
    "discovery-knob",
    "weight of pages never read: what it finds, and what it costs",
    OPIC_PAPER,
    {**keys("graph", "knob", "value", "reads"), **dict.fromkeys((*FOUND, *PRICE))},
    rows_of,
    notes=(
        "weight multiplies the cash of pages never read in the order of suggestions; share is the part of each batch "
        "that is kept for them, where there are so many. Weight 1 is the default: cash alone decides.",
        "reads: for each page that can be reached from five seeds. known and read are shares of these pages, "
        "importance_read is the PageRank (of the whole graph) of the pages read at least once.",
        "age: how long ago pages were read, by importance, over the pages that were read; in reads for each page that "
        "can be reached. It is what a crawl pays for discovery.",
        "l1_known is the distance of the estimates from PageRank of the known graph, which they approach; l1 that from "
        "PageRank of the whole graph, which falls as more becomes known.",
        "The paper gives no figures.",
    ),
    finish=draw,
)
