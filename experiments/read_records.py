"""Crawls of a changing graph with a record of every read: what a page received until any moment, to within a read.

A page's cash is known when it is read, and now. Between, it is taken to arrive evenly, as the paper's Interpolation
does, so what a page received until a clock G is a polyline with a point for each read. Windows of any size, and the
change from one window to the next, are differences of its values. Grouping measures leaves points of it out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from experiments.opic_engine import PAPER_RULES, Engine, PageLinks, fixed_point
from experiments.window_crawls import BY_OUT_DEGREE, WindowPolicy
from opic.arrays import Float64s, Int64s
from opic.model.windows import Past, estimate, shares

SLICES: Final = 5  # Of a month of N reads; the graph changes once in each.
READS_A_SLICE_MAX: Final = 512  # Of one page.


@dataclass(frozen=True)
class ReadRecord:
    """The reads of n pages, those of page i from starts[i] to starts[i + 1], oldest first. Amounts are in grains.

    starts  (n + 1,)
    clock   (m,) after each read
    total   (m,) all that the page had received until that read, what it started with too
    begun   what each page started with, when the clock was 0
    held    (n,) all received until now
    now     the clock
    month   its advance over N reads, mean of the last half of the crawl
    truths  (months + 1, n) importance at the start and after each month
    """

    starts: Int64s
    clock: Int64s
    total: Int64s
    begun: int
    held: Int64s
    now: int
    month: float
    truths: Float64s

    @property
    def truth(self) -> Float64s:
        """(n,) Return the importance now."""
        now: Float64s = self.truths[-1]
        return now

    @cached_property
    def past(self) -> Past:
        """What window policies read, with all measures."""
        last = self.starts[1:] - 1
        spent = np.diff(self.total, prepend=0)
        first = self.starts[:-1][np.diff(self.starts) > 0]
        spent[first] = self.total[first]
        history = np.where(np.diff(self.starts) > 0, self.total[np.maximum(last, 0)], 0)
        return Past(
            starts=self.starts,
            clock=self.clock,
            spent=spent,
            cash=self.held - history,
            history=history,
            live=np.ones(len(self.held), np.bool_),
            now=self.now,
            all_at_once=True,
        )

    def estimate(self, policy: WindowPolicy) -> Float64s:
        """(n,) Return a window policy's estimate from all measures."""
        return estimate(policy.policy, self.past, policy.months * self.month, policy.measures)

    def grouped(self, kept: NDArray[np.bool_]) -> "ReadRecord":
        """Return the record with consecutive measures grouped: each read that is not kept counts with the next that is.

        Args:
            kept: (m,) whether a read ends a group; the last read of each page does.
        """
        counts = np.concatenate(([0], np.cumsum(kept)))
        return replace(self, starts=counts[self.starts], clock=self.clock[kept], total=self.total[kept])

    def received(self, clock: float) -> Float64s:
        """(n,) Return what each page received until this clock, evenly between the reads around it."""
        before = np.concatenate(([0], np.cumsum(self.clock <= clock)))
        right = self.starts[:-1] + before[self.starts[1:]] - before[self.starts[:-1]]
        has_left, has_right = right > self.starts[:-1], right < self.starts[1:]
        clocks, totals = (np.append(column, 0) for column in (self.clock, self.total))
        x0, y0 = np.where(has_left, clocks[right - 1], 0), np.where(has_left, totals[right - 1], self.begun)
        x1, y1 = np.where(has_right, clocks[right], self.now), np.where(has_right, totals[right], self.held)
        even: Float64s = y0 + (y1 - y0) * ((clock - x0) / np.maximum(x1 - x0, 1))
        return even

    def window(self, months: float, ago: float = 0) -> Float64s:
        """(n,) Return the estimate from a window of so many months that ended so many months ago, edges interpolated.

        A window is at most half of the past, as that of a young Interpolation.
        """
        end = self.now - ago * self.month
        start = end - min(months * self.month, end / 2)
        rates = np.maximum(self.received(end) - self.received(start), 0)
        return shares(rates, self.past.live)

    def errors(self, estimate: Float64s) -> tuple[float, float]:
        """Return the mean relative error in percent: of all pages, and of the most important tenth."""
        relative = 100 * np.abs(estimate - self.truth) / self.truth
        top = np.argsort(-self.truth)[: max(1, len(self.truth) // 10)]
        return float(relative.mean()), float(relative[top].mean())

    def reads_since(self, months: float) -> Int64s:
        """(n,) Count the reads of the last months."""
        since = np.concatenate(([0], np.cumsum(self.clock > self.now - months * self.month)))
        return since[self.starts[1:]] - since[self.starts[:-1]]


def recorded_crawl(
    links: PageLinks, change: float, at: Sequence[int], rng: np.random.Generator, *, compiled: bool = True
) -> Iterator[ReadRecord]:
    """Crawl a graph by Greedy, all pages known, and yield the record after some months; see `crawl_greedily`."""
    pages = len(links.starts) - 1
    engine = Engine(links, replace(PAPER_RULES, measures=READS_A_SLICE_MAX), compiled=compiled)
    engine.know(np.arange(pages))
    begun, clocks = int(engine.cash[0]), [0]
    truths = [fixed_point(links, PAPER_RULES)]
    parts, reads = list[tuple[Int64s, Int64s, Int64s]](), np.zeros(pages, np.int64)
    for month in range(1, at[-1] + 1):
        for part in range(SLICES):
            if change:
                engine.links = BY_OUT_DEGREE.change(engine.links, round(change * pages / SLICES), rng)
            engine.read_greedily(pages * (part + 1) // SLICES - pages * part // SLICES)
            parts.append(_latest(engine, reads))
            reads = engine.columns.reads.copy()
        clocks.append(engine.clock)
        truths.append(fixed_point(engine.links, PAPER_RULES))
        if month in at:
            page, clock, spent = (np.concatenate(column) for column in zip(*parts, strict=True))
            order = np.argsort(page, kind="stable")
            starts = np.concatenate(([0], np.cumsum(np.bincount(page, minlength=pages))))
            sums = np.concatenate(([0], np.cumsum(spent[order])))  # At most the clock.
            yield ReadRecord(
                starts,
                clock[order],
                sums[1:] - np.repeat(sums[starts[:-1]], np.diff(starts)),
                begun,
                engine.columns.history + engine.cash,
                engine.clock,
                (clocks[-1] - clocks[month // 2]) / (month - month // 2),
                np.array(truths),
            )


def _latest(engine: Engine, before: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return page, clock and cash of each read since the pages had been read so often, by page."""
    columns = engine.columns
    counts = columns.reads - before
    assert counts.max() <= READS_A_SLICE_MAX, f"a page was read {counts.max()} times in a slice"
    page = np.repeat(np.arange(len(engine)), counts)
    number = np.arange(len(page)) - np.repeat(np.cumsum(counts) - counts, counts) + before[page]
    place = number % READS_A_SLICE_MAX
    return page, columns.clocks[page, place], columns.spent[page, place]
