"""How much PageRank do the first reads of a crawl fetch, by the order in which the service suggests pages?

Discovering crawls of recorded graphs from five seeds, through the frontier on a running store: each page is fetched
once, as `next` with mode discover suggests it, a batch at a time; the order is computed anew before each batch. The
figures are the shares of the PageRank of the whole graph that is fetched after 2, 5, 10, 25, 50 % of N reads, N being
its pages. `most` is what as many pages hold at best, whether there are links to them or not. Exit status 1 if no graph
is there.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
from harness import RECORD_TIME_US, embedded_server, write_result
from measured_graphs import graph_arguments, graphs_here, mean_and_error
from scipy.sparse.csgraph import breadth_first_order

from experiments.recorded_graphs import RecordedGraph
from opic.frontier import Frontier, PolitenessSettings
from opic.graph.pagerank import pagerank
from opic.ingest import Writer
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.query.coverage import CoverageQuery
from opic.query.fetch_order import FetchOrder
from opic.query.kept_links import KeptLinks
from opic.query.page_flows import PageFlows
from opic.replica import Crawl
from opic.service.embedded import EmbeddedServer
from opic.store import connect

GRAPHS = ("hollins", "wikispeedia", "uk-2007-05-100000")
DAMPING, SEEDS, SETS, RANDOM_SEED = 0.85, 5, 20, 20030520
CHECKPOINTS = (2, 5, 10, 25, 50)
ORDERS = ("cash", "exact, uniform", "exact, .2 on the seeds", "coverage", "breadth-first")
SITE = "http://graph.example/"


def seeds_of(graph: RecordedGraph, number: int) -> list[int]:
    """Return draw `number` of seeds: those from which most pages can be reached, of several sets."""
    rng = np.random.default_rng(RANDOM_SEED + number)
    draws = [rng.choice(len(graph), SEEDS, replace=False) for _ in range(SETS)]

    def reached(seeds: list[int]) -> int:
        found = [breadth_first_order(graph.links, seed, return_predecessors=False) for seed in seeds]
        return len(np.unique(np.concatenate(found)))

    return max((draw.tolist() for draw in draws), key=reached)


class Discovery:
    """A crawl of a graph in one order."""

    def __init__(self, server: EmbeddedServer, name: str, order: str, stack: ExitStack) -> None:
        client = stack.enter_context(connect(server.url))
        links = order.startswith("exact")
        self.writer = Writer(Crawl.open(client, name, {"shards": 1}, keep_links=links))
        crawl = Crawl.open(client, name)
        flows = PageFlows(KeptLinks(crawl))
        self.frontier = Frontier(
            crawl,
            PolitenessSettings(host_delay_seconds=0.0),
            strategy="cycle" if order == "breadth-first" else "greedy",
            coverage=CoverageQuery(flows),
            worth=FetchOrder(flows, 0.2 if order.endswith("seeds") else 0.0) if links else None,
        )
        self.mode, self._trust, self._offset = "coverage" if order == "coverage" else "discover", order == "coverage", 0

    def apply(self, values: list[bytes], kind: str) -> None:
        """Apply records."""
        records = [Record(self._offset + at, RECORD_TIME_US, value, kind) for at, value in enumerate(values)]
        self.writer.apply("log/0", records)
        self._offset += len(records)

    def fetched(self, graph: RecordedGraph, seeds: list[int], batch: int) -> Iterator[list[int]]:
        """Yield the pages of each batch, until nothing is left."""
        urls = [f"{SITE}{seed}" for seed in seeds]
        self.apply([encode_seeds(urls, 0, trust=1.0 if self._trust else None)], "seeds")
        self.writer.drain()
        while found := self.frontier.next(batch, mode=self.mode).pages:
            pages = [int(page.url.removeprefix(SITE)) for page in found]
            yield pages
            events = [CrawlEvent(f"{SITE}{page}", [f"{SITE}{to}" for to in graph.links_of(page)]) for page in pages]
            self.apply(list(map(encode_crawl_event, events)), "event")


def measure(graph: RecordedGraph, batch: int, draws: int) -> dict[str, object]:
    """Return for each order the share of PageRank fetched at each checkpoint: means, errors and all draws."""
    truth = pagerank(graph.links, DAMPING, 1e-10)
    marks = [len(graph) * mark // 100 for mark in CHECKPOINTS]
    rows: dict[str, object] = {"most": [float(np.sort(truth)[::-1][:mark].sum()) for mark in marks]}
    found: dict[str, list[list[float]]] = {order: [] for order in ORDERS}
    for number in range(draws):
        seeds = seeds_of(graph, number)
        for order in ORDERS:
            began = time.process_time()
            with ExitStack() as stack:
                crawl = Discovery(stack.enter_context(embedded_server()), "order", order, stack)
                held = list[float]()
                for pages in crawl.fetched(graph, seeds, batch):
                    held += truth[pages].tolist()
                    if len(held) >= marks[-1]:
                        break
            found[order].append([round(sum(held[:mark]), 4) for mark in marks])
            took = time.process_time() - began
            print(f"{graph.name}, draw {number}, {order}: {found[order][-1]}, {took:.0f} s of CPU", flush=True)
    return rows | {order: mean_and_error(of) | {"draws": of} for order, of in found.items()}


def main() -> int:
    """Measure, print and write the JSON."""
    parser = graph_arguments("PageRank fetched by the first reads, by order of suggestions.", GRAPHS)
    parser.add_argument("--batches", type=int, default=300, help="number of batches in a crawl")
    parser.add_argument("--draws", type=int, default=1, help="number of draws of seeds")
    args = parser.parse_args()
    found = {
        graph.name: measure(graph, max(len(graph) // args.batches, 1), args.draws)
        for graph in graphs_here(args.graphs, args.data)
    }
    if not found:
        return 1
    settings = {"percent of N reads": CHECKPOINTS, "batches": args.batches, "draws": args.draws}
    write_result("fetch-order", settings | {"fetched": found}, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
