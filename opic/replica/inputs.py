"""Input of a batch: a record of a log with the partition that it is from, and its events."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opic.model.event_checks import decode_events
from opic.model.events import CheckedEvent, EventLimits, Record


class Item(NamedTuple):
    """One event of a record. `number` is its place among all events of the record, from 0."""

    partition: str
    record: Record
    number: int
    previous: bytes | None  # For an outbox entry: the digest of the entry before it.

    @property
    def call(self) -> bytes:
        """The name of the event in a call with an Idempotency-Key; b"" without one."""
        return self.record.call_of(self.number)


@dataclass(slots=True)
class Input:
    """A record with its partition. Keeps the decoded events, so that a retry does not decode them again."""

    partition: str
    record: Record
    events: Sequence[CheckedEvent] | None = None  # Those that the batch's shard takes; None: all, not decoded yet.
    indexes: Sequence[int] | None = None  # Of these events in the record; None: it takes all.
    previous: bytes | None = None

    def decoded(self, limits: EventLimits) -> Sequence[CheckedEvent]:
        if self.events is None:
            self.events = decode_events(self.partition, self.record, limits)
        return self.events

    def items(self) -> list[Item]:
        """Return an item for each of the events, which are decoded."""
        assert self.events is not None
        indexes = range(len(self.events)) if self.indexes is None else self.indexes
        return [Item(self.partition, self.record, index, self.previous) for index in indexes]
