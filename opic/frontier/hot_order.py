"""Incremental priority order of a shard's pages: keeps the pages with the largest keys sorted as pages change.

Only the pages at or above a threshold are kept sorted; this sorted list, of some 4,000 to 16,000 pages, is the run.
Pages at or above the threshold are hot; a change of any other page costs one comparison with the threshold. When the
run is used up, one scan of the columns finds a lower threshold. A held page (leased, in back-off, or read a short time
ago) leaves the run until a timer brings it back; so do the pages of a host during its delay. A host with very many hot
pages has its own threshold, which keeps only a few of them in the run. The choice is always the one that a sort of all
pages would give; ties are broken by id.
"""

import heapq
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.frontier import page_counts
from opic.frontier.host_pages import HostPages
from opic.frontier.hot_side import Side
from opic.frontier.page_counts import PageCounts
from opic.frontier.page_keys import GREEDY, Keys, OrderColumns, keys_of
from opic.frontier.timers import SparseTimes, Timers
from opic.model.cash import CLASS_BITS

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

RUN_PAGES: Final = 1 << 12  # Minimum number of pages that a scan of the columns brings into the run.
RUN_PAGES_MAX: Final = 1 << 14  # Above this size of the run the threshold is raised.
RUN_SHARE: Final = 1_024  # A scan brings in at least 1/RUN_SHARE of a large shard's pages, so that scans are rare.
FRESH_PAGES_MAX: Final = 1 << 16  # Maximum number of hot pages waiting to be sorted into the run.
SAMPLE_PAGES: Final = 1 << 16  # Sample size for estimating the threshold.
HOST_PAGES: Final = 16  # Pages a host keeps in the run once more than twice as many of its pages were passed over.
HOST_SHARE: Final = 64  # Such a host without a delay is refilled with 1/HOST_SHARE of its pages at a time.
ID_MAX: Final = np.iinfo(np.int64).max
MARGIN: Final = 1 + 2.0**-50  # For the rounding of keys that are not integers.
CLASSIFIED_PAGES: Final = 1 << 20  # Pages counted at once when all are counted.
FICKLE_MAX: Final = 1 << 16  # A list of that many pages, with repeats, may grow by as much before repeats are removed.
# Where a page is, beside IN_RUN and IN_FRESH of `opic.frontier.hot_side`. From LEASED to REVISIT it is held.
COLD, LEASED, RETRY, REVISIT, WITH_HOST = 0, 5, 6, 7, 8
_KIND_OF_HELD: Final = np.zeros(WITH_HOST + 1, np.uint8)
_KIND_OF_HELD[[LEASED, RETRY, REVISIT]] = page_counts.LEASED, page_counts.RETRY, page_counts.REVISIT


def is_held(where: NDArray[np.uint8]) -> Bools:
    """Return a mask of the held pages, given where they are."""
    held: Bools = (where >= LEASED) & (where <= REVISIT)
    return held


class HotOrder:
    """The pages of a shard, ordered by key. Not thread-safe.

    The columns may change only between two calls, and `changed` must be called with the changed pages before the next
    choice. Times are seconds by any clock that never goes back.
    """

    def __init__(
        self,
        columns: OrderColumns,
        discovery: float = 1.0,
        strategy: str = GREEDY,
        *,
        single: bool = False,
        retry_seconds: float = 0.0,
    ) -> None:
        """Create the order. It holds no page; call `note_reads` for pages that were read.

        Args:
            columns: the columns of the shard.
            discovery: factor on the cash of pages never read.
            strategy: what the keys are; see `opic.frontier.page_keys`.
            single: default for hosts: whether a host gives only one page at a time; `set_single` changes it.
            retry_seconds: back-off of a page whose lease ends without an event.
        """
        self.columns, self.discovery, self.strategy, self.now = columns, discovery, strategy, -np.inf
        self.prioritised = columns.priority(np.empty(0, np.int64)) is not None
        # Products are fractional. They are rounded, so thresholds have a margin.
        self._exact = discovery == 1 and not self.prioritised
        dtype: type = np.int64 if self._exact else np.float64
        self.sides = Side(0, dtype), Side(1, dtype)
        self.where: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._free = SparseTimes()  # When the lease, the back-off or the revisit wait of each held page ends.
        self._retry_seconds = retry_seconds
        self.host_free: Floats = np.zeros(0)
        self.single: Bools = np.zeros(0, np.bool_)
        self.mark: NDArray[np.int32] = np.zeros(0, np.int32)  # For each host, the `tick` of the last choice to skip it.
        self.tick, self.looked, self.scans = 0, 0, 0
        self.pages = HostPages()
        self.page_timers, self.host_timers = Timers(), Timers()
        self.revisit_timers = Timers()  # For each page in revisit wait at least one entry, not later than its end.
        self.counts = PageCounts()
        self._fickle: list[Int64s] = []  # Pages that a change of credit alone may give another count.
        self._fickle_count = 0
        self._single, self._with_host = single, dict[int, list[Int64s]]()
        self._passed: list[NDArray[np.integer]] = []
        self._credits = columns.credits().copy()
        self._counted_credits = self._credits
        self.grow()
        self._classify_all()
        self._classes = np.zeros(8, np.bool_)
        self._classes[np.unique(columns.state[: len(columns)] & CLASS_BITS)] = True

    # Keys.

    def keys(self, ids: Int64s) -> tuple[Keys, Bools]:
        """Return the keys of pages, 0 for pages that may not be offered, and a mask of the read ones."""
        return keys_of(self.columns, self._credits, self.discovery, ids, self.strategy)

    def grow(self) -> None:
        """Grow the arrays to the current number of pages and hosts."""
        if len(self.columns) > len(self.where):
            more = max(len(self.columns) - len(self.where), len(self.where) // 4, 1_024)
            self.where = np.concatenate((self.where, np.zeros(more, np.uint8)))
        if self.columns.hosts > len(self.mark):
            more = max(self.columns.hosts - len(self.mark), len(self.mark) // 4, 1_024)
            self.mark = np.concatenate((self.mark, np.zeros(more, np.int32)))
            self.host_free = np.concatenate((self.host_free, np.zeros(more)))
            self.single = np.concatenate((self.single, np.full(more, self._single)))
        self.counts.grow(len(self.where), len(self.mark))
        for side in self.sides:
            if side.slot is not None and len(side.slot) < len(self.mark):
                side.slot = np.concatenate((side.slot, np.zeros(len(self.mark) - len(side.slot), np.int32)))

    # Updates.

    def changed(self, ids: Int64s) -> None:
        """Update the order for distinct pages that are new or whose cash or state changed, about 100 ns per page."""
        self.grow()
        self._classes[self.columns.state[ids] & CLASS_BITS] = True
        parked = self.where[ids] >= LEASED
        if parked.any():
            self._classify(ids[parked])
            ids = ids[~parked]
        self._enter(ids)
        for side in self.sides:
            if sum(map(len, side.fresh)) > FRESH_PAGES_MAX:  # The last choice was a while ago.
                self.settle(side)

    def _enter(self, ids: Int64s) -> None:
        """Add the hot pages to the fresh ones and mark the other pages cold."""
        if not len(ids):
            return
        (keys, read), before, hosts = self.keys(ids), self.where[ids], self.columns.host[ids]
        after = np.zeros(len(ids), np.uint8)
        for side in self.sides:
            side.dirty |= bool((before == side.in_run).any())
            hot = np.flatnonzero(side.passes(keys, ids, hosts) & (read == side.number))
            if len(hot):
                after[hot] = side.in_fresh
                side.fresh.append(ids[hot[before[hot] != side.in_fresh]])
        self.where[ids] = after
        self._classify(ids)

    # Counts.

    def _classify(self, ids: Int64s) -> None:
        """Count distinct pages anew, by what holds them back."""
        state, where = self.columns.state[ids], self.where[ids]
        codes = page_counts.CODE_OF_STATE[state]
        if (shut := self.columns.shut(ids)) is not None:
            shut = shut & (codes >> 1 == page_counts.FREE)
            codes[shut] = 2 * page_counts.DENIED + (codes[shut] & 1)
            if (given_up := self.columns.given_up(ids)) is not None:
                given_up = given_up & shut
                codes[given_up] = 2 * page_counts.GIVEN_UP + (codes[given_up] & 1)
        held = np.flatnonzero(is_held(where))
        kinds = _KIND_OF_HELD[where[held]]
        if (postponed := self.columns.postponed(ids[held])) is not None:
            kinds[(kinds == page_counts.REVISIT) & postponed] = page_counts.NOT_BEFORE
        # A leased page counts in any state, because its event may bring new pages.
        kept = (codes[held] >> 1 == page_counts.FREE) | (kinds == page_counts.LEASED)
        codes[held[kept]] = 2 * kinds[kept] + (codes[held[kept]] & 1)
        cash = self.columns.v[ids] + self._counted_credits[state & CLASS_BITS]
        poor = np.flatnonzero(cash <= 0)
        free = codes[poor] >> 1 == page_counts.FREE
        codes[poor[free & ((cash[poor] == 0) | (codes[poor] & 1 == 0))]] &= 1  # Offered only with cash, or if it owes.
        self.counts.put(ids, codes, self.columns.host[ids])
        fickle = ids[poor[free]]
        if len(fickle):
            self._fickle.append(fickle)
            self._fickle_count += len(fickle)
            if self._fickle_count > 2 * FICKLE_MAX:
                self._fickle = [np.unique(np.concatenate(self._fickle))]
                self._fickle_count = max(len(self._fickle[0]) - FICKLE_MAX, 0)

    def _classify_all(self) -> None:
        for first in range(0, len(self.columns), CLASSIFIED_PAGES):
            self._classify(np.arange(first, min(first + CLASSIFIED_PAGES, len(self.columns))))

    def _count_credits(self) -> None:
        """Apply changed credits to the counts: a rise may give cash to pages without any, a fall concerns all.

        By cash, such a page has a small key and stays below the threshold. By another strategy it may be hot.
        """
        credits = self.columns.credits()
        if (credits == self._counted_credits).all():
            return
        fell = bool((credits < self._counted_credits)[self._classes].any())
        self._counted_credits = credits.copy()
        fickle, self._fickle, self._fickle_count = self._fickle, [], 0
        if fell:
            self._classify_all()
        if fickle and self.strategy != GREEDY:
            ids = np.unique(np.concatenate(fickle))
            self._enter(ids[self.where[ids] < LEASED])
            self._classify(ids)
        elif fickle and not fell:
            self._classify(np.unique(np.concatenate(fickle)))

    # Credits.

    def _take_credits(self) -> None:
        """Apply changed credits. By cash, a key changes by at most as much as its credit; the thresholds rise by that.

        Keys of pages with a priority above 1 change by more, so these pages are compared with the thresholds again. By
        another strategy a key stays, or the page loses or gains cash, hence its place; see `_count_credits`.
        """
        credits = self.columns.credits()
        if (credits == self._credits).all():
            return
        change = np.abs((credits - self._credits)[self._classes]).max(initial=0) if self.strategy == GREEDY else 0
        self._credits = credits.copy()
        for side in self.sides:
            cut = side.cut_key + change
            if not self._exact:
                cut = (side.cut_key + change * max(self.discovery, 1.0)) * MARGIN
            side.cut_key = np.where((side.cut_key == side.nothing) | (change == 0), side.cut_key, cut)
            self._compact(side)
            keys, ids = self.keys(side.ids)[0], side.ids
            order = np.lexsort((ids, -keys))
            order = order[keys[order] > 0]
            self.where[ids] = COLD
            side.ids, side.neg = ids[order], -keys[order]
            self.where[side.ids] = side.in_run
            side.open = [
                (*side.cut_of(host), host) for host in side.slot_of if self.host_free[host] <= max(self.now, 0.0)
            ]
            heapq.heapify(side.open)
        preferred = self.columns.preferred() if change else side.ids[:0]
        self._enter(preferred[self.where[preferred] == COLD])

    def hold(self, ids: Int64s, until: Floats, kind: int = LEASED) -> None:
        """Hold distinct pages until the given times; if infinite, until they are released.

        Args:
            ids: the pages.
            until: when the lease, back-off or revisit wait ends. After a lease the back-off of `retry_seconds` follows.
            kind: LEASED, RETRY or REVISIT.
        """
        if not len(ids):
            return
        self.grow()
        before = self.where[ids]
        # The entry of a page that waits already is moved when it is due.
        new = (before != REVISIT) | (until < self._free.get(ids)) if kind == REVISIT else np.True_
        self._free.set(ids, until, self.held)
        for side in self.sides:
            side.dirty |= bool((before == side.in_run).any())
        self.where[ids] = kind
        if kind == REVISIT:
            self.revisit_timers.add(ids[new], until[new])
        else:
            self.page_timers.add(ids, until)
        self._classify(ids)

    def reserve(self, ids: Int64s, hosts: Int64s) -> None:
        """Keep distinct free pages, and their hosts with a delay, from other choices until the store has answered.

        A reservation has no end and is not counted.
        """
        before = self.where[ids]
        for side in self.sides:
            side.dirty |= bool((before == side.in_run).any())
        self.where[ids] = LEASED
        self.host_free[hosts[self.single[hosts]]] = np.inf

    def release(self, ids: Int64s) -> None:
        """End the leases and back-offs of pages; other pages are ignored."""
        if not len(ids):
            return
        self.grow()
        where = self.where[ids]
        self._free_pages(np.unique(ids[(where == LEASED) | (where == RETRY)]))

    def note_reads(self, ids: Int64s, now: float = -np.inf) -> None:
        """Hold distinct pages until their revisit time, or free them; call it when that time may have changed."""
        self.grow()
        now, where, due = max(now, self.now), self.where[ids], self.columns.due(ids)
        later = np.zeros(len(ids), np.bool_) if due is None else (due > now) & (where != LEASED) & (where != RETRY)
        self._free_pages(ids[~later & (where == REVISIT)], now)
        if due is not None and later.any():
            self.hold(ids[later], due[later], REVISIT)

    def _free_pages(self, ids: Int64s, now: float = -np.inf) -> None:
        """End what holds distinct pages, except for the wait after a read, which may begin now."""
        self.where[ids] = COLD
        due = self.columns.due(ids) if len(ids) else None
        if due is not None and (later := due > max(now, self.now)).any():
            self.hold(ids[later], due[later], REVISIT)
            ids = ids[~later]
        self._enter(ids)

    def held(self) -> Int64s:
        """Return the held pages, ascending. Costs about 200 us for a million pages."""
        return np.flatnonzero(is_held(self.where))

    def free_at(self, ids: Int64s) -> Floats:
        """Return the times at which pages become free, 0 for those not held. Host delays are not included."""
        where = self.where[ids]
        until = np.where(is_held(where), self._free.get(ids), 0.0)
        until[where == LEASED] += self._retry_seconds
        due = self.columns.due(ids)
        return until if due is None else np.where(is_held(where), np.maximum(until, due), until)

    def clear(self) -> None:
        """Free all leased pages, those in back-off and all hosts; reset `single` of all hosts to the default."""
        self.page_timers, self.host_timers = Timers(), Timers()
        self.release(np.arange(len(self.columns)))
        hosts = np.flatnonzero(self.host_free)
        self.host_free[:], self.single[:] = 0.0, self._single
        self._rested(hosts)

    def rest(self, hosts: Int64s, until: Floats) -> None:
        """Block hosts until the given times; if infinite, until another time is set."""
        self.grow()
        self.host_free[hosts] = until
        self.host_timers.add(hosts, until)
        self._rested(hosts[until <= self.now])

    def resting(self) -> Int64s:
        """Return the hosts that are not free, ascending. The cost follows their number."""
        hosts = np.unique(self.host_timers.numbers())
        return hosts[self.host_free[hosts] > self.now]

    def set_single(self, hosts: Int64s, *, single: bool) -> None:
        """Set whether hosts give only one page at a time, or any number."""
        self.grow()
        self.single[hosts] = single

    def advance(self, now: float) -> None:
        """Advance the clock, and free the pages and hosts that are due."""
        self.grow()
        self._take_credits()
        self._count_credits()
        self.now = max(self.now, now)
        hosts = self.host_timers.due(self.now)
        if len(hosts):
            self._rested(np.unique(hosts[self.host_free[hosts] <= self.now]))
        self._end_holds()

    def _end_holds(self) -> None:
        """End the leases, back-offs and revisit waits that are over; the back-off begins where a lease ended."""
        ids = self.page_timers.due(self.now)
        if len(ids):
            where = self.where[ids]
            over = ((where == LEASED) | (where == RETRY)) & (self._free.get(ids) <= self.now)
            ids = np.unique(ids[over])
            until = self._free.get(ids) + self._retry_seconds
            again = (self.where[ids] == LEASED) & (until > self.now)
            self.hold(ids[again], until[again], RETRY)
            self._free_pages(ids[~again])
        ids = self.revisit_timers.due(self.now)
        if len(ids):
            ids = np.unique(ids[self.where[ids] == REVISIT])
            until = self._free.get(ids)
            later = until > self.now  # It was read again meanwhile.
            self.revisit_timers.add(ids[later], until[later])
            self._free_pages(ids[~later])

    def _rested(self, hosts: Int64s) -> None:
        back: list[Int64s] = []
        for host in hosts.tolist():
            back += self._with_host.pop(host, ())
            for side in self.sides:
                if host in side.slot_of:
                    heapq.heappush(side.open, (*side.cut_of(host), host))
        if back:
            ids = np.unique(np.concatenate(back))
            ids = ids[self.where[ids] == WITH_HOST]
            self.where[ids] = COLD
            self._enter(ids)

    def begin(self, busy: Int64s | None) -> None:
        """Begin a choice that skips the `busy` hosts."""
        self.tick += 1
        if self.tick == np.iinfo(np.int32).max:
            self.mark[:], self.tick = 0, 1
        if busy is not None:
            self.mark[busy] = self.tick

    # The run.

    def _compact(self, side: Side, at: int = 0) -> int:
        """Remove the entries of pages that left the run; return the new index of entry `at`."""
        if side.dirty:
            keep = self.where[side.ids] == side.in_run
            at = int(np.count_nonzero(keep[:at]))
            side.ids, side.neg, side.dirty = side.ids[keep], side.neg[keep], False
        return at

    def settle(self, side: Side) -> None:
        """Sort the fresh pages into the run, for whoever reads it, and raise the threshold if the run is too long."""
        self._compact(side)
        if side.fresh:
            ids = np.unique(np.concatenate(side.fresh))
            side.fresh = []
            ids = ids[self.where[ids] == side.in_fresh]
            keys = self.keys(ids)[0]
            hot = side.passes(keys, ids, self.columns.host[ids])
            self.where[ids] = np.where(hot, side.in_run, COLD)
            side.insert(ids[hot], keys[hot])
        keep = self._scan_pages()
        if len(side.ids) > max(RUN_PAGES_MAX, 4 * keep):
            self.where[side.ids[keep:]] = COLD
            side.ids, side.neg = side.ids[:keep], side.neg[:keep]
            side.cut_key[0], side.cut_id[0] = -side.neg[-1], side.ids[-1]
            side.forget_low_cuts()

    def _scan_pages(self) -> int:
        return max(RUN_PAGES, len(self.columns) // RUN_SHARE)

    def deepen(self, side: Side, at: int) -> int:
        """Scan the columns to lower the default threshold; return the new index of entry `at` of the run."""
        at = self._compact(side, at)
        self.scans += 1
        wanted, count = self._scan_pages(), len(self.columns)
        step = max(count // SAMPLE_PAGES, 1)
        sample = self._cold(side, np.arange(self.scans % step, count, step))[1]
        rank = max(2 * wanted // step, 1)
        while True:
            least = np.partition(sample, len(sample) - rank)[len(sample) - rank] if rank < len(sample) else 0
            ids, keys = self._cold(side, self._above(least))
            ids, keys = (ids[keys >= least], keys[keys >= least]) if least else (ids, keys)
            if not least or len(ids) >= wanted // 4:
                break
            rank = max(4 * rank, 4)
        side.cut_key[0], side.cut_id[0] = (least, ID_MAX) if least else (0, -1)
        if len(ids) > 4 * wanted:  # Very many pages have the same key.
            ids, keys = first(ids, keys, wanted)
            worst = np.lexsort((ids, -keys))[-1]
            side.cut_key[0], side.cut_id[0] = keys[worst], ids[worst]
        self.where[ids] = side.in_run
        side.insert(ids, keys)
        return at

    def _above(self, least: Any) -> Int64s:
        """Return all pages whose key may be at least `least`, and possibly some others."""
        count, credits = len(self.columns), self._credits[self._classes]
        if not least or self.strategy != GREEDY:
            return np.arange(count)
        cash = int(least if self._exact else least / max(self.discovery, 1.0) / MARGIN)
        v = self.columns.v[:count]
        above: Bools = v >= cash - int(credits.max(initial=0))
        above |= v <= -cash - int(credits.min(initial=0))
        above[self.columns.preferred()] = True
        return np.flatnonzero(above)

    def _cold(self, side: Side, ids: Int64s) -> tuple[Int64s, Keys]:
        """Return those pages that are cold, may be offered, and belong to hosts with the default threshold."""
        ids = ids[self.where[ids] == COLD]
        if side.slot is not None:
            ids = ids[side.slot[self.columns.host[ids]] == 0]
        keys, read = self.keys(ids)
        fit = (keys > 0) & (read == side.number)
        return ids[fit], keys[fit]

    # Hosts with very many hot pages.

    def park(self, ids: Int64s, hosts: NDArray[np.integer]) -> None:
        """Move pages out of the run until the delays of their hosts are over."""
        before = self.where[ids]
        for side in self.sides:
            side.dirty |= bool((before == side.in_run).any())
        self.where[ids] = WITH_HOST
        order = np.argsort(hosts, kind="stable")
        ids, hosts, crowded = ids[order], hosts[order], list[int]()
        starts = np.flatnonzero(hosts[1:] != hosts[:-1]) + 1
        ends = [*starts.tolist(), len(ids)]
        for host, start, end in zip(hosts[[0, *starts]].tolist(), [0, *ends], ends, strict=False):
            parked = self._with_host.setdefault(host, [])
            parked.append(ids[start:end])
            if len(parked) > HOST_PAGES or sum(map(len, parked)) > 2 * HOST_PAGES:
                crowded.append(host)
        if crowded:
            self._thin(crowded)

    def _thin(self, crowded: Sequence[int]) -> None:
        """Keep only the first HOST_PAGES parked pages of each side of each crowded host."""
        ids = np.unique(np.concatenate([part for host in crowded for part in self._with_host.pop(host)]))
        ids = ids[self.where[ids] == WITH_HOST]
        keys, read = self.keys(ids)
        self.where[ids] = COLD
        ids, keys, read = ids[keys > 0], keys[keys > 0], read[keys > 0]
        group = 2 * self.columns.host[ids].astype(np.int64) + read
        order = np.lexsort((ids, -keys, group))
        ids, keys, group = ids[order], keys[order], group[order]
        nth = np.arange(len(ids)) - np.searchsorted(group, group)
        for at in np.flatnonzero(nth == HOST_PAGES).tolist():  # The first page dropped; the one before it is kept.
            host, side = divmod(int(group[at]), 2)
            self._raise_cut(self.sides[side], host, keys[at - 1], int(ids[at - 1]))
        ids, group = ids[nth < HOST_PAGES], group[nth < HOST_PAGES]
        self.where[ids] = WITH_HOST
        starts = np.flatnonzero(group[1:] >> 1 != group[:-1] >> 1) + 1
        bounds = [0, *starts.tolist(), len(ids)] if len(ids) else [0]
        for start, end in pairwise(bounds):
            self._with_host[int(group[start]) >> 1] = [ids[start:end]]

    def _raise_cut(self, side: Side, host: int, key: Any, page: int) -> None:
        """Raise the threshold of a host to the place of a page, unless it is already higher."""
        place = min((-key, page), side.cut_of(host))
        side.set_cut(host, -place[0], place[1], len(self.mark))
        if self.host_free[host] <= self.now:
            heapq.heappush(side.open, (*place, host))

    def parked(self, hosts: Int64s) -> Int64s:
        """Return parked pages that wait for the delays of their hosts: at least the first pages of each host."""
        parts = [ids for host in hosts.tolist() for ids in self._with_host.get(host, ())]
        ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
        waiting: Int64s = ids[self.where[ids] == WITH_HOST]
        return waiting

    def passed_over(self, hosts: NDArray[np.integer]) -> None:
        """Record that pages of these hosts were examined and skipped."""
        self._passed.append(hosts)

    def crowd(self) -> None:
        """Remove pages from the run of those hosts that had very many pages skipped."""
        if sum(map(len, self._passed)) <= 2 * HOST_PAGES:
            self._passed.clear()
            return
        hosts, counts = np.unique(np.concatenate(self._passed), return_counts=True)
        self._passed.clear()
        for host in hosts[counts > 2 * HOST_PAGES].tolist():
            for side in self.sides:
                at = np.flatnonzero(self.columns.host[side.ids] == host)
                at = at[self.where[side.ids[at]] == side.in_run]
                if len(at) > HOST_PAGES:
                    lowest = at[HOST_PAGES - 1]
                    self._raise_cut(side, host, -side.neg[lowest], int(side.ids[lowest]))
                    self.where[side.ids[at[HOST_PAGES:]]] = COLD
                    side.dirty = True

    def refill(self, side: Side, host: int, at: int) -> int:
        """Bring more pages of a host with its own threshold into the run; return the new index of entry `at`."""
        at = self._compact(side, at)
        self.pages.extend(self.columns.host[: len(self.columns)])
        ids = self.pages.of(np.array([host]))
        wanted = HOST_PAGES if self.single[host] else max(HOST_PAGES, len(ids) // HOST_SHARE)
        ids = ids[self.where[ids] == COLD]
        keys, read = self.keys(ids)
        mine = (keys > 0) & (read == side.number)
        count, (ids, keys) = int(np.count_nonzero(mine)), first(ids[mine], keys[mine], wanted)
        if count > len(ids):
            worst = np.lexsort((ids, -keys))[-1]
            side.set_cut(host, keys[worst], int(ids[worst]), len(self.mark))
            heapq.heappush(side.open, (*side.cut_of(host), host))
        else:
            side.set_cut(host, 0, -1, len(self.mark))
        self.where[ids] = side.in_run
        side.insert(ids, keys)
        return at


def first(ids: Int64s, keys: Keys, count: int) -> tuple[Int64s, Keys]:
    """Return the `count` pages with the largest keys, ties by id, in no particular order; `ids` must ascend."""
    if len(ids) <= count:
        return ids, keys
    edge = np.partition(keys, len(keys) - count)[len(keys) - count]
    above = np.flatnonzero(keys > edge)
    at = np.concatenate((above, np.flatnonzero(keys == edge)[: count - len(above)]))
    return ids[at], keys[at]
