"""Figures 4, 5 and 6 of the paper on OPIC: window sizes, storage, and window policies on a graph that changes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from experiments.opic_convergence import QUICK_PAGES
from experiments.result import Progress, Result
from experiments.synthetic_graphs import power_law_both_ways
from experiments.window_crawls import (
    FIXED,
    IMPROVED,
    INTERPOLATION,
    STATIC,
    VARIABLE,
    Moment,
    WindowPolicy,
    crawl_greedily,
)
from opic.cli.pictures import Panel
from opic.model.windows import IMPROVED_MEASURES_MIN

PAGES, SEEDS = 100_000, 5
CHANGES: Final = (0.0, 0.01, 0.05, 0.1)  # Share of the pages whose in-degree changes in a month.
COLD, WARM = 10, 22  # Months: as in the paper, and when every window is full.


@dataclass(frozen=True, slots=True)
class WindowFigure:
    """The settings of a figure.

    policies   those compared
    at         months after which they are
    changes    shares of the pages that change in a month
    """

    policies: Sequence[WindowPolicy]
    at: Sequence[int]
    changes: Sequence[float] = CHANGES


FIGURES: Final = {
    "fig4": WindowFigure((VARIABLE[4], VARIABLE[8], VARIABLE[16], INTERPOLATION[4], INTERPOLATION[8], STATIC), (COLD,)),
    "fig5": WindowFigure((VARIABLE[8], FIXED[8], IMPROVED[4], INTERPOLATION[4], FIXED[4]), (WARM,), (0.0,)),
    "fig6": WindowFigure(
        (VARIABLE[8], FIXED[8], FIXED[4], IMPROVED[4], INTERPOLATION[4], INTERPOLATION[8], VARIABLE[4], STATIC),
        (COLD, WARM),
    ),
}
STORED_BY_THE_PAPER: Final = {VARIABLE[8]: 8.0, FIXED[8]: 8.4, IMPROVED[4]: 6.1, INTERPOLATION[4]: 1.0}
COLUMNS: Final = ("change", "months", "policy", "error", "least", "most", "error of the top tenth", "measures a page")


@dataclass(frozen=True, slots=True)
class PolicyError:
    """What a policy makes of one crawl: its errors in percent, and the measures that it needs of a page, mean."""

    change: float
    months: int
    policy: WindowPolicy
    error: float
    top_error: float
    stored: float


def run_windows(name: str, progress: Progress, quick: bool) -> Result:
    """Run figure 4, 5 or 6."""
    started, found, plan = time.perf_counter(), list[PolicyError](), FIGURES[name]
    pages, seeds = (QUICK_PAGES, 1) if quick else (PAGES, SEEDS)
    steps = len(plan.changes) * seeds
    for number, (change, seed) in enumerate((c, s) for c in plan.changes for s in range(1, seeds + 1)):
        progress(number, steps, f"{change:.0%} change, graph {seed}")
        rng = np.random.default_rng(seed)
        links = power_law_both_ways(pages, rng)
        for moment in crawl_greedily(links, change, plan.at, rng, compiled=not quick):
            for policy in plan.policies:
                error, top_error = moment.errors(policy)
                stored = measures_stored(moment, policy)
                found.append(PolicyError(change, moment.months, policy, error, top_error, stored))
    progress(steps, steps, "")
    claims = {"fig4": _claims_on_sizes, "fig5": _claims_on_storage, "fig6": _claims_on_types}[name](found)
    panels = _panels(found) if len(plan.changes) > 1 else _bars(found)
    return Result(name, claims, COLUMNS, _rows(found), time.perf_counter() - started, panels, notes=_notes(name, pages))


def measures_stored(moment: Moment, policy: WindowPolicy) -> float:
    """Return how many measures of a page a policy needs, the mean over all pages.

    Static needs none. Interpolation needs one, from which the history before the last read follows. Fixed has as many
    as there are reads in its window: one a page and month.
    """
    past = moment.past
    kept = np.diff(past.starts)
    if policy.policy in ("fixed", "improved"):
        inside = np.zeros(len(past.clock) + 1, np.int64)
        np.cumsum(past.now - past.clock < policy.months * moment.month, out=inside[1:])
        missing = np.minimum(kept, IMPROVED_MEASURES_MIN) - (inside[past.starts[1:]] - inside[past.starts[:-1]])
        return policy.months + (float(np.maximum(missing, 0).mean()) if policy.policy == "improved" else 0.0)
    most = {"static": 0, "interpolation": 1, "variable": policy.measures}[policy.policy]
    return float(np.minimum(kept, most).mean())


def _median(found: Sequence[PolicyError], of: str, policy: WindowPolicy, change: float = 0.0, months: int = 0) -> float:
    """Return the median over the graphs; of the last moment if `months` is 0."""
    months = months or max(one.months for one in found)
    chosen = [one for one in found if (one.policy, one.change, one.months) == (policy, change, months)]
    return float(np.median([getattr(one, of) for one in chosen]))


def _rows(found: Sequence[PolicyError]) -> list[list[object]]:
    rows: list[list[object]] = []
    for change, months, policy in dict.fromkeys((one.change, one.months, one.policy) for one in found):
        median = partial(_median, found, policy=policy, change=change, months=months)
        of = [one.error for one in found if (one.policy, one.change, one.months) == (policy, change, months)]
        figures = [median("error"), min(of), max(of), median("top_error"), median("stored")]
        rows.append([f"{change:.0%}", months, policy.name, *(round(figure, 2) for figure in figures)])
    return rows


def _claim(claim: str, paper: str | float, ours: str | float) -> dict[str, object]:
    return {"claim": claim, "paper": paper, "ours": ours}


def _by_change(found: Sequence[PolicyError], one: WindowPolicy, other: WindowPolicy, months: int = 0) -> str:
    """Return the ratio of two policies' errors for each change rate."""
    ratios = []
    for change in dict.fromkeys(each.change for each in found):
        a, b = (_median(found, "error", policy, change, months) for policy in (one, other))
        ratios.append(f"{a / b:.2f} at {change:.0%}")
    return ", ".join(ratios)


def _claims_on_sizes(found: Sequence[PolicyError]) -> list[dict[str, object]]:
    return [
        _claim(
            "8 measures come reasonably close to the fixed point",
            "yes",
            f"{_median(found, 'error', VARIABLE[8]):.1f} % off at no change",
        ),
        _claim("with 4 measures the error is larger than with 8", "> 1", _by_change(found, VARIABLE[4], VARIABLE[8])),
        _claim(
            "Interpolation does almost as well as 16 measures at few changes, better above 1 %",
            "1 at 0 %, < 1 above 1 %",
            _by_change(found, INTERPOLATION[4], VARIABLE[16]),
        ),
        _claim(
            "8 months of Interpolation, against 16 measures",
            "not in the paper",
            _by_change(found, INTERPOLATION[8], VARIABLE[16]),
        ),
        _claim("the whole history, against 16 measures", "not in the paper", _by_change(found, STATIC, VARIABLE[16])),
    ]


def _claims_on_storage(found: Sequence[PolicyError]) -> list[dict[str, object]]:
    paper: dict[WindowPolicy, float | str] = {**STORED_BY_THE_PAPER, FIXED[4]: 4.0}
    return [
        _claim(f"{policy.name}: measures a page", figure, round(_median(found, "stored", policy), 2))
        for policy, figure in paper.items()
    ]


def _claims_on_types(found: Sequence[PolicyError]) -> list[dict[str, object]]:
    rows = []
    for months in (COLD, WARM):
        after = f", after {months} months"
        ratio = partial(_by_change, found, months=months)
        rows += [
            _claim("Variable 8 is better than Fixed 8" + after, "< 1", ratio(VARIABLE[8], FIXED[8])),
            _claim("Improved Fixed 4 is better than Fixed 4" + after, "< 1", ratio(IMPROVED[4], FIXED[4])),
            _claim("Interpolation 4 is better than Variable 8" + after, "< 1", ratio(INTERPOLATION[4], VARIABLE[8])),
            _claim(
                "Interpolation 8 against Variable 8" + after, "not in the paper", ratio(INTERPOLATION[8], VARIABLE[8])
            ),
        ]
    return rows


def _notes(name: str, pages: int) -> list[str]:
    notes = [
        f"{pages:,} pages, all known from the start, crawled by Greedy; errors in percent as in figure 2, medians over "
        "the graphs; a month is N reads",
        "change: the share of the pages whose in-degree is halved (two of three) or doubled in a month, a fifth of it "
        "at a time; the paper does not say how many are halved: at this rate the number of links stays as it is",
    ]
    if name == "fig5":
        notes.append(
            "a month of N reads makes Fixed of 8 months keep 8 measures a page by definition; the measures that the "
            "Improved one adds depend on how many pages are read less than three times in its window"
        )
    else:
        notes.append(
            "Interpolation is an exponential average: until the clock has run 2.5 windows the estimate is the whole "
            "history's, and that is what 4 and 8 months show after 10"
        )
    if name == "fig4":
        notes.append(
            "the paper calls its windows here Fixed Windows of M crawls of a page, which is what it calls Variable "
            "Windows elsewhere"
        )
    return notes


def _panels(found: Sequence[PolicyError]) -> list[Panel]:
    panels = []
    policies = tuple(dict.fromkeys(one.policy for one in found))
    changes = tuple(dict.fromkeys(one.change for one in found))
    for months in dict.fromkeys(one.months for one in found):
        for title, of in (("all pages", "error"), ("most important tenth", "top_error")):
            lines = {
                policy.name: [(100 * change, _median(found, of, policy, change, months)) for change in changes]
                for policy in policies
            }
            panels.append(
                Panel(
                    f"{title}, after {months} N",
                    lines,
                    "in-degrees changed a month, %",
                    "mean relative error, %",
                    y_scale="linear",
                )
            )
    return panels


def _bars(found: Sequence[PolicyError]) -> list[Panel]:
    """Return errors against storage: a point for each policy."""
    lines = {
        one.policy.name: [(_median(found, "stored", one.policy), _median(found, "error", one.policy))] for one in found
    }
    return [Panel("no change", lines, "measures a page", "mean relative error, %", y_scale="linear")]
