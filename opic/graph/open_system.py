"""PageRank of some pages, where what flows into them from all others is known.

The PageRank g of the whole web, restricted to the fetched pages F, satisfies

    f[k] = a * sum over i in F, i -> k of f[i] / o[i]  +  e[k]  +  t

with o[i] all links of page i, e[k] the rank that enters k by links from pages outside F, and t what every page gets
from the random jump and from pages without links. So exact e, t and o give g on F exactly, whatever the rest of the web
looks like; a service that has seen a part of the web gives estimates of e and t.
"""

from dataclasses import dataclass

import numpy as np

from opic.arrays import Float64s
from opic.graph.crawled import CrawledGraph
from opic.graph.pagerank import DAMPING, ITERATIONS_MAX, THRESHOLD, NotConverged


@dataclass(frozen=True, slots=True)
class Outside:
    """What is known of the pages outside F; ranks are shares of the whole web's.

    inflow    (l,) e: the rank that enters each fetched page by links from outside
    dangling  the rank of the pages outside that have no links
    pages     N, the number of all pages, those fetched included
    """

    inflow: Float64s
    dangling: float
    pages: int


def open_system_ranks(
    graph: CrawledGraph, outside: Outside, damping: float = DAMPING, threshold: float = THRESHOLD
) -> Float64s:
    """Return the global PageRank of the fetched pages, as far as `outside` is true.

    Returns:
        (l,) float64, non-negative; their sum is their share of the whole web's rank.

    Raises:
        NotConverged: the threshold is too small for float64.
    """
    out = graph.out_degrees
    share = np.divide(damping, out, out=np.zeros(len(out)), where=out > 0)
    idle = out == 0
    backward = graph.inside.T.tocsr()
    ranks: Float64s = np.full(len(out), 1 / outside.pages)
    for _ in range(ITERATIONS_MAX):
        before = ranks
        jump = 1 - damping + damping * (before[idle].sum() + outside.dangling)
        ranks = backward @ (before * share) + outside.inflow + jump / outside.pages
        if np.abs(ranks - before).sum() < threshold * ranks.sum():
            return ranks
    raise NotConverged(f"the open system did not settle to {threshold:g} in {ITERATIONS_MAX:,} iterations")
