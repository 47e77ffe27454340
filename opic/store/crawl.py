"""A crawl's store: its shards, which page belongs to which, and what is read of several at once.

Reads only; `opic.store.writer` writes. What many shards are asked goes out together, so that sixteen of them take as
long as one; it is of one instant for each shard, not over all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from opic.cash import Books, Flag
from opic.errors import StoreMismatch
from opic.ledger import Audit
from opic.store.columns import I64, Bytes, Int64s
from opic.store.connection import Client, store_errors
from opic.store.durability import Durability
from opic.store.ids import read_urls
from opic.store.shard import ROWS_READ_MAX, Rows, Shard, books_of, held
from opic.transfer import Transfer, source_of
from opic.urls import host_of, shard_of

ENTRIES_RECOUNTED = 1_000  # By an audit, some 10 ms; with more in flight than that a store hardly stands still.
Place = tuple[int, int]  # Where a page is: its shard, and its id there.


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of pages, in the order asked; and the books of each shard, of the instant of its rows."""

    books: list[Books]
    cash: Int64s  # What each page holds. A gone one has given its grants back, and may owe.
    spent: Int64s
    state: Bytes
    records: list[bytes]
    eras: list[bytes]  # As `Crawl.versions` says.


class Crawl:
    """The shards of one crawl, open, in order. A host's pages are all in one shard."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        """Use `open`, which checks that the store fits."""
        self.shards = tuple(shards)
        self.client, self.rules = shards[0].client, shards[0].rules

    def __len__(self) -> int:
        """Count the shards."""
        return len(self.shards)

    @classmethod
    def open(
        cls,
        client: Client,
        name: str = "default",
        given: Mapping[str, int | bool | str] | None = None,
        *,
        create: bool = True,
        shards: int = 1,
        durability: Durability | None = None,
    ) -> "Crawl":
        """Open all shards of a crawl, making them if they are not there.

        Args:
            client: of a server, or of a cluster.
            name: of the crawl.
            given: rules that the user asked for by name, as in SETTING_OF; others are taken from the store.
            create: make a crawl that is not there; else that is an error.
            shards: how many a crawl gets that is made now, where `given` says nothing.
            durability: what has to hold before an offset counts as durable; what the server does, if None.

        Raises:
            StoreMismatch: the store was made by another format version, with other rules, or lacks a shard.
            StoreError: the server can't keep the books, or there is no such crawl.
        """
        first = Shard.open(client, name, given, create=create, shards=shards)
        others = [Shard.beside(first, number) for number in range(1, first.shards)]
        for shard in (first, *others):
            shard.durability = durability or Durability()
        for other in others:
            if other.restored != first.restored:
                raise StoreMismatch(
                    f"shard {other.number} is of backup {other.restored or 'none'}, shard 0 of "
                    f"{first.restored or 'none'}: they don't fit together; restore one backup as a whole"
                )
        if others:
            with store_errors():
                client.hset(first.keys.meta, "whole", 1)  # From now on a shard that is missing was lost.
        return cls([first, *others])

    def shard_of(self, url: str) -> Shard:
        """Return the shard of a page, by its canonical URL."""
        return self.shards[shard_of(host_of(url), len(self))]

    def home(self, partition: str) -> Shard:
        """Return the shard that has a partition's resume point."""
        return self.shards[shard_of(partition, len(self))]

    def resume(self, partition: str) -> int:
        """Return the offset from which on a partition is to be read: all below it has taken effect."""
        if len(self) == 1:
            return self.shards[0].next_offset(partition)
        with store_errors():
            return int(self.client.hget(self.home(partition).keys.resume, partition) or 0)

    def ask(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Send commands together, each to the shard that its keys name; return the answers in order."""
        with store_errors():
            if len(commands) == 1:
                return [self.client.execute_command(*commands[0])]
            with self.client.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                answers: list[Any] = pipe.execute()
        return answers

    def books(self) -> list[Books]:
        """Return the books of each shard."""
        return [books_of(stored) for stored in self.ask([["HGETALL", shard.keys.books] for shard in self.shards])]

    def totals(self) -> Books:
        """Return the books of the whole crawl."""
        return Books.merged(self.books(), self.rules)

    def versions(self) -> list[tuple[bytes, int]]:
        """Return the era and the version of each shard: where they stand still, nothing moved.

        In another era a server was started anew or a backup restored, and what was read before may never have been.
        """
        found = self.ask([["HMGET", shard.keys.books, "era", "version"] for shard in self.shards])
        return [(era or b"", int(version or 0)) for era, version in found]

    def series(self) -> list[Int64s]:
        """Return the entries of each shard's series, oldest first: (m, 3), time, rounds and clock."""
        found = self.ask([["LRANGE", shard.keys.series, 0, -1] for shard in self.shards])
        return [np.frombuffer(b"".join(entries), I64).astype(np.int64).reshape(-1, 3) for entries in found]

    def waiting(self) -> int:
        """Return how many entries wait in all outboxes: sent by one shard, not taken yet by the other."""
        if len(self) == 1:
            return 0
        both = [["HGETALL", key] for shard in self.shards for key in (shard.keys.offsets, shard.keys.sent)]
        answers = self.ask(both)
        # What was taken first: what is sent meanwhile counts as waiting, and nothing is taken before it was sent.
        taken, sent = answers[::2], answers[1::2]
        return sum(
            max(int(count) - int(taken[int(to)].get(source_of(of).encode(), 0)), 0)
            for of, counts in enumerate(sent)
            for to, count in counts.items()
        )

    def ids_of(self, urls: Sequence[str]) -> list[Place | None]:
        """Return where the pages of canonical URLs are; None for one never seen. An id alone makes no page known."""
        found: list[Place | None] = [None] * len(urls)
        todo: dict[int, list[int]] = {}
        for at, url in enumerate(urls):
            todo.setdefault(self.shard_of(url).number, []).append(at)
        while todo:
            looks = [(n, *self.shards[n].directory.find_commands([urls[i] for i in at])) for n, at in todo.items()]
            answers = iter(self.ask([command for _, commands, _ in looks for command in commands]))
            for number, commands, buckets in looks:
                ids = self.shards[number].directory.found([next(answers) for _ in commands], buckets)
                if ids is None:  # Asked again.
                    continue
                for at, page_id in zip(todo.pop(number), ids, strict=True):
                    found[at] = None if page_id is None else (number, page_id)
        return found

    def rows(self, places: Sequence[Place], *, states: bool = True) -> Found:
        """Read pages by place, those of one shard atomically up to ROWS_READ_MAX of them.

        Args:
            places: distinct; any order.
            states: read state bytes too; without them `cash` means nothing.
        """
        numbers, ids = (np.array(column, np.int64) for column in zip(*places, strict=True)) if places else _NO_PLACES
        if len(self) == 1:
            rows = self.shards[0].rows(ids.tolist(), states=states)
            return Found([rows.books], _cash(rows), rows.spent, rows.state, rows.records, [rows.era])
        order = np.lexsort((ids, numbers))
        parts = list(_cut(numbers[order], ids[order]))
        commands = [self.shards[n].rows_command(some, states=states) for n, some in parts]
        others = sorted(set(range(len(self))) - {n for n, _ in parts})
        answers = self.ask([*commands, *(["HGETALL", self.shards[n].keys.books] for n in others)])
        stored = dict(zip(others, answers[len(parts) :], strict=True))
        books = {n: books_of(one) for n, one in stored.items()}
        eras = {n: one.get(b"era", b"") for n, one in stored.items()}
        found = []
        for (n, _), answer in zip(parts, answers, strict=False):
            found.append(rows := self.shards[n].rows_answer(answer))
            books[n], eras[n] = rows.books, rows.era
        back, records = np.argsort(order), [record for rows in found for record in rows.records]
        return Found(
            [books[n] for n in range(len(self))],
            np.concatenate([_NOTHING, *map(_cash, found)])[back],
            np.concatenate([_NOTHING, *(rows.spent for rows in found)])[back],
            np.concatenate([np.empty(0, np.uint8), *(rows.state for rows in found)])[back] if states else _NO_STATES,
            [records[i] for i in back.tolist()],
            [eras[n] for n in range(len(self))],
        )

    def inflow(self, places: Sequence[Place]) -> list[int]:
        """Return what came to pages from other registered domains, in grains, by place; up to ROWS_READ_MAX a shard."""
        ids: dict[int, list[int]] = {}
        for number, page_id in places:
            ids.setdefault(number, []).append(page_id)
        found: dict[Place, int] = {}
        for number, some in ids.items():
            rows = self.shards[number].rows(some, inflow=True, states=False)
            found |= zip(((number, i) for i in some), rows.inflow.tolist(), strict=True)
        return [found[place] for place in places]

    def urls_of(self, places: Iterable[Place]) -> dict[Place, str]:
        """Return URLs by place."""
        wanted: dict[int, list[int]] = {}
        for number, page_id in places:
            wanted.setdefault(number, []).append(page_id)
        found = read_urls(self.client, [(self.shards[number].keys, ids) for number, ids in wanted.items()])
        return {(n, i): url for n, urls in zip(wanted, found, strict=True) for i, url in urls.items()}

    def audit(self) -> tuple[Audit, list[Audit]]:
        """Recount the books of all shards: over all of them, and each. Each shard's are of one instant of its own.

        Of each pair, what one sent and the other has not taken must be in the outbox; and where nothing moved
        meanwhile and no more than ENTRIES_RECOUNTED entries wait, their grains must be what is in flight.
        """
        if len(self) == 1:
            whole = self.shards[0].audit()
            return whole, [whole]
        before = self.versions()
        parts = [shard.audit() for shard in self.shards]
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
            grains = self._grains(waiting)
            if self.versions() == before and grains != in_flight:
                wrong.append(f"{in_flight} grains are in flight, {grains} of them in outboxes")
        return Audit(minted, pages, virtual, in_flight, tuple(wrong)), parts

    def _outboxes(self) -> tuple[dict[tuple[int, int], range], list[str]]:
        """Return which entries wait from one shard to another, and what is wrong with that, in words."""
        # In this order, what moves meanwhile is not taken for wrong: nothing is taken before it was sent, nor trimmed
        # before it was taken.
        (first, sent) = self._taken(), self.ask([["HGETALL", shard.keys.sent] for shard in self.shards])
        counts = {(of, int(to)): int(count) for of, found in enumerate(sent) for to, count in found.items()}
        if not counts:
            return {}, []
        kept = self.ask([["XLEN", self.shards[of].keys.outbox(to)] for of, to in counts])
        taken, waiting, wrong = self._taken(), {}, []
        for (pair, count), length in zip(counts.items(), kept, strict=True):
            (of, to), source = pair, source_of(pair[0]).encode()
            if (known := int(first[to].get(source, 0))) > count:
                wrong.append(f"shard {to} took {known} entries of shard {of}, which knows of {count}")
            now = int(taken[to].get(source, 0))
            if count - length > now:
                wrong.append(f"of {count} entries from shard {of} to {to}, {count - length - now} are lost")
            if now < count:
                waiting[pair] = range(now, count)
        return waiting, wrong

    def _taken(self) -> list[dict[bytes, bytes]]:
        return self.ask([["HGETALL", shard.keys.offsets] for shard in self.shards])

    def _grains(self, waiting: Mapping[tuple[int, int], range]) -> int:
        """Return the grains in these entries of outboxes, of those that still wait."""
        commands = [
            ["XRANGE", self.shards[of].keys.outbox(to), f"1-{some.start}", f"1-{some.stop - 1}"]
            for (of, to), some in waiting.items()
        ]
        entries = [entry for found in (self.ask(commands) if commands else []) for _, entry in found]
        return sum(int(Transfer.unpack(packed).grains.sum()) for entry in entries for packed in entry.values())


_NOTHING = np.empty(0, np.int64)
_NO_PLACES = (_NOTHING, _NOTHING)
_NO_STATES = np.empty(0, np.uint8)


def _cut(numbers: Int64s, ids: Int64s) -> Iterator[tuple[int, Int64s]]:
    """Yield the ids of each shard, in sorted order, up to ROWS_READ_MAX at a time."""
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, end in pairwise(edges):
        for at in range(start, end, ROWS_READ_MAX):
            yield int(numbers[start]), ids[at : min(at + ROWS_READ_MAX, end)]


def _cash(rows: Rows) -> Int64s:
    if not len(rows.state):
        return rows.v
    return np.where(rows.state & Flag.GONE, rows.v, held(rows.books, rows.v, rows.state))
