"""The worker's loop: read records, let them take effect, go on from where the store says.

It keeps nothing of its own. The store holds the offset of the first record that has not taken effect, written in the
same call as the effect, so a worker may be killed and started anywhere.
"""

import logging
import random
import time
from collections.abc import Callable
from typing import Final

from opic.errors import DiskFull, StoreUnavailable
from opic.log import EventLog
from opic.store import Shard, Store
from opic.store.connection import store_errors

log = logging.getLogger("opic.worker")

RECORDS_A_READ = 2_000
IDLE_SECONDS = 0.5  # The longest wait for a record, after which we look whether to stop.
BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MAX_SECONDS = 5.0
TELL_SECONDS = 1.0
BATCH_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class BatchTimes:
    """How long batches took, added up in the store, where whoever answers /metrics finds it.

    A histogram: fields of a hash hold the number of batches in each class of BATCH_SECONDS (`inf` above them) and the
    sum in microseconds. Written once a second, never in the call that takes effect; a killed worker loses a second.
    """

    def __init__(self, shard: Shard) -> None:
        """Nothing is written yet."""
        self._shard = shard
        self._new: dict[str, int] = {}
        self._told = time.monotonic()

    def add(self, seconds: float) -> None:
        """Count a batch."""
        name = next((str(bound) for bound in BATCH_SECONDS if seconds <= bound), "inf")
        self._new[name] = self._new.get(name, 0) + 1
        self._new["sum_us"] = self._new.get("sum_us", 0) + round(seconds * 1_000_000)

    def tell(self, *, now: bool = False) -> None:
        """Write what is new, if it is time."""
        if not self._new or not (now or time.monotonic() - self._told >= TELL_SECONDS):
            return
        with store_errors(), self._shard.client.pipeline(transaction=True) as pipe:
            for name, count in self._new.items():
                pipe.hincrby(self._shard.keys.metrics, name, count)
            pipe.execute()
        self._new, self._told = {}, time.monotonic()


def batch_times(shard: Shard) -> tuple[list[tuple[str, float]], float]:
    """Return what workers measured, as Prometheus wants a histogram: cumulative counts by upper bound, and the sum."""
    with store_errors():
        found = {name.decode(): int(value) for name, value in shard.client.hgetall(shard.keys.metrics).items()}
    buckets, total = [], 0
    for name in (*map(str, BATCH_SECONDS), "inf"):
        total += found.get(name, 0)
        buckets.append(("+Inf" if name == "inf" else name, float(total)))
    return buckets, found.get("sum_us", 0) / 1_000_000


def work(
    store: Store,
    source: EventLog,
    *,
    stopped: Callable[[], bool],
    pause: Callable[[float], object],
    until_offset: int | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
    times: BatchTimes | None = None,
    full: Callable[[], str | None] = lambda: None,
) -> None:
    """Let records take effect until told to stop, or up to an offset.

    When the store is away, or its disk is full, it is asked again for ever, with a jittered wait that doubles up to
    BACKOFF_MAX_SECONDS.

    Args:
        store: that the effects go to.
        source: of records.
        stopped: asked between batches.
        pause: waits up to so many seconds, less when it is time to stop.
        until_offset: return once the records below it have taken effect.
        on_progress: told the next offset after each batch.
        times: told how long each batch took.
        full: asked before each batch why the disk has no room for it; None if it has.
    """
    backoff = BACKOFF_FIRST_SECONDS
    offset: int | None = None
    while not stopped():
        try:
            if offset is None:
                offset = store.next_offset(source.partition)
            if until_offset is not None and offset >= until_offset:
                return
            records = source.read(offset, RECORDS_A_READ, wait_seconds=IDLE_SECONDS)
            if records:
                if (reason := full()) is not None:
                    raise DiskFull(reason)
                began = time.perf_counter()
                store.apply(source.partition, records)
                if times is not None:
                    times.add(time.perf_counter() - began)
                offset = records[-1].offset + 1
                source.trim(offset)
                on_progress(offset)
            if times is not None:
                times.tell()
            backoff = BACKOFF_FIRST_SECONDS
        except StoreUnavailable as error:
            wait = backoff * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
            log.warning("%s; asking again in %.1f s", error, wait)
            pause(wait)
            backoff, offset = min(2 * backoff, BACKOFF_MAX_SECONDS), None
