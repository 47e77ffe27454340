"""One process of a measurement: a worker on a server of its own, or a feeder, follower or reader of that server.

`bench_journal.py` starts it with the interpreter and the PYTHONPATH of the checkout that is measured, so that two
versions never share a process. It imports only what both versions have, and nothing of its neighbours but the baseline.
Each line on stdin is a command, a JSON object with `do` and the arguments of the method of that name; each line on
stdout is the answer. Files hold records, each behind its length in four bytes. It ends, and its server with it, when
stdin does.
"""

import cProfile
import ctypes
import gc
import io
import json
import os
import pstats
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from opic.store import connect
from opic.store.keys import Keys

try:
    from opic.ingest import Writer
    from opic.ingest.event_log import EventLog
    from opic.ingest.worker import LogSource, work
    from opic.memory import give_back_large_arrays, search_garbage_rarely
    from opic.model.events import EventLimits, Record
    from opic.replica import Crawl
    from opic.service import embedded
    from opic.service.backend import Backend

    PREPARE = (give_back_large_arrays, search_garbage_rarely)  # As the worker's process does.
except ImportError:  # The commit before the journal, where modules stood in no folders.
    from opic.events import Limits as EventLimits
    from opic.events import Record
    from opic.log import EventLog
    from opic.store.crawl import Crawl
    from opic.store.writer import Writer
    from opic.worker import LogSource, work

    from opic import embedded
    from opic.service import Backend

    PREPARE = ()

CRAWL = "bench"
RECORD_TIME_US = 1_750_000_000_000_000
RECORDS_A_CALL = 2_000  # As the worker's loop reads them.
SEEDS_A_CALL = 50  # Records of 1,000 URLs.
VALUES_AN_APPEND = 100  # More would hold the server long enough to be seen by others.
FEED_SECONDS = 0.02
FOLLOWER_ASKS_A_SECOND = 20
REWRITE_SECONDS_MAX = 600
KEYS_A_CALL = 1_000
PROFILE_LINES, COMMANDS_SHOWN = 30, 12
USED = (
    "wall_us", "worker_cpu_us", "server_cpu_us", "server_process_cpu_us", "aof_bytes", "in_bytes", "out_bytes",
    "commands",
)  # fmt: skip


def read_values(path: str) -> Iterator[bytes]:
    """Yield the records of a file."""
    with Path(path).open("rb") as file:
        while head := file.read(4):
            yield file.read(int.from_bytes(head, "big"))


def percentiles(times_ms: Sequence[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the maximum."""
    p50, p99 = np.percentile(times_ms, [50, 99])
    return {"p50_ms": float(p50), "p99_ms": float(p99), "max_ms": max(times_ms), "of": len(times_ms)}


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def process_cpu_s(pid: int) -> float:
    """Return the CPU time of a process with all its threads, to 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Driver:
    """What the process was told to be, and what it holds for that."""

    def __init__(self) -> None:
        """Be nothing yet."""
        self.server: Any = None
        self.client: Any = None
        self.crawl: Any = None
        self.writer: Any = None
        self.baseline: Any = None
        self.backend: Any = None
        self.offsets: dict[str, int] = {}
        self.records: list[Record] = []
        self.end = 0

    # What a process is.

    def start(
        self,
        data: str,
        engine: str,
        rules: dict[str, Any],
        shards: int = 1,
        server: str | None = None,
        keep_links: bool = False,
    ) -> dict[str, Any]:
        """Start a server and be its worker.

        Args:
            data: directory of the server's files.
            engine: "store" or "baseline".
            rules: of the crawl, as `Crawl.open` takes them.
            shards: of the crawl.
            server: program to run in the place of the bundled server.
            keep_links: keep the links of pages that are read.
        """
        if server is not None:
            embedded.server_binary = lambda: server  # type: ignore[assignment]
        self.server = embedded.EmbeddedServer(Path(data))
        self.server.start()
        version = self._open(self.server.url, rules, shards)
        for shard in self.crawl.shards if keep_links else ():
            shard.keep_links = True
        if keep_links:
            self.writer = Writer(self.crawl, EventLimits())
        if engine == "baseline":
            from baseline import Baseline

            self.baseline = Baseline(self.client)
        return {
            "url": self.server.url,
            "server_pid": self.server.process.pid,
            "pid": os.getpid(),
            "server_version": version,
            "allocator": self.client.info("memory")["mem_allocator"],
            "python": sys.version.split()[0],
        }

    def attach(self, url: str) -> dict[str, Any]:
        """Be another process of a server that runs."""
        self._open(url, None, 1)
        return {"pid": os.getpid()}

    def _open(self, url: str, rules: dict[str, Any] | None, shards: int) -> str:
        self.client = connect(url)
        self.crawl = Crawl.open(self.client, CRAWL, rules, create=rules is not None, shards=shards)
        self.writer = Writer(self.crawl, EventLimits())
        self.log = EventLog(connect(url, retries=0), Keys(CRAWL, 0))
        info = self.client.info("server")
        return str(info.get("valkey_version") or info["redis_version"])

    # Making pages known, and having events at hand.

    def fill(self, file: str) -> dict[str, Any]:
        """Let records of seeds take effect, straight through the writer."""
        started, values = time.perf_counter(), read_values(file)
        while some := list(islice(values, SEEDS_A_CALL)):
            self._apply("fill/0", self._records("fill/0", some, "seeds"))
        self._drain()
        return {"seconds": time.perf_counter() - started}

    def load(self, file: str, through_log: bool, partition: str = "events/0", part: int = 0, parts: int = 1) -> Any:
        """Have events at hand: appended to the log, or in memory; every `parts`-th of them from `part` on."""
        values = list(islice(read_values(file), part, None, parts))
        if through_log:
            self._append(values)
        else:
            self.records = self._records(partition, values, "event")
        self.partition, self.count, self.through_log = partition, len(values), through_log
        return {"events": len(values)}

    def _append(self, values: Sequence[bytes]) -> None:
        for at in range(0, len(values), VALUES_AN_APPEND):
            ends = self.log.append(values[at : at + VALUES_AN_APPEND], RECORD_TIME_US)
            self.end = ends[self.log.partition]

    def _records(self, partition: str, values: Sequence[bytes], kind: str) -> list[Record]:
        first = self.offsets.get(partition, 0)
        self.offsets[partition] = first + len(values)
        return [Record(first + i, RECORD_TIME_US, value, kind) for i, value in enumerate(values)]

    # Taking effect.

    def go(self, profile: bool = False) -> dict[str, Any]:
        """Let the events at hand take effect, and all transfers that follow from them; return what it cost an event.

        Args:
            profile: also return where the time of this process went, and the server's account of its commands.
        """
        self._no_rewrite()
        profiler = cProfile.Profile()
        if profile:
            self.client.config_resetstat()
            profiler.enable()
        before = self._used()
        if not self.through_log:
            for at in range(0, len(self.records), RECORDS_A_CALL):
                self._apply(self.partition, self.records[at : at + RECORDS_A_CALL])
        else:
            self._work_off()
        self._drain()
        used = {name: after - before[name] for name, after in self._used().items()}
        profiler.disable()
        self.client.config_set("auto-aof-rewrite-percentage", 100)
        found = {"events": self.count, **{name: figure / max(self.count, 1) for name, figure in used.items()}}
        return found | (self._profile(profiler) if profile else {})

    def _profile(self, profiler: cProfile.Profile) -> dict[str, Any]:
        text = io.StringIO()
        pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(PROFILE_LINES)
        stats = sorted(self.client.info("commandstats").items(), key=lambda item: -item[1]["usec"])[:COMMANDS_SHOWN]
        by_command = {
            name.removeprefix("cmdstat_"): {"calls": row["calls"] / self.count, "us": row["usec"] / self.count}
            for name, row in stats
        }
        return {"profile": text.getvalue(), "by_command": by_command}

    def run(self, seconds: float) -> dict[str, Any]:
        """Work on the log for some time, whether events are in it or not; return events and CPU time."""
        self._no_rewrite()
        before, first, deadline = self._used(), self._applied(), time.perf_counter() + seconds
        work(self.writer, LogSource(self.log, self.writer.resume), stopped=lambda: time.perf_counter() > deadline)
        used = {name: after - before[name] for name, after in self._used().items()}
        wall = used["wall_us"]
        events, waiting = self._applied() - first, self.log.end() - self._applied()
        return {
            "events_per_s": 1e6 * events / wall,
            "worker_share": used["worker_cpu_us"] / wall,
            "server_share": used["server_cpu_us"] / wall,
            "left_waiting": waiting,
        }

    def feed(self, file: str, seconds: float, events_per_s: float) -> dict[str, Any]:
        """Append events to the log by the clock, at an even rate; late ones are appended together."""
        values, started, sent = list(read_values(file)), time.perf_counter(), 0
        while (now := time.perf_counter() - started) < seconds:
            if (due := round(now * events_per_s)) > sent:
                self._append([values[i % len(values)] for i in range(sent, due)])
                sent = due
            time.sleep(FEED_SECONDS)
        return {"events": sent}

    def prefeed(self, file: str, events: int) -> dict[str, Any]:
        """Append so many events to the log at once, the file's again and again."""
        values = list(read_values(file))
        for at in range(0, events, len(values)):
            self._append(values[: events - at])
        return {"events": events}

    def drop_waiting(self) -> dict[str, Any]:
        """Let what waits in the log take effect, untimed."""
        self.end = self.log.end()
        self._work_off()
        return {}

    def _work_off(self) -> None:
        if self.baseline is None:
            return work(self.writer, LogSource(self.log, self.writer.resume, until_offset=self.end))
        offset = self.offsets.get(self.log.partition, 0)
        while offset < self.end:
            records = self.log.read(offset, RECORDS_A_CALL, wait_seconds=0.5)
            self.baseline.apply(self.log.partition, records)
            offset = self.offsets[self.log.partition] = records[-1].offset + 1
            self.log.trim(offset)

    def _apply(self, partition: str, records: Sequence[Record]) -> None:
        (self.baseline or self.writer).apply(partition, records)

    def _applied(self) -> int:
        return int(self.writer.resume(self.log.partition))

    def _drain(self) -> None:
        while self.writer.deliver():
            pass

    # What it cost, and whether it is right.

    def _used(self) -> dict[str, float]:
        """Return wall and CPU time so far in microseconds, and the server's counts of bytes and commands."""
        found = dict.fromkeys(USED, 0.0)
        if self.server is not None:
            cpu, stats = self.client.info("cpu"), self.client.info("stats")
            found["server_cpu_us"] = 1e6 * (cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"])
            found["server_process_cpu_us"] = 1e6 * process_cpu_s(self.server.process.pid)
            found["aof_bytes"] = float(self._aof_bytes())
            found["in_bytes"] = float(stats["total_net_input_bytes"])
            found["out_bytes"] = float(stats["total_net_output_bytes"])
            found["commands"] = float(stats["total_commands_processed"])
        found["worker_cpu_us"], found["wall_us"] = 1e6 * time.process_time(), 1e6 * time.perf_counter()
        return found

    def _aof_bytes(self) -> int:
        return sum(one.stat().st_size for one in (self.server.data / "store" / "appendonlydir").iterdir())

    def _no_rewrite(self) -> None:
        """Keep the server from rewriting its file while bytes are counted."""
        self.client.config_set("auto-aof-rewrite-percentage", 0)
        self._await_rewrite()

    def _await_rewrite(self) -> None:
        deadline = time.monotonic() + REWRITE_SECONDS_MAX
        while True:
            info = self.client.info("persistence")
            if not (info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"]):
                return
            if time.monotonic() > deadline:
                raise SystemExit("the append-only file was not rewritten in time")
            time.sleep(0.02)

    def audit(self, minted: float) -> dict[str, Any]:
        """Recount the books; for the baseline, how far its float sums are off, relative to what was minted."""
        if self.baseline is not None:
            return {"known": self.client.zcard("cash"), "off_by": self.baseline.off_by(minted)}
        audit, *_ = self.crawl.audit()
        return {"known": self.crawl.totals().live, "conserved": bool(audit.conserved), "audit": str(audit)[:500]}

    def weigh(self) -> dict[str, Any]:
        """Return bytes: what the server has given out, its journals and its log among it; resident memory of both."""
        self.records = []
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # What was freed already does not count.
        self.client.execute_command("MEMORY", "PURGE")
        journals, info = list(self.client.scan_iter(match="*:journal", count=10_000)), self.client.info("memory")
        return {
            "server": int(info["used_memory"]),
            "journal": sum(int(self.client.memory_usage(key, samples=0)) for key in journals),
            "log": int(self.client.memory_usage(self.log.keys.log, samples=0) or 0),
            "server_resident": int(info["used_memory_rss"]),
            "process_resident": resident_bytes(os.getpid()),
        }

    def columns(self) -> dict[str, Any]:
        """Return bytes by kind of key, by the server's own measure of each key, and the number of keys."""
        sizes: dict[str, int] = {}
        keys = list(self.client.scan_iter(count=10_000))
        for at in range(0, len(keys), KEYS_A_CALL):
            some = keys[at : at + KEYS_A_CALL]
            with self.client.pipeline(transaction=False) as pipe:
                for key in some:
                    # Every key of ours is one allocation or small; of the baseline's two, 1,000 entries are enough.
                    pipe.memory_usage(key, samples=1_000)
                for key, size in zip(some, pipe.execute(), strict=True):
                    column = key.decode().rpartition("}:")[2].partition(":")[0]
                    sizes[column] = sizes.get(column, 0) + size
        return {"keys": len(keys), "sizes": sizes}

    def touch(self, file: str) -> dict[str, Any]:
        """Let the records of a file take effect on a partition of their own, through a writer that has seen nothing."""
        self._apply("touch/0", self._records("touch/0", list(read_values(file)), "event"))
        return {}

    def restart(self, file: str) -> dict[str, Any]:
        """Rewrite the file, end the server, start it again, and a writer with it; return seconds of each.

        `takeover_s` is from a new connection to the first resume point and one event applied: what a worker that takes
        a shard over has to do before it goes on.

        Args:
            file: has that event.
        """
        started = time.perf_counter()
        self.client.bgrewriteaof()
        self._await_rewrite()
        rewritten, rewritten_mb = time.perf_counter() - started, self._aof_bytes() / 1e6
        started = time.perf_counter()
        self.server.process.terminate()
        self.server.process.wait()
        stopped, started = time.perf_counter() - started, time.perf_counter()
        self.server.start_server()
        server, started = time.perf_counter() - started, time.perf_counter()
        self._open(self.server.url, None, 1)
        self.touch(file)
        takeover = time.perf_counter() - started
        about = {"rewrite_s": rewritten, "rewritten_mb": rewritten_mb}
        return about | {"stop_s": stopped, "server_start_s": server, "takeover_s": takeover}

    # Others on the same server.

    def follow(self, seconds: float, urls: Sequence[str]) -> dict[str, Any]:
        """Ask `Query.importance` of a page, FOLLOWER_ASKS_A_SECOND times a second by the clock; return the times."""
        from opic.settings import Settings

        if self.backend is None:
            url = self._url()
            self.backend = Backend(Settings(store=url, crawl=CRAWL), url, create=False)
        self.backend.query.importance([urls[0]])  # The first question loads what it needs.
        took, started = [], time.perf_counter()
        for turn in range(round(seconds * FOLLOWER_ASKS_A_SECOND)):
            due = started + turn / FOLLOWER_ASKS_A_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))
            (page,) = self.backend.query.importance([urls[turn % len(urls)]])
            assert page is not None
            took.append(1000 * (time.perf_counter() - due))
        return percentiles(took)

    def _url(self) -> str:
        options = self.client.connection_pool.connection_kwargs
        return f"unix://{options['path']}"

    def probe(self, seconds: float, gets_per_s: float) -> dict[str, Any]:
        """Send GETs of a plain key by the clock, each without waiting for the last answer; return the times.

        A time counts from when the GET was sent: that this process wakes up late is not the server's fault.
        """
        self.client.set("probe", "x")
        sent: list[float] = []
        took: list[float] = []
        answer, left = len(b"$1\r\nx\r\n"), 0
        count, started = round(seconds * gets_per_s), time.perf_counter()
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(self._url().removeprefix("unix://"))
            while len(took) < count:
                now = time.perf_counter()
                if len(sent) < count and now >= started + len(sent) / gets_per_s:
                    line.sendall(b"GET probe\r\n")
                    sent.append(now)
                due = started + len(sent) / gets_per_s if len(sent) < count else now + 1.0
                if select.select([line], [], [], max(0.0, due - time.perf_counter()))[0]:
                    answers, left = divmod(left + len(line.recv(1 << 16)), answer)
                    now = time.perf_counter()
                    took += [1000 * (now - at) for at in sent[len(took) : len(took) + answers]]
        self.client.delete("probe")
        return percentiles(took)

    def close(self) -> None:
        """End the server, if it is ours."""
        if self.backend is not None:
            self.backend.close()
        if self.server is not None:
            self.server.stop()


def main() -> int:
    """Do as told until stdin ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for prepare in PREPARE:
        prepare()
    answers, driver = os.fdopen(os.dup(1), "w"), Driver()
    os.dup2(2, 1)  # What anything prints is no answer.
    try:
        for line in sys.stdin:
            command = json.loads(line)
            answer = getattr(driver, command.pop("do"))(**command)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        driver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
