"""The call for the next ten pages, beside other frontiers with the same pages: one caller, all taking turns.

scrapy-redis' PriorityQueue is a sorted set on the same Redis server, one page a pop: the order is that of the priority
when a page was pushed. A page popped is gone: no lease, nothing comes back if its crawler dies. No delay of hosts:
Scrapy's downloader waits, in each process for itself. The queue lives on over restarts.

Frontera's memory backend is a heap in the crawler's own process: the order is that of the score when a page was
scheduled. No lease, no delay of hosts (the caller names busy ones to a buffer beside the queue), no other process that
could ask, and nothing is kept over a restart.

Neither's order changes when a page earns more: it would have to be pushed again, and would be in the queue twice.
So what is compared is the price of the promises, not the same thing done faster. The order of each is compared with
the pages' cash before a time counts. URLFrontier's service is not on Maven Central (its API is), so it is not here.

The peers are installed, in the versions that PEERS names, into environments of their own that are gone afterwards:
they want other versions of what opic uses. Without a package index that part is left out, and says so.
"""

import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from endpoint_world import Running, World, backend_of, greedy_pages, running
from http_load import percentiles
from workloads import SEED

from opic.frontier import Frontier

HERE = Path(__file__).parent / "peers"
PEERS = {
    "scrapy-redis": ("scrapy_redis_queue.py", ["scrapy-redis==0.9.1", "Scrapy==2.19.0", "redis==8.1.0"]),
    "frontera": ("frontera_memory.py", ["frontera==0.8.1", "w3lib==1.22.0", "six==1.17.0", "cityhash==0.4.10"]),
}
NOT_SYNCED = ", file not synced"  # The server's append-only file, else after every call.
NEXT = 10
ROUNDS = 3  # By turns, so that a neighbour's load falls on all alike.
INSTALL_SECONDS = 300


class Peer:
    """Another frontier, in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        """Wait until it is filled."""
        self._process = process
        self.filled = self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a peer ended; its words stand above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __call__(self, calls: int) -> tuple[list[float], list[str]]:
        """Return the times of calls for NEXT pages, in milliseconds, and the pages."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{calls} {NEXT}\n")
        self._process.stdin.flush()
        answer = self._answer()
        return answer["times_ms"], answer["urls"]


def install(name: str, directory: Path) -> Path | None:
    """Make an environment with a peer; return its Python, or None where that can't be."""
    environment = directory / name
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=INSTALL_SECONDS)
    python = environment / "bin" / "python"
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEERS[name][1]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    if done.returncode:
        print(f"{name} can't be installed, and is left out: {done.stderr.strip()[-300:]}")
        return None
    return python


@contextmanager
def peer(python: Path, name: str, socket: str, pages: Path) -> Iterator[Peer]:
    """Lend a peer that is filled."""
    command = [str(python), "-P", str(HERE / PEERS[name][0]), socket, str(pages)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Peer(process)
    finally:
        process.communicate()  # It ends when nothing more can come.


def in_process(frontier: Frontier, calls: int) -> tuple[list[float], list[str]]:
    """Ask a frontier of ours in this process."""
    times, urls = [], []
    for _ in range(calls):
        started = perf_counter()
        found = frontier.next(NEXT).pages
        times.append(1000 * (perf_counter() - started))
        urls += [page.url for page in found]
    return times, urls


def over_http(line: HTTPConnection, calls: int) -> tuple[list[float], list[str]]:
    """Ask the endpoint, on one connection."""
    times, urls = [], []
    for _ in range(calls):
        started = perf_counter()
        line.request("POST", "/v1/next", json.dumps({"n": NEXT}), {"Content-Type": "application/json"})
        found = json.loads(line.getresponse().read())["pages"]
        times.append(1000 * (perf_counter() - started))
        urls += [page["url"] for page in found]
    return times, urls


def in_order(name: str, urls: Sequence[str], cash: dict[str, int], first: Sequence[str] = ()) -> None:
    """See that no page came twice, and that the first ones are those with most cash, in this order."""
    assert len(urls) == len(set(urls)), f"{name}: a page came twice"
    best = sorted(cash.values(), reverse=True)[: len(first)]
    assert [cash[url] for url in first] == best, f"{name}: another order than that of the cash"


def beside_peers(world: World, directory: Path, calls: int) -> dict[str, Any]:
    """Time all frontiers on copies of one store."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="opic-peers-")))
        one: Running = stack.enter_context(running(world, directory))
        pages = greedy_pages(one.backend)
        file = scratch / "pages.txt"
        shuffled = random.Random(SEED).sample(pages, len(pages))  # As they come in a crawl: in no order.
        file.write_text("".join(f"{cash} {url}\n" for url, cash in shuffled))
        contenders: dict[str, Any] = {}
        rows: dict[str, dict[str, Any]] = {}
        for name in PEERS:
            if (python := install(name, scratch)) is not None:
                found = stack.enter_context(peer(python, name, one.server.url.removeprefix("unix://"), file))
                assert found.filled["pages"] == len(pages)
                contenders[name], rows[name] = found, {"fill_s": found.filled["fill_s"]}
        rude, polite = (
            stack.enter_context(backend_of(one.server, host_delay_seconds=delay)).frontier for delay in (0.0, 1.0)
        )
        line = HTTPConnection(urlsplit(one.endpoint()).netloc, timeout=60)
        stack.callback(line.close)
        if "scrapy-redis" in contenders:
            contenders[f"scrapy-redis{NOT_SYNCED}"] = contenders["scrapy-redis"]
        contenders["opic, no host delay"] = lambda calls: in_process(rude, calls)
        contenders[f"opic, no host delay{NOT_SYNCED}"] = contenders["opic, no host delay"]
        contenders["opic, host delay 1 s"] = lambda calls: in_process(polite, calls)
        contenders["opic, the same over HTTP"] = lambda calls: over_http(line, calls)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        given: dict[str, list[str]] = {name: [] for name in contenders}
        for turn in range(ROUNDS):
            for name, ask in contenders.items():
                one.backend.crawl.client.config_set("appendfsync", "no" if name.endswith(NOT_SYNCED) else "always")
                some, urls = ask(calls // ROUNDS)
                # What ours leased, its other rows are not given: only the first to ask has the greedy order whole.
                times[name] += some[1:] if turn == 0 else some  # The first answer loads the replicas.
                given[name] += urls
        cash = dict(pages)
        for name in ("frontera", "scrapy-redis", "opic, no host delay"):
            if name in given:  # What others of the same store were given meanwhile stands before the later rounds.
                in_order(name, given[name], cash, given[name][: NEXT * (calls // ROUNDS)])
        ours = [url for name, urls in given.items() if name.startswith("opic") for url in urls]
        in_order("opic", ours, cash)
        one.check()
    print(f"{f'next {NEXT}, one caller, by turns':<40} {'p50 ms':>9} {'p99 ms':>9} {'pages/s':>9}")
    for name, some in times.items():
        rows[name] = rows.get(name, {}) | percentiles(some) | {"pages_per_s": 1000 * NEXT / statistics.fmean(some)}
        figures = " ".join(f"{rows[name][key]:>9,.2f}" for key in ("p50_ms", "p99_ms", "pages_per_s"))
        print(f"  {name:<38} {figures}", flush=True)
    return rows
