"""How long do the top, a rank and the next pages take on a store of N pages?  Pass --pages 1000000 to measure.

The store is filled in place: real ids and URLs, columns made up so that the books balance. A twentieth as many hosts
as pages; one of them owns the hottest hundredth of all pages. Every answer is compared with a plain sort of the same
numbers before a time counts. "cold" is a new process's first answer, "moved" the first after a step, "warm" any other.

"busy" is asked while a worker in a process of its own takes all the events it can, reads of pages at random: with each
step there is a new state. An answer's age is the time from the state it shows to its arrival; the contract allows a
second. Peers: the same question by the static policy, and to a mirror that reads all measures anew.
"""

import argparse
import json
import multiprocessing
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from opic.cash import MINTED_GRAINS, Flag
from opic.embedded import EmbeddedServer
from opic.events import CrawlEvent, encode_crawl_event
from opic.events import Record as LogRecord
from opic.frontier import Frontier, Politeness
from opic.ledger import Measure
from opic.mirror import Mirror
from opic.past import Past
from opic.query import Query
from opic.series import Window
from opic.store import Crawl, Shard, Store, connect
from opic.store.columns import Record
from opic.store.keys import ROWS_I64, ROWS_MEASURES, ROWS_U8
from opic.store.shard import BUCKETS_A_CALL

PAGES = 100_000
PAGES_A_HOST = 20
HOT_SHARE = 100  # One host owns one in so many pages, the hottest.
TOP, NEXT = 100, 10
HELD = 100_000
REPEATS = 15
BUSY_SECONDS = 5.0
BUSY_ROUNDS = 5  # By turns, so that a neighbour's load falls on all alike.
BUSY = {"static": "static", "fixed": "fixed", "interpolation": "interpolation", "fixed, all read anew": "fixed"}
BUSY_LINKS = 10
BUSY_EVENTS_A_CALL = 200
SEED = 20030524
FETCHED_AT_US = 1_790_000_000_000_000
RESULT = Path(__file__).parent / "results" / "query.json"
# What an interactive user and a crawler that waits can be asked to bear at 10^6 pages, in milliseconds.
ALLOWED = {"top cold": 200.0, "top warm": 10.0}


def fill(shard: Shard, pages: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make `pages` pages known, a third of them read; return cash, history and whether each was read, by id."""
    rng = np.random.default_rng(SEED)
    cash = (rng.pareto(1.2, pages) * 50_000).clip(max=2**40).astype(np.int64) + 1
    spent = np.where(rng.random(pages) < 1 / 3, (rng.pareto(1.2, pages) * 10**6).clip(max=2**50).astype(np.int64), 0)
    read = spent > 0
    hot = np.zeros(pages, bool)
    hot[np.argsort(-cash, kind="stable")[: pages // HOT_SHARE]] = True
    host = rng.integers(1, max(2, pages // PAGES_A_HOST), pages)
    host[hot] = 0
    for at in range(0, pages, 10_000):
        urls = [f"https://www.h{host[i]}.example/articles/{i}.html" for i in range(at, min(at + 10_000, pages))]
        shard.directory.assign(urls, shard.rules.inflow)

    credit = shard.rules.grant
    v = cash - credit
    state = np.where(read, Flag.KNOWN | Flag.OPEN, Flag.KNOWN).astype(np.uint8)
    fill_records(shard, spent, rng)
    with shard.client.pipeline(transaction=False) as pipe:
        reads = np.add.reduceat(read * shard.rules.measures_max, np.arange(0, pages, ROWS_MEASURES))
        columns = (("v", v, ROWS_I64), ("h", spent, ROWS_I64), ("r", reads, ROWS_I64), ("s", state, ROWS_U8))
        for name, column, rows in columns:
            for at in range(0, len(column), rows):
                part = column[at : at + rows]
                pipe.setrange(
                    shard.keys.block(name, at // rows), 0, (part if name == "s" else part.astype(">i8")).tobytes()
                )
        totals = {"live": pages, "open": int(read.sum()), "open_cash": int(cash[read].sum()), "clock": int(spent.sum())}
        pipe.hset(shard.keys.books, mapping={**totals, "pool": MINTED_GRAINS - int(cash.sum()), "version": 1})
        pipe.execute()
    audit = shard.audit()
    assert audit.conserved, audit.mismatches
    return cash, spent, read


def fill_records(shard: Shard, spent: np.ndarray, rng: np.random.Generator) -> None:
    """Give each page that was read as many measures as are kept: at clocks made up, of equal parts of its history."""
    kept, now = shard.rules.measures_max, int(spent.sum())
    clocks = np.sort(rng.integers(1, now, (len(spent), kept)))
    for at in range(0, len(spent), ROWS_MEASURES * BUCKETS_A_CALL):
        with shard.client.pipeline(transaction=False) as pipe:
            for first in range(at, min(at + ROWS_MEASURES * BUCKETS_A_CALL, len(spent)), ROWS_MEASURES):
                bucket = {}
                for i in range(first, min(first + ROWS_MEASURES, len(spent))):
                    if spent[i]:
                        measures = [Measure(c, int(spent[i]) // kept, FETCHED_AT_US + c) for c in clocks[i].tolist()]
                        bucket[str(i - first)] = Record(kept, 1, measures=tuple(measures)).pack()
                if bucket:
                    pipe.hset(shard.keys.block("m", first // ROWS_MEASURES), mapping=bucket)
            pipe.execute()


class Timer:
    """Times of answers, in milliseconds, with the store's round trips."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.rows = shard, {}

    def once(self, name: str, ask: Callable[[], object], repeats: int = 1) -> object:
        """Ask, and keep the median time and the greatest."""
        took = []
        for _ in range(repeats):
            started = time.perf_counter()
            answer = ask()
            took.append((time.perf_counter() - started) * 1000)
        self.rows[name] = {"median_ms": round(statistics.median(took), 2), "max_ms": round(max(took), 2), "of": repeats}
        print(f"{name:<42} {statistics.median(took):>9.2f} {max(took):>9.2f}", flush=True)
        return answer


def ingest(store_url: str, crawl: str, urls: list[str], events: object, stop: object) -> None:
    """Read pages at random, as fast as it goes; tell how many."""
    store, rng, offset = Store(Shard.open(connect(store_url), crawl)), random.Random(SEED), 0
    while not stop.is_set():
        store.apply("busy/0", reads(rng, urls, offset, BUSY_EVENTS_A_CALL, BUSY_LINKS))
        offset += BUSY_EVENTS_A_CALL
        events.value = offset


def reads(rng: random.Random, urls: list[str], offset: int, count: int, links: int) -> list[LogRecord]:
    """Return records from an offset on: reads of pages at random, which link to others at random."""
    return [
        LogRecord(
            offset + nth,
            time.time_ns() // 1000,
            encode_crawl_event(CrawlEvent(url=rng.choice(urls), links=rng.sample(urls, links))),
        )
        for nth in range(count)
    ]


class _Forgetful(Past):
    """Reads all measures for each state."""

    def measures(self, counts: np.ndarray, spent: np.ndarray) -> tuple[np.ndarray, ...]:
        super().__init__(self.shard)
        return super().measures(counts, spent)


class _Asked:
    """What a query was asked while the worker worked, in milliseconds."""

    def __init__(self, query: Query, policy: str) -> None:
        self.query, self.policy = query, policy
        self.took: list[float] = []
        self.ages: list[float] = []
        self.paces: list[float] = []
        self.states: set[float] = set()

    def ask(self) -> None:
        started, as_of = time.perf_counter(), self.query.as_of(self.policy)
        assert len(self.query.top(TOP, policy=self.policy, window=0.05)) == TOP
        self.took.append(1000 * (time.perf_counter() - started))
        self.ages.append(1000 * (time.time() - as_of))
        self.states.add(as_of)


def ask_while_busy(shard: Shard, store_url: str, pages: int, seconds: float) -> dict[str, dict[str, float]]:
    """Ask for the top by each policy while a worker reads pages; return times, ages and the pace of the worker."""
    spawn = multiprocessing.get_context("spawn")
    events, stop = spawn.Value("q", 0), spawn.Event()
    urls = list(shard.urls_of(range(0, pages, max(1, pages // 100_000))).values())
    worker = spawn.Process(target=ingest, args=(store_url, "bench", urls, events, stop), daemon=True)
    worker.start()
    while not events.value:
        time.sleep(0.1)
    crawl = Crawl([shard])
    asked = {name: _Asked(Query(crawl, Mirror(crawl)), policy) for name, policy in BUSY.items()}
    asked["fixed, all read anew"].query.mirror.pasts = [_Forgetful(shard)]
    asked["fixed, all read anew"].query.mirror._view_seconds = float("inf")  # And for every new state.
    for one in asked.values():
        one.query.top(TOP, policy=one.policy, window=0.05)
    pauses: dict[str, list[float]] = {name: [] for name in asked}
    for _ in range(BUSY_ROUNDS):
        for name, one in asked.items():
            one.ask()  # After some seconds in which nobody asked there is more to read.
            pauses[name].append(one.took.pop())
            one.ages.pop()
            end, before, began = time.perf_counter() + seconds / BUSY_ROUNDS, events.value, time.perf_counter()
            while time.perf_counter() < end:
                one.ask()
            one.paces.append((events.value - before) / (time.perf_counter() - began))
    columns = ("p50 ms", "p99 ms", "p50 age", "max age", "paused ms", "states/s", "events/s")
    print(f"{'busy, top by':<42} " + " ".join(f"{name:>9}" for name in columns))
    rows = {}
    for name, one in asked.items():
        p50, p99 = np.percentile(one.took, [50, 99])
        ages = (statistics.median(one.ages), max(one.ages))
        row = (p50, p99, *ages, statistics.median(pauses[name]), len(one.states) / seconds, np.mean(one.paces))
        rows[f"busy {name}"] = {key: round(float(x), 1) for key, x in zip(columns, row, strict=True)}
        print(f"{name:<42} " + " ".join(f"{x:>9.1f}" for x in row), flush=True)
    stop.set()
    worker.join()
    audit = shard.audit()
    assert audit.conserved, audit.mismatches
    return rows


def move(shard: Shard) -> None:
    """Pretend that a step took effect."""
    shard.client.hincrby(shard.keys.books, "version", 1)


def measure(shard: Shard, pages: int) -> dict[str, dict[str, float]]:
    """Ask everything, check it, and print the times."""
    cash, spent, _ = fill(shard, pages)
    score, timer = cash + spent, Timer(shard)
    order = np.lexsort((np.arange(pages), -score))
    total = shard.books().importance_total(MINTED_GRAINS)
    print(f"{pages:,} pages\n{'answer':<42} {'median ms':>9} {'max ms':>9}")

    crawl = Crawl([shard])
    query = Query(crawl, Mirror(crawl))
    first = timer.once("top cold", lambda: query.top(TOP))
    again = timer.once("top warm", lambda: query.top(TOP), REPEATS)
    expected = [int(score[i]) / total for i in order[:TOP]]
    assert [p["importance"] for p in first] == [p["importance"] for p in again] == expected
    assert [p["rank"] for p in first] == [1 + int((score > score[i]).sum()) for i in order[:TOP]]

    def moved() -> object:
        move(shard)
        query.mirror.close()  # Who asks reads it.
        return query.top(TOP)

    timer.once("top moved", moved, 5)
    timer.once("top by a window, cold (reads all measures)", lambda: query.top(TOP, policy="fixed", window=0.05))
    timer.once("top by a window, warm", lambda: query.top(TOP, policy="fixed", window=0.05), REPEATS)
    for policy in ("interpolation", "variable", "improved"):
        windowed = timer.once(f"top by {policy}, first", lambda p=policy: query.top(TOP, policy=p, window=0.05))
        estimates = query.mirror.fresh().view(policy, Window(0.05)).estimates
        assert abs(estimates.sum() - 1) < 1e-9
        assert [p["importance"] for p in windowed] == np.sort(estimates)[::-1][:TOP].tolist()
    url = first[-1]["url"]
    timer.once("importance of one page, warm", lambda: query.importance([url]), REPEATS)
    many = list(shard.urls_of(range(0, pages, max(1, pages // 1000))).values())
    answers = timer.once("importance of 1,000 pages, warm", lambda: query.importance(many), 3)
    assert all(a is not None for a in answers)
    timer.once("top of a domain, cold (reads all URLs)", lambda: query.top(TOP, domain="h7.example"))
    timer.once("top of a domain, warm", lambda: query.top(TOP, domain="h7.example"), REPEATS)

    for delay in (0.0, 1.0):
        frontier = Frontier(crawl, query.mirror, Politeness(host_delay_seconds=delay))
        label = f"next {NEXT}, host delay {delay:g} s"
        found = timer.once(f"{label}, cold", lambda f=frontier: f.next(NEXT))
        if not delay:
            best = np.lexsort((np.arange(pages), -cash))[:NEXT]
            assert [p["cash"] for p in found["pages"]] == cash[best].tolist()
        timer.once(f"{label}, warm", lambda f=frontier: f.next(NEXT), REPEATS)
    timer.once("next 1,000, host delay 0 s", lambda: Frontier(crawl, query.mirror, Politeness(0)).next(1000))
    held = order[: min(HELD, pages // 2)].tolist()
    until = round((time.time() + 3600) * 1e6)
    for at in range(0, len(held), 10_000):
        shard.client.zadd(shard.keys.leases, {str(i): until for i in held[at : at + 10_000]})
    frontier = Frontier(crawl, query.mirror, Politeness(0))
    timer.once(f"next {NEXT} with {len(held):,} leases, cold", lambda: frontier.next(NEXT))
    timer.once(f"next {NEXT} with {len(held):,} leases, warm", lambda: frontier.next(NEXT), REPEATS)
    return timer.rows


def main() -> int:
    """Fill a store, ask it, write the JSON; exit 1 when a large store answers too slowly."""
    parser = argparse.ArgumentParser(description="Times of queries and of the next pages.")
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--busy-seconds", type=float, default=BUSY_SECONDS, help="for each row")
    parser.add_argument("--busy-only", action="store_true", help="nothing but the busy part; writes no result")
    parser.add_argument("--result", type=Path, default=RESULT, help="where the JSON goes")
    args = parser.parse_args()
    with ExitStack() as stack:
        server = EmbeddedServer(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        server.start()
        stack.callback(server.stop)
        client = stack.enter_context(connect(server.url))
        shard = Shard.open(client, "bench")
        if args.busy_only:
            fill(shard, args.pages)
            ask_while_busy(shard, server.url, args.pages, args.busy_seconds)
            return 0
        rows = measure(shard, args.pages)
        rows |= ask_while_busy(shard, server.url, args.pages, args.busy_seconds)
    slow = [name for name, most in ALLOWED.items() if args.pages <= 1_000_000 and rows[name]["median_ms"] > most]
    args.result.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    args.result.write_text(json.dumps({**about, "pages": args.pages, "times": rows, "slow": slow}, indent=2) + "\n")
    for name in slow:
        print(f"{name}: {rows[name]['median_ms']} ms is over {ALLOWED[name]:g} ms")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
