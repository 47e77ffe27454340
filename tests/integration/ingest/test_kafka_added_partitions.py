"""Partitions are added to a topic while publishers, workers and endpoints run: each event takes effect once."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import curls
import pytest
from chaos.bank import expected_of, inspect, lost_and_doubled
from confluent_kafka import Producer as Librdkafka
from kafka import KafkaProducer
from kafka_crawl import Topic, opened, opic, serving, settings_of, settle, workers
from kafka_server import Kafka
from processes import wait_until
from servers import Server

from opic.errors import BadInput
from opic.ingest.kafka import KafkaCluster
from opic.ingest.kafka.assignment import workers_at_once
from opic.ingest.kafka.connection import record_of
from opic.ingest.kafka.topic_log import Producer
from opic.ingest.publish import Publisher
from opic.model.event_checks import decode_events
from opic.model.events import CrawlEvent, EventLimits, encode_crawl_event
from opic.model.packed_events import pack
from opic.ops.doctor import run_checks
from opic.service.backend import Backend
from opic.settings import Settings
from opic.urls.canonical import host_of, shard_of

pytestmark = pytest.mark.slow

BEFORE, AFTER = 2, 5
HOSTS = [f"h{number}.example" for number in range(37)]
PAGES_A_HOST = 10
MEASURES = 64  # Kept of a page: all of its reads.
FETCHED_AT = 1_700_000_000
NOTICED_SECONDS = 60.0  # Clients ask for partitions every ten.
REFRESH_MS = 1_000


class Reads:
    """Reads of random pages, each at a time of its own. Of one publisher."""

    def __init__(self, seed: int) -> None:
        self._draw, self._at = random.Random(seed), FETCHED_AT + seed * 1_000_000

    def one(self, host: str | None = None) -> CrawlEvent:
        """The next one, of a host if it is given."""
        self._at += 1
        links = [self._page(self._draw.choice(HOSTS)) for _ in range(self._draw.randint(0, 6))]
        return CrawlEvent(self._page(host or self._draw.choice(HOSTS)), links, float(self._at))

    def _page(self, host: str) -> str:
        return f"http://{host}/{self._draw.randrange(PAGES_A_HOST)}"

    def packed(self, partitions: int, count: int = 10) -> tuple[bytes, bytes]:
        """The key and the value of a record whose hosts share a partition."""
        first = self._draw.choice(HOSTS)
        own = [host for host in HOSTS if shard_of(host, partitions) == shard_of(first, partitions)]
        events = [self.one(first), *(self.one(self._draw.choice(own)) for _ in range(count - 1))]
        return first.encode(), pack([encode_crawl_event(event) for event in events])


def by_ours(settings: Settings, more: Callable[[], bool]) -> None:
    """By one publisher, which was there before."""
    reads = Reads(1)
    with Publisher(settings=settings) as publisher:
        while more():
            publisher.send(reads.one())


def by_kafka_python(settings: Settings, more: Callable[[], bool]) -> None:
    """By its own partitioner, one event a record."""
    reads = Reads(2)
    with closing(KafkaProducer(bootstrap_servers=settings.kafka_bootstrap, metadata_max_age_ms=REFRESH_MS)) as producer:
        while more():
            event = reads.one()
            producer.send(settings.kafka_topic, encode_crawl_event(event), host_of(event.url).encode())


def by_librdkafka(settings: Settings, more: Callable[[], bool]) -> None:
    """Packed for as many partitions as there were."""
    reads = Reads(3)
    own = {"partitioner": "murmur2_random", "topic.metadata.refresh.interval.ms": REFRESH_MS}
    producer = Librdkafka({"bootstrap.servers": settings.kafka_bootstrap or "", **own})
    while more():
        key, value = reads.packed(BEFORE)
        producer.produce(settings.kafka_topic, value, key)
        producer.poll(0)
    assert producer.flush(30) == 0


@contextmanager
def publishing(settings: Settings) -> Iterator[None]:
    """By three clients, some fifty records a second each, until the block ends."""
    over, failed = threading.Event(), list[BaseException]()

    def run(publish: Callable[[Settings, Callable[[], bool]], None]) -> None:
        try:
            publish(settings, lambda: not over.wait(0.02))
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=run, args=(one,)) for one in (by_ours, by_kafka_python, by_librdkafka)]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        over.set()
        for one in threads:
            one.join()
    assert failed == []


@pytest.mark.parametrize(
    ("count", "shards"),
    [(1, 1), (2, 4), *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((1, 4), (2, 1)))],
)
def test_every_event_takes_effect_once(kafka: Kafka, valkey: Server, tmp_path: Path, shards: int, count: int) -> None:
    """A worker is killed, another one comes, then all are killed, as publishers go from two partitions to five."""
    topic = Topic(kafka, BEFORE)
    settings = settings_of(kafka, valkey, topic.name, shards=shards, history_measures=MEASURES)
    with opened(settings) as crawl, workers(settings, tmp_path, count) as running:
        with publishing(settings):
            wait_until(lambda: crawl.totals().reads > 200)
            topic.grow(AFTER)
            running[0].kill()
            with workers(settings, tmp_path) as later:
                wait_until(lambda: min(topic.ends().values()) > 0, NOTICED_SECONDS)
                ends = topic.ends()
                wait_until(lambda: all(crawl.resume(name) >= end for name, end in ends.items()), NOTICED_SECONDS)
                for one in (*running[1:], *later):
                    one.kill()
        with workers(settings, tmp_path, 2) as last:
            settle(crawl, topic)
            busy = min(2, workers_at_once(AFTER, shards))
            wait_until(lambda: sum(share > 0 for share in topic.shares()) == busy)
            wait_until(lambda: crawl.waiting() == 0)
            found = {one.check: (one.verdict, one.text) for one in run_checks(lambda: settings)}
            assert (found["workers"][0], found["lost events"][0]) == ("ok", "ok"), found
            assert found["partitions"][1].startswith(f"partitions: {AFTER}, shards: {shards};")
            for one in last:
                wait_until(one.ready)
                one.stop()
        expected = expected_of(record for some in topic.all_records().values() for record in some)
        assert expected.counts["dead_letters"] == 0
        assert lost_and_doubled(crawl, expected) == (0, 0)
        assert inspect(crawl, expected) == []
        assert topic.messages(f"{topic.name}.dlq") == []


def test_endpoint_knows_partitions_that_others_noticed_first(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    """A position in one of them, answered by another endpoint, is waited for; its events are lag."""
    topic = Topic(kafka, BEFORE)
    settings = settings_of(kafka, valkey, topic.name)
    host = next(host for host in HOSTS if shard_of(host, AFTER) >= BEFORE)
    with opened(settings), closing(Backend(settings, valkey.url)) as older:
        assert older.lag() == 0
        topic.grow(AFTER)
        with closing(Backend(settings, valkey.url)) as newer:
            end = newer.accept([encode_crawl_event(CrawlEvent(f"http://{host}/"))])
        assert list(end) == [f"{topic.name}/{shard_of(host, AFTER)}"]
        with workers(settings, tmp_path) as (worker,):
            older.show(end)
            assert (older.query.importance([f"http://{host}/"])[0] or {})["reads"] == 1
            worker.stop()
        for beyond in ({name: offset + 1 for name, offset in end.items()}, {f"{topic.name}/{AFTER}": 1}):
            with pytest.raises(BadInput, match="beyond the end of this crawl's log"):
                older.show(beyond)


def test_lag_and_doctor_count_added_partitions(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka, BEFORE)
    settings = settings_of(kafka, valkey, topic.name)
    with opened(settings), serving(settings, tmp_path / "serve.log") as url:
        topic.grow(AFTER)
        topic.put([encode_crawl_event(CrawlEvent("http://late.example/"))], AFTER - 1)

        def lag() -> int:
            return int(curls.get(f"{url}/v1/stats", timeout=30).raise_for_status().json()["lag"])

        wait_until(lambda: lag() == 1, NOTICED_SECONDS)
        metrics = curls.get(f"{url}/metrics", timeout=30).text
        assert "opic_lag_events 1.0" in metrics.splitlines()
        assert f"partitions: {AFTER}, shards: 1" in opic(settings, "doctor").stdout
        with workers(settings, tmp_path) as (worker,):
            wait_until(lambda: lag() == 0)
            worker.stop()


def test_record_goes_to_the_partition_that_it_was_filled_for(
    kafka: Kafka, valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hosts share that one, though partitions were added before it was full."""
    monkeypatch.setattr("opic.ingest.publish.LINGER_SECONDS", 600.0)
    topic = Topic(kafka, BEFORE)
    settings = settings_of(kafka, valkey, topic.name)
    with Publisher(settings=settings) as publisher, closing(Producer(KafkaCluster(settings))) as other:
        for host in HOSTS:
            publisher.publish(f"http://{host}/")
        topic.grow(AFTER)
        for producer in (publisher._producer, other):
            wait_until(lambda producer=producer: producer.count(topic.name) == AFTER, NOTICED_SECONDS)
        publisher.flush()
        old = topic.messages()
        for host in HOSTS:
            publisher.publish(f"http://{host}/")
    places = {(message.partition, message.offset) for message in old}
    new = [message for message in topic.messages() if (message.partition, message.offset) not in places]
    assert hosts_by_partition(old) == {at: hosts_of(at, BEFORE) for at in range(BEFORE)}
    assert hosts_by_partition(new) == {at: hosts_of(at, AFTER) for at in range(AFTER)}


def hosts_of(partition: int, partitions: int) -> set[str]:
    return {host for host in HOSTS if shard_of(host, partitions) == partition}


def hosts_by_partition(messages: Sequence[Any]) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for message in messages:
        events = decode_events("topic/0", record_of(message), EventLimits())
        found.setdefault(message.partition, set()).update(host_of(event.url) for event in events)
    return found


def test_classes_keep_their_order(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    """All their records are in the first partition, however many there are."""
    topic = Topic(kafka, BEFORE)
    settings = settings_of(kafka, valkey, topic.name, shards=4)

    def define(url: str, weight: int) -> None:
        classes = {"classes": [{"name": "a", "weight": weight, "hosts": HOSTS[:3]}]}
        assert curls.put(f"{url}/v1/classes", json=classes, timeout=60).status_code == 200

    with opened(settings), workers(settings, tmp_path) as (worker,):
        with serving(settings, tmp_path / "serve.log") as url:
            define(url, 2)
        topic.grow(AFTER)
        with serving(settings, tmp_path / "serve.log") as url:
            define(url, 3)
            assert curls.get(f"{url}/v1/classes", timeout=60).json()["classes"][0]["weight"] == 3
        worker.stop()
    found = [m.partition for m in topic.messages() if ("opic-kind", b"classes") in m.headers]
    assert found == [0, 0]


def test_crawl_of_one_shard_refuses_classes_once_partitions_were_added(kafka: Kafka, valkey: Server) -> None:
    topic = Topic(kafka, 1)
    settings = settings_of(kafka, valkey, topic.name)
    with opened(settings), closing(Backend(settings, valkey.url)) as backend:
        assert backend.log.single
        topic.grow(2)
        wait_until(lambda: not backend.log.single, NOTICED_SECONDS)
