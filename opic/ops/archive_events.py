"""Crawl events from the records of web archives.

A page that was fetched is an event: with the links of its HTML, or with those that the crawler recorded. A redirect is
one, and so is a failure. The time is that of the record.
"""

import json
import sqlite3
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from opic.html.links import absolute_link
from opic.html.media_types import HTML
from opic.html.process import LinkReader
from opic.model.events import CrawlEvent
from opic.ops.archive_records import ArchiveRecord, HttpAnswer, Position, parse_answer, read_records

NOT_MODIFIED: Final = 304
RECORDED_KINDS: Final = ("L", "R")  # Heritrix's: links that a reader follows, and redirects.
QUOTE: Final = '"'
ENTITY: Final = "&quot;"
META: Final = ("name", "http-equiv", "content")
WAT_PATHS: Final = ("A@/href", "AREA@/href")
PENDING_MAX: Final = 64  # Pages that wait for the record of their links; Heritrix writes it right after them.
REFERS: Final = ("warc-refers-to-target-uri", "warc-refers-to-date")


class ArchivedEvent(NamedTuple):
    """An event, and where its record is."""

    event: CrawlEvent
    position: Position


class SeenLinks:
    """The links of the pages of a run, for later records that say that a page has not changed. In a temporary file."""

    def __init__(self) -> None:
        """Know none yet."""
        self._file = sqlite3.connect("")
        self._file.execute("CREATE TABLE links (number INTEGER PRIMARY KEY, packed BLOB)")
        self._file.execute("CREATE TABLE names (name TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID")

    def close(self) -> None:
        """Forget them."""
        self._file.close()

    def put(self, headers: Mapping[str, str], links: list[str]) -> None:
        """Note the links of a page under all names that its record has."""
        names = [headers.get("warc-record-id"), headers.get("warc-payload-digest")]
        names.append(f"{_url(headers)} {headers.get('warc-date')}")
        number = self._file.execute("INSERT INTO links (packed) VALUES (?)", [msgspec.msgpack.encode(links)]).lastrowid
        rows = [(name, number) for name in names if name]
        self._file.executemany("INSERT OR REPLACE INTO names VALUES (?, ?)", rows)

    def of(self, headers: Mapping[str, str]) -> list[str] | None:
        """Return the links of the page that a revisit refers to, None if it was not in this run."""
        url, date = (headers.get(name, "").strip("<>") for name in REFERS)
        for name in (headers.get("warc-refers-to"), f"{url} {date}", headers.get("warc-payload-digest")):
            asked = "SELECT packed FROM links JOIN names USING (number) WHERE name = ?"
            if name and (row := self._file.execute(asked, [name]).fetchone()) is not None:
                return msgspec.msgpack.decode(row[0], type=list[str])
        return None


class ArchiveEvents:
    """Turns the records of files into events. `counts` has what was left out, and why."""

    def __init__(self, *, recorded: bool = False, drop_nofollow: bool = False) -> None:
        """Read nothing yet.

        Args:
            recorded: take the links that Heritrix recorded, instead of those of the HTML.
            drop_nofollow: as `html_links`.
        """
        self.counts = Counter[str]()
        self._recorded = recorded
        self._links, self._seen = LinkReader(drop_nofollow=drop_nofollow), SeenLinks()

    def close(self) -> None:
        """End the process that reads HTML."""
        self._links.close()
        self._seen.close()

    def of(self, path: Path, format: str, start: Position) -> Iterator[ArchivedEvent]:
        """Yield the events of a file from a position on, in the order of its records.

        Raises:
            ArchiveDamaged: the file can't be read to its end.
            BadInput: it can't be read at all.
        """
        records, wat = read_records(path, start, arc=format == "arc"), format == "wat"
        if self._recorded and not wat:
            yield from self._with_recorded(records)
            return
        event_of = self._of_envelope if wat else self._page
        for record in records:
            if (record.kind == "metadata") == wat and (event := event_of(record)) is not None:
                yield ArchivedEvent(event, record.position)

    def _page(self, record: ArchiveRecord) -> CrawlEvent | None:
        """Return the event of a record of a page, with the links of its HTML; None if it is of no page."""
        headers = record.headers
        url = _url(headers)
        if not url.lower().startswith(("http://", "https://")):
            return None
        self.counts["records"] += 1
        event = CrawlEvent(url, fetched_at=_time(headers.get("warc-date")))
        if record.kind == "resource":
            answer: HttpAnswer | None = HttpAnswer(
                200, {"content-type": headers.get("content-type", "")}, record.block, record.cut
            )
        else:
            answer = parse_answer(record.block)
        if record.kind == "revisit" or (answer is not None and answer.status == NOT_MODIFIED):
            return self._unchanged(event, headers, answer)
        if answer is None:
            self.counts["not_http"] += 1
            return None
        self.counts["bodies_cut"] += answer.cut or record.cut
        if _answered(event, answer):
            if not self._recorded:
                event.links = self._html(url, answer.body, answer.headers.get("content-type"))
            self._seen.put(headers, event.links)
        return event

    def _html(self, url: str, body: bytes, content_type: str | None = HTML) -> list[str]:
        links = self._links.read(url, body, content_type)
        self.counts["pages_unparsable"] += links is None
        return links or []

    def _unchanged(self, event: CrawlEvent, headers: Mapping[str, str], answer: HttpAnswer | None) -> CrawlEvent | None:
        """Return the event of a page that is as it was before, if that is known."""
        if answer is not None and 300 <= answer.status <= 399 and answer.status != NOT_MODIFIED:
            _answered(event, answer)
            return event
        links = self._seen.of(headers)
        if links is None:
            self.counts["revisits_skipped"] += 1
            return None
        self.counts["revisits_repeated"] += 1
        event.links = links
        return event

    def _with_recorded(self, records: Iterator[ArchiveRecord]) -> Iterator[ArchivedEvent]:
        """Yield events with the links of the metadata records that follow them."""
        waiting = deque[_PendingPage]()
        for record in records:
            if record.kind != "metadata":
                if (event := self._page(record)) is not None:
                    complete = record.kind != "response" or not 200 <= event.status <= 299
                    waiting.append(_PendingPage(ArchivedEvent(event, record.position), record.headers, complete))
            elif (of := next((one for one in waiting if one.is_meant_by(record.headers)), None)) is not None:
                of.found.event.links, of.complete = self._outlinks(of.found.event.url, record.block), True
                self._seen.put(of.headers, of.found.event.links)
            while waiting and (waiting[0].complete or len(waiting) > PENDING_MAX):
                yield self._sent(waiting.popleft())
        while waiting:
            yield self._sent(waiting.popleft())

    def _sent(self, waiting: "_PendingPage") -> ArchivedEvent:
        self.counts["without_recorded_links"] += not waiting.complete
        return waiting.found

    def _outlinks(self, url: str, block: bytes) -> list[str]:
        links = []
        for line in block.decode("utf-8", "replace").splitlines():
            name, _, value = line.partition(": ")
            parts = value.rsplit(" ", 2)
            if name == "outlink" and len(parts) == 3 and parts[1] in RECORDED_KINDS:
                links.append({"url": parts[0]})
        return self._html(url, as_html(links))

    def _of_envelope(self, record: ArchiveRecord) -> CrawlEvent | None:
        """Return the event of a record of a WAT file, None if it is of no page."""
        try:
            envelope = _map(json.loads(record.block), "Envelope")
        except (ValueError, RecursionError):
            envelope = {}
        if not envelope:
            self.counts["broken_json"] += 1
            return None
        headers = {k.lower(): str(v) for k, v in _map(envelope, "WARC-Header-Metadata").items()}
        kind, url = headers.get("warc-type"), _url(headers) or _url(record.headers)
        if kind not in ("response", "revisit") or not url.lower().startswith(("http://", "https://")):
            return None
        self.counts["records"] += 1
        event = CrawlEvent(url, fetched_at=_time(headers.get("warc-date") or record.headers.get("warc-date")))
        http = _map(_map(envelope, "Payload-Metadata"), "HTTP-Response-Metadata")
        status = str(_map(http, "Response-Message").get("Status", ""))
        answer = HttpAnswer(
            int(status) if status.isdigit() else 200,
            {k.lower(): str(v) for k, v in _map(http, "Headers").items()}, b"", record.cut,
        )  # fmt: skip
        if kind == "revisit" or answer.status == NOT_MODIFIED:
            return self._unchanged(event, headers, answer)
        if _answered(event, answer):
            page = _map(http, "HTML-Metadata")
            links = [one for one in _list(page, "Links") if one.get("path") in WAT_PATHS]
            head = _map(page, "Head")
            if links:
                event.links = self._html(url, as_html(links, head.get("Base"), _list(head, "Metas")))
            self._seen.put(headers, event.links)
        return event


@dataclass(slots=True)
class _PendingPage:
    """A page whose recorded links may follow."""

    found: ArchivedEvent
    headers: Mapping[str, str]
    complete: bool  # Whether there is nothing to wait for.

    def is_meant_by(self, headers: Mapping[str, str]) -> bool:
        """Whether a metadata record is about this page."""
        of = headers.get("warc-concurrent-to") or headers.get("warc-refers-to")
        own = self.headers.get("warc-record-id")
        return not self.complete and (of == own if of else _url(headers) == self.found.event.url)


def _answered(event: CrawlEvent, answer: HttpAnswer) -> bool:
    """Note in an event what the page answered, and where it leads to; return whether it is a page."""
    event.status = answer.status
    if 300 <= answer.status <= 399:
        event.redirect = absolute_link(event.url, answer.headers.get("location", ""))
    return 200 <= answer.status <= 299


def as_html(links: list[dict[str, Any]], base: object = None, metas: list[dict[str, Any]] | None = None) -> bytes:
    """Return HTML with links whose URLs are attributes as they stood in a page: the parser decodes their entities.

    >>> as_html([{"url": 'a?b=1&amp;c="', "rel": "nofollow"}], "/x/")
    b'<meta charset=utf-8><base href="/x/"><a href="a?b=1&amp;c=&quot;" rel="nofollow"></a>'
    """
    parts = ["<meta charset=utf-8>"]
    if isinstance(base, str):
        parts.append(_tag("base", {"href": base}))
    parts += [_tag("meta", {key: one.get(key) for key in META}) for one in metas or ()]
    parts += [_tag("a", {"href": one.get("url"), "rel": one.get("rel")}) + "</a>" for one in links]
    return "".join(parts).encode("utf-8", "replace")


def _tag(name: str, attributes: Mapping[str, object]) -> str:
    given = [f" {k}={QUOTE}{v.replace(QUOTE, ENTITY)}{QUOTE}" for k, v in attributes.items() if isinstance(v, str)]
    return f"<{name}{''.join(given)}>"


def _map(of: object, name: str) -> dict[str, Any]:
    found = of.get(name) if isinstance(of, dict) else None
    return found if isinstance(found, dict) else {}


def _list(of: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = of.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _url(headers: Mapping[str, str]) -> str:
    return headers.get("warc-target-uri", "").strip().strip("<>")  # WARC 1.0 has an example with brackets.


def _time(date: str | None) -> float | str | None:
    """Return a WARC-Date as Unix seconds; what is none is left to the check of events."""
    if not date:
        return None
    try:
        found = datetime.fromisoformat(date.strip())
    except ValueError:
        return date
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
