"""An index of pages by a key: an upper bound on the keys of the free pages of each block of 32 pages.

A choice looks at the blocks with the greatest bounds, as many as it needs, and lowers these bounds to what it found. A
page that changes or becomes free may raise the bound of its block, and costs nothing else. So a choice costs O(blocks)
to order them, and then what it looks at. Pages that are held or whose host rests do not count: one that is released
raises its block again, and so does the end of the rest of the first host whose pages were left out of its bound.

Source: Ding, Suel (2011), "Faster top-k document retrieval using block-max indexes", SIGIR, section 3: the same bounds
over the postings of a term.
"""

from typing import Final, Protocol

import numpy as np

from opic.arrays import Bools, Float64s, Int64s, Uint8s
from opic.frontier.page_counts import PageCounts
from opic.frontier.page_keys import NOWHERE, Order, OrderColumns, keys_of
from opic.frontier.timers import Timers

BLOCK_BITS: Final = 5
PAGES_AT_ONCE: Final = 1 << 18  # Pages whose keys are computed at once.
MARGIN: Final = 1 + 2.0**-50  # For the rounding of keys.


class HeldPages(Protocol):
    """The pages of a shard, with what holds them back now."""

    columns: OrderColumns
    known: int  # How many pages there are.
    where: Uint8s  # By page: what holds it, 0 for nothing. At least as long as the blocks.
    host_free: Float64s  # By host: when its next page may be offered.
    now: float
    looked: int  # How many pages were looked at.
    counts: PageCounts  # As of the last time that changes were taken in.


class KeyBlocks:
    """The bounds of a shard's blocks for one key, apart for pages never read (side 0) and for the others (side 1).

    Arrays are (2 * blocks,); the bound of a side of a block is at 2 * block + side.
    """

    def __init__(self, pages: HeldPages, order: Order, most: tuple[Float64s, Bools] | None = None) -> None:
        """Look at all pages.

        Args:
            pages: the pages.
            order: what gives them keys.
            most: of the first pages, what their keys are at most, and a mask of the read ones; saves computing keys.
        """
        self._pages, self.order = pages, order
        self._bounds: Float64s = np.zeros(0)
        # The greatest key of the pages left out of each bound because their hosts rest, and when the first rest ends.
        self._hidden: Float64s = np.zeros(0)
        self._rest_ends: Float64s = np.zeros(0)
        self._timers = Timers()
        self._reserved: list[Int64s] = []  # Where a host rests for an unknown time, until an answer arrives.
        self._seen: list[tuple[Int64s, Int64s, Float64s]] = []  # Places, ids, keys looked at since `lowered`.
        self.grow()
        known = 0
        if most is not None:
            known = len(most[0])
            for side in (0, 1):
                column = np.full(len(self._bounds) << BLOCK_BITS - 1, NOWHERE)
                column[:known] = np.where(most[1] == side, most[0], NOWHERE)
                self._bounds[side::2] = column.reshape(-1, 1 << BLOCK_BITS).max(axis=1)
        for first in range(known, pages.known, PAGES_AT_ONCE):
            ids = np.arange(first, min(first + PAGES_AT_ONCE, pages.known))
            self.raised(ids[pages.where[ids] == 0])

    def grow(self) -> None:
        """Make room for the present pages."""
        more = 2 * (len(self._pages.where) >> BLOCK_BITS) - len(self._bounds)
        if more > 0:
            nothing = np.full(more, NOWHERE)
            self._bounds, self._hidden = (np.concatenate((part, nothing)) for part in (self._bounds, self._hidden))
            self._rest_ends = np.concatenate((self._rest_ends, np.full(more, np.inf)))

    def lowered(self) -> None:
        """Lower the bounds of the blocks looked at last to what is free of them now; call it before `raised`."""
        if self._seen:
            indices, ids, keys = map(np.concatenate, zip(*self._seen, strict=True))
            self._seen = []
            free = self._pages.where[ids] == 0
            self._bounds[indices] = NOWHERE
            np.maximum.at(self._bounds, indices[free], keys[free])

    def raised(self, ids: Int64s) -> None:
        """Take in pages that are new or free, or have another key."""
        if len(ids):
            self.order.changed(ids)
            keys, read = keys_of(self.order, self._pages.columns, self._pages.counts.code[ids], ids)
            np.maximum.at(self._bounds, 2 * (ids >> BLOCK_BITS) + read, keys)

    def shifted(self, credit: int) -> None:
        """Take in that credits changed by at most this many grains."""
        if change := self.order.growth * credit:
            self._bounds, self._hidden = ((keys + change) * MARGIN for keys in (self._bounds, self._hidden))

    def advance(self) -> None:
        """Raise the bounds where hosts are free now."""
        parts = [self._timers.due(self._pages.now), *self._reserved]
        self._reserved = []
        if any(map(len, parts)):
            indices = np.concatenate(parts)
            self._bounds[indices] = np.maximum(self._bounds[indices], self._hidden[indices])
            self._hidden[indices], self._rest_ends[indices] = NOWHERE, np.inf

    def free_pages(self, sides: tuple[int, ...], blocks: Int64s) -> tuple[Int64s, Float64s, Int64s]:
        """Return the free pages of distinct blocks with their keys and hosts, and lower the bounds to what they are."""
        pages = self._pages
        ids = ((blocks[:, None] << BLOCK_BITS) + np.arange(1 << BLOCK_BITS)).ravel()
        ids = ids[(pages.where[ids] == 0) & (ids < pages.known)]
        pages.looked += len(ids)
        keys, read = keys_of(self.order, pages.columns, pages.counts.code[ids], ids)
        fit = keys > NOWHERE
        if len(sides) == 1:
            fit &= read == sides[0]
        ids, keys, indices = ids[fit], keys[fit], 2 * (ids[fit] >> BLOCK_BITS) + read[fit]
        hosts = pages.columns.host[ids].astype(np.int64)
        free = pages.host_free[hosts] <= pages.now
        for side in sides:
            self._bounds[2 * blocks + side] = NOWHERE
        np.maximum.at(self._bounds, indices[free], keys[free])
        if not free.all():
            self._hide(indices[~free], keys[~free], pages.host_free[hosts[~free]])
            indices, ids, keys, hosts = indices[free], ids[free], keys[free], hosts[free]
        self._seen.append((indices, ids, keys))
        return ids, keys, hosts

    def _hide(self, indices: Int64s, keys: Float64s, until: Float64s) -> None:
        """Leave pages out of the bounds until the first of their hosts is free, unless the bounds hold for them."""
        above = keys > self._bounds[indices]
        indices, keys, until = indices[above], keys[above], until[above]
        np.maximum.at(self._hidden, indices, keys)
        if len(unknown := indices[until == np.inf]):
            self._reserved.append(unknown)
        order = np.lexsort((until, indices))
        indices, first = np.unique(indices[order], return_index=True)
        until = until[order][first]
        sooner = until < self._rest_ends[indices]
        self._rest_ends[indices[sooner]] = until[sooner]
        self._timers.add(indices[sooner], until[sooner])

    def ranked(self, sides: tuple[int, ...]) -> "BlockRanks":
        """Return the blocks by their present bounds, the greater one of both sides."""
        return BlockRanks(np.maximum.reduce([self._bounds[side::2] for side in sides]))


class BlockRanks:
    """Blocks in the order of their bounds, greatest first, ties by number; sorted only as far as needed."""

    def __init__(self, bounds: Float64s) -> None:
        """Leave out blocks without a key."""
        self._blocks = np.flatnonzero(bounds > NOWHERE)
        self._bounds = bounds[self._blocks]
        self._sorted, self._at = 0, 0  # How many of the blocks are sorted, and were taken.

    def __len__(self) -> int:
        return len(self._blocks) - self._at

    def take_all(self) -> Int64s:
        """Return the blocks that are left, in no particular order."""
        taken, self._at = self._blocks[self._at :], len(self._blocks)
        return taken

    def next_blocks(self, count: int) -> Int64s:
        self._sort(self._at + count)
        taken = self._blocks[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def precede(self, ids: Int64s, keys: Float64s) -> Bools:
        """Return a mask of the pages that come before all pages of the blocks that are left."""
        if not len(self):
            return np.ones(len(ids), np.bool_)
        self._sort(self._at + 1)
        bound, block = self._bounds[self._at], self._blocks[self._at]
        before: Bools = (keys > bound) | ((keys == bound) & (ids >> BLOCK_BITS < block))
        return before

    def _sort(self, count: int) -> None:
        """Sort the first `count` blocks or more, unless they are."""
        if min(count, len(self._blocks)) <= self._sorted:
            return
        chosen, wanted = np.ones(len(self._blocks), np.bool_), 8 * count
        if wanted < len(self._blocks):  # With all that are equal to the last, so that ties go by number.
            chosen = self._bounds >= np.partition(self._bounds, len(self._bounds) - wanted)[-wanted]
        first = np.flatnonzero(chosen)
        first = first[np.lexsort((self._blocks[first], -self._bounds[first]))]
        self._sorted = len(first)
        order = np.concatenate((first, np.flatnonzero(~chosen)))
        self._blocks, self._bounds = self._blocks[order], self._bounds[order]
