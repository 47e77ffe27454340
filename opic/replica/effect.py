"""The binary format of a journal record: the effect of one batch of events on a shard.

A record holds results, so that applying it decides nothing and parses no URL: what each read spent and paid, the links
that were paid, page states, the totals afterwards. The layout is little-endian and versioned:

    header        magic "OPIJ", version, LSN, digest of the previous record, pages and hosts afterwards, section lengths
    sections      arrays, in the order of SECTIONS
    tail          the URLs of new pages (`packed_lines`); MessagePack of rarely used fields, such as names of new hosts

The digest of an effect is a hash of its bytes, which include the digest of the previous effect. So a head (LSN and
digest) identifies one history, whoever wrote it.
"""

# ruff: noqa: RUF009 - `_column` describes a field of a dataclass, as `field` does.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from struct import Struct, pack, unpack_from
from typing import Any, Final, NamedTuple

import msgpack
import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int64s, Uint8s, Uint16s, Uint32s, Uint64s
from opic.errors import StoreDamaged
from opic.model.books import BY_CLASS, SCALARS, Books
from opic.model.cash import CLASSES_MAX
from opic.model.page_links import NO_LINKS, PageLinks
from opic.model.trust import pack_weights, unpack_weights
from opic.replica.packed_lines import pack_frame
from opic.replica.page_columns import BY_KEY, BY_NAME

MAGIC: Final = b"OPIJ"
VERSION: Final = 10
DIGEST_BYTES: Final = 8
LINKS_DIGEST_BYTES: Final = 6
NO_DIGEST: Final = bytes(DIGEST_BYTES)
ENDS, BY_SETTING = 1, 2  # Flags of the rarely used field `b`.
TOTALS: Final = len(SCALARS) + len(BY_CLASS) * CLASSES_MAX

Columns = tuple[tuple[str, str], ...]
Noted = tuple[Uint32s, NDArray[Any]]  # Distinct pages, (n,), and a value for each.
NOTHING: Final[Noted] = (np.empty(0, np.uint32), np.empty(0, np.uint8))
# The rarely used fields by their keys: values as they are, and mappings as lists of pairs. Arrays and others are packed
# otherwise: offsets (`o`), columns that events give (`d`), by their keys, classes (`c`), metadata (`m`), forgotten
# pages (`f`), trust (`w`), flags (`b`), kept links.
RARE_VALUES: Final = {"h": "host_names", "e": "entries", "r": "restored"}
NEW_LINKS: Final = ("compared", "near_new", "far_new")  # In `n`, as bits.
RARE_PAIRS: Final = {"s": "sent", "t": "taken", "k": "calls", "u": "again"}


class Head(NamedTuple):
    """The head of a journal: the LSN of its last record (0: no record) and that record's digest."""

    lsn: int = 0
    digest: bytes = NO_DIGEST


def _column(dtype: str, key: str = "") -> Any:
    """Return a field of an effect that is an array: a section of the record, or a part of a rarely used field."""
    return field(default_factory=lambda: np.empty(0, dtype), metadata={"dtype": dtype, "key": key})


@dataclass(slots=True)
class Effect:
    """The effect of a batch of events. Reads are in the order of the log; the links of each read increase."""

    lsn: int
    previous: bytes  # Digest of the previous record.
    books: Books  # Totals afterwards.
    pages: int  # Number of known pages afterwards.
    host_count: int  # Number of known hosts afterwards.
    first_page: int = 0  # The id of the first new page.
    fingerprints: Uint64s = _column("<u8")  # Fingerprints of new pages.
    hosts: Uint32s = _column("<u4")  # Host numbers of new pages.
    read_page: Uint32s = _column("<u4")
    read_cash: Int64s = _column("<i8")  # Cash that the page spent; negative if it owed.
    read_share: Int64s = _column("<i8")  # Cash that each link received.
    read_at_us: Int64s = _column("<i8")  # Time of the fetch.
    read_digest: Uint64s = _column("<u8")  # Digest of the page's links.
    read_links: Uint32s = _column("<u4")  # Number of links to pages of this shard.
    links: Uint32s = _column("<u4")
    across: Uint8s = _column("u1")  # One bit per link: it comes from another registered domain.
    state_page: Uint32s = _column("<u4")
    state: Uint8s = _column("u1")
    moved_page: Uint32s = _column("<u4")  # Other changes of v: deposits from other shards, payouts to new pages.
    moved: Int64s = _column("<i8")
    inflow_page: Uint32s = _column("<u4")
    inflow: Int64s = _column("<i8")
    gone_page: Uint32s = _column("<u4")
    gone_times: Uint32s = _column("<u4")
    gone_until_us: Int64s = _column("<i8")
    fetched_page: Uint32s = _column("<u4")  # Pages whose fetch was not a read.
    failed: Uint8s = _column("u1")
    urls: Sequence[str] = ()  # URLs of new pages; empty after unpacking, see `packed_urls`.
    host_names: Sequence[str] = ()
    entries: Sequence[bytes] = ()  # New entries of the series.
    classes: bytes | None = None  # New class definitions, packed.
    offsets: Mapping[str, int] = field(default_factory=dict)  # By partition: the next offset to read.
    # By receiving shard: number of entries sent so far, digest of the last one.
    sent: Mapping[int, tuple[int, bytes]] = field(default_factory=dict)
    taken: Mapping[int, bytes] = field(default_factory=dict)  # By sending shard: digest of the last entry taken.
    calls: Mapping[bytes, int] = field(default_factory=dict)  # By call with an Idempotency-Key: time of its record.
    # By column that events give (`NOTED_ARRAYS`): the pages whose value changed, and these values.
    noted: Mapping[str, Noted] = field(default_factory=dict)
    # Hosts whose failures in a row changed, and all of them: see `opic.model.host_failures`.
    failing_host: Uint32s = _column("<u4", "q")
    failing_times: Uint16s = _column("<u2", "q")
    failing_first_us: Int64s = _column("<i8", "q")
    failing_last_us: Int64s = _column("<i8", "q")
    # By page: its new metadata, packed; by ~page: the name under which it answered last. b"" for none.
    metas: Mapping[int, bytes] = field(default_factory=dict)
    forgotten: Uint32s = field(default_factory=lambda: np.empty(0, "<u4"))  # Pages that are forgotten.
    again: Mapping[int, str] = field(default_factory=dict)  # By page that had been: its URL, if it is known anew.
    trusted: Mapping[int, float] | None = None  # By page: its new trust, 0 for none. None if no trust changed.
    ends_links: bool = False  # The links that were kept count no more; `trusted` may begin to keep them again.
    by_setting: bool = False  # If the keeping begins here: by OPIC_KEEP_LINKS, and not by trust.
    kept_from: int = -1  # Number of the first read whose links are kept; -1 if none are.
    far_counts: Uint32s = _column("<u4", "l")  # For each of these reads: how many links
    far_links: Uint64s = _column("<u8", "l")  # lead to other shards; their fingerprints,
    far_shards: Uint16s = _column("<u2", "l")  # and their shards.
    # For each of these reads whether it was compared with the read before of its page; empty if none was. By link to a
    # page of this shard, and of another one, whether the read before did not show it.
    compared: Bools = field(default_factory=lambda: np.empty(0, np.bool_))
    near_new: Bools = field(default_factory=lambda: np.empty(0, np.bool_))
    far_new: Bools = field(default_factory=lambda: np.empty(0, np.bool_))
    # By read: whether the read before of the page showed other links. `Replica.apply` sets it where links are kept; it
    # is no part of the record.
    other_links: Bools = field(default_factory=lambda: np.empty(0, np.bool_))
    restored: bytes = b""  # A random token in a record appended by a restore: it makes this history unique.
    packed_urls: bytes = b""  # By `pack_frame`.
    digest: bytes = NO_DIGEST  # Digest of the packed record. `pack` and `unpack` set it, and the size.
    size: int = 0

    @property
    def head(self) -> Head:
        """The head of a journal that ends with this record."""
        return Head(self.lsn, self.digest)

    @property
    def clock_before(self) -> int:
        """The clock before the first read."""
        return self.books.clock - int(np.maximum(self.read_cash, 0).sum())

    def noted_of(self, name: str) -> Noted:
        """Return the pages of which events changed a column, and their values."""
        return self.noted.get(name, NOTHING)

    def pages_by_meta(self) -> list[tuple[bytes, list[int]]]:
        """Return each new metadata with its pages: thousands of seeds may share one."""
        pages: dict[bytes, list[int]] = {}
        for page, meta in self.metas.items():
            pages.setdefault(meta, []).append(page)
        return list(pages.items())

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
        packed_rare: bytes = msgpack.packb(self._rare_fields())
        arrays, totals = [getattr(self, name) for name, _ in SECTIONS], _numbers(self.books)
        header = HEADER.pack(
            MAGIC, VERSION, len(totals), self.lsn, self.previous, self.first_page, self.pages, self.host_count,
            *map(len, arrays), len(self.packed_urls), len(packed_rare),
        )  # fmt: skip
        parts = [header, pack(f"<{len(totals)}q", *totals)]
        parts += [array.astype(dtype, copy=False).tobytes() for array, (_, dtype) in zip(arrays, SECTIONS, strict=True)]
        record = b"".join([*parts, self.packed_urls, packed_rare])
        self.digest, self.size = digest_of(record), len(record)
        return record

    def _rare_fields(self) -> dict[str, Any]:
        """Return the rarely used fields that this record has."""
        rare: dict[str, Any] = {"o": dict(self.offsets)}
        rare |= {key: value for key, name in RARE_VALUES.items() if (value := getattr(self, name))}
        rare |= {key: list(pairs.items()) for key, name in RARE_PAIRS.items() if (pairs := getattr(self, name))}
        if self.noted:
            rare["d"] = {
                (of := BY_NAME[name]).key: (pages.astype("<u4").tobytes(), values.astype(f"<{of.dtype}").tobytes())
                for name, (pages, values) in self.noted.items()
            }
        if len(self.failing_host):
            rare["q"] = self._packed(HOST_ARRAYS)
        if self.classes is not None:
            rare["c"] = self.classes
        if self.metas:
            rare["m"] = self.pages_by_meta()
        if len(self.forgotten):
            rare["f"] = self.forgotten.astype("<u4").tobytes()
        if self.trusted is not None:
            rare["w"] = pack_weights(self.trusted)
        if flags := ENDS * self.ends_links | BY_SETTING * self.by_setting:
            rare["b"] = flags
        if self.kept_from >= 0:
            rare["l"] = [self.kept_from, *self._packed(FAR_ARRAYS)]
        if len(self.compared):
            rare["n"] = [(len(bits), pack_bits(bits).tobytes()) for bits in (getattr(self, n) for n in NEW_LINKS)]
        return rare

    def _packed(self, columns: Columns) -> list[bytes]:
        return [getattr(self, name).astype(dtype).tobytes() for name, dtype in columns]

    @classmethod
    def unpack(cls, record: bytes) -> "Effect":
        """Unpack a record. The arrays are views of it.

        Raises:
            StoreDamaged: the bytes are not a record, are truncated, or have a version unknown to this program.
        """
        try:
            magic, version, totals, lsn, previous, first, pages, hosts, *counts = HEADER.unpack_from(record)
            if (magic, version, totals) != (MAGIC, VERSION, TOTALS):
                raise StoreDamaged(
                    f"a record of the journal has format {magic!r} version {version}, but this program reads version "
                    f"{VERSION}: use the program that wrote it"
                )
            at = HEADER.size
            numbers = unpack_from(f"<{totals}q", record, at)
            at += 8 * totals
            arrays: dict[str, Any] = {}
            for (name, dtype), count in zip(SECTIONS, counts, strict=False):
                arrays[name] = np.frombuffer(record, dtype, count, at)
                at += arrays[name].nbytes
            url_bytes, rare_bytes = counts[len(SECTIONS) :]
            if len(record) != at + url_bytes + rare_bytes:
                raise ValueError("its length differs from its header")
            rare = msgpack.unpackb(record[at + url_bytes :], strict_map_key=False, use_list=False)
            return cls(
                lsn, previous, _books(numbers), pages, hosts, first, **arrays, **_from_rare(rare),
                packed_urls=record[at : at + url_bytes], digest=digest_of(record), size=len(record),
            )  # fmt: skip
        except StoreDamaged:
            raise
        except Exception as error:
            raise StoreDamaged(f"a record of the journal is damaged ({error}): restore a backup") from error


def _columns(key: str) -> Columns:
    return tuple((f.name, f.metadata["dtype"]) for f in fields(Effect) if f.metadata.get("key") == key)


SECTIONS: Final = _columns("")
HOST_ARRAYS: Final = _columns("q")
FAR_ARRAYS: Final = _columns("l")
HEADER: Final = Struct(f"<4sHHQ{DIGEST_BYTES}sQQQ{len(SECTIONS)}III")


def _from_rare(rare: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an effect that its rarely used fields give."""
    found: dict[str, Any] = {"offsets": rare["o"]}
    found |= {name: rare[key] for key, name in RARE_VALUES.items() if key in rare}
    found |= {name: dict(rare[key]) for key, name in RARE_PAIRS.items() if key in rare}
    found["noted"] = {
        (of := BY_KEY[key]).name: (np.frombuffer(pages, "<u4"), np.frombuffer(values, f"<{of.dtype}"))
        for key, (pages, values) in rare.get("d", {}).items()
    }
    arrays = [(HOST_ARRAYS, rare["q"])] if "q" in rare else []
    if "l" in rare:
        found["kept_from"], *far = rare["l"]
        arrays.append((FAR_ARRAYS, far))
    for columns, packed in arrays:
        found |= {name: np.frombuffer(part, dtype) for (name, dtype), part in zip(columns, packed, strict=True)}
    for name, (count, bits) in zip(NEW_LINKS, rare.get("n", ()), strict=False):
        found[name] = unpack_bits(np.frombuffer(bits, np.uint8), count)
    found["metas"] = {page: meta for meta, pages in rare.get("m", ()) for page in pages}
    found["forgotten"] = np.frombuffer(rare.get("f", b""), "<u4")
    found["classes"] = rare.get("c")
    found["trusted"] = unpack_weights(rare["w"]) if "w" in rare else None
    found["ends_links"], found["by_setting"] = (bool(rare.get("b", 0) & flag) for flag in (ENDS, BY_SETTING))
    return found


def pack_bits(flags: Bools) -> Uint8s:
    """Pack flags, eight in a byte."""
    return np.packbits(flags, bitorder="little")


def unpack_bits(packed: Uint8s, count: int) -> Bools:
    """Unpack flags packed by `pack_bits`."""
    return np.unpackbits(packed, count=count, bitorder="little").view(np.bool_)


def digest_of(record: bytes) -> bytes:
    """Return the digest of a packed record."""
    return blake2b(record, digest_size=DIGEST_BYTES).digest()


def _numbers(books: Books) -> list[int]:
    return [getattr(books, name) for name in SCALARS] + [n for name in BY_CLASS for n in getattr(books, name)]


def _books(numbers: Sequence[int]) -> Books:
    values: dict[str, Any] = dict(zip(SCALARS, numbers, strict=False))
    for at, name in enumerate(BY_CLASS):
        first = len(SCALARS) + at * CLASSES_MAX
        values[name] = tuple(numbers[first : first + CLASSES_MAX])
    return Books(**values)


def links_digest(packed: bytes) -> int:
    """Return the same digest as `opic.model.transfer.links_digest`, given the bytes of increasing ids."""
    if not packed:
        return 0
    return int.from_bytes(blake2b(packed, digest_size=LINKS_DIGEST_BYTES).digest(), "little") or 1


def entry_digest(before: bytes, entry: bytes) -> bytes:
    """Return the digest of an outbox entry, chained over all entries before it."""
    return blake2b(before + entry, digest_size=DIGEST_BYTES).digest()
