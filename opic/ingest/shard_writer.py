"""The writer of one shard: decides batches on its replica, appends their effects and confirms them.

While the server syncs one record, the writer decides the next batch. If the server refuses a record because another
worker appended in between, the writer undoes it, follows the journal and decides again. The result therefore does not
depend on who sends a batch, how often, or how records are divided into batches.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.errors import (
    BeingRestored,
    DeliveryPaused,
    FenceMoved,
    OutboxFull,
    OutOfOrder,
    StoreUnavailable,
    TailLost,
    UrlMissing,
)
from opic.ingest.checkpointer import JOURNAL_BYTES, BlocksCall, Checkpointer
from opic.ingest.link_keeper import LinksCall
from opic.ingest.step import Step, StepCalls
from opic.memory import lazy_zeros
from opic.model.events import EventLimits, KeptLimits
from opic.replica.batch import Batch
from opic.replica.effect import Head
from opic.replica.fingerprints import Fingerprints
from opic.replica.follow import Follower, head_of
from opic.replica.host_limit import HostPageCounts
from opic.replica.inputs import Input
from opic.replica.remote_pages import FAR_MAX, RemotePages
from opic.replica.replica import Before, Replica
from opic.replica.shown_links import ShownLinks
from opic.replica.urls import read_urls
from opic.store.back_offs import WAITS_MAX
from opic.store.connection import Line, store_errors
from opic.store.shard import Shard, check_known

log = logging.getLogger("opic.store")

REFUSALS_MAX: Final = 1_000  # Consecutive refusals. Other workers append in between occasionally, not this often.
TURN_SECONDS: Final = 0.02  # Time for a few records of another worker.
TURNS_MAX: Final = 4


@dataclass(slots=True)
class _Sent:
    """A record that was sent but is not confirmed yet."""

    batch: Batch
    before: Before
    written: list[BlocksCall | LinksCall]
    trim: list[Any] | None


class ShardWriter:
    """Writes to one shard. All its state can be rebuilt from the store: it may be killed at any point."""

    def __init__(
        self,
        shard: Shard,
        limits: EventLimits | None = None,
        retry_seconds: float = 60.0,
        far: RemotePages | None = None,
        journal_bytes: int = JOURNAL_BYTES,
        *,
        waits_max: int = WAITS_MAX,
        kept: KeptLimits = KeptLimits(),  # noqa: B008 - frozen
    ) -> None:
        """Write to an open shard.

        Args:
            shard: the shard to write to.
            limits: limits of events; an event over them becomes a dead letter.
            retry_seconds: initial back-off of a page after a failed fetch, doubling up to a day; 0 disables it.
            far: table of remote pages, shared with the writers of other shards that take turns with this one.
            journal_bytes: budget of this shard's journal in the server's memory.
            waits_max: number of pages of this shard whose back-off and failures are remembered.
            kept: limits of what the crawl keeps of events, of which this shard has its part.
        """
        self.shard = shard
        self.limits = (limits or EventLimits()).under(shard.rules)
        self.rules, self.shards, self.keep_links = shard.rules, shard.shards, shard.keep_links
        self.far = far if far is not None else RemotePages(self.shards)
        self.replica = Replica(shard.rules, shard.number, yields=shard.yields)
        self.fingerprints = Fingerprints(shard.secret)
        self.host_pages = HostPageCounts(self.replica)
        self.follower = Follower(shard.client, shard.keys, self.replica)
        self.checkpointer = Checkpointer(shard.client, shard.keys, self.replica, journal_bytes)
        self.steps = StepCalls(shard, kept, retry_seconds, waits_max)
        self._marks = np.zeros(0, np.bool_)
        self._secret, self._loads = shard.secret, self.replica.loads  # As of the last check.
        self._era = shard.era  # In which the caller's records have their offsets.
        self._stale = True  # The replica may not be at the journal's head.
        self._next: dict[str, int] = {}  # Next offset of each partition.
        self._known: dict[str, int] = {}  # The same, but never cleared: the offsets that callers may rely on.

    @property
    def shown(self) -> ShownLinks | None:
        """What pages showed last, if replicas keep what reads discover."""
        return self.checkpointer.links.shown if self.replica.keeps_yields else None

    def urls_of(self, ids: Sequence[int]) -> Mapping[int, str]:
        """Return the URLs of known pages.

        Raises:
            StoreUnavailable: a URL is missing because the server restarted since the replica was loaded.
            FenceMoved: another worker forgot one of the pages.
            UrlMissing: a URL is missing.
        """
        try:
            urls = read_urls(self.shard.client, self.shard.keys, self.replica, ids)
        except UrlMissing as error:
            if self.shard.run_now() != self.shard.run_id:
                raise StoreUnavailable(f"the server of shard {self.shard.number} has restarted") from error
            raise
        if blank := [page for page, url in urls.items() if not url]:
            with store_errors():
                head = head_of(self.shard.client.hmget(self.shard.keys.head, "lsn", "digest"))
            if head == self.replica.head:
                raise UrlMissing(self.shard.number, blank[0])
            raise FenceMoved("another worker forgot pages")
        return urls

    def marks(self, pages: int) -> NDArray[np.bool_]:
        """Return a reusable array of at least `pages` flags, all False; the caller must reset those that it sets."""
        if pages > len(self._marks):
            self._marks = lazy_zeros(2 * pages, np.bool_)
        return self._marks

    def next_offset(self, partition: str) -> int:
        """Return the offset of the partition's first record that has not taken effect, from which to read on."""
        self._known[partition] = offset = self.shard.next_offset(partition)
        if self._next.get(partition) != offset:  # Another worker moved it.
            self._next.pop(partition, None)
        return offset

    def expect(self, partition: str, offset: int) -> None:
        """Refuse records of a partition while the shard lacks records below an offset."""
        self._known[partition] = max(self._known.get(partition, 0), offset)
        if self._next.get(partition, offset) < offset:  # Another worker moved it.
            del self._next[partition]

    def apply(
        self,
        partition: str,
        records: Sequence[Any],
        on_step: Callable[[Step], object] = lambda _: None,
        since: int = 0,
    ) -> None:
        """Apply records of one partition. None lie between offset `since` and the first; see `apply_inputs`."""
        self.expect(partition, since)
        self.apply_inputs([Input(partition, record) for record in records], on_step)

    def apply_inputs(self, inputs: Sequence[Input], on_step: Callable[[Step], object] = lambda _: None) -> None:
        """Apply records, each once; records that already took effect are skipped.

        Args:
            inputs: records in the order in which they take effect; those of one partition in order of their offsets.
                Each partition has its own offsets.
            on_step: called for each journal record that was appended.

        Raises:
            StoreUnavailable: the store was unavailable in between. It knows what took effect: apply the same again.
            DeliveryPaused: the records came from other shards, and a backup is holding deliveries for a moment.
            TailLost: the store lost records that had taken effect. Read them again, from `next_offset` on.
            BeingRestored: a backup was restored, and the records may be others there. Read on from `next_offset`.
        """
        failed_at: Head | None = None
        for refusals in range(REFUSALS_MAX):
            try:
                self._stream(inputs, on_step)
            except FenceMoved:
                # Let the worker that was first continue for a while, instead of deciding batches in vain.
                time.sleep(random.uniform(0, TURN_SECONDS * min(1 + refusals, TURNS_MAX)))  # noqa: S311
                continue
            except OutOfOrder:  # Another worker took the entries before it; an error if the head has not changed.
                if failed_at == self.replica.head:
                    raise
                failed_at = self.replica.head
                continue
            return
        raise StoreUnavailable("another worker appended first in each of 1,000 attempts: too many workers on one shard")

    def _stream(self, inputs: Sequence[Input], on_step: Callable[[Step], object]) -> None:
        """Append the records in batches, deciding each batch while the server syncs the previous one.

        Raises:
            FenceMoved: a batch was refused. Batches before it took effect; batches after it did not.
        """
        line = self._line()  # Opened before any read: it breaks if the server restarts in between.
        sent: _Sent | None = None
        since = time.perf_counter(), line.sent
        try:
            if self._stale:
                self.follower.catch_up()
                self._renew()
                self._next.clear()
                self._stale = False
                # Only this helps if the server is out of memory: a trim sent after a refused record is refused too.
                self._trim(line)
            restored, self._era = self._era != self.shard.era, self.shard.era
            offsets = self._offsets_held({item.partition for item in inputs})
            if restored:
                raise BeingRestored(f"shard {self.shard.number} was restored, or made again: reading on from there")
            inputs = [item for item in inputs if item.record.offset >= offsets[item.partition]]
            if len(self.far) > FAR_MAX:
                self.far.clear()
            start = 0
            while start < len(inputs) or sent is not None:
                batch = Batch(self, inputs, start) if start < len(inputs) else None
                names = [item.call for item in batch.items if item.record.call] if batch is not None else []
                if names and sent is not None:  # `_seen` must include its calls.
                    since, sent = self._confirm(line, sent, on_step, since), None
                if batch is not None:
                    batch.decide(self._seen(line, names) if names else {})
                if sent is not None:
                    since, sent = self._confirm(line, sent, on_step, since), None
                if batch is not None:
                    sent = self._append(line, batch)
                    start = batch.end
        except BaseException:
            self._stale = True
            self.far.drop()  # Shared with the other writers, which must find all sums at zero.
            raise
        finally:
            if sent is not None:
                self.replica.undo(sent.before)
                self._stale = True
            line.close()

    def _append(self, line: Line, batch: Batch) -> _Sent:
        """Send a batch's record, followed by the checkpoint writes that are due."""
        effect = batch.effect
        step = self.steps.call_for(batch, self._next)
        self.checkpointer.ours = True
        kept = self.replica.apply(effect, keep=True)
        self.checkpointer.ours = False
        assert kept is not None
        sent = _Sent(batch, kept, [], None)
        try:
            if self.checkpointer.due():
                sent.trim = self.checkpointer.trim_command(effect.head)
                sent.written = self.checkpointer.write(effect.head)
            more = [sent.trim] if sent.trim else []
            line.send(step, *more, *(call.command for call in sent.written))
        except BaseException:
            self.replica.undo(kept)
            raise
        return sent

    def _confirm(
        self, line: Line, sent: _Sent, on_step: Callable[[Step], object], since: tuple[float, int]
    ) -> tuple[float, int]:
        """Wait for the replies to a sent record, then report the step; `since` has the time and messages before it."""
        reply = line.answer()
        if reply[0] == b"FULL":
            raise OutboxFull(
                f"shard {reply[1].decode()} has not taken what shard {self.shard.number} sent: the outbox is full; "
                f"waiting for the worker that delivers to shard {reply[1].decode()}"
            )
        if reply[0] == b"PAUSED":
            raise DeliveryPaused(
                f"shard {self.shard.number} accepts no deliveries from other shards while a backup reads each head"
            )
        if reply[0] != b"OK":
            raise FenceMoved(f"another worker appended in between: {reply[0]!r}")
        self._next |= sent.batch.offsets
        self._known |= sent.batch.offsets
        self.steps.known_since.confirm()
        for item in sent.batch.inputs:
            item.events = None  # They are not needed again, and those of a whole poll would take much memory.
        if sent.trim is not None:
            self._take_trim(sent.trim, line)
        if sent.written:
            self._take_written(sent.batch.effect.head, sent.written, line)
        now = time.perf_counter()
        on_step(Step.of(sent.batch, now - since[0], line.sent - since[1]))
        return now, line.sent

    def _take_written(self, head: Head, written: Sequence[BlocksCall | LinksCall], line: Line) -> None:
        done, refusals = [], []
        for call, answer in zip(written, line.answers(len(written)), strict=True):
            if isinstance(answer, Exception) or answer[0] != b"OK":
                refusals.append(answer)
            else:
                done.append(call)
        self.checkpointer.confirm(head, done)
        if refusals:  # Their blocks remain dirty and are written later.
            text = "shard %d: %d of %d writes of checkpoint blocks were refused: %s"
            log.warning(text, self.shard.number, len(refusals), len(written), refusals[0])

    def _seen(self, line: Line, names: Sequence[bytes]) -> Mapping[bytes, int]:
        """Return which calls with an Idempotency-Key already took effect, with the times of their records."""
        line.send(["ZMSCORE", self.shard.keys.seen, *names])
        times = zip(names, line.answer(), strict=True)
        return {name: int(float(time_us)) for name, time_us in times if time_us is not None}

    def checkpoint(self) -> None:
        """Write every dirty block and trim the journal to its last record.

        Raises:
            StoreUnavailable: another worker appended in between, or the store is unavailable.
        """
        with closing(self._line()) as line:
            self.follower.catch_up()
            self._next.clear()
            head = self.replica.head
            for call in self.checkpointer.write(head, everything=True) if head.lsn else ():
                line.send(call.command)
                if line.answer()[0] != b"OK":
                    raise StoreUnavailable(
                        f"another worker appended to shard {self.shard.number} while its checkpoint was written"
                    )
                self.checkpointer.confirm(head, [call])
            self._trim(line)

    def purge(self, seconds: float) -> None:
        """Remove the URLs of forgotten pages from the blocks and the journal if no page was forgotten for `seconds`.

        Or if one was PURGE_SECONDS_MAX ago. Without this, it happens when the journal has turned over.
        """
        if not self.checkpointer.purge_due(seconds):
            return
        try:
            self.checkpoint()
        except StoreUnavailable as error:
            log.info("shard %d: URLs of forgotten pages stay for a while: %s", self.shard.number, error)

    def _trim(self, line: Line) -> None:
        """Trim records contained in every block, if worth a call. Allowed even if the server is out of memory."""
        if (trim := self.checkpointer.trim_command(self.replica.head)) is not None:
            line.send(trim)
            self._take_trim(trim, line)

    def _take_trim(self, trim: list[Any], line: Line) -> None:
        (answer,) = line.answers(1)
        if not isinstance(answer, Exception) and answer[0] == b"OK":
            self.checkpointer.trimmed(int(answer[1]), trim[-1])
        else:  # A later trim frees more.
            log.warning("shard %d: trimming the journal was refused: %s", self.shard.number, answer)

    def check_run(self) -> None:
        """Check whether the server restarted; if so, reload, since cached state is valid for one run only."""
        self._line().close()

    def _line(self) -> Line:
        """Open a pipelined connection. If the server has restarted, reload everything first."""
        line = Line(self.shard.client, self.shard.keys.head)
        if line.run_id != self.shard.run_id:
            try:
                self._begin_run(line.run_id)
            except BaseException:
                line.close()
                raise
        return line

    def _begin_run(self, run_id: bytes) -> None:
        """Start working with a new run of the server: prepare it for writes and reload the replica.

        A server that lost its last writes may have the replica's head but lack confirmed blocks, with URLs that the
        replica no longer holds in memory. So everything is loaded, which takes less time than the server's own start.
        """
        again = self.shard.run_id is not None
        if again:
            log.warning("the server of shard %d has restarted; reloading the shard", self.shard.number)
            self._next.clear()
            self._stale = True
            self.shard.make_server_ready()
        self._renew(anyway=True)
        if again:
            self.follower.load()
        else:
            self.follower.catch_up()
        self.shard.run_id = run_id

    def _renew(self, *, anyway: bool = False) -> None:
        """Read the shard's metadata again if the shard may have been recreated: it was reloaded or is empty."""
        if not anyway and self._loads == self.replica.loads and self.replica.head.lsn:
            return
        loads = self.replica.loads
        self.shard.renew()
        self._loads = loads  # Not before: if that failed, it has to be done again.
        if self._secret != self.shard.secret:  # Also if other code renewed the shard.
            self.fingerprints, self._secret = Fingerprints(self.shard.secret), self.shard.secret

    def offsets(self, partitions: Iterable[str], *, anew: bool = False) -> dict[str, int]:
        """Return the next offsets of partitions, cached; with `anew`, read them again, as others may move them."""
        names = list(dict.fromkeys(partitions))
        unknown = names if anew else [name for name in names if name not in self._next]
        if unknown:
            with store_errors():
                self.note_offsets(unknown, self.shard.client.hmget(self.shard.keys.offsets, unknown))
        return {name: self._next[name] for name in names}

    def note_offsets(self, partitions: Iterable[str], stored: Sequence[bytes | None]) -> dict[str, int]:
        """Take over the next offsets of partitions as the store has them, and return them."""
        offsets = {name: int(offset or 0) for name, offset in zip(partitions, stored, strict=True)}
        self._next |= offsets
        return offsets

    def _offsets_held(self, partitions: Iterable[str]) -> dict[str, int]:
        """Return the next offsets of partitions; raise TailLost if one is lower than before."""
        offsets = self.offsets(partitions)
        for name, offset in offsets.items():
            known = self._known.get(name, 0)
            self._known[name] = offset
            if offset < known:
                check_known([self.shard])  # The crawl itself may be gone.
                raise TailLost(self.shard.number, name, offset, known)
        return offsets
