"""Importance that an engine outside computed, in the store: a number for each page, until the next load.

A hash of each shard has the numbers by id, PAGES_A_BLOCK a field, as little-endian float32, NaN for pages that the file
lacked: 4 bytes a page. Fields are named after their load, and ABOUT, in shard 0, names the load that counts. It is
written last. So a load that is killed changes nothing, and readers see all of one load.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from opic.arrays import Float32s
from opic.errors import ChangedMeanwhile, StoreDamaged
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys
from opic.store.recognition import check_not_stopped

PAGES_A_BLOCK: Final = 1 << 16
BLOCKS_A_CALL: Final = 16  # 4 MiB.
ABOUT: Final = b"about"
DIGEST_BYTES: Final = 16


class LoadedAbout(msgspec.Struct, frozen=True):
    """What is known of loaded importance.

    load         names the fields of the load
    loaded_at    when it was loaded, Unix seconds
    as_of        of when the graph is that it was computed from; None if that was not said
    error_bound  bound on its L1 distance from exact PageRank of that graph, or of the graph at the load; None: unknown
    given        how many known pages the file had
    pages        by shard: how many ids the numbers are of
    prints       by shard: what stands for these pages in their order
    digests      by shard: of the numbers
    """

    load: str
    loaded_at: float
    as_of: float | None
    error_bound: float | None
    given: int
    pages: list[int]
    prints: list[str]
    digests: list[str]

    def told(self) -> dict[str, object]:
        """Return what answers say of it."""
        return {"loaded_at": self.loaded_at, "loaded_as_of": self.as_of, "loaded_error_bound": self.error_bound}


def digest_of(value: bytes) -> str:
    """Return what stands for some bytes."""
    return hashlib.blake2b(value, digest_size=DIGEST_BYTES).hexdigest()


def write_column(client: Client, keys: Keys, load: str, column: Float32s) -> str:
    """Write the numbers of a shard for a load, which does not count yet; return their digest."""
    raw = column.astype("<f4")
    fields = {
        f"{load}:{number}": raw[first : first + PAGES_A_BLOCK].tobytes()
        for number, first in enumerate(range(0, len(raw), PAGES_A_BLOCK))
    }
    with store_errors():
        for some in _parts(list(fields.items())):
            client.hset(keys.loaded, mapping=dict(some))
    return digest_of(raw.tobytes())


def publish(client: Client, keys: Sequence[Keys], about: LoadedAbout) -> None:
    """Let a load count whose numbers are written, and remove those of all others.

    Raises:
        ChangedMeanwhile: another load has removed them.
    """
    check_not_stopped(client, keys[0])
    with store_errors():
        for shard, shard_keys in enumerate(keys):
            there = set(client.hkeys(shard_keys.loaded))
            if not {name.encode() for name in _names(about, shard)} <= there:
                raise ChangedMeanwhile("another load ended first, and counts now: load again if this one should")
        client.hset(keys[0].loaded, ABOUT.decode(), msgspec.json.encode(about))
    drop_others(client, keys, about.load)


def drop_others(client: Client, keys: Sequence[Keys], load: str | None) -> None:
    """Remove the numbers of all loads but one; None: of all, and what is known of them."""
    kept = None if load is None else f"{load}:".encode()
    with store_errors():
        for shard_keys in keys:
            names = [name for name in client.hkeys(shard_keys.loaded) if name != ABOUT or kept is None]
            gone = [name for name in names if kept is None or not name.startswith(kept)]
            for some in _parts(gone):
                client.hdel(shard_keys.loaded, *some)


def read_about(client: Client, first: Keys) -> LoadedAbout | None:
    """Return what is known of the load that counts, given the keys of shard 0; None if there is none."""
    with store_errors():
        told = client.hget(first.loaded, ABOUT.decode())
    return None if told is None else msgspec.json.decode(told, type=LoadedAbout)


def read_column(client: Client, keys: Keys, about: LoadedAbout, shard: int) -> Float32s:
    """Return the numbers of a shard, (pages,).

    Raises:
        StoreDamaged: they are not whole.
    """
    blocks: list[Any] = []
    with store_errors():
        for some in _parts(_names(about, shard)):
            blocks += client.hmget(keys.loaded, some)
    raw = b"".join(block or b"" for block in blocks)
    if digest_of(raw) != about.digests[shard]:
        raise StoreDamaged(f"shard {shard} lacks a part of the loaded importance: load it again")
    return np.frombuffer(raw, "<f4").astype(np.float32)


def _names(about: LoadedAbout, shard: int) -> list[str]:
    return [f"{about.load}:{number}" for number in range(-(-about.pages[shard] // PAGES_A_BLOCK))]


def _parts(some: list[Any]) -> list[list[Any]]:
    return [some[first : first + BLOCKS_A_CALL] for first in range(0, len(some), BLOCKS_A_CALL)]
