"""Records of fetched batches, parsed for the worker: the client's own way takes three times the CPU for each record.

The client fetches, checks who owns which partition, and keeps positions. This replaces only how it takes records out of
a batch. Most records have no headers and a possible time: they become `Record` at once, all others a `Message`.

A consumer that reads what is committed gets no record of an aborted transaction. The broker names these transactions
with what it returns, and keeps back all from the first record of a transaction on that has not ended.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka import errors as broken
from kafka.consumer.fetcher import Fetcher
from kafka.protocol.consumer import IsolationLevel
from kafka.record.default_records import DefaultRecordBatch

from opic.ingest.kafka.codecs import pieces_of
from opic.model.events import TIME_MAX_US, TIME_MIN_US, Record

MAGIC: Final = 2  # Of the only format that Kafka has written since 0.11.
MORE: Final = 0x80  # This bit of a byte says that the number goes on in the next one.
VARINT_BITS_MAX: Final = 63
VARINT_BYTES_MAX: Final = 10
POLL_BYTES_MAX: Final = 64 << 20  # Of the values that one poll returns; the last one may exceed it.
KEPT_BYTES: Final = 1 << 16  # Of a record that is too large: enough to see what it is.
RECORD_BYTES: Final = 64  # Besides its value.


class Message(NamedTuple):
    """What `record_of` and `Signatures` read of a record."""

    offset: int
    timestamp: int  # Milliseconds.
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Damaged(broken.CorruptRecordError):  # type: ignore[misc]
    """A batch on the topic can't be read. It says which one."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass
class PollLimits:
    """Limits of the memory that a consumer's records take."""

    record_bytes_max: int  # Of a larger record, only the beginning is kept.
    left: int = POLL_BYTES_MAX  # Bytes that this poll may still return.
    pause: Callable[[TopicPartition], object] = lambda _: None  # Called for each partition that has to wait for that.


class BoundedConsumer(KafkaConsumer):  # type: ignore[misc]
    """A consumer whose polls return a bounded number of bytes, as `Record` and `Message`."""

    def __init__(self, *, record_bytes_max: int, **options: Any) -> None:
        """Connect; see `KafkaConsumer`. Of a record larger than `record_bytes_max`, only the beginning is kept."""
        self._limits = PollLimits(record_bytes_max, pause=self._pause_full)
        self._full: set[TopicPartition] = set()  # Paused until the next poll.
        super().__init__(**options)
        self._fetcher.PartitionRecords = partial(Parts, limits=self._limits)

    def poll(self, timeout_ms: int = 0, **more: Any) -> Any:
        """Return records as `KafkaConsumer.poll`, of up to POLL_BYTES_MAX."""
        full, self._full, self._limits.left = self._full, set(), POLL_BYTES_MAX
        self.resume(*(full & self.assignment()))
        if not self._fetcher._next_partition_records:
            # The client sets parsed records of paused partitions aside. It resumes one of these partitions only if this
            # is None, but leaves an empty one here; then it neither returns nor fetches anything of the others.
            self._fetcher._next_partition_records = None
        return super().poll(timeout_ms=timeout_ms, **more)

    def pause(self, *partitions: TopicPartition) -> None:
        self._full.difference_update(partitions)
        super().pause(*partitions)

    def _pause_full(self, partition: TopicPartition) -> None:
        if partition not in self.paused():
            super().pause(partition)
            self._full.add(partition)


class Parts(Fetcher.PartitionRecords):  # type: ignore[misc]
    """What one fetch returned of one partition."""

    def __init__(self, *args: Any, limits: PollLimits, **more: Any) -> None:
        """Take what the client gives; see `Fetcher.PartitionRecords`."""
        self._limits = limits
        super().__init__(*args, **more)

    def take(self, n: int | None = None) -> list[Any]:
        """Return the next records, up to `n` and while the poll has room; a larger record is returned alone."""
        limits, records = self._limits, list[Any]()
        self._maybe_raise_next_inline_exception()
        try:
            for record in islice(self.record_iterator if limits.left > 0 else (), n):
                records.append(record)
                limits.left -= RECORD_BYTES + len(record.value or b"")
                if limits.left <= 0:
                    break
        except Exception as error:
            if not records:
                raise
            self._next_inline_exception = error  # Raised by the next call.
        if limits.left <= 0:
            limits.pause(self.topic_partition)
        return records

    def _unpack_records(self, tp: Any, records: Any, *_: Any) -> Iterator[Any]:
        """Yield the records, each a `Record` or a `Message`; see `Fetcher.PartitionRecords`.

        Raises:
            Damaged: a batch can't be read. It is fetched again by the next poll: once the broker's copy is whole,
                reading goes on.
        """
        try:
            while (batch := records.next_batch()) is not None:
                if self.check_crcs and not batch.validate_crc():
                    raise broken.CorruptRecordError("its checksum (CRC) does not fit its bytes")
                if batch.magic != MAGIC:
                    for record in batch:
                        self.next_fetch_offset = record.offset + 1
                        yield Message(record.offset, record.timestamp, record.value, record.headers)
                    continue
                self.leader_epoch = batch.leader_epoch
                if not self._left_out(batch):
                    self.bytes_read += batch.size_in_bytes
                    self.records_read += batch.records_count
                    for record in _records(batch, self._limits.record_bytes_max):
                        self.next_fetch_offset = record.offset + 1
                        yield record
                self.next_fetch_offset = batch.next_offset  # Its last records may have been removed since.
        except Exception as error:  # With a damaged batch, the codecs may raise any exception.
            # Otherwise the client would ask this object again, for ever, which has nothing more to give.
            self.drain()
            said = str(error.args[0]) if isinstance(error, broken.KafkaError) and error.args else f"{error!r}"
            kind = broken.UnsupportedCodecError if isinstance(error, broken.UnsupportedCodecError) else Damaged
            raise kind(f"{tp.topic}/{tp.partition} at offset {self.next_fetch_offset:,}: {said}") from error
        self.drain()

    def _left_out(self, batch: DefaultRecordBatch) -> bool:
        """Return whether a batch has no records for us: it marks the end of a transaction, or its own was aborted."""
        if self.isolation_level == IsolationLevel.READ_COMMITTED and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)


def _records(batch: DefaultRecordBatch, bytes_max: int) -> Iterator[Any]:
    """Parse the records of one batch of the present format. It is decompressed as far as its records are asked for.

    Raises:
        CorruptRecordError: they do not fill the batch.
    """
    pieces = pieces_of(batch.compression_type, bytes(memoryview(batch._buffer)[batch._pos :]))
    base, time_ms, appended = batch.base_offset, batch.first_timestamp, batch.timestamp_type == batch.LOG_APPEND_TIME
    if appended:
        time_ms = batch.max_timestamp
    data, position = b"", 0
    for _ in range(batch.records_count):
        if len(data) - position < VARINT_BYTES_MAX:
            data, position = _longer(data, position, VARINT_BYTES_MAX, pieces), 0
        length, position = _number(data, position)
        if length > bytes_max:
            head, data, position = _cut(data, position, length, pieces)
            yield _oversized(head, length, bytes_max, base, (time_ms, appended))
            continue
        if position + length > len(data):
            data, position = _longer(data, position, length, pieces), 0
        end = position + length
        delta, position = _number(data, position + 1)  # After a byte of attributes, which none has.
        at_ms = time_ms if appended else time_ms + delta
        delta, position = _number(data, position)
        _, position = _bytes(data, position)  # The key, which only chooses the partition.
        value, position = _bytes(data, position)
        headers, position = _number(data, position)
        if headers < 0:
            raise broken.CorruptRecordError("a record has a negative number of headers")
        if headers or not TIME_MIN_US <= at_ms * 1000 <= TIME_MAX_US:
            named, position = _headers(data, position, headers)
            record: Message | Record = Message(base + delta, at_ms, value, named)
        else:
            record = Record(base + delta, at_ms * 1000, value or b"")
        if position != end or end > len(data):
            raise broken.CorruptRecordError(f"a record has {position - end + length:,} bytes, not {length:,}")
        yield record
    if left := len(data) - position + sum(map(len, pieces)):
        raise broken.CorruptRecordError(f"{left:,} bytes follow its last record")


def _longer(data: bytes, start: int, size: int, pieces: Iterator[bytes]) -> bytes:
    """Return the data from a byte on, with as many pieces more as `size` bytes need; fewer bytes if that is all."""
    parts = [data[start:]]
    have = len(parts[0])
    while have < size and (more := next(pieces, b"")):
        parts.append(more)
        have += len(more)
    return b"".join(parts)


def _cut(data: bytes, start: int, length: int, pieces: Iterator[bytes]) -> tuple[bytes, bytes, int]:
    """Return the beginning of a record that is too large, and the data with the place where the next record begins."""
    data = _longer(data, start, min(length, KEPT_BYTES), pieces)
    head, left = data[: min(length, KEPT_BYTES)], length
    while left > len(data):
        left -= len(data)
        if not (data := next(pieces, b"")):
            raise broken.CorruptRecordError(f"it ends in the middle of a record of {length:,} bytes")
    return head, data, left


def _oversized(head: bytes, length: int, bytes_max: int, base: int, times: tuple[int, bool]) -> Record:
    """Return the record that becomes the dead letter of a record that is too large, with the beginning of its value."""
    delta_ms, position = _number(head, 1)
    at_us = 1000 * (times[0] if times[1] else times[0] + delta_ms)
    delta, position = _number(head, position)
    key_bytes, position = _number(head, position)
    position += max(key_bytes, 0)
    # A key that takes all that is kept leaves no value, of a size that is known roughly.
    value_bytes, position = (
        _number(head, position) if position + VARINT_BYTES_MAX <= len(head) else (length - position, len(head))
    )
    return Record(
        base + delta,
        at_us if TIME_MIN_US <= at_us <= TIME_MAX_US else 0,
        head[position : position + value_bytes],
        problem=f"a record of {length:,} bytes is over the limit of {bytes_max:,}: see OPIC_MAX_BODY_BYTES",
        value_bytes=value_bytes,
    )


def _number(data: bytes, position: int) -> tuple[int, int]:
    """Return the signed number that begins at a byte, and where the next field begins."""
    number = data[position]
    position += 1
    if number >= MORE:
        number &= MORE - 1
        shift = 7
        while True:
            byte = data[position]
            position += 1
            number |= (byte & MORE - 1) << shift
            if byte < MORE:
                break
            shift += 7
            if shift > VARINT_BITS_MAX:
                raise broken.CorruptRecordError("a number of a record has no end")
    return (number >> 1) ^ -(number & 1), position


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = _number(data, position)
    return (data[position : position + length], position + length) if length >= 0 else (None, position)


def _headers(data: bytes, position: int, count: int) -> tuple[list[tuple[str, bytes | None]], int]:
    headers = []
    for _ in range(count):
        name, position = _bytes(data, position)
        value, position = _bytes(data, position)
        headers.append(((name or b"").decode("utf-8", "backslashreplace"), value))
    return headers, position
