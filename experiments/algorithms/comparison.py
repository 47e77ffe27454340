"""How far an estimate of the local pages' PageRank is from the truth (Davis, Dhillon 2006, section 6.1)."""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from opic.arrays import Float64s


@dataclass(frozen=True, slots=True)
class Distance:
    """The three measures of section 6.1: `l1` and `linf` of the difference, and Kendall's tau of the order."""

    l1: float
    linf: float
    tau: float


def distance(estimate: Float64s, truth: Float64s) -> Distance:
    """Compare two vectors over the same pages; each is first divided by its sum.

    >>> distance(np.array([3.0, 1.0]), np.array([1.0, 1.0]))
    Distance(l1=0.5, linf=0.25, tau=0.0)
    """
    difference = np.abs(estimate / estimate.sum() - truth / truth.sum())
    return Distance(float(difference.sum()), float(difference.max()), kendall_tau(estimate, truth))


def kendall_tau(a: Float64s, b: Float64s) -> float:
    """Return the pairs ordered alike less those ordered contrarily, as a share of all n (n - 1)/2 pairs.

    Pairs that tie in either vector count as neither, as in the paper; scipy's tau-b leaves them out of the pairs as
    well, so its value is turned back. 1.0 for fewer than two pages. O(n log n).
    """
    pairs = len(a) * (len(a) - 1) / 2
    if not pairs:
        return 1.0
    untied = [pairs - sum(n * (n - 1) / 2 for n in np.unique(v, return_counts=True)[1].tolist()) for v in (a, b)]
    if not min(untied):
        return 0.0
    return float(stats.kendalltau(a, b, variant="b").statistic * np.sqrt(untied[0] * untied[1]) / pairs)
