"""Batches are parsed to the same records as by the client, and a damaged one says which it is, each time it is read."""

import gzip
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka import errors as broken
from kafka.consumer.fetcher import Fetcher
from kafka.record.memory_records import MemoryRecords, MemoryRecordsBuilder
from kafka.structs import TopicPartition

from opic.ingest.kafka.codecs import PIECE_BYTES
from opic.ingest.kafka.connection import record_of
from opic.ingest.kafka.record_batches import KEPT_BYTES, Damaged, Parts, PollLimits
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
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 1 << 3, 1 << 4, 1 << 5
LENGTH_AT, ATTRIBUTES_AT, MAX_TIME_AT, PRODUCER_AT, HEADER_BYTES = 8, 21, 35, 43, 61
RECORD_BYTES_MAX = 1 << 24
COMMITTED = 1


def xerial(data: bytes) -> bytes:
    """As Java writes Snappy: blocks of 32 KiB, each after its size."""
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + 32_768])) for at in range(0, len(data), 32_768)]
    return b"\x82SNAPPY\0" + bytes(8) + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)


# By codec: the forms in which the clients write it.
FORMS = {
    "gzip": (GZIP, gzip.compress),
    "gzip in two members": (GZIP, lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "snappy of Java": (SNAPPY, xerial),
    "snappy of librdkafka": (SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "lz4": (LZ4, lz4.frame.compress),
    "lz4 of Java": (LZ4, lambda data: lz4.frame.compress(data, block_linked=False, store_size=False, block_size=4)),
    "zstd": (ZSTD, zstandard.compress),
    "zstd in two frames": (ZSTD, lambda data: zstandard.compress(data[:9]) + zstandard.compress(data[9:])),
}


def fetched(batches: Any, codec: int, *, append_ms: int | None = None, gap: int = 0) -> bytes:
    """What a broker returns: batches, each of which it has given its offset and, if told so, its time."""
    found, offset = b"", 0
    for records in batches:
        made = MemoryRecordsBuilder(2, codec, 1 << 25)
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


def recompressed(data: bytes, form: tuple[int, Callable[[bytes], bytes]]) -> bytes:
    """A plain batch, as a topic with a codec of its own keeps it."""
    codec, compress = form
    batch = bytearray(data[:HEADER_BYTES]) + compress(data[HEADER_BYTES:])
    batch[ATTRIBUTES_AT + 1] |= codec
    batch[LENGTH_AT : LENGTH_AT + 4] = (len(batch) - 12).to_bytes(4, "big")
    return bytes(batch)


def ours(data: bytes, since: int = 0, bytes_max: int = RECORD_BYTES_MAX, left: int = 1 << 40, **more: Any) -> Parts:
    return Parts(since, HERE, MemoryRecords(data), limits=PollLimits(bytes_max, left), **more)


def plain(messages: Any) -> list[Record]:
    return [one if isinstance(one, Record) else record_of(one) for one in messages]


@settings(deadline=None)
@given(
    st.lists(st.lists(RECORDS, min_size=1, max_size=5), min_size=1, max_size=3),
    st.sampled_from((NONE, GZIP, LZ4, ZSTD)),
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
    st.sampled_from((NONE, GZIP, LZ4, ZSTD)),
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


def test_codec_that_kafka_does_not_have_is_named_with_the_batch() -> None:
    data = bytearray(fetched([GOOD], NONE))
    data[ATTRIBUTES_AT + 1] |= 5
    with pytest.raises(broken.UnsupportedCodecError, match=r"t/3 at offset 0: .*number 5"):
        ours(bytes(data), check_crcs=False).take(1)


# Codecs.

LARGE = [(NOW_MS, b"k", bytes([number]) * size, []) for number, size in enumerate((9, PIECE_BYTES, 0, 3_000_000, 1))]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("records", [GOOD, LARGE], ids=["small", "large"])
def test_batch_is_read_in_each_form_of_each_codec(form: str, records: Any) -> None:
    plain_batch = fetched([records], NONE)
    wanted = plain(ours(plain_batch).take())
    assert [record.value for record in wanted] == [value for _, _, value, _ in records]
    assert plain(ours(recompressed(plain_batch, FORMS[form]), check_crcs=False).take()) == wanted


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lost", [1, 9, 20])
def test_batch_that_ends_early_is_damaged(form: str, lost: int) -> None:
    codec, compress = FORMS[form]
    found = ours(recompressed(fetched([GOOD], NONE), (codec, lambda data: compress(data)[:-lost])), check_crcs=False)
    with pytest.raises(Damaged, match="t/3 at offset 0"):
        found.take(1) or found.take(1)


def test_snappy_block_that_promises_too_much_is_damaged() -> None:
    """It would be allocated at once. No block has more than 22 times its size in it."""
    batch = bytearray(recompressed(fetched([GOOD], NONE), FORMS["snappy of librdkafka"]))
    batch[HEADER_BYTES:] = b"\xff\xff\xff\xff\x0f" + batch[HEADER_BYTES + 1 :]  # 4 GiB.
    batch[LENGTH_AT : LENGTH_AT + 4] = (len(batch) - 12).to_bytes(4, "big")
    with pytest.raises(Damaged, match="can't have 4,294,967,295 bytes"):
        ours(bytes(batch), check_crcs=False).take()


# Limits of memory.


@pytest.mark.parametrize("form", [None, *FORMS])
def test_record_over_the_limit_is_cut_and_the_others_are_read(form: str | None) -> None:
    size = 3 * PIECE_BYTES
    records = [GOOD[0], (NOW_MS, b"k", b"x" * size, [("h", b"v")]), *GOOD[1:], (NOW_MS, b"k" * size, b"y", []), GOOD[0]]
    data = fetched([records], NONE)
    found = plain(ours(recompressed(data, FORMS[form]) if form else data, bytes_max=size, check_crcs=False).take())
    assert [record.offset for record in found] == list(range(6))
    assert [record.value for record in found if not record.problem] == [*(one[2] for one in GOOD), GOOD[0][2]]
    cut, keyed = found[1], found[4]
    assert (cut.time_us, cut.value_bytes, len(cut.value)) == (1_000 * NOW_MS, size, KEPT_BYTES - 9)
    assert set(cut.value) == set(b"x")
    assert "is over the limit of 3,145,728: see OPIC_MAX_BODY_BYTES" in cut.problem
    assert (keyed.value, 0 < keyed.value_bytes < 10) == (b"", True)  # The key takes all that is kept.


@pytest.mark.parametrize(("size", "whole"), [(1_000, True), (1_001, False)])
def test_limit_of_a_record_is_that_of_all_its_bytes(size: int, whole: bool) -> None:
    framing = 7  # Attributes, time, offset, no key, two bytes of the value's size, the number of headers.
    (found,) = ours(fetched([[(NOW_MS, None, b"x" * (size - framing), [])]], NONE), bytes_max=1_000).take()
    assert (not found.problem, len(found.value)) == (whole, size - framing)
    assert found.value_bytes == (0 if whole else size - framing)


@given(st.integers(0, 400), st.integers(1, 3))
def test_any_cut_of_an_oversized_record_gives_a_dead_letter(key: int, batches: int) -> None:
    """Wherever the kept bytes end: in the key, in a length, in the value."""
    records = [[(-1, b"k" * (KEPT_BYTES - key), b"v" * 300, [])]] * batches
    found = ours(fetched(records, NONE), bytes_max=100).take()
    assert [(one.offset, one.time_us, bool(one.problem)) for one in found] == [(n, 0, True) for n in range(batches)]


def test_poll_without_room_returns_no_more_and_pauses_the_partition() -> None:
    paused = []
    limits = PollLimits(RECORD_BYTES_MAX, 1_000, paused.append)
    found = Parts(0, HERE, MemoryRecords(fetched([[(NOW_MS, b"k", b"x" * 400, [])] * 9], ZSTD)), limits=limits)
    assert [len(found.take(9)), len(found.take(9)), paused] == [3, 0, [HERE, HERE]]
    assert found.next_fetch_offset == 3
    limits.left = 1 << 20
    assert [one.offset for one in found.take(9)] == [3, 4, 5, 6, 7, 8]
    assert paused == [HERE, HERE]


# Headers.


def test_header_name_that_is_not_utf_8_stops_nothing() -> None:
    record = (NOW_MS, b"k", b"value", [("name", b"1"), ("opic-key", b"2")])
    data = fetched([[record, GOOD[0]]], NONE).replace(b"name", b"\xff\xfe\x80!")
    first, second = ours(data, check_crcs=False).take()
    assert first.headers == [("\\xff\\xfe\\x80!", b"1"), ("opic-key", b"2")]
    assert (first.value, second.value) == (b"value", b"value 0")


# Transactions.


def of_producer(data: bytes, producer: int, attributes: int) -> bytes:
    batch = bytearray(data)
    batch[ATTRIBUTES_AT + 1] |= attributes
    batch[PRODUCER_AT : PRODUCER_AT + 8] = producer.to_bytes(8, "big")
    return bytes(batch)


def marker(producer: int, *, commit: bool) -> bytes:
    """The control batch that ends a transaction: version 0, and 1 for a commit."""
    record = (NOW_MS, b"\0\0\0" + bytes([commit]), b"\0\0\0\0\0\0", [])
    return of_producer(fetched([[record]], NONE), producer, TRANSACTIONAL | CONTROL)


@st.composite
def transactions(draw: Any) -> tuple[bytes, list[bytes], list[Any]]:
    """Interleaved transactions: a partition, the values committed, those aborted as Kafka names them."""
    data, offset, values, aborted = b"", 0, list[bytes](), list[Any]()
    began: dict[int, tuple[int, list[bytes]]] = {}
    committed: list[tuple[int, bytes]] = []

    def put(batch: bytes) -> None:
        nonlocal data, offset
        moved = bytearray(batch)
        moved[:8] = offset.to_bytes(8, "big")
        data, offset = data + bytes(moved), offset + 1

    def end(producer: int, commit: bool) -> None:
        first, found = began.pop(producer)
        if commit:
            committed.extend(found)
        else:
            aborted.append(SimpleNamespace(producer_id=producer, first_offset=first))
        put(marker(producer, commit=commit))

    for number, step in enumerate(draw(st.lists(st.sampled_from(("plain", "send", "end")), max_size=20))):
        producer, value = draw(st.integers(1, 3)), b"%d" % number
        batch = fetched([[(NOW_MS, b"k", value, [])]], draw(st.sampled_from((NONE, ZSTD))))
        if step == "plain":
            committed.append((offset, value))
            put(of_producer(batch, producer, 0) if draw(st.booleans()) else batch)
        elif step == "send":
            began.setdefault(producer, (offset, []))[1].append((offset, value))
            put(of_producer(batch, producer, TRANSACTIONAL))
        elif producer in began:
            end(producer, draw(st.booleans()))
    for producer in sorted(began):
        end(producer, draw(st.booleans()))
    values = [value for _, value in sorted(committed)]
    return data, values, draw(st.permutations(aborted))


@settings(deadline=None)
@given(transactions(), st.integers(1, 4))
def test_records_of_aborted_transactions_are_left_out(made: Any, at_once: int) -> None:
    data, values, aborted = made
    terms: dict[str, Any] = {"isolation_level": COMMITTED, "aborted_transactions": aborted, "check_crcs": False}
    client = Fetcher.PartitionRecords(0, HERE, MemoryRecords(data), **terms)
    found, seen = ours(data, **terms), list[bytes]()
    while client:
        records = plain(found.take(at_once))
        assert records == plain(client.take(at_once))
        assert found.next_fetch_offset == client.next_fetch_offset
        seen += [record.value for record in records]
    assert not found
    assert seen == values


@given(transactions())
def test_reader_of_all_records_gets_aborted_ones_too_but_no_markers(made: Any) -> None:
    data, values, aborted = made
    found = [record.value for record in plain(ours(data, aborted_transactions=aborted, check_crcs=False).take())]
    assert found == sorted(found, key=int)
    assert set(values) <= set(found)
    assert (len(found) > len(values)) == bool(aborted)
