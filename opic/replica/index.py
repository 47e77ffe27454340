"""In-memory hash index from a page's fingerprint to its id: a column of fingerprints and an open addressing table.

The table holds ids as uint32, so that a page costs 8 bytes for its fingerprint and 6 to 12 for its slots. A look-up of
thousands of fingerprints runs as rounds of numpy calls, one round per step of linear probing.

Neither the table nor the column stalls when it doubles: each append fills a part of the larger one.
"""

from typing import Final

import numpy as np

from opic.arrays import Int64s, Uint32s, Uint64s
from opic.errors import StoreFull
from opic.memory import lazy_zeros

PAGES_MAX: Final = (1 << 32) - 1  # Slots hold id + 1 in 32 bits.
TABLE_BITS_MIN: Final = 10
LOAD_MAX: Final = 2 / 3  # Maximum load factor: an unknown fingerprint then costs 5 probes; at half of it, 1.6.
MOVED_MIN: Final = 32_768  # Minimum number of pages that an append moves into a larger table: 1 to 2 ms.
MOVED_A_NEW_PAGE: Final = 4
# The first write to memory costs most, about 3 ms per MB on a virtual machine. New pages scatter over the whole table,
# so the first appends would pay for all of it. The next table is therefore written in parts before it is needed.
PREPARE_FROM: Final = 0.9  # Preparation starts at this fraction of the table's maximum number of pages.
PREPARED_MIN: Final = 1 << 18  # Minimum number of slots per append.
PREPARED_A_NEW_PAGE: Final = 32
ROWS_MIN: Final = 1_024
COPY_FROM: Final = 7 / 8  # Copying into a larger column starts when the column is this full.
COPIED_MIN: Final = 65_536
COPIED_A_NEW_PAGE: Final = 16
LOADED_AT_ONCE: Final = 1 << 18


class FingerprintIndex:
    """Ids of pages by fingerprint. Ids are consecutive, in the order of appending. Not thread-safe.

    >>> index = FingerprintIndex()
    >>> index.append(np.array([30, 10, 20], np.uint64))
    >>> index.find(np.array([10, 11, 30], np.uint64))
    array([ 1, -1,  0])
    """

    def __init__(self) -> None:
        self._column = _Column()
        self._table = _Table(TABLE_BITS_MIN)
        # The previous table while a larger one is being filled. It holds all pages below `_old_pages`; the larger one
        # holds those below `_moved` and all pages from `_old_pages` on.
        self._old: _Table | None = None
        self._old_pages = self._moved = 0
        self._next: _Table | None = None  # The next table; its first `_prepared` slots have been written.
        self._prepared = 0

    @classmethod
    def of(cls, fingerprints: Uint64s) -> "FingerprintIndex":
        """Build the index of a whole column, which is copied. 10^7 pages take 1.5 s.

        Args:
            fingerprints: shape (n,), distinct, none of them 0.

        Raises:
            StoreFull: there are more than PAGES_MAX pages.
        """
        index = cls()
        _check(len(fingerprints))
        index._table = _Table(_bits_for(int(len(fingerprints) / PREPARE_FROM)))
        index._column = _Column(len(fingerprints))
        index._column.extend(fingerprints)
        for first in range(0, len(index), LOADED_AT_ONCE):
            index._table.insert(index._column.rows, first, min(first + LOADED_AT_ONCE, len(index)))
        return index

    def __len__(self) -> int:
        return self._column.pages

    @property
    def fingerprints(self) -> Uint64s:
        """The fingerprints of all pages, by id, shape (pages,): a read-only view, valid until the next change."""
        view = self._column.rows[1 : self._column.pages + 1]
        view.flags.writeable = False
        return view

    def find(self, fingerprints: Uint64s) -> Int64s:
        """Return the id of each fingerprint, -1 for an unknown one; shape (n,)."""
        rows = self._table.find(fingerprints, self._column.rows)
        if self._old is not None:
            missing = np.flatnonzero(rows == 0)
            rows[missing] = self._old.find(fingerprints[missing], self._column.rows)
        rows -= 1
        return rows

    def append(self, fingerprints: Uint64s) -> None:
        """Add new fingerprints under the next ids, in order.

        Args:
            fingerprints: shape (n,), distinct, not 0, not in the index yet.

        Raises:
            StoreFull: there would be more than PAGES_MAX pages; nothing was changed.
        """
        first, pages = len(self), len(self) + len(fingerprints)
        _check(pages)
        if self._old is not None:
            self._move(max(MOVED_MIN, MOVED_A_NEW_PAGE * len(fingerprints)))
        elif pages > PREPARE_FROM * self._table.pages_max:
            self._prepare(max(PREPARED_MIN, PREPARED_A_NEW_PAGE * len(fingerprints)))
        if pages > self._table.pages_max:
            self._grow(pages)
        self._column.extend(fingerprints)
        self._table.insert(self._column.rows, first, pages)

    def _prepare(self, slots: int) -> None:
        """Write the next `slots` slots of the next table for the first time."""
        if self._next is None:
            self._next, self._prepared = _Table(self._table.bits + 1), 0
        self._next.clear(self._prepared, self._prepared + slots)
        self._prepared += slots

    def _grow(self, pages: int) -> None:
        """Start using a table with room for `pages` pages."""
        if self._old is not None:
            self._move(self._old_pages)
        self._old, self._old_pages, self._moved = self._table, len(self), 0
        following, self._next = self._next, None
        self._table = following if following and pages <= following.pages_max else _Table(_bits_for(pages))

    def _move(self, pages: int) -> None:
        """Insert the next pages of the old table into the larger one."""
        stop = min(self._moved + pages, self._old_pages)
        self._table.insert(self._column.rows, self._moved, stop)
        self._moved = stop
        if stop == self._old_pages:
            self._old = None

    def truncate(self, count: int) -> None:
        """Keep only the first `count` pages: the exact inverse of the appends since then.

        Meant for removing at most about 100,000 pages: each removed page costs about 0.5 us.
        """
        pages = len(self)
        if not 0 <= count <= pages:
            raise ValueError(f"there are {pages:,} pages, so {count:,} can't be kept")
        rows = self._column.rows
        if self._old is None:
            self._table.remove(rows, count, pages)
        else:
            kept = min(count, self._old_pages)
            self._old.remove(rows, kept, self._old_pages)
            self._table.remove(rows, min(count, self._moved), self._moved)
            self._table.remove(rows, max(count, self._old_pages), pages)
            self._old_pages, self._moved = kept, min(count, self._moved)
        self._column.truncate(count)


def _check(pages: int) -> None:
    if pages > PAGES_MAX:
        raise StoreFull(f"{pages:,} pages exceed the limit of a shard, {PAGES_MAX:,}: use more shards")


def _bits_for(pages: int) -> int:
    """Return the base-2 logarithm of the size of the smallest table with room for `pages` pages."""
    bits = TABLE_BITS_MIN
    while pages > int(LOAD_MAX * (1 << bits)):
        bits += 1
    return bits


class _Table:
    """Open addressing with linear probing; the fingerprint's high bits choose the first slot. An empty slot holds 0.

    A slot holds a row of the column. Row 0 belongs to no page and contains 0, so that comparing fingerprints needs no
    special case for empty slots.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self._slots: Uint32s = lazy_zeros(1 << bits, np.uint32)
        self._shift, self._mask = np.uint64(64 - bits), (1 << bits) - 1
        self.pages_max = int(LOAD_MAX * (1 << bits))

    def _homes(self, fingerprints: Uint64s) -> Int64s:
        # Fingerprints are keyed hashes, so their high bits need no further mixing.
        return (fingerprints >> self._shift).view(np.int64)

    def find(self, fingerprints: Uint64s, column: Uint64s) -> Int64s:
        """Return the row of each fingerprint, 0 for an unknown one."""
        slots = self._homes(fingerprints)
        rows = self._slots[slots].astype(np.int64)
        lanes = np.flatnonzero((column[rows] != fingerprints) & (rows != 0))
        wanted, slots = fingerprints[lanes], slots[lanes]
        while len(lanes):
            slots = (slots + 1) & self._mask
            probed = self._slots[slots].astype(np.int64)
            on = (column[probed] != wanted) & (probed != 0)
            rows[lanes] = probed  # Provisional for lanes that continue.
            lanes, wanted, slots = lanes[on], wanted[on], slots[on]
        return rows

    def clear(self, first: int, stop: int) -> None:
        """Write zeros into slots `first` to before `stop`, or to the end of the table."""
        self._slots[first:stop] = 0

    def insert(self, column: Uint64s, first: int, stop: int) -> None:
        """Insert the pages with ids from `first` to before `stop`."""
        self._put(np.arange(first + 1, stop + 1, dtype=np.uint32), self._homes(column[first + 1 : stop + 1]))

    def _put(self, rows: Uint32s, slots: Int64s) -> None:
        while len(rows):
            free = self._slots[slots] == 0
            self._slots[slots[free]] = rows[free]  # If several rows compete for a slot, the last one gets it.
            waiting = self._slots[slots] != rows
            rows, slots = rows[waiting], (slots[waiting] + 1) & self._mask

    def remove(self, column: Uint64s, first: int, stop: int) -> None:
        """Remove the pages with ids from `first` to before `stop`, which must be in the table.

        Pages inserted later may have probed past their slots. So all pages between a removed page and the next empty
        slot are inserted again.
        """
        if first == stop:
            return
        rows = np.arange(first + 1, stop + 1)
        slots = self._homes(column[first + 1 : stop + 1])
        gone = np.empty(len(rows), np.int64)
        lanes = np.arange(len(rows))
        while len(lanes):
            here = self._slots[slots] == rows[lanes]
            gone[lanes[here]] = slots[here]
            lanes, slots = lanes[~here], (slots[~here] + 1) & self._mask
        self._slots[gone] = 0
        behind = []
        slots = (gone + 1) & self._mask
        while len(slots := slots[self._slots[slots] != 0]):
            behind.append(slots)
            slots = (slots + 1) & self._mask
        if behind:
            again = np.unique(np.concatenate(behind))
            moved = self._slots[again]
            self._slots[again] = 0
            self._put(moved, self._homes(column[moved]))


class _Column:
    """Fingerprints by row; a page's row is its id + 1, and row 0 belongs to no page.

    A row does not change while its page exists, so a larger array can be filled before it is needed.
    """

    def __init__(self, pages: int = 0) -> None:
        """Start empty, with room for twice `pages` pages. The system allocates the memory as it is written."""
        self.pages = 0
        self.rows: Uint64s = lazy_zeros(max(ROWS_MIN, 2 * pages), np.uint64)
        self._next: Uint64s | None = None
        self._copied = 0  # Number of rows copied to `_next`.

    def extend(self, fingerprints: Uint64s) -> None:
        used = self.pages + 1
        stop = used + len(fingerprints)
        if stop > COPY_FROM * len(self.rows):
            self._copy(max(COPIED_MIN, COPIED_A_NEW_PAGE * len(fingerprints)), stop)
        if stop > len(self.rows):
            self._copy(used, stop)
            assert self._next is not None
            self.rows, self._next = self._next, None
        self.rows[used:stop] = fingerprints
        self.pages = stop - 1

    def truncate(self, count: int) -> None:
        self.pages = count
        self._copied = min(self._copied, count + 1)

    def _copy(self, rows: int, needed: int) -> None:
        """Copy up to `rows` more of the existing rows into the larger array."""
        if self._next is None or len(self._next) < needed:
            self._next, self._copied = lazy_zeros(max(2 * len(self.rows), needed), np.uint64), 0
        stop = min(self._copied + rows, self.pages + 1)
        self._next[self._copied : stop] = self.rows[self._copied : stop]
        self._copied = stop


def in_order(values: Uint64s) -> tuple[Int64s, Int64s]:
    """Return the first position of each distinct value, in order of appearance, and the index of each value among them.

    >>> in_order(np.array([7, 3, 7, 1], np.uint64))
    (array([0, 1, 3]), array([0, 1, 0, 2]))
    """
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse]
