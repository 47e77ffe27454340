"""Compressed data from outside: one text of all its streams, within bounds of memory and time."""

import gzip
import os
import time
import zlib

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from opic.compressed import STEP_BYTES, decodable, decoded

PACK = {"gzip": lambda text: gzip.compress(text, mtime=0), "zstd": zstandard.ZstdCompressor().compress}
CODINGS = sorted(PACK)
TEXTS = st.lists(st.binary(max_size=2 * STEP_BYTES), min_size=1, max_size=8)


@pytest.mark.parametrize("coding", CODINGS)
@given(texts=TEXTS)
def test_streams_one_after_the_other_are_one_text(coding: str, texts: list[bytes]) -> None:
    whole = b"".join(texts)
    body = b"".join(map(PACK[coding], texts))
    assert decoded(body, coding, len(whole)) == whole
    if coding == "gzip":
        assert gzip.decompress(body) == whole
    if whole:
        with pytest.raises(OverflowError):
            decoded(body, coding, len(whole) - 1)


@pytest.mark.parametrize("coding", CODINGS)
@given(texts=TEXTS, data=st.data())
def test_a_truncated_stream_is_told(coding: str, texts: list[bytes], data: st.DataObject) -> None:
    *_, last = packed = list(map(PACK[coding], texts))
    body = b"".join(packed)
    cut = data.draw(st.integers(len(body) - len(last) + 1, len(body) - 1))
    with pytest.raises(ValueError, match="it is truncated"):
        decoded(body[:cut], coding, 1 << 20)


@pytest.mark.parametrize("coding", CODINGS)
@given(text=st.binary(max_size=2 * STEP_BYTES), noise=st.binary(min_size=4, max_size=2 * STEP_BYTES))
def test_what_is_not_compressed_is_told(coding: str, text: bytes, noise: bytes) -> None:
    noise = b"{" + noise  # Neither format begins so.
    for body in (noise, PACK[coding](text) + noise):
        with pytest.raises(ValueError, match=r"."):
            decoded(body, coding, 1 << 20)


@pytest.mark.parametrize("coding", CODINGS)
def test_decoding_stops_at_the_limit(coding: str) -> None:
    bomb = PACK[coding](bytes(1 << 26))
    began = time.thread_time()
    with pytest.raises(OverflowError):
        decoded(bomb, coding, 1_000)
    assert time.thread_time() - began < 0.5
    assert decoded(zlib.compress(b"[]", wbits=31), "gzip", 2) == b"[]"


def test_a_window_larger_than_ours_is_refused() -> None:
    large = zstandard.ZstdCompressionParameters(window_log=25, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=large).compressobj()  # It does not know the size.
    body = packer.compress(os.urandom(1 << 16)) + packer.flush()
    with pytest.raises(ValueError, match="too much memory"):
        decoded(body, "zstd", 1 << 20)


def seconds(coding: str, streams: int) -> float:
    """The least CPU time that so many empty streams take."""
    body = streams * PACK[coding](b"")
    found = []
    for _ in range(3):
        began = time.thread_time()
        assert decoded(body, coding, 0) == b""
        found.append(time.thread_time() - began)
    return min(found)


@pytest.mark.parametrize("coding", CODINGS)
def test_the_time_for_many_small_streams_grows_with_their_number_only(coding: str) -> None:
    assert seconds(coding, 64_000) < 2 * 16 * seconds(coding, 4_000)


def test_a_small_frame_costs_no_context_of_its_own() -> None:
    assert seconds("zstd", 10_000) < 3 * seconds("gzip", 10_000)


FORMS = PACK | {
    "br": brotli.compress,
    "zlib": zlib.compress,
    "deflate": lambda text: zlib.compress(text, wbits=-zlib.MAX_WBITS),
}


@pytest.mark.parametrize("coding", sorted(FORMS))
@given(text=st.binary(max_size=2 * STEP_BYTES), data=st.data())
def test_a_body_is_decoded_as_far_as_it_is_whole(coding: str, text: bytes, data: st.DataObject) -> None:
    body = FORMS[coding](text)
    assert decodable(body, coding, 1 << 20) == (text, True)
    if text:
        assert decodable(body, coding, len(text) - 1) == (text[:-1], False)
    found, whole = decodable(body[: data.draw(st.integers(min(1, len(body) - 1), len(body) - 1))], coding, 1 << 20)
    assert text.startswith(found)
    assert not whole or found == text


@pytest.mark.parametrize("coding", sorted(FORMS))
@given(text=st.binary(max_size=3 * STEP_BYTES), noise=st.binary(min_size=1, max_size=2 * STEP_BYTES))
def test_data_behind_the_last_stream_is_ignored(coding: str, text: bytes, noise: bytes) -> None:
    assert decodable(FORMS[coding](text) + b"{" + noise, coding, 1 << 20) == (text, True)


@pytest.mark.parametrize("coding", sorted(FORMS))
def test_a_bomb_is_decoded_up_to_the_limit(coding: str) -> None:
    bomb = FORMS[coding](bytes(1 << 26))
    began = time.thread_time()
    found, whole = decodable(bomb, coding, 1_000)
    assert (found, whole) == (bytes(1_000), False)
    assert time.thread_time() - began < 0.5
