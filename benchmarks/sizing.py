"""How large is a system for 10^9 events a day over 2 * 10^9 known pages, and what saturates first?

First a model is held against what was measured: a discrete-event simulation of workers and nodes on shared cores. A
worker works a step out, sends it to the node of the shard, and waits; the node applies steps in the order they come,
syncs its file, and answers. Its constants come from `bench_shards` (CPU of worker and server an event, the time of an
event with one worker) and from one row of `bench_kafka` (what reading from Kafka adds); it then says the rates of the
other rows of `bench_kafka`, with as much of the machine taken by others as was measured there. Both are printed.

Then the same simulation on cores enough, with the constants of a large store (`bench_journal`, `bench_memory`), times
what an event cost each of the most workers of `bench_kafka` beside a worker that is alone; and plain multiplication for
memory, network and disks. The result is a Markdown table, the one of docs/decisions/0011-sizing.md.

    python benchmarks/sizing.py
    python benchmarks/sizing.py --events-a-day 1e8 --pages 2e8
"""

import argparse
import heapq
import json
import math
import random
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import RESULTS, write_result

DAY_SECONDS = 86_400
PEAK = 2.0  # Over the mean of a day.
USED_MAX = 0.6  # Of a core, a memory or a disk's bandwidth, at the peak: what is left bears the loss of a node.
NODE_GIB = 32
REPLICATION = 3  # Of Kafka's records.
RETENTION_DAYS = 7
WORKER_BYTES = 0.5e9  # Besides: caches of links, pages of other shards, a poll's events.
CORES = 2  # Of the machine of the results.
STEPS = 4_000  # Simulated of each set-up.
SEED = 1


@dataclass(frozen=True, slots=True)
class Constants:
    """What a step costs, in microseconds an event."""

    worker: float
    server: float
    wait: float  # For the sync, the wire, being woken: nobody's CPU.
    overlap: float  # Of the worker's time, what it does while the server applies the step before.
    events_a_step: float


class Machine:
    """Jobs that share cores evenly: each has a rest of CPU time to do, and something to do when it is done."""

    def __init__(self, cores: float, crowded: float = 1.0) -> None:
        """Nothing runs; `crowded` is how much longer everything takes while no core is idle."""
        self.now, self.cores, self._crowded = 0.0, cores, crowded
        self._jobs: dict[int, tuple[float, Any]] = {}
        self._timers: list[tuple[float, int, Any]] = []
        self._count = 0

    def run(self, cpu: float, then: Any) -> None:
        """Let a job of so much CPU time run on the shared cores."""
        self._count += 1
        self._jobs[self._count] = (cpu, then)

    def after(self, delay: float, then: Any) -> None:
        """Do something later, without a core."""
        self._count += 1
        heapq.heappush(self._timers, (self.now + delay, self._count, then))

    def step(self) -> None:
        """Go on to whatever is next: a job that ends, or a delay."""
        speed = min(1.0, self.cores / len(self._jobs)) if self._jobs else 1.0
        speed /= self._crowded if len(self._jobs) >= self.cores else 1.0
        least = min((cpu for cpu, _ in self._jobs.values()), default=math.inf) / speed
        timer = self._timers[0][0] - self.now if self._timers else math.inf
        passed = min(least, timer)
        self.now += passed
        self._jobs = {number: (cpu - passed * speed, then) for number, (cpu, then) in self._jobs.items()}
        if timer <= least:
            heapq.heappop(self._timers)[2]()
        else:
            number = min(self._jobs, key=lambda one: self._jobs[one][0])
            self._jobs.pop(number)[1]()


def simulate(constants: Constants, workers: int, nodes: int, cores: float, crowded: float = 1.0) -> float:
    """Return events a second of all workers with a backlog.

    Steps of a worker go to nodes at random, as shards lie on them, and differ in size as links do: exponentially.
    """
    draw, machine = random.Random(SEED), Machine(cores, crowded)
    queues: list[deque[Any]] = [deque() for _ in range(nodes)]
    done = [0]

    def serve(node: int) -> None:
        cpu, then = queues[node][0]

        def applied() -> None:
            queues[node].popleft()
            machine.after(constants.wait * constants.events_a_step, then)
            if queues[node]:
                serve(node)

        machine.run(cpu, applied)

    def work() -> None:
        """The worker works a step out, in part while the one before is applied, and sends it."""
        size = constants.events_a_step * (0.5 + 0.5 * draw.expovariate(1.0))
        alone = constants.worker * (1 - constants.overlap) * size
        beside = constants.worker * constants.overlap * size
        node = draw.randrange(nodes)
        left = [2]

        def joined() -> None:
            left[0] -= 1
            if not left[0]:
                done[0] += 1
                work()

        def sent() -> None:
            queues[node].append((constants.server * size, joined))
            if len(queues[node]) == 1:
                serve(node)
            machine.run(beside, joined)

        machine.run(alone, sent)

    for _ in range(workers):
        work()
    while done[0] < STEPS:
        machine.step()
    return STEPS * constants.events_a_step / machine.now * 1e6


def read(name: str) -> dict[str, Any]:
    """Read a result.

    Raises:
        SystemExit: it is not there.
    """
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise SystemExit(f"{path.name} is not there: run the benchmark that writes it first")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def at_new_share(result: Mapping[str, Any], shards: int, figure: str, new_share: float) -> float:
    """Return a figure of `bench_shards` between its two kinds of crawl."""
    kinds = result["new_share"]
    low, high = (next(r for r in result[kind] if r["shards"] == shards)[figure] for kind in ("warm", "discovering"))
    return float(low + (high - low) * (new_share - kinds["warm"]) / (kinds["discovering"] - kinds["warm"]))


def constants_of(result: Mapping[str, Any], shards: int, new_share: float, reading: float = 0.0) -> Constants:
    """Fit the one thing that is not measured: what is overlapped, or waited for, besides the CPU of both sides."""
    worker, server, wall = (
        at_new_share(result, shards, figure, new_share) for figure in ("worker_cpu_us", "server_cpu_us", "wall_us")
    )
    saved = worker + server - wall
    overlap, wait = (saved / worker, 0.0) if saved > 0 else (0.0, -saved)
    share = min(0.9, overlap) * worker / (worker + reading)
    return Constants(worker + reading, server, wait, share, at_new_share(result, shards, "events_a_step", new_share))


def compare(shards: Mapping[str, Any], kafka: Mapping[str, Any]) -> tuple[list[dict[str, Any]], float, float]:
    """Hold the simulation against the measured set-ups.

    Set-ups of more workers than cores are left out: what workers do to each other there is not what they do with a core
    each.

    Returns:
        Rows; what reading from Kafka costs an event; and how much longer work takes on two busy cores, which share
        caches and a power budget, by the set-up that is not predicted: two workers on one shard.
    """
    new_share, rows = kafka["new_share"], []
    first = kafka["set_ups"]["1w 1n 1s"]
    reading = max(0.0, first["worker_us"] - at_new_share(shards, 1, "worker_cpu_us", new_share))
    two = kafka["set_ups"]["2w 1n 1s"]
    crowded = max(1.0, (two["worker_us"] + two["server_us"]) / (first["worker_us"] + first["server_us"]))
    for name, one in kafka["set_ups"].items():
        if not one["fenced"] or one["built_in"] or one["workers"] > CORES:
            continue
        if one["shards"] == 1 and one["workers"] > 1:  # They refuse each other.
            continue
        constants = constants_of(shards, one["shards"], new_share, reading)
        cores = CORES * (1 - one["others"]) - one["kafka_us"] * one["events_per_s"] / 1e6
        predicted = simulate(constants, one["workers"], one["nodes"], cores, crowded)
        rows.append(
            {
                "set_up": name,
                "cores_left": cores,
                "predicted": predicted,
                "measured": one["events_per_s"],
                "error": predicted / one["events_per_s"] - 1,
            }
        )
    return rows, reading, crowded


def size(
    args: argparse.Namespace, shards: Mapping[str, Any], kafka: Mapping[str, Any], reading: float
) -> dict[str, Any]:
    """Multiply, and find by simulation how many workers keep up at the peak."""
    journal, memory = read(args.journal), read(args.memory)["engines"]["defaults"]
    rows = [row for row in journal["speed"] if row["kind"] == "tenth" and row["inflow"]]
    row = max((row for row in rows if row["pages"] <= args.shard_pages), key=lambda row: row["pages"])
    large, new_share = row["now"], row["new_share"]
    mean = args.events_a_day / DAY_SECONDS
    peak = mean * PEAK
    # What many shards add to what one large one costs.
    extra_worker, extra_server = (
        at_new_share(shards, args.shards_measured, figure, new_share) - at_new_share(shards, 1, figure, new_share)
        for figure in ("worker_cpu_us", "server_cpu_us")
    )
    together = most_workers(kafka)
    worker = (large["worker_cpu_us"] + extra_worker + reading) * together
    server = large["server_cpu_us"] + max(0.0, extra_server)
    memory_bytes = memory["resident_bytes_a_page"] * args.pages
    nodes_memory = math.ceil(memory_bytes / (NODE_GIB * 2**30 * USED_MAX))
    nodes_cpu = math.ceil(peak * server / 1e6 / USED_MAX)
    nodes = max(nodes_memory, nodes_cpu)
    small = constants_of(shards, args.shards_measured, new_share)
    constants = Constants(worker, server, small.wait, 0.0, small.events_a_step)
    workers = max(1, math.ceil(peak * worker / 1e6 / USED_MAX))
    while simulate(constants, workers, nodes, math.inf) < peak:
        workers = max(workers + 1, math.ceil(workers * 1.05))
    partitions = 1 << max(0, math.ceil(math.log2(workers)))
    crossing = next(r for r in shards["warm"] if r["shards"] == args.shards_measured)
    outbox = crossing["deposits_an_event"] * crossing["outbox_bytes_a_deposit"]
    wire = large["in_bytes"] + large["out_bytes"] + 2 * outbox
    aof = large["aof_bytes"] + outbox
    log_bytes = kafka["publishing"]["log_bytes_an_event"]
    return {
        "events_per_s_mean": mean,
        "events_per_s_peak": peak,
        "worker_us": worker,
        "times_alone": together,
        "server_us": server,
        "workers": workers,
        "workers_busy": peak * worker / 1e6 / workers,
        "nodes": nodes,
        "nodes_for_memory": nodes_memory,
        "nodes_for_cpu": nodes_cpu,
        "nodes_busy": peak * server / 1e6 / nodes,
        "partitions": partitions,
        "shards": max(partitions, 1 << math.ceil(math.log2(4 * nodes))),
        "memory_gb": memory_bytes / 1e9,
        "memory_a_node_gb": memory_bytes / nodes / 1e9,
        "worker_gb": (memory["worker_bytes_a_page"] * args.pages / workers + WORKER_BYTES) / 1e9,
        "store_mb_per_s_peak": wire * peak / 1e6,
        "store_mb_per_s_a_node": wire * peak / 1e6 / nodes,
        "aof_mb_per_s_a_node": aof * peak / 1e6 / nodes,
        "aof_tb_a_day": aof * args.events_a_day / 1e12,
        "kafka_in_mb_per_s_peak": log_bytes * peak / 1e6,
        "kafka_tb": log_bytes * args.events_a_day * RETENTION_DAYS * REPLICATION / 1e12,
        "publisher_cores_peak": kafka["publishing"]["publisher_us"] * peak / 1e6,
        "kafka_cores_peak": (kafka["publishing"]["kafka_us"] * REPLICATION + first_kafka_us(kafka)) * peak / 1e6,
        "deposits_between_shards_per_s": crossing["deposits_an_event"] * peak,
        "largest_store_measured": row["pages"],
    }


def most_workers(kafka: Mapping[str, Any]) -> float:
    """Return how much more CPU an event costs a worker when it is one of the most that were measured."""
    set_ups = [one for one in kafka["set_ups"].values() if one["nodes"] == 1 and one["shards"] > 1]
    alone, most = (pick(set_ups, key=lambda one: one["workers"]) for pick in (min, max))
    return float(most["worker_us"] / alone["worker_us"])


def first_kafka_us(kafka: Mapping[str, Any]) -> float:
    """Return what reading costs Kafka."""
    return float(kafka["set_ups"]["1w 1n 16s"]["kafka_us"])


def markdown(args: argparse.Namespace, found: Mapping[str, Any]) -> str:
    """Write the table."""
    first = "memory" if found["nodes_for_memory"] >= found["nodes_for_cpu"] else "the CPU of the nodes"
    rows: Sequence[tuple[str, str]] = (
        ("events a second, mean and peak", f"{found['events_per_s_mean']:,.0f}, {found['events_per_s_peak']:,.0f}"),
        ("workers (one core each)", f"{found['workers']}, {found['workers_busy']:.0%} busy at the peak, at "
         f"{found['worker_us']:.0f} us an event"),
        ("store nodes (primaries, one core and a half each)", f"{found['nodes']} of {NODE_GIB} GiB: "
         f"{found['nodes_for_memory']} for memory, {found['nodes_for_cpu']} for CPU; {found['nodes_busy']:.0%} busy at "
         f"the peak, at {found['server_us']:.0f} us an event"),
        ("replicas", "the same nodes again, one for each"),
        ("memory", f"{found['memory_gb']:.0f} GB resident in all, {found['memory_a_node_gb']:.0f} GB a node"),
        ("memory of a worker", f"{found['worker_gb']:.0f} GB, for the shards of its partitions"),
        ("partitions, shards", f"{found['partitions']}, {found['shards']}"),
        ("traffic with the store", f"{found['store_mb_per_s_peak']:.0f} MB/s at the peak, "
         f"{found['store_mb_per_s_a_node']:.1f} MB/s a node"),
        ("append-only files", f"{found['aof_mb_per_s_a_node']:.1f} MB/s a node at the peak, "
         f"{found['aof_tb_a_day']:.1f} TB a day in all before rewrites"),
        ("Kafka", f"{found['kafka_in_mb_per_s_peak']:.0f} MB/s in at the peak, {found['kafka_tb']:.1f} TB for "
         f"{RETENTION_DAYS} days on {REPLICATION} replicas, {found['kafka_cores_peak']:.1f} cores"),
        ("publishing", f"{found['publisher_cores_peak']:.1f} cores of the crawlers at the peak"),
        ("between shards", f"{found['deposits_between_shards_per_s']:,.0f} deposits a second at the peak"),
        ("what saturates first", first),
    )  # fmt: skip
    lines = [f"| {args.events_a_day:.0e} events a day, {args.pages:.0e} pages | |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in rows)])


def main() -> int:
    """Compare, size, print, write the JSON."""
    parser = argparse.ArgumentParser(description="Size of a system, from what was measured.")
    parser.add_argument("--events-a-day", type=float, default=1e9)
    parser.add_argument("--pages", type=float, default=2e9, help="known")
    parser.add_argument("--shards-measured", type=int, default=64, help="the row of bench_shards that costs follow")
    parser.add_argument("--journal", default="journal-sizing", help="the result of bench_journal to count with")
    parser.add_argument("--memory", default="memory-large", help="the result of bench_memory to count with")
    parser.add_argument("--shard-pages", type=float, default=math.inf, help="costs of a shard of at most so many pages")
    args = parser.parse_args()
    shards, kafka = read("shards"), read("kafka")
    rows, reading, crowded = compare(shards, kafka)
    print(
        f"reading from Kafka: {reading:.0f} us an event; all takes {crowded:.2f} times as long while both cores are "
        "busy; cores left by others as measured with each row"
    )
    print(f"{'set-up':<14} {'cores':>6} {'predicted':>10} {'measured':>9} {'error':>6}")
    for row in rows:
        print(
            f"{row['set_up']:<14} {row['cores_left']:>6.2f} {row['predicted']:>10,.0f} {row['measured']:>9,.0f} "
            f"{row['error']:>+6.0%}"
        )
    found = size(args, shards, kafka, reading)
    print("\n" + markdown(args, found))
    if args.shard_pages < math.inf:
        return 0  # A look at what could be; the result is what was measured of the largest store.
    write_result("sizing", {"reading_us": reading, "crowded": crowded, "compared": rows, "sized": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
