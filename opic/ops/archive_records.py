"""Records of web archives: WARC, plain or gzip, read by FastWARC; ARC, and what FastWARC refuses, by warcio.

A record has a position from which its file can be read again: the offset of a record that begins there, and how many
records follow it until this one. Usually that number is 0; in a file that is one gzip member as a whole, all positions
are counted from its beginning.
"""

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from opic.errors import BadInput, MissingExtra
from opic.urls.canonical import shown

try:
    from fastwarc.stream_io import BrotliReader
    from fastwarc.warc import ArchiveIterator as FastIterator
    from fastwarc.warc import WarcRecordType
    from warcio.archiveiterator import ArchiveIterator as PlainIterator
    from warcio.exceptions import ArchiveLoadFailed
except ModuleNotFoundError:
    raise MissingExtra("the reader of web archives", "warc") from None

BODY_BYTES_MAX: Final = 16 << 20  # Of a page, decompressed; the rest of a longer one is not read.
HEADER_BYTES_MAX: Final = 64 << 10
BLOCK_BYTES_MAX: Final = BODY_BYTES_MAX + HEADER_BYTES_MAX
KINDS: Final = ("response", "resource", "revisit", "metadata")
GZIP_MAGIC: Final = b"\x1f\x8b"
GZIP: Final = 32 + zlib.MAX_WBITS  # Gzip or zlib, by the first bytes.


class Position(NamedTuple):
    """Where a record is in a file."""

    offset: int = 0
    number: int = 0  # Of the record, from the offset on.


@dataclass(frozen=True, slots=True)
class ArchiveRecord:
    """A record of one of KINDS."""

    position: Position
    kind: str
    headers: dict[str, str]  # By name in lower case.
    block: bytes  # Its content, up to BLOCK_BYTES_MAX.
    cut: bool  # Whether there is more.


class ArchiveDamaged(Exception):
    """A file can't be read further; the message says from where on."""


def read_records(path: Path, start: Position, *, arc: bool = False) -> Iterator[ArchiveRecord]:
    """Yield the records of KINDS of a file from a position on.

    Raises:
        ArchiveDamaged: the file can't be read to its end; all records before that were yielded, and none in part.
        BadInput: the file can't be read at all.
    """
    try:
        with path.open("rb") as file:
            at = start
            try:
                for record in _each(path, file, start, partial(_plain_blocks, kind="arc") if arc else _fast_blocks):
                    yield record
                    at = Position(record.position.offset, record.position.number + 1)
            except OSError as error:
                if arc or error.errno is not None:  # FastWARC's own errors have no number.
                    raise
                # warcio takes some records that FastWARC refuses, as old or slightly wrong ones.
                yield from _each(path, file, at, _plain_blocks)
    except ArchiveLoadFailed as error:
        raise ArchiveDamaged(f"{path}: damaged: {shown(' '.join(str(error).split()))}") from error
    except OSError as error:
        raise BadInput(f"{path}: can't be read: {error.strerror or error}") from error


class _Block(NamedTuple):
    offset: int
    kind: str
    headers: dict[str, str]
    length: int | None  # As its header says.
    block: bytes


def _each(
    path: Path, file: BinaryIO, start: Position, blocks: Callable[[BinaryIO], Iterator[_Block]]
) -> Iterator[ArchiveRecord]:
    file.seek(start.offset)
    magic = _magic(file, 0)
    offset, number = start.offset, 0
    for found in blocks(file):
        if found.offset > offset and _magic(file, found.offset) == magic:
            offset, number = found.offset, 0
        if found.length is not None and len(found.block) < min(found.length, BLOCK_BYTES_MAX):
            missing = f"{len(found.block):,} of {found.length:,} bytes"
            raise ArchiveDamaged(f"{path}: the record at {offset:,} has {missing}: the file is cut off, or damaged")
        position = Position(offset, number)
        number += 1
        if position < start or found.kind not in KINDS:
            continue
        cut = len(found.block) >= BLOCK_BYTES_MAX
        yield ArchiveRecord(position, found.kind, found.headers, found.block, cut)


def _magic(file: BinaryIO, offset: int) -> bytes:
    """Return what a record begins with: `WARC`, or the magic number of gzip."""
    found = os.pread(file.fileno(), 4, offset)
    return GZIP_MAGIC if found.startswith(GZIP_MAGIC) else found


def _fast_blocks(file: BinaryIO) -> Iterator[_Block]:
    for record in FastIterator(file, record_types=WarcRecordType.any_type, parse_http=False):
        headers = {name.lower(): value for name, value in record.headers.items()}
        block = record.reader.read(BLOCK_BYTES_MAX)
        yield _Block(record.stream_pos, str(record.record_type), headers, record.content_length, block)


def _plain_blocks(file: BinaryIO, kind: str = "warc") -> Iterator[_Block]:
    records = PlainIterator(file, no_record_parse=True, arc2warc=kind == "arc")
    for record in records:
        if kind == "warc" and record.format != kind:  # What is no record at all may look like one of ARC.
            raise ArchiveLoadFailed(f"no record of WARC at {records.get_record_offset():,}")
        headers = {name.lower(): value for name, value in record.rec_headers.headers}
        block = record.raw_stream.read(BLOCK_BYTES_MAX)
        known = record.rec_type in KINDS and headers.get("content-length", "").isdigit()
        length = int(headers["content-length"]) if known else None
        yield _Block(records.get_record_offset(), record.rec_type, headers, length, block)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP answer as a record has it."""

    status: int
    headers: dict[str, str]  # By name in lower case; the first of several counts.
    body: bytes  # Without transfer and content coding, up to BODY_BYTES_MAX.
    cut: bool  # Whether there is more, or the rest can't be decoded.


def parse_answer(block: bytes) -> HttpAnswer | None:
    """Parse the block of a response; None if it does not begin as an HTTP answer does."""
    head, gap, body = block.partition(b"\r\n\r\n")
    if b"\n\n" in head or not gap:
        head, _, body = block.partition(b"\n\n")
    status_line, *lines = head.replace(b"\r\n", b"\n").split(b"\n")
    parts = status_line.split(None, 2)
    if not status_line.startswith(b"HTTP/") or len(parts) < 2 or not parts[1].isdigit():
        return None
    headers = dict[str, str]()
    for line in lines:
        name, colon, value = line.partition(b":")
        if colon:
            headers.setdefault(name.strip().lower().decode("latin-1"), value.strip().decode("latin-1"))
    cut = False
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body, cut = _dechunked(body)
    for coding in reversed(headers.get("content-encoding", "").lower().split(",")):
        if coding.strip() in ("gzip", "x-gzip", "deflate", "br"):
            body, wrong = _unpacked(body, coding.strip())
            cut = cut or wrong
    return HttpAnswer(int(parts[1][:3]), headers, body[:BODY_BYTES_MAX], cut or len(body) > BODY_BYTES_MAX)


def _dechunked(body: bytes) -> tuple[bytes, bool]:
    """Return a chunked body as one, and whether its chunks are broken; a body without chunks is returned as it is."""
    found, at = bytearray(), 0
    while True:
        end = body.find(b"\n", at, at + 64)
        size = body[at : max(end, at)].partition(b";")[0].strip()
        try:
            length = int(size, 16)
        except ValueError:
            # Some writers leave the header of what they have decoded.
            return (bytes(found), True) if found else (body, False)
        if length <= 0 or length > len(body):
            return bytes(found) + body[end + 1 :] * (length != 0), length != 0
        found += body[end + 1 : end + 1 + length]
        at = end + 1 + length
        at += 2 if body[at : at + 2] == b"\r\n" else 1


def _unpacked(body: bytes, coding: str) -> tuple[bytes, bool]:
    """Return a decompressed body up to a byte over the limit, and whether the rest is broken.

    A body that is not compressed at all is returned as it is: some writers leave the header of what they have decoded.
    """
    most = BODY_BYTES_MAX + 1
    if coding == "br":
        import io

        try:
            found: bytes = BrotliReader(io.BytesIO(body)).read(most)
        except OSError:
            return body, False
        return found, False
    unpacker = zlib.decompressobj(GZIP if body[:2] == GZIP_MAGIC or body[:1] == b"\x78" else -zlib.MAX_WBITS)
    parts, at, size = list[bytes](), 0, 0
    try:
        while at < len(body) and size < most and not unpacker.eof:
            piece = unpacker.decompress(body[at : at + (64 << 10)], most - size)
            at += 64 << 10
            while piece:
                parts.append(piece)
                size += len(piece)
                piece = unpacker.decompress(unpacker.unconsumed_tail, most - size) if size < most else b""
    except zlib.error:
        return (b"".join(parts), True) if parts else (body, False)
    return b"".join(parts), not unpacker.eof and size < most
