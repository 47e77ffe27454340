"""What do the parts of the Kafka client that opic replaces cost an event, and what those that replace them?

Two parts: to take records out of fetched batches, with checksum and decompression; and to choose the partition of a
record by its key. CPU time of this thread; both ways take turns, so that a busy neighbour is everybody's. No Kafka is
needed: batches are made as a broker returns them.

    python benchmarks/bench_kafka_client.py --rounds 60
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from harness import write_result
from kafka.consumer.fetcher import Fetcher
from kafka.partitioner.default import murmur2
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder
from kafka.structs import TopicPartition
from workloads import LINKS, Crawl

from opic.ingest.kafka.connection import record_of
from opic.ingest.kafka.record_batches import Parts, PollLimits
from opic.ingest.publish import BATCH_BYTES
from opic.model.events import Record
from opic.urls.canonical import shard_of

HERE: Final = TopicPartition("crawl.events", 0)
MAGIC, ZSTD = 2, 4
PARTITIONS: Final = 16
TIME_MS: Final = 1_750_000_000_000
Ways = Mapping[str, Callable[[], object]]


def batches(values: Sequence[bytes], key: bytes) -> bytes:
    """Return events as a broker returns them: in batches of the publisher's size, compressed, one after the other."""
    found, at = b"", 0
    while at < len(values):
        made, first = MemoryRecordsBuilder(MAGIC, ZSTD, BATCH_BYTES), at
        while at < len(values) and made.append(TIME_MS, key, values[at], []) is not None:
            at += 1
        made.close()
        batch = bytearray(made.buffer())
        batch[:8] = first.to_bytes(8, "big")
        found += bytes(batch)
    return found


def parsing(data: bytes) -> Ways:
    """Take all records out of batches."""

    def client() -> list[Record]:
        return [record_of(message) for message in Fetcher.PartitionRecords(0, HERE, MemoryRecords(data)).take()]

    def ours() -> list[Record]:
        found: list[Record] = Parts(0, HERE, MemoryRecords(data), limits=PollLimits(1 << 24)).take()
        return found

    if client() != ours():
        raise SystemExit("the two ways give other records")
    return {"client": client, "ours": ours}


def choosing(hosts: Sequence[str]) -> Ways:
    """Choose a partition for each of the keys."""
    keys = [host.encode() for host in hosts]

    def client() -> list[int]:
        return [(murmur2(key) & 0x7FFFFFFF) % PARTITIONS for key in keys]

    def ours() -> list[int]:
        return [shard_of(key.decode("ascii"), PARTITIONS) for key in keys]

    if client() != ours():
        raise SystemExit("the two ways choose other partitions")
    return {"client": client, "ours": ours}


def measure(ways: Ways, events: int, rounds: int) -> dict[str, Any]:
    """Return microseconds of CPU an event of each way, and the median ratio of the turns."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 else list(ways)[::-1]:
            before = time.thread_time()
            ways[name]()
            taken[name].append(1e6 * (time.thread_time() - before) / events)
    turns = zip(taken["ours"], taken["client"], strict=True)
    return {
        **{f"{name}_us": round(statistics.median(found), 2) for name, found in taken.items()},
        **{f"{name}_us_least": round(min(found), 2) for name, found in taken.items()},
        "ratio": round(statistics.median(ours / client for ours, client in turns), 3),
    }


def main() -> int:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description="CPU of the parts of the Kafka client that opic replaces.")
    parser.add_argument("--events", type=int, default=1_100)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--result", type=Path, help="where the JSON goes")
    args = parser.parse_args()
    crawl = Crawl(20_000)
    hosts = [url.split("/")[2] for url in crawl.urls()][:: 20_000 // args.events][: args.events]
    data = batches(crawl.events(args.events, 0.1), hosts[0].encode())
    parts = {
        "records": measure(parsing(data), args.events, args.rounds),
        "partition": measure(choosing(hosts), args.events, args.rounds),
    }
    for name, found in parts.items():
        print(f"{name}: client {found['client_us']} us, ours {found['ours_us']} us an event, ratio {found['ratio']}")
    write_result("kafka-client", {"events": args.events, "links": LINKS, "parts": parts}, args.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
