"""Ids of pages: dense numbers in order of first sight, found by a keyed fingerprint of the URL.

Ids never change, so whatever a worker has seen stays true. The fingerprint's key is a secret of the store, so that a
hostile site can't choose URLs that collide. The URLs themselves lie in blocks of 256, compressed once full.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgpack
import redis
import zstandard

from opic.errors import StoreError
from opic.store.connection import Client, store_errors
from opic.store.keys import BLOCK_BYTES, BUCKET_LOAD, ROWS_I64, ROWS_U8, ROWS_URLS, Keys

FINGERPRINT_BYTES = 8
URLS_A_CALL = 2_000  # About 6 ms of server time when all are new.
ZSTD_LEVEL = 3
URLS_BYTES_MAX = 16 << 20  # What a sealed block may unpack to; 256 URLs of 2 KiB are far less.


class Directory:
    """Where a shard's fingerprints are: how many buckets there are now, and how to find and add pages."""

    def __init__(self, client: Client, keys: Keys, secret: bytes) -> None:
        """Nothing is read until something is asked."""
        self.client, self.keys, self.secret = client, keys, secret
        self.next_id, self.buckets, self.sealed = 0, 0, 0

    def reload(self) -> None:
        """Read how many ids and buckets there are."""
        with store_errors():
            counters = self.client.hmget(self.keys.ids, "next", "buckets", "sealed")
        self.next_id, self.buckets, self.sealed = (int(n) for n in counters)

    def fingerprint(self, url: str) -> bytes:
        """Return 64 bits of the keyed hash of a canonical URL: one false match in 10^5 shards of 10^7 pages."""
        return blake2b(url.encode(), key=self.secret, digest_size=FINGERPRINT_BYTES).digest()

    def bucket(self, fingerprint: bytes) -> int:
        """Return the bucket of a fingerprint (linear hashing: bucket b + 2^k is split off b when its turn comes)."""
        hashed = int.from_bytes(fingerprint[:4], "little")
        span = 1 << self.buckets.bit_length()  # Twice the largest power of two that is not over `buckets`.
        at = hashed % span
        return at if at < self.buckets else hashed % (span // 2)

    def find(self, urls: Sequence[str]) -> list[int | None]:
        """Return the ids of canonical URLs, None for one that has none."""
        fingerprints = [self.fingerprint(url) for url in urls]
        if not self.buckets:
            self.reload()
        while True:
            buckets = self.buckets
            with store_errors(), self.client.pipeline(transaction=False) as pipe:
                for fp in fingerprints:
                    pipe.hget(self.keys.block("p", self.bucket(fp)), fp)
                pipe.hget(self.keys.ids, "buckets")
                *found, now = pipe.execute()
            # A bucket that was split meanwhile would have hidden a page.
            if int(now) == buckets:
                return [None if i is None else int(i) for i in found]
            self.buckets = int(now)

    def assign(self, urls: Sequence[str], inflow: bool) -> list[int]:
        """Return the ids of distinct canonical URLs; those never seen get the next ones, in the order given."""
        ids: list[int] = []
        for at in range(0, len(urls), URLS_A_CALL):
            ids += self._assign(urls[at : at + URLS_A_CALL], inflow)
        self._tend()
        return ids

    def _assign(self, urls: Sequence[str], inflow: bool) -> list[int]:
        fingerprints = [self.fingerprint(url) for url in urls]
        block = self.keys.block
        if not self.buckets:
            self.reload()
        while True:
            buckets = [self.bucket(fp) for fp in fingerprints]
            place: dict[int, int] = {}
            for b in buckets:
                place.setdefault(b, len(place) + 1)
            last = self.next_id + len(urls) - 1
            columns = "vhf" if inflow else "vh"
            blocks = [block(c, b) for c in columns for b in range(self.next_id // ROWS_I64, last // ROWS_I64 + 1)] + [
                block("s", b) for b in range(self.next_id // ROWS_U8, last // ROWS_U8 + 1)
            ]
            first_list = self.next_id // ROWS_URLS
            lists = [block("u", b) for b in range(first_list, last // ROWS_URLS + 1)]
            names = [self.keys.ids, *(block("p", b) for b in place), *blocks, *lists]
            blob = msgpack.packb(
                [fingerprints, [place[b] for b in buckets], urls, len(place), [BLOCK_BYTES] * len(blocks), first_list],
                use_bin_type=False,
            )
            with store_errors():
                found = self.client.fcall("opic_1_ids", len(names), *names, self.next_id, self.buckets, blob)
            if found and found[0] == b"MOVED":
                self.next_id, self.buckets = int(found[1]), int(found[2])
                continue
            self.next_id = max(self.next_id, max(found, default=-1) + 1)
            return list(found)

    def _tend(self) -> None:
        """Split buckets that have grown too full, and seal URL lists that are full."""
        keys, block = self.keys, self.keys.block
        with store_errors():
            while self.next_id > self.buckets * BUCKET_LOAD:
                span = 1 << self.buckets.bit_length()
                old = self.buckets - span // 2
                names = (keys.ids, block("p", old), block("p", self.buckets))
                self.client.fcall("opic_1_split", 3, *names, self.buckets, span)
                self.buckets = int(self.client.hget(keys.ids, "buckets"))
            while (self.sealed + 1) * ROWS_URLS <= self.next_id:
                urls = self.client.lrange(block("u", self.sealed), 0, -1) if self._is_open(self.sealed) else None
                if urls is None or len(urls) != ROWS_URLS:
                    self.sealed = int(self.client.hget(keys.ids, "sealed"))  # Someone else sealed it.
                    continue
                packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(b"\n".join(urls))
                self.client.fcall("opic_1_seal", 2, keys.ids, block("u", self.sealed), self.sealed, packed)
                self.sealed += 1

    def _is_open(self, number: int) -> bool:
        return bool(self.client.type(self.keys.block("u", number)) == b"list")


def read_urls(client: Client, keys: Keys, ids: Iterable[int]) -> dict[int, str]:
    """Return URLs by id, from sealed blocks and from lists that still fill."""
    wanted: dict[int, list[int]] = {}
    for i in ids:
        wanted.setdefault(i // ROWS_URLS, []).append(i)
    urls: dict[int, str] = {}
    todo = list(wanted)
    with store_errors():
        sealed = int(client.hget(keys.ids, "sealed") or 0)
        for _ in range(2):  # A list may be sealed between two looks, never unsealed.
            with client.pipeline(transaction=False) as pipe:
                for b in todo:
                    if b < sealed:
                        pipe.get(keys.block("u", b))
                    else:
                        pipe.lrange(keys.block("u", b), 0, -1)
                answers = pipe.execute(raise_on_error=False)
            late = []
            for b, answer in zip(todo, answers, strict=True):
                if isinstance(answer, redis.ResponseError) and "WRONGTYPE" in str(answer):
                    late.append(b)
                    continue
                if isinstance(answer, Exception):
                    raise answer
                block = unpack_urls(answer) if isinstance(answer, bytes) else [url.decode() for url in answer]
                urls |= {i: block[i % ROWS_URLS] for i in wanted[b] if i % ROWS_URLS < len(block)}
            if not late:
                break
            todo, sealed = late, max(late) + 1
    missing = [i for b in wanted for i in wanted[b] if i not in urls]
    if missing:
        raise StoreError(f"the URL of page {missing[0]} is missing: the store is damaged, restore a backup")
    return urls


def unpack_urls(packed: bytes) -> list[str]:
    """Unpack a sealed block."""
    return zstandard.ZstdDecompressor().decompress(packed, max_output_size=URLS_BYTES_MAX).decode().split("\n")
