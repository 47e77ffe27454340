"""PageRank of the known graph at every moment of a crawl: kept up while it changes, with a bound that says how exact.

Visitors start on pages in proportion to `t`, the teleport weights, and follow links with probability d. Two vectors are
kept: `h`, the visits counted at each page, and `r`, those not moved on yet, which may be negative. Throughout

    r = t + d P'h - h        P: the links of the pages that were read, each row summing to 1; other rows are empty

A change of links or of t changes r and leaves h alone; moving on the r of a page adds it to its h, and d times as much
to the r of the pages that it links to. The estimate is x = (h + r) / sum(h + r). It is PageRank once the r of all read
pages is 0: pages without links send their visitors to t, and dividing by the sum does that.

The bound: the visits in truth are h + r + (d P' + (d P')^2 + ...) r, where the r of pages never read goes nowhere. With
R+ and R- the sums of the positive and negative r of read pages, that differs from h + r by at most P = d R+ / (1-d)
upwards and by N = d R- / (1-d) downwards, so the normalised vectors by at most (P + N + max(P, N)) / sum(h + r) in L1.
To P come visits that may be missing: the weight that waits at links to pages not known yet, divided by 1-d.

At a page that is gone, r is what links would bring it if it came back: no part of any sum, and a bound on what its
return can move.

The same vectors with t on trusted pages are RankMass: see `opic.graph.rank_coverage`.
"""

from typing import Final

import numpy as np

from opic.arrays import Float64s, Int64s
from opic.graph.known_graph import KnownGraph, LinkChanges, LinkRows

ROUNDING: Final = 1e-9  # Added to the bound: far more than errors of sums of doubles, which `drift` measures.
DENSE_PART: Final = 8  # Where more than an eighth of the pages move on, all do: one pass over all links is faster.
LARGE: Final = 8  # Where those of more than this multiple of the average are enough, they alone move on.
BOUND_MAX: Final = 2.0  # The greatest distance of two distributions.
# What a step costs at least, in links followed: some 50 us. Without it a damping near 1 makes settling endless on a
# small graph, which takes millions of steps of a few links each.
LINKS_A_STEP: Final = 20_000


class Flow:
    """One pair of vectors on a graph. Takes 24 bytes a page beside the links. For one thread at a time."""

    def __init__(self, damping: float, graph: KnownGraph) -> None:
        """Start from nothing.

        Args:
            damping: the share of visitors that follow a link.
            graph: the graph; call `advance` after each change of it.
        """
        self.damping, self.graph = damping, graph
        self.teleport, self.visits, self.residual = np.zeros(0), np.zeros(0), np.zeros(0)  # t, h, r
        self.drift = 0.0  # At the last check: how far r was from its definition, as a share of all visits.
        self._version = -1  # Of the graph that r belongs to.
        self._total: float | None = None  # None until it is asked for.

    def advance(self, teleport: Float64s) -> None:
        """Follow the graph, which changed, and take new teleport weights, (n,), 0 for pages that are gone."""
        graph, before, self._total = self.graph, len(self.teleport), None
        self.visits, self.residual = _widened(self.visits, len(graph)), _widened(self.residual, len(graph))
        weighed = np.flatnonzero(teleport[:before] != self.teleport)  # Mostly few pages, if any.
        gained, self.teleport = teleport[weighed] - self.teleport[weighed], teleport
        anew = len(weighed) > 0 and float(np.abs(gained).sum()) > float(teleport.sum())
        change, version = graph.change, self._version
        self._version = graph.version
        if anew:  # Hardly anything that was counted is of use.
            self.visits[:] = 0.0
            self.define()
        elif version != graph.version and (change is None or change.version != version):
            self.define()
        else:
            self.residual[weighed] += gained
            self.residual[before:] += teleport[before:]
            if change is not None and version != graph.version:
                self._follow(change)

    def _follow(self, change: LinkChanges) -> None:
        self._move(change.before, -1.0)
        self.residual[change.ended] += self.visits[change.ended]
        self.visits[change.ended] = 0.0
        self._move(change.after, 1.0)

    def start(self, visits: Float64s) -> None:
        """Start from visits counted elsewhere, such as saved ones: any that are not negative will do."""
        count = min(len(visits), len(self.visits))
        self.visits[:] = 0.0
        self.visits[:count] = visits[:count]
        self.define()

    def define(self) -> None:
        """Compute r anew from its definition; costs one pass over all links."""
        graph = self.graph
        counted = np.zeros(len(graph))
        counted[graph.moves_at] = self.visits[graph.moves_at]
        residual = self.teleport - counted
        residual += graph.matrix.spread(self.damping * counted / np.maximum(graph.live, 1))
        self.visits, self.residual, self._total = counted, residual, None

    def check(self) -> float:
        """Compute r anew, note how far it was off, and return that."""
        before, total = self.residual, self.total
        self.define()
        self.drift = float(np.abs(before - self.residual).sum()) / total if total else 0.0
        return self.drift

    @property
    def total(self) -> float:
        """The sum that estimates are divided by."""
        if self._total is None:
            self._total = float(self.visits.sum() + self.residual.sum() - self.residual[self.graph.gone_at].sum())
        return self._total

    @property
    def reached(self) -> Float64s:
        """The visits h + r, (n,); at a page that is gone, what links would bring it."""
        return np.maximum(self.visits + self.residual, 0.0)  # Below 0 only by rounding.

    @property
    def shares(self) -> Float64s:
        """The estimates x, (n,), 0 for pages that are gone."""
        visits = self.reached
        visits[self.graph.gone_at] = 0.0
        total = float(visits.sum())
        return visits / total if total else visits

    @property
    def waiting(self) -> float:
        """The sum of the visits of read pages that were not moved on, as a share of all."""
        total = self.total
        return float(np.abs(self.residual[self.graph.fetched]).sum()) / total if total else 0.0

    @property
    def bound(self) -> float:
        """A bound on the L1 distance of the estimates from PageRank."""
        return self._bound(self.residual[self.graph.fetched])

    def _bound(self, waiting: Float64s) -> float:
        total, damping = self.total, self.damping
        if total <= 0:
            return 0.0  # There are no pages.
        more = float(waiting.sum(where=waiting > 0))
        less = more - float(waiting.sum())
        above, below = (damping * more + self.lost) / (1 - damping), damping * less / (1 - damping)
        bound = (above + below + max(above, below)) / total
        return min(bound + ROUNDING + 2 * self.drift / (1 - damping), BOUND_MAX)

    @property
    def lost(self) -> float:
        """The weight that waits at links to pages that are not known yet."""
        graph, unknown = self.graph, self.graph.pool.unknown
        if not unknown:
            return 0.0
        pages, links = (np.fromiter(numbers, np.int64, len(unknown)) for numbers in (unknown.keys(), unknown.values()))
        there = pages < len(graph)
        pages, links = pages[there], links[there]
        pages, links = pages[moves := graph.moves[pages]], links[moves]
        return self.damping * float((self.visits[pages] * links / graph.live[pages]).sum())

    def settle(self, bound_max: float, links_max: float = float("inf"), waiting_max: float | None = None) -> bool:
        """Move r on until the bound is met; return whether it is, or moving on more would hardly better it.

        Args:
            bound_max: the bound wanted.
            links_max: about as many links are followed, and a step counts as LINKS_A_STEP of them at least.
            waiting_max: instead of the bound, go on until read pages hold no more than this share of the teleport
            weight.
        """
        graph = self.graph
        stuck = np.flatnonzero(graph.fetched & ~graph.moves)
        enough = None if waiting_max is None else waiting_max * float(self.teleport.sum())
        while True:
            residuals = self.residual[graph.moves_at]
            sizes = np.abs(residuals)
            left = float(sizes.sum())
            if enough is not None and left <= enough:
                return True
            bound = self._bound(np.concatenate((residuals, self.residual[stuck]))) if enough is None else 0.0
            if enough is None and bound <= bound_max:
                return True
            if enough is None and 12 * self.damping * left <= bound_max * (1 - self.damping) * self.total:
                return True  # What is in the way of the bound does not move.
            if not left or links_max <= 0:
                return not left
            due = self._due(sizes, left, left - enough if enough is not None else left * (1 - bound_max / bound))
            if DENSE_PART * len(due) > len(sizes):
                links = self._move_all(residuals)
            else:
                links = self._move_some(graph.moves_at[due], residuals[due])
            links_max -= max(links, LINKS_A_STEP)

    def _due(self, sizes: Float64s, left: float, excess: float) -> Int64s:
        """Return where the r is that moves on next: few large ones where they make up for what is too much."""
        average = left / np.count_nonzero(sizes)
        due = np.flatnonzero(sizes > LARGE * average)
        if (1 - self.damping) * float(sizes[due].sum()) >= excess:
            return due
        return np.flatnonzero(sizes > average / 2)

    def _move_all(self, residuals: Float64s) -> int:
        graph, moving, self._total = self.graph, self.graph.moves_at, None
        self.visits[moving] += residuals
        self.residual[moving] = 0.0
        weights = np.zeros(len(graph))
        weights[moving] = self.damping * residuals / np.maximum(graph.live[moving], 1)
        self.residual += graph.matrix.spread(weights)
        return graph.pool.used

    def _move_some(self, pages: Int64s, residuals: Float64s) -> int:
        graph, first, links_followed, self._total = self.graph, 0, len(pages), None
        self.visits[pages] += residuals
        self.residual[pages] = 0.0
        shares = self.damping * residuals / np.maximum(graph.live[pages], 1)
        for some, links, sources in graph.pool.gathered(pages):
            np.add.at(self.residual, links, shares[first : first + len(some)][sources])
            first, links_followed = first + len(some), links_followed + len(links)
        return links_followed

    def _move(self, rows: LinkRows, sign: float) -> None:
        """Add to r what the visits of some pages send along their links, or take it away."""
        amounts = sign * self.damping * self.visits[rows.pages] * rows.shares
        np.add.at(self.residual, rows.links, amounts[rows.sources])


def _widened(column: Float64s, size: int) -> Float64s:
    if len(column) == size:
        return column
    wider = np.zeros(size)
    wider[: len(column)] = column
    return wider
