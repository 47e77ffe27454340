"""A shard as the frontier chooses from it: its hot order, with leases, waits and hosts kept up by what is heard.

They are read whole once. Then our own calls tell of our leases, refusals of those of other endpoints, the journal of
fetches, and the store's list of what was given back. What is here is a cache: the call that leases has the last word.
Times are Unix seconds by the clock of the shard's server. Whoever uses it holds the replica's lock.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from opic.frontier.held_pages import Held
from opic.frontier.hot_order import HELD, Bools, HotOrder, Int64s
from opic.frontier.lease_call import LeaseAnswer, LeaseStamp
from opic.frontier.requests import PolitenessSettings
from opic.frontier.timers import Floats
from opic.model.cash import MILLION
from opic.replica.effect import Effect
from opic.replica.replica import Replica

HELD_SECONDS_MIN: Final = 0.01  # What was refused is not asked for again at once, whatever the clocks say.
UNSURE_MAX: Final = (
    1_000  # Failed pages whose wait is asked for; others wait as after a first failure, then are refused.
)


class ShardColumns:
    """The columns of a replica, as a hot order reads them."""

    def __init__(self, replica: Replica, shut: Callable[[Int64s], Bools | None] | None = None) -> None:
        """Read a replica; `shut` tells which pages rules keep from being offered."""
        self._replica, self._shut = replica, shut

    def __len__(self) -> int:
        """Count the known pages."""
        return self._replica.pages

    @property
    def v(self) -> Int64s:
        """Cash less credit."""
        return self._replica.columns.v

    @property
    def state(self) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        """Bits of `opic.model.cash.Flag`, and the class."""
        return self._replica.columns.state

    @property
    def host(self) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
        """Host numbers."""
        return self._replica.columns.host

    @property
    def hosts(self) -> int:
        """Count the hosts."""
        return len(self._replica.hosts)

    def shut(self, ids: Int64s) -> Bools | None:
        """Return which pages rules keep from being offered."""
        return None if self._shut is None else self._shut(ids)

    def credits(self) -> Int64s:
        """Return the credit of each class, (8,)."""
        return np.array(self._replica.books.credits(), np.int64)


class HotShard:
    """The hot order of a replica, as long as that is not loaded anew."""

    def __init__(
        self,
        replica: Replica,
        politeness: PolitenessSettings,
        discovery: float = 1.0,
        shut: Callable[[Int64s], Bools | None] | None = None,
    ) -> None:
        """Choose from a replica; nothing is held yet. `shut` tells which pages rules keep from being offered."""
        self.replica, self.politeness, self.loads = replica, politeness, replica.loads
        self.order = HotOrder(ShardColumns(replica, shut), discovery, single=politeness.host_delay_seconds > 0)
        self.stamp = LeaseStamp(-1, -1)
        self.complete = False  # All that is held in the store is held here, as of `stamp`.
        self.running = 0
        self.unsure: list[int] = []  # Pages that failed: the store knows how often, and so how long they wait.
        self._clock = -np.inf  # The server's time, as heard, less our own (monotonic). It never runs ahead.
        self._calls = 0  # Whose answers are awaited.
        self._fetched: dict[int, tuple[int, float]] = {}  # Pages that the journal spoke of meanwhile: record, free at.
        self._full: dict[int, float] = {}  # Hosts with as many pages in flight as they may have: rest without that.

    def now(self) -> float:
        """Return the time."""
        return self._clock + time.monotonic()

    def hear_time(self, seconds: float) -> None:
        """Take the time that the server said."""
        self._clock = max(self._clock, seconds - time.monotonic())

    # The journal.

    def applied(self, effect: Effect, changed: Int64s) -> None:
        """Take notice of a record: pages that changed; and fetches, which ended leases and waits, or began waits."""
        self.order.changed(changed)
        failed = effect.failed == 1
        fetched = np.concatenate((effect.read_page, effect.fetched_page[~failed])).astype(np.int64)
        waiting = effect.fetched_page[failed].astype(np.int64)
        self._free(fetched)
        until = effect.books.time_us / MILLION + self.politeness.retry_seconds
        if len(waiting):
            self.order.hold(waiting, np.full(len(waiting), until))
            self._open_hosts(waiting)
            self.unsure += waiting[: max(UNSURE_MAX - len(self.unsure), 0)].tolist()
        if self._calls:
            self._fetched.update((page, (effect.lsn, 0.0)) for page in fetched.tolist())
            self._fetched.update((page, (effect.lsn, until)) for page in waiting.tolist())

    def _free(self, ids: Int64s) -> None:
        self.order.release(ids)
        self._open_hosts(ids)

    def _open_hosts(self, ids: Int64s) -> None:
        """Let hosts go on that had as many pages in flight as they may: one of them landed."""
        if self._full and len(ids):
            hosts = [host for host in np.unique(self.replica.host[ids]).tolist() if host in self._full]
            self._rest({host: self._full.pop(host) for host in hosts})

    # What is held.

    def begin_call(self) -> None:
        """Remember from now on what the journal says: the answer of a call may be older."""
        self._calls += 1

    def end_call(self, lsn: int) -> None:
        """Let what the journal said in records after `lsn` win over an answer that was given then and taken now."""
        self._calls -= 1
        for page, (record, free_at) in self._fetched.items():
            if record > lsn:
                if free_at:
                    self.order.hold(np.array([page]), np.array([free_at]))
                else:
                    self._free(np.array([page]))
        if not self._calls:
            self._fetched.clear()

    def load(self, held: Held) -> None:
        """Hold what was read whole, and nothing else."""
        self.order.clear()
        self._full.clear()
        self.hear_time(held.now)
        ids, until = held.pages
        order = np.argsort(until, kind="stable")  # A page may be held twice: the last one written stays.
        known = ids[order] < len(self.replica)
        self.order.hold(ids[order][known], until[order][known])
        names, free = held.hosts
        self._rest({
            number: end
            for name, end in zip(names, free.tolist(), strict=True)
            if (number := self.replica.hosts.number(name)) is not None
        })  # fmt: skip
        for name, (delay, _) in held.manners.items():
            if delay is not None and (number := self.replica.hosts.number(name)) is not None:
                self.order.set_single(np.array([number]), single=delay > 0)
                if not delay:
                    self._rest({number: 0.0})
        self.stamp, self.running, self.complete = held.stamp, held.running, True
        self.unsure.clear()

    def hear_waits(self, ids: Sequence[int], until: Iterable[float | None]) -> None:
        """Take how long pages wait by the store; those that do not are free."""
        for page, end in zip(ids, until, strict=True):
            if end is None:
                self._free(np.array([page]))
            else:
                self.order.hold(np.array([page]), np.array([end]))

    def hear_freed(self, ids: Sequence[int], freed: int) -> None:
        """Let pages be free whose leases were given back anywhere, which is all up to the count `freed`."""
        self._free(np.array([page for page in ids if page < len(self.replica)], np.int64))
        self.stamp = self.stamp._replace(freed=freed)

    def give_back(self, ids: Sequence[int], freed: int) -> None:
        """Let pages be free whose leases were given back here; with these the store counted `freed`."""
        self._free(np.array([page for page in ids if page < len(self.replica)], np.int64))
        self.running = max(self.running - len(ids), 0)
        if freed == self.stamp.freed + 1:
            self.stamp = LeaseStamp(freed, (self.stamp.leases or 0) - len(ids))

    def ask(self, ids: Int64s, hosts: Int64s) -> None:
        """Hold pages, and hosts with a delay, until the answer: no other choice takes them meanwhile."""
        self.order.hold(ids, np.full(len(ids), np.inf))
        single = np.unique(hosts[self.order.single[hosts]])
        self.order.rest(single, np.full(len(single), np.inf))

    def take(self, ids: Int64s, hosts: Int64s, answer: LeaseAnswer, *, keep: bool = False) -> bool:
        """Note what was leased and what was refused of the pages asked for; all others are free again.

        With `keep`, what was leased is held until `settle`.

        Returns:
            Whether the leases were as we knew them, but for these.
        """
        now, soon = answer.now_us / MILLION, answer.now_us / MILLION + HELD_SECONDS_MIN
        self.hear_time(now)
        page_until = np.zeros(len(ids))
        rests: dict[int, float] = dict.fromkeys(np.unique(hosts[self.order.single[hosts]]).tolist(), 0.0)
        for page in answer.granted:
            page_until[page.place] = np.inf if keep else page.until_us / MILLION + self.politeness.retry_seconds
            if page.delay_seconds:
                rests[int(hosts[page.place])] = now + page.delay_seconds
        for refused in answer.refused:
            until = max(refused.until_us / MILLION, soon)
            if refused.host_held:
                host = int(hosts[refused.place])
                if refused.full:
                    self._full.setdefault(host, rests.get(host, 0.0))
                rests[host] = max(rests.get(host, 0.0), until)
            else:
                page_until[refused.place] = until
        held = page_until > 0
        self.order.hold(ids[held], page_until[held])
        self.order.release(ids[~held])
        self._rest(rests)
        same = answer.stamp._replace(leases=(answer.stamp.leases or 0) - len(answer.granted)) == self.stamp
        self.stamp, self.running = self.stamp._replace(leases=answer.stamp.leases), answer.running
        self.complete &= same
        return same

    def settle(self, ids: Int64s, until: Floats) -> None:
        """Hold pages until times that `take` kept, but for those that are free by now."""
        kept = self.order.free_at(ids) == np.inf
        self.order.hold(ids[kept], until[kept])

    def _rest(self, until: dict[int, float]) -> None:
        if until:
            self.order.rest(np.array(list(until), np.int64), np.array(list(until.values())))

    def held_count(self) -> int:
        """Count the pages and hosts that are held. Costs some 100 us for a million pages."""
        order = self.order
        return int(np.count_nonzero(order.where == HELD)) + int(np.count_nonzero(order.host_free > order.now))
