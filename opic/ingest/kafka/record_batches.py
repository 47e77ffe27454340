"""Records of fetched batches, parsed for the worker: the client's own way takes three times the CPU for each record.

The client fetches, checks who owns which partition, and keeps positions. This replaces only how it takes records out of
a batch. Most records have no headers and a possible time: they become `Record` at once, all others a `Message`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from kafka import errors as broken
from kafka.consumer.fetcher import Fetcher
from kafka.record.default_records import DefaultRecordBatch

from opic.model.events import TIME_MAX_US, TIME_MIN_US, Record

MAGIC: Final = 2  # Of the only format that Kafka has written since 0.11.
MORE: Final = 0x80  # This bit of a byte says that the number goes on in the next one.
VARINT_BITS_MAX: Final = 63


class Message(NamedTuple):
    """What `record_of` and `Signatures` read of a record."""

    offset: int
    timestamp: int  # Milliseconds.
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Damaged(broken.CorruptRecordError):  # type: ignore[misc]
    """A batch on the topic can't be read. It says which one."""

    def __str__(self) -> str:
        """Return the message without the client's prefix."""
        return str(self.args[0])


class Parts(Fetcher.PartitionRecords):  # type: ignore[misc]
    """What one fetch returned of one partition."""

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
                    for one in batch:
                        self.next_fetch_offset = one.offset + 1
                        yield Message(one.offset, one.timestamp, one.value, one.headers)
                    continue
                self.leader_epoch = batch.leader_epoch
                if not batch.is_control_batch:  # It marks the end of a transaction, and is no record of anybody's.
                    self.bytes_read += batch.size_in_bytes
                    self.records_read += batch.records_count
                    for one in list(_records(batch)):
                        self.next_fetch_offset = one.offset + 1
                        yield one
                self.next_fetch_offset = batch.next_offset  # Its last records may have been removed since.
        except Exception as error:  # With a damaged batch, the codecs may raise any exception.
            # Otherwise the client would ask this object again, for ever, which has nothing more to give.
            self.drain()
            said = str(error.args[0]) if isinstance(error, broken.KafkaError) and error.args else f"{error!r}"
            kind = broken.UnsupportedCodecError if isinstance(error, broken.UnsupportedCodecError) else Damaged
            raise kind(f"{tp.topic}/{tp.partition} at offset {self.next_fetch_offset:,}: {said}") from error
        self.drain()


def _records(batch: DefaultRecordBatch) -> Iterator[Any]:
    """Parse the records of one batch of the present format.

    Raises:
        CorruptRecordError: they do not fill the batch.
    """
    iter(batch)  # Decompresses it.
    data, at = bytes(batch._buffer), batch._pos
    base, time_ms, appended = batch.base_offset, batch.first_timestamp, batch.timestamp_type == batch.LOG_APPEND_TIME
    if appended:
        time_ms = batch.max_timestamp
    for _ in range(batch.records_count):
        length, at = _number(data, at)
        end = at + length
        delta, at = _number(data, at + 1)  # After a byte of attributes, which none has.
        at_ms = time_ms if appended else time_ms + delta
        delta, at = _number(data, at)
        _, at = _bytes(data, at)  # The key, which only chooses the partition.
        value, at = _bytes(data, at)
        headers, at = _number(data, at)
        if headers < 0:
            raise broken.CorruptRecordError("a record has a negative number of headers")
        if headers or not TIME_MIN_US <= at_ms * 1000 <= TIME_MAX_US:
            named, at = _headers(data, at, headers)
            yield Message(base + delta, at_ms, value, named)
        else:
            yield Record(base + delta, at_ms * 1000, value or b"")
        if at != end or end > len(data):
            raise broken.CorruptRecordError(f"a record has {at - end + length:,} bytes, not {length:,}")
    if at != len(data):
        raise broken.CorruptRecordError(f"{len(data) - at:,} bytes follow its last record")


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the signed number that begins at a byte, and where the next field begins."""
    number = data[at]
    at += 1
    if number >= MORE:
        number &= MORE - 1
        shift = 7
        while True:
            byte = data[at]
            at += 1
            number |= (byte & MORE - 1) << shift
            if byte < MORE:
                break
            shift += 7
            if shift > VARINT_BITS_MAX:
                raise broken.CorruptRecordError("a number of a record has no end")
    return (number >> 1) ^ -(number & 1), at


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _number(data, at)
    return (data[at : at + length], at + length) if length >= 0 else (None, at)


def _headers(data: bytes, at: int, count: int) -> tuple[list[tuple[str, bytes | None]], int]:
    found = []
    for _ in range(count):
        name, at = _bytes(data, at)
        value, at = _bytes(data, at)
        found.append(((name or b"").decode("utf-8"), value))
    return found, at
