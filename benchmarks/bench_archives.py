"""How many records a second does a replay of web archives read, in how much memory, and are all links there?

An archive of PAGES pages with LINKS links each is made, read alone, and replayed into a new embedded store. With
--archive a recorded one is measured too, and its links are compared with those that Heritrix recorded of `a`; with
--wat and --arc, also with those of its WAT file and of its ARC twin:

    python benchmarks/bench_archives.py --archive crawl.warc.gz --wat crawl.warc.wat.gz --arc crawl.arc.gz
"""

import argparse
import cProfile
import gzip
import io
import json
import os
import pstats
import random
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any

from harness import write_result
from workloads import page_url

from opic.archives.events import ArchivedEvent, ArchiveEvents
from opic.archives.files import ArchiveFile
from opic.archives.records import ArchiveRecord, Position, read_records
from opic.model.events import CrawlEvent
from opic.urls.canonical import canonical_or_none

PAGES, LINKS, TEXT = 2_000, 60, " some words of a page" * 20
SEED = 20030524
COSTLIEST = 8


def make_archive(path: Path, pages: int) -> None:
    """Write a WARC file of pages of HTML."""
    rng = random.Random(SEED)
    with path.open("wb") as file:
        for page in range(pages):
            links = "".join(f'<p>{TEXT}<a href="{page_url(0, rng.randrange(pages))}">x</a>' for _ in range(LINKS))
            block = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html><body>{links}</body></html>"
            head = f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {page_url(0, page)}\r\n"
            head += f"WARC-Date: 2024-05-18T02:01:22Z\r\nContent-Length: {len(block)}\r\n\r\n"
            file.write(gzip.compress(f"{head}{block}\r\n\r\n".encode(), 1))


def read(path: Path) -> tuple[list[CrawlEvent], dict[str, float]]:
    """Read all events, and say what that took; the CPU time is without that of the process that parses HTML."""
    began, cpu = time.monotonic(), time.process_time()
    with closing(ArchiveEvents()) as events:
        found = [one.event for one in events.events_of(ArchiveFile(str(path), path)) if isinstance(one, ArchivedEvent)]
        cut = events.counts["bodies_cut"]
    seconds = time.monotonic() - began
    row = {
        "records": len(found),
        "links": sum(len(event.links) for event in found),
        "bodies_cut": cut,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "records_per_second": round(len(found) / seconds),
        "mb_per_second": round(path.stat().st_size / seconds / 1e6, 2),
    }
    return found, row


def replay(path: Path, folder: Path) -> dict[str, float]:
    """Replay by the command into a new embedded store."""
    command = [sys.executable, "-m", "opic", "replay", str(path), "--format", "warc", "--data", str(folder), "--json"]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.read())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert told["audit"]["conserved"]
    return {
        "events": told["events"],
        "dead_letters": told["dead_letters"],
        "seconds": round(time.monotonic() - began, 2),
        "records_per_second": told["events_per_second"],
        "peak_mb": round(used.ru_maxrss / 1024, 1),
    }


def profile(path: Path) -> list[str]:
    """Return where the time of the reader goes."""
    profiler = cProfile.Profile()
    profiler.runcall(read, path)
    text = io.StringIO()
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(COSTLIEST)
    rows = [line.split(None, 5) for line in text.getvalue().splitlines()]
    return [f"{row[1]} s {Path(row[5]).name}" for row in rows if len(row) == 6 and row[0][:1].isdigit()]


def canonical(urls: Any) -> set[str]:
    return {page for url in urls if (page := canonical_or_none(url)) is not None}


def beside_heritrix(path: Path, events: list[CrawlEvent]) -> dict[str, Any]:
    """Compare links with those that Heritrix recorded of `a`, page by page."""
    ours = {event.url: canonical(event.links) for event in events if event.links}
    recorded: dict[str, set[str]] = {}
    with path.open("rb") as file:
        records = [record for record in read_records(file, Position()) if isinstance(record, ArchiveRecord)]
    for record in records:
        url = record.fields.first("warc-target-uri")
        if record.kind == "metadata" and url in ours:
            lines = (line.rsplit(" ", 2) for line in record.block.decode("latin-1").splitlines())
            links = (
                parts[0].removeprefix("outlink: ")
                for parts in lines
                if len(parts) == 3 and parts[2].lower() == "a/@href"
            )
            recorded[url] = canonical(map(unescape, links))
    added = {url: len(links - recorded[url]) for url, links in ours.items() if url in recorded}
    return {
        "recorded": sum(map(len, recorded.values())),
        "missed": sum(len(links - ours[url]) for url, links in recorded.items()),
        "added_on_pages": {url: count for url, count in added.items() if count},
    }


def beside(events: list[CrawlEvent], others: list[CrawlEvent]) -> dict[str, int]:
    """Compare the events of two files of one crawl."""
    rows = [(event.url, event.status, event.redirect, event.fetched_at) for event in events]
    pairs = list(zip(events, others, strict=False))
    return {
        "pages_that_differ": abs(len(events) - len(others))
        + sum(row != (b.url, b.status, b.redirect, b.fetched_at) for row, (_, b) in zip(rows, pairs, strict=False)),
        "links_that_differ": sum(len(canonical(a.links) ^ canonical(b.links)) for a, b in pairs),
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--pages", type=int, default=PAGES)
    for name in ("archive", "wat", "arc", "result"):
        options.add_argument(f"--{name}", type=Path)
    given = options.parse_args()
    found: dict[str, Any] = {"pages": given.pages, "links_a_page": LINKS}
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as folder:
        made = Path(folder, "made.warc.gz")
        make_archive(made, given.pages)
        events, found["made"] = read(made)
        assert len(events) == given.pages
        found["made_replayed"] = replay(made, Path(folder, "made"))
        assert found["made_replayed"]["events"] == given.pages
        found["profile"] = profile(made)
        if given.archive:
            events, found["archive"] = read(given.archive)
            found["archive_replayed"] = replay(given.archive, Path(folder, "archive"))
            found["beside_heritrix"] = beside_heritrix(given.archive, events)
            for name in ("wat", "arc"):
                if (path := getattr(given, name)) is not None:
                    found[f"beside_{name}"] = beside(events, read(path)[0])
    print(*(f"{name:<18} {value}" for name, value in found.items()), sep="\n")
    write_result("archives", found, given.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
