"""How long do a crawler's requests take over HTTP while events come in, and what does answering cost the ingest?

`opic serve --embedded` runs as it would: endpoint, worker and store are processes of their own. Events wait in its log,
so that the worker is busy all the time: the worst neighbour. One client asks over one connection, a request each 10 ms:
POST /v1/next for ten pages, then GET /v1/importance of three. Asked first with nothing to ingest; then ingest alone and
ingest with the client take turns. Every answer is checked: no page is handed out twice, unless an event of the page
took effect between the two (that ends its lease), importance lies in (0, 1], and the audit holds in the end.

    python benchmarks/bench_latency.py --pages 1000000 --seconds 30
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import numpy as np
from harness import RECORD_TIME_US, SEEDS_A_RECORD, write_result
from workloads import SEED, Crawl

from opic.ingest.event_log import EventLog
from opic.model.events import encode_seeds
from opic.replica import Crawl as Store
from opic.service.embedded import EmbeddedServer
from opic.store import connect
from opic.store.keys import Keys

NEXT = 10
REQUEST_SECONDS = 0.01
LEASE_SECONDS = 3_600  # No page comes back while we look.
NEW_SHARE = 0.1
PAGES_A_HOST = 60  # With the default delay of a second between fetches of a host, a small store has to have hosts.
EVENTS_A_SECOND = 40_000  # More than the worker takes, so that it never waits.
PATIENCE_SECONDS = 600.0


class ReadPage(msgspec.Struct):
    """Of an event, the page that it reads."""

    url: str


READ = msgspec.msgpack.Decoder(ReadPage)


@contextmanager
def service(data: Path) -> Iterator[str]:
    """Lend the URL of a running service."""
    command = [sys.executable, "-c", "import sys; from opic.cli.main import main; sys.exit(main())"]
    command += ["serve", "--embedded", "--port", "0", "--data", str(data)]
    # Pages are read again and again. The figures are those of the mode without links, unless told otherwise.
    environment = {"OPIC_REVISIT_SECONDS": "0", "OPIC_KEEP_LINKS": "off", **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path[1:]))
    with open(data / "errors.txt", "w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "http" not in line:
                raise SystemExit(f"the service did not start: {(data / 'errors.txt').read_text()[-2000:]}")
            yield line[line.index("http") :].split(",")[0].strip()
        finally:
            process.terminate()
            process.wait()


def any_between(offsets: Sequence[int], since: int, until: int) -> bool:
    """Tell whether one of the offsets, which are in order, lies in [since, until)."""
    return bisect_left(offsets, since) < bisect_left(offsets, until)


class Client:
    """A crawler with one connection, and what it saw."""

    def __init__(self, url: str, crawl: Crawl, ingest: "Ingest") -> None:
        """Connect to a service."""
        self.ingest = ingest
        self.http = HTTPConnection(urlsplit(url).netloc, timeout=60)
        self.urls, self.random = crawl.urls(), random.Random(SEED)
        self.leased: dict[str, int] = {}  # Page -> the first record that may end its lease.
        self.times: dict[str, list[float]] = {"next": [], "importance": []}

    def ask(self, verb: str, path: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        """Ask, and return the answer."""
        text = None if body is None else json.dumps(body)
        self.http.request(verb, path, text, {"content-type": "application/json"} if text else {})
        response = self.http.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
        if response.status != 200:
            raise SystemExit(f"{verb} {path}: {response.status} {answer}")
        return answer

    def run(self, seconds: float) -> None:
        """Ask one thing after the other at a steady pace; late requests are not made up for."""
        end, turn = time.perf_counter() + seconds, 0
        while (started := time.perf_counter()) < end:
            if turn % 4 == 0:
                applied = self.ingest.applied()
                started = time.perf_counter()
                found = self.ask("POST", "/v1/next", {"n": NEXT, "lease_seconds": LEASE_SECONDS})
                self.times["next"].append(1000 * (time.perf_counter() - started))
                self.take({page["url"] for page in found["pages"]}, applied)
            else:
                url = self.random.choice(self.urls)
                found = self.ask("GET", "/v1/importance?url=" + quote(url, safe=""))
                self.times["importance"].append(1000 * (time.perf_counter() - started))
                if found["url"] != url or not 0 < found["importance"] <= 1:
                    raise SystemExit(f"importance of {url}: {found}")
            turn += 1
            time.sleep(max(0.0, started + REQUEST_SECONDS - time.perf_counter()))

    def take(self, pages: set[str], before: int) -> None:
        """Keep pages that were handed out just now; stop if one of them is leased already.

        Args:
            pages: their URLs.
            before: how many records had taken effect before they were asked for.
        """
        applied = self.ingest.applied()
        again = [
            url
            for url in pages & self.leased.keys()
            if not any_between(self.ingest.reads.get(url, ()), self.leased[url], applied)
        ]
        if len(pages) != NEXT or again:
            raise SystemExit(f"next gave {len(pages)} pages, of which these are leased: {again}")
        self.leased |= dict.fromkeys(pages, before)

    def summary(self) -> dict[str, dict[str, float]]:
        """Return percentiles of what was asked since the last summary."""
        out = {}
        for name, times in self.times.items():
            p50, p99 = np.percentile(times, [50, 99])
            out[name] = {"p50_ms": float(p50), "p99_ms": float(p99), "max_ms": max(times), "of": len(times)}
            times.clear()
        return out


class Ingest:
    """The log of the running service, and how fast it is worked off."""

    def __init__(self, data: Path, crawl: Crawl) -> None:
        """Connect to the store of the service on a directory."""
        url = EmbeddedServer.running(data)
        assert url is not None
        self.store, self.crawl = Store.open(connect(url), create=False), crawl
        self.log = EventLog(connect(url, retries=0), Keys("default", 0))
        self.reads: dict[str, list[int]] = {}  # Page -> offsets of its events, in order.

    def fill(self, urls: Sequence[str]) -> None:
        """Make pages known, and wait until they are."""
        for at in range(0, len(urls), SEEDS_A_RECORD):
            end = self.log.append([encode_seeds(urls[at : at + SEEDS_A_RECORD])], RECORD_TIME_US, "seeds")[
                self.log.partition
            ]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.applied() < end:
            if time.monotonic() > deadline:
                raise SystemExit("the worker does not come to an end with the seeds")
            time.sleep(0.05)

    def applied(self) -> int:
        """Return how many records have taken effect."""
        return self.store.resume(self.log.partition)

    def prepare(self, seconds: float) -> None:
        """Let so many events wait that the worker is busy for so long."""
        lack = round(seconds * EVENTS_A_SECOND) - (self.log.end() - self.applied())
        if lack > 0:
            values = self.crawl.events(lack, NEW_SHARE)
            end = self.log.append(values, RECORD_TIME_US)[self.log.partition]
            for offset, value in enumerate(values, end - len(values)):
                self.reads.setdefault(READ.decode(value).url, []).append(offset)

    def rate(self, seconds: float, client: Client | None) -> float:
        """Return events a second while a client asks, or none."""
        self.prepare(seconds)
        first, started = self.applied(), time.perf_counter()
        if client is None:
            time.sleep(seconds)
        else:
            client.run(seconds)
        last, took = self.applied(), time.perf_counter() - started
        if last >= self.log.end():
            raise SystemExit("the worker ran out of events: raise EVENTS_A_SECOND")
        return (last - first) / took


def main() -> int:
    """Serve, ask, print, write the JSON."""
    parser = argparse.ArgumentParser(description="Latency over HTTP while events come in.")
    parser.add_argument("--pages", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=4.0, help="a phase")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    crawl = Crawl(args.pages, PAGES_A_HOST)
    rates: dict[str, list[float]] = {"alone": [], "with requests": []}
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as directory, service(Path(directory)) as url:
        ingest = Ingest(Path(directory), crawl)
        client = Client(url, crawl, ingest)
        ingest.fill(client.urls)
        client.run(1.0)  # The first answers load the replicas.
        client.summary()
        client.run(args.seconds)
        idle = client.summary()
        for _ in range(args.rounds):
            rates["alone"].append(ingest.rate(args.seconds, None))
            rates["with requests"].append(ingest.rate(args.seconds, client))
        busy = client.summary()
        audit, *_ = ingest.store.audit()
        if not audit.conserved:
            raise SystemExit(f"not conserved: {audit}")
        known = ingest.store.totals().live
    print(f"{args.pages:,} pages at first, {known:,} in the end\n{'milliseconds':<26} {'p50':>7} {'p99':>7} {'max':>7}")
    for phase, rows in (("nothing to ingest", idle), ("while ingest runs", busy)):
        for name, row in rows.items():
            label = f"{name}, {phase}"
            print(f"{label:<30} {row['p50_ms']:>7.2f} {row['p99_ms']:>7.2f} {row['max_ms']:>7.2f}  of {row['of']}")
    held = statistics.median(b / a for a, b in zip(rates["alone"], rates["with requests"], strict=True))
    print(
        f"ingest: {statistics.median(rates['alone']):,.0f} events/s alone, "
        f"{statistics.median(rates['with requests']):,.0f} with requests: {held:.2f} of it is held"
    )
    found = {"pages": args.pages, "idle": idle, "busy": busy, "ingest_events_per_s": rates, "ingest_held": held}
    write_result("latency", found, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
