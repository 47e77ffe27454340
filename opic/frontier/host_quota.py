"""How many pages each host gives to one choice: one where it has a delay, or as many as a request asks for."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from opic.frontier.hot_order import HotOrder, Int64s

Bools = NDArray[np.bool_]


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
            order, at = self._orders[shard], np.flatnonzero(shards == shard)
            late = order.mark[hosts[at]] == order.tick  # Marked since they were examined.
            some = np.flatnonzero(~late if self._limited else order.single[hosts[at]] & ~late)
            of = hosts[at[some]]
            by_host = np.argsort(of, kind="stable")
            rank = np.arange(len(of)) - np.searchsorted(of[by_host], of[by_host])
            if self._most > 1:
                rank += np.array([self._given[shard][host] for host in of[by_host].tolist()], np.int64)
            late[some[by_host[rank >= self._most]]] = True
            full = of[by_host[rank >= self._most - 1]]
            order.mark[full] = order.tick
            if self._most > 1:
                for host in of[by_host[rank < self._most]].tolist():
                    self._given[shard][host] += 1
            order.passed_over(hosts[at[late]])
            keep[at[late]] = False
        return keep
