"""Heartbeats of workers: each says in the store, every few seconds, that it is there.

A worker has a field of its own in the metrics of the crawl's first shard. It removes the field when it ends in order,
and the fields of those that were killed long before.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from opic.store import Keys, Shard
from opic.store.connection import Client, store_errors

BEAT_SECONDS: Final = 5.0
ALIVE_SECONDS: Final = 20.0  # A worker that has not said for this long that it is there has ended.
KEPT_SECONDS: Final = 60.0  # Others remove then what a killed worker left; longer, for clocks that differ.
PREFIX: Final = "worker:"  # Of the fields; a value is in Unix seconds.
UNITS: Final = ((86_400, "days"), (3_600, "hours"), (60, "minutes"))  # From two of a unit on it is used.


class Heartbeat:
    """Says that this worker is there."""

    def __init__(self, shard: Shard) -> None:
        self._client, self._key = shard.client, shard.keys.metrics
        self._field = PREFIX + secrets.token_hex(8)
        self._said = float("-inf")

    def beat(self) -> None:
        """Say it, if the last time is a few seconds ago."""
        if time.monotonic() - self._said < BEAT_SECONDS:
            return
        now = int(time.time())
        with store_errors():
            old = [
                field
                for field, beat_at in beats_of(self._client.hgetall(self._key)).items()
                if now - beat_at > KEPT_SECONDS
            ]
            with self._client.pipeline(transaction=True) as pipe:
                pipe.hset(self._key, self._field, now)
                if old:
                    pipe.hdel(self._key, *old)
                pipe.execute()
        self._said = time.monotonic()

    def end(self) -> None:
        with store_errors():
            self._client.hdel(self._key, self._field)


@dataclass(frozen=True, slots=True)
class WorkersSeen:
    """How many workers are there, and how many seconds ago one last said so; None: all ended in order, or none ran."""

    workers: int
    seconds: float | None

    @property
    def alive(self) -> bool:
        """Whether a worker is there, as far as is known: one that is killed seems to be for ALIVE_SECONDS."""
        return self.workers > 0


def workers_seen(client: Client, keys: Keys) -> WorkersSeen:
    """Ask which workers of a crawl are there; `keys` are those of its first shard."""
    with store_errors():
        beats = beats_of(client.hgetall(keys.metrics)).values()
    ages = [max(time.time() - beat_at, 0.0) for beat_at in beats]
    return WorkersSeen(sum(age < ALIVE_SECONDS for age in ages), min(ages, default=None))


def plain_duration(seconds: float) -> str:
    """Return a duration in words: `25 seconds`, `3 minutes`."""
    size, unit = next(((size, unit) for size, unit in UNITS if seconds >= 2 * size), (1, "seconds"))
    number = round(seconds / size)
    return f"{number} {unit if number != 1 else unit[:-1]}"


def events_waiting(number: int, *, exact: bool) -> str:
    """Return how many accepted events wait, in words; an estimate is `about` that many."""
    return f"{'' if exact else 'about '}{number:,} accepted {'event waits' if number == 1 else 'events wait'}"


def workers_missing(seen: WorkersSeen, waiting: int, applied_seconds: float | None, *, exact: bool) -> str | None:
    """Return that no worker is there, for how long, how many events wait, and what to do; None if all is well.

    All is well while a worker is there, and where all ended in order and no event waits.

    Args:
        seen: the workers.
        waiting: number of accepted events that have not taken effect.
        applied_seconds: how long ago an event last took effect; None if none ever did.
        exact: whether `waiting` is exact, not an estimate.
    """
    if seen.alive or (seen.seconds is None and not waiting):
        return None
    silent = applied_seconds if seen.seconds is None else seen.seconds
    if not waiting:
        said = f"no worker was seen for {plain_duration(seen.seconds or 0.0)}"
    else:
        since = "yet" if applied_seconds is None or silent is None else f"for {plain_duration(silent)}"
        said = f"no worker has applied an event {since}, and {events_waiting(waiting, exact=exact)}"
    return f"{said}: start one with `opic worker`, or see its log"


def beats_of(stored: Mapping[bytes, bytes]) -> dict[bytes, int]:
    """Return when each worker last said that it is there, in Unix seconds, given the hash with a shard's metrics."""
    return {field: int(beat_at) for field, beat_at in stored.items() if field.startswith(PREFIX.encode())}
