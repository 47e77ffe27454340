"""The crawls of a store: what there are, how one is made and removed, and how one that was lost is made again."""

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from redis.exceptions import NoPermissionError

from opic.errors import BadInput, NotPermitted, Refused, StoreError, StoreMismatch
from opic.ingest.heartbeats import ALIVE_SECONDS, plain_duration, workers_seen
from opic.model.books import Books
from opic.replica import Crawl
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys
from opic.store.recognition import ANEW, MOVED, lost_part, noted_move
from opic.store.scan import key_names

KEYS_A_CALL: Final = 1_000
CLOSED_HEAD: Final = {"lsn": 0, "digest": b"restoring"}  # A head that no record has: see `Follower`.
FIRST_META: Final = ":0}:meta"


@dataclass(frozen=True, slots=True)
class CrawlSize:
    """A crawl and its size; pages are 0 while a backup is restored into it, or after that broke off."""

    name: str
    shards: int
    known_pages: int
    read_pages: int
    moved_to: str = ""  # The crawl that took its place.

    def told(self) -> dict[str, Any]:
        """Return the fields, without `moved_to` if it is empty."""
        return {name: value for name, value in asdict(self).items() if value != ""}


def crawls_of(client: Client) -> list[CrawlSize]:
    crawls = []
    names = {
        key.decode().removeprefix("opic:{").removesuffix(FIRST_META)
        for key in key_names(client, f"opic:{{*{FIRST_META}")
    }
    for name in sorted(names):
        with store_errors():
            found_shards, moved = client.hmget(Keys(name, 0).meta, "shards", MOVED)
            shards = int(found_shards or 1)
            with client.pipeline(transaction=False) as pipe:
                for number in range(shards):
                    pipe.hgetall(Keys(name, number).books)
                books = [Books.unflat(stored) for stored in pipe.execute()]
        pages = sum(shard_books.live for shard_books in books), sum(shard_books.open for shard_books in books)
        crawls.append(CrawlSize(name, shards, *pages, (moved or b"").decode().partition(" ")[0]))
    return crawls


def delete_crawl(client: Client, crawl: str, *, force: bool = False) -> int:
    """Remove a crawl with all its keys; return how many there were.

    Workers and endpoints of the crawl that still run are refused from the start.

    Args:
        client: of a user that may remove keys.
        crawl: its name.
        force: even if a worker of it seems to run.

    Raises:
        BadInput: the store has no such crawl.
        Refused: a worker of it seems to run, the name of a crawl that was moved leads to it, or a migration copies it,
            or makes it.
        NotPermitted: this user may not remove keys. Nothing was changed.
    """
    first = Keys(crawl, 0)
    with store_errors():
        shards = client.hget(first.meta, "shards")
    names = key_names(client, f"opic:{{{crawl}:*")
    if not names:
        raise BadInput(f"this store has no crawl named {crawl!r}: `opic crawls` lists those there are")
    check_removable(client, crawl)
    seen = workers_seen(client, first)
    if not force and seen.alive:
        raise Refused(
            f"a worker of crawl {crawl!r} was there {plain_duration(seen.seconds or 0.0)} ago: stop its workers and "
            f"endpoints first, wait {ALIVE_SECONDS:.0f} s if one was killed, or use --force"
        )
    keys = [Keys(crawl, number) for number in range(int(shards or 1))]
    close_crawl(client, keys, secrets.token_hex(8).encode())
    last = {key.encode() for shard_keys in keys for key in (shard_keys.meta, shard_keys.head)}
    remove_keys(client, names - last)
    remove_keys(client, last)
    late = key_names(client, f"opic:{{{crawl}:*")  # Of calls that ran in the meantime.
    remove_keys(client, late)
    return len(names | last | late)


def check_removable(client: Client, crawl: str) -> None:
    """Find out before anything changes whether a crawl may be removed once its workers have ended.

    Raises:
        Refused: the name of a crawl that was moved leads to it, or a migration copies it, or makes it.
        NotPermitted: this user may not remove keys.
    """
    with store_errors():
        claim = client.hget(Keys(crawl, 0).meta, "restoring")
    crawls = crawls_of(client)
    for other in crawls:
        move = noted_move(client, Keys(other.name, 0))
        if move is not None and (other.name == crawl or move["token"].encode() == claim):
            raise Refused(
                f"crawl {other.name!r} is being moved to {move['to']!r}, or that broke off: wait for it, or run `opic "
                f"migrate --crawl {other.name}` with --resume or --abort first"
            )
    if leading := [other.name for other in crawls if other.moved_to == crawl]:
        raise Refused(
            f"the name {leading[0]!r} leads to crawl {crawl!r}, and whoever uses it would begin that one again, empty: "
            f"delete {leading[0]!r} first"
        )
    check_may_remove(client, crawl)


def make_crawl(client: Client, crawl: str, given: Mapping[str, int | bool | str], shards: int) -> bool:
    """Make a crawl, or check that the one that is there has the rules given; return whether it was made.

    Processes that knew an earlier crawl of this name, which was deleted, take this one.

    Args:
        client: of the store.
        crawl: its name.
        given: rules, as in `Settings.rules_given`.
        shards: number of shards, unless `given` sets it.

    Raises:
        Refused: there is a crawl of this name with other rules.
        StoreError: the server can't be used, or has lost a part of the crawl.
    """
    with store_errors():
        is_there = bool(client.exists(Keys(crawl, 0).meta))
    try:
        opened = Crawl.open(client, crawl, given, shards=shards)
    except StoreMismatch as error:
        raise Refused(f"crawl {crawl!r}: {error}") from None
    if not is_there:
        _mark_anew(opened)
    return not is_there


def _mark_anew(crawl: Crawl) -> None:
    crawl.ask([["HSET", shard.keys.meta, ANEW, f"{time.time():.0f}"] for shard in crawl.shards])


def begin_anew(client: Client, crawl: str, given: Mapping[str, int | bool | str], shards: int) -> int:
    """Make a crawl anew where it was lost; a crawl that is whole is kept, and from now on taken by all processes.

    A store that has lost a crawl is refused, so that it is not taken for a new one. This removes what is left of the
    crawl and makes it anew, empty, with a mark by which processes that knew the earlier one take this one.

    Args:
        client: of a user that may remove keys.
        crawl: the name of the crawl.
        given: rules that the user set explicitly.
        shards: number of shards, unless `given` sets it.

    Returns:
        How many keys were removed.

    Raises:
        StoreError: the server can't be used, or a restore is under way.
    """
    with store_errors():
        meta = client.hgetall(Keys(crawl, 0).meta)
    removed = 0
    if b"format" not in meta or lost_part(client, crawl, meta, shards) is not None:
        check_may_remove(client, crawl)
        left = set[bytes]() if b"restoring" in meta else key_names(client, f"opic:{{{crawl}:*")
        remove_keys(client, left)
        removed = len(left)
    _mark_anew(Crawl.open(client, crawl, given, shards=shards))
    return removed


def close_crawl(client: Client, shards: Sequence[Keys], token: bytes) -> None:
    """Let nobody open, write to or read a crawl from now on but the holder of the token."""
    with store_errors():
        for keys in shards:
            with client.pipeline(transaction=True) as pipe:
                pipe.delete(keys.meta)
                pipe.hset(keys.meta, "restoring", token)
                pipe.hdel(keys.head, "forgot")
                pipe.hset(keys.head, mapping=CLOSED_HEAD)
                pipe.execute()


def check_may_remove(client: Client, crawl: str) -> None:
    """Find out before anything changes whether this user may remove keys of a crawl.

    Raises:
        NotPermitted: it may not, as the service's own user of deploy/users.acl.
    """
    key = f"opic:{{{crawl}:0}}:none"  # There is no such key.
    try:
        with store_errors():
            client.delete(key)
            client.unlink(key)
    except StoreError as error:
        if not isinstance(error.__cause__, NoPermissionError):
            raise
        raise NotPermitted(
            "the user of OPIC_STORE may not remove keys of the store, and nothing was changed: run this as `admin`, as "
            'docs/operations.md says under "Back up and restore"'
        ) from error


def remove_keys(client: Client, keys: Collection[bytes]) -> None:
    """Remove keys, a thousand a call."""
    names = sorted(keys)
    with store_errors():
        for start in range(0, len(names), KEYS_A_CALL):
            with client.pipeline(transaction=False) as pipe:
                for key in names[start : start + KEYS_A_CALL]:
                    pipe.unlink(key)
                pipe.execute()
