"""How long a living crawl takes no writes while it is moved to other shards, and what crawlers notice of it.

Events come by the clock, and so do calls for next pages (open loop). A call that is refused is sent again until it is
answered, and its time counts from when it was due. The crawl is moved from one shard to many and back. The figures are
medians of the runs; those of the worst run end with `_max`. Checked in the end: every accepted event took effect once,
no page was leased twice, the books balance.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from endpoint_world import PATIENCE_SECONDS, World, kept_world, running, wait_for
from harness import write_result
from workloads import SEED

PAGES_A_HOST: Final = 100
TICK_SECONDS, AGAIN_SECONDS = 0.05, 0.02
LEASE_SECONDS: Final = 600.0
LINKS: Final = 40


@dataclass(slots=True)
class Load:
    """What was sent and what came back."""

    next_s: list[float] = field(default_factory=list)  # From when a call was due to its answer.
    events_s: list[float] = field(default_factory=list)
    refused: int = 0
    accepted: int = 0
    leased: dict[str, float] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)


class Crawlers:
    """Sends events and asks for pages by the clock."""

    def __init__(self, url: str, world: World, events_per_s: float, next_per_s: float) -> None:
        """Nothing is sent yet."""
        self._http = httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=200))
        self._world, self._rates, self._random = world, (events_per_s, next_per_s), random.Random(SEED)
        self._readable, self.load, self._tasks = sorted(world.read), Load(), set[asyncio.Task[None]]()

    async def run(self, until: asyncio.Event) -> None:
        """Send until told to end, and wait for all answers."""
        started, sent = time.perf_counter(), [0, 0]
        while not until.is_set():
            elapsed = time.perf_counter() - started
            for at, (rate, begin) in enumerate(zip(self._rates, (self._events, self._next), strict=True)):
                due = round(elapsed * rate)
                if due > sent[at]:
                    for task in begin(due - sent[at], time.perf_counter()):
                        self._tasks.add(one := asyncio.create_task(task))
                        one.add_done_callback(self._tasks.discard)
                    sent[at] = due
            await asyncio.sleep(TICK_SECONDS)
        await asyncio.gather(*self._tasks)
        await self._http.aclose()

    def _events(self, count: int, due: float) -> list[Any]:
        choose = self._random
        events = [
            {"url": choose.choice(self._readable), "links": choose.choices(self._world.urls, k=LINKS)}
            for _ in range(count)
        ]
        return [self._post("/v1/events", events, due)]

    def _next(self, count: int, due: float) -> list[Any]:
        return [self._post("/v1/next", {"n": 1, "lease_seconds": LEASE_SECONDS}, due) for _ in range(count)]

    async def _post(self, path: str, body: Any, due: float) -> None:
        packed = msgspec.json.encode(body)
        while True:
            answer = await self._http.post(path, content=packed, headers={"Content-Type": "application/json"})
            if answer.status_code < 400:
                break
            if answer.status_code != 503:
                raise SystemExit(f"{path}: {answer.status_code} {answer.text}")
            self.load.refused += 1
            await asyncio.sleep(AGAIN_SECONDS)
        took, found = time.perf_counter() - due, answer.json()
        if path == "/v1/events":
            self.load.events_s.append(took)
            self.load.accepted += found["accepted"]
            return
        self.load.next_s.append(took)
        for page in found["pages"]:
            url = page["url"]
            if url not in self._world.read and self.load.leased.get(url, 0) > page["lease_until"] - LEASE_SECONDS:
                self.load.twice.append(url)
            self.load.leased[url] = page["lease_until"]


async def migrated(environment: dict[str, str], to: str, shards: int) -> dict[str, Any]:
    """Run `opic migrate`; return what it says."""
    command = [sys.executable, "-P", "-c", "from opic.cli.main import main; main()", "migrate", to]
    process = await asyncio.create_subprocess_exec(
        *command, "--shards", str(shards), "--json", env=environment, stdout=subprocess.PIPE
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"opic migrate: exit {process.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found


async def measure(
    one: Any, url: str, rates: tuple[float, float], chain: Sequence[int], around: float
) -> list[dict[str, Any]]:
    """Move the crawl from one number of shards to the next, with so many seconds of traffic before and after each.

    Returns:
        A row for each move.
    """
    rows = []
    for at, shards in enumerate(chain):
        crawlers, done = Crawlers(url, one.world, *rates), asyncio.Event()
        traffic = asyncio.create_task(crawlers.run(done))
        await asyncio.sleep(around)
        report = await migrated(one._environment, f"moved-{at}-{shards}", shards)
        await asyncio.sleep(around)
        done.set()
        await traffic
        load = crawlers.load
        if load.twice:
            raise SystemExit(f"leased twice: {load.twice[:5]}")
        rows.append({
            "shards": shards,
            "seconds": report["seconds"],
            "stopped_s": report["stopped_seconds"],
            "events_worst_s": max(load.events_s),
            "next_worst_s": max(load.next_s),
            "next_p50_ms": 1_000 * sorted(load.next_s)[len(load.next_s) // 2],
            "next_calls": len(load.next_s),
            "events": load.accepted,
            "refused": load.refused,
            "pages_leased": len(load.leased),
        })  # fmt: skip
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description="What crawlers notice of a migration to other shards.")
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--events-per-s", type=float, default=200)
    parser.add_argument("--next-per-s", type=float, default=20)
    parser.add_argument("--traffic", type=float, default=6.0, help="seconds of it before and after each move")
    parser.add_argument("--chain", default="4,1", help="numbers of shards, comma-separated; it begins with one")
    parser.add_argument("--runs", type=int, default=1, help="how often the whole chain is run, on a fresh copy")
    parser.add_argument("--world", type=Path, help="a directory in which the filled store is kept for the next time")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args(arguments)
    chain = [int(shards) for shards in args.chain.split(",")]
    rates = args.events_per_s, args.next_per_s
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as name:
        data = args.world or Path(name) / "world"
        hosts = args.pages // PAGES_A_HOST
        world = kept_world(data, args.pages, hosts, 1, 5_000, 1_000, keep_links=True)
        runs = [moved(world, Path(name), rates, chain, args.traffic) for _ in range(args.runs)]
    columns = ("seconds", "stopped_s", "events_worst_s", "next_worst_s", "next_p50_ms")
    print(f"{'moved to':<12}", *(f"{column:>15}" for column in columns))
    rows = []
    for moves in zip(*runs, strict=True):
        row = {name: statistics.median(move[name] for move in moves) for name in moves[0]}
        rows.append(row | {f"{name}_max": max(move[name] for move in moves) for name in columns})
        print(f"{row['shards']:>4} shards ", *(f"{row[column]:>15.2f}" for column in columns))
    load = {"events_per_s": rates[0], "next_per_s": rates[1], "runs": args.runs}
    write_result("migrate", {"pages": world.about["known_pages"], **load, "moves": rows}, args.result)


def moved(
    world: World, directory: Path, rates: tuple[float, float], chain: Sequence[int], around: float
) -> list[dict[str, Any]]:
    """Start the processes on a copy of the world, move the crawl, and check what it has in the end; see `measure`."""
    settings = {"keep_links": True, "host_delay_seconds": 0, "revisit_seconds": 86_400}
    with running(world, directory, **settings) as one:
        url = one.endpoint()
        one._start("worker", "-m", "consumers.crawl_events")
        wait_for("the endpoint is ready", lambda: httpx.get(f"{url}/readyz").status_code == 200)
        before = httpx.get(f"{url}/v1/stats", timeout=60).json()["reads"]
        rows = asyncio.run(measure(one, url, rates, chain, around))
        wait_for("all took effect", lambda: _settled(url), PATIENCE_SECONDS)
        stats = httpx.get(f"{url}/v1/stats", timeout=60).json()
        accepted = sum(row["events"] for row in rows)
        if stats["reads"] - before != accepted:
            raise SystemExit(f"{accepted:,} events were accepted, {stats['reads'] - before:,} took effect")
        if not httpx.get(f"{url}/v1/audit", timeout=60).json()["conserved"]:
            raise SystemExit("the books do not balance")
    return rows


def _settled(url: str) -> bool:
    stats = httpx.get(f"{url}/v1/stats", timeout=60).json()
    return not stats["lag"] and not stats["undelivered"]


if __name__ == "__main__":
    main()
