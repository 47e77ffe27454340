"""What one, two or four endpoint processes on a port answer, at which CPU time a call, and how much memory they take.

The server, a worker at a steady rate of events, and the processes of `opic serve --processes` share the machine with
wrk, which asks on 32 connections (closed loop). So calls a second are those of a machine that is full, and CPU time a
call says what more cores would give. What the processes use without any call, to follow the events, is told apart.
"""

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from endpoint_world import Running, Stretch, World, kept_world, running, wait_for
from harness import write_result
from http_load import Request, wrk
from workloads import SEED

PAGES_A_HOST: Final = 10
SAMPLE: Final = 20_000
LEASE_SECONDS: Final = 2.0
KINDS: Final = ("importance", "next")
SHOWN: Final = ("calls_per_s", "cpu_us_a_call", "p99_ms", "refused_a_call", "busiest_share")


def requests(world: World) -> dict[str, list[Request]]:
    """Return requests of each kind, for pages at random."""
    sample = random.Random(SEED).sample(world.urls, min(SAMPLE, len(world.urls)))
    asked = json.dumps({"n": 1, "lease_seconds": LEASE_SECONDS})
    return {
        "importance": [Request("GET", "/v1/importance?url=" + quote(url, safe="")) for url in sample],
        "next": [Request("POST", "/v1/next", asked)],
    }


def tree(pid: int) -> list[int]:
    """Return the process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the CPU time so far of processes."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def memory_mb(pids: Sequence[int]) -> float:
    """Return the memory of processes; what several of them share counts once in all."""
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(text.split("\nPss:")[1].split()[0]) for text in texts) / 1024


def measure(world: World, directory: Path, processes: int, seconds: float, events_per_s: float) -> dict[str, Any]:
    """Return the figures of a number of processes."""
    settings = {"keep_links": True, "host_delay_seconds": 0, "retry_seconds": 0, "processes": processes}
    with running(world, directory, **settings) as one:
        url = one.endpoint()
        pids, started = tree(one.processes["endpoint 1"].pid), time.perf_counter()
        assert len(pids) == (1 if processes == 1 else processes + 1)
        one.worker()
        wait_for("the worker took all events", lambda: not one.lag())
        wait_for("all processes have read all pages", lambda: _all_read(url, processes))
        row: dict[str, Any] = {"processes": processes, "read_s": time.perf_counter() - started}
        for kind, some in requests(world).items():
            wrk(url, some, 1, directory)  # What is made on first use.
            row[kind] = _loaded(one, url, some, pids, seconds, events_per_s, directory)
        row["memory_mb"] = memory_mb(pids)
        with Stretch(one, events_per_s):
            before, began = cpu_seconds(pids), time.perf_counter()
            time.sleep(seconds)
            row["cpu_without_calls"] = (cpu_seconds(pids) - before) / (time.perf_counter() - began)
        wait_for("the worker took all events", lambda: not one.lag())
        one.check()
    return row


def _loaded(
    one: Running, url: str, some: list[Request], pids: list[int], seconds: float, events_per_s: float, scratch: Path
) -> dict[str, float]:
    with Stretch(one, events_per_s):
        refused, before = _refused(url), [cpu_seconds([pid]) for pid in pids]
        found = wrk(url, some, seconds, scratch)
        used = [cpu_seconds([pid]) - was for pid, was in zip(pids, before, strict=True)]
    return {
        "calls_per_s": found["requests_per_s"],
        "cpu_us_a_call": 1e6 * sum(used) / found["requests"],
        "p50_ms": found["p50_ms"],
        "p99_ms": found["p99_ms"],
        "refused_a_call": (_refused(url) - refused) / found["requests"],  # Pages that another process had leased.
        "busiest_share": max(used) / sum(used),  # Of the CPU time: how evenly calls are spread.
    }


def _values(url: str, metric: str) -> list[float]:
    """Return the values of a metric, one of each process that has told it."""
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    return [float(line.split()[-1]) for line in lines if line.startswith(metric)]


def _refused(url: str) -> float:
    asked = time.time()  # Each process tells its own metrics every second.
    wait_for("all told", lambda: min(_values(url, "opic_endpoint_seen_timestamp_seconds")) >= asked)
    return sum(_values(url, "opic_refused_suggestions_total"))


def _all_read(url: str, processes: int) -> bool:
    return len(_values(url, "opic_exact_residual")) == processes


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description="What several endpoint processes on a port answer.")
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=2.0, help="a stretch")
    parser.add_argument("--processes", default="1,2", help="numbers of processes, comma-separated")
    parser.add_argument("--events-per-s", type=float, default=500)
    parser.add_argument("--world", type=Path, help="a directory in which the filled store is kept for the next time")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as name:
        data = args.world or Path(name) / "world"
        world = kept_world(data, args.pages, args.pages // PAGES_A_HOST, 1, 5_000, 5_000, keep_links=True)
        rows = []
        columns = ("calls/s", "µs CPU", "p99 ms", "refused", "busiest", "memory", "idle CPU")
        print(f"{'':<12}", *(f"{column:>9}" for column in columns))
        for count in map(int, args.processes.split(",")):
            row = measure(world, Path(name), count, args.seconds, args.events_per_s)
            rows.append(row)
            for kind in KINDS:
                figures = [*(row[kind][name] for name in SHOWN), row["memory_mb"], row["cpu_without_calls"]]
                print(f"{count} {kind:<10}", *(f"{figure:>9,.2f}" for figure in figures), flush=True)
    found = {"pages": world.about["known_pages"], "events_per_s": args.events_per_s, "seconds": args.seconds}
    write_result("processes", {**found, "rows": rows}, args.result)


if __name__ == "__main__":
    main()
