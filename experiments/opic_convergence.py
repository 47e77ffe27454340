"""Figures 2 and 3 of the paper on OPIC: how fast the estimates converge by strategy, on a synthetic graph.

The error is the mean over pages of |x - Imp|/Imp, in percent, where Imp is the fixed point: of all pages in figure 2,
of the most important tenth in figure 3. As in the paper, an iteration of the off-line algorithm counts as N reads.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from experiments.algorithms.comparison import kendall_tau
from experiments.opic_engine import PAPER_RULES, Engine, PageLinks, fixed_point, off_line_step
from experiments.result import Progress, Result
from experiments.strategies import STRATEGIES
from experiments.synthetic_graphs import power_law_both_ways, power_law_links
from opic.cli.pictures import Panel
from opic.graph.crawled import Float64s

PAGES, SEEDS, READS_A_PAGE = 100_000, 5, 10
QUICK_PAGES, QUICK_SEEDS = 300, 1
SHOWN: Final = (1, 2, 5, 10)  # Reads a page at which the table gives the error.
OFF_LINE: Final = "off-line"
PAPERS: Final = ("Greedy", "Cycle", "Random")
GRAPHS: Final[dict[str, Callable[[int, np.random.Generator], PageLinks]]] = {
    "in and out": power_law_both_ways,
    "in": power_law_links,
}
COLUMNS: Final = (
    *("degrees", "strategy", "estimate", *(f"error at {n} N" for n in SHOWN), "least", "most"),
    *("L1 at 10 N", "tau at 10 N", "over twice the mean", "cash of a read, in 1/N"),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """The error after so many reads for each page, of (H + C)/(G + 1) and of H/G."""

    reads: float
    error: float
    history_error: float


@dataclass(frozen=True, slots=True)
class StrategyRun:
    """A strategy on one graph.

    samples      after each N reads
    l1, tau      distance from the fixed point, and Kendall's tau, at the end
    over_twice   share of the pages whose error is over twice the mean, at the end
    cash         mean cash of a page when it is read, in shares 1/N of all cash, over the second half
    """

    degrees: str
    strategy: str
    samples: Sequence[Sample]
    l1: float
    tau: float
    over_twice: float
    cash: float


def run_convergence(name: str, progress: Progress, quick: bool) -> Result:
    """Run figure 2 or 3."""
    started, runs = time.perf_counter(), list[StrategyRun]()
    pages, seeds = (QUICK_PAGES, QUICK_SEEDS) if quick else (PAGES, SEEDS)
    important = name == "fig3"
    steps = len(GRAPHS) * seeds
    for number, (degrees, seed) in enumerate((d, s) for d in GRAPHS for s in range(1, seeds + 1)):
        progress(number, steps, f"degrees {degrees}, graph {seed}")
        links = GRAPHS[degrees](pages, np.random.default_rng(seed))
        strategies = list(STRATEGIES) if degrees == "in and out" else PAPERS
        runs += _run_graph(degrees, links, strategies, important, quick)
    progress(steps, steps, "")
    rows = _rows(runs)
    claims = _claims_on_important_pages(runs) if important else _claims(runs)
    return Result(name, claims, COLUMNS, rows, time.perf_counter() - started, _panels(runs), notes=_notes(pages))


def _run_graph(
    degrees: str, links: PageLinks, strategies: Sequence[str], important: bool, quick: bool
) -> Iterator[StrategyRun]:
    truth = fixed_point(links, PAPER_RULES)
    shown = np.argsort(-truth)[: len(truth) // 10] if important else np.arange(len(truth))

    def error(estimate: Float64s) -> Float64s:
        return 100 * np.abs(estimate[shown] - truth[shown]) / truth[shown]

    for name in strategies:
        engine = Engine(links, PAPER_RULES, compiled=not quick)
        engine.know(np.random.default_rng(0).permutation(len(truth)))
        read, samples, clocks = STRATEGIES[name](engine, np.random.default_rng(0)), list[Sample](), [0]
        for n in range(1, READS_A_PAGE + 1):
            read(len(truth))
            clocks.append(engine.clock)
            samples.append(
                Sample(n, float(error(engine.estimate()).mean()), float(error(engine.history_estimate()).mean()))
            )
        late = [after - before for before, after in pairwise(clocks[READS_A_PAGE // 2 :])]
        yield _strategy_run(degrees, name, samples, engine.estimate(), truth, error, float(np.mean(late)))
    step, estimate, samples = off_line_step(links, PAPER_RULES), np.full(len(truth), 1 / len(truth)), []
    for n in range(1, READS_A_PAGE + 1):
        estimate = step(estimate)
        samples.append(Sample(n, float(error(estimate).mean()), np.nan))
    yield _strategy_run(degrees, OFF_LINE, samples, estimate, truth, error, np.nan)


def _strategy_run(  # noqa: PLR0917 - what one run is made of
    degrees: str,
    name: str,
    samples: Sequence[Sample],
    estimate: Float64s,
    truth: Float64s,
    error: Callable[[Float64s], Float64s],
    clock_a_sweep: float,
) -> StrategyRun:
    errors = error(estimate)
    cash = clock_a_sweep / float(1 << 46)
    l1 = float(np.abs(estimate - truth).sum())
    over = float((errors > 2 * errors.mean()).mean())
    return StrategyRun(degrees, name, samples, l1, kendall_tau(estimate, truth), over, cash)


def _of(runs: Sequence[StrategyRun], degrees: str, strategy: str) -> list[StrategyRun]:
    return [run for run in runs if (run.degrees, run.strategy) == (degrees, strategy)]


def error_at(runs: Sequence[StrategyRun], strategy: str, reads: int, degrees: str = "in and out") -> float:
    """Return the median over the graphs of a strategy's error after so many reads for each page."""
    return float(np.median([run.samples[reads - 1].error for run in _of(runs, degrees, strategy)]))


def _rows(runs: Sequence[StrategyRun]) -> list[list[object]]:
    rows: list[list[object]] = []
    for degrees, strategy in dict.fromkeys((run.degrees, run.strategy) for run in runs):
        of = _of(runs, degrees, strategy)
        errors = np.array([[run.samples[n - 1].error for n in SHOWN] for run in of])
        last = [
            [round(float(np.median([getattr(run, name) for run in of])), 4) for name in ("l1", "tau", "over_twice")]
        ]
        cash = "" if strategy == OFF_LINE else round(float(np.median([run.cash for run in of])), 2)
        rows.append([degrees, strategy, "(H+C)/(G+1)", *_spread(errors), *last[0], cash])
        if strategy in PAPERS and degrees == "in and out":
            errors = np.array([[run.samples[n - 1].history_error for n in SHOWN] for run in of])
            rows.append([degrees, strategy, "H/G", *_spread(errors), "", "", "", cash])
    return rows


def _spread(errors: Float64s) -> list[float]:
    """Return the median of each column, and least and most of the last."""
    return [round(float(x), 3) for x in (*np.median(errors, axis=0), errors[:, -1].min(), errors[:, -1].max())]


def _claims(runs: Sequence[StrategyRun]) -> list[dict[str, object]]:
    def ratio(one: str, other: str, reads: int) -> float:
        return error_at(runs, one, reads) / error_at(runs, other, reads)

    greedy = _of(runs, "in and out", "Greedy")
    cash = {name: float(np.median([r.cash for r in _of(runs, "in and out", name)])) for name in PAPERS}
    over = float(np.median([run.over_twice for run in greedy]))
    history = {n: float(np.median([r.samples[n - 1].history_error for r in greedy])) for n in (1, 10)}
    better = {n: error_at(runs, "Greedy", n) / history[n] for n in history}
    far = ", ".join(f"{ratio(OFF_LINE, 'Greedy', n):.2f}" for n in SHOWN)
    return [
        _claim("Greedy's error is about Cycle's", "1", f"{ratio('Greedy', 'Cycle', 10):.2f} at 10 N"),
        _claim("Random's is significantly higher", "> 1", f"{ratio('Random', 'Greedy', 10):.2f} at 10 N"),
        _claim("the off-line algorithm's error is almost Greedy's", "1", f"{far} at 1, 2, 5, 10 N"),
        _claim("a page that Greedy reads has so much cash, in 1/N", "2", f"{cash['Greedy']:.2f}"),
        _claim("a page that Random reads", "1", f"{cash['Random']:.2f}"),
        _claim("pages with more than twice the mean error", "almost none", f"{over:.1%} at 10 N"),
        _claim("(H+C)/(G+1) is marginally better than H/G", "< 1", f"{better[1]:.2f} at 1 N, {better[10]:.2f} at 10 N"),
        *_beyond(runs),
    ]


def _claims_on_important_pages(runs: Sequence[StrategyRun]) -> list[dict[str, object]]:
    others = ("Cycle", "Random", OFF_LINE)
    ratios = {n: {o: round(error_at(runs, "Greedy", n) / error_at(runs, o, n), 2) for o in others} for n in SHOWN}
    return [
        *(
            _claim(
                f"on important pages Greedy is better than {other}",
                "< 1",
                ", ".join(f"{ratios[n][other]} at {n} N" for n in SHOWN),
            )
            for other in others
        ),
        *_beyond(runs),
    ]


def _beyond(runs: Sequence[StrategyRun]) -> list[dict[str, object]]:
    """What the strategies that the paper does not have gain or lose against Greedy."""
    found = []
    for name in (name for name in STRATEGIES if name not in PAPERS):
        ratios = ", ".join(f"{error_at(runs, name, n) / error_at(runs, 'Greedy', n):.2f}" for n in SHOWN)
        found.append(_claim(f"{name}: error, of Greedy's", "not in the paper", f"{ratios} at 1, 2, 5, 10 N"))
    return found


def _claim(claim: str, paper: str, ours: str) -> dict[str, object]:
    return {"claim": claim, "paper": paper, "ours": ours}


def _notes(pages: int) -> list[str]:
    return [
        f"{pages:,} pages, all known from the start; each gives the virtual page as much as each of its links; the "
        "virtual page pays all it has after each read, equally; medians over the graphs, least and most at 10 N",
        "the paper prints its curves without figures, so the claims are those of its text",
        'the paper leaves out the details of its graph: "in and out" draws both degrees by 1/k^2.1 (k < N/10), "in" '
        "draws in-degrees only (k < N/2); the order of the strategies is the same, the level depends on the largest "
        "in-degrees, since the pages that such a page links to take longest",
        "an error in percent of each page's importance is ruled by unimportant pages: L1 and tau are given beside it",
    ]


def _panels(runs: Sequence[StrategyRun]) -> list[Panel]:
    panels = []
    beyond = [name for name in STRATEGIES if name not in PAPERS]
    for title, degrees, names in (
        ("degrees in and out", "in and out", (*PAPERS, OFF_LINE)),
        ("in-degrees only", "in", (*PAPERS, OFF_LINE)),
        ("beyond the paper", "in and out", ("Greedy", *beyond)),
    ):
        lines = {
            name: [(float(n), error_at(runs, name, n, degrees)) for n in range(1, READS_A_PAGE + 1)] for name in names
        }
        panels.append(Panel(title, lines, "reads, in N", "mean relative error, %"))
    return panels
