"""What does a call for ten pages cost in each mode?  Pass --pages 10000,100000,1000000 to measure.

A store is filled by its own worker: N seeds, one in a thousand of them trusted, then reads of a third as many pages, at
random, each with eight links, one of them to a new page, so that nearly all pages never read hold some trust. Then, in
one process and by turns, a call of the frontier in each mode and by each policy. Mode `discover` without one is by
cash. A cost is CPU time of this process; that of the store's server is not in it. Each is printed as a ratio to mode
`any` too, and those of mode `discover` as a ratio to the one by cash.

"quiet": nothing happens between two calls. "events": before each round of calls some pages are read, so that the
orders change, and the trust flows on; `mean` has in it what that costs every so often, `median` has not. The first
call of a round, in mode `any`, then updates the orders for all; so ratios are fair with "quiet" only.

Exits 1 when an answer is wrong: most cash first, or most in-links, or most trust, or a page that the mode does not
offer.
"""

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from harness import RECORD_TIME_US, SEEDS_A_RECORD, embedded_server, write_result

from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import ShardWriter
from opic.messages.frontier import NextPages
from opic.model.cash import Flag
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.query.coverage import CoverageQuery
from opic.query.kept_links import KeptLinks
from opic.query.page_flows import PageFlows
from opic.replica import Crawl
from opic.store import Shard, connect

PAGES = (2_000, 10_000)
PAGES_A_HOST = 20
TRUSTED_SHARE = 1_000  # One page in a thousand is trusted,
READ_SHARE = 3  # and one in three is read.
LINKS, NEXT = 8, 10  # The last link of a page leads to a new one.
EVENTS_A_CALL, EVENTS_A_ROUND = 200, 20
ROUNDS = 40
SEED, CRAWL = 2007, "bench"
ASKED: Mapping[str, Mapping[str, Any]] = {
    "any": {},
    "discover": {"mode": "discover"},
    "discover, GAI": {"mode": "discover", "policy": "GAI"},
    "discover, AI": {"mode": "discover", "policy": "AI"},
    "refresh": {"mode": "refresh"},
    "refresh, U": {"mode": "refresh", "policy": "U"},
    "refresh, OR": {"mode": "refresh", "policy": "OR"},
    "refresh, YR": {"mode": "refresh", "policy": "YR"},
    "refresh, YRU": {"mode": "refresh", "policy": "YRU"},
    "coverage": {"mode": "coverage"},
}


class Filled:
    """A store with its worker, which reads pages at random, and an endpoint's replica that follows."""

    def __init__(self, shard: Shard, pages: int) -> None:
        self.writer, self._rng, self._offset = ShardWriter(shard), random.Random(SEED), 0
        self.crawl = Crawl.open(shard.client, CRAWL, create=False, yields=True)
        self.links: dict[str, list[str]] = {}  # Of each page, as last read.
        self.urls = [f"https://www.h{page // PAGES_A_HOST}.example/{page}.html" for page in range(pages)]
        self._rng.shuffle(self.urls)
        trusted = pages // TRUSTED_SHARE
        lists = [encode_seeds(self.urls[:trusted], trust=1.0)]
        lists += [encode_seeds(self.urls[at : at + SEEDS_A_RECORD]) for at in range(trusted, pages, SEEDS_A_RECORD)]
        self.writer.apply("seeds/0", [Record(i, RECORD_TIME_US, one, "seeds") for i, one in enumerate(lists)])
        for _ in range(0, pages // READ_SHARE, EVENTS_A_CALL):
            self.read(EVENTS_A_CALL)
        self.writer.checkpoint()

    def read(self, count: int) -> None:
        """Let some reads take effect."""
        records = []
        for offset in range(self._offset, self._offset + count):
            page = self._rng.randrange(len(self.urls))
            new = f"https://www.h{page // PAGES_A_HOST}.example/new/{offset}.html"
            event = CrawlEvent(url=self.urls[page], links=[*self._rng.sample(self.urls, LINKS - 1), new])
            self.links[event.url] = event.links
            records.append(Record(offset, time.time_ns() // 1000, encode_crawl_event(event)))
        self.writer.apply("fill/0", records)
        self._offset += count
        self.crawl.follow()  # Every call has to; here none of them is charged with it.


def check(name: str, found: NextPages, filled: Filled, coverage: CoverageQuery) -> None:
    """Compare the first answer of a mode with a plain sort of all pages."""
    crawl = filled.crawl
    replica, mode = crawl.replicas[0], ASKED[name].get("mode", "any")
    urls = [page.url for page in found.pages]
    places = [place[1] for place in crawl.ids_of(urls) if place is not None]
    opened = (replica.state & Flag.OPEN) != 0
    sides = {"any": opened | True, "refresh": opened}
    fit = sides.get(mode, ~opened)
    if len(urls) != NEXT or not fit[places].all():
        raise SystemExit(f"FAIL: {name} answered with {urls}")
    if ASKED[name].get("policy") == "GAI":
        counts = Counter(to for of, links in filled.links.items() for to in set(links) - {of})
        best_counts = sorted((count for url, count in counts.items() if url not in filled.links), reverse=True)[:NEXT]
        if [counts[url] for url in urls] != best_counts:
            raise SystemExit(f"FAIL: {name} answered with {urls}, the most in-links are {best_counts}")
    elif "policy" not in ASKED[name]:
        keys = coverage.now().frontier_trust[0] if mode == "coverage" else replica.cash()
        best = np.sort(keys[fit])[::-1][:NEXT]
        if not np.allclose(keys[places], best, rtol=1e-9):
            raise SystemExit(f"FAIL: {name} answered with {keys[places]}, the best are {best}")


def measure(shard: Shard, pages: int, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return CPU milliseconds a call by state and mode, checked."""
    filled = Filled(shard, pages)
    crawl = filled.crawl
    kept = KeptLinks(crawl)
    coverage = CoverageQuery(PageFlows(kept))
    frontier = Frontier(crawl, PolitenessSettings(host_delay_seconds=0.0), coverage=coverage, links=kept)
    for name, terms in ASKED.items():  # The first calls load the replica, the orders, the links.
        found = frontier.next(NEXT, **terms)
        check(name, found, filled, coverage)
        frontier.release([page.lease for page in found.pages])
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for state in ("quiet", "events"):
        took: dict[str, list[float]] = {name: [] for name in ASKED}
        for _ in range(rounds):
            if state == "events":
                filled.read(EVENTS_A_ROUND)
            for name, terms in ASKED.items():
                started = time.process_time()
                found = frontier.next(NEXT, **terms)
                took[name].append((time.process_time() - started) * 1000)
                if len(found.pages) != NEXT:
                    raise SystemExit(f"FAIL: {name} answered with {len(found.pages)} pages")
                frontier.release([page.lease for page in found.pages])
        rows[state] = {name: summary(some, took["any"]) for name, some in took.items()}
        for name, row in rows[state].items():
            if ASKED[name].get("mode") == "discover":
                row["to_cash"] = round(statistics.median(took[name]) / statistics.median(took["discover"]), 2)
    return rows


def summary(some: list[float], peer: list[float]) -> dict[str, float]:
    """Return the median and the mean of times in milliseconds, and the median as a ratio to a peer's."""
    median = statistics.median(some)
    return {
        "median_ms": round(median, 3),
        "mean_ms": round(statistics.fmean(some), 3),
        "ratio": round(median / statistics.median(peer), 2),
    }


def main() -> int:
    """Fill a store of each size, ask it, write the JSON."""
    parser = argparse.ArgumentParser(description="CPU time of a call for the next pages, by mode.")
    parser.add_argument("--pages", default=",".join(map(str, PAGES)), help="sizes, with commas between")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="calls of each mode, in each state")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    sizes: dict[str, Any] = {}
    for pages in map(int, args.pages.split(",")):
        with ExitStack() as stack:
            server = stack.enter_context(embedded_server())
            client = stack.enter_context(connect(server.url))
            rows = measure(Shard.open(client, CRAWL), pages, args.rounds)
        sizes[str(pages)] = rows
        for state, by_mode in rows.items():
            print(f"\n{pages:,} pages, {state:<24} {'median ms':>10} {'mean ms':>10} {'to any':>8}")
            for name, row in by_mode.items():
                figures = f"{row['median_ms']:>10.3f} {row['mean_ms']:>10.3f} {row['ratio']:>7.2f}x"
                beside = f", {row['to_cash']:.2f}x by cash" if "to_cash" in row else ""
                print(f"  {name:<38} {figures}{beside}", flush=True)
    about = {"next": NEXT, "rounds": args.rounds, "events_a_round": EVENTS_A_ROUND, "sizes": sizes}
    write_result("next-modes", about, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
