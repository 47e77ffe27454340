"""A world that runs: its store, Kafka, workers, endpoints and crawlers, and how all of it is inspected."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import curls
import httpx
from kafka_crawl import SESSION_SECONDS, STOP_SECONDS_MAX, Topic, WorkerProcess
from kafka_server import Kafka
from ports import free_port
from processes import WORKER, Service, children_of, command_of, environment, wait_until
from repository import ROOT
from same_state import assert_same
from servers import Binary, find_server

from chaos.bank import expected_of, inspect, links_shown, lost_and_doubled
from chaos.checks import LINKED_PAGES, failed_while_up, inlinks_wrong, leased_twice
from chaos.exactness import Onlooker, importance_wrong, pagerank_shown, told_by
from chaos.fetchers import PAGES, Fetchers, KeyedEvents, url_of
from chaos.publishers import Publishers
from chaos.report import WorldReport
from chaos.secured import ADMIN, CRAWLERS, LISTENER, KafkaOverTls, bearer, write_tokens
from chaos.stores import BundledStore, ManyNodes, OneServer
from chaos.worlds import World
from opic.ingest.event_log import EventLog
from opic.ingest.heartbeats import workers_seen
from opic.model.events import LOG_PARTITION, Record, encode_seeds
from opic.model.ledger import Ledger
from opic.replica import Crawl
from opic.settings import Settings
from opic.store import connect
from opic.store.connection import Client
from opic.store.library import primaries

SETTLE_SECONDS_MAX = 180.0
READY_SECONDS_MAX = 120.0
RETRY_SECONDS = 0.3
HOST_DELAY_SECONDS = 0.02
JOURNAL_BYTES = 1 << 20  # The least: what is older has to come from the checkpoint.
SEEDS_A_CALL = 250
RECORD_US = 1_800_000_000_000_000  # Later than any fetch of the crawlers.
CLOCK = Path(__file__).with_name("clock")


def with_clock(ahead_seconds: float) -> dict[str, str]:
    """The environment of a process whose clock is wrong."""
    return {"PYTHONPATH": f"{CLOCK}:{ROOT}", "CLOCK_SKEW_SECONDS": str(ahead_seconds)} if ahead_seconds else {}


class Endpoint:
    """`opic serve` on a store of its own; it keeps its port."""

    def __init__(self, settings: Settings, said: Path) -> None:
        self.settings, self._said, self.port = settings, said, free_port()
        self._data = said.with_suffix(".data")  # Where it saves the visits of exact importance.
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, ahead_seconds: float = 0.0) -> None:
        """Start it, and wait until it is ready."""
        own = {"OPIC_DATA": str(self._data)}
        with self._said.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "opic.cli.main", "serve", "--port", str(self.port)],
                env=environment() | self.settings.environment() | own | with_clock(ahead_seconds),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        wait_until(self.ready, READY_SECONDS_MAX)

    def ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self._said.read_text(errors="replace")[-2000:]
        return curls.ready(self.url)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """End it, and wait until it has."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(STOP_SECONDS_MAX)


class Scene:
    """One world under way. Use as a context manager."""

    def __init__(
        self, world: World, seed: int, seconds: float, kafka: Kafka | None, directory: Path, report: WorldReport
    ) -> None:
        self.world, self.seed, self.seconds, self.report = world, seed, seconds, report
        self.rng, self.directory = random.Random(f"{seed}/{world.name}"), directory
        self._kafka = kafka
        self._stack, self.numbers = ExitStack(), itertools.count()
        self.healing: list[Callable[[], object]] = []
        self.away: list[tuple[float, float]] = []  # When the store was away, by time.monotonic().
        self.copies: list[str] = []  # Restored backups, by the names of their crawls.
        self.workers: list[WorkerProcess] = []
        self.endpoints: list[Endpoint] = []
        self.service: Service | None = None
        self.left_behind: list[int] = []  # Workers of a service that was killed; they should end by themselves.
        self.topic: Topic | None = None
        self.publishers: Publishers | None = None
        self.seeds: list[bytes] = []
        self.aborted: set[tuple[str, int]] = set()  # Reads of aborted transactions: URL, time in microseconds.
        self.headers: dict[str, str] = bearer(ADMIN) if world.secured else {}  # Of the inspector's calls.
        self.moved = False  # Whether the crawl was moved to another one.
        self._judged = 0  # Calls of `next`.

    # Set up.

    def __enter__(self) -> "Scene":
        with ExitStack() as stack:
            binary = find_server(self.world.server)
            assert isinstance(binary, Binary), binary.reason
            self.report.servers = f"{binary.name} {binary.version}"
            if self.world.feed == "embedded":
                self._start_service(stack)
            else:
                store = ManyNodes(binary, self.world.nodes, self.world.replicas)
                certificate = self._kafka.certificate if isinstance(self._kafka, KafkaOverTls) else None
                one = OneServer(binary, self.rng, certificate if self.world.secured else None)
                self.store: Any = store if self.world.nodes > 1 else one
                stack.enter_context(self.store)
                self._start_processes(stack)
            shown = bearer(CRAWLERS) if self.world.secured else {}
            self.fetchers = Fetchers(f"{self.seed}/{self.world.name}", self.urls, shown)
            stack.callback(self.fetchers.end)
            self.notes = self.fetchers.notes
            self._sow()
            self.onlooker = Onlooker(self.store.workers_url, self.crawl_name)
            self.onlooker.start()
            stack.callback(self.onlooker.end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def kafka(self) -> Kafka:
        assert self._kafka is not None
        return self._kafka

    def settings_of(self, crawl: str, topic: Topic | None) -> Settings:
        """The settings of workers and endpoints."""
        given: dict[str, Any] = {}
        if topic is not None:
            given = {"kafka_bootstrap": self.kafka.bootstrap, "kafka_topic": topic.name}
            given["kafka_session_seconds"] = SESSION_SECONDS
        if self.world.secured:
            assert isinstance(self.kafka, KafkaOverTls)
            given |= {"kafka_bootstrap": self.kafka.at[LISTENER], "kafka_security_protocol": "SSL"}
            given["kafka_ssl_cafile"] = self.kafka.certificate.file
            given["tokens_file"] = write_tokens(self.directory / "tokens.toml")
        return Settings.load(
            store=self.store.workers_url, crawl=crawl, shards=self.world.shards, history_measures=64,
            wait_replicas=self.world.replicas, keep_links=True, retry_seconds=RETRY_SECONDS,
            host_delay_seconds=HOST_DELAY_SECONDS, revisit_seconds=0, journal_bytes=JOURNAL_BYTES, **given,
        )  # fmt: skip

    def _start_processes(self, stack: ExitStack) -> None:
        if self.world.feed == "kafka":
            self.topic = Topic(self.kafka, self.world.partitions)
        self.crawl_name = self.topic.name if self.topic else "storm"
        self.settings = self.settings_of(self.crawl_name, self.topic)
        with connect(self.store.url) as client:
            self.opened(client)
        stack.callback(self._end_workers)
        for _ in range(self.world.workers):
            self.start_worker()
        for number in range(self.world.endpoints):
            said = self.directory / f"{self.world.name}-endpoint-{number}.log"
            self.endpoints.append(Endpoint(self.settings, said))
            stack.callback(self.endpoints[-1].end)
            self.endpoints[-1].start()
        if self.topic is not None:
            self.publishers = Publishers(self.topic, self.world, self.seed, self.seconds)
            self.publishers.start()
            stack.callback(self.publishers.end)

    def _start_service(self, stack: ExitStack) -> None:
        self.crawl_name = "default"
        terms = {
            "history_measures": 64,
            "keep_links": True,
            "host_delay_seconds": HOST_DELAY_SECONDS,
            "revisit_seconds": 0,
        }
        said = self.directory / "embedded.log"
        service = Service(self.directory / "embedded", said, retry_seconds=RETRY_SECONDS, **terms)
        stack.callback(self._end_service)
        self.service = service
        service.start()
        self.settings = Settings.load(history_measures=64, keep_links=True)
        self.store = stack.enter_context(BundledStore(service))

    def _end_service(self) -> None:
        if self.service is None or self.service.process is None:
            return
        process, store = self.service.process, 0
        if (self.service.data / "service.json").exists():
            store = json.loads((self.service.data / "service.json").read_text()).get("server_pid") or 0
        for pid in (process.pid, *children_of(process.pid), store, *self.left_behind):
            if pid and (pid not in self.left_behind or is_a_worker(pid)):
                end_process(pid)
        process.wait()

    def _sow(self) -> None:
        """Have the crawlers' pages known, and each read once: what is scanned is large then.

        The reads have to be in effect before a crawler leases a page, since any read of a page ends its lease.
        """
        pages = [url_of(number) for number in range(PAGES)]
        url = self.urls()[0]
        with connect(self.store.workers_url) as client:
            first = self.opened(client).shards[0]
            wait_until(lambda: workers_seen(first.client, first.keys).alive, READY_SECONDS_MAX)
        for at in range(0, len(pages), SEEDS_A_CALL):
            some = pages[at : at + SEEDS_A_CALL]
            seeded = curls.post(f"{url}/v1/seeds", json={"urls": some}, headers=self.headers, timeout=60)
            seeded.raise_for_status()
            self.seeds.append(encode_seeds(some))
            call = KeyedEvents("", [self.notes.read(page, self.rng.sample(pages, 5)) for page in some])
            sent = curls.post(f"{url}/v1/events", json=call.body, headers=self.headers, timeout=60)
            sent.raise_for_status()
            self.notes.confirm(call.events)

        def settled() -> bool:
            told = curls.get(f"{url}/v1/stats", headers=self.headers, timeout=60).json()
            return bool(told["lag"] == 0)

        wait_until(settled, SETTLE_SECONDS_MAX)

    def urls(self) -> Sequence[str]:
        """Where the service answers."""
        return [self.service.url] if self.service else [endpoint.url for endpoint in self.endpoints]

    def opened(self, client: Client) -> Crawl:
        """Open the crawl, made if it is not there: a store of two seconds may be lost as a whole.

        By the workers' settings, whoever comes first after such a loss: with others they would refuse it.
        """
        return Crawl.open(client, self.crawl_name, self.settings.rules_given(), keep_links=True)

    @contextmanager
    def crawl(self) -> Iterator[Crawl]:
        """The crawl, opened by ourselves."""
        with connect(self.store.url) as client:
            yield self.opened(client)

    def hash_tags(self) -> list[str]:
        """A key of each shard."""
        with self.crawl() as crawl:
            return [shard.keys.books for shard in crawl.shards]

    # Workers.

    def start_worker(self, doom: int = 0, ahead_seconds: float = 0.0) -> WorkerProcess:
        said = self.directory / f"{self.world.name}-worker-{next(self.numbers)}.log"
        more = {"doom": doom} if doom else {}
        module = Path(__file__).with_name("doomed_worker.py") if doom else None
        one = WorkerProcess(self.settings, said, script=module, env=with_clock(ahead_seconds), **more)
        self.workers.append(one)
        return one

    def alive(self) -> list[WorkerProcess]:
        self.workers = [one for one in self.workers if one.process.poll() is None]
        return self.workers

    def _end_workers(self) -> None:
        for one in self.workers:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()

    # A spell.

    def resume(self) -> None:
        """Let events come and pages be asked for."""
        if self.publishers:
            sent = self.publishers.sent
            self.publishers.resume()
            # On a busy machine a restart of Kafka may take long, and a producer needs Kafka to begin.
            wait_until(lambda: self.publishers is None or self.publishers.sent > sent, SETTLE_SECONDS_MAX)
        self.fetchers.resume()

    def hold(self) -> None:
        """Let nothing new come, and wait until all that came took effect."""
        self.fetchers.pause()
        if self.publishers:
            self.publishers.pause()
        with self.crawl() as crawl:
            self.settle(crawl)

    def heal(self) -> None:
        """End all that is wrong."""
        while self.healing:
            self.healing.pop()()
        while len(self.alive()) < self.world.workers:
            self.start_worker()

    def await_ready(self) -> None:
        """Wait until each endpoint says that it is ready."""
        wait_until(lambda: all(map(curls.ready, self.urls())), READY_SECONDS_MAX)

    def settle(self, crawl: Crawl) -> None:
        """Wait until all that was accepted took effect, and nothing is on its way between shards."""

        def settled() -> bool:
            self.heal()  # A doomed worker may have ended meanwhile.
            if any(crawl.resume(name) < end for name, end in self.ends(crawl).items()):
                return False
            books = crawl.books()
            return crawl.waiting() == 0 and len({part.credit for part in books}) == 1

        try:
            wait_until(settled, SETTLE_SECONDS_MAX)
        except AssertionError:
            at = {name: (crawl.resume(name), end) for name, end in self.ends(crawl).items()}
            last = "\n".join(f"{one.process.pid}: {one.said()[-600:]}" for one in self.alive())
            raise AssertionError(f"not settled: {at}, {crawl.waiting()} entries wait\n{last}") from None

    def ends(self, crawl: Crawl) -> dict[str, int]:
        """The end of each partition."""
        if self.topic is not None:
            return self.topic.ends()
        return {LOG_PARTITION: EventLog(crawl.client, crawl.shards[0].keys).end()}

    # Inspection.

    def records(self) -> list[Record]:
        """All that was confirmed."""
        if self.topic is not None:
            return [record for found in self.topic.all_records().values() for record in found]
        values = [(value, "seeds") for value in self.seeds] + [(value, "event") for value in self.notes.confirmed]
        return [Record(number, RECORD_US, value, kind) for number, (value, kind) in enumerate(values)]

    def inspect(self) -> list[str]:
        """Hold store, leases, calls, in-links and importance to what was confirmed; return what is wrong."""
        self.hold()
        records = self.records()
        expected = expected_of(records)
        with self.crawl() as crawl:
            wrong = inspect(crawl, expected)
            lost, doubled = lost_and_doubled(crawl, expected)
            if self.world.shards == 1 and not self.moved and self.topic is not None and not wrong:
                wrong += self._unlike_the_ledger(crawl)
            missing = {one for one in self.notes.confirmed_reads if one[1] not in expected.reads.get(one[0], {})}
            wrong += [f"{url} at {at} was confirmed, and is on no topic" for url, at in sorted(missing)[:5]]
            risen = {one for one in self.aborted if one[1] in expected.reads.get(one[0], {})}
            wrong += [f"{url} at {at} was aborted, and is on the topic" for url, at in sorted(risen)[:5]]
            if self.publishers and len(records) < self.publishers.sent:
                wrong.append(f"Kafka confirmed {self.publishers.sent} events and has {len(records)}")
            self.report.lost += lost + len(missing)
            self.report.doubled += doubled + len(risen)
            links = links_shown(crawl, expected)
            wrong += self._inlinks_wrong(links) + self._importance_wrong(crawl, links)
        self.report.confirmed = len(records)
        return wrong + self._crawlers_wrong() + self._seen_wrong()

    def inspect_importance(self) -> list[str]:
        """Hold only exact importance to what was confirmed: after the store went back to an earlier state."""
        self.hold()
        with self.crawl() as crawl:
            wrong = self._importance_wrong(crawl, links_shown(crawl, expected_of(self.records())))
        self.resume()
        return wrong

    def _importance_wrong(self, crawl: Crawl, links: dict[str, set[str]]) -> list[str]:
        truth, wrong = pagerank_shown(crawl, links), list[str]()
        for number, url in enumerate(self.urls()):
            wrong += importance_wrong(f"endpoint {number}", *told_by(url, sorted(links), self.headers), truth)
            self.report.exact += 1
        return wrong

    def _seen_wrong(self) -> list[str]:
        """What was wrong while things broke, since the last inspection."""
        wrong = self.onlooker.seen_wrong()
        self.report.looks, self.report.looks_missed = self.onlooker.looks, self.onlooker.missed
        return wrong

    def _crawlers_wrong(self) -> list[str]:
        """What crawlers met that they should not, since the last look."""
        notes = self.notes
        twice = leased_twice(notes.leases)
        failed = failed_while_up(notes.calls[self._judged :], self.away)
        self._judged = len(notes.calls)
        new, self.report.leased_twice = twice[self.report.leased_twice :], len(twice)
        self.report.leases, self.report.next_calls = len(notes.leases), len(notes.calls)
        self.report.failed_while_up += len(failed)
        self.report.repeated, self.report.over_rate = notes.repeated, notes.over_rate
        wrong = new + [f"next answered {call.status} while the store was up: {call.said[:200]}" for call in failed]
        odd, notes.odd[:] = list(notes.odd), []
        return wrong + odd

    def _unlike_the_ledger(self, crawl: Crawl) -> list[str]:
        assert self.topic is not None
        ledger = Ledger(crawl.rules)
        ledger.apply(*next(iter(self.topic.all_records().items())))
        store, model = asdict(crawl.totals()), asdict(ledger.books)
        # `version` counts steps, which are nobody's business.
        names = [name for name in model if name != "version" and store[name] != model[name]]
        if not names:
            assert_same(crawl.shards[0], ledger)
        return [f"{name}: {store[name]} in the store, {model[name]} in the ledger" for name in names]

    def _inlinks_wrong(self, links: dict[str, set[str]]) -> list[str]:
        wrong = list[str]()
        with httpx.Client(timeout=60, headers=self.headers) as client:
            for number, url in enumerate(self.urls()):

                def ask(page: str, url: str = url) -> set[str]:
                    answer = client.get(f"{url}/v1/inlinks", params={"url": page, "n": 1_000})
                    assert answer.status_code == 200, f"in-links of {page}: {answer.status_code} {answer.text[:300]}"
                    return set(answer.json()["inlinks"])

                wrong += inlinks_wrong(f"endpoint {number}", ask, links, self.rng)
                self.report.inlinks += LINKED_PAGES
        return wrong


def is_a_worker(pid: int) -> bool:
    """Whether a process is a service's worker: its number may be somebody else's by now."""
    return WORKER in command_of(pid)


def end_process(pid: int) -> None:
    """Kill a process that may be gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def remove_crawl(client: Client, name: str) -> None:
    """Remove all keys of a crawl."""
    for server in primaries(client):
        for key in list(server.scan_iter(match=f"opic:{{{name}:*", count=1_000)):
            server.unlink(key)


def now() -> float:
    """The clock of `Scene.away`."""
    return time.monotonic()
