"""Verification of exact importance: PageRank computed from the stored links by another way, beside the bound told.

It reads the links from the store by itself, numbers pages in its own way, and iterates over a matrix of all links
(igraph's prpack where igraph is installed): nothing of the flow, of its pool of links or of its numbers is used.
"""

from itertools import pairwise
from typing import Final

import numpy as np

from opic.arrays import Bools, Float64s, Int64s
from opic.errors import StoreUnavailable
from opic.graph.crawled import link_matrix
from opic.graph.pagerank import pagerank
from opic.model.cash import CLASS_BITS, MILLION, Flag
from opic.query.link_pairs import stored_pairs
from opic.query.queries import Query
from opic.replica import Crawl

THRESHOLD: Final = 1e-13
ATTEMPTS: Final = 5


def verified(query: Query) -> dict[str, object]:
    """Compare exact importance with PageRank of the stored links. Needs 40 bytes a link.

    Returns:
        "error", the L1 distance of all estimates from PageRank; "error_bound", what is told; "pages", "links", how many
        there are; "links_unknown", the pages that were read before links were kept, which count as without links here;
        "computed_by"; "as_of".

    Raises:
        NotKept: no links are kept.
        StoreUnavailable: the store is unavailable, or changes all the time.
    """
    crawl = query.crawl
    for _ in range(ATTEMPTS):
        view = query.exact_view()
        starts = np.cumsum([0, *(len(replica) for replica in crawl.replicas)])
        weights, opened = _states(crawl, starts)
        sources, targets, kept = _links(crawl, starts)
        crawl.follow()
        if crawl.heads() != view.heads:
            continue
        read = opened & (weights > 0)
        counts = read[sources] & (weights[targets] > 0)
        sources, targets = sources[counts], targets[counts]
        total = float(weights.sum()) or 1.0  # All pages may be gone.
        truth, way = computed_pagerank(sources, targets, weights / total, 1 - crawl.rules.q / MILLION)
        places = [(shard, page) for shard, (a, b) in enumerate(pairwise(starts.tolist())) for page in range(b - a)]
        told = np.array([view.share(shard_page) or 0.0 for shard_page in places])
        error = float(np.abs(np.where(weights > 0, told, 0.0) - truth).sum())
        return {
            "error": error,
            "error_bound": view.bound,
            "pages": int((weights > 0).sum()),
            "links": len(sources),
            "links_unknown": int((read & ~kept).sum()),
            "computed_by": way,
            "as_of": view.as_of,
        }
    raise StoreUnavailable("the crawl went on while its links were read: try again while no events arrive")


def _states(crawl: Crawl, starts: Int64s) -> tuple[Float64s, Bools]:
    """Return the weights of pages in the random jump, 0 for those gone or not known, and which were read."""
    weights, opened = np.zeros(int(starts[-1])), np.zeros(int(starts[-1]), np.bool_)
    for replica, (first, end) in zip(crawl.replicas, pairwise(starts.tolist()), strict=True):
        with replica.reading():
            state, extra = replica.state[: end - first].astype(np.int64), np.array(replica.books.extra)
        there = (state & (Flag.KNOWN | Flag.GONE)) == Flag.KNOWN
        weights[first:end] = there * (1 + extra[state & CLASS_BITS] / MILLION)
        opened[first:end] = (state & Flag.OPEN) != 0
    return weights, opened


def _links(crawl: Crawl, starts: Int64s) -> tuple[Int64s, Int64s, Bools]:
    """Return the ends of all stored links, and of which pages links are stored."""
    ends, kept = [np.zeros((2, 0), np.int64)], np.zeros(int(starts[-1]), np.bool_)
    for shard in range(len(crawl)):
        for pages, sources, targets in stored_pairs(crawl, shard, starts):
            kept[pages] = True
            ends.append(np.stack((sources, targets)))
    pairs = np.concatenate(ends, axis=1)
    return pairs[0], pairs[1], kept


def computed_pagerank(sources: Int64s, targets: Int64s, teleport: Float64s, damping: float) -> tuple[Float64s, str]:
    """Return PageRank of links, given where the random jump goes, and what computed it: igraph if that is installed."""
    pages = len(teleport)
    if not teleport.any():
        return teleport, "scipy"
    try:
        import igraph
    except ImportError:
        return pagerank(link_matrix(sources, targets, (pages, pages)), damping, THRESHOLD, teleport=teleport), "scipy"
    graph = igraph.Graph(n=pages, edges=np.column_stack((sources, targets)), directed=True)
    # With `reset`, igraph sends the visitors of a page without links to where the random jump goes, as we do.
    ranks = graph.personalized_pagerank(damping=damping, reset=teleport.tolist(), implementation="prpack")
    return np.array(ranks), "igraph"
