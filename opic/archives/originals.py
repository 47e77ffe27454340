"""The captures that later ones repeat: a revisit says that an answer was the same as an earlier one."""

import sqlite3
from typing import Final, NamedTuple

import msgspec

from opic.archives.captures import Capture, ids, target_url
from opic.archives.dates import unix_seconds
from opic.archives.fields import Fields
from opic.archives.files import ArchiveFile
from opic.archives.records import BLOCK_BYTES_MAX, ArchiveRecord, Position, read_records
from opic.archives.wat import BadEnvelope, described, is_envelope
from opic.errors import BadInput
from opic.model.compression import compress, decompress
from opic.temporary_files import temporary_file

TABLES: Final = """
CREATE TABLE captures (
  number INTEGER PRIMARY KEY, file INTEGER,
  answer_at INTEGER, answer BLOB,      -- Either where the record is, or what it is.
  outlinks_at INTEGER, outlinks BLOB
);
CREATE TABLE names (name TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID;
"""
REVISITS: Final = "the temporary file of revisits", "make room where TMPDIR is"
PACKED_BYTES_MAX: Final = 2 * BLOCK_BYTES_MAX  # Of a record, with its header.


class Original(NamedTuple):
    """An earlier capture."""

    number: int
    answer: ArchiveRecord
    outlinks: ArchiveRecord | None


class Originals:
    """The captures of a run, by all names that a revisit may call them.

    A temporary file has their positions, from which their records are read again. It has the records themselves where
    they can't be read alone, because their file is packed as a whole, or they have segments.
    """

    def __init__(self) -> None:
        self._rows = sqlite3.connect("")
        self._rows.executescript(TABLES)
        self._files = list[ArchiveFile]()

    def close(self) -> None:
        self._rows.close()

    def put(self, file: ArchiveFile, capture: Capture, *, latest: bool) -> None:
        """Note a capture; `latest`: it is what later answers without a body mean that say that its URL is unchanged."""
        if not self._files or self._files[-1] != file:
            self._files.append(file)
        row = [len(self._files) - 1, *_stored(capture.whole, alone=not capture.segments), *_stored(capture.outlinks)]
        added = "INSERT INTO captures (file, answer_at, answer, outlinks_at, outlinks) VALUES (?, ?, ?, ?, ?)"
        with temporary_file(*REVISITS):
            number = self._rows.execute(added, row).lastrowid
        assert number is not None
        self.call(number, capture.record.fields, latest=latest)

    def call(self, number: int, fields: Fields, *, latest: bool) -> None:
        """Let a capture be known by the names in a header as well."""
        url = target_url(fields)
        names = [*ids(fields, "warc-record-id", "warc-payload-digest"), _dated(url, fields.first("warc-date"))]
        if latest:
            names.append(url)
        with temporary_file(*REVISITS):
            self._rows.executemany("INSERT OR REPLACE INTO names VALUES (?, ?)", [(name, number) for name in names])

    def original_of(self, fields: Fields, *, not_modified: bool) -> Original | None:
        """Return the capture that a revisit repeats, None if it is not in this run.

        Args:
            fields: of the revisit.
            not_modified: whether its answer had no body, so that it may be of any earlier one of its URL.
        """
        url, date = fields.first("warc-refers-to-target-uri").strip("<> \t"), fields.first("warc-refers-to-date")
        names = [*ids(fields, "warc-refers-to")]
        if url:
            names.append(_dated(url, date) if date else url)
        names += [target_url(fields)] if not_modified else ids(fields, "warc-payload-digest")
        for name in names:
            asked = "SELECT captures.* FROM captures JOIN names USING (number) WHERE name = ?"
            if (row := self._rows.execute(asked, [name]).fetchone()) is not None:
                number, file, *parts = row
                answer, outlinks = self._read(file, *parts[:2]), self._read(file, *parts[2:])
                return None if answer is None else Original(number, answer, outlinks)
        return None

    def _read(self, file: int, offset: int | None, packed: bytes | None) -> ArchiveRecord | None:
        if packed is not None:
            raw = decompress(packed, PACKED_BYTES_MAX)
            kind, fields, block, cut = msgspec.msgpack.decode(raw, type=tuple[str, dict[str, list[str]], bytes, bool])
            return ArchiveRecord(Position(), kind, Fields(fields), block, cut)
        if offset is None:
            return None
        try:
            with self._files[file].open() as opened:
                record = next(read_records(opened, Position(offset)), None)
            archived = record if isinstance(record, ArchiveRecord) else None
            return described(archived) if archived is not None and is_envelope(archived) else archived
        except (BadInput, BadEnvelope, OSError):  # It is not there any more, or another one.
            return None


def _stored(record: ArchiveRecord | None, *, alone: bool = True) -> tuple[int | None, bytes | None]:
    """Return where a record is, or if it can't be read by itself, what it is."""
    if record is None:
        return None, None
    if alone and not record.position.number:
        return record.position.offset, None
    return None, compress(msgspec.msgpack.encode((record.kind, record.fields, record.block, record.cut)))


def _dated(url: str, date: str) -> str:
    return f"{url} {unix_seconds(date)}"
