"""Cutting MessagePack needs nobody to understand it, and finds the same ends as those who do."""

import io
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.errors import BadFraming
from opic.ingest import msgpack_values

KEYS = st.text(max_size=40) | st.integers(-(1 << 63), (1 << 64) - 1) | st.binary(max_size=3)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(KEYS, inner, max_size=20),
    max_leaves=30,
)


def pack(value: object) -> bytes:
    return bytes(msgpack.packb(value))


@given(st.lists(VALUES))
def test_array_is_split_where_its_elements_end(values: list[Any]) -> None:
    assert msgpack_values.is_array(pack(values))
    assert list(msgpack_values.cut_array(pack(values))) == [pack(value) for value in values]


@given(VALUES, st.binary(max_size=5))
def test_counted_end_is_the_end(value: object, more: bytes) -> None:
    assert msgpack_values.end_of(pack(value) + more) == len(pack(value))
    assert msgpack_values.is_map(pack(value)) == isinstance(value, dict)


@given(st.binary(min_size=1, max_size=30))
def test_any_bytes_are_split_like_the_decoder_would_or_refused(body: bytes) -> None:
    array = b"\x92" + body
    try:
        fast = list(msgpack_values.cut_array(array))
    except BadFraming:
        try:
            end = msgpack_values.end_of(array)
        except BadFraming:
            return
        assert end < len(array)
        return
    assert len(fast) == 2
    assert msgpack_values.end_of(array) == len(array)
    assert fast[0] == body[: msgpack_values.end_of(body)]


class Trickle(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 7, 7))


@given(st.lists(VALUES, max_size=10))
def test_stream_is_split_alike_wherever_reads_end(values: list[Any]) -> None:
    stream = b"".join(map(pack, values))
    for file in (io.BytesIO(stream), Trickle(stream)):
        assert list(msgpack_values.cut_stream(file, 1 << 20)) == [pack(value) for value in values]
    if stream:
        with pytest.raises(BadFraming, match="ends in the middle"):
            list(msgpack_values.cut_stream(Trickle(stream + b"\x91"), 1 << 20))


DEEP = b"\x91" * 70_000 + b"\xc0"


@pytest.mark.parametrize(
    "values", [[DEEP], [b"\x01", DEEP, b"\xa1a", DEEP, DEEP, b"\x02"]], ids=["alone", "among others"]
)
def test_deeply_nested_value_is_split_from_a_stream(values: list[bytes]) -> None:
    for file in (io.BytesIO(b"".join(values)), Trickle(b"".join(values))):
        assert list(msgpack_values.cut_stream(file, 1 << 20)) == values
    with pytest.raises(BadFraming, match="ends in the middle"):
        list(msgpack_values.cut_stream(io.BytesIO(b"".join(values) + DEEP[:-1]), 1 << 20))
    with pytest.raises(BadFraming, match="OPIC_MAX_BODY_BYTES 70,000"):
        list(msgpack_values.cut_stream(io.BytesIO(b"".join(values)), 70_000))
    with pytest.raises(BadFraming, match="starts with the byte 0xc1"):
        list(msgpack_values.cut_stream(io.BytesIO(b"".join(values) + DEEP[:-1] + b"\xc1"), 1 << 20))


def test_lengths_of_extensions_are_read_correctly() -> None:
    """Its length and its type's byte are 2^32 bytes, which is 0 where 32 bits are counted with."""
    longest, looks_like_it = b"\xc9\xff\xff\xff\xff", b"\xa5\xc9\xff\xff\xff\xff"
    for behind in (b"", b"\x01\x02", b"a" * 300_000):
        with pytest.raises(BadFraming, match="ends in the middle"):
            list(msgpack_values.cut_array(b"\x93\x01" + longest + behind))
        with pytest.raises(BadFraming, match=r"ends in the middle|OPIC_MAX_BODY_BYTES"):
            list(msgpack_values.cut_stream(io.BytesIO(b"\x01" + longest + behind), 100_000))
    assert list(msgpack_values.cut_array(b"\x92\x01" + looks_like_it)) == [b"\x01", looks_like_it]
    for file in (io.BytesIO(b"\x01" + 3 * looks_like_it), Trickle(b"\x01" + 3 * looks_like_it)):
        assert list(msgpack_values.cut_stream(file, 100_000)) == [b"\x01", *3 * [looks_like_it]]


def test_stream_with_a_long_value_is_refused_before_it_is_read() -> None:
    class Endless(io.RawIOBase):
        read_bytes = 0

        def read(self, size: int = -1) -> bytes:
            self.read_bytes += size
            return b"\xdb\xff\xff\xff\xff".ljust(size, b"a")

    endless: Any = Endless()
    with pytest.raises(BadFraming, match="OPIC_MAX_BODY_BYTES 100,000"):
        list(msgpack_values.cut_stream(endless, 100_000))
    assert endless.read_bytes < 300_000
