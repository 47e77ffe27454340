"""Batches are parsed to the same records as by the client, and a damaged one says which it is, each time it is read."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import errors as broken
from kafka.consumer.fetcher import Fetcher
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder
from kafka.structs import TopicPartition

from opic.ingest.kafka.connection import record_of
from opic.ingest.kafka.record_batches import Damaged, Parts
from opic.model.events import Record

HERE = TopicPartition("t", 3)
NOW_MS = 1_790_000_000_000
BYTES = st.none() | st.binary(max_size=300)
RECORDS = st.tuples(
    st.integers(NOW_MS - 10**6, NOW_MS + 10**6) | st.integers(-1, 2**42),
    BYTES,
    BYTES,
    st.lists(st.tuples(st.text(max_size=9), BYTES), max_size=3),
)
NONE, GZIP, ZSTD = 0, 1, 4
LOG_APPEND_TIME = 1 << 3
ATTRIBUTES_AT, MAX_TIME_AT, HEADER_BYTES = 21, 35, 61


def fetched(batches: Any, codec: int, *, append_ms: int | None = None, gap: int = 0) -> bytes:
    """What a broker returns: batches, each of which it has given its offset and, if told so, its time."""
    found, offset = b"", 0
    for records in batches:
        made = MemoryRecordsBuilder(2, codec, 1 << 20)
        for record in records:
            assert made.append(*record) is not None
        made.close()
        batch = bytearray(made.buffer())
        if append_ms is not None:
            batch[ATTRIBUTES_AT + 1] |= LOG_APPEND_TIME
            batch[MAX_TIME_AT : MAX_TIME_AT + 8] = append_ms.to_bytes(8, "big")
        batch[:8] = offset.to_bytes(8, "big")
        offset += len(records) + gap
        found += bytes(batch)
    return found


def ours(data: bytes, since: int = 0, **more: Any) -> Parts:
    return Parts(since, HERE, MemoryRecords(data), **more)


def plain(messages: Any) -> list[Record]:
    return [one if isinstance(one, Record) else record_of(one) for one in messages]


@settings(deadline=None)
@given(
    st.lists(st.lists(RECORDS, min_size=1, max_size=5), min_size=1, max_size=3),
    st.sampled_from((NONE, GZIP, ZSTD)),
    st.none() | st.integers(NOW_MS, NOW_MS + 9),
    st.integers(0, 3),
    st.integers(0, 6),
    st.integers(1, 7),
)
def test_records_and_positions_equal_those_of_kafka_python(
    batches: Any, codec: int, append_ms: int | None, gap: int, since: int, at_once: int
) -> None:
    """From any offset on, however many are taken at once."""
    data = fetched(batches, codec, append_ms=append_ms, gap=gap)
    client = Fetcher.PartitionRecords(since, HERE, MemoryRecords(data), check_crcs=False)
    found = ours(data, since, check_crcs=False)
    while client:
        assert plain(found.take(at_once)) == plain(client.take(at_once))
        assert (bool(found), found.next_fetch_offset) == (bool(client), client.next_fetch_offset)
    assert not found


GOOD = [(NOW_MS, b"k", b"value %d" % number, []) for number in range(3)]


@settings(deadline=None)
@given(st.integers(ATTRIBUTES_AT, len(fetched([GOOD], NONE)) - 1), st.integers(1, 255))
def test_damaged_batch_is_reported_after_the_records_before_it(at: int, flip: int) -> None:
    data = bytearray(fetched([GOOD, GOOD, GOOD], NONE))
    data[len(fetched([GOOD], NONE)) + at] ^= flip
    found = ours(bytes(data))
    assert [one.offset for one in found.take(3)] == [0, 1, 2]
    with pytest.raises(Damaged, match=r"t/3 at offset 3: its checksum \(CRC\) does not fit"):
        found.take(3)
    assert not found  # The client fetches again, from where it was.
    assert found.next_fetch_offset == 3


@settings(deadline=None)
@given(
    st.sampled_from((NONE, GZIP, ZSTD)),
    st.lists(st.tuples(st.integers(HEADER_BYTES, 400), st.integers(1, 255)), min_size=1, max_size=4),
)
def test_damage_that_no_checksum_shows_raises_nothing_else(codec: int, flips: Any) -> None:
    """As with a publisher that miscounts: an error of one kind, or records."""
    data = bytearray(fetched([GOOD], codec))
    for at, flip in flips:
        data[HEADER_BYTES + at % (len(data) - HEADER_BYTES)] ^= flip
    found = ours(bytes(data), check_crcs=False)
    with suppress(Damaged):
        assert all(isinstance(one, Record) for one in plain(found.take(10)))


def test_codec_that_is_not_installed_is_named_with_the_batch() -> None:
    data = bytearray(fetched([GOOD], NONE))
    data[ATTRIBUTES_AT + 1] |= 2  # Snappy.
    with pytest.raises(broken.UnsupportedCodecError, match=r"t/3 at offset 0: .*snappy"):
        ours(bytes(data), check_crcs=False).take(1)
