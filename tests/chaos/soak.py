"""A steady mixed load for hours, and whether anything grows: memory, descriptors, threads, CPU and disk of processes.

    python tests/chaos/soak.py --minutes 120 [--seed 7] [--pages 1000000] [--events 100] [--result FILE]

One store, one worker and two endpoints run as deploy/ starts them, with Kafka between endpoints and worker. Crawlers
lease and report pages; a third of their fetches fail. Pages go and others come; link farms are read, and a site that
never ends. In between, events are refused, hosts are forgotten and come back, definitions change, and backups are made.
Nothing is broken on purpose: the storm does that. In the end the books must be exact and the bound of exact importance
true. Each figure gets a slope (Theil and Sen's: the median of the slopes between all pairs of samples)
with an interval of 95 %, after a warm-up of a quarter of the time; and one of the last third, by which what levels off
is told from what grows on.
"""

import argparse
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import httpx
import numpy as np
import redis
from kafka_crawl import Topic, WorkerProcess
from kafka_server import Kafka, find_kafka
from processes import environment, wait_until
from scipy import stats
from servers import Binary, Missing, find_server

from chaos.refused_calls import REFUSED
from chaos.report import run_facts
from chaos.scene import Endpoint
from chaos.stores import PASSWORD, ShippedServer
from opic.settings import Settings
from opic.store.keys import Keys

HOSTS = 200
LINKS = 8
PARTITIONS = 2
CHURN_AN_HOUR = 0.05  # Share of the pages that go, and as many come.
FARMS, FARM_PAGES = 20, 5  # Hosts of a farm, and pages of each, which all link to one page.
TRAP_LINKS = 8  # New pages that each page of the trap links to.
HOST_PAGES_MIN = 100
HOST_SHARE = 4  # A host may have this many times the pages that the others have on average.
STATUSES, STATUS_WEIGHTS = [200, 500, 503, 0, 404], [0.65, 0.13, 0.1, 0.1, 0.02]
EVENTS_A_CALL = 20
TOPIC = {"retention.bytes": str(32 << 20), "segment.bytes": str(8 << 20)}  # A partition: else its disk only grows.
SAMPLE_SECONDS = 10.0
WARM_UP_SHARE = 0.25
LATE_SHARE = 2 / 3
LATENCIES_MAX = 100_000
CALL_SECONDS_MAX = 60.0
# Seconds between two of each.
NEXT_SECONDS, QUESTION_SECONDS, REFUSAL_SECONDS, DECEIT_SECONDS = 0.25, 0.05, 3.0, 1.0
FORGET_SECONDS, DEFINE_SECONDS, BACKUP_SECONDS = 15.0, 30.0, 300.0
SEEDS_A_CALL = 1_000
LAG_SECONDS_MAX = 300.0
WRONG_SHOWN = 5  # Of each kind.
ENTRY = re.compile(r"^(?=\d{4}-\d\d-\d\d )", re.MULTILINE)  # Where an entry of a log begins.


class Load:
    """The calls of all callers: what came back, and how long each took."""

    def __init__(self, urls: list[str], pages: int, seed: int, keyed: float) -> None:
        self.urls, self.seed, self.keyed = urls, seed, keyed
        self.pages = [page_of(number) for number in range(pages)]
        self._numbers, self._deep = itertools.count(pages), itertools.count()
        self.statuses: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []

    def every(self, name: str, seconds: float, act: Callable[[httpx.Client, random.Random], None]) -> None:
        """Do something each so many seconds in a thread, against the endpoints in turn; late turns are made up for."""

        def run() -> None:
            rng = random.Random(f"{self.seed}/{name}")
            with ExitStack() as stack:
                clients = [stack.enter_context(httpx.Client(base_url=u, timeout=CALL_SECONDS_MAX)) for u in self.urls]
                due = time.monotonic()
                while not self._done.wait(max(due - time.monotonic(), 0)):
                    try:
                        act(rng.choice(clients), rng)
                    except (httpx.HTTPError, AssertionError) as error:
                        self.wrong.append(f"{name}: {type(error).__name__}: {error}")
                    due = max(due + seconds, time.monotonic() - 10 * seconds)

        self._threads.append(threading.Thread(target=run, name=name))
        self._threads[-1].start()

    def end(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def call(self, client: httpx.Client, name: str, method: str, path: str, wanted: set[int], **given: Any) -> Any:
        """Make a call, note its status and time, and return the answer's JSON."""
        began = time.monotonic()
        answer = client.request(method, path, **given)
        self.seconds[name].append(time.monotonic() - began)
        self.statuses[f"{name} {answer.status_code}"] += 1
        assert answer.status_code in wanted, f"{method} {path}: {answer.status_code} {answer.text[:300]}"
        return answer.json() if answer.content else None

    # What callers do.

    def report(self, client: httpx.Client, rng: random.Random) -> None:
        """Events of pages, a third of them of failed fetches; a share of the calls is sent twice under one key."""
        events: list[dict[str, Any]] = []
        for page in rng.sample(self.pages, EVENTS_A_CALL):
            status = rng.choices(STATUSES, STATUS_WEIGHTS)[0]
            links = rng.sample(self.pages, LINKS) if status == 200 else []
            events.append({"url": page, "status": status, "links": links})
        keyed = {"Idempotency-Key": f"{rng.getrandbits(64):x}"} if rng.random() < self.keyed else {}
        for _ in range(1 + len(keyed)):
            self.call(client, "events", "POST", "/v1/events", {202}, json=events, headers=keyed)

    def fetch(self, client: httpx.Client, rng: random.Random) -> None:
        """Lease pages; report most, release some, let the rest expire."""
        wanted = {"n": 10, "crawler": f"crawler-{rng.randrange(3)}", "lease_seconds": 30}
        pages = self.call(client, "next", "POST", "/v1/next", {200}, json=wanted)["pages"]
        done = [page for page in pages if rng.random() < 0.8]
        if done:
            events = [{"url": page["url"], "links": rng.sample(self.pages, LINKS)} for page in done]
            self.call(client, "events", "POST", "/v1/events", {202}, json=events)
        left = [page["lease"] for page in pages if page not in done][::2]
        if left:
            self.call(client, "release", "POST", "/v1/release", {200}, json={"leases": left})

    def ask(self, client: httpx.Client, rng: random.Random) -> None:
        """A question."""
        url = rng.choice(self.pages)
        kind = rng.randrange(6)
        if kind == 0:
            self.call(client, "top", "GET", "/v1/top", {200}, params={"n": 50})
        elif kind == 1:
            self.call(client, "explain", "GET", "/v1/explain", {200, 404}, params={"url": url})
        elif kind == 2:
            asked = {"urls": rng.sample(self.pages, 100)}
            self.call(client, "importance of 100", "POST", "/v1/importance", {200}, json=asked)
        elif kind == 3:
            self.call(client, "hosts", "GET", "/v1/hosts", {200}, params={"n": 20})
        else:
            self.call(client, "importance", "GET", "/v1/importance", {200, 404}, params={"url": url})

    def refuse(self, client: httpx.Client, rng: random.Random) -> None:
        """A call that is refused: large bodies, bad ones, wrong calls."""
        one = rng.choice(REFUSED)
        self.call(client, "refused", one.method, one.path, one.wanted, **one.given)

    def churn(self, client: httpx.Client, rng: random.Random) -> None:
        """A page goes for good, and another comes: their number stays the same."""
        at = rng.randrange(len(self.pages))
        old, self.pages[at] = self.pages[at], page_of(next(self._numbers))
        self.call(client, "events", "POST", "/v1/events", {202}, json={"url": old, "status": 404})
        self.call(client, "forget a page", "DELETE", "/v1/pages", {200}, params={"url": old})
        self.call(client, "seeds", "POST", "/v1/seeds", {200}, json={"urls": [self.pages[at]]})

    def deceive(self, client: httpx.Client, rng: random.Random) -> None:
        """Pages of a link farm, and a page of a site that makes up links for ever."""
        farm = [f"http://farm{rng.randrange(FARMS)}.test/{rng.randrange(FARM_PAGES)}" for _ in range(LINKS)]
        deep = next(self._deep)
        trap = [f"http://trap.test/calendar/{deep * TRAP_LINKS + number + 1}" for number in range(TRAP_LINKS)]
        events = [
            {"url": farm[0], "links": ["http://boosted.test/", *farm[1:]]},
            {"url": f"http://trap.test/calendar/{deep}", "links": trap},
        ]
        self.call(client, "events", "POST", "/v1/events", {202}, json=events)

    def forget(self, client: httpx.Client, rng: random.Random) -> None:
        """Forget a host's pages; links of other pages make them known again."""
        self.call(client, "forget", "DELETE", "/v1/pages", {200}, params={"host": f"h{rng.randrange(HOSTS)}.example"})

    def define(self, client: httpx.Client, rng: random.Random) -> None:
        """Change rules and politeness, and take them away again. Classes want a topic of one partition."""
        host = f"h{rng.randrange(HOSTS)}.example"
        path, some, none = rng.choice(
            [
                ("/v1/rules", {"rules": [{"effect": "deny", "host": host, "path": "/1"}]}, {"rules": []}),
                ("/v1/politeness", {"hosts": {host: {"delay_seconds": 2}}}, {"hosts": {}}),
            ]
        )
        for body in (some, none):
            self.call(client, "define", "PUT", path, {200}, json=body)


def page_of(number: int) -> str:
    """Return the URL of a page, by its number."""
    return f"http://h{number % HOSTS}.example/{number}"


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, which other processes hardly change: latencies they do."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def key_sizes(store: redis.Redis) -> Counter[str]:
    """Return the bytes of the store's keys by kind, those of all blocks and partitions together."""
    sizes = Counter[str]()
    names = list(store.scan_iter(count=1_000))
    with store.pipeline(transaction=False) as asked:
        for name in names:
            asked.memory_usage(name)
        for name, size in zip(names, asked.execute(), strict=True):
            sizes[re.sub(rb":\d+$", b"", name.rpartition(b"}")[2]).decode().strip(":") or "other"] += size or 0
    return sizes


class Samples:
    """Figures of processes and folders over time."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.values: dict[str, list[float]] = defaultdict(list)
        self._cpu: dict[str, float] = {}  # Seconds so far, by process.
        self._kinds = set[str]()  # Of keys.

    def take(self, pids: dict[str, int], folders: dict[str, Path], store: redis.Redis, load: Load) -> None:
        """Sample everything once."""
        self.at.append(time.monotonic())
        for name, pid in pids.items():
            said = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            self.values[f"{name}: memory, MB"].append(int(said["RssAnon"].split()[0]) / 1024)
            self.values[f"{name}: threads"].append(float(said["Threads"]))
            self.values[f"{name}: descriptors"].append(float(len(list(Path(f"/proc/{pid}/fd").iterdir()))))
            cpu, since = cpu_seconds(pid), self.at[-1] - self.at[-2] if len(self.at) > 1 else np.nan
            self.values[f"{name}: CPU, % of a core"].append(100 * (cpu - self._cpu.get(name, np.nan)) / since)
            self._cpu[name] = cpu
        for name, folder in folders.items():
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            self.values[f"{name}: disk, MB"].append(size / 1e6)
        info: Any = store.info()
        self.values["store: used memory, MB"].append(info["used_memory"] / 1e6)
        self.values["store: keys"].append(float(info["db0"]["keys"]))
        sizes = key_sizes(store)
        self._kinds |= sizes.keys()
        for kind in sorted(self._kinds):
            self.values[f"store: {kind}, MB"].append(sizes[kind] / 1e6)
        calls: Any = store.hlen(Keys("soak", 0).calls)
        self.values["store: Idempotency-Keys, kept for a day"].append(float(calls))
        for name, seconds in sorted(load.seconds.items()):
            recent, load.seconds[name] = seconds[-LATENCIES_MAX:], []
            self.values[f"{name}: p50, ms"].append(1000 * float(np.median(recent)) if recent else np.nan)
            self.values[f"{name}: p99, ms"].append(1000 * float(np.percentile(recent, 99)) if recent else np.nan)

    def slopes(self) -> list[dict[str, Any]]:
        """The slope of each figure an hour, with its interval, after the warm-up."""
        rows = []
        for name, values in self.values.items():
            padded = np.array([np.nan] * (len(self.at) - len(values)) + values)
            hours = (np.array(self.at) - self.at[0]) / 3600
            used = (hours >= WARM_UP_SHARE * hours[-1]) & ~np.isnan(padded)
            if used.sum() < 6:
                continue
            found = stats.theilslopes(padded[used], hours[used])
            late = used & (hours >= LATE_SHARE * hours[-1])
            rows.append(
                {
                    "figure": name,
                    "median": round(float(np.median(padded[used])), 3),
                    "last": round(float(padded[used][-1]), 3),
                    "an_hour": round(float(found.slope), 4),
                    "interval": [round(float(found.low_slope), 4), round(float(found.high_slope), 4)],
                    "an_hour_late": round(float(stats.theilslopes(padded[late], hours[late]).slope), 4),
                }
            )
        return rows


def backups(url: str, folder: Path, load: Load, done: threading.Event) -> Iterator[str]:
    """Back the crawl up again and again, each into a new folder; the one before is removed. Yield what went wrong."""
    for number in itertools.count():
        if done.wait(BACKUP_SECONDS):
            return
        command = [sys.executable, "-m", "opic.cli.main", "backup", str(folder / str(number)), "--store", url]
        began = time.monotonic()
        said = subprocess.run(
            [*command, "--crawl", "soak"], env=environment(), capture_output=True, text=True, check=False
        )
        load.seconds["backup"].append(time.monotonic() - began)
        load.statuses[f"backup {said.returncode}"] += 1
        if said.returncode:
            yield f"backup: {said.stderr.strip()[-300:]}"
        shutil.rmtree(folder / str(number - 1), ignore_errors=True)


@dataclass
class World:
    """What runs."""

    server: ShippedServer
    kafka: Kafka
    settings: Settings
    worker: WorkerProcess
    endpoints: list[Endpoint]


def installed(binary: Binary | Missing) -> Binary:
    """Return a server's program; without it there is no soak."""
    assert isinstance(binary, Binary), binary.reason
    return binary


@contextmanager
def world(directory: Path, pages: int) -> Iterator[World]:
    """Start a store, Kafka, a worker and two endpoints."""
    with ExitStack() as stack:
        server = stack.enter_context(ShippedServer(installed(find_server("valkey"))))
        kafka = stack.enter_context(Kafka(installed(find_kafka())))
        topic = Topic(kafka, PARTITIONS, "soak", config=TOPIC)
        settings = Settings.load(
            kafka_bootstrap=kafka.bootstrap,
            kafka_topic=topic.name,
            crawl="soak",
            shards=1,
            store=f"unix://opic:{PASSWORD}@{server.socket_path}",
            host_delay_seconds=0.05,
            revisit_seconds=5,
            max_pages_per_host=max(HOST_SHARE * pages // HOSTS, HOST_PAGES_MIN),
        )
        worker = WorkerProcess(settings, directory / "worker.log")
        stack.callback(end, worker.process)
        endpoints = [Endpoint(settings, directory / f"endpoint-{number}.log") for number in range(2)]
        for endpoint in endpoints:
            stack.callback(endpoint.end)
            endpoint.start()
        yield World(server, kafka, settings, worker, endpoints)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that may have ended."""
    if process.poll() is None:
        process.terminate()
        process.wait()


def watch(seconds: float, store_url: str, load: Load, sample: Callable[[redis.Redis], None]) -> None:
    """Sample now and then until the time is over."""
    until = time.monotonic() + seconds
    with redis.Redis.from_url(store_url) as store:
        for turn in itertools.count(1):
            if (left := until - time.monotonic()) <= 0:
                return
            time.sleep(min(SAMPLE_SECONDS, left))
            sample(store)
            if turn % 30 == 0:
                calls = sum(load.statuses.values())
                print(time.strftime("%H:%M:%S"), f"{calls:,} calls, {len(load.wrong)} wrong", flush=True)


def soak(directory: Path, minutes: float, pages: int, events: float, seed: int, keyed: float) -> dict[str, Any]:
    """Run the load; return the slopes, the counts of calls, and what was wrong."""
    samples, done = Samples(), threading.Event()
    with world(directory, pages) as running:
        endpoints = running.endpoints
        load = Load([endpoint.url for endpoint in endpoints], pages, seed, keyed)
        with httpx.Client(base_url=load.urls[0], timeout=CALL_SECONDS_MAX) as client:
            for at in range(0, pages, SEEDS_A_CALL):
                urls = load.pages[at : at + SEEDS_A_CALL]
                load.call(client, "seeds", "POST", "/v1/seeds", {200}, json={"urls": urls})
        print(time.strftime("%H:%M:%S"), f"{pages:,} pages are known", flush=True)
        store_url = running.settings.store or ""
        backing_up = threading.Thread(target=lambda: load.wrong.extend(backups(store_url, directory, load, done)))
        backing_up.start()
        pids = {"store": running.server.pid, "kafka": running.kafka.pid, "worker": running.worker.process.pid}
        pids |= {f"endpoint {n}": one.process.pid for n, one in enumerate(endpoints) if one.process is not None}
        folders = {"store": running.server.directory, "kafka": running.kafka.directory}
        for name, seconds, act in (
            ("events", EVENTS_A_CALL / events, load.report),
            ("next", NEXT_SECONDS, load.fetch),
            ("question", QUESTION_SECONDS, load.ask),
            ("refusal", REFUSAL_SECONDS, load.refuse),
            ("churn", 3600 / (CHURN_AN_HOUR * pages), load.churn),
            ("deceit", DECEIT_SECONDS, load.deceive),
            ("forget", FORGET_SECONDS, load.forget),
            ("define", DEFINE_SECONDS, load.define),
        ):
            load.every(name, seconds, act)
        try:
            watch(60 * minutes, running.server.url, load, lambda store: samples.take(pids, folders, store, load))
        finally:  # SIGTERM too ends the threads, or the process would go on with them.
            done.set()
            load.end()
            backing_up.join()
        with httpx.Client(base_url=load.urls[0], timeout=CALL_SECONDS_MAX) as client:
            wait_until(lambda: client.get("/v1/stats").json()["lag"] == 0, LAG_SECONDS_MAX)
            audit, stats_told = client.get("/v1/audit").json(), client.get("/v1/stats").json()
        if audit["conserved"] is not True:
            load.wrong.append(f"audit: {audit}")
        for log in sorted(directory.glob("*.log")):
            load.wrong += [f"{log.name}: {error}" for error in errors_in(log.read_text())]
        verified = told_by_verify(running.settings)
        if verified["returncode"]:
            load.wrong.append(f"verify: {verified['said']}")
        return {
            "slopes": samples.slopes(),
            "calls": dict(sorted(load.statuses.items())),
            "stats": {name: told for name, told in stats_told.items() if name != "store"},
            "audit": {name: audit[name] for name in ("minted", "pages", "virtual", "in_flight", "conserved")},
            "verify": verified["said"],
            "wrong": load.wrong,
        }


def errors_in(log: str) -> list[str]:
    """Return the errors that a log tells of, each with its traceback."""
    return [entry.strip() for entry in ENTRY.split(log) if entry.split(" ", 3)[2:3] == ["ERROR"]]


def told_by_verify(settings: Settings) -> dict[str, Any]:
    """Hold exact importance to PageRank computed by another way, with `opic verify`."""
    command = [sys.executable, "-m", "opic.cli.main", "verify", "--json"]
    told = subprocess.run(
        command, env=environment() | settings.environment(), capture_output=True, text=True, check=False
    )
    return {"returncode": told.returncode, "said": (told.stdout if told.returncode in (0, 1) else told.stderr).strip()}


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--pages", type=int, default=1_000_000, help="of the crawl; its size stays the same")
    parser.add_argument("--events", type=float, default=100.0, help="events a second")
    parser.add_argument("--keyed", type=float, default=0.1, help="share of the calls that have an Idempotency-Key")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--result", type=Path, help="write the figures there, as JSON")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Our processes end with us.
    with tempfile.TemporaryDirectory(prefix="opic-soak-") as scratch:
        found = soak(Path(scratch), given.minutes, given.pages, given.events, given.seed, given.keyed)
    for row in found["slopes"]:
        low, high = row["interval"]
        print(
            f"{row['figure']:40} {row['median']:12,.1f} {row['an_hour']:+10.3f} an hour [{low:+.3f}, {high:+.3f}], "
            f"{row['an_hour_late']:+.3f} late"
        )
    print("\n".join(f"{name}: {count:,}" for name, count in found["calls"].items()))
    by_kind = defaultdict[str, list[str]](list)
    for text in found["wrong"]:
        by_kind[text.partition(":")[0]].append(text)
    print("\n".join(f"WRONG  {text}" for texts in by_kind.values() for text in texts[:WRONG_SHOWN]))
    if given.result:
        given.result.write_text(json.dumps(run_facts() | found, indent=1) + "\n")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
