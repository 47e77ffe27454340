"""Hosts of a shard that fail in a row: they rest, give one page at a time, and are given up in the end.

See `opic.model.host_failures`. All of it comes from the replica, so that endpoints agree, also after a restart.
"""

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int64s, grown, values_at
from opic.model.host_failures import RESTS_FROM, Patience
from opic.replica import Replica
from opic.replica.effect import Effect


class SilentHosts:
    """What the failures of a shard's hosts mean for suggestions. Valid until the replica is reloaded."""

    def __init__(self, replica: Replica, patience: Patience) -> None:
        """Take in what the replica has; the caller holds its lock."""
        self._replica, self._patience = replica, patience
        self._given_up = replica.host_failures.given_up(patience)

    def applied(self, effect: Effect) -> Int64s:
        """Apply a journal record; return the hosts that are given up now and were not, or the other way round."""
        hosts = effect.failing_host.astype(np.int64)
        if not len(hosts):
            return hosts
        before, now = values_at(self._given_up, hosts, False), self._gives_up(hosts)
        if (end := int(hosts.max()) + 1) > len(self._given_up):
            self._given_up = grown(self._given_up, end)
        self._given_up[hosts] = now
        changed: Int64s = hosts[now != before]
        return changed

    def _gives_up(self, hosts: Int64s) -> Bools:
        return self._patience.gives_up(*self._replica.host_failures.rows(hosts))

    def given_up(self, hosts: NDArray[np.integer]) -> Bools | None:
        """Return a mask of the hosts that are given up; None if none is."""
        return values_at(self._given_up, hosts, False) if self._given_up.any() else None

    def rests(self, hosts: Int64s | None = None) -> dict[int, float]:
        """Return until when hosts rest, in Unix seconds: those of `hosts` that do, or all."""
        table = self._replica.host_failures
        if hosts is None:
            hosts = np.flatnonzero(table.times >= RESTS_FROM)
        until = self._patience.rests_until(*table.rows(hosts))
        return {host: end for host, end in zip(hosts.tolist(), until.tolist(), strict=True) if end}
