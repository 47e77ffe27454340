"""The copy of one shard in a backup: which of its keys are copied, in which order, and when it begins again.

A shard is copied within one run of its server. If the server restarts or another one takes over the shard's slot, the
shard is copied again, because the server may have lost what was read from it, and cursors of scans mean nothing to
another run (`opic.store.scan`). How many elements were scanned is compared with the store's count at the end.

Workers trim no record of the journal that was not copied yet, while the key `copied` is there. It expires if the
backup dies. If it expired earlier, because the backup's disk stood still, there may be a gap, and the shard is copied
again.

Reasons for the order of reads:
    journal before blocks          what a block lacks is in the records
    seen after the journal's start entries added later are in the records; pagemeta and urls likewise
    resume points before the heads no shard is behind a resume point
    the log with its trim held     the log is complete from its resume point on
"""

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from opic.errors import ScanBroken, StoreUnavailable
from opic.ingest.event_log import EventLog, offsets_of
from opic.model.transfer import source_of
from opic.ops.backup_files import LOG_SHARD, SEGMENT, SEGMENTS, PartFile, parts_of, read_values
from opic.ops.forgotten_pages import AppliedRecords, ForgottenPages
from opic.replica.checkpoint import blocks_of
from opic.replica.crawl import Crawl
from opic.replica.effect import Effect, Head
from opic.replica.follow import ENTRIES_MAX, ENTRY_BYTES_AIM, NO_HEAD, head_of
from opic.replica.stored_links import each_segment
from opic.store.commands import flat
from opic.store.connection import store_errors
from opic.store.keys import ANY_TIME, AT_END, HASH, OF_PAGES, SET, STRING, ZSET, Key, Keys, copied_as
from opic.store.local_lists import lists_without
from opic.store.scan import read_hash, scan_hash, scan_sorted_set
from opic.store.shard import Shard

AWAY_SECONDS_MAX: Final = 60.0  # How long a backup waits for a server that restarts or fails over.
TRIES_MAX: Final = 20  # Maximum number of copies of a shard whose journal was trimmed, and of attempts to end the copy.
COPIED_SECONDS: Final = 10.0  # If the backup dies, workers trim the journal again after this time.
BLOCKS_A_READ: Final = 4  # About a megabyte, which takes the server half a millisecond.
ENTRIES_A_READ: Final = 100  # Entries of the log, of outboxes and of dead letters.
HOLD: Final = b"hold"
POLL_SECONDS: Final = 0.1
log = logging.getLogger("opic.ops")


@dataclass(frozen=True, slots=True)
class End:
    """The state of a shard at which its copy ends, read in one transaction."""

    head: Head
    values: Mapping[str, Any]  # Of the keys that are copied as of this state.
    log_end: int
    last_letter: bytes | None  # The id of the last dead letter.


def _read(client: Any, key: Key, keys: Keys) -> Any:
    """Read a key as a whole, or have a pipeline do so."""
    name = keys.prefix + key.name
    if key.kind == ZSET:
        return client.zrange(name, 0, -1, withscores=True)
    return {HASH: client.hgetall, SET: client.smembers, STRING: client.get}[key.kind](name)


class _Gap(Exception):
    """The store trimmed records before they were copied, has another history or restarted: copy the shard again."""


class ShardCopy:
    """Writes the backup files of one shard. Not thread-safe."""

    def __init__(self, crawl: Crawl, shard: Shard, directory: Path, backup_id: str) -> None:
        self._crawl, self._client, self.shard, self.keys = crawl, shard.client, shard, shard.keys
        self._directory, self._backup_id = directory, backup_id
        self._files: dict[str, PartFile] = {}
        self._tries = 0
        self._settings: list[tuple[Key, Any]] = []
        self._blocks_left = self._copy_blocks()
        self.counts: dict[str, int] = {}  # As of the end: what `check_backup` has to find.
        self._begin("")

    def keep_journal(self, seconds: float = COPIED_SECONDS) -> list[Any]:
        """Return the command that lets workers keep the records of the journal that were not copied yet."""
        return ["SET", self.keys.copied, self._head.lsn, "PX", round(1000 * seconds)]

    def _begin(self, why: str) -> None:
        """Start from the journal's first record; `why` is the reason if the shard is copied again."""
        if why:
            log.info("copying shard %d again: %s", self.shard.number, why)
        self._tries += 1
        if self._tries > TRIES_MAX:
            raise StoreUnavailable(
                f"shard {self.shard.number} was copied {TRIES_MAX} times, and each time the store deleted records "
                f"before they were copied, or restarted ({why}): is the disk of the backup too slow?"
            )
        self._run = self._await_run()
        self._head, self._pages, self._entry_bytes = NO_HEAD, 0, ENTRY_BYTES_AIM
        self._forgotten = set[int]()  # Pages that copied records forgot, and that are not known again.
        self._blocks_left.close()
        self._blocks_left, self._copied = self._copy_blocks(), False
        self.blocks = self.done = 0
        self._open("journal")
        self._open("blocks")

    def _await_run(self) -> bytes:
        """Return the run id of the shard's server; wait for a server that restarts or fails over."""
        deadline = time.monotonic() + AWAY_SECONDS_MAX
        while True:
            try:
                run = self.shard.run_now()
                self._crawl.ask([["HGET", self.keys.head, "lsn"]])  # A server that still loads its file refuses this.
                return run
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def _open(self, part: str) -> None:
        if part in self._files:
            self._files[part].abandon()
        self._files[part] = PartFile(self._directory, self._backup_id, self.shard.number, part)

    def close(self) -> None:
        """Close the files of an unfinished backup; let workers trim the journal again."""
        self._blocks_left.close()
        for file in self._files.values():
            file.abandon()
        with suppress(StoreUnavailable):  # Then it expires by itself.
            self._crawl.ask([self.keep_journal(0.001)])

    def take_forgotten_out(self) -> set[str]:
        """Take out URLs and metadata of pages that are forgotten at the end; return the registered domains of these."""
        forgotten = ForgottenPages(self._forgotten)
        if self._forgotten:
            for part, without in (("journal", forgotten.record), ("blocks", forgotten.value)):
                self._files[part].close()
                raw = self._files[part].path
                raw = raw.rename(raw.with_suffix(".raw"))
                self._open(part)
                for value in filter(None, map(without, read_values(raw))):
                    self._files[part].put(value)
                raw.unlink()
            self._head = self._head._replace(digest=forgotten.digest)
        return forgotten.domains

    def finish(self, forgotten_domains: Collection[str]) -> list[dict[str, Any]]:
        """Complete the files, without lists of domains of which pages were forgotten; return their manifest entries."""
        head = {b"lsn": b"%d" % self._head.lsn, b"digest": self._head.digest} if self._head.lsn else {}
        self._files["keys"].put(["head", "hash", head])
        if lists := lists_without(read_hash(self._client, self.keys.local_lists), forgotten_domains):
            self._files["keys"].put(["local", "hash", lists])
        return [self._files[part].close() for part in parts_of(self.shard.number)]

    # While events take effect.

    def turn(self) -> bool:
        """Copy the records appended since the last turn, and some blocks; return whether all blocks are copied."""
        try:
            self._follow(None)
            if not self._copied:
                self._copied = next(self._blocks_left, True) is True
        except (_Gap, StoreUnavailable) as error:
            self._begin(str(error))
        return self._copied

    def _follow(self, until: Head | None) -> None:
        """Copy records up to `until`, or up to the current head."""
        end = "+" if until is None else f"{until.lsn}-0"
        while until is None or self._head.lsn < until.lsn:
            count = max(1, min(ENTRIES_MAX, ENTRY_BYTES_AIM // self._entry_bytes))
            after = f"({self._head.lsn}-0" if self._head.lsn else "-"
            stored_head, entries, _ = self._crawl.ask([
                ["HMGET", self.keys.head, "lsn", "digest"],
                ["XRANGE", self.keys.journal, after, end, "COUNT", count],
                self.keep_journal(),
            ])  # fmt: skip
            for _, fields in entries:
                self._take(fields[b"r"])
            head = head_of(stored_head)
            if not entries and head != self._head:
                raise _Gap(f"the journal is at record {head.lsn}, but lacks the record after {self._head.lsn}")
            if len(entries) < count and self._head.lsn >= head.lsn:
                break
        if until is not None and self._head != until:
            raise _Gap(f"the copy ends at record {self._head.lsn}, but the shard is at {until.lsn}")

    def _take(self, record: bytes) -> None:
        effect = Effect.unpack(record)
        if self._head.lsn and (effect.lsn, effect.previous) != (self._head.lsn + 1, self._head.digest):
            raise _Gap(f"record {effect.lsn} does not follow {self._head.lsn}")
        self._files["journal"].put(record)
        self._head, self._pages = effect.head, effect.pages
        self._forgotten.update(effect.forgotten.tolist())
        self._forgotten.difference_update(effect.again)
        self._entry_bytes += (len(record) - self._entry_bytes) // 8

    def _copy_blocks(self) -> Generator[None]:
        """Copy the blocks, a few per step, then the columns that are not stored by page."""
        file = self._files["blocks"]
        self.blocks = blocks_of(self._pages)
        for first in range(0, self.blocks, BLOCKS_A_READ):
            numbers = range(first, min(first + BLOCKS_A_READ, self.blocks))
            images = self._crawl.ask([["HGETALL", self.keys.block(number)] for number in numbers])
            for number, image in zip(numbers, images, strict=True):
                if image:  # If it is missing, all of its pages are in the journal.
                    file.put([number, image])
            self.done += len(numbers)
            yield
        (names,) = self._crawl.ask([["HGETALL", self.keys.names_block]])
        file.put(["names", names])
        for calls in scan_sorted_set(self._client, self.keys.seen):
            file.put(["seen", [part for name, score in calls for part in (name, int(score))]])
            yield
        hashes = {"pagemeta": self.keys.page_meta, "urls": self.keys.urls}
        for name, key in hashes.items():
            for values in scan_hash(self._client, key):
                if values:
                    file.put([name, flat(values)])
                yield
        yield from self._copy_links()

    def _copy_links(self) -> Generator[None]:
        """Copy the segments of kept links, then the list of those that count: others were merged in the meantime."""
        steps = each_segment(self._client, self.keys)
        while True:
            try:
                for number, fields in next(steps).items():
                    self._files["blocks"].put([SEGMENT, number, *fields])
            except StopIteration as end:
                if end.value.version:
                    self._files["blocks"].put([SEGMENTS, end.value.fields()])
                return
            yield

    def read_settings(self) -> None:
        """Read the keys that may be copied at any time."""
        with store_errors():
            self._settings = [
                (key, read_hash(self._client, self.keys.prefix + key.name))
                if key.kind == HASH
                else (key, _read(self._client, key, self.keys))
                for key in copied_as(ANY_TIME)
            ]

    # At the end.

    def read_resume(self) -> None:
        """Read the resume points before any head, so that no shard of the copy is behind a resume point."""
        (self._resume,) = self._crawl.ask([["HGETALL", self.keys.resume]])
        if self.shard.number == LOG_SHARD:
            self._log_from = self._crawl.resume(EventLog.partition)

    def read_end(self) -> End:
        """Read the head and everything that belongs to it."""
        keys = self.keys
        names = copied_as(AT_END)
        with store_errors(), self._client.pipeline(transaction=True) as pipe:
            pipe.hmget(keys.head, "lsn", "digest")
            for key in names:
                _read(pipe, key, keys)
            pipe.xrevrange(keys.dead, count=1)
            pipe.hlen(keys.page_meta)
            pipe.zcard(keys.seen)
            pipe.zrange(keys.seen, 0, 0, withscores=True)
            head, *values, letters, metas, seen, oldest = pipe.execute()
        by_key = dict(zip((key.name for key in names), values, strict=True))
        by_key["offsets"].pop(HOLD, None)
        last = letters[0][0] if letters else None
        self.counts = {"pagemeta": metas, "seen": seen, "seen_from": int(oldest[0][1]) if oldest else 0}
        self._end = End(head_of(head), by_key, int(by_key["end"] or 0), last)
        return self._end

    def read_outboxes(self, ends: Sequence[End], renew: Callable[[], object]) -> bool:
        """Write everything that belongs to the head, and the waiting outbox entries; return whether none is missing."""
        self._open("keys")
        file, here = self._files["keys"], self.shard.number
        at_end = [(key, self._end.values[key.name]) for key in copied_as(AT_END)]
        for key, value in (*self._settings, *at_end, (Keys.resume, self._resume)):
            if value:
                file.put([key.name, key.kind, list(value) if key.kind == SET else value])
        for to, count in self._end.values["sent"].items():
            sent, taken = int(count), int(ends[int(to)].values["offsets"].get(source_of(here).encode(), 0))
            copied = taken
            for entries in self._entries(self.keys.outbox(int(to)), f"1-{taken}", f"1-{max(sent - 1, 0)}"):
                file.put([f"out:{int(to)}", "stream", entries])
                copied += len(entries)
                renew()
            if copied != sent:
                log.info("shard %d: the outbox to shard %d ends at entry %d, not at %d", here, int(to), copied, sent)
                return False
        return True

    def read_log(self, ends: Sequence[End], renew: Callable[[], object]) -> bool:
        """Copy accepted events that may not have taken effect yet; return whether none is missing.

        Of those before the heads, only what has not: the rest may name pages that were forgotten since.
        """
        if self.shard.number != LOG_SHARD:
            return True
        self._open("log")
        offset, end, applied = self._log_from, self._end.log_end, AppliedRecords(end.values["offsets"] for end in ends)
        if offset < end:
            for entries in self._entries(self.keys.log, f"1-{offset}" if offset else "-", f"1-{end - 1}"):
                first = offset
                for name, fields in entries:
                    offset += offsets_of(fields)
                    if int(name.partition(b"-")[2]) != offset - 1:
                        log.info("event %d may not have taken effect, but the log lacks it", first)
                        return False
                self._files["log"].put([[name, applied.rest(name, fields)] for name, fields in entries])
                renew()
        if offset < end:
            log.info("event %d may not have taken effect, but the log lacks it", offset)
        return offset >= end

    def read_rest(self) -> bool:
        """Copy the remaining records, the dead letters and what belongs to pages; return whether nothing is missing."""
        try:
            self._follow(self._end.head)
            if self._end.last_letter is not None:
                for entries in self._entries(self.keys.dead, "-", self._end.last_letter):
                    self._files["keys"].put(["dead", "stream", entries])
            self._read_of_pages()
            if self.shard.run_now() != self._run:
                raise _Gap("its server restarted, or another one took over")
        except (_Gap, ScanBroken) as error:
            self._begin(str(error))
            return False
        return True

    def _read_of_pages(self) -> None:
        """Copy the keys of pages. Pages that became known after the end may have other ids in the restored crawl."""
        for key in copied_as(OF_PAGES):
            name = self.keys.prefix + key.name
            parts = scan_sorted_set(self._client, name) if key.kind == ZSET else scan_hash(self._client, name)
            for part in parts:
                pairs = part if isinstance(part, list) else list(part.items())
                if known := [(page, value) for page, value in pairs if int(page) < self._pages]:
                    self._files["keys"].put([key.name, key.kind, known if key.kind == ZSET else dict(known)])

    def _entries(self, stream: str, first: Any, last: Any) -> Iterable[list[Any]]:
        while True:
            (entries,) = self._crawl.ask([["XRANGE", stream, first, last, "COUNT", ENTRIES_A_READ]])
            if entries:
                yield [[entry_id, fields] for entry_id, fields in entries]
            if len(entries) < ENTRIES_A_READ:
                return
            first = b"(" + entries[-1][0]
