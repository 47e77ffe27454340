"""How far two scores of the same things agree: rank correlations with ties, overlap of the tops, distance."""

from typing import Final

import numpy as np

from opic.arrays import Float64s, Int64s

TIED: Final = 1e-6  # Relative difference below which scores are equal: solvers differ by as much.
TOPS: Final = (100, 1_000)


def rank_classes(scores: Float64s, tied: float = TIED) -> Int64s:
    """Return the rank of each score, from 0 for the lowest; scores up to `tied` above the lowest of a rank share it.

    Two right solvers differ in the last digits, and thousands of pages have the same importance, namely those that no
    page links to. Without ties, the order among them would be noise that outweighs all else in a rank correlation.

    Args:
        scores: (n,) finite.
        tied: relative difference.

    Returns:
        (n,) int64.

    >>> rank_classes(np.array([0.5, 0.2, 0.2000001, 0.3])).tolist()
    [2, 0, 0, 1]
    """
    order = np.argsort(scores, kind="stable")
    ascending = scores[order]
    starts = np.ones(len(scores), np.bool_)
    starts[1:] = np.diff(ascending) > tied * np.abs(ascending[:-1])
    # A chain of small steps may reach far: it is cut where it leaves the first one's reach.
    bounds = np.append(np.flatnonzero(starts), len(scores))
    for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        start = first
        while ascending[end - 1] > (limit := ascending[start] + tied * abs(ascending[start])):
            start += int(np.searchsorted(ascending[start:end], limit, side="right"))
            starts[start] = True
    ranks = np.empty(len(scores), np.int64)
    ranks[order] = np.cumsum(starts) - 1
    return ranks


def agreement(a: Float64s, b: Float64s, tied: float = TIED) -> dict[str, float | None]:
    """Return how far two scores of the same things agree.

    Args:
        a, b: (n,) each, larger is better, n > 0.
        tied: relative difference up to which scores are equal.

    Returns:
        "tau_b", "spearman": rank correlations, None where all scores of one are equal; "overlap_100", "overlap_1000":
        the share of the best ones of either that the other has too; of equal ones, those that the other has first.

    >>> agreement(np.array([3.0, 2.0, 1.0]), np.array([9.0, 5.0, 7.0]))["spearman"]
    0.5
    """
    from scipy.stats import kendalltau, rankdata

    ours, theirs = rank_classes(a, tied), rank_classes(b, tied)
    varied = ours.any() and theirs.any()
    spearman = float(np.corrcoef(rankdata(ours), rankdata(theirs))[0, 1]) if varied else None
    figures: dict[str, float | None] = {"tau_b": float(kendalltau(ours, theirs).statistic) if varied else None}
    figures["spearman"] = None if spearman is None else round(spearman, 12)
    best = [np.lexsort((-theirs, -ours)), np.lexsort((-ours, -theirs))]
    for top in TOPS:
        tops = [set(order[:top].tolist()) for order in best]
        figures[f"overlap_{top}"] = len(tops[0] & tops[1]) / len(tops[0])
    return figures
