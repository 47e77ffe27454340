"""The step: the call that appends the effect of a batch to a shard's journal, and what is told of it afterwards."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack
import numpy as np

from opic.model.books import BOOK_FIELDS, BY_CLASS, Books, numbers_of
from opic.model.cash import DAY_US, MILLION
from opic.model.events import KeptLimits, page_of
from opic.model.transfer import is_own
from opic.replica.batch import Batch
from opic.replica.effect import pages_by_meta
from opic.replica.known_since import KnownSinceNotes
from opic.store.commands import flat
from opic.store.keys import of_call
from opic.store.shard import Shard
from opic.urls.canonical import host_of

FORGET_US: Final = 2 * DAY_US  # A call is recognised as a repeat for a day; record time may go back by another day.


@dataclass(frozen=True, slots=True)
class Step:
    """Cost and size of an appended record."""

    seconds: float  # From the reply to the previous record to the reply to this one.
    events: int
    links: int  # Links and page URLs looked up.
    cached: int  # Those among them found without parsing.
    round_trips: int
    links_left_out: int = 0  # Links over the limit of their event.
    links_refused: int = 0  # Links to further pages of full hosts.
    unknown: Sequence[str] = ()  # Names of fields that were ignored, up to a few of each event.
    refused: Sequence[tuple[str, str]] = ()  # Pages whose events became dead letters, each with the reason.
    log_records: int = 0  # Records of the log that begin in it,
    log_events: int = 0  # and the events of the log that are in it.
    crawlers: Mapping[str, int] = field(default_factory=dict)  # Events by the name of the crawler that reports them.

    @classmethod
    def of(cls, batch: Batch, seconds: float, round_trips: int) -> "Step":
        """Describe the append of a batch."""
        events = [event for event, repeat in zip(batch.events, batch.repeats, strict=True) if not repeat]
        logs = {partition for partition in batch.offsets if not is_own(partition)}
        numbers = [item.number for item in batch.items if item.partition in logs]
        return cls(
            seconds,
            len(batch.events),
            batch.named.looked_up,
            batch.named.hits,
            round_trips,
            sum(event.links_left_out for event in events),
            sum(batch.named.refused.values()),
            [name for event in events for name in event.unknown],
            _refused(batch) if batch.letters else (),
            numbers.count(0),
            len(numbers),
            Counter(event.crawler_name for event in events if event.crawler_name),
        )


class StepCalls:
    """Makes the calls of `opic_5_step` for one shard; see journal.lua."""

    def __init__(self, shard: Shard, kept: KeptLimits, retry_seconds: float, waits_max: int) -> None:
        """Make no call yet.

        Args:
            shard: has its part of the limits of what its crawl keeps.
            kept: these limits.
            retry_seconds: initial back-off of a page after a failed fetch.
            waits_max: number of pages whose back-off and failures are remembered.
        """
        self._keys, self._retry_seconds, self.known_since = shard.keys, retry_seconds, KnownSinceNotes()
        self.waits_max = waits_max
        self._kept = kept.letter_bytes_max // shard.shards, kept.meta_bytes_max // shard.shards

    def call_for(self, batch: Batch, offsets: Mapping[str, int]) -> list[Any]:
        """Return the command that appends the effect of a batch which was decided, and is not applied yet.

        Args:
            batch: the batch.
            offsets: by partition, the next offset before it.
        """
        keys, effect, head = self._keys, batch.effect, batch.replica.head
        record = effect.pack()
        advances = [text for name, end in batch.offsets.items() for text in (name, str(offsets[name]), str(end))]
        outboxes = [part for to, sent in batch.outboxes.items() for part in (str(to), str(sent[0]), *sent[1:])]
        (senders, asked, addresses), forgotten = _fetches(batch), effect.forgotten.tolist()
        since = self.known_since.entries(
            effect.books.time_us // MILLION, effect.first_page if len(effect.fingerprints) else None
        )
        blob = {
            "advances": advances,
            "totals": _changed(batch.replica.books, batch.books),
            "fetches": batch.fetches,
            "letters": batch.letters,
            "outboxes": outboxes,
            "calls": [part for name, time_us in batch.calls.items() for part in (time_us, name)],
            "forget": batch.books.time_us - FORGET_US,
            "metas": [part for pair in pages_by_meta(effect.metas) for part in pair],
            "senders": senders,
            "asked": asked,
            "revived": batch.notes.revived,
            "forgotten": forgotten,
            "again": flat(effect.again),
            "since": since,
            "addresses": addresses,
        }
        names = {keys.head, keys.journal, keys.books, keys.offsets, keys.dead, keys.leases, keys.waits, keys.fails}
        names |= {keys.changes, keys.sent, keys.seen, keys.page_meta, keys.metrics, keys.urls, keys.addresses}
        names |= {*map(keys.outbox, batch.outboxes), *([keys.known_since] if since else [])}
        names |= set(keys.of_pages()) if forgotten else {keys.holders} if senders else set()
        packed = msgpack.packb(blob, use_bin_type=False)
        terms = head.lsn, head.digest, effect.lsn, effect.digest, record, self._retry_seconds, packed, self.waits_max
        return of_call("step", names, *terms, *self._kept)


def _changed(before: Books, after: Books) -> list[str]:
    """Return the totals that change: field, text, .."""
    totals = list[str]()
    for name, old, new in zip(BOOK_FIELDS, numbers_of(before), numbers_of(after), strict=True):
        if old != new and name in BY_CLASS:
            for slot, (old_count, count) in enumerate(zip(old, new, strict=True)):
                totals += (f"{name}_{slot}", str(count)) if count != old_count else ()
        elif old != new:
            totals += name, str(new)
    return totals


def _fetches(batch: Batch) -> tuple[list[int | bytes], list[float], list[str]]:
    """Return who fetched, the waits that failed fetches ask for, and addresses of hosts.

    For each fetch when it was made, or reported if earlier, and a digest of its crawler's name; then the number of each
    failed fetch, from 1, that asks for a wait, and the seconds; then each host of which an event reports an address or
    whose last page is forgotten, with the last address, or "".
    """
    senders, asked, addresses = list[int | bytes](), list[float](), _hosts_forgotten(batch)
    for item, event, repeat in zip(batch.items, batch.events, batch.repeats, strict=True):
        if event.url and not repeat:
            senders += (min(event.at_us, item.record.time_us), event.crawler)
            if event.retry_after is not None and event.failed:
                asked += (len(senders) // 2, event.retry_after)
            if event.address:
                addresses[host_of(event.url)] = event.address
    return senders, asked, flat(addresses)


def _hosts_forgotten(batch: Batch) -> dict[str, str]:
    """Return the hosts whose last page is forgotten, with ""; a record that forgets pages has no other events."""
    gone, replica = batch.effect.forgotten, batch.replica
    if not len(gone):
        return {}
    left = batch.context.host_pages.counts() - np.bincount(replica.host[gone], minlength=len(replica.hosts))
    return {replica.hosts.names[host]: "" for host in np.unique(replica.host[gone]).tolist() if not left[host]}


def _refused(batch: Batch) -> list[tuple[str, str]]:
    """Return the pages whose events became dead letters, as far as these name one, each with the reason."""
    refused = []
    for reason, value in zip(batch.letters[::6], batch.letters[4::6], strict=True):
        if isinstance(value, bytes) and (page := page_of(value, batch.named.context.limits)) is not None:
            refused.append((page, str(reason)))
    return refused
