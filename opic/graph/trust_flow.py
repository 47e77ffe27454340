"""RankMass: a lower bound on the share of personalized PageRank that the fetched pages hold.

Trust starts on the trusted pages, moves along the links of fetched pages, and stays where a page was not fetched. What
stayed there may at worst keep visitors away from the fetched pages for the rest of their session. So the bound holds
for any links of unfetched pages, and it is the best one that the fetched pages allow, up to the residual.

With `h[i]` the visits counted at page i and `r[i]` those not moved on yet, `r = t + d P'h - h` holds throughout, where
t is the trust, summing to 1, and P the links of fetched pages. A page without links ends the session, which sends its
visitor to the trusted pages; hence the division by all visits at the end. Let `L` be the sum of h and of the r of
fetched pages; let `U = (r of pages not fetched + d * r of fetched pages) / (1-d)`: each visit leads to at most 1/(1-d)
in its session. Then `L / (L + U)` is the bound. After links or trust have changed, h stays and r is computed anew: it
may be negative, and what is negative counts against L with the factor 1/(1-d).

Source: Cho, Schonfeld (2007), "RankMass Crawler", section 4.2, figure 5 (`CRM` is L, `rm` is r), without its assumption
that there are no pages without links.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.graph.link_pool import NOT_KEPT, LinkPool, Uint32s, grown

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

RESIDUAL_MAX: Final = 1e-6  # Of all trust: what fetched pages may still hold at the end. The bound lacks as much.
LINKS_A_SETTLE: Final = 150_000_000  # Links followed per call, about two seconds; the rest of the flow waits.
ROUNDING: Final = 1e-9  # Subtracted from the bound: far more than the sums' errors in doubles.


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is known after a flow. All but `coverage` are in units of the trust, which sums to 1."""

    coverage: float  # The lower bound, in [0, 1].
    covered: float  # L: visits of fetched pages.
    uncovered: float  # U: visits that pages not fetched may have, at most.
    held: Float64s  # Per page: the trust that stays with a page that was not fetched; 0 for others.
    damping: float
    settled: bool  # Whether the flow came to its end.

    def fetches_to(self, target: float, held: Float64s) -> int | None:
        """Estimate how many more pages have to be fetched, those with most trust first, until the bound is `target`.

        The trust of a page that is fetched is expected to do what all trust did so far: the same number of visits of
        fetched pages, and the same share that ends on pages not fetched. None if the pages known now do not suffice.

        Args:
            target: the bound wanted.
            held: the trust held by the pages that may be fetched; 0 for others.
        """
        if self.coverage >= target:
            return 0
        held = np.sort(held[held > 0])[::-1]
        stays = self.uncovered * (1 - self.damping)
        visits, leaks = (self.covered, min(stays, 1.0)) if self.covered else (1.0, self.damping)
        moved = np.cumsum(held)
        covered = self.covered + moved * visits
        uncovered = (stays - moved * (1 - leaks)) / (1 - self.damping)
        enough = np.flatnonzero(covered >= target * (covered + np.maximum(uncovered, 0)))
        return int(enough[0]) + 1 if len(enough) else None


class TrustFlow:
    """How trust flows along links. Takes 8 bytes a page beside the links. For one thread at a time."""

    def __init__(self, damping: float, links: LinkPool) -> None:
        """Start without visits.

        Args:
            damping: the share of visitors that follow a link.
            links: the links of fetched pages; the caller may change them between calls.
        """
        self.damping, self._links = damping, links
        self._visits = np.zeros(0)  # h.

    def settle(self, trust: Float64s, fetched: Bools, gone: Bools, links_max: int = LINKS_A_SETTLE) -> Coverage:
        """Let trust flow on from where the last call stopped, and return what is known then.

        Args:
            trust: (n,) the weight of each page, at least one of them positive. Pages are those below n.
            fetched: (n,) whether the page was fetched. Trust stays where it was not, or where links are not known.
            gone: (n,) whether the page does not exist any more: links to it count for nothing, nor does its trust.
            links_max: about as many links are followed after r was computed; a bound that comes of less is lower.
        """
        n = len(trust)
        count = self._links.counts(n)
        if n > len(self._visits):
            self._visits = grown(self._visits, n)
        gone_too = np.append(gone, False)  # A page that is not known yet comes last, and exists.
        active = fetched & ~gone & (count != NOT_KEPT)
        self._visits[:n][~active] = 0.0
        self._visits[n:] = 0.0
        live = self._live_links(np.flatnonzero(active), gone_too)
        weights = np.where(gone, 0.0, trust)
        left = np.append(weights / weights.sum(), 0.0)
        left[:n] -= self._visits[:n]
        self._follow(np.flatnonzero(self._visits[:n]), live, gone_too, left, again=True)
        while True:
            rows = self._next_rows(left[:n], active)
            settled = not len(rows)
            if settled or links_max <= 0:
                break
            self._follow(rows, live, gone_too, left)
            links_max -= int(count[rows].sum()) + len(rows)
        return self._coverage(left, fetched & ~gone, settled)

    def _coverage(self, left: Float64s, fetched: Bools, settled: bool) -> Coverage:
        damping, n = self.damping, len(fetched)
        more, less = np.maximum(left, 0.0), float(np.maximum(-left, 0.0).sum())
        waiting = float(more[:n][fetched].sum())
        stays = float(more.sum()) - waiting
        covered = max(float(self._visits.sum()) + waiting - less / (1 - damping), 0.0)
        uncovered = max(stays + damping * waiting, 0.0) / (1 - damping)
        bound = covered / (covered + uncovered) - ROUNDING if covered else 0.0
        return Coverage(max(bound, 0.0), covered, uncovered, np.where(fetched, 0.0, more[:n]), damping, settled)

    def _next_rows(self, left: Float64s, active: Bools) -> Int64s:
        """Return the pages that move their trust on next: those with most of it. None if little is left in all."""
        rows = np.flatnonzero(active & (left != 0.0))
        sizes = np.abs(left[rows])
        total = float(sizes.sum())
        if total <= RESIDUAL_MAX:
            return rows[:0]
        return rows[sizes * (4 * len(rows)) > total]

    def _live_links(self, rows: Int64s, gone: Bools) -> Int64s:
        """Return for each page below the number of `gone` how many of its links lead to pages that are not gone."""
        live = self._links.counts(len(gone) - 1).astype(np.int64)
        if gone.any():
            for some, links, of in self._links.gathered(rows):
                live[some] = np.bincount(of, ~gone[self._places(links, gone)], len(some))
        return live

    def _follow(self, rows: Int64s, live: Int64s, gone: Bools, left: Float64s, *, again: bool = False) -> None:
        """Move what is left at some pages on along their links, and count it as visits; or all counted ones `again`."""
        for some, links, of in self._links.gathered(rows):
            if again:
                amounts = self._visits[some]
            else:
                amounts = left[some]
                self._visits[some] += amounts
                left[some] = 0.0
            shares = self.damping * amounts / np.maximum(live[some], 1)
            places = self._places(links, gone)
            np.add.at(left, places, np.where(gone[places], 0.0, shares[of]))

    @staticmethod
    def _places(links: Uint32s, gone: Bools) -> Int64s:
        return np.minimum(links, len(gone) - 1).astype(np.int64)
