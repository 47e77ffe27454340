"""Hosts of all shards of a crawl as numbers, and what belongs to each host.

A shard numbers its hosts in order of first sight. All pages of a host are in one shard, so over the crawl a host's
number is that number times the shards, plus the shard: it never changes while the shard is not loaded anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from opic.replica.hosts import HostTable
from opic.replica.replica import Replica
from opic.urls.canonical import shard_of

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
N = TypeVar("N", bound=np.generic)


class HostNames(Sequence[str]):
    """Host names by number; "" for a number that no host has."""

    def __init__(self, replicas: Sequence[Replica], tables: Sequence[HostTable] | None = None) -> None:
        """Show the hosts that the replicas know now, and those that come.

        Args:
            replicas: of the crawl.
            tables: theirs of a moment ago, where one may have been loaded anew since; those of now, if None.
        """
        self._tables = [replica.hosts for replica in replicas] if tables is None else list(tables)
        self._locks = [replica.lock for replica in replicas]

    def __len__(self) -> int:
        """Return a number that is over all hosts'."""
        return len(self._tables) * max(map(len, self._tables))

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        """Return a host's name."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        at, shard = divmod(number, len(self._tables))
        names = self._tables[shard].names
        return names[at] if at < len(names) else ""

    def __eq__(self, other: object) -> bool:
        """Equal to the same tables: numbers mean the same hosts then."""
        return isinstance(other, HostNames) and all(a is b for a, b in zip(self._tables, other._tables, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def numbers(self, columns: Sequence[NDArray[np.uint32]]) -> Int32s:
        """Return the numbers of pages' hosts from the shards' own, one shard after the other."""
        shards = len(self._tables)
        if shards == 1:
            return columns[0].view(np.int32)
        return joined([column.astype(np.int32) * shards + at for at, column in enumerate(columns)])

    def number(self, host: str) -> int | None:
        """Return a host's number, or None if no known page is there."""
        shard = shard_of(host, len(self._tables))
        found = self._tables[shard].number(host)
        return None if found is None else found * len(self._tables) + shard

    def below(self, domain: str) -> list[int]:
        """Return the numbers of a host or domain and of all hosts below it."""
        shards, found = len(self._tables), list[int]()
        for at, (table, lock) in enumerate(zip(self._tables, self._locks, strict=True)):
            with lock:
                found += [n * shards + at for n in table.below(domain)]
        return found


@dataclass(frozen=True, slots=True)
class Sites:
    """The live pages of hosts. Arrays are by the number of a host."""

    pages: Int64s  # How many it has,
    read_pages: Int64s  # and how many of them were read.
    order: Int64s  # Hosts that have any, by the position of their first: the same for all who look.
    host: Int32s  # (n,), of each page.

    @classmethod
    def of(cls, host: Int32s, live: Bools, opened: Bools) -> "Sites":
        """Count the pages of hosts."""
        count = int(host.max(initial=-1)) + 1
        pages = np.bincount(host[live], minlength=count)
        first = np.zeros(count, np.int64)
        first[host[::-1]] = np.arange(len(host))[::-1]  # Of several the last one written stays: the first.
        order = np.argsort(first, kind="stable")
        return cls(pages, np.bincount(host[live & opened], minlength=count), order[pages[order] > 0], host)

    def sums(self, scores: Int64s | Floats) -> Int64s | Floats:
        """Return the sum of the scores of each host's pages; negative ones count nothing."""
        sums: np.ndarray = np.zeros(len(self.pages), scores.dtype)
        np.add.at(sums, self.host, np.maximum(scores, 0))  # In whole grains where they are: no double holds them.
        return sums


def joined(parts: Sequence[NDArray[N]]) -> NDArray[N]:
    """Put columns of shards one after the other; that of one is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def frozen(column: NDArray[N]) -> NDArray[N]:
    """Let nobody write to a column."""
    column.flags.writeable = False
    return column
