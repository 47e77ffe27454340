"""A worker that crashes before a chosen statement: the real loop, with a trace function that pulls the plug.

    python crashing_worker.py STORE_URL CRAWL BATCH PLAN

PLAN is JSON. {"record": true} works through the log and prints each statement that it came by, as JSON, most useful
for choosing one. {"statement": "shard_writer.py:120", "times": 3, "victim": 1234} sends SIGKILL to process `victim` (0
is itself) just before that statement runs for the third time, and says which on stderr. The code under test knows
nothing of it.
"""

import inspect
import json
import linecache
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from logs import PARTITION
from repository import ROOT
from same_state import small_blocks
from servers import Server

from opic.ingest import ShardWriter, Writer, worker
from opic.ingest.checkpointer import Checkpointer
from opic.ingest.event_log import EventLog
from opic.replica import Crawl
from opic.store import connect

TRACED = ("worker.py", "log.py", "shard_writer.py", "checkpointer.py", "batch.py", "replica.py", "histories.py")
TRACED += (
    "writer.py",
    "deliveries.py",
    "step.py",
    "class_sweeps.py",
    "state_changes.py",
    "trust_changes.py",
    "link_keeper.py",
    "stored_links.py",
    "checkpoint.py",
    "url_tail.py",
    "follow.py",
    "shard.py",
    "connection.py",
    "server.py",
    "library.py",
)
JOURNAL_BYTES = 8_000  # So that blocks are written and records trimmed all the time.
WORKER_SECONDS_MAX = 120


def run_worker(server: Server, crawl: str, batch: int, plan: dict[str, object]) -> "subprocess.CompletedProcess[str]":
    """Run this script as a process of its own, until it is killed or at the end of the plan."""
    command = [sys.executable, __file__, server.url, crawl, str(batch), json.dumps(plan)]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": ""}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WORKER_SECONDS_MAX, check=False
    )


def near_the_append(seen: Iterable[str]) -> list[str]:
    """The statements where a crash has most to break: from before a record is sent until all of it is confirmed."""
    found = []
    for owner, file, functions in (
        (ShardWriter, "shard_writer.py", ("_stream", "_append", "_confirm", "_take_trim")),
        (Checkpointer, "checkpointer.py", ("confirm", "trimmed")),
    ):
        for name in functions:
            lines, first = inspect.getsourcelines(getattr(owner, name))
            if name == "_append":  # Before it is applied here, it is as if nothing had begun.
                first += next(at for at, line in enumerate(lines) if "replica.apply" in line)
                lines = lines[next(at for at, line in enumerate(lines) if "replica.apply" in line) :]
            found += [f"{file}:{number}" for number in range(first, first + len(lines))]
    return [statement for statement in found if statement in seen]


class Tracer:
    """Counts statements of the traced files as they are about to run."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.seen: dict[str, int] = {}
        self.left = int(plan.get("times", 0))
        self.short: dict[str, str | None] = {}

    def call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        path = frame.f_code.co_filename
        if path not in self.short:
            name = Path(path).name
            self.short[path] = name if name in TRACED and "/opic/" in path else None
        return self.line if self.short[path] else None

    def line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            where = f"{self.short[frame.f_code.co_filename]}:{frame.f_lineno}"
            if "record" in self.plan:
                self.seen[where] = self.seen.get(where, 0) + 1
            elif where == self.plan["statement"]:
                self.left -= 1
                if self.left == 0:
                    self.crash(frame, where)
        return self.line

    def crash(self, frame: FrameType, where: str) -> None:
        statement = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        victim = self.plan["victim"] or os.getpid()
        who = "server" if self.plan["victim"] else "worker"
        print(f"killed the {who} before {where}: {statement}", file=sys.stderr, flush=True)
        os.kill(victim, signal.SIGKILL)


def main() -> None:
    url, crawl, batch, plan = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
    tracer = Tracer(plan)
    worker.RECORDS_A_READ = batch
    sys.settrace(tracer.call)
    shards = Crawl.open(connect(url, retries=0), crawl, create=False)
    source = EventLog(connect(url, retries=0), shards.shards[0].keys)
    # A server that died ends this worker too: the next one must find its way alone.
    died: list[float] = []
    writer = Writer(shards, journal_bytes=JOURNAL_BYTES)
    until = plan.get("until", source.end())
    with small_blocks(64, 8):
        worker.work(
            writer,
            worker.LogSource(source, writer.resume, pause=died.append, until_offset=until),
            stopped=lambda: bool(died),
        )
        if not died:
            writer.drain()
    sys.settrace(None)
    if "record" in plan:
        print(json.dumps(tracer.seen))
    assert source.partition == PARTITION


if __name__ == "__main__":
    main()
