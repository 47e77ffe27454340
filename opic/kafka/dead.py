"""Dead letters on Kafka: forwarded from the store to the topic where people look for them, and published again.

A letter is put on the topic first and taken out of the store then: a worker that dies in between sends it again. Its
headers name the record that it was, so that a reader may tell.
"""

import time
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from opic.kafka.connection import ERROR, KEY_BYTES, OFFSET, PARTITION, TOPIC, Cluster, headers_of, kafka_errors
from opic.kafka.log import Producer, key_of
from opic.letters import LETTERS_A_CALL, Letter, remove, stored
from opic.store.connection import store_errors
from opic.store.crawl import Crawl
from opic.store.shard import Shard

FORWARD_SECONDS: Final = 0.5  # Least time between two looks.
ANSWER_SECONDS: Final = 10.0
POLL_SECONDS: Final = 1.0


class Forwarder:
    """Carries dead letters from the store to Kafka."""

    def __init__(self, cluster: Cluster, crawl: Crawl) -> None:
        """Connect.

        Raises:
            KafkaUnavailable: Kafka does not answer.
            KafkaRefused: it does not want us, or there is no topic for dead letters.
        """
        self._crawl, self._topic = crawl, cluster.dlq
        consumer = cluster.consumer()
        try:
            cluster.partitions(consumer, cluster.dlq)
        finally:
            consumer.close()
        self._producer = Producer(cluster)
        self._looked = float("-inf")

    def forward(self, shards: Iterable[int]) -> int:
        """Forward what these shards have, if it is time; return how many letters that were.

        Raises:
            StoreUnavailable: the store or Kafka is away; some letters may be sent again.
        """
        if time.monotonic() - self._looked < FORWARD_SECONDS:
            return 0
        self._looked = time.monotonic()
        return sum(self._forward(self._crawl.shards[number]) for number in sorted(shards))

    def _forward(self, shard: Shard) -> int:
        letters = stored(shard)
        if letters:
            sent = [self._producer.send(self._topic, one.value, None, _headers(one)) for one in letters]
            self._producer.wait(sent, ANSWER_SECONDS)
            remove(shard, letters)
            if len(letters) == LETTERS_A_CALL:
                self._looked = float("-inf")  # There are more.
        return len(letters)

    def close(self) -> None:
        """Let go of the connections."""
        self._producer.close()


class TopicLetters:
    """Those of a crawl on Kafka. Which were published again is remembered in the store, while the topic has them."""

    def __init__(self, cluster: Cluster, crawl: Crawl) -> None:
        """Read from the topic of dead letters, publish to that of events."""
        self._cluster, self._crawl = cluster, crawl
        self._first = crawl.shards[0]

    def newest(self, count: int, error: str = "", value_bytes_max: int | None = None) -> list[Letter]:
        """Return the newest ones whose reason has a text, oldest first; of each value the beginning, or all."""
        replayed = self._replayed()
        messages = (m for m in self._messages(None if error else count) if error in _header(m, ERROR))
        found = [((m.timestamp, m.partition, m.offset), _letter(m, replayed, value_bytes_max)) for m in messages]
        return [letter for _, letter in sorted(found, key=lambda pair: pair[0])[-count:]]

    def replay(self, error: str = "", count: int | None = None) -> int:
        """Publish again, then remember. Who dies in between does it again, by a key that the step knows for a day."""
        replayed = self._replayed()
        letters = (_letter(message, replayed) for message in self._messages(None))
        wanted = islice((one for one in letters if not one.replayed and error in one.error), count)
        producer, total = Producer(self._cluster), 0
        try:
            while batch := list(islice(wanted, LETTERS_A_CALL)):
                producer.wait([self._again(producer, letter) for letter in batch], ANSWER_SECONDS)
                with store_errors():
                    self._first.client.sadd(self._first.keys.replayed, *(letter.id for letter in batch))
                total += len(batch)
        finally:
            producer.close()
        return total

    def _again(self, producer: Producer, letter: Letter) -> Any:
        key = blake2b(f"{self._cluster.dlq}/{letter.id}".encode(), digest_size=KEY_BYTES).digest()
        return producer.send(self._cluster.topic, letter.value, key_of(letter.value), headers_of(key=key))

    def _replayed(self) -> set[str]:
        with store_errors():
            return {name.decode() for name in self._first.client.smembers(self._first.keys.replayed)}

    def _messages(self, last: int | None) -> Iterator[Any]:
        """Yield what is on the topic: all, or the last so many of each partition; and forget what retention took."""
        consumer = self._cluster.consumer()
        try:
            partitions = self._cluster.partitions(consumer, self._cluster.dlq)
            with kafka_errors(self._cluster.where):
                consumer.assign(partitions)
                begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
                for one in partitions:
                    consumer.seek(one, begins[one] if last is None else max(begins[one], ends[one] - last))
            self._forget({one.partition: begins[one] for one in partitions})
            while any(consumer.position(one) < ends[one] for one in partitions):
                with kafka_errors(self._cluster.where):
                    found = consumer.poll(timeout_ms=round(POLL_SECONDS * 1000))
                for messages in found.values():
                    yield from messages
        finally:
            consumer.close()

    def _forget(self, begins: dict[int, int]) -> None:
        over = [one for one in self._replayed() if int(one.split("-")[1]) < begins.get(int(one.split("-")[0]), 0)]
        if over:
            with store_errors():
                self._first.client.srem(self._first.keys.replayed, *over)


def _headers(letter: Letter) -> list[tuple[str, bytes]]:
    pairs = (ERROR, letter.error), (TOPIC, letter.topic), (PARTITION, letter.partition), (OFFSET, str(letter.offset))
    return [(name, text.encode("utf-8", "replace")) for name, text in pairs]


def _header(message: Any, name: str) -> str:
    found: bytes = dict(message.headers or ()).get(name, b"")
    return found.decode("utf-8", "replace")


def _letter(message: Any, replayed: set[str], value_bytes_max: int | None = None) -> Letter:
    offset, place = _header(message, OFFSET), f"{message.partition}-{message.offset}"
    value = message.value or b""
    return Letter(
        place,
        _header(message, ERROR),
        _header(message, TOPIC),
        _header(message, PARTITION),
        int(offset) if offset.isdigit() else -1,
        value[:value_bytes_max],
        len(value),
        max(message.timestamp, 0) / 1000,
        place in replayed,
    )
