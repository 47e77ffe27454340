"""Where the topic began when a crawl first met it: what retention deletes after that is lost, what was gone is not.

A new store has no record of the topic, and begins with what the topic still has. From then on the store knows from
where it needs each partition, though nothing of it may have taken effect yet. So events that retention deletes before a
worker reads them are told from those that were deleted before the crawl began.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

from kafka import TopicPartition

from opic.ingest.kafka.connection import name_of
from opic.replica import Crawl
from opic.store.connection import store_errors

# Field of the first shard's meta, before the topic's name: its first offsets, in the order of its partitions.
FIELD: Final = "began:"


class FirstOffsets:
    """The offsets from which a crawl needs the partitions of a topic, kept in the store."""

    def __init__(self, crawl: Crawl, topic: str) -> None:
        """Read nothing yet."""
        self._crawl, self._field = crawl, FIELD + topic

    def of(self, begins: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the first offset needed of each partition; a store that is new to the topic keeps these as its own.

        Args:
            begins: where each partition of the topic begins now. All partitions must be in it.
        """
        ordered = sorted(begins)
        meta = self._crawl.shards[0].keys.meta
        with store_errors():
            kept = self._crawl.client.hget(meta, self._field)
            if kept is None and not self._has_records(ordered):
                self._crawl.client.hsetnx(meta, self._field, json.dumps([begins[one] for one in ordered]))
                kept = self._crawl.client.hget(meta, self._field)
        # A partition that was added later, or a topic met before stores kept this, is needed from its first record on.
        first = json.loads(kept) if kept is not None else []
        return {one: first[one.partition] if one.partition < len(first) else 0 for one in ordered}

    def _has_records(self, partitions: Sequence[TopicPartition]) -> bool:
        names = [name_of(one) for one in partitions]
        found = self._crawl.ask([["HMGET", shard.keys.offsets, *names] for shard in self._crawl.shards])
        return any(offset is not None for offsets in found for offset in offsets)

    def missing(self, begins: Mapping[TopicPartition, int]) -> dict[str, int]:
        """Return how many events that the crawl still needs are gone from the topic, by partition."""
        first, gone = self.of(begins), {}
        for one, begin in begins.items():
            needed = max(self._crawl.resume(name_of(one)), first[one])
            if begin > needed:
                gone[name_of(one)] = begin - needed
        return gone
