"""How many events of 40 links a second go from the Kafka topic to durable effect, and what is busy meanwhile?

A real Kafka and real servers on loopback, `opic worker` processes as users run them. A topic is filled first; then each
set-up is a crawl of its own, which reads all of it: 1 and 2 workers, 1 and 3 nodes of a cluster, 1 and 16 shards, and
one worker without offsets and fence (`unfenced_worker.py`). An event counts once its read stands in the books of a
server that syncs its file before it answers. The rate is that between 25 and 85 % of all events, while every worker has
some left; so are the CPU times of workers, servers and Kafka, each by itself. Set-ups take turns, round by round.

Before a rate is reported: every event took effect once, the resume points are the topic's ends, all outboxes are empty,
and the audit of all shards holds.

It wants Java and Maven, as the tests do (tests/kafka_server.py), and says so where they are missing.

    python benchmarks/bench_kafka.py --pages 100000 --events 40000 --rounds 3
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from harness import SEEDS_A_RECORD, write_result
from workloads import LINKS, REPOSITORY, Crawl

# What starts real servers is with the tests, and we use it from there.
sys.path.append(str(REPOSITORY / "tests"))
from kafka_crawl import Topic, WorkerProcess, opened, settings_of
from kafka_server import Kafka, find_kafka
from redis_cluster import Cluster
from servers import Missing, find_server

from opic.ingest.kafka.connection import headers_of
from opic.ingest.publish import Publisher
from opic.model.events import encode_seeds
from opic.replica import Crawl as Shards
from opic.service.embedded import CONFIG
from opic.settings import Settings

NEW_SHARE = 0.1
PARTITIONS = 16
FROM_SHARE, TO_SHARE = 0.25, 0.85  # Of the events: between these the rate is taken.
SETTLE_SECONDS_MAX = 240.0
POLL_SECONDS = 0.05
SESSION_SECONDS = 10.0
UNFENCED = Path(__file__).parent / "unfenced_worker.py"
LIVE = ("appendfsync", "hash-max-listpack-entries", "hash-max-listpack-value", "auto-aof-rewrite-min-size")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class SetUp:
    """What is measured."""

    workers: int
    nodes: int
    shards: int
    fenced: bool = True

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.workers}w {self.nodes}n {self.shards}s" + ("" if self.fenced else " unfenced")


SET_UPS = (
    SetUp(1, 1, 1),
    SetUp(1, 1, 1, fenced=False),
    SetUp(1, 1, 16),
    SetUp(1, 1, 16, fenced=False),
    SetUp(1, 3, 16),
    SetUp(2, 1, 1),
    SetUp(2, 1, 16),
    SetUp(2, 3, 16),
)
# What is compared with what.
RATIOS = {
    "1w 1n 1s unfenced": "1w 1n 1s",
    "1w 1n 16s unfenced": "1w 1n 16s",
    "1w 1n 16s": "1w 1n 1s",
    "1w 3n 16s": "1w 1n 16s",
    "2w 1n 1s": "1w 1n 1s",
    "2w 1n 16s": "1w 1n 16s",
    "2w 3n 16s": "1w 1n 16s",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run, by event; and shares of the time of all cores."""

    events_per_s: float
    worker_us: float  # CPU, all workers.
    server_us: float  # CPU, all nodes with all their threads.
    kafka_us: float
    busy: float  # With these processes.
    others: float  # With anything else, this benchmark's own looks among it.
    idle: float  # Waiting for disks among it.


def cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU time that processes took so far, with all their threads."""
    total = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(words[11]) + int(words[12])
    return total / TICKS


def machine_s() -> tuple[float, float]:
    """Return the time that all cores were busy with anything, and idle."""
    words = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    idle = words[3] + words[4]
    return (sum(words) - idle) / TICKS, idle / TICKS


class Store:
    """What a set-up is given in the place of a server: its URL."""

    def __init__(self, cluster: Cluster) -> None:
        """Name one node: a cluster of one has no second."""
        self.url = f"redis+cluster://{cluster.nodes[0].name}"


@contextmanager
def served(nodes: int) -> Iterator[Cluster]:
    """Lend a cluster of so many primaries with the settings of the embedded store."""
    binary = find_server("valkey")
    if isinstance(binary, Missing):
        raise SystemExit(binary.reason)
    with Cluster(binary, primaries=nodes) as cluster:
        for node in cluster.nodes:
            for name in LIVE:
                node.ask("CONFIG", "SET", name, CONFIG[name])
        yield cluster


def fill(kafka: Kafka, pages: int, events: int, new_share: float) -> tuple[Topic, int, dict[str, float]]:
    """Make a topic and publish seeds and events; return how many pages there are, and the price of publishing."""
    topic, crawl = Topic(kafka, PARTITIONS), Crawl(pages)
    urls = crawl.urls()
    for at in range(0, len(urls), SEEDS_A_RECORD):
        value = encode_seeds(urls[at : at + SEEDS_A_RECORD])
        topic.put([value], at // SEEDS_A_RECORD % PARTITIONS, headers=headers_of("seeds"))
    values = crawl.events(events, new_share)
    settings = Settings.load(kafka_bootstrap=kafka.bootstrap, kafka_topic=topic.name)
    with Publisher(settings=settings) as publisher:
        publisher.send_encoded(values[0])  # Connected, and told where partitions are.
        publisher.flush()
        before = (time.perf_counter(), time.process_time(), cpu_s([kafka._process.pid]))
        for value in values[1:]:
            publisher.send_encoded(value)
        publisher.flush()
        after = (time.perf_counter(), time.process_time(), cpu_s([kafka._process.pid]))
    wall, ours, theirs = (1e6 * (b - a) / (events - 1) for a, b in zip(before, after, strict=True))
    log_bytes = sum(file.stat().st_size for file in (kafka.directory / "logs").glob(f"{topic.name}-*/*.log"))
    price = {
        "events_per_s": 1e6 / wall,
        "publisher_us": ours,
        "kafka_us": theirs,
        "bytes_an_event": statistics.mean(map(len, values)),
        "log_bytes_an_event": log_bytes / events,  # With the seeds, which are some per cent.
    }
    return topic, len(crawl.known), price


def run(set_up: SetUp, kafka: Kafka, cluster: Cluster, topic: Topic, crawl: str, events: int, pages: int) -> Cost:
    """Let a new crawl read the topic from its start; return what the middle of it cost."""
    more = {"crawl": crawl, "shards": set_up.shards, "kafka_session_seconds": SESSION_SECONDS, "keep_links": False}
    settings = settings_of(kafka, Store(cluster), topic.name, **more)
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as directory, ExitStack() as stack:
        shards = stack.enter_context(opened(settings))
        workers = []
        for number in range(set_up.workers):
            said = Path(directory) / f"{number}.log"
            workers.append(WorkerProcess(settings, said, script=None if set_up.fenced else UNFENCED))
            stack.callback(workers[-1].kill)
        pids = [[one.process.pid for one in workers], [node.pid for node in cluster.nodes], [kafka._process.pid]]
        began, looks, done = time.monotonic(), [], 0
        while done < events:
            done = shards.totals().reads
            looks.append((time.perf_counter(), done, *machine_s(), *map(cpu_s, pids)))
            if time.monotonic() - began > SETTLE_SECONDS_MAX or any(w.process.poll() is not None for w in workers):
                raise SystemExit(f"{set_up.name}: {done:,} of {events:,} events\n{workers[0].said()[-2000:]}")
            time.sleep(POLL_SECONDS)
        check(set_up, shards, topic, events, pages)
    middle = [look for look in looks if FROM_SHARE <= look[1] / events <= TO_SHARE]
    if len(middle) < 2 or middle[0][1] == middle[-1][1]:  # Too few events: with the start of the workers, then.
        middle = looks
    wall, count, busy, idle, *cpu = (b - a for a, b in zip(middle[0], middle[-1], strict=True))
    each, cores = [1e6 * seconds / count for seconds in cpu], wall * (os.cpu_count() or 1)
    return Cost(count / wall, *each, sum(cpu) / cores, max(0.0, busy - sum(cpu)) / cores, idle / cores)


def check(set_up: SetUp, shards: Shards, topic: Topic, events: int, pages: int) -> None:
    """Wait until the workers have emptied all outboxes; stop if an event or a grain is missing or there twice."""
    deadline, ends = time.monotonic() + SETTLE_SECONDS_MAX, topic.ends()
    while shards.waiting() or (set_up.fenced and any(shards.resume(name) < end for name, end in ends.items())):
        if time.monotonic() > deadline:
            raise SystemExit(f"{set_up.name}: {shards.waiting()} entries wait; {ends}")
        time.sleep(POLL_SECONDS)
    books, (whole, parts) = shards.totals(), shards.audit()
    if not whole.conserved or not all(part.conserved for part in parts):
        raise SystemExit(f"{set_up.name}: {whole}")
    if (books.reads, books.live) != (events, pages) or books.dead_letters:
        raise SystemExit(f"{set_up.name}: {books.reads:,} of {events:,} reads, {books.live:,} of {pages:,} pages")


def measure(kafka: Kafka, args: argparse.Namespace, set_ups: Sequence[SetUp]) -> dict[str, Any]:
    """Publish; let all set-ups take turns."""
    topic, pages, price = fill(kafka, args.pages, args.events, args.new_share)
    print(
        f"publishing: {price['events_per_s']:,.0f} events/s of {price['bytes_an_event']:,.0f} bytes, "
        f"{price['log_bytes_an_event']:,.0f} in Kafka's log; {price['publisher_us']:.0f} us of the publisher and "
        f"{price['kafka_us']:.0f} us of Kafka an event",
        flush=True,
    )
    costs: dict[str, list[Cost]] = {one.name: [] for one in set_ups}
    for number in range(args.rounds):
        for nth, one in enumerate(set_ups):
            crawl = f"{topic.name}.{number}.{nth}"  # A name of its own: what its group has applied is lost otherwise.
            with served(one.nodes) as cluster:
                costs[one.name].append(run(one, kafka, cluster, topic, crawl, args.events, pages))
            print(f"  round {number + 1}: {one.name}: {costs[one.name][-1].events_per_s:,.0f} events/s", flush=True)
    rows = {}
    for one in set_ups:
        found = costs[one.name]
        rows[one.name] = asdict(one) | {
            field.name: statistics.median(getattr(cost, field.name) for cost in found) for field in fields(Cost)
        }
        rows[one.name]["rounds"] = [round(cost.events_per_s) for cost in found]
        if (than := RATIOS.get(one.name)) in costs:
            for figure in ("events_per_s", "worker_us", "server_us"):
                rows[one.name][f"{figure}_ratio"] = ratio(figure, found, costs[than])
            rows[one.name]["ratio_to"] = than
    return {"publishing": price, "set_ups": rows}


def ratio(figure: str, found: Sequence[Cost], than: Sequence[Cost]) -> float | None:
    """Return the median ratio of a figure; None where the CPU time was below a tick of the system's clock."""
    pairs = [(getattr(a, figure), getattr(b, figure)) for a, b in zip(found, than, strict=True)]
    return statistics.median(a / b for a, b in pairs) if all(b for _, b in pairs) else None


def print_rows(rows: dict[str, Any]) -> None:
    """Print the table."""
    print(
        f"\n{'workers nodes shards':<20} {'events/s':>9} {'worker us':>10} {'server us':>10} {'Kafka us':>9} "
        f"{'busy':>5} {'others':>6} {'idle':>5}   rate, worker, server to"
    )
    for name, one in rows.items():
        told = ""
        if "ratio_to" in one:
            ratios = [one[f"{figure}_ratio"] for figure in ("events_per_s", "worker_us", "server_us")]
            told = " ".join("-" if value is None else f"{value:.2f}" for value in ratios) + f"  {one['ratio_to']}"
        print(
            f"{name:<20} {one['events_per_s']:>9,.0f} {one['worker_us']:>10.0f} {one['server_us']:>10.0f} "
            f"{one['kafka_us']:>9.0f} {one['busy']:>5.0%} {one['others']:>6.0%} {one['idle']:>5.0%}   {told}"
        )


def main() -> int:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description="Events a second from the Kafka topic to durable effect.")
    parser.add_argument("--pages", type=int, default=20_000, help="known at the start")
    parser.add_argument("--events", type=int, default=12_000, help="on the topic")
    parser.add_argument("--new-share", type=float, default=NEW_SHARE, help="of links, to pages never seen before")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--set-ups", default="", help="comma-separated, as printed; all if empty")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    binary = find_kafka()
    if isinstance(binary, Missing):
        print(f"skipped: {binary.reason}")
        return 0
    set_ups = [one for one in SET_UPS if not args.set_ups or one.name in args.set_ups.split(",")]
    print(f"an event has {LINKS} links, {args.new_share:.0%} to new pages; {PARTITIONS} partitions")
    with Kafka(binary) as kafka:
        found = measure(kafka, args, set_ups)
    print_rows(found["set_ups"])
    about = {"pages": args.pages, "events": args.events, "links": LINKS, "new_share": args.new_share}
    write_result("kafka", about | {"partitions": PARTITIONS} | found, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
