"""What other publishers and Kafka's operators do to a topic."""

from contextlib import closing
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType

from chaos.actions import action
from chaos.publishers import Events
from chaos.scene import Scene
from opic.ingest.kafka.connection import headers_of

CODECS = ("gzip", "snappy", "lz4", "zstd")
KEPT = ("producer", "uncompressed", *CODECS)  # What a topic may do with what it gets.
EVENTS_A_TRANSACTION = 40
READS_A_PAGE_MAX = 3  # The publishers' own are most of the 64 measures that are kept.
BEGIN = 1_500_000_000  # Before the publishers' times, so that no two reads of a page have the same.
BYTES_A_SECOND = (20_000, 200_000)
TOO_LARGE_BYTES = 40 << 20


def events_of(scene: Scene) -> Events:
    number = next(scene.numbers)
    return Events(f"{scene.seed}/{scene.world.name}/{number}", scene.seconds, READS_A_PAGE_MAX, BEGIN + 10_000 * number)


def producer_of(scene: Scene, **more: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=scene.kafka.bootstrap, acks="all", linger_ms=5, **more)


@action()
def publish_in_transactions(scene: Scene) -> None:
    """Some are committed, some aborted. The last one is open for a while, and what comes behind it waits."""
    assert scene.topic is not None
    name, events = scene.topic.name, events_of(scene)
    codec = scene.rng.choice((None, *CODECS))
    producer = producer_of(scene, compression_type=codec, transactional_id=f"storm-{next(scene.numbers)}-{name}")
    producer.init_transactions()

    def send_some() -> None:
        producer.begin_transaction()
        for value, kind, host, key in events.some(scene.rng.randrange(1, EVENTS_A_TRANSACTION)):
            place = scene.rng.randrange(scene.world.partitions) if scene.world.scatter else None
            producer.send(name, value, host.encode(), headers_of(kind, key, 0), partition=place)
        producer.flush()

    def end() -> None:
        (producer.commit_transaction if scene.rng.random() < 0.6 else producer.abort_transaction)()

    for _ in range(scene.rng.randrange(1, 5)):
        send_some()
        end()
    send_some()

    def end_the_last() -> None:
        end()
        producer.close()

    scene.healing.append(end_the_last)


@action()
def publish_poison(scene: Scene) -> None:
    """Values that can not be decoded, one that decompresses to more than a record may have, odd headers, no value."""
    assert scene.topic is not None
    rng, topic = scene.rng, scene.topic.name
    with closing(producer_of(scene)) as producer:
        for _ in range(rng.randrange(1, 20)):
            value = rng.choice((None, b"", rng.randbytes(300), b"{" * 1_000, b"\0" * 70_000))
            headers = rng.choice(([], [("opic-kind", rng.randbytes(9))], [("opic-key", b"x")], [("\u2603", b"")]))
            producer.send(topic, value, None, headers, partition=rng.randrange(scene.world.partitions)).get(60)
    size = {"max_request_size": 2 * TOO_LARGE_BYTES, "batch_size": 2 * TOO_LARGE_BYTES}
    with closing(producer_of(scene, compression_type="zstd", **size)) as producer:
        producer.send(topic, b"\0" * TOO_LARGE_BYTES, partition=0).get(60)


@action()
def recompress_the_topic(scene: Scene) -> None:
    """From now on it keeps what it gets by another codec."""
    assert scene.topic is not None
    resource = ConfigResource(
        ConfigResourceType.TOPIC, scene.topic.name, configs={"compression.type": scene.rng.choice(KEPT)}
    )
    with closing(KafkaAdminClient(bootstrap_servers=scene.kafka.bootstrap)) as admin:
        admin.alter_configs([resource])


@action()
def limit_clients_by_a_quota(scene: Scene) -> None:
    """All of ours: workers fetch slowly, endpoints publish slowly or refuse events."""
    clients = ("--alter", "--entity-type", "clients", "--entity-name", "opic")
    low, high = BYTES_A_SECOND
    rate = scene.rng.randrange(low, high)
    rates = f"consumer_byte_rate={rate},producer_byte_rate={rate}"
    scene.kafka.run_tool("kafka.admin.ConfigCommand", *clients, "--add-config", rates)

    def lift() -> None:
        names = "consumer_byte_rate,producer_byte_rate"
        scene.kafka.run_tool("kafka.admin.ConfigCommand", *clients, "--delete-config", names)

    scene.healing.append(lift)
