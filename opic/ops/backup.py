"""Online backup: a consistent copy of all shards of a crawl, made while events continue to take effect.

The journal of each shard is copied from its first record on and then followed, while its blocks are copied one after
the other. So each block, together with the records after it, gives the state at the end of the copy. The end is
consistent over all shards: deliveries between shards are held (see `hold` in journal.lua) while the head of each shard
is read, with its offsets and counters and the entries that wait in its outboxes. This takes milliseconds; only
deliveries wait, and if the backup process dies, the hold expires.

Reasons for the order of reads:
    journal before blocks          if the journal is trimmed during the copy, there is a gap: the shard is copied again
    seen after the journal's start entries added later are in the records
    resume points before the heads no shard is behind a resume point
    the log with its trim held     the log is complete from its resume point on

The copy is loaded and recounted from the files alone before the manifest is written. Without a manifest, a directory is
not a backup.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from opic.errors import StoreUnavailable
from opic.ingest.event_log import EventLog
from opic.model.transfer import source_of
from opic.ops.backup_check import audit_of, check_backup
from opic.ops.backup_files import BACKUP_FORMAT, LOG_SHARD, PartFile, make_empty, parts_of, write_manifest
from opic.replica.checkpoint import blocks_of
from opic.replica.crawl import Crawl
from opic.replica.effect import Effect, Head
from opic.replica.follow import ENTRIES_MAX, ENTRY_BYTES_AIM, NO_HEAD, head_of
from opic.store.connection import store_errors
from opic.store.keys import FORMAT
from opic.store.library import primaries
from opic.store.shard import Shard

HOLD_SECONDS: Final = 10.0  # After a backup that died, deliveries between shards go on this much later.
RENEW_SECONDS: Final = 2.0
TRIES_MAX: Final = 20  # Of a shard whose journal was trimmed under the copy, and of all shards to end together.
BLOCKS_A_READ: Final = 4  # About a megabyte, half a millisecond of the server.
THREADS_A_SERVER: Final = 2  # So that one reads while another one packs; more would make other clients wait.
SCAN_COUNT: Final = 1_000
ENTRIES_A_READ: Final = 100  # Of the log, of outboxes and of dead letters.
HOLD: Final = b"hold"
# Keys that belong to no record: any moment will do. Of each: its name, and what it is.
SETTINGS: Final = (
    ("rules", "hash"),
    ("polite", "hash"),
    ("crawldelays", "hash"),
    ("curve", "hash"),
    ("replayed", "set"),
)
# Kept by endpoints and workers, and not copied: they come and go, and none of them is about cash.
FLEETING: Final = (
    "leases", "waits", "fails", "hosts", "freed", "released", "flights", "flightends", "metrics", "barrier",
)  # fmt: skip
log = logging.getLogger("opic.ops")

Progress = Callable[[int, int], object]


def backup(crawl: Crawl, directory: Path, on_progress: Progress = lambda _done, _all: None) -> dict[str, Any]:
    """Copy a crawl into a directory that is made. Workers and endpoints may run; events go on taking effect.

    Args:
        crawl: open, in a server or a cluster.
        directory: must not be there yet, or be empty.
        on_progress: told the blocks copied and all there are, which may grow meanwhile.

    Returns:
        The manifest.

    Raises:
        SettingsError: the directory is not empty, or can't be written.
        StoreError: the books don't balance, so that a copy is worth nothing.
        StoreUnavailable: the store was away, or moved on faster than it could be copied. The directory has no manifest
            then, and is no backup.
    """
    make_empty(directory)
    client, backup_id = crawl.client, secrets.token_hex(8)
    threads = min(len(crawl), THREADS_A_SERVER * len(primaries(client)))
    with ExitStack() as stack, ThreadPoolExecutor(threads, "opic-backup") as pool:
        copies = [ShardCopy(crawl, shard, directory, backup_id) for shard in crawl.shards]
        for copy in copies:
            stack.callback(copy.close)

        def follow() -> None:
            while not all(list(pool.map(ShardCopy.turn, copies))):
                on_progress(sum(copy.done for copy in copies), sum(copy.blocks for copy in copies))

        for _ in range(TRIES_MAX):
            follow()
            for _ in pool.map(ShardCopy.read_settings, copies):
                pass
            follow()  # What came meanwhile, so that little is left to be read while deliveries are held.
            if _end(crawl, copies, pool):
                break
        else:
            raise StoreUnavailable("the shards moved on under every try to end the copy: are servers failing over?")
        files = [line for copy in copies for line in copy.finish()]
    on_progress(sum(copy.done for copy in copies), sum(copy.done for copy in copies))
    manifest = _manifest(crawl, backup_id)
    checked = check_backup(directory, manifest)
    manifest |= {
        "audit": audit_of([shard.audit for shard in checked]),
        "offsets": [shard.offsets for shard in checked],
        "heads": [[shard.head.lsn, shard.head.digest.hex()] for shard in checked],
        "pages": sum(shard.pages for shard in checked),
        "records": sum(shard.records for shard in checked),
        "files": files,
    }
    write_manifest(directory, manifest)
    try:
        with store_errors():
            client.hset(crawl.shards[0].keys.meta, "backup_at", manifest["made_at"])  # For /metrics.
    except StoreUnavailable as error:
        log.warning("the backup is whole, and /metrics will not know of it: %s", error)
    return manifest


def _manifest(crawl: Crawl, backup_id: str) -> dict[str, Any]:
    """Return what a backup of a crawl is of."""
    server = primaries(crawl.client)[0].info("server")
    return {
        "format": BACKUP_FORMAT,
        "id": backup_id,
        "store_format": FORMAT,
        "crawl": crawl.shards[0].keys.crawl,
        "shards": len(crawl),
        "made_at": time.time(),
        "server": f"{server.get('server_name', 'redis')} {server.get('valkey_version', server['redis_version'])}",
        "rules": crawl.shards[0].given(),
    }


def _end(crawl: Crawl, copies: Sequence["ShardCopy"], pool: ThreadPoolExecutor) -> bool:
    """Read the heads and all that belongs to them; tell whether they fit together, and each copy reaches its own."""
    with Hold(crawl) as hold:
        for _ in pool.map(ShardCopy.read_resume, copies):
            pass
        ends = list(pool.map(ShardCopy.read_end, copies))
        fit = list(pool.map(lambda copy: copy.read_outboxes(ends, hold.renew) and copy.read_log(hold.renew), copies))
    return all(list(pool.map(ShardCopy.read_rest, copies))) and all(fit)


@dataclass(frozen=True, slots=True)
class End:
    """The state of a shard at which its copy ends, read in one transaction."""

    head: Head
    hashes: Mapping[str, Mapping[bytes, bytes]]
    log_end: int
    call_ends: Sequence[tuple[bytes, float]]
    last_letter: bytes | None  # The id of the last dead letter.


class _Gap(Exception):
    """The store trimmed what was to be copied next, or has another history: copy the shard again from the start."""


class ShardCopy:
    """Writes the backup files of one shard. Not thread-safe."""

    def __init__(self, crawl: Crawl, shard: Shard, directory: Path, backup_id: str) -> None:
        """Begin with empty files."""
        self._crawl, self._client, self.shard, self.keys = crawl, shard.client, shard, shard.keys
        self._directory, self._backup_id = directory, backup_id
        self._files: dict[str, PartFile] = {}
        self._tries = 0
        self._settings: list[tuple[str, str, Any]] = []
        self._begin("")

    def _begin(self, why: str) -> None:
        """Start with the journal's first record."""
        if why:
            log.info("shard %d: copying it again: %s", self.shard.number, why)
        self._tries += 1
        if self._tries > TRIES_MAX:
            raise StoreUnavailable(
                f"shard {self.shard.number} was copied {TRIES_MAX} times, and each time the store let go of what was "
                f"still to be copied ({why}): is the disk of the backup too slow?"
            )
        self._head, self._pages, self._entry_bytes = NO_HEAD, 0, ENTRY_BYTES_AIM
        self._blocks_left: Iterator[None] | None = None
        self._copied = False
        self.blocks = self.done = 0
        self._open("journal")
        self._open("blocks")

    def _open(self, part: str) -> None:
        if part in self._files:
            self._files[part].abandon()
        self._files[part] = PartFile(self._directory, self._backup_id, self.shard.number, part)

    def close(self) -> None:
        """Let go of the files, if the backup is given up."""
        for file in self._files.values():
            file.abandon()

    def finish(self) -> list[dict[str, Any]]:
        """End the files; return their lines of the manifest."""
        return [self._files[part].close() for part in parts_of(self.shard.number)]

    # While events go on.

    def turn(self) -> bool:
        """Copy what was appended since the last turn, and some blocks; tell whether all blocks are copied."""
        try:
            self._follow(None)
            if self._blocks_left is None:
                self._blocks_left = self._copy_blocks()
            if not self._copied:
                self._copied = next(self._blocks_left, True) is True
        except _Gap as gap:
            self._begin(str(gap))
        return self._copied

    def _follow(self, until: Head | None) -> None:
        """Copy records, up to the head of the moment or to that one."""
        end = "+" if until is None else f"{until.lsn}-0"
        while until is None or self._head.lsn < until.lsn:
            count = max(1, min(ENTRIES_MAX, ENTRY_BYTES_AIM // self._entry_bytes))
            after = f"({self._head.lsn}-0" if self._head.lsn else "-"
            found, entries = self._crawl.ask([
                ["HMGET", self.keys.head, "lsn", "digest"],
                ["XRANGE", self.keys.journal, after, end, "COUNT", count],
            ])  # fmt: skip
            for _, fields in entries:
                self._take(fields[b"r"])
            head = head_of(found)
            if not entries and head != self._head:
                raise _Gap(f"the journal goes on at record {head.lsn}, the copy ends at {self._head.lsn}")
            if len(entries) < count and self._head.lsn >= head.lsn:
                break
        if until is not None and self._head != until:
            raise _Gap(f"the copy ends at record {self._head.lsn}, the shard at {until.lsn}")

    def _take(self, record: bytes) -> None:
        effect = Effect.unpack(record)
        if self._head.lsn and (effect.lsn, effect.previous) != (self._head.lsn + 1, self._head.digest):
            raise _Gap(f"record {effect.lsn} does not follow {self._head.lsn}")
        self._files["journal"].put(record)
        self._head, self._pages = effect.head, effect.pages
        self._entry_bytes += (len(record) - self._entry_bytes) // 8

    def _copy_blocks(self) -> Iterator[None]:
        """Copy the blocks, a few at each step, then what is not by page."""
        file = self._files["blocks"]
        self.blocks = blocks_of(self._pages)
        for first in range(0, self.blocks, BLOCKS_A_READ):
            numbers = range(first, min(first + BLOCKS_A_READ, self.blocks))
            images = self._crawl.ask([["HGETALL", self.keys.block(number)] for number in numbers])
            for number, image in zip(numbers, images, strict=True):
                if image:  # Else all of its pages are in the journal.
                    file.put([number, image])
            self.done += len(numbers)
            yield
        (names,) = self._crawl.ask([["HGETALL", self.keys.names_block]])
        file.put(["names", names])
        with store_errors():
            cursor = -1
            while cursor:
                cursor, found = self._client.zscan(self.keys.seen, max(cursor, 0), count=SCAN_COUNT)
                file.put(["seen", [part for name, score in found for part in (name, int(score))]])
                yield

    def read_settings(self) -> None:
        """Read what belongs to no record."""
        self._settings = []
        for name, kind in SETTINGS:
            key, cursor = self.keys.prefix + name, -1
            with store_errors():
                if kind == "set":
                    self._settings.append((name, kind, list(self._client.smembers(key))))
                    continue
                while cursor:
                    cursor, found = self._client.hscan(key, max(cursor, 0), count=SCAN_COUNT)
                    if found:
                        self._settings.append((name, kind, found))

    # At the end.

    def read_resume(self) -> None:
        """Read resume points, before any head is read: so no shard of the copy is behind one."""
        (self._resume,) = self._crawl.ask([["HGETALL", self.keys.resume]])
        if self.shard.number == LOG_SHARD:
            self._log_from = self._crawl.resume(EventLog.partition)

    def read_end(self) -> End:
        """Read the head, and what belongs to it."""
        keys = self.keys
        names = ("books", "offsets", "sent", "meta", "calls")
        with store_errors(), self._client.pipeline(transaction=True) as pipe:
            pipe.hmget(keys.head, "lsn", "digest")
            for name in names:
                pipe.hgetall(keys.prefix + name)
            pipe.get(keys.end)
            pipe.zrange(keys.call_ends, 0, -1, withscores=True)
            pipe.xrevrange(keys.dead, count=1)
            head, *hashes, log_end, call_ends, letters = pipe.execute()
        found = dict(zip(names, hashes, strict=True))
        found["head"] = {
            name: value for name, value in zip((b"lsn", b"digest"), head, strict=True) if value is not None
        }
        found["offsets"].pop(HOLD, None)
        last = letters[0][0] if letters else None
        self._end = End(head_of(head), found, int(log_end or 0), call_ends, last)
        return self._end

    def read_outboxes(self, ends: Sequence[End], renew: Callable[[], object]) -> bool:
        """Write down all that belongs to the heads, and what waits in outboxes; tell whether that is all there."""
        self._open("keys")
        file, here = self._files["keys"], self.shard.number
        for name, kind, value in self._settings:
            file.put([name, kind, value])
        for name, value in self._end.hashes.items():
            file.put([name, "hash", value])
        file.put(["resume", "hash", self._resume])
        file.put(["end", "string", b"%d" % self._end.log_end])
        if self._end.call_ends:
            file.put(["callends", "zset", [(name, int(score)) for name, score in self._end.call_ends]])
        for to, count in self._end.hashes["sent"].items():
            sent, taken = int(count), int(ends[int(to)].hashes["offsets"].get(source_of(here).encode(), 0))
            found = taken
            for entries in self._entries(self.keys.outbox(int(to)), f"1-{taken}", f"1-{max(sent - 1, 0)}"):
                file.put([f"out:{int(to)}", "stream", entries])
                found += len(entries)
                renew()
            if found != sent:
                log.info("shard %d: %d entries of %d to shard %d were found", here, found, sent, int(to))
                return False
        return True

    def read_log(self, renew: Callable[[], object]) -> bool:
        """Copy accepted events that may not have taken effect; tell whether all are there."""
        if self.shard.number != LOG_SHARD:
            return True
        self._open("log")
        at, end = self._log_from, self._end.log_end
        if at < end:
            for entries in self._entries(self.keys.log, f"1-{at}" if at else "-", f"1-{end - 1}"):
                numbers = [int(entry_id.partition(b"-")[2]) for entry_id, _ in entries]
                if numbers != list(range(at, at + len(numbers))):
                    break
                self._files["log"].put(entries)
                at += len(numbers)
                renew()
        if at < end:
            log.info("event %d, which may not have taken effect, is not in the log", at)
        return at >= end

    def read_rest(self) -> bool:
        """Copy the records up to the end, and dead letters; tell whether they were still there."""
        try:
            self._follow(self._end.head)
        except _Gap as gap:
            self._begin(str(gap))
            return False
        if self._end.last_letter is not None:
            for entries in self._entries(self.keys.dead, "-", self._end.last_letter):
                self._files["keys"].put(["dead", "stream", entries])
        return True

    def _entries(self, stream: str, first: Any, last: Any) -> Iterable[list[Any]]:
        """Yield the entries of a stream, some at a time."""
        while True:
            (entries,) = self._crawl.ask([["XRANGE", stream, first, last, "COUNT", ENTRIES_A_READ]])
            if entries:
                yield [[entry_id, fields] for entry_id, fields in entries]
            if len(entries) < ENTRIES_A_READ:
                return
            first = b"(" + entries[-1][0]


class Hold:
    """Holds deliveries and trims of the log, but not events. The hold expires after HOLD_SECONDS unless renewed."""

    def __init__(self, crawl: Crawl) -> None:
        """Hold nothing yet."""
        self._crawl, self._until_us, self._renewed = crawl, 0, float("-inf")
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Hold them."""
        self._write()
        return self

    def __exit__(self, _: type[BaseException] | None, __: object, ___: TracebackType | None) -> None:
        """Let them go on, unless another backup holds them by now."""
        keys = [shard.keys.offsets for shard in self._crawl.shards]
        found = self._crawl.ask([["HGET", key, HOLD] for key in keys])
        ours = [key for key, until in zip(keys, found, strict=True) if until == b"%d" % self._until_us]
        if ours:
            self._crawl.ask([["HDEL", key, HOLD] for key in ours])

    def renew(self) -> None:
        """Hold on, if it is time to say so. Any thread may."""
        with self._lock:
            if time.monotonic() - self._renewed > RENEW_SECONDS:
                self._write()

    def _write(self) -> None:
        """Hold until a time that is as far away by the clock of each server."""
        self._renewed = time.monotonic()
        with store_errors():
            times = [server.time() for server in primaries(self._crawl.client)]
        latest = max(int(seconds) * 1_000_000 + int(micros) for seconds, micros in times)
        self._until_us = latest + round(HOLD_SECONDS * 1e6)
        self._crawl.ask([["HSET", shard.keys.offsets, HOLD, self._until_us] for shard in self._crawl.shards])
