"""How many bytes does a known page take: in the store's server, in a worker, in an endpoint?

A crawl takes effect through the writer: URLs of 53 bytes, a tenth of the pages seeds and the others found by links, a
third of them read, twice each. Then three processes are weighed against what they were before the first page:

- the server: what its allocator has given out, without the journal and the log, and the journal apart; by kind of key;
- the worker that did all that, and another one that takes over: it loads what it needs for the first event;
- an endpoint (`opic serve`) that was asked for importance, the top, hosts and next pages: its resident memory.

Done with the default settings, with the least (no in-flow, one measure), and with the sorted set and hash of
`baseline.py`; with `--before DIR` also by another checkout. "rest" is what no key holds: buffers, the table of keys,
functions; it does not grow with the pages. The made-up URLs compress to 11 bytes, those of a real crawl to 15. Exits 1
where a grain is missing.

    python benchmarks/bench_memory.py --pages 1000000 --before ../before
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harness import commit, write_result
from journal_driver import CRAWL, resident_bytes
from versions import Driver, Version, seeds, versions, write_values
from workloads import Crawl

PAGES = 100_000
KNOWN_FIRST = 0.1  # Of the pages: seeds. The others are found by links.
READ_SHARE = 3  # One page in so many is read.
READS_EACH = 2
LINKS = 8  # An event: memory does not depend on it, time does.
EVENTS_A_TURN = 5_000
FLOAT_ERROR_MAX = 1e-6
SMALL = 0.05  # Bytes a page: kinds of keys below that are added up.
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "inflow off, one measure": {"inflow": False, "measures_max": 1},
}
START = "import sys; from opic.cli.main import main; sys.exit(main())"
ENDPOINT_ASKS = ("/v1/top?n=100", "/v1/hosts?n=10")


def fill(worker: Driver, pages: int, file: Path) -> Crawl:
    """Let a crawl take effect that knows so many pages in the end."""
    crawl = Crawl(round(pages * KNOWN_FIRST))
    worker.ask("fill", file=str(write_values(file, seeds(crawl))))
    reads = pages // READ_SHARE
    new_share = (pages - len(crawl.known)) / (reads * LINKS)
    for again in range(READS_EACH):
        for at in range(0, reads, EVENTS_A_TURN):
            events = (
                # Only pages that are known by then can be read, and no more are found than were asked for.
                crawl.event(
                    min(READ_SHARE * i, len(crawl.known) - 1),
                    new_share if not again and len(crawl.known) < pages else 0.0,
                    LINKS,
                )
                for i in range(at, min(at + EVENTS_A_TURN, reads))
            )
            worker.ask("load", file=str(write_values(file, events)), through_log=False)
            worker.ask("go")
    return crawl


@contextmanager
def endpoint(version: Version, store: str) -> Iterator[tuple[str, int]]:
    """Lend the URL and the process number of an endpoint on a store."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OPIC_")}
    environment |= {"OPIC_STORE": store, "OPIC_CRAWL": CRAWL, "PYTHONPATH": str(version.root)}
    environment["OPIC_KEEP_LINKS"] = "off"  # The crawl has none.
    command = [version.python, "-P", "-c", START, "serve", "--port", "0"]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=version.root
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if "http" not in line:
                errors.seek(0)
                raise SystemExit(f"{version.name}: the endpoint did not start: {errors.read()[-2000:]}")
            yield line[line.index("http") :].split(",")[0].strip().rstrip("/"), process.pid
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def endpoint_bytes(version: Version, store: str, url: str | None) -> int:
    """Return the resident memory of an endpoint that was asked for all that it shows, of a page if one is known."""
    with endpoint(version, store) as (address, pid):
        asked = [f"/v1/importance?url={quote(url, safe='')}"] if url else []
        for path in (*asked, *ENDPOINT_ASKS):
            urllib.request.urlopen(address + path, timeout=600).read()
        body = urllib.request.Request(
            address + "/v1/next", json.dumps({"n": 10}).encode(), {"content-type": "application/json"}
        )
        urllib.request.urlopen(body, timeout=600).read()
        return resident_bytes(pid)


def worker_that_takes_over(version: Version, store: str, file: Path) -> int:
    """Return by how much the resident memory of a new worker grows until its first event has taken effect."""
    worker = Driver(version)
    try:
        worker.ask("attach", url=store)
        before = worker.ask("weigh")["process_resident"]
        worker.ask("touch", file=str(file))
        return int(worker.ask("weigh")["process_resident"]) - int(before)
    finally:
        worker.close()


def check(answer: dict[str, Any], name: str, pages: int) -> None:
    """End the benchmark if the books don't balance."""
    if answer.get("off_by", 0.0) > FLOAT_ERROR_MAX or not answer.get("conserved", True):
        raise SystemExit(f"{name}: not conserved: {answer}")
    if answer["known"] != pages:
        raise SystemExit(f"{name}: {answer['known']:,} pages are known, {pages:,} were found")


def measure(version: Version, rules: dict[str, Any], pages: int, directory: Path) -> dict[str, Any]:
    """Fill a new server and weigh it, a worker and an endpoint."""
    ours, data = version.engine == "store", directory / "data"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, data, ignore_errors=True)
        worker = Driver(version)
        stack.callback(worker.close)
        store = worker.ask("start", data=str(data), engine=version.engine, rules=rules)["url"]
        endpoint_before = endpoint_bytes(version, store, None) if ours else 0
        before = worker.ask("weigh")
        crawl = fill(worker, pages, directory / "values")
        known = len(crawl.known)
        after, columns = worker.ask("weigh"), worker.ask("columns")
        check(worker.ask("audit", minted=pages * KNOWN_FIRST), version.name, known)  # It loads replicas of its own.
        grown = {name: after[name] - before[name] for name in after}
        kept = grown["server"] - grown["journal"] - grown["log"]
        row = {
            "pages": known,
            "keys": columns["keys"],
            "url_bytes": sum(map(len, crawl.each_url())) / known,
            "bytes_a_page": kept / known,
            "journal_bytes": grown["journal"],
            "journal_bytes_a_page": grown["journal"] / known,
            "resident_bytes_a_page": grown["server_resident"] / known,
            "worker_bytes_a_page": grown["process_resident"] / known,
        }
        sizes = {name: size for name, size in columns["sizes"].items() if name not in ("journal", "log")}
        row["rest"] = (kept - sum(sizes.values())) / known
        row["columns"] = by_size({name: size / known for name, size in sizes.items()})
        if ours:
            one = write_values(directory / "values", [crawl.event(0, 0.0, LINKS)])
            row["loading_worker_bytes_a_page"] = worker_that_takes_over(version, store, one) / known
            url = next(crawl.each_url())
            row["endpoint_bytes_a_page"] = (endpoint_bytes(version, store, url) - endpoint_before) / known
        return row


def by_size(columns: dict[str, float]) -> dict[str, float]:
    """Sort columns, the largest first; small ones are added up as "other"."""
    out = {name: size for name, size in sorted(columns.items(), key=lambda item: -item[1]) if size >= SMALL}
    return out | {"other": sum(size for size in columns.values() if size < SMALL)}


def print_row(name: str, row: dict[str, Any]) -> None:
    """Print what was found of one contender."""
    print(
        f"{name}: {row['bytes_a_page']:.1f} bytes a page and a journal of {row['journal_bytes'] / 1e6:.1f} MB, "
        f"of {row['pages']:,} pages (URLs of {row['url_bytes']:.1f} bytes, {row['keys']:,} keys)"
    )
    for column, size in [*row["columns"].items(), ("rest", row["rest"])]:
        print(f"  {column:<30} {size:>7.2f}")
    for figure in ("resident", "worker", "loading_worker", "endpoint"):
        if f"{figure}_bytes_a_page" in row:
            label = "server, as the system counts" if figure == "resident" else figure.replace("_", " ")
            print(f"  {label:<30} {row[f'{figure}_bytes_a_page']:>7.1f}", flush=True)


def main() -> int:
    """Fill, weigh, print, write the JSON."""
    parser = argparse.ArgumentParser(description="Bytes a known page, of server, worker and endpoint.")
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--before", type=Path, help="a checkout to compare with, set up with `make setup`")
    parser.add_argument("--settings", default=",".join(map(str, range(len(SETTINGS)))), help="0 defaults, 1 the least")
    parser.add_argument("--no-baseline", action="store_true", help="leave redis-py out")
    parser.add_argument("--directory", type=Path, help="where the servers' files go")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    settings = [list(SETTINGS)[int(number)] for number in args.settings.split(",")]
    found: dict[str, dict[str, Any]] = {}
    weighed = versions(args.before, baseline=not args.no_baseline)
    with tempfile.TemporaryDirectory(prefix="opic-bench-", dir=args.directory) as directory:
        for version in weighed:
            ours = version.engine == "store"
            for setting in settings if ours else ("",):
                name = {"now": setting, "baseline": "baseline"}.get(version.name, f"{version.name}, {setting}")
                found[name] = measure(version, SETTINGS.get(setting, {}), args.pages, Path(directory))
                print_row(name, found[name])
    if "baseline" in found:
        theirs = found["baseline"]["bytes_a_page"]
        ratios = (f"{name} {row['bytes_a_page'] / theirs:.2f}" for name, row in found.items())
        print("of the baseline: " + ", ".join(ratios))
    about = {"read_share": 1 / READ_SHARE, "reads_each": READS_EACH}
    about = {"commits": {version.name: commit(version.root) for version in weighed}} | about
    write_result("memory", about | {"engines": found}, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
