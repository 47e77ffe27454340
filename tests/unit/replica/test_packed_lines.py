"""Lines packed in pieces: what is packed is what is read, alone or all together; damage is refused."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.errors import StoreDamaged
from opic.replica.packed_lines import (
    LINES_A_PIECE,
    in_pieces,
    lines_around,
    pack_frame,
    pack_lines,
    unpack_urls,
)

LINES = [f"https://host-{n % 9}.example/\u00fc/{n}" for n in range(5 * LINES_A_PIECE)]
counts = st.integers(1, len(LINES)) | st.sampled_from([LINES_A_PIECE - 1, LINES_A_PIECE, LINES_A_PIECE + 1])


@given(counts)
def test_lines_are_read_as_they_were_packed(count: int) -> None:
    packed = pack_lines(LINES[:count])
    assert unpack_urls(packed) == LINES[:count]
    assert in_pieces(packed) is (count > LINES_A_PIECE)


@given(counts, st.data())
def test_one_line_is_read_with_its_piece_alone(count: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, count - 1))
    first, lines = lines_around(pack_lines(LINES[:count]), number)
    assert lines[number - first] == LINES[number]
    assert len(lines) <= LINES_A_PIECE


@given(counts, st.integers(0, len(LINES)))
def test_line_behind_the_last_one_is_missing(count: int, further: int) -> None:
    first, lines = lines_around(pack_lines(LINES[:count]), count + further)
    assert count + further >= first + len(lines)


def test_empty_lines_and_no_lines_are_read() -> None:
    assert unpack_urls(b"") == []
    assert lines_around(b"", 0) == (0, [])
    some = ["", "a", ""] * LINES_A_PIECE
    assert unpack_urls(pack_lines(some)) == some


@given(st.integers(1, 300))
def test_lines_in_one_frame_are_read_alone_and_all_together(count: int) -> None:
    packed = pack_frame(LINES[:count])
    assert unpack_urls(packed) == LINES[:count]
    assert lines_around(packed, count - 1) == (0, LINES[:count])


@given(counts, st.data())
def test_truncated_lines_are_refused(count: int, data: st.DataObject) -> None:
    packed = pack_lines(LINES[:count])
    kept = data.draw(st.integers(1, len(packed) - 1))
    with pytest.raises(StoreDamaged, match="damaged"):
        unpack_urls(packed[:kept])


@given(st.binary(max_size=200), st.integers(0, 300), st.sampled_from([b"", b"P", b"P\x02\0\0\0"]))
def test_bytes_that_are_not_lines_are_refused_or_read_but_never_fail_otherwise(
    some: bytes, number: int, start: bytes
) -> None:
    with suppress(StoreDamaged):
        lines_around(start + some, number)
    with suppress(StoreDamaged):
        unpack_urls(start + some)
