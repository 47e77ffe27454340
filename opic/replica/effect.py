"""The binary format of a journal record: the effect of one batch of events on a shard.

A record holds results, so that applying it decides nothing and parses no URL: what each read spent and paid, the links
that were paid, page states, the totals afterwards. It is "OPIJ", the version (uint16), and a MessagePack map of the
fields of `Effect` that differ from their defaults, by name. Arrays are little-endian.

The digest of an effect is a hash of its bytes, which include the digest of the previous effect. So a head (LSN and
digest) identifies one history, whoever wrote it.
"""

# ruff: noqa: RUF009 - `_array` describes a field of a dataclass, as `field` does.

import secrets
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from functools import partial
from hashlib import blake2b
from operator import add
from struct import Struct
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int64s, Uint8s, Uint16s, Uint32s, Uint64s
from opic.errors import StoreDamaged
from opic.model.books import Books, numbers_of
from opic.model.page_links import NO_LINKS, PageLinks
from opic.model.series import Entry
from opic.model.trust import pack_weights, unpack_weights
from opic.replica.packed_lines import pack_frame
from opic.replica.page_columns import BY_KEY, BY_NAME

MAGIC: Final = b"OPIJ"
VERSION: Final = 10
DIGEST_BYTES: Final = 8
TOKEN_BYTES: Final = 16
LINKS_DIGEST_BYTES: Final = 6
NO_DIGEST: Final = bytes(DIGEST_BYTES)

Noted = tuple[Uint32s, NDArray[Any]]  # Distinct pages, (n,), and a value for each.
NOTHING: Final[Noted] = (np.empty(0, np.uint32), np.empty(0, np.uint8))
Codec = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # Packs the value of a field, unpacks it.


class Head(NamedTuple):
    """The head of a journal: the LSN of its last record (0: no record) and that record's digest."""

    lsn: int = 0
    digest: bytes = NO_DIGEST


def _array(dtype: str) -> Any:
    """Return a field of an effect that is an array."""
    return field(default_factory=partial(np.empty, 0, dtype), metadata={"dtype": dtype})


def _pack_noted(noted: Mapping[str, Noted]) -> dict[str, tuple[bytes, bytes]]:
    return {
        (column := BY_NAME[name]).key: (pages.astype("<u4").tobytes(), values.astype(f"<{column.dtype}").tobytes())
        for name, (pages, values) in noted.items()
    }


def _unpack_noted(packed: Mapping[str, tuple[bytes, bytes]]) -> dict[str, Noted]:
    return {
        (column := BY_KEY[key]).name: (np.frombuffer(pages, "<u4"), np.frombuffer(values, f"<{column.dtype}"))
        for key, (pages, values) in packed.items()
    }


def pages_by_meta(metas: Mapping[int, bytes]) -> list[tuple[bytes, list[int]]]:
    """Return each new metadata with its pages: thousands of seeds may share one."""
    pages: dict[bytes, list[int]] = {}
    for page, meta in metas.items():
        pages.setdefault(meta, []).append(page)
    return list(pages.items())


FLAGS: Final = "?"  # Packed as their count, and eight in a byte.
ENTRIES: Final[Codec] = (list, lambda packed: [Entry(*numbers) for numbers in packed])
# How fields are packed that are neither arrays nor plain values. What is false after packing is left out of a record.
CODECS: Final[Mapping[str, Codec]] = {
    "books": (lambda books: numbers_of(books)[: None if books.elsewhere else -1], lambda numbers: Books(*numbers)),
    "noted": (_pack_noted, _unpack_noted),
    "entries": ENTRIES,
    "metas": (pages_by_meta, lambda packed: {page: meta for meta, pages in packed for page in pages}),
    "trusted": (lambda weights: [pack_weights(weights)], lambda packed: unpack_weights(*packed)),
    "kept_from": (partial(add, 1), partial(add, -1)),
}


@dataclass(slots=True)
class Effect:
    """The effect of a batch of events. Reads are in the order of the log; the links of each read increase."""

    lsn: int
    previous: bytes  # Digest of the previous record.
    books: Books  # Totals afterwards.
    pages: int  # Number of known pages afterwards.
    host_count: int  # Number of known hosts afterwards.
    first_page: int = 0  # The id of the first new page.
    fingerprints: Uint64s = _array("<u8")  # Fingerprints of new pages.
    hosts: Uint32s = _array("<u4")  # Host numbers of new pages.
    read_page: Uint32s = _array("<u4")
    read_cash: Int64s = _array("<i8")  # Cash that the page spent; negative if it owed.
    read_share: Int64s = _array("<i8")  # Cash that each link received.
    read_at_us: Int64s = _array("<i8")  # Time of the fetch.
    read_digest: Uint64s = _array("<u8")  # Digest of the page's links.
    read_links: Uint32s = _array("<u4")  # Number of links to pages of this shard.
    links: Uint32s = _array("<u4")
    across: Uint8s = _array("u1")  # One bit per link: it comes from another registered domain.
    state_page: Uint32s = _array("<u4")
    state: Uint8s = _array("u1")
    moved_page: Uint32s = _array("<u4")  # Other changes of v: deposits from other shards, payouts to new pages.
    moved: Int64s = _array("<i8")
    inflow_page: Uint32s = _array("<u4")
    inflow: Int64s = _array("<i8")
    gone_page: Uint32s = _array("<u4")
    gone_times: Uint32s = _array("<u4")
    gone_until_us: Int64s = _array("<i8")
    fetched_page: Uint32s = _array("<u4")  # Pages whose fetch was not a read.
    failed: Uint8s = _array("u1")
    urls: Sequence[str] = ()  # URLs of new pages; empty after unpacking, see `packed_urls`.
    host_names: Sequence[str] = ()
    entries: Sequence[Entry] = ()  # New entries of the series.
    classes: bytes | None = None  # New class definitions, packed.
    offsets: Mapping[str, int] = field(default_factory=dict)  # By partition: the next offset to read.
    # By receiving shard: number of entries sent so far, digest of the last one.
    sent: Mapping[int, tuple[int, bytes]] = field(default_factory=dict)
    taken: Mapping[int, bytes] = field(default_factory=dict)  # By sending shard: digest of the last entry taken.
    calls: Mapping[bytes, int] = field(default_factory=dict)  # By call with an Idempotency-Key: time of its record.
    # By column that events give (`NOTED_ARRAYS`): the pages whose value changed, and these values.
    noted: Mapping[str, Noted] = field(default_factory=dict)
    # Hosts whose failures in a row changed, and all of them: see `opic.model.host_failures`.
    failing_host: Uint32s = _array("<u4")
    failing_times: Uint16s = _array("<u2")
    failing_first_us: Int64s = _array("<i8")
    failing_last_us: Int64s = _array("<i8")
    # By page: its new metadata, packed; by ~page: the name under which it answered last. b"" for none.
    metas: Mapping[int, bytes] = field(default_factory=dict)
    forgotten: Uint32s = _array("<u4")  # Pages that are forgotten.
    again: Mapping[int, str] = field(default_factory=dict)  # By page that had been: its URL, if it is known again.
    trusted: Mapping[int, float] | None = None  # By page: its new trust, 0 for none. None if no trust changed.
    ends_links: bool = False  # The links that were kept count no more; `trusted` may begin to keep them again.
    by_setting: bool = False  # If the keeping begins here: by OPIC_KEEP_LINKS, and not by trust.
    kept_from: int = -1  # Number of the first read whose links are kept; -1 if none are.
    far_counts: Uint32s = _array("<u4")  # For each of these reads: how many links
    far_links: Uint64s = _array("<u8")  # lead to other shards; their fingerprints,
    far_shards: Uint16s = _array("<u2")  # and their shards.
    # For each of these reads whether it was compared with the read before of its page; empty if none was. By link to a
    # page of this shard, and of another one, whether the read before did not show it.
    compared: Bools = _array(FLAGS)
    near_new: Bools = _array(FLAGS)
    far_new: Bools = _array(FLAGS)
    # By read: whether the read before of the page showed other links. `Replica.apply` sets it where links are kept; it
    # is no part of the record.
    other_links: Bools = _array(FLAGS)
    restored: bytes = b""  # A random token in a record of a restore or a migration: it makes this history unique.
    packed_urls: bytes = b""  # By `pack_frame`.
    digest: bytes = NO_DIGEST  # Digest of the packed record. `pack` and `unpack` set it, and the size.
    size: int = 0

    @property
    def head(self) -> Head:
        """The head of a journal that ends with this record."""
        return Head(self.lsn, self.digest)

    def noted_of(self, name: str) -> Noted:
        """Return the pages of which events changed a column, and their values."""
        return self.noted.get(name, NOTHING)

    def again_pages(self) -> Uint32s:
        """Return the pages that had been forgotten and are known again."""
        return np.fromiter(self.again, np.uint32, len(self.again))

    def kept(self) -> PageLinks:
        """Return the links of the reads whose links are kept, by time of read, as views."""
        if self.kept_from < 0:
            return NO_LINKS
        first = self.kept_from
        pages, near_counts = self.read_page[first:], self.read_links[first:]
        near = self.links[int(self.read_links[:first].sum(dtype=np.int64)) :]
        far_counts = self.far_counts if len(self.far_counts) else np.zeros(len(pages), np.uint32)
        far = far_counts, self.far_links, self.far_shards
        return PageLinks(pages, near_counts, near, *far, self.near_new, self.far_new)

    def pack(self) -> bytes:
        """Return the packed record; set `packed_urls`, `digest` and `size`."""
        if self.urls and not self.packed_urls:
            self.packed_urls = pack_frame(self.urls)
        parts = dict[str, Any]()
        for name in PARTS:
            value, dtype = getattr(self, name), DTYPES.get(name)
            if dtype is None:
                value = CODECS[name][0](value) if name in CODECS and value is not None else value
            elif not len(value):
                continue
            elif dtype == FLAGS:
                value = len(value), pack_bits(value).tobytes()
            else:
                value = value.astype(dtype, copy=False).tobytes()
            if value or name in ALWAYS:
                parts[name] = value
        record: bytes = HEADER.pack(MAGIC, VERSION) + msgpack.packb(parts)
        self.digest, self.size = digest_of(record), len(record)
        return record

    @classmethod
    def of_new_history(cls, lsn: int, previous: bytes, books: Books, pages: int, host_count: int) -> "Effect":
        """Return a record that changes nothing, with a random token.

        A reader or writer that was at the same LSN of another history sees another digest, and loads the shard again.
        """
        return cls(
            lsn=lsn, previous=previous, books=copy(books), pages=pages, host_count=host_count, first_page=pages,
            restored=secrets.token_bytes(TOKEN_BYTES),
        )  # fmt: skip

    @classmethod
    def unpack(cls, record: bytes) -> "Effect":
        """Unpack a record. The arrays are views of its parts.

        Raises:
            StoreDamaged: the bytes are not a record, are truncated, or have a version unknown to this program.
        """
        try:
            if (header := HEADER.unpack_from(record)) != (MAGIC, VERSION):
                raise StoreDamaged(
                    f"a record of the journal has format {header[0]!r} version {header[1]}, but this program reads "
                    f"version {VERSION}: use the program that wrote it"
                )
            parts = msgpack.unpackb(record[HEADER.size :], strict_map_key=False, use_list=False)
            for name, part in parts.items():
                if (dtype := DTYPES.get(name)) == FLAGS:
                    parts[name] = unpack_bits(np.frombuffer(part[1], np.uint8), part[0])
                elif dtype is not None:
                    parts[name] = np.frombuffer(part, dtype)
                elif name in CODECS:
                    parts[name] = CODECS[name][1](part)
            return cls(**parts, digest=digest_of(record), size=len(record))
        except StoreDamaged:
            raise
        except Exception as error:
            raise StoreDamaged(f"a record of the journal is damaged ({error}): restore a backup") from error


ALWAYS: Final = ("lsn", "previous", "books", "pages", "host_count")
UNPACKED: Final = ("urls", "other_links", "digest", "size")
PARTS: Final = tuple(part.name for part in fields(Effect) if part.name not in UNPACKED)
DTYPES: Final[Mapping[str, str]] = {part.name: part.metadata["dtype"] for part in fields(Effect) if part.metadata}
HEADER: Final = Struct("<4sH")


def pack_bits(flags: Bools) -> Uint8s:
    """Pack flags, eight in a byte."""
    return np.packbits(flags, bitorder="little")


def unpack_bits(packed: Uint8s, count: int) -> Bools:
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)


def digest_of(record: bytes) -> bytes:
    return blake2b(record, digest_size=DIGEST_BYTES).digest()


def links_digest(packed: bytes) -> int:
    """Return the same digest as `opic.model.transfer.links_digest`, given the bytes of increasing ids."""
    if not packed:
        return 0
    return int.from_bytes(blake2b(packed, digest_size=LINKS_DIGEST_BYTES).digest(), "little") or 1


def entry_digest(before: bytes, entry: bytes) -> bytes:
    """Return the digest of an outbox entry, chained over all entries before it."""
    return blake2b(before + entry, digest_size=DIGEST_BYTES).digest()
