"""FindGlobalPR: fetch the outside pages that matter most, and estimate the local pages' global PageRank.

Source: Davis, Dhillon (2006), Algorithm 2.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opic.arrays import Float64s, Int64s
from opic.graph.crawled import CrawledGraph, CrawledLinks
from opic.graph.page_selection import highest
from opic.graph.pagerank import DAMPING, pagerank

Select = Callable[[CrawledGraph, Float64s], Float64s]  # Scores of all candidates, from the graph and its PageRank.
Fetch = Callable[[Sequence[int]], Mapping[int, Int64s]]  # The links of those pages that could be fetched.


@dataclass(frozen=True, slots=True)
class Iteration:
    """The state after a number of rounds of fetching.

    fetched    outside pages fetched so far
    graph      the crawled graph
    ranks      (l,) PageRank of the crawled graph
    estimate   (n,) the local pages' part of it, sum 1
    """

    fetched: int
    graph: CrawledGraph
    ranks: Float64s
    estimate: Float64s


def find_global_pagerank(
    links: CrawledLinks, fetch: Fetch, select: Select, *, iterations: int, count: int, damping: float = DAMPING
) -> Iterator[Iteration]:
    """Yield the estimate before the first fetch and after each of T iterations, which fetch k pages each.

    It ends early when there is no candidate left. A page that can't be fetched stays a page without known links; it is
    not tried again.

    Args:
        links: the local pages with their links; pages that are fetched are added to it.
        fetch: fetches pages.
        select: scores candidates, such as `sc_scores`; the highest are fetched.
        iterations: T.
        count: k.
        damping: the share of a page's rank that follows its links.
    """
    graph = links.graph()
    ranks = pagerank(graph.inside, damping)
    yield _iteration(0, graph, ranks)
    fetched = 0
    failed: set[int] = set()
    for _ in range(iterations):
        scores = select(graph, ranks)
        if failed:
            scores = np.where(np.isin(graph.candidates, list(failed)), -np.inf, scores)
        best = highest(scores, count)
        pages = graph.candidates[best[scores[best] > -np.inf]].tolist()
        if not pages:
            return
        found = fetch(pages)
        for page in pages:
            if page in found:
                links.add(page, found[page])
            else:
                failed.add(page)
        fetched += len(pages)
        graph = links.graph()
        ranks = pagerank(graph.inside, damping)
        yield _iteration(fetched, graph, ranks)


def _iteration(fetched: int, graph: CrawledGraph, ranks: Float64s) -> Iteration:
    local = ranks[: graph.local]
    return Iteration(fetched, graph, ranks, local / local.sum())
