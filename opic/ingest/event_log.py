"""The event log in the store: a Redis stream of accepted events, used instead of a Kafka topic.

Like a Kafka partition, it has a name and records with consecutive offsets. An event is accepted once it is in the
stream and the server has synced its append-only file (`appendfsync always`: one sync for all commands of one event-loop
iteration).

A call with an Idempotency-Key is appended once, even if its values need several appends and the sender dies between
two of them: the progress of the call is stored in the same function call as the records.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgpack

from opic.errors import BadInput, KeyReused, KeysFull
from opic.model.events import LOG_PARTITION, RECORD_KINDS, EventLimits, Record
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys

VALUES_A_CALL = 1_000  # About 3 ms of server time.
BYTES_A_CALL = 8 << 20
RECORDS_A_READ = 100
BYTES_A_READ = 16 << 20
DIGEST_BYTES: Final = 16
Positions = Mapping[str, int]  # Partition -> offset.
KEYS_MAX: Final = 1_000_000  # Idempotency-Keys remembered at a time; about 300 bytes each.


@dataclass(frozen=True, slots=True)
class KeyedCall:
    """An idempotent call: digests of its Idempotency-Key and of its body."""

    key: bytes
    body: bytes

    @classmethod
    def of(cls, key: str, form: str, body: bytes) -> "KeyedCall":
        """Compute the digests of a key and of a body, which includes the format in which the body is read."""
        digest = blake2b(form.encode() + b"\0", digest_size=DIGEST_BYTES)
        digest.update(body)
        return cls(blake2b(key.encode(), digest_size=DIGEST_BYTES).digest(), digest.digest())


@dataclass(frozen=True, slots=True)
class AppendTerms:
    """The time and limits by which a call's events were first checked. A repeat uses the same, for the same result."""

    time_us: int
    limits: EventLimits

    def pack(self) -> bytes:
        """Serialise the terms for the store."""
        packed: bytes = msgpack.packb((self.time_us, self.limits.links_max, self.limits.url_bytes_max))
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> "AppendTerms":
        """Deserialise terms packed by `pack`."""
        time_us, links_max, url_bytes_max = msgpack.unpackb(packed)
        return cls(time_us, EventLimits(links_max, url_bytes_max))


@dataclass(frozen=True, slots=True)
class Begun:
    """A call that the store remembers: the terms by which it was checked, and how many of its values are in the log."""

    terms: AppendTerms
    done: int


class Log(Protocol):
    """A log that accepts events: the log in the store, or a Kafka topic."""

    @property
    def single(self) -> bool:
        """Whether all records take effect in the order in which they were accepted."""

    def append(self, values: Sequence[bytes], time_us: int, kind: str = "event") -> Positions:
        """Append records durably; return the end offsets of the partitions that received some."""

    def begun(self, call: KeyedCall) -> Begun | None:
        """Return the progress of a call with an Idempotency-Key, None for a new call."""

    def append_once(self, call: KeyedCall, values: Sequence[bytes], begun: Begun | None, terms: AppendTerms) -> bool:
        """Append the events of a call that are not in the log yet; return False if it was begun with other terms."""

    def ends(self) -> Positions:
        """Return the end of each partition."""

    def close(self) -> None:
        """Close all connections."""


class EventLog:
    """The event log in the store, a single partition."""

    partition = LOG_PARTITION
    single = True

    def __init__(self, client: Client, keys: Keys, keys_max: int = KEYS_MAX) -> None:
        """Use a client that does not retry: after a lost connection, an append may or may not have taken effect."""
        self.client, self.keys, self.keys_max = client, keys, keys_max

    def append(self, values: Sequence[bytes], time_us: int, kind: str = "event") -> Positions:
        """Append records durably, in order.

        Args:
            values: encoded events, or lists of seeds.
            time_us: time of the records; processing them uses this as the current time.
            kind: one of RECORD_KINDS.

        Returns:
            The partition's offset after the last record.

        Raises:
            StoreUnavailable: the store is unavailable; some of the values may have been appended.
        """
        if kind not in RECORD_KINDS:
            raise BadInput(f"a record is of kind {' or '.join(RECORD_KINDS)}, not {kind!r}")
        end, at = self.end() if not values else 0, 0
        while at < len(values):
            stop = _stop(values, at)
            _, first = self._append(values[at:stop], time_us, kind)
            end, at = int(first) + stop - at, stop
        return {self.partition: end}

    def begun(self, call: KeyedCall) -> Begun | None:
        """Return the progress of a call made within the last day, None for a new call.

        Raises:
            KeyReused: the key was used with another body.
        """
        with store_errors(), self.client.pipeline(transaction=True) as pipe:
            pipe.hget(self.keys.calls, call.key)
            pipe.zscore(self.keys.call_ends, call.key)
            packed, ends = pipe.execute()
        if packed is None or ends is None or ends <= _now_us():
            return None
        body, terms, done = msgpack.unpackb(packed, raw=True)
        if body != call.body:
            raise _reused()
        return Begun(AppendTerms.unpack(terms), done)

    def append_once(self, call: KeyedCall, values: Sequence[bytes], begun: Begun | None, terms: AppendTerms) -> bool:
        """Append the events of a call that are not in the log yet, durably, in order.

        It may be repeated, also concurrently: each value is appended once. A call without values is remembered too.

        Args:
            call: the call.
            values: all encoded events of the call, as checked by the terms.
            begun: the progress of the call, with the same terms; None if unknown.
            terms: the terms by which the values were checked.

        Returns:
            True once all values are in the log. False if the call was begun with other terms: check the events by
            those, then call again.

        Raises:
            KeyReused: the key was used with another body.
            KeysFull: too many keys are remembered.
            StoreUnavailable: the store is unavailable; some of the values may have been appended. It is safe to retry.
        """
        at, remembered = begun.done if begun else 0, begun is not None
        while at < len(values) or not remembered:
            stop = _stop(values, at)
            status, *more = self._append(
                values[at:stop], terms.time_us, "event", (call.key, call.body, terms.pack(), at)
            )
            if status == b"OTHER":
                raise _reused()
            if status == b"FULL":
                wait = max(1, -int(-(float(more[0]) - _now_us()) // 1_000_000))
                raise KeysFull(
                    f"{self.keys_max:,} Idempotency-Keys of the last 24 hours are remembered, OPIC_MAX_KEYS allows no "
                    f"more; the first ends in {wait:,} s: send events without a key, or in larger calls",
                    wait,
                )
            if status == b"AT":
                if AppendTerms.unpack(more[0]) != terms:
                    return False
                at = int(more[1])
            else:
                at = stop
            remembered = True
        return True

    def _append(
        self,
        values: Sequence[bytes],
        time_us: int,
        kind: str,
        call: tuple[bytes, bytes, bytes, int] = (b"", b"", b"", 0),
    ) -> list[Any]:
        keys = self.keys
        fixed = (time_us, kind, *call, _now_us(), self.keys_max)
        with store_errors():
            answer: list[Any] = self.client.fcall(
                "opic_4_append", 4, keys.log, keys.end, keys.calls, keys.call_ends, *fixed, *values
            )
        return answer

    def end(self) -> int:
        """Return the offset that the next record will get."""
        with store_errors():
            return int(self.client.get(self.keys.end) or 0)

    def ends(self) -> Positions:
        """Return the end offset by partition."""
        return {self.partition: self.end()}

    def close(self) -> None:
        """Close all connections."""
        self.client.close()

    def read(self, offset: int, count: int, wait_seconds: float = 0.0) -> list[Record]:
        """Return up to `count` records from `offset` on; wait up to `wait_seconds` for the first one.

        To limit memory, reading stops after BYTES_A_READ, so large records come in smaller numbers.
        """
        records: list[Record] = []
        size = 0
        while len(records) < count and size < BYTES_A_READ:
            at, most = offset + len(records), min(count - len(records), RECORDS_A_READ)
            with store_errors():
                if wait_seconds and not records:
                    after = f"1-{at - 1}" if at else "0"
                    found = self.client.xread({self.keys.log: after}, count=most, block=round(wait_seconds * 1000))
                    entries = found[0][1] if found else []
                else:
                    entries = self.client.xrange(self.keys.log, min=f"1-{at}", count=most)
            for entry_id, fields in entries:
                number = int(entry_id.partition(b"-")[2])
                records.append(Record(number, int(fields[b"t"]), fields[b"v"], fields[b"k"].decode()))
                size += len(fields[b"v"])
            if len(entries) < most:
                break
        return records

    def trim(self, offset: int) -> None:
        """Trim records below `offset`, which have taken effect; approximately, and not while a backup reads them."""
        with store_errors():
            self.client.fcall("opic_4_trim_log", 2, self.keys.log, self.keys.offsets, offset)


def _stop(values: Sequence[bytes], at: int) -> int:
    """Return where the append that starts at `at` ends."""
    stop, size = at, 0
    while stop < len(values) and stop - at < VALUES_A_CALL and (stop == at or size < BYTES_A_CALL):
        size += len(values[stop])
        stop += 1
    return stop


def _now_us() -> int:
    return time.time_ns() // 1000


def _reused() -> KeyReused:
    return KeyReused(
        "this Idempotency-Key was used with another body in the last 24 hours: send that body, or choose another key"
    )
