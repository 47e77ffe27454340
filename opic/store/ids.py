"""Ids of pages: dense numbers in order of first sight, found by a keyed fingerprint of the URL.

Ids never change, so whatever a worker has seen stays true. The fingerprint's key is a secret of the store, so that a
hostile site can't choose URLs that collide. The URLs themselves lie in blocks of 256, compressed once full.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgpack
import numpy as np
import redis
import zstandard

from opic.errors import FenceMoved, StoreError, StoreUnavailable
from opic.store.connection import Client, store_errors
from opic.store.keys import BLOCK_BYTES, BUCKET_LOAD, ROWS_I64, ROWS_U8, ROWS_URLS, Keys

FINGERPRINT_BYTES = 8
URLS_A_CALL = 4_000  # About 10 ms of server time when all are new.
SPLITS_A_CALL = 128  # A few more than new URLs of a call fill buckets, else these would be fuller with each.
SEALS_A_CALL = 64  # Lists of 256 URLs: about 1 MB.
ZSTD_LEVEL = 3
URLS_BYTES_MAX = 16 << 20  # What a sealed block may unpack to; 256 URLs of 2 KiB are far less.


class Directory:
    """Where a shard's fingerprints are: how many buckets there are now, and how to find and add pages."""

    def __init__(self, client: Client, keys: Keys, secret: bytes) -> None:
        """Nothing is read until something is asked."""
        self.client, self.keys = client, keys
        self.next_id, self.buckets, self.sealed = 0, 0, 0
        self._hash = blake2b(key=secret, digest_size=FINGERPRINT_BYTES)
        self._full: dict[int, list[bytes]] = {}  # URL lists to seal, as read.
        self._asked: list[int] = []  # Those that the request under way reads.

    def reload(self) -> None:
        """Read how many ids and buckets there are."""
        with store_errors():
            counters = self.client.hmget(self.keys.ids, "next", "buckets", "sealed")
        self.next_id, self.buckets, self.sealed = (int(n) for n in counters)

    def forget(self) -> None:
        """Forget what a server that lost its tail may have lost too: counters, and lists that were to be sealed."""
        self.next_id, self.buckets, self.sealed = 0, 0, 0
        self._full.clear()
        self._asked.clear()

    def fingerprint(self, url: str) -> bytes:
        """Return 64 bits of the keyed hash of a canonical URL: one false match in 10^5 shards of 10^7 pages."""
        hashed = self._hash.copy()
        hashed.update(url.encode())
        return hashed.digest()

    def buckets_of(self, fingerprints: Sequence[bytes]) -> "np.ndarray":
        """Return the bucket of each fingerprint (linear hashing: b + 2^k is split off b when its turn comes)."""
        hashed = np.frombuffer(b"".join(fingerprints), "<u4")[::2].astype(np.int64)
        span = 1 << self.buckets.bit_length()  # Twice the largest power of two that is not over `buckets`.
        at = hashed % span
        return np.where(at < self.buckets, at, hashed % (span // 2))

    def find(self, urls: Sequence[str]) -> list[int | None]:
        """Return the ids of canonical URLs, None for one that has none."""
        while True:
            commands, buckets = self.find_commands(urls)
            with store_errors(), self.client.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                found = self.found(pipe.execute(), buckets)
            if found is not None:
                return found

    def find_commands(self, urls: Sequence[str]) -> tuple[list[list[Any]], int]:
        """Return the commands that look for ids, for whoever sends them himself, and how many buckets they count on."""
        if not self.buckets:
            self.reload()
        buckets, fingerprints = self.buckets, [self.fingerprint(url) for url in urls]
        places = self.buckets_of(fingerprints).tolist()
        look = [["HGET", self.keys.block("p", place), fp] for fp, place in zip(fingerprints, places, strict=True)]
        return [*look, ["HGET", self.keys.ids, "buckets"]], buckets

    def found(self, replies: Sequence[Any], buckets: int) -> list[int | None] | None:
        """Take the replies to `find_commands`; return the ids, or None: ask again, there are more buckets now."""
        *ids, now = replies
        # A bucket that was split meanwhile would have hidden a page.
        if int(now) == buckets:
            return [None if i is None else int(i) for i in ids]
        self.buckets = int(now)
        return None

    def assign(self, urls: Sequence[str], inflow: bool) -> list[int]:
        """Return the ids of distinct canonical URLs; those never seen get the next ones, in the order given."""
        ids: list[int] = []
        at = 0
        while at < len(urls):
            part = urls[at : at + URLS_A_CALL]
            commands = self.request(part, inflow)
            with store_errors(), self.client.pipeline(transaction=False) as pipe:
                for command in commands:
                    pipe.execute_command(*command)
                found = self.answer(pipe.execute(raise_on_error=False))
            if found is not None:
                ids += found
                at += len(part)
        return ids

    def request(self, urls: Sequence[str], inflow: bool) -> list[list[Any]]:
        """Return the commands that give pages their ids, for whoever sends them himself; up to URLS_A_CALL pages.

        The upkeep that has fallen due rides along before it: full buckets are split, full URL lists are read, and
        those read the last time are sealed.
        """
        keys = self.keys
        if not self.buckets:
            self.reload()
        commands: list[list[Any]] = []
        for new in range(self.buckets, min(-(-self.next_id // BUCKET_LOAD), self.buckets + SPLITS_A_CALL)):
            span = 1 << new.bit_length()
            names = (keys.ids, keys.block("p", new - span // 2), keys.block("p", new))
            commands.append(["FCALL", "opic_1_split", 3, *names, new, span])
            self.buckets = new + 1  # Unless someone else was first: then we are told with the ids.
        for number, full in self._full.items():
            packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(b"\n".join(full))
            commands.append(["FCALL", "opic_1_seal", 2, keys.ids, keys.block("u", number), number, packed])
            self.sealed = max(self.sealed, number + 1)
        self._full.clear()
        self._asked = list(range(self.sealed, min(self.next_id // ROWS_URLS, self.sealed + SEALS_A_CALL)))
        commands += [["LRANGE", keys.block("u", number), 0, -1] for number in self._asked]
        return [*commands, self._ids_command(urls, inflow)]

    def _ids_command(self, urls: Sequence[str], inflow: bool) -> list[Any]:
        fingerprints = [self.fingerprint(url) for url in urls]
        distinct, places = np.unique(self.buckets_of(fingerprints), return_inverse=True)
        block, last = self.keys.block, self.next_id + len(urls) - 1
        blocks = [
            block(c, b)
            for c in ("vhf" if inflow else "vh")
            for b in range(self.next_id // ROWS_I64, last // ROWS_I64 + 1)
        ] + [block("s", b) for b in range(self.next_id // ROWS_U8, last // ROWS_U8 + 1)]
        first_list = self.next_id // ROWS_URLS
        lists = [block("u", b) for b in range(first_list, last // ROWS_URLS + 1)]
        names = [self.keys.ids, *(block("p", b) for b in distinct.tolist()), *blocks, *lists]
        sizes = [BLOCK_BYTES] * len(blocks)
        blob = msgpack.packb(
            [fingerprints, (places + 1).tolist(), urls, len(distinct), sizes, first_list], use_bin_type=False
        )
        return ["FCALL", "opic_1_ids", len(names), *names, self.next_id, self.buckets, blob]

    def answer(self, replies: Sequence[Any]) -> list[int] | None:
        """Take the replies to a request, errors among them; return the ids, or None: ask again, others gave ids."""
        *upkeep, found = replies
        for reply in upkeep[: len(upkeep) - len(self._asked)]:
            if isinstance(reply, Exception):
                raise reply
        for number, urls in zip(self._asked, upkeep[len(upkeep) - len(self._asked) :], strict=True):
            if isinstance(urls, list) and len(urls) == ROWS_URLS:
                self._full[number] = urls
            elif isinstance(urls, redis.ResponseError) and "WRONGTYPE" in str(urls):
                self.sealed = max(self.sealed, number + 1)  # Someone else has sealed it.
            elif isinstance(urls, Exception):
                raise urls
        if isinstance(found, Exception):
            raise found
        if found and found[0] == b"PAUSED":
            raise paused()
        if found and found[0] == b"MOVED":
            if found[1] is None:
                raise FenceMoved("the shard is not there any more")
            self.next_id, self.buckets = int(found[1]), int(found[2])
            return None
        self.next_id = max(self.next_id, max(found, default=-1) + 1)
        return list(found)


def paused() -> StoreUnavailable:
    """Say why nothing is written for a moment."""
    return StoreUnavailable("a backup is being made, which holds all steps for as long")


def read_urls(client: Client, asked: Sequence[tuple[Keys, Iterable[int]]]) -> list[dict[int, str]]:
    """Return URLs by id, of each shard asked, from sealed blocks and from lists that still fill."""
    wanted: dict[tuple[int, int], list[int]] = {}  # By place in `asked`, and block.
    for nth, (_, ids) in enumerate(asked):
        for i in ids:
            wanted.setdefault((nth, i // ROWS_URLS), []).append(i)
    urls: list[dict[int, str]] = [{} for _ in asked]
    blocks = _blocks(client, [keys for keys, _ in asked], list(wanted))
    for (nth, _), block, ids in zip(wanted, blocks, wanted.values(), strict=True):
        urls[nth] |= {i: block[i % ROWS_URLS] for i in ids if i % ROWS_URLS < len(block)}
    for (nth, _), ids in wanted.items():
        if missing := [i for i in ids if i not in urls[nth]]:
            raise _damaged(missing[0])
    return urls


def read_run(client: Client, keys: Keys, ids: range) -> list[str]:
    """Return the URLs of pages that follow each other in a shard; of many at once this is the quick way."""
    numbers = range(ids.start // ROWS_URLS, -(-ids.stop // ROWS_URLS))
    blocks = _blocks(client, [keys], [(0, number) for number in numbers])
    for number, block in zip(numbers, blocks, strict=True):
        first = number * ROWS_URLS
        if first + len(block) < min(first + ROWS_URLS, ids.stop):
            raise _damaged(first + len(block))
        del block[ids.stop - first :]
    return [url for block in blocks for url in block][ids.start % ROWS_URLS :]


def _damaged(page: int) -> StoreError:
    return StoreError(f"the URL of page {page} is missing: the store is damaged, restore a backup")


def _blocks(client: Client, keys: Sequence[Keys], asked: Sequence[tuple[int, int]]) -> list[list[str]]:
    """Return the URLs of blocks, each asked for by its shard's place in `keys` and its number."""
    blocks: list[list[str]] = [[] for _ in asked]
    todo = list(range(len(asked)))
    with store_errors():
        with client.pipeline(transaction=False) as pipe:
            for shard in keys:
                pipe.hget(shard.ids, "sealed")
            sealed = [int(n or 0) for n in pipe.execute()]
        for _ in range(2):  # A list may be sealed between two looks, never unsealed.
            with client.pipeline(transaction=False) as pipe:
                for at in todo:
                    nth, number = asked[at]
                    key = keys[nth].block("u", number)
                    if number < sealed[nth]:
                        pipe.get(key)
                    else:
                        pipe.lrange(key, 0, -1)
                answers = pipe.execute(raise_on_error=False)
            late = []
            for at, answer in zip(todo, answers, strict=True):
                if isinstance(answer, redis.ResponseError) and "WRONGTYPE" in str(answer):
                    late.append(at)
                    nth, number = asked[at]
                    sealed[nth] = max(sealed[nth], number + 1)
                    continue
                if isinstance(answer, Exception):
                    raise answer
                if answer:
                    blocks[at] = unpack_urls(answer) if isinstance(answer, bytes) else [url.decode() for url in answer]
            if not late:
                break
            todo = late
    return blocks


def unpack_urls(packed: bytes) -> list[str]:
    """Unpack a sealed block."""
    return zstandard.ZstdDecompressor().decompress(packed, max_output_size=URLS_BYTES_MAX).decode().split("\n")


def url_in(packed: bytes, place: int, unpacker: zstandard.ZstdDecompressor) -> str:
    """Return one URL of a sealed block; an unpacker, of the caller's thread, is dear to make."""
    return unpacker.decompress(packed, max_output_size=URLS_BYTES_MAX).split(b"\n", place + 1)[place].decode()
