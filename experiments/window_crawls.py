"""Crawls of a synthetic graph that changes while it is read: what the figures on windows are made of.

The paper's change model: in the time of N reads, a share of the pages have their in-degree divided or multiplied by
two; which pages lose and get those links it does not say. Here new links come from pages in proportion to their
out-degrees, so that these keep the distribution that the paper's graph has. The clock runs on: "a month" is its advance
over N reads.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from experiments.opic_engine import PAPER_RULES, Engine, EngineRules, PageLinks, fixed_point
from experiments.synthetic_graphs import Change, change_in_degrees
from opic.arrays import Float64s
from opic.model.series import Window
from opic.model.windows import Past, estimate

MEASURES: Final = 32  # Kept of each page: more than the largest window of any but the busiest has.
CHANGES_A_MONTH: Final = 5  # The graph changes so many times during N reads.


@dataclass(frozen=True, slots=True)
class Moment:
    """The state after so many months of N reads.

    past    what window policies read
    month   the advance of the clock over N reads, mean of the last half of the crawl
    links   the graph as it is then
    truth   its importance
    """

    months: int
    past: Past
    month: float
    links: PageLinks
    truth: Float64s

    def estimate(self, policy: "WindowPolicy") -> Float64s:
        """(N,) Return a policy's estimate."""
        return estimate(policy.policy, self.past, policy.months * self.month, policy.measures)

    def errors(self, policy: "WindowPolicy") -> tuple[float, float]:
        """Return the mean relative error in percent: of all pages, and of the most important tenth."""
        relative = 100 * np.abs(self.estimate(policy) - self.truth) / self.truth
        top = np.argsort(-self.truth)[: len(self.truth) // 10]
        return float(relative.mean()), float(relative[top].mean())


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """A window policy with its size: months of N reads, or measures for `variable`."""

    name: str
    policy: str
    months: float = 8
    measures: int = 8


STATIC: Final = WindowPolicy("whole history", "static")
VARIABLE: Final = {k: WindowPolicy(f"Variable {k} measures", "variable", measures=k) for k in (2, 4, 8, 16)}
FIXED: Final = {m: WindowPolicy(f"Fixed {m} months", "fixed", m) for m in (1, 2, 4, 8, 16)}
IMPROVED: Final = {m: WindowPolicy(f"Improved Fixed {m} months", "improved", m) for m in (4, 8)}
INTERPOLATION: Final = {m: WindowPolicy(f"Interpolation {m} months", "interpolation", m) for m in (1, 2, 4, 8)}


@dataclass(frozen=True, slots=True)
class ChangeModel:
    """How a graph changes.

    change    changes a given number of pages
    a_month   number of changes during N reads
    """

    change: Change = change_in_degrees
    a_month: int = CHANGES_A_MONTH


BY_OUT_DEGREE: Final = ChangeModel(partial(change_in_degrees, by_out_degree=True))


def crawl_greedily(
    links: PageLinks,
    change: float,
    at: Sequence[int],
    rng: np.random.Generator,
    *,
    model: ChangeModel = BY_OUT_DEGREE,
    rules: EngineRules = PAPER_RULES,
    compiled: bool = True,
) -> Iterator[Moment]:
    """Crawl a graph by Greedy, all pages known, and yield the state after some months.

    Args:
        links: the graph at the start.
        change: share of the pages that change in a month.
        at: numbers of months of N reads, increasing.
        rng: of what changes.
        model: how they change.
        rules: how cash moves.
        compiled: as in `Engine`.
    """
    pages = len(links.starts) - 1
    engine, clocks = Engine(links, replace(rules, measures=MEASURES), compiled=compiled), [0]
    engine.know(np.arange(pages))
    for month in range(1, at[-1] + 1):
        for part in range(model.a_month):
            if change:
                engine.links = model.change(engine.links, round(change * pages / model.a_month), rng)
            engine.read_greedily(pages * (part + 1) // model.a_month - pages * part // model.a_month)
        clocks.append(engine.clock)
        if month in at:
            half = month // 2
            advance = (clocks[-1] - clocks[half]) / (month - half)
            yield Moment(month, engine.past(), advance, engine.links, fixed_point(engine.links, rules))


def parsed_window(window: str) -> Window | None:
    """Return the window that a table of an experiment names: "8" rounds, "365d" days; None for ""."""
    return Window.parse(window if "d" in window else float(window)) if window else None


def shown_window(window: str) -> str:
    """Return the name of such a window in a result: "8 rounds", "365 days"; "" for ""."""
    return window.replace("d", " days") if "d" in window else f"{window} rounds" if window else ""
