"""The writer: lets a partition's records take effect in all shards of a crawl, and carries cash between them.

Each shard has a `ShardWriter`, which is all there is with one shard. With more, this sends each record to the shard of
its page, brings what shards sent to others there, and decides grants. It keeps no state that the store does not have.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from opic.errors import DeliveryPaused, OutboxFull, StoreError, TailLost
from opic.ingest.checkpointer import JOURNAL_BYTES
from opic.ingest.shard_writer import ShardWriter, Step
from opic.model.cash import payout_due
from opic.model.events import CheckedEvent, EventLimits, Outcome, Record, decode_record
from opic.model.transfer import GRANTS, Transfer, source_of
from opic.replica.batch import Input
from opic.replica.crawl import Crawl
from opic.replica.remote_pages import RemotePages
from opic.store.connection import store_errors
from opic.urls.canonical import host_of, shard_of

log = logging.getLogger("opic.ingest")

PAUSED_SECONDS: Final = 0.02  # Between two tries to deliver while a backup holds deliveries.
ENTRIES_A_DELIVERY: Final = 100  # Of one outbox; some kilobytes each.
NO_CLASSES = "classes of pages want a crawl of one shard: make one with OPIC_SHARDS=1 and replay the log into it"


def _ignore(_: Step) -> None:
    pass


class Writer:
    """Writes to every shard. It holds nothing that the store does not: it may be killed between any two statements."""

    def __init__(
        self,
        crawl: Crawl,
        limits: EventLimits | None = None,
        retry_seconds: float = 60.0,
        journal_bytes: int = JOURNAL_BYTES,
    ) -> None:
        """Write to an open crawl; see `ShardWriter`. `journal_bytes` is for the journals of all shards together."""
        self.crawl, self.limits = crawl, limits or EventLimits()
        self._journal_bytes = journal_bytes // len(crawl)
        self._retry_seconds = retry_seconds
        self.entries_taken = self.deposits_taken = 0  # From outboxes, by this writer.
        self.forget()

    def forget(self) -> None:
        """Drop all that was read of the store: one that lost its end has given ids that are other pages' by now."""
        far = RemotePages(len(self.crawl))
        self.stores = [
            ShardWriter(shard, self.limits, self._retry_seconds, far, self._journal_bytes)
            for shard in self.crawl.shards
        ]
        self._swept: set[int] = set()  # Shards whose sources were trimmed of all that was taken.
        self._compared: dict[str, list[bytes | None]] = {}  # In which runs of the servers `_compare` looked.

    def resume(self, partition: str) -> int:
        """Return the offset from which on the partition is to be read: all below it has taken effect, durably."""
        if len(self.stores) == 1:
            return self.stores[0].next_offset(partition)
        runs = [store.shard.run_id for store in self.stores]
        if self._compared.get(partition) != runs:
            self._compare(partition)
            self._compared[partition] = runs
        return self.crawl.resume(partition)

    def _compare(self, partition: str) -> None:
        """Turn a resume point back where a shard has less than what it rests on: that shard's server lost its tail.

        Whoever served the partition before may be gone with what it knew. So this is done before anything of the
        partition is taken: a record behind the lost ones would hide them.
        """
        home, shards = self.crawl.home(partition), range(len(self.stores))
        with store_errors():
            rests_on = self.crawl.client.hmget(home.keys.resume, [f"{partition}@{shard}" for shard in shards])
        # Read afterwards: unless one is lost, offsets only grow.
        found = self.crawl.ask([["HGET", shard.keys.offsets, partition] for shard in self.crawl.shards])
        behind = {}
        for shard, wanted, offset in zip(shards, rests_on, found, strict=True):
            if int(offset or 0) < int(wanted or 0):
                log.warning(
                    "shard %d goes on from %s@%d, and the resume point rests on %s: its server lost its last records; "
                    "reading them again", shard, partition, int(offset or 0), wanted.decode(),
                )  # fmt: skip
                behind[shard] = self.stores[shard].next_offset(partition)  # Which it knows from now on.
            else:
                self.stores[shard].expect(partition, int(wanted or 0))
        if behind:
            self._move_resume(partition, min(self.crawl.resume(partition), *behind.values()), behind)

    def apply(
        self,
        partition: str,
        records: Sequence[Record],
        on_step: Callable[[Step], object] = _ignore,
        since: int = 0,
    ) -> None:
        """Let records of one partition take effect, each once; then move its resume point past them.

        Args:
            partition: with its source, as in "crawl.events/3".
            records: in order of their offsets, which may have gaps.
            on_step: told of each step.
            since: from which offset on they were read: nothing lies between it and the first of them.

        Raises:
            TailLost: the store wants records before `since`.
            StoreUnavailable: the store was away in between. Read on from `resume`.
        """
        if len(self.stores) == 1:
            self.stores[0].apply(partition, records, on_step, since)
            self.stores[0].shard.barrier()
        elif records:
            if (found := self.resume(partition)) < since:
                raise TailLost(self.crawl.home(partition).number, partition, found, since)
            parts: dict[int, list[Input]] = {}
            for record in records:
                for shard, event in self._route(partition, decode_record(partition, record, self.limits)):
                    parts.setdefault(shard, []).append(Input(partition, record, event))
            try:
                for shard in sorted(parts):
                    self._take(shard, parts[shard], on_step)
            except TailLost as lost:  # The others have what comes after it, and will skip that.
                if self.resume(partition) > lost.offset:
                    self._move_resume(partition, lost.offset, {lost.shard: lost.offset})
                raise
            for shard in sorted(parts):
                self.stores[shard].shard.barrier()
            rests_on = {shard: inputs[-1].record.offset + 1 for shard, inputs in parts.items()}
            self._move_resume(partition, records[-1].offset + 1, rests_on, since)

    def _move_resume(self, partition: str, offset: int, rests_on: Mapping[int, int], since: int | None = None) -> None:
        """Move a resume point, onwards from `since` at least: behind that, records were not read yet.

        Args:
            partition: whose.
            offset: where to.
            rests_on: of shards, the partition's next offset there.
            since: None moves it back as well.
        """
        home, least = self.crawl.home(partition), -1 if since is None else since
        pairs = [number for pair in rests_on.items() for number in pair]
        with store_errors():
            found = self.crawl.client.fcall("opic_4_resume", 1, home.keys.resume, partition, offset, least, *pairs)
        if int(found) < least:
            raise TailLost(home.number, partition, int(found), least)

    def _take(self, shard: int, inputs: Sequence[Input], on_step: Callable[[Step], object]) -> None:
        while True:
            try:
                return self.stores[shard].take(inputs, on_step)
            except OutboxFull:
                if not self.deliver():  # Anybody may.
                    raise

    def _route(self, partition: str, event: CheckedEvent) -> Iterable[tuple[int, CheckedEvent]]:
        """Yield the shards that an event concerns, and what it says to each."""
        shards = len(self.stores)
        if event.url:
            yield shard_of(host_of(event.url), shards), event
        elif event.seeds:
            seeds: dict[int, list[str]] = {}
            for url in event.seeds:
                seeds.setdefault(shard_of(host_of(url), shards), []).append(url)
            for shard, urls in seeds.items():
                yield shard, replace(event, seeds=tuple(urls))
        elif event.concerns_classes:
            yield self.crawl.home(partition).number, CheckedEvent(Outcome.DEAD, reason=NO_CLASSES)
        else:
            yield self.crawl.home(partition).number, event

    def responsible(self, partition: int, partitions: int) -> list[int]:
        """Return the shards that the reader of a partition delivers to: each shard has one such partition."""
        return [shard for shard in range(len(self.crawl)) if shard % partitions == partition]

    # Between shards.

    def deliver(self, shards: Collection[int] | None = None) -> int:
        """Let what waits in outboxes take effect: for these shards, or for all; return how many entries did.

        Whoever reads a partition does this for `responsible(partition)`, now and then and whenever it has nothing else
        to do; and for all shards once, at the start. Grants to all pages are decided here too, for shard 0, and are
        counted as well: 0 means that there is nothing more to do.

        Raises:
            StoreUnavailable: the store was away in between; nothing is lost.
            DeliveryPaused: a backup holds deliveries for a moment.
            StoreError: a shard lost its tail, so that what it sent and what others took do not fit.
        """
        if len(self.stores) == 1:
            return 0
        wanted = range(len(self.stores)) if shards is None else shards
        for store in self.stores:  # At those that send as well: what we know of them counts for their run.
            store.look()
        sent = self._sent()
        delivered = sum(self._deliver_to(to, sent) for to in wanted)
        return delivered + (self._grant() if 0 in wanted else 0)

    def drain(self, on_round: Callable[[], object] = lambda: None) -> None:
        """Deliver until nothing waits in any outbox and no grant is due, whoever else delivers at the same time.

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

    def _sent(self) -> list[dict[int, int]]:
        """Return how many entries each shard sent so far, by their destination."""
        answers = self.crawl.ask([["HGETALL", shard.keys.sent] for shard in self.crawl.shards])
        return [{int(to): int(count) for to, count in found.items()} for found in answers]

    def _deliver_to(self, to: int, sent: Sequence[dict[int, int]]) -> int:
        store, crawl = self.stores[to], self.crawl
        counts = {at: found[to] for at, found in enumerate(sent) if to in found}
        taken = store.offsets(map(source_of, counts))
        if news := [at for at, count in counts.items() if count != taken[source_of(at)]]:
            taken |= store.offsets(map(source_of, news), anew=True)
        for at in news:
            if taken[source_of(at)] > counts[at]:  # Another writer was faster, or a tail was lost.
                self._check_order(at, to, taken[source_of(at)])
        waiting = [at for at in news if counts[at] > taken[source_of(at)]]
        inputs: list[Input] = []
        if waiting:
            firsts = {at: f"1-{taken[source_of(at)]}" for at in waiting}
            found = crawl.ask([
                ["XRANGE", crawl.shards[at].keys.outbox(to), first, "+", "COUNT", ENTRIES_A_DELIVERY]
                for at, first in firsts.items()
            ])  # fmt: skip
            for at, entries in zip(waiting, found, strict=True):
                inputs += self._inputs(at, to, taken[source_of(at)], counts[at], entries)
                crawl.shards[at].barrier()  # An entry that its shard may yet lose would come again with other cash.
            store.take(inputs)
        # Once also what a writer took that was killed before it could trim.
        self._trim(to, waiting if to in self._swept else counts)
        self._swept.add(to)
        self.entries_taken += len(inputs)
        self.deposits_taken += sum(len(one.event.transfer.urls) for one in inputs if one.event and one.event.transfer)
        return len(inputs)

    def _check_order(self, at: int, to: int, taken: int, first: int = 0) -> None:
        """Refuse to go on where a shard has taken more than another knows to have sent, or can't get the next entry."""
        with store_errors():
            now = int(self.crawl.client.hget(self.crawl.shards[at].keys.sent, to) or 0)
        if not first <= taken <= now:
            raise StoreError(
                f"shard {to} has taken {taken} entries of shard {at}, which sent {now}, has from {first} on: a "
                "shard lost the end of what it had written; restore all shards from one backup"
            )

    def _inputs(self, at: int, to: int, offset: int, count: int, entries: Sequence[Any]) -> list[Input]:
        """Return the entries of an outbox, from `offset` on, as records of the other shard's log; it sent `count`."""
        numbers = [int(name.partition(b"-")[2]) for name, _ in entries]
        if not numbers or numbers != list(range(offset, offset + len(numbers))):
            # Another writer took and trimmed the first ones meanwhile; or they are lost.
            now = self.stores[to].offsets([source_of(at)], anew=True)[source_of(at)]
            self._check_order(at, to, now, numbers[0] if numbers else count)
            return []
        inputs = []
        for number, (_, fields) in zip(numbers, entries, strict=True):
            transfer = Transfer.unpack(fields[b"v"])
            record = Record(number, transfer.time_us, fields[b"v"], "transfer")
            event = CheckedEvent(Outcome.TRANSFER, transfer=transfer)
            inputs.append(Input(source_of(at), record, event, previous=fields[b"p"]))
        return inputs

    def _trim(self, to: int, sources: Iterable[int]) -> None:
        """Let go of entries that have taken effect."""
        names = {at: source_of(at) for at in sources}
        taken = self.stores[to].offsets(names.values())
        if not names:
            return
        self.stores[to].shard.barrier()  # What it may yet lose, it has to get again.
        self.crawl.ask([
            ["XTRIM", self.crawl.shards[at].keys.outbox(to), "MINID", f"1-{taken[name]}"] for at, name in names.items()
        ])  # fmt: skip

    def _grant(self) -> int:
        """Let the virtual page pay what is due to all pages of all shards; return whether it was.

        The books are not of one instant; that moves the moment of a grant, not a grain.
        """
        parts = self.crawl.books()
        amount = payout_due(parts, self.crawl.rules)
        if not amount:
            return 0
        store, time_us = self.stores[0], max(books.time_us for books in parts)
        number = store.offsets([GRANTS])[GRANTS]
        store.take([Input(GRANTS, Record(number, time_us, str(amount).encode(), "grant"))])
        return 1
