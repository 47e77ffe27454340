"""Records that pack many events, on real Kafka: by our publisher and other clients, mixed with single ones, and bad."""

import json
from contextlib import closing
from pathlib import Path

import msgpack
import pytest
from confluent_kafka import Producer as ConfluentProducer
from kafka_crawl import Topic, WorkerProcess, event, ledger_of, opened, opic, settings_of, settle, workers
from kafka_server import Kafka
from logs import array_of
from processes import wait_until
from same_state import assert_same
from servers import Server

from opic.ingest.kafka import KafkaCluster
from opic.ingest.publish import Publisher
from opic.model.events import split_array
from opic.model.packed_events import is_array
from opic.settings import Settings
from opic.urls.canonical import shard_of

pytestmark = pytest.mark.slow

HOSTS = [f"h{number}.example" for number in range(12)]
PAGES = [f"http://{host}/{name}" for host in HOSTS for name in "ab"]


def page(number: int) -> bytes:
    """An event of a page with links to three others."""
    return event(PAGES[number % len(PAGES)], *(PAGES[(number * step) % len(PAGES)] for step in (5, 7, 11)))


def test_single_and_packed_events_on_one_partition_end_in_the_state_of_the_ledger(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    """By kafka-python and librdkafka; in MessagePack and JSON; a worker is killed between them."""
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    other = ConfluentProducer({"bootstrap.servers": kafka.bootstrap, "compression.type": "zstd"})
    with opened(settings) as crawl:
        worker = WorkerProcess(settings, tmp_path / "worker.log")
        for turn in range(12):
            events = [page(turn * 31 + number) for number in range(30)]
            topic.put([events[0], array_of(events[1:20]), array_of(events[20:21])])
            in_json = json.dumps([msgpack.unpackb(one) for one in events[21:25]]).encode()
            for value in (in_json, *events[25:]):
                other.produce(topic.name, value, partition=0)
            assert other.flush(30) == 0
            if turn in {3, 7}:
                worker.kill()
                worker = WorkerProcess(settings, tmp_path / "worker.log")
        settle(crawl, topic)
        worker.stop()
        assert crawl.totals().reads == 12 * 30
        assert_same(crawl.shards[0], ledger_of(topic))


@pytest.mark.parametrize("shards", [1, 4])
def test_bad_events_of_an_array_are_dead_letters_by_their_index(
    kafka: Kafka, valkey: Server, tmp_path: Path, shards: int
) -> None:
    topic = Topic(kafka, partitions=4)
    settings = settings_of(kafka, valkey, topic.name, shards=shards, max_links=10)
    home = [url for url in PAGES if shard_of(url.split("/")[2], 4) == 2]
    foreign = next(url for url in PAGES if shard_of(url.split("/")[2], 4) == 1)
    huge = event(home[1], *(f"http://l.example/{number}" for number in range(1_000)))
    array = array_of([
        event(home[0]), event("mailto:a"), huge, event(foreign), event(home[0]), b"\x07", array_of([event(home[1])])
    ])  # fmt: skip
    values = [array, b"\x90", array_of([event(home[0])] * 1_001), b"\x92" + event(home[0]), event(home[1])]
    with workers(settings, tmp_path) as (worker,), opened(settings) as crawl:
        topic.put(values, partition=2)
        settle(crawl, topic)
        wait_until(lambda: len(topic.messages(f"{topic.name}.dlq")) >= 6)
        worker.stop()
        assert (crawl.totals().reads, crawl.totals().dead_letters) == (5, 6)  # The foreign one, and both alike, count.
    letters = {}
    for message in topic.messages(f"{topic.name}.dlq"):
        headers = dict(message.headers)
        letters[int(headers["opic-offset"]), headers.get("opic-index")] = headers["opic-error"].decode(), message.value
    assert letters.keys() == {(0, b"1"), (0, b"5"), (0, b"6"), (1, None), (2, None), (3, None)}
    assert letters[0, b"1"][1] == event("mailto:a")
    assert "url 'mailto:a' is not an absolute" in letters[0, b"1"][0]
    assert "an array within an array" in letters[0, b"6"][0]
    assert "an empty array" in letters[1, None][0]
    assert "1,001 events is over the limit of 1,000" in letters[2, None][0]
    listed = json.loads(opic(settings, "dead-letters", "list", "--json").stdout)["dead_letters"]
    assert sorted((row["offset"], -1 if row["index"] is None else row["index"]) for row in listed) == [
        (0, 1), (0, 5), (0, 6), (1, -1), (2, -1), (3, -1)
    ]  # fmt: skip


def test_worker_killed_within_packed_records_loses_and_doubles_nothing(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    topic = Topic(kafka, partitions=2)
    settings = settings_of(kafka, valkey, topic.name, shards=2)
    with opened(settings) as crawl, Publisher(settings=settings) as publisher:
        for turn in range(6):
            worker = WorkerProcess(settings, tmp_path / "worker.log")
            for number in range(3_000):
                publisher.publish(PAGES[number % len(PAGES)], [PAGES[number * 5 % len(PAGES)]])
            least = 3_000 * turn + 100
            wait_until(lambda least=least: crawl.totals().reads > least)  # type: ignore[misc]
            worker.kill()
        sent = 6 * 3_000
        publisher.flush()
        worker = WorkerProcess(settings, tmp_path / "worker.log")
        settle(crawl, topic)
        worker.stop()
        assert crawl.totals().reads == sent
        assert crawl.audit()[0].conserved
    messages = topic.messages()
    arrays = [one for one in messages if is_array(one.value)]  # The last of a linger may be alone in its record.
    assert sum(len(split_array(one.value)) for one in arrays) + len(messages) - len(arrays) == sent
    assert len(messages) < sent / 10


def test_event_waits_no_longer_than_its_linger(kafka: Kafka) -> None:
    """A crawler that publishes one event, and then none for long, has published it."""
    topic = Topic(kafka)
    with Publisher(kafka.bootstrap, topic.name) as publisher:
        publisher.publish(PAGES[0])
        wait_until(lambda: len(topic.messages()) == 1)
        publisher.publish(PAGES[1])
        wait_until(lambda: len(topic.messages()) == 2)
        assert publisher.flush() == 2


@pytest.mark.parametrize("how", ["limit", "pause"])
def test_partitions_that_were_paused_with_parsed_records_are_read_on(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """By the limit of bytes of a poll, or by a worker that waits for the store."""
    topic = Topic(kafka, partitions=4)
    for partition in range(4):
        topic.put([b"%07d" % number * 100 for number in range(200)], partition=partition)
    if how == "limit":
        monkeypatch.setattr("opic.ingest.kafka.record_batches.POLL_BYTES_MAX", 20_000)
    cluster = KafkaCluster(Settings.load(kafka_bootstrap=kafka.bootstrap, kafka_topic=topic.name))
    found: dict[int, list[int]] = {partition: [] for partition in range(4)}
    with closing(cluster.consumer(max_poll_records=30)) as consumer:
        partitions = cluster.partitions(consumer)
        consumer.assign(partitions)
        consumer.seek_to_beginning()

        def poll() -> bool:
            for partition, records in consumer.poll(timeout_ms=500).items():
                found[partition.partition] += [int(record.value[:7]) for record in records]
            if how == "pause":
                consumer.pause(*partitions)
                consumer.poll(timeout_ms=0)
                consumer.resume(*partitions)
            return all(len(some) == 200 for some in found.values())

        wait_until(poll, 30)
    assert found == {partition: list(range(200)) for partition in range(4)}
