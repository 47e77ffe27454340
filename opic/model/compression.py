"""Compression of what is stored: zstd at its fastest level, with codecs that each thread keeps.

Making a codec takes as long as packing 255 URLs or a small entry of an outbox.
"""

import threading
from typing import Final

import zstandard

LEVEL: Final = 1


class _Codecs(threading.local):
    def __init__(self) -> None:
        self.compressor, self.decompressor = zstandard.ZstdCompressor(level=LEVEL), zstandard.ZstdDecompressor()


_codecs = _Codecs()


def compress(raw: bytes) -> bytes:
    """Compress bytes for `decompress`."""
    packed: bytes = _codecs.compressor.compress(raw)
    return packed


def decompress(packed: bytes, bytes_max: int) -> bytes:
    """Return what was compressed, which has no more than `bytes_max` bytes.

    Raises:
        ValueError: the bytes are damaged.
    """
    try:
        raw: bytes = _codecs.decompressor.decompress(packed, max_output_size=bytes_max)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return raw
