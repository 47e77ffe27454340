"""Decompression of Kafka's batches piece by piece, so that memory does not depend on what a batch decompresses to.

A broker limits the size of a batch as it is sent, compressed. A topic may also compress again by itself
(`compression.type`), whatever its publishers chose.
"""

import gzip
import io
from collections.abc import Callable, Iterator
from typing import Any, Final

import cramjam
import zstandard
from kafka import errors as broken
from lz4.frame import LZ4FrameFile

PIECE_BYTES: Final = 1 << 20
SNAPPY_RATIO_MAX: Final = 22  # Three bytes of the format stand for at most 64.
XERIAL: Final = b"\x82SNAPPY\x00"  # Java's framing of blocks: 16 bytes, then the size of each block before it.
XERIAL_BYTES: Final = 16
SIZE_BYTES: Final = 4


_READERS: Final[dict[int, Callable[[io.BytesIO], Any]]] = {
    0: lambda file: file,
    1: lambda file: gzip.GzipFile(fileobj=file),
    3: LZ4FrameFile,
    4: lambda file: zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True),
}
_SNAPPY: Final = 2


def pieces_of(codec: int, data: bytes) -> Iterator[bytes]:
    """Yield what a batch decompresses to in pieces of about a megabyte, none of them empty.

    Snappy has no streams: a block comes in one piece, which is at most 22 times as large.

    Args:
        codec: its number in the attributes of a batch.
        data: the records as they were sent.

    Raises:
        UnsupportedCodecError: Kafka has no such codec.
        Exception: the data is damaged; each codec has its own errors.
    """
    if codec == _SNAPPY:
        return _snappy(data)
    if codec not in _READERS:
        raise broken.UnsupportedCodecError(f"Kafka has no compression of number {codec}")
    reader = _READERS[codec](io.BytesIO(data))
    return iter(lambda: reader.read(PIECE_BYTES), b"")


def _snappy(data: bytes) -> Iterator[bytes]:
    if not data.startswith(XERIAL):
        yield _snappy_block(data)
        return
    position = XERIAL_BYTES
    while position < len(data):
        start = position + SIZE_BYTES
        position = start + int.from_bytes(data[position:start], "big")
        if position > len(data):
            raise broken.CorruptRecordError("a block of Snappy is cut")
        if piece := _snappy_block(data[start:position]):
            yield piece


def _snappy_block(block: bytes) -> bytes:
    size = cramjam.snappy.decompress_raw_len(block)
    if size > SNAPPY_RATIO_MAX * len(block):  # Checked before it is allocated.
        raise broken.CorruptRecordError(f"a block of Snappy of {len(block):,} bytes can't have {size:,} bytes in it")
    return bytes(cramjam.snappy.decompress_raw(block))
