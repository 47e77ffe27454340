"""Does a crawl that forgets by the rule stay of one size while the web is endless, and what does that cost?

Two services, as `opic serve --embedded` starts them, get the same events: one forgets by the rule, the other keeps all
pages. The web is generated, and has no end: each time a page is fetched it shows some of its links of before, and new
pages, on hosts with heavy-tailed sizes; some new pages are linked to again by others, most never. A crawler fetches
what the first service says: mostly pages read before, a few that were never read.

Sampled all the time: known pages, ids, memory of store, worker and endpoint. Halfway and at the end the first service
is moved to a new crawl, which gives the ids of forgotten pages back, and started again with it, as docs/operations.md
says. Before that, the importance of what it still knows is compared with that of the crawl that keeps all.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import httpx
import redis
from harness import write_result

from opic.client import Client
from opic.service.embedded import EmbeddedServer
from opic.service.service_file import address_of

SEED: Final = 20_252
START_PAGES: Final = 2_000
KEPT_LINKS, NEW_LINKS = 8, 12  # That a fetch shows: of the page's fetch before, and others.
SHARE_OF_RECENT: Final = 0.3  # Of the latter that lead to a page that was new a moment ago, the rest to new pages.
RECENT: Final = 4_000
SHARE_OF_DISCOVERY: Final = 0.02  # Of fetches that are of pages never read.
SAMPLE_SECONDS: Final = 15.0
TAIL: Final = 1.2  # Exponent of the sizes of hosts.
WAIT_SECONDS: Final = 120.0
TOP: Final = 1_000


class EndlessWeb:
    """Pages with links, made as they are fetched."""

    def __init__(self, seed: int) -> None:
        """Make no page yet."""
        self._draw, self._made, self._shown = random.Random(seed), 0, dict[str, list[str]]()
        self._recent: deque[str] = deque(maxlen=RECENT)

    def new_page(self) -> str:
        """Return the URL of a page that nobody has seen."""
        self._made += 1
        host = int(self._draw.paretovariate(TAIL - 1) * 7) % 5_000_000
        return f"https://www.h{host}.example/stories/{self._made}.html"

    def fetched(self, url: str) -> dict[str, Any]:
        """Return the crawl event of a fetch of a page."""
        draw, before = self._draw, self._shown.get(url, [])
        links = draw.sample(before, min(KEPT_LINKS, len(before)))
        for _ in range(NEW_LINKS):
            if self._recent and draw.random() < SHARE_OF_RECENT:
                # The square favours some pages: those are linked to many times.
                links.append(self._recent[int(len(self._recent) * draw.random() ** 2)])
            else:
                links.append(page := self.new_page())
                self._recent.append(page)
        self._shown[url] = links
        return {"url": url, "links": links}


class Running:
    """A service that runs, and what it takes."""

    def __init__(self, data: Path, **settings: str) -> None:
        """Start it."""
        self.data, self.crawl, self._settings = data, "default", settings
        self._start()

    def _start(self) -> None:
        common = {"OPIC_HOST_DELAY_SECONDS": "0", "OPIC_REVISIT_SECONDS": "0", "OPIC_CRAWL": self.crawl}
        command = [sys.executable, "-m", "opic", "serve", "--embedded", "--data", str(self.data), "--port", "0"]
        self.process = subprocess.Popen(
            command, stderr=(self.data / "serve.log").open("a"), env=os.environ | common | self._settings
        )
        while (address := address_of(self.data)) is None:
            if self.process.poll() is not None:
                raise SystemExit(f"FAIL: the service ended: {(self.data / 'serve.log').read_text()[-2_000:]}")
            time.sleep(0.1)
        self._url = address.url
        self.client = Client(address.url, crawler="bench", timeout_seconds=60)
        store = EmbeddedServer.running(self.data)
        assert store is not None
        self.store = redis.Redis.from_url(store)

    def stop(self) -> None:
        """End it."""
        self.client.close()
        self.process.terminate()
        self.process.wait(60)

    def move(self, name: str) -> str:
        """Move it to a new crawl, start it again with that, and delete the old one; return what the command says."""
        command = [sys.executable, "-m", "opic"]
        told = subprocess.run(
            [*command, "migrate", name, "--shards", "1", "--crawl", self.crawl, "--data", str(self.data), "--json"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        self.stop()
        before, self.crawl = self.crawl, name
        self._start()
        subprocess.run(
            [*command, "crawls", "--delete", before, "--data", str(self.data), "--yes", "--force"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return told

    def metric(self, name: str) -> float:
        """Return the sum of a metric."""
        lines = [line for line in self._metrics().splitlines() if line.startswith(name) and not line.startswith("#")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def _metrics(self) -> str:
        return httpx.get(f"{self._url}/metrics", timeout=60).text

    def sample(self) -> dict[str, float]:
        """Return its sizes, in pages and megabytes."""
        stats = self.client.stats()
        return {
            "known_pages": stats.known_pages,
            "read_pages": stats.read_pages,
            "ids": self.metric("opic_replica_pages"),
            "store_mb": round(self.store.info("memory")["used_memory"] / 1e6, 1),
            "worker_mb": _resident_mb(next(iter(_children(self.process.pid, "worker")), 0)),
            "endpoint_mb": _resident_mb(self.process.pid),
        }


def _children(parent: int, word: str) -> list[int]:
    """Return the processes with this parent and a word in their command."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (directory / "stat").read_text(), (directory / "cmdline").read_text()
        except OSError:  # It has ended.
            continue
        if int(stat.rsplit(") ", 1)[1].split()[1]) == parent and word in command:
            found.append(int(directory.name))
    return found


def _resident_mb(process: int) -> float:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def crawl_on(
    web: EndlessWeb, forgets: Running, keeps: Running, events_a_second: float, seconds: float, began: float
) -> list[dict[str, Any]]:
    """Fetch what the first service says, tell both, and sample both; return the samples."""
    samples, sample_at, started, fetched = list[dict[str, Any]](), time.monotonic(), time.monotonic(), 0
    while time.monotonic() - started < seconds:
        behind = round((time.monotonic() - started) * events_a_second) - fetched
        if behind < 1:
            time.sleep(0.02)
            continue
        count = min(behind, 200)
        new = int(count * SHARE_OF_DISCOVERY + random.Random(fetched).random())
        pages = [*forgets.client.next(new, mode="discover").pages] if new else []
        pages += forgets.client.next(count - len(pages), mode="refresh").pages if len(pages) < count else []
        if not pages:
            time.sleep(0.05)
            continue
        events = [web.fetched(page.url) for page in pages]
        for service in (forgets, keeps):
            service.client.events(events)
        fetched += len(events)
        if time.monotonic() >= sample_at:
            sample_at += SAMPLE_SECONDS
            samples.append({
                "seconds": round(time.monotonic() - began),
                "forgets": forgets.sample(), "keeps_all": keeps.sample(),
            })  # fmt: skip
            print(samples[-1], flush=True)
    return samples


def settle(service: Running) -> None:
    """Wait until all events took effect."""
    began = time.monotonic()
    while service.client.stats().lag:
        time.sleep(0.2)
        if time.monotonic() - began > WAIT_SECONDS:
            raise SystemExit("FAIL: events wait")


def accuracy(forgets: Running, keeps: Running) -> dict[str, Any]:
    """Compare the importance of the pages that one still knows with what the other says of all pages."""
    importance, after = dict[str, float](), None
    while True:
        answer = forgets.client.top(1_000, after=after)
        importance |= {page.url: page.importance for page in answer.pages}
        if (after := answer.next) is None:
            break
    urls, whole = list(importance), dict[str, float]()
    for first in range(0, len(urls), 5_000):
        for page in keeps.client.importances(urls[first : first + 5_000]).pages:
            whole[page.url] = page.importance or 0.0
    left = sum(whole.values())
    moved = sum(abs(importance[url] - whole[url] / left) for url in urls)
    best = {page.url for page in keeps.client.top(TOP).pages}
    kept_best = [url for url in best if url in importance]
    order = sorted(importance, key=importance.__getitem__, reverse=True)[:TOP]
    read = {page.url for page in keeps.client.top(TOP, state="read").pages}
    return {
        "pages_compared": len(urls),
        "importance_of_forgotten": round(1 - left, 4),
        "l1_of_those_kept": round(moved, 4),
        f"top_{TOP}_of_all_still_known": len(kept_best),
        f"top_{TOP}_in_both": len(best & set(order)),
        f"top_{TOP}_of_read_pages_known": len(read & importance.keys()),
        "error_bounds": [service.client.stats().error_bound for service in (forgets, keeps)],
    }


def run(directory: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run both services; return the figures."""
    web, moves = EndlessWeb(SEED), list[str]()
    rule = {"OPIC_EXPIRE_BELOW": str(args.below), "OPIC_EXPIRE_AFTER_SECONDS": str(args.after)}
    (directory / "a").mkdir()
    (directory / "b").mkdir()
    forgets, keeps = Running(directory / "a", **rule), Running(directory / "b")
    try:
        start = [web.new_page() for _ in range(START_PAGES)]
        for service in (forgets, keeps):
            service.client.seed(start)
        for first in range(0, START_PAGES, 500):
            events = [web.fetched(url) for url in start[first : first + 500]]
            for service in (forgets, keeps):
                service.client.events(events)
        began, samples = time.monotonic(), list[dict[str, Any]]()
        for part in range(2):
            samples += crawl_on(web, forgets, keeps, args.rate, args.seconds / 2, began)
            settle(forgets)
            settle(keeps)
            last = {"forgets": forgets.sample(), "keeps_all": keeps.sample()}
            if part:
                found = accuracy(forgets, keeps)
            moves.append(forgets.move(f"moved-{part}"))
            moved = {"seconds": round(time.monotonic() - began), "moved": True, **last, "after_move": forgets.sample()}
            samples.append(moved)
            print(moved, flush=True)
        for service in (forgets, keeps):
            if not service.client.audit().conserved:
                raise SystemExit("FAIL: the books do not balance")
        return {"accuracy": found, "samples": samples, "audits_conserved": True}
    finally:
        forgets.stop()
        keeps.stop()


def main() -> int:
    """Run it, write the JSON."""
    parser = argparse.ArgumentParser(description="A crawl that forgets by the rule beside one that keeps all pages.")
    parser.add_argument("--seconds", type=float, default=480.0, help="of crawling, in all")
    parser.add_argument("--rate", type=float, default=100.0, help="events a second")
    parser.add_argument("--below", type=float, default=2e-5, help="OPIC_EXPIRE_BELOW")
    parser.add_argument("--after", type=float, default=60.0, help="OPIC_EXPIRE_AFTER_SECONDS")
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="opic-bench-") as directory:
        found = run(Path(directory), args)
    print(found["accuracy"])
    terms = {"seconds": args.seconds, "events_a_second": args.rate, "below": args.below, "after_seconds": args.after}
    write_result("expiry", {**terms, **found}, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
