"""The step: how a batch of records takes effect in the store. The other half is `opic.lua`.

A batch is decoded; its URLs become ids; the pages it reads are fetched; then its events are worked through one after
the other in memory, each seeing what those before it paid, exactly as `opic.ledger` has it; and what they change in
all goes to the store in one call, which either takes effect whole or is refused because something moved. Then the
batch is worked out again. So it does not matter who sends a batch, how often, or how it was cut.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opic.cash import Books
from opic.classes import Classes
from opic.errors import FenceMoved, OutboxFull, StoreUnavailable, TailLost
from opic.events import Event, Limits, Record, decode_record
from opic.ledger import Audit
from opic.series import Entry
from opic.store.batch import Batch
from opic.store.connection import Line, store_errors
from opic.store.far import FAR_MAX, Far
from opic.store.ids import paused
from opic.store.links import SETS, LinkCache
from opic.store.server import make_ready
from opic.store.shard import Shard

log = logging.getLogger("opic.store")

REFUSALS_MAX = 1_000  # In a row. Another worker steps in between now and then, not a thousand times.


@dataclass(slots=True)
class Input:
    """A record with its partition, and what it says once it was decoded: kept for the next try."""

    partition: str
    record: Record
    event: Event | None = None

    def decoded(self, limits: Limits) -> Event:
        """Return what it says."""
        if self.event is None:
            self.event = decode_record(self.partition, self.record, limits)
        return self.event


@dataclass(frozen=True, slots=True)
class Step:
    """What a step took, and what it did."""

    seconds: float  # From the answer to the one before to its own.
    events: int
    links: int  # Looked up, with the pages' own URLs.
    cached: int  # Of these.
    round_trips: int


class _Stretch:
    """Tells the steps of one stream apart: what each took of the time and of the line's messages."""

    def __init__(self, line: Line) -> None:
        self._line, self._sent, self._began = line, line.sent, time.perf_counter()

    def step(self, batch: Batch) -> Step:
        began, sent = self._began, self._sent
        self._began, self._sent = time.perf_counter(), self._line.sent
        return Step(self._began - began, len(batch.events), batch.looked_up, batch.cached, self._sent - sent)


class Store:
    """One shard's writer. It holds nothing that the store does not: it may be killed between any two statements."""

    def __init__(
        self, shard: Shard, limits: Limits | None = None, retry_seconds: float = 60.0, far: Far | None = None
    ) -> None:
        """Write to an open shard.

        Args:
            shard: to write to.
            limits: of events; one over them becomes a dead letter.
            retry_seconds: the first wait of a page whose fetch failed, doubling up to a day; 0 is none.
            far: pages of other shards, as writers of these know them that step in turn with this one.
        """
        self.shard, self.limits, self.retry_seconds = shard, limits or Limits(), retry_seconds
        self.rules, self.shards = shard.rules, shard.shards
        self.books, self.classes = Books(), Classes()
        self.entry: Entry | None = None  # The last of the series.
        self._stale = True
        self._era = b""
        self._next: dict[str, int] = {}
        self._known: dict[str, int] = {}  # The same, never forgotten: what records we are given may rest on.
        # A power of two: with 3 shards a third of SETS would be a mask of few bits, and a cache of 512 sets.
        self._sets = 1 << (SETS // self.shards).bit_length() - 1
        self.links = LinkCache(self._sets)
        self.far = far if far is not None else Far(self.shards)
        # By id, of all pages; they grow by doubling. Pending sums are zero between batches.
        self.state = np.zeros(0, np.uint8)
        self.domain = np.zeros(0, np.int32)
        self.pending = np.zeros(0, np.int64)
        self.pending_inflow = np.zeros(0, np.int64)

    def next_offset(self, partition: str) -> int:
        """Return the offset of the first record of the partition that has not taken effect: read on from there."""
        self._known[partition] = found = self.shard.next_offset(partition)
        if self._next.get(partition) != found:  # Somebody else moved it.
            self._next.pop(partition, None)
        return found

    def audit(self) -> Audit:
        """Recount the books from the columns."""
        return self.shard.audit()

    def apply(
        self,
        partition: str,
        records: Sequence[Record],
        on_step: Callable[[Step], object] = lambda _: None,
        since: int = 0,
    ) -> None:
        """Let records of one partition take effect; `since`: nothing lies between it and the first. See `take`."""
        self._known[partition] = max(self._known.get(partition, 0), since)
        self.take([Input(partition, record) for record in records], on_step)

    def take(self, inputs: Sequence[Input], on_step: Callable[[Step], object] = lambda _: None) -> None:
        """Let records take effect, each once; those that have already do nothing.

        Args:
            inputs: in the order in which they take effect; those of one partition in order of their offsets, which are
                counted for each partition apart.
            on_step: told of each step.

        Raises:
            StoreUnavailable: the store was away in between. What took effect is known to it: apply the same again.
            TailLost: the store lost records that had taken effect. Read them again, from `next_offset` on.
        """
        for _ in range(REFUSALS_MAX):
            try:
                self._stream(inputs, on_step)
            except FenceMoved:
                continue
            return
        raise StoreUnavailable("the shard moved under every one of a thousand tries: too many workers on one shard")

    def _stream(self, inputs: Sequence[Input], on_step: Callable[[Step], object]) -> None:
        """Send the records in batches, working one out while the server applies the one before.

        All on one connection, each batch in turn: the ids of the batch after it are asked for; it is decided, from
        rows of the instant before the step under way and from what that step changes in them, which we know; that step
        is confirmed; the rows of the batch after it are asked for, just before its own step.

        Raises:
            FenceMoved: a step was refused. Those before it took effect, none after it will.
        """
        line = self._line()  # Before all that is read: were the server started anew in between, it would break.
        stretch = _Stretch(line)
        try:
            if self._stale:
                self._reload()
            offsets = self._offsets_held({one.partition for one in inputs})
            inputs = [one for one in inputs if one.record.offset >= offsets[one.partition]]
            if not inputs:
                return
            if len(self.far) > FAR_MAX:
                self.far.clear()
            # Until the last step is confirmed, what these batches do to our copies is not true.
            self._stale = True
            sent: Batch | None = None
            batch = Batch(self, inputs, 0, self._next)
            asked = batch.ids_commands()
            line.send(*asked)
            batch.resolve(line.answers(len(asked)))
            line.send(*(wants := batch.wants()))
            replies = [line.answer() for _ in wants]
            while True:
                following = None
                if batch.end < len(inputs):
                    following = Batch(self, inputs, batch.end, self._next | batch.offsets)
                asked = following.ids_commands() if following is not None else []
                line.send(*asked)
                batch.decide(replies, sent)
                keys, blob = batch.payload()
                if following is not None and not asked:
                    following.resolve([])
                    line.send(*(wants := following.wants()))
                if sent is not None:
                    self._confirm(line, sent)
                    on_step(stretch.step(sent))
                if following is not None:
                    if asked:
                        following.resolve(line.answers(len(asked)))
                        line.send(*(wants := following.wants()))
                    # Waited for, since the server holds an answer back until it has done all that came with it.
                    replies = [line.answer() for _ in wants]
                line.send([
                    "FCALL", "opic_1_step", len(keys), *keys, batch.before.version, self.retry_seconds, blob
                ])  # fmt: skip
                if following is None:
                    break
                sent, batch = batch, following
            self._confirm(line, batch)
            on_step(stretch.step(batch))
            self._stale = False
        finally:
            line.close()
            if self._stale:
                self.far.drop()  # The others' too, who never see what we leave there.

    def look(self) -> None:
        """Notice whether the server was started anew since the last look: what we know of it counts for its run."""
        self._line().close()

    def _line(self) -> Line:
        """Take a connection to send ahead on; what we know counts for the run of the server at its end."""
        line = self.shard.line()
        if line.run_id != self.shard.run_id:
            try:
                self._begin_run(line.run_id)
            except BaseException:
                line.close()
                raise
        return line

    def _begin_run(self, run_id: bytes) -> None:
        """Forget what a run of the server told us that this one may not know, and make it ready to be written to."""
        if self.shard.run_id is not None:
            log.warning("shard %d is served by another run of the store; looking at it anew", self.shard.number)
            self._next.clear()
            self._stale = True
            make_ready(self.shard.client)
        self.shard.renew()
        self.shard.begin_era(run_id)
        self.shard.run_id = run_id

    def offsets(self, partitions: Iterable[str], *, anew: bool = False) -> dict[str, int]:
        """Return the next offsets of partitions, as far as we know; `anew`: as others may have moved them."""
        names = list(dict.fromkeys(partitions))
        unknown = names if anew else [name for name in names if name not in self._next]
        if unknown:
            with store_errors():
                found = self.shard.client.hmget(self.shard.keys.offsets, unknown)
            self._next |= {name: int(offset or 0) for name, offset in zip(unknown, found, strict=True)}
        return {name: self._next[name] for name in names}

    def _offsets_held(self, partitions: Iterable[str]) -> dict[str, int]:
        """Return the next offsets of partitions, none of them lower than it once was."""
        offsets = self.offsets(partitions)
        for name, offset in offsets.items():
            known = self._known.get(name, 0)
            self._known[name] = offset
            if offset < known:
                raise TailLost(self.shard.number, name, offset, known)
        return offsets

    def _confirm(self, line: Line, sent: Batch) -> None:
        """Wait for the answer to a step."""
        reply = line.answer()
        if reply[0] == b"FULL":
            raise OutboxFull(
                f"shard {reply[1].decode()} has not taken what shard {self.shard.number} sent: too much waits in the "
                "outbox, so this shard waits for the worker that serves the other one"
            )
        if reply[0] == b"PAUSED":
            raise paused()
        if reply[0] != b"OK":
            raise FenceMoved(f"another worker stepped in between: {reply}")
        self.books, self.entry = sent.books, sent.entry
        self._next |= sent.offsets
        self._known |= sent.offsets

    def _reload(self) -> None:
        """Forget all that may have moved; ids, and with them links and domains, never do."""
        era, self.books, state = self.shard.states()
        if era != self._era:  # Ids may be other pages', be it that a backup was restored under us.
            self.links, self._era = LinkCache(self._sets), era
            self.shard.directory.forget()
        self.classes = self.shard.classes()  # Were they changed since, then so was the version.
        # Read after the books: if it is newer than they are, the step is refused.
        self.entry = next(iter(self.shard.series(newest=1)), None)
        self._next.clear()
        self._grow(len(state))
        self.state[:] = 0
        self.state[: len(state)] = state
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
        self.domain[list(ids.values())] = [self.far.domains.number(url) for url in ids]
