"""The pages of a crawl by position, as of one moment: where they are, their hosts, and which are there.

Pages have positions: the pages of shard 0 by id, then those of shard 1, and so on. With several shards, the state of
each is as of one record of its journal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from opic.arrays import Bools, Int32s, Int64s, Uint8s, Uint32s
from opic.model.cash import Flag
from opic.query.host_index import HostNames, Sites, frozen
from opic.replica import Crawl
from opic.replica.crawl import Place
from opic.replica.effect import Head

T = TypeVar("T")
KNOWN_GONE = Flag.KNOWN | Flag.GONE


@dataclass(frozen=True, kw_only=True, eq=False)
class CrawlPages:
    """Immutable, with a cache of what was computed from it. Arrays are (n,), by position, and include unknown ids."""

    as_of: float  # Unix seconds; the state is of this time or later.
    crawl: Crawl
    loads: list[int]  # Load counts of the replicas: after a reload ids may mean other pages.
    heads: list[Head]  # The journal position of each shard.
    starts: Int64s  # (shards + 1,), the first position of each shard, and the end.
    state: Uint8s = field(repr=False)
    hosts: HostNames  # By number; may include hosts that are newer.
    host_columns: Sequence[Uint32s] = field(repr=False)  # By shard.
    kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.state)

    def places(self, positions: Int64s) -> list[Place]:
        """Return the shard and the id of pages."""
        if len(self.starts) == 2:
            return [(0, i) for i in positions.tolist()]
        shards = np.searchsorted(self.starts, positions, side="right") - 1
        return list(zip(shards.tolist(), (positions - self.starts[shards]).tolist(), strict=True))

    def positions(self, shards: Int64s, ids: Int64s) -> Int64s:
        """Return the positions of pages, len(self) for pages that are newer."""
        positions: Int64s = self.starts[shards] + ids
        return np.where(positions < self.starts[shards + 1], positions, len(self))

    def _keep(self, name: str, work_out: Callable[[], T]) -> T:
        """Compute a value once and cache it. Two threads may compute it at the same time, with the same result."""
        if name not in self.kept:
            self.kept[name] = work_out()
        kept: T = self.kept[name]
        return kept

    @property
    def live(self) -> Bools:
        """Mask of the pages that are known and not gone."""
        return self._keep("live", lambda: frozen((self.state & KNOWN_GONE) == Flag.KNOWN))

    @property
    def host(self) -> Int32s:
        """The host number of each page, an index into `hosts`."""
        return self._keep("host", lambda: self.hosts.numbers(self.host_columns))

    def within(self, domain: str) -> Bools:
        """Return a mask of the pages of a host or domain and its subdomains."""
        inside = np.zeros(int(self.host.max(initial=-1)) + 1, np.bool_)
        numbers = np.array(self.hosts.below(domain), np.int64)
        inside[numbers[numbers < len(inside)]] = True
        mask: Bools = inside[self.host]
        return mask

    def of_state(self, name: str) -> Bools:
        """Return a mask of the pages that were never read (unread), were read, or may not be read (excluded)."""
        excluded, opened = (self.state & Flag.EXCLUDED) != 0, (self.state & Flag.OPEN) != 0
        masks: dict[str, Bools] = {"excluded": excluded, "read": opened & ~excluded, "unread": ~opened & ~excluded}
        return masks[name]

    @property
    def sites(self) -> Sites:
        """Page counts and score sums by host."""
        return self._keep("sites", lambda: Sites.of(self.host, self.live, (self.state & Flag.OPEN) != 0))

    @property
    def domains(self) -> tuple[Sites, list[str], Int64s]:
        """Pages and score sums by registered domain, the domains' names, and how many hosts with pages each has."""

        def work_out() -> tuple[Sites, list[str], Int64s]:
            host, with_pages = self.host, self.sites.order
            of_host, names = self.hosts.domains()
            counts = np.bincount(of_host[with_pages], minlength=len(names))
            return Sites.of(of_host[host], self.live, (self.state & Flag.OPEN) != 0), names, counts

        return self._keep("domains", work_out)
