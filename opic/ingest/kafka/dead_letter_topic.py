"""Dead letters on Kafka: forwards them from the store to the dead-letter topic, reads them, and replays them.

A letter is first sent to the topic, then deleted from the store: if a worker dies in between, it is sent again. Its
headers name the original record, so that a reader can detect duplicates. A letter too large for the topic is cut.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from opic.errors import BadInput, KafkaRefused, KafkaUnavailable
from opic.ingest.dead_letters import LETTERS_A_CALL, Letter, remove, stored
from opic.ingest.kafka.connection import (
    ERROR,
    INDEX,
    OFFSET,
    PARTITION,
    TOPIC,
    VALUE_BYTES,
    KafkaCluster,
    headers_of,
)
from opic.ingest.kafka.record_batches import Message
from opic.ingest.kafka.topic_log import Producer, key_of
from opic.ingest.outage import Outage
from opic.model.cash import MILLION
from opic.model.events import CALL_KEY_BYTES, Record
from opic.replica import Crawl
from opic.store.connection import store_errors
from opic.store.shard import Shard

log = logging.getLogger("opic.ingest")

FORWARD_SECONDS: Final = 0.5  # Minimum time between two checks.
AWAY_SECONDS: Final = 20.0  # The same after a failure, which takes up to ANSWER_SECONDS of the worker's time.
ANSWER_SECONDS: Final = 10.0
CUT_BYTES: Final = (512 << 10, 64 << 10, 4 << 10, 0)  # Tried in turn for a letter larger than its topic takes.
ERROR_CHARS_MAX: Final = 1_000
DIGITS_MAX: Final = 19
POLL_SECONDS: Final = 1.0


class Forwarder:
    """Forwards dead letters from the store to Kafka."""

    def __init__(self, cluster: KafkaCluster, crawl: Crawl) -> None:
        """Connect.

        Raises:
            KafkaUnavailable: Kafka does not answer.
            KafkaRefused: Kafka refused access, or the dead-letter topic does not exist.
        """
        self._crawl, self._topic = crawl, cluster.dlq
        cluster.check_topics(cluster.dlq)
        self._producer = Producer(cluster)
        self._due = float("-inf")  # When to look for letters again.
        self._outage = Outage(log)

    def forward(self, shards: Iterable[int]) -> int:
        """Forward the letters of these shards, at most every FORWARD_SECONDS; return the number of letters.

        While their topic can't take any, they stay in the store, which keeps the newest, and events go on.

        Raises:
            StoreUnavailable: the store is unavailable; some letters may be sent again.
        """
        if time.monotonic() < self._due:
            return 0
        self._due = time.monotonic() + FORWARD_SECONDS
        try:
            count = sum(self._forward(self._crawl.shards[number]) for number in sorted(shards))
        except (KafkaUnavailable, KafkaRefused) as error:
            self._due = time.monotonic() + AWAY_SECONDS
            self._outage.began(error)
            return 0
        self._outage.ended()
        return count

    def _forward(self, shard: Shard) -> int:
        letters = stored(shard)
        if letters:
            for letter in self._send(letters):
                self._send_cut(letter)
            remove(shard, letters)
            if len(letters) == LETTERS_A_CALL:
                self._due = float("-inf")  # There are more.
        return len(letters)

    def _send(self, letters: Sequence[Letter]) -> list[Letter]:
        """Send letters to the topic; return those that are too large for it."""
        sent, refused = [], []
        for letter in letters:
            try:
                sent.append((letter, self._producer.send(self._topic, letter.value, None, _headers(letter))))
            except BadInput:
                refused.append(letter)
        end = time.monotonic() + ANSWER_SECONDS
        for letter, pending in sent:
            try:
                self._producer.wait([pending], end - time.monotonic())
            except BadInput:
                refused.append(letter)
        return refused

    def _send_cut(self, letter: Letter) -> None:
        """Send a letter with as much of its value as fits; the event's own topic has the whole value."""
        # Try the whole letter first: after an oversized record, the client also drops the records sent after it.
        for size in (len(letter.value), *CUT_BYTES):
            if size <= len(letter.value) and not self._send([replace(letter, value=letter.value[:size])]):
                return
        log.error(
            "the dead letter of %s was dropped: it is too large for %s even without its value, see "
            "max.message.bytes; %s",
            letter.origin, self._topic, letter.error[:ERROR_CHARS_MAX],
        )  # fmt: skip

    def close(self) -> None:
        self._producer.close()


class TopicLetters:
    """The dead letters of a crawl on Kafka. The store remembers which were replayed, while the topic has them."""

    def __init__(self, cluster: KafkaCluster, crawl: Crawl) -> None:
        self._cluster, self._crawl = cluster, crawl
        self._first = crawl.shards[0]

    def newest(self, count: int, error: str = "", value_bytes_max: int | None = None) -> list[Letter]:
        """Return the newest `count` letters whose reason contains `error`, oldest first, with values cut as asked."""
        replayed = self._replayed()
        letters = self._letters(None if error else count, replayed, value_bytes_max)
        matching = [(order_key, letter) for order_key, letter in letters if error in letter.error]
        return [letter for _, letter in sorted(matching, key=lambda pair: pair[0])[-count:]]

    def replay(self, error: str = "", count: int | None = None) -> int:
        """Publish letters again, then record that. A repeat within a day has the same key and so has no effect."""
        replayed = self._replayed()
        letters = (letter for _, letter in self._letters(None, replayed))
        matching = (letter for letter in letters if not letter.replayed and error in letter.error)
        wanted = islice((letter for letter in matching if letter.is_whole()), count)
        total = 0
        with closing(Producer(self._cluster)) as producer:
            while batch := list(islice(wanted, LETTERS_A_CALL)):
                producer.wait([self._again(producer, letter) for letter in batch], ANSWER_SECONDS)
                with store_errors():
                    self._first.client.sadd(self._first.keys.replayed, *(letter.id for letter in batch))
                total += len(batch)
        return total

    def _again(self, producer: Producer, letter: Letter) -> Any:
        key = blake2b(f"{self._cluster.dlq}/{letter.id}".encode(), digest_size=CALL_KEY_BYTES).digest()
        return producer.send(
            self._cluster.topic,
            letter.value,
            key_of(letter.value, normalization=self._crawl.rules.normalization),
            headers_of(key=key),
        )

    def _replayed(self) -> set[str]:
        with store_errors():
            return {name.decode() for name in self._first.client.smembers(self._first.keys.replayed)}

    def _letters(
        self, last: int | None, replayed: set[str], value_bytes_max: int | None = None
    ) -> Iterator[tuple[tuple[int, int, int], Letter]]:
        """Yield the letters of the topic, or the `last` of each partition, each with its time, partition and offset.

        Replays of letters that the topic has no more are forgotten.
        """
        with closing(self._cluster.consumer()) as consumer:
            partitions = self._cluster.partitions(consumer, self._cluster.dlq)
            with self._cluster.errors():
                consumer.assign(partitions)
                begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
                for partition in partitions:
                    consumer.seek(
                        partition, begins[partition] if last is None else max(begins[partition], ends[partition] - last)
                    )
            self._forget({partition.partition: begins[partition] for partition in partitions})
            while any(consumer.position(partition) < ends[partition] for partition in partitions):
                with self._cluster.errors():
                    polled = consumer.poll(timeout_ms=round(POLL_SECONDS * 1000))
                for partition, messages in polled.items():
                    for message in messages:
                        letter = _letter(message, partition.partition, replayed, value_bytes_max)
                        yield (round(letter.at * 1000), partition.partition, message.offset), letter

    def _forget(self, begins: dict[int, int]) -> None:
        over = [
            letter_id
            for letter_id in self._replayed()
            if int(letter_id.split("-")[1]) < begins.get(int(letter_id.split("-")[0]), 0)
        ]
        if over:
            with store_errors():
                self._first.client.srem(self._first.keys.replayed, *over)


def _headers(letter: Letter) -> list[tuple[str, bytes]]:
    pairs = [(ERROR, letter.error[:ERROR_CHARS_MAX]), (TOPIC, letter.topic), (PARTITION, letter.partition)]
    pairs.append((OFFSET, str(letter.offset)))
    if letter.index is not None:
        pairs.append((INDEX, str(letter.index)))
    if letter.value_bytes > len(letter.value):
        pairs.append((VALUE_BYTES, str(letter.value_bytes)))
    return [(name, text.encode("utf-8", "replace")) for name, text in pairs]


def _letter(
    message: Message | Record, partition: int, replayed: set[str], value_bytes_max: int | None = None
) -> Letter:
    """Return a message of the topic as a letter. Publishers may write anything there."""
    letter_id, value = f"{partition}-{message.offset}", message.value or b""
    if isinstance(message, Record):  # Without headers, so not from a worker; or too large to be read.
        size = message.value_bytes or len(value)
        refused_at = message.time_us / MILLION
        return Letter(
            letter_id, message.problem, "", "", -1, value[:value_bytes_max], size, refused_at, letter_id in replayed
        )
    headers = dict(message.headers)
    return Letter(
        letter_id,
        _text(headers.get(ERROR)),
        _text(headers.get(TOPIC)),
        _text(headers.get(PARTITION)),
        _number(headers.get(OFFSET), -1),
        value[:value_bytes_max],
        max(_number(headers.get(VALUE_BYTES), 0), len(value)),
        max(message.timestamp, 0) / 1000,
        letter_id in replayed,
        _number(headers[INDEX], -1) if INDEX in headers else None,
    )


def _text(header: bytes | None) -> str:
    return (header or b"").decode("utf-8", "replace")


def _number(header: bytes | None, default: int) -> int:
    text = _text(header)
    return int(text) if text.isascii() and text.isdigit() and len(text) < DIGITS_MAX else default
