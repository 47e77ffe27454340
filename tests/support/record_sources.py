"""A source of records for the worker's loop that is no store: a list, read a few at a time."""

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from logs import PARTITION

from opic.ingest import ShardWriter, Step, worker
from opic.ingest.writer import Taken
from opic.model.events import Record

WORK_SECONDS_MAX = 60.0
PAUSE_SECONDS_MAX = 0.1


class Listed:
    """Records in order of their offsets."""

    partition = PARTITION

    def __init__(self, records: Sequence[Record], count: int = 100, before: Callable[[int], object] = lambda _: None):
        """Give out `count` at a time; `before` is told each offset that is read from."""
        self.records, self._count, self._before = records, count, before
        self.asked: list[int] = []

    def read(self, offset: int, count: int, wait_seconds: float = 0.0) -> list[Record]:
        self._before(offset)
        self.asked.append(offset)
        first = bisect_left(self.records, offset, key=lambda record: record.offset)
        return list(self.records[first : first + min(count, self._count)])

    def era(self) -> bytes:
        """One era: a restore changes the store, but not Kafka."""
        return b""

    def trim(self, offset: int, era: bytes) -> None:
        """Nothing is let go of: Kafka keeps records for days."""


def work_through(store: Any, source: Listed, until: int | None = None) -> None:
    """Let all records take effect by the worker's own loop, however often the store is away meanwhile.

    `store`: of one shard, or a writer to all.
    """
    deadline = time.monotonic() + WORK_SECONDS_MAX
    effects = _OneShard(store) if isinstance(store, ShardWriter) else store
    listed = worker.LogSource(
        source,  # type: ignore[arg-type]
        effects.resume,
        pause=lambda seconds: time.sleep(min(seconds, PAUSE_SECONDS_MAX)),
        until_offset=source.records[-1].offset + 1 if until is None else until,
    )
    worker.work(effects, listed, stopped=lambda: time.monotonic() > deadline)
    assert time.monotonic() < deadline, "the log did not get through in time"


class _OneShard:
    """A store as the worker's loop wants it: nothing is to be carried between shards."""

    def __init__(self, store: Any) -> None:
        self.resume, self.purge, self.stores = store.next_offset, store.purge, [store]

    def apply_together(self, takings: Sequence[Taken], on_step: Callable[[Step], object]) -> None:
        for taken in takings:
            self.stores[0].apply(taken.partition, taken.records, on_step, taken.since)

    def deliver(self, _: object = None) -> int:
        return 0

    def responsible(self, _partition: int, _partitions: int) -> list[int]:
        return []


class Durable(ShardWriter):
    """A store whose records count as applied once the barrier says so, as the writer has it."""

    def apply(self, *args: Any, **named: Any) -> None:
        super().apply(*args, **named)
        self.shard.barrier()
