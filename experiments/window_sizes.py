"""Windows against their size: bias and variance, the paper's residual bound, how fast estimates follow a change.

On a graph that does not change, a small window is noisy and a large one is not; that is the variance. On one that
changes, a large window shows what was; that is the lag. Windows are in months of N reads, in rounds, or in days of a
crawl whose speed varies.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from scipy import sparse

from experiments.opic_convergence import QUICK_PAGES
from experiments.opic_engine import PAPER_RULES, Engine, EngineRules, PageLinks, fixed_point, off_line_step
from experiments.opic_reads import FEW, reachable
from experiments.recorded_graphs import load_graph
from experiments.result import Progress, Result
from experiments.synthetic_graphs import change_in_degrees, power_law_both_ways
from experiments.window_crawls import (
    FIXED,
    IMPROVED,
    INTERPOLATION,
    MEASURES,
    STATIC,
    VARIABLE,
    WindowPolicy,
    crawl_greedily,
    shown_window,
)
from opic.cli.pictures import Panel
from opic.graph.crawled import Float64s
from opic.model.cash import DAY_US, MINTED_CONTINUOUS, ROUND_BITS, Books
from opic.model.series import Entry, Window
from opic.model.windows import Past, estimate

PAGES, SEEDS = 10_000, 3
MONTHS = 40
SAMPLES: Final = range(24, MONTHS + 1)  # Months at which a graph that does not change is looked at.
SIZES: Final = (1, 2, 4, 8, 16)
CHANGE_AT: Final = 24  # Months.
CHANGED: Final = 0.02  # Share of the pages whose in-degree changes then, at once.
FOLLOWED: Final = (1, 2, 4, 8, 16)  # Months after the change.
SIZE_COLUMNS: Final = (
    *("estimate", "window", "bias", "deviation", "error", "L1"),
    *("greatest residual of a page", "bound 1/|H|", "L1 in bounds"),
)
POLICIES: Final = (*FIXED.values(), *IMPROVED.values(), *VARIABLE.values(), *INTERPOLATION.values(), STATIC)
RECORDED: Final = ("hollins", "wikispeedia")  # Both ship with the repository.
RECORDED_READS: Final = 3  # Reads a page.
DAMPED: Final = EngineRules(continuous=True)
EXACT: Final = "H over T"  # The paper's definition in section 3.2, from all histories.


@dataclass(frozen=True, slots=True)
class SizeFigures:
    """Of one estimate on one graph. Relative figures are means over the pages, in percent.

    bias       |mean over time - truth|/truth
    deviation  standard deviation over time, of the truth
    error      |estimate - truth|/truth, mean over time too
    l1         of the last estimate
    residual   max of |L x - x| over the pages, mean over time; NaN where there is no window of the clock
    bound      1/|H| of the window, the whole cash being 1
    """

    name: str
    window: str
    bias: float
    deviation: float
    error: float
    l1: float
    residual: float
    bound: float


def run_sizes(data: Path | None, progress: Progress, quick: bool) -> Result:
    """Run the experiment on bias and variance, and on the bound.

    Raises:
        NoGraph: a recorded graph is missing.
    """
    started, found = time.perf_counter(), list[SizeFigures]()
    pages, seeds = (QUICK_PAGES, 1) if quick else (PAGES, SEEDS)
    for seed in range(1, seeds + 1):
        progress(seed - 1, seeds, f"graph {seed}")
        found += _sizes_on(power_law_both_ways(pages, np.random.default_rng(seed)), compiled=not quick)
    found += _bounds_elsewhere(data, compiled=not quick)
    progress(seeds, seeds, "")
    rows: list[list[object]] = []
    for name, window in dict.fromkeys((one.name, one.window) for one in found):
        of = [one for one in found if (one.name, one.window) == (name, window)]
        medians = {
            field: float(np.median([getattr(one, field) for one in of]))
            for field in ("bias", "deviation", "error", "l1", "residual", "bound")
        }
        figures = [round(medians[field], 3) for field in ("bias", "deviation", "error")] + [round(medians["l1"], 5)]
        bounded = not np.isnan(medians["residual"])
        rows.append(
            [name, window, *figures]
            + ([f"{medians['residual']:.2g}", f"{medians['bound']:.2g}"] if bounded else ["", ""])
            + [round(medians["l1"] / medians["bound"], 2) if bounded else ""]
        )
    seconds = time.perf_counter() - started
    return Result("opic-windows", [], SIZE_COLUMNS, rows, seconds, _size_panels(rows), notes=_size_notes(pages))


def _sizes_on(links: PageLinks, *, compiled: bool) -> list[SizeFigures]:
    moments = list(crawl_greedily(links, 0.0, range(1, MONTHS + 1), np.random.default_rng(0), compiled=compiled))
    truth, step = moments[-1].truth, off_line_step(links, PAPER_RULES)
    found = []
    for size in SIZES:
        pairs = [(moments[month - 1].past, moments[month - 1 - size].past) for month in SAMPLES]
        spans = [late.now - early.now for late, early in pairs]
        series = [(late.history - early.history) / span for (late, early), span in zip(pairs, spans, strict=True)]
        residual = float(np.mean([np.abs(step(x) - x).max() for x in series]))
        bound = MINTED_CONTINUOUS / float(np.mean(spans))
        found.append(_figures(EXACT, f"{size} months", series, truth, residual, bound))
    for policy in POLICIES:
        series = [moments[month - 1].estimate(policy) for month in SAMPLES]
        name, _, window = policy.name.partition(" ") if policy is not STATIC else (policy.name, "", "")
        found.append(_figures(name, window.removeprefix("Fixed "), series, truth, np.nan, np.nan))
    whole = moments[-1].past
    x = whole.history / whole.now
    residual, bound = float(np.abs(step(x) - x).max()), MINTED_CONTINUOUS / whole.now
    return [*found, _figures("H/G", f"{MONTHS} months", [x], truth, residual, bound)]


def _bounds_elsewhere(data: Path | None, *, compiled: bool) -> list[SizeFigures]:
    """Return the figures of H/G with damping 0.85 for crawls from a few seeds: recorded graphs, and two halves."""
    half = 50
    web = np.kron(np.eye(2), np.ones((half, half))) - np.eye(2 * half)
    web[0, half] = web[half, 0] = 1
    graphs = {"two halves": (PageLinks.of(sparse.csr_array(web)), np.arange(1))}
    for name in RECORDED:
        graphs[name] = reachable(PageLinks.of(load_graph(name, data).links), FEW, np.random.default_rng(1))
    found = []
    for name, (links, seeds) in graphs.items():
        engine = Engine(links, DAMPED, compiled=compiled)
        engine.know(seeds)
        engine.read_greedily(RECORDED_READS * len(engine))
        x, truth = engine.history_estimate(), fixed_point(links, DAMPED)
        residual = float(np.abs(off_line_step(links, DAMPED)(x) - x).max())
        bound = MINTED_CONTINUOUS / engine.clock
        found.append(_figures("H/G", f"{RECORDED_READS} N, {name}", [x], truth, residual, bound))
    return found


def _figures(  # noqa: PLR0917 - one row
    name: str, window: str, series: Sequence[Float64s], truth: Float64s, residual: float, bound: float
) -> SizeFigures:
    table = np.array(series)
    mean = 100 / truth
    return SizeFigures(
        name,
        window,
        bias=float((np.abs(table.mean(axis=0) - truth) * mean).mean()),
        deviation=float((table.std(axis=0) * mean).mean()),
        error=float((np.abs(table - truth) * mean).mean()),
        l1=float(np.abs(table[-1] - truth).sum()),
        residual=residual,
        bound=bound,
    )


def _size_notes(pages: int) -> list[str]:
    return [
        f"{pages:,} pages, all known, crawled by Greedy for {MONTHS} months of N reads, no link changing; percent of "
        f"the truth, means over the pages; over time: the months {SAMPLES[0]} to {SAMPLES[-1]}",
        "bias: of the mean over time; deviation: over time; a bias of a few deviations over the root of their number, "
        f"{len(SAMPLES)}, is chance",
        f'"{EXACT}" is (H_t - H_t-T)/T; its residual |L x - x| of each page is below 1/|H| as the paper proves, but '
        "that is no bound on the error: the last column says how many times the L1 error is larger",
    ]


def _size_panels(rows: Sequence[Sequence[object]]) -> list[Panel]:
    panels = []
    for title, column in (("bias", 2), ("deviation", 3), ("error", 4)):
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            size = str(row[1]).split()
            if size and row[0] != "H/G":
                name = f"{row[0]} ({size[1]})"
                lines.setdefault(name, []).append((float(size[0]), float(str(row[column]))))
        panels.append(Panel(title, lines, "window", "% of the importance", x_scale="log"))
    return panels


# How fast estimates follow.

FOLLOW_COLUMNS: Final = ("policy", *(f"error {n} months after" for n in FOLLOWED), "error of unchanged pages")
FOLLOWERS: Final = (
    *(INTERPOLATION[1], INTERPOLATION[2], INTERPOLATION[4], INTERPOLATION[8]),
    *(VARIABLE[4], VARIABLE[8], FIXED[4], FIXED[8], IMPROVED[4], STATIC),
)


def run_follow(progress: Progress, quick: bool) -> Result:
    """Run the experiment on a change at one moment, and on windows in days and in rounds."""
    started, found = time.perf_counter(), dict[WindowPolicy, list[list[float]]]()
    pages, seeds = (QUICK_PAGES, 1) if quick else (PAGES, SEEDS)
    for seed in range(1, seeds + 1):
        progress(seed - 1, seeds, f"graph {seed}")
        for policy, errors in _followed(pages, seed, compiled=not quick).items():
            found.setdefault(policy, []).append(errors)
    progress(seeds, seeds, "")
    rows: list[list[object]] = [
        [policy.name, *(round(float(x), 2) for x in np.median(np.array(errors), axis=0))]
        for policy, errors in found.items()
    ]
    notes = [
        f"{pages:,} pages, all known, crawled by Greedy; after {CHANGE_AT} months of N reads, {CHANGED:.0%} of the "
        "pages have their in-degree halved or doubled at once",
        "errors in percent: of the pages whose importance changed by a fifth or more, and, in the last column, of all "
        f"others {FOLLOWED[-1]} months after",
    ]
    lines = {str(row[0]): [(float(n), float(str(x))) for n, x in zip(FOLLOWED, row[1:], strict=False)] for row in rows}
    panels = [Panel("pages that changed", lines, "months of N reads since", "mean relative error, %", y_scale="linear")]
    return Result("opic-follow", [], FOLLOW_COLUMNS, rows, time.perf_counter() - started, panels, notes=notes)


def _followed(pages: int, seed: int, *, compiled: bool) -> dict[WindowPolicy, list[float]]:
    rng = np.random.default_rng(seed)
    links = power_law_both_ways(pages, rng)
    changed = change_in_degrees(links, round(CHANGED * pages), rng)
    before, after = fixed_point(links, PAPER_RULES), fixed_point(changed, PAPER_RULES)
    moved = np.abs(after / before - 1) >= 0.2
    engine = Engine(links, replace(PAPER_RULES, measures=MEASURES), compiled=compiled)
    engine.know(np.arange(pages))
    engine.read_greedily(CHANGE_AT // 2 * pages)
    half = engine.clock
    engine.read_greedily(CHANGE_AT // 2 * pages)
    month = (engine.clock - half) / (CHANGE_AT // 2)
    engine.links, done = changed, 0
    found: dict[WindowPolicy, list[float]] = {policy: [] for policy in FOLLOWERS}
    for months in FOLLOWED:
        engine.read_greedily((months - done) * pages)
        past, done = engine.past(), months
        for policy in FOLLOWERS:
            x = estimate(policy.policy, past, policy.months * month, policy.measures)
            error = 100 * np.abs(x - after) / after
            found[policy].append(float(error[moved].mean()))
            if months == FOLLOWED[-1]:
                found[policy].append(float(error[~moved].mean()))
    return found


# Days and rounds.

DAYS, WARM_DAYS, PHASE_DAYS = 64, 32, 8
READS_A_DAY: Final = {"busy": 2.0, "quiet": 0.25}  # In N; phases of PHASE_DAYS take turns.
CHANGE_A_DAY: Final = 0.01  # Share of the pages whose in-degree changes.
DAY_WINDOWS: Final = ("2", "8", "32", "2d", "8d", "16d")
DAY_COLUMNS: Final = ("policy", "window", "error at the end of busy phases", "error at the end of quiet phases")


def run_days(progress: Progress, quick: bool) -> Result:
    """Run the experiment on a crawl whose speed varies, on a graph that changes evenly in time."""
    started, found = time.perf_counter(), dict[tuple[str, str, str], list[float]]()
    pages, seeds = (QUICK_PAGES, 1) if quick else (PAGES, SEEDS)
    for seed in range(1, seeds + 1):
        progress(seed - 1, seeds, f"graph {seed}")
        for key, errors in _by_days(pages, seed, compiled=not quick).items():
            found.setdefault(key, []).extend(errors)
    progress(seeds, seeds, "")
    rows: list[list[object]] = []
    for policy, window in dict.fromkeys((policy, window) for policy, window, _ in found):
        means = [round(float(np.mean(found[policy, window, phase])), 2) for phase in READS_A_DAY]
        rows.append([policy, shown_window(window), *means])
    notes = [
        f"{pages:,} pages, all known, crawled by Greedy: {PHASE_DAYS} days of {READS_A_DAY['busy']:g} N reads, then "
        f"{PHASE_DAYS} of {READS_A_DAY['quiet']:g} N, and so on for {DAYS} days; each day {CHANGE_A_DAY:.0%} of the "
        f"pages have their in-degree halved or doubled; errors in percent, mean over the phases after day {WARM_DAYS}",
        "the window in days is mapped onto the clock by the service's own series (`opic.model.series`); a round is the "
        "clock advancing by all cash, half of N reads of Greedy",
    ]
    lines = {f"{row[0]} {row[1]}": [(float(place), float(str(row[2 + place]))) for place in range(2)] for row in rows}
    panels = [Panel("busy (0) and quiet (1) phases", lines, "phase", "mean relative error, %", y_scale="linear")]
    return Result("opic-days", [], DAY_COLUMNS, rows, time.perf_counter() - started, panels, notes=notes)


def _by_days(pages: int, seed: int, *, compiled: bool) -> dict[tuple[str, str, str], list[float]]:
    rng = np.random.default_rng(seed)
    engine = Engine(power_law_both_ways(pages, rng), replace(PAPER_RULES, measures=MEASURES), compiled=compiled)
    engine.know(np.arange(pages))
    series, found = [Entry(0, 0, 0)], dict[tuple[str, str, str], list[float]]()
    for day in range(1, DAYS + 1):
        phase = "busy" if (day - 1) // PHASE_DAYS % 2 == 0 else "quiet"
        engine.links = change_in_degrees(engine.links, round(CHANGE_A_DAY * pages), rng)
        engine.read_greedily(round(READS_A_DAY[phase] * pages))
        series.append(Entry(day * DAY_US, (engine.clock << ROUND_BITS) // MINTED_CONTINUOUS, engine.clock))
        if day > WARM_DAYS and day % PHASE_DAYS == 0:
            truth, past = fixed_point(engine.links, PAPER_RULES), engine.past()
            for policy, window, x in _day_estimates(past, series, pages):
                found.setdefault((policy, window, phase), []).append(float((100 * np.abs(x - truth) / truth).mean()))
    return found


def _day_estimates(past: Past, series: Sequence[Entry], pages: int) -> list[tuple[str, str, Float64s]]:
    last = series[-1]
    books = Books(time_us=last.time_us, rounds=last.rounds, clock=last.clock, live=pages)
    found = [
        ("whole history", "", estimate("static", past, 1.0, 2)),
        ("variable", "", estimate("variable", past, 1, 8)),
    ]
    for window in DAY_WINDOWS:
        grains = Window.parse(window).grains(series, books, MINTED_CONTINUOUS)
        found += [(policy, window, estimate(policy, past, grains, 8)) for policy in ("interpolation", "fixed")]
    return found
