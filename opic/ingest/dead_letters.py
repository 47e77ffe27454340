"""Dead letters: events that can't be taken, with the reason. The step writes each once, into its shard's stream.

Without Kafka they stay there, the newest 100,000 or so of each shard; with it a worker forwards them to a topic
(`opic.ingest.kafka.dead_letter_topic`).
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from heapq import merge
from itertools import islice
from typing import Final, Protocol

from opic.ingest.event_log import AppendTerms, EventLog, KeyedCall
from opic.model.events import EventLimits
from opic.replica import Crawl
from opic.store.connection import store_errors
from opic.store.shard import Shard

LETTERS_A_CALL: Final = 100
LETTERS_BACK_A_CALL: Final = 20  # Backwards few are wanted, and one may be as large as a body.


@dataclass(frozen=True, slots=True)
class Letter:
    """A record that can't be taken, with the reason and where it came from."""

    id: str  # Of the entry in the store, or of the record on the topic of dead letters.
    error: str
    topic: str
    partition: str
    offset: int
    value: bytes  # Or what was asked for of it.
    value_bytes: int  # Of the whole.
    at: float  # Unix seconds: when it became one.
    replayed: bool = False

    def shown(self) -> dict[str, object]:
        """Return it for a person or a program; what is no text in the value is escaped."""
        return {**asdict(self), "value": self.value.decode("utf-8", "backslashreplace")}


class Letters(Protocol):
    """Where a crawl's dead letters are."""

    def newest(self, count: int, error: str = "", value_bytes_max: int | None = None) -> list[Letter]:
        """Return the newest ones whose reason has a text, oldest first; of each value the beginning, or all."""

    def replay(self, error: str = "", count: int | None = None) -> int:
        """Publish those again whose reason has a text, oldest first, each once; return how many."""


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
        len(value),
        int(entry_id.partition(b"-")[0]) / 1000,
    )


def _backwards(shard: Shard, value_bytes_max: int | None) -> Iterator[Letter]:
    """Yield the dead letters of a shard, newest first."""
    before = "+"
    while True:
        with store_errors():
            entries = shard.client.xrevrange(shard.keys.dead, max=before, count=LETTERS_BACK_A_CALL)
        yield from (_letter(entry_id, fields, value_bytes_max) for entry_id, fields in entries)
        if len(entries) < LETTERS_BACK_A_CALL:
            return
        before = f"({entries[-1][0].decode()}"


def _age(letter: Letter) -> tuple[int, ...]:
    return tuple(map(int, letter.id.split("-")))


def remove(shard: Shard, letters: Iterable[Letter]) -> None:
    """Take letters out of a shard."""
    if ids := [letter.id for letter in letters]:
        with store_errors():
            shard.client.xdel(shard.keys.dead, *ids)


class StoredLetters:
    """Those of a crawl without Kafka, whose log is in the store as well."""

    def __init__(self, crawl: Crawl, log: EventLog) -> None:
        """Read from the shards, publish to the log."""
        self._crawl, self._log = crawl, log

    def _all(self) -> Iterator[tuple[Shard, Letter]]:
        for shard in self._crawl.shards:
            after = "-"
            while letters := stored(shard, after):
                yield from ((shard, letter) for letter in letters)
                after = f"({letters[-1].id}"

    def newest(self, count: int, error: str = "", value_bytes_max: int | None = None) -> list[Letter]:
        """Return the newest ones whose reason has a text, oldest first; of each value the beginning, or all."""
        by_shard = [_backwards(shard, value_bytes_max) for shard in self._crawl.shards]
        found = (letter for letter in merge(*by_shard, key=_age, reverse=True) if error in letter.error)
        return list(islice(found, count))[::-1]

    def replay(self, error: str = "", count: int | None = None) -> int:
        """Publish again, then take out of the store. Who dies in between publishes the same next time, once."""
        replayed = 0
        for shard, letter in self._all():
            if count is not None and replayed >= count:
                break
            if error not in letter.error:
                continue
            call = KeyedCall.of(f"dead letter {shard.number}/{letter.id}", "", letter.value)
            while True:
                begun = self._log.begun(call)
                terms = begun.terms if begun else AppendTerms(time.time_ns() // 1000, EventLimits())
                if self._log.append_once(call, [letter.value], begun, terms):
                    break
            remove(shard, [letter])
            replayed += 1
        return replayed
