"""Orders of pages by other keys than their cash: by the trust that waits at them (RankMass), by exact importance.

Such an order is computed from all pages and links at once (`opic.query.coverage`, `opic.query.fetch_order`), not kept
up to date with each record as the hot orders are. It gives pages other keys, and may narrow a choice to its own: what
may be offered, leases and delays are those of the hot orders. A call looks at the first pages alone; the order sorts as
many as were needed yet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.frontier.hot_order import HotOrder, Int64s
from opic.frontier.page_keys import times_priority
from opic.frontier.page_sources import RankedPages, Within
from opic.frontier.picking import SIDES
from opic.query.coverage import CoverageQuery, CoverageView
from opic.query.fetch_order import FetchOrder, FetchView
from opic.replica import Crawl
from opic.replica.effect import Head

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
NO_PAGES: Final = np.empty(0, np.int64)
UNREAD, READ = 0, 1
Priority = Callable[[int, Int64s], Floats | None]  # Of pages of a shard; None if all are 1.


def no_priority(shard: int, ids: Int64s) -> None:
    """Return None: the priorities of all pages are 1."""
    del shard, ids


@dataclass(frozen=True, slots=True)
class RankedOrder:
    """The pages of all shards by a key, as of a moment."""

    unread: list[RankedPages]  # By shard.
    read: list[RankedPages]
    heads: list[Head]  # Of the replicas that it was computed from,
    loads: list[int]  # and their load counts.
    known: list[int] | None = None  # By shard: later pages are last of those never read; None if they are not here.
    priority: Priority = no_priority
    least: float = 0.0  # What later pages count as, times their priorities, where there are any.
    _masks: dict[int, Bools] = field(default_factory=dict, init=False)  # By shard: the hosts of pages never read.

    @classmethod
    def by_trust(cls, view: CoverageView, priority: Priority = no_priority) -> "RankedOrder":
        """Return the pages that hold trust, most times priority first."""
        ids = [np.flatnonzero(held) for held in view.held]
        unread = [
            RankedPages(at, _lifted(held[at], priority(shard, at)), UNREAD)
            for shard, (held, at) in enumerate(zip(view.held, ids, strict=True))
        ]
        return cls(unread, _none(len(ids)), view.heads, view.loads)

    @classmethod
    def by_importance(cls, view: FetchView, priority: Priority = no_priority) -> "RankedOrder":
        """Return all pages that may be fetched: those never read by importance times priority, then the others."""
        unread, read = list[RankedPages](), list[RankedPages]()
        for shard, one in enumerate(view.shards):
            unread.append(RankedPages(one.unread, _lifted(one.unread_keys, priority(shard, one.unread)), UNREAD))
            keys = _lifted(one.read_keys, priority(shard, one.read))
            read.append(RankedPages(one.read, keys, READ, one.read_us))
        least = min((float(one.unread_keys.min()) for one in view.shards if len(one.unread_keys)), default=1.0)
        known = [one.known for one in view.shards]
        return cls(unread, read, view.heads, view.loads, known, priority, least or np.finfo(np.float64).tiny)

    @classmethod
    def empty(cls, shards: int) -> "RankedOrder":
        """Return an order without pages."""
        return cls(_none(shards), _none(shards), [], [])

    def _later(self, shard: int, ids: Int64s) -> Floats:
        """Return the keys of pages that became known later: they count as the least, where there are priorities."""
        priority = self.priority(shard, ids)
        return np.zeros(len(ids)) if priority is None else self.least * priority

    def keys_of(self, shard: int, pages: int) -> Floats:
        """Return a column of the keys of a shard's pages; NaN for pages without."""
        column = np.full(pages, np.nan)
        for ranked in (self.unread[shard], self.read[shard]):
            column[ranked.all_ids] = ranked.all_keys
        return column

    def of(self, shard: int, order: HotOrder, mode: str) -> list[RankedPages]:
        """Return the pages of a shard that a mode is about, each kind by itself."""
        found = [(self.unread, self.read)[side][shard] for side in SIDES[mode]]
        if self.known is not None and UNREAD in SIDES[mode] and len(order.columns) > self.known[shard]:
            later = np.arange(self.known[shard], len(order.columns))
            found.append(RankedPages(later, self._later(shard, later), UNREAD))
        return found

    def pages(self, shard: int, order: HotOrder) -> Int64s:
        """Return the ids of the pages never read that a hot order knows, ascending."""
        ids = self.unread[shard].all_ids
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


def _lifted(keys: Floats, priority: Floats | None) -> Floats:
    return keys if priority is None else times_priority(keys, priority)


def _none(shards: int) -> list[RankedPages]:
    return [RankedPages(NO_PAGES, np.zeros(0))] * shards


class RankedOrders:
    """The orders of a moment ago; the same ones until what they come from changes."""

    def __init__(
        self, crawl: Crawl | None = None, coverage: CoverageQuery | None = None, worth: FetchOrder | None = None
    ) -> None:
        """Compute nothing before the first call. The crawl has the priorities of pages."""
        self._crawl, self._coverage, self._worth = crawl, coverage, worth
        self._trust: tuple[list[Head], list[int], RankedOrder] | None = None
        self._importance: tuple[FetchView, list[int], RankedOrder] | None = None
        if worth is not None:
            worth.listeners.append(self._heard)

    @property
    def has_trust(self) -> bool:
        """Whether there is an order by trust at all."""
        return self._coverage is not None

    @property
    def has_importance(self) -> bool:
        """Whether pages come by importance, as soon as that is known."""
        return self._worth is not None and self._worth.kept

    def by_trust(self) -> RankedOrder:
        """Return the order by trust.

        Raises:
            NoTrust: as `CoverageQuery.recent`.
            StoreUnavailable: as `CoverageQuery.recent`.
        """
        assert self._coverage is not None
        view, last = self._coverage.recent(), self._trust
        changes = self._changes()
        if last is None or last[0] is not view.heads or last[1] != changes:  # Made anew with each computation.
            last = self._trust = view.heads, changes, RankedOrder.by_trust(view, self._priority)
        return last[2]

    def by_importance(self) -> RankedOrder | None:
        """Return the order by importance; None if it is not known, and pages come by cash."""
        view = None if self._worth is None else self._worth.recent()
        if view is None:
            return None
        last = self._importance
        if last is None or last[0] is not view or last[1] != self._changes():
            last = self._importance = self._ordered(view)
        return last[2]

    def _ordered(self, view: FetchView) -> tuple[FetchView, list[int], RankedOrder]:
        return view, self._changes(), RankedOrder.by_importance(view, self._priority)

    def _priority(self, shard: int, ids: Int64s) -> Floats | None:
        if self._crawl is None:
            return None
        replica = self._crawl.replicas[shard]
        with replica.lock:
            return replica.offers.priority(ids)

    def _changes(self) -> list[int]:
        """Return how often priorities have changed, by shard; on a large crawl the next view has the new ones."""
        if self._crawl is None or self._crawl.is_large:
            return []
        return [replica.offers.priorities for replica in self._crawl.replicas]

    def _heard(self, view: FetchView) -> None:
        """Sort as many pages of a new order as calls looked at in the last one, so that no call waits for that."""
        made = self._ordered(view)
        last = self._importance or made
        pairs = zip((*made[2].unread, *made[2].read), (*last[2].unread, *last[2].read), strict=True)
        for ranked, before in pairs:
            ranked.sort(2 * before.looked_at + 1)
        self._importance = made


class RankedScope:
    """The pages of an order, on some hosts or all: restricts a choice as `Within` does."""

    def __init__(self, order: RankedOrder, within: Within | None) -> None:
        """Take the hosts of `within`; all hosts if it is None."""
        self.order, self._within = order, within
        # Empty where a shard has no such page.
        self.hosts: Sequence[Int64s] = [one.all_ids for one in order.unread] if within is None else within.hosts

    def pages(self, shard: int, order: HotOrder) -> Int64s:
        """Return the ids of the pages, ascending."""
        ids = self.order.pages(shard, order)
        return ids if self._within is None else ids[self._within.mask(shard, order)[order.columns.host[ids]]]

    def mask(self, shard: int, order: HotOrder) -> Bools:
        """Return a mask over a shard's host numbers of the hosts of these pages."""
        mask = self.order.mask(shard, order)
        return mask if self._within is None else mask & self._within.mask(shard, order)
