"""The derivative of importance: how well it is told from windows, and what it is good for.

The paper's conclusion: "we are also continuing our experiments on changing graphs and in particular on the estimate of
the derivative of the importance", and "one issue is ... the choice of (adaptable) time windows". Here the derivative of
a page is the change from one window to the next, as the logarithm of their ratio over the window's length.

It has two uses. A window shows what was half of its length ago, and the derivative tells what has come since:
extrapolation. And where it stands out of the noise, a page's window can be halved: an adaptive window. Two halves of a
window in which a page was read n times differ by about 1/sqrt(n) of their mean where nothing changed.
"""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from experiments.measure_compression import GROUPED, grouped
from experiments.read_records import ReadRecord, recorded_crawl
from experiments.skeleton import NOT_IN_THE_PAPER, OPIC_PAPER, Axes, Experiment, Row, Run, claim, keys
from experiments.synthetic_graphs import QUICK_PAGES, power_law_both_ways
from experiments.window_crawls import FIXED, INTERPOLATION, STATIC, VARIABLE
from opic.arrays import Float64s, Int64s

PAGES, SEEDS, GRAPHS_FROM, CHANGES_FROM = 10_000, 5, 201, 301
MONTHS, MONTHS_QUICK = 32, 20
RATES: Final = (0.0, 0.01, 0.05, 0.1)
WINDOWS: Final = (1, 2, 4, 8)
CHANGED: Final = 1.25  # A page whose importance grew or fell by this factor within a window has changed.
ADAPTIVE_MONTHS: Final = (8, 4, 2)
STANDS_OUT: Final = 0.3  # Times 1/sqrt(n): chosen on a graph that is none of these.
HALF: Final = 0.5
POLICIES: Final = (STATIC, VARIABLE[4], VARIABLE[8], FIXED[8], INTERPOLATION[2], INTERPOLATION[4], INTERPOLATION[8])
DERIVATIVE, ESTIMATE = "derivative", "estimate"
ADAPTIVE: Final = "adaptive, 8 to 2 months"
ADAPTIVE_GROUPED: Final = f"{ADAPTIVE}, {GROUPED}"
NONE: Final = ("",) * 6


def derivative(record: ReadRecord, months: float) -> Float64s:
    """(n,) Return the growth of each page's importance a month, ln(x/x')/T, from the last two windows of T months."""
    after, before = (np.maximum(record.window(months, ago), 1e-15) for ago in (0, months))
    grown: Float64s = np.log(after / before) / months
    return grown


def stands_out(record: ReadRecord, months: float, reads: Int64s) -> NDArray[np.bool_]:
    """(n,) Return whether the halves of a page's window, with so many reads, differ by more than noise has them."""
    after, before = record.window(months / 2), record.window(months / 2, months / 2)
    found: NDArray[np.bool_] = np.abs(after - before) * np.sqrt(np.maximum(reads, 1)) > STANDS_OUT * (after + before)
    return found


def adaptive(record: ReadRecord, reads: ReadRecord) -> Float64s:
    """(n,) Return the estimate from windows that are halved, page by page, while a page's derivative stands out.

    Args:
        record: the measures, which may be grouped.
        reads: the same, not grouped, to count reads.
    """
    estimate, changing = record.window(ADAPTIVE_MONTHS[0]), np.ones(len(record.held), np.bool_)
    for months in ADAPTIVE_MONTHS[:-1]:
        changing = changing & stands_out(record, months, reads.reads_since(months))
        estimate = np.where(changing, record.window(months / 2), estimate)
    whole: Float64s = estimate / estimate.sum()
    return whole


def extrapolated(record: ReadRecord, months: float) -> Float64s:
    """(n,) Return the window's estimate moved half of the way that its derivative says it lags behind.

    The window's mean is half a window old; the derivative is that between its halves, at most a factor of e.
    """
    lag = np.clip(derivative(record, months / 2) * months / 2, -1, 1)
    moved = record.window(months) * np.exp(HALF * lag)
    whole: Float64s = moved / moved.sum()
    return whole


def rows_of(run: Run) -> Iterator[list[object]]:
    """Yield how well derivatives are told, and the errors of estimates."""
    pages, months = run.either(PAGES, QUICK_PAGES), run.either(MONTHS, MONTHS_QUICK)
    for change in run.steps(RATES, "change {:.0%} a month".format):
        links = power_law_both_ways(pages, run.rng(GRAPHS_FROM))
        (record,) = recorded_crawl(links, change, (months,), run.rng(CHANGES_FROM), compiled=not run.quick)
        for window in WINDOWS:
            yield [DERIVATIVE, f"{window} months", f"{change:.0%}", *_told(record, window), "", ""]
        estimates = {policy.name: record.estimate(policy) for policy in POLICIES}
        estimates |= {f"edges interpolated, {window} months": record.window(window) for window in WINDOWS[1:]}
        estimates |= {f"extrapolated, {window} months": extrapolated(record, window) for window in WINDOWS[1:]}
        estimates |= {ADAPTIVE: adaptive(record, record), ADAPTIVE_GROUPED: adaptive(grouped(record, GROUPED), record)}
        for name, estimate in estimates.items():
            errors = record.errors(estimate)
            yield [ESTIMATE, name, f"{change:.0%}", *NONE, *errors]
            for title, error in zip(("all pages", "the most important tenth"), errors, strict=True):
                run.draw(title, name, [(100 * change, error)])
    run.note(
        f"{pages:,} pages, all known, crawled by Greedy for {months} months of N reads; the graph changes as in fig6, "
        "by links from pages in proportion to their out-degrees; medians over the graphs"
    )


def _told(record: ReadRecord, months: int) -> list[float | str]:
    """Return how a derivative agrees with the change of the true importance within its window."""
    told = derivative(record, months)
    true = np.log(record.truths[-1] / record.truths[-1 - months]) / months
    top = np.argsort(-record.truth)[: len(told) // 10]
    changed = np.abs(true) * months > np.log(CHANGED)
    noise = float(np.median(np.abs(told)) * months)
    count = int(changed.sum())
    if not 0 < count < len(told):
        return [noise, "", "", 0.0, "", ""]
    weight = np.abs(told) * np.sqrt(np.maximum(record.reads_since(2 * months), 1))
    ranks = stats.rankdata(weight)
    pairs_right = (float(ranks[changed].sum()) - count * (count + 1) / 2) / (count * (len(told) - count))
    correlations = (float(stats.spearmanr(told[at], true[at]).statistic) for at in (slice(None), top))
    sign = float((np.sign(told) == np.sign(true))[changed].mean())
    return [noise, *correlations, count / len(told), pairs_right, sign]


def claims(rows: Sequence[Row]) -> list[Row]:
    """Return the ratios of errors between the adaptive window and the paper's best."""
    rates = [f"{change:.0%}" for change in RATES]
    said = f" at {', '.join(rates)}"
    of = {(row["window"], row["change"]): row for row in rows if row["what"] == ESTIMATE}

    def ratios(one: str, other: str, error: str = "error") -> str:
        return ", ".join(f"{of[one, rate][error] / of[other, rate][error]:.2f}" for rate in rates) + said

    top, paper_s = "error of the top tenth", (INTERPOLATION[4].name, VARIABLE[8].name, VARIABLE[4].name)
    return [
        *(
            claim(f"adaptive window: error, of that of {name}", NOT_IN_THE_PAPER, ratios(ADAPTIVE, name))
            for name in paper_s
        ),
        *(
            claim(f"on the top tenth, of that of {name}", NOT_IN_THE_PAPER, ratios(ADAPTIVE, name, top))
            for name in paper_s
        ),
        claim(
            "the same in groups: error, of that with all measures", NOT_IN_THE_PAPER, ratios(ADAPTIVE_GROUPED, ADAPTIVE)
        ),
        claim(
            "extrapolated by the derivative: error, of the window's, 8 months",
            NOT_IN_THE_PAPER,
            ratios("extrapolated, 8 months", "edges interpolated, 8 months"),
        ),
    ]


OPIC_DERIVATIVE: Final = Experiment(
    "opic-derivative",
    "the derivative of importance: how well it is told, extrapolation, windows that adapt",
    OPIC_PAPER,
    {
        **keys("what", "window", "change"),
        **dict.fromkeys(("noise", "rank correlation", "in the top tenth"), 3),
        **dict.fromkeys(("changed", "pairs right", "signs right"), 3),
        **dict.fromkeys(("error", "error of the top tenth"), 2),
    },
    rows_of,
    paper=claims,
    notes=(
        "derivative: ln of the ratio of the last two windows of so many months; noise is the median of its size over "
        "all pages; it is compared with that of the true importance from the end of the first window to now",
        f"changed: pages whose importance grew or fell by a factor of {CHANGED} in that time; pairs right: how often "
        "such a page has a greater derivative, in units of its noise, than another page; signs right: of those that "
        "changed",
        "extrapolated: moved half of the way that the derivative between a window's halves says that it lags behind",
        f"adaptive: the window of 8 months is halved, then once more, where the halves of a page that was read n times "
        f"in it differ by over {STANDS_OUT}/sqrt(n) of their sum; that factor was chosen on another graph; {GROUPED}: "
        "from the measures that `opic-compression` leaves",
    ),
    axes=Axes("change a month, %", "mean relative error, %", "linear", "linear"),
    runs=SEEDS,
    combine=median,
)
