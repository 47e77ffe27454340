"""Limits on how many pages of a host are read: when a host reaches its limit, none of its pages is offered."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from opic.arrays import Bools, Int64s, values_at
from opic.frontier.host_pages import HostPages
from opic.model.cash import Flag
from opic.replica import Replica
from opic.replica.effect import Effect


class HostLimits:
    """The hosts of a shard that have a limit. Not thread-safe; valid until the replica is reloaded."""

    def __init__(self, replica: Replica) -> None:
        self._replica, self._pages = replica, HostPages()
        self._limits = dict[int, int]()  # By host number.
        self._read = Counter[int]()  # At least as many pages of the host were read.
        self._full = np.zeros(0, np.bool_)  # By host number; later hosts are not full.

    def replace(self, limits: Mapping[str, int]) -> Int64s:
        """Replace the limits, by host; return the pages that are offered now and were not, or the other way round."""
        numbers = {self._replica.hosts.number(host): limit for host, limit in limits.items()}
        return self._use({number: limit for number, limit in numbers.items() if number is not None})

    def change(self, host: str, limit: int) -> Int64s:
        """Set the limit of a host, 0 for none; return pages as `replace` does."""
        number = self._replica.hosts.number(host)
        changed = self._limits if number is None else {**self._limits, number: limit}
        return self._use({number: limit for number, limit in changed.items() if limit})

    def _use(self, limits: dict[int, int]) -> Int64s:
        before, self._limits = set(np.flatnonzero(self._full).tolist()), limits
        self._full = np.zeros(len(self._replica.hosts), np.bool_)
        for host in self._limits:
            self._recount(host)
        return self._pages_of(before ^ set(np.flatnonzero(self._full).tolist()))

    def applied(self, effect: Effect) -> Int64s:
        """Apply a journal record; return the pages that are not offered any more, or are again."""
        if not self._limits:
            return np.empty(0, np.int64)
        reads = Counter(self._replica.host[effect.read_page].tolist())
        left = set(self._replica.host[np.concatenate((effect.forgotten, effect.gone_page))].tolist())
        changed = set[int]()
        for host in (reads.keys() | left) & self._limits.keys():
            full = bool(self._full[host])
            self._read[host] += reads[host]
            if host in left or (not full and self._read[host] >= self._limits[host]):  # A page may be counted twice.
                self._recount(host)
            if full != self._full[host]:
                changed.add(host)
        return self._pages_of(changed)

    def _recount(self, host: int) -> None:
        state = self._replica.state[self._pages_of({host})]
        self._read[host] = int(np.count_nonzero((state & (Flag.KNOWN | Flag.OPEN)) == (Flag.KNOWN | Flag.OPEN)))
        self._full[host] = self._read[host] >= self._limits[host]

    def _pages_of(self, hosts: set[int]) -> Int64s:
        if not hosts:
            return np.empty(0, np.int64)
        self._pages.extend(self._replica.host)
        return self._pages.pages_of(np.array(sorted(hosts), np.int64))

    def shut(self, ids: Int64s) -> Bools | None:
        """Return a mask of the pages of full hosts; None if there are none."""
        return values_at(self._full, self._replica.columns.host[ids], False) if self._full.any() else None
