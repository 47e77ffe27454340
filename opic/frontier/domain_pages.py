"""The hosts and pages of the domains that requests named lately, cached up to a number of bytes."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from opic.arrays import Bools, Int64s
from opic.frontier.hot_order import HotOrder
from opic.replica import Crawl
from opic.replica.hosts import HostTable
from opic.urls.canonical import registered_domain

SETS_MAX: Final = 64  # Sets of domains, however few hosts they have.


@dataclass(eq=False, slots=True)
class Within:
    """The hosts of a domain, by shard: restricts a choice to their pages. Reuse it, because it caches these pages."""

    hosts: list[Int64s]  # Host numbers of each shard, ascending; new hosts are appended.
    seen: list[int] = field(default_factory=list)  # Number of hosts of each shard that were scanned for these.
    _pages: dict[int, tuple[int, Int64s]] = field(default_factory=dict)  # By shard: number of pages scanned, and ids.
    _masks: dict[int, tuple[int, Bools]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        parts = (*self._pages.values(), *self._masks.values())
        return sum(hosts.nbytes for hosts in self.hosts) + sum(part.nbytes for _, part in parts)

    def pages(self, shard: int, order: HotOrder) -> Int64s:
        """Return the ids of the pages of these hosts, ascending. Each new page is scanned once."""
        column = order.columns.host[: order.known]
        if shard not in self._pages:
            self._pages[shard] = len(column), np.sort(order.pages_of(self.hosts[shard]))
        known, ids = self._pages[shard]
        if known < len(column):
            later = known + np.flatnonzero(self.mask(shard, order)[column[known:]])
            self._pages[shard] = len(column), np.concatenate((ids, later)) if len(later) else ids
        return self._pages[shard][1]

    def mask(self, shard: int, order: HotOrder) -> Bools:
        """Return a mask over a shard's host numbers of the hosts included."""
        count, hosts = len(order.mark), self.hosts[shard]
        known = self._masks.get(shard)
        if known is None or known[0] != len(hosts) or len(known[1]) < count:
            mask = np.zeros(count, np.bool_)
            mask[hosts] = True
            known = self._masks[shard] = len(hosts), mask
        return known[1]


class DomainPages:
    """The hosts and pages of sets of domains. Not thread-safe."""

    def __init__(self, crawl: Crawl, bytes_max: int) -> None:
        """Cache nothing yet, later up to `bytes_max` bytes beside the set that was asked for last."""
        self._crawl, self._bytes_max = crawl, bytes_max
        self._sets: dict[tuple[str, ...], Within] = {}  # The one used last comes last.

    @property
    def nbytes(self) -> int:
        """The bytes of all cached arrays."""
        return sum(known.nbytes for known in self._sets.values())

    def clear(self) -> None:
        """Forget all."""
        self._sets.clear()

    def within(self, domains: tuple[str, ...]) -> Within:
        """Return the hosts of domains, including new ones."""
        known = self._sets.pop(domains, None)
        while self._sets and (self.nbytes > self._bytes_max or len(self._sets) >= SETS_MAX):
            del self._sets[next(iter(self._sets))]
        replicas = self._crawl.replicas
        if known is None:
            known = Within([np.empty(0, np.int64) for _ in replicas], [0] * len(replicas))
        self._sets[domains] = known
        for shard, replica in enumerate(replicas):
            count, seen = len(replica.hosts.names), known.seen[shard]
            if count > seen:
                fresh = sorted({host for domain in domains for host in _hosts_of(replica.hosts, domain, seen)})
                if fresh:
                    known.hosts[shard] = np.concatenate((known.hosts[shard], np.array(fresh, np.int64)))
                known.seen[shard] = count
        return known


def _hosts_of(table: HostTable, domain: str, seen: int) -> list[int]:
    """Return the numbers of the hosts from `seen` on that are a domain or below it."""
    # All its subdomains have the same registered domain, unless the domain is a public suffix.
    site, among = table.domain(registered_domain(domain)), list(range(seen, len(table.names)))
    if registered_domain(f"x.{domain}") == registered_domain(domain):
        among = (seen + np.flatnonzero(table.domains[seen:] == (-1 if site is None else site))).tolist()
    suffix = "." + domain
    return [i for i in among if table.names[i] == domain or table.names[i].endswith(suffix)]
