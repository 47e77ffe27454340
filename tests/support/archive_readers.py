"""What warcio, another reader, finds in archives, and events in a form that can be compared."""

import gzip
import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zstandard
from archive_plans import PlannedEvent
from warcio import ArchiveIterator
from warcio.exceptions import ArchiveLoadFailed

from opic.urls.canonical import canonical_url


def row_of(event: Any, *, timed: bool) -> tuple[Any, ...]:
    url = canonical_url(event.url)
    links = tuple(sorted({canonical_url(link) for link in event.links} - {url}))
    return (
        url,
        event.status,
        links,
        event.redirect and canonical_url(event.redirect),
        event.fetched_at if timed else None,
    )


def records_by_warcio(path: Path) -> list[Any]:
    """Return the records that warcio finds.

    Raises:
        ArchiveLoadFailed: it does not read ARC 2.
    """
    content = path.read_bytes()
    if path.suffix == ".zst":
        content = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content), read_across_frames=True).read()
    try:
        return [*map(kept, ArchiveIterator(io.BytesIO(content), no_record_parse=True))]
    except ArchiveLoadFailed as error:
        if "non-chunked gzip" not in str(error):
            raise
        # One member with all records, as the Rust crate writes.
        return [*map(kept, ArchiveIterator(io.BytesIO(gzip.decompress(content)), no_record_parse=True))]


def kept(record: Any) -> tuple[str, dict[str, str], bytes]:
    return (
        record.rec_type,
        {name.lower(): value for name, value in record.rec_headers.headers},
        record.raw_stream.read(99),
    )


def kinds_by_warcio(path: Path) -> Counter[str]:
    """Return the numbers of records that warcio finds, by their types."""
    return Counter(kind for kind, *_ in records_by_warcio(path))


def recorded(path: Path, events: Mapping[str, PlannedEvent]) -> tuple[list[PlannedEvent], Counter[str]]:
    """Return the events of what a crawler recorded, as warcio finds it, and how many records give none by reason."""
    records = records_by_warcio(path)
    methods = dict[str, str]()
    for kind, headers, block in records:
        if kind == "request":
            for name in ("warc-record-id", "warc-concurrent-to"):
                methods[headers.get(name, "")] = block.split(b" ")[0].decode()
    wanted, reasons = list[PlannedEvent](), Counter[str]()
    for kind, headers, _ in records:
        reasons["requests"] += kind == "request"
        if kind in ("response", "revisit"):
            names = (headers["warc-record-id"], headers.get("warc-concurrent-to", ""))
            if next(filter(None, map(methods.get, names))) == "GET":
                wanted.append(events[headers["warc-target-uri"].strip("<>")])
            else:
                reasons["not_get"] += 1
    return wanted, reasons
