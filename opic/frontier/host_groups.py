"""Politeness groups: hosts of one address, or of one registered domain, that share the delay between two pages.

A group's name is a host as in canonical URLs: an address, in brackets if it has colons, or a registered domain. Its
hosts may be in many shards. The shard that a host of its name would be in, its home, keeps when the group is free next;
a leased page counts once its group's home has granted it (`opic.frontier.group_claims`). Here is what an endpoint has
heard of that, so that it chooses no page in vain. Of a group with one known host, nothing is looked for.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from opic.arrays import Bools, Float64s, Int32s, Int64s, grown, values_at
from opic.frontier.hot_order import HotOrder
from opic.frontier.requests import BY_ADDRESS, BY_DOMAIN
from opic.replica import Replica
from opic.urls.canonical import registered_domain, shard_of

NO_GROUP: Final = 0


def group_of_address(address: str) -> str:
    """Return the name of the group of an address.

    >>> group_of_address("192.0.2.1"), group_of_address("2001:db8::1")
    ('192.0.2.1', '[2001:db8::1]')
    """
    return f"[{address}]" if ":" in address else address


def group_of(host: str, address: str | None, by: str) -> str | None:
    """Return the name of a host's group; None if it has none."""
    if by == BY_DOMAIN:
        return registered_domain(host)
    return group_of_address(address) if by == BY_ADDRESS and address else None


class HostGroups:
    """The groups of a crawl's hosts. For the thread that chooses; `rests` also for those that follow the journal."""

    def __init__(self, replicas: Sequence[Replica], by: str) -> None:
        """Know of no host yet."""
        self.by, self._replicas = by, replicas
        self._names, self._number, self._vacant = [""], dict[str, int](), list[int]()
        # By group. Number 0 is no group.
        self._free: Float64s = np.full(1, -np.inf)  # When its next page may be leased, by our monotonic clock.
        self._hosts: Int64s = np.zeros(1, np.int64)  # How many hosts it has,
        self._sums: Int64s = np.zeros(1, np.int64)  # and the sum of their numbers in the crawl: its host if it has one.
        self._off: Bools = np.zeros(1, np.bool_)  # Whether an operator lets its hosts share no delay.
        self._undelayed = [frozenset[str]() for _ in replicas]  # By home: groups of which that is so.
        self._of: list[Int32s] = [np.zeros(0, np.int32) for _ in replicas]  # By shard and host: the host's group.
        self._known = [0] * len(replicas)  # How many hosts of each shard have their domain.
        self._chosen = dict[int, tuple[int, int]]()  # By group: shard and host that the present choice takes,
        self._reserved = dict[int, tuple[int, int]]()  # and those that wait for the store's answer.

    def __len__(self) -> int:
        return len(self._number)

    # Which hosts are in which group. The caller holds the lock of the shard's replica.

    def clear(self, shard: int) -> None:
        """Forget the hosts of a shard, whose numbers may mean others now."""
        for host in np.flatnonzero(self._of[shard]).tolist():
            self._move(shard, host, "")
        self._of[shard], self._known[shard] = np.zeros(0, np.int32), 0

    def note_addresses(self, shard: int, addresses: Mapping[str, str]) -> Int64s:
        """Take in the addresses of hosts, "" for none any more; return the hosts as far as they are known."""
        known = dict[int, str]()
        if self.by == BY_ADDRESS:
            numbers = ((self._replicas[shard].hosts.number(name), address) for name, address in addresses.items())
            known = {host: address for host, address in numbers if host is not None}
        for host, address in known.items():
            self._move(shard, host, address and group_of_address(address))
        return np.array(list(known), np.int64)

    def note_domains(self, shard: int) -> Int64s:
        """Take in the domains of hosts that are new; return those hosts as far as their domain rests."""
        names, known = self._replicas[shard].hosts.names, self._known[shard]
        if self.by != BY_DOMAIN or known == len(names):
            return np.empty(0, np.int64)
        self._known[shard] = len(names)
        for host, name in enumerate(names[known:], known):
            self._move(shard, host, registered_domain(name))
        new = np.arange(known, len(names))
        return new[self.rests(shard, new) > time.monotonic()]

    def _move(self, shard: int, host: int, name: str) -> None:
        before = int(self._of[shard][host]) if host < len(self._of[shard]) else NO_GROUP
        if self._names[before] == name:
            return
        member, group = host * len(self._of) + shard, self._group(name) if name else NO_GROUP
        if host >= len(self._of[shard]):
            self._of[shard] = grown(self._of[shard], host + 1)
        self._of[shard][host] = group
        for number, change in ((before, -1), (group, 1)):
            self._hosts[number] += change
            self._sums[number] += change * member
        if before and not self._hosts[before]:
            del self._number[self._names[before]]
            self._names[before], self._free[before] = "", -np.inf
            self._vacant.append(before)

    def _group(self, name: str) -> int:
        number = self._number.get(name)
        if number is None:
            number = self._vacant.pop() if self._vacant else len(self._names)
            if number == len(self._names):
                self._names.append("")
            if number >= len(self._free):
                size = len(self._free)
                self._hosts, self._sums = grown(self._hosts, number + 1), grown(self._sums, number + 1)
                self._free = grown(self._free, number + 1)
                self._free[size:] = -np.inf
                self._off = grown(self._off, number + 1)
            self._number[name], self._names[number] = number, name
            self._off[number] = name in self._undelayed[shard_of(name, len(self._of))]
        return number

    def group(self, shard: int, host: int) -> int:
        """Return the number of a host's group, NO_GROUP if it has none whose hosts share a delay."""
        group = int(self._of[shard][host]) if host < len(self._of[shard]) else NO_GROUP
        return NO_GROUP if self._off[group] else group

    def number(self, name: str) -> int | None:
        """Return the number of a group, None if none of its hosts is known."""
        return self._number.get(name)

    def name(self, group: int) -> str:
        return self._names[group]

    def home(self, group: int) -> int:
        """Return the shard that keeps when a group is free."""
        return shard_of(self._names[group], len(self._of))

    def hosts_in(self, shard: int, groups: Iterable[int]) -> Int64s:
        """Return the hosts of groups in a shard, ascending. Costs a pass over its hosts if a group has several."""
        distinct = np.unique(np.fromiter(groups, np.int64))
        members = self._sums[distinct[self._hosts[distinct] == 1]]
        alone = members[members % len(self._of) == shard] // len(self._of)
        many = distinct[self._hosts[distinct] > 1]
        if not len(many):
            return np.sort(alone)
        wanted = np.zeros(len(self._names), np.bool_)
        wanted[many] = True
        return np.union1d(alone, np.flatnonzero(wanted[self._of[shard]]))

    # When groups are free.

    def undelay(self, home: int, names: frozenset[str]) -> None:
        """Take in the groups of a home whose hosts share no delay, as an operator said."""
        for name in names ^ self._undelayed[home]:
            if (group := self._number.get(name)) is not None:
                self._off[group], self._free[group] = name in names, -np.inf
        self._undelayed[home] = names

    def rest(self, group: int, until: float) -> None:
        """Let a group rest until a time by our monotonic clock, unless it rests longer."""
        self._free[group] = max(self._free[group], until)

    def rests(self, shard: int, hosts: Int64s) -> Float64s:
        """Return when the groups of hosts are free, by our monotonic clock; -inf for hosts without a group."""
        ends: Float64s = self._free[values_at(self._of[shard], hosts, NO_GROUP)]
        return ends

    def resting(self) -> list[int]:
        """Return the groups that rest."""
        return np.flatnonzero(self._free > time.monotonic()).tolist()

    # One choice takes pages of one host of a group.

    def begin(self) -> None:
        """Begin a choice: what one before took is free again, unless it is reserved."""
        self._chosen = self._reserved.copy()

    def fit(self, orders: Sequence[HotOrder], shards: Int64s, hosts: Int64s) -> Bools:
        """Return a mask of the pages whose host is the first of its group; see `opic.frontier.picking.Fit`."""
        fits, refused = np.ones(len(hosts), np.bool_), set[int]()
        for position, shard_host in enumerate(zip(shards.tolist(), hosts.tolist(), strict=True)):
            group = self.group(*shard_host)
            if group and self._chosen.setdefault(group, shard_host) != shard_host:
                fits[position] = False
                refused.add(group)
        if refused:  # The choice need not meet each of their other hosts.
            for shard, order in enumerate(orders):
                others = self.hosts_in(shard, refused)
                chosen = (self._chosen[group] for group in refused)
                kept = [host for chosen_in, host in chosen if chosen_in == shard]
                others = others[~np.isin(others, kept)]
                order.mark[others] = order.tick
        return fits

    def reserve(self, shard: int, hosts: Iterable[int]) -> None:
        """Keep the groups of chosen hosts from other choices until `answered`."""
        self._reserved |= {group: (shard, host) for host in hosts if (group := self.group(shard, host))}

    def answered(self) -> None:
        """Note that the store has answered for all chosen pages."""
        self._reserved.clear()
