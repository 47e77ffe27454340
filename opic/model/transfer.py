"""Transfers between shards: grants and classes for all pages of a shard, and deposits for single pages, named by URL.

A read in one shard pays pages in others. Its step writes the transfer to an outbox in the same call as its own effect,
and the other shard takes it as a record of its log (docs/decisions/0009). Deposits of a step to one page are combined.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from typing import Final

import msgpack
import numpy as np

from opic.arrays import Int64s
from opic.errors import StoreError
from opic.model.compression import compress, decompress

UNPACKED_BYTES_MAX: Final = 256 << 20  # 10,000 links an event and 4,000 a step, of at most 64 KiB each.
NUMBER_BYTES: Final = 8
COLUMNS_MAX: Final = 4  # Of numbers in an entry.
NO_NUMBERS: Final = np.empty(0, np.int64)


@dataclass(slots=True)
class Deposit:
    """A deposit for a page in another shard."""

    grains: int = 0
    inflow: int = 0  # How much of it came by links from another registered domain.
    at_us: int = 0  # When the page that links to it was fetched; the latest, if several do.
    nearness: int = 0  # One link deeper than the page that links to it; the nearest, if several do.

    def add(self, grains: int, inflow: int, at_us: int, nearness: int = 0) -> None:
        """Add the deposit of another link."""
        self.grains += grains
        self.inflow += inflow
        self.at_us = max(self.at_us, at_us)
        self.nearness = max(self.nearness, nearness)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One entry of an outbox. Arrays are (n,), one element for each of the URLs, which are distinct and canonical."""

    time_us: int = 0  # Of the last record that took effect where it comes from.
    grant: int = 0  # To every live page of the shard.
    urls: Sequence[str] = ()
    grains: Int64s = field(default_factory=lambda: NO_NUMBERS)
    inflow: Int64s = field(default_factory=lambda: NO_NUMBERS)
    at_us: Int64s = field(default_factory=lambda: NO_NUMBERS)
    nearness: Int64s = field(default_factory=lambda: NO_NUMBERS)  # Also empty if no depth is known.
    classes: bytes = b""  # New classes of pages, which hold from this entry on, packed; b"" for none.

    @classmethod
    def of(cls, time_us: int, grant: int, deposits: Mapping[str, Deposit]) -> "Transfer":
        """Create a transfer from deposits by URL."""
        rows = np.array([(d.grains, d.inflow, d.at_us, d.nearness) for d in deposits.values()], np.int64).reshape(-1, 4)
        return cls(time_us, grant, tuple(deposits), *rows.T)

    def pack(self) -> bytes:
        """Serialise the transfer for an outbox: about 15 bytes per deposit."""
        columns = [self.grains, self.inflow, self.at_us]
        if self.nearness.any() or self.classes:
            columns.append(self.nearness)
        numbers = [column.astype("<i8").tobytes() for column in columns]
        more = [self.classes] if self.classes else []
        packed = msgpack.packb([self.time_us, self.grant, "\n".join(self.urls), *numbers, *more])
        return compress(packed)

    @classmethod
    def unpack(cls, packed: bytes) -> "Transfer":
        """Deserialise a transfer packed by `pack`.

        Raises:
            StoreError: the bytes are not a transfer.
        """
        try:
            time_us, grant, urls, *numbers = msgpack.unpackb(decompress(packed, UNPACKED_BYTES_MAX))
            columns = [np.frombuffer(column, "<i8").astype(np.int64) for column in numbers[:COLUMNS_MAX]]
            transfer = cls(time_us, grant, urls.split("\n") if urls else (), *columns)  # type: ignore[arg-type]
            return replace(transfer, classes=numbers[COLUMNS_MAX]) if len(numbers) > COLUMNS_MAX else transfer
        except (ValueError, msgpack.UnpackException) as error:
            raise StoreError(f"an entry of an outbox is damaged: {error}; restore a backup") from error


@cache
def source_of(shard: int) -> str:
    """Return the name of the partition of what a shard sent. Partitions of topics have no colon in their names."""
    return f"shard:{shard}"


GRANTS: Final = "grants:all"  # The partition whose records are grants to all pages, each with an amount.
COUNTS: Final = "rounds:all"  # The partition whose records are counts of the whole crawl's rounds.


SWEEP: Final = "sweep:own"  # The partition whose records have pages of a shard classified again.
SWEEP_BITS: Final = 40  # Its offsets: the version of the classes, then the page, in this many bits.


def is_own(partition: str) -> bool:
    """Return whether a partition's records are written by the store itself: only these may contain cash."""
    return ":" in partition


def far_number(url: str) -> int:
    """Return the number of a page of another shard for digests of links: above every id, below 2^63."""
    digest = blake2b(url.encode(), digest_size=NUMBER_BYTES).digest()
    return int.from_bytes(digest, "little") >> 2 | 1 << 62


def far_numbers(urls: Sequence[str]) -> Int64s:
    """Return the `far_number` of each URL, which is ASCII.

    >>> urls = ["http://a.example/", "http://b.example/"]
    >>> far_numbers(urls).tolist() == [far_number(url) for url in urls]
    True
    """
    digests = b"".join([blake2b(url.encode(), digest_size=NUMBER_BYTES).digest() for url in urls])
    return (np.frombuffer(digests, "<u8") >> np.uint64(2) | np.uint64(1 << 62)).astype(np.int64)


def links_digest(ids: Iterable[int]) -> int:
    """Return 48 bits that tell one set of links from another, given the pages' ids or far numbers; 0 for none."""
    packed = b"".join(i.to_bytes(8, "little") for i in sorted(ids))
    return (int.from_bytes(blake2b(packed, digest_size=6).digest(), "little") or 1) if packed else 0
