"""How many items a second does the service take over URLFrontier's calls, durably, and how fast are its pages?

The service runs as its command on the bundled store, which syncs its file before each answer. One client sends streams
of items: Known ones with 40 links each, then Discovered ones whose parents follow in the same stream. Then it asks for
pages, one call after the other. Client and service share the machine. Before a figure is reported, all items were
answered with OK, and every read and link took effect.

    python benchmarks/bench_urlfrontier.py --items 20000
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from harness import write_result
from workloads import LINKS, SEED

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from ports import free_port
from processes import wait_until
from urlfrontier_client import OK, Stub, connected, discovered, known, served_by_command

from opic.urlfrontier import urlfrontier_pb2 as pb

HOSTS, CHILDREN = 500, 40
CALLS, PAGES_A_CALL = 200, 10
EFFECT_SECONDS_MAX = 120.0


def rate(stub: Stub, items: Sequence[pb.URLItem]) -> float:
    """Put items; return how many were answered a second."""
    started = time.perf_counter()
    statuses = [ack.status for ack in stub.PutURLs(iter(items))]
    seconds = time.perf_counter() - started
    if statuses != [OK] * len(items):
        raise SystemExit(f"{len(statuses) - statuses.count(OK):,} of {len(items):,} items were not taken")
    return len(items) / seconds


def check(url: str, reads: int, links: int) -> None:
    """Wait until exactly these reads and links have taken effect."""
    wanted = {'opic_events_total{outcome="read"}': reads, "opic_links_total": links}

    def counted() -> bool:
        lines = [line.split() for line in httpx.get(f"{url}/metrics").text.splitlines()]
        return {line[0]: float(line[1]) for line in lines if line[0] in wanted} == wanted

    wait_until(counted, EFFECT_SECONDS_MAX)


def main() -> int:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--result", type=Path)
    args = parser.parse_args()
    draw = random.Random(SEED)
    urls = [f"http://h{number % HOSTS}.example/{number}" for number in range(args.items)]
    fetched = [
        known(url, {"fetch.statusCode": "200", "opic.links": draw.sample(urls, min(LINKS, len(urls)))}) for url in urls
    ]
    parents = urls[: -(-args.items // CHILDREN)]
    children = [
        discovered(f"http://n{number % HOSTS}.example/{number}", {"url.path": parents[number // CHILDREN]})
        for number in range(args.items)
    ]
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        tempfile.TemporaryDirectory(prefix="opic-bench-") as name,
        served_by_command(Path(name), port) as (_, address),
        connected(address) as stub,
    ):
        known_per_s = rate(stub, fetched)
        links = sum(len(set(item.known.info.metadata["opic.links"].values) - {item.known.info.url}) for item in fetched)
        check(url, len(urls), links)
        discovered_per_s = rate(stub, [*children, *(known(parent, {"fetch.statusCode": "200"}) for parent in parents)])
        check(url, len(urls) + len(parents), links + len(children))
        times = []
        for _ in range(CALLS):
            started = time.perf_counter()
            stub.take(max_urls_per_queue=1, max_queues=PAGES_A_CALL)
            times.append(1_000 * (time.perf_counter() - started))
    found = {
        "items": args.items,
        "known_per_s": known_per_s,
        "discovered_per_s": discovered_per_s,
        "get_urls_ms": {"p50": statistics.median(times), "p99": statistics.quantiles(times, n=100)[98]},
    }
    print(f"Known items with {LINKS} links: {known_per_s:,.0f} a second; Discovered items: {discovered_per_s:,.0f}")
    print(f"GetURLs of up to {PAGES_A_CALL} queues: {found['get_urls_ms']}")
    write_result("urlfrontier", found, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
