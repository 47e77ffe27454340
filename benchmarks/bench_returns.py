"""What does a crawl keep of pages that are forgotten and come back, again and again, and what does expiry read of that?

A thousand pages at random are forgotten and come back, and then others, on one shard with the settings of the
embedded store. Sampled a few times: the bytes of the key `since` and of the column of pages that came back in the
checkpoint, the memory of the store, and how long it takes to tell which pages were known before a moment, as each pass
of expiry does. What is told of each page is checked. `--before PATH` measures the code of another checkout beside it.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from harness import RECORD_TIME_US, SEEDS_A_RECORD, embedded_server, seed_records, write_result

from opic.ingest import ShardWriter
from opic.model.cash import MILLION
from opic.model.events import Record, encode_forgotten, encode_seeds
from opic.replica import Crawl
from opic.replica.checkpoint import blocks_of
from opic.store.connection import connect

PAGES, RETURNS, SAMPLES = 100_000, 300_000, 3
LOOKS: Final = 9
SEED: Final = 20_281
ROOT: Final = Path(__file__).resolve().parents[1]


def sample(crawl: Crawl, writer: ShardWriter, moment: int) -> dict[str, float]:
    """Write the checkpoint; return the sizes, and the milliseconds of a look for the pages known before a moment."""
    writer.checkpoint()
    (replica,), (shard,), took = crawl.follow(), crawl.shards, list[float]()
    for _ in range(LOOKS):
        began = time.perf_counter()
        old = crawl.known_since()[0].before(moment, len(replica))
        took.append((time.perf_counter() - began) * 1000)
    if len(replica) - len(old) != SEEDS_A_RECORD:
        raise SystemExit(f"FAIL: {len(old):,} of {len(replica):,} pages were known before the last record")
    columns = [shard.client.hget(shard.keys.block(block), "k") for block in range(blocks_of(len(replica)))]
    return {
        "since_bytes": sum(map(len, shard.client.hvals(shard.keys.known_since))),
        "column_bytes": sum(map(len, filter(None, columns))),
        "store_bytes": shard.client.info("memory")["used_memory"],
        "look_ms": round(statistics.median(took), 2),
    }


def measure(pages: int, returns: int) -> list[dict[str, float]]:
    """Let pages come and go; return the samples."""
    urls = [f"https://www.h{page // 100}.example.org/articles/{page}.html" for page in range(pages)]
    draw = random.Random(SEED)
    with embedded_server() as server:
        crawl = Crawl.open(connect(server.url), "returns", keep_links=False)
        writer, log, samples = ShardWriter(crawl.shards[0]), seed_records(urls), list[dict[str, float]]()
        writer.apply("log/0", log)
        for turn in range(1, returns // SEEDS_A_RECORD + 1):
            some, time_us = draw.sample(urls, SEEDS_A_RECORD), RECORD_TIME_US + turn * MILLION
            for value, kind in ((encode_forgotten(some), "forget"), (encode_seeds(some), "seeds")):
                log.append(Record(len(log), time_us, value, kind))
                writer.apply("log/0", log[-1:], since=len(log) - 1)
            if turn % max(returns // SEEDS_A_RECORD // SAMPLES, 1) == 0:
                samples.append({"returns": turn * SEEDS_A_RECORD, **sample(crawl, writer, time_us // MILLION)})
        crawl.client.close()
    return samples


def main() -> int:
    """Measure this checkout, and another one, each in a process; write the JSON."""
    parser = argparse.ArgumentParser(description="What is kept, and read, of pages that come and go.")
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--returns", type=int, default=RETURNS)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--samples", action="store_true", help="measure the code that is imported, and print that")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    if args.samples:
        print(json.dumps(measure(args.pages, args.returns)))
        return 0
    checkouts = {"now": ROOT} | ({"before": args.before.resolve()} if args.before else {})
    terms = ["--samples", "--pages", str(args.pages), "--returns", str(args.returns)]
    found: dict[str, Any] = {"pages": args.pages}
    for name, root in checkouts.items():
        told = subprocess.run(
            [sys.executable, __file__, *terms], env=os.environ | {"PYTHONPATH": str(root)}, stdout=subprocess.PIPE,
            check=True,
        ).stdout  # fmt: skip
        found[name] = json.loads(told)
        print(name, *found[name], sep="\n")
    write_result("returns", found, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
