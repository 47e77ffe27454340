"""Recrawl policies: read pages chosen at random, in proportion to what their past reads have discovered.

    U     each page as likely as any other
    OR    in proportion to the links seen on it so far
    YR    in proportion to its yield: pages that became known by its last read, per second since the read before
    YRU   half by YR, half by U

Pages are drawn without replacement from those that are free: neither leased nor waiting, on a host that is free; how
much cash they have does not matter, so also those come that the greedy order leaves until they receive some. When
no free page has a weight, the others follow as by U, so no page is left out for ever. `opic.replica.page_yields` says
what is counted. LDU is not offered: its link score needs the number of links to each page, which is not kept.

A draw looks at the sums of blocks of pages, then at the pages of one block. A change of a page costs nothing until the
next draw, which sums its block again. So a choice costs O(blocks + pages drawn * BLOCK_PAGES), some .1 ms for 10 pages
of a million. Only when most of the pages drawn are not free are all pages of the shard looked at.

Shards draw independently. Each draw is a point of a Poisson process with the weight of its shard as its rate, and the
points of all shards are taken in order of time: so a page of any shard is as likely as its weight says.

Source: Kumar, Lang, Marlow, Tomkins (2008), section III; `opic.graph.discovery` has the policies for experiments.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.frontier.hot_order import Bools, HotOrder, Int64s, is_held
from opic.frontier.page_keys import OFFERED_BITS, Keys
from opic.frontier.requests import POLICIES
from opic.model.cash import Flag
from opic.replica.replica import Replica

Floats = NDArray[np.float64]
Generator = np.random.Generator

BLOCK_PAGES: Final = 1 << 12
FILLS_MAX: Final = 6  # Rounds of draws, each twice as large, before all pages are looked at.
AFTER_ALL: Final = 1e9  # Time of pages without a weight, after all others.


class PageWeights:
    """Weights of the pages of a replica for one kind, with their sums by block."""

    def __init__(self, replica: Replica, kind: str) -> None:
        """Sum all weights: a millisecond for a million pages."""
        self._replica, self._kind = replica, kind
        self.sums: Floats = np.zeros(0)
        self._stale: list[Int64s] = []
        self.changed(np.arange(0, len(replica), BLOCK_PAGES))

    def changed(self, ids: Int64s) -> None:
        """Note that pages may have other weights, or are new."""
        self._stale.append(np.unique(ids // BLOCK_PAGES))

    def of(self, ids: Int64s | slice) -> Floats:
        """Return the weights of pages: 0 for a page that was never read, or may not be offered."""
        fit = fit_for_recrawl(self._replica.state[ids])
        if self._kind == "one":
            alike: Floats = fit.astype(np.float64)
            return alike
        yields = self._replica.yields
        assert yields is not None
        if isinstance(ids, slice):
            columns = yields.part(ids.start, ids.start + len(fit))
            of_block: Floats = np.where(fit, columns[self._kind == "rate"], 0.0)
            return of_block
        column = yields.rate if self._kind == "rate" else yields.seen
        inside = ids < len(column)
        weights: Floats = np.where(fit & inside, column[np.where(inside, ids, 0)] if len(column) else 0.0, 0.0)
        return weights

    def total(self) -> float:
        """Return the sum of all weights."""
        if self._stale:
            blocks = -(-len(self._replica) // BLOCK_PAGES)
            if blocks > len(self.sums):
                self.sums = np.concatenate((self.sums, np.zeros(blocks - len(self.sums))))
            for block in np.unique(np.concatenate(self._stale)).tolist():
                self.sums[block] = self._block(block).sum()
            self._stale.clear()
        return float(self.sums.sum())

    def draw(self, count: int, rng: Generator) -> Int64s:
        """Draw pages with replacement; `total` must be above 0."""
        sums = np.cumsum(self.sums)
        blocks = np.searchsorted(sums, rng.random(count) * sums[-1], side="right")
        blocks = np.minimum(blocks, np.flatnonzero(self.sums)[-1])  # Rounding may put a draw behind the last.
        found = np.empty(count, np.int64)
        for block in np.unique(blocks).tolist():
            at, inside = np.flatnonzero(blocks == block), np.cumsum(self._block(block))
            place = np.searchsorted(inside, rng.random(len(at)) * inside[-1], side="right")
            found[at] = block * BLOCK_PAGES + np.minimum(place, len(inside) - 1)
        return found

    def _block(self, block: int) -> Floats:
        return self.of(slice(block * BLOCK_PAGES, (block + 1) * BLOCK_PAGES))


def fit_for_recrawl(state: NDArray[np.uint8]) -> Bools:
    """Return a mask of the pages that were read and may be offered, given their states."""
    fit: Bools = (state & (OFFERED_BITS | Flag.OPEN)) == Flag.KNOWN | Flag.OPEN
    return fit


class RecrawlWeights:
    """The weights of a replica's pages by kind, each summed from when it is first asked for."""

    def __init__(self, replica: Replica) -> None:
        """Sum nothing yet."""
        self._replica, self._kinds = replica, dict[str, PageWeights]()

    def kinds(self, policy: str) -> list[PageWeights]:
        """Return what a policy draws by."""
        for kind in POLICIES[policy]:
            if kind not in self._kinds:
                self._kinds[kind] = PageWeights(self._replica, kind)
        return [self._kinds[kind] for kind in POLICIES[policy]]

    def changed(self, ids: Int64s) -> None:
        """Note that pages may have other weights, or are new."""
        for weights in self._kinds.values():
            weights.changed(ids)


class DrawnPages:
    """The free read pages of a shard in the order in which they are drawn; a `PageSource` of `opic.frontier.picking`.

    A page's key is 1/(1 + t), with t the time at which it is drawn.
    """

    def __init__(  # noqa: PLR0917 - what one choice is made of
        self,
        shard: int,
        order: HotOrder,
        kinds: Sequence[PageWeights],
        rates: Sequence[float],
        rng: Generator,
        only: Int64s | None = None,
    ) -> None:
        """Start at time 0.

        Args:
            shard: the shard.
            order: its hot order, which knows the free pages.
            kinds: what pages are drawn by.
            rates: draws by each of them in a unit of time, for each unit of weight.
            rng: decides.
            only: draw only from these pages, all at once.
        """
        self.shard, self._order, self._kinds, self._rates, self._rng = shard, order, kinds, rates, rng
        self._only = only
        self.ids: Int64s = np.empty(0, np.int64)
        self.neg: Keys = np.empty(0)
        self.done = self.short = False
        self._speeds = np.array([rate * kind.total() for rate, kind in zip(rates, kinds, strict=True)])
        self._time, self._fills, self._seen = 0.0, 0, np.empty(0, np.int64)

    def fill(self, size: int) -> None:
        """Draw `size` more pages, or put all others in order."""
        self._fills += 1
        if self._only is not None or not self._speeds.sum() or self._fills > FILLS_MAX:
            self._order_rest()
            return
        rng, speed = self._rng, self._speeds.sum()
        times = self._time + np.cumsum(rng.exponential(1 / speed, size))
        self._time = float(times[-1])
        by = rng.choice(len(self._kinds), size, p=self._speeds / speed)
        ids = np.empty(size, np.int64)
        for at, kind in enumerate(self._kinds):
            ids[by == at] = kind.draw(int((by == at).sum()), rng) if (by == at).any() else 0
        _, first = np.unique(ids, return_index=True)
        first = np.sort(first)
        first = first[~np.isin(ids[first], self._seen)]
        self._seen = np.concatenate((self._seen, ids[first]))
        first = first[self._free(ids[first])]
        self.ids, self.neg = ids[first], -1 / (1 + times[first])

    def _order_rest(self) -> None:
        """Put the pages that were not drawn in order: by exponential times with their weights as rates."""
        ids = self._only
        if ids is None:
            ids = np.flatnonzero(~is_held(self._order.where[: len(self._order.columns)]))
        ids = ids[self._free(ids)]
        ids = ids[~np.isin(ids, self._seen)]
        speed = np.zeros(len(ids))
        for rate, kind in zip(self._rates, self._kinds, strict=True):
            speed += rate * kind.of(ids)
        waits = self._rng.exponential(size=len(ids))
        late = AFTER_ALL * (1 + waits)
        times = np.where(speed > 0, self._time + waits / np.where(speed > 0, speed, 1.0), late)
        by_time = np.argsort(times)
        self.ids, self.neg, self.done = ids[by_time], -1 / (1 + times[by_time]), True

    def _free(self, ids: Int64s) -> Bools:
        """Return a mask of the read pages that may be handed out now, whatever cash they have."""
        order = self._order
        order.looked += len(ids)
        hosts = order.columns.host[ids]
        free = fit_for_recrawl(order.columns.state[ids]) & ~is_held(order.where[ids])
        free &= (order.host_free[hosts] <= order.now) & (order.mark[hosts] != order.tick)
        if (shut := order.columns.shut(ids)) is not None:
            free &= ~shut
        return free

    def close(self) -> None:
        """Do nothing: this source does not change the order."""


def draw_pages(
    orders: Sequence[HotOrder],
    weights: Sequence[RecrawlWeights],
    policy: str,
    rng: Generator,
    only: Sequence[Int64s] | None = None,
) -> list[DrawnPages]:
    """Return the pages of each shard in the order in which a policy draws them.

    Args:
        orders: the hot order of each shard.
        weights: the weights of each.
        policy: a name of POLICIES.
        rng: decides.
        only: pages of each shard to draw from; None for all.
    """
    kinds = [of_shard.kinds(policy) for of_shard in weights]
    totals = np.array([[kind.total() for kind in of_shard] for of_shard in kinds])
    if only is not None:
        totals = np.array([
            [kind.of(ids).sum() for kind in of_shard] for of_shard, ids in zip(kinds, only, strict=True)
        ])  # fmt: skip
    of_kind = totals.sum(axis=0)
    rates = np.divide(1.0, of_kind, out=np.zeros(len(of_kind)), where=of_kind > 0).tolist()
    return [
        DrawnPages(shard, order, of_shard, rates, rng, None if only is None else only[shard])
        for shard, (order, of_shard) in enumerate(zip(orders, kinds, strict=True))
    ]
