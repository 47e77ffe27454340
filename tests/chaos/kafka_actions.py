"""What other publishers and Kafka's operators do to a topic."""

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import MessageSizeTooLargeError
from kafka_crawl import Topic

from chaos.actions import action
from chaos.publishers import Events, Sent, put
from chaos.scene import Scene

CODECS = ("gzip", "snappy", "lz4", "zstd")
KEPT = ("producer", "uncompressed", *CODECS)  # What a topic may do with what it gets.
EVENTS_A_TRANSACTION = 40
READS_A_PAGE_MAX = 3  # The publishers' own are most of the 64 measures that are kept.
BEGIN = 1_500_000_000  # Before the publishers' times, so that no two reads of a page have the same.
SECONDS_APART = 10_000
COMMITTED_SHARE = 0.6
POISONS = 20
BYTES_A_SECOND = (20_000, 200_000)
QUOTA_SECONDS = (1.0, 4.0)
PARTITIONS_MAX = 12
TOO_LARGE_BYTES = 40 << 20  # Of which a batch has a few kilobytes left.


def topic_of(scene: Scene) -> Topic:
    assert scene.topic is not None
    return scene.topic


def events_of(scene: Scene) -> Events:
    number = next(scene.numbers)
    seed = f"{scene.seed}/{scene.world.name}/{number}"
    return Events(seed, scene.seconds, READS_A_PAGE_MAX, BEGIN + SECONDS_APART * number)


@contextmanager
def producing(scene: Scene, **more: Any) -> Iterator[KafkaProducer]:
    with closing(KafkaProducer(bootstrap_servers=scene.kafka.bootstrap, acks="all", linger_ms=5, **more)) as producer:
        yield producer


class Transaction:
    """One that is open. What it reads is confirmed, or must never take effect, once it has ended."""

    def __init__(self, scene: Scene, producer: KafkaProducer, events: Events) -> None:
        self._scene, self._producer = scene, producer
        producer.begin_transaction()
        self._sent = list(events.some(events.rng.randrange(1, EVENTS_A_TRANSACTION)))
        for one in self._sent:
            put(producer, topic_of(scene), scene.world, events.rng, one)
        producer.flush()

    def end(self) -> None:
        reads = {one.read for one in self._sent if one.read}
        if self._scene.rng.random() < COMMITTED_SHARE:
            self._producer.commit_transaction()
            self._scene.notes.confirmed_reads |= reads
        else:
            self._producer.abort_transaction()
            self._scene.aborted |= reads


@action()
def publish_in_transactions(scene: Scene) -> None:
    """Some are committed, some aborted. The last one stays open for a while, and what comes behind it waits."""
    events, name = events_of(scene), f"storm-{topic_of(scene).name}-{next(scene.numbers)}"
    made = producing(scene, compression_type=scene.rng.choice((None, *CODECS)), transactional_id=name)
    producer = made.__enter__()
    scene.healing.append(lambda: made.__exit__(None, None, None))
    producer.init_transactions()
    for _ in range(scene.rng.randrange(1, 5)):
        Transaction(scene, producer, events).end()
    scene.healing.append(Transaction(scene, producer, events).end)


class RawName(str):
    """A header's name that is no UTF-8: this client encodes text, others take the bytes that they are given."""

    def encode(self, *_: str) -> bytes:
        return b"\xff\xfe" + super().encode()


def odd_header(rng: random.Random) -> tuple[str, bytes]:
    """A header that makes a record a dead letter, or that opic ignores."""
    return rng.choice((("opic-kind", rng.randbytes(9)), ("opic-key", b"x"), (RawName("name"), b"x"), ("\u2603", b"")))


@action()
def publish_poison(scene: Scene) -> None:
    """No value, values that can't be decoded, odd headers, and a record that decompresses to more than one may have."""
    events, topic = events_of(scene), topic_of(scene)
    rng = events.rng
    with producing(scene) as producer:
        for one in events.some(rng.randrange(1, POISONS)):
            value = rng.choice((None, b"", rng.randbytes(300), b"{" * 1_000, b"\0" * 70_000))
            put(producer, topic, scene.world, rng, Sent(value, "event", one.host, b""), odd_header(rng)).get(60)
            put(producer, topic, scene.world, rng, one, (RawName("name"), b"x")).get(60)
            scene.notes.confirmed_reads |= {one.read} if one.read else set()
    size = {"max_request_size": 2 * TOO_LARGE_BYTES, "batch_size": 2 * TOO_LARGE_BYTES}
    with producing(scene, compression_type="zstd", **size) as producer:
        large = Sent(b"\0" * TOO_LARGE_BYTES, "event", "a.example", b"")
        try:
            put(producer, topic, scene.world, rng, large).get(60)
        except MessageSizeTooLargeError:
            print("  a topic that compresses less refused a large record", flush=True)


@action()
def recompress_the_topic(scene: Scene) -> None:
    """From now on it keeps what it gets by another codec."""
    configs = {"compression.type": scene.rng.choice(KEPT)}
    with closing(KafkaAdminClient(bootstrap_servers=scene.kafka.bootstrap)) as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic_of(scene).name, configs=configs)])


@action()
def add_a_partition(scene: Scene) -> None:
    """Publishers, workers and endpoints notice it at different times; packed records are of the number before."""
    topic = topic_of(scene)
    if (count := len(topic.ends())) < PARTITIONS_MAX:
        topic.grow(count + 1)


@action()
def limit_clients_by_a_quota(scene: Scene) -> None:
    """All of ours: workers fetch slowly, endpoints publish slowly or refuse events."""
    alter = ("--alter", "--entity-type", "clients", "--entity-name", "opic")
    rate = scene.rng.randrange(*BYTES_A_SECOND)
    names = ("consumer_byte_rate", "producer_byte_rate")
    scene.kafka.run_tool(
        "kafka.admin.ConfigCommand", *alter, "--add-config", ",".join(f"{name}={rate}" for name in names)
    )
    scene.healing.append(
        lambda: scene.kafka.run_tool("kafka.admin.ConfigCommand", *alter, "--delete-config", ",".join(names))
    )
    time.sleep(scene.rng.uniform(*QUOTA_SECONDS))
