"""Do many shards and many writers estimate what one shard does?

The pages of real graphs are spread over a hundred made-up hosts, at random, so that nearly every link leads to
another shard: the worst case. Each crawl discovers its graph from five seeds, greedy by cash. Between shards cash
travels as in a worker: whoever reads a partition delivers to its shards, after every batch of reads; grants are decided
as there. With three writers events go to three partitions in turn, so that all of them step on all shards. Before a
look at the estimate all outboxes are emptied. It is compared by L1 with exact PageRank of the known graph, beside the
band that was found for one shard (`bench_accuracy.ROWS`) and the crawl with one shard in the same run.

Exits 1 when an error bound is below the true error, a grain is missing, or an outbox can't be emptied.

    python benchmarks/bench_shards_accuracy.py --sets hollins,wikispeedia --choices 3 --reads 10
    python benchmarks/bench_shards_accuracy.py --deliver-events 500
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from bench_accuracy import FIRST_READ_US, ROWS, SEED_PAGES, FloatArray, greedy, pagerank
from harness import embedded_server, write_result
from workloads import LOADERS, Graph, load

from experiments.recorded_graphs import NoGraph
from opic.ingest import Writer
from opic.model.cash import CrawlRules
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.replica import Crawl as Shards
from opic.store import connect

READS_PER_PAGE = (1.0, 2.0, 5.0, 10.0)
HOSTS = 100
BATCH_SHARE = 20  # A batch is one in so many of the known pages: larger costs nothing (0.1 of them does not yet).
SETUPS = ((1, 1), (4, 1), (16, 1), (16, 3))  # Shards and writers.


@dataclass(frozen=True, slots=True)
class Point:
    """What one crawl shows at one moment."""

    workload: str
    shards: int
    writers: int
    choice: int
    reads_per_page: float
    known: float
    l1: float
    bound: float
    from_one: float  # L1 from the estimate of one shard, where that knows the same pages; else NaN.
    conserved: bool
    seconds: float


def spread(graph: Graph) -> Graph:
    """Give each page a URL on one of HOSTS hosts, large and small."""
    draw = random.Random(graph.name).random
    return replace(graph, urls=[f"http://h{int(HOSTS * draw() ** 2)}.example/{i}" for i in range(len(graph))])


class Many:
    """A crawl of some shards with some writers, each reading a partition of its own."""

    def __init__(
        self, url: str, shards: int, writers: int, rules: CrawlRules, graph: Graph, deliver_events: int
    ) -> None:
        """Make it."""
        self.crawl = Shards.open(connect(url), f"bench-{shards}-{writers}", {**asdict(rules), "shards": shards})
        self.writers = [Writer(self.crawl) for _ in range(writers)]
        self._node_of = {url: node for node, url in enumerate(graph.urls)}
        self._nodes: list[list[int]] = [[] for _ in range(shards)]  # By id.
        self._offsets, self._turn = [0] * writers, 0
        self._deliver_events, self._since = deliver_events, 0

    def feed(self, values: Iterable[bytes], kind: str = "event") -> None:
        """Let events take effect, one for each writer in turn; then let each deliver to its shards."""
        parts: list[list[Record]] = [[] for _ in self.writers]
        for value in values:
            which = self._turn % len(self.writers)
            offset = self._offsets[which]
            parts[which].append(Record(offset, FIRST_READ_US + self._turn, value, kind))
            self._offsets[which] += 1
            self._turn += 1
            self._since += 1
        for which, records in enumerate(parts):
            self.writers[which].apply(f"crawl.events/{which}", records)
        if self._since >= self._deliver_events:
            self._since = 0
            for which, writer in enumerate(self.writers):
                writer.deliver(writer.responsible(which, len(self.writers)))

    def drain(self) -> None:
        """Empty all outboxes."""
        while sum(writer.deliver() for writer in self.writers):
            pass
        if self.crawl.waiting():
            raise SystemExit(f"{self.crawl.waiting()} entries wait after a drain")

    def columns(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the node, the cash and the history of each known page."""
        nodes, cash, history = [], [], []
        for number, (replica, of_shard) in enumerate(zip(self.crawl.follow(), self._nodes, strict=True)):
            new = self.crawl.urls_in(number, range(len(of_shard), len(replica)))
            of_shard += [self._node_of[url] for url in new]
            nodes.append(np.array(of_shard, np.int64))
            cash.append(replica.cash())
            history.append(replica.spent())
        return np.concatenate(nodes), np.concatenate(cash), np.concatenate(history)


def crawl(
    graph: Graph, many: Many, rules: CrawlRules, choice: int, reads_max: float
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Crawl a graph greedily; tell how it stands at each number of reads, and the estimate."""
    encoded: dict[int, bytes] = {}
    read = np.zeros(len(graph), bool)
    reads, begun = 0, time.perf_counter()

    def event(node: int) -> bytes:
        if node not in encoded:
            links = [graph.urls[target] for target in graph.links_of(node)]
            encoded[node] = encode_crawl_event(CrawlEvent(graph.urls[node], links))
        return encoded[node]

    many.feed([encode_seeds([graph.urls[node] for node in graph.seed_pages(SEED_PAGES, choice)])], "seeds")
    for reads_per_page in READS_PER_PAGE:
        if reads_per_page > reads_max:
            return
        goal = round(reads_per_page * len(graph))
        while reads < goal:
            nodes, cash, _ = many.columns()
            batch = nodes[greedy(cash, goal - reads, BATCH_SHARE)].tolist()
            many.feed(map(event, batch))
            read[batch] = True
            reads += len(batch)
        many.drain()
        nodes, cash, history = many.columns()
        books, (whole, parts) = many.crawl.totals(), many.crawl.audit()
        known, importance = np.zeros(len(graph), bool), np.zeros(len(graph))
        known[nodes] = True
        importance[nodes] = (history + cash) / (history + cash).sum()
        yield (
            {
                "reads_per_page": reads_per_page,
                "known": len(nodes) / len(graph),
                "l1": float(np.abs(importance - pagerank(graph, known, read)).sum()),
                "bound": books.error_bound(rules.minted, rules.q),
                "conserved": whole.conserved and all(part.conserved for part in parts),
                "seconds": round(time.perf_counter() - begun, 1),
            },
            (known, importance),
        )


def measure(graph: Graph, setups: Sequence[tuple[int, int]], args: argparse.Namespace, choice: int) -> Iterator[Point]:
    """Crawl one graph with each number of shards and writers."""
    rules, one = CrawlRules(inflow=False), {}
    for shards, writers in setups:
        with embedded_server() as server:
            many = Many(server.url, shards, writers, rules, graph, args.deliver_events)
            for told, (known, estimate) in crawl(graph, many, rules, choice, args.reads):
                if (shards, writers) == setups[0]:
                    one[told["reads_per_page"]] = known, estimate
                known_there, theirs = one[told["reads_per_page"]]
                same = bool((known == known_there).all())
                apart = float(np.abs(estimate - theirs).sum()) if same else float("nan")
                yield Point(graph.name, shards, writers, choice, from_one=apart, **told)


def print_point(point: Point) -> None:
    """Print one line of the table."""
    row = ROWS[point.workload].l1.get(point.reads_per_page, float("nan")) if point.workload in ROWS else float("nan")
    remarks = ("" if point.l1 <= point.bound + 1e-9 else " BOUND BROKEN") + (
        "" if point.conserved else " NOT CONSERVED"
    )
    print(
        f"{point.workload:<18} {point.shards:>6} {point.writers:>7} {point.choice:>6} {point.reads_per_page:>5} "
        f"{point.known:>6.1%} {point.l1:>8.4f} {row:>7.3f} {point.l1 / row:>6.2f} {point.from_one:>9.4f} "
        f"{point.bound:>8.4f} {point.seconds:>7.1f}{remarks}",
        flush=True,
    )


def main() -> int:
    """Run the crawls, print, write the JSON."""
    parser = argparse.ArgumentParser(description="Accuracy of the estimate with many shards and writers.")
    parser.add_argument("--data", type=Path, help="directory with the graphs")
    parser.add_argument("--sets", default="hollins", help="comma-separated: " + ", ".join(LOADERS))
    parser.add_argument("--choices", type=int, default=1, help="choices of the seed pages")
    parser.add_argument("--reads", type=float, default=5.0, help="a page of the graph, at most")
    parser.add_argument("--deliver-events", type=int, default=1, help="least number of reads between two deliveries")
    parser.add_argument("--setups", default=",".join(f"{s}x{w}" for s, w in SETUPS), help="SHARDSxWRITERS, ..")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    setups = [(int(s), int(w)) for s, w in (one.split("x") for one in args.setups.split(","))]
    print(
        f"{'set':<18} {'shards':>6} {'writers':>7} {'choice':>6} {'reads':>5} {'known':>6} {'L1':>8} {'band':>7} "
        f"{'ratio':>6} {'from one':>9} {'bound':>8} {'s':>7}"
    )
    points: list[Point] = []
    for name in args.sets.split(","):
        try:
            graph = spread(load(name, args.data))
        except NoGraph as reason:
            print(f"skipped {reason}")
            continue
        for choice in range(args.choices):
            for point in measure(graph, setups, args, choice):
                print_point(point)
                points.append(point)
    print(f"\nmedian of the choices{'':>7} " + " ".join(f"{reads:>4g} N" + " " * 3 for reads in READS_PER_PAGE))
    for name in dict.fromkeys(point.workload for point in points):
        for shards, writers in setups:
            cells = [
                statistics.median(p.l1 for p in points if (p.workload, p.shards, p.writers, p.reads_per_page) == key)
                for reads in READS_PER_PAGE
                if reads <= args.reads and (key := (name, shards, writers, reads))
            ]
            print(f"{name:<12} {shards:>2} x {writers} writers " + " ".join(f"{cell:>8.4f}" for cell in cells))
    found = {"hosts": HOSTS, "deliver_events": args.deliver_events, "points": [asdict(point) for point in points]}
    write_result("shards-accuracy", found, args.result)
    broken = [point for point in points if not (point.conserved and point.l1 <= point.bound + 1e-9)]
    print(f"{len(points)} points, {len(broken)} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
