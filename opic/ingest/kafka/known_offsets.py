"""What the store knows of a topic: where it began when the crawl first met it, and whether any of it took effect.

A new store has no record of the topic, and begins with what the topic still has. From then on the store knows from
where it needs each partition, though nothing of it may have taken effect yet. So events that retention deletes before a
worker reads them are told from those that were deleted before the crawl began.

Kafka remembers the offsets that the crawl's workers committed. An empty store beside them is a loss.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from kafka import TopicPartition

from opic.errors import StoreLost
from opic.ingest.kafka.connection import KafkaCluster, name_of
from opic.replica import Crawl
from opic.settings import Settings
from opic.store import connect
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys
from opic.store.recognition import ANEW, RESTORED

# Field of the first shard's meta, before the topic's name: its first offsets, in the order of its partitions.
FIELD: Final = "began:"


class FirstOffsets:
    """The offsets from which a crawl needs the partitions of a topic, kept in the store."""

    def __init__(self, crawl: Crawl, topic: str) -> None:
        self._crawl, self._field = crawl, FIELD + topic

    def first_offsets(self, begins: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the first offset needed of each partition; a store that is new to the topic keeps these as its own.

        Args:
            begins: where each partition of the topic begins now. All partitions must be in it.
        """
        ordered = sorted(begins)
        meta = self._crawl.shards[0].keys.meta
        with store_errors():
            kept = self._crawl.client.hget(meta, self._field)
            if kept is None and not self._has_records(ordered):
                self._crawl.client.hsetnx(meta, self._field, json.dumps([begins[partition] for partition in ordered]))
                kept = self._crawl.client.hget(meta, self._field)
        # A partition that was added later, or a topic met before stores kept this, is needed from its first record on.
        first = json.loads(kept) if kept is not None else []
        return {
            partition: first[partition.partition] if partition.partition < len(first) else 0 for partition in ordered
        }

    def _has_records(self, partitions: Sequence[TopicPartition]) -> bool:
        names = [name_of(partition) for partition in partitions]
        replies = self._crawl.ask([["HMGET", shard.keys.offsets, *names] for shard in self._crawl.shards])
        return any(offset is not None for offsets in replies for offset in offsets)

    def missing(self, begins: Mapping[TopicPartition, int]) -> dict[str, int]:
        """Return how many events that the crawl still needs are gone from the topic, by partition."""
        first, gone = self.first_offsets(begins), {}
        for partition, begin in begins.items():
            needed = max(self._crawl.resume(name_of(partition)), first[partition])
            if begin > needed:
                gone[name_of(partition)] = begin - needed
        return gone


def topic_read(client: Client, first: Keys) -> str | None:
    """Return the topic that workers of a crawl have read, if that is a single one; `first` has the keys of shard 0."""
    with store_errors():
        fields = [field.decode() for field in client.hkeys(first.meta)]
    topics = [field.removeprefix(FIELD) for field in fields if field.startswith(FIELD)]
    return topics[0] if len(topics) == 1 else None


def check_topic(settings: Settings) -> None:
    """Check that the topic exists, and that the store has not lost what was read of it.

    Raises:
        KafkaRefused: there is no such topic, or Kafka refused access.
        StoreLost: the store has lost the crawl.
        StoreUnavailable: the store or Kafka does not answer.
    """
    cluster = KafkaCluster(settings)
    cluster.check_topics(cluster.topic)
    with connect(settings.store) as client:
        check_used(cluster, client)


def check_used(cluster: KafkaCluster, client: Client) -> None:
    """Refuse a store without a record of the topic, if the crawl's workers have committed offsets of it.

    Raises:
        StoreLost: the store has lost the crawl.
        KafkaUnavailable: Kafka does not answer.
    """
    crawl = cluster.settings.crawl
    with store_errors():
        meta = client.hgetall(Keys(crawl, 0).meta)
        if {ANEW, RESTORED, b"restoring"} & meta.keys():
            return
        committed = cluster.committed()
        names = [name_of(partition) for partition in committed]
        for number in range(int(meta.get(b"shards", 0)) if names else 0):
            if any(offset is not None for offset in client.hmget(Keys(crawl, number).offsets, names)):
                return
    if committed:
        partition, offset = max(committed.items(), key=lambda item: item[1])
        raise StoreLost(
            crawl,
            f"it has no record of {cluster.topic}, of which workers of the group {cluster.group} applied all below "
            f"offset {offset:,} of {name_of(partition)}",
        )
