"""How long a living crawl takes no writes while it is moved to other shards, and what crawlers notice of it.

Events come by the clock, and so do calls for next pages (open loop). A call that is refused is sent again until it is
answered, and its time counts from when it was due. The crawl is moved from one shard to many and back. The figures are
medians of the runs; those of the worst run end with `_max`. Checked in the end: every accepted event took effect once,
no page was leased twice, the books balance.

With `--kills N`, moves are killed at random moments instead of timed, N times in all. `--resume` or `--abort` then end
what the killed process began; half of these commands are killed too. After each, the books are checked. A crawl that
was moved is removed. SIGTERM ends the run early, with a result.
"""

import argparse
import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from math import inf
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
from endpoint_world import PATIENCE_SECONDS, World, kept_world, running, wait_for
from harness import write_result
from workloads import SEED

from opic.store.keys import Keys
from opic.store.recognition import move_of, noted_move

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


async def command(environment: dict[str, str], *words: str) -> asyncio.subprocess.Process:
    """Start a command of opic."""
    start = [sys.executable, "-P", "-c", "from opic.cli.main import main; main()", *words]
    pipe = subprocess.PIPE
    return await asyncio.create_subprocess_exec(*start, env=environment, stdout=pipe, stderr=pipe)


async def done(environment: dict[str, str], *words: str) -> dict[str, Any]:
    """Run a command of opic; return what it says."""
    process = await command(environment, *words, "--json")
    said, complaint = await process.communicate()
    if process.returncode:
        raise SystemExit(f"opic {' '.join(words)}: exit {process.returncode}: {complaint.decode()}")
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
        crawlers, ended = Crawlers(url, one.world, *rates), asyncio.Event()
        traffic = asyncio.create_task(crawlers.run(ended))
        await asyncio.sleep(around)
        report = await done(one._environment, "migrate", f"moved-{at}-{shards}", "--shards", str(shards))
        await asyncio.sleep(around)
        ended.set()
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


class Killer:
    """Moves a crawl again and again, kills the process that does, and has what it began ended."""

    def __init__(self, one: Any, seed: int) -> None:
        """Nothing is moved yet."""
        self._environment, self._client, self._random = one._environment, one.backend.crawl.client, random.Random(seed)
        self._name, self._left, self._moves = one.backend.settings.crawl, "", 0
        # Until a process has begun its move, and from there to the end of a move that is not killed, by its shards.
        self.start_seconds, self.seconds = inf, dict[int, float]()
        self.outcomes: Counter[str] = Counter()

    async def move(self, shards: int, *, kill: bool) -> bool:
        """Move the crawl, or begin to; return whether it is moved in the end."""
        self._moves += 1
        to, began = f"moved-{self._moves}", time.perf_counter()
        words = ["migrate", to, "--shards", str(shards)]
        if kill:
            await self._killed(shards, *words)
            await self._end(shards)
        else:
            process = await command(self._of_crawl(), *words)
            await self._begun(process)
            self.start_seconds = min(self.start_seconds, time.perf_counter() - began)
            began = time.perf_counter()
            _, said = await process.communicate()
            if process.returncode:
                raise SystemExit(f"opic migrate: exit {process.returncode}: {said.decode()}")
            self.seconds[shards] = time.perf_counter() - began
        if moved := move_of(self._client, Keys(self._name, 0)) is not None:
            if self._left:  # All have followed to the one after it by now.
                await done(self._of_crawl(), "crawls", "--delete", self._left, "--yes")
            self._left, self._name = self._name, to
        if not (audit := await done(self._of_crawl(), "audit"))["conserved"]:
            raise SystemExit(f"the books of {self._name} do not balance: {audit}")
        return moved

    def _of_crawl(self) -> dict[str, str]:
        return self._environment | {"OPIC_CRAWL": self._name}

    async def _begun(self, process: asyncio.subprocess.Process) -> None:
        """Wait until a process has noted its move."""
        while process.returncode is None and noted_move(self._client, Keys(self._name, 0)) is None:
            await asyncio.sleep(AGAIN_SECONDS)

    async def _killed(self, shards: int, *words: str) -> None:
        process, waits = await command(self._of_crawl(), *words), self._random.uniform(0, self.seconds[shards])
        if words[1].startswith("--"):
            waits += self.start_seconds
        else:
            await self._begun(process)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), waits)
        if process.returncode is None:
            process.kill()
        await process.communicate()
        self.outcomes["killed" if process.returncode == -signal.SIGKILL else "was quicker"] += 1

    async def _end(self, shards: int) -> None:
        """End what was killed, by a process that may be killed as well; see that one of the two is whole."""
        way = self._random.choice(("--resume", "--abort"))
        if self._random.random() < 0.5:
            await self._killed(shards, "migrate", way)
        for words in (way, "--resume"):  # What has taken over already can only be gone on with.
            process = await command(self._of_crawl(), "migrate", words)
            _, said = await process.communicate()
            if not process.returncode:
                self.outcomes[words.removeprefix("--")] += 1
                return
            if b"no migration" in said:
                self.outcomes["nothing to end"] += 1
                return
        raise SystemExit(f"opic migrate {way}, --resume: {said.decode()}")


async def kill(one: Any, url: str, rates: tuple[float, float], chain: Sequence[int], kills: int) -> dict[str, Any]:
    """Kill moves along the chain, around and around, beside traffic; return the row of it."""
    crawlers, ended, killer = Crawlers(url, one.world, *rates), asyncio.Event(), Killer(one, SEED)
    traffic, steps, began = asyncio.create_task(crawlers.run(ended)), cycle(chain), time.perf_counter()
    for shards in chain:
        await killer.move(shards, kill=False)
    shards, moves, interrupted = next(steps), 0, asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, interrupted.set)
    while killer.outcomes["killed"] < kills and not interrupted.is_set():
        if await killer.move(shards, kill=True):
            shards, moves = next(steps), moves + 1
        print(f"{time.perf_counter() - began:6.0f} s  {dict(killer.outcomes)}, {moves} moved", flush=True)
    ended.set()
    await traffic
    load = crawlers.load
    if load.twice:
        raise SystemExit(f"leased twice: {load.twice[:5]}")
    return {
        "seconds": time.perf_counter() - began,
        **killer.outcomes,
        "moved": moves,
        "next_worst_s": max(load.next_s),
        "events_worst_s": max(load.events_s),
        "next_calls": len(load.next_s),
        "events": load.accepted,
        "pages_leased": len(load.leased),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description="What crawlers notice of a migration to other shards.")
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--events-per-s", type=float, default=200)
    parser.add_argument("--next-per-s", type=float, default=20)
    parser.add_argument("--traffic", type=float, default=6.0, help="seconds of it before and after each move")
    parser.add_argument("--chain", default="4,1", help="numbers of shards, comma-separated; it begins with one")
    parser.add_argument("--runs", type=int, default=1, help="how often the whole chain is run, on a fresh copy")
    parser.add_argument("--kills", type=int, default=0, help="kill moves this often, instead of timing them")
    parser.add_argument("--world", type=Path, help="a directory in which the filled store is kept for the next time")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args(arguments)
    chain = [int(shards) for shards in args.chain.split(",")]
    rates = args.events_per_s, args.next_per_s
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as name:
        data = args.world or Path(name) / "world"
        hosts = args.pages // PAGES_A_HOST
        world = kept_world(data, args.pages, hosts, 1, 5_000, 1_000, keep_links=True)
        load = {"events_per_s": rates[0], "next_per_s": rates[1]}
        if args.kills:
            row = moved(world, Path(name), lambda one, url: kill(one, url, rates, chain, args.kills))
            print(json.dumps(row))
            about = {"pages": world.about["known_pages"], "shards": [1, *chain], **load}
            write_result("migrate", about | {"kills": row}, args.result)
            return
        timed = partial(measure, rates=rates, chain=chain, around=args.traffic)
        runs = [moved(world, Path(name), timed) for _ in range(args.runs)]
    columns = ("seconds", "stopped_s", "events_worst_s", "next_worst_s", "next_p50_ms")
    print(f"{'moved to':<12}", *(f"{column:>15}" for column in columns))
    rows = []
    for moves in zip(*runs, strict=True):
        row = {name: statistics.median(move[name] for move in moves) for name in moves[0]}
        rows.append(row | {f"{name}_max": max(move[name] for move in moves) for name in columns})
        print(f"{row['shards']:>4} shards ", *(f"{row[column]:>15.2f}" for column in columns))
    found = {"pages": world.about["known_pages"], **load, "runs": args.runs, "moves": rows}
    write_result("migrate", found, args.result)


def moved(world: World, directory: Path, move: Callable[[Any, str], Awaitable[Any]]) -> Any:
    """Move the crawl of a copy of the world, with all its processes; check it in the end, and return the rows."""
    settings = {"keep_links": True, "host_delay_seconds": 0, "revisit_seconds": 86_400}
    with running(world, directory, **settings) as one:
        url = one.endpoint()
        one._start("worker", "-m", "consumers.crawl_events")
        wait_for("the endpoint is ready", lambda: httpx.get(f"{url}/readyz").status_code == 200)
        before = httpx.get(f"{url}/v1/stats", timeout=60).json()["reads"]
        rows = asyncio.run(move(one, url))
        wait_for("all took effect", lambda: _settled(url), PATIENCE_SECONDS)
        stats = httpx.get(f"{url}/v1/stats", timeout=60).json()
        accepted = sum(row["events"] for row in (rows if isinstance(rows, list) else [rows]))
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
