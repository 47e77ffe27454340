"""Dead letters: refused events with the reason. The step writes each of them once, to the stream of its shard.

Without Kafka they stay there, the newest of each shard: up to 100,000, and OPIC_MAX_DEAD_LETTER_BYTES in all. With
Kafka, a worker forwards them to a topic (`opic.ingest.kafka.dead_letter_topic`).
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple, Protocol

from opic.ingest.event_log import AppendTerms, EventLog, KeyedCall
from opic.model.events import EventLimits
from opic.replica import Crawl
from opic.store.connection import store_errors
from opic.store.shard import Shard

log = logging.getLogger("opic.ingest")

LETTERS_A_CALL: Final = 100
LETTERS_BACK_A_CALL: Final = 20  # Reading backwards needs few letters, and one may be as large as a request body.


@dataclass(frozen=True, slots=True)
class Letter:
    """A refused record, with the reason and its origin."""

    id: str  # Id of the entry in the store, or of the record on the dead-letter topic.
    error: str
    topic: str
    partition: str
    offset: int
    value: bytes  # The value, or the requested part of it.
    value_bytes: int  # Size of the whole value.
    at: float  # Unix seconds when the record was refused.
    replayed: bool = False
    index: int | None = None  # Of the event in the array that is the record's value; None if the record is the letter.

    def shown(self) -> dict[str, object]:
        """Return the letter as a dict for output; bytes of the value that are not UTF-8 are escaped."""
        return {**asdict(self), "value": self.value.decode("utf-8", "backslashreplace")}

    @property
    def origin(self) -> str:
        """Where it was, as TOPIC/PARTITION@OFFSET, or TOPIC/PARTITION@OFFSET[INDEX] for an event of an array."""
        index = "" if self.index is None else f"[{self.index}]"
        return f"{self.topic}/{self.partition}@{self.offset}{index}"

    def is_whole(self) -> bool:
        """Return whether it has its whole value, so that it can be published again; log a warning if not."""
        if self.value_bytes > len(self.value):
            log.warning(
                "%s can't be published again: the dead letter has only the first %s of its %s bytes",
                self.origin, f"{len(self.value):,}", f"{self.value_bytes:,}",
            )  # fmt: skip
            return False
        return True


class Letters(Protocol):
    """The dead letters of a crawl."""

    def newest(self, count: int, error: str = "", value_bytes_max: int | None = None) -> list[Letter]:
        """Return the newest `count` letters whose reason contains `error`, oldest first, with values cut as asked."""

    def replay(self, error: str = "", count: int | None = None) -> int:
        """Publish the letters whose reason contains `error` again, oldest first, each once; return how many."""


class Dropped(NamedTuple):
    """What was dropped of a crawl's dead letters before anyone took them, since the store was made."""

    letters: int
    value_bytes: int

    @classmethod
    def of(cls, crawl: Crawl) -> "Dropped":
        """Read the counts of all shards."""
        names = ("letters_dropped", "letters_dropped_bytes")
        rows = crawl.ask([["HMGET", shard.keys.metrics, *names] for shard in crawl.shards])
        return cls(*(sum(int(count or 0) for count in counts) for counts in zip(*rows, strict=True)))


def stored(shard: Shard, after: str = "-") -> list[Letter]:
    """Return up to LETTERS_A_CALL dead letters of a shard, oldest first."""
    with store_errors():
        entries = shard.client.xrange(shard.keys.dead, min=after, count=LETTERS_A_CALL)
    return [_letter(entry_id, fields) for entry_id, fields in entries]


def _letter(entry_id: bytes, fields: dict[bytes, bytes], value_bytes_max: int | None = None) -> Letter:
    # The step names a partition with its source, as in "crawl.events/3".
    topic, _, partition = fields[b"opic-partition"].decode().rpartition("/")
    value = fields[b"value"]
    return Letter(
        entry_id.decode(),
        fields[b"opic-error"].decode("utf-8", "replace"),
        topic or fields[b"opic-topic"].decode(),
        partition,
        int(fields[b"opic-offset"]),
        value[:value_bytes_max],
        int(fields.get(b"opic-value-bytes", len(value))),
        int(entry_id.partition(b"-")[0]) / 1000,
        index=int(fields[b"opic-index"]) if b"opic-index" in fields else None,
    )


def _backwards(shard: Shard, value_bytes_max: int | None) -> Iterator[Letter]:
    before = "+"
    while True:
        with store_errors():
            entries = shard.client.xrevrange(shard.keys.dead, max=before, count=LETTERS_BACK_A_CALL)
        yield from (_letter(entry_id, fields, value_bytes_max) for entry_id, fields in entries)
        if len(entries) < LETTERS_BACK_A_CALL:
            return
        before = f"({entries[-1][0].decode()}"


def remove(shard: Shard, letters: Iterable[Letter]) -> None:
    if ids := [letter.id for letter in letters]:
        with store_errors():
            shard.client.xdel(shard.keys.dead, *ids)


class StoredLetters:
    """The dead letters of a crawl without Kafka, whose log is also in the store."""

    def __init__(self, crawl: Crawl, log: EventLog) -> None:
        self._crawl, self._log = crawl, log

    def _all(self) -> Iterator[tuple[Shard, Letter]]:
        for shard in self._crawl.shards:
            after = "-"
            while letters := stored(shard, after):
                yield from ((shard, letter) for letter in letters)
                after = f"({letters[-1].id}"

    def newest(self, count: int, error: str = "", value_bytes_max: int | None = None) -> list[Letter]:
        """Return the newest `count` letters whose reason contains `error`, oldest first, with values cut as asked."""
        by_shard = [_backwards(shard, value_bytes_max) for shard in self._crawl.shards]
        by_age = merge(*by_shard, key=lambda letter: tuple(map(int, letter.id.split("-"))), reverse=True)
        return list(islice((letter for letter in by_age if error in letter.error), count))[::-1]

    def replay(self, error: str = "", count: int | None = None) -> int:
        """Publish letters again, then delete them. After a crash in between, nothing is published twice."""
        replayed = 0
        for shard, letter in self._all():
            if count is not None and replayed >= count:
                break
            if error not in letter.error or not letter.is_whole():
                continue
            call = KeyedCall.of(f"dead letter {shard.number}/{letter.id}", "", letter.value)
            appended = None
            while appended is None:
                begun = self._log.begun(call)
                terms = begun.terms if begun else AppendTerms(self._log.clock.now_us(), EventLimits())
                appended = self._log.append_once(call, [letter.value], begun, terms)
            remove(shard, [letter])
            replayed += 1
        return replayed
