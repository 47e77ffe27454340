"""The hot index: all pages in the order of their cash, with what is held. A cache: the store decides on each lease.

It is made of a snapshot of the columns and of what was held at about that time, and kept until either moves, on a large
busy store for up to a second. What we lease ourselves is noted in it at once.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from opic.cash import MILLION, Flag
from opic.frontier.held import Held, Stamp
from opic.frontier.wish import Terms
from opic.mirror import Bools, Floats, Int32s, Snapshot, largest
from opic.store.columns import Int64s
from opic.store.crawl import Place

STRETCH_PAGES: Final = 4_096  # The first stretch of an order that is looked at; it doubles.
HEAD_PAGES: Final = 4_096  # The least that is sorted at once.
ORDERS_KEPT_MAX: Final = 64  # Domains and modes whose order is kept.
VIEW_SECONDS_MAX: Final = 0.9  # A view of a large store is never older than this, but for the time to answer.
THIN_SECONDS: Final = 0.5  # For so long an order leaves out what can't be handed out meanwhile.
HOST_PAGES: Final = 8  # Of a host that rests for as long one can go out; some may be refused.
NEVER: Final = float("inf")


class Noted(Protocol):
    """A page that was leased."""

    @property
    def place(self) -> Place:
        """Its shard, and its id there."""

    @property
    def host(self) -> int:
        """Its number."""

    @property
    def until_us(self) -> int:
        """The end of its lease, by its server's clock."""

    @property
    def host_free(self) -> float:
        """When its host has rested, by ours; 0 if it does not rest."""


class Order:
    """Some of the pages that may be offered, the most cash first; sorted as far as somebody looked."""

    def __init__(
        self, positions: Int64s | None, values: Int64s | Floats, thin: Callable[[Int64s], Bools] | None
    ) -> None:
        """Order pages.

        Args:
            positions: which; all if None.
            values: what each counts, -1 for one that may not be offered.
            thin: tells which of some pages, in their order, to keep; all if None.
        """
        self._positions, self._values, self._thin = positions, values, thin
        self._sorted: tuple[Int64s, Int64s | Floats] = (np.empty(0, np.int64), values[:0])
        self._kept: tuple[Int64s, Int64s | Floats] = self._sorted
        self._kept_until = 0.0
        self.depth = 0  # How far it is sorted.

    def upto(self, count: int) -> tuple[Int64s, Int64s | Floats]:
        """Return the first `count` pages or some more, and what they count; fewer if there are no more.

        Lengths grow by 4 so that a rare look far down costs little more than one sort of that length.
        """
        while len(self._kept[0]) < count and self.depth < len(self._values):
            self.sort(max(HEAD_PAGES, 4 * self.depth))
        return self._kept

    def sort(self, depth: int) -> None:
        """Sort the first so many pages, unless they are; places of those that were sorted before don't change."""
        if depth <= self.depth:
            return
        at, before = largest(self._values, depth), len(self._sorted[0])
        self.depth = depth if len(at) == depth else len(self._values)
        self._sorted = (at if self._positions is None else self._positions[at]), self._values[at]
        ids, counts = self._thinned(self._sorted[0][before:], self._sorted[1][before:])
        both: Any = np.concatenate((self._kept[1], counts))
        self._kept = np.concatenate((self._kept[0], ids)), both

    def look(self) -> None:
        """Begin a look: leave out what can't be handed out for a moment, if that was last done too long ago."""
        if self._thin is not None and time.monotonic() > self._kept_until:
            self._kept = self._thinned(*self._sorted)
            self._kept_until = time.monotonic() + THIN_SECONDS / 2

    def _thinned(self, ids: Int64s, counts: Int64s | Floats) -> tuple[Int64s, Int64s | Floats]:
        if self._thin is None:
            return ids, counts
        keep = self._thin(ids)
        return ids[keep], counts[keep]

    def freed(self) -> None:
        """Look again at what was left out."""
        self._kept_until = 0.0

    def wanted(self) -> Int64s:
        """Return all pages in it, in no order."""
        at = np.flatnonzero(self._values > 0)
        return at if self._positions is None else self._positions[at]


class View:
    """A snapshot and what is held in it. One thread at a time may use it."""

    def __init__(self, snapshot: Snapshot, held: Held, shut: Bools | None, terms: Terms, *, exact: bool = True) -> None:
        """Put what is held onto the positions of a snapshot.

        Args:
            snapshot: of the columns.
            held: read before or after it.
            shut: pages never to be offered, by position; may be shorter.
            terms: by what pages are handed out.
            exact: each lease is to be of this very state.
        """
        self.snapshot, self.held, self.shut, self.exact = snapshot, held, shut, exact
        self.stamps = [
            Stamp(stamp.era, b"%d" % part.books.version, stamp.freed, stamp.leases)
            for stamp, part in zip(held.stamps, snapshot.parts, strict=True)
        ]
        self.running = list(held.running)
        self.as_of = time.monotonic()  # This is the state of then, or of later.
        self.host = snapshot.host  # Before the names, which are then as many as these need, or more.
        self.hosts = len(snapshot.hosts)
        self.looked = 0  # Places in orders that were looked at, ever: the work that a choice is.
        # A server's time, as seen here: what it said last, less our own time then. It never runs ahead.
        self.clocks = list(held.clocks)
        self.moved = False  # Since it was made.
        self.page_shard = np.repeat(np.arange(len(snapshot.parts), dtype=np.int16), np.diff(snapshot.starts))
        self.free, self.host_free = np.zeros(len(snapshot)), np.zeros(self.hosts)
        for shard, (ids, until) in enumerate(held.pages):
            positions = snapshot.positions(np.full(len(ids), shard), ids)
            seen = positions < len(snapshot)
            np.maximum.at(self.free, positions[seen], until[seen] - self.clocks[shard])  # A page may wait twice.
        for shard, (names, until) in enumerate(held.hosts):
            for name, end in zip(names, until.tolist(), strict=True):
                if (number := self.number(name)) is not None:
                    self.host_free[number] = end - self.clocks[shard]
        usual = terms.politeness.host_delay_seconds
        self.single = np.full(self.hosts, usual > 0)  # Hosts that give one page at a time,
        self.rests = np.full(self.hosts, usual >= THIN_SECONDS)  # and those that give one in that time.
        for name, (delay, _) in held.manners.items():
            if delay is not None and (number := self.number(name)) is not None:
                self.single[number], self.rests[number] = delay > 0, delay >= THIN_SECONDS
                if not delay:
                    self.host_free[number] = 0.0  # It rests no more.
        self._discovery = terms.discovery
        self._orders: dict[tuple[str, str | None], Order] = {}

    def number(self, host: str) -> int | None:
        """Return a host's number, if it has pages here."""
        number = self.snapshot.table.number(host)
        return None if number is None or number >= self.hosts else number

    def order(self, mode: str, domain: str | None) -> Order:
        """Return the order of the pages that somebody asks for."""
        key = mode, domain
        found = self._orders.pop(key, None)
        if found is None:
            found = self._order(mode, domain)
            if len(self._orders) >= ORDERS_KEPT_MAX:
                del self._orders[next(iter(self._orders))]
        self._orders[key] = found  # Last in, so that the first one is the longest unused.
        return found

    def _order(self, mode: str, domain: str | None) -> Order:
        values, positions = self.snapshot.offers(self._discovery), None
        fit: Bools | None = None
        if domain is not None:
            inside = np.zeros(self.hosts, np.bool_)
            numbers = np.array(self.snapshot.table.below(domain), np.int64)
            inside[numbers[numbers < self.hosts]] = True
            positions = np.flatnonzero(inside[self.host])
            values = values[positions]
        if mode != "any":
            state = self.snapshot.state if positions is None else self.snapshot.state[positions]
            fit = ((state & Flag.OPEN) != 0) == (mode == "refresh")
        if self.shut is not None:
            shut = np.zeros(len(self.snapshot), np.bool_)
            shut[: len(self.shut)] = self.shut[: len(shut)]
            open_ = ~(shut if positions is None else shut[positions])
            fit = open_ if fit is None else fit & open_
        return Order(
            positions, values if fit is None else np.where(fit, values, -1), None if self.exact else self._thin
        )

    def _thin(self, ids: Int64s) -> Bools:
        """Leave out what can't be handed out for a moment: pages that are held for longer, and of hosts that rest as
        long all but the first few, which may be refused. So what is out, or a host with all of the hottest pages, is
        not looked at by each call.
        """
        keep: Bools = self.free[ids] <= time.monotonic() + THIN_SECONDS
        left = np.flatnonzero(keep)
        hosts = self.host[ids[left]]
        by_host = np.argsort(hosts, kind="stable")
        ordered = hosts[by_host]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        nth = np.arange(len(ordered)) - np.repeat(starts, np.diff(starts, append=len(ordered)))
        late = by_host[(nth >= HOST_PAGES) & self.rests[ordered]]
        keep[left[late]] = False
        return keep

    def mask(self, hosts: Iterable[str]) -> Bools | None:
        """Return which hosts, by number, are named; None if none is."""
        numbers = [number for host in hosts if (number := self.number(host)) is not None]
        if not numbers:
            return None
        mask = np.zeros(self.hosts, np.bool_)
        mask[numbers] = True
        return mask

    def pick(
        self, order: Order, count: int, busy: Bools | None, fit: Callable[[Int32s], Bools] | None = None
    ) -> tuple[Int64s, list[float], float]:
        """Return the first free pages of an order; one of each host that rests between two.

        A host with all of the hottest pages costs a longer look down the order, no round trip to the store.

        Args:
            order: of the pages wanted.
            count: how many at most.
            busy: hosts to pass over.
            fit: told the hosts of pages in their order, tells which of these pages may be had.

        Returns:
            Positions, what they count, and what the next one does that was not taken; 0 if there is none.
        """
        now, passed = time.monotonic(), busy
        found, values = [], []
        have, at, stretch = 0, 0, max(STRETCH_PAGES, 4 * count)
        order.look()
        while have <= count:
            ids, counts = order.upto(max(at, count) + 1)
            some, value = ids[at : at + stretch], counts[at : at + stretch]
            if not len(some) or value[0] < 0:
                break
            self.looked += len(some)
            at, stretch = at + stretch, 2 * stretch
            free = np.flatnonzero(self.free[some] <= now)
            hosts = self.host[some[free]]
            ok = self.host_free[hosts] <= now
            if passed is not None:
                ok &= ~passed[hosts]
            free, hosts = free[ok], hosts[ok]
            if fit is not None:
                ok = fit(hosts)
                free, hosts = free[ok], hosts[ok]
            if self.single.any():
                alone = np.flatnonzero(self.single[hosts])
                different, first = np.unique(hosts[alone], return_index=True)
                keep = ~self.single[hosts]
                keep[alone[first]] = True
                free = free[keep]
                passed = np.zeros(self.hosts, np.bool_) if passed is None else passed.copy()
                passed[different] = True
            found.append(some[free])
            values.append(value[free])
            have += len(free)
        if not found:
            return np.empty(0, np.int64), [], 0.0
        ids, values_ = np.concatenate(found), np.concatenate(values)
        following = float(values_[count]) if have > count else 0.0
        return ids[:count], values_[:count].tolist(), following

    def ours(self, shard: int, at: float) -> float:
        """Return our time (monotonic) for a time of a shard's server (Unix seconds)."""
        return at - self.clocks[shard]

    def hear(self, shard: int, now: float, stamp: Stamp, running: int, leased: int) -> bool:
        """Take what a shard's server said of itself; tell whether it stands as it was seen, but for what was leased."""
        self.clocks[shard] = max(self.clocks[shard], now - time.monotonic())
        self.running[shard] = running
        same = stamp._replace(leases=stamp.leases - leased) == self.stamps[shard]
        # The view goes on without what others did; but what we lease ourselves it knows.
        self.stamps[shard] = self.stamps[shard]._replace(leases=self.stamps[shard].leases + leased)
        self.moved |= not same
        return same

    def note(self, page: "Noted", retry_seconds: float) -> None:
        """Hold a page that was leased, and its host: a lease that nobody ends is a failed fetch, its page waits on."""
        self.hold(page.place, self.ours(page.place[0], page.until_us / MILLION) + retry_seconds)
        if page.host_free:
            self.host_free[page.host] = page.host_free

    def hold(self, place: Place, until: float) -> None:
        """Hold a page until then, by our time."""
        shard, page_id = place
        position = int(self.snapshot.starts[shard]) + page_id
        if position < self.snapshot.starts[shard + 1]:
            self.free[position] = until

    def refuse(self, position: int, until: float, *, host_held: bool) -> None:
        """Hold a page, or all of its host, that the store did not lease."""
        if host_held:
            self.host_free[self.host[position]] = until
            self.free[position] = 0.0
        else:
            self.free[position] = until

    def give_back(self, shard: int, ids: Sequence[int]) -> None:
        """Let pages be free again."""
        positions = self.snapshot.positions(np.full(len(ids), shard), np.array(ids, np.int64))
        self.free[positions[positions < len(self.free)]] = 0.0
        for order in self._orders.values():
            order.freed()

    def admit(self, shut: Bools | None) -> None:
        """Let other pages be shut from now on, if they are."""
        if shut is not self.shut:
            self.shut = shut
            self._orders.clear()

    def first_free(self, order: Order, busy: Bools | None) -> float | None:
        """Return in how many seconds the first page of an order is free; None if there is none at all."""
        ids = order.wanted()
        if busy is not None:
            ids = ids[~busy[self.host[ids]]]
        if not len(ids):
            return None
        return float(np.maximum(self.free[ids], self.host_free[self.host[ids]]).min()) - time.monotonic()
