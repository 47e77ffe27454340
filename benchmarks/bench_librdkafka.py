"""What would librdkafka cost a worker and a publisher, in place of kafka-python with our parsing of batches?

A real Kafka on loopback. Both clients publish the same events of 40 links to a topic each, with the settings of
`opic.ingest.publish.Publisher`, which packs those of a partition; librdkafka sends a record for each, as most crawlers
do. Both read the topic of single events to its end, into the records that a worker takes. CPU time of this
process with all its threads, and of Kafka; the clients take turns.

It wants Java and Maven, as the tests do (tests/kafka_server.py), and says so where they are missing.

    python benchmarks/bench_librdkafka.py --events 60000 --rounds 5
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import confluent_kafka
from harness import write_result
from workloads import LINKS, REPOSITORY, Crawl

# What starts real servers is with the tests, and we use it from there.
sys.path.append(str(REPOSITORY / "tests"))
sys.path.append(str(REPOSITORY / "tests/support"))
from bench_kafka import NEW_SHARE, PARTITIONS, cpu_s, kafka_or_end
from kafka_crawl import Topic
from kafka_server import Kafka

from opic.ingest.kafka import KafkaCluster
from opic.ingest.kafka.consumer import FETCH_BYTES_MAX, PARTITION_FETCH_BYTES_MAX, RECORDS_A_POLL_MIN
from opic.ingest.publish import BATCH_BYTES, LINGER_SECONDS, WAITING_MAX, Publisher
from opic.model.event_checks import check_event
from opic.model.events import Record, decode_crawl_event
from opic.settings import Settings
from opic.urls.canonical import host_of, shard_of

POLL_SECONDS: Final = 1.0
Values = Sequence[bytes]
T = TypeVar("T")


def publish_by_kafka_python(kafka: Kafka, topic: str, values: Values) -> None:
    """Publish as our publisher does."""
    with Publisher(settings=Settings.load(kafka_bootstrap=kafka.bootstrap, kafka_topic=topic)) as publisher:
        for value in values:
            publisher.send_encoded(value)


def publish_by_librdkafka(kafka: Kafka, topic: str, values: Values) -> None:
    """Do the same: check each event, choose the partition of its host, wait until all are acknowledged."""
    limits = Settings.load().limits()
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": LINGER_SECONDS * 1000,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.messages": WAITING_MAX,
        }
    )
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for value in values:
        host = host_of(check_event(decode_crawl_event(value), time.time_ns() // 1000, limits).url)
        given = {"key": host.encode(), "partition": shard_of(host, PARTITIONS), "on_delivery": delivered}
        while True:
            try:
                producer.produce(topic, value, **given)
            except BufferError:
                producer.poll(POLL_SECONDS)
                continue
            break
        producer.poll(0)
    producer.flush()
    if failed:
        raise SystemExit(f"not delivered: {failed[0]}")


def read_by_kafka_python(kafka: Kafka, topic: str, count: int) -> int:
    """Read with the worker's client and our parsing of batches; return the bytes of all values."""
    cluster = KafkaCluster(Settings.load(kafka_bootstrap=kafka.bootstrap, kafka_topic=topic))
    consumer = cluster.consumer(
        max_poll_records=RECORDS_A_POLL_MIN,
        fetch_max_bytes=FETCH_BYTES_MAX,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES_MAX,
    )
    try:
        consumer.assign(cluster.partitions(consumer))
        consumer.seek_to_beginning()
        read = size = 0
        while read < count:
            for records in consumer.poll(timeout_ms=round(POLL_SECONDS * 1000)).values():
                read += len(records)
                size += sum(len(record.value) for record in records)
    finally:
        consumer.close()
    return size


def read_by_librdkafka(kafka: Kafka, topic: str, count: int) -> int:
    """Do the same with its consumer."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "trial",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.max.bytes": FETCH_BYTES_MAX,
            "max.partition.fetch.bytes": PARTITION_FETCH_BYTES_MAX,
        }
    )
    try:
        at = confluent_kafka.OFFSET_BEGINNING
        consumer.assign([confluent_kafka.TopicPartition(topic, number, at) for number in range(PARTITIONS)])
        read = size = 0
        while read < count:
            messages = consumer.consume(RECORDS_A_POLL_MIN, POLL_SECONDS)
            records = [Record(one.offset(), one.timestamp()[1] * 1000, one.value()) for one in messages]
            read += len(records)
            size += sum(len(record.value) for record in records)
    finally:
        consumer.close()
    return size


def taken(kafka: Kafka, do: Callable[[], T], events: int) -> tuple[dict[str, float], T]:
    """Return what an event costs, in microseconds of our CPU, of Kafka's and of time; and what was returned."""
    before = time.process_time(), cpu_s([kafka._process.pid]), time.perf_counter()
    found = do()
    after = time.process_time(), cpu_s([kafka._process.pid]), time.perf_counter()
    spent = (1e6 * (b - a) / events for a, b in zip(before, after, strict=True))
    return dict(zip(("client_us", "kafka_us", "wall_us"), spent, strict=True)), found


def measure(kafka: Kafka, events: int, rounds: int, pages: int) -> dict[str, Any]:
    """Let the clients take turns; return medians, and the median ratio of the turns."""
    values = Crawl(pages).events(events, NEW_SHARE)
    size = sum(map(len, values))
    ways = {
        "kafka-python": (publish_by_kafka_python, read_by_kafka_python),
        "librdkafka": (publish_by_librdkafka, read_by_librdkafka),
    }
    costs: dict[str, dict[str, list[dict[str, float]]]] = {"publish": {}, "read": {}}
    for number in range(rounds):
        order, topics = list(ways) if number % 2 else list(ways)[::-1], {}
        for name in order:
            topics[name] = Topic(kafka, PARTITIONS)
            cost, _ = taken(kafka, partial(ways[name][0], kafka, topics[name].name, values), events)
            costs["publish"].setdefault(name, []).append(cost)
        for name in order:
            single = topics["librdkafka"].name
            cost, found = taken(kafka, partial(ways[name][1], kafka, single, events), events)
            costs["read"].setdefault(name, []).append(cost)
            if found != size:
                raise SystemExit(f"{name} read {found:,} bytes of {size:,}")
        for topic in topics.values():
            topic.delete()
    return {
        what: {
            **{
                name: {figure: round(statistics.median(one[figure] for one in rows), 1) for figure in rows[0]}
                for name, rows in by_name.items()
            },
            "client_ratio": round(
                statistics.median(
                    b["client_us"] / a["client_us"]
                    for a, b in zip(by_name["kafka-python"], by_name["librdkafka"], strict=True)
                ),
                3,
            ),
        }
        for what, by_name in costs.items()
    }


def main() -> int:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description="CPU an event of librdkafka against kafka-python.")
    parser.add_argument("--pages", type=int, default=100_000, help="known at the start")
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    with Kafka(kafka_or_end()) as kafka:
        found = measure(kafka, args.events, args.rounds, args.pages)
    for what, rows in found.items():
        for name in ("kafka-python", "librdkafka"):
            row = rows[name]
            print(f"{what:<8} {name:<13} {row['client_us']:6.1f} us, Kafka {row['kafka_us']:5.1f} us an event")
        print(f"{what:<8} librdkafka / kafka-python: {rows['client_ratio']:.2f}")
    about = {"pages": args.pages, "events": args.events, "links": LINKS, "version": confluent_kafka.version()}
    write_result("librdkafka", about | found, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
