"""How many pages a second does a RankMass crawl choose?  Pass --pages 10000,100000,1000000 to measure.

Graphs whose in-degrees follow a power law, 100 trusted pages, a tenth of the pages downloaded: RankMass, a page at a
time, and Windowed-RankMass, 5 % of the frontier at a time. Downloading itself is left out. Beside them the paper's
pseudocode as it is printed, which looks at all pages to find the greatest; it runs for the first downloads only, and
RankMass once more for as many. And the same crawl by a heap, in twenty lines of plain Python. All must have downloaded
the same pages in the same order before a time counts.

Exits 1 when an order differs. Times are CPU time, the least of several runs.
"""

import argparse
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import plain_rankmass
from harness import write_result

from experiments.algorithms.rankmass import CoverageCrawl, rankmass, windowed_rankmass
from experiments.algorithms.trust import Trust
from experiments.synthetic_graphs import power_law_matrix
from opic.graph.crawled import LinkMatrix

Crawl = TypeVar("Crawl", CoverageCrawl, list[int])
PAGES = "10000,100000"
TRUSTED = 100
DOWNLOADED_SHARE = 0.1
PLAIN_DOWNLOADS = 300
WINDOW = 0.05
REPEATS = 3
SEED = 20070923
US = 1e6


class Rows:
    """The links of each page as a list, made when asked for."""

    def __init__(self, links: LinkMatrix) -> None:
        """Take the rows of a matrix."""
        self._links = links

    def __len__(self) -> int:
        """Count the pages."""
        return self._links.shape[0]

    def __getitem__(self, page: int) -> list[int]:
        """Return the links of a page."""
        starts = self._links.indptr
        return self._links.indices[starts[page] : starts[page + 1]].tolist()


def measured(crawl: Callable[[], Crawl]) -> tuple[Crawl, float]:
    """Return a crawl, and the least CPU seconds of several runs."""
    took = []
    for _ in range(REPEATS):
        started = time.process_time()
        found = crawl()
        took.append(time.process_time() - started)
    return found, min(took)


def measure(pages: int, plain_downloads: int) -> dict[str, float]:
    """Return the figures of a graph; raise SystemExit where the orders differ."""
    links = power_law_matrix(pages, SEED)
    trust = Trust.uniform(np.random.default_rng(SEED).choice(pages, TRUSTED, replace=False))
    count = int(DOWNLOADED_SHARE * pages)
    whole, seconds = measured(lambda: rankmass(links, trust, downloads_max=count))
    windowed, seconds_windowed = measured(lambda: windowed_rankmass(links, trust, window=WINDOW, downloads_max=count))
    first = min(plain_downloads, count)
    _, seconds_first = measured(lambda: rankmass(links, trust, downloads_max=first))
    named = dict(zip(trust.pages.tolist(), trust.shares.tolist(), strict=True))
    started = time.process_time()
    plain = [page for page, _ in islice(plain_rankmass.rankmass(Rows(links), named), first + 1)]
    seconds_plain = time.process_time() - started
    by_heap, seconds_heap = measured(lambda: plain_rankmass.rankmass_by_heap(Rows(links), named, count))
    if by_heap != whole.order.tolist():
        raise SystemExit(f"FAIL: {pages:,} pages: another order than by a heap")
    if plain[:first] != whole.order[:first].tolist():
        raise SystemExit(f"FAIL: {pages:,} pages: another order than the paper's pseudocode")
    return {
        "pages": pages,
        "links": int(links.nnz),
        "downloads": count,
        "expansions": whole.expansions,
        "downloads_per_s": round(count / seconds),
        "us_an_expansion": round(seconds * US / whole.expansions, 2),
        "guaranteed": round(float(whole.guaranteed[-1]), 4),
        "windowed_expansions": windowed.expansions,
        "windowed_downloads_per_s": round(count / seconds_windowed),
        "windowed_guaranteed": round(float(windowed.guaranteed[-1]), 4),
        "first_downloads": first,
        "first_downloads_per_s": round(first / seconds_first, 1),
        "plain_downloads_per_s": round(first / seconds_plain, 1),
        "times_plain": round(seconds_plain / seconds_first, 1),
        "heap_downloads_per_s": round(count / seconds_heap),
        "times_heap": round(seconds_heap / seconds, 2),
    }


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", default=PAGES, help="numbers of pages, with commas between")
    parser.add_argument("--plain-downloads", type=int, default=PLAIN_DOWNLOADS, help="downloads of the pseudocode")
    parser.add_argument(
        "--result", type=Path, help="where to write the result; default benchmarks/results/rankmass.json"
    )
    given = parser.parse_args()
    rows = []
    head = f"{'pages':>9} {'downloads/s':>12} {'us/expansion':>13} {'5 % window':>11} {'pseudocode':>11} {'ratio':>7}"
    print(f"{head} {'heap':>9} {'ratio':>6}")
    for pages in map(int, given.pages.split(",")):
        row = measure(pages, given.plain_downloads)
        rows.append(row)
        ours = f"{row['downloads_per_s']:>12,} {row['us_an_expansion']:>13.2f} {row['windowed_downloads_per_s']:>11,}"
        print(
            f"{pages:>9,} {ours} {row['plain_downloads_per_s']:>11,.1f} {row['times_plain']:>6.1f}x "
            f"{row['heap_downloads_per_s']:>9,} {row['times_heap']:>5.2f}x",
            flush=True,
        )
    write_result("rankmass", {"trusted": TRUSTED, "window": WINDOW, "rows": rows}, given.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
