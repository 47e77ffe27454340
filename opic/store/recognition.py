"""Telling a store that has lost a crawl from one that never had it: by what is left of the crawl in the store itself.

What others remember of a crawl is compared elsewhere: by open shards (`opic.store.shard`), in the service's data
directory (`opic.service.known_crawls`), and in Kafka (`opic.ingest.kafka.known_offsets`).
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from opic.errors import CrawlMoved, CrawlStopped, StoreLost
from opic.store.connection import Client, ask, store_errors
from opic.store.keys import Keys
from opic.store.server_clock import server_now_us

SHARDS_SOUGHT: Final = 16  # At least so many are looked for where the meta does not say how many there are.
# Fields of a shard's meta by which a process takes a crawl with another secret than the one that it knew.
RESTORED = b"restored"  # The id of the backup that it came from.
ANEW = b"anew"  # When an operator accepted the loss of the one before.
MOVED = (
    b"moved"  # A field of shard 0's meta: the crawl that took its place, and the store of that one; see `opic migrate`.
)
MOVING = b"moving"  # A field of shard 0's meta: the migration that makes a copy of the crawl, in JSON.


def lost_part(client: Client, crawl: str, meta: Mapping[bytes, bytes], shards: int) -> str | None:
    """Return what a store has lost of a crawl; None if nothing, or if the store never had it.

    Args:
        client: of the store.
        crawl: the crawl's name.
        meta: what the first shard's meta holds; empty if there is none.
        shards: number of shards of a new crawl. A lost one may have had more.
    """
    if b"restoring" in meta:  # Opening it says so.
        return None
    shards = int(meta.get(b"shards", max(shards, SHARDS_SOUGHT)))
    others = ask(client, [["HMGET", Keys(crawl, number).meta, "secret", "restoring"] for number in range(1, shards)])
    if b"format" in meta:
        return _lost_shards(meta, others)
    first = Keys(crawl, 0)
    with store_errors():
        left = int(client.exists(*first.names())) + sum(secret is not None for secret, _ in others)
        if not left or client.hexists(first.meta, "format"):  # Another process made the crawl since `meta` was read.
            return None
    return f"{left:,} of its keys are left, without those that describe it"


def _lost_shards(meta: Mapping[bytes, bytes], others: list[list[bytes | None]]) -> str | None:
    number, shards = 1, len(others) + 1
    for number, (secret, restoring) in enumerate(others, 1):
        if restoring is None and secret is None and b"whole" in meta:
            return f"shard {number} of {shards} is gone"
        if restoring is None and secret is not None and secret != meta[b"secret"]:
            return f"shard {number} of {shards} is of an earlier crawl than shard 0"
    return None


def check_not_moved(keys: Keys, meta: Mapping[bytes, bytes]) -> None:
    """Refuse a crawl whose place another one has taken.

    Raises:
        CrawlMoved: it names the other one.
    """
    if (said := meta.get(MOVED)) is not None:
        raise _moved(keys, said)


def noted_move(client: Client, first: Keys) -> dict[str, Any] | None:
    """Return the migration that is under way in a crawl, or broke off; None without one. Its `to` is the new crawl."""
    with store_errors():
        stored = client.hget(first.meta, MOVING)
    return json.loads(stored) if stored is not None else None


def move_of(client: Client, first: Keys) -> CrawlMoved | None:
    """Return where a crawl went, to be raised or followed; None if it stays. `first` has the keys of its shard 0."""
    with store_errors():
        said = client.hget(first.meta, MOVED)
    return None if said is None else _moved(first, said)


def _moved(first: Keys, said: bytes) -> CrawlMoved:
    to, _, store = said.decode().partition(" ")
    return CrawlMoved(first.crawl, to, store)


def check_not_stopped(client: Client, keys: Keys) -> None:
    """Refuse a write that no function of the library makes while a shard takes none; `keys` are of the shard.

    Raises:
        CrawlStopped: its crawl is being moved to another one, or was.
    """
    with store_errors():
        stop = client.hget(keys.head, "stop")
    if stop is not None and int(stop) > server_now_us(client, keys.head):
        raise CrawlStopped


def check_not_lost(client: Client, crawl: str, meta: Mapping[bytes, bytes], shards: int) -> None:
    """Refuse a store that has lost a crawl, or a part of it.

    Raises:
        StoreLost: the message says what is gone and what to do.
    """
    if (what := lost_part(client, crawl, meta, shards)) is not None:
        raise StoreLost(crawl, what)
