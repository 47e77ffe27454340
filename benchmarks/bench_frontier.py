"""How long does a crawler wait for its next pages, while a worker ingests?  Pass --pages 1000000 to measure.

The store is filled in place, as by bench_query: real ids and URLs, columns made up so that the books balance; ten pages
a host, and one host that owns the hottest hundredth of all. Calls come 32 at a time, each for 10 pages, as the endpoint
puts them together, in this process, without HTTP. "quiet" is a store that rests, "busy" one whose worker, in a process
of its own, takes all the events it can. No page may be handed out twice and no host before its delay: that is checked
over all answers before a time counts. Peer: the same wishes one after the other.
"""

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
from bench_query import fill, ingest

from opic.embedded import EmbeddedServer
from opic.frontier import Frontier, Politeness
from opic.mirror import Mirror
from opic.store import Crawl, Shard, connect
from opic.urls import host_of

PAGES = 100_000
CALLERS, N = 32, 10
SECONDS = 5.0
DELAY_SECONDS = 1.0
SEED = 20030524
RESULT = Path(__file__).parent / "results" / "frontier.json"


class Answers:
    """What was handed out: each page once, each host at its times."""

    def __init__(self, lease_seconds: float) -> None:
        self.pages: set[str] = set()
        self.hosts: dict[str, list[float]] = {}
        self.lease_seconds = lease_seconds

    def take(self, answer: dict) -> None:
        """Check an answer and keep what it holds."""
        for page in answer["pages"]:
            assert page["url"] not in self.pages, f"{page['url']} was handed out twice"
            self.pages.add(page["url"])
            self.hosts.setdefault(host_of(page["url"]), []).append(page["lease_until"] - self.lease_seconds)

    def check_hosts(self) -> None:
        """No host before its delay."""
        for host, times in self.hosts.items():
            assert all(b - a > DELAY_SECONDS - 1e-5 for a, b in pairwise(sorted(times))), host


def ask(frontier: Frontier, answers: Answers, seconds: float, together: int) -> dict[str, float]:
    """Ask for pages for some seconds; return what CALLERS calls took, and how many calls a second were made."""
    took, calls, end = [], 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        for _ in range(CALLERS // together):
            for answer in frontier.next_many([frontier.wish(N) for _ in range(together)]):
                answers.take(answer)
        took.append(1000 * (time.perf_counter() - started))
        calls += CALLERS
    p50, p99 = np.percentile(took, [50, 99])
    row = {"p50_ms": p50, "p99_ms": p99, "max_ms": max(took), "calls_s": 1000 * calls / sum(took)}
    return {name: round(float(value), 2) for name, value in row.items()}


def main() -> int:
    """Measure, print, and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=PAGES)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--profile", type=Path, help="write a cProfile of the busy calls there")
    options = parser.parse_args()
    with ExitStack() as stack:
        server = EmbeddedServer(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="opic-bench-"))))
        server.start()
        stack.callback(server.stop)
        client = stack.enter_context(connect(server.url))
        client.config_set("appendfsync", "no")
        shard = Shard.open(client, "bench")
        fill(shard, options.pages)
        client.config_set("appendfsync", "always")
        crawl = Crawl([shard])
        # Leases outlast the run, so that no page comes twice by right.
        politeness = Politeness(DELAY_SECONDS, 3_600.0, 3_600.0)
        frontier, answers = Frontier(crawl, Mirror(crawl), politeness), Answers(3_600.0)
        rows: dict[str, dict[str, float]] = {}
        print("filled", flush=True)
        started = time.perf_counter()
        answers.take(frontier.next(N))
        rows["cold, one call"] = {"p50_ms": round(1000 * (time.perf_counter() - started), 2)}
        rows["quiet, together"] = ask(frontier, answers, options.seconds, CALLERS)
        rows["quiet, one by one"] = ask(frontier, answers, options.seconds, 1)
        urls = list(shard.urls_of(range(0, options.pages, max(1, options.pages // 100_000))).values())
        random.Random(SEED).shuffle(urls)
        spawn = multiprocessing.get_context("spawn")
        events, stop = spawn.Value("q", 0), spawn.Event()
        worker = spawn.Process(target=ingest, args=(server.url, "bench", urls, events, stop), daemon=True)
        worker.start()
        while not events.value:
            time.sleep(0.1)
        # The worker reads pages that were handed out too: from now on a page may come again by right.
        for name, together in (("busy, together", CALLERS), ("busy, one by one", 1)):
            answers.pages.clear()
            before, began = events.value, time.perf_counter()
            if options.profile and together > 1:
                import cProfile

                profile = cProfile.Profile()
                profile.enable()
            answers_now = Answers(3_600.0)
            answers_now.pages = _Unchecked()
            rows[name] = ask(frontier, answers_now, options.seconds, together)
            if options.profile and together > 1:
                profile.disable()
                profile.dump_stats(options.profile)
            rows[name]["events_s"] = round((events.value - before) / (time.perf_counter() - began))
            answers_now.check_hosts()
        stop.set()
        worker.join(10)
        answers.check_hosts()
    for name, row in rows.items():
        print(f"{name:<22}" + "".join(f"  {key} {value:>9.2f}" for key, value in row.items()))
    kept = {
        "question": __doc__.splitlines()[0],
        "pages": options.pages,
        "rows": rows,
        "command": f"bench_frontier.py --pages {options.pages} --seconds {options.seconds:g}",
    }
    kept |= {"date": datetime.now(UTC).isoformat(timespec="seconds"), "handed_out_once": len(answers.pages)}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(kept, indent=2) + "\n")
    return 0


class _Unchecked(set):
    """Takes the same page again: a read ends a lease, and the page may have new cash."""

    def __contains__(self, page: object) -> bool:
        return False


if __name__ == "__main__":
    sys.exit(main())
