"""Deliveries between shards: outbox entries of each shard become records of the log of the receiving one.

An entry is taken once, in order, after all before it. It is trimmed at its sender once its effect is durable.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from opic.errors import StoreError
from opic.ingest.shard_writer import ShardWriter
from opic.model.events import CheckedEvent, Outcome, Record
from opic.model.transfer import Transfer, source_of
from opic.replica.crawl import Crawl
from opic.replica.inputs import Input
from opic.store.connection import store_errors
from opic.store.keys import of_call

ENTRIES_A_DELIVERY: Final = 4_000  # Limit of one pass, over all outboxes; an entry has a few kilobytes.


class Deliveries:
    """Delivers between the shards of a crawl, by the writers of all of them."""

    def __init__(self, crawl: Crawl, stores: Sequence[ShardWriter]) -> None:
        self._crawl, self._stores = crawl, stores
        self._swept: set[int] = set()  # Shards whose senders' outboxes are trimmed of all entries taken.

    def sent(self) -> list[dict[int, int]]:
        """Return how many entries each shard sent so far, by receiving shard."""
        answers = self._crawl.ask([["HGETALL", shard.keys.sent] for shard in self._crawl.shards])
        return [{int(to): int(count) for to, count in stored.items()} for stored in answers]

    def deliver(self, receivers: Collection[int], sent: Sequence[dict[int, int]], era: bytes) -> int:
        """Apply the entries that wait for some shards; return how many were applied.

        What is asked of all these shards and their senders takes one pipeline each: offsets, entries, trims.

        Args:
            receivers: the receiving shards.
            sent: what `sent` returned a moment ago.
            era: the crawl's.

        Raises:
            StoreUnavailable: the store was unavailable in between; nothing is lost.
            DeliveryPaused: a backup is holding deliveries for a moment.
            StoreError: a shard lost its last writes, so that what it sent and what others took are inconsistent.
        """
        # The first time, trim all senders: another writer, or this one, may have ended before it trimmed.
        trims = {
            to: {sender for sender, by_receiver in enumerate(sent) if to in by_receiver}
            for to in set(receivers) - self._swept
        }
        self._swept -= set(receivers)
        applied = 0
        for to, by_sender in self._waiting(receivers, sent).items():
            # If a sender lost an entry after it was taken, it would send other cash under its number.
            for sender in by_sender:
                self._crawl.shards[sender].barrier()
            inputs = list(chain.from_iterable(by_sender.values()))
            self._stores[to].apply_inputs(inputs)
            trims.setdefault(to, set()).update(by_sender)
            applied += len(inputs)
        self._trim(trims, era)
        self._swept |= set(receivers)
        return applied

    def _waiting(self, receivers: Collection[int], sent: Sequence[dict[int, int]]) -> dict[int, dict[int, list[Input]]]:
        """Return the entries that wait for some shards, as records in order: by receiver, then by sender."""
        firsts = dict[tuple[int, int], int]()  # By sender and receiver: the number of the first entry.
        news = dict[int, list[int]]()  # By receiver: the senders that may have sent more.
        for to in receivers:
            counts = {sender: by_receiver[to] for sender, by_receiver in enumerate(sent) if to in by_receiver}
            offsets = self._stores[to].offsets(map(source_of, counts))
            if behind := [sender for sender, count in counts.items() if count != offsets[source_of(sender)]]:
                news[to] = behind
        stored = self._crawl.ask([
            ["HMGET", self._crawl.shards[to].keys.offsets, *map(source_of, behind)] for to, behind in news.items()
        ])  # fmt: skip
        for (to, behind), offsets in zip(news.items(), stored, strict=True):
            known = self._stores[to].note_offsets(map(source_of, behind), offsets)
            for sender in behind:
                taken = known[source_of(sender)]
                if taken > sent[sender][to]:  # Another writer was faster, or a server lost its last writes.
                    self._check_order(sender, to, taken)
                elif taken < sent[sender][to]:
                    firsts[sender, to] = taken
        count = max(ENTRIES_A_DELIVERY // max(len(firsts), 1), 1)
        replies = self._crawl.ask([
            ["XRANGE", self._crawl.shards[sender].keys.outbox(to), f"1-{first}", "+", "COUNT", count]
            for (sender, to), first in firsts.items()
        ])  # fmt: skip
        waiting = dict[int, dict[int, list[Input]]]()
        for ((sender, to), first), entries in zip(firsts.items(), replies, strict=True):
            waiting.setdefault(to, {})[sender] = self._inputs(sender, to, first, sent[sender][to], entries)
        return waiting

    def _check_order(self, sender: int, to: int, taken: int, first: int = 0) -> None:
        """Raise StoreError if a shard has taken more than the sender sent, or if its next entry is gone."""
        with store_errors():
            now = int(self._crawl.client.hget(self._crawl.shards[sender].keys.sent, to) or 0)
        if not first <= taken <= now:
            raise StoreError(
                f"shard {to} has taken {taken} entries of shard {sender}, which sent {now}, has from {first} on: a "
                "shard lost the end of what it had written; restore all shards from one backup"
            )

    def _inputs(self, sender: int, to: int, offset: int, count: int, entries: Sequence[Any]) -> list[Input]:
        """Return outbox entries from `offset` on as records for the receiving shard; `count` were sent in total."""
        numbers = [int(name.partition(b"-")[2]) for name, _ in entries]
        if not numbers or numbers != list(range(offset, offset + len(numbers))):
            # Another writer took and trimmed the first entries in the meantime, or they are lost.
            now = self._stores[to].offsets([source_of(sender)], anew=True)[source_of(sender)]
            self._check_order(sender, to, now, numbers[0] if numbers else count)
            return []
        inputs = []
        for number, (_, fields) in zip(numbers, entries, strict=True):
            transfer = Transfer.unpack(fields[b"v"])
            record = Record(number, transfer.time_us, fields[b"v"], "transfer")
            event = CheckedEvent(Outcome.TRANSFER, transfer=transfer)
            inputs.append(Input(source_of(sender), record, (event,), previous=fields[b"p"]))
        return inputs

    def _trim(self, trims: Mapping[int, Collection[int]], era: bytes) -> None:
        """Trim outbox entries that have taken effect in an era; `trims` are the senders by receiving shard."""
        commands = list[list[Any]]()
        for to, senders in trims.items():
            taken = self._stores[to].offsets(map(source_of, senders))
            if senders:
                self._stores[to].shard.barrier()  # Until the effects are durable, the entries may be needed again.
            for sender in senders:
                keys = self._crawl.shards[sender].keys
                names = keys.outbox(to), keys.meta
                commands.append(of_call("trim_outbox", names, to, taken[source_of(sender)], era))
        self._crawl.ask(commands)
