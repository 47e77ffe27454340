"""Which outside page to fetch next, so that the local pages' PageRank becomes that of the whole web.

Each function scores all candidates of a crawled graph; the highest are fetched. `sc_scores` is the algorithm of Davis
and Dhillon (2006), section 5.2: how far adding a candidate moves the PageRank of the local pages, by one power step on
the stochastic complement. The paper assumes that no page is dangling and leaves the terms of dangling pages out; they
are here. Its Algorithm 3 corrects the entries with x[k] > 0, of which there are none: x is negative, and x[k] != 0 is
meant. Its equation 5 prints F transposed: s are in-link counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from opic.arrays import Float64s, Int64s
from opic.graph.crawled import CrawledGraph, LinkMatrix, degrees
from opic.graph.pagerank import DAMPING

PAIRS_AT_ONCE: Final = 4_000_000  # (candidate, sibling) pairs held at once: some 200 MB.


@dataclass(frozen=True, slots=True)
class _Influence:
    """The terms of equation 15, for distinct sets of parents; candidates with the same parents have the same score.

    parents  (d, l) distinct sets of fetched pages that link to a candidate
    group    (c,) row of each candidate
    leak     (d,) -y > 0: what each fetched page loses to one page more
    flow     (d,) g > 0: the rank that the candidate would pass on
    gain     (n,) z: the local pages' shares of it
    """

    parents: LinkMatrix
    group: NDArray[np.intp]
    leak: Float64s
    flow: Float64s
    gain: Float64s


def sc_scores(graph: CrawledGraph, ranks: Float64s, damping: float = DAMPING, levels: int | None = None) -> Float64s:
    """Score candidates by their influence on the local pages, estimated on the stochastic complement.

    score[j] = sum over local k of |x_j[k] + y_j + g_j z[k]|: g_j z is what the local pages gain from candidate j, x_j
    what the siblings of j lose because a parent of theirs has a link more, y_j what all lose to one page more. It takes
    O(log l) per candidate and the links of its parents.

    Args:
        graph: the fetched pages with their links.
        ranks: (l,) PageRank of the fetched pages, sum 1.
        damping: the share of a page's rank that follows its links.
        levels: number of values to discretise g/|y| to, as the paper's Algorithm 3 does; None is exact.

    Returns:
        (c,) float64.

    Source: Davis, Dhillon (2006), Algorithm 3 (SC-Select), equations 15 to 20; "O(l log l)" in section 5.2.1.
    """
    if not len(graph.candidates):
        return np.zeros(0)
    terms = _influence(graph, ranks, damping)
    leak, flow, gain = terms.leak, terms.flow, terms.gain
    scores = leak * _norms(_discretised(flow / leak, levels), gain)
    out = degrees(graph.inside)
    weights = np.divide(ranks, out * (out + 1), out=np.zeros(len(ranks)), where=out > 0)
    weighted = sparse.diags_array(-damping * weights) @ graph.inside[:, : graph.local]
    for first, end in _chunks(terms.parents, weighted):
        x = terms.parents[first:end] @ weighted
        row = np.repeat(np.arange(end - first), np.diff(x.indptr))
        rest = flow[first:end][row] * gain[x.indices] - leak[first:end][row]
        scores[first:end] += np.bincount(row, np.abs(x.data + rest) - np.abs(rest), minlength=end - first)
    return scores[terms.group]


def pf_scores(graph: CrawledGraph, ranks: Float64s) -> Float64s:
    """Score candidates by the PageRank that flows to them, each parent's divided by its links inside and one more.

    Source: Davis, Dhillon (2006), section 5.2.2 (PF-Select).
    """
    scores: Float64s = graph.outward.T @ (ranks / (degrees(graph.inside) + 1))
    return scores


def outlink_counts(graph: CrawledGraph) -> Float64s:
    """Score candidates by the number of local pages that link to them (OutlinkCount, section 6.1)."""
    counts: Float64s = graph.outward[: graph.local].sum(axis=0)
    return counts


def highest(scores: Float64s, count: int) -> Int64s:
    """Return the columns of the highest scores, best first; of equal ones the lower column."""
    order: Int64s = np.argsort(-scores, kind="stable")[:count]
    return order


def _influence(graph: CrawledGraph, ranks: Float64s, damping: float) -> _Influence:
    size, out = len(ranks), degrees(graph.inside)
    parents, group = _distinct_parents(graph.outward)
    teleport = (1 - damping) / (size + 1)
    idle = np.where(out == 0, ranks, 0.0)  # Rank of pages without links in F: it goes everywhere, or to j alone.
    to_candidate = parents @ idle
    everywhere = damping * (idle.sum() - to_candidate) / (size + 1)
    flow = teleport + damping * (parents @ (ranks / (out + 1))) + everywhere
    leak = (teleport + everywhere + damping * to_candidate) / size
    counts = graph.inside.sum(axis=0)
    likely = counts / counts.sum() if counts.any() else np.full(size, 1 / size)
    gain = (damping * likely + teleport) / (1 - teleport)
    return _Influence(parents, group, leak, flow, gain[: graph.local])


def _distinct_parents(outward: LinkMatrix) -> tuple[LinkMatrix, NDArray[np.intp]]:
    """Return the distinct columns of a link matrix as rows, and the row of each column.

    Columns are compared by a 64-bit sum of random numbers, one for each row.
    """
    columns = outward.tocsc()
    noise = np.random.default_rng().integers(1 << 64, size=outward.shape[0], dtype=np.uint64)
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(noise[columns.indices])))
    sums = sums[columns.indptr[1:]] - sums[columns.indptr[:-1]]
    _, first, group = np.unique(sums, return_index=True, return_inverse=True)
    return columns[:, first].T, group


def _discretised(ratio: Float64s, levels: int | None) -> Float64s:
    """Return each value's nearest of `levels` values, spaced evenly between the least and the greatest."""
    if levels is None or not np.ptp(ratio):
        return ratio
    step = np.ptp(ratio) / levels
    level = np.minimum((ratio - ratio.min()) // step, levels - 1)
    middle: Float64s = ratio.min() + (level + 0.5) * step
    return middle


def _norms(ratio: Float64s, gain: Float64s) -> Float64s:
    """Return sum over k of |ratio * gain[k] - 1| for each ratio > 0, from sums over sorted gains."""
    ordered = np.sort(gain)
    below = np.concatenate(([0.0], np.cumsum(ordered)))
    losers = np.searchsorted(ordered, 1 / ratio)
    norms: Float64s = 2 * losers - len(gain) + ratio * (below[-1] - 2 * below[losers])
    return norms


def _chunks(parents: LinkMatrix, weighted: LinkMatrix) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows of which the product of both has at most PAIRS_AT_ONCE entries, but at least one row."""
    pairs = np.concatenate(([0], np.cumsum(parents @ degrees(weighted))))
    first = 0
    while first < parents.shape[0]:
        end = max(first + 1, int(np.searchsorted(pairs, pairs[first] + PAIRS_AT_ONCE, side="right")) - 1)
        yield first, end
        first = end
