"""Step metrics: durations and sizes of workers' steps, summed in the store, from where /metrics reads them.

All workers of a crawl add to the same numbers, which survive restarts. So a worker without a port of its own, such as
the embedded one, is counted too. The numbers are written once a second, never in the call that appends an effect; a
killed worker loses one second of them.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from opic.errors import nearest_name
from opic.ingest import Step
from opic.ingest.heartbeats import Heartbeat, beats_of
from opic.model.events import EVENT_FIELDS
from opic.replica import Crawl
from opic.store import Shard
from opic.store.connection import store_errors

TELL_SECONDS: Final = 1.0
STEP_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STEP_EVENTS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000)
EVENTS: Final = "events:"  # Prefix of the fields of the events histogram; that of seconds is older and has no prefix.
# Fields: records of the log that a worker took last, and their events.
LAST_RECORDS: Final = "last_records"
LAST_EVENTS: Final = "last_events"
UNKNOWN: Final = "unknown:"  # Prefix of the counts of unknown fields, by the nearest known name.
CRAWLER: Final = "crawler:"  # Prefix of the counts of crawl events, by the name of their crawler.
CRAWLERS_MAX: Final = 100  # Names that a worker counts apart: a crawler may take another name for each of its events.
CRAWLER_CHARS_MAX: Final = 64
OTHER_CRAWLERS: Final = "other"  # Counts longer names, and those beyond CRAWLERS_MAX.
PLAIN: Final = ("links", "cached", "round_trips", "links_left_out", "links_refused")  # Counts of `Step`, and fields.
KEPT_COUNTS: Final = ("letters_dropped", "meta_bytes", "metas_dropped")
# Counted by endpoints: pages that the rule forgot, what importance they had, and passes; and when the last one was.
EXPIRY_COUNTS: Final = ("expired", "expired_parts", "expiry_passes")
EXPIRED_AT: Final = "expired_at"
PARTS_OF_IMPORTANCE: Final = 1_000_000_000  # Importance is counted in parts of 1 / this.
NEAREST: Final = (*EVENT_FIELDS, "none")
Buckets = list[tuple[str, float]]  # Cumulative counts by upper bound, as in Prometheus.


class StepCounts:
    """Sums steps in a hash of the store.

    Two histograms: fields hold the number of steps in each class of STEP_SECONDS (`inf` above them), with the sum in
    microseconds, and in each class of STEP_EVENTS, with the sum. Beside them are plain counts.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._new: dict[str, int] = {}
        self._last = 0, 0  # Records of the log, and their events.
        self._told = time.monotonic()
        self._heartbeat = Heartbeat(shard)
        with store_errors():
            stored = (name.decode() for name in shard.client.hkeys(shard.keys.metrics))
            self._crawlers = {name.removeprefix(CRAWLER) for name in stored if name.startswith(CRAWLER)}

    def add(self, step: Step) -> None:
        for name, count in (
            (_class(step.seconds, STEP_SECONDS), 1),
            ("sum_us", round(step.seconds * 1_000_000)),
            (EVENTS + _class(step.events, STEP_EVENTS), 1),
            (EVENTS + "sum", step.events),
            *((name, getattr(step, name)) for name in PLAIN),
            *((UNKNOWN + _nearest(name), 1) for name in step.unknown),
            *((CRAWLER + self._counted_as(name), count) for name, count in step.crawlers.items()),
        ):
            self._new[name] = self._new.get(name, 0) + count
        records, events = self._last
        self._last = records + step.log_records, events + step.log_events

    def _counted_as(self, crawler: str) -> str:
        if len(self._crawlers) < CRAWLERS_MAX and len(crawler) <= CRAWLER_CHARS_MAX:
            self._crawlers.add(crawler)
        return crawler if crawler in self._crawlers else OTHER_CRAWLERS

    def tell(self, *, now: bool = False) -> None:
        """Write new counts to the store, at most once a second unless `now` is set; and that a worker is there."""
        self._heartbeat.beat()
        if not self._new or not (now or time.monotonic() - self._told >= TELL_SECONDS):
            return
        with store_errors(), self._shard.client.pipeline(transaction=True) as pipe:
            for name, count in self._new.items():
                pipe.hincrby(self._shard.keys.metrics, name, count)
            if all(self._last):
                pipe.hset(
                    self._shard.keys.metrics, mapping=dict(zip((LAST_RECORDS, LAST_EVENTS), self._last, strict=True))
                )
            pipe.execute()
        self._new, self._last, self._told = {}, (0, 0), time.monotonic()

    def end(self) -> None:
        """Write the last counts, and that this worker has ended."""
        self.tell(now=True)
        self._heartbeat.end()


def events_a_record(shard: Shard) -> float | None:
    """Return the mean number of events in the records of the log that a worker took last; None if none did.

    Args:
        shard: the crawl's first.
    """
    with store_errors():
        records, events = shard.client.hmget(shard.keys.metrics, LAST_RECORDS, LAST_EVENTS)
    return int(events) / int(records) if records and events else None


@dataclass(frozen=True, slots=True)
class Tallied:
    """The sums over all workers."""

    worker_at: int  # When a worker last said that it is there, in Unix seconds; 0 if none is.
    seconds: Buckets
    seconds_sum: float
    events: Buckets
    events_sum: float
    links: int  # Links looked up.
    cached: int  # Those among them found without parsing.
    round_trips: int
    links_left_out: int
    links_refused: int
    unknown: Mapping[str, int]  # Unknown fields of events, by the nearest known name.
    crawlers: Mapping[str, int]  # Crawl events by the name of their crawler.
    # Counted by the step itself, in kept.lua.
    letters_dropped: int
    meta_bytes: int
    metas_dropped: int
    # See EXPIRY_COUNTS.
    expired: int
    expired_parts: int
    expiry_passes: int
    expired_at: int

    @classmethod
    def commands(cls, crawl: Crawl) -> list[list[Any]]:
        """Return the commands that read the sums; `of` parses the replies."""
        return [["HGETALL", shard.keys.metrics] for shard in crawl.shards]

    @classmethod
    def of(cls, answers: Iterable[Mapping[bytes, bytes]]) -> "Tallied":
        """Sum the shards' hashes."""
        sums: dict[str, int] = {}
        worker_at = 0
        for stored in answers:
            worker_at = max([worker_at, *beats_of(stored).values()])
            for name, value in stored.items():
                sums[name.decode()] = sums.get(name.decode(), 0) + int(value)
        return cls(
            worker_at=worker_at,
            seconds=_buckets(sums, STEP_SECONDS),
            seconds_sum=sums.get("sum_us", 0) / 1_000_000,
            events=_buckets(sums, STEP_EVENTS, EVENTS),
            events_sum=float(sums.get(EVENTS + "sum", 0)),
            unknown={name: sums.get(UNKNOWN + name, 0) for name in NEAREST},
            crawlers={
                name.removeprefix(CRAWLER): count for name, count in sorted(sums.items()) if name.startswith(CRAWLER)
            },
            **{name: sums.get(name, 0) for name in (*PLAIN, *KEPT_COUNTS, *EXPIRY_COUNTS, EXPIRED_AT)},
        )


@lru_cache(maxsize=1_024)
def _nearest(name: str) -> str:
    return nearest_name(name, EVENT_FIELDS) or "none"


def _class(value: float, bounds: Iterable[float]) -> str:
    return next((str(bound) for bound in bounds if value <= bound), "inf")


def _buckets(counts: Mapping[str, int], bounds: Iterable[float], prefix: str = "") -> Buckets:
    buckets, total = [], 0
    for bound in bounds:
        total += counts.get(f"{prefix}{bound}", 0)
        buckets.append((str(float(bound)), float(total)))
    return [*buckets, ("+Inf", float(total + counts.get(prefix + "inf", 0)))]
