"""Host index: crawl-wide host numbers and names, and the page counts and scores of each host.

A shard numbers its hosts in the order in which it first saw them. All pages of a host are in one shard, so the
crawl-wide number of a host is its number in the shard times the number of shards, plus the shard's number. It does not
change until the shard is reloaded. The hosts of a registered domain may be in several shards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Float64s, Int32s, Int64s, Uint32s
from opic.replica.hosts import HostTable
from opic.replica.replica import Replica
from opic.urls.canonical import shard_of

N = TypeVar("N", bound=np.generic)


class HostNames:
    """Host names by number; "" for an unused number."""

    def __init__(self, replicas: Sequence[Replica], tables: Sequence[HostTable] | None = None) -> None:
        """Wrap the host tables of the replicas; hosts added later are included.

        Args:
            replicas: the replicas of the crawl.
            tables: their host tables at an earlier moment, if a replica may have been reloaded since; the current
                ones if None.
        """
        self._tables = [replica.hosts for replica in replicas] if tables is None else list(tables)
        self._locks = [replica.lock for replica in replicas]

    def __len__(self) -> int:
        """Return a number larger than every host number."""
        return len(self._tables) * max(map(len, self._tables))

    def __getitem__(self, number: int) -> str:
        row, shard = divmod(number, len(self._tables))
        names = self._tables[shard].names
        return names[row] if row < len(names) else ""

    def __eq__(self, other: object) -> bool:
        """Return whether both wrap the same tables, so that numbers mean the same hosts."""
        return isinstance(other, HostNames) and all(a is b for a, b in zip(self._tables, other._tables, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def numbers(self, columns: Sequence[Uint32s]) -> Int32s:
        """Convert the shards' columns of host numbers to crawl-wide numbers, concatenated by shard."""
        shards = len(self._tables)
        if shards == 1:
            return columns[0].view(np.int32)
        return joined([column.astype(np.int32) * shards + shard for shard, column in enumerate(columns)])

    def number(self, host: str) -> int | None:
        """Return a host's number, or None if it has no known page."""
        shard = shard_of(host, len(self._tables))
        number = self._tables[shard].number(host)
        return None if number is None else number * len(self._tables) + shard

    def domains(self) -> tuple[Int32s, list[str]]:
        """Return the number of each host's registered domain, 0 for an unused host number, and the domains' names."""
        domains = np.zeros(len(self), np.int32)
        shards, numbers = len(self._tables), dict[str, int]()
        for shard, (table, lock) in enumerate(zip(self._tables, self._locks, strict=True)):
            with lock:
                own, names = table.domains.copy(), table.domain_names
            merged = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int32)
            rows = domains[shard::shards]  # The table may have grown since `domains` was made.
            rows[: len(own)] = merged[own[: len(rows)]]
        return domains, list(numbers)

    def below(self, domain: str) -> list[int]:
        """Return the numbers of a host or domain and of all its subdomains."""
        shards, numbers = len(self._tables), list[int]()
        for shard, (table, lock) in enumerate(zip(self._tables, self._locks, strict=True)):
            with lock:
                numbers += [n * shards + shard for n in table.below(domain)]
        return numbers


@dataclass(frozen=True, slots=True)
class Sites:
    """Counts of live pages by site, a host or a registered domain. `pages`, `read_pages` are indexed by its number."""

    pages: Int64s  # Number of live pages,
    read_pages: Int64s  # and how many of them were read.
    order: Int64s  # Sites that have live pages, ordered by the position of their first page; the same for all callers.
    site: Int32s  # (n,), the site's number of each page.

    @classmethod
    def of(cls, site: Int32s, live: Bools, opened: Bools) -> "Sites":
        """Count the pages of each site."""
        count = int(site.max(initial=-1)) + 1
        pages = np.bincount(site[live], minlength=count)
        first = np.zeros(count, np.int64)
        first[site[::-1]] = np.arange(len(site))[::-1]  # The last write per site is its first page.
        order = np.argsort(first, kind="stable")
        return cls(pages, np.bincount(site[live & opened], minlength=count), order[pages[order] > 0], site)

    def sums(self, scores: Int64s | Float64s) -> Int64s | Float64s:
        """Return the sum of the scores of each site's pages; negative scores count as 0."""
        sums: np.ndarray = np.zeros(len(self.pages), scores.dtype)
        np.add.at(sums, self.site, np.maximum(scores, 0))  # Integers stay integers: a double can't hold the sum.
        return sums


def joined(parts: Sequence[NDArray[N]]) -> NDArray[N]:
    """Concatenate the columns of shards; a single column is returned without a copy."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def frozen(column: NDArray[N]) -> NDArray[N]:
    """Make a column read-only and return it."""
    column.flags.writeable = False
    return column
