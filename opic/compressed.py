"""Decompress data from outside, in memory and time that are bounded by the sizes of the input and of the output.

A few bytes may decompress to very many, and one body may have very many streams, one after the other.
"""

import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

import zstandard

STEP_BYTES: Final = 256  # Compressed bytes decoded at a time; with zstd they may expand to 8 MB.
PIECE_BYTES: Final = 1 << 20  # Of brotli, which has no such ratio, but can stop at a size.
WINDOW_BYTES_MAX: Final = 1 << 24
GZIP: Final = 16 + zlib.MAX_WBITS
GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
# What each stream of a coding begins with, where that is always the same.
MAGIC: Final = {"gzip": GZIP_MAGIC, "zstd": ZSTD_MAGIC}


class TrailingData(ValueError):
    """What follows the last stream is not compressed."""


def decoded(body: bytes, coding: str, bytes_max: int) -> bytes:
    """Decode gzip or zstd; the texts of concatenated streams are joined.

    The worst input, with nothing but empty streams, takes 0.2 s of CPU for each MiB.

    Args:
        body: all of the compressed data.
        coding: `gzip` or `zstd`.
        bytes_max: maximum size of the text.

    Raises:
        ValueError: the body does not have that coding, or it is truncated; the message says which.
        OverflowError: the text is longer than `bytes_max`; at most one step beyond the limit was decoded.
    """
    parts, size = [], 0
    for piece in _pieces(body, coding):
        parts.append(piece)
        size += len(piece)
        if size > bytes_max:
            raise OverflowError
    return b"".join(parts)


def decodable(body: bytes, coding: str, bytes_max: int) -> tuple[bytes, bool]:
    """Decode a body as far as it is whole; return the text, and whether that is all of it.

    Data after the last stream is ignored, as browsers do. A text over `bytes_max` is cut there.

    Args:
        body: the compressed data.
        coding: `gzip`, `zlib`, `deflate` without a header, `br` or `zstd`.
        bytes_max: maximum size of the text.
    """
    parts, size, whole = [], 0, True
    try:
        for piece in _pieces(body, coding):
            parts.append(piece)
            size += len(piece)
            if size > bytes_max:
                whole = False
                break
    except TrailingData:
        pass
    except ValueError:
        whole = False
    return b"".join(parts)[:bytes_max], whole


def _pieces(body: bytes, coding: str) -> Iterator[bytes]:
    """Yield the text of a body in pieces.

    Raises:
        ValueError: the body is damaged or truncated after these.
        TrailingData: after at least one stream.
    """
    open_stream, magic = stream_opener(coding), MAGIC.get(coding)
    whole, position = memoryview(body), 0
    while position < len(whole):
        if position and (magic is None or whole[position : position + len(magic)] != magic[: len(whole) - position]):
            raise TrailingData(f"no {coding} begins at byte {position:,}")
        stream = open_stream()
        while not stream.eof:
            if position >= len(whole):
                raise ValueError("it is truncated")
            step = whole[position : position + STEP_BYTES]
            position += len(step)
            yield from stream.feed(step)
        position -= len(stream.unused_data)  # Of the next stream; at most a step.


class DecodedStream:
    """One compressed stream, that is fed step by step."""

    def __init__(self, decompressor: Any, error: type[Exception]) -> None:
        self._decompressor, self._error = decompressor, error

    @property
    def eof(self) -> bool:
        """Whether its end was fed."""
        return bool(self._decompressor.eof)

    @property
    def unused_data(self) -> bytes:
        """What was fed after its end."""
        return bytes(self._decompressor.unused_data)

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Yield what further data decodes to.

        Raises:
            ValueError: the data is damaged.
        """
        try:
            yield self._decompressor.decompress(data)
        except self._error as error:
            raise ValueError(str(error)) from None


class _BrotliStream(DecodedStream):
    """The decoder fails without a result on a step that has data behind the stream's end: it is fed again by bytes."""

    def __init__(self) -> None:
        import brotli

        super().__init__(brotli.Decompressor(), brotli.error)
        self._open, self._fed, self._given, self._unused = brotli.Decompressor, bytearray(), 0, b""

    @property
    def eof(self) -> bool:
        return bool(self._decompressor.is_finished())

    @property
    def unused_data(self) -> bytes:
        return self._unused

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        try:
            for piece in self._process(data):
                self._given += len(piece)
                yield piece
        except self._error:
            yield from self._feed_bytes(bytes(data))
        self._fed += data

    def _feed_bytes(self, data: bytes) -> Iterator[bytes]:
        self._decompressor, skipped = self._open(), self._given
        try:
            for index, part in enumerate(
                chain([bytes(self._fed)], (data[start : start + 1] for start in range(len(data))))
            ):
                for piece in self._process(part):
                    yield piece[skipped:]
                    skipped = max(0, skipped - len(piece))
                if self.eof:
                    self._unused = data[index:]
                    break
        except self._error as error:
            raise ValueError(str(error)) from None

    def _process(self, data: bytes | memoryview | bytearray) -> Iterator[bytes]:
        yield self._decompressor.process(bytes(data), output_buffer_limit=PIECE_BYTES)
        while not self._decompressor.can_accept_more_data() and not self.eof:
            yield self._decompressor.process(b"", output_buffer_limit=PIECE_BYTES)


def stream_opener(
    coding: str, dictionary: bytes = b"", window_bytes_max: int = WINDOW_BYTES_MAX
) -> Callable[[], DecodedStream]:
    """Return what makes a stream of a coding: see `decodable`; dictionary and window are of zstd."""
    if coding == "br":
        return _BrotliStream
    if coding == "zstd":
        # One context serves all frames: making one takes ten times as long as decoding a small frame.
        trained = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        zstd = zstandard.ZstdDecompressor(dict_data=trained, max_window_size=window_bytes_max)
        return lambda: DecodedStream(zstd.decompressobj(), zstandard.ZstdError)
    bits = {"gzip": GZIP, "zlib": zlib.MAX_WBITS, "deflate": -zlib.MAX_WBITS}[coding]
    return lambda: DecodedStream(zlib.decompressobj(bits), zlib.error)
