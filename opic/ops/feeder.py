"""Feeds events to a store in batches, and waits until a worker has let them take effect."""

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from opic.errors import BadInput, StoreUnavailable
from opic.ingest.event_log import EventLog, KeyedCall
from opic.model.events import encode_seeds
from opic.service.backend import Backend

log = logging.getLogger("opic.ops")

Answer = TypeVar("Answer")
VALUES_A_CALL: Final = 500  # The number of records that the worker takes at once.
BYTES_A_CALL: Final = 4 << 20
REFUSED_SHOWN_MAX: Final = 5
PROGRESS_SECONDS: Final = 0.2
POLL_SECONDS: Final = 0.005
AWAY_SECONDS_MAX: Final = 60.0  # A killed store is back within a second, or within 12 s if it has to load 1 GB.
ASK_AGAIN_SECONDS: Final = 0.5
SAY_AGAIN_SECONDS: Final = 30.0


@dataclass(slots=True)
class EventChunk:
    """Encoded events that are appended to the log together."""

    values: list[bytes]


@dataclass(slots=True)
class Progress:
    """The progress of a replay."""

    events: int = 0  # Events appended to the log.
    total: int | None = None  # Final number of events, if it is known.
    lag: int = 0
    undelivered: int = 0  # Transfers between shards that are not delivered yet, at the end of the replay.
    seconds: float = 0.0


class Feeder:
    """Appends records to the log in batches, and waits until a worker has applied them."""

    def __init__(self, target: Backend, on_progress: Callable[[Progress], None]) -> None:
        """Append nothing yet.

        Raises:
            BadInput: the log is on Kafka.
        """
        self.target, self.settings = target, target.settings
        self.limits = target.settings.limits().under(target.crawl.rules)
        if not isinstance(target.log, EventLog):
            raise BadInput("a replay writes to the store's own log: use `opic publish` for Kafka, or omit --kafka")
        self._log = target.log
        self.dead_letters = self.links_left_out = 0
        self.progress = Progress()
        self._on_progress = on_progress
        self._began = time.monotonic()
        self._told, self._said = 0.0, float("-inf")
        self._values: list[bytes] = []
        self._bytes = 0
        self._name, self._number = uuid.uuid4().hex, 0  # Name of this replay, and number of its next batch.
        self.values_max = min(VALUES_A_CALL, self.settings.max_lag)

    def feed(self, value: bytes) -> None:
        """Add an event to the current batch; send the batch if it is full."""
        if not self.has_room(value):
            self.send()
        self._values.append(value)
        self._bytes += len(value)

    def has_room(self, value: bytes) -> bool:
        """Whether the current batch has room for an event."""
        if len(self._values) >= self.values_max:
            return False
        return not self._values or self._bytes + len(value) <= BYTES_A_CALL

    def refuse(self, reason: str) -> None:
        """Count an event that becomes a dead letter; log the first ones."""
        self.dead_letters += 1
        if self.dead_letters <= REFUSED_SHOWN_MAX:
            log.warning("dead letter: %s", reason)

    def send(self, name: str | None = None) -> None:
        """Append the current batch to the log; a batch with a name only once, whoever sends it again within a day."""
        values, self._values, self._bytes = self._values, [], 0
        if values:
            # The batch has a name, so that it may be sent again if its answer was lost.
            name = name or f"{self._name} {self._number}"
            call, batch = KeyedCall.of(f"opic replay {name}", "", b""), EventChunk(values)
            self._number += 1
            self._accept(len(values), lambda: self.target.accept_once(call, lambda *_: batch))
            self.progress.events += len(values)
            self._tell()

    def seed(self, urls: Sequence[str]) -> None:
        """Add seed pages, and wait until they are known."""
        for start in range(0, len(urls), VALUES_A_CALL):
            record = encode_seeds(list(urls[start : start + VALUES_A_CALL]))
            # Adding the same seeds again has no effect.
            self._accept(1, partial(self.target.accept, [record], "seeds"))
        self.settle()

    def settle(self) -> None:
        """Send the current batch; return after all events took effect, and those that the log had before."""
        self.send()
        end = self.patiently(self._log.end)
        self._await(lambda: self._applied() >= end)
        self.progress.lag = 0
        self._tell(now=True)

    def finish(self) -> None:
        """Send the current batch; return after all events took effect and all transfers are delivered."""
        self.settle()
        self._await(lambda: self.undelivered() == 0)
        self._tell(now=True)

    def undelivered(self) -> int:
        """Return how many transfers between shards are not delivered yet."""
        self.progress.undelivered = self.patiently(self.target.crawl.undelivered)
        return self.progress.undelivered

    def _accept(self, count: int, accept: Callable[[], object]) -> None:
        room = self.settings.max_lag - count
        self._await(lambda: self.patiently(self.target.lag) <= room)
        self.patiently(accept)

    def _applied(self) -> int:
        return self.patiently(lambda: self.target.crawl.resume(self._log.partition))

    def patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Repeat a call until the store answers: up to AWAY_SECONDS_MAX, but without limit while its disk is full."""
        away: float | None = None
        while True:
            try:
                return ask()
            except StoreUnavailable as error:
                now = time.monotonic()
                if self._disk_is_full():
                    away = None
                elif away is None:
                    away = now
                elif now - away > AWAY_SECONDS_MAX:
                    raise StoreUnavailable(f"{error}; {self.progress.events:,} events were accepted before") from error
            time.sleep(ASK_AGAIN_SECONDS)

    def _disk_is_full(self) -> bool:
        """Return whether the store's disk is full; log a warning now and then."""
        full, now = self.target.disk_full(), time.monotonic()
        if full is not None and now - self._said > SAY_AGAIN_SECONDS:
            self._said = now
            log.warning("%s; waiting, %s events were accepted before", full, f"{self.progress.events:,}")
        return full is not None

    def _await(self, done: Callable[[], bool]) -> None:
        """Wait for the worker while it makes progress, or the disk is full.

        Raises:
            StoreUnavailable: nothing took effect for AWAY_SECONDS_MAX.
        """
        seen, moved = (-1, -1), time.monotonic()
        while not done():
            now, counts = time.monotonic(), (self._applied(), self.progress.undelivered)
            if counts != seen or self._disk_is_full():
                seen, moved = counts, now
            elif now - moved > AWAY_SECONDS_MAX:
                raise StoreUnavailable(
                    f"no worker applied anything for {AWAY_SECONDS_MAX:.0f} s: see its log, or start one with "
                    f"`opic worker`; {self.progress.events:,} events were accepted, and take effect then"
                )
            self._tell()
            time.sleep(POLL_SECONDS)

    def _tell(self, now: bool = False) -> None:
        self.progress.seconds = time.monotonic() - self._began
        if now or self.progress.seconds - self._told >= PROGRESS_SECONDS:
            self._told = self.progress.seconds
            self.progress.lag = self.patiently(self.target.lag)
            self._on_progress(self.progress)
