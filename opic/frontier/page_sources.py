"""Where a choice takes its pages from: each source yields the free pages of a shard in order, a batch at a time."""

from typing import Final, Protocol

import numpy as np

from opic.arrays import Bools, Float64s, Int64s
from opic.frontier.hot_order import HotOrder, first
from opic.frontier.key_blocks import BLOCK_BITS, KeyBlocks
from opic.frontier.page_keys import NOWHERE, Order, keys_of

BLOCKS_FIRST: Final = 4  # Blocks looked at at once at least; half as many more each further time.
BLOCKS_WIDE: Final = 64  # After this many in vain, it is asked which hosts have pages left.
LISTED_FIRST: Final = 512  # Pages of a list that are sorted at once at least.


class PageSource(Protocol):
    """An iterator over pages of a shard in order, a batch at a time."""

    shard: int
    ids: Int64s  # The pages that were examined but not taken yet,
    neg: Float64s  # and their negated keys.
    done: bool  # No more pages come from this source.

    def fill(self, size: int) -> None:
        """Examine more pages, enough to yield about `size`, and append those that can be taken."""


class KeySource:
    """The free pages of a shard by a key, found by the bounds of their blocks."""

    def __init__(
        self,
        shard: int,
        order: HotOrder,
        index: KeyBlocks,
        sides: tuple[int, ...],
        *,
        inside: Bools | None = None,
        nearness: int = 0,
    ) -> None:
        """Start at the greatest key of these sides: only hosts in `inside`, only pages of this nearness or above."""
        self.shard, self._order, self._index, self._sides = shard, order, index, sides
        self._inside, self._nearness = inside, nearness
        self._ranks, self._step = index.ranked(sides), BLOCKS_FIRST
        self._vain = 0  # Blocks looked at, less the pages that they offered.
        self.ids: Int64s = np.empty(0, np.int64)
        self.neg: Float64s = np.empty(0)
        self._ids, self._keys = self.ids, self.neg  # Pages looked at whose turn has not come.
        self.done = False

    def fill(self, size: int) -> None:
        """Look at the pages of more blocks, or at all pages of the hosts that are left if these have fewer."""
        if self._vain >= BLOCKS_WIDE and self._index.order.with_cash:
            self._vain = 0
            hosts = self._hosts_left()
            if self._order.counts.free_pages(hosts)[list(self._sides)].sum() < len(self._ranks) << BLOCK_BITS - 2:
                self._finish(hosts)
                return
        blocks = self._ranks.next_blocks(max(size, self._step))
        self._step += -(-self._step // 2)
        ids, keys, hosts = self._index.free_pages(self._sides, blocks)
        keep = self._order.mark[hosts] != self._order.tick
        if self._inside is not None:
            keep &= self._inside[hosts]
        self._vain += max(len(blocks) - int(np.count_nonzero(keep)), 0)
        self._offer(ids[keep], keys[keep])

    def _hosts_left(self) -> Int64s:
        order = self._order
        left = order.counts.has_free(self._sides, len(order.mark))
        left &= (order.host_free <= order.now) & (order.mark != order.tick)
        if self._inside is not None:
            left &= self._inside
        return np.flatnonzero(left)

    def _finish(self, hosts: Int64s) -> None:
        """Look at those pages of the hosts that are in blocks not looked at yet."""
        order, blocks = self._order, np.zeros(len(self._order.where) >> BLOCK_BITS, np.bool_)
        blocks[self._ranks.take_all()] = True
        ids = order.pages_of(hosts)
        ids = ids[blocks[ids >> BLOCK_BITS] & (order.where[ids] == 0)]
        order.looked += len(ids)
        keys, read = keys_of(self._index.order, order.columns, order.counts.code[ids], ids)
        fit = keys > NOWHERE
        if len(self._sides) == 1:
            fit &= read == self._sides[0]
        self._offer(ids[fit], keys[fit])

    def _offer(self, ids: Int64s, keys: Float64s) -> None:
        if self._nearness:
            near = self._order.columns.nearness(ids) >= self._nearness
            ids, keys = ids[near], keys[near]
        ids, keys = np.concatenate((self._ids, ids)), np.concatenate((self._keys, keys))
        now = self._ranks.precede(ids, keys)
        self._ids, self._keys = ids[~now], keys[~now]
        ids, keys = ids[now], keys[now]
        by_key = np.lexsort((ids, -keys))
        self.ids, self.neg = np.concatenate((self.ids, ids[by_key])), np.concatenate((self.neg, -keys[by_key]))
        self.done = not len(self._ranks)


class ListSource:
    """The free pages among a list of pages of a shard by a key, sorted only as far as needed."""

    def __init__(self, shard: int, order: HotOrder, ids: Int64s, by: Order, sides: tuple[int, ...]) -> None:
        """Take distinct pages, with ascending ids."""
        self.shard, self._order = shard, order
        keys, read = keys_of(by, order.columns, order.counts.code[ids], ids)
        order.looked += len(ids)
        fit = keys > NOWHERE
        if len(sides) == 1:
            fit &= read == sides[0]
        fit[fit] = order.is_free(ids[fit], order.columns.host[ids[fit]])
        self._ids, self._keys = ids[fit], keys[fit]
        self.ids, self.neg, self.done = self._ids[:0], -self._keys[:0], False

    def fill(self, size: int) -> None:
        """Sort the next pages, at least 8 * `size`, without those of hosts that have given enough."""
        order = self._order
        wanted = order.mark[order.columns.host[self._ids]] != order.tick
        self._ids, self._keys = self._ids[wanted], self._keys[wanted]
        ids, keys = first(self._ids, self._keys, max(8 * size, LISTED_FIRST))
        by_key = np.lexsort((ids, -keys))
        self.ids, self.neg = np.concatenate((self.ids, ids[by_key])), np.concatenate((self.neg, -keys[by_key]))
        self.done = len(ids) == len(self._ids)
        if not self.done:
            left = ~np.isin(self._ids, ids)
            self._ids, self._keys = self._ids[left], self._keys[left]
