"""A record that is to take effect, with the partition that it comes from."""

from dataclasses import dataclass

from opic.model.event_checks import decode_record
from opic.model.events import CheckedEvent, EventLimits, Record


@dataclass(slots=True)
class Input:
    """A record with its partition. Keeps the decoded event, so that a retry does not decode it again."""

    partition: str
    record: Record
    event: CheckedEvent | None = None
    previous: bytes | None = None  # For an outbox entry: the digest of the entry before it.

    def decoded(self, limits: EventLimits) -> CheckedEvent:
        """Return the decoded event."""
        if self.event is None:
            self.event = decode_record(self.partition, self.record, limits)
        return self.event
