"""How many bytes of the server's memory does a known page take, everything included?

A crawl is let take effect by the real step: URLs of 52 bytes, a third of the pages read, twice each. Then the log is
dropped, and what the server has given out, less what it had given out when it was empty, is divided by the pages. So
are the keys of each column. Done with the default settings, with the least (no in-flow, one measure), and with the
sorted set and hash of `baseline.py`. "rest" is what no key holds: buffers, the table of keys, the function library; it
does not grow with the pages. The made-up URLs compress to 11 bytes, those of a real crawl to 15. Exits 1 where a grain
is missing.

    python benchmarks/bench_memory.py --pages 1000000
"""

import argparse
import gc
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from baseline import Baseline
from harness import Contender, embedded_server, open_store, write_result
from workloads import Crawl

PAGES = 100_000
KNOWN_FIRST = 0.1  # Of the pages: seeds. The others are found by links.
READ_SHARE = 3  # One page in so many is read.
READS_EACH = 2
LINKS = 8  # An event: memory does not hang on it, time does.
EVENTS_A_TURN = 5_000
KEYS_A_CALL = 1_000
FLOAT_ERROR_MAX = 1e-6
COLUMNS = {
    "v": "cash less credit (v)",
    "h": "total history (h)",
    "f": "in-flow (f)",
    "s": "state bytes (s)",
    "m": "measures (m)",
    "u": "URLs (u)",
    "p": "fingerprints (p)",
    "cash": "URL -> cash, sorted set",
    "history": "URL -> history, hash",
}
ENGINES = {
    "defaults": open_store,
    "inflow off, one measure": lambda client: open_store(client, inflow=False, measures_max=1),
    "baseline": Baseline,
}


def fill(contender: Contender, pages: int) -> Crawl:
    """Let a crawl take effect that knows so many pages in the end."""
    crawl = Crawl(round(pages * KNOWN_FIRST))
    contender.seed(crawl.urls())
    reads = pages // READ_SHARE
    new_share = (pages - len(crawl.known)) / (reads * LINKS)
    for again in range(READS_EACH):
        for at in range(0, reads, EVENTS_A_TURN):
            contender.feed(
                [
                    # Only pages that are known by then can be read, and no more are found than were asked for.
                    crawl.event(
                        min(READ_SHARE * i, len(crawl.known) - 1),
                        new_share if not again and len(crawl.known) < pages else 0.0,
                        LINKS,
                    )
                    for i in range(at, min(at + EVENTS_A_TURN, reads))
                ]
            )
    return crawl


def by_column(client: Any) -> tuple[dict[str, int], int]:
    """Return bytes by column, by the server's own measure of each key, and the number of keys."""
    sizes: dict[str, int] = defaultdict(int)
    keys = list(client.scan_iter(count=10_000))
    for at in range(0, len(keys), KEYS_A_CALL):
        part = keys[at : at + KEYS_A_CALL]
        with client.pipeline(transaction=False) as pipe:
            for key in part:
                # Every key of ours is one allocation or a small hash; of the baseline's two, 1,000 entries are enough.
                pipe.memory_usage(key, samples=1_000)
            for key, size in zip(part, pipe.execute(), strict=True):
                name = key.decode().rpartition("}:")[2]
                column, _, number = name.partition(":")
                sizes[column if number or column in COLUMNS else "other"] += size
    return dict(sizes), len(keys)


def measure(name: str, pages: int) -> dict[str, Any]:
    """Fill a new server and weigh it."""
    with embedded_server() as server:
        contender = Contender(name, server, ENGINES[name])
        client = contender.client
        empty = contender.used_memory()
        crawl = fill(contender, pages)
        client.delete(contender.log.keys.log)  # What has taken effect stays until its stream's node is full.
        if name == "baseline":
            known = client.zcard("cash")
            error = contender.engine.off_by(pages * KNOWN_FIRST)
            if error > FLOAT_ERROR_MAX:
                raise SystemExit(f"the baseline's sums are off by {error:.1e}")
        else:
            audit, books = contender.engine.audit(), contender.engine.shard.books()
            if not audit.conserved:
                raise SystemExit(f"{name}: not conserved: {audit}")
            known = books.live
        if known != len(crawl.known):
            raise SystemExit(f"{name}: {known:,} pages are known, {len(crawl.known):,} were found")
        client.close()  # Its buffers are not the pages'.
        total = contender.used_memory() - empty
        sizes, keys = by_column(client)
        resident = int(client.info("memory")["used_memory_rss"])
        urls = crawl.urls()
    gc.collect()
    return {
        "pages": known,
        "keys": keys,
        "url_bytes": sum(map(len, urls)) / known,
        "bytes_a_page": total / known,
        "resident_bytes_a_page": resident / known,
        "columns": {column: size / known for column, size in sorted(sizes.items(), key=lambda item: -item[1])},
        "rest": (total - sum(sizes.values())) / known,
    }


def main() -> int:
    """Fill, weigh, print, write the JSON."""
    parser = argparse.ArgumentParser(description="Bytes of server memory a known page.")
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    found = {}
    for name in ENGINES:
        row = found[name] = measure(name, args.pages)
        print(
            f"{name}: {row['bytes_a_page']:.1f} bytes a page, of {row['pages']:,} pages "
            f"(URLs of {row['url_bytes']:.1f} bytes, {row['keys']:,} keys)"
        )
        for column, size in [*row["columns"].items(), ("rest", row["rest"])]:
            print(f"  {COLUMNS.get(column, column):<26} {size:>7.2f}", flush=True)
    theirs = found["baseline"]["bytes_a_page"]
    print("of the baseline: " + ", ".join(f"{name} {row['bytes_a_page'] / theirs:.2f}" for name, row in found.items()))
    about = {"read_share": 1 / READ_SHARE, "reads_each": READS_EACH}
    write_result("memory", about | {"engines": found}, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
