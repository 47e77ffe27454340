"""How fast does the endpoint answer a crawl's crawlers while events come in, and does it keep what it promises?

A store of 1,000,000 pages on 100,000 hosts; server, worker and endpoint are processes of their own, and the worker has
more events than it can take. wrk asks on 32 connections of the loopback, one kind of request after the other. It is
closed-loop: its latencies are those of 32 callers who wait for each other's answers; so a mix of requests is asked by
the clock as well (benchmarks/http_load.py says why). vegeta asks a larger mix open-loop, with the worker at 2,000
events a second, and the answers say how old the state is that they show (benchmarks/open_loop.py). The first call for
next pages is timed after an endpoint starts, and after the store's server was restarted under it. Then callers at once
take 100,000 pages from two endpoints, and what they were told is looked through: no page leased twice, no host before
its delay (benchmarks/lease_check.py). At last the call for next pages beside that of other frontiers, with the same
pages (benchmarks/peer_frontiers.py).

    python benchmarks/bench_endpoint.py                       some five minutes, 2 GB
    python benchmarks/bench_endpoint.py --quick               50,000 pages, a minute
    python benchmarks/bench_endpoint.py --only load,top       of load, open, first, top, check, peers
    python benchmarks/bench_endpoint.py --only links          the open loop with links kept and without, in turns
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import open_loop
from endpoint_world import Running, Stretch, World, kept_world, running, wait_for
from harness import write_result
from http_load import CONNECTIONS, Line, Request, by_the_clock, percentiles, wrk
from lease_check import judge, take
from peer_frontiers import beside_peers
from workloads import SEED

PARTS = ("load", "open", "first", "top", "check", "peers")
MORE_PARTS = ("links",)  # That have to be asked for.
READ_SHARE = 1 / 3  # Of the pages of a world with links, each once.
NEXT, BATCH, TOP = 10, 100, 100
PAGES_A_HOST = 10
SAMPLE = 20_000  # URLs asked for, at random.
BODIES = 200
REFUSED, CALLS = "opic_refused_suggestions_total", "opic_suggestion_calls_total"
HOST_DELAY_SECONDS = 0.2  # Of the check: so many suggestions have to come in time.
CHECK_N = 50
WIDTH = 34 + 6 * 9
CLOCK_RATES = {"importance": 60, "next": 20, "batch": 5, "top": 2}  # Requests a second, of all callers.
OPEN_RATES = {"next": 100, "importance": 300, "batch": 20, "top": 10}  # Requests a second, by vegeta.
OPEN_EVENTS_PER_S = 2_000
FIRST_STARTS = 3
POLL_SECONDS, FIRST_SECONDS_MAX = 0.005, 120.0
TARGETS = {  # Milliseconds.
    "next p99": 50.0,
    "importance p99": 20.0,
    "top cold": 200.0,
    "top warm": 10.0,
    "open-loop next p99": 30.0,
    "open-loop importance p99": 15.0,
    "open-loop age p99": 100.0,
    "first next after a start": 1000.0,
    "first next after a restart of the store": 1000.0,
}


def requests(world: World) -> dict[str, list[Request]]:
    """Return requests of each kind, for pages at random."""
    pick = random.Random(SEED)
    sample = pick.sample(world.urls, min(SAMPLE, len(world.urls)))
    bodies = [json.dumps({"urls": pick.sample(sample, BATCH)}, separators=(",", ":")) for _ in range(BODIES)]
    return {
        "next": [Request("POST", "/v1/next", json.dumps({"n": NEXT, "crawler": f"wrk-{i}"})) for i in range(8)],
        "importance": [Request("GET", "/v1/importance?url=" + quote(url, safe="")) for url in sample],
        "batch": [Request("POST", "/v1/importance", body) for body in bodies],
        "top": [Request("GET", f"/v1/top?n={TOP}")],
    }


async def ask_once(url: str, asked: dict[str, list[Request]]) -> dict[str, Any]:
    """Ask one request of each kind, and see that the answers can be right; they load the replicas, too."""
    line, answers = Line(url), {}
    for kind, some in asked.items():
        answers[kind] = json.loads(await line.ask(some[0]))
    line.close()
    assert 0 < answers["importance"]["importance"] <= 1
    assert len(answers["batch"]["pages"]) == BATCH
    assert all(0 < page["importance"] <= 1 for page in answers["batch"]["pages"])
    shares = [page["importance"] for page in answers["top"]["pages"]]
    assert len(shares) == TOP
    assert shares == sorted(shares, reverse=True)
    cash = [page["cash"] for page in answers["next"]["pages"]]
    assert 1 <= len(cash) <= NEXT
    assert cash == sorted(cash, reverse=True)
    return answers


def load(world: World, directory: Path, seconds: float) -> dict[str, Any]:
    """Measure each kind of request, with and without ingest, then all of them by the clock."""
    asked, found = requests(world), {"quiet": {}, "busy": {}}
    with running(world, directory) as one:
        url = one.endpoint()
        page_bytes = len(json.dumps(asyncio.run(ask_once(url, asked))["next"]))
        for kind, some in asked.items():
            found["quiet"][kind] = by_wrk(one, url, some, seconds / 2)
            print_row(f"{kind}, nothing to ingest", found["quiet"][kind])
        one.worker()
        with Stretch(one):  # A worker that just began knows no links yet,
            time.sleep(seconds / 2)
        asyncio.run(ask_once(url, asked))  # and its first step makes an endpoint read all hosts anew.
        with Stretch(one) as alone:
            time.sleep(seconds)
        found["ingest_alone"] = alone.events_per_s
        print(f"{'ingest alone':<34} {alone.events_per_s:>{WIDTH - 35},.0f}", flush=True)
        for kind, some in asked.items():
            found["busy"][kind] = by_wrk(one, url, some, seconds)
            print_row(f"{kind}, while events come in", found["busy"][kind])
        for row in (found["quiet"]["next"], found["busy"]["next"]):
            # A small store runs out of hosts that need not rest, and of pages: then this is another question.
            row["full"] = bool(row["requests"]) and row["answer_bytes"] > page_bytes / 2
            if row["requests"] and not row["full"]:
                print(f"answers to next had {row['answer_bytes']:,.0f} bytes, {page_bytes:,} is one of {NEXT} pages")
        with Stretch(one) as beside:
            asyncio.run(by_the_clock(url, schedule(asked, 2), 4))
            rows = asyncio.run(by_the_clock(url, schedule(asked, 2 * seconds), 4 * seconds))
        for kind, row in rows.items():
            row |= {"requests_per_s": CLOCK_RATES[kind], "events_per_s": beside.events_per_s}
            print_row(f"{kind}, by the clock", row)
        found["by_the_clock"] = {"cpu_share": beside.cpu_share, **rows}
        one.check()
    return found


async def counted(url: str, name: str) -> float:
    """Return a counter of an endpoint, summed over its labels."""
    line = Line(url)
    text = (await line.ask(Request("GET", "/metrics"))).decode()
    line.close()
    return sum(float(row.rpartition(" ")[2]) for row in text.splitlines() if row.startswith(name))


def by_wrk(one: Running, url: str, some: Sequence[Request], seconds: float) -> dict[str, Any]:
    """Let wrk ask; return what it measured, the events that took effect meanwhile, and who had the CPU.

    CPU time of the endpoint a request depends least on who else is at work on the machine.
    """
    with Stretch(one) as beside:
        # Crawlers that poll keep the snapshots current; one that comes after a while reads what became known meanwhile.
        wrk(url, some, 1, one.server.data)
        row = wrk(url, some, seconds, one.server.data)
    endpoint_ms = 1000 * beside.cpu_share["endpoint 1"] / max(row["requests_per_s"], 1 / seconds)
    return row | {
        "events_per_s": beside.events_per_s,
        "endpoint_cpu_ms": endpoint_ms,
        "cpu_share": {name: round(share, 2) for name, share in beside.cpu_share.items()},
    }


def schedule(asked: dict[str, list[Request]], seconds: float) -> list[tuple[float, str, Request]]:
    """Return requests with their times: each kind at its rate, evenly, all kinds begun at odds."""
    pick, due = random.Random(SEED), []
    for kind, rate in CLOCK_RATES.items():
        begun = pick.random() / rate
        due += [(begun + i / rate, kind, pick.choice(asked[kind])) for i in range(round(seconds * rate))]
    return sorted(due, key=lambda one: one[0])


def print_row(label: str, row: dict[str, Any]) -> None:
    """Print what was measured; by the clock nobody tells whose CPU time it was."""
    cpu = f"{row['endpoint_cpu_ms']:>8.2f}" if "endpoint_cpu_ms" in row else " " * 8
    print(
        f"{label:<34} {row['requests_per_s']:>8,.0f} {row['p50_ms']:>8.1f} {row['p99_ms']:>8.1f} "
        f"{row['max_ms']:>8.1f} {cpu} {row['events_per_s']:>8,.0f}",
        flush=True,
    )


def open_loop_load(world: World, directory: Path, seconds: float, **settings: Any) -> dict[str, Any]:
    """Let vegeta ask the mix of OPEN_RATES beside a worker at OPEN_EVENTS_PER_S; return times and ages by kind."""
    asked = requests(world)
    with running(world, directory, **settings) as one:
        url = one.endpoint()
        one.worker()
        policy = asyncio.run(ask_once(url, asked))["importance"]["policy"]
        wait_for("the worker took all events", lambda: not one.lag())
        with Stretch(one, OPEN_EVENTS_PER_S):  # The first state after a start is read.
            open_loop.attack(url, asked, OPEN_RATES, seconds / 4, directory)
        with Stretch(one, OPEN_EVENTS_PER_S) as beside:
            rows = open_loop.attack(url, asked, OPEN_RATES, seconds, directory)
        waiting, memory = one.lag(), one.memory_mb("endpoint 1")
        one.check()
    print(f"{'open loop, by vegeta':<22}{'asked/s':>8}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}   age ms: p50, p99, max")
    for kind, row in rows.items():
        age = row["age"] or {}
        ages = ", ".join(f"{age[name]:,.1f}" for name in ("p50_ms", "p99_ms", "max_ms") if name in age)
        print(
            f"{kind:<22}{OPEN_RATES[kind]:>8}{row['p50_ms']:>9.1f}{row['p99_ms']:>9.1f}{row['max_ms']:>9.1f}   {ages}"
        )
    shares = {name: round(share, 2) for name, share in beside.cpu_share.items()}
    print(f"beside {beside.events_per_s:,.0f} events/s, {waiting:,} left waiting; CPU {shares}", flush=True)
    about = {"policy": policy, "events_per_s": beside.events_per_s, "left_waiting": waiting, "cpu_share": shares}
    about["endpoint_mb"] = memory
    return {"requests_per_s": OPEN_RATES, **about, "kinds": rows}


def links_load(worlds: dict[str, World], directory: Path, seconds: float, rounds: int) -> dict[str, Any]:
    """Run the open loop without links and with them in turns; return what each found, and ratios of the medians."""
    found: dict[str, list[dict[str, Any]]] = {keep: [] for keep in worlds}
    for nth in range(rounds):
        for keep in list(worlds)[:: -1 if nth % 2 else 1]:
            print(f"links kept: {keep}", flush=True)
            found[keep].append(open_loop_load(worlds[keep], directory, seconds, keep_links=keep))
            assert (found[keep][-1]["policy"] == "exact") == (keep == "on")

    def medians(of: Callable[[dict[str, Any]], float]) -> dict[str, float]:
        each = {keep: statistics.median(map(of, rows)) for keep, rows in found.items()}
        return each | {"ratio": each["on"] / each["off"]}

    summary = {
        kind: {name: medians(lambda row, k=kind, n=name: row["kinds"][k][n]) for name in ("p50_ms", "p99_ms")}
        | {"age_p99_ms": medians(lambda row, k=kind: row["kinds"][k]["age"]["p99_ms"])}
        for kind in OPEN_RATES
    }
    cpu = medians(lambda row: row["cpu_share"]["endpoint 1"])
    memory = medians(lambda row: row["endpoint_mb"])
    for kind, row in summary.items():
        print(f"{kind}: " + ", ".join(f"{name} {at['off']:.1f} to {at['on']:.1f}" for name, at in row.items()))
    print(f"CPU of the endpoint: {cpu['off']:.2f} to {cpu['on']:.2f} of a core", flush=True)
    print(f"its memory: {memory['off']:.0f} to {memory['on']:.0f} MB", flush=True)
    return {"rounds": rounds, "medians": summary, "endpoint_cpu": cpu, "endpoint_mb": memory, "runs": found}


def first_next(world: World, directory: Path) -> dict[str, Any]:
    """Time the first answer with next pages: after an endpoint's start, and after the store's server was restarted."""
    body = json.dumps({"n": NEXT})

    def until_answered(url: str) -> float:
        started = time.perf_counter()
        while True:
            line = HTTPConnection(urlsplit(url).netloc, timeout=60)
            line.request("POST", "/v1/next", body, {"content-type": "application/json"})
            response = line.getresponse()
            answer = json.loads(response.read())
            line.close()
            if response.status == 200 and answer["pages"]:
                return 1000 * (time.perf_counter() - started)
            if time.perf_counter() - started > FIRST_SECONDS_MAX:
                raise SystemExit(f"no next pages after {FIRST_SECONDS_MAX:g} s: {response.status} {answer}")
            time.sleep(POLL_SECONDS)

    listening, first, restarted = [], [], []
    with running(world, directory) as one:
        for _ in range(FIRST_STARTS):
            started = time.perf_counter()
            url = one.endpoint()
            listening.append(1000 * (time.perf_counter() - started))
            first.append(until_answered(url))
        for _ in range(FIRST_STARTS):
            assert one.server.process is not None
            one.server.process.terminate()
            one.server.process.wait()
            one.server.start_server()  # Returns once it has loaded its files.
            restarted.append(until_answered(url))
        one.check()
    rows = {
        "endpoint listens, from its start": percentiles(listening),
        "first next after a start": percentiles(first),
        "first next after a restart of the store": percentiles(restarted),
    }
    for name, row in rows.items():
        print(f"{name:<42} {row['p50_ms']:>9.1f} ms, at most {row['max_ms']:,.1f}, of {row['of']}", flush=True)
    return rows


def top(world: World, directory: Path) -> dict[str, Any]:
    """Time the top by one caller: after a start, after a change, and when nothing changed since the last time."""
    asked = Request("GET", f"/v1/top?n={TOP}")

    async def timed(line: Line) -> float:
        started = time.perf_counter()
        await line.ask(asked)
        return 1000 * (time.perf_counter() - started)

    async def change(one: Running, line: Line) -> float:
        """Let events take effect, until no answer from before them may be given, and ask."""
        one.backend.settle_here(one.backend.accept(world.events[:50]))
        await asyncio.sleep(1.1)
        return await timed(line)

    async def ask(one: Running) -> dict[str, Any]:
        started, first_next = [], []
        for _ in range(3):
            line = Line(one.endpoint())
            await line.ask(Request("GET", "/readyz"))
            started.append(await timed(line))
            began = time.perf_counter()
            await line.ask(Request("POST", "/v1/next", json.dumps({"n": NEXT})))
            first_next.append(1000 * (time.perf_counter() - began))
        return {
            "cold, first after a start": percentiles(started),
            "cold, first after a change": percentiles([await change(one, line) for _ in range(7)]),
            "first next after a start": percentiles(first_next),  # Reads the host of every page.
            "warm": percentiles([await timed(line) for _ in range(50)]),
        }

    with running(world, directory) as one:
        rows = asyncio.run(ask(one))
        one.check()
    for name, row in rows.items():
        print(f"top {TOP}: {name:<28} {row['p50_ms']:>9.1f} ms, p99 {row['p99_ms']:.1f}, of {row['of']}", flush=True)
    return rows


def check(world: World, directory: Path, suggestions: int) -> dict[str, Any]:
    """Take pages by callers at once, from two endpoints while events come in, and look through what they were told."""
    with running(world, directory, host_delay_seconds=HOST_DELAY_SECONDS, retry_seconds=0.5) as one:
        urls = [one.endpoint(), one.endpoint()]
        one.worker()
        started = time.perf_counter()
        with Stretch(one):
            found, given_back = asyncio.run(take(urls, CONNECTIONS, suggestions, CHECK_N))
        refused, calls = (sum(asyncio.run(counted(url, name)) for url in urls) for name in (REFUSED, CALLS))
        took = time.perf_counter() - started
        one.check()
    verdict = judge(found, HOST_DELAY_SECONDS, world.read)
    verdict.given_back = given_back
    print(
        f"checked: {verdict.suggestions:,} suggestions of {verdict.distinct_pages:,} pages on {verdict.hosts:,} hosts "
        f"to {CONNECTIONS} callers of 2 endpoints in {took:.0f} s; {given_back:,} given back;\n"
        f"  {verdict.pages_again:,} times a page came again, {verdict.hosts_again:,} times a host did, at the least "
        f"{verdict.host_gap_min_s:.6f} s after the last time, {HOST_DELAY_SECONDS:g} s wanted; "
        f"{len(verdict.violations)} violations; {refused / calls:.2f} pages refused a call",
        flush=True,
    )
    for violation in verdict.violations[:10]:
        print(f"  {violation}")
    row = asdict(verdict) | {"seconds": took, "violations": len(verdict.violations), "told": verdict.violations[:10]}
    row |= {"calls": calls, "refused_pages": refused, "refused_a_call": refused / calls}
    return row | {"host_delay_seconds": HOST_DELAY_SECONDS, "callers": CONNECTIONS, "endpoints": 2}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write the JSON; exit 1 on a broken promise."""
    parser = argparse.ArgumentParser(description="The endpoint under load.")
    parser.add_argument("--quick", action="store_true", help="a small store and short stretches: does it all still run")
    parser.add_argument("--pages", type=int)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="a stretch")
    parser.add_argument("--rounds", type=int, default=3, help="of the part links")
    parser.add_argument("--suggestions", type=int, help="that are checked")
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated; writes a result only if told where")
    parser.add_argument("--directory", type=Path, help="where stores are made; on /dev/shm the disk costs nothing")
    parser.add_argument("--world", type=Path, help="a directory in which the filled store is kept for the next time")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Our processes are ended too, then.
    pages = args.pages or (50_000 if args.quick else 1_000_000)
    seconds = args.seconds or (2.0 if args.quick else 8.0)
    suggestions = args.suggestions or (5_000 if args.quick else 100_000)
    parts = args.only.split(",")
    if unknown := set(parts) - set(PARTS + MORE_PARTS):
        parser.error(f"--only: no part is called {', '.join(sorted(unknown))}")
    if "load" in parts and shutil.which("wrk") is None:
        print("no wrk on the PATH, so no load: Debian, Ubuntu: apt-get install wrk")
        parts.remove("load")
    if not open_loop.available() and (wanted := {"open", "links"} & set(parts)):
        print(open_loop.HOW_TO_GET)
        parts = [part for part in parts if part not in wanted]
    waiting = 5_000 if args.quick else 20_000
    with tempfile.TemporaryDirectory(prefix="opic-bench-", dir=args.directory) as name:
        directory = Path(name)
        kept = args.world or directory / "world"
        about_world = (pages, pages // PAGES_A_HOST, args.shards, waiting // 2, waiting)
        world = kept_world(kept, *about_world, keep_links="off")
        neighbours = {"sync_ms": sync_ms(directory), "load_average": os.getloadavg()[0]}
        print(", ".join(f"{key} {value:,}" for key, value in (world.about | neighbours).items()), flush=True)
        found = {"world": world.about, "before": neighbours, "connections": CONNECTIONS, "targets_ms": TARGETS}
        if "load" in parts:
            columns = ("asked/s", "p50 ms", "p99 ms", "max ms", "CPU ms", "events/s")
            print(f"{CONNECTIONS} connections".ljust(34), *(f"{column:>8}" for column in columns))
            found["load"] = load(world, directory, seconds)
        if "open" in parts:
            found["open"] = open_loop_load(world, directory, 2 * seconds)
        if "links" in parts:
            worlds = {
                keep: kept_world(Path(f"{kept}-links-{keep}"), *about_world, keep_links=keep, read_share=READ_SHARE)
                for keep in ("off", "on")
            }
            found["links"] = links_load(worlds, directory, 2 * seconds, args.rounds)
        if "first" in parts:
            found["first"] = first_next(world, directory)
        if "top" in parts:
            found["top"] = top(world, directory)
        if "check" in parts:
            found["check"] = check(world, directory, suggestions)
        if "peers" in parts:
            found["peers"] = beside_peers(world, directory, calls=60 if args.quick else 300)
    if args.result or (set(parts) == set(PARTS) and not args.quick):
        write_result("endpoint", found, args.result)
    print(*told(found), sep="\n")
    return 1 if found.get("check", {}).get("violations") else 0


def sync_ms(directory: Path, times: int = 50) -> float:
    """Return the median time in which the disk has what was written: the server waits for it after each step."""
    took = []
    with (directory / "probe").open("wb") as file:
        for _ in range(times):
            file.write(bytes(4096))
            file.flush()
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(1000 * (time.perf_counter() - started))
    return round(statistics.median(took), 3)


def told(found: dict[str, Any]) -> list[str]:
    """Return a sentence for each target, met or not."""
    figures = {}
    if "load" in found:
        figures |= {f"{kind} p99": found["load"]["busy"][kind]["p99_ms"] for kind in ("next", "importance")}
    if "open" in found:
        kinds = found["open"]["kinds"]
        figures |= {f"open-loop {kind} p99": kinds[kind]["p99_ms"] for kind in ("next", "importance")}
        # Not of the top, which is computed at most twice a second.
        figures["open-loop age p99"] = max(kinds[kind]["age"]["p99_ms"] for kind in ("next", "importance", "batch"))
    figures |= {name: row["max_ms"] for name, row in found.get("first", {}).items() if name in TARGETS}
    if "top" in found:
        cold = [row["p50_ms"] for name, row in found["top"].items() if name.startswith("cold")]
        figures |= {"top cold": max(cold), "top warm": found["top"]["warm"]["p50_ms"]}
    return [
        f"{name}: {figure:,.1f} ms, {TARGETS[name]:g} ms wanted: {'met' if figure <= TARGETS[name] else 'not met'}"
        for name, figure in figures.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
