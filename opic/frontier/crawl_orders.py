"""The orders of a crawl's pages beside that by cash: by trust (RankMass), by exact importance, by links.

An order by trust or importance is computed from all pages and links at once (`opic.query.coverage`,
`opic.query.fetch_order`), not kept up to date with each record as the hot orders are. It gives pages other keys, and
may leave pages out; what may be offered, leases and delays are those of the hot orders.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from opic.arrays import Bools, Float64s, Int64s, values_at
from opic.errors import NotKept, NoTrust
from opic.frontier.expansion import InLinkColumns
from opic.frontier.hot_order import HotOrder
from opic.frontier.page_keys import NOWHERE, OFFERED_BITS, Order, OrderColumns
from opic.frontier.requests import BY_LINK_SCORE, EXPANSIONS, PagesRequest
from opic.model.cash import Flag
from opic.query.coverage import CoverageQuery, CoverageView
from opic.query.fetch_order import FetchOrder, FetchView
from opic.query.kept_links import KeptLinks
from opic.query.link_scores import LinkScores
from opic.query.loaded_order import LoadedOrder
from opic.replica import Crawl
from opic.replica.effect import Head

UNREAD, READ = 0, 1
NEVER: Final = np.int64(-1)


@dataclass(eq=False, slots=True)
class RankedPages:
    """The keys of a shard's pages as of a moment. Arrays are (n,), by id."""

    keys: Float64s  # NOWHERE for pages that are not in the order.
    read_us: Int64s  # When each was last read, NEVER for pages never read. Pages read since are left out.
    later: float = NOWHERE  # The key of pages never read that became known, or came back, later.


@dataclass(frozen=True)
class ByColumn(Order):
    """An order by keys as of a moment, without pages that were read since. Equal if of the same objects."""

    ranked: RankedPages
    columns: OrderColumns

    def keys(self, ids: Int64s) -> Float64s:
        """Return the keys that the pages had; `later` for those that came back, NOWHERE for those read since."""
        ranked, read = self.ranked, (self.columns.state[ids] & Flag.OPEN) != 0
        keys, then = values_at(ranked.keys, ids, NOWHERE), values_at(ranked.read_us, ids, NEVER)
        keys[(self.columns.last_read_us(ids) != then) & read] = NOWHERE
        keys[_came_back(keys, then, ~read)] = ranked.later
        return keys

    def column(self) -> tuple[Float64s, Bools]:
        """Return the keys as they were, but those of pages that came back; no page is looked at beyond its state."""
        known = min(len(self.ranked.keys), len(self.columns))
        keys, then = self.ranked.keys[:known], self.ranked.read_us[:known]
        unread = (self.columns.state[:known] & (OFFERED_BITS | Flag.OPEN)) == Flag.KNOWN
        back = _came_back(keys, then, unread)
        return np.where(back, self.ranked.later, keys), (then != NEVER) & ~back


def _came_back(keys: Float64s, then: Int64s, unread: Bools) -> Bools:
    """Return a mask of the unread pages that the order lacks, or has as read; `then`: when they had been read."""
    back: Bools = ((keys == NOWHERE) | (then != NEVER)) & unread
    return back


@dataclass(frozen=True, slots=True, eq=False)
class RankedOrder:
    """The pages of all shards by a key, as of a moment."""

    shards: list[RankedPages]
    heads: list[Head]  # Of the replicas that it was computed from,
    loads: list[int]  # and their load counts.

    @classmethod
    def by_trust(cls, view: CoverageView) -> "RankedOrder":
        """Return the pages that hold trust, most first."""
        shards = [
            RankedPages(np.where(trust > 0, trust, NOWHERE), np.full(len(trust), NEVER))
            for trust in view.frontier_trust
        ]
        return cls(shards, view.heads, view.loads)

    @classmethod
    def by_importance(cls, view: FetchView) -> "RankedOrder":
        """Return all pages that may be fetched: those never read by importance, then the others.

        Pages that became known later, or came back, are last of those never read: they count as a little less than the
        least.
        """
        least = min((float(shard.unread_keys.min()) for shard in view.shards if len(shard.unread_keys)), default=1.0)
        shards = []
        for shard in view.shards:
            keys, read_us = np.full(shard.known, NOWHERE), np.full(shard.known, NEVER)
            keys[shard.unread], keys[shard.read] = shard.unread_keys, shard.read_keys
            read_us[shard.read] = shard.read_us
            shards.append(RankedPages(keys, read_us, np.nextafter(least, 0.0)))
        return cls(shards, view.heads, view.loads)

    @classmethod
    def empty(cls, shards: int) -> "RankedOrder":
        """Return an order without pages."""
        return cls([RankedPages(np.zeros(0), np.zeros(0, np.int64)) for _ in range(shards)], [], [])

    def orders(self, hots: Sequence[HotOrder]) -> list[Order]:
        """Return the order of each shard."""
        return [ByColumn(ranked, hot.columns) for ranked, hot in zip(self.shards, hots, strict=True)]

    def drop(self, hots: Sequence[HotOrder]) -> None:
        """Let the hot orders forget this one."""
        for ranked, hot in zip(self.shards, hots, strict=False):
            hot.drop(ByColumn(ranked, hot.columns))


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
        self,
        crawl: Crawl,
        coverage: CoverageQuery | None,
        worth: FetchOrder | LoadedOrder | None,
        links: KeptLinks | None,
    ) -> None:
        """Compute nothing before the first call; the parameters are those of `opic.frontier.Frontier`."""
        self._crawl, self._coverage, self._worth, self._links = crawl, coverage, worth, links
        self._inlinks: InLinkColumns | None = None
        if links is not None:
            self._inlinks = InLinkColumns(links)
            links.release_listeners.append(self._inlinks.released)
        self._trust: tuple[list[Head], RankedOrder] | None = None
        self._importance: tuple[FetchView, RankedOrder] | None = None
        if worth is not None:
            worth.listeners.append(self._heard)

    def orders_for(self, requests: Sequence[PagesRequest]) -> Orders:
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
        last = self._trust
        if last is None or last[0] is not view.heads:  # Each computation makes new ones.
            last = self._trust = view.heads, RankedOrder.by_trust(view)
        return last[1]

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
        return self._heard(view) if last is None or last[0] is not view else last[1]

    def _heard(self, view: FetchView) -> RankedOrder:
        """Make a new order before it is used, so that no call waits for that."""
        made = RankedOrder.by_importance(view)
        self._importance = view, made
        return made
