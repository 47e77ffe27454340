"""Is the cost of an event flat in the number of known pages: traffic with the server, commands, CPU of both sides?

The same mix at each size: 40 links, one in ten to a page never seen before, the others drawn over all known pages with
the long tail of Zipf's law. The worker's cache of links has room for 4 million; what it has not, the server is asked
for. So beside the totals stands where the server's time goes, by the command that spent it: how many calls an event,
and how long each. What grows in number, more of the store is asked for; what grows in time, the same costs more.

With --why the same events also come in larger steps, and to a worker that has forgotten most links; with --shards the
same pages are spread over more shards: what makes the difference is the cause.

    python benchmarks/bench_cost.py --large            10^7 pages as well: ten minutes, 6 GB
    python benchmarks/bench_cost.py --sizes 10000000 --shards 1,16 --why
"""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench_shards import Contender
from harness import embedded_server, write_result
from workloads import LINKS, Crawl

import opic.embedded
import opic.store.batch
from opic.store.keys import BUCKET_LOAD
from opic.store.links import LinkCache

SIZES = (100_000, 1_000_000)
LARGE = 10_000_000
NEW_SHARE = 0.1
SEEDS_A_TURN = 500_000
WARM_UP_EVENTS = 1_000
LARGER_STEP = 4  # Times LINKS_A_STEP_MAX.
SMALL_CACHE = 1 << 14  # Sets, of 4 places: a worker that knows next to no link.
COMMANDS = 8  # Of the server's own account, the dearest.


def measure(one: Contender, crawl: Crawl, events: int, rounds: int) -> dict[str, Any]:
    """Let events take effect; return the medians of their costs, and the server's account of all of them."""
    one.feed(crawl.events(WARM_UP_EVENTS, NEW_SHARE))
    one.client.config_resetstat()
    costs, before = [], one.client.info("stats")
    for _ in range(rounds):
        costs.append(one.feed(crawl.events(events, NEW_SHARE)))
    stats, commands = one.client.info("stats"), one.client.info("commandstats")
    count = events * rounds

    def counted(name: str) -> float:
        return float(stats[name] - before[name]) / count

    dearest = sorted(commands.items(), key=lambda item: -item[1]["usec"])
    return {
        "shards": one.shards,
        "events_per_s": statistics.median(cost.rate for cost in costs),
        "worker_us": statistics.median(cost.worker_cpu_us for cost in costs),
        "server_us": statistics.median(cost.server_cpu_us for cost in costs),
        "aof_bytes": statistics.median(cost.aof_bytes for cost in costs),
        "in_bytes": counted("total_net_input_bytes"),
        "out_bytes": counted("total_net_output_bytes"),
        "commands": counted("total_commands_processed"),
        "splits_due": splits_due(one) / sum(store.shard.directory.buckets for store in one.writer.stores),
        "by_command": {
            name.removeprefix("cmdstat_"): {"calls": row["calls"] / count, "us": row["usec"] / count}
            for name, row in dearest[:COMMANDS]
        },
    }


def splits_due(one: Contender) -> int:
    """Return how many buckets of fingerprints are fuller than they should be: who seeds fast may leave some."""
    found = [one.client.hmget(shard.keys.ids, "next", "buckets") for shard in one.crawl.shards]
    return sum(max(0, -(-int(ids) // BUCKET_LOAD) - int(buckets)) for ids, buckets in found)


def fill(one: Contender, crawl: Crawl) -> None:
    """Make pages known, in pieces."""
    urls = crawl.urls()
    for at in range(0, len(urls), SEEDS_A_TURN):
        one.seed(urls[at : at + SEEDS_A_TURN])


def at_size(
    pages: int, shards: Sequence[int], events: int, rounds: int, *, why: bool, server: str | None
) -> list[dict[str, Any]]:
    """Fill a store for each number of shards, and measure; with `why` also what would change it."""
    rows = []
    for count in shards:
        with ExitStack() as stack:
            if server is not None:
                stack.enter_context(patch.object(opic.embedded, "get_binary_path", lambda: server))
            crawl, one = Crawl(pages), Contender(count, stack.enter_context(embedded_server()))
            started = time.perf_counter()
            fill(one, crawl)
            filled = pages / (time.perf_counter() - started)
            row = measure(one, crawl, events, rounds) | {"variant": "as it is"}
            memory = one.client.info("memory")
            row |= {
                "pages_filled_per_s": filled,
                "bytes_a_page": memory["used_memory"] / len(crawl.known),
                "resident_bytes_a_page": memory["used_memory_rss"] / len(crawl.known),
            }
            found = [row]
            if why:
                larger = LARGER_STEP * opic.store.batch.LINKS_A_STEP_MAX
                with patch.object(opic.store.batch, "LINKS_A_STEP_MAX", larger):
                    found.append(measure(one, crawl, events, rounds) | {"variant": f"{larger:,} links a step"})
                for store in one.writer.stores:
                    store.links = LinkCache(SMALL_CACHE // one.shards)
                found.append(measure(one, crawl, events, rounds) | {"variant": "links forgotten"})
            one.check(len(crawl.known))
            for row in found:
                row |= {"pages": pages, "allocator": memory["mem_allocator"]}
                print_row(row)
            rows += found
    return rows


def print_row(row: Mapping[str, Any]) -> None:
    """Print one line of the table, and the dearest commands below it."""
    print(
        f"{row['pages']:>10,} {row['shards']:>6} {row['variant']:<20} {row['events_per_s']:>8,.0f} "
        f"{row['worker_us']:>9.0f} {row['server_us']:>9.0f} {row['in_bytes']:>8,.0f} {row['out_bytes']:>8,.0f} "
        f"{row['commands']:>8.1f} {row['aof_bytes']:>7,.0f}"
    )
    told = [f"{name} {one['calls']:.2f} x {one['us'] / one['calls']:.2f}" for name, one in row["by_command"].items()]
    print(
        f"{'':>18}calls an event x us: {', '.join(told)}; {row['splits_due']:.0%} of splits due, {row['allocator']}",
        flush=True,
    )


def main() -> int:
    """Measure each size, print, write the JSON."""
    parser = argparse.ArgumentParser(description="What an event costs, by known pages.")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="known pages, comma-separated")
    parser.add_argument("--large", action="store_true", help=f"{LARGE:,} pages as well")
    parser.add_argument("--shards", default="1", help="comma-separated")
    parser.add_argument(
        "--why", action="store_true", help="also with larger steps, and by a worker that forgot its links"
    )
    parser.add_argument("--server", help="a server program in the place of the bundled one, such as redis-server")
    parser.add_argument("--events", type=int, default=3_000, help="a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")] + ([LARGE] if args.large else [])
    print(
        f"an event has {LINKS} links, {NEW_SHARE:.0%} to new pages; us, bytes and commands an event\n"
        f"{'pages':>10} {'shards':>6} {'':<20} {'events/s':>8} {'worker us':>9} {'server us':>9} {'in B':>8} "
        f"{'out B':>8} {'commands':>8} {'AOF B':>7}"
    )
    rows = []
    for size in sizes:
        rows += at_size(
            size, [int(n) for n in args.shards.split(",")], args.events, args.rounds, why=args.why, server=args.server
        )
    for figure in ("worker_us", "server_us", "in_bytes", "out_bytes", "commands"):
        print(f"{figure}: {rows[-1][figure] / rows[0][figure]:.2f} times from the first row to the last")
    write_result("cost", {"links": LINKS, "new_share": NEW_SHARE, "rows": rows}, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
