"""One shard's writer: decides batches on its replica, appends their effects, confirms them.

While the server syncs one record, the next batch is decided. A record that the server refused, since another worker
appended in between, is taken back; the writer follows the journal and decides again. So it does not matter who sends a
batch, how often, or how it was cut.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import numpy as np
from numpy.typing import NDArray

from opic.errors import DeliveryPaused, FenceMoved, OutboxFull, OutOfOrder, StoreUnavailable, TailLost, UrlMissing
from opic.ingest.checkpointer import JOURNAL_BYTES, Checkpointer, Written
from opic.memory import lazy_zeros
from opic.model.cash import DAY_US
from opic.model.events import EventLimits
from opic.replica.batch import Batch, Input
from opic.replica.effect import Effect, Head
from opic.replica.fingerprints import Fingerprints
from opic.replica.follow import Follower
from opic.replica.remote_pages import FAR_MAX, RemotePages
from opic.replica.replica import Before, Replica
from opic.replica.urls import read_urls
from opic.store.connection import Line, store_errors
from opic.store.server import make_ready
from opic.store.shard import Shard

log = logging.getLogger("opic.store")

REFUSALS_MAX: Final = 1_000  # In a row. Another worker appends in between now and then, not a thousand times.
TURN_SECONDS: Final = 0.02  # A few records of another worker.
TURNS_MAX: Final = 4
FORGET_US: Final = 2 * DAY_US  # A record of a call counts as a repeat for a day; its time may run back by another.


@dataclass(frozen=True, slots=True)
class Step:
    """What an appended record took, and what it did."""

    seconds: float  # From the answer to the one before to its own.
    events: int
    links: int  # Looked up, with the pages' own URLs.
    cached: int  # Of these: known by the string as it came.
    round_trips: int


@dataclass(slots=True)
class _Sent:
    """A record that was sent and is not confirmed yet."""

    batch: Batch
    effect: Effect
    before: Before
    written: Written | None
    trim: list[Any] | None


class ShardWriter:
    """Writes to one shard. It holds nothing that the store does not: it may be killed between any two statements."""

    def __init__(
        self,
        shard: Shard,
        limits: EventLimits | None = None,
        retry_seconds: float = 60.0,
        far: RemotePages | None = None,
        journal_bytes: int = JOURNAL_BYTES,
    ) -> None:
        """Write to an open shard.

        Args:
            shard: to write to.
            limits: of events; one over them becomes a dead letter.
            retry_seconds: the first wait of a page whose fetch failed, doubling up to a day; 0 is none.
            far: pages of other shards, as writers of these know them that write in turn with this one.
            journal_bytes: what the journal of this shard may take of its server's memory.
        """
        self.shard, self.limits, self.retry_seconds = shard, limits or EventLimits(), retry_seconds
        self.rules, self.shards = shard.rules, shard.shards
        self.far = far if far is not None else RemotePages(self.shards)
        self.replica = Replica(shard.rules, shard.number)
        self.fingerprints = Fingerprints(shard.secret)
        self.follower = Follower(shard.client, shard.keys, self.replica)
        self.checkpointer = Checkpointer(shard.client, shard.keys, self.replica, journal_bytes)
        self._marks = np.zeros(0, np.bool_)
        self._secret, self._loads = shard.secret, self.replica.loads  # As `fingerprints` has it; at the last look.
        self._stale = True  # The replica may not stand at the head.
        self._next: dict[str, int] = {}
        self._known: dict[str, int] = {}  # The same, never forgotten: what records we are given may rest on.

    def urls_of(self, ids: Sequence[int]) -> Mapping[int, str]:
        """Return the URLs of known pages.

        Raises:
            StoreUnavailable: another run of the server lacks one; what we know is of the run before.
            UrlMissing: one is missing.
        """
        try:
            return read_urls(self.shard.client, self.shard.keys, self.replica, ids)
        except UrlMissing as error:
            if self.shard.run_now() != self.shard.run_id:
                raise StoreUnavailable(f"shard {self.shard.number} is served by another run of the store") from error
            raise

    def marks(self, pages: int) -> NDArray[np.bool_]:
        """Lend a flag for each of so many pages, all False; they are given back so."""
        if pages > len(self._marks):
            self._marks = lazy_zeros(2 * pages, np.bool_)
        return self._marks

    def next_offset(self, partition: str) -> int:
        """Return the offset of the first record of the partition that has not taken effect: read on from there."""
        self._known[partition] = found = self.shard.next_offset(partition)
        if self._next.get(partition) != found:  # Somebody else moved it.
            self._next.pop(partition, None)
        return found

    def expect(self, partition: str, offset: int) -> None:
        """Take nothing of a partition while the shard lacks records below an offset."""
        self._known[partition] = max(self._known.get(partition, 0), offset)
        if self._next.get(partition, offset) < offset:  # Somebody else moved it.
            del self._next[partition]

    def apply(
        self,
        partition: str,
        records: Sequence[Any],
        on_step: Callable[[Step], object] = lambda _: None,
        since: int = 0,
    ) -> None:
        """Let records of one partition take effect; `since`: nothing lies between it and the first. See `take`."""
        self.expect(partition, since)
        self.take([Input(partition, record) for record in records], on_step)

    def take(self, inputs: Sequence[Input], on_step: Callable[[Step], object] = lambda _: None) -> None:
        """Let records take effect, each once; those that have already do nothing.

        Args:
            inputs: in the order in which they take effect; those of one partition in order of their offsets, which are
                counted for each partition apart.
            on_step: told of each record that was appended.

        Raises:
            StoreUnavailable: the store was away in between. What took effect is known to it: apply the same again.
            DeliveryPaused: they came from other shards, and a backup holds those for a moment.
            TailLost: the store lost records that had taken effect. Read them again, from `next_offset` on.
        """
        failed_at: Head | None = None
        for refusals in range(REFUSALS_MAX):
            try:
                self._stream(inputs, on_step)
            except FenceMoved:
                # The one who came first goes on for a while, and what the others decide meanwhile is not wasted.
                time.sleep(random.uniform(0, TURN_SECONDS * min(1 + refusals, TURNS_MAX)))  # noqa: S311
                continue
            except OutOfOrder:  # Another worker took those before it; unless we have followed and nothing moved.
                if failed_at == self.replica.head:
                    raise
                failed_at = self.replica.head
                continue
            return
        raise StoreUnavailable("the shard moved under every one of a thousand tries: too many workers on one shard")

    def _stream(self, inputs: Sequence[Input], on_step: Callable[[Step], object]) -> None:
        """Append the records in batches, deciding one while the server syncs the one before.

        Raises:
            FenceMoved: one was refused. Those before it took effect, none after it will.
        """
        line = self._line()  # Before all that is read: were the server started anew in between, it would break.
        sent: _Sent | None = None
        began, messages = time.perf_counter(), line.sent
        try:
            if self._stale:
                self.follower.catch_up()
                self._renew()
                self._next.clear()
                self._stale = False
                self._trim(line)  # Where memory is full, nothing else helps, and behind a refused record it is refused.
            offsets = self._offsets_held({one.partition for one in inputs})
            inputs = [one for one in inputs if one.record.offset >= offsets[one.partition]]
            if len(self.far) > FAR_MAX:
                self.far.clear()
            at = 0
            while at < len(inputs) or sent is not None:
                batch = Batch(self, inputs, at) if at < len(inputs) else None
                if batch is not None and (names := batch.call_names()):
                    if sent is not None:  # What it did is asked for.
                        sent, began, messages = self._confirmed(line, sent, on_step, began, messages)
                    batch.decide(self._seen(line, names))
                elif batch is not None:
                    batch.decide({})
                if sent is not None:
                    sent, began, messages = self._confirmed(line, sent, on_step, began, messages)
                if batch is not None:
                    sent = self._append(line, batch)
                    at = batch.end
        except BaseException:
            self._stale = True
            self.far.drop()  # The others' too, who never see what is left there.
            raise
        finally:
            if sent is not None:
                self.replica.undo(sent.before)
                self._stale = True
            line.close()

    def _append(self, line: Line, batch: Batch) -> _Sent:
        """Send a batch's record, and behind it what is due of the checkpoint."""
        keys, effect = self.shard.keys, batch.effect
        expected = self.replica.head
        record = effect.pack()
        advances = [text for name, at in batch.offsets.items() for text in (name, str(self._next[name]), str(at))]
        before, after = self.replica.books.flat(), batch.books.flat()
        totals = [text for name, n in after.items() if before.get(name) != n for text in (name, str(n))]
        totals += [text for name in before.keys() - after.keys() for text in (name, "0")]
        outboxes: list[Any] = []
        names = []
        for to, (number, digest, entry) in batch.outboxes.items():
            names.append(keys.outbox(to))
            outboxes += (str(to), str(number), digest, entry)
        calls = [part for name, time_us in batch.calls.items() for part in (time_us, name)]
        forget = batch.books.time_us - FORGET_US
        blob = msgpack.packb(
            [advances, totals, batch.fetches, batch.letters, outboxes, calls, forget], use_bin_type=False
        )
        fixed = [keys.head, keys.journal, keys.books, keys.offsets, keys.dead, keys.leases, keys.waits, keys.fails]
        fixed += [keys.sent, keys.seen, *names]
        step = [
            "FCALL", "opic_4_step", len(fixed), *fixed, expected.lsn, expected.digest, effect.lsn, effect.digest,
            record, self.retry_seconds, blob,
        ]  # fmt: skip
        self.checkpointer.ours = True
        kept = self.replica.apply(effect, keep=True)
        self.checkpointer.ours = False
        assert kept is not None
        sent = _Sent(batch, effect, kept, None, None)
        try:
            if self.checkpointer.due():
                sent.trim = self.checkpointer.trim_command(effect.head)
                sent.written = self.checkpointer.write(effect.head)
            more = [sent.trim] if sent.trim else []
            line.send(step, *more, *(sent.written.commands if sent.written else ()))
        except BaseException:
            self.replica.undo(kept)
            raise
        return sent

    def _confirmed(
        self, line: Line, sent: _Sent, on_step: Callable[[Step], object], began: float, messages: int
    ) -> tuple[None, float, int]:
        """Wait for the answers to what was sent, and tell of it."""
        self._confirm(line, sent)
        now, batch = time.perf_counter(), sent.batch
        on_step(Step(now - began, len(batch.events), batch.named.looked_up, batch.named.found, line.sent - messages))
        return None, now, line.sent

    def _confirm(self, line: Line, sent: _Sent) -> None:
        reply = line.answer()
        if reply[0] == b"FULL":
            raise OutboxFull(
                f"shard {reply[1].decode()} has not taken what shard {self.shard.number} sent: too much waits in the "
                "outbox, so this shard waits for the worker that serves the other one"
            )
        if reply[0] == b"PAUSED":
            raise DeliveryPaused(
                f"shard {self.shard.number} takes nothing from other shards while a backup reads where each stands"
            )
        if reply[0] != b"OK":
            raise FenceMoved(f"another worker appended in between: {reply[0]!r}")
        self._next |= sent.batch.offsets
        self._known |= sent.batch.offsets
        if sent.trim is not None:
            self._take_trim(sent.trim, line)
        if sent.written is not None:
            self._take_written(sent.written, line)

    def _take_written(self, written: Written, line: Line) -> None:
        done, refusals = [], []
        for call, answer in zip(written.calls, line.answers(len(written.calls)), strict=True):
            if isinstance(answer, Exception) or answer[0] != b"OK":
                refusals.append(answer)
            else:
                done.append(call)
        self.checkpointer.confirm(written.head, done)
        if refusals:  # Their blocks are still dirty, and are written with the next ones.
            text = "shard %d: %d of %d calls that write blocks of the checkpoint were refused: %s"
            log.warning(text, self.shard.number, len(refusals), len(written.calls), refusals[0])

    def _seen(self, line: Line, names: Sequence[bytes]) -> Mapping[bytes, int]:
        """Return the times of records of calls with an Idempotency-Key that took effect before."""
        line.send(["ZMSCORE", self.shard.keys.seen, *names])
        times = zip(names, line.answer(), strict=True)
        return {name: int(float(time_us)) for name, time_us in times if time_us is not None}

    def checkpoint(self) -> None:
        """Write every block that changed, and trim the journal to its last record.

        Raises:
            StoreUnavailable: another worker appended in between, or the store is away.
        """
        line = self._line()
        try:
            self.follower.catch_up()
            self._next.clear()
            head = self.replica.head
            written = self.checkpointer.write(head, everything=True) if head.lsn else None
            for call in written.calls if written else ():
                line.send(call.command)
                if line.answer()[0] != b"OK":
                    raise StoreUnavailable(f"shard {self.shard.number} moved on while its checkpoint was written")
                self.checkpointer.confirm(head, [call])
            self._trim(line)
        finally:
            line.close()

    def _trim(self, line: Line) -> None:
        """Let go of what every block has, if that is worth a call: allowed even while the server's memory is full."""
        if (trim := self.checkpointer.trim_command(self.replica.head)) is not None:
            line.send(trim)
            self._take_trim(trim, line)

    def _take_trim(self, trim: list[Any], line: Line) -> None:
        (answer,) = line.answers(1)
        if not isinstance(answer, Exception) and answer[0] == b"OK":
            self.checkpointer.trimmed(trim[-1])
        else:  # A later one lets go of more.
            log.warning("shard %d: trimming the journal was refused: %s", self.shard.number, answer)

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
        """Take over what this run of the server has, and make it ready to be written to.

        One that lost its tail may have our head and lack blocks that were confirmed, with URLs that are nowhere else
        in memory any more. So all is loaded, which takes less than the server's own start did.
        """
        again = self.shard.run_id is not None
        if again:
            log.warning("shard %d is served by another run of the store; looking at it anew", self.shard.number)
            self._next.clear()
            self._stale = True
            make_ready(self.shard.client)
        self._renew(anyway=True)
        if again:
            self.follower.load()
        else:
            self.follower.catch_up()
        self.shard.run_id = run_id

    def _renew(self, *, anyway: bool = False) -> None:
        """Look again at what the shard was made with, if it may have been made anew: it was loaded, or is empty."""
        if not anyway and self._loads == self.replica.loads and self.replica.head.lsn:
            return
        self._loads = self.replica.loads
        self.shard.renew()
        if self._secret != self.shard.secret:  # Whoever renewed it.
            self.fingerprints, self._secret = Fingerprints(self.shard.secret), self.shard.secret

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
