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


def test_deeply_nested_value_is_refused() -> None:
    with pytest.raises(BadFraming, match="byte 1 is nested too deeply"):
        list(msgpack_values.cut_stream(io.BytesIO(b"\x01" + DEEP), 1 << 20))


def test_byte_that_begins_nothing_is_refused() -> None:
    with pytest.raises(BadFraming, match="starts like something behind byte 1"):
        list(msgpack_values.cut_stream(io.BytesIO(b"\x01\xc1"), 1 << 20))


def test_extension_of_the_greatest_length_is_refused() -> None:
    """Its length and its type's byte are 2^32 bytes, which is 0 where 32 bits are counted with."""
    for behind in (b"", b"\x01\x02", b"a" * 300_000):
        with pytest.raises(BadFraming, match=r"ends in the middle|OPIC_MAX_BODY_BYTES"):
            list(msgpack_values.cut_stream(io.BytesIO(b"\x01\xc9\xff\xff\xff\xff" + behind), 100_000))


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
