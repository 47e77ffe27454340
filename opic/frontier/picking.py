"""Choose the free pages with the most cash: a merge over the hot orders of all shards, a few pages of each host."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from opic.frontier import page_counts
from opic.frontier.host_quota import Bools, HostQuota
from opic.frontier.hot_order import HotOrder, Int64s, first, is_held
from opic.frontier.hot_side import Side
from opic.frontier.page_keys import Keys

STRETCH: Final = 64  # Number of entries of a run to examine first; it doubles each time.
DOMAIN_PAGES: Final = 1 << 16  # For domains with more pages than this, the run is searched first.
FIRST_DUE: Final = 1_024  # Number of held pages to examine first when looking for the next one to become free.
RANKED_FIRST: Final = 4_096  # Number of ranked pages to sort first; each time eight times as many as are needed.
RANKED_LONG: Final = 16_384  # From this rank on, looking at all pages of the free hosts at once is faster.
SIDES: Final = {"any": (0, 1), "discover": (0,), "refresh": (1,), "coverage": (0,)}


@dataclass(eq=False, slots=True)
class Within:
    """The hosts of a domain, by shard: restricts a choice to their pages. Reuse it, because it caches these pages."""

    hosts: list[Int64s]  # Host numbers of each shard, ascending; new hosts are appended.
    _pages: dict[int, tuple[int, Int64s]] = field(default_factory=dict)  # By shard: number of pages scanned, and ids.
    _masks: dict[int, tuple[int, Bools]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        parts = (*self._pages.values(), *self._masks.values())
        return sum(hosts.nbytes for hosts in self.hosts) + sum(part.nbytes for _, part in parts)

    def pages(self, shard: int, order: HotOrder) -> Int64s:
        """Return the ids of the pages of these hosts, ascending. Each new page is scanned once."""
        column = order.columns.host[: len(order.columns)]
        if shard not in self._pages:
            order.pages.extend(column)
            self._pages[shard] = len(column), np.sort(order.pages.of(self.hosts[shard]))
        known, ids = self._pages[shard]
        if known < len(column):
            later = known + np.flatnonzero(self.mask(shard, order)[column[known:]])
            self._pages[shard] = len(column), np.concatenate((ids, later)) if len(later) else ids
        return self._pages[shard][1]

    def mask(self, shard: int, order: HotOrder) -> Bools:
        """Return a mask over a shard's host numbers of the hosts included."""
        count, hosts = len(order.mark), self.hosts[shard]
        known = self._masks.get(shard)
        if known is None or known[0] != len(hosts) or len(known[1]) < count:
            mask = np.zeros(count, np.bool_)
            mask[hosts] = True
            known = self._masks[shard] = len(hosts), mask
        return known[1]


class Scope(Protocol):
    """Restricts a choice to some pages: those of some hosts (`Within`), or those of another order."""

    @property
    def hosts(self) -> Sequence[Int64s]:
        """For each shard an array that is empty if the shard has no such page."""

    def pages(self, shard: int, order: HotOrder) -> Int64s:
        """Return the ids of the pages, ascending."""

    def mask(self, shard: int, order: HotOrder) -> Bools:
        """Return a mask over a shard's host numbers of their hosts."""


class PageSource(Protocol):
    """An iterator over pages of a shard in order, a batch at a time."""

    shard: int
    ids: Int64s  # The pages that were examined but not taken yet,
    neg: Keys  # and their negated keys.
    done: bool  # No more pages come from this source.
    short: bool  # Nevertheless there are more pages, for which another source is needed.

    def fill(self, size: int) -> None:
        """Examine up to `size` more pages."""

    def close(self) -> None:
        """Restore the order's state for other choices."""


class RunSource:
    """The run of one side of a hot order."""

    def __init__(
        self, shard: int, order: HotOrder, side: Side, *, inside: Bools | None, nearness: int, deepen: bool
    ) -> None:
        """Start at the head of the run: only hosts in `inside`, only pages of this nearness or above.

        The columns are scanned only if `deepen`. With `nearness`, no more pages of a host are brought into the run: few
        of them may qualify.
        """
        order.settle(side)
        self.shard, self._order, self._side, self._inside, self._deepen = shard, order, side, inside, deepen
        self.ids, self.neg, self.done, self.short = side.ids[:0], side.neg[:0], False, False
        self._nearness, self._at = nearness, 0
        self._aside: list[tuple[Any, int, int]] = []

    def fill(self, size: int) -> None:
        """Examine up to `size` entries, or bring more pages into the run at its end."""
        order, side = self._order, self._side
        end, host = self._limit()
        if self._at < end:
            end = min(end, self._at + size)
            ids, neg = side.ids[self._at : end], side.neg[self._at : end]
            self._at = end
            self._look(ids, neg)
        elif host is not None and self._nearness:
            self._aside.append((*side.cut_of(host), host))
            self.done = self.short = True
        elif host is not None:
            self._at = order.refill(side, host, self._at)
        elif side.whole:
            self.done = True
        elif self._deepen:
            order.crowd()
            self._at = order.deepen(side, self._at)
        else:
            self.done = self.short = True

    def _limit(self) -> tuple[int, int | None]:
        """Return the index up to which the run is complete, and the host that lacks pages there; None if all do."""
        order, side = self._order, self._side
        end = len(side.ids) if side.whole else side.place(-side.cut_key[0], int(side.cut_id[0]))
        while side.open:
            neg, page, host = side.open[0]
            if host not in side.slot_of or side.cut_of(host) != (neg, page) or not neg:
                heapq.heappop(side.open)  # Outdated: the host's threshold has changed or was dropped.
            elif order.host_free[host] > order.now:
                heapq.heappop(side.open)  # It is pushed again when the host's delay is over.
            elif order.mark[host] == order.tick or (self._inside is not None and not self._inside[host]):
                self._aside.append(heapq.heappop(side.open))
            else:
                place = side.place(neg, page)
                if place <= end:
                    if place <= self._at:
                        heapq.heappop(side.open)
                    return place, host
                break
        return end, None

    def _look(self, ids: Int64s, neg: Keys) -> None:
        order = self._order
        order.looked += len(ids)
        keep = order.where[ids] == self._side.in_run
        hosts = order.columns.host[ids]
        resting = keep & (order.host_free[hosts] > order.now)
        if resting.any():
            order.park(ids[resting], hosts[resting])
            keep &= ~resting
        passed = keep & (order.mark[hosts] == order.tick)
        if passed.any():
            order.passed_over(hosts[passed])
            keep &= ~passed
        if self._inside is not None:
            keep &= self._inside[hosts]
        if self._nearness:
            keep &= order.columns.nearness(ids) >= self._nearness
        self.ids, self.neg = ids[keep], neg[keep]

    def close(self) -> None:
        """Push back the thresholds set aside for this choice."""
        for entry in self._aside:
            heapq.heappush(self._side.open, entry)


class ListSource:
    """The free pages among a list of pages of a hot order, sorted lazily."""

    def __init__(self, shard: int, order: HotOrder, ids: Int64s, sides: Sequence[int]) -> None:
        """Take pages with ascending ids."""
        self.shard, self._order = shard, order
        keys, read = order.keys(ids)
        order.looked += len(ids)
        fit = keys > 0 if len(sides) > 1 else (keys > 0) & (read == sides[0])
        self._ids, self._keys = ids[fit], keys[fit]
        self._sorted: Int64s | None = None
        self.ids, self.neg, self.done, self.short = self._ids[:0], -self._keys[:0], False, False

    def fill(self, size: int) -> None:
        """Sort the next 8 * `size` pages and leave out the held ones."""
        order = self._order
        if self._sorted is not None:
            left = ~np.isin(self._ids, self._sorted)
            self._ids, self._keys = self._ids[left], self._keys[left]
        ids, keys = first(self._ids, self._keys, 8 * size)
        self._sorted, self.done = ids, len(ids) == len(self._ids)
        hosts = order.columns.host[ids]
        free = ~is_held(order.where[ids]) & (order.host_free[hosts] <= order.now) & (order.mark[hosts] != order.tick)
        ids, keys = ids[free], keys[free]
        by_key = np.lexsort((ids, -keys))
        self.ids, self.neg = ids[by_key], -keys[by_key]

    def close(self) -> None:
        """Do nothing: this source does not change the order."""


class RankedPages:
    """Pages of a shard by other keys than their cash, most first; sorted only as far as anybody looks."""

    def __init__(self, ids: Int64s, keys: Keys, side: int | None = None, read_us: Int64s | None = None) -> None:
        """Take pages with ascending ids, and their keys.

        Args:
            ids: the pages.
            keys: their keys.
            side: 0 if these are pages never read, 1 if they are pages that were; others are left out. None for both.
            read_us: when they were last read; pages read since are left out.
        """
        self.all_ids, self.all_keys, self.side = ids, keys, side
        self._read_us = read_us
        self._ids, self._neg, self._then = ids[:0], -keys[:0], read_us
        self.looked_at = 0  # How many ranks were looked at.

    def part(self, start: int, end: int) -> tuple[Int64s, Keys]:
        """Return the pages of these ranks, and their negated keys; fewer at the end."""
        self.looked_at = max(self.looked_at, end)
        if end > len(self._ids):
            self.sort(8 * end)
        return self._ids[start:end], self._neg[start:end]

    def sort(self, count: int) -> None:
        """Sort the first `count` pages or more, unless they are."""
        if len(self._ids) >= min(count, len(self.all_ids)):
            return
        ids, keys = first(self.all_ids, self.all_keys, max(RANKED_FIRST, count))
        by_key = np.lexsort((ids, -keys))
        ids, neg = ids[by_key], -keys[by_key]
        if self._read_us is not None:
            self._then = self._read_us[np.searchsorted(self.all_ids, ids)]
        self._ids, self._neg = ids, neg

    def behind(self, count: int, hosts: Bools, order: HotOrder) -> "RankedPages":
        """Return the pages behind the first `count` ranks that are on some hosts: O(all pages)."""
        ids, neg = self.part(count - 1, count)
        keep = (self.all_keys < -neg[0]) | ((self.all_keys == -neg[0]) & (self.all_ids > ids[0]))
        keep[keep] = hosts[order.columns.host[self.all_ids[keep]]]
        return self._taken(keep)

    def only(self, ids: Int64s) -> "RankedPages":
        """Return those of some pages, with ascending ids, that are here."""
        at = np.searchsorted(self.all_ids, ids)
        at = at[at < len(self.all_ids)]
        return self._taken(at[self.all_ids[at] == ids[: len(at)]])

    def _taken(self, at: Bools | Int64s) -> "RankedPages":
        read_us = None if self._read_us is None else self._read_us[at]
        return RankedPages(self.all_ids[at], self.all_keys[at], self.side, read_us)

    def key_of(self, page: int) -> float:
        """Return the key of a page; 0 if it is not here."""
        at = int(np.searchsorted(self.all_ids, page))
        return float(self.all_keys[at]) if at < len(self.all_ids) and self.all_ids[at] == page else 0.0

    def unread_since(self, ids: Int64s, ranks: Int64s, order: HotOrder) -> Bools | None:
        """Return a mask of those pages that were not read since this order was made; None for all.

        Args:
            ids: of pages that `part` returned.
            ranks: theirs.
            order: the hot order of the shard.
        """
        if self._then is None:
            return None
        same: Bools = order.columns.last_read_us(ids) == self._then[ranks]
        return same


class RankedSource:
    """The free pages among ranked ones."""

    def __init__(  # noqa: PLR0917 - the terms of one choice
        self,
        shard: int,
        order: HotOrder,
        ranked: RankedPages,
        sides: Sequence[int],
        inside: Bools | None,
        nearness: int,
    ) -> None:
        """Start at the first rank: only pages of these sides, on hosts in `inside`, of this nearness or above."""
        self.shard, self._order, self._ranked = shard, order, ranked
        self._sides = sides if ranked.side is None else (ranked.side,)
        self._inside, self._nearness, self._at, self._narrow = inside, nearness, 0, False
        self.ids, self.neg = ranked.part(0, 0)
        self.done, self.short = False, False

    def fill(self, size: int) -> None:
        """Examine the next 8 * `size` ranks; after many of them, only those on hosts that are free."""
        order = self._order
        if self._at >= RANKED_LONG and not self._narrow and self._at < len(self._ranked.all_ids):
            self._ranked = self._ranked.behind(self._at, self._on_free_hosts(slice(None)), order)
            self._at, self._narrow = 0, True
        start, end = self._at, self._at + 8 * size
        ids, neg = self._ranked.part(start, end)
        self._at, self.done = end, len(ids) < 8 * size
        order.looked += len(ids)
        at = np.flatnonzero(~is_held(order.where[ids]))
        at = at[self._on_free_hosts(order.columns.host[ids[at]])]
        ids, neg = ids[at], neg[at]
        keys, read = order.keys(ids)
        keep = keys > 0
        if len(self._sides) == 1:
            keep &= read == self._sides[0]
        if (unread := self._ranked.unread_since(ids, start + at, order)) is not None:
            keep &= unread
        if self._nearness:
            keep &= order.columns.nearness(ids) >= self._nearness
        self.ids, self.neg = ids[keep], neg[keep]

    def _on_free_hosts(self, hosts: NDArray[np.integer] | slice) -> Bools:
        order = self._order
        free: Bools = (order.host_free[hosts] <= order.now) & (order.mark[hosts] != order.tick)
        return free if self._inside is None else free & self._inside[hosts]

    def close(self) -> None:
        """Do nothing: this source does not change the order."""


@dataclass(frozen=True, slots=True)
class Picked:
    """Chosen pages, in order. Arrays are (n,)."""

    shards: Int64s
    ids: Int64s
    hosts: Int64s  # Host numbers within the shard.
    counts: Keys  # Their keys.
    following: int | float  # Key of the next page, which was not taken; 0 if there is none.

    def __len__(self) -> int:
        """Return the number of pages."""
        return len(self.ids)

    def only(self, mask: Bools) -> "Picked":
        """Return the pages of a mask."""
        return Picked(self.shards[mask], self.ids[mask], self.hosts[mask], self.counts[mask], self.following)

    def of_hosts(self, count: int) -> "Picked":
        """Return the pages of the first `count` hosts."""
        hosts = list(zip(self.shards.tolist(), self.hosts.tolist(), strict=True))
        some = set(islice(dict.fromkeys(hosts), count))
        return self.only(np.array([host in some for host in hosts], np.bool_))

    def first(self, count: int) -> "Picked":
        """Return the first `count` pages."""
        following = self.counts[count].item() if len(self) > count else self.following
        return Picked(self.shards[:count], self.ids[:count], self.hosts[:count], self.counts[:count], following)


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
    return Picked(columns[0], columns[1], columns[2], columns[3], 0)


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
