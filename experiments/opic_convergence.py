"""Figures 2 and 3 of the paper on OPIC: how fast the estimates converge by strategy, on a synthetic graph.

The error is the mean over pages of |x - Imp|/Imp, in percent, where Imp is the fixed point: of all pages in figure 2,
of the most important tenth in figure 3. As in the paper, an iteration of the off-line algorithm counts as N reads.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np

from experiments.algorithms.comparison import kendall_tau
from experiments.opic_engine import PAPER_RULES, Engine, PageLinks, fixed_point, off_line_step
from experiments.skeleton import NOT_IN_THE_PAPER, OPIC_PAPER, Axes, Columns, Experiment, Extreme, Row, Run, claim, keys
from experiments.strategies import STRATEGIES
from experiments.synthetic_graphs import QUICK_PAGES, poisson_links, power_law_both_ways, power_law_links
from opic.arrays import Float64s, Int64s

PAGES, SEEDS, READS_A_PAGE = 100_000, 5, 10
SHOWN: Final = (1, 2, 5, 10)  # Reads a page at which the table gives the error.
AT_SHOWN: Final = "at 1, 2, 5, 10 N"
OFF_LINE: Final = "off-line"
PAPERS: Final = ("Greedy", "Cycle", "Random")
BEYOND: Final = tuple(name for name in STRATEGIES if name not in PAPERS)
IN_AND_OUT, IN, POISSON = "in and out", "in", "Poisson"
GRAPHS: Final[dict[str, Callable[[int, np.random.Generator], PageLinks]]] = {
    IN_AND_OUT: power_law_both_ways,
    IN: power_law_links,
    POISSON: poisson_links,
}
CASH_AND_HISTORY, HISTORY = "(H+C)/(G+1)", "H/G"
LAST: Final = f"error at {SHOWN[-1]} N"
COLUMNS: Final[Columns] = {
    **keys("degrees", "strategy", "estimate"),
    **{f"error at {n} N": 3 for n in SHOWN},
    "least": Extreme(min, LAST, 3),
    "most": Extreme(max, LAST, 3),
    "L1 at 10 N": 4,
    "tau at 10 N": 4,
    "over twice the mean": 4,
    "cash of a read, in 1/N": 2,
}
PANELS: Final = (  # Title, degrees, strategies.
    ("degrees in and out", IN_AND_OUT, (*PAPERS, OFF_LINE)),
    ("in-degrees only", IN, (*PAPERS, OFF_LINE)),
    ("Poisson", POISSON, (*PAPERS, OFF_LINE)),
    ("beyond the paper", IN_AND_OUT, ("Greedy", *BEYOND)),
)
NOTES: Final = (
    "the paper prints its curves without figures, so the claims are those of its text",
    'the paper leaves out the details of its graph: "in and out" draws both degrees by 1/k^2.1 (k < N/10), "in" '
    'draws in-degrees only (k < N/2), "Poisson" draws them by a Poisson distribution of the same mean; the level '
    "depends on the largest in-degrees, since the pages that such a page links to take longest",
    "an error in percent of each page's importance is ruled by unimportant pages: L1 and tau are given beside it",
)


def rows_of(run: Run, *, important: bool) -> Iterator[list[object]]:
    """Yield the errors of each strategy: of all pages, or of the most important tenth."""
    pages, curves = run.either(PAGES, QUICK_PAGES), dict[tuple[str, str], list[float]]()
    for degrees in run.steps(GRAPHS, "degrees {}".format):
        links = GRAPHS[degrees](pages, run.rng(1))
        truth = fixed_point(links, PAPER_RULES)
        shown = np.argsort(-truth)[: pages // 10] if important else np.arange(pages)

        def errors(estimate: Float64s, truth: Float64s = truth, shown: Int64s = shown) -> Float64s:
            relative: Float64s = 100 * np.abs(estimate[shown] - truth[shown]) / truth[shown]
            return relative

        for name in STRATEGIES if degrees == IN_AND_OUT else PAPERS:
            engine = Engine(links, PAPER_RULES, compiled=not run.quick)
            engine.know(np.random.default_rng(0).permutation(pages))
            read, clocks = STRATEGIES[name](engine, np.random.default_rng(0)), [0]
            curve, history = curves.setdefault((degrees, name), []), list[float]()
            for _ in range(READS_A_PAGE):
                read(pages)
                clocks.append(engine.clock)
                curve.append(float(errors(engine.estimate()).mean()))
                history.append(float(errors(engine.history_estimate()).mean()))
            late = [after - before for before, after in pairwise(clocks[READS_A_PAGE // 2 :])]
            cash = float(np.mean(late)) / float(1 << 46)
            end = engine.estimate()
            yield [degrees, name, CASH_AND_HISTORY, *_at_shown(curve), *_end(end, truth, errors(end)), cash]
            if name in PAPERS and degrees == IN_AND_OUT:
                yield [degrees, name, HISTORY, *_at_shown(history), "", "", "", cash]
        step, estimate = off_line_step(links, PAPER_RULES), np.full(pages, 1 / pages)
        curve = curves.setdefault((degrees, OFF_LINE), [])
        for _ in range(READS_A_PAGE):
            estimate = step(estimate)
            curve.append(float(errors(estimate).mean()))
        yield [degrees, OFF_LINE, CASH_AND_HISTORY, *_at_shown(curve), *_end(estimate, truth, errors(estimate)), ""]
    for title, degrees, names in PANELS:
        for name in names:
            run.draw(title, name, [(float(n), error) for n, error in enumerate(curves[degrees, name], 1)])
    run.note(
        f"{pages:,} pages, all known from the start; each gives the virtual page as much as each of its links; the "
        "virtual page pays all it has after each read, equally; medians over the graphs, least and most at 10 N"
    )


def _at_shown(curve: Sequence[float]) -> list[float | None]:
    """Return the errors that the table shows, and room for the least and the greatest."""
    return [*(curve[n - 1] for n in SHOWN), None, None]


def _end(estimate: Float64s, truth: Float64s, errors: Float64s) -> list[float]:
    """Return L1, Kendall's tau, and the share of the pages whose error is over twice the mean."""
    over_twice = float((errors > 2 * errors.mean()).mean())
    return [float(np.abs(estimate - truth).sum()), kendall_tau(estimate, truth), over_twice]


def _by_strategy(rows: Sequence[Row], estimate: str = CASH_AND_HISTORY, degrees: str = IN_AND_OUT) -> dict[str, Row]:
    return {row["strategy"]: row for row in rows if (row["degrees"], row["estimate"]) == (degrees, estimate)}


def _ratios(one: Row, other: Row, reads: Sequence[int] = SHOWN) -> list[str]:
    """Return the ratios of two rows' errors after this number of reads."""
    return [f"{one[f'error at {n} N'] / other[f'error at {n} N']:.2f}" for n in reads]


def claims(rows: Sequence[Row]) -> list[Row]:
    """Return the paper's claims on all pages, and what we found."""
    of, greedy_by_history = _by_strategy(rows), _by_strategy(rows, HISTORY)["Greedy"]
    greedy, cash = of["Greedy"], "cash of a read, in 1/N"
    (to_cycle,), (to_greedy,) = _ratios(greedy, of["Cycle"], (10,)), _ratios(of["Random"], greedy, (10,))
    first, last = _ratios(greedy, greedy_by_history, (1, 10))
    return [
        claim("Greedy's error is about Cycle's", "1", f"{to_cycle} at 10 N"),
        claim("Random's is significantly higher", "> 1", f"{to_greedy} at 10 N"),
        claim(
            "the off-line algorithm's error is almost Greedy's",
            "1",
            f"{', '.join(_ratios(of[OFF_LINE], greedy))} {AT_SHOWN}",
        ),
        claim("a page that Greedy reads has so much cash, in 1/N", "2", f"{greedy[cash]:.2f}"),
        claim("a page that Random reads", "1", f"{of['Random'][cash]:.2f}"),
        claim(
            "pages with more than twice the mean error", "almost none", f"{greedy['over twice the mean']:.1%} at 10 N"
        ),
        claim("(H+C)/(G+1) is marginally better than H/G", "< 1", f"{first} at 1 N, {last} at 10 N"),
        *_on_poisson(rows, greedy),
        *_beyond(of),
    ]


def _on_poisson(rows: Sequence[Row], greedy: Row) -> list[Row]:
    """Return what we found of the claim that graphs by a Poisson distribution give rather similar results."""
    poisson = _by_strategy(rows, degrees=POISSON)
    order = ", ".join(sorted((*PAPERS, OFF_LINE), key=lambda name: float(poisson[name][LAST])))
    ratios = ", ".join(_ratios(poisson["Greedy"], greedy))
    return [
        claim("on a Poisson graph results are similar: Greedy's error, of that here", "1", f"{ratios} {AT_SHOWN}"),
        claim("on a Poisson graph, from the least error at 10 N", "as here", order),
    ]


def claims_on_important_pages(rows: Sequence[Row]) -> list[Row]:
    """Return the paper's claims on the most important tenth, and what we found."""
    of = _by_strategy(rows)
    found = []
    for other in ("Cycle", "Random", OFF_LINE):
        ratios = [f"{float(ratio)} at {n} N" for ratio, n in zip(_ratios(of["Greedy"], of[other]), SHOWN, strict=True)]
        found.append(claim(f"on important pages Greedy is better than {other}", "< 1", ", ".join(ratios)))
    return [*found, *_beyond(of)]


def _beyond(of: dict[str, Row]) -> list[Row]:
    """What the strategies that the paper does not have gain or lose against Greedy."""
    return [
        claim(
            f"{name}: error, of Greedy's",
            NOT_IN_THE_PAPER,
            f"{', '.join(_ratios(of[name], of['Greedy']))} {AT_SHOWN}",
        )
        for name in BEYOND
    ]


FIGURES: Final = tuple(
    Experiment(
        name,
        title,
        OPIC_PAPER,
        COLUMNS,
        partial(rows_of, important=important),
        paper=paper,
        notes=NOTES,
        axes=Axes("reads, in N", "mean relative error, %"),
        runs=SEEDS,
        combine=median,
    )
    for name, title, important, paper in (
        ("fig2", "convergence by crawling strategy", False, claims),
        ("fig3", "the same, on the most important tenth", True, claims_on_important_pages),
    )
)
