"""Readers of exact importance, and PageRank as networkx and scipy compute it for them."""

from collections.abc import Iterable, Mapping

import networkx as nx
import numpy as np
from linked_web import Web
from numpy.typing import NDArray
from scipy import sparse

from opic.model.cash import Flag
from opic.query.exact import Exact
from opic.query.exact_view import ExactView
from opic.query.kept_links import KeptLinks
from opic.query.page_flows import PageFlows
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl

DAMPING = 0.85
CLOSE_ENOUGH = 1e-13  # Between a pass and the next, so that errors are far below all bounds.
Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]


def asked(crawl: Crawl, bound: float = 0.01) -> Query:
    """A reader of the crawl, which computes exact importance in the questions' own thread."""
    return Query(crawl, Snapshots(crawl), exact=Exact(PageFlows(KeptLinks(crawl)), bound))


def truth(web: Web) -> dict[str, float]:
    """PageRank of the known graph."""
    graph = nx.DiGraph()
    pages = {page.url: page for page in web.crawl.pages() if not page.has(Flag.GONE)}
    graph.add_nodes_from(pages)
    for url, page in pages.items():
        if page.has(Flag.OPEN):
            graph.add_edges_from((url, link) for link in web.links.get(url, []) if link in pages)
    return dict(nx.pagerank(graph, DAMPING, tol=1e-13, max_iter=1_000))


def shares(answers: Iterable[dict[str, object] | None]) -> dict[str, float]:
    """The importance of pages in answers."""
    return {str(page["url"]): float(page["importance"]) for page in answers if page}  # type: ignore[arg-type]


def error_and_bound(query: Query, expected: dict[str, float]) -> tuple[float, float]:
    """The L1 distance of exact importance from PageRank, and the bound told, the same with all pages."""
    found = query.importance(list(expected), "exact")
    (bound,) = {page["error_bound"] for page in found if page} or {0.0}  # All pages may be gone.
    return sum(abs(expected[url] - share) for url, share in shares(found).items()), float(bound)  # type: ignore[arg-type]


def pagerank(sources: Int64s, targets: Int64s, pages: int) -> Floats:
    """PageRank by the power method with scipy, for large graphs: equal teleport, to which dangling pages link too."""
    out = np.bincount(sources, minlength=pages)
    moves = sparse.csr_array((1 / out[sources], (targets, sources)), shape=(pages, pages))
    found, change = np.full(pages, 1 / max(pages, 1)), 1.0
    while change > CLOSE_ENOUGH:
        passed = DAMPING * (moves @ found)
        passed += (1 - passed.sum()) / max(pages, 1)
        found, change = passed, float(np.abs(passed - found).sum())
    return found


def error_by_place(crawl: Crawl, view: ExactView, expected: Mapping[str, float]) -> float:
    """The L1 distance of a view from PageRank, of pages by URL: quick, also for all pages of a large crawl."""
    places = crawl.ids_of(list(expected))
    told = [view.share(place) or 0.0 for place in places if place is not None]
    return float(np.abs(np.array(told) - list(expected.values())).sum())
