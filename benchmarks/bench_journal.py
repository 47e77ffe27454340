"""What does an event of 40 links cost, how flat is that in the known pages, and whom does ingest keep waiting?

Contenders take turns in one run on the same bytes, each a process with a server of its own: this checkout, the checkout
given by `--before` (a worktree of another commit, with its own .venv), and the implementation on redis-py
(`baseline.py`). Kinds of events: all links known ("warm"), one in ten new, seven in ten new. Pages become known by
seeds, straight through the writer. By default the events are then appended to the store's log, and the worker's own
loop reads them: reading the log is part of every figure. `--no-through-log` hands them to the writer from memory,
2,000 records a call, as a Kafka consumer does. Appending is never timed.

Server CPU is that of the main thread; the result file has that of the whole process as well. Bytes are those that the
append-only file grew by; the server does not rewrite it meanwhile. A journal has a budget, and checkpoints cost nothing
until it fills: for the bytes and the CPU of a store that has run for a while, `--warm-up 300000`.

With `--latency` another client sends GETs of a plain key while the worker runs at full speed and at 2,000 events/s, and
two followers ask for the importance of a page 20 times a second each. `--during COMMAND` runs a shell command
meanwhile, with {store} replaced by the URL of the server and {scratch} by a new directory: a backup, a checkpoint.
With `--restart` the server is restarted from a rewritten file, and a new writer takes the store over.

No speed is reported before the books of all contenders balance and all know the same pages.

    python benchmarks/bench_journal.py --before ../before --pages 100000,1000000,10000000 --inflow on,off \
        --events 5000 --rounds 7 --warm-up 20000 --restart
    python benchmarks/bench_journal.py --before ../before --pages 1000000 --latency-only --seconds 20 --kinds tenth
    python benchmarks/bench_journal.py --profile warm
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from harness import commit, write_result
from journal_driver import USED
from versions import Driver, Version, seeds, versions, write_values
from workloads import LINKS, Crawl

KINDS = {"warm": 0.0, "tenth": 0.1, "seven": 0.7}  # Share of links that are new.
POOL_EVENTS_MAX = 20_000  # Distinct events of a warm-up or a feeder; they come again after that.
FLOAT_ERROR_MAX = 1e-6
FULL_SPEED_LEAD = 4.0  # Events queued before a stretch at full speed, as a multiple of what a trial run processed.
PACED_EVENTS_PER_S = 2_000
FOLLOWERS = 2
GETS_PER_S = 500


class Contender:
    """A server with its worker, or several workers, and others that attach to it."""

    def __init__(self, version: Version, data: Path, args: argparse.Namespace, inflow: bool) -> None:
        """Start the server and the workers."""
        self.version, self.name = version, version.name
        self.drivers = [Driver(version)]
        self.worker = self.drivers[0]
        self.through_log = args.through_log
        shards = args.shards if version.engine == "store" else 1
        self.about = self.worker.ask(
            "start",
            data=str(data),
            engine=version.engine,
            rules={"inflow": inflow},
            shards=shards,
            server=args.server,
            keep_links=version.keep_links,
        )
        count = args.workers if version.engine == "store" else 1
        self.workers = [self.worker, *(self.attach() for _ in range(count - 1))]
        self.rounds: dict[str, list[dict[str, float]]] = {}

    def attach(self) -> Driver:
        """Start another process of the same version on the server."""
        driver = Driver(self.version)
        self.drivers.append(driver)
        driver.ask("attach", url=self.about["url"])
        return driver

    def load(self, file: Path) -> None:
        """Have the events of a file at hand, divided among the workers."""
        parts = len(self.workers)
        for part, worker in enumerate(self.workers):
            partition = f"events/{part}"
            worker.ask(
                "load", file=str(file), through_log=self.through_log, partition=partition, part=part, parts=parts
            )

    def go(self) -> dict[str, float]:
        """Let them take effect; return the cost an event, of all workers together."""
        for worker in self.workers:
            worker.tell("go")
        answers = [worker.hear() for worker in self.workers]
        events = sum(one["events"] for one in answers)
        cost = {name: sum(one[name] * one["events"] for one in answers) / events for name in USED}
        cost["wall_us"] = max(one["wall_us"] * one["events"] for one in answers) / events
        return cost

    def close(self) -> None:
        """End all processes, those that are attached first."""
        for driver in reversed(self.drivers):
            driver.close()


@contextmanager
def contenders(
    raced: Sequence[Version], directory: Path, args: argparse.Namespace, inflow: bool
) -> Iterator[list[Contender]]:
    """Lend each version on a new server."""
    with ExitStack() as stack:
        out = []
        for version in raced:
            data = directory / version.name
            stack.callback(shutil.rmtree, data, ignore_errors=True)
            out.append(Contender(version, data, args, inflow))
            stack.callback(out[-1].close)
        yield out


def check(racers: Sequence[Contender], minted: int, known: int) -> None:
    """End the benchmark if a contender's books don't balance, or it knows other pages."""
    for racer in racers:
        answer = racer.worker.ask("audit", minted=float(minted))
        if answer.get("off_by", 0.0) > FLOAT_ERROR_MAX or not answer.get("conserved", True):
            raise SystemExit(f"{racer.name}: not conserved: {answer}")
        if answer["known"] != known:
            raise SystemExit(f"{racer.name}: knows {answer['known']:,} pages of {known:,}")


def race(racers: list[Contender], crawl: Crawl, share: float, scratch: Path, args: argparse.Namespace) -> dict:
    """Feed all contenders the same events in turns; return the medians, and ratios as medians of the rounds' ratios."""
    first = len(crawl.known)
    pool = write_values(scratch / "events", crawl.events(min(args.warm_up, POOL_EVENTS_MAX), share))
    for _ in range(0, args.warm_up, POOL_EVENTS_MAX):
        for racer in racers:
            racer.load(pool)
            racer.go()
    rounds: dict[str, list[dict[str, float]]] = {racer.name: [] for racer in racers}
    order = list(racers)
    for _ in range(args.rounds):
        file = write_values(scratch / "events", crawl.events(args.events, share))
        for racer in order:
            racer.load(file)
            rounds[racer.name].append(racer.go())
        order.append(order.pop(0))
    check(racers, crawl.pages_at_first, len(crawl.known))
    rows: dict[str, Any] = {"pages_at_first": first, "pages_in_the_end": len(crawl.known)}
    for name, costs in rounds.items():
        row = {figure: statistics.median(cost[figure] for cost in costs) for figure in USED}
        row["events_per_s"] = statistics.median(1e6 / cost["wall_us"] for cost in costs)
        for other in ("before", "baseline"):
            if other in rounds:
                pairs = zip(rounds[other], costs, strict=True)
                row[f"ratio_to_{other}"] = statistics.median(a["wall_us"] / b["wall_us"] for a, b in pairs)
        rows[name] = row | {"rounds": [round(1e6 / cost["wall_us"]) for cost in costs]}
    return rows


def profile(racers: Sequence[Contender], crawl: Crawl, share: float, scratch: Path, args: argparse.Namespace) -> None:
    """Print where the time of each worker goes, and that of its server by command."""
    for racer in racers:
        racer.load(write_values(scratch / "events", crawl.events(args.warm_up, share)))
        racer.go()
        racer.load(write_values(scratch / "events", crawl.events(args.events, share)))
        found = racer.worker.ask("go", profile=True)
        print(f"{racer.name}\n{found['profile']}\n{'server command':<24} {'calls/event':>12} {'us/event':>9}")
        for name, row in found["by_command"].items():
            print(f"{name:<24} {row['calls']:>12.3f} {row['us']:>9.1f}")
        print("(fcall and fcall_ro hold the commands that their functions ran)")


def print_row(pages: int, inflow: bool, kind: str, name: str, row: dict[str, Any]) -> None:
    """Print one line of the table."""
    ratios = "".join(
        f"{row[key]:>8.2f}" if (key := f"ratio_to_{other}") in row else " " * 8 for other in ("before", "baseline")
    )
    print(
        f"{pages:>10,} {'on' if inflow else 'off':>6} {kind:<6} {name:<9}{row['events_per_s']:>9,.0f}{ratios}"
        f"{row['worker_cpu_us']:>10.0f}{row['server_cpu_us']:>10.1f}{row['aof_bytes']:>9,.0f}"
        f"{row['in_bytes']:>8,.0f}{row['out_bytes']:>8,.0f}{row['commands']:>9.2f}",
        flush=True,
    )


HEAD = (
    f"{'pages':>10} {'inflow':>6} {'kind':<6} {'':<9}{'events/s':>9}{'/before':>8}{'/base':>8}"
    f"{'worker us':>10}{'server us':>10}{'AOF B':>9}{'in B':>8}{'out B':>8}{'commands':>9}"
)


def speed(racers: list[Contender], crawl: Crawl, scratch: Path, args: argparse.Namespace, inflow: bool) -> list[dict]:
    """Race each kind of events on the same stores, one kind after the other."""
    out, pages = [], crawl.pages_at_first
    for kind in args.kinds:
        rows = race(racers, crawl, KINDS[kind], scratch, args)
        for racer in racers:
            print_row(pages, inflow, kind, racer.name, rows[racer.name])
        out.append({"pages": pages, "inflow": inflow, "kind": kind, "new_share": KINDS[kind], **rows})
    return out


def stretch(
    one: Contender, others: Sequence[Driver], file: Path, urls: Sequence[str], args: argparse.Namespace, rate: float
) -> dict[str, Any]:
    """Run the worker for a while, and others beside it; at full speed if the rate is 0.

    Args:
        one: its worker reads the log.
        others: a feeder, a prober, and followers.
        file: of events to feed.
        urls: to ask for.
        args: of the command.
        rate: events a second; 0 for all that the worker can.
    """
    feeder, prober, *followers = others
    if not rate:
        one.worker.ask("run", seconds=0.0)  # Leaves the worker warm.
        feeder.ask("prefeed", file=str(file), events=POOL_EVENTS_MAX)  # With fewer it would wait in the trial.
        trial = one.worker.ask("run", seconds=1.0)
        events = round(FULL_SPEED_LEAD * trial["events_per_s"] * args.seconds)
        feeder.ask("prefeed", file=str(file), events=max(events, POOL_EVENTS_MAX // 4))
    for follower in followers:
        follower.ask("follow", seconds=0.1, urls=urls)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        one.worker.tell("run", seconds=args.seconds)
        if rate:
            feeder.tell("feed", file=str(file), seconds=args.seconds, events_per_s=rate)
        prober.tell("probe", seconds=args.seconds, gets_per_s=GETS_PER_S)
        for follower in followers:
            follower.tell("follow", seconds=args.seconds, urls=urls)
        if args.during:
            command = args.during.replace("{store}", one.about["url"]).replace("{scratch}", scratch)
            path = f"{Path(one.version.python).parent}:/usr/bin:/bin"
            meanwhile = subprocess.Popen(command, shell=True, env={"PATH": path}, cwd=one.version.root)
            started = time.perf_counter()
            stack.callback(meanwhile.wait)
        row: dict[str, Any] = {"gets": prober.hear(), "importance": [follower.hear() for follower in followers]}
        if rate:
            feeder.hear()
        row |= one.worker.hear()
        if args.during:
            row["during"] = {"still_runs": meanwhile.poll() is None, "code": meanwhile.wait()}
            row["during"]["seconds"] = time.perf_counter() - started  # At least those of the stretch.
    if not rate and not row["left_waiting"]:
        raise SystemExit(f"{one.name}: the worker ran out of events: raise FULL_SPEED_LEAD")
    one.worker.ask("drop_waiting")
    return row


def latency(racers: Sequence[Contender], crawl: Crawl, scratch: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Measure GETs of another client beside each contender that has a worker's loop."""
    urls = list(islice(crawl.each_url(), 0, None, max(1, crawl.pages_at_first // 1_000)))
    file = write_values(scratch / "events", crawl.events(POOL_EVENTS_MAX // 4, KINDS[args.kinds[0]]))
    found: dict[str, Any] = {}
    print(f"{'GETs of another client':<34}{'events/s':>9}{'p50 ms':>8}{'p99 ms':>8}{'max ms':>8}   followers' p99 ms")
    for racer in racers:
        if racer.version.engine != "store":
            continue
        others = [racer.attach() for _ in range(2 + FOLLOWERS)]
        for label, rate in (("full speed", 0), (f"{PACED_EVENTS_PER_S:,} events/s", PACED_EVENTS_PER_S)):
            row = stretch(racer, others, file, urls, args, rate)
            found[f"{racer.name}, {label}"] = row
            gets, asked = row["gets"], " ".join(f"{one['p99_ms']:.1f}" for one in row["importance"])
            print(
                f"{racer.name + ', ' + label:<34}{row['events_per_s']:>9,.0f}{gets['p50_ms']:>8.2f}"
                f"{gets['p99_ms']:>8.2f}{gets['max_ms']:>8.1f}   {asked}",
                flush=True,
            )
        answer = racer.worker.ask("audit", minted=0.0)
        if not answer["conserved"]:
            raise SystemExit(f"{racer.name}: not conserved: {answer}")
    return found


def at_size(
    pages: int, inflow: bool, raced: Sequence[Version], args: argparse.Namespace, found: dict[str, Any]
) -> None:
    """Fill a server for each contender, and measure."""
    crawl = Crawl(pages)
    with tempfile.TemporaryDirectory(prefix="opic-bench-", dir=args.directory) as name:
        scratch = Path(name)
        filling = write_values(scratch / "seeds", seeds(crawl))
        with contenders(raced, scratch, args, inflow) as racers:
            for racer in racers:
                seconds = racer.worker.ask("fill", file=str(filling))["seconds"]
                row = {"pages": pages, "inflow": inflow, "name": racer.name, "pages_per_s": pages / seconds}
                found["fill"].append(row | {"server": f"{racer.about['server_version']}, {racer.about['allocator']}"})
            filling.unlink()
            check(racers, pages, pages)
            if args.profile:
                return profile(racers, crawl, KINDS[args.profile], scratch, args)
            if not args.latency_only:
                found["speed"] += speed(racers, crawl, scratch, args, inflow)
            if args.latency:
                found["latency"].append({"pages": pages, "inflow": inflow, **latency(racers, crawl, scratch, args)})
            if args.restart:
                file = write_values(scratch / "events", crawl.events(1, 0.0))
                for racer in racers:
                    if racer.version.engine == "store":
                        row = racer.worker.ask("restart", file=str(file))
                        found["restart"].append({"pages": pages, "inflow": inflow, "name": racer.name, **row})
                        print(f"{pages:>10,} {racer.name}: " + ", ".join(f"{k} {v:.2f}" for k, v in row.items()))
                check(racers, pages, len(crawl.known))


def print_flatness(rows: Sequence[dict[str, Any]], names: Iterable[str]) -> None:
    """Print how rates and the server's CPU change from the smallest crawl to the largest."""
    for name in names:
        for inflow, kind in dict.fromkeys((row["inflow"], row["kind"]) for row in rows):
            some = [row for row in rows if (row["inflow"], row["kind"]) == (inflow, kind)]
            if len(some) > 1:
                few, many = some[0][name], some[-1][name]
                print(
                    f"{name}, {kind}, in-flow {'on' if inflow else 'off'}: from {some[0]['pages']:,} to "
                    f"{some[-1]['pages']:,} pages events/s x {many['events_per_s'] / few['events_per_s']:.2f}, "
                    f"server CPU x {many['server_cpu_us'] / max(few['server_cpu_us'], 0.1):.2f}"
                )


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="What an event costs, beside another checkout and redis-py.")
    parser.add_argument("--before", type=Path, help="a checkout to compare with, set up with `make setup`")
    parser.add_argument("--pages", default="20000", help="known pages, comma-separated")
    parser.add_argument("--inflow", default="on", help="on, off, or both, comma-separated")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}, comma-separated")
    parser.add_argument("--events", type=int, default=1_000, help="a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=1_000, help="events before each kind")
    parser.add_argument("--through-log", action=argparse.BooleanOptionalAction, default=True, help="of the store")
    parser.add_argument("--no-baseline", action="store_true", help="leave redis-py out")
    parser.add_argument("--kept-links", action="store_true", help="race the versions with kept links too")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="with more than one, events do not go through the log")
    parser.add_argument("--server", help="a server program in the place of the bundled one, such as redis-server")
    parser.add_argument("--latency", action="store_true", help="measure GETs of another client")
    parser.add_argument("--latency-only", action="store_true", help="the same, and no rates")
    parser.add_argument("--seconds", type=float, default=2.0, help="a stretch of --latency")
    parser.add_argument("--during", help="shell command to run during each stretch of --latency")
    parser.add_argument("--profile", choices=sorted(KINDS), help="print where the time goes, and nothing else")
    parser.add_argument("--restart", action="store_true", help="restart the server from a rewritten file in the end")
    parser.add_argument("--directory", type=Path, help="where the servers' files go")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    args.kinds = args.kinds.split(",")
    args.latency |= args.latency_only
    args.through_log &= args.workers == 1
    if unknown := set(args.kinds) - set(KINDS):
        parser.error(f"--kinds: {', '.join(sorted(unknown))} is none of {', '.join(KINDS)}")
    return args


def main() -> int:
    """Measure, print, write the JSON."""
    args = arguments()
    baseline = not (args.no_baseline or args.latency_only)
    raced = versions(args.before, baseline=baseline, kept_links=args.kept_links)
    how = "through the log" if args.through_log else "from memory"
    print(f"events of {LINKS} links, {how}; shards {args.shards}, workers {args.workers}; costs an event\n{HEAD}")
    found: dict[str, Any] = {"links": LINKS, "through_log": args.through_log, "shards": args.shards}
    found["commits"] = {version.name: commit(version.root) for version in raced}
    found |= {"workers": args.workers, "fill": [], "speed": [], "latency": [], "restart": []}
    for size in map(int, args.pages.split(",")):
        for inflow in args.inflow.split(","):
            at_size(size, inflow == "on", raced, args, found)
    if args.profile:
        return 0
    print_flatness(found["speed"], [version.name for version in raced])
    for row in found["fill"]:
        print(f"filled {row['pages']:,} pages, {row['name']}: {row['pages_per_s']:,.0f} a second")
    write_result("journal", found, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
