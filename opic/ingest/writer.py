"""The writer of a crawl: routes a partition's records to the shards of their pages and delivers cash between shards.

Each shard has a `ShardWriter`; with one shard, this class only passes records on to it. With several, it sends each
record to the shard of its page, delivers outbox entries, decides grants and classes, and counts rounds. All its state
can be rebuilt from the store.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Final

import msgspec

from opic.errors import BadInput, BeingRestored, CrawlStopped, DeliveryPaused, OutboxFull, OutOfOrder, TailLost
from opic.ingest.checkpointer import JOURNAL_BYTES
from opic.ingest.class_sweeps import next_records
from opic.ingest.deliveries import Deliveries
from opic.ingest.shard_writer import ShardWriter
from opic.ingest.step import Step
from opic.model.books import Books
from opic.model.classes import NO_ROOM, NO_WEIGHTS, WeightClasses
from opic.model.crawl_books import payout_due, room_for
from opic.model.event_checks import decode_events
from opic.model.events import CheckedEvent, EventLimits, KeptLimits, Outcome, Record
from opic.model.rounds import RoundCount
from opic.model.transfer import COUNTS, GRANTS, SWEEP, source_of
from opic.replica.crawl import Crawl
from opic.replica.inputs import Input
from opic.replica.remote_pages import RemotePages
from opic.settings import Settings
from opic.store.back_offs import RETRY_BYTES, waits_max
from opic.store.connection import store_errors
from opic.store.keys import of_call
from opic.store.refusals import note_refusals
from opic.urls.canonical import host_of, shard_of

log = logging.getLogger("opic.ingest")

PAUSED_SECONDS: Final = 0.02  # Retry interval of deliveries while a backup holds them.
# Events that many shards take at once: whole steps, large deliveries (decision 0029).
EVENTS_A_SHARD: Final = 600


def routed(event: CheckedEvent, home: int, shards: int) -> Iterator[tuple[int, CheckedEvent]]:
    """Yield each shard that an event concerns, with the part of the event for that shard.

    Args:
        event: the event of a record that does not define classes.
        home: the shard with the resume point of the record's partition.
        shards: number of shards of the crawl.
    """
    if event.url:
        yield shard_of(host_of(event.url), shards), event
    elif event.seeds or event.trust:
        seeds: dict[int, list[str]] = {}
        for url in event.seeds:
            seeds.setdefault(shard_of(host_of(url), shards), []).append(url)
        if event.trust:  # Every shard keeps links from the first trusted page on.
            seeds = {shard: [] for shard in range(shards)} | seeds
        for shard, urls in seeds.items():
            yield shard, replace(event, seeds=tuple(urls))
    else:
        if event.outcome is Outcome.CLASSIFY:  # Of a log of one shard; here the shards do so by themselves.
            event = replace(event, ids=(0, 0))
        yield home, event


@dataclass(frozen=True, eq=False)
class Taken:
    """Consecutive records of one partition, in order of their offsets, as one poll returned them.

    The partition has no other records between the offsets `since` and `end`. On Kafka there may be none at all: markers
    and records of aborted transactions have offsets too.
    """

    partition: str
    records: Sequence[Record]
    since: int
    end: int

    @cached_property
    def rough_events(self) -> int:
        """How many events they have; of arrays in JSON, an estimate."""
        return sum(record.rough_events() for record in self.records)

    @property
    def gap(self) -> int:
        """The offset after the last record, from which on there are none."""
        return self.records[-1].offset + 1 if self.records else self.since


class Writer:
    """Writes to all shards. All its state can be rebuilt from the store: it may be killed at any point."""

    def __init__(
        self,
        crawl: Crawl,
        limits: EventLimits | None = None,
        retry_seconds: float = 60.0,
        journal_bytes: int = JOURNAL_BYTES,
        retry_bytes: int = RETRY_BYTES,
        *,
        kept: KeptLimits | None = None,
    ) -> None:
        """Write to an open crawl; see `ShardWriter`.

        `journal_bytes` is for the journals of all shards together, `retry_bytes` for the back-offs of their pages, and
        `kept` for what events leave in all of them.
        """
        self._kept = kept or KeptLimits()
        self.crawl, self.limits = crawl, (limits or EventLimits()).under(crawl.rules)
        self._journal_bytes = journal_bytes // len(crawl)
        self._retry_seconds, self._waits_max = retry_seconds, waits_max(retry_bytes, len(crawl))
        self._era: bytes | None = None
        self._drained = False  # Whether only records that some shard has are to take effect: see `opic.migration`.
        self.forget()

    @classmethod
    def of(cls, crawl: Crawl, settings: Settings) -> "Writer":
        """Write to an open crawl as the settings say."""
        bytes_max = settings.journal_bytes, settings.retry_bytes
        return cls(crawl, settings.limits(), settings.retry_seconds, *bytes_max, kept=settings.kept_limits())

    def forget(self) -> None:
        """Discard all cached state: after a server lost its last writes, cached ids may belong to other pages."""
        far = RemotePages(len(self.crawl))
        self.stores = [
            ShardWriter(
                shard,
                self.limits,
                self._retry_seconds,
                far,
                self._journal_bytes,
                waits_max=self._waits_max,
                kept=self._kept,
            )
            for shard in self.crawl.shards
        ]
        self._deliveries = Deliveries(self.crawl, self.stores)
        self._compared: dict[str, list[bytes | None]] = {}  # The servers' run ids when `_compare` last checked.

    def _begin_era(self) -> bytes:
        """Return the crawl's era; discard the offsets known from another one: they would skip what a restore lacks.

        Note whether a migration drains the crawl.
        """
        first = self.crawl.shards[0].keys
        era, drained = self.crawl.ask([["HGET", first.meta, "era"], ["EXISTS", first.drain]])
        era, self._drained = era or b"", bool(drained)
        if self._era not in (None, era):
            self.forget()
        self._era = era
        return era

    def resume(self, partition: str) -> int:
        """Return the offset from which to read the partition: all records below it have durably taken effect."""
        if len(self.stores) == 1:
            return self.stores[0].next_offset(partition)
        runs = [store.shard.run_id for store in self.stores]
        if self._compared.get(partition) != runs:
            self._compare(partition)
            self._compared[partition] = runs
        return self.crawl.resume(partition)

    def _compare(self, partition: str) -> None:
        """Move a resume point back if a shard has fewer records than it assumes: the shard's server lost writes.

        The worker that read the partition before may have died, and its knowledge with it. So this check comes before
        any record of the partition is applied: a record after the lost ones would hide the loss.
        """
        home, shards, era = self.crawl.home(partition), range(len(self.stores)), self.crawl.era()
        with store_errors():
            rests_on = self.crawl.client.hmget(home.keys.resume, [f"{partition}@{shard}" for shard in shards])
        # Read after `rests_on`: offsets only grow, unless writes were lost.
        stored = self.crawl.ask([["HGET", shard.keys.offsets, partition] for shard in self.crawl.shards])
        behind = {}
        for shard, wanted, offset in zip(shards, rests_on, stored, strict=True):
            if int(offset or 0) < int(wanted or 0):
                log.warning(
                    "shard %d is at %s@%d, but the resume point assumes %s: its server lost its last records; "
                    "reading them again", shard, partition, int(offset or 0), wanted.decode(),
                )  # fmt: skip
                behind[shard] = self.stores[shard].next_offset(partition)  # The shard writer remembers it.
            else:
                self.stores[shard].expect(partition, int(wanted or 0))
        if behind:
            self._move_resume(partition, min(self.crawl.resume(partition), *behind.values()), behind, era)

    def apply(
        self,
        partition: str,
        records: Sequence[Record],
        on_step: Callable[[Step], object] = lambda _: None,
        since: int = 0,
    ) -> None:
        """Apply records of one partition, each once; then move its resume point past them.

        Args:
            partition: name with its source, such as "crawl.events/3".
            records: records in order of their offsets, which may have gaps.
            on_step: called for each step.
            since: offset from which they were read: there are no records between it and the first.

        Raises:
            TailLost: the store lacks records before `since`.
            StoreUnavailable: the store was unavailable in between. Read on from `resume`.
        """
        if len(self.stores) == 1:
            self.stores[0].apply(partition, records, on_step, since)
            self.stores[0].shard.barrier()
            return
        for portion in self._portions(records):
            for defines, same in groupby(portion, lambda record: record.kind == "classes"):
                some = list(same)
                end = some[-1].offset + 1
                self._apply_routed([Taken(partition, some, since, end)], on_step, defines=defines)
                since = end

    def apply_together(self, takings: Sequence[Taken], on_step: Callable[[Step], object] = lambda _: None) -> None:
        """As `apply` of each. On many shards each shard takes the records of all partitions at once, in large batches.

        Not at the beginning of a crawl, nor where classes are defined: then one partition is applied after the other.
        The resume points then move to the ends, past offsets without records.

        Raises:
            TailLost: as `apply`.
            StoreUnavailable: as `apply`.
        """
        some = [taken for taken in takings if taken.records]
        young = sum(taken.rough_events for taken in some) > sum(store.replica.books.reads for store in self.stores)
        defines = any(record.kind == "classes" for taken in some for record in taken.records)
        if len(self.stores) == 1 or len(some) <= 1 or young or defines:
            for taken in some:
                self.apply(taken.partition, taken.records, on_step, taken.since)
        else:
            self._apply_routed(some, on_step, defines=False)
        for taken in takings:
            if taken.gap < taken.end:
                self._move_resume(taken.partition, taken.end, {}, self._begin_era(), taken.gap)
                if len(self.stores) == 1:
                    self.stores[0].next_offset(taken.partition)  # It remembers it.
                    self.stores[0].shard.barrier()

    def _portions(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Yield records in portions with no more events than the crawl so far, and deliver between two of them.

        At the beginning of a crawl, shards would else read their pages before they know those that others link to.
        Later a portion is as much as is decoded at once.
        """
        size, start = max(sum(store.replica.books.reads for store in self.stores), 1), 0
        while start < len(records):
            stop, events = start, 0
            most = min(size, EVENTS_A_SHARD * len(self.stores))
            while stop < len(records) and (stop == start or events + records[stop].rough_events() <= most):
                events += records[stop].rough_events()
                stop += 1
            yield records[start:stop]
            start, size = stop, 2 * size
            if start < len(records):
                with suppress(DeliveryPaused):  # By a backup. They are delivered later.
                    self.deliver()

    def _apply_routed(self, takings: Sequence[Taken], on_step: Callable[[Step], object], *, defines: bool) -> None:
        """Apply records to many shards: either definitions of classes, which shard 0 decides, or none of them."""
        era = self._begin_era()  # Read first: what takes effect in another one must not move the resume point.
        if self._drained:
            if begun := self._begun(takings):
                self._route(begun, on_step, era, defines=defines)
            raise CrawlStopped("the crawl is to be moved to another one: no more records take effect until then")
        self._route(takings, on_step, era, defines=defines)

    def _begun(self, takings: Sequence[Taken]) -> list[Taken]:
        """Return what some shard has of records, which the others may lack."""
        begun = []
        for taken in takings:
            offsets = self.crawl.ask([["HGET", shard.keys.offsets, taken.partition] for shard in self.crawl.shards])
            end = max(int(offset or 0) for offset in offsets)
            if records := [record for record in taken.records if record.offset < end]:
                begun.append(Taken(taken.partition, records, taken.since, records[-1].offset + 1))
        return begun

    def _route(self, takings: Sequence[Taken], on_step: Callable[[Step], object], era: bytes, *, defines: bool) -> None:
        parts: dict[int, list[Input]] = {}
        rests_on: dict[str, dict[int, int]] = {}  # By partition and shard: the next offset there.
        for taken in takings:
            partition = taken.partition
            if (resume_at := self.resume(partition)) < taken.since:
                raise TailLost(self.crawl.home(partition).number, partition, resume_at, taken.since)
            ends = rests_on[partition] = {}
            home = self.crawl.home(partition).number
            for record in taken.records:
                by_shard: dict[int, tuple[list[CheckedEvent], list[int]]] = {}
                for index, event in enumerate(decode_events(partition, record, self.limits)):
                    for shard, part in [(0, event)] if defines else routed(event, home, len(self.stores)):
                        events, indexes = by_shard.setdefault(shard, ([], []))
                        events.append(part)
                        indexes.append(index)
                for shard, (events, indexes) in by_shard.items():
                    parts.setdefault(shard, []).append(Input(partition, record, events, indexes))
                    ends[shard] = record.offset + 1
        try:
            for shard in sorted(parts):
                if defines:
                    self._define(parts[shard], on_step)
                else:
                    self._take(shard, parts[shard], on_step)
        except TailLost as lost:  # The other shards have the records after it and will skip them.
            if self.resume(lost.partition) > lost.offset:
                self._move_resume(lost.partition, lost.offset, {lost.shard: lost.offset}, era)
            raise
        for shard in sorted(parts):
            self.stores[shard].shard.barrier()
        for taken in takings:
            end = taken.records[-1].offset + 1
            self._move_resume(taken.partition, end, rests_on[taken.partition], era, taken.since)

    def _move_resume(
        self, partition: str, offset: int, rests_on: Mapping[int, int], era: bytes, since: int | None = None
    ) -> None:
        """Move a resume point forward, but only if it is at least `since`: records before that were not read again.

        Args:
            partition: the partition.
            offset: the new resume point.
            rests_on: by shard, the partition's next offset in that shard.
            era: the era of the crawl in which that was so; see `Crawl.era`.
            since: the minimum; None also allows moving the resume point back.
        """
        home, least = self.crawl.home(partition), -1 if since is None else since
        pairs = [number for pair in rests_on.items() for number in pair]
        key = home.keys.offsets if len(self.stores) == 1 else home.keys.resume  # Of one shard they are the same.
        with store_errors():
            call = of_call("resume", (key, home.keys.meta), partition, offset, least, era, *pairs)
            answer = self.crawl.client.execute_command(*call)
        if answer == b"ERA":
            raise BeingRestored(f"a backup is restored, or was, while records of {partition} took effect: reading on")
        if int(answer) < least:
            raise TailLost(home.number, partition, int(answer), least)

    def _take(self, shard: int, inputs: Sequence[Input], on_step: Callable[[Step], object]) -> None:
        while True:
            try:
                return self.stores[shard].apply_inputs(inputs, on_step)
            except OutboxFull:
                if not self.deliver():  # Any writer may deliver to any shard.
                    raise

    # Classes of pages.

    def _define(self, inputs: Sequence[Input], on_step: Callable[[Step], object]) -> None:
        """Decide definitions of classes for all shards, in shard 0, whose outboxes take them to the others.

        Each waits until all shards have the one before. So a page can't come into a place that is given to another
        class, and the definitions reach each shard in the same order, between the same grants.
        """
        for item in inputs:
            while True:
                self._spread()
                self.stores[0].check_run()
                latest = self.stores[0].replica.classes
                placed = replace(item, events=[self._placed(event, latest) for event in item.decoded(self.limits)])
                try:
                    self._take(0, [placed], on_step)
                    break
                except OutOfOrder:  # Another worker defined classes first.
                    if self.stores[0].replica.classes.version == latest.version:
                        raise

    def _spread(self) -> None:
        """Deliver until every shard has taken all that shard 0 has sent by now."""
        sent, source = self._deliveries.sent()[0], source_of(0)
        while any(self.stores[to].offsets([source], anew=True)[source] < count for to, count in sent.items()):
            try:
                self.deliver()
            except DeliveryPaused:
                time.sleep(PAUSED_SECONDS)

    def _placed(self, event: CheckedEvent, latest: WeightClasses) -> CheckedEvent:
        """Return a definition with the places of its classes, or the dead letter that it becomes."""
        if event.outcome is not Outcome.CLASSES:
            return event
        parts, rules = self.crawl.books(), self.crawl.rules
        try:
            if rules.continuous:
                raise BadInput(NO_WEIGHTS)
            placed = latest.placed_for_all(event.classes, Books.merged(parts, rules).known_by)
            if not room_for(parts, placed.extra(), rules):
                raise BadInput(NO_ROOM)
        except BadInput as error:
            return CheckedEvent(Outcome.DEAD, reason=str(error))
        return replace(event, placed=placed)

    def _sweep(self, shard: int) -> int:
        """Classify the next pages of a shard again, whose classes have changed; return how many records that took."""
        store = self.stores[shard]
        classes = store.replica.classes
        records = next_records(classes, store.offsets([SWEEP])[SWEEP], store.replica.books.time_us)
        store.apply_inputs([Input(SWEEP, record) for record in records])
        return len(records)

    def responsible(self, partition: int, partitions: int) -> list[int]:
        """Return the shards that the reader of a partition delivers to. Each shard belongs to exactly one partition."""
        return [shard for shard in range(len(self.crawl)) if shard % partitions == partition]

    def note_refusals(self, refused: Sequence[tuple[str, str]]) -> None:
        """Keep why events of leased pages were refused: URLs of pages, each with the reason."""
        notes = []
        for url, reason in refused:
            store = self.stores[shard_of(host_of(url), len(self.stores))]
            page = int(store.replica.index.find(store.fingerprints.hash_strings([url]))[0])
            if page >= 0:
                notes.append((store.shard.keys, page, reason))
        note_refusals(self.crawl.ask, notes)

    # Deliveries between shards.

    def deliver(self, shards: Collection[int] | None = None) -> int:
        """Apply the outbox entries that wait for the given shards, or for all; return how many were applied.

        The reader of a partition calls this for `responsible(partition)`, periodically and whenever it is idle, and
        once at the start for all shards. With shard 0, this also decides grants to all pages, and counts rounds. Pages
        that were known when classes changed are classified again. Grants and pages classified count: a result of 0
        means that there is nothing left to do.

        Raises:
            StoreUnavailable: the store was unavailable in between; nothing is lost.
            DeliveryPaused: a backup is holding deliveries for a moment.
            StoreError: a shard lost its last writes, so that what it sent and what others took are inconsistent.
        """
        if len(self.stores) == 1:
            return 0
        wanted = range(len(self.stores)) if shards is None else shards
        era = self._begin_era()
        for store in self.stores:  # Senders too: cached state is valid for one run of the server.
            store.check_run()
        delivered = self._deliveries.deliver(wanted, self._deliveries.sent(), era)
        delivered += sum(self._sweep(shard) for shard in wanted if self.stores[shard].replica.classes.version)
        if 0 not in wanted:
            return delivered
        # The books of the shards are not read at one instant. That shifts what is decided, but loses no grain.
        parts, rules = self.crawl.books(), self.crawl.rules
        whole = Books.merged(parts, rules)
        rounds = RoundCount(whole.rounds, whole.clock, whole.live)
        if not rules.continuous and whole.round_count.due(rounds):  # Else they follow from the clock.
            self._record(COUNTS, parts, msgspec.msgpack.encode(rounds), "count")
        grant = payout_due(parts, whole, rules)
        if grant:
            self._record(GRANTS, parts, str(grant).encode(), "grant")
        return delivered + bool(grant)

    def purge(self, seconds: float) -> None:
        """Remove the URLs of forgotten pages from what is stored; see `ShardWriter.purge`."""
        for store in self.stores:
            store.purge(seconds)

    def drain(self, on_round: Callable[[], object] = lambda: None) -> None:
        """Deliver until all outboxes are empty and no grant is due; other writers may deliver at the same time.

        Args:
            on_round: called after each round of deliveries.

        Raises:
            StoreUnavailable: as `deliver`.
            StoreError: as `deliver`.
        """
        while True:
            try:
                if not self.deliver() and not self.crawl.undelivered():
                    return
            except DeliveryPaused:
                time.sleep(PAUSED_SECONDS)
            on_round()

    def _record(self, partition: str, parts: Sequence[Books], value: bytes, kind: str) -> None:
        """Write what was decided for all shards as a record of shard 0. Of two workers that do so, one is refused."""
        number = self.stores[0].offsets([partition])[partition]
        self.stores[0].apply_inputs(
            [Input(partition, Record(number, max(books.time_us for books in parts), value, kind))]
        )
