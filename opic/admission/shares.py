"""The shares of large hosts and outgrown sites in the suggestions: which there are, and what each may still give."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from opic.arrays import Bools, Float64s, Int32s, Int64s, values_at
from opic.model.cash import Flag
from opic.replica import Crawl, Replica
from opic.urls.canonical import registered_domain
from opic.urls.traps import Traps, outgrown

PAGES_AT_ONCE: Final = 1 << 16  # Takes about a millisecond.


def sums_by_host(replica: Replica, value: Callable[[Any, Any], Any]) -> Float64s:
    """Sum a value over the pages of each host of a shard, in batches, releasing the replica's lock between batches.

    Args:
        replica: the replica of the shard.
        value: takes states and in-flows of pages; returns their values, (n,).
    """
    sums = np.zeros(len(replica.hosts))
    for first in range(0, len(replica), PAGES_AT_ONCE):
        part = slice(first, min(first + PAGES_AT_ONCE, len(replica)))
        with replica.lock:
            values = value(replica.state[part], replica.columns.inflow[part])
            sums += np.bincount(replica.host[part], values, minlength=len(sums))[: len(sums)]
    return sums


def sums_by_domain(replica: Replica, sums: Float64s) -> Float64s:
    """Sum per-host values by registered domain number."""
    with replica.lock:
        domains = replica.hosts.domains[: len(sums)]
    return np.bincount(domains, sums[: len(domains)]).astype(np.float64)  # A reloaded replica may have fewer hosts.


class Weighed:
    """Large hosts and outgrown sites (read more often than their in-flow pays for); each is one group of hosts."""

    def __init__(self, crawl: Crawl, large: Iterable[int] = (), sites: Iterable[str] = ()) -> None:
        self._tables, self.large = [replica.hosts for replica in crawl.replicas], sorted(large)
        self.site = {site: len(self.large) + number for number, site in enumerate(sites)}
        groups: list[int | str] = [*self.large, *self.site]
        self.group_of = {key: group for group, key in enumerate(groups)}  # By host or site.
        self._groups = np.full(0, -1, np.int32)
        self._filled = [0] * len(self._tables)  # Number of hosts of each shard that have their group.

    def groups(self) -> Int32s:
        """Return the group of each host by number, -1 for none. The group of an outgrown site takes precedence."""
        counts = list(map(len, self._tables))  # Read once, because the tables grow concurrently.
        shards, hosts = len(self._tables), max(counts)
        if shards * hosts > len(self._groups):
            grown = np.full(shards * (hosts + hosts // 4), -1, np.int32)
            grown[: len(self._groups)] = self._groups
            if not len(self._groups):
                grown[self.large] = np.arange(len(self.large))
            self._groups = grown
        for shard, (table, known) in enumerate(zip(self._tables, counts, strict=True)):
            filled = self._filled[shard]
            if known > filled and self.site:
                domains = table.domains[filled:known]
                of_domain = np.full(int(domains.max()) + 1, -1, np.int32)
                for site, group in self.site.items():
                    if (number := table.domain(site)) is not None and number < len(of_domain):
                        of_domain[number] = group
                column, site_groups = self._groups[shard::shards][filled:known], of_domain[domains]
                column[site_groups >= 0] = site_groups[site_groups >= 0]
            self._filled[shard] = known
        return self._groups


def grouped(groups: Int32s, hosts: Iterable[int]) -> Int32s:
    """Return the groups of those of these hosts that have one; numbers from before a reload may be too large."""
    known = groups[[host for host in hosts if host < len(groups)]]
    return known[known >= 0]


def large_hosts(crawl: Crawl, traps: Traps) -> list[int]:
    """Return the numbers of the hosts with more known pages than `traps.host_pages`."""
    hosts, most = list[int](), traps.host_pages
    for shard, replica in enumerate(crawl.replicas if most else ()):
        if replica.pages <= most:
            continue
        pages = sums_by_host(replica, lambda state, _: (state & Flag.KNOWN) != 0)
        hosts += (np.flatnonzero(pages > most) * len(crawl) + shard).tolist()
    return hosts


def outgrown_sites(crawl: Crawl, traps: Traps) -> list[str]:
    """Return the sites that were read more often than the cash flowing in from other hosts pays for."""
    replicas, rules = crawl.replicas, crawl.rules
    reads, live = (sum(getattr(replica.books, name) for replica in replicas) for name in ("open", "live"))
    if not traps.site_reads or not rules.inflow or reads < 2 * traps.site_reads:
        return []
    by_domain, suspected = [], set[str]()
    for replica in replicas:
        counts = sums_by_domain(replica, sums_by_host(replica, lambda state, _: (state & Flag.OPEN) != 0))
        with replica.lock:
            domains = replica.hosts.domains
            # A site's hosts are in several shards. If the site exceeds the limit, it exceeds 1/n of the limit in
            # at least one of the n shards.
            many = np.flatnonzero(counts > traps.site_reads // len(replicas)).tolist()
            suspected |= {registered_domain(replica.hosts.names[int((domains == d).argmax())]) for d in many}
        by_domain.append(counts)
    sums = {site: _sum_of(crawl, site, by_domain) for site in suspected}
    sums = {site: count for site, count in sums.items() if outgrown(count, reads - count, 0, 1, traps)}
    if not sums:
        return []
    came = [
        sums_by_domain(replica, sums_by_host(replica, lambda _, inflow: np.maximum(inflow, 0))) for replica in replicas
    ]
    grant = rules.round_grains(live) / max(live, 1)
    return [
        site
        for site, count in sorted(sums.items())
        if outgrown(count, reads - count, _sum_of(crawl, site, came), grant, traps)
    ]


def _sum_of(crawl: Crawl, site: str, by_domain: Sequence[Any]) -> Any:
    """Sum the values of a site over all shards, from columns indexed by registered domain number."""
    numbers = [replica.hosts.domain(site) for replica in crawl.replicas]
    pairs = zip(numbers, by_domain, strict=True)
    return sum(column[number].item() for number, column in pairs if number is not None and number < len(column))


class Ration:
    """The quota of one choice for each group of hosts. Not thread-safe."""

    def __init__(self, groups: Int32s, room: Int64s) -> None:
        """Use `Admission.ration`.

        Args:
            groups: (hosts,) the group of each host, -1 for none.
            room: (groups,) how many pages of each group may be chosen.
        """
        self._groups, self._room, self._left = groups, room, room.copy()
        self.refused = False

    def fit(self, hosts: Int64s) -> Bools:
        """Return a mask of the pages, given by their hosts in order, that fit the quota; calls are cumulative."""
        groups = values_at(self._groups, hosts, -1)
        fits: Bools = groups < 0
        watched = np.flatnonzero(~fits)
        if len(watched):
            limited = groups[watched]
            order = np.argsort(limited, kind="stable")
            ordered = limited[order]
            rank = np.arange(len(limited)) - np.searchsorted(ordered, ordered)  # Of each page within its group.
            kept = order[rank < self._left[ordered]]
            fits[watched[kept]] = True
            self._left -= np.bincount(limited[kept], minlength=len(self._left))
            self.refused |= len(kept) < len(limited)
        return fits

    def count_chosen(self, hosts: Iterable[int]) -> None:
        """Count pages of these hosts as chosen, and undo the other counts of `fit`."""
        counts = np.bincount(grouped(self._groups, hosts), minlength=len(self._room))
        self._room = np.maximum(self._room - counts, 0)
        self._left = self._room.copy()
