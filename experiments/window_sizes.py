"""Windows against their size: bias and variance, the paper's residual bound, how fast estimates follow a change.

On a graph that does not change, a small window is noisy and a large one is not; that is the variance. On one that
changes, a large window shows what was; that is the lag. Windows are in months of N reads, in rounds, or in days of a
crawl whose speed varies.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

import numpy as np
from scipy import sparse

from experiments.opic_engine import PAPER_RULES, Engine, EngineRules, PageLinks, fixed_point, off_line_step
from experiments.opic_reads import FEW, reachable
from experiments.recorded_graphs import load_graph
from experiments.skeleton import OPIC_PAPER, Axes, Experiment, Row, Run, keys
from experiments.synthetic_graphs import QUICK_PAGES, change_in_degrees, power_law_both_ways
from experiments.window_crawls import (
    FIXED,
    IMPROVED,
    INTERPOLATION,
    MEASURES,
    STATIC,
    VARIABLE,
    crawl_greedily,
    shown_window,
)
from opic.arrays import Float64s, Int64s
from opic.model.books import Books
from opic.model.cash import DAY_US, MINTED_CONTINUOUS, ROUND_BITS
from opic.model.series import Entry, Window
from opic.model.windows import Past, estimate

PAGES, SEEDS = 10_000, 3
MONTHS = 40
SAMPLES: Final = range(24, MONTHS + 1)  # Months at which a graph that does not change is looked at.
SIZES: Final = (1, 2, 4, 8, 16)
POLICIES: Final = (*FIXED.values(), *IMPROVED.values(), *VARIABLE.values(), *INTERPOLATION.values(), STATIC)
RECORDED: Final = ("hollins", "wikispeedia")  # Both ship with the repository.
RECORDED_READS: Final = 3  # Reads a page.
DAMPED: Final = EngineRules(continuous=True)
EXACT: Final = "H over T"  # The paper's definition in section 3.2, from all histories.
WHOLE: Final = "H/G"


def sizes(run: Run) -> Iterator[list[object]]:
    """Yield the figures of each window on a graph that does not change; in the first run, also of crawls from seeds."""
    pages = run.either(PAGES, QUICK_PAGES)
    links = power_law_both_ways(pages, run.rng(1))
    moments = list(crawl_greedily(links, 0.0, range(1, MONTHS + 1), np.random.default_rng(0), compiled=not run.quick))
    truth, step = moments[-1].truth, off_line_step(links, PAPER_RULES)
    for size in SIZES:
        pairs = [(moments[month - 1].past, moments[month - 1 - size].past) for month in SAMPLES]
        spans = [late.now - early.now for late, early in pairs]
        series = [(late.history - early.history) / span for (late, early), span in zip(pairs, spans, strict=True)]
        residual = float(np.mean([np.abs(step(x) - x).max() for x in series]))
        bound = MINTED_CONTINUOUS / float(np.mean(spans))
        yield [EXACT, f"{size} months", *_figures(series, truth), residual, bound, None]
    for policy in POLICIES:
        series = [moments[month - 1].estimate(policy) for month in SAMPLES]
        name, _, window = policy.name.partition(" ") if policy is not STATIC else (policy.name, "", "")
        yield [name, window.removeprefix("Fixed "), *_figures(series, truth), "", "", ""]
    whole = moments[-1].past
    yield _whole(f"{MONTHS} months", whole.history / whole.now, whole.now, links, PAPER_RULES)
    for name, (graph, seeds) in _graphs_elsewhere(run).items() if not run.number else ():
        engine = Engine(graph, DAMPED, compiled=not run.quick)
        engine.know(seeds)
        engine.read_greedily(RECORDED_READS * len(engine))
        yield _whole(f"{RECORDED_READS} N, {name}", engine.history_estimate(), engine.clock, graph, DAMPED)
    run.note(
        f"{pages:,} pages, all known, crawled by Greedy for {MONTHS} months of N reads, no link changing; percent of "
        f"the truth, means over the pages; over time: the months {SAMPLES[0]} to {SAMPLES[-1]}"
    )


def _whole(window: str, x: Float64s, clock: float, links: PageLinks, rules: EngineRules) -> list[object]:
    """Return the figures of H/G, and the greatest residual of a page beside the paper's bound."""
    residual = float(np.abs(off_line_step(links, rules)(x) - x).max())
    return [WHOLE, window, *_figures([x], fixed_point(links, rules)), residual, MINTED_CONTINUOUS / clock, None]


def _graphs_elsewhere(run: Run) -> dict[str, tuple[PageLinks, Int64s]]:
    """Return graphs to be crawled from a few seeds with damping 0.85: recorded ones, and two halves."""
    half = 50
    web = np.kron(np.eye(2), np.ones((half, half))) - np.eye(2 * half)
    web[0, half] = web[half, 0] = 1
    graphs = {"two halves": (PageLinks.of(sparse.csr_array(web)), np.arange(1))}
    for name in RECORDED:
        graphs[name] = reachable(PageLinks.of(load_graph(name, run.data).links), FEW, np.random.default_rng(1))
    return graphs


def _figures(series: Sequence[Float64s], truth: Float64s) -> list[float]:
    """Return bias, deviation and error in percent, means over the pages, and the L1 of the last estimate."""
    table, mean = np.array(series), 100 / truth
    return [
        float((np.abs(table.mean(axis=0) - truth) * mean).mean()),
        float((table.std(axis=0) * mean).mean()),
        float((np.abs(table - truth) * mean).mean()),
        float(np.abs(table[-1] - truth).sum()),
    ]


def _in_bounds(run: Run, rows: list[Row]) -> list[Row]:
    """Say how many times the bound the L1 error is, and draw the figures by size of the window."""
    for row in rows:
        if row["bound 1/|H|"]:
            row["L1 in bounds"] = row["L1"] / row["bound 1/|H|"]
        size, unit, *_ = (*str(row["window"]).split(), "", "")
        if size and row["estimate"] != WHOLE:
            for title in ("bias", "deviation", "error"):
                run.draw(title, f"{row['estimate']} ({unit})", [(float(size), row[title])])
    return rows


OPIC_WINDOWS: Final = Experiment(
    "opic-windows",
    "bias and variance by size of the window, and the bound 1/|H|",
    OPIC_PAPER,
    {
        **keys("estimate", "window"),
        **dict.fromkeys(("bias", "deviation", "error"), 3),
        "L1": 5,
        **dict.fromkeys(("greatest residual of a page", "bound 1/|H|"), ".2g"),
        "L1 in bounds": 2,
    },
    sizes,
    notes=(
        "bias: of the mean over time; deviation: over time; a bias of a few deviations over the root of their number, "
        f"{len(SAMPLES)}, is chance",
        f'"{EXACT}" is (H_t - H_t-T)/T; its residual |L x - x| of each page is below 1/|H| as the paper proves, but '
        "that is no bound on the error: the last column says how many times the L1 error is larger",
    ),
    axes=Axes("window", "% of the importance", "log"),
    runs=SEEDS,
    combine=median,
    finish=_in_bounds,
)

# How fast estimates follow.

CHANGE_AT: Final = 24  # Months.
CHANGED: Final = 0.02  # Share of the pages whose in-degree changes then, at once.
FOLLOWED: Final = (1, 2, 4, 8, 16)  # Months after the change.
FOLLOWERS: Final = (
    *(INTERPOLATION[1], INTERPOLATION[2], INTERPOLATION[4], INTERPOLATION[8]),
    *(VARIABLE[4], VARIABLE[8], FIXED[4], FIXED[8], IMPROVED[4], STATIC),
)


def follow(run: Run) -> Iterator[list[object]]:
    """Yield the error of each policy some months after a change, and in the end that of pages that did not change."""
    pages, rng = run.either(PAGES, QUICK_PAGES), run.rng(1)
    links = power_law_both_ways(pages, rng)
    changed = change_in_degrees(links, round(CHANGED * pages), rng)
    before, after = fixed_point(links, PAPER_RULES), fixed_point(changed, PAPER_RULES)
    moved = np.abs(after / before - 1) >= 0.2
    engine = Engine(links, replace(PAPER_RULES, measures=MEASURES), compiled=not run.quick)
    engine.know(np.arange(pages))
    engine.read_greedily(CHANGE_AT // 2 * pages)
    half = engine.clock
    engine.read_greedily(CHANGE_AT // 2 * pages)
    month = (engine.clock - half) / (CHANGE_AT // 2)
    engine.links, done = changed, 0
    errors: dict[str, list[float]] = {policy.name: [] for policy in FOLLOWERS}
    for months in FOLLOWED:
        engine.read_greedily((months - done) * pages)
        past, done = engine.past(), months
        for policy in FOLLOWERS:
            x = estimate(policy.policy, past, policy.months * month, policy.measures)
            error = 100 * np.abs(x - after) / after
            errors[policy.name].append(float(error[moved].mean()))
            run.draw("pages that changed", policy.name, [(float(months), errors[policy.name][-1])])
            if months == FOLLOWED[-1]:
                errors[policy.name].append(float(error[~moved].mean()))
    run.note(
        f"{pages:,} pages, all known, crawled by Greedy; after {CHANGE_AT} months of N reads, {CHANGED:.0%} of the "
        "pages have their in-degree halved or doubled at once"
    )
    yield from ([name, *of] for name, of in errors.items())


OPIC_FOLLOW: Final = Experiment(
    "opic-follow",
    "how fast the estimates follow a change",
    OPIC_PAPER,
    {**keys("policy"), **{f"error {n} months after": 2 for n in FOLLOWED}, "error of unchanged pages": 2},
    follow,
    notes=(
        "errors in percent: of the pages whose importance changed by a fifth or more, and, in the last column, of all "
        f"others {FOLLOWED[-1]} months after",
    ),
    axes=Axes("months of N reads since", "mean relative error, %", y_scale="linear"),
    runs=SEEDS,
    combine=median,
)

# Days and rounds.

DAYS, WARM_DAYS, PHASE_DAYS = 64, 32, 8
READS_A_DAY: Final = {"busy": 2.0, "quiet": 0.25}  # In N; phases of PHASE_DAYS take turns.
CHANGE_A_DAY: Final = 0.01  # Share of the pages whose in-degree changes.
DAY_WINDOWS: Final = ("2", "8", "32", "2d", "8d", "16d")


def days(run: Run) -> Iterator[list[object]]:
    """Yield the error of each policy and window in a crawl whose speed varies, on a graph that changes evenly."""
    pages, rng = run.either(PAGES, QUICK_PAGES), run.rng(1)
    engine = Engine(power_law_both_ways(pages, rng), replace(PAPER_RULES, measures=MEASURES), compiled=not run.quick)
    engine.know(np.arange(pages))
    series, found = [Entry(0, 0, 0)], dict[tuple[str, str], dict[str, list[float]]]()
    for day in range(1, DAYS + 1):
        phase = "busy" if (day - 1) // PHASE_DAYS % 2 == 0 else "quiet"
        engine.links = change_in_degrees(engine.links, round(CHANGE_A_DAY * pages), rng)
        engine.read_greedily(round(READS_A_DAY[phase] * pages))
        series.append(Entry(day * DAY_US, (engine.clock << ROUND_BITS) // MINTED_CONTINUOUS, engine.clock))
        if day > WARM_DAYS and day % PHASE_DAYS == 0:
            truth, past = fixed_point(engine.links, PAPER_RULES), engine.past()
            for policy, window, x in _day_estimates(past, series, pages):
                errors = found.setdefault((policy, window), {name: [] for name in READS_A_DAY})
                errors[phase].append(float((100 * np.abs(x - truth) / truth).mean()))
    run.note(
        f"{pages:,} pages, all known, crawled by Greedy: {PHASE_DAYS} days of {READS_A_DAY['busy']:g} N reads, then "
        f"{PHASE_DAYS} of {READS_A_DAY['quiet']:g} N, and so on for {DAYS} days; each day {CHANGE_A_DAY:.0%} of the "
        f"pages have their in-degree halved or doubled; errors in percent, mean over the phases after day {WARM_DAYS}"
    )
    for (policy, window), errors in found.items():
        means = [float(np.mean(errors[phase])) for phase in READS_A_DAY]
        run.draw("busy (0) and quiet (1) phases", f"{policy} {shown_window(window)}", enumerate(means))
        yield [policy, shown_window(window), *means]


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


OPIC_DAYS: Final = Experiment(
    "opic-days",
    "windows in days and in rounds, in a crawl of varying speed",
    OPIC_PAPER,
    {**keys("policy", "window"), **{f"error at the end of {phase} phases": 2 for phase in READS_A_DAY}},
    days,
    notes=(
        "the window in days is mapped onto the clock by the service's own series (`opic.model.series`); a round is the "
        "clock advancing by all cash, half of N reads of Greedy",
    ),
    axes=Axes("phase", "mean relative error, %", y_scale="linear"),
    runs=SEEDS,
)
