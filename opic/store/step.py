"""The step: how a batch of records takes effect in the store. The other half is `opic.lua`.

A batch is decoded; its URLs become ids; the pages it reads are fetched; then its events are worked through one after
the other in memory, each seeing what those before it paid, exactly as `opic.ledger` has it; and what they change in
all goes to the store in one call, which either takes effect whole or is refused because something moved. Then the
batch is worked out again. So it does not matter who sends a batch, how often, or how it was cut.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from opic.cash import Books
from opic.classes import Classes
from opic.errors import FenceMoved, StoreUnavailable
from opic.events import Event, Limits, Record
from opic.ledger import Audit
from opic.series import Entry
from opic.store.batch import Batch
from opic.store.connection import Line
from opic.store.links import LinkCache
from opic.store.shard import Shard
from opic.urls import host_of, registered_domain

AUTHORITIES_MAX = 1_000_000  # Hosts, with port and user, whose domain is remembered.
REFUSALS_MAX = 1_000  # In a row. Another worker steps in between now and then, not a thousand times.


class Store:
    """One shard's writer. It holds nothing that the store does not: it may be killed between any two statements."""

    def __init__(self, shard: Shard, limits: Limits | None = None, retry_seconds: float = 60.0) -> None:
        """Write to an open shard.

        Args:
            shard: to write to.
            limits: of events; one over them becomes a dead letter.
            retry_seconds: the first wait of a page whose fetch failed, doubling up to a day; 0 is none.
        """
        self.shard, self.limits, self.retry_seconds = shard, limits or Limits(), retry_seconds
        self.rules = shard.rules
        self.books, self.classes = Books(), Classes()
        self.entry: Entry | None = None  # The last of the series.
        self._stale = True
        self._next: dict[str, int] = {}
        self.links = LinkCache()
        self._domains: dict[str, int] = {}
        self._domain_of: dict[str, int] = {}  # By authority, as it stands in canonical URLs.
        # By id, of all pages; they grow by doubling. Pending sums are zero between batches.
        self.state = np.zeros(0, np.uint8)
        self.domain = np.zeros(0, np.int32)
        self.pending = np.zeros(0, np.int64)
        self.pending_inflow = np.zeros(0, np.int64)

    def next_offset(self, partition: str) -> int:
        """Return the offset of the first record of the partition that has not taken effect."""
        return self.shard.next_offset(partition)

    def audit(self) -> Audit:
        """Recount the books from the columns."""
        return self.shard.audit()

    def apply(
        self, partition: str, records: Sequence[Record], on_step: Callable[[float], object] = lambda _: None
    ) -> None:
        """Let records take effect, each once; those that have already do nothing.

        Args:
            partition: of the log, with its source: offsets are counted for each apart.
            records: in order of their offsets.
            on_step: told the seconds that each step took, from the answer to the one before it to its own.

        Raises:
            StoreUnavailable: the store was away in between. What took effect is known to it: apply the same again.
        """
        events: list[Event | None] = [None] * len(records)  # Decoded as their turn comes.
        for _ in range(REFUSALS_MAX):
            try:
                self._stream(partition, records, events, on_step)
            except FenceMoved:
                continue
            return
        raise StoreUnavailable("the shard moved under every one of a thousand tries: too many workers on one shard")

    def _stream(
        self,
        partition: str,
        records: Sequence[Record],
        events: list[Event | None],
        on_step: Callable[[float], object],
    ) -> None:
        """Send the records in batches, working one out while the server applies the one before.

        All on one connection, each batch in turn: the ids of the batch after it are asked for; it is decided, from
        rows of the instant before the step under way and from what that step changes in them, which we know; that step
        is confirmed; the rows of the batch after it are asked for, just before its own step.

        Raises:
            FenceMoved: a step was refused. Those before it took effect, none after it will.
        """
        answered = time.perf_counter()
        if self._stale:
            self._reload()
        if partition not in self._next:
            self._next[partition] = self.next_offset(partition)
        begin = self._next[partition]
        start = next((i for i, record in enumerate(records) if record.offset >= begin), len(records))
        if start == len(records):
            return
        # Until the last step is confirmed, what these batches do to our copies is not true.
        self._stale = True
        line = Line(self.shard.client)
        try:
            sent: Batch | None = None
            batch = Batch(self, records, events, start)
            asked = batch.ids_commands()
            line.send(*asked)
            batch.resolve(line.answers(len(asked)))
            line.send(self.shard.rows_command(batch.wanted))
            rows = self.shard.rows_answer(line.answer())
            while True:
                following = Batch(self, records, events, batch.end) if batch.end < len(records) else None
                asked = following.ids_commands() if following is not None else []
                line.send(*asked)
                batch.decide(rows, sent)
                keys, blob = batch.payload()
                if following is not None and not asked:
                    following.resolve([])
                    line.send(self.shard.rows_command(following.wanted))
                if sent is not None:
                    begin = self._confirm(line, partition, sent)
                    on_step(time.perf_counter() - answered)
                    answered = time.perf_counter()
                if following is not None:
                    if asked:
                        following.resolve(line.answers(len(asked)))
                        line.send(self.shard.rows_command(following.wanted))
                    # Waited for, since the server holds an answer back until it has done all that came with it.
                    rows = self.shard.rows_answer(line.answer())
                line.send([
                    "FCALL", "opic_1_step", len(keys), *keys,
                    batch.before.version, partition, begin, batch.records[-1].offset + 1, self.retry_seconds, blob,
                ])  # fmt: skip
                if following is None:
                    break
                sent, batch = batch, following
            self._confirm(line, partition, batch)
            on_step(time.perf_counter() - answered)
            self._stale = False
        finally:
            line.close()

    def _confirm(self, line: Line, partition: str, sent: Batch) -> int:
        """Wait for the answer to a step; return the offset after it."""
        reply = line.answer()
        if reply[0] != b"OK":
            raise FenceMoved(f"another worker stepped in between: {reply}")
        self.books, self.entry = sent.books, sent.entry
        self._next[partition] = sent.records[-1].offset + 1
        return self._next[partition]

    def _reload(self) -> None:
        """Forget all that may have moved; ids, and with them links and domains, never do."""
        found = self.shard.columns()
        self.classes = self.shard.classes()  # Were they changed since, then so was the version.
        self.books = found.books
        # Read after the books: if it is newer than they are, the step is refused.
        self.entry = next(iter(self.shard.series(newest=1)), None)
        self._next.clear()
        self._grow(len(found.state))
        self.state[:] = 0
        self.state[: len(found.state)] = found.state
        self.pending[:] = 0
        self.pending_inflow[:] = 0
        self.shard.directory.reload()
        self._stale = False

    def _grow(self, ids: int) -> None:
        if ids <= len(self.state):
            return
        size = max(1024, 2 * ids)
        for name in ("state", "domain", "pending", "pending_inflow"):
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def learn(self, ids: Mapping[str, int]) -> None:
        """Make room for pages, and work out their domains; by canonical URL."""
        self._grow(max(ids.values()) + 1)
        if not self.rules.inflow:
            return
        numbers = []
        for url in ids:
            authority = url.split("/", 3)[2]
            number = self._domain_of.get(authority)
            if number is None:
                domain = registered_domain(host_of(url))
                number = self._domain_of[authority] = self._domains.setdefault(domain, len(self._domains))
            numbers.append(number)
        self.domain[list(ids.values())] = numbers
        if len(self._domain_of) > AUTHORITIES_MAX:
            self._domain_of.clear()
