"""Events that the service has not accepted yet: in batches, each with its Idempotency-Key; in a file while closed."""

import logging
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from opic.errors import BadInput
from opic.whole_files import whole_files

EVENTS_MAX: Final = 10_000  # No page starts while so many are unsent,
BYTES_MAX: Final = 256 << 20  # or events of so many bytes.
BATCH_EVENTS_MAX: Final = 200
BATCH_BYTES_MAX: Final = 4 << 20
LINK_BYTES_MAX: Final = 8 << 20  # Of one event; the service takes bodies of 16 MiB.

log = logging.getLogger("opic.client")

Batch = tuple[str, list[bytes]]  # Its Idempotency-Key, and the events, in MessagePack.


class UnsentEvents:
    """A queue of events."""

    def __init__(self, directory: str | None) -> None:
        """Load what an earlier process left in a directory.

        Raises:
            msgspec.DecodeError: the file is damaged.
        """
        self._path = Path(directory) / "opic-unsent-events" if directory else None
        self._open = deque[bytes]()
        self._batches = deque[Batch]()
        if self._path is not None and self._path.exists():
            self._batches.extend(msgspec.msgpack.decode(self._path.read_bytes(), type=list[Batch]))
        self._loaded = len(self._batches)
        self._count = sum(len(events) for _, events in self._batches)
        self._bytes = sum(len(event) for _, events in self._batches for event in events)

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        """Whether no page may start."""
        return self._count >= EVENTS_MAX or self._bytes >= BYTES_MAX

    def add(self, event: Mapping[str, Any]) -> None:
        packed = msgspec.msgpack.encode(event)
        self._open.append(packed)
        self._count += 1
        self._bytes += len(packed)

    def batch(self) -> Batch | None:
        """Return the first batch: the same one, with the same key, until it is `done`."""
        if not self._batches and self._open:
            events, size = list[bytes](), 0
            while self._open and len(events) < BATCH_EVENTS_MAX and size < BATCH_BYTES_MAX:
                events.append(self._open.popleft())
                size += len(events[-1])
            self._batches.append((uuid.uuid4().hex, events))
        return self._batches[0] if self._batches else None

    def done(self) -> None:
        """Drop the first batch: it was accepted, or will never be."""
        _, events = self._batches.popleft()
        self._count -= len(events)
        self._bytes -= sum(map(len, events))
        self._loaded -= 1
        if self._loaded == 0 and self._path is not None:
            self._path.unlink()

    def split(self) -> None:
        """Make a batch of each event of the first one, so that one that is refused does not hold up the others."""
        _, events = self._batches.popleft()
        self._loaded += len(events) - 1 if self._loaded > 0 else 0
        self._batches.extendleft((uuid.uuid4().hex, [event]) for event in reversed(events))

    def save(self) -> bool:
        """Write what is left to the directory; return False if there is something left and no directory.

        If it can't be written, say so in the log.
        """
        if not self._count or self._path is None:
            return not self._count
        while self._open:
            self._batches.append((uuid.uuid4().hex, [self._open.popleft() for _ in range(len(self._open))]))
        try:
            with whole_files([self._path]) as (file,):
                file.write(msgspec.msgpack.encode(list(self._batches)))
        except BadInput as error:
            log.error("%s; %d events are lost, and their pages are offered again", error, self._count)
        return True


def links_that_fit(page: str, links: Sequence[str]) -> list[str]:
    """Return the first links of a page, as many as an event can have."""
    left, size = list[str](), 0
    for link in links:
        size += len(link)
        if size > LINK_BYTES_MAX:
            log.warning("%s has %d links, of which the first %d are reported", page, len(links), len(left))
            break
        left.append(link)
    return left
