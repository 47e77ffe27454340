"""The log of accepted events in the store itself: a Redis stream that plays a Kafka topic's part.

The source interface, which a Kafka consumer has as well: a partition's name, and records with consecutive offsets. An
event is accepted once it is in here and the server has synced its append-only file (`appendfsync always`: one sync
for all that arrived in one turn of its loop).

A call with an Idempotency-Key is appended once, though its values may need several appends and its sender may die
between any two of them: how far it came is written in the same call as the records.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgpack

from opic.errors import BadInput, KeyReused, KeysFull
from opic.model.events import RECORD_KINDS, EventLimits, Record
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys

VALUES_A_CALL = 1_000  # About 3 ms of server time.
BYTES_A_CALL = 8 << 20
RECORDS_A_READ = 100
BYTES_A_READ = 16 << 20
DIGEST_BYTES: Final = 16
Positions = Mapping[str, int]  # By partition, an offset: how far something is.
KEYS_MAX: Final = 1_000_000  # Remembered at once; about 300 bytes each.


@dataclass(frozen=True, slots=True)
class KeyedCall:
    """A call that takes effect once: digests of its Idempotency-Key and of its body."""

    key: bytes
    body: bytes

    @classmethod
    def of(cls, key: str, form: str, body: bytes) -> "KeyedCall":
        """Name a call by its key, and its body by the bytes and the form in which they are read."""
        digest = blake2b(form.encode() + b"\0", digest_size=DIGEST_BYTES)
        digest.update(body)
        return cls(blake2b(key.encode(), digest_size=DIGEST_BYTES).digest(), digest.digest())


@dataclass(frozen=True, slots=True)
class AppendTerms:
    """What a call's elements were judged by, when it first came. By the same terms a repeat finds the same values."""

    time_us: int
    limits: EventLimits

    def pack(self) -> bytes:
        """Write them for the store."""
        packed: bytes = msgpack.packb((self.time_us, self.limits.links_max, self.limits.url_bytes_max))
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> "AppendTerms":
        """Read what `pack` wrote."""
        time_us, links_max, url_bytes_max = msgpack.unpackb(packed)
        return cls(time_us, EventLimits(links_max, url_bytes_max))


@dataclass(frozen=True, slots=True)
class Begun:
    """A call that the store remembers: by which terms it was judged, and how many of its values are in the log."""

    terms: AppendTerms
    done: int


class Log(Protocol):
    """Where events are accepted into: the log in the store, or a Kafka topic."""

    @property
    def single(self) -> bool:
        """Whether all records take effect in the order in which they were accepted."""

    def append(self, values: Sequence[bytes], time_us: int, kind: str = "event") -> Positions:
        """Put records at the end, durably; return the ends of the partitions that got some."""

    def begun(self, call: KeyedCall) -> Begun | None:
        """Return how far a call with an Idempotency-Key came, if it came before."""

    def append_once(self, call: KeyedCall, values: Sequence[bytes], begun: Begun | None, terms: AppendTerms) -> bool:
        """Put those events of a call at the end that did not take effect yet; False: by other terms than these."""

    def ends(self) -> Positions:
        """Return the end of each partition."""

    def close(self) -> None:
        """Let go of all connections."""


class EventLog:
    """One partition."""

    partition = "log/0"
    single = True

    def __init__(self, client: Client, keys: Keys, keys_max: int = KEYS_MAX) -> None:
        """Use a client that does not retry: nobody knows whether a lost append took effect."""
        self.client, self.keys, self.keys_max = client, keys, keys_max

    def append(self, values: Sequence[bytes], time_us: int, kind: str = "event") -> Positions:
        """Put records at the end, durably, in order.

        Args:
            values: encoded events, or lists of seeds.
            time_us: the records' time; the only 'now' that they will see.
            kind: one of RECORD_KINDS.

        Returns:
            The partition's offset after the last one.

        Raises:
            StoreUnavailable: the store is away; some of the values may have been taken.
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
        """Return how far a call came, if it came before, within a day.

        Raises:
            KeyReused: the key came with another body.
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
        """Put those events of a call at the end that are not in the log yet, durably, in order.

        May be repeated, by several at once too: each value gets in once. A call without values is remembered as well.

        Args:
            call: which.
            values: all of its encoded events, as judged by the terms.
            begun: what is known of it, with the same terms.
            terms: by which the values were judged.

        Returns:
            True once all are in; False if somebody began the call by other terms: judge it by those, and come again.

        Raises:
            KeyReused: the key came with another body.
            KeysFull: too many keys are remembered.
            StoreUnavailable: the store is away; some of the values may have been taken. To repeat the call is safe.
        """
        at, remembered = begun.done if begun else 0, begun is not None
        while at < len(values) or not remembered:
            stop = _stop(values, at)
            said, *more = self._append(values[at:stop], terms.time_us, "event", (call.key, call.body, terms.pack(), at))
            if said == b"OTHER":
                raise _reused()
            if said == b"FULL":
                wait = max(1, -int(-(float(more[0]) - _now_us()) // 1_000_000))
                raise KeysFull(
                    f"{self.keys_max:,} Idempotency-Keys of the last 24 hours are remembered, OPIC_MAX_KEYS allows no "
                    f"more; the first ends in {wait:,} s: send events without a key, or in larger calls",
                    wait,
                )
            if said == b"AT":
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
        """Return it by partition."""
        return {self.partition: self.end()}

    def close(self) -> None:
        """Let go of all connections."""
        self.client.close()

    def read(self, offset: int, count: int, wait_seconds: float = 0.0) -> list[Record]:
        """Return records from `offset` on, up to `count`; wait for the first one up to `wait_seconds`.

        Fewer come where they are large, for they lie in memory together: none is asked for past BYTES_A_READ.
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
        """Let go of records below `offset`, which have taken effect; roughly, and not while a backup reads them."""
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
        "this Idempotency-Key came with another body in the last 24 hours: repeat that body, or choose another key"
    )
