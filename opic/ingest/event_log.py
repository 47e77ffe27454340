"""The event log in the store: a Redis stream of accepted events, used instead of a Kafka topic.

Like a Kafka partition, it has a name and records with increasing offsets. A record of n events has n offsets, of which
the last one names it: so the difference of two offsets is a number of events. An event is accepted once it is in the
stream and the server has synced its append-only file (`appendfsync always`: one sync for all commands of one event-loop
iteration). Events that are appended together are packed: an entry has many (`opic.model.packed_events`).

A call with an Idempotency-Key is appended once, even if its values need several appends and the sender dies between
two of them: the progress of the call is stored in the same function call as the records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Protocol

import msgpack

from opic.errors import BadInput, BeingRestored, KeyReused, KeysFull, StoreLost
from opic.ingest.throttle import Throttle
from opic.model.events import LOG_PARTITION, RECORD_KINDS, EventLimits, Record
from opic.model.packed_events import packs
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys, of_call
from opic.store.server_clock import ServerClock

VALUES_A_CALL = 1_000  # About 3 ms of server time.
BYTES_A_CALL = 8 << 20
RECORDS_A_READ = 100
BYTES_A_READ = 16 << 20
DIGEST_BYTES: Final = 16
Positions = Mapping[str, int]  # Partition -> offset.
ANY_ERA: Final = b"*"
KEY_MEMORY_BYTES: Final = 256  # Of the server for an Idempotency-Key: its entries in a hash and a sorted set.
KEYS_MAX: Final = (1 << 30) // KEY_MEMORY_BYTES


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
        packed: bytes = msgpack.packb((self.time_us, self.limits.links_max, self.limits.url_bytes_max))
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> "AppendTerms":
        time_us, links_max, url_bytes_max = msgpack.unpackb(packed)
        return cls(time_us, EventLimits(links_max, url_bytes_max))


@dataclass(frozen=True, slots=True)
class Begun:
    """A call that the store remembers: the terms of its check, and how many of its records are in the log.

    Attributes:
        terms: of the check.
        done: how many of its records are in the log.
        packed: how its records were counted: 1 if events were packed, 0 if each was one; None: as the log has them.
        era: of the log that has them.
    """

    terms: AppendTerms
    done: int
    packed: int | None = None
    era: bytes = field(default=ANY_ERA, compare=False)


class LogPositions(dict[str, int]):
    """Positions in the log in the store, and the era in which they are valid: until a backup is restored."""

    era: bytes = ANY_ERA


class Log(Protocol):
    """A log that accepts events: the log in the store, or a Kafka topic."""

    throttle: Throttle
    mean_events: float  # That the difference of two offsets of one stands for.

    @property
    def single(self) -> bool:
        """Whether all records take effect in the order in which they were accepted."""

    def append(self, values: Sequence[bytes], time_us: int, kind: str = "event") -> Positions:
        """Append records durably; return the end offsets of the partitions that received some."""

    def begun(self, call: KeyedCall) -> Begun | None:
        """Return the progress of a call with an Idempotency-Key, None for a new call."""

    def append_once(
        self, call: KeyedCall, values: Sequence[bytes], begun: Begun | None, terms: AppendTerms
    ) -> Positions | None:
        """Append the events of a call that are not in the log yet; return None if it was begun with other terms."""

    def left(self, begun: Begun, values: Sequence[bytes]) -> int:
        """Return how many events of a call are not in the log yet, about."""

    def ends(self, named: Iterable[str] = ()) -> Positions:
        """Return the end of each partition. The log is asked whether it has those that are named, if they are new."""

    def missing(self) -> Mapping[str, int]:
        """Return how many events are gone from the log that have not taken effect, by partition."""

    def close(self) -> None:
        """Close all connections."""


class EventLog:
    """The event log in the store, a single partition."""

    partition = LOG_PARTITION
    single = True
    mean_events = 1.0  # Its offsets count events.

    def __init__(self, client: Client, keys: Keys, keys_max: int = KEYS_MAX, *, packs_events: bool = True) -> None:
        """Use a client that does not retry: after a lost connection, an append may or may not have taken effect.

        A crawl of many shards is not to pack events: at its beginning the shards take no more of them at a time than
        they have pages, so that they know the pages that others link to.
        """
        self.client, self.keys, self.keys_max, self._packs_events = client, keys, keys_max, packs_events
        self.throttle = Throttle()  # A store has no quotas.
        self.clock = ServerClock(client, keys.log)

    def append(self, values: Sequence[bytes], time_us: int, kind: str = "event") -> Positions:
        """Append records durably, in order.

        Args:
            values: encoded events, or lists of seeds.
            time_us: time of the records; processing them uses this as the current time.
            kind: one of RECORD_KINDS.

        Returns:
            The partition's offset after the last record.

        Raises:
            BeingRestored: a backup is being restored, or was restored between two parts of the values.
            StoreUnavailable: the store is unavailable; some of the values may have been appended.
        """
        if kind not in RECORD_KINDS:
            raise BadInput(f"a record is of kind {' or '.join(RECORD_KINDS)}, not {kind!r}")
        values = self._records(values) if kind == "event" else values
        end, start, era = self.end() if not values else 0, 0, ANY_ERA
        while start < len(values):
            stop = _stop(values, start)
            _, end, era = self._append(values[start:stop], time_us, kind, era=era)
            start = stop
        positions = LogPositions({self.partition: int(end)})
        positions.era = era
        return positions

    def begun(self, call: KeyedCall) -> Begun | None:
        """Return the progress of a call made within the last day, None for a new call.

        Raises:
            KeyReused: the key was used with another body.
        """
        keys = self.keys
        with store_errors():
            answer = self.client.fcall_ro("opic_5_begun", 3, keys.calls, keys.call_ends, keys.meta, call.key)
        if not answer:
            return None
        packed, era = answer
        body, terms, done, *counted = msgpack.unpackb(packed, raw=True)
        if body != call.body:
            raise _reused()
        return Begun(AppendTerms.unpack(terms), done, counted[0] if counted else None, era or b"")

    def append_once(
        self, call: KeyedCall, values: Sequence[bytes], begun: Begun | None, terms: AppendTerms
    ) -> Positions | None:
        """Append the events of a call that are not in the log yet, durably, in order.

        It may be repeated, also concurrently: each value is appended once. A call without values changes nothing, so
        it is not remembered.

        Args:
            call: the call.
            values: all encoded events of the call, as checked by the terms.
            begun: the progress of the call, with the same terms; None if unknown.
            terms: the terms by which the values were checked.

        Returns:
            A position that all values are below. None if the call was begun with other terms: check the events by
            those, then call again.

        Raises:
            KeyReused: the key was used with another body.
            KeysFull: too many keys are remembered.
            BeingRestored: as `append`.
            StoreUnavailable: the store is unavailable; some of the values may have been appended. It is safe to retry.
        """
        if not values and begun is None:
            return self.ends()
        return self.remember(call, values, begun, terms)

    def left(self, begun: Begun, values: Sequence[bytes]) -> int:
        """Return how many events of a call are not in the log yet, about: records that pack them are counted."""
        records = self._records(values, begun)
        return len(values) * (len(records) - begun.done) // max(len(records), 1)

    def _records(self, values: Sequence[bytes], begun: Begun | None = None) -> Sequence[bytes]:
        packed = self._packs_events if begun is None or begun.packed is None else begun.packed
        return list(packs(values)) if packed else values

    def remember(
        self, call: KeyedCall, values: Sequence[bytes], begun: Begun | None, terms: AppendTerms
    ) -> Positions | None:
        """Append the events of a call as `append_once`, but remember one without values too: others are elsewhere."""
        start, remembered, era = begun.done if begun else 0, begun is not None, begun.era if begun else ANY_ERA
        values, end = self._records(values, begun), 0
        while start < len(values) or not remembered:
            stop = _stop(values, start)
            status, *more = self._append(
                values[start:stop], terms.time_us, "event", (call.key, call.body, terms.pack(), start), era
            )
            if status == b"OTHER":
                raise _reused()
            if status == b"FULL":
                wait = max(1, -(-int(more[0]) // 1_000_000))
                raise KeysFull(
                    f"{self.keys_max:,} Idempotency-Keys of the last 24 hours are remembered, of {KEY_MEMORY_BYTES} "
                    f"bytes each; OPIC_MAX_KEYS_BYTES allows no more. The first ends in {wait:,} s: raise it, send "
                    "more events in a call, or send them without a key",
                    wait,
                )
            if status == b"AT":
                if more[0] != terms.pack():
                    return None
                start, end = int(more[1]), 0  # Another caller appended up to there, and knows where that ends.
            else:
                start, end = stop, int(more[0])
            remembered, era = True, more[-1]
        positions = LogPositions({self.partition: end or self.end()})
        positions.era = era
        return positions

    def _append(
        self,
        values: Sequence[bytes],
        time_us: int,
        kind: str,
        call: tuple[bytes, bytes, bytes, int] = (b"", b"", b"", 0),
        era: bytes = ANY_ERA,
    ) -> list[Any]:
        keys = self.keys
        names = (keys.log, keys.end, keys.calls, keys.call_ends, keys.meta, keys.head)
        fixed = (time_us, kind, *call, self.keys_max, era)
        with store_errors():
            answer: list[Any] = self.client.execute_command(*of_call("append", names, *fixed, *values))
        if answer[0] == b"CLOSED":
            raise BeingRestored(
                f"crawl {keys.crawl!r} accepts nothing while a backup is restored into it: try again; if a restore "
                "broke off, run `opic restore --replace` again"
            )
        if answer[0] == b"GONE":
            raise StoreLost(keys.crawl, "its first shard is gone")
        if answer[0] == b"ERA":
            raise BeingRestored(f"a backup was restored into crawl {keys.crawl!r} meanwhile: send all of it again")
        return answer

    def era(self) -> bytes:
        """Return the present era of the log: each restored backup begins another."""
        with store_errors():
            return self.client.hget(self.keys.meta, "era") or b""

    def check_era(self, positions: Positions) -> None:
        """Raise BeingRestored if positions that `append` returned are of an earlier era of this log."""
        if isinstance(positions, LogPositions) and positions.era not in (ANY_ERA, self.era()):
            raise BeingRestored("accepted, but then a backup was restored, which replaced the log: send it again")

    def end(self) -> int:
        """Return the offset that the next record will get."""
        with store_errors():
            return int(self.client.get(self.keys.end) or 0)

    def ends(self, named: Iterable[str] = ()) -> Positions:
        return {self.partition: self.end()}

    def missing(self) -> Mapping[str, int]:
        """Return nothing: only what has taken effect is trimmed from this log."""
        return {}

    def close(self) -> None:
        self.client.close()

    def read(self, offset: int, count: int, wait_seconds: float = 0.0) -> list[Record]:
        """Return up to `count` records from `offset` on; wait up to `wait_seconds` for the first one.

        To limit memory, reading stops after BYTES_A_READ, so large records come in smaller numbers.
        """
        records: list[Record] = []
        size = 0
        while len(records) < count and size < BYTES_A_READ:
            next_offset, most = records[-1].offset + 1 if records else offset, min(count - len(records), RECORDS_A_READ)
            with store_errors():
                if wait_seconds and not records:
                    after = f"1-{next_offset - 1}" if next_offset else "0"
                    reply = self.client.xread({self.keys.log: after}, count=most, block=round(wait_seconds * 1000))
                    entries = reply[0][1] if reply else []
                else:
                    entries = self.client.xrange(self.keys.log, min=f"1-{next_offset}", count=most)
            for entry_id, fields in entries:
                number = int(entry_id.partition(b"-")[2])
                records.append(Record(number, int(fields[b"t"]), fields[b"v"], fields[b"k"].decode()))
                size += len(fields[b"v"])
            if len(entries) < most:
                break
        return records

    def trim(self, offset: int, era: bytes = ANY_ERA) -> None:
        """Trim records below `offset`, which have taken effect in an era; approximately, and not during a backup."""
        keys = self.keys
        with store_errors():
            self.client.execute_command(*of_call("trim_log", (keys.log, keys.offsets, keys.meta), offset, era))


def offsets_of(fields: Mapping[bytes, bytes]) -> int:
    """Return how many offsets an entry of the log has: one for each event of its record."""
    return int(fields.get(b"n", 1))


def _stop(values: Sequence[bytes], start: int) -> int:
    """Return where the append that begins at `start` ends."""
    stop, size = start, 0
    while stop < len(values) and stop - start < VALUES_A_CALL and (stop == start or size < BYTES_A_CALL):
        size += len(values[stop])
        stop += 1
    return stop


def _reused() -> KeyReused:
    return KeyReused(
        "this Idempotency-Key was used with another body in the last 24 hours: send that body, or choose another key"
    )
