"""How long does forgetting a tenth of all pages take, what do other calls feel meanwhile, and what memory comes back?

One service, as `opic serve --embedded` starts it: endpoint, worker and store. A tenth of its pages are of one domain,
and some of all pages were read, with links anywhere. The domain is forgotten over HTTP, while another client asks for
the next pages all the time. The audit has to balance, and the pages to be gone, before a time counts. The store's
memory is read once their URLs are gone from blocks and journal; and before, once a single page was forgotten, so that
all pages are in blocks both times. The peer of the latencies is the service before.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import redis
from harness import write_result

from opic.client import Client
from opic.service.embedded import EmbeddedServer
from opic.service.service_file import address_of
from opic.store.keys import Keys

PAGES, READS, LINKS, PAGES_A_HOST = 1_000_000, 20_000, 10, 100
DOMAIN, SHARE = "taken-away.example", 10
SEEDS_A_CALL, EVENTS_A_CALL = 10_000, 500
QUIET_CALLS, NEXT = 300, 10
WAIT_SECONDS = 120.0
SEED = 20231


def url_of(page: int) -> str:
    """Return the URL of a page; every tenth host is of the domain that is forgotten."""
    host = page // PAGES_A_HOST
    domain = DOMAIN if host % SHARE == 0 else "example.org"
    return f"https://www.h{host}.{domain}/articles/{page}.html"


def fill(client: Client, pages: int, reads: int) -> None:
    """Make the pages known, and read some."""
    draw = random.Random(SEED)
    for at in range(0, pages, SEEDS_A_CALL):
        client.seed([url_of(page) for page in range(at, min(at + SEEDS_A_CALL, pages))])
    for at in range(0, reads, EVENTS_A_CALL):
        count = min(EVENTS_A_CALL, reads - at)
        read = draw.sample(range(pages), count)
        client.events(
            {"url": url_of(page), "links": [url_of(draw.randrange(pages)) for _ in range(LINKS)]} for page in read
        )
    while client.stats().lag:
        time.sleep(0.1)


def ask(client: Client, took: list[float]) -> None:
    """Ask for the next pages, and give them back."""
    started = time.perf_counter()
    found = client.next(NEXT)
    took.append(time.perf_counter() - started)
    client.release(found.pages)


def summary(took: list[float]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    ordered = sorted(took)
    at = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    found = {
        name: round(ordered[min(int(part * len(ordered)), len(ordered) - 1)] * 1000, 2) for name, part in at.items()
    }
    return found | {"calls": len(ordered), "mean_ms": round(statistics.fmean(ordered) * 1000, 2)}


def await_purge(store: redis.Redis) -> float:
    """Wait until no URL of a forgotten page is stored; return the seconds that it took."""
    began = time.perf_counter()
    while store.hexists(Keys("default", 0).head, "forgot"):
        time.sleep(0.05)
        if time.perf_counter() - began > WAIT_SECONDS:
            raise SystemExit("FAIL: URLs of forgotten pages are still stored")
    return time.perf_counter() - began


def measure(client: Client, url: str, store: redis.Redis, pages: int) -> dict[str, Any]:
    """Forget the domain; return the figures, checked."""
    client.forget(url=url_of(PAGES_A_HOST))
    await_purge(store)
    pages -= 1
    before, quiet, busy, done = store.info("memory")["used_memory"], list[float](), list[float](), threading.Event()
    for _ in range(QUIET_CALLS):
        ask(client, quiet)

    asked = threading.Event()

    def asking() -> None:
        with Client(url, crawler="bench") as other:
            while not done.is_set():
                ask(other, busy)
                asked.set()

    thread = threading.Thread(target=asking)
    thread.start()
    asked.wait(WAIT_SECONDS)
    started, forgotten, calls, more = time.perf_counter(), 0, 0, True
    while more:
        answer = client.forget(domain=DOMAIN)
        forgotten, calls, more = forgotten + answer.forgotten, calls + 1, answer.more
    seconds = time.perf_counter() - started
    done.set()
    thread.join()
    purge_seconds = await_purge(store)
    after, audit = store.info("memory")["used_memory"], client.audit()
    if not audit.conserved or client.stats().known_pages != pages - forgotten or forgotten != (pages + 1) // SHARE:
        raise SystemExit(f"FAIL: {audit}, {forgotten:,} pages forgotten")
    return {
        "forgotten": forgotten,
        "calls": calls,
        "seconds": round(seconds, 2),
        "purged_after_seconds": round(purge_seconds, 2),
        "audit_conserved": audit.conserved,
        "store_bytes_before": before,
        "store_bytes_after": after,
        "bytes_back_a_page": round((before - after) / forgotten, 1),
        "next_before": summary(quiet),
        "next_meanwhile": summary(busy),
    }


def main() -> int:
    """Start a service, fill it, forget, write the JSON."""
    parser = argparse.ArgumentParser(
        description="Seconds to forget pages, latencies meanwhile, memory that comes back."
    )
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--reads", type=int, default=READS)
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as directory:
        data = Path(directory)
        command = [sys.executable, "-m", "opic", "serve", "--embedded", "--data", str(data), "--port", "0"]
        service = subprocess.Popen(
            command, stderr=subprocess.DEVNULL, env=os.environ | {"OPIC_HOST_DELAY_SECONDS": "0"}
        )
        try:
            while (address := address_of(data)) is None:
                time.sleep(0.1)
            with Client(address.url, crawler="bench") as client:
                fill(client, args.pages, args.reads)
                running = EmbeddedServer.running(data)
                assert running is not None
                found = measure(client, address.url, redis.Redis.from_url(running), args.pages)
        finally:
            service.terminate()
            service.wait()
    for name, value in found.items():
        print(f"{name:<24} {value}")
    write_result("forget", {"pages": args.pages, "reads": args.reads, "links": LINKS, **found}, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
