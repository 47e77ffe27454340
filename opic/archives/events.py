"""Crawl events from the records of web archives.

A page that was fetched is an event: with the links of its HTML, or with those that the crawler recorded. A redirect is
one, and so is a failure. The time is that of the record. Every other record is counted, by the reason why it gave none.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import BinaryIO, Final, NamedTuple

from opic.archives.captures import ANSWERS, Capture, Captures, target_url
from opic.archives.dates import unix_seconds
from opic.archives.fields import Fields
from opic.archives.files import ArchiveFile
from opic.archives.http import HttpAnswer, decoded_answer, parse_answer
from opic.archives.originals import Originals
from opic.archives.records import ArchiveRecord, DamagedPart, Position, read_records
from opic.archives.wat import BadEnvelope, as_html, described, is_envelope
from opic.errors import BadInput
from opic.html.links import redirect_target
from opic.html.media_types import HTML
from opic.html.process import LinkReader
from opic.model.events import CrawlEvent

BEGIN: Final = Position()
READ_METHODS: Final = ("", "GET")
NOT_MODIFIED: Final = 304
NOT_MODIFIED_PROFILE: Final = "/server-not-modified"  # How it ends, in WARC 1.0 and 1.1.
RECORDED_KINDS: Final = (b"L", b"R")  # Heritrix's: links that a reader follows, and redirects.
BASE: Final = b"base/@href"  # Not a link, but what links are relative to.
# What records of these kinds are counted as.
KINDS: Final = {
    "warcinfo": "warcinfo", "request": "requests", "metadata": "metadata", "conversion": "conversions",
    "continuation": "continuations",
}  # fmt: skip


class ArchivedEvent(NamedTuple):
    """An event, and where its record is."""

    event: CrawlEvent
    position: Position


class ArchiveEvents:
    """Turns the records of files into events.

    `counts` has the number of records, and of those that gave no event by reason; also, of those that gave one, what is
    notable. See docs/guide/archives.md.
    """

    def __init__(self, *, recorded: bool = False, drop_nofollow: bool = False) -> None:
        """Read nothing yet.

        Args:
            recorded: take the links that Heritrix recorded, instead of those of the HTML.
            drop_nofollow: as `html_links`.
        """
        self.counts = Counter[str]()
        self._recorded = recorded
        self._links, self._originals = LinkReader(drop_nofollow=drop_nofollow), Originals()

    def close(self) -> None:
        self._links.close()
        self._originals.close()

    def events_of(self, file: ArchiveFile, start: Position = BEGIN) -> Iterator[ArchivedEvent | DamagedPart]:
        """Yield the events of a file from a position on, in the order of their records, and the damage between them.

        Raises:
            BadInput: it can't be read at all.
        """
        captures = Captures(with_outlinks=self._recorded)
        with file.open() as opened:
            for record in _records(file, opened, start):
                self.counts["records"] += 1
                if isinstance(record, DamagedPart):
                    self.counts["damaged"] += 1
                    yield record
                elif (known := self._known(record)) is not None:
                    yield from self._events(file, captures.add(known))
            yield from self._events(file, captures.rest())

    def _known(self, record: ArchiveRecord) -> ArchiveRecord | None:
        """Count a record that gives no event; return it, if it may tell of one that does."""
        if is_envelope(record):
            try:
                record = described(record) or record
            except BadEnvelope:
                self.counts["broken_json"] += 1
                return None
        if record.kind not in ANSWERS:
            self.counts[KINDS.get(record.kind, "other_types")] += 1
        elif not target_url(record.fields).lower().startswith(("http://", "https://")):
            self.counts["not_web"] += 1
            return None
        return record

    def _events(self, file: ArchiveFile, captures: Iterator[Capture]) -> Iterator[ArchivedEvent]:
        for capture in captures:
            if (event := self._event(file, capture)) is not None:
                yield ArchivedEvent(event, capture.record.position)

    def _event(self, file: ArchiveFile, capture: Capture) -> CrawlEvent | None:
        """Return the event of a capture; None, and count it, if it is no read of a page."""
        if capture.method not in READ_METHODS:
            self.counts["not_get"] += 1
            return None
        record = capture.whole
        answer = _answer(record)
        if record.kind == "revisit" or (answer is not None and answer.status == NOT_MODIFIED):
            return self._revisit(capture, answer)
        if answer is None:
            self.counts["not_http"] += 1
            return None
        event = self._answered(record, answer, capture.outlinks)
        self._originals.put(file, capture, latest=_is_success(event.status))
        return event

    def _revisit(self, capture: Capture, own: HttpAnswer | None) -> CrawlEvent | None:
        """Return the event of an answer that was the same as an earlier one: with its own URL, time and status.

        Args:
            capture: the revisit, or a response with status 304.
            own: its header; None if it has none.
        """
        record, unchanged = capture.record, own is None or own.status == NOT_MODIFIED
        if own is not None and not unchanged and not _is_success(own.status):
            return self._answered(record, own, None)
        if capture.outlinks is not None:
            status = 200 if own is None or unchanged else own.status
            return self._answered(record, HttpAnswer(status, Fields()), capture.outlinks)
        profile = record.fields.first("warc-profile").rstrip("> \t")
        not_modified = unchanged and (own is not None or profile.endswith(NOT_MODIFIED_PROFILE))
        original = self._originals.original_of(record.fields, not_modified=not_modified)
        answer = None if original is None else _answer(original.answer)
        same_url = original is not None and target_url(original.answer.fields) == target_url(record.fields)
        if original is None or answer is None or (self._recorded and not same_url):
            # Recorded links don't tell how another page has them.
            self.counts["revisits_skipped"] += 1
            return None
        if own is not None and not unchanged:
            fields = own.fields if "content-type" in own.fields else answer.fields
            answer = replace(answer, status=own.status, fields=fields)
        self.counts["revisits_repeated"] += 1
        event = self._answered(record, answer, original.outlinks)
        self._originals.call(original.number, record.fields, latest=_is_success(event.status))
        return event

    def _answered(self, record: ArchiveRecord, answer: HttpAnswer, outlinks: ArchiveRecord | None) -> CrawlEvent:
        date = record.fields.first("warc-date")
        seconds = unix_seconds(date)
        # What is no date is left to the check of events.
        event = CrawlEvent(target_url(record.fields), fetched_at=date or None if seconds is None else seconds)
        event.status = answer.status
        self.counts["bodies_cut"] += answer.cut
        if _is_success(answer.status):
            event.links = self._links_of(event.url, answer, outlinks)
        elif 300 <= answer.status <= 399:
            event.redirect = redirect_target(event.url, answer.location)
        return event

    def _links_of(self, url: str, answer: HttpAnswer, outlinks: ArchiveRecord | None) -> list[str]:
        """Return the links of a page, none if they can't be parsed."""
        if self._recorded and outlinks is None:
            self.counts["without_recorded_links"] += 1
            return []
        body, content_type = (_recorded_links(outlinks.block), HTML) if outlinks else (answer.body, answer.content_type)
        links = self._links.read(url, body, content_type)
        self.counts["pages_unparsable"] += links is None
        return links or []


def _records(file: ArchiveFile, opened: BinaryIO, start: Position) -> Iterator[ArchiveRecord | DamagedPart]:
    try:
        yield from read_records(opened, start)
    except OSError as error:
        raise BadInput(f"{file.name}: can't be read: {error.strerror or error}") from error


def _answer(record: ArchiveRecord) -> HttpAnswer | None:
    # gowarc calls every revisit truncated: it has no body.
    cut = record.cut or (record.kind != "revisit" and "warc-truncated" in record.fields)
    if record.kind == "resource":
        kind = Fields({"content-type": record.fields.get("content-type", [])})
        return decoded_answer(200, kind, record.block, cut=cut)
    return parse_answer(record.block, cut=cut)


def _is_success(status: int) -> bool:
    return 200 <= status <= 299


def _recorded_links(block: bytes) -> bytes:
    """Return the links that Heritrix recorded, as HTML: lines like `outlink: URL KIND CONTEXT`."""
    links = []
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        parts = value.strip().rsplit(b" ", 2)
        if name.strip().lower() == b"outlink" and len(parts) == 3:
            url, kind, context = parts
            if kind in RECORDED_KINDS and context.lower() != BASE:
                links.append({"url": url.decode("utf-8", "replace")})
    return as_html(links)
