"""How many events of 40 links a second does one worker let take effect, and what is the limit?

Warm: every page is known, to the store and to the worker. Cold: seven links of ten lead to pages never seen before.
Each is done by the store with in-flow off and on, and by the straightforward implementation (`baseline.py`), on
servers with the same settings (those of the embedded store: append-only file, synced always). The rounds alternate, so
that a neighbour's load falls on all alike; a ratio is the median of the rounds' ratios. The ledger in memory, which
sends nothing and keeps nothing, is the limit of plain Python.

Before a speed is reported: the store's pages and books are those of the ledger on a log of cold events, its audit
holds at the end of each run, and the baseline's float sums are right within 1e-6.

    python benchmarks/bench_step.py --pages 200000 --events 5000 --rounds 7 --batches 50,100,250,500
    python benchmarks/bench_step.py --profile warm
"""

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from baseline import Baseline
from harness import RECORD_TIME_US, Contender, Cost, Engine, embedded_server, median_cost, open_store, write_result
from workloads import LINKS, Crawl

import opic.store.batch
import opic.worker
from opic.cash import BOOK_FIELDS, Rules
from opic.events import Limits, Record, decode_record, encode_seeds
from opic.ledger import Ledger
from opic.urls import canonical_url

NEW_SHARE = {"warm": 0.0, "cold": 0.7}
ENGINES: dict[str, Callable[[Any], Engine]] = {
    "baseline": Baseline,
    "in-flow off": lambda client: open_store(client, inflow=False),
    "in-flow on": lambda client: open_store(client, inflow=True),
}
SAMPLE_EVENTS = 400
WARM_UP_EVENTS = 300
FLOAT_ERROR_MAX = 1e-6
PROFILE_LINES = 25
CALL_COMMANDS = 12  # Of the server's own account, the dearest.


def records(values: Sequence[bytes], kind: str = "event", first: int = 0) -> list[Record]:
    """Give values the offsets and the time that the log would."""
    return [Record(first + i, RECORD_TIME_US, value, kind) for i, value in enumerate(values)]


def check_against_ledger() -> int:
    """Feed the same cold log to the store and to the ledger; return how many pages were compared.

    Raises:
        SystemExit: they differ.
    """
    crawl = Crawl(1_000)
    seeds, events = [encode_seeds(crawl.urls())], crawl.events(SAMPLE_EVENTS, 0.7)
    ledger = Ledger(Rules(inflow=True))
    ledger.apply("log/0", records(seeds, "seeds"))
    ledger.apply("log/0", records(events, first=1))
    with embedded_server() as server:
        ours = Contender("check", server, ENGINES["in-flow on"])
        ours.feed(seeds, "seeds")
        ours.feed(events)
        shard = ours.engine.shard
        pages = {page.url: page for page in shard.pages()}
        books, expected = shard.books(), ledger.books
        wrong = [n for n in BOOK_FIELDS if n != "version" and getattr(books, n) != getattr(expected, n)]
        wrong += [url for url, page in ledger.pages.items() if asdict(pages[url]) != asdict(page)]
        if wrong or len(pages) != len(ledger.pages):
            raise SystemExit(f"the store is not the ledger: {wrong[:5]}, {len(pages)} and {len(ledger.pages)} pages")
    return len(pages)


def check(contender: Contender, minted: float) -> None:
    """Stop the benchmark if a grain is missing."""
    if contender.name == "baseline":
        error = contender.engine.off_by(minted)
        if error > FLOAT_ERROR_MAX:
            raise SystemExit(f"the baseline's sums are off by {error:.1e} of all cash")
        return
    audit = contender.engine.audit()
    if not audit.conserved:
        raise SystemExit(f"{contender.name}: not conserved: {audit}")


def contenders(stack: ExitStack, names: Sequence[str], urls: Sequence[str]) -> list[Contender]:
    """Start a server for each engine and make pages known to it."""
    out = []
    for name in names:
        contender = Contender(name, stack.enter_context(embedded_server()), ENGINES[name])
        contender.seed(urls)
        out.append(contender)
    return out


def measure(kind: str, pages: int, events: int, rounds: int) -> dict[str, Any]:
    """Race the engines; return the median cost of each, and its ratio to the baseline."""
    crawl = Crawl(pages)
    urls = crawl.urls()
    found: dict[str, list[Cost]] = {name: [] for name in ENGINES}
    with ExitStack() as stack:
        racers = contenders(stack, list(ENGINES), urls)
        warm_up = crawl.events(WARM_UP_EVENTS, NEW_SHARE[kind])
        for racer in racers:
            racer.feed(warm_up)
        for _ in range(rounds):
            values = crawl.events(events, NEW_SHARE[kind])
            for racer in racers:
                found[racer.name].append(racer.feed(values))
            racers.append(racers.pop(0))  # Nobody is always the one that runs beside the generator's garbage.
        for racer in racers:
            check(racer, float(len(urls)))
    rates = {name: [cost.rate for cost in costs] for name, costs in found.items()}
    return {
        name: asdict(median_cost(costs))
        | {
            "events_per_s": statistics.median(rates[name]),
            "rounds": [round(rate) for rate in rates[name]],
            "ratio": statistics.median(a / b for a, b in zip(rates[name], rates["baseline"], strict=True)),
        }
        for name, costs in found.items()
    }


def measure_memory_engines(kind: str, pages: int, events: int) -> dict[str, float]:
    """Return events a second of the ledger, as it is and with each distinct URL parsed once, and of decoding alone."""
    crawl = Crawl(pages)
    seeds, values = records([encode_seeds(crawl.urls())], "seeds"), crawl.events(events, NEW_SHARE[kind])
    log, limits = records(values, first=1), Limits()
    out = {}
    for name, parse in (("ledger", canonical_url), ("ledger, URLs parsed once", lru_cache(None)(canonical_url))):
        with patch("opic.ledger.canonical_url", parse):
            ledger = Ledger(Rules(inflow=False))
            ledger.apply("log/0", seeds)
            if parse is not canonical_url and kind == "warm":
                for url in ledger.pages:
                    parse(url, limits.url_bytes_max)
            started = time.perf_counter()
            ledger.apply("log/0", log)
            out[name] = len(log) / (time.perf_counter() - started)
    started = time.perf_counter()
    for record in log:
        decode_record("log/0", record, limits)
    out["decoding alone"] = len(log) / (time.perf_counter() - started)
    return out


def measure_batches(sizes: Sequence[int], pages: int, events: int, rounds: int) -> list[dict[str, Any]]:
    """Race the store and the baseline, warm, with batches of so many events, each one call or one pipeline."""
    crawl, out = Crawl(pages), []
    with ExitStack() as stack:
        racers = contenders(stack, ["baseline", "in-flow off"], crawl.urls())
        for racer in racers:
            racer.feed(crawl.events(WARM_UP_EVENTS, 0.0))
        for size in sizes:
            costs: dict[str, list[Cost]] = {racer.name: [] for racer in racers}
            took: dict[str, list[float]] = {racer.name: [] for racer in racers}
            held: dict[str, float] = {}
            racers[0].engine.batch = size
            for racer in racers:
                racer.client.config_resetstat()
            for _ in range(rounds):
                values = crawl.events(-(-max(events, 2 * size) // size) * size, 0.0)
                with (
                    patch.object(opic.worker, "RECORDS_A_READ", size),
                    patch.object(opic.store.batch, "LINKS_A_STEP_MAX", size * (LINKS + 1)),
                ):
                    for racer in racers:
                        costs[racer.name].append(racer.feed(values))
                        took[racer.name] += racer.batches_ms
            for racer in racers:
                commands = racer.client.info("latencystats")
                longest = commands.get(
                    f"latency_percentiles_usec_{'fcall' if racer.name != 'baseline' else 'exec'}", {}
                )
                held[racer.name] = float(longest.get("p99", 0)) / 1000
            row: dict[str, Any] = {"batch": size}
            for name, batches in took.items():
                row[name] = {
                    "events_per_s": statistics.median(cost.rate for cost in costs[name]),
                    "batch_p50_ms": statistics.median(batches),
                    "batch_max_ms": max(batches),
                    "server_call_p99_ms": held[name],
                }
            row["ratio"] = statistics.median(
                a.rate / b.rate for a, b in zip(costs["in-flow off"], costs["baseline"], strict=True)
            )
            out.append(row)
        for racer in racers:
            check(racer, float(pages))
    return out


def profile(kind: str, pages: int, events: int) -> None:
    """Print where the worker's time goes, and the server's by command."""
    crawl = Crawl(pages)
    with ExitStack() as stack:
        for racer in contenders(stack, ["in-flow on"], crawl.urls()):
            racer.feed(crawl.events(WARM_UP_EVENTS, NEW_SHARE[kind]))
            racer.client.config_resetstat()
            profiler = cProfile.Profile()
            values = crawl.events(events, NEW_SHARE[kind])
            profiler.enable()
            cost = racer.feed(values)
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(PROFILE_LINES)
            print(f"{kind}: {cost}\n{'server command':<16} {'calls/event':>12} {'us/event':>9}")
            stats = racer.client.info("commandstats")
            for name, row in sorted(stats.items(), key=lambda item: -item[1]["usec"])[:CALL_COMMANDS]:
                print(f"{name[8:]:<16} {row['calls'] / events:>12.2f} {row['usec'] / events:>9.1f}")
            print("(fcall and fcall_ro hold the commands that their functions ran)")


def print_costs(kind: str, rows: dict[str, Any]) -> None:
    """Print one table."""
    print(
        f"\n{kind:<14} {'events/s':>9} {'ratio':>6} {'wall us':>8} {'worker us':>10} {'server us':>10} "
        f"{'AOF B':>7} {'trips':>6}   events/s of each round"
    )
    for name, row in rows.items():
        print(
            f"{name:<14} {row['events_per_s']:>9,.0f} {row['ratio']:>6.2f} {row['wall_us']:>8.0f} "
            f"{row['worker_cpu_us']:>10.0f} {row['server_cpu_us']:>10.0f} {row['aof_bytes']:>7.0f} {row['sends']:>6.2f}"
            f"   {' '.join(map(str, row['rounds']))}",
            flush=True,
        )


def main() -> int:
    """Check, race, print, write the JSON."""
    parser = argparse.ArgumentParser(description="Events a second of one worker on one server.")
    parser.add_argument("--pages", type=int, default=20_000, help="known at the start")
    parser.add_argument("--events", type=int, default=1_000, help="a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", default="50,100,250,500", help="events a batch, comma-separated; '' for none")
    parser.add_argument("--profile", choices=sorted(NEW_SHARE), help="print where the time goes, and nothing else")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    if args.profile:
        profile(args.profile, args.pages, args.events)
        return 0

    print(f"the store is the ledger on {check_against_ledger():,} pages; an event has {LINKS} links; per event:")
    found: dict[str, Any] = {"pages": args.pages, "links": LINKS, "sample_events": SAMPLE_EVENTS}
    for kind in NEW_SHARE:
        rows = measure(kind, args.pages, args.events, args.rounds)
        print_costs(kind, rows)
        limits = measure_memory_engines(kind, args.pages, args.events)
        for name, rate in limits.items():
            print(f"  {name}: {rate:,.0f} events/s, {rate / rows['baseline']['events_per_s']:.2f} of the baseline")
        found[kind] = rows | {"in_memory": limits}
    if args.batches:
        found["batches"] = measure_batches(
            [int(size) for size in args.batches.split(",")], args.pages, args.events // 2, args.rounds
        )
        print(f"\nbatch, warm   {'in-flow off':>11} {'batch ms':>9} {'call p99':>9} {'baseline':>9} {'batch ms':>9} "
              f"{'MULTI p99':>9} {'ratio':>6}")  # fmt: skip
        for row in found["batches"]:
            ours, theirs = row["in-flow off"], row["baseline"]
            print(
                f"{row['batch']:<13} {ours['events_per_s']:>11,.0f} {ours['batch_p50_ms']:>9.1f} "
                f"{ours['server_call_p99_ms']:>9.1f} {theirs['events_per_s']:>9,.0f} {theirs['batch_p50_ms']:>9.1f} "
                f"{theirs['server_call_p99_ms']:>9.1f} {row['ratio']:>6.2f}"
            )
    write_result("step", found, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
