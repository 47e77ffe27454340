"""Compression of measures: consecutive reads grouped into one, for windows that end between reads or at one.

The paper (section 3.3): "for very large histories, it is interesting to use compression techniques, e.g., to group
several consecutive measures into one". It tries none. Two are tried here: groups of a fixed number of reads, and groups
that double with their age, at most so many of each size, so that n reads leave O(log n) measures.

Fixed counts the measures in its window whole. Beyond the paper, "edges interpolated" takes what the page received in
the window, the cash that it holds now included, and a share of the read or group that the window's start falls into.

Source of the doubling groups: Datar, Gionis, Indyk, Motwani (2002), "Maintaining stream statistics over sliding
windows", SIAM Journal on Computing 31(6).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from experiments.read_records import ReadRecord, recorded_crawl
from experiments.skeleton import NOT_IN_THE_PAPER, OPIC_PAPER, Axes, Experiment, Row, Run, claim, keys
from experiments.synthetic_graphs import QUICK_PAGES, power_law_both_ways
from experiments.window_crawls import FIXED, INTERPOLATION, VARIABLE
from opic.arrays import Float64s, Int64s

PAGES, SEEDS, CHANGES_FROM = 10_000, 5, 101
MONTHS, MONTHS_QUICK = 22, 6
RATES: Final = (0.0, 0.01, 0.05, 0.1)
WINDOWS: Final = (4, 8)
ALL: Final = "all"
FIXED_WINDOW, INTERPOLATED = "Fixed", "edges interpolated"


def fixed_groups(reads: int, size: int) -> list[int]:
    """Return the sizes of groups of so many reads, oldest first; the last one has the rest.

    >>> fixed_groups(9, 4)
    [4, 4, 1]
    """
    whole, rest = divmod(reads, size)
    return [size] * whole + [rest] * (rest > 0)


def doubling_groups(reads: int, most: int) -> list[int]:
    """Return the sizes of groups that double with their age, oldest first, with at most so many of a size.

    A read is a group of one; if there are then too many groups of a size, the two oldest of them become one.

    >>> doubling_groups(9, 2)
    [4, 2, 2, 1]
    """
    sizes = list[int]()
    for _ in range(reads):
        sizes.append(1)
        size = 1
        while sizes.count(size) > most:
            oldest = sizes.index(size)
            sizes[oldest : oldest + 2] = [2 * size]
            size *= 2
    return sizes


GROUPED: Final = "doubling groups, 4 of a size"
COMPRESSIONS: Final[Mapping[str, Callable[[int], list[int]]]] = {
    ALL: lambda reads: [1] * reads,
    "groups of 4": lambda reads: fixed_groups(reads, 4),
    "doubling groups, 1 of a size": lambda reads: doubling_groups(reads, 1),
    "doubling groups, 2 of a size": lambda reads: doubling_groups(reads, 2),
    GROUPED: lambda reads: doubling_groups(reads, 4),
}


def ends_of_groups(counts: Int64s, groups: Callable[[int], list[int]]) -> NDArray[np.bool_]:
    """Return of each read, page after page, whether it ends a group; `counts` (n,) are the reads of each page."""
    kept = np.zeros(int(counts.sum()), np.bool_)
    starts = np.cumsum(counts) - counts
    for count in np.unique(counts[counts > 0]).tolist():
        ends = np.cumsum(groups(count)) - 1
        kept[(starts[counts == count][:, None] + ends).ravel()] = True
    return kept


def grouped(record: ReadRecord, compression: str) -> ReadRecord:
    """Return the record with its measures grouped, as if none had left the window while they were."""
    return record.grouped(ends_of_groups(np.diff(record.starts), COMPRESSIONS[compression]))


def rows_of(run: Run) -> Iterator[list[object]]:
    """Yield the errors of each window, from all measures and from grouped ones, and what is stored."""
    pages, months = run.either(PAGES, QUICK_PAGES), run.either(MONTHS, MONTHS_QUICK)
    for change in run.steps(RATES, "change {:.0%} a month".format):
        links = power_law_both_ways(pages, run.rng(1))
        (record,) = recorded_crawl(links, change, (months,), run.rng(CHANGES_FROM), compiled=not run.quick)
        reads = np.diff(record.starts)
        for policy, stored in (
            *((policy, np.minimum(reads, policy.measures)) for policy in (VARIABLE[4], VARIABLE[8])),
            *((INTERPOLATION[months], np.minimum(reads, 1)) for months in (2, 4, 8)),
        ):
            yield [policy.name, "", "", f"{change:.0%}", *_figures(record, record.estimate(policy), stored)]
        for name in COMPRESSIONS:
            fewer = grouped(record, name)
            for window in WINDOWS:
                stored = fewer.reads_since(window)
                for estimate, x, edge in (
                    (FIXED_WINDOW, fewer.estimate(FIXED[window]), 0),
                    (INTERPOLATED, fewer.window(window), 1),
                ):
                    # One more measure is kept for the edge, where there is one.
                    kept = np.minimum(stored + edge, np.diff(fewer.starts))
                    figures = _figures(record, x, kept)
                    yield [estimate, f"{window} months", name, f"{change:.0%}", *figures]
                    run.draw(f"{estimate}, {window} months", name, [(100 * change, figures[0])])
    run.note(
        f"{pages:,} pages, all known, crawled by Greedy for {months} months of N reads; the graph changes as in fig6, "
        "by links from pages in proportion to their out-degrees; percent of the truth; medians over the graphs"
    )


def _figures(record: ReadRecord, estimate: Float64s, stored: Int64s) -> tuple[float, float, float, int]:
    return *record.errors(estimate), float(stored.mean()), int(stored.max())


def claims(rows: Sequence[Row]) -> list[Row]:
    """Return what grouping and interpolated edges do, in ratios of errors at each rate of change."""
    error = {(row["estimate"], row["window"], row["measures"], row["change"]): row["error"] for row in rows}
    rates = [f"{change:.0%}" for change in RATES]

    def ratios(one: tuple[str, str, str], other: tuple[str, str, str]) -> str:
        return ", ".join(f"{error[(*one, rate)] / error[(*other, rate)]:.2f}" for rate in rates) + " at " + said

    said, window, doubling = ", ".join(rates), "8 months", "doubling groups, 2 of a size"
    fixed, ours = (FIXED_WINDOW, window, ALL), (INTERPOLATED, window, ALL)
    return [
        claim(
            "Fixed of 8 months in doubling groups: error, of that with all", "", ratios((*fixed[:2], doubling), fixed)
        ),
        claim("edges interpolated: error, of Fixed's, 8 months", NOT_IN_THE_PAPER, ratios(ours, fixed)),
        claim("the same in doubling groups, of Fixed's", NOT_IN_THE_PAPER, ratios((*ours[:2], doubling), fixed)),
        claim(
            "edges interpolated, 8 months: error, of Interpolation's of 4 months",
            NOT_IN_THE_PAPER,
            ratios(ours, (INTERPOLATION[4].name, "", "")),
        ),
    ]


OPIC_COMPRESSION: Final = Experiment(
    "opic-compression",
    "compression of measures: groups of reads in windows",
    OPIC_PAPER,
    {
        **keys("estimate", "window", "measures", "change"),
        **dict.fromkeys(("error", "error of the top tenth"), 2),
        "measures a page": 1,
        "most of a page": 0,
    },
    rows_of,
    paper=claims,
    notes=(
        "groups: consecutive reads become one measure, with the clock of the last and the sum of their cash; in "
        "doubling groups the two oldest of a size become one as soon as there are more than stated",
        "measures are those in the window, and one before it where edges are interpolated; the window of the latter "
        "is at most half of the past, as that of Interpolation",
    ),
    axes=Axes("change a month, %", "mean relative error, %", "linear", "linear"),
    runs=SEEDS,
    combine=median,
)
