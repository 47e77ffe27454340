"""What does importance that another engine computed cost: to load, in the store, in an endpoint? Is it right?

The crawl of `bench_export` is exported with its links, igraph ranks it (examples/pagerank_igraph.py), and the result is
loaded by a command of its own beside a store that runs, checked by one step over the kept links, and without that
(--bound). Then a reader answers by it. A million pages take two minutes:

    python benchmarks/bench_loaded.py --pages 1000000
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from bench_export import PAGES, export, fill, run_opic
from harness import embedded_server, write_result

from examples.pagerank_igraph import pagerank
from opic.query.loaded_order import LoadedOrder
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.store import connect

APART_MAX = 1e-4  # L1 distance of what is answered from what igraph computed: float32 has 24 bits.


def load(store: str, file: Path, *more: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Run `opic load-importance`; return its answer, and what it took."""
    return run_opic("load-importance", str(file), "--store", store, "--json", *more)


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ask(crawl: Crawl) -> tuple[dict[str, float], Query]:
    """Answer by what was loaded; return what the first questions took, and what answers."""
    snapshots = Snapshots(crawl)
    query, order, took = Query(crawl, snapshots), LoadedOrder(snapshots), dict[str, float]()
    query.top(10, policy="static")
    pages = len(snapshots.fresh())
    before = resident_bytes()
    for name, question in (
        ("first_top_seconds", lambda: query.top(10, policy="loaded")),
        ("next_top_seconds", lambda: query.top(11, policy="loaded")),
        ("order_seconds", order.recent),
    ):
        began = time.monotonic()
        assert question() is not None
        took[name] = round(time.monotonic() - began, 3)
        if name == "next_top_seconds":
            took["bytes_a_page"] = round((resident_bytes() - before) / pages, 1)
    return took, query


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--pages", type=int, default=PAGES)
    options.add_argument("--result", type=Path)
    given = options.parse_args()
    with embedded_server() as server, tempfile.TemporaryDirectory(prefix="opic-bench-") as folder:
        crawl = Crawl.open(connect(server.url), keep_links=True)
        fill(crawl, given.pages)
        pages, file = Path(folder, "pages.parquet"), Path(folder, "importance.parquet")
        told, exported = export(server.url, pages, "--links")
        began = time.monotonic()
        table, as_of = pagerank(str(pages), str(pages.with_name("pages.links.parquet")))
        engine_seconds = round(time.monotonic() - began, 2)
        pq.write_table(table, file)
        key, client = crawl.shards[0].keys.loaded, crawl.client
        answer, checked = load(server.url, file, "--as-of", str(as_of))
        _, given_bound = load(server.url, file, "--as-of", str(as_of), "--bound", "1e-6")
        store_bytes = int(client.memory_usage(key, samples=0) or 0)
        took, query = ask(Crawl.open(connect(server.url), create=False))
        urls = table["url"].to_pylist()[:: max(1, len(table) // 10_000)]
        ranks = dict(zip(table["url"].to_pylist(), table["importance"].to_pylist(), strict=True))
        found = np.array([(page or {"importance": 0.0})["importance"] for page in query.importance(urls, "loaded")])
        apart = float(np.abs(found - np.array([ranks[url] for url in urls])).sum())
        assert apart <= APART_MAX, apart
    row = {
        "pages": told["pages"],
        "links": told["links"],
        "export": exported,
        "engine_seconds": engine_seconds,
        "load": checked,
        "load_with_bound": given_bound,
        "error_bound": answer["loaded_error_bound"],
        "store_bytes_a_page": round(store_bytes / told["pages"], 2),
        "endpoint": took,
        "off_by": apart,
    }
    print(json.dumps(row, indent=1))
    write_result("loaded", row, given.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
