"""Kafka consumer: reads crawl events as a member of a consumer group, from the offsets in the store.

The authoritative offset is written to the store with the effect. Offsets are committed to Kafka only for lag
monitoring: an assigned partition is read from the store's resume point, whatever offset Kafka has.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kafka import ConsumerRebalanceListener, TopicPartition
from kafka import errors as broken
from kafka.structs import OffsetAndMetadata

from opic.errors import KafkaRefused, KafkaUnavailable
from opic.ingest.kafka.assignment import ShardAssignor, workers_at_once
from opic.ingest.kafka.connection import Client, KafkaCluster, name_of, record_of, throttled
from opic.ingest.kafka.known_offsets import FirstOffsets
from opic.ingest.kafka.signatures import Signatures
from opic.ingest.traces import Spans
from opic.ingest.worker import Lag
from opic.ingest.writer import EVENTS_A_SHARD, Taken
from opic.model.events import Record

log = logging.getLogger("opic.ingest")

# Memory holds the records of one poll, and what the client prefetched: a few requests per broker.
RECORDS_A_POLL_MIN: Final = 2_000
RECORDS_A_POLL_MAX: Final = 16_000  # Some 100 MB of events of 40 links once they are decoded.
FETCH_BYTES_MAX: Final = 16 << 20
PARTITION_FETCH_BYTES_MAX: Final = 4 << 20  # A larger record is fetched alone.
COMMIT_SECONDS: Final = 1.0  # Minimum time between two commits.
CLOSE_SECONDS: Final = 5.0  # For the last commit, and for leaving the group.
QUIET_SECONDS: Final = 1.0  # After this long without records, check that Kafka answers at all.
ANSWER_SECONDS: Final = 5.0
TELL_SECONDS: Final = 60.0  # Minimum time between two log lines about a quota.
IDLE_SECONDS: Final = 10.0  # Say that the worker stands by after this long without a partition.
SLICE_SECONDS: Final = 0.2  # Waits are divided into slices, to check whether to stop.
POLL_INTERVAL_SECONDS: Final = 300.0  # Kafka removes a worker that takes longer to process one poll.


def records_a_poll(shards: int) -> int:
    """Return the maximum number of records per poll for a crawl with `shards` shards."""
    return min(max(RECORDS_A_POLL_MIN, EVENTS_A_SHARD * shards), RECORDS_A_POLL_MAX)


def _member(cluster: KafkaCluster, shards: int, assignor: ShardAssignor) -> Client:
    settings = cluster.settings
    session_ms = round(settings.kafka_session_seconds * 1000)
    return cluster.consumer(
        group_id=cluster.group,
        group_instance_id=settings.kafka_group_instance_id,
        partition_assignment_strategy=[assignor],
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=min(3_000, session_ms // 3),
        max_poll_interval_ms=round(POLL_INTERVAL_SECONDS * 1000),
        max_poll_records=records_a_poll(shards),
        fetch_max_bytes=FETCH_BYTES_MAX,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES_MAX,
    )


class KafkaSource:
    """A member of the consumer group `opic-<crawl>`."""

    ended = False  # A topic never ends.

    def __init__(
        self,
        cluster: KafkaCluster,
        resume: Callable[[str], int],
        first: FirstOffsets,
        stopped: Callable[[], bool] = lambda: False,
        shards: int = 1,
        *,
        signatures: Signatures,
    ) -> None:
        """Subscribe to the topic; the first `poll` joins the group.

        Args:
            cluster: the cluster with the topic.
            resume: returns the store's resume point, given a partition's name.
            first: from where the crawl needs each partition.
            stopped: checked during long waits.
            shards: number of shards of the crawl.
            signatures: checks the records that control the crawl.

        Raises:
            KafkaUnavailable: Kafka does not answer.
            KafkaRefused: Kafka refused access, or the topic does not exist.
        """
        self._cluster, self._resume, self._first, self._stopped = cluster, resume, first, stopped
        self._signatures = signatures
        self.group = cluster.group
        self._shards, self._assignor = shards, ShardAssignor(shards)
        self._consumer = _member(cluster, shards, self._assignor)
        self._held: dict[TopicPartition, Taken] = {}  # Returned by `poll`, but not done yet.
        self._new: set[TopicPartition] = set()  # Assigned, but not yet at the store's resume point.
        self._next: dict[TopicPartition, int] = {}  # Offset of the record that the client returns next.
        self._commits: dict[TopicPartition, int] = {}
        self._newest: dict[TopicPartition, int] = {}  # Time of the last record that took effect, microseconds.
        self._spans, self._polled_ns = Spans(), 0  # When the records that are held were polled.
        self._mean_events = 1.0  # Of the records that took effect last: by it the lag in records is told in events.
        self._committed = self._heard = time.monotonic()
        self._told = float("-inf")  # When the log last told of a quota.
        self._idle_since: float | None = time.monotonic()
        try:
            self._partitions = len(cluster.partitions(self._consumer))
            with cluster.errors():
                self._consumer.subscribe([cluster.topic], listener=_Listener(self))
        except BaseException:
            self._consumer.close(timeout_ms=0)
            raise

    @property
    def partitions(self) -> tuple[list[int], int]:
        """The numbers of our partitions, and how many the topic has."""
        ours = sorted(p.partition for p in self._consumer.assignment())
        # The topic may have more partitions by now.
        known = self._consumer.partitions_for_topic(self._cluster.topic) if ours else None
        self._partitions = max(self._partitions, len(known or ()))
        return ours, self._partitions

    def poll(self, wait_seconds: float) -> list[Taken]:
        """Return records by partition: those that are not done yet, else the next ones; wait for the first."""
        if not self._held:
            self._fetch(0.0 if self._new else wait_seconds)
            if self._new:
                self._settle()
        if self._commits and time.monotonic() - self._committed >= COMMIT_SECONDS:
            self._committed = time.monotonic()
            with self._cluster.errors():
                self._consumer.commit_async(_offsets(self._commits), callback=_committed)
        return list(self._held.values())

    def done(self, taken: Taken) -> None:
        """Record that records took effect."""
        for partition, pending in list(self._held.items()):
            if pending is taken:  # Not if the partition was revoked in the meantime.
                del self._held[partition]
                self._commits[partition] = taken.end
                if taken.records:
                    self._spans.took_effect(partition.topic, partition.partition, taken.records, self._polled_ns)
                    self._newest[partition] = taken.records[-1].time_us
                    self._mean_events = taken.rough_events / len(taken.records)

    def positions(self) -> Mapping[str, int]:
        """Return the offset from which each assigned partition is not done; none of those that begin anew."""
        offsets = {**self._next, **{partition: pending.since for partition, pending in self._held.items()}}
        return {
            name_of(partition): offsets[partition]
            for partition in self._consumer.assignment() - self._new
            if partition in offsets
        }

    def rewind(self, partition: str) -> None:
        """Read a partition again from the store's resume point: the store lost records, or another worker moved on."""
        for ours in self._consumer.assignment():
            if name_of(ours) == partition:
                self._consumer.pause(ours)
                self._held.pop(ours, None)
                self._new.add(ours)

    def wait(self, seconds: float) -> None:
        """Wait without fetching, but stay in the group; records already fetched are kept."""
        end = time.monotonic() + seconds
        ours = self._consumer.assignment()
        self._consumer.pause(*ours)
        try:
            while (left := end - time.monotonic()) > 0 and not self._stopped():
                try:
                    self._fetch(min(left, SLICE_SECONDS))
                except KafkaUnavailable:
                    # The worker meets it again at its next poll, and logs it, if this lasts for longer than the wait.
                    time.sleep(min(left, SLICE_SECONDS))
        finally:
            self._consumer.resume(*(ours & self._consumer.assignment()) - self._new)

    def lag(self) -> Mapping[str, Lag]:
        """Return the lag of each assigned partition, by the end offsets that came with the last records."""
        lags, now_us = {}, time.time_ns() // 1000
        for partition in self._consumer.assignment():
            end, position = self._consumer.highwater(partition), self._commits.get(partition, self._next.get(partition))
            if end is None or position is None:
                continue
            newest = self._newest.get(partition)
            lags[name_of(partition)] = Lag(
                events=round(max(0, end - position) * self._mean_events),
                seconds=0.0 if end <= position or newest is None else max(0.0, (now_us - newest) / 1e6),
            )
        return lags

    def close(self) -> None:
        """Commit offsets and leave the group, within a few seconds, even if Kafka is unavailable."""
        try:
            if self._commits:
                self._consumer.commit(_offsets(self._commits), timeout_ms=round(CLOSE_SECONDS * 1000))
        except (broken.KafkaError, OSError) as error:
            log.warning("the last offsets were not committed (%s); the store has them", error)
        finally:
            self._consumer.close(timeout_ms=round(CLOSE_SECONDS * 1000))

    def _fetch(self, seconds: float) -> None:
        try:
            with self._cluster.errors():
                polled = self._consumer.poll(timeout_ms=round(seconds * 1000))
        except KafkaUnavailable as error:
            if not isinstance(error.__cause__, (broken.OffsetOutOfRangeError, broken.NoOffsetForPartitionError)):
                raise
            # The topic no longer has the current offset; `_settle` checks it.
            self._new.update(self._consumer.assignment())
            polled = {}
        self._polled_ns = time.time_ns()
        for partition in self._consumer.assignment() - self._new:
            self._hold(partition, polled.get(partition, ()))
        if polled or self._cluster.throttle.left:  # A quota makes Kafka silent for a while.
            self._heard = time.monotonic()
            self._tell_throttled()
        elif time.monotonic() - self._heard > QUIET_SECONDS:
            # The client does not distinguish an unavailable broker from an idle topic, so ask for something.
            ours = self._consumer.assignment() or {TopicPartition(self._cluster.topic, 0)}
            with self._cluster.errors():
                self._consumer.end_offsets([next(iter(ours))], timeout_ms=round(ANSWER_SECONDS * 1000))
            self._heard = time.monotonic()
        self._tell_idle()

    def _hold(self, partition: TopicPartition, messages: Sequence[Any]) -> None:
        """Hold the records of a poll, up to the client's position: markers and aborted records have offsets too."""
        checked, since = self._signatures.checked, self._next[partition]
        with self._cluster.errors():
            end = self._consumer.position(partition, timeout_ms=0)
        if messages or end > since:
            records = [
                message if type(message) is Record else checked(message, record_of(message)) for message in messages
            ]
            self._held[partition] = Taken(name_of(partition), records, since, end)
            self._next[partition] = end

    def _settle(self) -> None:
        """Seek newly assigned partitions to the store's resume points.

        Raises:
            KafkaRefused: the topic lacks the next records.
        """
        fresh = sorted(self._new & self._consumer.assignment())
        with self._cluster.errors():
            limit = {"timeout_ms": round(ANSWER_SECONDS * 1000)}
            begins = self._consumer.beginning_offsets(self._cluster.partitions(self._consumer), **limit)
            ends = self._consumer.end_offsets(fresh, **limit)
        resume = {partition: self._resume(name_of(partition)) for partition in fresh}
        if any(resume[partition] > end for partition, end in ends.items()):
            # Of what is committed. Workers that read all (OPIC_KAFKA_ISOLATION) may have gone further.
            ends = self._cluster.ends(fresh)
        first = self._first.first_offsets(begins) if fresh else {}
        for partition, wanted in resume.items():
            name = name_of(partition)
            offset = self._checked(name, max(wanted, first[partition]), begins[partition], ends[partition])
            self._consumer.seek(partition, offset)
            self._next[partition] = wanted  # Records between the two offsets are lost.
            self._consumer.resume(partition)
            log.info("reading %s from offset %s, of %s", name, f"{offset:,}", f"{ends[partition]:,}")
        self._new -= set(fresh)
        self._new &= self._consumer.assignment()

    def _checked(self, name: str, offset: int, begin: int, end: int) -> int:
        if offset > end:
            raise KafkaRefused(
                f"{name} ends at offset {end:,}, but events below {offset:,} already took effect in this store: the "
                "topic was created again, or Kafka lost its end. The events in it now would be skipped: publish to a "
                "topic with another name and set OPIC_KAFKA_TOPIC to it, or use the store that belongs to this topic"
            )
        if offset >= begin:
            return offset
        lost = f"{name} begins at offset {begin:,}, but this store needs it from {offset:,} on"
        if self._cluster.settings.kafka_skip_lost:
            log.error("%s: %s records are lost, as OPIC_KAFKA_SKIP_LOST allows", lost, f"{begin - offset:,}")
        else:
            raise KafkaRefused(
                f"{lost}: retention deleted {begin - offset:,} records before they took effect. Publish them again and "
                "raise retention.ms; to continue without them, set OPIC_KAFKA_SKIP_LOST=true"
            )
        return begin

    def _tell_throttled(self) -> None:
        if self._cluster.throttle.left and time.monotonic() - self._told > TELL_SECONDS:
            self._told = time.monotonic()
            log.warning("%s", throttled(self._cluster.where, self._cluster.throttle))

    def _tell_idle(self) -> None:
        if self._consumer.assignment():
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = time.monotonic()
        elif time.monotonic() - self._idle_since > IDLE_SECONDS:
            self._idle_since = float("inf")  # Once.
            busy = workers_at_once(self._partitions, self._shards)
            log.info(
                "on standby: the topic %s has %d partition%s, the crawl %d shard%s: they occupy %d worker%s of the "
                "group %s, and this one takes over when another ends",
                self._cluster.topic,
                *_counted(self._partitions),
                *_counted(self._shards),
                *_counted(busy),
                self.group,
            )

    # Called by the client in its own thread, while `poll`, `wait` or `close` waits: nothing here may block.

    def _assigned(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._consumer.pause(partition)
            self._consumer.seek(partition, 0)  # Otherwise the client would read the offset from Kafka.
            self._new.add(partition)

    def _revoked(self, partitions: Iterable[TopicPartition], *, commit: bool) -> None:
        gone = set(partitions)
        offsets = {partition: offset for partition, offset in self._commits.items() if partition in gone}
        if commit and offsets:
            self._consumer.commit_async(_offsets(offsets), callback=_committed)
        for partition in gone:
            self._new.discard(partition)
            for known in (self._held, self._next, self._commits, self._newest):
                known.pop(partition, None)
        if gone:
            log.info("%s: %s", "revoked" if commit else "lost", ", ".join(sorted(map(name_of, gone))))
        if not commit:
            self._assignor.forget()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, source: KafkaSource) -> None:
        self._source = source

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._source._assigned(assigned)

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._source._revoked(revoked, commit=True)

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._source._revoked(lost, commit=False)  # Another worker has them by now.


def _counted(number: int) -> tuple[int, str]:
    return number, "" if number == 1 else "s"


def _offsets(positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {partition: OffsetAndMetadata(offset, "", -1) for partition, offset in positions.items()}


def _committed(_: Any, answer: Any) -> None:
    if isinstance(answer, Exception):
        log.info("offsets were not committed to Kafka (%s); the store has them", answer)
