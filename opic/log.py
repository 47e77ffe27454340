"""The log of accepted events in the store itself: a Redis stream that plays a Kafka topic's part.

The source interface, which a Kafka consumer has as well: a partition's name, and records with consecutive offsets. An
event is accepted once it is in here and the server has synced its append-only file (`appendfsync always`: one sync
for all that arrived in one turn of its loop).
"""

from collections.abc import Sequence

from opic.errors import BadInput
from opic.events import Record
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys

VALUES_A_CALL = 1_000  # About 3 ms of server time.
BYTES_A_CALL = 8 << 20


class EventLog:
    """One partition."""

    partition = "log/0"

    def __init__(self, client: Client, keys: Keys) -> None:
        """Use a client that does not retry: nobody knows whether a lost append took effect."""
        self.client, self.keys = client, keys

    def append(self, values: Sequence[bytes], time_us: int, kind: str = "event") -> int:
        """Put records at the end, durably, in order.

        Args:
            values: encoded events, or lists of seeds.
            time_us: the records' time; the only 'now' that they will see.
            kind: "event" or "seeds".

        Returns:
            The offset after the last one.

        Raises:
            StoreUnavailable: the store is away; some of the values may have been taken.
        """
        if kind not in ("event", "seeds"):
            raise BadInput(f"a record is of kind event or seeds, not {kind!r}")
        end, at = self.end() if not values else 0, 0
        while at < len(values):
            stop, size = at, 0
            while stop < len(values) and stop - at < VALUES_A_CALL and (stop == at or size < BYTES_A_CALL):
                size += len(values[stop])
                stop += 1
            with store_errors():
                first = self.client.fcall(
                    "opic_1_append", 2, self.keys.log, self.keys.end, time_us, kind, *values[at:stop]
                )
            end, at = int(first) + stop - at, stop
        return end

    def end(self) -> int:
        """Return the offset that the next record will get."""
        with store_errors():
            return int(self.client.get(self.keys.end) or 0)

    def read(self, offset: int, count: int, wait_seconds: float = 0.0) -> list[Record]:
        """Return up to `count` records from `offset` on; wait for the first one up to `wait_seconds`."""
        with store_errors():
            if not wait_seconds:
                entries = self.client.xrange(self.keys.log, min=f"1-{offset}", count=count)
            else:
                after = f"1-{offset - 1}" if offset else "0"
                found = self.client.xread({self.keys.log: after}, count=count, block=round(wait_seconds * 1000))
                entries = found[0][1] if found else []
        return [
            Record(int(entry_id.partition(b"-")[2]), int(fields[b"t"]), fields[b"v"], fields[b"k"].decode())
            for entry_id, fields in entries
        ]

    def trim(self, offset: int) -> None:
        """Let go of records below `offset`, which have taken effect; roughly, since whole nodes are cheap to drop."""
        with store_errors():
            self.client.xtrim(self.keys.log, minid=f"1-{offset}", approximate=True)
