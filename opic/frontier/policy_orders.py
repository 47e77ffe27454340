"""The orders that policies choose by, of all shards, made on first use. A policy is a mix of orders with shares."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from opic.frontier.arrivals import Alike, Clock
from opic.frontier.expansion import ByInLinks, DrawnByInLinks, InLinkColumns
from opic.frontier.hot_crawl import HotCrawl
from opic.frontier.hot_order import HotOrder
from opic.frontier.page_keys import Order
from opic.frontier.recrawl import ByLinkScore, DrawnByYields
from opic.frontier.requests import POLICIES
from opic.query.link_scores import LinkScores

Mix = list[tuple[float, Sequence[Order]]]  # The share and the order of each shard.
LINKED: Final = ("in-links", "drawn in-links")


class PolicyOrders:
    """The orders of policies, by name. Not thread-safe."""

    def __init__(self, hot: HotCrawl, rng: Callable[[], np.random.Generator]) -> None:
        self._hot, self._rng = hot, rng
        self._made = dict[str, tuple[object, Clock, list[Order]]]()  # With what it was made of.
        self._inlinks: InLinkColumns | None = None
        self._scores: LinkScores | None = None

    def use(self, inlinks: InLinkColumns | None, scores: LinkScores | None) -> None:
        """Take the latest in-links and link scores; None for what no request needs."""
        self._inlinks, self._scores = inlinks or self._inlinks, scores or self._scores

    def mix(self, policy: str) -> Mix:
        """Return the orders of a policy. The caller holds the locks of all replicas."""
        return [(share, self._orders(name)) for name, share in POLICIES[policy].items()]

    def _orders(self, name: str) -> list[Order]:
        hots, loads = self._hot.orders, self._hot.crawl.loads
        inlinks = self.usable_inlinks() if name in LINKED else None
        basis = (self._hot.built, inlinks)
        made = self._made.get(name)
        if made is None or made[0] != basis or made[1].is_imprecise:
            if made is not None:
                for hot, order in zip(hots, made[2], strict=True):
                    hot.drop(order)
            clock = Clock(self._rng())
            made = basis, clock, [self._order(name, shard, hot, clock, inlinks) for shard, hot in enumerate(hots)]
            self._made[name] = made
        for order in made[2]:
            if isinstance(order, ByLinkScore):
                # Otherwise its ids may belong to other pages now.
                order.use(self._scores if self._scores is not None and self._scores.loads == loads else None)
        return made[2]

    def _order(self, name: str, shard: int, hot: HotOrder, clock: Clock, inlinks: InLinkColumns | None) -> Order:
        if name == "alike":
            return Alike(hot, clock)
        if name == "link score":
            return ByLinkScore(hot, shard)
        if inlinks is not None:
            return ByInLinks(inlinks, shard) if name == "in-links" else DrawnByInLinks(hot, clock, inlinks, shard)
        return DrawnByYields(hot, clock, self._hot.crawl.replicas[shard], name)

    def usable_inlinks(self) -> InLinkColumns:
        """Return the in-links; none, if the ids of those at hand may belong to other pages now."""
        inlinks = self._inlinks
        assert inlinks is not None
        return inlinks if inlinks.loads == self._hot.crawl.loads else InLinkColumns(inlinks.kept)
