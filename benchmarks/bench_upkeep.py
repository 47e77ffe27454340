"""How soon does an answer show a write, and at what cost, on crawls from a thousand pages to some hundred thousand?

The whole service runs with links kept, its endpoint in this process. First seeds become known one by one, and each is
asked for at once, without a position: how many are shown, and how long the question takes. Then one caller asks for the
importance of pages at random, each question after the answer to the last, while events come at a steady rate.

    python benchmarks/bench_upkeep.py --pages 1000 10000 --seconds 2
"""

import argparse
import random
import tempfile
import threading
import time
from pathlib import Path

import httpx
import numpy as np
from harness import served, write_result
from workloads import SEED

PAGES = (1_000, 10_000, 30_000, 100_000, 300_000)
LINKS, EVENTS_A_CALL = 10, 1_000
EVENTS_PER_S, EVENTS_A_WRITE = 200, 10


def page(number: int) -> str:
    """Return the URL of a page."""
    return f"http://h{number // 10}.example/{number}"


def fill(http: httpx.Client, pages: int) -> None:
    """Read one page in ten; the links of these make all pages known."""
    for first in range(0, pages, LINKS * EVENTS_A_CALL):
        events = [
            {"url": page(number), "links": [page(number + link) for link in range(1, LINKS)]}
            for number in range(first, min(first + LINKS * EVENTS_A_CALL, pages), LINKS)
        ]
        post(http, "/v1/events", events)
    last = post(http, "/v1/events", [{"url": page(0), "links": [page(1)]}])["position"]
    http.get("/v1/stats", params={"after": last}).raise_for_status()


def post(http: httpx.Client, path: str, body: object) -> dict[str, str]:
    """Send a body; return the answer."""
    answer = http.post(path, json=body)
    answer.raise_for_status()
    parsed: dict[str, str] = answer.json()
    return parsed


def read_writes(http: httpx.Client, count: int) -> dict[str, float]:
    """Ask for pages as soon as they are known; return how many were shown, and the times."""
    shown, times = 0, []
    for number in range(count):
        url = f"http://new{number}.example/"
        post(http, "/v1/seeds", {"urls": [url]})
        began = time.perf_counter()
        answer = http.get("/v1/importance", params={"url": url})
        times.append(time.perf_counter() - began)
        shown += answer.status_code == 200 and answer.json()["importance"] > 0
    return {"shown_share": shown / count, **milliseconds(times)}


def ask_under_writes(http: httpx.Client, pages: int, seconds: float) -> dict[str, float]:
    """Ask one question after the other while events come; return rate, times, ages, and CPU of the process."""
    done, draw = threading.Event(), random.Random(SEED)

    def write() -> None:
        with httpx.Client(base_url=http.base_url, timeout=60) as writer:
            while not done.wait(EVENTS_A_WRITE / EVENTS_PER_S):
                read = [draw.randrange(pages) for _ in range(EVENTS_A_WRITE)]
                links = [[page(draw.randrange(pages)) for _ in range(LINKS)] for _ in read]
                post(writer, "/v1/events", [{"url": page(n), "links": to} for n, to in zip(read, links, strict=True)])

    thread = threading.Thread(target=write)
    thread.start()
    pick, times, ages = random.Random(SEED), list[float](), list[float]()
    cpu, began = time.process_time(), time.monotonic()
    while time.monotonic() - began < seconds:
        asked = time.perf_counter()
        answer = http.get("/v1/importance", params={"url": page(pick.randrange(pages))})
        times.append(time.perf_counter() - asked)
        ages.append(time.time() - answer.raise_for_status().json()["as_of"])
    taken = time.monotonic() - began
    found = {"requests_per_s": len(times) / taken, "cpu_share": (time.process_time() - cpu) / taken}
    done.set()
    thread.join()
    return {**found, **milliseconds(times), "age_p99_ms": 1e3 * float(np.percentile(ages, 99))}


def milliseconds(times: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile."""
    return {f"p{q}_ms": 1e3 * float(np.percentile(times, q)) for q in (50, 99)}


def main() -> None:
    """Measure each size; print and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pages", type=int, nargs="+", default=PAGES)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--writes", type=int, default=300)
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    rows = dict[str, dict[str, dict[str, float]]]()
    for pages in args.pages:
        with (
            tempfile.TemporaryDirectory(prefix="opic-bench-") as data,
            served(Path(data), keep_links=True) as url,
            httpx.Client(base_url=url, timeout=120) as http,
        ):
            fill(http, pages)
            written = read_writes(http, args.writes)
            rows[f"{pages}"] = {"written": written, "steady": ask_under_writes(http, pages, args.seconds)}
        for name, row in rows[f"{pages}"].items():
            print(f"{pages:>8,} {name:<8}", ", ".join(f"{key} {value:.3g}" for key, value in row.items()), flush=True)
    write_result("upkeep", {"events_per_s": EVENTS_PER_S, "pages": rows}, args.result)


if __name__ == "__main__":
    main()
