"""What do kept links take in the store? What do in-links, link scores and choices by recrawl policies cost an endpoint?

One shard that keeps links, filled by its own worker: every page is read once and links to 40 pages at random. Then one
page in a hundred is read again and has four new links, which gives it a link score. Every answer is compared with that
of a plain dict before a time counts. "cold" reads all links from the store. The peer of a policy's choice is U, which
needs nothing that is kept. Times are of the endpoint's CPU, as other work may run on the machine. --scan fills the flat
array of links alone, without a store, to time one scan of more links.

The store's memory is counted in one shard, where all links stay within it, and with --shards in as many, where most
lead to others. "take over" is what a new worker does: it loads the shard, and reads which segment has the links of each
page.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from harness import RECORD_TIME_US, embedded_server, seed_records, write_result

from opic.frontier import Frontier, PolitenessSettings
from opic.frontier.requests import PagesRequest
from opic.graph.link_pool import LinkPool
from opic.ingest import ShardWriter, Writer
from opic.model.events import CrawlEvent, encode_crawl_event
from opic.model.events import Record as LogRecord
from opic.query.inlinks import inlinks
from opic.query.kept_links import KeptLinks
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.replica.stored_links import read_list
from opic.store import Shard, connect
from opic.store.connection import Client

PAGES = 100_000
LINKS, NEW_LINKS = 40, 4
PAGES_A_HOST = 20
AGAIN = 100  # One page in a hundred is read a second time.
EVENTS_A_CALL = 200
ASKED, CHOICES, NEXT = 20, 50, 10
SEED = 20080415


class Stored:
    """What kept links take in the store."""

    def __init__(self, crawl: Crawl) -> None:
        """Read it, once all links are in segments."""
        client, pages, links = crawl.client, crawl.totals().live, crawl.totals().links
        lists = [read_list(client, shard.keys) for shard in crawl.shards]
        size = sum(int(client.memory_usage(shard.keys.link_segments, samples=0) or 0) for shard in crawl.shards)
        self.rows = {
            "known pages": pages,
            "links": links,
            "segments": sum(len(one.live) for one in lists),
            "bytes a link": round(size / links, 2),
            "bytes of links a page": round(size / pages, 1),
            "all bytes a page": round(client.info("memory")["used_memory"] / pages, 1),
        }
        print("".join(f"{name:<40} {value:>10}\n" for name, value in self.rows.items()), end="", flush=True)


class Web:
    """The pages and their links, by number."""

    def __init__(self, pages: int) -> None:
        self.rng = random.Random(SEED)
        self.urls = [f"https://www.h{page // PAGES_A_HOST}.example/articles/{page}.html" for page in range(pages)]
        self.links = [self.others(page, LINKS) for page in range(pages)]

    def others(self, page: int, count: int) -> list[int]:
        """Return other pages at random."""
        return [to for to in self.rng.sample(range(len(self.urls)), count) if to != page]

    def fill(self, writer: Writer) -> None:
        """Make all pages known and read each once."""
        writer.apply("seeds/0", seed_records(self.urls))  # So ids are the numbers.
        for at in range(0, len(self.urls), EVENTS_A_CALL):
            writer.apply("fill/0", self.read(list(range(at, min(at + EVENTS_A_CALL, len(self.urls)))), at))
        writer.drain()
        for store in writer.stores:
            store.checkpoint()

    def read(self, pages: list[int], offset: int) -> list[LogRecord]:
        """Return the records of reads."""
        events = [CrawlEvent(self.urls[page], [self.urls[to] for to in self.links[page]]) for page in pages]
        return [LogRecord(offset + nth, RECORD_TIME_US, encode_crawl_event(event)) for nth, event in enumerate(events)]


def fill(writer: ShardWriter, web: Web, pages: list[int], offset: int = 0) -> None:
    """Read pages, in order."""
    for at in range(0, len(pages), EVENTS_A_CALL):
        writer.apply("fill/0", web.read(pages[at : at + EVENTS_A_CALL], offset + at))


def timed(rows: dict[str, float], name: str, asks: list[Callable[[], object]]) -> list[object]:
    """Ask, keep the median of the CPU times in milliseconds, and return the answers."""
    took, answers = [], []
    for ask in asks:
        began = time.process_time()
        answers.append(ask())
        took.append((time.process_time() - began) * 1000)
    rows[name] = round(statistics.median(took), 2)
    print(f"{name:<40} {rows[name]:>10.2f}", flush=True)
    return answers


def measure(shard: Shard, pages: int) -> tuple[dict[str, float], dict[str, float]]:
    """Fill the store, ask, compare; return times in milliseconds, and what the links take in the store."""
    web, rows, crawl = Web(pages), dict[str, float](), Crawl([shard])
    web.fill(Writer(crawl))
    writer, stored = ShardWriter(shard), Stored(crawl).rows
    take_over(shard, rows)
    crawl.follow()
    kept, query = KeptLinks(crawl), Query(crawl, Snapshots(crawl))
    print(f"{pages:,} pages with {LINKS} links\n{'question':<40} {'median ms':>10}")

    def in_links(page: int) -> Callable[[], object]:
        return lambda: inlinks(query, kept, web.urls[page], 1_000)

    timed(rows, "in-links cold", [in_links(0)])
    asked = web.rng.sample(range(pages), ASKED)
    found = timed(rows, "in-links warm", [in_links(page) for page in asked])
    for page, answer in zip(asked, found, strict=True):
        assert isinstance(answer, dict)
        assert answer["inlinks"] == [web.urls[of] for of in range(pages) if page in web.links[of]]
    timed(rows, "first link scores", [kept.scores])

    counts = [0] * pages
    for links in web.links:
        for to in links:
            counts[to] += 1
    again, added = sorted(web.rng.sample(range(pages), max(pages // AGAIN, 1))), dict[int, list[int]]()
    for page in again:
        new = [to for to in web.others(page, 2 * NEW_LINKS) if to not in web.links[page]][:NEW_LINKS]
        web.links[page] += new
        for to in new:
            counts[to] += 1
        added[page] = new
    expected = {page: sum(counts[to] for to in new) for page, new in added.items()}
    fill(writer, web, again, pages)
    rows["pages read again"] = len(again)
    scores = timed(rows, "link scores after these reads", [kept.scores])[0]
    ids, values = scores.ids[0].tolist(), scores.scores[0].tolist()  # type: ignore[attr-defined]
    assert dict(zip(ids, values, strict=True)) == expected

    frontier = Frontier(crawl, PolitenessSettings(host_delay_seconds=1.0), links=kept)
    for policy in ("U", "LDU"):
        request = PagesRequest.of(NEXT, 1.0, mode="refresh", policy=policy)
        frontier._scheduler.peek(request)
        looks = [lambda r=request: frontier._scheduler.peek(r).places] * CHOICES
        picked = timed(rows, f"choice of {NEXT} by {policy}", looks)
        assert all(len(set(choice)) == NEXT for choice in picked)  # type: ignore[arg-type]
    best = max(expected, key=lambda page: (expected[page], -page))
    # One page of a host comes at a time: half of the choices may begin with another of its host, drawn alike.
    rivals = {(0, page) for page in range(pages) if page // PAGES_A_HOST == best // PAGES_A_HOST and page != best}
    free = [choice for choice in picked if rivals.isdisjoint(choice)]  # type: ignore[arg-type]
    assert sum((0, best) in choice for choice in free) > len(free) * 0.9  # type: ignore[operator]
    assert len(free) > CHOICES * 0.1
    return rows, stored


def across(client: Client, pages: int, shards: int) -> dict[str, float]:
    """Fill a crawl of many shards; return what its links take."""
    crawl = Crawl.open(client, "across", shards=shards, keep_links=True)
    Web(pages).fill(Writer(crawl))
    rows = Stored(crawl).rows
    del rows["all bytes a page"]  # The other crawl's too.
    return rows


def take_over(shard: Shard, rows: dict[str, float]) -> None:
    """Load the shard as a new worker does."""
    writer = ShardWriter(shard)
    timed(rows, "take over: load", [writer.follower.load])
    timed(rows, "take over: segments of pages", [writer.checkpointer.links._learn])


def scan(pages: int) -> dict[str, float]:
    """Return the time of one search of the links of pages, which it compares with a search of the rows."""
    rng, pool, rows = np.random.default_rng(SEED), LinkPool(), dict[str, float]()
    links = rng.integers(0, pages, (pages, LINKS), dtype=np.uint32)
    for page, row in enumerate(links):
        pool.put_many(np.array([page]), np.array([len(row)]), row)
    asked = rng.integers(0, pages, ASKED).tolist()
    found = timed(rows, f"scan of {pages * LINKS:,} links", [lambda p=page: pool.to(p) for page in asked])
    for page, sources in zip(asked, found, strict=True):
        assert np.unique(sources).tolist() == np.flatnonzero((links == page).any(axis=1)).tolist()
    return {"scan": rows.popitem()[1]}


def main() -> int:
    """Measure and write the JSON."""
    parser = argparse.ArgumentParser(description="Times of in-links, link scores and choices by recrawl policies.")
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--shards", type=int, default=0, help="also measure memory with this number of shards")
    parser.add_argument("--scan", type=int, default=0, help="pages whose links are scanned without a store")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    with ExitStack() as stack:
        server = stack.enter_context(embedded_server())
        client = stack.enter_context(connect(server.url))
        shard = Shard.open(client, "bench")
        shard.keep_links = True
        rows, stored = measure(shard, args.pages)
        found: dict[str, Any] = {"store": stored}
        if args.shards:
            found["store_across"] = across(client, args.pages, args.shards)
    if args.scan:
        rows |= scan(args.scan)
    found |= {"pages": args.pages, "links": LINKS, "scanned": args.scan, "shards": args.shards, "cpu_ms": rows}
    write_result("links", found, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
