"""Orders of pages by other keys than their cash: by the trust that waits at them (RankMass), by exact importance.

Such an order is computed from all pages and links at once (`opic.query.coverage`, `opic.query.fetch_order`), not kept
up to date with each record as the hot orders are. It gives pages other keys, and may leave pages out; what may be
offered, leases and delays are those of the hot orders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from opic.arrays import Bools, Float64s, Int64s, values_at
from opic.frontier.hot_order import HotOrder
from opic.frontier.key_blocks import KeyBlocks
from opic.frontier.page_keys import Keys, PageKeys, times_priority
from opic.query.coverage import CoverageView
from opic.query.fetch_order import FetchView
from opic.replica.effect import Head

UNREAD, READ = 0, 1
NOWHERE: Final = -np.inf  # The key of a page that is not in an order.
NEVER: Final = np.int64(-1)
Priority = Callable[[int, Int64s], Float64s | None]  # Of pages of a shard; None if all are 1.


@dataclass(eq=False, slots=True)
class RankedPages:
    """The keys of a shard's pages as of a moment. Arrays are (n,), by id."""

    keys: Float64s  # NOWHERE for pages that are not in the order.
    read_us: Int64s  # When each was last read, NEVER for pages never read. Pages read since are left out.
    later: Callable[[Int64s], Float64s] | None = None  # The keys of pages that became known later; None if not here.
    _index: tuple[HotOrder, KeyBlocks] | None = field(default=None, init=False)

    def index(self, order: HotOrder) -> KeyBlocks:
        """Return the index of the pages that a hot order may offer, made on first use: 5 ns for each page."""
        if self._index is None or self._index[0] is not order:
            keys = PageKeys(lambda ids: self._keys_of(order, ids), nothing=NOWHERE)
            known = min(len(self.keys), len(order.columns))
            free = np.where(order.where[:known] == 0, self.keys[:known], NOWHERE)
            index = KeyBlocks(order, keys, (free, self.read_us[:known] != NEVER))
            self._index = order, index
            order.indexes.append(index)
        return self._index[1]

    def _keys_of(self, order: HotOrder, ids: Int64s) -> tuple[Keys, Bools]:
        by_cash, read = order.keys(ids)
        keys, then = values_at(self.keys, ids, NOWHERE), values_at(self.read_us, ids, NEVER)
        if self.later is not None and (new := ids >= len(self.keys)).any():
            keys[new] = self.later(ids[new])
        same = np.where(read, order.columns.last_read_us(ids) == then, then == NEVER)
        return np.where((by_cash > 0) & same, keys, NOWHERE), read

    def drop(self) -> None:
        """Let the hot order forget the index."""
        if self._index is not None:
            order, index = self._index
            order.indexes.remove(index)
            self._index = None


@dataclass(frozen=True, slots=True, eq=False)
class RankedOrder:
    """The pages of all shards by a key, as of a moment."""

    shards: list[RankedPages]
    heads: list[Head]  # Of the replicas that it was computed from,
    loads: list[int]  # and their load counts.

    @classmethod
    def by_trust(cls, view: CoverageView, priority: Priority) -> "RankedOrder":
        """Return the pages that hold trust, most times priority first."""
        shards = []
        for shard, held in enumerate(view.held):
            ids = np.flatnonzero(held)
            keys = _column(len(held), (ids, held[ids], priority(shard, ids)))
            shards.append(RankedPages(keys, np.full(len(held), NEVER)))
        return cls(shards, view.heads, view.loads)

    @classmethod
    def by_importance(cls, view: FetchView, priority: Priority) -> "RankedOrder":
        """Return all pages that may be fetched: those never read by importance times priority, then the others.

        Pages that became known later are last of those never read: they count as the least.
        """
        least = min((float(one.unread_keys.min()) for one in view.shards if len(one.unread_keys)), default=1.0)
        least = least or np.finfo(np.float64).tiny
        shards = []
        for shard, one in enumerate(view.shards):

            def later(ids: Int64s, shard: int = shard) -> Float64s:
                lifted = priority(shard, ids)
                return np.zeros(len(ids)) if lifted is None else least * lifted

            unread = one.unread, one.unread_keys, priority(shard, one.unread)
            read = one.read, one.read_keys, priority(shard, one.read)
            read_us = np.full(one.known, NEVER)
            read_us[one.read] = one.read_us
            shards.append(RankedPages(_column(one.known, unread, read), read_us, later))
        return cls(shards, view.heads, view.loads)

    @classmethod
    def empty(cls, shards: int) -> "RankedOrder":
        """Return an order without pages."""
        return cls([RankedPages(np.zeros(0), np.zeros(0, np.int64)) for _ in range(shards)], [], [])

    def indexes(self, orders: Sequence[HotOrder]) -> list[KeyBlocks]:
        """Return the index of each shard."""
        return [ranked.index(order) for ranked, order in zip(self.shards, orders, strict=True)]

    def drop(self) -> None:
        """Let the hot orders forget this one."""
        for ranked in self.shards:
            ranked.drop()


def _column(pages: int, *parts: tuple[Int64s, Float64s, Float64s | None]) -> Float64s:
    column = np.full(pages, NOWHERE)
    for ids, keys, priority in parts:
        column[ids] = keys if priority is None else times_priority(keys, priority)
    return column
