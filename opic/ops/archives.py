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
from tempfile import TemporaryDirectory
from typing import Final

from opic.archives.events import ArchiveEvents
from opic.archives.files import ArchiveFile, archive_files
from opic.archives.records import DamagedPart, Position
from opic.archives.stream import shared_beginning
from opic.errors import BadEvent, BadInput
from opic.model.event_checks import check_event
from opic.model.events import encode_crawl_event
from opic.ops.feeder import Feeder
from opic.store.connection import store_errors

log = logging.getLogger("opic.ops")

IDENTITY_BYTES: Final = 1 << 10  # The first record has an id or a file name. A file that is being written keeps them.
DAMAGE_SHOWN_MAX: Final = 5


def replay_archives(
    feeder: Feeder, paths: Sequence[Path], *, recorded: bool, drop_nofollow: bool, again: bool
) -> tuple[dict[str, int], str | None]:
    """Feed the events of files; damage costs the records that it is in.

    Args:
        feeder: sends the events.
        paths: the files.
        recorded: take the links that Heritrix recorded.
        drop_nofollow: leave out nofollow links.
        again: feed files from their beginning, even if they were fed before.

    Returns:
        Counts of records, and of what was left out; a note about damage, if any.

    Raises:
        BadInput: a file can't be read; the events before the error were fed.
    """
    damaged = list[str]()
    with (
        TemporaryDirectory(prefix="opic-archives-") as folder,
        closing(ArchiveEvents(recorded=recorded, drop_nofollow=drop_nofollow)) as events,
    ):
        try:
            for path in paths:
                for file in archive_files(path, Path(folder)):
                    _replay_file(feeder, events, file, damaged, again=again)
        except BadInput as error:
            feeder.settle()
            raise BadInput(f"{error}; {feeder.progress.events:,} events were fed before") from None
        counts = {"records": 0} | {name: count for name, count in events.counts.items() if count}
    if more := events.counts["damaged"] - len(damaged):
        damaged.append(f"and {more:,} more damaged parts")
    return counts, "; ".join(damaged) or None


def _replay_file(feeder: Feeder, events: ArchiveEvents, file: ArchiveFile, damaged: list[str], *, again: bool) -> None:
    file_place = _FilePlace(feeder, file, again=again)
    if file_place.position != Position():
        events.counts["files_resumed"] += 1
    limits, after = feeder.limits, file_place.position
    try:
        for part in events.events_of(file, file_place.position):
            if isinstance(part, DamagedPart):
                if len(damaged) < DAMAGE_SHOWN_MAX:
                    damaged.append(f"{file.name}: damaged at {part.offset:,}: {part.reason}")
                    log.warning("%s", damaged[-1])
                continue
            event, position = part
            value = encode_crawl_event(event)
            if len(value) > feeder.settings.max_body_bytes:
                events.counts["events_too_large"] += 1
                continue
            try:
                feeder.links_left_out += check_event(event, time.time_ns() // 1000, limits).links_left_out
            except BadEvent as error:
                feeder.refuse(f"{file.name}: record at {position.offset:,}: {error}")
            if not feeder.has_room(value):
                file_place.send(after)
            feeder.feed(value)
            after = Position(position.offset, position.number + 1)
    except BadInput:
        file_place.send(after)
        raise
    file_place.send(after)


class _FilePlace:
    """How far a file was fed, as the store remembers it."""

    def __init__(self, feeder: Feeder, file: ArchiveFile, *, again: bool) -> None:
        self._feeder, self._shard = feeder, feeder.target.shard
        try:
            with file.open() as opened:
                opened.seek(shared_beginning(opened))
                self._file = blake2b(opened.read(IDENTITY_BYTES), digest_size=16).hexdigest()
        except OSError as error:
            raise BadInput(f"{file.name}: can't be read: {error.strerror or error}") from error
        feeder.send()
        with store_errors():
            stored = self._shard.client.hget(self._shard.keys.replays, self._file)
        if stored is not None and not again:
            self._run, *position = stored.decode().split()
            self.position = Position(*map(int, position))
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
