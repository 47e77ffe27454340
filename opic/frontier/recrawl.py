"""Recrawl policies: read pages chosen at random, in proportion to what their past reads have discovered.

    U     each page as likely as any other
    OR    in proportion to the links seen on it so far
    YR    in proportion to its yield: pages that became known by its last read, per second since the read before
    YRU   half by YR, half by U
    LDU   half the page with the greatest link score, half by U

Pages are drawn without replacement from those that are free: neither leased nor waiting, on a host that is free; how
much cash they have does not matter, so also those come that the greedy order leaves until they receive some. When
no free page has a weight, the others follow as by U, so no page is left out for ever. `opic.replica.page_yields` says
what is counted; link scores are those of `opic.query.kept_links`.

A draw looks at the sums of blocks of pages, then at the pages of one block. A change of a page costs nothing until the
next draw, which sums its block again. So a choice costs O(blocks + pages drawn * BLOCK_PAGES), with LDU also O(pages
that have a score). Only when most of the pages drawn are not free are all pages of the shard looked at.

Shards draw independently. Each draw is a point of a Poisson process with the weight of its shard as its rate, and the
points of all shards are taken in order of time: so a page of any shard is as likely as its weight says. With LDU a
second process takes the free page with the greatest link score of all shards at each of its points; its rate is that at
which free pages are drawn by U.

Source: Kumar, Lang, Marlow, Tomkins (2008), section III.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Float64s, Int64s, Uint8s
from opic.frontier import page_counts
from opic.frontier.hot_order import UNHELD, HotOrder
from opic.frontier.page_keys import OFFERED_BITS
from opic.model.cash import Flag
from opic.query.link_scores import LinkScores
from opic.replica.replica import Replica

Generator = np.random.Generator

BLOCK_PAGES: Final = 1 << 9
DRAWN_FIRST: Final = 64  # Pages that are drawn at once at least.
FILLS_MAX: Final = 6  # Rounds of draws, each twice as large, before all pages are looked at.
AFTER_ALL: Final = 1e9  # Time of pages without a weight, after all others.
BEST_MAX: Final = 1 << 12  # Pages that a choice draws by link score at most; the others come as by U.
PARTS_MAX: Final = 1 << 8  # Changes that are noted one by one until the next choice.
SAMPLED: Final = 1 << 13  # Pages looked at to tell how many are free; all of a shard that has no more.


Fits = Callable[[Uint8s], Bools]  # Takes states of pages; returns which of them may be drawn.


class PageWeights:
    """Weights of the pages of a replica, with their sums by block: 1 for each page here."""

    def __init__(self, replica: Replica, fits: Fits) -> None:
        """Sum all weights of the pages that fit: a millisecond for a million pages."""
        self._replica, self.fits = replica, fits
        self.sums: Float64s = np.zeros(0)
        self._stale: list[Int64s] = []
        self.changed(np.arange(0, len(replica), BLOCK_PAGES))

    def changed(self, ids: Int64s) -> None:
        """Note that pages may have other weights, or are new."""
        self._stale.append(np.unique(ids // BLOCK_PAGES))
        if len(self._stale) > PARTS_MAX:  # Nobody may ask for a sum for long.
            self._stale = [np.unique(np.concatenate(self._stale))]

    def of(self, ids: Int64s) -> Float64s:
        """Return the weights of pages times their priorities: 0 for a page that does not fit."""
        weights, priority = self._alone(ids), self._replica.offers.priority(ids)
        return weights if priority is None else weights * priority

    def _alone(self, ids: Int64s) -> Float64s:
        """Return the weights of pages without their priorities."""
        alike: Float64s = self.fits(self._replica.state[ids]).astype(np.float64)
        return alike

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

    def _block(self, block: int) -> Float64s:
        return self.of(np.arange(block * BLOCK_PAGES, min((block + 1) * BLOCK_PAGES, len(self._replica))))


def fit_for_recrawl(state: Uint8s) -> Bools:
    """Return a mask of the pages that were read and may be offered, given their states."""
    fit: Bools = (state & (OFFERED_BITS | Flag.OPEN)) == Flag.KNOWN | Flag.OPEN
    return fit


class YieldWeights(PageWeights):
    """A column of what past reads of pages have discovered: "seen" or "rate"."""

    def __init__(self, replica: Replica, column: str) -> None:
        """Sum all weights of pages that were read."""
        self._column = column
        super().__init__(replica, fit_for_recrawl)

    def _alone(self, ids: Int64s) -> Float64s:
        return np.where(self.fits(self._replica.state[ids]), self._replica.columns.of(self._column, ids), 0.0)


class DrawnPages:
    """The free pages of a shard in the order in which they are drawn; a `PageSource` of `opic.frontier.picking`.

    A page's key is 1/(1 + t), with t the time at which it is drawn.
    """

    def __init__(  # noqa: PLR0917 - what one choice is made of
        self,
        shard: int,
        order: HotOrder,
        kinds: Sequence[PageWeights],
        totals: Float64s,
        rates: Float64s,
        rng: Generator,
        only: Int64s | None,
        timed: tuple[Int64s, Float64s],
    ) -> None:
        """Start at time 0.

        Args:
            shard: the shard.
            order: its hot order, which knows the free pages.
            kinds: what pages are drawn by.
            totals: the sum of the weights of each; not needed with `only`.
            rates: draws by each of them in a unit of time, for each unit of weight.
            rng: decides.
            only: draw only from these pages, all at once; None for all.
            timed: pages whose times are given, and these times, ascending; the others are drawn.
        """
        self.shard, self._order, self._kinds, self._rates, self._rng = shard, order, kinds, rates, rng
        self._only, self._timed = only, timed
        self.ids: Int64s = np.empty(0, np.int64)
        self.neg: Float64s = np.empty(0)
        self.done = False
        self._speeds = rates * totals
        self._time, self._fills, self._seen = 0.0, 0, timed[0]

    def fill(self, size: int) -> None:
        """Draw more pages, twice as many each time, or put all others in order."""
        size = max(2 * size, DRAWN_FIRST) << self._fills
        self._fills += 1
        many = size > max(BLOCK_PAGES, len(self._order.columns))  # Then looking at all pages is cheaper.
        if self._only is not None or not self._speeds.sum() or self._fills > FILLS_MAX or many:
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
        first = first[free_pages(self._order, ids[first], self._kinds[0].fits)]
        self._offer(ids[first], times[first])

    def _offer(self, ids: Int64s, times: Float64s) -> None:
        """Offer pages that were drawn, and those whose given times come before the present one."""
        timed, at = self._timed
        if end := int(np.searchsorted(at, np.inf if self.done else self._time, side="right")):
            self._timed = timed[end:], at[end:]
            ids, times = np.concatenate((ids, timed[:end])), np.concatenate((times, at[:end]))
            by_time = np.argsort(times, kind="stable")
            ids, times = ids[by_time], times[by_time]
        self.ids, self.neg = np.concatenate((self.ids, ids)), np.concatenate((self.neg, -1 / (1 + times)))

    def _order_rest(self) -> None:
        """Put the pages that were not drawn in order: by exponential times with their weights as rates."""
        ids = self._only
        if ids is None:
            ids = np.flatnonzero(self._order.where[: len(self._order.columns)] == UNHELD)
        ids = ids[free_pages(self._order, ids, self._kinds[0].fits)]
        ids = ids[~np.isin(ids, self._seen)]
        speed = np.zeros(len(ids))
        for rate, kind in zip(self._rates, self._kinds, strict=True):
            speed += rate * kind.of(ids)
        waits = self._rng.exponential(size=len(ids))
        late = AFTER_ALL * (1 + waits)
        times = np.where(speed > 0, self._time + waits / np.where(speed > 0, speed, 1.0), late)
        by_time = np.argsort(times)
        self.done = True
        self._offer(ids[by_time], times[by_time])


def free_pages(order: HotOrder, ids: Int64s, fits: Fits = fit_for_recrawl) -> Bools:
    """Return a mask of the pages that may be handed out now, with or without cash: read ones, or others that fit."""
    order.looked += len(ids)
    free = fits(order.columns.state[ids]) & order.is_free(ids, order.columns.host[ids])
    if (shut := page_counts.shut(order.columns, ids)) is not None:
        free &= ~shut
    return free


def best_pages(orders: Sequence[HotOrder], scores: LinkScores, only: Sequence[Int64s] | None) -> tuple[Int64s, Int64s]:
    """Return the shards and ids of the free pages with the greatest link scores, best first, at most BEST_MAX.

    Of a host with a delay there is only the best page: no other could be handed out with it. Ties by shard and id.
    """
    shards, ids, found = list[Int64s](), list[Int64s](), list[NDArray[Any]]()
    for shard, order in enumerate(orders):
        free = free_pages(order, scores.ids[shard])
        if only is not None:
            free &= np.isin(scores.ids[shard], only[shard])
        ids.append(scores.ids[shard][free])
        priority, score_of = order.columns.priority(ids[-1]), scores.scores[shard][free]
        found.append(score_of if priority is None else score_of * priority)
        shards.append(np.full(len(ids[-1]), shard))
    shard_of, page, score = (np.concatenate(parts) for parts in (shards, ids, found))
    if len(score) > BEST_MAX:
        most = np.sort(np.argpartition(-score, BEST_MAX)[:BEST_MAX])
        shard_of, page, score = shard_of[most], page[most], score[most]
    best = np.argsort(-score, kind="stable")
    shard_of, page = shard_of[best], page[best]
    keep = np.ones(len(page), np.bool_)
    for shard, order in enumerate(orders):
        at = np.flatnonzero(shard_of == shard)
        hosts = order.columns.host[page[at]]
        at, hosts = at[order.single[hosts]], hosts[order.single[hosts]]
        keep[at] = False
        keep[at[np.unique(hosts, return_index=True)[1]]] = True
    return shard_of[keep], page[keep]


def free_of(orders: Sequence[HotOrder], rng: Generator, only: Sequence[Int64s] | None) -> float:
    """Return the number of read pages that are free now; estimated from SAMPLED pages in a large shard.

    Args:
        orders: the hot order of each shard.
        rng: decides.
        only: pages of each shard that count; None for all.
    """
    free = 0.0
    for shard, order in enumerate(orders):
        pages = len(order.columns)
        if only is not None or pages <= SAMPLED:
            free += float(free_pages(order, np.arange(pages) if only is None else only[shard]).sum())
        else:
            free += pages * float(free_pages(order, rng.integers(pages, size=SAMPLED)).mean())
    return free


def times_of_best(count: int, best_rate: float, own_rate: float, rng: Generator) -> Float64s:
    """Return the times of pages of which the best that is left is drawn at some points, and each also by itself.

    Args:
        count: number of pages, best first.
        best_rate: draws of the best in a unit of time; over 0.
        own_rate: draws of each page by itself; over 0.
        rng: decides.
    """
    times = rng.exponential(1 / own_rate, count)
    points = iter(np.cumsum(rng.exponential(1 / best_rate, count + 1)).tolist())
    point = next(points)
    for at, own in enumerate(times.tolist()):
        if own > point:  # Otherwise it was drawn by itself before, and the point takes the next page.
            times[at] = point
            point = next(points)
    return times


def draw_pages(
    orders: Sequence[HotOrder],
    kinds: Sequence[Sequence[PageWeights]],
    rng: Generator,
    only: Sequence[Int64s] | None = None,
    scores: LinkScores | None = None,
    *,
    alike: Callable[[], Sequence[PageWeights]] | None = None,
) -> list[DrawnPages]:
    """Return the pages of each shard in the order in which they are drawn.

    Args:
        orders: the hot order of each shard.
        kinds: of each, what pages are drawn by, each in an equal share of the draws.
        rng: decides.
        only: pages of each shard to draw from; None for all.
        scores: the link scores, for LDU: as many draws are of the best page as by `kinds`.
        alike: returns of each shard what draws its pages alike, for when no page has a weight.
    """
    if only is None:
        totals = np.array([[kind.total() for kind in of_shard] for of_shard in kinds])
    else:
        totals = np.array([
            [kind.of(ids).sum() for kind in of_shard] for of_shard, ids in zip(kinds, only, strict=True)
        ])  # fmt: skip
    of_kind = totals.sum(axis=0)
    if only is None and alike is not None and not of_kind.any():
        # No page has a weight: all follow alike, which needs no look at each of them.
        return draw_pages(orders, [[of_shard] for of_shard in alike()], rng)
    rates = np.divide(1.0, of_kind, out=np.zeros(len(of_kind)), where=of_kind > 0)
    timed = [(np.empty(0, np.int64), np.empty(0))] * len(orders)
    if scores is not None and rates[0]:
        shard_of, page = best_pages(orders, scores, only)
        # As often as U draws a free page; a sample may have none, but those with a score are free.
        times = times_of_best(len(page), rates[0] * max(1, free_of(orders, rng, only), len(page)), rates[0], rng)
        by_time = np.argsort(times)
        shard_of, page, times = shard_of[by_time], page[by_time], times[by_time]
        timed = [(page[shard_of == shard], times[shard_of == shard]) for shard in range(len(orders))]
    some = [None] * len(orders) if only is None else only
    return [
        DrawnPages(shard, order, of_shard, totals[shard], rates, rng, some[shard], timed[shard])
        for shard, (order, of_shard) in enumerate(zip(orders, kinds, strict=True))
    ]
