"""RankMass order: the pages never fetched by the trust that waits at them, for mode `coverage`.

The order is computed from all pages and links at once (`opic.query.coverage`), not kept up to date with each record as
the hot orders are. It only narrows a choice to its pages and gives them other keys: what may be offered, leases and
delays are those of the hot orders. A call looks at the first pages alone; the order sorts as many as were needed yet.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from opic.frontier.hot_order import HotOrder, Int64s
from opic.frontier.picking import RankedPages, Within
from opic.query.coverage import CoverageQuery, CoverageView
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
    ranked: list[RankedPages] = field(init=False)  # The same pages, most trust first.
    _masks: dict[int, Bools] = field(default_factory=dict, init=False)  # By shard: the hosts of the pages.

    def __post_init__(self) -> None:
        """Sort nothing yet."""
        object.__setattr__(self, "ranked", list(map(RankedPages, self.ids, self.trust)))

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

    def pages(self, shard: int, order: HotOrder) -> Int64s:
        """Return the ids of the pages that a hot order knows, ascending."""
        ids = self.ids[shard]
        return ids if not len(ids) or ids[-1] < len(order.columns) else ids[ids < len(order.columns)]

    def mask(self, shard: int, order: HotOrder) -> Bools:
        """Return a mask over a shard's host numbers of the hosts of these pages."""
        mask = self._masks.get(shard)
        if mask is None:
            mask = np.zeros(len(order.mark), np.bool_)
            mask[order.columns.host[self.pages(shard, order)]] = True
        elif len(mask) < len(order.mark):  # New hosts have no page of this order.
            mask = np.concatenate((mask, np.zeros(len(order.mark) - len(mask), np.bool_)))
        self._masks[shard] = mask
        return mask


class TrustOrders:
    """The order of the coverage of a moment ago; the same one until that changes."""

    def __init__(self, coverage: CoverageQuery) -> None:
        """Compute nothing before the first call."""
        self._coverage = coverage
        self._last: tuple[list[Head], TrustOrder] | None = None

    def recent(self) -> TrustOrder:
        """Return the order.

        Raises:
            NoTrust: as `CoverageQuery.recent`.
            StoreUnavailable: as `CoverageQuery.recent`.
        """
        view, last = self._coverage.recent(), self._last
        if last is None or last[0] is not view.heads:  # Made anew with each computation.
            last = self._last = view.heads, TrustOrder.of(view)
        return last[1]


class TrustScope:
    """The pages of a trust order, on some hosts or all: restricts a choice as `Within` does."""

    def __init__(self, order: TrustOrder, within: Within | None) -> None:
        """Take the hosts of `within`; all hosts if it is None."""
        self.order, self._within = order, within
        self.hosts = order.ids if within is None else within.hosts  # Empty where a shard has no such page.

    def pages(self, shard: int, order: HotOrder) -> Int64s:
        """Return the ids of the pages, ascending."""
        ids = self.order.pages(shard, order)
        return ids if self._within is None else ids[self._within.mask(shard, order)[order.columns.host[ids]]]

    def mask(self, shard: int, order: HotOrder) -> Bools:
        """Return a mask over a shard's host numbers of the hosts of these pages."""
        mask = self.order.mask(shard, order)
        return mask if self._within is None else mask & self._within.mask(shard, order)
