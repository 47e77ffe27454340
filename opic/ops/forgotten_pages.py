"""Takes what names forgotten pages out of the files of a shard's backup.

The URL of a forgotten page may be in a block that is older than the record that forgot the page, and in an earlier
record of the journal. Both are in the copy only if that record is too: the journal is trimmed past it once no block
has the URL any more. So the records of the copy tell which pages to look for.

The log of accepted events is copied from its resume point on. Some of these events have taken effect at the end of the
copy already, and may name pages that were forgotten since.

Where a record changes, so do the digests of all records after it. A restore appends a record of its own in any case.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import numpy as np

from opic.ingest.writer import routed
from opic.model.event_checks import decode_events
from opic.model.events import (
    LOG_PARTITION,
    CheckedEvent,
    EventLimits,
    Outcome,
    Record,
    decode_seeds,
    encode_forgotten,
    split_array,
)
from opic.model.packed_events import pack
from opic.ops.backup_files import LOG_SHARD
from opic.replica.checkpoint import URLS_A_FIELD, url_field
from opic.replica.effect import Effect
from opic.replica.packed_lines import pack_frame, pack_lines, unpack_urls
from opic.replica.replica import PAGES_A_BLOCK
from opic.store.commands import flat
from opic.urls.canonical import host_of, registered_domain

NAMING: Final = ("event", "seeds", "forget", "expire")  # The kinds of records of the log that name pages.


class ForgottenPages:
    """The pages of one shard that are forgotten at the end of its copy."""

    def __init__(self, pages: Collection[int]) -> None:
        """Take the ids of the pages that records of the copy forgot, and that are not known again."""
        self._pages = set(pages)
        self._ids = np.array(sorted(pages), np.int64)
        self.digest = b""  # Of the last record that `record` returned.
        self.domains = set[str]()  # The registered domains of the URLs that were taken out.

    def record(self, packed: bytes) -> bytes:
        """Return a record of the journal without these pages; call this for each record, in order."""
        effect = Effect.unpack(packed)
        changes: dict[str, Any] = {}
        first = effect.first_page
        if len(new := self._between(first, first + len(effect.fingerprints))):
            changes["packed_urls"] = pack_frame(self._blanked(unpack_urls(effect.packed_urls), new - first))
        if self._pages & effect.metas.keys():
            changes["metas"] = {
                page: meta for page, meta in effect.metas.items() if page not in self._pages or not meta
            }
        if again := self._pages & effect.again.keys():
            self._note(effect.again[page] for page in again)
            changes["again"] = {page: url for page, url in effect.again.items() if page not in again}
        if self.digest and self.digest != effect.previous:
            changes["previous"] = self.digest
        if changes:
            effect = replace(effect, **changes)
            packed = effect.pack()
        self.digest = effect.digest
        return packed

    def value(self, value: Sequence[Any]) -> Sequence[Any]:
        """Return a value of the file of blocks without these pages; empty if nothing is left of it."""
        name, content, *rest = value
        if isinstance(name, int):
            return [name, self._block(name, content), *rest]
        if name in ("pagemeta", "urls"):
            fields = dict(zip(content[::2], content[1::2], strict=True))
            gone = [page for page in fields if int(page) in self._pages]
            if name == "urls":
                self._note(fields[page].decode() for page in gone)
            for page in gone:
                del fields[page]
            return [name, flat(fields)] if fields else []
        return value

    def _block(self, number: int, image: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        first, changed = number * PAGES_A_BLOCK, dict[bytes, bytes]()
        pages = self._between(first, first + PAGES_A_BLOCK)
        for start in np.unique(pages // URLS_A_FIELD * URLS_A_FIELD).tolist():
            field = url_field(start)[1].encode()
            lines = self._between(start, start + URLS_A_FIELD) - start
            urls = unpack_urls(image.get(field, b""))
            changed[field] = pack_lines(self._blanked(urls, lines[lines < len(urls)]))
        return {**image, **changed}

    def _between(self, first: int, end: int) -> Any:
        return self._ids[np.searchsorted(self._ids, first) : np.searchsorted(self._ids, end)]

    def _blanked(self, urls: list[str], lines: Any) -> list[str]:
        self._note(urls[line] for line in lines.tolist() if urls[line])
        for line in lines.tolist():
            urls[line] = ""
        return urls

    def _note(self, urls: Iterable[str]) -> None:
        self.domains |= {registered_domain(host_of(url)) for url in urls}


class AppliedRecords:
    """The records of the log, from its resume point on, that have taken effect in some shards at the end of a copy."""

    def __init__(self, offsets: Iterable[Mapping[bytes, bytes]]) -> None:
        """Take the offsets of each shard at the end of the copy."""
        self._next = [int(shard_offsets.get(LOG_PARTITION.encode(), 0)) for shard_offsets in offsets]

    def rest(self, name: bytes, fields: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
        """Return an entry of the log with that part of its record that has yet to take effect."""
        number, kind = int(name.partition(b"-")[2]), fields[b"k"].decode()
        if number >= max(self._next) or kind not in NAMING:
            return fields
        record = Record(number, int(fields[b"t"]), fields[b"v"], kind)
        events = decode_events(LOG_PARTITION, record, EventLimits())
        if record.packed:
            return self._rest_of_array(record, events, fields)
        (event,) = events
        parts = dict(routed(event, LOG_SHARD, len(self._next)))
        left = [part for shard, part in parts.items() if number >= self._next[shard]]
        if event.outcome is Outcome.DEAD or len(left) == len(parts):
            return fields
        urls = [url for part in left for url in part.seeds]
        if kind == "seeds" and left:
            seeds = msgspec.structs.replace(decode_seeds(fields[b"v"]), urls=urls)
            return {**fields, b"v": msgspec.msgpack.encode(seeds)}
        return {**fields, b"k": b"expire" if kind == "expire" else b"forget", b"v": encode_forgotten(urls)}

    def _rest_of_array(
        self, record: Record, events: Sequence[CheckedEvent], fields: Mapping[bytes, bytes]
    ) -> Mapping[bytes, bytes]:
        shards = [next(routed(event, LOG_SHARD, len(self._next)))[0] for event in events]
        waits = [record.offset >= self._next[shard] for shard in shards]
        if all(waits) or (events[0].outcome is Outcome.DEAD and len(events) == 1):
            return fields
        left = [value for value, waiting in zip(split_array(record.value), waits, strict=True) if waiting]
        return {**fields, b"v": pack(left)} if left else {**fields, b"k": b"forget", b"v": encode_forgotten([])}
