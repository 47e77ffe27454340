"""Keeps the links of pages in the store: packs those of recent records into segments, and merges what is half empty.

The journal has the links of recent reads. They wait here until there are enough for a segment, which is written like a
block of the checkpoint: behind the record that it is as of, and refused by the server if the head is another one. The
journal may be trimmed past a record only once its links are in a segment that the server has confirmed. Each write also
names the write before it, so that of two workers on a shard neither overwrites a segment of the other.

Where the keeping of links was ended, what was kept before counts no more: its segments are deleted, and its records are
left out of later ones.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from opic.arrays import Int64s, Uint32s, grown
from opic.errors import FenceMoved
from opic.model.page_links import NO_LINKS, PageLinks
from opic.replica.effect import Effect, Head
from opic.replica.link_segment import pack_segment, unpack_pages, unpack_segment
from opic.replica.replica import Replica
from opic.replica.shown_links import ShownLinks
from opic.replica.stored_links import LinkList, live_rows, missing, read_links, read_list
from opic.store.commands import flat
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys, of_call

SEGMENT_BYTES: Final = 768 << 10  # About; a call with one blocks the server for about a millisecond.
WAIT_SHARE: Final = 0.3  # Links wait for a full segment until this share of the journal's budget has been appended.
FULL_MIN: Final = 0.5  # Segments are merged when their live entries fill less of them.
SEGMENTS_MIN: Final = 4  # Fewer are never merged.
MERGED_MAX: Final = 4  # Segments read for one merge.
DELETED_MAX: Final = 16  # Segments of an ended keeping that one call deletes.
NO_PAGES: Final = np.empty(0, np.uint32)


class Known(Enum):
    """What is known of the segments in the store.

    state      means                                                 `compose` then
    UNCHECKED  nothing: some that count no more may be there         deletes these, or goes on as UNREAD
    DELETING   some that count no more were there, and are deleted   deletes more, or goes on as STALE
    UNREAD     nothing of those that count                           reads them before a write
    STALE      another worker may have written, or a call was lost   looks for what is new before a write
    READ       all; pages that are gone may still count as live      writes, and counts out all pages that are gone
    SIFTED     all                                                   writes, and counts out those that went since

    A start leads to UNCHECKED, and so does a record that ends the keeping. Another worker's record makes READ and
    SIFTED STALE. So does a write, until the answer to its last call makes it SIFTED.
    """

    UNCHECKED = auto()
    DELETING = auto()
    UNREAD = auto()
    STALE = auto()
    READ = auto()
    SIFTED = auto()


@dataclass(slots=True)
class LinksCall:
    """A call that writes a segment, and deletes those whose entries it took over."""

    command: list[Any]
    after: LinkList  # What is there once it has run.
    segment: int
    pages: Int64s
    size: int
    deleted: tuple[int, ...] = ()
    dead: Int64s = field(default_factory=lambda: np.empty(0, np.int64))  # Pages whose links count no more.
    last: bool = False  # Whether it is the last call of a write.


class _Waiting(NamedTuple):
    lsn: int
    links: PageLinks
    weight: int  # Bytes that the links will take in a segment, about.
    journal_bytes: int


@dataclass(slots=True)
class _Segment:
    size: int
    pages: int
    live: int = 0  # Pages whose links count.

    @property
    def live_bytes(self) -> float:
        return self.size * self.live / max(self.pages, 1)


class LinkKeeper:
    """The kept links of one shard, for its checkpointer."""

    def __init__(self, client: Client, keys: Keys, replica: Replica, budget: int) -> None:
        """Start with a replica at genesis; `budget` is that of the shard's journal, in bytes."""
        self._client, self._keys, self._replica, self._budget = client, keys, replica, budget
        self.shown = ShownLinks(self._all)  # Filled when it is first asked what is new.
        self.reset()

    def reset(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._weight = self._journal_bytes = 0  # Of what waits.
        self._gone: deque[tuple[int, Uint32s]] = deque()  # By record: pages that went away, or were forgotten.
        self._list = LinkList()
        self._segments: dict[int, _Segment] = {}
        self._segment_of = np.zeros(0, np.uint32)  # By page: the segment with its links; 0 for none.
        self._known = Known.UNCHECKED
        self.shown.forget()

    def load(self, effects: Sequence[Effect]) -> None:
        """After a load: let the links of those of these records wait that are in no segment."""
        self.reset()
        if self._replica.trust is not None:
            self._list = read_list(self._client, self._keys)
            for effect in effects:
                if effect.lsn > self._list.lsn and effect.lsn >= self._replica.keeping.since:
                    self.note(effect, ours=False)

    def note(self, effect: Effect, *, ours: bool) -> None:
        """Let the links of a record wait, which was applied to the replica; `ours` if this worker appends it."""
        self._undo(effect.lsn - 1)
        if not ours and self._known in (Known.READ, Known.SIFTED):
            self._known = Known.STALE
        if effect.ends_links:
            self._known = Known.UNCHECKED
            self.shown.forget()
        for pages in (effect.gone_page, effect.forgotten):
            if self._replica.trust is not None and len(pages):
                self._gone.append((effect.lsn, pages))
        if self.shown.loaded:
            self.shown.note(effect.lsn, effect.kept())
        if effect.kept_from >= 0 and len(links := effect.kept()):
            self._waiting.append(_Waiting(effect.lsn, links, int(links.weights().sum()), effect.size))
            self._weight += self._waiting[-1].weight
            self._journal_bytes += effect.size

    def _undo(self, lsn: int) -> None:
        """Forget the records after one: they were refused."""
        while self._waiting and self._waiting[-1].lsn > lsn:
            self._forget(self._waiting.pop())
        while self._gone and self._gone[-1][0] > lsn:
            self._gone.pop()

    def _drop(self, lsn: int) -> None:
        """Forget the records up to one: their links are in segments."""
        while self._waiting and self._waiting[0].lsn <= lsn:
            self._forget(self._waiting.popleft())
        while self._gone and self._gone[0][0] <= lsn:
            self._gone.popleft()

    def _forget(self, waiting: _Waiting) -> None:
        self._weight -= waiting.weight
        self._journal_bytes -= waiting.journal_bytes

    def _all(self) -> Iterator[PageLinks]:
        """Read the links of all pages, as of the replica's head."""
        lsn = self._replica.head.lsn
        self._undo(lsn)
        if self._replica.trust is not None:
            yield from read_links(self._client, self._keys, lsn, self._replica.state, self._replica.keeping.since)
        for waiting in self._counting():  # The last record may not be in the store yet.
            yield waiting.links

    @property
    def since(self) -> int | None:
        """The first record whose links are in no segment yet; None if there is none."""
        return next((waiting.lsn for waiting in self._counting()), None)

    def _counting(self) -> Iterator[_Waiting]:
        """Yield what waits and counts. The rest is dropped later: the record that ended the keeping may be undone."""
        if self._replica.trust is not None:
            yield from (waiting for waiting in self._waiting if waiting.lsn >= self._replica.keeping.since)

    def _valid(self, stored: LinkList) -> LinkList:
        """Return what counts of the segments that are there."""
        return stored._replace(live=()) if self._replica.trust is None else stored.counting(self._replica.keeping.since)

    # What the store has.

    def _learn(self) -> None:
        """Look at what the store has: another worker may have written it, or an answer may have been lost."""
        learned = self._known not in (Known.UNCHECKED, Known.UNREAD)
        while True:
            stored = read_list(self._client, self._keys)
            if learned and stored.version == self._list.version:
                break
            self._list, learned = stored, False
            stored = self._valid(stored)  # The rest is left to `_deletions`.
            for number in self._segments.keys() - set(stored.live):
                del self._segments[number]
            if all(map(self._read_pages, [number for number in stored.live if number not in self._segments])):
                self._reserve(self._replica.pages)
                counts = np.bincount(self._segment_of, minlength=max(self._segments, default=0) + 1)
                for number, segment in self._segments.items():
                    segment.live = int(counts[number])
                learned = True
        self._drop(self._list.lsn)
        self._known = Known.READ

    def _read_pages(self, number: int) -> bool:
        """Read whose links are in a segment; return False if it was deleted in the meantime."""
        with store_errors():
            pages = self._client.hget(self._keys.link_segments, f"p{number}")
        if pages is None:
            if read_list(self._client, self._keys).version == self._list.version:
                raise missing(self._keys)
            return False
        size, ids, _, _ = unpack_pages(pages)
        self._reserve(int(ids[-1]) + 1)
        self._segment_of[ids] = np.maximum(self._segment_of[ids], number)
        self._segments[number] = _Segment(size, len(ids))
        return True

    def _reserve(self, pages: int) -> None:
        if pages > len(self._segment_of):
            self._segment_of = grown(self._segment_of, pages)

    # Writing.

    def compose(self, head: Head, *, everything: bool) -> list[LinksCall]:
        """Return the calls that are due, as of the replica's head; `everything` writes all that waits."""
        self._undo(head.lsn)
        if self._known in (Known.UNCHECKED, Known.DELETING):
            if deletions := self._deletions(head):
                self._known = Known.DELETING
                return deletions
            self._known = Known.UNREAD if self._known is Known.UNCHECKED else Known.STALE
        full = self._weight >= SEGMENT_BYTES or self._journal_bytes >= WAIT_SHARE * self._budget
        if self.since is None or not (everything or full):
            return []
        if self._known in (Known.UNREAD, Known.STALE):
            self._learn()
        parts = self._parts()
        calls = self._merges(head, len(parts) + 1)
        for index, links in enumerate(parts):
            before = calls[-1].after if calls else self._valid(self._list)
            lsn = head.lsn if index == len(parts) - 1 else before.lsn
            calls.append(self._call(head, before._replace(lsn=lsn), links))
        if calls:
            calls[-1].dead, calls[-1].last = self._dead(), True
            self._known = Known.STALE
        return calls

    def _deletions(self, head: Head) -> list[LinksCall]:
        """Return calls that delete the segments of an earlier keeping; none if there are none."""
        stored, calls = read_list(self._client, self._keys), list[LinksCall]()
        if stored.live and not self._valid(stored).live:
            self._learn()
            before = self._list
            while before.live:
                gone, left = before.live[:DELETED_MAX], before.live[DELETED_MAX:]
                size = round(before.size * len(left) / len(before.live))
                calls.append(self._call(head, before._replace(live=left, size=size), NO_LINKS, gone))
                before = calls[-1].after
        return calls

    def _parts(self) -> list[PageLinks]:
        """Return the links that wait, of each page the last ones, in parts of the size of a segment."""
        joined = PageLinks.joined([waiting.links for waiting in self._counting()])
        rows = joined.last_of_each()
        links = joined.select_rows(rows[live_rows(self._replica.state, joined.pages[rows])])
        part_of = (np.cumsum(links.weights()) - 1) // SEGMENT_BYTES
        ends = [*(np.flatnonzero(np.diff(part_of)) + 1).tolist(), len(links)]
        return [links.part(first, end) for first, end in pairwise([0, *ends])]

    def _dead(self) -> Int64s:
        """Return the pages that went away, have links in a segment, and have not been read since they came back.

        They count as dead once the server confirms the call. Before that the replica may be behind what the store has,
        or have a record that will be refused: a page may look gone, or never read, whose links count.
        """
        if self._known is Known.READ:
            gone = np.flatnonzero(self._segment_of)
        else:
            gone = np.unique(np.concatenate([pages for _, pages in self._gone] or [NO_PAGES])).astype(np.int64)
            gone = gone[gone < len(self._segment_of)]
        return gone[~live_rows(self._replica.state, gone)]

    def _call(
        self,
        head: Head,
        before: LinkList,
        links: PageLinks,
        deleted: Sequence[int] = (),
    ) -> LinksCall:
        """Return a call that writes a segment, if there are links for it.

        Args:
            head: the head that the call rests on.
            before: what the store has before, with the `lsn` that it has afterwards.
            links: of distinct pages, ascending.
            deleted: numbers of segments to delete.
        """
        version = before.version + 1
        freed = sum(self._segments[number].size for number in deleted if number in self._segments)
        images, size = dict[str, Any](), -freed
        live = [number for number in before.live if number not in deleted]
        if len(links):
            pages, packed = pack_segment(links)
            images |= {f"p{version}": pages, f"l{version}": packed}
            live.append(version)
            size += len(pages) + len(packed)
        after = LinkList(version, before.lsn, tuple(live), before.size + size, before.merges + bool(deleted))
        fields = [f"{kind}{number}" for number in deleted for kind in "pl"]
        values = flat(images | after.fields())
        keys = self._keys
        names = keys.head, keys.link_segments
        command = of_call("links", names, head.lsn, head.digest, before.version, len(fields), *fields, *values)
        own = sum(map(len, images.values()))
        return LinksCall(
            command, after, version if len(links) else 0, links.pages.astype(np.int64), own, tuple(deleted)
        )

    def confirm(self, call: LinksCall) -> None:
        """Take in that the server confirmed a call."""
        self._list = call.after
        if call.last:
            self._known = Known.SIFTED
        for number in call.deleted:
            self._segments.pop(number, None)
        self._reserve(self._replica.pages)
        for pages, number in ((call.dead, 0), (call.pages, call.segment)):
            before, counts = np.unique(self._segment_of[pages], return_counts=True)
            for old, count in zip(before.tolist(), counts.tolist(), strict=True):
                if old in self._segments:
                    self._segments[old].live -= count
            self._segment_of[pages] = number
        if call.segment:
            self._segments[call.segment] = _Segment(call.size, len(call.pages), len(call.pages))
        self._drop(call.after.lsn)

    # Merging.

    def _merges(self, head: Head, most: int) -> list[LinksCall]:
        """Return calls that merge the emptiest segments, if the segments are half empty altogether."""
        calls: list[LinksCall] = []
        emptiest = deque(sorted(self._segments, key=lambda number: self._segments[number].live_bytes))
        live, count = sum(segment.live_bytes for segment in self._segments.values()), len(self._segments)
        while len(calls) < most and count > SEGMENTS_MIN and live < FULL_MIN * count * SEGMENT_BYTES:
            group, room = list[int](), float(SEGMENT_BYTES)
            while emptiest and len(group) < MERGED_MAX and self._segments[emptiest[0]].live_bytes <= room:
                room -= self._segments[emptiest[0]].live_bytes
                group.append(emptiest.popleft())
            if len(group) < 2:  # One alone would gain nothing.
                break
            count -= len(group) - 1
            before = calls[-1].after if calls else self._valid(self._list)
            calls.append(self._call(head, before, self._live_links(group), sorted(group)))
        return calls

    def _live_links(self, numbers: Sequence[int]) -> PageLinks:
        """Return the links of segments that still count."""
        parts = []
        for number in sorted(numbers):
            with store_errors():
                pages, packed = self._client.hmget(self._keys.link_segments, f"p{number}", f"l{number}")
            if pages is None or packed is None:
                self._known = Known.STALE
                if read_list(self._client, self._keys).version == self._list.version:
                    raise missing(self._keys)
                raise FenceMoved(f"another worker merged segment {number} of shard {self._keys.shard}")
            links = unpack_segment(pages, packed)
            counts = (self._segment_of[links.pages] == number) & live_rows(self._replica.state, links.pages)
            parts.append(links.select_rows(np.flatnonzero(counts)))
        joined = PageLinks.joined(parts)
        return joined.select_rows(joined.last_of_each())
