"""Choose the free pages with the greatest keys: a merge over all shards, a few pages of each host."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from typing import Final

import numpy as np

from opic.arrays import Bools, Float64s, Int64s
from opic.frontier import page_counts
from opic.frontier.domain_pages import Within
from opic.frontier.hot_order import HotOrder
from opic.frontier.page_keys import NOWHERE, Order
from opic.frontier.page_sources import KeySource, ListSource, PageSource

LISTED_PAGES: Final = 1 << 16  # All pages of a domain, or up to a depth, are looked at if they are no more.
MET_MAX: Final = 4  # Pages met for each wanted one, at most.
FIRST_DUE: Final = 1_024  # Number of held pages to examine first when looking for the next one to become free.
SIDES: Final[dict[str, tuple[int, ...]]] = {"any": (0, 1), "discover": (0,), "refresh": (1,), "coverage": (0,)}


@dataclass(frozen=True, slots=True)
class Picked:
    """Chosen pages, in order. Arrays are (n,)."""

    shards: Int64s
    ids: Int64s
    hosts: Int64s  # Host numbers within the shard.
    counts: Float64s  # Their keys.
    parts: Int64s  # Which order of a mix each is of.

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, some: Bools | Int64s | slice) -> "Picked":
        """Return the pages of a mask, of some positions, or of a range of them."""
        return Picked(self.shards[some], self.ids[some], self.hosts[some], self.counts[some], self.parts[some])

    def of_hosts(self, count: int) -> "Picked":
        """Return the pages of the first `count` hosts."""
        hosts = list(zip(self.shards.tolist(), self.hosts.tolist(), strict=True))
        some = set(islice(dict.fromkeys(hosts), count))
        return self.only(np.array([host in some for host in hosts], np.bool_))

    def followed_by(self, more: "Picked") -> "Picked":
        """Return these pages, then others."""
        return Picked(
            np.concatenate((self.shards, more.shards)),
            np.concatenate((self.ids, more.ids)),
            np.concatenate((self.hosts, more.hosts)),
            np.concatenate((self.counts, more.counts)),
            np.concatenate((self.parts, more.parts)),
        )


Fit = Callable[[Int64s, Int64s], Bools]


def pick(
    orders: Sequence[HotOrder],
    count: int,
    now: Sequence[float],
    *,
    mode: str = "any",
    busy: Sequence[Int64s] | None = None,
    within: Within | None = None,
    fit: Fit | None = None,
    nearness: int = 0,
    by: Sequence[Order] | None = None,
    host_pages: int | None = None,
) -> Picked:
    """Return the first free pages of all shards, ties by shard and id.

    Args:
        orders: the order of each shard.
        count: maximum number of pages.
        now: the time by the clock of each order; it never goes back.
        mode: "any", "discover" and "coverage" for pages never read, "refresh" for others.
        busy: numbers of the hosts to skip, for each shard.
        within: only pages of these hosts.
        fit: takes shards and hosts of pages, in order; returns a mask of the pages that may be taken. Calls are
            cumulative: each continues from the one before.
        nearness: only pages of at least this nearness, see `opic.model.page_notes`; 0 for all.
        by: the order of each shard that decides; the strategy if None.
        host_pages: maximum number of pages of a host; if None, one of each host with a delay.
    """
    for shard, (order, time) in enumerate(zip(orders, now, strict=True)):
        order.advance(time)
        order.begin(busy[shard] if busy is not None else None)
    sources = _sources(orders, by or [order.strategy for order in orders], SIDES[mode], within, nearness)
    return _merge(orders, sources, count, fit, HostQuota(orders, host_pages))


def mixed(  # noqa: PLR0917 - what one choice is made of
    picks: Sequence[Picked],
    shares: Sequence[float],
    count: int,
    rng: np.random.Generator,
    orders: Sequence[HotOrder],
    fit: Fit | None = None,
    host_pages: int | None = None,
) -> Picked:
    """Choose from several choices: each page is the next of one of them, drawn by their shares while it has any left.

    Args:
        picks: the choices, each of up to `count` pages.
        shares: their shares, 1 in all.
        count: maximum number of pages.
        rng: decides.
        orders: the order of each shard.
        fit: as in `pick`.
        host_pages: as in `pick`.
    """
    rows = [
        list(zip(picked.shards.tolist(), picked.ids.tolist(), picked.hosts.tolist(), strict=True)) for picked in picks
    ]
    starts = np.concatenate(([0], np.cumsum([len(picked) for picked in picks])))
    positions, rows_taken = [0] * len(picks), list[int]()
    taken, given = set[tuple[int, int]](), Counter[tuple[int, int]]()
    for turn in rng.choice(len(picks), count, p=shares).tolist():
        for part in (turn, *(other for other in range(len(picks)) if other != turn)):
            while positions[part] < len(rows[part]):
                shard, page, host = rows[part][positions[part]]
                positions[part] += 1
                most = host_pages or (1 if orders[shard].single[host] else count)
                if (shard, page) not in taken and given[shard, host] < most:
                    break
            else:
                continue
            taken.add((shard, page))
            given[shard, host] += 1
            rows_taken.append(int(starts[part]) + positions[part] - 1)
            break
    every = [replace(picked, parts=np.full(len(picked), part)) for part, picked in enumerate(picks)]
    chosen = reduce(Picked.followed_by, every).only(np.array(rows_taken, np.int64))
    chosen = replace(chosen, counts=-np.arange(len(chosen), dtype=np.float64))  # Keys of different orders say nothing.
    return chosen if fit is None else chosen.only(fit(chosen.shards, chosen.hosts))


def first_free(
    orders: Sequence[HotOrder],
    *,
    mode: str = "any",
    busy: Sequence[Int64s] | None = None,
    only: Sequence[Int64s] | None = None,
    seconds_max: float = 60.0,
) -> float | None:
    """Return the seconds until the first requested page is free, exact up to `seconds_max`; None if there is none.

    If no page is free before that, the answer is at least `seconds_max`, whether there are such pages or not.

    Call it after `pick` found no page with the same arguments. The cost grows with the pages that are due soon, or with
    `only`, not with all held pages.

    Args:
        orders: the order of each shard.
        mode: as in `pick`.
        busy: numbers of the hosts to skip, for each shard.
        only: the pages to which the request is restricted, for each shard; None for all.
        seconds_max: how far to look ahead.
    """
    waits: list[float] = []
    for shard, order in enumerate(orders):
        order.begin(busy[shard] if busy is not None else None)
        if only is not None:
            free_at = _soonest(order, only[shard], mode)
        else:
            free_at = min(_soonest_host(order, SIDES[mode]), _soonest_held(order, mode, seconds_max))
        if free_at < np.inf:
            waits.append(max(free_at - order.now, 0.0))
    return min(waits, default=None)


def _soonest_host(order: HotOrder, sides: Sequence[int]) -> float:
    """Return when the first host with a page that nothing else holds back is free; infinity if there is none."""
    waits = order.mark != order.tick
    waits &= order.counts.has_free(sides, len(order.mark))
    return float(order.host_free[waits].min(initial=np.inf))


def _soonest_held(order: HotOrder, mode: str, seconds_max: float) -> float:
    """Return when the first page that is held becomes free; if not before the limit, the time to which that is sure."""
    timers = [order.page_timers]
    if any(order.counts.totals[2 * kind + side] for kind, _ in page_counts.TIMES for side in SIDES[mode]):
        timers.append(order.revisit_timers)
    count, best, upto = FIRST_DUE, np.inf, -np.inf
    while best > upto and upto < order.now + seconds_max:
        held_ids, times = zip(*(some.first(count) for some in timers), strict=True)
        best, upto = _soonest(order, np.concatenate(held_ids), mode), min(times)
        count *= 8
    return min(best, upto)  # If nothing was found up to the limit, there may be pages beyond.


def near_of(order: HotOrder, ids: Int64s | None, nearness: int) -> Int64s:
    """Return those pages whose nearness is at least `nearness`; of all pages if `ids` is None."""
    if ids is None:
        return order.columns.within_depth(nearness)
    return ids[order.columns.nearness(ids) >= nearness]


def _soonest(order: HotOrder, ids: Int64s, mode: str) -> float:
    """Return when the first of these pages that match the mode becomes free; infinity if none matches."""
    keys, read = order.keys_when_free(ids)
    hosts = order.columns.host[ids]
    wanted = (keys > NOWHERE) & (order.mark[hosts] != order.tick)
    if mode != "any":
        wanted &= read == (mode == "refresh")
    ids, hosts = ids[wanted], hosts[wanted]
    return float(np.maximum(order.free_at(ids), order.host_free[hosts]).min(initial=np.inf))


def _sources(
    orders: Sequence[HotOrder],
    by: Sequence[Order],
    sides: tuple[int, ...],
    within: Within | None,
    nearness: int,
) -> list[PageSource]:
    sources: list[PageSource] = []
    for shard, (order, by_key) in enumerate(zip(orders, by, strict=True)):
        index, ids, inside = order.index(by_key), None, None
        if within is not None:
            if not len(within.hosts[shard]):
                continue
            ids, inside = within.pages(shard, order), within.mask(shard, order)
        if nearness:
            ids = near_of(order, ids, nearness)
        if ids is not None and len(ids) <= LISTED_PAGES:
            sources.append(ListSource(shard, order, ids, by_key, sides))
            continue
        sources.append(KeySource(shard, order, index, sides, inside=inside, nearness=nearness))
    return sources


class HostQuota:
    """The pages that hosts may still give to one choice. Hosts that have given all are marked in their orders."""

    def __init__(self, orders: Sequence[HotOrder], host_pages: int | None = None) -> None:
        """Begin a choice.

        Args:
            orders: the order of each shard, with the hosts to skip marked.
            host_pages: maximum number of pages of every host; if None, 1 of hosts with a delay, any of others.
        """
        self._orders, self._most, self._limited = orders, host_pages or 1, host_pages is not None
        self._given: list[defaultdict[int, int]] = [defaultdict(int) for _ in orders]  # By host, if more than 1.

    def keep(self, shards: Int64s, hosts: Int64s) -> Bools:
        """Return a mask of the pages to keep, given by their shards and hosts, in order; calls are cumulative."""
        keep = np.ones(len(hosts), np.bool_)
        for shard in set(shards.tolist()):
            order, positions = self._orders[shard], np.flatnonzero(shards == shard)
            late = order.mark[hosts[positions]] == order.tick  # Marked since they were examined.
            some = np.flatnonzero(~late if self._limited else order.single[hosts[positions]] & ~late)
            some_hosts = hosts[positions[some]]
            by_host = np.argsort(some_hosts, kind="stable")
            rank = np.arange(len(some_hosts)) - np.searchsorted(some_hosts[by_host], some_hosts[by_host])
            if self._most > 1:
                rank += np.array([self._given[shard][host] for host in some_hosts[by_host].tolist()], np.int64)
            late[some[by_host[rank >= self._most]]] = True
            full = some_hosts[by_host[rank >= self._most - 1]]
            order.mark[full] = order.tick
            if self._most > 1:
                for host in some_hosts[by_host[rank < self._most]].tolist():
                    self._given[shard][host] += 1
            keep[positions[late]] = False
        return keep


def _merge(
    orders: Sequence[HotOrder], sources: Sequence[PageSource], count: int, fit: Fit | None, quota: HostQuota
) -> Picked:
    """Merge the sources in order until they have given `count` pages, and it is known that no others precede these."""
    have, met, nothing = 0, 0, np.empty(0, np.int64)
    batches: list[tuple[Int64s, Int64s, Int64s, Float64s, Int64s]] = []
    while have <= count:
        wanted = count + 1 - have
        if met:  # Hosts had given enough: as large a share of the next pages is expected to be left out.
            wanted *= min(-(-met // max(have, 1)), MET_MAX)
        for source in sources:
            while not len(source.ids) and not source.done:
                source.fill(1 + 2 * wanted // len(sources))
        nonempty = [source for source in sources if len(source.ids)]
        if not nonempty:
            break
        _catch_up(nonempty, wanted)
        shards, ids, neg = _upto(nonempty)
        met += len(ids)
        hosts = np.empty(len(ids), np.int64)
        for shard in {source.shard for source in nonempty}:
            positions = np.flatnonzero(shards == shard)
            hosts[positions] = orders[shard].columns.host[ids[positions]]
        keep = quota.keep(shards, hosts)
        shards, ids, neg, hosts = shards[keep], ids[keep], neg[keep], hosts[keep]
        if fit is not None and len(ids):
            fits = fit(shards, hosts)
            for shard in set(shards[~fits].tolist()):
                refused = hosts[~fits & (shards == shard)]
                orders[shard].mark[refused] = orders[shard].tick
            shards, ids, neg, hosts = shards[fits], ids[fits], neg[fits], hosts[fits]
        batches.append((shards, ids, hosts, -neg, np.zeros(len(ids), np.int64)))
        have += len(ids)
    batches.append((nothing, nothing, nothing, np.empty(0), nothing))
    return Picked(*(np.concatenate(column)[:count] for column in zip(*batches, strict=True)))


def _catch_up(sources: Sequence[PageSource], wanted: int) -> None:
    """Let sources examine more pages until none is behind the last of the wanted pages that are found so far."""
    while len(neg := np.concatenate([source.neg for source in sources])) >= wanted:
        last = np.partition(neg, wanted - 1)[wanted - 1]
        behind = [source for source in sources if not source.done and source.neg[-1] < last]
        if not behind:
            return
        for source in behind:
            source.fill(1 + wanted // len(sources))


def _upto(sources: Sequence[PageSource]) -> tuple[Int64s, Int64s, Float64s]:
    """Merge and take the pages that precede every page not examined yet: shards, ids and negated keys."""
    ends = [(source.neg[-1], source.shard, int(source.ids[-1])) for source in sources if not source.done]
    parts: list[tuple[Int64s, Int64s, Float64s]] = []
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
