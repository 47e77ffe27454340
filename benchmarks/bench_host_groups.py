"""What does a delay that hosts of one address share cost a call for ten pages?  Pass --pages 200000 to measure.

Stores of two shards are filled with N pages on N/10 hosts, whose addresses are reported as the rows say. Endpoints ask
by turns, in random order, so that what else runs on the machine meets all alike. Each call is followed by a release of
its pages. A host rests for a second.

  host        OPIC_POLITENESS_BY=host: each host has its own delay
  none        OPIC_POLITENESS_BY=address, and no event has named an address
  alone       each host has an address of its own
  shared      ten hosts share each address
  network     all hosts but 100 share one address; the calls are for pages of all

A call takes wall time, and its endpoint CPU time. `calls` is how often the server's functions are called in it, and
`trips` how many times it waits for the server.

Exits 1 when a call gets two pages of one address, or `none` calls the server once more than `host`.
"""

import argparse
import random
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import RECORD_TIME_US, embedded_server, seed_records, write_result

from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import Writer
from opic.model.events import CrawlEvent, Record, encode_crawl_event
from opic.replica import Crawl
from opic.store import connect
from opic.urls.canonical import host_of

PAGES, PAGES_A_HOST, NEXT, ROUNDS, SHARDS = 20_000, 10, 10, 60, 2
DELAY_SECONDS, FEW = 1.0, 100
WARM_CALLS, SEED = 3, 2007


def address(world: str, host: int) -> str | None:
    """Return the address of a host; None if none is reported."""
    if world == "alone" or (world == "network" and host < FEW):
        return f"2001:db8::{host:x}"
    group = {"shared": host // 10, "network": 0}.get(world)
    return None if group is None else f"10.{group >> 16}.{group >> 8 & 255}.{group & 255}"


class World:
    """A crawl, an endpoint of it, and what its calls took."""

    def __init__(self, client: Any, name: str, pages: int) -> None:
        crawl = Crawl.open(client, name, {}, shards=SHARDS)
        writer, hosts = Writer(crawl), pages // PAGES_A_HOST
        self.addresses = {f"www.h{host}.example": address(name, host) for host in range(hosts)}
        urls = [f"https://www.h{page % hosts}.example/{page}.html" for page in range(pages)]
        writer.apply("seeds/0", seed_records(urls))
        events = [
            CrawlEvent(url=f"https://{host}/", status=404, addresses=[named])
            for host, named in self.addresses.items()
            if named is not None
        ]
        writer.apply(
            "events/0", [Record(i, RECORD_TIME_US, encode_crawl_event(event)) for i, event in enumerate(events)]
        )
        by = "host" if name == "host" else "address"
        self.frontier = Frontier(crawl, PolitenessSettings(host_delay_seconds=DELAY_SECONDS, by=by))
        self._client, self.trips = client, 0
        ask = crawl.ask

        def counted(commands: Any) -> Any:
            self.trips += 1
            return ask(commands)

        crawl.ask = counted  # type: ignore[method-assign]
        self.wall_ms, self.cpu_ms, self.pages = list[float](), list[float](), 0
        self.function_calls = 0

    def call(self, *, counts: bool) -> None:
        """Ask for pages once, and give them back."""
        before, trips = self._functions(), self.trips
        started, cpu = time.perf_counter(), time.process_time()
        found = self.frontier.next(NEXT)
        took = (time.perf_counter() - started) * 1_000, (time.process_time() - cpu) * 1_000
        if counts:
            self.wall_ms.append(took[0])
            self.cpu_ms.append(took[1])
            self.pages += len(found.pages)
            self.function_calls += self._functions() - before
        else:
            self.trips = trips
        named = [self.addresses[host_of(page.url)] for page in found.pages]
        if len(set(named) - {None}) != len(named) - named.count(None):
            raise SystemExit(f"FAIL: one call got two pages of one address: {named}")
        trips = self.trips
        self.frontier.release([page.lease for page in found.pages])
        self.trips = trips

    def _functions(self) -> int:
        stats = self._client.info("commandstats")
        return sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("fcall", "fcall_ro"))

    def row(self) -> dict[str, float]:
        """Return medians of its calls."""
        calls = len(self.wall_ms)
        return {
            "wall_ms": round(statistics.median(self.wall_ms), 2),
            "cpu_ms": round(statistics.median(self.cpu_ms), 2),
            "pages_a_call": round(self.pages / calls, 2),
            "calls": round(self.function_calls / calls, 2),
            "trips": round(self.trips / calls, 2),
        }


def main() -> int:
    """Fill the stores, ask them in turns, write the JSON."""
    parser = argparse.ArgumentParser(description="Cost of delays that hosts of one address share.")
    parser.add_argument("--pages", type=int, default=PAGES, help="pages of each store")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="calls of each store")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    with ExitStack() as stack:
        server = stack.enter_context(embedded_server())
        client = stack.enter_context(connect(server.url))
        worlds = {name: World(client, name, args.pages) for name in ("host", "none", "alone", "shared", "network")}
        order = random.Random(SEED)
        for counts in [False] * WARM_CALLS + [True] * args.rounds:
            for world in order.sample(list(worlds.values()), len(worlds)):
                world.call(counts=counts)
    rows = {name: world.row() for name, world in worlds.items()}
    if rows["none"]["calls"] > rows["host"]["calls"] or rows["none"]["trips"] > rows["host"]["trips"]:
        raise SystemExit(f"FAIL: without addresses the server is called more often: {rows}")
    print(f"{args.pages:,} pages {'wall ms':>12} {'CPU ms':>8} {'pages':>8} {'calls':>8} {'trips':>8}")
    for name, row in rows.items():
        figures = " ".join(f"{value:>8.2f}" for value in row.values())
        print(f"  {name:<16} {figures}")
    about = {"pages": args.pages, "rounds": args.rounds, "next": NEXT, "shards": SHARDS, "rows": rows}
    write_result("host-groups", about, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
