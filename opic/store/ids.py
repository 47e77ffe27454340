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
SEALS_A_CALL = 64  # Lists of 256 URLs: about 1 MB.
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
        self._split()
        self._seal()
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

    def _split(self) -> None:
        """Split the buckets that have grown too full, all in one round trip."""
        keys, due = self.keys, range(self.buckets, -(-self.next_id // BUCKET_LOAD))
        if not due:
            return
        with store_errors(), self.client.pipeline(transaction=False) as pipe:
            for new in due:
                span = 1 << new.bit_length()
                names = (keys.ids, keys.block("p", new - span // 2), keys.block("p", new))
                pipe.fcall("opic_1_split", 3, *names, new, span)
            pipe.hget(keys.ids, "buckets")  # Someone else may have split some, or all.
            *_, buckets = pipe.execute()
        self.buckets = int(buckets)

    def _seal(self) -> None:
        """Put compressed strings in the place of URL lists that are full, in two round trips."""
        keys, due = self.keys, range(self.sealed, min(self.next_id // ROWS_URLS, self.sealed + SEALS_A_CALL))
        if not due:
            return
        with store_errors(), self.client.pipeline(transaction=False) as pipe:
            for number in due:
                pipe.lrange(keys.block("u", number), 0, -1)
            lists = pipe.execute(raise_on_error=False)  # One that someone else sealed is no list any more.
            for number, urls in zip(due, lists, strict=True):
                if isinstance(urls, list) and len(urls) == ROWS_URLS:
                    packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(b"\n".join(urls))
                    pipe.fcall("opic_1_seal", 2, keys.ids, keys.block("u", number), number, packed)
            pipe.hget(keys.ids, "sealed")
            *_, sealed = pipe.execute()
        self.sealed = int(sealed)


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
