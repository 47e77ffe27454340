"""Replay of web archives: each record takes effect once, also where a replay was stopped and is started again.

The store remembers for each file how far it was fed, by the first bytes of the file, so it may be moved meanwhile. This
is written after each batch; a batch that was fed just before an interruption has the same name the next time.
"""

import logging
import time
import uuid
from collections.abc import Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Final

from opic.errors import BadEvent, BadInput
from opic.model.event_checks import check_event
from opic.model.events import encode_crawl_event
from opic.ops.archive_events import ArchiveEvents
from opic.ops.archive_records import ArchiveDamaged, Position
from opic.ops.feeder import Feeder
from opic.store.connection import store_errors

log = logging.getLogger("opic.ops")

IDENTITY_BYTES: Final = 1 << 10  # The first record has an id or a file name. A file that is being written keeps them.


def replay_archives(
    feeder: Feeder, paths: Sequence[Path], format: str, *, recorded: bool, drop_nofollow: bool, again: bool
) -> tuple[dict[str, int], str | None]:
    """Feed the events of files, and go on with the next file where one is damaged.

    Args:
        feeder: sends the events.
        paths: the files.
        format: warc, wat or arc.
        recorded: take the links that Heritrix recorded.
        drop_nofollow: leave out nofollow links.
        again: feed files from their beginning, even if they were fed before.

    Returns:
        Counts of records, and of what was left out; a note about damaged files, if any.

    Raises:
        BadInput: a file can't be read; the events before the error were fed.
    """
    damaged = list[str]()
    with closing(ArchiveEvents(recorded=recorded, drop_nofollow=drop_nofollow)) as events:
        for path in paths:
            try:
                _replay_file(feeder, events, path, format, again=again)
            except ArchiveDamaged as error:
                log.warning("%s; what is before that was fed", error)
                damaged.append(str(error))
            except BadInput as error:
                feeder.settle()
                raise BadInput(f"{error}; {feeder.progress.events:,} events were fed before") from None
        counts = {name: count for name, count in events.counts.items() if count or name == "records"}
    return counts, "; ".join(damaged) or None


def _replay_file(feeder: Feeder, events: ArchiveEvents, path: Path, format: str, *, again: bool) -> None:
    place = _FilePlace(feeder, path, again=again)
    if place.position != Position():
        events.counts["files_resumed"] += 1
    limits, after = feeder.limits, place.position
    try:
        for event, position in events.of(path, format, place.position):
            value = encode_crawl_event(event)
            if len(value) > feeder.settings.max_body_bytes:
                events.counts["events_too_large"] += 1
                continue
            try:
                feeder.links_left_out += check_event(event, time.time_ns() // 1000, limits).links_left_out
            except BadEvent as error:
                feeder.refuse(f"{path}: record at {position.offset:,}: {error}")
            if not feeder.has_room(value):
                place.send(after)
            feeder.feed(value)
            after = Position(position.offset, position.number + 1)
    except (ArchiveDamaged, BadInput):
        place.send(after)
        raise
    place.send(after)


class _FilePlace:
    """How far a file was fed, as the store remembers it."""

    def __init__(self, feeder: Feeder, path: Path, *, again: bool) -> None:
        self._feeder, self._shard = feeder, feeder.target.shard
        try:
            with path.open("rb") as file:
                self._file = blake2b(file.read(IDENTITY_BYTES), digest_size=16).hexdigest()
        except OSError as error:
            raise BadInput(f"{path}: can't be read: {error.strerror or error}") from error
        feeder.send()
        with store_errors():
            stored = self._shard.client.hget(self._shard.keys.replays, self._file)
        if stored is not None and not again:
            self._run, *at = stored.decode().split()
            self.position = Position(*map(int, at))
        else:
            self._run, self.position = uuid.uuid4().hex, Position()
            self._feeder.patiently(self._save)

    def send(self, after: Position) -> None:
        """Send the current batch, which ends before a position, and note that."""
        self._feeder.send(f"{self._run} {self.position.offset} {self.position.number}")
        if after != self.position:
            self.position = after
            self._feeder.patiently(self._save)

    def _save(self) -> None:
        with store_errors():
            noted = f"{self._run} {self.position.offset} {self.position.number}"
            self._shard.client.hset(self._shard.keys.replays, self._file, noted)
