"""A worker that crashes before a chosen statement: the real loop, with a trace function that pulls the plug.

    python crashing_worker.py STORE_URL CRAWL BATCH PLAN

PLAN is JSON. {"record": true} works through the log and prints each statement that it came by, as JSON, most useful
for choosing one. {"statement": "shard_writer.py:120", "times": 3, "victim": 1234} sends SIGKILL to process `victim` (0
is itself) just before that statement runs for the third time, and says which on stderr. The code under test knows
nothing of it.
"""

import json
import linecache
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from logs import PARTITION
from sameness import small_blocks

from opic.ingest import Writer, worker
from opic.ingest.event_log import EventLog
from opic.replica import Crawl
from opic.store import connect

TRACED = ("worker.py", "log.py", "shard_writer.py", "checkpointer.py", "batch.py", "replica.py", "histories.py")
TRACED += (
    "writer.py",
    "class_sweeps.py",
    "checkpoint.py",
    "url_tail.py",
    "follow.py",
    "shard.py",
    "connection.py",
    "server.py",
    "library.py",
)
JOURNAL_BYTES = 8_000  # So that blocks are written and records trimmed all the time.


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
