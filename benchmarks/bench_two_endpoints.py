"""What calls for next pages cost the store's server where two endpoints share it.

Crawlers ask both endpoints by the clock (open loop), whether or not earlier answers have come, and report each page a
while after they got it, so that events end leases. Some say nothing: their leases expire. CPU time is that of the
server's process, for each thousand calls.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
from bench_endpoint import CALLS, REFUSED, counted
from endpoint_world import Running, World, kept_world, running, wait_for
from harness import write_result
from http_load import Line, Request
from workloads import SEED

PAGES_A_HOST = 10
CONNECTIONS = 24  # Of each endpoint.
REPORT_SECONDS, LINKS = 0.5, 10
SILENT = 20  # One page in 20 is never reported; its lease expires.
TICK_SECONDS = 0.02
LEASE_SECONDS = 4.0
# CPU time is for a thousand calls.
FIGURES = ("server_ms_a_thousand", "endpoint_ms_a_thousand", "refused_a_call", "p50_ms", "p99_ms", "calls_per_s")
FIGURES += ("pages_per_s", "events_per_s", "worker_cpu")


class Crawlers:
    """Asks endpoints at fixed times, and reports the pages it got."""

    def __init__(self, one: Running, urls: Sequence[str], n: int) -> None:
        """Ask for `n` pages at a time."""
        self._one, self._urls, self.took, self.pages = one, urls, list[float](), 0
        self._reports: deque[tuple[float, str]] = deque()
        self._asked = Request("POST", "/v1/next", json.dumps({"n": n, "lease_seconds": LEASE_SECONDS}))
        self._random = random.Random(SEED)
        self.reported = 0

    async def run(self, endpoints: Sequence[str], calls_per_s: float, seconds: float) -> None:
        """Ask for so long."""
        calls, started, at = round(calls_per_s * seconds), time.perf_counter(), 0

        async def connection(url: str) -> None:
            nonlocal at
            line = Line(url)
            while at < calls:
                due, at = started + at / calls_per_s, at + 1
                await asyncio.sleep(due - time.perf_counter())
                answer = json.loads(await line.ask(self._asked))
                now = time.perf_counter()
                self.took.append(now - due)
                self.pages += len(answer["pages"])
                for page in answer["pages"]:
                    if self._random.randrange(SILENT):
                        self._reports.append((now + REPORT_SECONDS, page["url"]))
            line.close()

        reporting = asyncio.create_task(self._report())
        await asyncio.gather(*(connection(url) for _ in range(CONNECTIONS) for url in endpoints))
        reporting.cancel()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            due, now = [], time.perf_counter()
            while self._reports and self._reports[0][0] <= now:
                due.append(self._reports.popleft()[1])
            if due:
                events = [
                    msgpack.packb({"url": url, "links": self._random.choices(self._urls, k=LINKS)}) for url in due
                ]
                self.reported += len(events)
                await asyncio.to_thread(self._one.backend.accept, events)


def measure(world: World, directory: Path, calls_per_s: float, seconds: float, n: int) -> dict[str, Any]:
    """Return what a stretch cost."""
    with running(world, directory, retry_seconds=2.0) as one:
        endpoints = [one.endpoint(), one.endpoint()]
        one.worker()
        wait_for("the worker took all events", lambda: not one.lag())
        asyncio.run(Crawlers(one, world.urls, n).run(endpoints, calls_per_s, seconds / 3))
        refused, calls = (sum(asyncio.run(counted(url, name)) for url in endpoints) for name in (REFUSED, CALLS))
        crawlers, cpu, started = Crawlers(one, world.urls, n), one.cpu_seconds(), time.perf_counter()
        asyncio.run(crawlers.run(endpoints, calls_per_s, seconds))
        used = {name: seconds - cpu[name] for name, seconds in one.cpu_seconds().items()}
        took = time.perf_counter() - started
        refused, calls = (
            sum(asyncio.run(counted(url, name)) for url in endpoints) - before
            for name, before in ((REFUSED, refused), (CALLS, calls))
        )
        wait_for("the worker took all events", lambda: not one.lag())
        one.check()
    thousands = len(crawlers.took) / 1_000
    took_ms = sorted(1_000 * each for each in crawlers.took)
    return {
        "calls_per_s": len(crawlers.took) / took,
        "pages_per_s": crawlers.pages / took,
        "events_per_s": crawlers.reported / took,
        "refused_a_call": refused / max(calls, 1),
        "server_ms_a_thousand": 1_000 * used["store"] / thousands,
        "endpoint_ms_a_thousand": 1_000 * sum(used[name] for name in used if "endpoint" in name) / thousands,
        "worker_cpu": used["worker"] / took,
        "p50_ms": statistics.median(took_ms),
        "p99_ms": took_ms[int(0.99 * len(took_ms))],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description="What next pages cost the store where two endpoints share it.")
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=4.0, help="a stretch")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--loads", default="200x1", help="calls a second x pages a call, comma-separated")
    parser.add_argument("--before", type=Path, help="another checkout, set up, that is measured in turns with this one")
    parser.add_argument("--once", action="store_true", help="print one row and end")
    parser.add_argument("--world", type=Path, help="a directory in which the filled store is kept for the next time")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args(arguments)
    loads = [tuple(map(int, load.split("x"))) for load in args.loads.split(",")]
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as name:
        data = args.world or Path(name) / "world"
        world = kept_world(data, args.pages, args.pages // PAGES_A_HOST, 1, 5_000, 5_000)
        if args.once:
            print(json.dumps([measure(world, Path(name), calls, args.seconds, n) for calls, n in loads]), flush=True)
            return
        pythons = {"now": Path(sys.executable)}
        if args.before:
            pythons["before"] = args.before.absolute() / ".venv/bin/python"
        runs: dict[str, list[list[dict[str, Any]]]] = {which: [[] for _ in loads] for which in pythons}
        for turn in range(args.rounds):
            for which in list(pythons)[:: -1 if turn % 2 else 1]:
                for at, row in enumerate(in_turn(pythons[which], data, args)):
                    runs[which][at].append(row)
    found: dict[str, Any] = {"pages": args.pages, "seconds": args.seconds, "endpoints": 2, "loads": []}
    columns = ("server ms", "endpoints", "refused", "p50 ms", "p99 ms")
    print(f"{'CPU a thousand calls':<28}", *(f"{column:>9}" for column in columns))
    for at, (calls, n) in enumerate(loads):
        row: dict[str, Any] = {"calls_per_s": calls, "pages_a_call": n}
        for which, rows in runs.items():
            medians = {key: statistics.median(one[key] for one in rows[at]) for key in FIGURES}
            row[which] = medians | {"server_ms_of_rounds": [one["server_ms_a_thousand"] for one in rows[at]]}
            label = f"{calls} calls/s, {n} pages, {which}"
            print(f"{label:<28}", *(f"{medians[key]:>9.2f}" for key in FIGURES[: len(columns)]))
        found["loads"].append(row)
    write_result("two-endpoints", found, args.result)


def in_turn(python: Path, data: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each load, measured by another process, with the checkout of its Python."""
    command = [str(python), "-P", __file__, "--once", "--world", str(data), "--pages", str(args.pages)]
    command += ["--seconds", str(args.seconds), "--loads", args.loads]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


if __name__ == "__main__":
    main()
