"""Site importance: the sum over a site's pages, beside PageRank of the links between sites.

The paper (section 4.3) finds that links inside a site say little and works on "a notion of site-based importance that
consider links between web-sites instead of links between web-pages". The service adds up the pages. Here both are
computed exactly on recorded graphs, and how they differ.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from scipy import sparse

from experiments.algorithms.comparison import distance
from experiments.recorded_graphs import RecordedGraph
from experiments.skeleton import OPIC_PAPER, Axes, Experiment, Run, keys
from opic.arrays import Float64s, Int64s
from opic.graph.crawled import LinkMatrix, degrees
from opic.graph.pagerank import DAMPING, pagerank

GRAPHS: Final = ("hollins", "gr0-california", "uk-2007-05-100000", "wikispeedia")
THRESHOLD: Final = 1e-12
ITERATIONS: Final = 200  # 0.85^200 is below 10^-14.
TOP: Final = 10
SUM: Final = "sum over pages"
DIGITS: Final = 11  # Below which the computations differ by floating-point error alone.


def rows_of(run: Run) -> Iterator[list[object]]:
    """Yield a row for each computation on each graph, and draw the sites by rank."""
    for graph in run.steps(run.graphs(run.either(GRAPHS, GRAPHS[:1])), lambda graph: graph.name):
        summed, sizes, inside, computations = _computed(graph)
        order, places = np.argsort(-summed, kind="stable"), range(1, len(summed) + 1)
        run.draw(graph.name, SUM, zip(places, summed[order].tolist(), strict=True))
        for name, found in (*computations.items(), (SUM, summed)):
            apart = distance(found.round(DIGITS), summed.round(DIGITS))
            shared = len(set(order[:TOP].tolist()) & set(np.argsort(-found, kind="stable")[:TOP].tolist()))
            size_tau = distance(found.round(DIGITS), sizes).tau
            yield [graph.name, len(sizes), inside, name, apart.l1, apart.tau, shared, size_tau]
            if name != SUM:
                run.draw(graph.name, name, zip(places, found[order].tolist(), strict=True))


def _computed(graph: RecordedGraph) -> tuple[Float64s, Float64s, float, dict[str, Float64s]]:
    """Return of each site the sum over its pages, its size, and other computations; and the share of links inside."""
    kept = np.flatnonzero(graph.group >= 0)
    links, site = graph.links[kept][:, kept], graph.group[kept]
    count = len(graph.names)
    sizes = _sums(site, np.ones(len(site)), count)
    ranks = pagerank(links, threshold=THRESHOLD)
    sources = np.repeat(np.arange(len(kept)), np.diff(links.indptr))
    inside = site[sources] == site[links.indices]
    outer = sparse.csr_array(
        (np.ones(int((~inside).sum())), (sources[~inside], links.indices[~inside])), shape=links.shape
    )
    between = sparse.csr_array((np.ones(outer.nnz), (site[outer.nonzero()[0]], site[outer.nonzero()[1]])), (count,) * 2)
    between.sum_duplicates()
    once = between.copy()
    once.data[:] = 1
    computations: dict[str, Float64s] = {
        "sites, each link once": weighted_pagerank(once),
        "sites, each link between pages": weighted_pagerank(between),
        "pages, without links inside sites": _sums(site, pagerank(outer, threshold=THRESHOLD), count),
        "sites, weighted by pages' importance": _aggregated(links, ranks, site, sizes),
    }
    return _sums(site, ranks, count), sizes, float(inside.mean()), computations


def _sums(site: Int64s, values: Float64s, count: int) -> Float64s:
    sums = np.zeros(count)
    np.add.at(sums, site, values)
    return sums


def weighted_pagerank(links: LinkMatrix, teleport: Float64s | None = None) -> Float64s:
    """Return PageRank with links in proportion to their weights; `teleport` (n,) is also where dangling rank goes.

    >>> weighted_pagerank(sparse.csr_array(np.array([[0.0, 3.0], [1.0, 0.0]])))
    array([0.5, 0.5])
    """
    count = links.shape[0]
    to = np.full(count, 1 / count) if teleport is None else teleport / teleport.sum()
    out = np.asarray(links.sum(axis=1))
    share = np.divide(DAMPING, out, out=np.zeros(count), where=out > 0)
    backward, ranks = links.T.tocsr(), to
    for _ in range(ITERATIONS):
        ranks = backward @ (ranks * share)
        ranks = ranks + (1 - ranks.sum()) * to
    return np.asarray(ranks)


def _aggregated(links: LinkMatrix, ranks: Float64s, site: Int64s, sizes: Float64s) -> Float64s:
    """Return PageRank of the sites, from the rank that each link between pages carries."""
    out = degrees(links)
    carried = np.repeat(np.divide(ranks, out, out=np.zeros(len(ranks)), where=out > 0), np.diff(links.indptr))
    sources = np.repeat(site, np.diff(links.indptr))
    count = len(sizes)
    # What a site's dangling pages have goes to all pages, as teleport does: links to sites by their sizes.
    dangling = _sums(site, ranks * (out == 0), count)
    flow = sparse.csr_array((carried, (sources, site[links.indices])), (count, count))
    flow = flow + sparse.csr_array(np.outer(dangling, sizes / sizes.sum()))
    return weighted_pagerank(flow, sizes)


SITES: Final = Experiment(
    "sites",
    "importance of sites: sums over pages, and cash between sites",
    OPIC_PAPER,
    {
        **keys("graph", "sites", "links_inside", "computation"),
        **dict.fromkeys(("l1", "tau", "top_10_shared", "size_tau")),
    },
    rows_of,
    paper=[{"computation": "cash moves between sites", "result": "none: 'we are currently experimenting'"}],
    notes=(
        "l1 and tau are against the sum over pages, which is what the service answers; size_tau is Kendall's tau of "
        "the computation with the number of pages. Sites that tie count for neither order, so tau with itself is "
        "below 1.",
        "sites, each link once: a site links to each other site that one of its pages links to, all links alike; the "
        "virtual page pays each site alike.",
        "sites, each link between pages: a site's links are weighted by how many links between pages they stand for.",
        "pages, without links inside sites: the sum over pages of PageRank of the pages, links inside a site left out.",
        "sites, weighted by pages' importance: a site's links are weighted by the importance that they carry, its "
        "loop is kept, and the virtual page pays by pages. That is the sum over pages again (an exact aggregation), "
        "so a computation on sites alone differs by what it does not know of the pages.",
        "Sites are hosts in gr0-california, directories in hollins, ranges of pages in uk-2007-05-100000, categories "
        "in wikispeedia; pages of no site are left out.",
    ),
    axes=Axes("sites, by the sum over their pages", "importance", "log", "log"),
    runs=0,
)
