"""What do questions about pages cost many callers at once, on a store of N pages that a worker keeps busy?

The store is filled in place as in `bench_query.py`, PAGES_A_HOST pages a host, and a worker in a process of its own
lets events take effect as fast as it can, or so many a second. 32 callers in this process ask, each a question as soon
as the last one is answered: the importance of a page at random, a batch of 100, the top 100. By turns, so that a
neighbour's load falls on all alike:

- "alone": each call by itself, three round trips in turn, and a mirror that whoever asks refreshes (the plain twin);
- "together": what the endpoint does: callers who wait are answered as one, in one round trip, a thread refreshes.

Each answer is checked against its bounds, and answers after the worker has ended against a plain count. Then what a
refresh of the mirror takes by its parts, and which share of the blocks of each column moved between two refreshes, at
several paces of the worker: what reading changed blocks alone could save. And what the mirror takes, bytes a page.

    python benchmarks/bench_mirror.py --pages 1000000 --seconds 5
"""

import argparse
import asyncio
import multiprocessing
import random
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import bench_query
import numpy as np
from harness import counted_sends, write_result

from opic.api.together import Together
from opic.embedded import EmbeddedServer
from opic.mirror import Mirror, Snapshot
from opic.query import Ask, Importances, Query
from opic.store import Crawl, Shard, Store, connect
from opic.store.keys import ROWS_I64, ROWS_U8

PAGES = 120_000  # Over PAGES_EXACT.
PAGES_A_HOST = 10
CALLERS = 32
BATCH, TOP = 100, 100
LINKS = 40
EVENTS_A_CALL = 250
PACES = (1, 10, 100, 1_000, 0)  # Events a second; 0: all that the worker can.
ROUNDS = 3


def ingest(store_url: str, urls: list[str], pace: Any, events: Any, stop: Any) -> None:
    """Read pages at random at a pace; tell how many were."""
    store, rng, offset = Store(Shard.open(connect(store_url), "bench")), random.Random(bench_query.SEED), 0
    offset = store.next_offset("busy/0")
    began, done = time.monotonic(), 0
    asked = pace.value
    while not stop.is_set():
        if pace.value != asked:
            asked, began, done = pace.value, time.monotonic(), 0
        due = EVENTS_A_CALL if asked == 0 else min(int((time.monotonic() - began) * asked) - done, EVENTS_A_CALL)
        if due <= 0 or asked < 0:
            time.sleep(0.01)
            continue
        store.apply("busy/0", bench_query.reads(rng, urls, offset, due, LINKS))
        offset += due
        done += due
        events.value += due


class Alone(Query):
    """Each call by itself: versions, ids, rows, in turn."""

    def ask(self, urls: Sequence[str]) -> Importances:
        as_of = self.as_of()
        places = {url: at for url, at in zip(urls, self.crawl.ids_of(urls), strict=True) if at is not None}
        snapshot = self.mirror.fresh()
        entries = self._entries(places, self.crawl.rows(list(places.values())), snapshot)
        return Importances([entries.get(url) for url in urls], as_of)


class PlainMirror(Mirror):
    """Refreshed by whoever asks, resting in between as it did before it had a thread."""

    read_at = float("-inf")

    def fresh(self, age_seconds_max: float = 0.9) -> Snapshot:
        with self._lock:
            versions, shown = self.crawl.versions(), self._shown
            if shown is not None:
                moved = any(v != part.books.version for (_, v), part in zip(versions, shown[0].parts, strict=True))
                if not moved or time.monotonic() - self.read_at < min(5 * self._took_seconds, age_seconds_max):
                    return shown[0]
            self._closed.set()  # No thread.
            self.read_at = time.monotonic()
            return self._look()


def race(ask: Callable[[], None], seconds: float) -> list[float]:
    """Let CALLERS threads ask for so long; return what each question took, in milliseconds."""
    took: list[float] = []
    end = time.perf_counter() + seconds

    def caller() -> None:
        while (started := time.perf_counter()) < end:
            ask()
            took.append(1000 * (time.perf_counter() - started))

    threads = [threading.Thread(target=caller) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took


def race_together(together: Together[Ask, Importances], ask: Callable[[], Ask], seconds: float) -> list[float]:
    """Let CALLERS coroutines ask for so long."""
    took: list[float] = []

    async def caller(end: float) -> None:
        while (started := time.perf_counter()) < end:
            check(await together.ask(ask()))
            took.append(1000 * (time.perf_counter() - started))

    async def all_of_them() -> None:
        end = time.perf_counter() + seconds
        await asyncio.gather(*(caller(end) for _ in range(CALLERS)))

    asyncio.run(all_of_them())
    return took


ages: list[float] = []  # Of the answers of a race, in seconds.


def check(found: Importances) -> None:
    """Stop the benchmark where an answer can't be."""
    if any(page is None or not 0 < float(str(page["importance"])) <= 1 for page in found.pages):
        raise SystemExit(f"importance out of range: {found.pages}")
    ages.append(time.time() - found.as_of)


def check_top(query: Query, *, anew: bool) -> None:
    """Ask for the top, worked out `anew` even if this state was asked before."""
    if anew:
        query.mirror.fresh().kept.pop("tops", None)
    pages, as_of = query.top_as_of(TOP)
    ages.append(time.time() - as_of)
    if len(pages) != TOP or [p["rank"] for p in pages] != sorted(int(str(p["rank"])) for p in pages):
        raise SystemExit("the top is not in order")


def callers(crawl: Crawl, urls: list[str], seconds: float, rounds: int, events: Any) -> dict[str, Any]:
    """Race both ways by turns; return times, and how fast the worker was meanwhile."""
    rng = random.Random(bench_query.SEED)
    alone, query = Alone(crawl, PlainMirror(crawl)), Query(crawl, Mirror(crawl))
    together = Together[Ask, Importances](query.importances, "importance")
    kinds: dict[str, dict[str, Callable[[], list[float]]]] = {
        "importance": {
            "alone": lambda: race(lambda: check(alone.ask([rng.choice(urls)])), seconds),
            "together": lambda: race_together(together, lambda: Ask([rng.choice(urls)]), seconds),
        },
        f"batch of {BATCH}": {
            "alone": lambda: race(lambda: check(alone.ask(rng.sample(urls, BATCH))), seconds),
            "together": lambda: race_together(together, lambda: Ask(rng.sample(urls, BATCH)), seconds),
        },
        f"top {TOP}": {
            "alone": lambda: race(lambda: check_top(alone, anew=True), seconds),
            "together": lambda: race(lambda: check_top(query, anew=False), seconds),
        },
    }
    for one in (alone, query):
        one.top(TOP)
        one.importance(urls[:5])
    assert len(query.mirror.fresh().host) == len(alone.mirror.fresh().host)  # Both read all URLs.
    found: dict[str, Any] = {}
    columns = ("p50 ms", "p99 ms", "max ms", "calls/s", "CPU us", "trips", "oldest s", "events/s")
    print(f"{f'{CALLERS} callers at once':<26} " + " ".join(f"{name:>9}" for name in columns))
    for kind, ways in kinds.items():
        times: dict[str, list[float]] = {name: [] for name in ways}
        paces: dict[str, list[float]] = {name: [] for name in ways}
        cpu, trips, oldest = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0), dict.fromkeys(ways, 0.0)
        for _ in range(rounds):
            for name, way in ways.items():
                ages.clear()
                before, began, worked = events.value, time.perf_counter(), time.process_time()
                with counted_sends() as sends:
                    times[name] += way()
                    trips[name] += sends()
                cpu[name] += time.process_time() - worked
                oldest[name] = max([oldest[name], *ages])
                paces[name].append((events.value - before) / (time.perf_counter() - began))
        for name, took in times.items():
            p50, p99 = np.percentile(took, [50, 99])
            row = (p50, p99, max(took), len(took) / (rounds * seconds), 1e6 * cpu[name] / len(took))
            row += (trips[name] / len(took), oldest[name], statistics.median(paces[name]))
            found[f"{kind}, {name}"] = {key: round(float(x), 2) for key, x in zip(columns, row, strict=True)}
            print(f"{kind + ', ' + name:<26} " + " ".join(f"{x:>9.2f}" for x in row), flush=True)
        a, b = (found[f"{kind}, {name}"] for name in ("alone", "together"))
        ratios = {
            "p99": a["p99 ms"] / b["p99 ms"],
            "calls": b["calls/s"] / a["calls/s"],
            "CPU": a["CPU us"] / b["CPU us"],
            "trips": a["trips"] / max(b["trips"], 1e-3),
        }
        found[f"{kind}, ratios"] = {name: round(ratio, 2) for name, ratio in ratios.items()}
        print(
            f"{kind}: p99 {ratios['p99']:.1f} times lower, {ratios['calls']:.1f} times as many calls; CPU a call "
            f"{ratios['CPU']:.1f} times less, round trips {ratios['trips']:.1f} times fewer",
            flush=True,
        )
    query.mirror.close()
    return found


def blocks(crawl: Crawl, pace: Any, seconds: float, events: Any) -> dict[str, Any]:
    """Return, by the worker's pace, what a refresh took by its parts, and which share of the blocks had moved."""
    found: dict[str, Any] = {}
    print(f"{'events/s':>9} {'read ms':>8} {'sort ms':>8} {'v moved':>8} {'h moved':>8} {'s moved':>8}, in a second")
    shard = crawl.shards[0]
    for asked in PACES:
        pace.value = asked
        time.sleep(0.2)
        before, rows = shard.columns(), []
        count, began = events.value, time.perf_counter()
        while time.perf_counter() - began < seconds:
            time.sleep(1.0)
            started = time.perf_counter()
            after = shard.columns()
            read_ms = 1000 * (time.perf_counter() - started)
            started = time.perf_counter()
            np.sort(after.v + after.spent)
            sort_ms = 1000 * (time.perf_counter() - started)
            n = len(before.v)
            shares = [
                _moved(a[:n], b[:n], per)
                for a, b, per in (
                    (before.v, after.v, ROWS_I64),
                    (before.spent, after.spent, ROWS_I64),
                    (before.state, after.state, ROWS_U8),
                )
            ]
            rows.append((read_ms, sort_ms, *shares))
            before = after
        rate = (events.value - count) / (time.perf_counter() - began)
        row = [statistics.median(column) for column in zip(*rows, strict=True)]
        found[f"{asked or 'full'} events/s"] = dict(
            zip(("read_ms", "sort_ms", "v_moved", "h_moved", "s_moved"), (round(x, 3) for x in row), strict=True)
        ) | {"events_per_s": round(rate)}
        print(f"{rate:>9.0f} " + " ".join(f"{x:>8.2f}" for x in row), flush=True)
    pace.value = 0
    return found


def _moved(before: np.ndarray, after: np.ndarray, rows: int) -> float:
    edges = np.arange(0, len(before), rows)
    return float(np.mean(np.add.reduceat(before != after, edges) > 0))


def memory(crawl: Crawl) -> dict[str, float]:
    """Return what a mirror takes, bytes a page: with the columns alone, and with what the endpoint asks of it."""
    tracemalloc.start()
    mirror = Mirror(crawl)
    snapshot = mirror.fresh()
    pages, found = len(snapshot), {}
    found["columns"] = tracemalloc.get_traced_memory()[0] / pages
    _ = snapshot.scores, snapshot.ascending
    found["and ranks"] = tracemalloc.get_traced_memory()[0] / pages
    _ = snapshot.host
    found["and URLs and hosts"] = tracemalloc.get_traced_memory()[0] / pages
    snapshot.greedy(10)
    found["and the greedy order"] = tracemalloc.get_traced_memory()[0] / pages
    _ = snapshot.sites
    found["and sites"] = tracemalloc.get_traced_memory()[0] / pages
    query = Query(crawl, mirror)
    query.top(10, policy="fixed", window=0.05)
    found["and a window policy"] = tracemalloc.get_traced_memory()[0] / pages
    tracemalloc.stop()
    for name, size in found.items():
        print(f"{name:<24} {size:>6.1f} bytes a page")
    return {name: round(size, 1) for name, size in found.items()}


def main() -> int:
    """Fill, race, count, print, write the JSON."""
    parser = argparse.ArgumentParser(description="What questions cost while a worker is busy.")
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--seconds", type=float, default=2.0, help="a phase")
    parser.add_argument("--pace", type=int, default=0, help="events a second while callers ask; 0: all that it can")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        server = EmbeddedServer(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        server.start()
        stack.callback(server.stop)
        client = stack.enter_context(connect(server.url))
        shard = Shard.open(client, "bench")
        with patch.object(bench_query, "PAGES_A_HOST", PAGES_A_HOST):
            bench_query.fill(shard, args.pages)
        crawl = Crawl([shard])
        urls = list(shard.urls_of(range(args.pages)).values())
        found: dict[str, Any] = {"pages": args.pages, "memory": memory(crawl)}
        pace, events, stop = spawn.Value("q", args.pace), spawn.Value("q", 0), spawn.Event()
        some = random.Random(0).sample(urls, min(100_000, len(urls)))
        worker = spawn.Process(target=ingest, args=(server.url, some, pace, events, stop), daemon=True)
        worker.start()
        while not events.value:
            time.sleep(0.1)
        found |= callers(crawl, urls, args.seconds, args.rounds, events)
        found["blocks"] = blocks(crawl, pace, args.seconds, events)
        stop.set()
        worker.join()
        audit, query = shard.audit(), Query(crawl, Mirror(crawl))
        if not audit.conserved:
            raise SystemExit(f"not conserved: {audit}")
        snapshot = query.mirror.fresh()
        for page in query.importance(urls[:50]):
            assert page is not None
            assert page["rank"] == 1 + int((snapshot.scores > int(snapshot.total * page["importance"] + 0.5)).sum())  # type: ignore[operator]
    write_result("mirror", found, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
