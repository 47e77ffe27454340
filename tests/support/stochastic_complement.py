"""The stochastic complement of a part of a Markov chain, and the influence of a page by it: dense references.

They are what `opic.graph.page_selection` is compared with, not for use on large graphs: O(l^3) time, O(l^2) memory.
"""

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Float64s
from opic.errors import BadInput
from opic.graph.crawled import CrawledGraph
from opic.graph.pagerank import DAMPING

Matrix = NDArray[np.float64]


def stochastic_complement(transition: Matrix, part: NDArray[np.int64]) -> Matrix:
    """Return the stochastic complement of a part of a Markov chain.

    S = P_LL + P_LG (I - P_GG)^-1 P_GL is the chain of a random walk observed only while it is inside the part. Its
    stationary vector is that of the whole chain restricted to the part and rescaled.

    Args:
        transition: (n, n) float64, row-stochastic; [i, j] is the probability of a step from page i to page j.
        part: (m,) int64, increasing, 0 < m < n.

    Returns:
        (m, m) float64, row-stochastic, pages in the order of `part`.

    Raises:
        BadInput: a row does not sum to 1 within 1e-12.

    Source: Meyer (1989), "Stochastic complementation, uncoupling Markov chains, and the theory of nearly reducible
    systems", SIAM Review 31(2), section 2.

    >>> walk = np.array([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]])
    >>> stochastic_complement(walk, np.array([0, 1]))
    array([[0., 1.],
           [1., 0.]])
    """
    sums = transition.sum(axis=1)
    if len(wrong := np.flatnonzero(np.abs(sums - 1) > 1e-12)):
        raise BadInput(f"row {wrong[0]} of transition sums to {sums[wrong[0]]:g}, not 1")
    rest = np.setdiff1d(np.arange(len(transition)), part)
    # A row of the solution is the distribution of the page where a walk from outside enters the part again.
    entry = np.linalg.solve(np.eye(len(rest)) - transition[np.ix_(rest, rest)], transition[np.ix_(rest, part)])
    complement: Matrix = transition[np.ix_(part, part)] + transition[np.ix_(part, rest)] @ entry
    return complement


def expanded_transition(graph: CrawledGraph, candidate: int, damping: float = DAMPING) -> Matrix:
    """Return the PageRank chain of the fetched pages and one candidate, whose links are guessed from in-link counts.

    Args:
        graph: the fetched pages.
        candidate: column of the candidate in graph.outward.
        damping: the share of a page's rank that follows its links.

    Returns:
        (l + 1, l + 1) float64, row-stochastic; the candidate comes last.

    Source: Davis, Dhillon (2006), equations 4, 5 and 9, with dangling pages as in section 6.1.
    """
    size = graph.inside.shape[0]
    links = np.zeros((size + 1, size + 1))
    links[:size, :size] = graph.inside.toarray()
    links[:size, size] = graph.outward[:, [candidate]].toarray()[:, 0]
    counts = links[:size, :size].sum(axis=0)
    links[size, :size] = counts if counts.any() else 1.0
    sums = links.sum(axis=1, keepdims=True)
    walk: Matrix = np.divide(links, sums, out=np.full_like(links, 1 / (size + 1)), where=sums > 0)
    transition: Matrix = damping * walk + (1 - damping) / (size + 1)
    return transition


def one_step_influence(graph: CrawledGraph, ranks: Float64s, candidate: int, damping: float = DAMPING) -> float:
    """Return how far one power step on the stochastic complement moves the local pages' PageRank (equation 11)."""
    complement = stochastic_complement(expanded_transition(graph, candidate, damping), np.arange(len(ranks)))
    return float(np.abs(ranks @ complement - ranks)[: graph.local].sum())


def exact_influence(graph: CrawledGraph, ranks: Float64s, candidate: int, damping: float = DAMPING) -> float:
    """Return how far adding the candidate moves the local pages' PageRank, solved exactly (equation 7)."""
    complement = stochastic_complement(expanded_transition(graph, candidate, damping), np.arange(len(ranks)))
    values, vectors = np.linalg.eig(complement.T)
    settled = np.real(vectors[:, np.argmax(np.real(values))])
    return float(np.abs(settled / settled.sum() - ranks)[: graph.local].sum())
