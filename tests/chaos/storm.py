"""Breaks a running crawl in every way we can think of, again and again, and has the books inspected after each spell.

    python tests/chaos/storm.py --minutes 30 [--seed 7] [--worlds shards,single,scatter,cluster]

At least three workers, a real Kafka and real servers; events keep coming while things break. After each spell of
faults all is healed, what is under way arrives, and the inspector (bank.py) holds the store to the topic. What breaks,
in which order, follows from the seed, which is printed; when exactly it hits, from the machine.
"""

import argparse
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import redis
from kafka import KafkaProducer
from kafka_crawl import SESSION_SECONDS, STOP_SECONDS_MAX, Topic, WorkerProcess
from kafka_server import Kafka, find_kafka
from processes import wait_until
from redis_cluster import Cluster
from sameness import assert_same
from servers import Binary, Server, find_server

from chaos.bank import expected_of, inspect, shown
from chaos.proxy import Proxy
from opic.errors import StoreError
from opic.ingest import Writer
from opic.ingest.kafka.connection import headers_of
from opic.model.events import CrawlEvent, encode_crawl_event, encode_seeds
from opic.model.ledger import Ledger
from opic.replica import Crawl
from opic.settings import Settings
from opic.store import Keys, connect
from opic.store.connection import Client

WORKERS = 3
WORKERS_MAX = 5
SPELL_SECONDS = 18.0
FAULT_SECONDS = (0.3, 2.5)  # Between a fault and the next.
SETTLE_SECONDS_MAX = 180.0
EVENTS_A_SECOND = 250
EVENTS_A_SPELL_MIN = 100
READS_A_PAGE = 25  # On average, of the 64 measures that are kept: the inspector wants them all.
TAIL_BYTES_MAX = 65_536
DOOM_STATEMENTS = (1, 60_000)
HOSTS = 60


@dataclass(frozen=True)
class World:
    """What is broken."""

    name: str
    partitions: int
    shards: int
    server: str  # valkey or redis
    scatter: bool = False  # Events of a host are in any partition.
    nodes: int = 1  # Of a Redis Cluster, if more.
    replicas: int = 0  # Of each node, waited for before an offset counts.


WORLDS = {
    world.name: world
    for world in (
        World("shards", partitions=4, shards=4, server="valkey"),
        World("single", partitions=1, shards=1, server="redis"),
        World("scatter", partitions=4, shards=3, server="redis", scatter=True),
        World("cluster", partitions=4, shards=8, server="redis", nodes=3),
        World("failover", partitions=4, shards=6, server="valkey", nodes=3, replicas=1),
    )
}


class Crawlers(threading.Thread):
    """Publish events, made up from the seed, for as long as they are let."""

    def __init__(self, topic: Topic, world: World, seed: int, pages: int) -> None:
        super().__init__(name="crawlers", daemon=True)
        self.rng, self.topic, self.world, self.pages = random.Random(seed), topic, world, pages
        self.sent = 0
        self.refused = 0
        self.running, self.idle, self.done = threading.Event(), threading.Event(), threading.Event()
        self._reads: Counter[int] = Counter()

    def url(self, number: int) -> str:
        return f"http://h{number % HOSTS}.d{number % 17}.org/{number // HOSTS}"

    def run(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.topic.kafka.bootstrap, acks="all", enable_idempotence=True, linger_ms=5
        )
        futures = []
        while not self.done.is_set():
            if not self.running.wait(0.05):
                futures = self.counted(futures)
                if not futures:
                    self.idle.set()
                continue
            self.idle.clear()
            for value, kind, host, key in self.some(EVENTS_A_SECOND // 10):
                place = self.rng.randrange(self.world.partitions) if self.world.scatter else None
                headers = headers_of(kind, key, 0)
                futures.append(producer.send(self.topic.name, value, host.encode(), headers, partition=place))
            time.sleep(0.1)
            futures = self.counted(futures)
        producer.close()

    def counted(self, futures: list[Any]) -> list[Any]:
        """Count those that are through; return the others."""
        done = [one for one in futures if one.is_done]
        self.refused += sum(one.failed() for one in done)
        self.sent += sum(not one.failed() for one in done)
        return [one for one in futures if not one.is_done]

    def pause(self) -> None:
        """Publish no more, and wait until all that was published is through: Kafka may have been away."""
        self.running.clear()
        wait_until(self.idle.is_set, SETTLE_SECONDS_MAX)

    def some(self, count: int) -> Iterator[tuple[bytes, str, str, bytes]]:
        rng = self.rng
        for _ in range(count):
            page, kind = rng.randrange(self.pages), rng.random()
            url, host = self.url(page), f"h{page % HOSTS}.d{page % 17}.org"
            self._at = getattr(self, "_at", 1_700_000_000) + 1
            event = CrawlEvent(url=url, fetched_at=float(self._at))
            if kind < 0.88 and self._reads[page] < 60:
                self._reads[page] += 1
                near = [page + HOSTS * 17 * rng.randrange(1, 9) for _ in range(rng.randrange(6))]
                far = [rng.randrange(self.pages) for _ in range(rng.randrange(9))]
                event.links = [self.url(n % self.pages) for n in (*near, *far)] + ["mailto:x@y"] * rng.randrange(2)
            elif kind < 0.92:
                event.status = 404
            elif kind < 0.96:
                event.status = 503
            elif kind < 0.98:
                yield b"\xff not an event", "event", host, b""
                continue
            else:
                yield encode_seeds([url]), "seeds", host, b""
                continue
            value = encode_crawl_event(event)
            if rng.random() < 0.05:  # A client that tried again: the same event twice, by one call.
                key = rng.randbytes(16)
                yield value, "event", host, key
                yield value, "event", host, key
            else:
                yield value, "event", host, b""


class OneServer:
    """A server behind a proxy, and what can happen to both."""

    def __init__(self, binary: Binary, rng: random.Random) -> None:
        self.server, self.rng = Server(binary), rng

    def __enter__(self) -> "OneServer":
        with ExitStack() as stack:
            stack.enter_context(self.server)
            self.proxy = stack.enter_context(Proxy(self.server.socket_path))
            self.heal: list[Callable[[], object]] = []
            self.url = self.server.url  # For us; for workers there is the proxy.
            self.workers_url = f"redis://127.0.0.1:{self.proxy.port}/0"
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill_the_store(self) -> None:
        self.server.kill()
        self.heal.append(self.server.start)

    def lose_the_end_of_the_file(self) -> None:
        """A power loss: the server ends, and the last of what it wrote is not on the disk."""
        self.server.kill()
        files = (self.server.directory / "appendonlydir").glob("*.incr.aof")
        last = max(files, key=lambda path: int(path.name.split(".")[-3]))
        size = last.stat().st_size
        os.truncate(last, max(0, size - self.rng.randrange(1, TAIL_BYTES_MAX)))
        self.heal.append(self.server.start)

    def cut_connections(self) -> None:
        self.proxy.cut()

    def delay_connections(self) -> None:
        self.proxy.delay(self.rng.uniform(0.01, 0.2))
        self.heal.append(self.proxy.heal)

    def lose_what_is_sent(self) -> None:
        """Nothing passes for a while, then all connections end: answers of calls that took effect are lost."""
        self.proxy.hold()

        def end() -> None:
            self.proxy.cut()
            self.proxy.heal()

        self.heal.append(end)

    def faults(self) -> list[Callable[[], None]]:
        return [
            self.kill_the_store,
            self.lose_the_end_of_the_file,
            self.lose_the_end_of_the_file,
            self.cut_connections,
            self.delay_connections,
            self.lose_what_is_sent,
        ]


class ManyNodes:
    """A Redis Cluster, and what can happen to it."""

    def __init__(self, binary: Binary, rng: random.Random, world: World, shards: Callable[[], Sequence[str]]) -> None:
        self.cluster, self.rng, self._shards = Cluster(binary, world.nodes, world.replicas), rng, shards
        self._replicas = world.replicas

    def __enter__(self) -> "ManyNodes":
        self.cluster.start()
        self.heal: list[Callable[[], object]] = []
        self.url = self.workers_url = self.cluster.url
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.close()

    def kill_a_node(self) -> None:
        key = self.rng.choice(self._shards())
        node = self.cluster.owner(key)
        self.cluster.kill(node)

        def end() -> None:
            if self._replicas:
                self.cluster.await_failover(key, node)
            self.cluster.restart(node)

        self.heal.append(end)

    def move_a_slot(self) -> None:
        """All that a shard has goes to another node, key by key, while it is written to."""
        key = self.rng.choice(self._shards())
        self.cluster.migrate_slot(key, self.cluster.other(self.cluster.owner(key)))

    def faults(self) -> list[Callable[[], None]]:
        moves = [] if self._replicas else [self.move_a_slot, self.move_a_slot]
        return [self.kill_a_node, self.kill_a_node, *moves]


@dataclass
class Report:
    """What was done, and what came of it."""

    seed: int
    worlds: list[str]
    faults: Counter[str] = field(default_factory=Counter)
    spells: int = 0
    events: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def text(self) -> str:
        kinds = "\n".join(f"  {count:5d}  {kind}" for kind, count in sorted(self.faults.items()))
        return (
            f"seed {self.seed}, worlds {', '.join(self.worlds)}: {self.seconds / 60:.1f} minutes, "
            f"{self.spells} spells, {sum(self.faults.values())} faults, {self.events:,} events\n{kinds}\n"
            + ("every event's effect is there once; the books balance to the grain" if not self.wrong else "")
            + shown(self.wrong)
        )


class Storm:
    """One world, and what breaks in it."""

    def __init__(self, world: World, seed: int, kafka: Kafka, directory: Path, report: Report, pages: int) -> None:
        self.world, self.rng, self.kafka, self.directory, self.report = (
            world,
            random.Random(f"{seed}/{world.name}"),
            kafka,
            directory,
            report,
        )
        self._stack, self._numbers, self._pages, self._seed = ExitStack(), itertools.count(), pages, seed
        self.workers: list[WorkerProcess] = []
        self._heal: list[Callable[[], object]] = []

    def __enter__(self) -> "Storm":
        with ExitStack() as stack:
            binary = find_server(self.world.server)
            assert isinstance(binary, Binary), binary.reason
            self.store: OneServer | ManyNodes = (
                OneServer(binary, self.rng)
                if self.world.nodes == 1
                else ManyNodes(binary, self.rng, self.world, self._hash_tags)
            )
            stack.enter_context(self.store)
            self.topic = Topic(self.kafka, self.world.partitions)
            self.settings = Settings.load(
                store=self.store.workers_url,
                kafka_bootstrap=self.kafka.bootstrap,
                kafka_topic=self.topic.name,
                kafka_session_seconds=SESSION_SECONDS,
                crawl=self.topic.name,
                shards=self.world.shards,
                history_measures=64,
                wait_replicas=self.world.replicas,
            )
            with connect(self.store.url) as client:
                self.opened(client)
            stack.callback(self._end_workers)
            for _ in range(WORKERS):
                self.start_worker()
            self.crawlers = Crawlers(self.topic, self.world, self._seed, self._pages)
            self.crawlers.start()
            stack.callback(self._end_crawlers)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def opened(self, client: Client) -> Crawl:
        """Open the crawl, made if it is not there: a store of two seconds may be lost as a whole.

        By the workers' settings, whoever comes first after such a loss: with others they would refuse it.
        """
        return Crawl.open(client, self.settings.crawl, self.settings.rules_given())

    def _hash_tags(self) -> list[str]:
        return [Keys(self.settings.crawl, shard).books for shard in range(self.world.shards)]

    def _end_crawlers(self) -> None:
        self.crawlers.done.set()
        self.crawlers.join(30)

    def _end_workers(self) -> None:
        for one in self.workers:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()

    # Faults. Each does its harm and leaves in `_heal` how to end it.

    def start_worker(self, doom: int = 0) -> WorkerProcess:
        said = self.directory / f"{self.world.name}-worker-{next(self._numbers)}.log"
        more = {"doom": doom} if doom else {}
        module = Path(__file__).with_name("doomed_worker.py") if doom else None
        one = WorkerProcess(self.settings, said, script=module, **more)
        self.workers.append(one)
        return one

    def alive(self) -> list[WorkerProcess]:
        self.workers = [one for one in self.workers if one.process.poll() is None]
        return self.workers

    def kill_a_worker(self) -> None:
        victim = self.rng.choice(self.alive()).process
        victim.kill()
        victim.wait()

    def kill_a_worker_between_two_statements(self) -> None:
        """In the place of one that is told to end; it may be under way for a while before its time has come."""
        low, high = DOOM_STATEMENTS
        if len(self.alive()) >= WORKERS_MAX:
            self.remove_a_worker()
        self.start_worker(doom=int(low * (high / low) ** self.rng.random()))

    def stop_a_worker_and_wake_it_as_a_zombie(self) -> None:
        victim = self.rng.choice(self.alive()).process
        victim.send_signal(signal.SIGSTOP)

        def wake() -> None:
            time.sleep(SESSION_SECONDS + self.rng.random())  # Past its session: another one has its partitions.
            victim.send_signal(signal.SIGCONT)

        self._heal.append(wake)

    def add_a_worker(self) -> None:
        if len(self.alive()) >= WORKERS_MAX:
            return self.remove_a_worker()
        self.start_worker()
        return None

    def remove_a_worker(self) -> None:
        victim = self.rng.choice(self.alive()).process
        victim.send_signal(signal.SIGTERM)
        self._heal.append(lambda: victim.wait(STOP_SECONDS_MAX))

    def restart_kafka(self) -> None:
        (self.kafka.kill if self.rng.random() < 0.5 else self.kafka.stop)()
        self._heal.append(self.kafka.start)

    def apply_all_again(self) -> None:
        """A second reader has the topic from its beginning, in pieces, each twice, while the others go on."""
        with connect(self.store.url) as client:
            crawl = self.opened(client)
            writer = Writer(crawl)
            for name, found in self.topic.all_records().items():
                known = found[: crawl.resume(name)]
                for at in range(0, len(known), 500):
                    writer.apply(name, known[at : at + 500])
                    writer.apply(name, known[at // 2 : at + 500][:500])

    def deliver_twice(self) -> None:
        """Two more deliver to all shards, at once with the workers."""
        with connect(self.store.url) as client:
            crawl = self.opened(client)
            both = [threading.Thread(target=Writer(crawl).deliver) for _ in range(2)]
            for one in both:
                one.start()
            for one in both:
                one.join()

    def faults(self) -> Sequence[Callable[[], None]]:
        return (
            self.kill_a_worker,
            self.kill_a_worker,
            self.kill_a_worker_between_two_statements,
            self.kill_a_worker_between_two_statements,
            self.stop_a_worker_and_wake_it_as_a_zombie,
            self.add_a_worker,
            self.remove_a_worker,
            self.restart_kafka,
            self.apply_all_again,
            self.deliver_twice,
            *self.store.faults(),
        )

    # A spell, and what it left.

    def spell(self, seconds: float = SPELL_SECONDS) -> None:
        """Let events come and things break, then heal all, let what is under way arrive, and inspect."""
        sent = self.crawlers.sent
        self.crawlers.idle.clear()
        self.crawlers.running.set()
        # On a busy machine a restart of Kafka may take as long as the spell, and a producer needs Kafka to begin.
        wait_until(lambda: self.crawlers.sent > sent, SETTLE_SECONDS_MAX)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            fault = self.rng.choice(self.faults())
            say(f"{self.world.name}: {fault.__name__.replace('_', ' ')}")
            try:
                fault()
            except (StoreError, OSError, redis.RedisError) as error:
                say(f"  which another fault kept from its work: {error}")
                continue
            finally:
                time.sleep(self.rng.uniform(*FAULT_SECONDS))
                self.heal()
            self.report.faults[fault.__name__.replace("_", " ")] += 1
        wait_until(lambda: self.crawlers.sent >= sent + EVENTS_A_SPELL_MIN, SETTLE_SECONDS_MAX)
        self.crawlers.pause()
        self.inspect()
        self.report.spells += 1

    def heal(self) -> None:
        while self._heal:
            self._heal.pop()()
        while self.store.heal:
            self.store.heal.pop()()
        while len(self.alive()) < WORKERS:
            self.start_worker()

    def inspect(self) -> None:
        with connect(self.store.url) as client:
            crawl = self.opened(client)
            self.settle(crawl)
            partitions = self.topic.all_records()
            records = [record for found in partitions.values() for record in found]
            self.report.events += len(records) - getattr(self, "_inspected", 0)
            self._inspected = len(records)
            wrong = inspect(crawl, expected_of(records))
            if self.world.shards == self.world.partitions == 1:
                ledger = Ledger(crawl.rules)
                ledger.apply(*next(iter(partitions.items())))
                wrong += differences(asdict(crawl.totals()), asdict(ledger.books))
                if not wrong:
                    assert_same(crawl.shards[0], ledger)
        if len(records) < self.crawlers.sent:
            wrong.append(f"Kafka confirmed {self.crawlers.sent} events and has {len(records)}")
        self.report.wrong += wrong
        if wrong:
            raise AssertionError(f"seed {self._seed}, {self.world}:\n{shown(wrong)}")

    def settle(self, crawl: Crawl) -> None:
        """Wait until all that is on the topic took effect, and nothing is on its way between shards."""

        def settled() -> bool:
            self.heal()  # A doomed worker may have ended meanwhile.
            ends = self.topic.ends()
            if any(crawl.resume(name) < end for name, end in ends.items()):
                return False
            books = crawl.books()
            return crawl.waiting() == 0 and len({part.credit for part in books}) == 1

        try:
            wait_until(settled, SETTLE_SECONDS_MAX)
        except AssertionError:
            ends = self.topic.ends()
            at = {name: (crawl.resume(name), end) for name, end in ends.items()}
            last = "\n".join(f"{one.process.pid}: {one.said()[-600:]}" for one in self.alive())
            raise AssertionError(f"not settled: {at}, {crawl.waiting()} entries wait\n{last}") from None


def differences(store: dict[str, object], ledger: dict[str, object]) -> list[str]:
    """Where the totals are not the ledger's; `version` counts steps, which are nobody's business."""
    names = [name for name in ledger if name != "version" and store[name] != ledger[name]]
    return [f"{name}: {store[name]} in the store, {ledger[name]} in the ledger" for name in names]


def say(text: str) -> None:
    """Tell what goes on, with the time."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


@contextmanager
def a_kafka() -> Iterator[Kafka]:
    """A broker of our own, which may be killed."""
    found = find_kafka()
    assert isinstance(found, Binary), found.reason
    with Kafka(found) as kafka:
        yield kafka


def run(worlds: Sequence[World], seed: int, seconds: float, kafka: Kafka, directory: Path) -> Report:
    """Break worlds, each for its part of the time; the report has what was wrong."""
    report, began = Report(seed, [world.name for world in worlds]), time.monotonic()
    for world in worlds:
        share = seconds / len(worlds)
        pages = max(500, round(share * EVENTS_A_SECOND / READS_A_PAGE))
        started = time.monotonic()
        with Storm(world, seed, kafka, directory, report, pages) as storm:
            while time.monotonic() - started < share:
                storm.spell(min(SPELL_SECONDS, share))
                say(f"{world.name}: {report.events:,} events, {sum(report.faults.values())} faults survived")
    report.seconds = time.monotonic() - began
    return report


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9))
    parser.add_argument("--worlds", default=",".join(WORLDS))
    parser.add_argument("--report", type=Path, help="write the counts there, as JSON")
    given = parser.parse_args()
    worlds = [WORLDS[name] for name in given.worlds.split(",")]
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="opic-storm-") as directory, a_kafka() as kafka:
        report = run(worlds, given.seed, given.minutes * 60, kafka, Path(directory))
    print(report.text())
    if given.report:
        counts = {"seed": report.seed, "minutes": round(report.seconds / 60, 1), "events": report.events}
        given.report.write_text(
            json.dumps(counts | {"spells": report.spells, "faults": report.faults}, indent=1) + "\n"
        )
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
