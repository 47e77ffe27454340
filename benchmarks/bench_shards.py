"""What do many shards cost one worker, and of what: steps, deliveries, deposits, bytes between shards?

The same events, 40 links each, on servers whose crawls have 1, 4, 16 and 64 shards. The worker's own loop reads them,
as many at a time as from Kafka, and delivers when it is time; a round ends when every outbox is empty, and its cost is
that of all of it. Warm: all pages are known. Discovering: three links of ten lead to pages never seen before. All take
turns, so a busy neighbour is everybody's; a ratio is the median of the rounds' ratios.

Before a speed is reported: every record took effect in its shard, all outboxes are empty, the audit of all shards
holds, and all crawls know the same number of pages.

    python benchmarks/bench_shards.py --pages 100000 --events 20000 --rounds 5
    python benchmarks/bench_shards.py --shards 16 --profile warm
"""

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import RECORD_TIME_US, SEEDS_A_RECORD, embedded_server, write_result
from workloads import LINKS, Crawl

from opic.ingest import Step, Writer
from opic.ingest.deliveries import Deliveries
from opic.ingest.kafka.consumer import records_a_poll
from opic.ingest.worker import Lag, WorkerWatch, work
from opic.ingest.writer import Taken
from opic.model.events import Record, encode_seeds
from opic.replica import Crawl as Shards
from opic.replica.inputs import Input
from opic.service.embedded import EmbeddedServer
from opic.store import connect

NEW_SHARE = {"warm": 0.0, "discovering": 0.3}
PARTITION = "bench/0"
WARM_UP_ROUNDS = 2  # Until the worker has seen most links.
PROFILE_LINES = 30


@dataclass(frozen=True, slots=True)
class Cost:
    """What a round cost, by event; and what went between shards, of the whole round."""

    wall_us: float
    worker_cpu_us: float
    server_cpu_us: float  # The main thread, which does everything but the closing of files.
    aof_bytes: float
    steps: int  # Function calls that wrote, those of deliveries included.
    event_steps: int
    deliveries: int  # Shards that took something, each time that they did.
    entries: int  # Of outboxes, all taken.
    deposits: int  # Of which they are made.
    outbox_bytes: int

    @property
    def rate(self) -> float:
        """Events a second."""
        return 1e6 / self.wall_us


class Given:
    """A source of records that are in memory already, handed out as a Kafka topic of one partition does."""

    partitions: tuple[list[int], int] = ([0], 1)

    def __init__(self, records: Sequence[Record], size: int) -> None:
        """Hand out so many at a time."""
        self._records, self._size, self._at = records, size, 0

    @property
    def ended(self) -> bool:
        """Whether all took effect."""
        return self._at >= len(self._records)

    def poll(self, _: float) -> list[Taken]:
        """Return the next ones."""
        some = self._records[self._at : self._at + self._size]
        return [Taken(PARTITION, some, some[0].offset, some[-1].offset + 1)]

    def done(self, taken: Taken) -> None:
        """Go on."""
        self._at += len(taken.records)

    def positions(self) -> Mapping[str, int]:
        """Return the offset of the next one."""
        return {} if self.ended else {PARTITION: self._records[self._at].offset}

    def rewind(self, _: str) -> None:
        """Refuse: nothing is lost here."""
        raise SystemExit("the store forgot what it had taken")

    def wait(self, _: float) -> None:
        """Refuse: the server is there."""
        raise SystemExit("the store was away")

    def lag(self) -> Mapping[str, Lag]:
        """Tell nothing."""
        return {}


class CountingDeliveries(Deliveries):
    """Counts what is carried between shards, as every writer does it."""

    deliveries = entries_taken = deposits_taken = outbox_bytes = 0

    def _inputs(self, at: int, to: int, offset: int, count: int, entries: Sequence[Any]) -> list[Input]:
        self.outbox_bytes += sum(len(fields[b"v"]) for _, fields in entries)
        inputs = super()._inputs(at, to, offset, count, entries)
        events = [event for one in inputs for event in one.events if event is not None]
        self.deposits_taken += sum(len(event.transfer.urls) for event in events if event.transfer)
        return inputs

    def _waiting(self, receivers: Collection[int], sent: Sequence[dict[int, int]]) -> dict[int, dict[int, list[Input]]]:
        waiting = super()._waiting(receivers, sent)
        self.deliveries += sum(any(by_sender.values()) for by_sender in waiting.values())
        return waiting

    def deliver(self, receivers: Collection[int], sent: Sequence[dict[int, int]], era: bytes) -> int:
        taken = super().deliver(receivers, sent, era)
        self.entries_taken += taken
        return taken


class CountingWatch(WorkerWatch):
    """Counts the steps of events."""

    steps = 0

    def stepped(self, _: Step) -> None:
        """Count one."""
        self.steps += 1


class Contender:
    """A crawl of so many shards on a server of its own."""

    def __init__(self, shards: int, server: EmbeddedServer) -> None:
        """Open it."""
        self.shards, self.server, self.client = shards, server, connect(server.url)
        self.crawl = Shards.open(self.client, "bench", shards=shards)
        self.writer = Writer(self.crawl)
        self.carried = self.writer._deliveries = CountingDeliveries(self.crawl, self.writer.stores)
        self.offset, self.size = 0, records_a_poll(shards)

    def feed(self, values: Sequence[bytes], kind: str = "event") -> Cost:
        """Let records take effect and empty all outboxes; return what that cost."""
        records = [Record(self.offset + i, RECORD_TIME_US, value, kind) for i, value in enumerate(values)]
        self.offset += len(records)
        writer, watch = self.writer, CountingWatch()
        steps = self._steps()
        carried = self._carried()
        before = (time.perf_counter(), time.process_time(), self._server_cpu_s(), self._aof_bytes())
        work(writer, Given(records, self.size), watch=watch)
        while writer.deliver():
            pass
        after = (time.perf_counter(), time.process_time(), self._server_cpu_s(), self._aof_bytes())
        spent = [b - a for a, b in zip(before, after, strict=True)]
        each = [each * scale / len(values) for each, scale in zip(spent, (1e6, 1e6, 1e6, 1), strict=True)]
        moved = [b - a for a, b in zip(carried, self._carried(), strict=True)]
        return Cost(*each, self._steps() - steps, watch.steps, *map(int, moved))

    def seed(self, urls: Sequence[str]) -> None:
        """Make pages known."""
        edges = range(0, len(urls) + SEEDS_A_RECORD, SEEDS_A_RECORD)
        self.feed([encode_seeds(urls[a:b]) for a, b in pairwise(edges) if urls[a:b]], "seeds")

    def check(self, known: int) -> None:
        """Stop if an event is missing or a grain is: a fast wrong answer is no result."""
        whole, parts = self.crawl.audit()
        live, resume = sum(books.live for books in self.crawl.books()), self.crawl.resume(PARTITION)
        if not (whole.conserved and all(part.conserved for part in parts)) or self.crawl.waiting():
            raise SystemExit(f"{self.shards} shards: {whole}, {self.crawl.waiting()} entries wait")
        if live != known or resume != self.offset:
            told = f"{live:,} of {known:,} pages are known, {resume:,} of {self.offset:,} records took effect"
            raise SystemExit(f"{self.shards} shards: {told}")

    def _steps(self) -> int:
        """Count the records of all journals so far."""
        return sum(int(lsn or 0) for lsn in self.crawl.ask([["HGET", s.keys.head, "lsn"] for s in self.crawl.shards]))

    def _carried(self) -> tuple[int, int, int, int]:
        carried = self.carried
        return carried.deliveries, carried.entries_taken, carried.deposits_taken, carried.outbox_bytes

    def _server_cpu_s(self) -> float:
        info = self.client.info("cpu")
        return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])

    def _aof_bytes(self) -> int:
        return sum(file.stat().st_size for file in (self.server.data / "store" / "appendonlydir").iterdir())


def contenders(stack: ExitStack, shards: Sequence[int], crawl: Crawl) -> list[Contender]:
    """Start a server for each number of shards, and make pages known to it."""
    out = [Contender(count, stack.enter_context(embedded_server())) for count in shards]
    for one in out:
        one.seed(crawl.urls())
    return out


def measure(kind: str, shards: Sequence[int], pages: int, events: int, rounds: int) -> list[dict[str, Any]]:
    """Let all take turns; return the median cost of each, and its ratios to the first."""
    crawl = Crawl(pages)
    costs: dict[int, list[Cost]] = {count: [] for count in shards}
    with ExitStack() as stack:
        racers = contenders(stack, shards, crawl)
        for _ in range(WARM_UP_ROUNDS):
            values = crawl.events(events, NEW_SHARE[kind])
            for one in racers:
                one.feed(values)
        for _ in range(rounds):
            values = crawl.events(events, NEW_SHARE[kind])
            for one in racers:
                costs[one.shards].append(one.feed(values))
            racers.append(racers.pop(0))
        for one in racers:
            one.check(len(crawl.known))
    return [row(count, events, costs[count], costs[shards[0]]) for count in shards]


def row(shards: int, events: int, costs: Sequence[Cost], first: Sequence[Cost]) -> dict[str, Any]:
    """Put the medians of the rounds into a row."""

    def ratio(of: Callable[[Cost], float]) -> float:
        return statistics.median(of(a) / of(b) for a, b in zip(costs, first, strict=True))

    medians = {one.name: statistics.median(getattr(cost, one.name) for cost in costs) for one in fields(Cost)}
    deliveries, entries, deposits = medians["deliveries"], medians["entries"], medians["deposits"]
    return {
        "shards": shards,
        "records_a_poll": records_a_poll(shards),
        "events_per_s": statistics.median(cost.rate for cost in costs),
        "ratio": ratio(lambda cost: cost.rate),
        "worker_ratio": ratio(lambda cost: cost.worker_cpu_us),
        "server_ratio": ratio(lambda cost: cost.server_cpu_us),
        **medians,
        "events_a_step": events / medians["event_steps"],
        "deliveries_a_step": deliveries / medians["event_steps"],
        "entries_a_delivery": entries / deliveries if deliveries else 0.0,
        "deposits_a_delivery": deposits / deliveries if deliveries else 0.0,
        "deposits_an_event": deposits / events,
        "outbox_bytes_a_deposit": medians["outbox_bytes"] / deposits if deposits else 0.0,
        "rounds": [asdict(cost) for cost in costs],
    }


def profile(kind: str, shards: int, pages: int, events: int) -> None:
    """Print where the worker's time goes, and the server's by command."""
    crawl = Crawl(pages)
    with ExitStack() as stack:
        (one,) = contenders(stack, [shards], crawl)
        for _ in range(WARM_UP_ROUNDS):
            one.feed(crawl.events(events, NEW_SHARE[kind]))
        one.client.config_resetstat()
        values, profiler = crawl.events(events, NEW_SHARE[kind]), cProfile.Profile()
        profiler.enable()
        cost = one.feed(values)
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(PROFILE_LINES)
        print(f"{kind}, {shards} shards: {cost}\n{'server command':<16} {'calls/event':>12} {'us/event':>9}")
        stats = one.client.info("commandstats")
        for name, told in sorted(stats.items(), key=lambda item: -item[1]["usec"])[:12]:
            print(f"{name[8:]:<16} {told['calls'] / events:>12.2f} {told['usec'] / events:>9.1f}")


def print_rows(kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one table."""
    print(
        f"\n{kind:<12} {'events/s':>9} {'ratio':>6} {'worker us':>10} {'ratio':>6} {'server us':>10} {'ratio':>6} "
        f"{'AOF B':>7} | {'ev/step':>7} {'deliv/step':>10} {'entries':>8} {'deposits/deliv':>14} {'deposits/ev':>11} "
        f"{'B/deposit':>9}"
    )
    for one in rows:
        print(
            f"{one['shards']:>5} shards {one['events_per_s']:>9,.0f} {one['ratio']:>6.2f} "
            f"{one['worker_cpu_us']:>10.0f} {one['worker_ratio']:>6.2f} {one['server_cpu_us']:>10.0f} "
            f"{one['server_ratio']:>6.2f} {one['aof_bytes']:>7.0f} | {one['events_a_step']:>7.0f} "
            f"{one['deliveries_a_step']:>10.2f} {one['entries_a_delivery']:>8.1f} {one['deposits_a_delivery']:>14.0f} "
            f"{one['deposits_an_event']:>11.1f} {one['outbox_bytes_a_deposit']:>9.1f}",
            flush=True,
        )


def main() -> int:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description="What an event costs with many shards.")
    parser.add_argument("--shards", default="1,4,16,64", help="comma-separated; ratios are to the first")
    parser.add_argument("--pages", type=int, default=20_000, help="known at the start")
    parser.add_argument("--events", type=int, default=4_000, help="a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(NEW_SHARE), help="comma-separated: " + ", ".join(NEW_SHARE))
    parser.add_argument("--profile", choices=sorted(NEW_SHARE), help="print where the time goes, and nothing else")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    shards = [int(count) for count in args.shards.split(",")]
    if args.profile:
        profile(args.profile, shards[-1], args.pages, args.events)
        return 0
    print(f"one worker, one server, an event has {LINKS} links; all outboxes emptied; us and bytes an event")
    found: dict[str, Any] = {"pages": args.pages, "events": args.events, "links": LINKS, "new_share": NEW_SHARE}
    for kind in args.kinds.split(","):
        found[kind] = measure(kind, shards, args.pages, args.events, args.rounds)
        print_rows(kind, found[kind])
    write_result("shards", found, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
