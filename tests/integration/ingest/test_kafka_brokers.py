"""Brokers and publishers of others: each client, codec and kind of producer, on the oldest and the newest Kafka."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from conftest import want_server
from kafka import KafkaProducer
from kafka_crawl import Topic, event, opened, settings_of, settle, workers
from kafka_server import NEWEST, OLDEST, Kafka
from processes import wait_until
from repository import ROOT
from servers import Server

pytestmark = pytest.mark.slow

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
EACH = 20


@pytest.fixture(scope="module", params=[OLDEST, NEWEST], ids=lambda jars: jars.version())
def other_kafka(request: pytest.FixtureRequest) -> Iterator[Kafka]:
    with Kafka(want_server("kafka"), jars=request.param) as kafka:
        yield kafka


def java(kafka: Kafka, topic: str) -> None:
    kafka.run_java(str(ROOT / "tests/java/kafka/Crawler.java"), kafka.bootstrap, topic, str(EACH), *CODECS)


def librdkafka(kafka: Kafka, topic: str) -> None:
    for codec in CODECS:
        terms = {"bootstrap.servers": kafka.bootstrap, "compression.type": codec, "linger.ms": 20}
        plain = Producer(terms | {"enable.idempotence": True})
        other = Producer(terms | {"transactional.id": f"{topic}-librdkafka-{codec}"})
        _publish("librdkafka", codec, plain, other, lambda one, key, value: one.produce(topic, value, key))


def kafka_python(kafka: Kafka, topic: str) -> None:
    for codec in CODECS:
        terms = {"bootstrap_servers": kafka.bootstrap, "linger_ms": 20}
        terms |= {"compression_type": None if codec == "none" else codec}
        plain = KafkaProducer(enable_idempotence=True, **terms)
        other = KafkaProducer(transactional_id=f"{topic}-python-{codec}", **terms)
        _publish("kafka-python", codec, plain, other, lambda one, key, value: one.send(topic, value, key))
        plain.close()
        other.close()


def _publish(
    client: str, codec: str, plain: object, other: object, send: Callable[[object, bytes, bytes], object]
) -> None:
    """As tests/java/kafka/Crawler.java does."""

    def send_all(producer: object, kind: str) -> None:
        for number in range(EACH):
            host = f"{client}-{codec}-{number % 7}.example"
            send(producer, host.encode(), event(f"http://{host}/{kind}/{number}"))
        producer.flush()  # type: ignore[attr-defined]

    send_all(plain, "idempotent")
    other.init_transactions()  # type: ignore[attr-defined]
    for kind, end in ("aborted", "abort_transaction"), ("committed", "commit_transaction"):
        other.begin_transaction()  # type: ignore[attr-defined]
        send_all(other, kind)
        getattr(other, end)()


def test_events_of_each_client_codec_and_producer_take_effect_once(
    other_kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    """Also those that the topic compresses again."""
    topic = Topic(other_kafka, 3)
    again = Topic(other_kafka, 3, config={"compression.type": "lz4"})
    settings = settings_of(other_kafka, valkey, topic.name, shards=3)
    lz4 = settings_of(other_kafka, valkey, again.name)
    with (
        opened(settings) as crawl,
        workers(settings, tmp_path) as (worker,),
        opened(lz4) as other,
        workers(lz4, tmp_path) as (second,),
    ):
        java(other_kafka, topic.name)
        librdkafka(other_kafka, topic.name)
        kafka_python(other_kafka, topic.name)
        librdkafka(other_kafka, again.name)
        settle(crawl, topic)
        settle(other, again)
        wait_until(lambda: crawl.waiting() == 0)
        kinds = [
            f"http://{client}-{codec}-{number % 7}.example/{kind}/{number}"
            for client in ("java", "librdkafka", "kafka-python")
            for codec in CODECS
            for kind in ("idempotent", "committed")
            for number in range(EACH)
        ]
        assert sorted(page.url for page in crawl.pages()) == sorted(kinds)
        assert sorted(page.url for page in other.pages()) == sorted(url for url in kinds if "librdkafka" in url)
        for books in (crawl.totals(), other.totals()):
            assert (books.reads, books.dead_letters) == (books.live, 0)
        worker.stop()
        second.stop()


def test_events_of_partitions_added_while_workers_run_take_effect_once(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    """Transactions in them too."""
    topic = Topic(kafka, 2)
    settings = settings_of(kafka, valkey, topic.name, shards=4)
    with opened(settings) as crawl, workers(settings, tmp_path, 2) as running:
        wait_until(lambda: topic.shares() == [1, 1])
        topic.put([event(f"http://h{number}.example/before") for number in range(100)], None)
        settle(crawl, topic)
        topic.grow(4)
        with topic.transactions() as one:
            one.abort("http://aborted.example/", partition=3)
            one.commit(*(f"http://h{number}.example/committed" for number in range(50)), partition=3)
        topic.put([event(f"http://h{number}.example/after") for number in range(50)], partition=2)
        settle(crawl, topic, 120)
        wait_until(lambda: topic.shares() == [2, 2], 120)
        topic.put([event(f"http://h{number}.example/last") for number in range(100)], None)
        settle(crawl, topic)
        books = crawl.totals()
        assert (books.reads, books.dead_letters) == (300, 0)
        assert crawl.audit()[0].conserved
        for one_worker in running:
            one_worker.stop()
