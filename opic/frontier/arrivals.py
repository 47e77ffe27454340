"""Orders that draw pages at random, each page in proportion to its weight: the next arrival of a page.

Each page arrives again and again in a virtual time, at random with its weight as rate: a Poisson process. The page that
arrives next comes first. A page that was taken is drawn again, at now + Exp(1) / weight, and so is one whose weight
changed or that was held when it arrived: exponential times have no memory, so the pages come as if each was drawn in
proportion to its weight from those that are free. Time stands still for the pages of a host that rests. A page has the
same place until then, however often the order is read.

Pages without a weight come after all others, drawn alike in a time of their own, so no page is left out for ever.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from opic.arrays import Bools, Float64s, Int64s, grown
from opic.frontier.hot_order import HotOrder
from opic.frontier.page_keys import Order

LAST: Final = 1e200  # Arrivals of pages without a weight are this many times as late.
# After this many arrivals of the heaviest page, floats are too coarse for its next one, and the order restarts. That
# waits for TAKEN_MIN pages to be taken, since a priority may be any number.
IMPRECISE, TAKEN_MIN = 2.0**40, 1 << 14


class Clock:
    """The virtual time of an order of all shards."""

    def __init__(self, rng: np.random.Generator) -> None:
        """Start at 0; `rng` draws the arrivals."""
        self.rng = rng
        self.now = np.zeros(2)  # For pages with a weight, and for those without.
        self.heaviest = 0.0  # The greatest weight.
        self.taken = 0  # Pages.

    @property
    def is_imprecise(self) -> bool:
        """Whether the order should restart."""
        return bool(self.taken >= TAKEN_MIN and self.now[0] * self.heaviest > IMPRECISE)


class Arrivals(Order):
    """An order by arrivals. A subclass has `weights`."""

    with_cash = False
    prioritised = False  # Priorities are part of the weights.

    def __init__(self, hot: HotOrder, clock: Clock) -> None:
        self._hot, self.clock = hot, clock
        self._at = np.zeros(0)  # By page: its next arrival, in the time of its tier and host.
        self._weight = np.zeros(0)
        self._lag = np.zeros(0)  # By host: for how long time stood still,
        self._since = np.zeros(0)  # and since when it does; NaN if it does not.

    def weights(self, ids: Int64s) -> Float64s:
        """Return the weights of pages, (n,), 0 or more."""
        raise NotImplementedError

    def keys(self, ids: Int64s) -> Float64s:
        """Return the arrivals, negated: the first has the largest key."""
        self._grow()
        times = self._at[ids]
        return np.where(self._weight[ids] > 0, -times - self._lags(ids), -LAST * (1 + times))

    def _lags(self, ids: Int64s) -> Float64s:
        hosts = self._hot.columns.host[ids]
        since = self._since[hosts]
        lags: Float64s = self._lag[hosts] + np.where(np.isnan(since), 0.0, self.clock.now[0] - since)
        return lags

    def _grow(self) -> None:
        if (pages := len(self._hot.where)) > len(self._at):
            known = len(self._at)
            self._at, self._weight = grown(self._at, pages), grown(self._weight, pages)
            self._weight[known:] = np.nan
        if (hosts := len(self._hot.host_free)) > len(self._lag):
            known = len(self._lag)
            self._lag, self._since = grown(self._lag, hosts), grown(self._since, hosts)
            self._since[known:] = np.nan
            resting = known + np.flatnonzero(self._hot.host_free[known:] > self._hot.now)
            self._since[resting] = self.clock.now[0]

    def changed(self, ids: Int64s) -> None:
        """Draw new pages, those whose weight changed, and those that arrived while they were held."""
        self._grow()
        weights = self.weights(ids)
        if (priority := self._hot.columns.priority(ids)) is not None:
            weights = weights * priority
        again = (weights != self._weight[ids]) | self.arrived(ids, self.clock.now)
        self._weight[ids] = weights
        self.clock.heaviest = max(self.clock.heaviest, float(weights.max(initial=0.0)))
        self.draw(ids[again], self.clock.now)

    def draw(self, ids: Int64s, now: Float64s) -> None:
        """Draw the next arrivals of pages, from these times on."""
        weights = self._weight[ids]
        waits = self.clock.rng.exponential(size=len(ids))
        some = weights > 0
        self._at[ids] = np.where(some, now[0] - self._lags(ids), now[1]) + waits / np.where(some, weights, 1.0)

    def arrived(self, ids: Int64s, now: Float64s) -> Bools:
        """Return a mask of the pages whose next arrival is not after these times."""
        arrived: Bools = -self.keys(ids) <= np.where(self._weight[ids] > 0, now[0], LAST * (1 + now[1]))
        return arrived

    def last_arrivals(self, ids: Int64s) -> Float64s:
        """Return the last arrivals among pages with a weight, and among those without, (2,)."""
        some, keys = self._weight[ids] > 0, -self.keys(ids)
        return np.array([keys[some].max(initial=0.0), (keys[~some] / LAST - 1).max(initial=0.0)])

    def pause(self, ids: Int64s) -> None:
        """Let time stand still for the hosts with a delay that these pages are taken of, since they arrived."""
        hosts = self._hot.columns.host[ids]
        some = self._hot.single[hosts] & (self._weight[ids] > 0)
        self._since[hosts[some]] = np.minimum(-self.keys(ids[some]), self.clock.now[0])

    def hosts_changed(self, hosts: Int64s) -> None:
        """Let time stand still for hosts that rest, and go on for those that are free."""
        hosts = np.unique(hosts[hosts < len(self._lag)])
        resting, paused = self._hot.host_free[hosts] > self._hot.now, ~np.isnan(self._since[hosts])
        self._since[hosts[resting & ~paused]] = self.clock.now[0]
        over = hosts[~resting & paused]
        self._lag[over] += self.clock.now[0] - self._since[over]
        self._since[over] = np.nan


def draw_again(orders: Sequence[Order], shards: Int64s, ids: Int64s, own: Bools, *, all_pages: bool) -> None:
    """Draw pages again that were taken; with `all_pages`, time goes on to the last of their arrivals.

    Args:
        orders: the order of each shard, with the same clock.
        shards: of the pages, (n,).
        ids: of the pages, (n,).
        own: which of them came by this order; of the others, those that have arrived by then are drawn again.
        all_pages: whether they were chosen among all pages, and not among those of some domains or depths.
    """
    drawn = [(order, shards == shard) for shard, order in enumerate(orders) if isinstance(order, Arrivals)]
    if not drawn:
        return
    clock = drawn[0][0].clock
    last = [order.last_arrivals(ids[mine & own]) for order, mine in drawn]
    now: Float64s = np.maximum.reduce([clock.now, *last])
    clock.taken += len(ids)
    if all_pages:
        clock.now[:] = now
    for order, mine in drawn:
        order.pause(ids[mine & own])
        order.draw(ids[mine & own], now)
        others = ids[mine & ~own]
        order.draw(others[order.arrived(others, now)], now)


class Alike(Arrivals):
    """The order U: each page as likely as any other."""

    def weights(self, ids: Int64s) -> Float64s:
        """Return ones."""
        return np.ones(len(ids))
