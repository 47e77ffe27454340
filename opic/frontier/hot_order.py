"""The pages of a shard as a choice sees them: what holds each page and host back, until when, and their keys.

A held page is leased, in back-off, or was read a short time ago; a timer frees it. Indexes (`opic.frontier.key_blocks`)
find the free pages with the greatest keys. Changed pages are indexed at the next choice, so they cost little where no
pages are asked for. The choice is always the one that a sort of all pages would give; ties are broken by id.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Float64s, Int32s, Int64s, Uint8s
from opic.frontier import page_counts
from opic.frontier.host_pages import HostPages
from opic.frontier.key_blocks import BLOCK_BITS, KeyBlocks
from opic.frontier.page_counts import IS_OFFERED, IS_TIMED, LEASED, RETRY, PageCounts
from opic.frontier.page_keys import GREEDY, NOWHERE, STRATEGIES, Order, OrderColumns, keys_of, times_priority
from opic.frontier.timers import SparseTimes, Timers
from opic.model.cash import CLASS_BITS

PAGES_AT_ONCE: Final = 1 << 18  # When all pages are looked at.
FICKLE_MAX: Final = 1 << 16  # A list of that many pages, with repeats, may grow by as much before repeats are removed.
CHANGED_MAX: Final = 1 << 16  # Changes, with repeats, that wait for the next choice: that takes some 10 ms.
UNHELD: Final = 0  # In the column of what holds pages; the other values are kinds of `page_counts`.


class HotOrder:
    """The pages of a shard. Not thread-safe.

    The columns may change only between two calls, and `changed` must be called with new pages at once, and with other
    changed ones before the next choice. Times are seconds by any clock that never goes back.
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
        self.columns, self.known, self.now = columns, 0, -np.inf  # `known`: the number of pages.
        self.where: Uint8s = np.zeros(0, np.uint8)
        self._free = SparseTimes()  # When the lease, the back-off or the revisit wait of each held page ends.
        self._retry_seconds = retry_seconds
        self.host_free: Float64s = np.zeros(0)
        self.single: Bools = np.zeros(0, np.bool_)
        self.mark: Int32s = np.zeros(0, np.int32)  # For each host, the `tick` of the last choice to skip it.
        self.tick, self.looked = 0, 0
        self._pages = HostPages()
        self.page_timers, self.host_timers = Timers(), Timers()
        self.revisit_timers = Timers()  # For each page in revisit wait at least one entry, not later than its end.
        self.counts = PageCounts()
        self._indexes = dict[Order, KeyBlocks]()  # What is told of changes.
        self._changed: list[Int64s] = []
        self._changed_count = 0
        self._fickle: list[Int64s] = []  # Pages to which a change of credit alone may give cash.
        self._fickle_count = 0
        self._single = single
        self._credits = columns.credits().copy()  # Changed in place.
        self.strategy: Order = STRATEGIES[strategy](
            columns, self._credits, discovery
        )  # What decides where nothing else does.
        self._classes = np.zeros(8, np.bool_)
        self._grow()
        self._count_all()

    # Keys.

    def keys_when_free(self, ids: Int64s) -> tuple[Float64s, Bools]:
        """Return the keys by the strategy that pages have now, or will have once nothing holds them."""
        codes, _ = page_counts.codes_of(self.columns, self._credits, ids)
        return keys_of(self.strategy, self.columns, codes, ids)

    def index(self, order: Order) -> KeyBlocks:
        """Return the index by an order of these pages, made on first use."""
        if order not in self._indexes:
            column = order.column()
            if column is not None:
                keys = np.where(self.where[: len(column[0])] == UNHELD, column[0], NOWHERE)
                preferred = self.columns.preferred()
                preferred = preferred[preferred < len(keys)]
                if (factors := self.columns.priority(preferred)) is not None:
                    keys[preferred] = times_priority(keys[preferred], factors)
                column = keys, column[1]
            self._indexes[order] = KeyBlocks(self, order, column)
        return self._indexes[order]

    def drop(self, order: Order) -> None:
        """Forget the index by an order."""
        self._indexes.pop(order, None)

    def close(self) -> None:
        """Forget all indexes. They refer to this object, whose memory else waits for the garbage collector."""
        self._indexes.clear()

    def _grow(self) -> None:
        """Grow the arrays to the current number of pages and hosts."""
        self.known = len(self.columns)
        if self.known > len(self.where):
            more = max(self.known - len(self.where), len(self.where) // 4, 1_024)
            size = -(-(len(self.where) + more) >> BLOCK_BITS) << BLOCK_BITS  # Whole blocks.
            self.where = np.concatenate((self.where, np.zeros(size - len(self.where), np.uint8)))
            for index in self._indexes.values():
                index.grow()
        if self.columns.hosts > len(self.mark):
            more = max(self.columns.hosts - len(self.mark), len(self.mark) // 4, 1_024)
            self.mark = np.concatenate((self.mark, np.zeros(more, np.int32)))
            self.host_free = np.concatenate((self.host_free, np.zeros(more)))
            self.single = np.concatenate((self.single, np.full(more, self._single)))
        self.counts.grow(len(self.where), len(self.mark))

    # Changes.

    def changed(self, ids: Int64s) -> None:
        """Note pages that are new or whose cash or state changed."""
        if len(self.columns) > self.known:
            self._grow()
        self._changed.append(ids)
        self._changed_count += len(ids)
        if self._changed_count > CHANGED_MAX:
            self.settle()

    def settle(self) -> None:
        """Count the pages that changed anew, and tell the indexes of them: some 200 ns for each."""
        for index in self._indexes.values():
            index.lowered()
        credits = self.columns.credits()
        if (credits != self._credits).any():
            self._take_credits(credits)
        if self._changed:
            ids = np.sort(np.concatenate(self._changed))
            ids = ids[np.flatnonzero(np.diff(ids, prepend=-1))]  # np.unique takes ten times as long.
            self._changed, self._changed_count = [], 0
            self._classify(ids)
            free = ids[self.where[ids] == UNHELD]
            for index in self._indexes.values():
                index.raised(free)

    def _take_credits(self, credits: Int64s) -> None:
        """Apply changed credits. By cash, a key changes by at most as much as its credit, so all bounds rise by that.

        Keys of pages with a priority above 1 change by more, and a page without cash may have some now: these are
        looked at one by one. If a credit fell, any page may have lost its cash, and all are counted again.
        """
        change = np.abs((credits - self._credits)[self._classes]).max(initial=0)
        fell = bool((credits < self._credits)[self._classes].any())
        self._credits[:] = credits
        for index in self._indexes.values():
            index.shifted(int(change))
        self._changed += self._fickle
        self._fickle, self._fickle_count = [], 0
        if change and len(preferred := self.columns.preferred()):
            self._changed.append(preferred)
        if fell:
            self._count_all()

    def _count_all(self) -> None:
        for first in range(0, self.known, PAGES_AT_ONCE):
            self._classify(np.arange(first, min(first + PAGES_AT_ONCE, self.known)))

    def _classify(self, ids: Int64s) -> None:
        """Count distinct pages anew, by what holds them back."""
        self._classes[self.columns.state[ids] & CLASS_BITS] = True
        codes, cash = page_counts.codes_of(self.columns, self._credits, ids)
        where = self.where[ids]
        positions = np.flatnonzero(where)
        kinds = where[positions]
        # A leased page counts in any state, because its event may bring new pages.
        kept = IS_OFFERED[codes[positions] >> 1] | (kinds == LEASED)
        codes[positions[kept]] = 2 * kinds[kept] + (codes[positions[kept]] & 1)
        self.counts.put(ids, codes, self.columns.host[ids])
        fickle = ids[(cash <= 0) & IS_OFFERED[codes >> 1]]
        if len(fickle):
            self._fickle.append(fickle)
            self._fickle_count += len(fickle)
            if self._fickle_count > 2 * FICKLE_MAX:
                self._fickle = [np.unique(np.concatenate(self._fickle))]
                self._fickle_count = max(len(self._fickle[0]) - FICKLE_MAX, 0)

    # What holds pages.

    def hold(self, ids: Int64s, until: Float64s, kind: int | Uint8s = LEASED) -> None:
        """Hold distinct pages until the given times; if infinite, until they are released.

        Args:
            ids: the pages.
            until: when the lease, back-off or revisit wait ends. After a lease the back-off of `retry_seconds` follows.
            kind: LEASED, RETRY or those of times, one for all pages or (n,); see `opic.frontier.page_counts`.
        """
        if not len(ids):
            return
        timed = bool(np.all(IS_TIMED[kind]))
        # The entry of a page that waits already is moved when it is due.
        new = ~IS_TIMED[self.where[ids]] | (until < self._free.get(ids)) if timed else np.True_
        self._free.set(ids, until, self.held_pages)
        self.where[ids] = kind
        if timed:
            self.revisit_timers.add(ids[new], until[new])
        else:
            self.page_timers.add(ids, until)
        if not timed and kind == LEASED:  # Leased pages count as such, whatever else holds them back.
            self.counts.put(ids, np.uint8(2 * LEASED) | (self.counts.code[ids] & np.uint8(1)), self.columns.host[ids])
        else:
            self.changed(ids)

    def reserve(self, ids: Int64s, hosts: Int64s) -> None:
        """Keep distinct free pages, and their hosts with a delay, from other choices until the store has answered.

        A reservation has no end and is not counted.
        """
        self.where[ids] = LEASED
        hosts = hosts[self.single[hosts]]
        self.host_free[hosts] = np.inf
        self._tell_of(hosts)

    def _tell_of(self, hosts: Int64s) -> None:
        if len(hosts):
            for order in self._indexes:
                order.hosts_changed(hosts)

    def release(self, ids: Int64s) -> None:
        """End the leases and back-offs of pages; other pages are ignored."""
        if not len(ids):
            return
        where = self.where[ids]
        self._free_pages(np.unique(ids[(where == LEASED) | (where == RETRY)]))

    def note_reads(self, ids: Int64s, now: float = -np.inf) -> None:
        """Hold distinct pages until their revisit time, or free them; call it when that time may have changed."""
        now, where, due = max(now, self.now), self.where[ids], page_counts.due(self.columns, ids)
        later = np.zeros(len(ids), np.bool_)
        if due is not None:
            later = (due.until > now) & (where != LEASED) & (where != RETRY)
        over = ids[~later & IS_TIMED[where]]
        self.where[over] = UNHELD
        self.changed(over)
        if due is not None and later.any():
            self.hold(ids[later], due.until[later], due.kinds[later])

    def _free_pages(self, ids: Int64s) -> None:
        """End what holds distinct pages, except for the wait after a read, which may begin now."""
        self.where[ids] = UNHELD
        self.note_reads(ids)
        self.changed(ids)

    def held_pages(self) -> Int64s:
        """Return the held pages, ascending. Costs about 200 us for a million pages."""
        return np.flatnonzero(self.where)

    def free_at(self, ids: Int64s) -> Float64s:
        """Return the times at which pages become free, 0 for those not held. Host delays are not included."""
        where = self.where[ids]
        until = np.where(where != UNHELD, self._free.get(ids), 0.0)
        until[where == LEASED] += self._retry_seconds
        due = page_counts.due(self.columns, ids)
        return until if due is None else np.where(where != UNHELD, np.maximum(until, due.until), until)

    def clear(self) -> None:
        """Free all leased pages, those in back-off and all hosts; reset `single` of all hosts to the default."""
        self.page_timers, self.host_timers = Timers(), Timers()
        self.release(np.arange(self.known))
        self.rest(np.flatnonzero(self.host_free), np.zeros(np.count_nonzero(self.host_free)))
        self.single[:] = self._single

    # What holds hosts.

    def rest(self, hosts: Int64s, until: Float64s) -> None:
        """Block distinct hosts until the given times; if infinite, until another time is set."""
        before = self.host_free[hosts]
        self.host_free[hosts] = until
        self.host_timers.add(hosts, until)
        self._tell_of(hosts)
        sooner = hosts[(until < before) & (before > self.now) & (before < np.inf)]
        if len(sooner):  # Indexes would look at their pages again at the former time.
            self.changed(self.pages_of(sooner))

    def pages_of(self, hosts: Int64s) -> Int64s:
        """Return the pages of distinct hosts, in no particular order."""
        if not len(hosts):
            return hosts
        self._pages.extend(self.columns.host[: self.known])
        return self._pages.pages_of(hosts)

    def resting(self) -> Int64s:
        """Return the hosts that are not free, ascending. The cost follows their number."""
        hosts = np.unique(self.host_timers.numbers())
        return hosts[self.host_free[hosts] > self.now]

    def set_single(self, hosts: Int64s, *, single: bool) -> None:
        """Set whether hosts give only one page at a time, or any number."""
        self.single[hosts] = single

    # A choice.

    def advance(self, now: float) -> None:
        """Advance the clock, free the pages and hosts that are due, and take in all changes."""
        self.now = max(self.now, now)
        self._tell_of(self.host_timers.due(self.now))
        self._end_holds()
        self.settle()
        for index in self._indexes.values():
            index.advance()

    def _end_holds(self) -> None:
        """End the leases, back-offs and revisit waits that are over; the back-off begins where a lease ended."""
        ids = self.page_timers.due(self.now)
        if len(ids):
            where = self.where[ids]
            over = ((where == LEASED) | (where == RETRY)) & (self._free.get(ids) <= self.now)
            ids = np.unique(ids[over])
            ends = self._free.get(ids)
            until = ends + self._retry_seconds
            again = (self.where[ids] == LEASED) & (until > self.now)
            self.hold(ids[again], until[again], RETRY)
            self._free_pages(ids[~again])
        ids = self.revisit_timers.due(self.now)
        if len(ids):
            ids = np.unique(ids[IS_TIMED[self.where[ids]]])
            until = self._free.get(ids)
            later = until > self.now  # It was read again meanwhile.
            self.revisit_timers.add(ids[later], until[later])
            self._free_pages(ids[~later])

    def begin(self, busy: Int64s | None) -> None:
        """Begin a choice that skips the `busy` hosts."""
        self.tick += 1
        if self.tick == np.iinfo(np.int32).max:
            self.mark[:], self.tick = 0, 1
        if busy is not None:
            self.mark[busy] = self.tick

    def is_free(self, ids: Int64s, hosts: NDArray[np.integer]) -> Bools:
        """Return a mask of the pages that are not held, and whose hosts are free and not skipped."""
        free: Bools = (
            (self.where[ids] == UNHELD) & (self.host_free[hosts] <= self.now) & (self.mark[hosts] != self.tick)
        )
        return free


def first(ids: Int64s, keys: Float64s, count: int) -> tuple[Int64s, Float64s]:
    """Return the `count` pages with the largest keys, ties by id, in no particular order; `ids` must ascend."""
    if len(ids) <= count:
        return ids, keys
    edge = np.partition(keys, len(keys) - count)[len(keys) - count]
    above = np.flatnonzero(keys > edge)
    positions = np.concatenate((above, np.flatnonzero(keys == edge)[: count - len(above)]))
    return ids[positions], keys[positions]
