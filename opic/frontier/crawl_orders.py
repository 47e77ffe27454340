"""The orders of a crawl's pages beside that by cash: by trust (RankMass), by exact importance, by links.

An order by trust or importance is computed from all pages and links at once (`opic.query.coverage`,
`opic.query.fetch_order`), not kept up to date with each record as the hot orders are. It gives pages other keys, and
may leave pages out; what may be offered, leases and delays are those of the hot orders.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from opic.arrays import Bools, Float64s, Int64s, values_at
from opic.errors import NotKept, NoTrust
from opic.frontier.expansion import InLinkColumns
from opic.frontier.hot_order import HotOrder
from opic.frontier.key_blocks import KeyBlocks
from opic.frontier.page_keys import Keys, PageKeys, times_priority
from opic.frontier.requests import BY_LINK_SCORE, EXPANSIONS, PagesRequest
from opic.query.coverage import CoverageQuery, CoverageView
from opic.query.fetch_order import FetchOrder, FetchView
from opic.query.kept_links import KeptLinks
from opic.query.link_scores import LinkScores
from opic.replica import Crawl
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


@dataclass(frozen=True, slots=True)
class Orders:
    """What some requests are answered by."""

    importance: RankedOrder | None  # None: pages come by cash.
    trust: RankedOrder | None = None  # These are None where no request needs them.
    scores: LinkScores | None = None
    inlinks: InLinkColumns | None = None


class CrawlOrders:
    """The orders of a moment ago; the same ones until what they come from changes. For any thread."""

    def __init__(
        self, crawl: Crawl, coverage: CoverageQuery | None, worth: FetchOrder | None, links: KeptLinks | None
    ) -> None:
        """Compute nothing before the first call; the parameters are those of `opic.frontier.Frontier`."""
        self._crawl, self._coverage, self._worth, self._links = crawl, coverage, worth, links
        self._inlinks: InLinkColumns | None = None
        if links is not None:
            self._inlinks = InLinkColumns(links)
            links.release_listeners.append(self._inlinks.released)
        self._trust: tuple[list[Head], list[int], RankedOrder] | None = None
        self._importance: tuple[FetchView, list[int], RankedOrder] | None = None
        if worth is not None:
            worth.listeners.append(self._heard)

    def of(self, requests: Sequence[PagesRequest]) -> Orders:
        """Return what requests are answered by, computed before others have to wait.

        Raises:
            NoTrust: no page is trusted, and all requests have mode coverage.
            NotKept: a policy needs links, and none are kept.
            StoreUnavailable: the store is unavailable.
        """
        policies = {request.policy for request in requests}
        return Orders(
            self.by_importance(),
            self._by_trust(requests) if any(request.mode == "coverage" for request in requests) else None,
            self._link_scores() if BY_LINK_SCORE in policies else None,
            self._in_links() if not policies.isdisjoint(EXPANSIONS) else None,
        )

    def _link_scores(self) -> LinkScores:
        if self._links is None:
            raise NotKept("this frontier has no link scores")
        return self._links.scores()

    def _in_links(self) -> InLinkColumns:
        if self._inlinks is None:
            raise NotKept("this frontier has no in-links")
        self._inlinks.renew()
        return self._inlinks

    def _by_trust(self, requests: Sequence[PagesRequest]) -> RankedOrder:
        if self._coverage is None:
            raise NoTrust("this frontier has no coverage")
        try:
            view = self._coverage.recent()
        except (NoTrust, NotKept):
            if all(request.mode == "coverage" for request in requests):
                raise
            return RankedOrder.empty(len(self._crawl))
        last, changes = self._trust, self._changes()
        if last is None or last[0] is not view.heads or last[1] != changes:  # Made anew with each computation.
            last = self._trust = view.heads, changes, RankedOrder.by_trust(view, self._priority)
        return last[2]

    @property
    def has_importance(self) -> bool:
        """Whether pages come by importance, as soon as that is known."""
        return self._worth is not None and self._worth.kept

    def by_importance(self) -> RankedOrder | None:
        """Return the order by importance; None if it is not known, and pages come by cash."""
        view = None if self._worth is None else self._worth.recent()
        if view is None:
            return None
        last = self._importance
        if last is None or last[0] is not view or last[1] != self._changes():
            last = self._heard(view)
        return last[2]

    def _heard(self, view: FetchView) -> tuple[FetchView, list[int], RankedOrder]:
        """Make a new order before it is used, so that no call waits for that."""
        made = self._importance = view, self._changes(), RankedOrder.by_importance(view, self._priority)
        return made

    def _priority(self, shard: int, ids: Int64s) -> Float64s | None:
        replica = self._crawl.replicas[shard]
        with replica.lock:
            return replica.offers.priority(ids)

    def _changes(self) -> list[int]:
        """Return how often priorities have changed, by shard; on a large crawl the next view has the new ones."""
        if self._crawl.is_large:
            return []
        return [replica.offers.priorities for replica in self._crawl.replicas]
