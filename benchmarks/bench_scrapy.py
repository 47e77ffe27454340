"""How much CPU does a page cost Scrapy with opic.scrapy, beside Scrapy alone?

One spider, which parses each page and follows all its links, crawls a site on loopback: by Scrapy's own scheduler, and
with a service that hands the pages out and gets all their links. The CPU time is that of the spider's processes, with
the one that reads links, and without service and site; of the start of a process none is left, since two sizes are
crawled and the difference counts.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from harness import STOP_SECONDS, served, write_result
from workloads import SEED

from opic.client import Client

PAGES, LINKS, ROUNDS = 1_000, 60, 3
TEXT = " some words of a page" * 20


class Site(SimpleHTTPRequestHandler):
    """Files, without a line for each in the log."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def site(folder: Path, pages: int) -> Iterator[str]:
    """Serve pages that each link to LINKS others; from the first one all can be reached."""
    rng = random.Random(SEED)
    for page in range(pages):
        others = [2 * page + 1, 2 * page + 2, *(rng.randrange(pages) for _ in range(LINKS - 2))]
        links = "".join(f'<p>{TEXT}<a href="{other % pages}.html">x</a>' for other in others)
        (folder / f"{page}.html").write_text(f"<title>page {page}</title><body>{links}")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/0.html"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(STOP_SECONDS)


def cpu_seconds(pages: int, start: str, settings: dict[str, Any]) -> float:
    """Crawl a site; return the CPU time of the spider and of what it started."""
    with subprocess.Popen(spider(Path(sys.executable), settings, [start]), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        parsed = json.loads(process.stdout.read())["parsed"]
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert (process.returncode, parsed) == (0, pages), f"{parsed} of {pages} pages"
    return used.ru_utime + used.ru_stime


def spider(python: Path, settings: Mapping[str, Any], starts: Sequence[str]) -> list[str]:
    """Return the command that lets the spider crawl."""
    return [str(python), str(Path(__file__).with_name("scrapy_site.py")), json.dumps(settings), *starts]


def by_service(url: str) -> dict[str, Any]:
    """Return the settings of a project whose pages a service hands out."""
    return {"ADDONS": {"opic.scrapy.Addon": 500}, "OPIC_URL": url, "OPIC_CLOSE_AFTER_IDLE": 1}


def crawls(pages: int) -> tuple[float, float]:
    """Return the CPU seconds of a crawl by Scrapy alone, and of one with the service."""
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as name:
        folder = Path(name)
        (folder / "site").mkdir()
        with site(folder / "site", pages) as start, served(folder / "service", host_delay_seconds=0) as url:
            alone = cpu_seconds(pages + 1, start, {})  # Scrapy fetches its start page again when a page links to it.
            ours = cpu_seconds(pages, start, by_service(url))
            with Client(url) as client:
                assert client.stats().read_pages == pages
                assert client.audit().conserved
    return alone, ours


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--pages", type=int, default=PAGES, help="of the larger site; the other one has a fifth")
    options.add_argument("--rounds", type=int, default=ROUNDS)
    options.add_argument("--result", type=Path)
    given = options.parse_args()
    few, rows = given.pages // 5, list[dict[str, float]]()
    for _ in range(given.rounds):
        (alone_few, ours_few), (alone, ours) = crawls(few), crawls(given.pages)
        by_page = 1_000 / (given.pages - few)
        row = {"scrapy_ms": (alone - alone_few) * by_page, "opic_ms": (ours - ours_few) * by_page}
        rows.append({name: round(value, 2) for name, value in row.items()})
    found = {name: round(statistics.median(row[name] for row in rows), 2) for name in ("scrapy_ms", "opic_ms")}
    found["overhead_ms"] = round(statistics.median(row["opic_ms"] - row["scrapy_ms"] for row in rows), 2)
    found["ratio"] = round(found["opic_ms"] / found["scrapy_ms"], 2)
    print(f"CPU a page: Scrapy alone {found['scrapy_ms']:.2f} ms, with opic.scrapy {found['opic_ms']:.2f} ms")
    print(f"overhead {found['overhead_ms']:.2f} ms, ratio {found['ratio']:.2f}")
    write_result("scrapy", {"pages": given.pages, "links_a_page": LINKS, **found, "rounds": rows}, given.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
