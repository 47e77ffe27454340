"""How long does an export take, how much memory, and do its readers see what the service answers?

A crawl with LINKS links a page read is exported as Parquet with its links, as CSV and as JSON Lines, each by a command
of its own beside a store that runs; DuckDB and pyarrow read the Parquet file. A million pages take a few minutes:

    python benchmarks/bench_export.py --pages 1000000
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from harness import RECORD_TIME_US, SEEDS_A_RECORD, embedded_server, write_result
from workloads import page_url

from opic.ingest import Writer
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.replica import Crawl
from opic.store import connect

PAGES, READ_SHARE, LINKS, HOST_PAGES = 20_000, 0.2, 20, 100
BATCH = 500
SEED = 20030524
SUM_APART_MAX = 1e-9
RUN = """
import atexit, os, re, sys
from opic.cli.main import main

def tell():
    peak = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]
    print("", sum(os.times()[:4]), peak, file=sys.stderr, flush=True)

atexit.register(tell)
sys.argv[0] = "opic"
main()
"""


def fill(crawl: Crawl, pages: int) -> None:
    """Make all pages known, and read some."""
    rng, writer = random.Random(SEED), Writer(crawl)
    urls = [page_url(page // HOST_PAGES, page % HOST_PAGES) for page in range(pages)]
    seeds = [encode_seeds(urls[at : at + SEEDS_A_RECORD]) for at in range(0, pages, SEEDS_A_RECORD)]
    events = [
        encode_crawl_event(CrawlEvent(urls[page], [urls[int(pages * rng.random() ** 3)] for _ in range(LINKS)]))
        for page in range(int(READ_SHARE * pages))
    ]
    offset = 0
    for kind, values in (("seeds", seeds), ("event", events)):
        for at in range(0, len(values), BATCH):
            some = values[at : at + BATCH]
            writer.apply("log/0", [Record(offset + n, RECORD_TIME_US, value, kind) for n, value in enumerate(some)])
            offset += len(some)
    for store in writer.stores:
        store.checkpoint()


def run_opic(*words: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Run a command; return its answer, and what it took.

    Its peak is its own: what wait4 tells counts the process that it was forked from.
    """
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    seconds, peak_kb = map(float, done.stderr.split()[-2:])
    return json.loads(done.stdout), {
        "seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": round(seconds, 2),
        "peak_mb": round(peak_kb / 1024, 1),
    }


def export(store: str, path: Path, *more: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Run `opic export`; return its answer, and what it took."""
    answer, took = run_opic("export", str(path), "--store", store, "--json", *more)
    size = sum(Path(file).stat().st_size for file in answer["files"])
    return answer, took | {"file_mb": round(size / 1e6, 1)}


def check(path: Path, answer: dict[str, Any]) -> dict[str, Any]:
    """Read the file by DuckDB and by pyarrow."""
    began = time.monotonic()
    (pages, total, read), *_ = duckdb.sql(
        f"SELECT count(*), fsum(importance), count(*) FILTER (state = 'read') FROM '{path}'"
    ).fetchall()
    links = path.with_name("pages.links.parquet")
    (sources,), *_ = duckdb.sql(
        f"SELECT count(DISTINCT l.\"from\") FROM '{links}' l JOIN (SELECT file_row_number AS row, state FROM "
        f"read_parquet('{path}', file_row_number=true)) p ON p.row = l.\"from\" WHERE p.state = 'read'"
    ).fetchall()
    duckdb_seconds = time.monotonic() - began
    began = time.monotonic()
    shares = pq.read_table(path, columns=["importance"]).column(0).to_pylist()
    pq.read_table(path)
    assert (pages, sources) == (answer["pages"], read)
    assert pq.read_metadata(links).num_rows == answer["links"]
    apart = max(abs(math.fsum(shares) - 1), abs(total - 1))
    assert apart <= SUM_APART_MAX, apart
    return {
        "importance_sum_off_by": apart,
        "duckdb_seconds": round(duckdb_seconds, 2),
        "pyarrow_seconds": round(time.monotonic() - began, 2),
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--pages", type=int, default=PAGES)
    options.add_argument("--result", type=Path)
    given = options.parse_args()
    with embedded_server() as server, tempfile.TemporaryDirectory(prefix="opic-bench-") as folder:
        fill(Crawl.open(connect(server.url), keep_links=True), given.pages)
        rows: dict[str, dict[str, float]] = {}
        answer, rows["parquet with links"] = export(server.url, Path(folder, "pages.parquet"), "--links")
        for ending in ("csv", "jsonl"):
            _, rows[ending] = export(server.url, Path(folder, f"pages.{ending}"))
        _, rows["cc-ranks"] = export(server.url, Path(folder, "ranks.txt"), "--format", "cc-ranks")
        read = check(Path(folder, "pages.parquet"), answer)
    for name, row in rows.items():
        print(name, *(f"{key} {value}" for key, value in row.items()), sep="  ")
    print("read back", *(f"{key} {value}" for key, value in read.items()), sep="  ")
    sizes = {"pages": answer["pages"], "links": answer["links"], "error_bound": answer["error_bound"]}
    write_result("export", {**sizes, "exports": rows, "readers": read}, given.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
