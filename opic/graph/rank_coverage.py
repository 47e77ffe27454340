"""RankMass: a lower bound on the share of personalized PageRank that the fetched pages hold.

It is read off a flow (`opic.graph.flow`) whose teleport weights are the trust. What waits at pages not fetched may at
worst keep visitors away from the fetched pages for the rest of their session. So the bound holds for any links of
unfetched pages, and it is the best one that the fetched pages allow, up to the residual.

With h the visits counted at pages and r those not moved on yet, in units of all trust, let `L` be the sum of h and of
the r of fetched pages; let `U = (r of pages not fetched + d * r of fetched pages) / (1-d)`: each visit leads to at most
1/(1-d) in its session. Then `L / (L + U)` is the bound. What is negative in r, after links or trust have changed,
counts against L with the factor 1/(1-d). Pages without links send their visitors to the trusted pages: hence the
division by all visits.

Where the pages named have only the share 1 - delta of all trust (theorem 3), the rest may be on pages not fetched, and
stay there: L becomes (1-delta) L, and U becomes (1-delta) U + delta / (1-d).

Source: Cho, Schonfeld (2007), "RankMass Crawler", section 4.2, figure 5 (`CRM` is L, `rm` is r), without its assumption
that there are no pages without links.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from opic.arrays import Float64s
from opic.graph.flow import Flow

RESIDUAL_MAX: Final = 1e-6  # Of all trust: what fetched pages may still hold at the end. The bound lacks as much.
LINKS_A_SETTLE: Final = 150_000_000  # Links followed per call, about a second; the rest of the flow waits.
ROUNDING: Final = 1e-9  # Subtracted from the bound: far more than the sums' errors in doubles.


@dataclass(frozen=True, slots=True)
class RankCoverage:
    """What is known after a flow. `covered` and `uncovered` are in units of all trust, which sums to 1."""

    coverage: float  # The lower bound, in [0, 1].
    covered: float  # L: visits of fetched pages.
    uncovered: float  # U: visits that pages not fetched may have, at most.
    # Per page not fetched: what stays there of the trust of pages named, as a share; 0 for others.
    frontier_trust: Float64s
    damping: float
    settled: bool  # Whether the flow came to its end.
    delta: float = 0.0  # The share of all trust that is on pages not named.

    def named(self, delta: float) -> "RankCoverage":
        """Return what is known if the share `delta` of all trust, less than 1, is on pages that were not named."""
        if not delta:
            return self
        covered = (1 - delta) * self.covered
        uncovered = (1 - delta) * self.uncovered + delta / (1 - self.damping)
        return replace(self, coverage=_bound(covered, uncovered), covered=covered, uncovered=uncovered, delta=delta)

    def fetches_to(self, target: float, frontier_trust: Float64s) -> int | None:
        """Estimate how many more pages have to be fetched, those with most trust first, until the bound is `target`.

        The trust of a page that is fetched is expected to do what all trust did so far: the same number of visits of
        fetched pages, and the same share that ends on pages not fetched. None if the pages known now do not suffice.

        Args:
            target: the bound wanted.
            frontier_trust: that of the pages that may be fetched, 0 for others.
        """
        if self.coverage >= target:
            return 0
        named = 1 - self.delta
        stays = self.uncovered * (1 - self.damping)
        visits, leaks = 1.0, self.damping
        if self.covered:  # All trust that has flowed is of pages named.
            visits, leaks = self.covered / named, min((stays - self.delta) / named, 1.0)
        moved = named * np.cumsum(np.sort(frontier_trust[frontier_trust > 0])[::-1])
        covered = self.covered + moved * visits
        uncovered = np.maximum(stays - moved * (1 - leaks), self.delta) / (1 - self.damping)
        enough = np.flatnonzero(covered >= target * (covered + uncovered))
        return int(enough[0]) + 1 if len(enough) else None


def coverage(flow: Flow, links_max: float = LINKS_A_SETTLE) -> RankCoverage:
    """Let trust flow on from where it stopped, and return what is known then.

    Args:
        flow: the teleport weights are the trust, at least one of them positive.
        links_max: about as many links are followed; a bound that comes of less is lower.
    """
    settled = flow.settle(0.0, links_max, waiting_max=RESIDUAL_MAX)
    graph, damping = flow.graph, flow.damping
    all_trust = float(flow.teleport.sum())
    left = flow.residual / all_trust
    left[graph.gone_at] = 0.0
    more, less = np.maximum(left, 0.0), float(np.maximum(-left, 0.0).sum())
    waiting = float(more[graph.fetched].sum())
    stays = float(more.sum()) - waiting + flow.lost / all_trust
    covered = max(float(flow.visits.sum()) / all_trust + waiting - less / (1 - damping), 0.0)
    uncovered = max(stays + damping * waiting, 0.0) / (1 - damping)
    frontier_trust = np.where(graph.fetched, 0.0, more)
    return RankCoverage(_bound(covered, uncovered), covered, uncovered, frontier_trust, damping, settled)


def _bound(covered: float, uncovered: float) -> float:
    return max(covered / (covered + uncovered) - ROUNDING, 0.0) if covered else 0.0
