"""What does one selection step of the local-domain estimator cost?  Pass --local 10000 --candidates 100000 to measure.

A made-up crawl of a domain: local pages link to each other and to outside pages, most often to popular ones. One step
scores all candidates by their influence on the local pages (SC-Select). Beside it: the paper's text written down as it
is, a loop over the candidates with sparse vectors; PageRank of the local pages, and of local pages and candidates
together, which is what scoring saves. The scores of both are compared before a time counts.

PageRank of the made-up graph settles after few iterations, that of a real one takes its usual number. So --data DIR,
with the recorded graph uk-2007-05-100000, repeats the step on a range of its pages, and on pages at even distances.

The score stands for the exact influence: how far PageRank of the local pages moves when it is solved again with the
candidate added. Their rank correlation is computed on small graphs: random ones, and with --data the small
categories of wikispeedia.

Exits 1 when a score differs. Times are the least of several, memory is what numpy held at most during the step.
"""

import argparse
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import write_result
from scipy import sparse, stats

from experiments.recorded_graphs import load_graph
from opic.arrays import Float64s
from opic.graph.crawled import CrawledGraph, CrawledLinks, degrees, link_matrix
from opic.graph.page_selection import sc_scores
from opic.graph.pagerank import DAMPING, pagerank

LOCAL, CANDIDATES = 1_000, 10_000
LINKS_INSIDE, LINKS_OUTSIDE = 10, 20  # Of each local page.
DANGLING_SHARE = 0.1
SKEW = 3  # Page number int(n * u^SKEW), u uniform: a few pages have most of the in-links.
# Share of links along a tree, and its branching: without a tree PageRank settles too fast.
TREE_SHARE, BRANCHES = 0.7, 10
REPEATS = 5
LEVELS = 100
SEED = 20060820
TOLERANCE = 1e-9
CATEGORY_PAGES_MAX = 150
SMALL_GRAPHS, SMALL_LOCAL, SMALL_PAGES, SMALL_DENSITY = 100, 10, 30, 0.15
MB = 1 << 20


def made_up_crawl(local: int, candidates: int) -> CrawledGraph:
    """Return a crawl of a domain; every candidate has a link from a local page."""
    rng = np.random.default_rng(SEED)
    idle = rng.random(local) < DANGLING_SHARE

    def links(of_each: int, targets: int, *, everyone: bool) -> np.ndarray:
        sources = np.repeat(np.flatnonzero(~idle), of_each)
        popular = (targets * rng.random(len(sources)) ** SKEW).astype(np.int64)
        up, down = sources // BRANCHES, (sources * BRANCHES + rng.integers(0, BRANCHES, len(sources))) % targets
        chance = rng.random(len(sources))
        tree = np.where(chance < TREE_SHARE / 2, up, down)
        ends = np.stack((sources, np.where(chance < TREE_SHARE, tree, popular)), axis=1)
        if everyone:
            ends = np.concatenate((ends, np.stack((rng.choice(np.flatnonzero(~idle), targets), np.arange(targets)), 1)))
        return np.unique(ends, axis=0)

    inner, outer = links(LINKS_INSIDE, local, everyone=False), links(LINKS_OUTSIDE, candidates, everyone=True)
    inner = inner[inner[:, 0] != inner[:, 1]]
    return CrawledGraph(
        local,
        link_matrix(inner[:, 0], inner[:, 1], (local, local)),
        link_matrix(outer[:, 0], outer[:, 1], (local, candidates)),
        np.arange(local),
        np.arange(local, local + candidates),
    )


def scores_by_the_text(graph: CrawledGraph, ranks: Float64s, candidates: int) -> Float64s:
    """Score the first candidates one after the other, each in O(l) and the links of its parents, as equation 15 says.

    With the terms of dangling pages that the paper leaves out, so that the scores can be compared.
    """
    size, out = len(ranks), degrees(graph.inside)
    counts = graph.inside.sum(axis=0)
    teleport = (1 - DAMPING) / (size + 1)
    z = ((DAMPING * counts / counts.sum() + teleport) / (1 - teleport))[: graph.local]
    backward, parents_of = graph.inside.T.tocsr(), graph.outward.tocsc()
    lost_once = np.divide(DAMPING * ranks, out * (out + 1), out=np.zeros(size), where=out > 0)
    idle_rank = ranks[out == 0].sum()
    scores = np.empty(candidates)
    for j in range(candidates):
        parents = parents_of.indices[parents_of.indptr[j] : parents_of.indptr[j + 1]]
        chosen = np.zeros(size)
        chosen[parents] = 1
        idle = (chosen * ranks)[out == 0].sum()
        everywhere = DAMPING * (idle_rank - idle) / (size + 1)
        g = teleport + everywhere + DAMPING * (ranks[parents] / (out[parents] + 1)).sum()
        y = -(teleport + everywhere + DAMPING * idle) / size
        x = -(backward @ (lost_once * chosen))[: graph.local]
        scores[j] = np.abs(x + y + g * z).sum()
    return scores


def union(graph: CrawledGraph) -> sparse.csr_array:
    """Return the links of local pages and candidates together; candidates link as often as local pages do."""
    local, candidates = graph.outward.shape
    rng = np.random.default_rng(SEED + 1)
    sources = np.repeat(np.arange(candidates), LINKS_INSIDE + LINKS_OUTSIDE)
    ends = np.unique(
        np.stack((sources, ((local + candidates) * rng.random(len(sources)) ** SKEW).astype(int)), 1), axis=0
    )
    return sparse.vstack((
        sparse.hstack((graph.inside, graph.outward)),
        link_matrix(ends[:, 0], ends[:, 1], (candidates, local + candidates)),
    ), format="csr")  # fmt: skip


def recorded_crawls(local: int, data: Path) -> dict[str, CrawledGraph]:
    """Return crawls of a recorded graph: of a range of pages, a part of its sites; and of pages at even distances."""
    graph = load_graph("uk-2007-05-100000", data)
    step = max(1, len(graph) // local)
    parts = {"a range": range(local), f"every {step}th page": range(0, step * local, step)}
    return {
        f"uk-2007-05-100000, {name}": CrawledLinks(pages, [graph.links_of(page) for page in pages]).graph()
        for name, pages in parts.items()
    }


def small_crawls(data: Path | None) -> dict[str, list[CrawledGraph]]:
    """Return small crawls of which the exact influence of each candidate can be solved."""
    rng, random = np.random.default_rng(SEED), []
    for _ in range(SMALL_GRAPHS):
        web = rng.random((SMALL_PAGES, SMALL_PAGES)) < SMALL_DENSITY * 2 * rng.random((1, SMALL_PAGES))
        web[rng.random(SMALL_PAGES) < DANGLING_SHARE] = False
        random.append(CrawledLinks(range(SMALL_LOCAL), [np.flatnonzero(web[page]) for page in range(SMALL_LOCAL)]))
    crawls = {"random graphs": [links.graph() for links in random]}
    if data is not None:
        graph = load_graph("wikispeedia", data)
        crawls["categories of wikispeedia"] = [
            CrawledLinks(domain.pages.tolist(), [graph.links_of(page) for page in domain.pages.tolist()]).graph()
            for domain in graph.domains(SMALL_LOCAL)
            if len(domain.pages) <= CATEGORY_PAGES_MAX
        ]
    return crawls


def exact_influences(graph: CrawledGraph, ranks: Float64s) -> Float64s:
    """Solve PageRank again with each candidate added (Davis, Dhillon 2006, equation 7); dense, O(c l^3).

    The links of a candidate are guessed from in-link counts, as in equation 5.
    """
    size = len(ranks)
    links = np.zeros((size + 1, size + 1))
    links[:size, :size] = graph.inside.toarray()
    counts = links.sum(axis=0)[:size]
    links[size, :size] = counts if counts.any() else 1.0
    influences = []
    for to_candidate in graph.outward.toarray().T:
        links[:size, size] = to_candidate
        sums = links.sum(axis=1, keepdims=True)
        walk = np.divide(links, sums, out=np.full_like(links, 1 / (size + 1)), where=sums > 0)
        teleport = np.full(size + 1, (1 - DAMPING) / (size + 1))
        moved = np.linalg.solve(np.eye(size + 1) - DAMPING * walk.T, teleport)[:size]
        influences.append(np.abs(moved / moved.sum() - ranks)[: graph.local].sum())
    return np.array(influences)


def rank_correlation(crawls: list[CrawledGraph]) -> dict[str, float]:
    """Return Spearman's correlation of score and exact influence over crawls where both differ between candidates."""
    found = []
    for graph in crawls:
        ranks = pagerank(graph.inside, threshold=TOLERANCE)
        scores, exact = sc_scores(graph, ranks), exact_influences(graph, ranks)
        if len(scores) > 3 and min(np.ptp(scores), np.ptp(exact)) > TOLERANCE:
            found.append(float(stats.spearmanr(scores, exact).statistic))
    return {"graphs": len(found), "mean": round(float(np.mean(found)), 3), "least": round(min(found), 3)}


def measured(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Return the shortest time of several runs, and the peak memory that numpy allocated in one more run."""
    took = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        took.append(time.perf_counter() - started)
    tracemalloc.start()
    try:
        work()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return {"seconds": round(min(took), 4), "megabytes": round(peak / MB, 1)}


def on_recorded(graph: CrawledGraph) -> dict[str, float]:
    """Return the size of a crawl, the seconds of a step and of PageRank of the local pages, and their ratio."""
    ranks = pagerank(graph.inside)
    step = measured(lambda: sc_scores(graph, ranks), REPEATS)
    local = measured(lambda: pagerank(graph.inside), REPEATS)
    return {
        "candidates": len(graph.candidates),
        "links": int(graph.inside.nnz + graph.outward.nnz),
        "step_seconds": step["seconds"],
        "step_megabytes": step["megabytes"],
        "pagerank_seconds": local["seconds"],
        "times_pagerank": round(step["seconds"] / local["seconds"], 2),
    }


def main() -> int:
    """Measure, compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local", type=int, default=LOCAL, help="local pages")
    parser.add_argument("--candidates", type=int, default=CANDIDATES, help="outside pages that they link to")
    parser.add_argument(
        "--text-candidates",
        type=int,
        help="number of candidates to score by the paper's text; the time is extrapolated to all",
    )
    parser.add_argument(
        "--result", type=Path, help="where to write the result; default benchmarks/results/local-rank.json"
    )
    parser.add_argument("--data", type=Path, help="directory of recorded graphs, for the real ones")
    given = parser.parse_args()
    graph = made_up_crawl(given.local, given.candidates)
    ranks = pagerank(graph.inside)
    scores = sc_scores(graph, ranks)
    both = union(graph)
    rows = {
        "SC step": measured(lambda: sc_scores(graph, ranks), REPEATS),
        f"SC step, {LEVELS} levels": measured(lambda: sc_scores(graph, ranks, levels=LEVELS), REPEATS),
        "PageRank of the local pages": measured(lambda: pagerank(graph.inside), REPEATS),
        "PageRank of the union": measured(lambda: pagerank(both), REPEATS),
    }
    some = min(given.text_candidates or given.candidates, given.candidates)
    started = time.perf_counter()
    by_the_text = scores_by_the_text(graph, ranks, some)
    seconds = time.perf_counter() - started
    rows["the paper's text"] = {"seconds": round(seconds * given.candidates / some, 4)}
    worst = float(np.abs(scores[:some] - by_the_text).max())
    step = rows["SC step"]["seconds"]
    links = int(graph.inside.nnz + graph.outward.nnz)
    print(f"{given.local:,} local pages, {given.candidates:,} candidates, {links:,} links")
    for name, row in rows.items():
        row["times_the_step"] = round(row["seconds"] / step, 2)
        memory = f"{row['megabytes']:>8.1f} MB" if "megabytes" in row else " " * 11
        print(f"{name:<30} {row['seconds']:>9.4f} s {memory} {row['times_the_step']:>8.2f} x")
    recorded = {}
    for name, crawl in (recorded_crawls(given.local, given.data) if given.data else {}).items():
        recorded[name] = on_recorded(crawl)
        print(f"{name}: {recorded[name]}")
    correlations = {name: rank_correlation(crawls) for name, crawls in small_crawls(given.data).items()}
    print(f"rank correlation with the exact influence: {correlations}")
    found = {
        "local": given.local, "candidates": given.candidates, "links": links,
        "text_candidates": some, "rows": rows, "largest_difference": worst,
        "recorded": recorded, "rank_correlation": correlations,
    }  # fmt: skip
    write_result("local-rank", found, given.result)
    if worst > TOLERANCE:
        print(f"FAIL: a score differs by {worst:g} from the paper's text")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
