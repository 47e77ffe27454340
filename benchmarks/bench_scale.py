"""Does an event cost more when more pages are known, and how long does the server take to start again?

The same mix of events at each size: 40 links, one in ten to a page never seen before, targets drawn over all known
pages. The worker has seen them all before, as far as it remembers (a million raw links). Then the embedded server is
stopped and started: from the commands in its append-only file, and once more after the file was rewritten.

    python benchmarks/bench_scale.py --sizes 10000,100000,1000000,10000000
"""

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import Contender, embedded_server, median_cost, open_store, write_result
from workloads import LINKS, Crawl

from opic.store import connect

SIZES = "10000,100000"
NEW_SHARE = 0.1
WARM_UP_EVENTS = 300
REWRITE_SECONDS_MAX = 600


def restart(contender: Contender) -> float:
    """Stop the server and start it; return the seconds from the start to the first PONG, to 20 ms."""
    server = contender.server
    process = server.process
    assert process is not None
    process.terminate()
    process.wait()
    started = time.perf_counter()
    server.start_server()
    return time.perf_counter() - started


def rewrite(contender: Contender) -> None:
    """Have the append-only file rewritten, and wait."""
    with connect(contender.server.url) as client:
        client.bgrewriteaof()
        deadline = time.monotonic() + REWRITE_SECONDS_MAX
        while True:
            info = client.info("persistence")
            if not info["aof_rewrite_in_progress"] and not info["aof_rewrite_scheduled"]:
                return
            if time.monotonic() > deadline:
                raise SystemExit("the append-only file was not rewritten in time")
            time.sleep(0.02)


def measure(pages: int, events: int, rounds: int) -> dict[str, Any]:
    """Fill a store, let events take effect, restart it."""
    crawl = Crawl(pages)
    with embedded_server() as server:
        contender = Contender(f"{pages:,}", server, open_store)
        filling = time.perf_counter()
        contender.seed(crawl.urls())
        filled = time.perf_counter() - filling
        contender.feed(crawl.events(WARM_UP_EVENTS, NEW_SHARE))
        costs = [contender.feed(crawl.events(events, NEW_SHARE)) for _ in range(rounds)]

        def check(when: str) -> None:
            audit, live = contender.engine.audit(), contender.engine.shard.books().live
            if not audit.conserved or live != len(crawl.known):
                raise SystemExit(f"{when}: {live:,} of {len(crawl.known):,} pages are known, {audit}")

        check("before the restart")
        aof_bytes = contender.aof_bytes()
        from_commands = restart(contender)
        check("after the restart")
        rewrite(contender)
        rewritten_bytes = contender.aof_bytes()
        from_rewritten = restart(contender)
        check("after the restart from the rewritten file")
    median = median_cost(costs)
    return asdict(median) | {
        "pages": pages,
        "events_per_s": median.rate,
        "pages_filled_per_s": pages / filled,
        "aof_mb": aof_bytes / 1e6,
        "restart_s": from_commands,
        "rewritten_mb": rewritten_bytes / 1e6,
        "restart_rewritten_s": from_rewritten,
    }


def main() -> int:
    """Measure each size, print, write the JSON."""
    parser = argparse.ArgumentParser(description="Cost of an event, and time of a restart, by known pages.")
    parser.add_argument("--sizes", default=SIZES, help="known pages, comma-separated")
    parser.add_argument("--events", type=int, default=1_000, help="a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    print(
        f"an event has {LINKS} links, {NEW_SHARE:.0%} to new pages\n{'pages':>10} {'events/s':>9} {'wall us':>8} "
        f"{'worker us':>10} {'server us':>10} {'AOF MB':>7} {'start s':>8} {'rewritten MB':>13} {'start s':>8}"
    )
    rows = []
    for size in map(int, args.sizes.split(",")):
        row = measure(size, args.events, args.rounds)
        rows.append(row)
        print(
            f"{size:>10,} {row['events_per_s']:>9,.0f} {row['wall_us']:>8.0f} {row['worker_cpu_us']:>10.0f} "
            f"{row['server_cpu_us']:>10.0f} {row['aof_mb']:>7.0f} {row['restart_s']:>8.2f} "
            f"{row['rewritten_mb']:>13.1f} {row['restart_rewritten_s']:>8.2f}",
            flush=True,
        )
    for figure in ("wall_us", "worker_cpu_us", "server_cpu_us"):
        print(f"{figure}: {rows[-1][figure] / rows[0][figure]:.2f} times from the smallest to the largest")
    write_result("scale", {"links": LINKS, "new_share": NEW_SHARE, "sizes": rows}, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
