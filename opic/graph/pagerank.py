"""PageRank by the power method, as Davis and Dhillon (2006) compute it."""

from typing import Final

import numpy as np

from opic.arrays import Float64s
from opic.errors import OpicError
from opic.graph.crawled import LinkMatrix, degrees

DAMPING: Final = 0.85
THRESHOLD: Final = 1e-6
ITERATIONS_MAX: Final = 10_000


class NotConverged(OpicError):
    """A power iteration did not reach its threshold."""


def pagerank(
    links: LinkMatrix,
    damping: float = DAMPING,
    threshold: float = THRESHOLD,
    start: Float64s | None = None,
    teleport: Float64s | None = None,
) -> Float64s:
    """Return the PageRank of each page; a page without links passes its rank to where the random jump goes.

    r <- a * (U D^-1 + t dangling) r + (1 - a) t, with uniform t unless `teleport` is given, until the L1 norm of the
    change is below the threshold; the result is then within threshold * a/(1 - a) of the fixed point. O(links) per
    iteration, at most log(threshold)/log(a) iterations.

    Args:
        links: (n, n); [i, j] is 1 where page i links to page j; n > 0.
        damping: the share a of a page's rank that follows its links, 0 <= a < 1.
        threshold: the L1 norm of the change at which to stop, > 0.
        start: (n,) non-negative, sum > 0; uniform by default.
        teleport: (n,) t, non-negative, sum 1: personalized PageRank; uniform by default.

    Returns:
        (n,) float64, non-negative, of sum 1.

    Raises:
        NotConverged: the threshold is too small for float64.

    Source: Davis, Dhillon (2006), Algorithm 1 (ComputePR) and section 6.1 (dangling pages).

    >>> from opic.graph.crawled import link_matrix
    >>> pagerank(link_matrix(np.array([0, 1]), np.array([1, 0]), (2, 2)))
    array([0.5, 0.5])
    """
    pages = links.shape[0]
    out = degrees(links)
    share = np.divide(damping, out, out=np.zeros(pages), where=out > 0)
    backward = links.T.tocsr()
    jump = np.full(pages, 1 / pages) if teleport is None else teleport
    ranks: Float64s = np.full(pages, 1 / pages) if start is None else start / start.sum()
    for _ in range(ITERATIONS_MAX):
        before = ranks
        ranks = backward @ (before * share)
        ranks += (1 - ranks.sum()) * jump  # What teleports and what dangling pages have: all that no link carried.
        if np.abs(ranks - before).sum() < threshold:
            return ranks
    raise NotConverged(f"PageRank did not settle to {threshold:g} in {ITERATIONS_MAX:,} iterations: use more")
