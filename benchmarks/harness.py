"""What the benchmarks of a running store share: servers, the worker's real path, and what a stretch of it cost."""

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from redis.connection import AbstractConnection

from opic.cash import MILLION, Rules
from opic.embedded import EmbeddedServer
from opic.events import Record, encode_seeds
from opic.log import EventLog
from opic.store import Shard, Store, connect
from opic.store.keys import Keys
from opic.store.library import load_functions
from opic.worker import LogSource, work

RESULTS = Path(__file__).parent / "results"
SEEDS_A_RECORD = 1_000
RECORD_TIME_US = 1_750_000_000 * MILLION  # Of the log: the events' own time.


class Engine(Protocol):
    """Where records take effect: the store, or what it is compared with."""

    def next_offset(self, partition: str) -> int: ...

    def apply(self, partition: str, records: Sequence[Record]) -> None: ...


@contextmanager
def embedded_server() -> Iterator[EmbeddedServer]:
    """Lend a new server with the settings of the embedded store: appendonly yes, appendfsync always."""
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as data:
        server = EmbeddedServer(Path(data))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def counted_sends() -> Iterator[Callable[[], int]]:
    """Lend a count of the messages sent to servers: a command or a pipeline is one, and one round trip."""
    count, plain = 0, AbstractConnection.send_packed_command

    def send(self: AbstractConnection, *args: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        plain(self, *args, **options)

    AbstractConnection.send_packed_command = send  # type: ignore[method-assign]
    try:
        yield lambda: count
    finally:
        AbstractConnection.send_packed_command = plain  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class Cost:
    """What some events cost, each; microseconds but for the last two."""

    events: int
    wall_us: float
    worker_cpu_us: float
    server_cpu_us: float  # The main thread, which does everything but the closing of files.
    aof_bytes: float
    sends: float

    @property
    def rate(self) -> float:
        """Events a second."""
        return 1e6 / self.wall_us


def median_cost(costs: Sequence[Cost]) -> Cost:
    """Take the median of each figure."""
    names = ("wall_us", "worker_cpu_us", "server_cpu_us", "aof_bytes", "sends")
    return Cost(sum(c.events for c in costs), *(statistics.median(getattr(c, n) for c in costs) for n in names))


class Contender:
    """An engine on a server of its own, fed through the log by the worker's own loop."""

    def __init__(self, name: str, server: EmbeddedServer, open_engine: Callable[[Any], Engine]) -> None:
        """Open the engine with a client of the server."""
        self.name, self.server, self.client = name, server, connect(server.url)
        load_functions(self.client)
        self.engine = open_engine(self.client)
        self.log = EventLog(connect(server.url, retries=0), Keys("bench", 0))
        self.batches_ms: list[float] = []

    def resume(self, partition: str) -> int:
        """Ask the engine."""
        return self.engine.next_offset(partition)

    def forget(self) -> None:
        """Keep what is kept: this server loses nothing."""

    def deliver(self, _: Collection[int] | None = None) -> int:
        """Carry nothing: there is one shard."""
        return 0

    def responsible(self, _partition: int, _partitions: int) -> list[int]:
        """Name no shard to deliver to."""
        return []

    def apply(self, partition: str, records: Sequence[Record], *_: object) -> None:
        """Let the engine do it, and keep how long it took."""
        started = time.perf_counter()
        self.engine.apply(partition, records)
        self.batches_ms.append((time.perf_counter() - started) * 1000)

    def feed(self, values: Sequence[bytes], kind: str = "event") -> Cost:
        """Append records, then let all of them take effect; the cost is that of the second alone."""
        end = self.log.append(values, RECORD_TIME_US, kind)[self.log.partition]
        self.batches_ms.clear()
        with counted_sends() as sends:
            before = (time.perf_counter(), time.process_time(), self.server_cpu_s(), self.aof_bytes(), sends())
            work(self, LogSource(self.log, self.resume, until_offset=end))
            wall, worker = time.perf_counter() - before[0], time.process_time() - before[1]
            server, sent = self.server_cpu_s() - before[2], sends() - before[4] - 2  # Two asked for the server's CPU.
        each = [1e6 * wall, 1e6 * worker, 1e6 * server, self.aof_bytes() - before[3], sent]
        return Cost(len(values), *(figure / len(values) for figure in each))

    def seed(self, urls: Sequence[str]) -> None:
        """Make pages known, in pieces, so that the log stays short."""
        for at in range(0, len(urls), 10 * SEEDS_A_RECORD):
            part = urls[at : at + 10 * SEEDS_A_RECORD]
            self.feed(
                [encode_seeds(part[i : i + SEEDS_A_RECORD]) for i in range(0, len(part), SEEDS_A_RECORD)], "seeds"
            )

    def server_cpu_s(self) -> float:
        """Return the CPU time of the server's main thread so far."""
        info = self.client.info("cpu")
        return float(info["used_cpu_user_main_thread"]) + float(info["used_cpu_sys_main_thread"])

    def aof_bytes(self) -> int:
        """Return the size of the append-only file."""
        return sum(file.stat().st_size for file in (self.server.data / "store" / "appendonlydir").iterdir())

    def used_memory(self) -> int:
        """Return what the server's allocator has given out."""
        return int(self.client.info("memory")["used_memory"])


def open_store(client: Any, **rules: Any) -> Store:
    """Open a store of the crawl `bench`, with rules by name as `opic.cash.Rules` has them."""
    assert not set(rules) - {*Rules.__dataclass_fields__}
    return Store(Shard.open(client, "bench", rules))


def write_result(name: str, found: dict[str, Any], path: Path | None = None) -> None:
    """Write `results/<name>.json` with the machine, the date and the command."""
    path = path or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "benchmark": name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load_average": os.getloadavg()[0],  # Of the minute before: who else was at work.
    }
    path.write_text(json.dumps(about | found, indent=1) + "\n")
