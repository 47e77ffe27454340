"""Records of web archives: WARC 0.17 to 1.1, ARC 1 and 2, each told by its first line.

FastWARC and warcio read archives too, but don't tell what they pass over, and end where a part is damaged.

A record has a position from which its file can be read again: the offset of a record that begins there, and how many
records follow it until this one. Usually that number is 0; in a file that is one gzip member as a whole, all positions
are counted from its beginning.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final, NamedTuple

from opic.archives.fields import Fields
from opic.archives.stream import ArchiveStream, Place, StreamDamaged, TooMuchDamage, open_stream
from opic.urls.canonical import shown

BODY_BYTES_MAX: Final = 16 << 20  # Of a page, decompressed; the rest of a longer one is not read.
HEADER_BYTES_MAX: Final = 1 << 20  # Of a record: some have URLs that are pictures.
BLOCK_BYTES_MAX: Final = BODY_BYTES_MAX + HEADER_BYTES_MAX
WARC_LINE: Final = re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n?")
WARC_LINE_ENDS: Final = re.compile(WARC_LINE.pattern + rb"\Z")
WARC_BEGINS: Final = b"WARC/"
NOT_REPEATED: Final = ("warc-type", "warc-target-uri", "warc-record-id", "content-length")
LENGTH: Final = re.compile(r"\d{1,18}")
ARC_URL: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*:")
ARC_ADDRESS: Final = re.compile(rb"[0-9A-Fa-f.:]+|-")
ARC_DATE: Final = re.compile(rb"\d{8,17}")
ARC_LENGTH: Final = re.compile(rb"\d{1,18}")


class Position(NamedTuple):
    """Where a record is in a file."""

    offset: int = 0
    number: int = 0  # Of the record, from the offset on.


@dataclass(frozen=True, slots=True)
class ArchiveRecord:
    position: Position
    kind: str  # Its WARC-Type; in an ARC file `response`, or `warcinfo` for what describes the file.
    fields: Fields  # By the names that WARC has.
    block: bytes  # Its content, up to BLOCK_BYTES_MAX.
    cut: bool  # Whether there is more.


@dataclass(frozen=True, slots=True)
class DamagedPart:
    """A part of a file that can't be read. What follows it may be whole."""

    offset: int
    reason: str


class _Broken(Exception):
    """A record can't be read; the message says why."""


class _Line(NamedTuple):
    """A line that is not blank; an empty text stands for the end of the content."""

    begin: Place
    text: bytes
    aligned: bool  # Whether its member has nothing but blank lines before it.
    blank: int  # Blank lines before it.


def read_records(file: BinaryIO, start: Position) -> Iterator[ArchiveRecord | DamagedPart]:
    """Yield the records of a file from a position on, and the damage between them.

    A damaged record costs itself alone: reading goes on with the next one that can be found.
    """
    try:
        yield from _RecordReader(open_stream(file), start).read()
    except StreamDamaged as error:
        yield DamagedPart(error.member, str(error))
    except TooMuchDamage:
        yield DamagedPart(file.tell(), "there is so much damage before that nothing is looked for behind it")


class _RecordReader:
    """Splits the content of a file into records."""

    def __init__(self, stream: ArchiveStream, start: Position) -> None:
        self._stream, self._start = stream, start
        self._position = Position(start.offset, -1)  # Of the record that was read last.
        self._is_arc: bool | None = None  # Not known before the first record.

    def read(self) -> Iterator[ArchiveRecord | DamagedPart]:
        offset = self._start.offset
        self._stream.seek(Place(offset, 0) if self._stream.packed else Place(0, offset))
        line: _Line | StreamDamaged = self._line_or_damage()
        while isinstance(line, StreamDamaged) or line.text:
            if isinstance(line, StreamDamaged):
                yield DamagedPart(line.member, str(line))
                line = self._next_record(line)
            elif not self._begins_record(line):
                yield DamagedPart(
                    self._offset(line.begin), f"no record begins with {shown(line.text.decode('latin-1'))}"
                )
                line = self._next_record()
            else:
                self._position, offset = self._position_of(line), self._offset(line.begin)
                behind = self._stream.next_place
                try:
                    record, line = self._record(line)
                except _Broken as error:
                    yield DamagedPart(offset, f"the record {error}")
                    self._stream.seek_back(behind)
                    line = self._next_record()
                except StreamDamaged as error:
                    yield DamagedPart(offset, str(error))
                    line = self._next_record(error)
                else:
                    if record.position >= self._start:
                        yield record

    def _record(self, line: _Line) -> tuple[ArchiveRecord, _Line | StreamDamaged]:
        """Read a record; return it, and what follows it.

        Raises:
            _Broken: it has no length, or its length is wrong.
            StreamDamaged: its content breaks off.
        """
        if arc := _arc_head(line.text):
            self._is_arc, blank_wanted = True, 1
            fields, length = arc
        else:
            self._is_arc, blank_wanted = False, 2
            fields, length = self._warc_head()
        block = self._stream.read(min(length, BLOCK_BYTES_MAX))
        size = len(block) + self._stream.skip(length - len(block))
        if size < length:
            raise _Broken(f"has {size:,} of {length:,} bytes: the file is cut off, or the length is wrong")
        member = self._stream.next_place.member
        following = self._line_or_damage()
        if isinstance(following, StreamDamaged):
            if following.member == member:  # Its checksum may be what is wrong.
                raise following
        elif following.text and following.blank < blank_wanted and not self._begins_record(following):
            raise _Broken("is not followed by another one: the length is wrong")
        kind = fields.first("warc-type").lower()
        return ArchiveRecord(self._position, kind, fields, block, length > len(block)), following

    def _warc_head(self) -> tuple[Fields, int]:
        """Read the rest of a record's header; return its fields and the length of its block."""
        lines, left = list[bytes](), HEADER_BYTES_MAX
        while (text := self._stream.readline(left)).strip(b"\r\n"):
            if WARC_LINE.fullmatch(text):
                raise _Broken("breaks off in its header")
            lines.append(text)
            left -= len(text)
        if not text:
            raise _Broken(f"breaks off in its header, or that is over {HEADER_BYTES_MAX:,} bytes")
        fields = Fields.parse(b"".join(lines), "utf-8")
        if any(len(fields.get(name, ())) > 1 for name in NOT_REPEATED):
            raise _Broken("has two headers: the first breaks off")
        length = fields.first("content-length")
        if not LENGTH.fullmatch(length):
            raise _Broken(f"has no length: Content-Length is {shown(length)}")
        return fields, int(length)

    def _begins_record(self, line: _Line) -> bool:
        """Whether a record begins with a line: one of the file's format, or of either at the beginning of a member."""
        is_arc = None if line.aligned else self._is_arc
        return bool(is_arc is not True and WARC_LINE.fullmatch(line.text)) or bool(
            is_arc is not False and _arc_head(line.text)
        )

    def _next_line(self) -> _Line:
        """Pass over blank lines, and read the next line.

        Raises:
            StreamDamaged: the content breaks off.
        """
        blank, aligned = self._stream.skip_line_ends()
        begin = self._stream.next_place
        return _Line(begin, self._stream.readline(HEADER_BYTES_MAX), aligned, blank)

    def _line_or_damage(self) -> _Line | StreamDamaged:
        try:
            return self._next_line()
        except StreamDamaged as error:
            return error

    def _next_record(self, damage: StreamDamaged | None = None) -> _Line:
        """Look for the line that the next record begins with; where a member is damaged, in those behind it."""
        while damage is None or self._stream.seek_member(damage.member):
            try:
                return self._next_of_arc() if self._is_arc is not False else self._next_of_warc()
            except StreamDamaged as error:
                damage = error
        return _Line(self._stream.next_place, b"", False, 0)

    def _next_of_arc(self) -> _Line:
        while (line := self._next_line()).text and not self._begins_record(line):
            continue
        return line

    def _next_of_warc(self) -> _Line:
        """Look within lines too: where a writer was killed, the next record follows in the middle of one."""
        while self._stream.seek_bytes(WARC_BEGINS):
            begin = self._stream.next_place
            text = self._stream.readline(HEADER_BYTES_MAX)
            if (match := WARC_LINE_ENDS.search(text)) is not None:
                line_begin = Place(begin.member, begin.unpacked + match.start())
                return _Line(line_begin, match[0], line_begin.unpacked == 0, 0)
        return _Line(self._stream.next_place, b"", False, 0)

    def _position_of(self, line: _Line) -> Position:
        if line.aligned or not self._stream.packed:
            return Position(self._offset(line.begin), 0)
        return Position(self._position.offset, self._position.number + 1)

    def _offset(self, begin: Place) -> int:
        return begin.member if self._stream.packed else begin.unpacked


def _arc_head(line: bytes) -> tuple[Fields, int] | None:
    """Parse the line that a record of an ARC file begins with; return its fields, with WARC's names, and its length.

    The line is `URL IP-address date media-type length`; version 2 has `status checksum location offset file-name`
    before the length. Some URLs and media types have spaces.
    """
    if not ARC_URL.match(line):
        return None
    parts = line.rstrip(b"\r\n").split(b" ")
    if not ARC_LENGTH.fullmatch(parts[-1]):
        return None
    for index in range(2, len(parts) - 1):
        if ARC_DATE.fullmatch(parts[index]) and ARC_ADDRESS.fullmatch(parts[index - 1]):
            url = b" ".join(parts[: index - 1]).decode("utf-8", "replace")
            kind = "warcinfo" if url.startswith("filedesc:") else "response"
            told = {"warc-type": kind, "warc-target-uri": url, "warc-date": parts[index].decode()}
            return Fields.of(told.items()), int(parts[-1])
    return None
