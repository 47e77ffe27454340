"""Captures: the record of an answer, and the records that tell more of the same fetch.

These are its request, the links that the crawler recorded, and the segments of a long answer. They stand near each
other, in either order, and name each other by WARC-Concurrent-To, as all writers do that we know of, or have the same
URL and date.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from opic.archives.fields import Fields
from opic.archives.http import method_of
from opic.archives.records import BLOCK_BYTES_MAX, ArchiveRecord
from opic.html.media_types import MediaType

ANSWERS: Final = ("response", "resource", "revisit")
OUTLINKS_TYPES: Final = ("", "application/warc-fields")
WAITING_MAX: Final = 64  # Captures that wait for records that tell more of them,
WAITING_BYTES_MAX: Final = 64 << 20  # and what these may hold. A longer one waits alone.
REQUESTS_MAX: Final = 256  # Requests whose answer has not come.
SEGMENTS_MAX: Final = 1_000  # Of an answer.
SEGMENT_NUMBER: Final = re.compile(r"[0-9]{1,9}")


@dataclass(slots=True)
class Capture:
    """An answer."""

    record: ArchiveRecord
    names: set[str]  # By which other records may mean it.
    method: str = ""  # Of its request; empty if there is none.
    outlinks: ArchiveRecord | None = None  # A record of kind metadata.
    segments: dict[int, ArchiveRecord] = field(default_factory=dict)  # By their numbers, from 2 on.

    @property
    def whole(self) -> ArchiveRecord:
        """The record, with the segments that follow it."""
        if self.record.fields.first("warc-segment-number") != "1":
            return self.record
        parts, last, number = [self.record.block], False, 2
        while (segment := self.segments.get(number)) is not None:
            parts.append(segment.block)
            last, number = bool(segment.fields.first("warc-segment-total-length")), number + 1
        block = b"".join(parts)
        return replace(self.record, block=block[:BLOCK_BYTES_MAX], cut=not last or len(block) > BLOCK_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class _Request:
    names: set[str]
    method: str


class Captures:
    """Joins the records of one file to captures."""

    def __init__(self, *, with_outlinks: bool) -> None:
        """Hold none; `with_outlinks`: also join the links that the crawler recorded."""
        self._with_outlinks = with_outlinks
        self._waiting = deque[Capture]()
        self._bytes = 0
        self._requests = deque[_Request](maxlen=REQUESTS_MAX)  # Whose answer has not come.

    def add(self, record: ArchiveRecord) -> Iterator[Capture]:
        """Take a record; yield the captures that wait no longer."""
        if record.kind in ANSWERS:
            self._take_answer(record)
        elif record.kind == "request":
            self._take_request(record)
        elif record.kind == "metadata" and self._with_outlinks:
            self._take_outlinks(record)
        elif record.kind == "continuation":
            self._take_segment(record)
        while len(self._waiting) > WAITING_MAX or (self._bytes > WAITING_BYTES_MAX and len(self._waiting) > 1):
            yield self._next()

    def rest(self) -> Iterator[Capture]:
        """Yield the captures that wait, at the end of the file."""
        while self._waiting:
            yield self._next()

    def _next(self) -> Capture:
        capture = self._waiting.popleft()
        parts = [capture.record, capture.outlinks, *capture.segments.values()]
        self._bytes -= sum(len(part.block) for part in parts if part is not None)
        return capture

    def _take_answer(self, record: ArchiveRecord) -> None:
        capture = Capture(record, _names(record.fields))
        request = next((candidate for candidate in self._requests if candidate.names & capture.names), None)
        if request is not None:
            self._requests.remove(request)
            capture.method = request.method
        self._waiting.append(capture)
        self._bytes += len(record.block)

    def _take_request(self, record: ArchiveRecord) -> None:
        request = _Request(_names(record.fields), method_of(record.block))
        capture = next(
            (candidate for candidate in self._waiting if not candidate.method and candidate.names & request.names), None
        )
        if capture is not None:
            capture.method = request.method
        else:
            self._requests.append(request)

    def _take_outlinks(self, record: ArchiveRecord) -> None:
        if MediaType.of(record.fields.first("content-type")).essence not in OUTLINKS_TYPES:
            return
        answer_ids = ids(record.fields, "warc-concurrent-to", "warc-refers-to")
        url = target_url(record.fields)
        for capture in self._waiting:
            if capture.outlinks is None and (
                answer_ids & capture.names if answer_ids else target_url(capture.record.fields) == url
            ):
                capture.outlinks = record
                self._bytes += len(record.block)
                break

    def _take_segment(self, record: ArchiveRecord) -> None:
        origin, number = ids(record.fields, "warc-segment-origin-id"), record.fields.first("warc-segment-number")
        capture = next((candidate for candidate in self._waiting if candidate.names & origin), None)
        if capture is None or not SEGMENT_NUMBER.fullmatch(number) or len(capture.segments) == SEGMENTS_MAX:
            return
        if capture.segments.setdefault(int(number), record) is record:
            self._bytes += len(record.block)


def target_url(fields: Fields) -> str:
    """Return the URL that a record is of. WARC 1.0 has an example with brackets."""
    return fields.first("warc-target-uri").strip("<> \t")


def ids(fields: Fields, *names: str) -> set[str]:
    """Return the ids that fields of a header have, without their brackets."""
    return {value.strip("<> \t") for name in names for value in fields.get(name, ())} - {""}


def _names(fields: Fields) -> set[str]:
    """Return what the records of one fetch have in common: ids, or where they have none, URL and date."""
    names = ids(fields, "warc-record-id", "warc-concurrent-to")
    if "warc-concurrent-to" not in fields:
        names.add(f"{target_url(fields)} {fields.first('warc-date')}")
    return names
