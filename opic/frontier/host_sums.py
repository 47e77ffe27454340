"""Sums over the pages of each host or registered domain of a shard."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from opic.query.host_index import Floats
from opic.replica.replica import Replica

PAGES_AT_ONCE: Final = 1 << 16  # Takes about a millisecond.


def sums_by_host(replica: Replica, look: Callable[[tuple[Any, Any]], tuple[Any, Any]]) -> Floats:
    """Sum a value over the pages of each host of a shard, in batches, releasing the replica's lock between batches.

    Args:
        replica: the replica of the shard.
        look: takes states and in-flows of pages; returns which pages count, and their weights (None: 1 each).
    """
    sums = np.zeros(len(replica.hosts))
    for first in range(0, len(replica), PAGES_AT_ONCE):
        part = slice(first, min(first + PAGES_AT_ONCE, len(replica)))
        with replica.lock:
            counts, weights = look((replica.state[part], replica.columns.inflow[part]))
            hosts = replica.host[part][counts]
            sums += np.bincount(hosts, weights, minlength=len(sums))[: len(sums)]
    return sums


def sums_by_domain(replica: Replica, sums: Floats) -> Floats:
    """Sum per-host values by registered domain number."""
    with replica.lock:
        domains = replica.hosts.domains[: len(sums)]
    return np.bincount(domains, sums[: len(domains)]).astype(np.float64)  # A reloaded replica may have fewer hosts.
