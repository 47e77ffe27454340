"""Restore: loads a backup into a store that has no crawl of that name, completely or not at all.

Nothing is written before the whole backup has been read and recounted. During the restore the crawl can't be opened
(its meta has `restoring`), and the writes of processes that have it open are refused, because each head is set to one
that no record has. At the end, a record with a random token is appended to each journal. A reader or writer that was
at the same LSN of another history then sees a different digest and loads the shard again.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Final

from opic.errors import SettingsError, StoreError
from opic.model.cash import Books, CrawlRules
from opic.ops.backup_check import audit_of, check_backup, rules_of
from opic.ops.backup_files import LOG_SHARD, file_name, read_manifest, read_values
from opic.replica.crawl import Crawl
from opic.replica.effect import Effect
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys
from opic.store.library import primaries
from opic.store.server import check_server

CALL_BYTES_AIM: Final = 1 << 20
SCAN_COUNT: Final = 1_000
VALUES_A_COMMAND: Final = 1_000
RESTORING_HEAD: Final = {"lsn": 0, "digest": b"restoring"}  # A head that no record has: see `Follower`.
TOKEN_BYTES: Final = 16

Progress = Callable[[int, int], object]
Command = list[Any]


def verify(directory: Path) -> dict[str, Any]:
    """Read a whole backup, and return its manifest.

    Raises:
        SettingsError: a file is missing, damaged, or from another backup.
        StoreError: the shards do not fit together.
    """
    manifest = read_manifest(directory)
    found = audit_of([shard.audit for shard in check_backup(directory, manifest)])
    if found != manifest["audit"]:
        raise SettingsError(
            f"{directory}: the recount is {found}, but the manifest has {manifest['audit']}: use another backup"
        )
    return manifest


def restore(
    client: Client,
    directory: Path,
    crawl: str,
    *,
    replace: bool = False,
    on_progress: Progress = lambda _done, _all: None,
) -> dict[str, Any]:
    """Load a backup into a store that has no such crawl. No worker or endpoint of the crawl should run.

    Args:
        client: client of a server or a cluster.
        directory: the backup's directory.
        crawl: name of the restored crawl.
        replace: remove an existing crawl of that name.
        on_progress: called with the number of values written and their total.

    Returns:
        The manifest.

    Raises:
        SettingsError: the backup is incomplete or damaged. Nothing was written.
        StoreError: the crawl exists, or the restored crawl differs from the backup.
    """
    manifest = verify(directory)
    check_server(client)
    rules, shards = rules_of(manifest), [Keys(crawl, number) for number in range(manifest["shards"])]
    with store_errors():
        old = _keys_of(client, crawl)
        if old and not replace:
            raise StoreError(
                f"this store already has a crawl named {crawl!r}: use --replace to remove it, or another --crawl"
            )
        _begin(client, shards, manifest["id"], old)
        total, done = sum(file["values"] for file in manifest["files"]), 0
        for keys in shards:
            for commands in _grouped(_commands(directory, keys, rules)):
                _send(client, commands)
                done += len(commands)
                on_progress(min(done, total), total)
        on_progress(total, total)
        for keys in shards:
            _end_shard(client, directory, keys, manifest["id"])
        for keys in reversed(shards):  # Shard 0 comes last, because opening a crawl begins with it.
            client.hdel(keys.meta, "restoring")
    whole, parts = Crawl.open(client, crawl, create=False).audit()
    if (found := audit_of(parts)) != manifest["audit"] or not whole.conserved:
        raise StoreError(
            f"the restored crawl differs from the backup ({found}, not {manifest['audit']}; "
            f"{'; '.join(whole.mismatches) or 'no mismatch'}): did a worker run during the restore?"
        )
    return manifest


def _begin(client: Client, shards: Sequence[Keys], backup_id: str, old: Iterable[bytes]) -> None:
    """Remove the old crawl, and block opening and writing the crawl until the restore is complete."""
    for keys in shards:
        with client.pipeline(transaction=True) as pipe:
            pipe.delete(keys.meta)
            pipe.hset(keys.meta, "restoring", backup_id)
            pipe.hset(keys.head, mapping=RESTORING_HEAD)
            pipe.execute()
    kept = {key.encode() for keys in shards for key in (keys.meta, keys.head)}
    _remove(client, [key for key in old if key not in kept])


def _end_shard(client: Client, directory: Path, keys: Keys, backup_id: str) -> None:
    """Write a shard's meta and the head of its last record, in one transaction."""
    (last,) = client.xrevrange(keys.journal, count=1)
    effect = Effect.unpack(last[1][b"r"])
    meta: dict[bytes, bytes] = {}
    for name, _, value in read_values(directory / file_name(keys.shard, "keys")):
        if name == "meta":
            meta = value
    with client.pipeline(transaction=True) as pipe:
        pipe.hset(keys.meta, mapping={**meta, b"restored": backup_id, b"restoring": backup_id})
        pipe.hset(keys.head, mapping={"lsn": effect.lsn, "digest": effect.digest})
        pipe.execute()


def _commands(directory: Path, keys: Keys, rules: CrawlRules) -> Iterator[Command]:
    """Yield the commands that write a shard, except its meta and its head."""
    number = keys.shard
    for name, value in read_values(directory / file_name(number, "blocks")):
        if name == "seen":
            yield from _zadd(keys.seen, list(zip(value[::2], value[1::2], strict=True)))
        elif name == "pagemeta":
            yield ["HSET", keys.page_meta, *value]
        elif name == "links":
            yield ["HSET", keys.links, *value]
        elif value:
            yield ["HSET", keys.names_block if name == "names" else keys.block(name), *_flat(value)]
    effect = Effect(0, bytes(8), Books.genesis(rules, number), 0, 0)
    for record in read_values(directory / file_name(number, "journal")):
        effect = Effect.unpack(record)
        yield ["XADD", keys.journal, f"{effect.lsn}-0", "r", record]
        yield from _zadd(keys.seen, [(name, time_us) for name, time_us in effect.calls.items()])
        for page, meta in effect.metas.items():
            yield ["HSET", keys.page_meta, page, meta] if meta else ["HDEL", keys.page_meta, page]
        for page, links in effect.kept_links():
            yield ["HSET", keys.links, page, links]
    own = Effect(
        lsn=effect.lsn + 1,
        previous=effect.digest,
        books=copy(effect.books),
        pages=effect.pages,
        host_count=effect.host_count,
        first_page=effect.pages,
        restored=secrets.token_bytes(TOKEN_BYTES),
    )
    yield ["XADD", keys.journal, f"{own.lsn}-0", "r", own.pack()]
    for name, kind, value in read_values(directory / file_name(number, "keys")):
        if name not in ("meta", "head"):
            yield from _written(keys.prefix + name, kind, value)
    if number == LOG_SHARD:
        for entries in read_values(directory / file_name(number, "log")):
            yield from _written(keys.log, "stream", entries)


def _written(key: str, kind: str, value: Any) -> Iterator[Command]:
    """Yield the commands that write a part of a key."""
    if kind == "hash":
        flat = _flat(value)
        for at in range(0, len(flat), 2 * VALUES_A_COMMAND):
            yield ["HSET", key, *flat[at : at + 2 * VALUES_A_COMMAND]]
    elif kind == "string":
        yield ["SET", key, value]
    elif kind == "zset":
        yield from _zadd(key, value)
    elif kind == "set":
        for at in range(0, len(value), VALUES_A_COMMAND):
            yield ["SADD", key, *value[at : at + VALUES_A_COMMAND]]
    elif kind == "stream":
        for entry_id, fields in value:
            yield ["XADD", key, entry_id, *_flat(fields)]
    else:
        raise SettingsError(f"the backup has a key of unknown kind {kind!r}: use the version that made it")


def _zadd(key: str, pairs: Sequence[tuple[bytes, int]]) -> Iterator[Command]:
    for at in range(0, len(pairs), VALUES_A_COMMAND):
        some = pairs[at : at + VALUES_A_COMMAND]
        yield ["ZADD", key, *[part for name, score in some for part in (score, name)]]


def _flat(value: Mapping[Any, Any]) -> list[Any]:
    return [part for pair in value.items() for part in pair]


def _grouped(commands: Iterator[Command]) -> Iterator[list[Command]]:
    """Yield the commands in groups of about CALL_BYTES_AIM."""
    group: list[Command] = []
    size = 0
    for command in commands:
        group.append(command)
        size += sum(len(part) if isinstance(part, bytes | str) else 8 for part in command)
        if size >= CALL_BYTES_AIM:
            yield group
            group, size = [], 0
    if group:
        yield group


def _send(client: Client, commands: Sequence[Command]) -> None:
    with client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        pipe.execute()


def _keys_of(client: Client, crawl: str) -> set[bytes]:
    return {
        key for server in primaries(client) for key in server.scan_iter(match=f"opic:{{{crawl}:*", count=SCAN_COUNT)
    }


def _remove(client: Client, keys: Sequence[bytes]) -> None:
    for at in range(0, len(keys), SCAN_COUNT):
        with client.pipeline(transaction=False) as pipe:
            for key in keys[at : at + SCAN_COUNT]:
                pipe.unlink(key)
            pipe.execute()
