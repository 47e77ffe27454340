"""A store of many pages made once, and the real processes on copies of it: server, worker, endpoints.

Pages become known and get their cash by the worker's own code: all as seeds, then events that read some of them. The
server then rewrites its file, and whoever wants this store starts a server on a copy: a second, not a minute.
"""

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from harness import RECORD_TIME_US, SEEDS_A_RECORD
from workloads import SEED, Crawl

import opic
from opic.model.cash import Flag
from opic.model.events import encode_seeds
from opic.service.backend import Backend
from opic.service.embedded import EmbeddedServer
from opic.settings import Settings

ROOT = Path(opic.__file__).resolve().parents[1]  # Of the checkout that is measured.
PLAIN = {"keep_links": False}  # The figures are those of the mode without links, unless settings say otherwise.
NEW_SHARE = 0.1  # Of an event's links.
READ_STRIDE = 20  # Events read one page in twenty; the others keep their leases, which a read would end.
SEEDS_A_TURN = 100_000  # The log keeps what did not take effect yet.
EVENTS_A_TURN = 5_000
PACE = 6_000  # Events a second that the worker is thought to take, until it was seen to take more.
LEAD_SECONDS, FEED_SECONDS = 2.0, 0.25  # So much waits for it; how often that is looked at.
PACED_SECONDS = 0.025  # Between two looks whether events are due, where they come by the clock.
PATIENCE_SECONDS = 120.0
START = "import sys; from opic.cli.main import main; sys.exit(main())"


@dataclass(slots=True)
class World:
    """A filled store, closed, and what is in it."""

    data: Path
    urls: list[str]  # All that were known at the start.
    read: frozenset[str]  # Those that events may read, now or later.
    events: list[bytes]  # For the worker while we measure; they come again when they are through.
    about: dict[str, Any]


def make_world(
    data: Path, pages: int, hosts: int, shards: int, read: int, waiting: int, read_share: float = 0.0, **settings: Any
) -> World:
    """Fill a store and close it.

    Args:
        data: a directory of its own.
        pages: known at first.
        hosts: they are on, as many on each.
        shards: of the crawl.
        read: events that take effect before anything is measured: they give pages cash and history.
        waiting: events made for the worker to take while we measure.
        read_share: this share of the pages is read once before all that.
        settings: of the service that fills the store.
    """
    started = time.perf_counter()
    crawl = Crawl(pages, pages // hosts)
    urls = crawl.urls()
    first = [crawl.event(round(nth / read_share), 0.0) for nth in range(int(pages * read_share))]
    choice = random.Random(SEED)
    read_ones = range(READ_STRIDE // 2, pages, READ_STRIDE)
    made = first + [crawl.event(choice.choice(read_ones), NEW_SHARE) for _ in range(read + waiting)]
    read += len(first)
    generated, started = time.perf_counter() - started, time.perf_counter()
    with server_on(data) as server, backend_of(server, shards=shards, **settings) as backend:
        for at in range(0, pages, SEEDS_A_TURN):
            some = urls[at : at + SEEDS_A_TURN]
            seeds = [encode_seeds(some[i : i + SEEDS_A_RECORD]) for i in range(0, len(some), SEEDS_A_RECORD)]
            backend.settle_here(backend.accept(seeds, "seeds", RECORD_TIME_US))
        seeded, started = time.perf_counter() - started, time.perf_counter()
        for at in range(0, read, EVENTS_A_TURN):
            some_events = made[at : min(at + EVENTS_A_TURN, read)]
            backend.settle_here(backend.accept(some_events, "event", RECORD_TIME_US))
        fed, started = time.perf_counter() - started, time.perf_counter()
        known = backend.crawl.totals().live
        assert backend.crawl.audit()[0].conserved
        client = backend.crawl.client
        client.bgrewriteaof()
        wait_for("the server rewrites its file", lambda: not _rewrites(client))
        rewritten = time.perf_counter() - started
    about = {
        "pages": pages,
        "hosts": hosts,
        "shards": shards,
        "known_pages": known,
        "events_generated_s": round(generated, 1),
        "seeded_s": round(seeded, 1),
        "fed_s": round(fed, 1),
        "fed_events": read,
        "rewritten_s": round(rewritten, 1),
    }
    return World(data, urls, readable(urls), made[read:], about)


def kept_world(data: Path, pages: int, hosts: int, shards: int, read: int, waiting: int, **more: Any) -> World:
    """Return a world as `make_world` does, or the one that was kept in this directory."""
    asked = [pages, hosts, shards, read, waiting, SEED, *map(str, more.items())]
    kept = data / "world.msgpack"
    if kept.exists():
        found = msgpack.unpackb(kept.read_bytes())
        if found["asked"] != asked:
            raise SystemExit(f"{data} keeps another world: {found['asked']}, not {asked}")
        urls = Crawl(pages, pages // hosts).urls()
        return World(data, urls, readable(urls), found["events"], found["about"])
    world = make_world(data, pages, hosts, shards, read, waiting, **more)
    kept.write_bytes(msgpack.packb({"asked": asked, "events": world.events, "about": world.about}))
    return world


def readable(urls: Sequence[str]) -> frozenset[str]:
    """Return the pages that events may read."""
    return frozenset(urls[READ_STRIDE // 2 :: READ_STRIDE])


def _rewrites(client: Any) -> bool:
    found = client.info("persistence")
    return bool(found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])


def wait_for(what: str, done: Any, seconds: float = PATIENCE_SECONDS) -> None:
    """Return once something is so."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited for {seconds:g} s in vain: {what}")
        time.sleep(0.02)


@contextmanager
def server_on(data: Path) -> Iterator[EmbeddedServer]:
    """Lend a server with the settings of the embedded store, on a directory."""
    server = EmbeddedServer(data)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def backend_of(server: EmbeddedServer, **settings: Any) -> Iterator[Backend]:
    """Lend a service's backend in this process."""
    backend = Backend(Settings(store=server.url, max_lag=1_000_000_000, **{**PLAIN, **settings}), server.url)
    try:
        yield backend
    finally:
        backend.close()


class Running:
    """A copy of a world, on a server of its own, with processes that are ended at the end."""

    def __init__(self, world: World, server: EmbeddedServer, backend: Backend, settings: dict[str, Any]) -> None:
        """Nothing but the server runs yet."""
        self.world, self.server, self.backend = world, server, backend
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("OPIC_")}
        self._environment["OPIC_REVISIT_SECONDS"] = "0"  # The pages of the world were read a moment ago.
        self._environment |= {f"OPIC_{name.upper()}": str(value) for name, value in {**PLAIN, **settings}.items()}
        self._environment |= {"OPIC_STORE": server.url, "PYTHONPATH": str(ROOT)}
        self._partition = next(iter(backend.log.ends()))
        self._next_event, self._pace = 0, float(PACE)
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def endpoint(self) -> str:
        """Start an endpoint process; return its URL once it listens."""
        name = f"endpoint {sum(one.startswith('endpoint') for one in self.processes) + 1}"
        process = self._start(name, "-c", START, "serve", "--port", "0")
        assert process.stdout is not None
        line = process.stdout.readline()
        if "http" not in line:
            raise SystemExit(f"the endpoint did not start: {self.said()}")
        return line[line.index("http") :].split(",")[0].strip()

    def worker(self) -> None:
        """Start the worker's process; return once it took something."""
        self.feed()
        before = self.applied()
        self._start("worker", "-m", "consumers.crawl_events")
        wait_for("the worker takes events", lambda: self.applied() > before)

    def _start(self, name: str, *arguments: str) -> "subprocess.Popen[str]":
        # -P: not what lies in the working directory.
        with (self.server.data / "errors.txt").open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environment,
                cwd=ROOT,
            )
        self.processes[name] = process
        return process

    def said(self) -> str:
        """Return the last words of the processes."""
        return (self.server.data / "errors.txt").read_text()[-2000:]

    def applied(self) -> int:
        """Return how many records have taken effect."""
        return self.backend.crawl.resume(self._partition)

    def lag(self) -> int:
        """Return how many wait."""
        return self.backend.log.ends()[self._partition] - self.applied()

    def feed(self) -> None:
        """Let events wait, so many that the worker is busy for the next while."""
        lack, events = round(LEAD_SECONDS * self._pace) - self.lag(), self.world.events
        while lack > 0:
            some = events[self._next_event : self._next_event + min(lack, EVENTS_A_TURN)]
            self.backend.accept(some, "event", RECORD_TIME_US)
            self._next_event = (self._next_event + len(some)) % len(events)
            lack -= len(some)

    def keep_fed(self, done: threading.Event) -> None:
        """Feed the worker until told to end.

        Raises:
            SystemExit: it had nothing to do for a while, which makes an endpoint look fast.
        """
        before, looked, empty = self.applied(), time.perf_counter(), 0
        while not done.wait(FEED_SECONDS):
            empty += not self.lag()
            applied, now = self.applied(), time.perf_counter()
            self._pace = max(self._pace, (applied - before) / (now - looked))
            before, looked = applied, now
            self.feed()
        if empty > 1:
            raise SystemExit(f"the worker ran out of events {empty} times: raise LEAD_SECONDS")

    def keep_pace(self, done: threading.Event, events_per_s: float) -> None:
        """Let events come by the clock until told to end; late ones come together."""
        started, sent, events = time.perf_counter(), 0, self.world.events
        while not done.wait(PACED_SECONDS):
            due = round((time.perf_counter() - started) * events_per_s)
            self.backend.accept([events[(self._next_event + i) % len(events)] for i in range(due - sent)])
            self._next_event, sent = (self._next_event + due - sent) % len(events), due

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time so far of the processes, by name, and of the server's."""
        pids = {name: process.pid for name, process in self.processes.items()}
        assert self.server.process is not None
        found = {}
        for name, pid in (pids | {"store": self.server.process.pid}).items():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return found

    def memory_mb(self, name: str) -> float:
        """Return the resident memory of a process."""
        status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def check(self) -> None:
        """See that the books balance, and that no process ended by itself."""
        ended = [name for name, process in self.processes.items() if process.poll() is not None]
        if ended:
            raise SystemExit(f"ended by itself: {ended}: {self.said()}")
        audit = self.backend.crawl.audit()[0]
        if not audit.conserved:
            raise SystemExit(f"not conserved: {audit}")

    def close(self) -> None:
        """End the processes."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait()


@contextmanager
def running(world: World, directory: Path, **settings: Any) -> Iterator[Running]:
    """Lend a copy of a world; settings by name, for the processes."""
    data = directory / "copy"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    shutil.copytree(world.data / "store", data / "store")
    kept = {name: settings[name] for name in PLAIN if name in settings}
    with server_on(data) as server, backend_of(server, **kept) as backend:
        one = Running(world, server, backend, settings)
        try:
            yield one
        finally:
            one.close()


class Stretch:
    """What happens in a stretch of time: events that take effect, CPU time that is used.

    A worker is kept busy, or gets so many events a second.

    >>> with Stretch(running) as stretch:  # doctest: +SKIP
    ...     ask_something()
    >>> stretch.events_per_s  # doctest: +SKIP
    """

    def __init__(self, one: Running, pace_events_per_s: float | None = None) -> None:
        """Nothing is counted yet."""
        self._one, self._pace, self.events_per_s = one, pace_events_per_s, 0.0
        self.cpu_share: dict[str, float] = {}  # Of one core, by process.
        self._stack = ExitStack()

    def __enter__(self) -> "Stretch":
        """Begin."""
        if "worker" in self._one.processes:
            done, thread = threading.Event(), self._stack.enter_context(ThreadPoolExecutor(1))
            if self._pace is not None:
                feeding = thread.submit(self._one.keep_pace, done, self._pace)
            else:
                self._one.feed()
                feeding = thread.submit(self._one.keep_fed, done)
            self._stack.callback(lambda: (done.set(), feeding.result()))
        self._cpu, self._before, self._started = self._one.cpu_seconds(), self._one.applied(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        took, done = time.perf_counter() - self._started, self._one.applied() - self._before
        self.events_per_s = done / took
        self.cpu_share = {name: (cpu - self._cpu[name]) / took for name, cpu in self._one.cpu_seconds().items()}
        self._stack.close()


def greedy_pages(backend: Backend) -> Sequence[tuple[str, int]]:
    """Return all pages with cash that may be offered, most first, as a snapshot has them."""
    snapshot = backend.snapshots.fresh()
    cash = np.abs(np.where((snapshot.state & Flag.OPEN) != 0, snapshot.cash, np.maximum(snapshot.cash, 0)))
    fit = np.flatnonzero(((snapshot.state & (Flag.KNOWN | Flag.GONE | Flag.EXCLUDED)) == Flag.KNOWN) & (cash > 0))
    order = fit[np.argsort(-cash[fit], kind="stable")]
    places = snapshot.places(order)
    urls = backend.crawl.urls_of(places)
    return [(urls[place], cash) for place, cash in zip(places, snapshot.cash[order].tolist(), strict=True)]
