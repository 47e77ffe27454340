"""Choose the free pages with the most cash: a merge over the hot orders of all shards, a few pages of each host."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from opic.frontier import page_counts
from opic.frontier.host_quota import Bools, HostQuota
from opic.frontier.hot_order import HotOrder, Int64s
from opic.frontier.page_keys import Keys
from opic.frontier.page_sources import (
    ListSource,
    PageSource,
    RankedPages,
    RankedSource,
    RunSource,
    Scope,
    Within,
)

STRETCH: Final = 64  # Number of entries of a run to examine first; it doubles each time.
DOMAIN_PAGES: Final = 1 << 16  # For domains with more pages than this, the run is searched first.
FIRST_DUE: Final = 1_024  # Number of held pages to examine first when looking for the next one to become free.
SIDES: Final = {"any": (0, 1), "discover": (0,), "refresh": (1,), "coverage": (0,)}


@dataclass(frozen=True, slots=True)
class Picked:
    """Chosen pages, in order. Arrays are (n,)."""

    shards: Int64s
    ids: Int64s
    hosts: Int64s  # Host numbers within the shard.
    counts: Keys  # Their keys.

    def __len__(self) -> int:
        """Return the number of pages."""
        return len(self.ids)

    def only(self, mask: Bools | Int64s) -> "Picked":
        """Return the pages of a mask, or of some positions."""
        return Picked(self.shards[mask], self.ids[mask], self.hosts[mask], self.counts[mask])

    def of_hosts(self, count: int) -> "Picked":
        """Return the pages of the first `count` hosts."""
        hosts = list(zip(self.shards.tolist(), self.hosts.tolist(), strict=True))
        some = set(islice(dict.fromkeys(hosts), count))
        return self.only(np.array([host in some for host in hosts], np.bool_))

    def first(self, count: int) -> "Picked":
        """Return the first `count` pages."""
        return Picked(self.shards[:count], self.ids[:count], self.hosts[:count], self.counts[:count])

    def followed_by(self, more: "Picked") -> "Picked":
        """Return these pages, then others."""
        columns = zip(
            (self.shards, self.ids, self.hosts, self.counts),
            (more.shards, more.ids, more.hosts, more.counts),
            strict=True,
        )
        return Picked(*map(np.concatenate, columns))

    def after(self, count: int) -> "Picked":
        """Return the pages after the first `count`."""
        return Picked(self.shards[count:], self.ids[count:], self.hosts[count:], self.counts[count:])


Fit = Callable[[Int64s, Int64s], Bools]


def pick(
    orders: Sequence[HotOrder],
    count: int,
    now: Sequence[float],
    *,
    mode: str = "any",
    busy: Sequence[Int64s] | None = None,
    within: Scope | None = None,
    fit: Fit | None = None,
    nearness: int = 0,
    restart: Callable[[], object] = lambda: None,
    drawn: Callable[[], Sequence[PageSource]] | None = None,
    ranked: Sequence[Sequence[RankedPages]] | None = None,
    host_pages: int | None = None,
) -> Picked:
    """Return the first free pages of all shards, ties by shard and id.

    Args:
        orders: the order of each shard.
        count: maximum number of pages.
        now: the time by the clock of each order; it never goes back.
        mode: "any", "discover" and "coverage" for pages never read, "refresh" for others.
        busy: numbers of the hosts to skip, for each shard.
        within: only these pages.
        fit: takes shards and hosts of pages, in order; returns a mask of the pages that may be taken. Calls are
            cumulative: each continues from the one before.
        nearness: only pages of at least this nearness, see `opic.model.page_notes`; 0 for all.
        restart: called before the pages are chosen anew; `fit` then starts from the beginning.
        drawn: returns the pages of each shard in another order than the greedy one; `mode`, `within` and `nearness`
            are then its business.
        ranked: the pages of each shard in another order, maybe in several parts; only these, on the hosts of `within`.
        host_pages: maximum number of pages of a host; if None, one of each host with a delay.
    """
    for shard, (order, time) in enumerate(zip(orders, now, strict=True)):
        order.advance(time)
        order.begin(busy[shard] if busy is not None else None)
    listed = drawn is not None or ranked is not None or (within is None and not nearness)
    while True:
        if drawn is not None:
            sources = drawn()
        elif ranked is not None:
            sources = _ranked_sources(orders, SIDES[mode], within, nearness, ranked)
        else:
            sources = _sources(orders, SIDES[mode], within, nearness, listed=listed)
        try:
            picked = _merge(orders, sources, count, fit, HostQuota(orders, host_pages))
        finally:
            for source in sources:
                source.close()
            for order in orders:
                order.crowd()
        if listed or len(picked) > count or not any(source.short for source in sources):
            break
        listed = True
        restart()
        for shard, order in enumerate(orders):  # Clear the marks of the first attempt.
            order.begin(busy[shard] if busy is not None else None)
    return picked.first(count)


def first_free(
    orders: Sequence[HotOrder],
    *,
    mode: str = "any",
    busy: Sequence[Int64s] | None = None,
    within: Scope | None = None,
    nearness: int = 0,
    seconds_max: float = 60.0,
) -> float | None:
    """Return the seconds until the first requested page is free, exact up to `seconds_max`; None if there is none.

    If no page is free before that, the answer is at least `seconds_max`, whether there are such pages or not.

    Call it after `pick` found no page with the same arguments. The cost grows with the pages that are due soon, or with
    the pages of the domain, not with all held pages.
    """
    waits: list[float] = []
    for shard, order in enumerate(orders):
        order.begin(busy[shard] if busy is not None else None)
        count, best, upto = FIRST_DUE, np.inf, -np.inf
        if within is not None:
            best, upto = _soonest(order, within.pages(shard, order), mode, nearness), np.inf
        timers = [order.page_timers]
        timed = page_counts.REVISIT, page_counts.NOT_BEFORE
        if any(order.counts.totals[2 * kind + side] for kind in timed for side in SIDES[mode]):
            timers.append(order.revisit_timers)
        for side in SIDES[mode]:
            order.settle(order.sides[side])
        while best > upto and upto < order.now + seconds_max:
            held, times = zip(*(some.first(count) for some in timers), strict=True)
            hosts, hosts_upto = order.host_timers.first(count)
            runs = [order.sides[side].ids for side in SIDES[mode]]
            ids = np.concatenate((*held, order.parked(np.unique(hosts)), *runs))
            best, upto = _soonest(order, ids, mode, nearness), min(*times, hosts_upto)
            count *= 8
        if min(best, upto) < np.inf:  # If nothing was found up to the limit, there may be pages beyond.
            waits.append(max(min(best, upto) - order.now, 0.0))
    return min(waits, default=None)


def near_of(order: HotOrder, ids: Int64s | None, nearness: int) -> Int64s:
    """Return those pages whose nearness is at least `nearness`; of all pages if `ids` is None."""
    if ids is None:
        return order.columns.within_depth(nearness)
    return ids[order.columns.nearness(ids) >= nearness]


def _soonest(order: HotOrder, ids: Int64s, mode: str, nearness: int) -> float:
    """Return when the first of these pages that match the mode becomes free; infinity if none matches."""
    keys, read = order.keys(ids)
    hosts = order.columns.host[ids]
    wanted = (keys > 0) & (order.mark[hosts] != order.tick)
    if mode != "any":
        wanted &= read == (mode == "refresh")
    if nearness:
        wanted &= order.columns.nearness(ids) >= nearness
    ids, hosts = ids[wanted], hosts[wanted]
    return float(np.maximum(order.free_at(ids), order.host_free[hosts]).min(initial=np.inf))


def _sources(
    orders: Sequence[HotOrder],
    sides: Sequence[int],
    within: Scope | None,
    nearness: int,
    *,
    listed: bool,
) -> list[PageSource]:
    sources: list[PageSource] = []
    for shard, order in enumerate(orders):
        inside = None
        if within is not None:
            if not len(within.hosts[shard]):
                continue
            ids = within.pages(shard, order)
            if listed or len(ids) <= DOMAIN_PAGES:
                near = ids[order.columns.nearness(ids) >= nearness] if nearness else ids
                sources.append(ListSource(shard, order, near, sides))
                continue
            inside = within.mask(shard, order)
        elif nearness and listed:
            sources.append(ListSource(shard, order, order.columns.within_depth(nearness), sides))
            continue
        deepen = within is None and not nearness
        sources += [
            RunSource(shard, order, order.sides[side], inside=inside, nearness=nearness, deepen=deepen)
            for side in sides
        ]
    return sources


def _ranked_sources(
    orders: Sequence[HotOrder],
    sides: Sequence[int],
    within: Scope | None,
    nearness: int,
    ranked: Sequence[Sequence[RankedPages]],
) -> list[PageSource]:
    sources: list[PageSource] = []
    for shard, order in enumerate(orders):
        if within is not None and not len(within.hosts[shard]):
            continue
        inside, parts = None, ranked[shard]
        if within is not None:
            inside = within.mask(shard, order)
        if isinstance(within, Within) and len(ids := within.pages(shard, order)) <= DOMAIN_PAGES:
            parts = [part.only(ids) for part in parts]
        sources += [RankedSource(shard, order, part, sides, inside, nearness) for part in parts]
    return sources


def _merge(
    orders: Sequence[HotOrder], sources: Sequence[PageSource], count: int, fit: Fit | None, quota: HostQuota
) -> Picked:
    """Merge the sources in order until more than `count` pages are taken, or no more are left."""
    size, have = max(STRETCH, 2 * count), 0
    nothing = np.empty(0, np.int64)
    batches: list[tuple[Int64s, Int64s, Int64s, Keys]] = [(nothing, nothing, nothing, nothing)]
    while have <= count:
        for source in sources:
            while not len(source.ids) and not source.done:
                source.fill(size)
                size *= 2
        nonempty = [source for source in sources if len(source.ids)]
        if not nonempty or any(source.short for source in sources):
            break
        shards, ids, neg = _upto(nonempty)
        hosts = np.empty(len(ids), np.int64)
        for shard in {source.shard for source in nonempty}:
            at = np.flatnonzero(shards == shard)
            hosts[at] = orders[shard].columns.host[ids[at]]
        keep = quota.keep(shards, hosts)
        shards, ids, neg, hosts = shards[keep], ids[keep], neg[keep], hosts[keep]
        if fit is not None and len(ids):
            fits = fit(shards, hosts)
            for shard in set(shards[~fits].tolist()):
                refused = hosts[~fits & (shards == shard)]
                orders[shard].mark[refused] = orders[shard].tick
                orders[shard].passed_over(refused)
            shards, ids, neg, hosts = shards[fits], ids[fits], neg[fits], hosts[fits]
        batches.append((shards, ids, hosts, -neg))
        have += len(ids)
    columns: list[Any] = [np.concatenate(parts) for parts in zip(*batches[len(batches) > 1 :], strict=True)]
    return Picked(columns[0], columns[1], columns[2], columns[3])


def _upto(sources: Sequence[PageSource]) -> tuple[Int64s, Int64s, Keys]:
    """Merge and take the pages that precede every page not examined yet: shards, ids and negated keys."""
    ends = [(source.neg[-1], source.shard, int(source.ids[-1])) for source in sources if not source.done]
    parts: list[tuple[Int64s, Int64s, Keys]] = []
    for source in sources:
        end = len(source.ids)
        if ends:
            neg, shard, page = min(ends)
            low, high = (int(np.searchsorted(source.neg, neg, side=side)) for side in ("left", "right"))
            if source.shard == shard:
                end = low + int(np.searchsorted(source.ids[low:high], page, side="right"))
            else:
                end = high if source.shard < shard else low
        parts.append((np.full(end, source.shard), source.ids[:end], source.neg[:end]))
        source.ids, source.neg = source.ids[end:], source.neg[end:]
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort((columns[1], columns[0], columns[2]))
    return columns[0][order], columns[1][order], columns[2][order]
