"""OPIC with other link matrices: in-links, both directions, weights by type of link, co-citation.

The paper (section 1) says that the algorithm "works for any link matrix L assuming that L can be read line by line",
and names three: a page is important that important pages link to, that a random walk reads, or that links to or from
important pages. It finds (section 4.3) that links inside a site say less than those between sites. A read of page i
here pays page j in proportion to L[i, j], so a link of weight four is a link that stands four times.

Two things are measured for each matrix: how many reads the estimates take to converge, and what they converge to,
beside the dominant eigenvector of L, which is what the paper defines importance by.
"""

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from experiments.algorithms.comparison import distance
from experiments.opic_engine import Engine, EngineRules, PageLinks, fixed_point
from experiments.opic_reads import tau_told_apart
from experiments.recorded_graphs import RecordedGraph
from experiments.skeleton import OPIC_PAPER, Axes, Experiment, Run, keys
from experiments.strategies import STRATEGIES
from opic.arrays import Float64s
from opic.graph.crawled import LinkMatrix

GRAPHS: Final = ("hollins", "gr0-california", "wikispeedia", "uk-2007-05-100000")
RULES: Final = EngineRules()
READS_A_PAGE: Final = 10
STEPS: Final = 10  # Looks at the error in the time of N reads.
TARGET: Final = 0.01  # L1.
BATCHES: Final = "batches of 10 %"
ORDERS: Final = ("Greedy", "Cycle", BATCHES)
OUTSIDE_WEIGHT: Final = 4  # Of a link to another site, where one inside a site weighs 1.
COCITED_MAX: Final = 4_000_000  # Pairs of links of one page, above which co-citation is left out.
EIGEN_STEPS: Final = 2_000
EIGEN_SETTLED: Final = 1e-9
EIGEN_PATCH: Final = 1e-3  # Of all importance, handed to all pages alike in each step: the paper's epsilon.
OUT: Final = "links out"


def links_out(graph: RecordedGraph) -> LinkMatrix:
    """Return the links as they are: the paper's random walk, and PageRank."""
    return graph.links


def links_in(graph: RecordedGraph) -> LinkMatrix:
    """Return the links turned round: a page is important that links to important pages."""
    return graph.links.T.tocsr()


def both_directions(graph: RecordedGraph) -> LinkMatrix:
    """Return 1 where either page links to the other."""
    both = (graph.links + graph.links.T).tocsr()
    both.data[:] = 1
    return both


def outside_more(graph: RecordedGraph) -> LinkMatrix:
    """Return the links with a greater weight where they lead to another site."""
    return _weighted(graph, OUTSIDE_WEIGHT)


def outside_only(graph: RecordedGraph) -> LinkMatrix:
    """Return the links to other sites; a page that has none gives all to the virtual page."""
    outside = _weighted(graph, 2)
    outside.data -= 1
    outside.eliminate_zeros()
    return outside


def _weighted(graph: RecordedGraph, outside: int) -> LinkMatrix:
    links = graph.links.copy()
    source = np.repeat(graph.group, np.diff(links.indptr))
    target = graph.group[links.indices]
    links.data = np.where((source == target) & (source >= 0), 1.0, float(outside))
    return links


def cocitation(graph: RecordedGraph) -> LinkMatrix | None:
    """Return Kleinberg's K'K without its diagonal: how many pages link to both; None where it is too large."""
    if (np.diff(graph.links.indptr) ** 2).sum() > COCITED_MAX:
        return None
    cited = (graph.links.T @ graph.links).tocsr()
    cited.setdiag(0)
    cited.eliminate_zeros()
    return cited


MATRICES: Final[dict[str, Callable[[RecordedGraph], LinkMatrix | None]]] = {
    OUT: links_out,
    "links in": links_in,
    "both directions": both_directions,
    f"links out, to other sites {OUTSIDE_WEIGHT} times": outside_more,
    "links out, to other sites only": outside_only,
    "co-citation, K'K": cocitation,
}


def repeated(matrix: LinkMatrix) -> PageLinks:
    """Return links, each as often as its weight says, which must be a whole number.

    >>> from scipy.sparse import csr_array
    >>> repeated(csr_array(np.array([[0.0, 2.0], [1.0, 0.0]]))).targets
    array([1, 1, 0])
    """
    times = matrix.data.astype(np.int64)
    counts = np.concatenate(([0], np.cumsum(times)))
    return PageLinks(counts[matrix.indptr], np.repeat(matrix.indices.astype(np.int64), times))


def dominant_eigenvector(matrix: LinkMatrix) -> Float64s:
    """Return the paper's importance: x with x[j] = sum of L[i, j] x[i], up to a factor, by its induction on L + I.

    A little is handed to all pages in each step, so that it is unique.
    """
    count = matrix.shape[0]
    backward, x = matrix.T.tocsr(), np.full(count, 1 / count)
    for _ in range(EIGEN_STEPS):
        previous, x = x, backward @ x + x
        x = (1 - EIGEN_PATCH) * x / x.sum() + EIGEN_PATCH / count
        if np.abs(x - previous).sum() < EIGEN_SETTLED:
            break
    return x


def rows_of(run: Run) -> Iterator[list[object]]:
    """Crawl each graph with each matrix, all pages known."""
    for graph in run.steps(run.graphs(run.either(GRAPHS, GRAPHS[:1])), lambda graph: graph.name):
        ranks = fixed_point(PageLinks.of(graph.links), RULES)
        for name in run.steps(MATRICES):
            matrix = MATRICES[name](graph)
            if matrix is None:
                run.note(f"{name} of {graph.name} has too many entries, and is left out")
                continue
            links = repeated(matrix)
            truth = fixed_point(links, RULES)
            curves = {order: _curve(links, order, truth, run) for order in run.either(ORDERS, ORDERS[1:2])}
            for order, curve in curves.items():
                run.draw(f"{graph.name}, {order}", name, [(at / STEPS, l1) for at, l1 in enumerate(curve, 1)])
            reached = [_reads(curves[order]) if order in curves else None for order in ORDERS]
            weights = np.asarray(matrix.sum(axis=0)).ravel()
            eigen = dominant_eigenvector(matrix)
            yield [
                *(graph.name, name, matrix.nnz, *reached, *_from(truth, ranks)),
                *(tau_told_apart(truth, weights), *_from(truth, eigen), np.sort(truth)[-len(truth) // 100 :].sum()),
            ]


def _from(x: Float64s, other: Float64s) -> tuple[float, float]:
    """Return the L1 distance from another importance, and Kendall's tau over the pages that it tells apart."""
    return distance(x, other).l1, tau_told_apart(x, other)


def _curve(links: PageLinks, order: str, truth: Float64s, run: Run) -> list[float]:
    """Return the L1 errors at regular intervals of a crawl with all pages known."""
    engine = Engine(links, RULES, compiled=not run.quick)
    engine.know(np.arange(len(engine)))
    read, found = STRATEGIES[order](engine, run.rng(1)), list[float]()
    for _ in range(STEPS * run.either(READS_A_PAGE, 2)):
        read(len(engine) // STEPS)
        found.append(float(np.abs(engine.estimate() - truth).sum()))
    return found


def _reads(curve: list[float]) -> float | str:
    """Return after how many N reads the error is below the target, and stays there."""
    above = [at for at, l1 in enumerate(curve, 1) if l1 > TARGET]
    last = max(above, default=0)
    return (last + 1) / STEPS if last < len(curve) else f"> {len(curve) / STEPS:g}"


OPIC_MATRICES: Final = Experiment(
    "opic-matrices",
    "other link matrices: in-links, both directions, weights by type of link, co-citation",
    OPIC_PAPER,
    {
        **keys("graph", "matrix"),
        "entries": 0,
        **{f"{order}: N reads to 1%": 1 for order in ORDERS},
        **dict.fromkeys(("L1 from PageRank", "tau with PageRank", "tau with in-weight"), 3),
        **dict.fromkeys(("L1 from eigenvector", "tau with eigenvector", "held by the top 1%"), 3),
    },
    rows_of,
    paper=[
        {"claim": "'it works for any link matrix L assuming that L can be read line by line'", "figures": "none"},
        {"claim": "links inside a site are less useful than those to other sites", "figures": "none"},
    ],
    notes=(
        "by grants with damping 0.85 and all pages known; N reads to 1%: after which L1 stays below 0.01, by strategy",
        "PageRank: of the links as they are; in-weight: the sum of a page's column of the matrix; tau is over the "
        "pairs that the PageRank, the in-weight or the eigenvector tells apart",
        "eigenvector: the dominant one of L + I, as in the paper's section 1, with a thousandth of all importance "
        "handed to all pages alike in each step, so that it is unique",
        "a read pays out a page's cash, no more and no less, so OPIC divides each line of L by its sum and finds the "
        "walk on L; only where all lines have the same sum is that the eigenvector of L itself",
        "for K'K the diagonal is left out: a page that paid itself would only wait",
        "sites are as in the experiment `sites`; a page of no site counts as a site of its own",
    ),
    axes=Axes("reads, in N", "L1 error"),
    runs=0,
)
