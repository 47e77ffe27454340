"""Is exact importance over HTTP within its bound of PageRank at every stage of a crawl that fetches each page once?

Crawls of recorded graphs, as a crawler makes them: seeds, `next` with mode discover, events, all over HTTP, with the
default settings but for the host's delay. After 5, 10, 25, 50, 75 and 90 % of the reads, once all events have taken
effect, the importance of all known pages is asked for, by the default policy and from cash, and compared with PageRank
of the known graph by the power method. One draw of five seeds after the other. Exit status 1 if a bound is below the
error, or no graph is there.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from bench_fetch_order import DAMPING, SITE, seeds_of
from bench_flow import CHECKPOINTS, WINDOW_POLICIES, WINDOWS
from harness import served, write_result
from measured_graphs import graph_arguments, graphs_here
from scipy.sparse.csgraph import breadth_first_order

from experiments.recorded_graphs import RecordedGraph
from opic.client import Client
from opic.graph.crawled import link_matrix
from opic.graph.pagerank import pagerank

BATCH, URLS_A_CALL = 20, 500
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.01


def crawl(graph: RecordedGraph, seeds: Sequence[int], client: Client) -> list[dict[str, float]]:
    """Crawl all that can be reached from the seeds; return what was found at each checkpoint."""
    reached = [breadth_first_order(graph.links, seed, return_predecessors=False) for seed in seeds]
    reads_in_all = len(np.unique(np.concatenate(reached)))
    client.seed([f"{SITE}{seed}" for seed in seeds])
    read, rows, marks = list[int](), list[dict[str, float]](), list(CHECKPOINTS)
    deadline = time.monotonic() + WAIT_SECONDS
    while marks:
        found = client.next(BATCH, mode="discover")
        pages = [int(page.url.removeprefix(SITE)) for page in found.pages]
        if not pages:
            assert time.monotonic() < deadline, f"no page to read after {len(read)} of {reads_in_all}"
            time.sleep(min(found.retry_after, POLL_SECONDS))
            continue
        client.events(
            [{"url": f"{SITE}{page}", "links": [f"{SITE}{to}" for to in graph.links_of(page)]} for page in pages]
        )
        read += pages
        deadline = time.monotonic() + WAIT_SECONDS
        if 100 * len(read) >= marks[0] * reads_in_all:
            wait_for_effect(client, len(read))
            rows.append({"reads_percent": marks.pop(0), **look(graph, read, seeds, client)})
    assert len(set(read)) == len(read), "a page was handed out twice"
    return rows


def wait_for_effect(client: Client, reads: int) -> None:
    """Wait until so many pages were read."""
    deadline = time.monotonic() + WAIT_SECONDS
    while client.stats().read_pages < reads:
        assert time.monotonic() < deadline, f"{client.stats().read_pages} of {reads} reads took effect"
        time.sleep(POLL_SECONDS)


def look(graph: RecordedGraph, read: Sequence[int], seeds: Sequence[int], client: Client) -> dict[str, float]:
    """Return the L1 distance of the answers from PageRank of the known graph, and the bound that they tell."""
    sources = np.sort(np.array(read))
    part = graph.links[sources]
    known = np.unique(np.concatenate((sources, part.indices, np.array(seeds))))
    of, to = np.searchsorted(known, np.repeat(sources, np.diff(part.indptr))), np.searchsorted(known, part.indices)
    truth = pagerank(link_matrix(of, to, (len(known), len(known))), DAMPING, 1e-12)

    def answered(policy: str | None = None, window: float | None = None) -> tuple[float, float]:
        since, shares, bounds = time.time(), list[float](), list[float]()
        for first in range(0, len(known), URLS_A_CALL):
            some = [f"{SITE}{page}" for page in known[first : first + URLS_A_CALL].tolist()]
            while (found := client.importances(some, policy=policy, window=window)).as_of < since and policy is None:
                time.sleep(POLL_SECONDS)
            assert all(page.policy == (policy or "exact") for page in found.pages), "another policy answered"
            shares += [page.importance or 0.0 for page in found.pages]
            bounds += [page.error_bound or 0.0 for page in found.pages]
        return float(np.abs(np.array(shares) - truth).sum()), max(bounds)

    error, bound = answered()
    cash, _ = answered("static")
    windows = {(policy, rounds): answered(policy, rounds)[0] for policy in WINDOW_POLICIES for rounds in WINDOWS}
    return {"known": len(known), "l1": error, "bound": bound, "cash_l1": cash, "window_l1": min(windows.values())}


def main() -> int:
    """Measure, print and write the JSON."""
    parser = graph_arguments("Exact importance over HTTP beside PageRank.", ("hollins",))
    parser.add_argument("--draws", type=int, default=5, help="number of draws of five seeds")
    args = parser.parse_args()
    found, broken = dict[str, object](), 0
    for graph in graphs_here(args.graphs, args.data):
        draws = list[list[dict[str, float]]]()
        for number in range(args.draws):
            with (
                tempfile.TemporaryDirectory(prefix="opic-bench-") as folder,
                served(Path(folder), host_delay_seconds=0) as url,
                Client(url) as client,
            ):
                draws.append(crawl(graph, seeds_of(graph, number), client))
            for row in draws[-1]:
                print(f"{graph.name}, draw {number}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()))
        rows = [row for draw in draws for row in draw]
        broken += sum(row["l1"] > row["bound"] for row in rows)
        worst = {name: max(row[name] for row in rows) for name in ("l1", "bound", "cash_l1", "window_l1")}
        least = min(row["bound"] / row["l1"] for row in rows)
        found[graph.name] = {"draws": draws, "worst": worst, "least bound over error": least}
        print(f"{graph.name}: worst {worst}, bound / error at least {least:.3g}")
    if found:
        write_result("exact-http", {"damping": DAMPING, "batch": BATCH, "measured": found}, args.result)
    return 1 if broken or not found else 0


if __name__ == "__main__":
    sys.exit(main())
