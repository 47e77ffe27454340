"""Restore: loads a backup into a store that has no crawl of that name, completely or not at all.

Nothing is written before the whole backup has been read and recounted. First of all, the log of an existing crawl is
closed. That call is the fence: what the log accepted before it belongs to the crawl that is replaced, and it accepts
nothing after it until the restored crawl opens. If the restore stands still for longer than CLOSED_SECONDS, and the log
accepts something, the restore ends and changes nothing.

During the restore the crawl can't be opened (its meta has `restoring`), its log takes nothing, and the writes of
processes that have it open are refused, because each head is set to one that no record has. At the end, a record with a
random token is appended to each journal. A reader or writer that was at the same LSN of another history then sees a
different digest and loads the shard again. The crawl also begins an era: offsets of the log and of partitions that were
read before are refused.

A restore that breaks off leaves the crawl in that state, in which nothing is accepted, until another one completes.
"""

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from opic.background import repeated
from opic.errors import SettingsError, StoreError
from opic.model.books import Books
from opic.model.cash import MILLION, CrawlRules
from opic.ops.backup_check import ShardChecked, audit_of, check_backup, rules_of, summary_of
from opic.ops.backup_files import LOG_SHARD, SEGMENT, SEGMENTS, file_name, read_manifest, read_values
from opic.replica.crawl import Crawl
from opic.replica.effect import Effect
from opic.replica.stored_links import LIST_FIELDS, LinkList
from opic.service.stored_crawls import check_may_remove, close_crawl, remove_keys
from opic.store.commands import Command, flat, portions
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys, of_call
from opic.store.scan import key_names, one_run
from opic.store.server import check_server, make_ready

VALUES_A_COMMAND: Final = 1_000
CLOSED_SECONDS: Final = 10.0  # If the restore dies before it has written anything, events are accepted after this time.
RENEW_SECONDS: Final = 2.0
log = logging.getLogger("opic.ops")

Progress = Callable[[int, int], object]


class Fence(NamedTuple):
    """When the log of the replaced crawl was closed (Unix seconds), and how many records it had accepted by then."""

    closed_at: float
    log_end: int


def verify(directory: Path) -> tuple[dict[str, Any], list[ShardChecked]]:
    """Read a whole backup, and return its manifest and shards.

    Raises:
        SettingsError: a file is missing, damaged, or from another backup.
        StoreError: the shards do not fit together.
    """
    manifest = read_manifest(directory)
    checked = check_backup(directory, manifest)
    for name, recounted in summary_of(checked).items():
        if recounted != manifest[name]:
            raise SettingsError(
                f"{directory}: the recount gives {name} {recounted}, but the manifest has {manifest[name]}: use "
                "another backup"
            )
    return manifest, checked


def restore(
    client: Client,
    directory: Path,
    crawl: str,
    *,
    replace: bool = False,
    on_progress: Progress = lambda _done, _all: None,
) -> tuple[dict[str, Any], Fence]:
    """Load a backup into a store that has no such crawl.

    Args:
        client: client of a server or a cluster.
        directory: the backup's directory.
        crawl: name of the restored crawl.
        replace: remove an existing crawl of that name.
        on_progress: called with the number of values written and their total.

    Returns:
        The manifest, and the fence; its log_end is 0 where no log was open.

    Raises:
        SettingsError: the backup is incomplete or damaged. Nothing was written.
        StoreError: the crawl exists; or it accepted events, and nothing was written; or the restore broke off, and has
            to be repeated.
    """
    if not replace and key_names(client, f"opic:{{{crawl}:*"):
        raise StoreError(
            f"this store already has a crawl named {crawl!r}, or a restore into it broke off: use --replace to remove "
            "it, or another --crawl"
        )
    check_may_remove(client, crawl)
    with log_closed(client, keys := Keys(crawl, LOG_SHARD)) as fence:  # First: what comes from now on must not be lost.
        check_server(client)
        make_ready(client)
        manifest, checked = verify(directory)
        writing = _Restore(client, directory, crawl, manifest)
        _close_at(client, keys, fence, writing.token)
        close_crawl(client, writing.shards, writing.token)  # To all others, until the restore is complete.
    try:
        with store_errors(), one_run(client, [keys.head for keys in writing.shards]):
            writing.remove_old()
            writing.write(on_progress)
            writing.check_counts(checked)
            heads = writing.end()
    except StoreError as error:
        raise StoreError(
            f"the restore broke off ({error}): crawl {crawl!r} can't be used until `opic restore --replace` completes"
        ) from error
    _check_audit(client, crawl, manifest, heads)
    return manifest, fence


def _check_audit(client: Client, crawl: str, manifest: Mapping[str, Any], heads: Sequence[int]) -> None:
    opened = Crawl.open(client, crawl, create=False)
    whole, parts = opened.audit()
    continued = [head.lsn for head in opened.heads()] != list(heads)  # A worker that waited goes on at once.
    if not whole.conserved or (not continued and audit_of(parts) != manifest["audit"]):
        raise StoreError(
            f"the restored crawl differs from the backup ({audit_of(parts)}, not {manifest['audit']}; "
            f"{'; '.join(whole.mismatches) or 'no mismatch'}): did a worker run during the restore?"
        )


@contextmanager
def log_closed(client: Client, keys: Keys) -> Iterator[Fence]:
    """Let an existing crawl accept no events during the block, unless this process dies; `keys` of the log's shard."""
    try:
        fence = _close_for(client, keys, CLOSED_SECONDS)
    except StoreError:  # Is it a server that can't be used, or one without the functions?
        check_server(client)
        make_ready(client)
        fence = _close_for(client, keys, CLOSED_SECONDS)

    def renew() -> float:
        try:
            _close_for(client, keys, CLOSED_SECONDS)
        except StoreError as error:
            log.warning("events may be accepted while the backup is checked, which would end the restore: %s", error)
        return RENEW_SECONDS

    try:
        with repeated(renew, RENEW_SECONDS, "opic-restore"):
            yield fence
    finally:
        _close_for(client, keys, 0)  # Opens it again, unless the restore has begun.


def _close_for(client: Client, keys: Keys, seconds: float, token: bytes = b"", end: int = 0) -> Fence:
    """Close the log for a while, or with a token until the restore ends, if the log has not gone beyond `end`."""
    with store_errors():
        answer = client.execute_command(*of_call("close", (keys.meta, keys.end), round(seconds * 1e6), token, end))
    return Fence(int(answer[1]) / MILLION, int(answer[0]))


def _close_at(client: Client, keys: Keys, fence: Fence, token: bytes) -> None:
    """Close the log until the restore with this token ends.

    Raises:
        StoreError: it has accepted events since the fence. It was not closed.
    """
    since = _close_for(client, keys, CLOSED_SECONDS, token, fence.log_end).log_end - fence.log_end
    if since > 0:
        raise StoreError(
            f"crawl {keys.crawl!r} accepted {since:,} events while the backup was read, because the restore stood "
            f"still for over {CLOSED_SECONDS:g} s, or the crawl is new: nothing was changed; run it again"
        )


class _Restore:
    """The writes of one restore. They stop if another restore into the same crawl begins."""

    def __init__(self, client: Client, directory: Path, crawl: str, manifest: Mapping[str, Any]) -> None:
        self._client, self._directory, self._crawl, self._manifest = client, directory, crawl, manifest
        self.shards = [Keys(crawl, number) for number in range(manifest["shards"])]
        self.token = f"{manifest['id']}-{secrets.token_hex(8)}".encode()  # Names this restore, then the era.

    def remove_old(self) -> None:
        """Remove the keys of the old crawl, all of which a scan found."""
        kept = {key.encode() for keys in self.shards for key in (keys.meta, keys.head)}
        remove_keys(self._client, key_names(self._client, f"opic:{{{self._crawl}:*") - kept)

    def write(self, on_progress: Progress) -> None:
        """Write everything but each shard's meta and head."""
        rules, done = rules_of(self._manifest), 0
        total = sum(file["values"] for file in self._manifest["files"])
        for keys in self.shards:
            for commands in portions(_commands(self._directory, keys, rules)):
                _send(self._client, [["HGET", keys.meta, "restoring"], *commands], self.token)
                done += len(commands)
                on_progress(min(done, total), total)
        on_progress(total, total)

    def check_counts(self, checked: Sequence[ShardChecked]) -> None:
        """Compare the sizes of the keys that no record repeats with what the files hold."""
        for keys, shard in zip(self.shards, checked, strict=True):
            with self._client.pipeline(transaction=True) as pipe:
                pipe.hlen(keys.link_segments)
                pipe.hlen(keys.page_meta)
                pipe.zcard(keys.seen)
                pipe.hlen(keys.urls)
                counts = dict(zip(("linkseg", "pagemeta", "seen", "urls"), pipe.execute(), strict=True))
            if counts != shard.counts:
                raise StoreError(f"shard {keys.shard} has {counts}, but the backup has {shard.counts}")

    def end(self) -> list[int]:
        """Write each shard's meta and head, then open the crawl; return the LSNs of the heads."""
        heads = [self._end_shard(keys) for keys in self.shards]
        for keys in reversed(self.shards):  # Shard 0 comes last, because opening a crawl begins with it.
            self._client.hdel(keys.meta, "restoring")
        return heads

    def _end_shard(self, keys: Keys) -> int:
        (last,) = self._client.xrevrange(keys.journal, count=1)
        effect = Effect.unpack(last[1][b"r"])
        meta: dict[bytes, bytes] = {}
        for name, _, value in read_values(self._directory / file_name(keys.shard, "keys")):
            if name == "meta":
                meta = value
        marks = {b"restored": self._manifest["id"], b"era": self.token, b"restoring": self.token}
        _check_ours(self._client.hget(keys.meta, "restoring"), self.token)
        with self._client.pipeline(transaction=True) as pipe:
            pipe.delete(keys.meta)  # Nothing of what others wrote into it in the meantime stays.
            pipe.hset(keys.meta, mapping={**meta, **marks})
            pipe.hset(keys.head, mapping={"lsn": effect.lsn, "digest": effect.digest})
            pipe.execute()
        return effect.lsn


def _check_ours(stored: Any, token: bytes) -> None:
    if isinstance(stored, Exception):
        raise stored
    if stored != token:
        raise StoreError("another restore into this crawl has begun: let that one complete, or repeat this one")


def _commands(directory: Path, keys: Keys, rules: CrawlRules) -> Iterator[Command]:
    """Yield the commands that write a shard, except its meta and its head."""
    number = keys.shard
    segments = set[int]()
    for name, value, *fields in read_values(directory / file_name(number, "blocks")):
        if name == SEGMENT:
            segments.add(value)
            yield ["HSET", keys.link_segments, f"p{value}", fields[0], f"l{value}", fields[1]]
        elif name == SEGMENTS:
            yield ["HSET", keys.link_segments, *flat(value)]
            if merged := segments - set(LinkList.of([value[name] for name in LIST_FIELDS]).live):
                yield ["HDEL", keys.link_segments, *[f"{kind}{segment}" for segment in merged for kind in "pl"]]
        elif name == "seen":
            yield from _zadd(keys.seen, list(zip(value[::2], value[1::2], strict=True)))
        elif name == "pagemeta":
            yield ["HSET", keys.page_meta, *value]
        elif name == "urls":
            yield ["HSET", keys.urls, *value]
        elif value:
            yield ["HSET", keys.names_block if name == "names" else keys.block(name), *flat(value)]
    effect = Effect(0, bytes(8), Books.genesis(rules, number), 0, 0)
    for record in read_values(directory / file_name(number, "journal")):
        effect = Effect.unpack(record)
        yield ["XADD", keys.journal, f"{effect.lsn}-0", "r", record]
        yield from _zadd(keys.seen, [(name, time_us) for name, time_us in effect.calls.items()])
        for page, meta in effect.metas.items():
            yield ["HSET", keys.page_meta, page, meta] if meta else ["HDEL", keys.page_meta, page]
        if len(effect.forgotten):
            yield ["HDEL", keys.urls, *effect.forgotten.tolist()]
        if effect.again:
            yield ["HSET", keys.urls, *flat(effect.again)]
    own = Effect.of_new_history(effect.lsn + 1, effect.digest, effect.books, effect.pages, effect.host_count)
    yield ["XADD", keys.journal, f"{own.lsn}-0", "r", own.pack()]
    for name, kind, value in read_values(directory / file_name(number, "keys")):
        if name not in ("meta", "head"):
            yield from _written(keys.prefix + name, kind, value)
    if number == LOG_SHARD:
        for entries in read_values(directory / file_name(number, "log")):
            yield from _written(keys.log, "stream", entries)


def _written(key: str, kind: str, value: Any) -> Iterator[Command]:
    if kind == "hash":
        values = flat(value)
        for start in range(0, len(values), 2 * VALUES_A_COMMAND):
            yield ["HSET", key, *values[start : start + 2 * VALUES_A_COMMAND]]
    elif kind == "string":
        yield ["SET", key, value]
    elif kind == "zset":
        yield from _zadd(key, value)
    elif kind == "set":
        for start in range(0, len(value), VALUES_A_COMMAND):
            yield ["SADD", key, *value[start : start + VALUES_A_COMMAND]]
    elif kind == "stream":
        for entry_id, fields in value:
            yield ["XADD", key, entry_id, *flat(fields)]
    else:
        raise SettingsError(f"the backup has a key of unknown kind {kind!r}: use the version that made it")


def _zadd(key: str, pairs: Sequence[tuple[bytes, int]]) -> Iterator[Command]:
    for start in range(0, len(pairs), VALUES_A_COMMAND):
        some = pairs[start : start + VALUES_A_COMMAND]
        yield ["ZADD", key, *[part for name, score in some for part in (score, name)]]


def _send(client: Client, commands: Sequence[Command], token: bytes) -> None:
    """Send commands, the first of which reads whose restore it is."""
    with client.pipeline(transaction=False) as pipe:
        for command in commands:
            pipe.execute_command(*command)
        stored, *answers = pipe.execute(raise_on_error=False)
    _check_ours(stored, token)
    if (wrong := next((answer for answer in answers if isinstance(answer, Exception)), None)) is not None:
        raise wrong
