"""A crawl that is fed by Kafka, for the tests: its topic, its workers, and what the store made of it."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import curls
import httpx
from command_line import run_here
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewPartitions, NewTopic
from kafka.errors import CoordinatorNotAvailableError
from kafka.structs import OffsetAndMetadata
from kafka_server import Kafka
from ports import free_port
from processes import environment, wait_until
from repository import ROOT
from servers import Server

from opic.ingest.kafka.connection import RECORD_OVERHEAD_BYTES, name_of, record_of
from opic.ingest.kafka.record_batches import BoundedConsumer
from opic.model.events import CrawlEvent, Record, encode_crawl_event
from opic.model.ledger import Ledger
from opic.replica import Crawl
from opic.settings import Settings
from opic.store import connect

STOP_SECONDS_MAX = 30.0
SESSION_SECONDS = 1.0  # So short that a test may wait for a dead worker's partitions.
RECORD_BYTES_MAX = Settings.load().max_body_bytes + RECORD_OVERHEAD_BYTES  # Of a worker by default.
_numbers = itertools.count(int.from_bytes(os.urandom(3), "big"))


def settings_of(kafka: Kafka, store: Server, topic: str, **more: Any) -> Settings:
    """The settings of a crawl that has the topic's name."""
    given: dict[str, Any] = {"kafka_bootstrap": kafka.bootstrap, "kafka_session_seconds": SESSION_SECONDS, "shards": 1}
    return Settings.load(**{"store": store.url, "crawl": topic, "kafka_topic": topic, **given, **more})


class Topic:
    """A topic of its own, with one for its dead letters."""

    def __init__(
        self,
        kafka: Kafka,
        partitions: int = 1,
        name: str | None = None,
        *,
        letters: bool = True,
        config: Mapping[str, str] | None = None,
        letters_config: Mapping[str, str] | None = None,
    ) -> None:
        self.kafka, self.name = kafka, name or f"events.{next(_numbers)}"
        config = {"message.timestamp.type": "LogAppendTime", **(config or {})}
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        try:
            made = [NewTopic(self.name, partitions, 1, topic_configs=config)]
            made += [NewTopic(f"{self.name}.dlq", 1, 1, topic_configs=dict(letters_config or {}))] if letters else []
            admin.create_topics(made)
            admin.wait_for_topics([one.name for one in made])
        finally:
            admin.close()

    def delete(self, name: str | None = None) -> None:
        """Remove it, or another topic, and wait until it is gone."""
        admin, name = KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap), name or self.name
        try:
            admin.delete_topics([name])
            wait_until(lambda: name not in admin.list_topics())
        finally:
            admin.close()

    def grow(self, partitions: int) -> None:
        """Add partitions, up to a number."""
        admin = KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap)
        try:
            admin.create_partitions({self.name: NewPartitions(partitions)})
        finally:
            admin.close()

    def let_go(self, below: int) -> None:
        """Do as retention does: drop the records below an offset."""
        admin = KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap)
        try:
            admin.delete_records({TopicPartition(self.name, 0): below})
        finally:
            admin.close()

    def put(self, values: Iterable[bytes], partition: int | None = 0, **more: Any) -> None:
        """Produce values, durably."""
        producer = KafkaProducer(bootstrap_servers=self.kafka.bootstrap, acks="all", max_request_size=32 << 20)
        try:
            for one in [producer.send(self.name, value, partition=partition, **more) for value in values]:
                one.get(timeout=30)
        finally:
            producer.close()

    @contextmanager
    def transactions(self) -> Iterator["Transactions"]:
        """A producer that sends in transactions."""
        producer = KafkaProducer(bootstrap_servers=self.kafka.bootstrap, transactional_id=f"tests-{next(_numbers)}")
        try:
            producer.init_transactions()
            yield Transactions(producer, self.name)
        finally:
            producer.close()

    def messages(self, name: str | None = None) -> list[Any]:
        """The committed records of this topic, or of another one, by partition and offset."""
        terms = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        consumer = KafkaConsumer(bootstrap_servers=self.kafka.bootstrap, **terms)
        try:
            name = name or self.name
            partitions = [TopicPartition(name, p) for p in sorted(consumer.partitions_for_topic(name))]
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            found: list[Any] = []
            while any(consumer.position(p) < ends[p] for p in partitions):
                found += itertools.chain(*consumer.poll(1000).values())
        finally:
            consumer.close()
        return sorted(found, key=lambda m: (m.partition, m.offset))

    def records(self, partition: int = 0) -> list[Record]:
        """All of a partition as a worker gets it."""
        return [record_of(m) for m in self.messages() if m.partition == partition]

    def all_records(self) -> dict[str, list[Record]]:
        """All records as workers read them, by partition; header names need not be UTF-8."""
        terms = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
        consumer = BoundedConsumer(bootstrap_servers=self.kafka.bootstrap, record_bytes_max=RECORD_BYTES_MAX, **terms)
        found: dict[str, list[Record]] = {}
        try:
            partitions = [TopicPartition(self.name, p) for p in sorted(consumer.partitions_for_topic(self.name))]
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            while any(consumer.position(p) < ends[p] for p in partitions):
                for partition, some in consumer.poll(1000).items():
                    records = [one if isinstance(one, Record) else record_of(one) for one in some]
                    found.setdefault(name_of(partition), []).extend(records)
        finally:
            consumer.close()
        return found

    def ends(self) -> dict[str, int]:
        """The end of each partition, by its name in the store."""
        consumer = KafkaConsumer(bootstrap_servers=self.kafka.bootstrap)
        try:
            partitions = [TopicPartition(self.name, p) for p in consumer.partitions_for_topic(self.name)]
            return {f"{self.name}/{p.partition}": end for p, end in consumer.end_offsets(partitions).items()}
        finally:
            consumer.close()

    def committed(self) -> dict[int, int]:
        """What the crawl's group has committed."""
        admin = KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap)
        group = f"opic-{self.name}"
        try:
            found = admin.list_group_offsets({group: None})[group]
            return {p.partition: at.offset for p, at in found.items()}
        finally:
            admin.close()

    def members(self) -> list[Any]:
        """Who is in the crawl's group."""
        admin = KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap)
        group = f"opic-{self.name}"
        try:
            found = admin.describe_groups([group])[group]
            return list(found["members"])
        except CoordinatorNotAvailableError:  # Of a Kafka whose first group this is.
            return []
        finally:
            admin.close()

    def shares(self) -> list[int]:
        """How many partitions each member of the group has, ascending."""
        found = []
        for member in self.members():
            assignment = member["member_assignment"]  # Bytes while the group is at it.
            parts = assignment["assigned_partitions"] if isinstance(assignment, dict) else []
            found.append(sum(len(part["partitions"]) for part in parts))
        return sorted(found)


@dataclass(frozen=True)
class Transactions:
    """Sends events in transactions, one at a time."""

    producer: KafkaProducer
    topic: str

    def begin(self, *pages: str, partition: int = 0) -> None:
        """Begin one and send reads of pages in it, durably."""
        self.producer.begin_transaction()
        for page in pages:
            self.producer.send(self.topic, event(page), partition=partition)
        self.producer.flush()

    def commit(self, *pages: str, partition: int = 0) -> None:
        """Send reads of pages in a transaction, and commit it."""
        self.begin(*pages, partition=partition)
        self.producer.commit_transaction()

    def abort(self, *pages: str, partition: int = 0) -> None:
        """Send reads of pages in a transaction, and abort it."""
        self.begin(*pages, partition=partition)
        self.producer.abort_transaction()


class WorkerProcess:
    """`opic worker` as its users run it."""

    def __init__(
        self,
        settings: Settings,
        said: Path,
        *,
        script: Path | None = None,
        root: Path = ROOT,
        env: Mapping[str, str] | None = None,
        **more: object,
    ) -> None:
        self._said, self.port = said, free_port()
        own = settings.environment() | {"OPIC_WORKER_PORT": str(self.port)}
        own |= {f"OPIC_{name.upper()}": str(value) for name, value in more.items()}
        with said.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(script)] if script else [sys.executable, "-m", "consumers.crawl_events"],
                env=environment() | own | dict(env or {}),
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def said(self) -> str:
        """Its log."""
        return self._said.read_text(errors="replace")

    def says(self, text: str, seconds: float = 60.0) -> None:
        """Wait until its log has a text."""
        try:
            wait_until(lambda: text in self.said(), seconds)
        except AssertionError as error:
            raise AssertionError(f"never said {text!r}:\n{self.said()[-3000:]}") from error

    def get(self, path: str) -> httpx.Response:
        """Ask its own port."""
        return curls.get(f"http://127.0.0.1:{self.port}{path}", timeout=10)

    def ready(self) -> bool:
        """Whether it says so."""
        try:
            return self.get("/readyz").status_code == 200
        except httpx.TransportError:
            assert self.process.poll() is None, self.said()[-3000:]
            return False

    def kill(self) -> None:
        """Take it down at once."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Tell it to end, and see that it does so in order."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(STOP_SECONDS_MAX) == 0, self.said()[-3000:]


@contextmanager
def workers(settings: Settings, directory: Path, count: int = 1, **more: object) -> Iterator[list[WorkerProcess]]:
    """Some workers; none outlives the test."""
    running = [WorkerProcess(settings, directory / f"worker-{next(_numbers)}.log", **more) for _ in range(count)]
    try:
        yield running
    finally:
        for one in running:
            if one.process.poll() is None:
                one.kill()


@contextmanager
def serving(settings: Settings, said: Path) -> Iterator[str]:
    """`opic serve` on a store of its own."""
    port = free_port()
    with said.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "opic.cli.main", "serve", "--port", str(port)],
            env=environment() | settings.environment(),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        assert process.poll() is None, said.read_text()[-3000:]
        return curls.ready(url)

    try:
        wait_until(ready)
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS_MAX) == 0, said.read_text()[-3000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def opic(settings: Settings, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself, and what it said."""
    return run_here(words, environment() | {"NO_COLOR": "1"} | settings.environment() | env)


@contextmanager
def opened(settings: Settings) -> Iterator[Crawl]:
    """The crawl's store."""
    client = connect(settings.store)
    try:
        yield Crawl.open(client, settings.crawl, settings.rules_given(), shards=settings.shards)
    finally:
        client.close()


def settle(crawl: Crawl, topic: Topic, seconds: float = 60.0) -> None:
    """Wait until all that is on the topic has taken effect."""
    ends = topic.ends()
    try:
        wait_until(lambda: all(crawl.resume(name) >= end for name, end in ends.items()), seconds)
    except AssertionError as error:
        at = {name: crawl.resume(name) for name in ends}
        raise AssertionError(f"the store is at {at}, the topic ends at {ends}") from error


def values(records: Sequence[Record]) -> list[bytes]:
    """The values of some records."""
    return [record.value for record in records]


def event(page: str, *links: str) -> bytes:
    """A read of a page."""
    return encode_crawl_event(CrawlEvent(page, list(links)))


def ledger_of(topic: Topic) -> Ledger:
    """The model, fed what is on a topic of one partition."""
    ledger = Ledger()
    ledger.apply(f"{topic.name}/0", topic.records())
    return ledger


def commit(topic: Topic, offset: int) -> None:
    """Say in the group's name that all below an offset was worked off."""
    consumer = KafkaConsumer(bootstrap_servers=topic.kafka.bootstrap, group_id=f"opic-{topic.name}")
    try:
        consumer.assign([TopicPartition(topic.name, 0)])
        consumer.commit({TopicPartition(topic.name, 0): OffsetAndMetadata(offset, "", -1)})
    finally:
        consumer.close()
