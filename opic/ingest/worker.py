"""The worker's loop: read records, let them take effect, go on from where the store says.

It keeps nothing of its own. The store holds the offset of the first record that has not taken effect, written in the
same call as the effect, so a worker may be killed and started anywhere.
"""

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from opic.errors import DeliveryPaused, DiskFull, StoreUnavailable
from opic.ingest import Step, Writer
from opic.ingest.event_log import EventLog
from opic.ingest.step_counts import StepCounts
from opic.model.events import Record

log = logging.getLogger("opic.ingest")

RECORDS_A_READ = 2_000
IDLE_SECONDS = 0.5  # The longest wait for a record, after which we look whether to stop.
DELIVER_SECONDS = 0.1  # Least time between two deliveries while records come.
BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """Records of one partition that came together.

    `since` is the offset from which on they were asked for: nothing of the partition lies between it and the first.
    """

    partition: str
    records: Sequence[Record]
    since: int
    end: int  # The offset after the last.


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a partition is behind: in events, and in the age of what took effect last while more waits."""

    events: int
    seconds: float


class RecordSource(Protocol):
    """Where records come from: the log in the store, or a Kafka topic."""

    @property
    def ended(self) -> bool:
        """Whether no more will come that anybody wants."""

    @property
    def partitions(self) -> tuple[list[int], int]:
        """The numbers of the partitions that are ours to read, and how many there are."""

    def poll(self, wait_seconds: float) -> list[Taken]:
        """Return records that are not done yet; if there are none, wait for some up to so long."""

    def done(self, taken: Taken) -> None:
        """Note that records took effect."""

    def rewind(self, partition: str) -> None:
        """Read a partition from where the store says."""

    def wait(self, seconds: float) -> None:
        """Live on for some seconds in which nothing can take effect."""

    def lag(self) -> Mapping[str, Lag]:
        """Return how far each of our partitions is behind."""


class LogSource:
    """The log in the store, its only partition."""

    partitions: tuple[list[int], int] = ([0], 1)

    def __init__(
        self,
        source: EventLog,
        resume: Callable[[str], int],
        *,
        pause: Callable[[float], object] = time.sleep,
        until_offset: int | None = None,
    ) -> None:
        """Read from where the store says.

        Args:
            source: the log.
            resume: says from which offset on the store wants it.
            pause: waits up to so many seconds, less when it is time to stop.
            until_offset: nobody wants records from here on.
        """
        self._source, self._resume, self._pause, self._until = source, resume, pause, until_offset
        self._offset: int | None = None

    @property
    def ended(self) -> bool:
        """Whether all that is wanted took effect."""
        if self._until is None:
            return False
        if self._offset is None:
            self._offset = self._resume(self._source.partition)
        return self._offset >= self._until

    def poll(self, wait_seconds: float) -> list[Taken]:
        """Read on."""
        if self._offset is None:
            self._offset = self._resume(self._source.partition)
        records = self._source.read(self._offset, RECORDS_A_READ, wait_seconds=wait_seconds)
        if not records:
            return []
        return [Taken(self._source.partition, records, self._offset, records[-1].offset + 1)]

    def done(self, taken: Taken) -> None:
        """Let go of the records, which nobody will ask for again."""
        self._offset = taken.end
        self._source.trim(taken.end)

    def rewind(self, partition: str) -> None:
        """Ask the store again."""
        self._offset = None

    def wait(self, seconds: float) -> None:
        """Wait; afterwards ask the store again."""
        self._pause(seconds)
        self._offset = None

    def lag(self) -> Mapping[str, Lag]:
        """Return how many records wait; their age is not known here."""
        at = self._offset if self._offset is not None else self._resume(self._source.partition)
        return {self._source.partition: Lag(max(0, self._source.end() - at), 0.0)}


class WorkerWatch:
    """Told what a worker does; this one keeps it to itself."""

    def stepped(self, step: Step) -> None:
        """Hear of a step."""

    def took(self, taken: Taken) -> None:
        """Hear of records that took effect."""

    def delivered(self, entries: int) -> None:
        """Hear how much was carried between shards."""

    def well(self, source: RecordSource) -> None:
        """Hear that a round went well."""

    def away(self, reason: str) -> None:
        """Hear that something is away, and will be asked again."""


class Backoff:
    """Waits that double, each shortened by chance so that many workers do not come back at once."""

    def __init__(self) -> None:
        """Start with the shortest."""
        self._next = BACKOFF_FIRST_SECONDS

    def seconds(self) -> float:
        """Return how long to wait now."""
        wait = self._next * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        self._next = min(2 * self._next, BACKOFF_MAX_SECONDS)
        return wait

    def reset(self) -> None:
        """Start again with the shortest: it went well."""
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
    """Let records take effect until told to stop, or until no more are wanted.

    While the store or Kafka is away, or the disk is full, it tries again, ever less often; see `Backoff`.

    Args:
        writer: to the shards.
        source: of records.
        stopped: asked between batches.
        tally: told of each step.
        full: asked before anything is written, counts and trims too, why the disk has no room; None if it has some.
        watch: told all that happens.
        between: done between batches, such as forwarding dead letters.
    """
    watch = watch or WorkerWatch()
    backoff, courier, check_room = Backoff(), _Courier(writer, source, watch), partial(_check_room, full)

    def on_step(step: Step) -> None:
        watch.stepped(step)
        if tally is not None:
            tally.add(step)
        check_room()  # The effects of all records of a poll may take more than the room that is left.

    while not stopped():
        try:
            if source.ended:
                return
            check_room()
            courier.carry(idle=False)
            batches = source.poll(IDLE_SECONDS)
            check_room()
            for taken in batches:
                if _is_next(writer, source, taken):
                    writer.apply(taken.partition, taken.records, on_step, taken.since)
                    source.done(taken)
                    watch.took(taken)
                if stopped():
                    break
            if not batches:
                courier.carry(idle=True)
            between()
            if tally is not None:
                tally.tell()
            watch.well(source)
            backoff.reset()
        except StoreUnavailable as error:
            log.warning("%s; asking again in %.1f s", error, wait := backoff.seconds())
            watch.away(str(error))
            source.wait(wait)


def _check_room(full: Callable[[], str | None]) -> None:
    if (reason := full()) is not None:
        raise DiskFull(reason)


def _is_next(writer: Writer, source: RecordSource, taken: Taken) -> bool:
    """Tell whether the store has all that comes before these records; else read the partition again from there."""
    if writer.resume(taken.partition) >= taken.since:
        return True
    # The store lost its end, as after a failover. What is missing comes before what is in hand.
    log.warning("the store wants %s again from an earlier offset", taken.partition)
    source.rewind(taken.partition)
    writer.forget()
    return False


class _Courier:
    """Lets deliveries between shards take effect: once for all shards, then now and then for those that are ours."""

    def __init__(self, writer: Writer, source: RecordSource, watch: WorkerWatch) -> None:
        self._writer, self._source, self._watch = writer, source, watch
        self._swept, self._last = False, 0.0

    def carry(self, *, idle: bool) -> None:
        """Deliver, if it is time; whoever is idle may."""
        if not self._swept:
            self._swept = self._deliver(None)
        elif idle or time.monotonic() - self._last >= DELIVER_SECONDS:
            ours, partitions = self._source.partitions
            shards = {shard for one in ours for shard in self._writer.responsible(one, partitions)}
            if shards:
                self._deliver(sorted(shards))
        else:
            return
        self._last = time.monotonic()

    def _deliver(self, shards: Collection[int] | None) -> bool:
        """Deliver to shards, unless a backup holds deliveries: events go on meanwhile."""
        try:
            self._watch.delivered(self._writer.deliver(shards))
        except DeliveryPaused:
            return False
        return True
