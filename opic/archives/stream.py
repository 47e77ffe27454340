"""The content of an archive file: its gzip members or zstd frames, one after the other, or the file as it is.

No input costs more than its size: a member may not unpack to many times its size, and after damage a limited number of
bytes is read again.
"""

import os
import re
from abc import ABC, abstractmethod
from typing import BinaryIO, Final, NamedTuple

from opic.compressed import GZIP_MAGIC, ZSTD_MAGIC, DecodedStream, decodable, stream_opener

INPUT_BYTES: Final = 64 << 10  # Read from a file at a time.
STEP_BYTES: Final = {"gzip": 4 << 10, "zstd": 256}  # Unpacked at a time; either becomes some MB at most.
WINDOW_BYTES_MAX: Final = 128 << 20  # As much as the zstd program takes without being told.
FREE_BYTES: Final = 32 << 20  # A member may unpack to this size,
EXPANSION_MAX: Final = 200  # or to this multiple of its own.
REREAD_BYTES: Final = 256 << 20  # Bytes of a file that may be read again to find records behind damage,
REREAD_SHARE: Final = 4  # and this multiple of its size.
SKIPPABLE_MAGIC: Final = b"\x2a\x4d\x18"  # Of zstd, after a byte from 0x50 to 0x5f.
DICTIONARY_MAGIC: Final = b"\x5d\x2a\x4d\x18"
DICTIONARY_BYTES_MAX: Final = 16 << 20
LINE_ENDS: Final = re.compile(rb"[\r\n]*")
HEAD_BYTES: Final = 8  # A magic number, and the size of a skippable frame.


class Place(NamedTuple):
    """A place in the content of a file."""

    member: int  # Offset of the gzip member or zstd frame; 0 in a file that is not packed.
    unpacked: int  # Bytes of its content that come before.


class LineEnds(NamedTuple):
    """Line ends that were passed over."""

    lines: int
    aligned: bool  # Whether what follows them has nothing else before it in its member.


class StreamDamaged(Exception):
    """A member can't be unpacked further; `member` is its offset."""

    def __init__(self, member: int, reason: str) -> None:
        super().__init__(reason)
        self.member = member


class TooMuchDamage(Exception):
    """A file has so much damage that looking for what is behind it would take too long."""


class ArchiveStream(ABC):
    """Reads the content of a file."""

    packed: bool  # Whether it has members.

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, os.SEEK_END)
        self._reread_left = REREAD_BYTES + REREAD_SHARE * self._size
        self.seek(Place(0, 0))

    @property
    def next_place(self) -> Place:
        """The place of the next byte; between two members, the end of the first until something is read."""
        return Place(self._member, self._before + self._at)

    @abstractmethod
    def seek(self, target: Place) -> None:
        """Read on from a place."""
        self._member, self._before = target  # Of the buffer.
        self._buffer, self._at = b"", 0

    @abstractmethod
    def seek_member(self, after: int) -> bool:
        """Go to the next member that begins behind an offset; return whether there is one.

        Raises:
            TooMuchDamage: this was done too often.
        """

    def seek_back(self, target: Place) -> None:
        """Read on from an earlier place, to look for records behind damage.

        Raises:
            TooMuchDamage: this was done too often.
        """
        self._count_reread(self.next_place.unpacked if self.packed else self.next_place.unpacked - target.unpacked)
        self.seek(target)

    def skip_line_ends(self) -> LineEnds:
        """Pass over line ends.

        Raises:
            StreamDamaged: the content breaks off.
        """
        count, member = 0, None
        while self._loaded():
            if self.next_place.unpacked == 0:
                member = self._member
            match = LINE_ENDS.match(self._buffer, self._at)
            assert match is not None
            count += match[0].count(b"\n")
            self._at = match.end()
            if self._at < len(self._buffer):
                break
        return LineEnds(count, member == self._member)

    def seek_bytes(self, wanted: bytes) -> bool:
        """Go to the next place in the content that has these bytes; return whether there is one.

        Raises:
            StreamDamaged: the content breaks off.
        """
        while self._loaded():
            position = self._buffer.find(wanted, self._at)
            if position >= 0:
                self._at = position
                return True
            # They may begin in this piece, and end in the next one of the member.
            rest = self._buffer[max(self._at, len(self._buffer) - len(wanted) + 1) :]
            self._at = len(self._buffer)
            if not self._load():
                return False
            if rest and self._before >= len(rest):
                self._buffer, self._before = rest + self._buffer, self._before - len(rest)
        return False

    def readline(self, bytes_max: int) -> bytes:
        """Return a line with its end, empty at the end of the content; of a longer line its first `bytes_max` bytes.

        Raises:
            StreamDamaged: the content breaks off.
        """
        parts, left = list[bytes](), bytes_max
        while left and self._loaded():
            end = self._buffer.find(b"\n", self._at, self._at + left) + 1
            part = self._buffer[self._at : end or self._at + left]
            self._at += len(part)
            left -= len(part)
            parts.append(part)
            if end:
                break
        return b"".join(parts)

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer at the end of the content.

        Raises:
            StreamDamaged: the content breaks off.
        """
        parts, left = list[bytes](), size
        while left and self._loaded():
            part = self._buffer[self._at : self._at + left]
            self._at += len(part)
            left -= len(part)
            parts.append(part)
        return b"".join(parts)

    def skip(self, size: int) -> int:
        """Pass over `size` bytes, fewer at the end of the content; return how many.

        Raises:
            StreamDamaged: the content breaks off.
        """
        left = size
        while left and self._loaded():
            passed = min(left, len(self._buffer) - self._at)
            self._at += passed
            left -= passed
        return size - left

    def _loaded(self) -> bool:
        """Return whether the buffer has a byte, after going on to the next piece of the content if needed."""
        return self._at < len(self._buffer) or self._load()

    @abstractmethod
    def _load(self) -> bool:
        """Replace the buffer, which is used up, by the next piece of the content; return whether there is one."""

    def _count_reread(self, size: int) -> None:
        self._reread_left -= size
        if self._reread_left < 0:
            raise TooMuchDamage


class PlainStream(ArchiveStream):
    """Reads a file that is not packed."""

    packed = False

    def seek(self, target: Place) -> None:
        super().seek(target)
        self._file.seek(target.unpacked)

    def seek_member(self, after: int) -> bool:
        """Return that there is no member."""
        return False

    def skip(self, size: int) -> int:
        """Pass over `size` bytes, fewer at the end of the file; return how many."""
        begin = self.next_place.unpacked
        end = min(begin + size, self._size)
        self.seek(Place(0, end))
        return end - begin

    def _load(self) -> bool:
        self._before += len(self._buffer)
        self._buffer, self._at = self._file.read(INPUT_BYTES), 0
        return bool(self._buffer)


class PackedStream(ArchiveStream):
    """Reads a file of gzip members or of zstd frames."""

    packed = True

    def __init__(self, file: BinaryIO, coding: str) -> None:
        self._step_bytes = STEP_BYTES[coding]
        self._magic = {"gzip": GZIP_MAGIC, "zstd": ZSTD_MAGIC}[coding]
        # Of the many places that look like a gzip member, those with its only method.
        self._searched = self._magic + b"\x08" if coding == "gzip" else self._magic
        self._open_member = stream_opener(coding, _dictionary(file), WINDOW_BYTES_MAX)
        super().__init__(file)

    def seek(self, target: Place) -> None:
        super().seek(Place(target.member, 0))
        self._stream: DecodedStream | None = None
        self._input, self._input_at, self._input_offset = b"", 0, target.member
        self.skip(target.unpacked)

    def seek_member(self, after: int) -> bool:
        """Go to the next member that begins behind an offset; return whether there is one.

        Raises:
            TooMuchDamage: this was done too often.
        """
        self._count_reread(max(0, self._input_offset + self._input_at - after))
        begin, overlap = after + 1, len(self._searched) - 1
        while True:
            self._file.seek(begin)
            part = self._file.read(INPUT_BYTES)
            if (position := part.find(self._searched)) >= 0:
                self.seek(Place(begin + position, 0))
                return True
            if len(part) < INPUT_BYTES:
                return False
            begin += len(part) - overlap

    def _load(self) -> bool:
        self._before += len(self._buffer)
        self._buffer, self._at = b"", 0
        while not self._buffer:
            if self._stream is None and not self._begin_member():
                return False
            assert self._stream is not None
            if not self._has_input(1):
                raise StreamDamaged(self._member, "the file is cut off")
            step = self._input[self._input_at : self._input_at + self._step_bytes]
            self._input_at += len(step)
            try:
                self._buffer = b"".join(self._stream.feed(step))
            except ValueError as error:
                raise StreamDamaged(self._member, f"can't be unpacked: {error}") from None
            size, packed = self._before + len(self._buffer), self._input_offset + self._input_at - self._member
            if size > FREE_BYTES + EXPANSION_MAX * packed:
                raise StreamDamaged(self._member, f"unpacks to over {EXPANSION_MAX} times its size")
            if self._stream.eof:
                self._input_at -= len(self._stream.unused_data)
                self._stream = None
        return True

    def _begin_member(self) -> bool:
        """Begin the member that follows; return whether there is one."""
        while self._has_input(HEAD_BYTES) or self._has_input(1):
            member = self._input_offset + self._input_at
            head = self._input[self._input_at : self._input_at + HEAD_BYTES]
            if head.startswith(self._magic):
                self._member, self._before = member, 0
                self._stream = self._open_member()
                return True
            if head.startswith(b"\0"):  # Padding.
                rest = self._input[self._input_at :]
                self._input_at += len(rest) - len(rest.lstrip(b"\0"))
                continue
            self._member, self._before = member, 0
            if self._magic != ZSTD_MAGIC or not _is_skippable(head):
                raise StreamDamaged(member, "what begins there is not packed as what comes before")
            size = HEAD_BYTES + _size_of(head)
            if member + size > self._size:
                raise StreamDamaged(member, "the file is cut off")
            self._input, self._input_at, self._input_offset = b"", 0, member + size
        return False

    def _has_input(self, size: int) -> bool:
        """Return whether `size` more bytes of the file are there."""
        if len(self._input) - self._input_at < size:
            rest = self._input[self._input_at :]
            self._input_offset += self._input_at
            self._file.seek(self._input_offset + len(rest))
            self._input, self._input_at = rest + self._file.read(INPUT_BYTES), 0
        return len(self._input) - self._input_at >= size


def open_stream(file: BinaryIO) -> ArchiveStream:
    """Read a file, packed or not: its first bytes tell.

    Raises:
        StreamDamaged: its zstd dictionary can't be read.
    """
    file.seek(0)
    head = file.read(HEAD_BYTES)
    if head.startswith(GZIP_MAGIC):
        return PackedStream(file, "gzip")
    if head.startswith(ZSTD_MAGIC) or _is_skippable(head):
        return PackedStream(file, "zstd")
    return PlainStream(file)


def shared_beginning(file: BinaryIO) -> int:
    """Return the size of what many files begin with alike: a dictionary of zstd, 0 if there is none."""
    file.seek(0)
    head = file.read(HEAD_BYTES)
    return HEAD_BYTES + _size_of(head) if _is_skippable(head) else 0


def _size_of(head: bytes) -> int:
    """Return the size of the content of a skippable frame."""
    return int.from_bytes(head[4:], "little")


def _is_skippable(head: bytes) -> bool:
    return len(head) == HEAD_BYTES and 0x50 <= head[0] <= 0x5F and head[1:4] == SKIPPABLE_MAGIC


def _dictionary(file: BinaryIO) -> bytes:
    """Return the dictionary that a file of zstd frames begins with, itself packed or not; empty if there is none.

    Raises:
        StreamDamaged: it can't be read.
    """
    file.seek(0)
    head = file.read(HEAD_BYTES)
    if not _is_skippable(head) or not head.startswith(DICTIONARY_MAGIC):
        return b""
    size = _size_of(head)
    dictionary = file.read(min(size, DICTIONARY_BYTES_MAX + 1))
    whole = len(dictionary) == size <= DICTIONARY_BYTES_MAX
    if whole and dictionary.startswith(ZSTD_MAGIC):
        dictionary, whole = decodable(dictionary, "zstd", DICTIONARY_BYTES_MAX)
    if not whole:
        raise StreamDamaged(0, f"its dictionary can't be read, or is over {DICTIONARY_BYTES_MAX:,} bytes")
    return dictionary
