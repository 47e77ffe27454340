"""RankMass order: the pages never fetched by the trust that waits at them, for mode `coverage`.

The order is computed from all pages and links at once (`opic.query.coverage`), not kept up to date with each record as
the hot orders are. It only narrows a choice to its pages and gives them other keys: what may be offered, leases and
delays are those of the hot orders.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opic.frontier.hot_order import HotOrder, Int64s
from opic.frontier.picking import Within
from opic.query.coverage import CoverageView
from opic.replica.effect import Head

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
NO_PAGES = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class TrustOrder:
    """The pages that hold trust, by shard."""

    ids: list[Int64s]  # Ascending.
    trust: list[Floats]
    heads: list[Head]  # Of the replicas that it was computed from,
    loads: list[int]  # and their load counts.

    @classmethod
    def of(cls, view: CoverageView) -> "TrustOrder":
        """Return the order of a view."""
        parts = [view.held[shard :: view.shards] for shard in range(view.shards)]
        ids = [np.flatnonzero(part) for part in parts]
        return cls(ids, [part[at] for part, at in zip(parts, ids, strict=True)], view.heads, view.loads)

    @classmethod
    def empty(cls, shards: int) -> "TrustOrder":
        """Return an order without pages."""
        return cls([NO_PAGES] * shards, [np.zeros(0)] * shards, [], [])

    def trust_of(self, shard: int, ids: Int64s) -> Floats:
        """Return the trust that pages of the order hold; 0 for other pages."""
        known, trust = self.ids[shard], self.trust[shard]
        if not len(known):
            return np.zeros(len(ids))
        at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return np.where(known[at] == ids, trust[at], 0.0)


class TrustScope:
    """The pages of a trust order, on some hosts or all: restricts a choice as `Within` does."""

    def __init__(self, order: TrustOrder, within: Within | None) -> None:
        """Take the hosts of `within`; all hosts if it is None."""
        self.order, self._within = order, within
        self.hosts = order.ids if within is None else within.hosts  # Empty where a shard has no such page.

    def pages(self, shard: int, order: HotOrder) -> Int64s:
        """Return the ids of the pages, ascending."""
        ids = self.order.ids[shard]
        ids = ids[ids < len(order.columns)]
        return ids if self._within is None else ids[self._within.mask(shard, order)[order.columns.host[ids]]]

    def mask(self, shard: int, order: HotOrder) -> Bools:
        """Return a mask over a shard's host numbers of the hosts of these pages."""
        mask = np.zeros(len(order.mark), np.bool_)
        mask[order.columns.host[self.pages(shard, order)]] = True
        return mask
