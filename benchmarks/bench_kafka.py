"""How many events of 40 links a second go from the Kafka topic to durable effect, and what is busy meanwhile?

A real Kafka and real servers on loopback, `opic worker` processes as users run them. A topic is filled first; then an
endpoint publishes what is posted to it; then each set-up is a crawl of its own, which reads all of the topic: 1 to 8
workers, 1 and 3 nodes of a cluster, 1 and 16 shards, one worker without offsets and fence (`unfenced_worker.py`), and
one that reads the same from the log in the store. An event counts once its read stands in the books of a server that
syncs its file before it answers. The rate is that between 25 and 85 % of all events, while every worker has some left;
so are the CPU times of workers, servers and Kafka, each by itself. Set-ups take turns, round by round.

Before a rate is reported: every event took effect once, the resume points are the topic's ends, all outboxes are empty,
and the audit of all shards holds.

It wants Java and Maven, as the tests do (tests/kafka_server.py), and says so where they are missing.

    python benchmarks/bench_kafka.py --pages 100000 --events 40000 --rounds 3

With `--before`, workers of another checkout take turns with ours, in each of the set-ups of one server:

    python benchmarks/bench_kafka.py --before ../before --set-ups '1w 1n 1s,2w 1n 1s' --events 100000 --rounds 3
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
from harness import commit, seed_records, write_result
from http_load import Request, wrk
from workloads import LINKS, REPOSITORY, Crawl

# What starts real servers is with the tests, and we use it from there.
sys.path.append(str(REPOSITORY / "tests"))
sys.path.append(str(REPOSITORY / "tests/support"))
from kafka_crawl import Topic, WorkerProcess, opened, serving, settings_of
from kafka_server import Kafka, find_kafka
from processes import children_of, gone, wait_until
from redis_cluster import Cluster
from servers import Binary, Missing, find_server

from opic.ingest import Writer
from opic.ingest.event_log import EventLog
from opic.ingest.publish import Publisher
from opic.ingest.step_counts import Tallied
from opic.model.events import LOG_PARTITION, decode_crawl_event
from opic.replica import Crawl as Shards
from opic.service.embedded import CONFIG
from opic.settings import Settings

NEW_SHARE = 0.1
PARTITIONS = 16
POSTED = 100  # Events of one call.
BODIES = 100  # Different calls.
IDLE_SECONDS = 1.0
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
    built_in: bool = False  # The events are in the store's log instead of the topic.
    replicas: int = 0  # Of each node; a step waits for them (WAIT).
    before: bool = False  # The workers are those of the other checkout.

    @property
    def name(self) -> str:
        """As it is printed."""
        more = ("" if self.fenced else " unfenced") + (" built-in" if self.built_in else "")
        more += (" wait" if self.replicas else "") + (" before" if self.before else "")
        return f"{self.workers}w {self.nodes}n {self.shards}s{more}"


SET_UPS = (
    SetUp(1, 1, 1, built_in=True),
    SetUp(1, 1, 1),
    SetUp(1, 1, 1, fenced=False),
    SetUp(1, 1, 16),
    SetUp(1, 1, 16, fenced=False),
    SetUp(1, 3, 16),
    SetUp(1, 3, 16, replicas=1),
    SetUp(2, 1, 1),
    SetUp(2, 1, 16),
    SetUp(2, 3, 16),
    SetUp(4, 1, 16),
    SetUp(8, 1, 16),
)
BUILT_IN = SET_UPS[0].name  # Each set-up is compared with it, where it is measured, and with one of these.
RATIOS = {
    "1w 1n 1s unfenced": "1w 1n 1s",
    "1w 1n 16s unfenced": "1w 1n 16s",
    "1w 1n 16s": "1w 1n 1s",
    "1w 3n 16s": "1w 1n 16s",
    "1w 3n 16s wait": "1w 3n 16s",
    "2w 1n 1s": "1w 1n 1s",
    "2w 1n 16s": "1w 1n 16s",
    "2w 3n 16s": "1w 1n 16s",
    "4w 1n 16s": "1w 1n 16s",
    "8w 1n 16s": "1w 1n 16s",
}
FIGURES = ("events_per_s", "worker_us", "server_us")


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
    p99_ms: float  # Of a step, from the reply before to its own; the upper bound of its class.


def kafka_or_end() -> Binary:
    """Return what runs Kafka; where it is missing, say so and end without an error."""
    binary = find_kafka()
    if isinstance(binary, Missing):
        print(f"skipped: {binary.reason}")
        raise SystemExit(0)
    return binary


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


@dataclass(frozen=True, slots=True)
class Log:
    """What the crawls read: on a topic, and the same values for a log in a store."""

    topic: Topic
    known: Sequence[str]  # Pages, before the events.
    events: Sequence[bytes]
    pages: int  # Known once all is read.


class Store:
    """What a set-up is given in the place of a server: its URL."""

    def __init__(self, cluster: Cluster) -> None:
        """Name one node: a cluster of one has no second."""
        self.url = f"redis+cluster://{cluster.nodes[0].name}"


@contextmanager
def served(set_up: SetUp) -> Iterator[Cluster]:
    """Lend the cluster of a set-up, with the settings of the embedded store."""
    binary = find_server("valkey")
    if isinstance(binary, Missing):
        raise SystemExit(binary.reason)
    with Cluster(binary, primaries=set_up.nodes, replicas=set_up.replicas) as cluster:
        for node in cluster.nodes:
            for name in LIVE:
                node.ask("CONFIG", "SET", name, CONFIG[name])
        yield cluster


def fill(kafka: Kafka, pages: int, events: int, new_share: float) -> tuple[Log, dict[str, float]]:
    """Make a topic and publish events; return them, and the price of publishing."""
    topic, crawl = Topic(kafka, PARTITIONS), Crawl(pages)
    urls = crawl.urls()
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
        "log_bytes_an_event": log_bytes / events,
    }
    return Log(topic, urls, values, len(crawl.known)), price


def post(kafka: Kafka, values: Sequence[bytes], seconds: float) -> dict[str, float]:
    """Let an endpoint publish what wrk posts over CONNECTIONS connections, POSTED events a call; return the price."""
    topic, bodies = Topic(kafka, PARTITIONS), []
    for at in range(0, len(values) - POSTED + 1, POSTED):
        events = [decode_crawl_event(value) for value in values[at : at + POSTED]]
        bodies.append(Request("POST", "/v1/events", msgspec.json.encode(events).decode()))
    with served(SetUp(1, 1, PARTITIONS)) as cluster, tempfile.TemporaryDirectory(prefix="opic-bench-") as directory:
        settings = settings_of(kafka, Store(cluster), topic.name, shards=PARTITIONS)
        others = set(children_of(os.getpid()))
        with serving(settings, Path(directory) / "said.log") as url:
            ours = [pid for pid in children_of(os.getpid()) if pid not in others and not gone(pid)]
            pids = [ours, [kafka._process.pid]]
            before, began = list(map(cpu_s, pids)), time.perf_counter()
            accepted = POSTED * wrk(url, bodies[:BODIES], seconds, Path(directory))["requests"]
            wait_until(lambda: idle(topic))
            wall = time.perf_counter() - began - IDLE_SECONDS
            events = sum(record.rough_events() for records in topic.all_records().values() for record in records)
            spent = [1e6 * (cpu_s(of) - then) / events for of, then in zip(pids, before, strict=True)]
    if events < accepted:  # A call that wrk did not wait for is there as well.
        raise SystemExit(f"{accepted:,} events were accepted, but {events:,} are on the topic")
    return {"events_per_s": events / wall, "endpoint_us": spent[0], "kafka_us": spent[1]}


def idle(topic: Topic) -> bool:
    """Tell whether a topic has records, and none came for IDLE_SECONDS."""
    before = topic.ends()
    time.sleep(IDLE_SECONDS)
    return sum(before.values()) > 0 and topic.ends() == before


def run(set_up: SetUp, kafka: Kafka, cluster: Cluster, log: Log, crawl: str, root: Path) -> Cost:
    """Let a new crawl read all from the start; return what the middle of it cost."""
    more: dict[str, Any] = {
        "crawl": crawl,
        "shards": set_up.shards,
        "kafka_session_seconds": SESSION_SECONDS,
        "keep_links": False,
        "wait_replicas": set_up.replicas,
    }
    if set_up.built_in:
        settings = Settings.load(store=Store(cluster).url, **more)
    else:
        settings = settings_of(kafka, Store(cluster), log.topic.name, **more)
    events = len(log.events)
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as directory, ExitStack() as stack:
        shards = stack.enter_context(opened(settings))
        # Before the events: on the topic, those of one partition would come before the seeds of the others.
        writer = Writer(shards)
        writer.apply("seeds/0", seed_records(log.known))
        writer.drain()
        if set_up.built_in:
            EventLog(shards.client, shards.shards[0].keys).append(log.events, time.time_ns() // 1000)
        workers = []
        for number in range(set_up.workers):
            said = Path(directory) / f"{number}.log"
            script = None if set_up.fenced else UNFENCED
            workers.append(WorkerProcess(settings, said, script=script, root=root))
            stack.callback(workers[-1].kill)
        pids = [[one.process.pid for one in workers], [node.pid for node in cluster.nodes], [kafka._process.pid]]
        began, looks, done = time.monotonic(), [], 0
        while done < events:
            done = shards.totals().reads
            looks.append((time.perf_counter(), done, *machine_s(), *map(cpu_s, pids)))
            if time.monotonic() - began > SETTLE_SECONDS_MAX or any(w.process.poll() is not None for w in workers):
                raise SystemExit(f"{set_up.name}: {done:,} of {events:,} events\n{workers[0].said()[-2000:]}")
            time.sleep(POLL_SECONDS)
        check(set_up, shards, log)
        for worker in workers:
            worker.stop()  # With its last counts.
        p99 = slowest(shards)
    middle = [look for look in looks if FROM_SHARE <= look[1] / events <= TO_SHARE]
    if len(middle) < 2 or middle[0][1] == middle[-1][1]:  # Too few events: with the start of the workers, then.
        middle = looks
    wall, count, busy, idle, *cpu = (b - a for a, b in zip(middle[0], middle[-1], strict=True))
    each, cores = [1e6 * seconds / count for seconds in cpu], wall * (os.cpu_count() or 1)
    return Cost(count / wall, *each, sum(cpu) / cores, max(0.0, busy - sum(cpu)) / cores, idle / cores, p99)


def slowest(shards: Shards) -> float:
    """Return the upper bound of the 99th percentile of all steps, in milliseconds."""
    found = Tallied.of([shard.client.hgetall(shard.keys.metrics) for shard in shards.shards]).seconds
    return next(1000 * float(bound) for bound, count in found if count >= 0.99 * found[-1][1])


def check(set_up: SetUp, shards: Shards, log: Log) -> None:
    """Wait until the workers have emptied all outboxes; stop if an event or a grain is missing or there twice."""
    deadline, events, pages = time.monotonic() + SETTLE_SECONDS_MAX, len(log.events), log.pages
    ends = {LOG_PARTITION: events} if set_up.built_in else log.topic.ends()
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
    log, price = fill(kafka, args.pages, args.events, args.new_share)
    print(
        f"publishing: {price['events_per_s']:,.0f} events/s of {price['bytes_an_event']:,.0f} bytes, "
        f"{price['log_bytes_an_event']:,.0f} in Kafka's log; {price['publisher_us']:.0f} us of the publisher and "
        f"{price['kafka_us']:.0f} us of Kafka an event",
        flush=True,
    )
    posting = post(kafka, log.events, args.post_seconds)
    print(
        f"posting: {posting['events_per_s']:,.0f} events/s in calls of {POSTED}; {posting['endpoint_us']:.0f} us of "
        f"the endpoint and {posting['kafka_us']:.0f} us of Kafka an event",
        flush=True,
    )
    costs: dict[str, list[Cost]] = {one.name: [] for one in set_ups}
    for number in range(args.rounds):
        for nth, one in enumerate(set_ups):
            # A name of its own: what its group has applied is lost otherwise.
            crawl = f"{log.topic.name}.{number}.{nth}"
            with served(one) as cluster:
                costs[one.name].append(run(one, kafka, cluster, log, crawl, args.before if one.before else REPOSITORY))
            print(f"  round {number + 1}: {one.name}: {costs[one.name][-1].events_per_s:,.0f} events/s", flush=True)
    rows = {}
    for one in set_ups:
        found = costs[one.name]
        rows[one.name] = asdict(one) | {
            field.name: statistics.median(getattr(cost, field.name) for cost in found) for field in fields(Cost)
        }
        rows[one.name]["rounds"] = [round(cost.events_per_s) for cost in found]
        whole = statistics.median(cost.worker_us + cost.server_us + cost.kafka_us for cost in found)
        rows[one.name]["whole_way_us"] = whole + (0.0 if one.built_in else price["publisher_us"] + price["kafka_us"])
        if (than := replace(one, before=False).name if one.before else RATIOS.get(one.name)) in costs:
            rows[one.name] |= {f"{figure}_ratio": ratio(figure, found, costs[than]) for figure in FIGURES}
            rows[one.name]["ratio_to"] = than
        if BUILT_IN in costs:
            rows[one.name]["to_built_in"] = {figure: ratio(figure, found, costs[BUILT_IN]) for figure in FIGURES}
    return {"publishing": price, "posting": posting, "set_ups": rows}


def ratio(figure: str, found: Sequence[Cost], than: Sequence[Cost]) -> float | None:
    """Return the median ratio of a figure; None where the CPU time was below a tick of the system's clock."""
    pairs = [(getattr(a, figure), getattr(b, figure)) for a, b in zip(found, than, strict=True)]
    return statistics.median(a / b for a, b in pairs) if all(b for _, b in pairs) else None


def print_rows(rows: dict[str, Any]) -> None:
    """Print the table."""
    print(
        f"\n{'workers nodes shards':<20} {'events/s':>9} {'worker us':>10} {'server us':>10} {'Kafka us':>9} "
        f"{'whole':>6} {'p99':>7} {'busy':>5} {'others':>6} {'idle':>5}   rate, worker, server to"
    )
    for name, one in rows.items():
        told = ""
        if "ratio_to" in one:
            told = f"{_ratios(one[f'{figure}_ratio'] for figure in FIGURES)}  {one['ratio_to']}"
        if "to_built_in" in one and name != BUILT_IN:
            told += f"   {_ratios(one['to_built_in'].values())}  built-in"
        print(
            f"{name:<20} {one['events_per_s']:>9,.0f} {one['worker_us']:>10.0f} {one['server_us']:>10.0f} "
            f"{one['kafka_us']:>9.0f} {one['whole_way_us']:>6.0f} {one['p99_ms']:>4g} ms {one['busy']:>5.0%} "
            f"{one['others']:>6.0%} {one['idle']:>5.0%}   {told}"
        )


def _ratios(found: Iterable[float | None]) -> str:
    return " ".join("-" if value is None else f"{value:.2f}" for value in found)


def main() -> int:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description="Events a second from the Kafka topic to durable effect.")
    parser.add_argument("--pages", type=int, default=20_000, help="known at the start")
    parser.add_argument("--events", type=int, default=12_000, help="on the topic")
    parser.add_argument("--new-share", type=float, default=NEW_SHARE, help="of links, to pages never seen before")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--post-seconds", type=float, default=10.0, help="posting to an endpoint, which publishes")
    parser.add_argument("--set-ups", default="", help="comma-separated, as printed; all if empty")
    parser.add_argument("--before", type=Path, help="a checkout whose workers are measured as well")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    set_ups = [one for one in SET_UPS if not args.set_ups or one.name in args.set_ups.split(",")]
    if args.before is not None:
        set_ups += [replace(one, before=True) for one in set_ups if one.nodes == 1 and one.fenced]
    print(f"an event has {LINKS} links, {args.new_share:.0%} to new pages; {PARTITIONS} partitions")
    with Kafka(kafka_or_end()) as kafka:
        found = measure(kafka, args, set_ups)
    print_rows(found["set_ups"])
    about = {"pages": args.pages, "events": args.events, "links": LINKS, "new_share": args.new_share}
    if args.before is not None:
        about["before"] = commit(args.before)
    write_result("kafka", about | {"partitions": PARTITIONS} | found, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
