"""A consistent copy of all shards of a crawl, and back.

While it is made no record takes effect. First records are held off and what shards sent to each other is delivered,
until nothing is under way; then all steps are held off, and each shard is copied, key by key, as the server itself
writes values down (DUMP). A shard goes on once it is copied: what it sends then stays in its outbox, since nobody takes
it where the copy is still to be made. So the copy is of one state, in which the books of each shard balance and no cash
is in flight. The hold ends by itself if the one who makes the backup dies.

Offsets lie in the shards, so after a restore workers read on from where the copy stands, and reach the same state
again: on one shard to the bit. What the log no longer has is lost, so it has to reach back to the last backup.

A backup is a directory: `manifest.json`, and for each shard a zstd-compressed stream of MessagePack values: what it is,
then (name without prefix, milliseconds to live, value), then how many. Nothing of a backup is written into a store
before all its files were read and found to belong together.
"""

import hashlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgpack
import redis
import zstandard

from opic.errors import SettingsError, StoreError, StoreUnavailable
from opic.ledger import Audit
from opic.store import Crawl, Writer
from opic.store.connection import Client, store_errors
from opic.store.keys import FORMAT, Keys
from opic.store.library import primaries
from opic.store.server import check_server

BACKUP_FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
HOLD_SECONDS: Final = 30.0  # A backup that died holds the service for so long.
RENEW_SECONDS: Final = 5.0
KEYS_A_CALL: Final = 64  # 2 MB of blocks.
SCAN_COUNT: Final = 1_000
POLL_SECONDS: Final = 0.02
DRAIN_SECONDS_MAX: Final = 600.0
READ_BYTES: Final = 1 << 20
# Kept by the endpoint, not by steps: they come and go while the copy is made, and none of them is about cash.
FLEETING: Final = {"leases", "waits", "fails", "hosts", "freed", "flights", "flightends", "metrics", "barrier"}
# What accepts events: one instant, since an end without its records would lose what comes next.
LOG_KEYS: Final = ("log", "end", "calls", "callends")
log = logging.getLogger("opic.backup")

Progress = Callable[[int, int], object]


def backup(crawl: Crawl, directory: Path, on_progress: Progress = lambda _done, _all: None) -> dict[str, Any]:
    """Copy a crawl into a directory that is made; workers wait meanwhile, and go on by themselves.

    Args:
        crawl: open, in a server or a cluster.
        directory: must not be there yet, or be empty.
        on_progress: told the keys copied and all there are.

    Returns:
        The manifest.

    Raises:
        SettingsError: the directory is not empty, or can't be written.
        StoreError: the books don't balance, so that a copy is worth nothing; or the hold was lost.
        StoreUnavailable: the store was away; the directory has no manifest then, and is no backup.
    """
    _make_empty(directory)
    name = secrets.token_hex(8)
    client = crawl.client
    with store_errors(), _Hold(crawl) as hold:
        hold.drain()
        hold.close()
        parts = []
        for shard in crawl.shards:
            hold.renew()
            parts.append(shard.audit())
        if wrong := [f"shard {n}: {part.mismatches}" for n, part in enumerate(parts) if not part.conserved]:
            raise StoreError(f"the books don't balance ({'; '.join(wrong)}): see `opic audit`")
        server = primaries(client)[0].info("server")
        manifest: dict[str, Any] = {
            "format": BACKUP_FORMAT,
            "id": name,
            "store_format": FORMAT,
            "crawl": crawl.shards[0].keys.crawl,
            "shards": len(crawl),
            "made_at": time.time(),
            "server": f"{server.get('server_name', 'redis')} {server.get('valkey_version', server['redis_version'])}",
            "rules": crawl.shards[0].given(),
            "audit": _audit(parts),
            "offsets": [_offsets(client, shard.keys) for shard in crawl.shards],
            "files": [],
        }
        keys = _keys_by_shard(client, crawl)
        total, done = sum(map(len, keys)), 0
        for shard in crawl.shards:
            client.hset(shard.keys.meta, "backup", name)
            about = {"id": name, "shard": shard.number, "shards": len(crawl), "format": BACKUP_FORMAT}
            path = directory / f"shard-{shard.number:04d}.zst"
            wanted = keys[shard.number]
            with _Written(path) as file:
                file.put(about)
                count = 0
                for entry in _dumped(client, shard.keys, wanted):
                    file.put(entry)
                    count, done = count + 1, done + 1
                    if done % KEYS_A_CALL == 0:
                        hold.renew()
                        on_progress(done, total)
                file.put({"keys": count})
            hold.release(shard.number)
            about_file = {"name": path.name, "shard": shard.number, "keys": count}
            manifest["files"].append({**about_file, "bytes": path.stat().st_size, "sha256": file.digest})
        on_progress(total, total)
    _write_manifest(directory, manifest)
    try:
        with store_errors():
            client.hset(crawl.shards[0].keys.meta, "backup_at", manifest["made_at"])  # For /metrics.
    except StoreUnavailable as error:
        log.warning("the backup is whole, and /metrics will not know of it: %s", error)
    return manifest


def restore(
    client: Client,
    directory: Path,
    crawl: str,
    *,
    replace: bool = False,
    on_progress: Progress = lambda _done, _all: None,
) -> dict[str, Any]:
    """Put a backup into a store that has no such crawl. No worker or endpoint of the crawl may run.

    Args:
        client: of a server, or of a cluster, of the make that the backup was made on, or a newer one.
        directory: of the backup.
        crawl: the name that it gets.
        replace: remove the crawl of that name that is there.
        on_progress: told the keys written and all there are.

    Returns:
        The manifest.

    Raises:
        SettingsError: the files are not those of one backup, or not whole. Nothing was written.
        StoreError: there is such a crawl; or the server can't read the copy, or what came out is not what went in.
    """
    manifest = verify(directory)
    check_server(client)
    shards = [Keys(crawl, number) for number in range(manifest["shards"])]
    with store_errors():
        old = _keys_of(client, crawl)
        if old and not replace:
            raise StoreError(
                f"there is a crawl named {crawl!r} in this store: use --replace to remove it, or another --crawl"
            )
        # From here on nobody opens the crawl until all of it is there.
        for keys in shards:
            client.hset(keys.meta, "restoring", manifest["id"])
        metas = {keys.meta.encode() for keys in shards}
        _remove(client, [key for key in old if key not in metas])
        total, done = sum(file["keys"] for file in manifest["files"]), 0
        held_back: dict[int, bytes] = {}
        for file, keys in zip(manifest["files"], shards, strict=True):
            for entries in _batches(_entries(directory / file["name"])):
                for name, _, value in entries:
                    if name == b"meta":  # Last, when all else is there.
                        held_back[keys.shard] = value
                _put(client, keys, [entry for entry in entries if entry[0] != b"meta"])
                done += len(entries)
                on_progress(done, total)
        for keys in shards:
            client.hdel(keys.offsets, "gate", "pause")
            client.hdel(keys.ids, "gate")
            with client.pipeline(transaction=True) as pipe:
                pipe.restore(keys.meta, 0, held_back[keys.shard], replace=True)
                pipe.hset(keys.meta, mapping={"restoring": manifest["id"], "restored": manifest["id"]})
                pipe.execute()
        for keys in reversed(shards):  # The first one is the one that is opened first.
            client.hdel(keys.meta, "restoring")
    restored = Crawl.open(client, crawl, create=False)
    for shard in restored.shards:  # Copies of what was there before are void.
        with closing(shard.line()) as line:
            shard.begin_era(line.run_id, anew=True)
    _, parts = restored.audit()
    if (found := _audit(parts)) != manifest["audit"]:
        raise StoreError(f"what was restored is not what was copied: {found}, not {manifest['audit']}")
    return manifest


def verify(directory: Path) -> dict[str, Any]:
    """Read a whole backup, and return its manifest.

    Raises:
        SettingsError: a file is missing, damaged, or of another backup.
    """
    try:
        manifest: dict[str, Any] = json.loads((directory / MANIFEST).read_text())
        if manifest["format"] != BACKUP_FORMAT or manifest["store_format"] != FORMAT:
            raise SettingsError(
                f"{directory} is a backup of format {manifest['format']}/{manifest['store_format']}, this program "
                f"reads {BACKUP_FORMAT}/{FORMAT}: use the one that made it"
            )
        if sorted(file["shard"] for file in manifest["files"]) != list(range(manifest["shards"])):
            raise SettingsError(f"{directory} does not name a file for each of {manifest['shards']} shards")
        for file in manifest["files"]:
            _verify_file(directory / file["name"], file, manifest)
    except OSError as error:
        raise SettingsError(f"{error.filename} can't be read ({error.strerror}): is {directory} a backup?") from None
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{directory / MANIFEST} is no manifest of a backup ({error})") from None
    return manifest


def _verify_file(path: Path, file: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    about = next(_values(path), None)
    if not isinstance(about, dict) or (about.get("id"), about.get("shard"), about.get("shards")) != (
        manifest["id"],
        file["shard"],
        manifest["shards"],
    ):
        raise SettingsError(
            f"{path} is not shard {file['shard']} of backup {manifest['id']}: shards of several backups don't fit "
            "together; restore one backup as a whole"
        )
    digest = hashlib.sha256()
    with path.open("rb") as read:
        while part := read.read(READ_BYTES):
            digest.update(part)
    if digest.hexdigest() != file["sha256"]:
        raise SettingsError(f"{path} is damaged: its checksum is not the manifest's; use another backup")


class _Hold:
    """Holds off what would change a crawl, and lets go of it at the end."""

    def __init__(self, crawl: Crawl) -> None:
        self._crawl, self._held, self._closed = crawl, {*range(len(crawl))}, False
        self._renewed = 0.0
        self._until_us = 0

    def __enter__(self) -> "_Hold":
        for shard in self._crawl.shards:
            if any(self._crawl.client.hmget(shard.keys.offsets, "gate", "pause")):
                self._await_other(shard.keys)
        self._write()
        return self

    def __exit__(self, *_: object) -> None:
        for number in sorted(self._held):
            self.release(number)

    def drain(self) -> None:
        """Deliver all that shards sent to each other."""
        writer, deadline = Writer(self._crawl), time.monotonic() + DRAIN_SECONDS_MAX
        while writer.deliver() or self._crawl.waiting():
            self.renew()
            if time.monotonic() > deadline:
                raise StoreUnavailable("what shards sent to each other is not taken: does each have a server?")

    def close(self) -> None:
        """Hold off everything."""
        self._closed = True
        self._write()
        if self._crawl.waiting():
            raise StoreUnavailable("a shard sent something while all were held: is another backup being made?")

    def renew(self) -> None:
        """Hold on, if it is time to say so.

        Raises:
            StoreError: the hold ran out.
        """
        if time.monotonic() - self._renewed > RENEW_SECONDS:
            if time.monotonic() - self._renewed > HOLD_SECONDS / 2:
                raise StoreError("the store did not answer for so long that steps went on: make the backup again")
            self._write()

    def release(self, number: int) -> None:
        """Let a shard go on."""
        keys = self._crawl.shards[number].keys
        with self._crawl.client.pipeline(transaction=True) as pipe:
            pipe.hdel(keys.offsets, "gate", "pause")
            pipe.hdel(keys.ids, "gate")
            pipe.execute()
        self._held.discard(number)

    def _write(self) -> None:
        client, field = self._crawl.client, "gate" if self._closed else "pause"
        for number in sorted(self._held):
            keys = self._crawl.shards[number].keys
            before = client.hget(keys.offsets, field)
            if self._until_us and before is not None and int(before) != self._until_us:
                raise StoreError("another backup is being made: wait for it")
        self._until_us = round((_server_time(client, self._crawl) + HOLD_SECONDS) * 1e6)
        for number in sorted(self._held):
            keys = self._crawl.shards[number].keys
            with client.pipeline(transaction=True) as pipe:
                pipe.hset(keys.offsets, field, self._until_us)
                if self._closed:
                    pipe.hset(keys.ids, "gate", self._until_us)
                pipe.execute()
        self._renewed = time.monotonic()

    def _await_other(self, keys: Keys) -> None:
        """Wait for the hold of a backup that died to run out; refuse to go on where it is renewed."""
        client, seen = self._crawl.client, None
        while True:
            held = [int(until) for until in client.hmget(keys.offsets, "gate", "pause") if until]
            if not held or max(held) < _server_time(client, self._crawl) * 1e6:
                return
            if seen is not None and max(held) != seen:
                raise StoreError("another backup is being made: wait for it")
            seen = max(held)
            time.sleep(POLL_SECONDS)


def _server_time(client: Client, crawl: Crawl) -> float:
    """Return the latest of the servers' clocks: whichever looks, the hold lasts."""
    times = [server.time() for server in primaries(client)]
    return max(float(seconds) + float(micros) / 1e6 for seconds, micros in times)


def _keys_of(client: Client, crawl: str) -> set[bytes]:
    return {
        key for server in primaries(client) for key in server.scan_iter(match=f"opic:{{{crawl}:*", count=SCAN_COUNT)
    }


def _keys_by_shard(client: Client, crawl: Crawl) -> list[list[bytes]]:
    """Return all names of keys, in order."""
    name = crawl.shards[0].keys.crawl
    pattern = re.compile(rb"opic:\{" + re.escape(name.encode()) + rb":(\d+)\}:")
    found: list[list[bytes]] = [[] for _ in crawl.shards]
    for key in sorted(_keys_of(client, name)):
        if match := pattern.match(key):
            found[int(match[1])].append(key)
    return found


def _dumped(client: Client, keys: Keys, names: Sequence[bytes]) -> Iterator[tuple[bytes, int, bytes]]:
    prefix = keys.prefix.encode()
    log = [prefix + name.encode() for name in LOG_KEYS]
    with client.pipeline(transaction=True) as pipe:
        for name in log:
            pipe.dump(name)
        values = pipe.execute()
    yield from ((name.removeprefix(prefix), 0, value) for name, value in zip(log, values, strict=True) if value)
    rest = [name for name in names if name not in log]
    for at in range(0, len(rest), KEYS_A_CALL):
        some = rest[at : at + KEYS_A_CALL]
        with client.pipeline(transaction=False) as pipe:
            for name in some:
                pipe.dump(name)
                pipe.pttl(name)
            answers = pipe.execute()
        for name, value, left in zip(some, answers[::2], answers[1::2], strict=True):
            short = name.removeprefix(prefix)
            if value is None:
                if short.decode() in FLEETING:
                    continue
                raise StoreUnavailable(f"{name.decode()} went away while it was copied: does its slot move? Try again")
            yield short, max(int(left), 0), value


def _put(client: Client, keys: Keys, entries: Sequence[tuple[bytes, int, bytes]]) -> None:
    if not entries:
        return
    prefix = keys.prefix.encode()
    with client.pipeline(transaction=False) as pipe:
        for name, left, value in entries:
            pipe.restore(prefix + name, left, value)
        try:
            pipe.execute()
        except redis.ResponseError as error:
            if "DUMP payload" not in str(error):
                raise
            raise StoreError(
                "this server can't read what the other one wrote: restore into one of the same make and version, or a "
                "newer one; the manifest names it"
            ) from error


def _remove(client: Client, keys: Sequence[bytes]) -> None:
    for at in range(0, len(keys), SCAN_COUNT):
        with client.pipeline(transaction=False) as pipe:
            for key in keys[at : at + SCAN_COUNT]:
                pipe.unlink(key)
            pipe.execute()


def _offsets(client: Client, keys: Keys) -> dict[str, int]:
    found = client.hgetall(keys.offsets)
    return {name.decode(): int(offset) for name, offset in sorted(found.items()) if name not in (b"gate", b"pause")}


def _audit(parts: Sequence[Audit]) -> dict[str, object]:
    names = ("minted", "pages", "virtual", "in_flight")
    return {name: sum(getattr(part, name) for part in parts) for name in names} | {
        "conserved": all(part.conserved for part in parts)
    }


class _Written:
    """A compressed file of values, synced, with its checksum."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.digest = ""

    def __enter__(self) -> "_Written":
        self._file: BinaryIO = self._path.open("wb")
        self._hash = hashlib.sha256()
        self._packer = zstandard.ZstdCompressor(level=3).compressobj()
        return self

    def put(self, value: object) -> None:
        self._out(self._packer.compress(msgpack.packb(value)))

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file:
            if kind is None:
                self._out(self._packer.flush())
                self._file.flush()
                os.fsync(self._file.fileno())
                self.digest = self._hash.hexdigest()

    def _out(self, packed: bytes) -> None:
        self._hash.update(packed)
        self._file.write(packed)


def _values(path: Path) -> Iterator[Any]:
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as packed:
        try:
            yield from msgpack.Unpacker(packed, max_buffer_size=0)
        except (zstandard.ZstdError, msgpack.UnpackException, ValueError) as error:
            raise SettingsError(f"{path} is damaged ({error}): use another backup") from None


def _entries(path: Path) -> Iterator[tuple[bytes, int, bytes]]:
    for value in _values(path):
        if isinstance(value, list):
            name, left, dumped = value
            yield name, left, dumped


def _batches(entries: Iterator[tuple[bytes, int, bytes]]) -> Iterator[list[tuple[bytes, int, bytes]]]:
    batch: list[tuple[bytes, int, bytes]] = []
    for entry in entries:
        batch.append(entry)
        if len(batch) == KEYS_A_CALL:
            yield batch
            batch = []
    if batch:
        yield batch


def _make_empty(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        taken = next(directory.iterdir(), None)
    except OSError as error:
        raise SettingsError(f"{directory} can't be written ({error.strerror}): choose another directory") from None
    if taken is not None:
        raise SettingsError(f"{directory} is not empty: name a directory for this backup alone")


def _write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Last, and whole or not at all: a directory without it is no backup."""
    scratch = directory / f"{MANIFEST}.new"
    with scratch.open("w") as file:
        file.write(json.dumps(manifest, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(directory / MANIFEST)
