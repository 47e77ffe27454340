"""The worker's main loop: reads records, applies them, delivers between shards and retries after outages.

A worker has no state of its own. The store holds the offset of the first record that has not taken effect, written in
the same call as the effect, so a worker may be killed at any time and started on any machine.
"""

import logging
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from opic.errors import CrawlMoved, CrawlStopped, DeliveryPaused, DiskFull, StoreUnavailable, instead_of
from opic.ingest import Step, Writer
from opic.ingest.checkpointer import PURGE_SECONDS_MAX
from opic.ingest.event_log import EventLog
from opic.ingest.outage import Outage
from opic.ingest.step_counts import StepCounts
from opic.ingest.writer import EVENTS_A_SHARD, Taken
from opic.model.events import EVENT_FIELDS
from opic.store.shard import check_known
from opic.urls.canonical import shown

log = logging.getLogger("opic.ingest")

RECORDS_A_READ = 2_000
IDLE_SECONDS = 0.5  # Longest wait for a record before the loop checks whether to stop.
COMPARE_SECONDS = 2.0  # Minimum time between comparisons of all positions with the store's.
PURGE_IDLE_SECONDS = 1.0  # URLs of forgotten pages are purged so long after the last was forgotten, if it is idle then.
GATHER_SECONDS = 0.01  # Time from one step to the next while few events come: those of this time share a step,
FEW_EVENTS = 32  # whose cost hardly depends on their number, for the worker and for the readers of the journal.
DELIVER_SHARE = 0.2  # Of a worker's time, the most that deliveries take while there are records to process:
DELIVER_SECONDS, DELIVER_SECONDS_MAX = 0.1, 1.0  # the pause between two is so long, within these limits.
STOPPED_SECONDS = 0.1  # Until a worker looks again at a crawl that is being moved to another one.
BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 5.0
SAY_UNKNOWN_SECONDS = 60.0  # Minimum time between two log lines about unknown fields of events.


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of a partition: events not applied yet, and the age of the last applied record if any are waiting."""

    events: int
    seconds: float


class RecordSource(Protocol):
    """A source of records: the log in the store, or a Kafka topic."""

    @property
    def ended(self) -> bool:
        """Whether all requested records have taken effect."""

    @property
    def partitions(self) -> tuple[list[int], int]:
        """The numbers of the partitions assigned to this worker, and the total number of partitions."""

    def poll(self, wait_seconds: float) -> list[Taken]:
        """Return records that are not done yet; if there are none, wait up to `wait_seconds` for some."""

    def done(self, taken: Taken) -> None:
        """Record that records took effect."""

    def positions(self) -> Mapping[str, int]:
        """Return the offset from which each assigned partition is not done, where it is known."""

    def rewind(self, partition: str) -> None:
        """Read a partition again from the store's resume point."""

    def wait(self, seconds: float) -> None:
        """Wait while nothing can take effect, keeping connections and group membership alive."""

    def lag(self) -> Mapping[str, Lag]:
        """Return the lag of each assigned partition."""


class LogSource:
    """Reads the log in the store, which has a single partition."""

    partitions: tuple[list[int], int] = ([0], 1)

    def __init__(
        self,
        source: EventLog,
        resume: Callable[[str], int],
        *,
        pause: Callable[[float], object] = time.sleep,
        until_offset: int | None = None,
    ) -> None:
        """Start at the store's resume point.

        Args:
            source: the log.
            resume: returns the offset from which to read a partition.
            pause: waits up to the given number of seconds, less if the worker must stop.
            until_offset: stop reading at this offset; None reads forever.
        """
        self._source, self._resume, self._pause, self._until = source, resume, pause, until_offset
        self._offset: int | None = None
        self._era = b""  # Of the log for which `_offset` is valid.

    def _begin(self) -> int:
        """Return the offset to read from; the first time, and after a wait, from the store."""
        if self._offset is None:
            self._era = self._source.era()
            self._offset = self._resume(self._source.partition)
        return self._offset

    @property
    def ended(self) -> bool:
        """Whether all records below `until_offset` took effect."""
        return self._until is not None and self._begin() >= self._until

    def poll(self, wait_seconds: float) -> list[Taken]:
        since = self._begin()
        records = self._source.read(since, RECORDS_A_READ, wait_seconds=wait_seconds)
        if not records:
            if self._until is not None:
                self._offset = None  # Another worker may have applied the rest, and trimmed it.
            return []
        return [Taken(self._source.partition, records, since, records[-1].offset + 1)]

    def done(self, taken: Taken) -> None:
        """Trim the records, which are not needed again."""
        self._offset = taken.end
        self._source.trim(taken.end, self._era)

    def positions(self) -> Mapping[str, int]:
        """Return the offset from which to read next."""
        return {} if self._offset is None else {self._source.partition: self._offset}

    def rewind(self, partition: str) -> None:
        """Read the resume point from the store at the next poll."""
        self._offset = None

    def wait(self, seconds: float) -> None:
        """Wait, then read the resume point from the store at the next poll."""
        self._pause(seconds)
        self._offset = None

    def lag(self) -> Mapping[str, Lag]:
        """Return the number of waiting records; their age is not known here."""
        offset = self._offset if self._offset is not None else self._resume(self._source.partition)
        return {self._source.partition: Lag(max(0, self._source.end() - offset), 0.0)}


class WorkerWatch:
    """Callbacks for what a worker does. The methods of this base class do nothing."""

    def stepped(self, step: Step) -> None:
        """Called after each step."""

    def took(self, taken: Taken) -> None:
        """Called when records took effect."""

    def delivered(self, entries: int) -> None:
        """Called with the number of entries delivered between shards."""

    def well(self, source: RecordSource) -> None:
        """Called after each successful iteration of the loop."""

    def away(self, reason: str) -> None:
        """Called when a server is unavailable and the worker will retry."""


class Backoff:
    """Exponential back-off with jitter, so that many workers do not retry at the same time."""

    def __init__(self) -> None:
        self._next = BACKOFF_FIRST_SECONDS

    def seconds(self) -> float:
        """Return the next wait."""
        wait = self._next * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        self._next = min(2 * self._next, BACKOFF_MAX_SECONDS)
        return wait

    def reset(self) -> None:
        """Return to the shortest wait after a success."""
        self._next = BACKOFF_FIRST_SECONDS


def work(
    writer: Writer,
    source: RecordSource,
    *,
    stopped: Callable[[], bool] = lambda: False,
    tally: StepCounts | None = None,
    full: Callable[[], str | None] = lambda: None,
    watch: WorkerWatch | None = None,
    between: Callable[[], object] = lambda: None,
) -> None:
    """Apply records until stopped or until the source has ended; retry while a server is away or the disk is full.

    Args:
        writer: writes to the shards.
        source: provides the records.
        stopped: checked between batches.
        tally: counts each step.
        full: returns why the disk is full, or None; called before every write, including counts and trims.
        watch: receives all events of the loop.
        between: called between batches, for instance to forward dead letters.

    Raises:
        CrawlMoved: another crawl has taken the place of this one.
    """
    loop, backoff, outage = _Loop(writer, source, full, watch or WorkerWatch(), tally), Backoff(), Outage(log)
    while not stopped():
        try:
            if source.ended:
                return writer.purge(0.0)
            loop.turn(stopped)
            between()
            if tally is not None:
                tally.tell()
            loop.watch.well(source)
            outage.ended()
            backoff.reset()
        except CrawlMoved:
            raise
        except CrawlStopped as error:
            loop.watch.away(str(error))
            check_known(writer.crawl.shards)
            source.wait(STOPPED_SECONDS)
        except StoreUnavailable as error:
            outage.began(error)
            loop.watch.away(str(error))
            source.wait(backoff.seconds())


class _Loop:
    """What a worker does again and again: delivers between shards, reads records, and applies them."""

    def __init__(
        self,
        writer: Writer,
        source: RecordSource,
        full: Callable[[], str | None],
        watch: WorkerWatch,
        tally: StepCounts | None,
    ) -> None:
        self.watch, self._source, self._full, self._tally = watch, source, full, tally
        self._events_max = EVENTS_A_SHARD * len(writer.stores)
        self._courier, self._positions = _Courier(writer, source, watch), _Positions(writer, source)
        self._writer, self._next_step = writer, 0.0  # When the next step may begin, monotonic.
        self._unknown, self._said_unknown = 0, float("-inf")  # Unknown fields since a line told of them, and when.

    def turn(self, stopped: Callable[[], bool]) -> None:
        """Go once around."""
        self._check_room()
        self._courier.carry(idle=False)
        self._positions.check()
        time.sleep(max(self._next_step - time.monotonic(), 0.0))
        batches, began = self._source.poll(IDLE_SECONDS), time.monotonic()
        self._check_room()
        for some in _together(batches, self._events_max):
            current = [taken for taken in some if self._positions.holds(taken.partition, taken.since)]
            self._writer.apply_together(current, self._stepped)
            for taken in current:
                self._source.done(taken)
                self.watch.took(taken)
            if stopped():
                break
        if not batches:
            self._courier.carry(idle=True)
        elif sum(taken.rough_events for taken in batches) < FEW_EVENTS:
            self._next_step = began + GATHER_SECONDS

    def _stepped(self, step: Step) -> None:
        self.watch.stepped(step)
        if self._tally is not None:
            self._tally.add(step)
        self._check_room()  # The effects of one poll's records may need more space than is left.
        if step.refused:
            self._writer.note_refusals(step.refused)
        if step.unknown:
            self._tell_of_unknown(step.unknown)

    def _tell_of_unknown(self, names: Sequence[str]) -> None:
        """Log a line on unknown fields that were ignored, unless one was logged a moment ago."""
        self._unknown += len(names)
        if time.monotonic() - self._said_unknown >= SAY_UNKNOWN_SECONDS:
            text = "ignored %d unknown fields of events, among them %s: %s"
            log.warning(text, self._unknown, shown(names[-1]), instead_of(names[-1], EVENT_FIELDS))
            self._unknown, self._said_unknown = 0, time.monotonic()

    def _check_room(self) -> None:
        if (reason := self._full()) is not None:
            raise DiskFull(reason)


def _together(batches: Sequence[Taken], events_max: int) -> Iterator[list[Taken]]:
    """Yield them in groups of no more events than this, or one by one where they have more."""
    group, events = list[Taken](), 0
    for taken in batches:
        if group and events + taken.rough_events > events_max:
            yield group
            group, events = [], 0
        group.append(taken)
        events += taken.rough_events
    if group:
        yield group


class _Positions:
    """Compares the source's positions with the store's resume points.

    After a failover or a restore the store may lack records that had taken effect. They come before those that the
    source returns next, and on a quiet partition no others come: so positions are compared now and then as well.
    """

    def __init__(self, writer: Writer, source: RecordSource) -> None:
        self._writer, self._source, self._last = writer, source, time.monotonic()

    def check(self) -> None:
        """Compare all positions, unless that was done a moment ago."""
        if time.monotonic() - self._last < COMPARE_SECONDS:
            return
        for partition, offset in self._source.positions().items():
            self.holds(partition, offset)
        self._last = time.monotonic()

    def holds(self, partition: str, offset: int) -> bool:
        """Return whether the store has all records below an offset; if not, read from its resume point again."""
        if self._writer.resume(partition) >= offset:
            return True
        log.warning("the store lost its last writes: reading %s again from an earlier offset", partition)
        self._source.rewind(partition)
        self._writer.forget()
        return False


class _Courier:
    """Runs deliveries between shards: once for all shards, then periodically for the shards of this worker."""

    def __init__(self, writer: Writer, source: RecordSource, watch: WorkerWatch) -> None:
        self._writer, self._source, self._watch = writer, source, watch
        self._swept, self._next = False, 0.0  # When the next delivery is due, monotonic.

    def carry(self, *, idle: bool) -> None:
        """Deliver if it is time to, or at once if the worker is idle. Purge what was forgotten."""
        self._writer.purge(PURGE_IDLE_SECONDS if idle else PURGE_SECONDS_MAX)
        if len(self._writer.stores) == 1:
            return  # Nothing is sent to other shards.
        began = time.monotonic()
        if not self._swept:
            self._swept = self._deliver(None)
        elif idle or began >= self._next:
            ours, partitions = self._source.partitions
            shards = {shard for partition in ours for shard in self._writer.responsible(partition, partitions)}
            if shards:
                self._deliver(sorted(shards))
        else:
            return
        now = time.monotonic()
        pause = (now - began) * (1 - DELIVER_SHARE) / DELIVER_SHARE
        self._next = now + min(max(pause, DELIVER_SECONDS), DELIVER_SECONDS_MAX)

    def _deliver(self, shards: Collection[int] | None) -> bool:
        """Deliver to shards; return False if a backup holds deliveries, which does not stop events."""
        try:
            self._watch.delivered(self._writer.deliver(shards))
        except DeliveryPaused:
            return False
        return True
