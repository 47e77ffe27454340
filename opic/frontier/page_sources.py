"""Where a choice takes its pages from: each source yields the free pages of a shard in order, a batch at a time."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from opic.frontier.host_quota import Bools
from opic.frontier.hot_order import HotOrder, Int64s, first, is_held
from opic.frontier.hot_side import Side
from opic.frontier.page_keys import Keys

RANKED_FIRST: Final = 4_096  # Number of ranked pages to sort first; each time eight times as many as are needed.
RANKED_LONG: Final = 16_384  # From this rank on, looking at all pages of the free hosts at once is faster.


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
