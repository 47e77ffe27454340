"""Deliveries between shards: outbox entries of each shard become records of the log of the receiving one.

An entry is taken once, in order, after all before it. It is trimmed at its sender once its effect is durable.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from opic.errors import StoreError
from opic.ingest.shard_writer import ShardWriter
from opic.model.events import CheckedEvent, Outcome, Record
from opic.model.transfer import Transfer, source_of
from opic.replica.crawl import Crawl
from opic.replica.inputs import Input
from opic.store.connection import store_errors

ENTRIES_A_DELIVERY: Final = 100  # Per outbox; a few kilobytes each.


class Deliveries:
    """Delivers between the shards of a crawl, by the writers of all of them."""

    def __init__(self, crawl: Crawl, stores: Sequence[ShardWriter]) -> None:
        """Deliver nothing yet."""
        self._crawl, self._stores = crawl, stores
        self._swept: set[int] = set()  # Shards whose senders' outboxes were trimmed of all entries taken.

    def sent(self) -> list[dict[int, int]]:
        """Return how many entries each shard sent so far, by receiving shard."""
        answers = self._crawl.ask([["HGETALL", shard.keys.sent] for shard in self._crawl.shards])
        return [{int(to): int(count) for to, count in found.items()} for found in answers]

    def deliver(self, to: int, sent: Sequence[dict[int, int]], era: bytes) -> int:
        """Apply the entries that wait for a shard; return how many were applied.

        Args:
            to: the receiving shard.
            sent: what `sent` returned a moment ago.
            era: the crawl's.

        Raises:
            StoreUnavailable: the store was unavailable in between; nothing is lost.
            DeliveryPaused: a backup is holding deliveries for a moment.
            StoreError: a shard lost its last writes, so that what it sent and what others took are inconsistent.
        """
        store, crawl = self._stores[to], self._crawl
        counts = {at: found[to] for at, found in enumerate(sent) if to in found}
        taken = store.offsets(map(source_of, counts))
        if news := [at for at, count in counts.items() if count != taken[source_of(at)]]:
            taken |= store.offsets(map(source_of, news), anew=True)
        for at in news:
            if taken[source_of(at)] > counts[at]:  # Another writer was faster, or a server lost its last writes.
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
                # If the shard lost an entry after it was taken, it would send other cash under its number.
                crawl.shards[at].barrier()
            store.take(inputs)
        # The first time, trim all senders: another writer may have been killed before it trimmed.
        self._trim(to, waiting if to in self._swept else counts, era)
        self._swept.add(to)
        return len(inputs)

    def _check_order(self, at: int, to: int, taken: int, first: int = 0) -> None:
        """Raise StoreError if a shard has taken more than the sender sent, or if its next entry is gone."""
        with store_errors():
            now = int(self._crawl.client.hget(self._crawl.shards[at].keys.sent, to) or 0)
        if not first <= taken <= now:
            raise StoreError(
                f"shard {to} has taken {taken} entries of shard {at}, which sent {now}, has from {first} on: a "
                "shard lost the end of what it had written; restore all shards from one backup"
            )

    def _inputs(self, at: int, to: int, offset: int, count: int, entries: Sequence[Any]) -> list[Input]:
        """Return outbox entries from `offset` on as records for the receiving shard; `count` were sent in total."""
        numbers = [int(name.partition(b"-")[2]) for name, _ in entries]
        if not numbers or numbers != list(range(offset, offset + len(numbers))):
            # Another writer took and trimmed the first entries meanwhile, or they are lost.
            now = self._stores[to].offsets([source_of(at)], anew=True)[source_of(at)]
            self._check_order(at, to, now, numbers[0] if numbers else count)
            return []
        inputs = []
        for number, (_, fields) in zip(numbers, entries, strict=True):
            transfer = Transfer.unpack(fields[b"v"])
            record = Record(number, transfer.time_us, fields[b"v"], "transfer")
            event = CheckedEvent(Outcome.TRANSFER, transfer=transfer)
            inputs.append(Input(source_of(at), record, (event,), previous=fields[b"p"]))
        return inputs

    def _trim(self, to: int, sources: Iterable[int], era: bytes) -> None:
        """Trim outbox entries that have taken effect in an era."""
        names = {at: source_of(at) for at in sources}
        taken = self._stores[to].offsets(names.values())
        if not names:
            return
        self._stores[to].shard.barrier()  # Until the effects are durable, the entries may be needed again.
        keys = {at: self._crawl.shards[at].keys for at in names}
        self._crawl.ask([
            ["FCALL", "opic_5_trim_outbox", 2, keys[at].outbox(to), keys[at].meta, taken[name], era]
            for at, name in names.items()
        ])  # fmt: skip
