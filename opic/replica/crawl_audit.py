"""Audit of a crawl: the audits of its shards, what their journals say of their totals, and what is under way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from opic.model.books import Books, BooksAudit
from opic.model.transfer import Transfer, source_of
from opic.replica.audit import audit_replica
from opic.replica.effect import NO_DIGEST, Effect, Head
from opic.replica.replica import Replica
from opic.store.connection import store_errors
from opic.store.shard import Shard

# Outbox entries that an audit recounts at most, about 10 ms. With more in flight, a store rarely stands still.
ENTRIES_RECOUNTED: Final = 1_000


class CrawlAudit:
    """An audit of all shards of a crawl."""

    def __init__(
        self,
        shards: Sequence[Shard],
        follow: Callable[[], list[Replica]],
        ask: Callable[[Sequence[Sequence[Any]]], list[Any]],
    ) -> None:
        self._shards, self._follow, self._ask = shards, follow, ask
        self._replicas = follow()

    def _heads(self) -> list[Head]:
        return [replica.head for replica in self._replicas]

    def run(self) -> tuple[BooksAudit, list[BooksAudit]]:
        """Recount the books of the whole crawl and of each shard; return both. Each shard is read at one LSN.

        For each pair of shards, entries that were sent but not taken must be in the outbox. If nothing changed during
        the audit and at most ENTRIES_RECOUNTED entries wait, the audit also checks that their grains add up to the
        grains in flight, and that the entries taken are those sent, by the digests that chain them.
        """
        before = self._heads()  # First: another thread may follow between two shards.
        parts = self._audits()
        if len(parts) == 1:
            return parts[0], parts
        wrong = [f"shard {n}: {text}" for n, part in enumerate(parts) for text in part.mismatches]
        for n, part in enumerate(parts):
            if part.minted != part.pages + part.virtual + part.in_flight:
                wrong.append(f"shard {n}: minted is not pages + virtual + in flight")
        minted, pages, virtual, in_flight = (
            sum(getattr(part, name) for part in parts) for name in ("minted", "pages", "virtual", "in_flight")
        )
        waiting, missing = self._outboxes()
        wrong += missing
        if not missing and sum(map(len, waiting.values())) <= ENTRIES_RECOUNTED:
            entries = self._entries(waiting)
            branches = self._branches(entries)
            self._follow()
            if self._heads() == before:
                packed = [entry[b"v"] for outbox in entries.values() for entry in outbox]
                grains = sum(int(Transfer.unpack(value).grains.sum()) for value in packed)
                if grains != in_flight:
                    wrong.append(f"{in_flight} grains are in flight, {grains} of them in outboxes")
                wrong += branches
        return BooksAudit(minted, pages, virtual, in_flight, tuple(wrong)), parts

    def _audits(self) -> list[BooksAudit]:
        parts = []
        for shard, replica in zip(self._shards, self._replicas, strict=True):
            with replica.reading():
                part = audit_replica(replica, shard.minted)
            parts.append(replace(part, mismatches=(*part.mismatches, *self._totals_wrong(shard))))
        return parts

    def _totals_wrong(self, shard: Shard) -> list[str]:
        """Compare a shard's stored totals with those of its last journal record; both are read in one transaction."""
        keys = shard.keys
        with store_errors(), shard.client.pipeline(transaction=True) as pipe:
            pipe.hgetall(keys.books)
            pipe.execute_command("XREVRANGE", keys.journal, "+", "-", "COUNT", 1)
            stored, entries = pipe.execute()
        shown = asdict(Books.unflat(stored))
        kept = Effect.unpack(entries[0][1][b"r"]).books if entries else Books.genesis(shard.rules, shard.number)
        return [f"{k} is shown as {shown[k]}, the journal has {n}" for k, n in asdict(kept).items() if shown[k] != n]

    def _outboxes(self) -> tuple[dict[tuple[int, int], range], list[str]]:
        """Return the entries that wait, by (sender, receiver), and a description of each inconsistency."""
        # This order of reads tolerates concurrent writes: an entry is sent before it is taken, and taken before it is
        # trimmed.
        (first, sent) = self._taken(), self._ask([["HGETALL", shard.keys.sent] for shard in self._shards])
        counts = {
            (sender, int(to)): int(count)
            for sender, by_receiver in enumerate(sent)
            for to, count in by_receiver.items()
        }
        if not counts:
            return {}, []
        kept = self._ask([["XLEN", self._shards[sender].keys.outbox(to)] for sender, to in counts])
        taken, waiting, wrong = self._taken(), {}, []
        for (pair, count), length in zip(counts.items(), kept, strict=True):
            (sender, to), source = pair, source_of(pair[0]).encode()
            if (known := int(first[to].get(source, 0))) > count:
                wrong.append(f"shard {to} took {known} entries of shard {sender}, which knows of {count}")
            now = int(taken[to].get(source, 0))
            if count - length > now:
                wrong.append(f"of {count} entries from shard {sender} to {to}, {count - length - now} are lost")
            if now < count:
                waiting[pair] = range(now, count)
        return waiting, wrong

    def _taken(self) -> list[dict[bytes, bytes]]:
        return self._ask([["HGETALL", shard.keys.offsets] for shard in self._shards])

    def _entries(self, waiting: Mapping[tuple[int, int], range]) -> dict[tuple[int, int], list[Mapping[bytes, bytes]]]:
        """Return the outbox entries in these ranges that still wait."""
        commands = [
            ["XRANGE", self._shards[sender].keys.outbox(to), f"1-{numbers.start}", f"1-{numbers.stop - 1}"]
            for (sender, to), numbers in waiting.items()
        ]
        answers = self._ask(commands) if commands else []
        return {pair: [entry for _, entry in stream] for pair, stream in zip(waiting, answers, strict=True)}

    def _branches(self, entries: Mapping[tuple[int, int], Sequence[Mapping[bytes, bytes]]]) -> list[str]:
        """Describe each pair of shards where the entries taken are not those sent, according to the digests."""
        wrong = []
        for sender, source in enumerate(self._replicas):
            for to, (_, last_digest) in source.sent.items():
                outbox = entries.get((sender, to))
                if (outbox[0][b"p"] if outbox else last_digest) != self._replicas[to].taken.get(sender, NO_DIGEST):
                    wrong.append(f"what shard {to} took from shard {sender} is not what shard {sender} sent")
        return wrong
