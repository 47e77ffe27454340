"""The checkpoint: blocks of PAGES_A_BLOCK pages, each as of one record of the journal.

A block is one Redis hash, `b:<n>`. Its fields are written together, so that a reader sees them as of one record:

    l                       lsn: the block contains all effects up to this record, and none after it
    v f s o                 dense columns of `opic.replica.page_columns`, little-endian; f with OPIC_INFLOW on
    d e b w a y r c x k     sparse columns, zstd; "" or absent where all is the default
    p                       fingerprint (uint64) of each page
    m                       histories of the pages that have one, see `Histories.pack`; zstd
    u0 .. u15               URLs of 255 pages each, one per line; zstd. A line is empty if its page was forgotten; once
                            it is known again, its URL may be in the hash `urls` instead

When a block is written again, fields that have not changed are left out. `b:names` holds everything that is not per
page: `l`; host names, n0 .. (1,024 each); failures of hosts; REST, in one MessagePack map.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgpack
import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int64s
from opic.errors import StoreDamaged
from opic.model.cash import FORGOTTEN
from opic.model.classes import WeightClasses
from opic.model.compression import compress, decompress
from opic.model.ledger_page import ColumnKind
from opic.replica.effect import ENTRIES, Codec, Effect, unpack_bits
from opic.replica.index import FingerprintIndex
from opic.replica.packed_lines import pack_lines, unpack_urls
from opic.replica.page_columns import BY_KEY, BY_NAME, CHANGES, KNOWN_AGAIN, LASTING, PAGE_COLUMNS, YIELDS
from opic.replica.replica import PAGES_A_BLOCK, Keeping, Replica

URLS_A_FIELD: Final = 255
NAMES_A_FIELD: Final = 1_024
HISTORIES_BYTES_MAX: Final = 64 << 20  # Per block, uncompressed.
FINGERPRINTS: Final = "p"
HISTORIES: Final = "m"
URLS: Final = "u"
FINGERPRINT: Final = np.dtype("<u8")
PLAIN: Final[Codec] = (lambda value: value, lambda value: value)
# What is neither per page nor per host, and how it is packed and unpacked.
REST: Final[Mapping[str, Codec]] = {
    "series": ENTRIES,
    "round_counts": ENTRIES,
    "classes": (WeightClasses.pack, WeightClasses.unpack),
    "trust": PLAIN,
    "keeping": (tuple, lambda packed: Keeping(*packed)),
    "sent": PLAIN,
    "taken": PLAIN,
}
Image = Mapping[str, bytes]


def blocks_of(pages: int) -> int:
    """Return the number of blocks that `pages` pages need."""
    return -(-pages // PAGES_A_BLOCK)


def lsn_of(image: Image) -> int:
    """Return the LSN of a block image; 0 if the block was never written.

    Raises:
        StoreDamaged: the image has no valid LSN.
    """
    try:
        return int(image["l"]) if image else 0
    except (KeyError, ValueError) as error:
        raise StoreDamaged("a block of the checkpoint is damaged: it has no valid LSN: restore a backup") from error


def url_field(page: int) -> tuple[int, str, int]:
    """Return where a page's URL is stored: the block, the field, and the line in the field."""
    block, offset = divmod(page, PAGES_A_BLOCK)
    return block, f"u{offset // URLS_A_FIELD}", offset % URLS_A_FIELD


def fields_of(replica: Replica) -> tuple[str, ...]:
    """Return the names of the fields of a block that hold columns, histories and fingerprints."""
    keys = [column.key for column in PAGE_COLUMNS if column.key and replica.has(column)]
    return (*keys, FINGERPRINTS, HISTORIES)


def changed_fields(replica: Replica, effect: Effect) -> list[tuple[Sequence[str], NDArray[Any]]]:
    """Return which fields of blocks an effect changes, other than those of new pages: names, and the pages."""
    of_reads = "v", HISTORIES, *(column.key for column in (*YIELDS, *CHANGES))
    changed: list[tuple[Sequence[str], NDArray[Any]]] = [
        ("v", effect.links), (of_reads, effect.read_page), ("v", effect.moved_page), ("s", effect.state_page),
        (HISTORIES, effect.gone_page), ("f", effect.inflow_page), (KNOWN_AGAIN.key, effect.again_pages()),
        *((BY_NAME[name].key, pages) for name, (pages, _) in effect.noted.items()),
        ([HISTORIES, *(own.key for own in PAGE_COLUMNS if own.key and own.name not in LASTING)], effect.forgotten),
    ]  # fmt: skip
    if replica.rules.inflow:
        changed.append(("f", effect.links[unpack_bits(effect.across, len(effect.links))]))
    return changed


def pack_block(replica: Replica, block: int, fields: Iterable[str]) -> dict[str, bytes]:
    """Return an image of a block as of the replica's head: the given columns, and the URLs that are in memory.

    Args:
        replica: must not change during the call.
        block: the number of the block.
        fields: names of `fields_of`, and "u" for the URLs.
    """
    first = block * PAGES_A_BLOCK
    end = min(first + PAGES_A_BLOCK, replica.pages)
    image, columns = {"l": b"%d" % replica.head.lsn}, replica.columns
    for name in fields:
        if name == HISTORIES:
            rows = columns.row[first:end]
            offsets = np.flatnonzero(rows)
            image[name] = compress(replica.histories.pack(offsets.astype(np.uint16), rows[offsets]))
        elif name == FINGERPRINTS:
            image[name] = replica.index.fingerprints[first:end].astype(FINGERPRINT).tobytes()
        elif name == URLS:
            image |= _pack_urls(replica, first, end)
        elif (column := BY_KEY[name]).kind is ColumnKind.DENSE:
            image[name] = getattr(columns, column.name)[first:end].astype(f"<{column.dtype}").tobytes()
        elif len(getattr(columns, column.name)):
            image[name] = columns.pack(column.name, first, end)
    return image


def _pack_urls(replica: Replica, first: int, end: int) -> dict[str, bytes]:
    """Return the URL fields that the checkpoint does not hold completely; their URLs are in the tail in memory."""
    start = max(first, replica.tail.first)
    fields = {}
    for page in range(start - (start - first) % URLS_A_FIELD, end, URLS_A_FIELD):
        if page >= replica.tail.first:
            urls = replica.tail.run(page, min(page + URLS_A_FIELD, end))
            fields[url_field(page)[1]] = pack_lines(without_forgotten(replica, page, urls))
    return fields


def without_forgotten(replica: Replica, first: int, urls: Sequence[str]) -> list[str]:
    """Return the URLs of consecutive pages from `first` on, "" for those that are forgotten."""
    known = (replica.columns.state[first : first + len(urls)] != FORGOTTEN).tolist()
    return [url if there else "" for url, there in zip(urls, known, strict=True)]


def pack_names(replica: Replica, first_host: int) -> dict[str, bytes]:
    """Return an image of the block of names, with host names from the field of `first_host` on."""
    image = {"l": b"%d" % replica.head.lsn}
    for number in range(first_host // NAMES_A_FIELD * NAMES_A_FIELD, len(replica.hosts), NAMES_A_FIELD):
        image[f"n{number // NAMES_A_FIELD}"] = pack_lines(replica.hosts.names[number : number + NAMES_A_FIELD])
    hosts = replica.host_failures
    used = hosts.in_use()
    image |= {
        column.key: hosts.pack(column.name, 0, len(replica.hosts)) for column in hosts.SPARSE if column.name in used
    }
    image["rest"] = msgpack.packb({name: pack(getattr(replica, name)) for name, (pack, _) in REST.items()})
    return image


class Loading:
    """Loads a replica from blocks of different LSNs and the effects that each block lacks."""

    def __init__(self, replica: Replica, effects: Sequence[Effect]) -> None:
        """Reset the replica and start loading it.

        Args:
            replica: the replica to load.
            effects: a part of the journal without gaps; the last effect is the position that the replica will have.
        """
        replica.reset()
        self.replica, self.effects = replica, effects
        self.pages = effects[-1].pages
        self.known_before = effects[0].first_page  # Pages that were known before the first effect.
        self.block_lsn = np.zeros(blocks_of(self.pages), np.int64)  # The LSN of each block.
        self.names_lsn = 0
        self._columns = [column for column in PAGE_COLUMNS if column.key and replica.has(column)]
        self._fingerprints = np.zeros(self.pages, np.uint64)
        replica.columns.reserve(self.pages)
        replica.tail.start(self.known_before)

    def take_block(self, block: int, image: Image) -> None:
        """Load a block. An empty image is a block that was never written.

        Raises:
            StoreDamaged: the block has a wrong length, is newer than the journal's end, or is missing.
        """
        first = block * PAGES_A_BLOCK
        if not image:
            if first < self.known_before:
                raise _damaged(block, " is missing")
            return
        pages, columns = self._checked(block, image), self.replica.columns
        end = first + pages
        self._fingerprints[first:end] = np.frombuffer(image[FINGERPRINTS], FINGERPRINT)
        try:
            for column in self._columns:
                if column.kind is ColumnKind.DENSE:
                    getattr(columns, column.name)[first:end] = np.frombuffer(image[column.key], f"<{column.dtype}")
                else:
                    columns.unpack(column.name, first, pages, image.get(column.key, b""))
            offsets, rows = self.replica.histories.unpack(decompress(image[HISTORIES], HISTORIES_BYTES_MAX))
            columns.row[first + offsets.astype(np.int64)] = rows
        except (ValueError, KeyError, IndexError) as error:
            raise _damaged(block, f": a column or the histories are damaged ({error})") from error
        self.block_lsn[block] = lsn_of(image)

    def _checked(self, block: int, image: Image) -> int:
        """Return how many pages a block has, which is neither too new nor too short."""
        first, lsn, pages = block * PAGES_A_BLOCK, lsn_of(image), len(image.get("s", b""))
        if lsn > self.effects[-1].lsn:
            raise _damaged(block, f" is of record {lsn}, but the journal ends at {self.effects[-1].lsn}")
        sizes = {
            column.key: np.dtype(column.dtype).itemsize for column in self._columns if column.kind is ColumnKind.DENSE
        }
        for name, size in (sizes | {FINGERPRINTS: FINGERPRINT.itemsize}).items():
            if len(image.get(name, b"")) != pages * size or first + pages > self.pages:
                raise _damaged(block, f": column {name} has a wrong length")
        if pages < min(PAGES_A_BLOCK, self.known_before - first):
            raise _damaged(block, " lacks pages")
        return pages

    def take_names(self, image: Image) -> None:
        """Load the block of names: everything that is not per page."""
        replica, number = self.replica, 0
        while (packed := image.get(f"n{number}")) is not None:
            replica.hosts.append(unpack_urls(packed))
            number += 1
        try:
            for column in replica.host_failures.SPARSE:
                replica.host_failures.unpack(column.name, 0, len(replica.hosts), image.get(column.key, b""))
            if image:
                rest = msgpack.unpackb(image["rest"], strict_map_key=False, use_list=False)
                for name, (_, unpack) in REST.items():
                    setattr(replica, name, unpack(rest[name]))
        except Exception as error:
            raise StoreDamaged(f"the block of names is damaged ({error}): restore a backup") from error
        self.names_lsn = lsn_of(image)

    def finish(self) -> None:
        """Apply to each block the effects that it lacks. The replica then has the position of the last effect."""
        replica = self.replica
        replica.pages = self.pages
        for effect in self.effects:
            due = _Due(self.block_lsn, effect.lsn)
            first, count = effect.first_page, len(effect.fingerprints)
            new = np.arange(first, first + count)
            pages, fingerprints, hosts = due((new, effect.fingerprints, effect.hosts))
            self._fingerprints[pages], replica.columns.host[pages] = fingerprints, hosts
            replica.tail.append(count, effect.packed_urls)
            replica.change_pages(effect, None, due)
            if effect.lsn > self.names_lsn:
                replica.hosts.append(effect.host_names)
                replica.take_totals(effect)
        last = self.effects[-1]
        replica.books, replica.head = last.books, last.head
        if len(replica.hosts) != last.host_count:
            raise StoreDamaged(f"found {len(replica.hosts):,} of {last.host_count:,} host names: restore a backup")
        replica.index = FingerprintIndex.of(self._fingerprints)
        for listener in replica.load_listeners:
            listener(self)


def _damaged(block: int, what: str) -> StoreDamaged:
    return StoreDamaged(f"block {block} of the checkpoint{what}: restore a backup")


class _Due:
    """Selects the pages that an effect must still be applied to: those in blocks older than the effect."""

    def __init__(self, lsn_of: Int64s, lsn: int) -> None:
        self._due: Bools = lsn_of < lsn
        self._all = bool(self._due.all())

    def __call__(self, columns: Sequence[Any]) -> tuple[Any, ...]:
        if self._all:
            return tuple(columns)
        keep = self._due[columns[0].astype(np.int64) // PAGES_A_BLOCK]
        return tuple(column[keep] for column in columns)
