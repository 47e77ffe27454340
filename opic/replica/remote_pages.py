"""Pages of other shards that a worker's links lead to: what a step owes them, by numbers that mean nothing elsewhere.

Such a page has no id here. A worker gives it a number, so that sums over thousands of links are taken in numpy, as for
pages of the shard; and forgets all numbers now and then, since the web has no end. The writers of all shards, which
step in turn, share one table: a page has the same number whoever links to it, and is parsed once.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.model.transfer import Transfer, far_number
from opic.replica.index import FingerprintIndex
from opic.urls.canonical import host_of, registered_domain, shard_of

FAR: Final = 1 << 39  # Numbers start here: over all ids of a shard, below what stands above them in a batch.
FAR_MAX: Final = 1 << 20  # About 250 bytes each.
MISSING: Final = -1
Int64s = NDArray[np.int64]
AUTHORITIES_MAX: Final = 1_000_000  # Hosts, with port and user, whose domain is remembered.


class Domains:
    """Numbers of registered domains, which two pages of one domain share."""

    def __init__(self) -> None:
        """Know none yet."""
        self._domains: dict[str, int] = {}
        self._by_authority: dict[str, int] = {}  # As it stands in canonical URLs.

    def number(self, url: str) -> int:
        """Return the number of the domain of a canonical URL."""
        authority = url.split("/", 3)[2]
        number = self._by_authority.get(authority)
        if number is None:
            number = self._by_authority[authority] = self.of_host(host_of(url))
            if len(self._by_authority) > AUTHORITIES_MAX:
                self._by_authority.clear()
        return number

    def of_host(self, host: str) -> int:
        """Return the number of the domain of a host."""
        return self._domains.setdefault(registered_domain(host), len(self._domains))


class RemotePages:
    """Numbers of pages in other shards, and sums for them, which are zero between batches."""

    def __init__(self, shards: int) -> None:
        """Know no page yet; of a crawl of so many shards."""
        self._shards, self.domains = shards, Domains()
        self._number: dict[str, int] = {}
        self.clear()

    def clear(self) -> None:
        """Forget all numbers. Whoever kept some must forget them too."""
        self._number.clear()
        self._links = FingerprintIndex()  # Of strings as they came,
        self._linked = np.zeros(0, np.int64)  # and the numbers of their pages.
        self._urls: list[str] = []
        self._shard, self.domain = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self.digest = np.zeros(0, np.int64)
        self.grains, self.inflow, self.at_us = (np.zeros(0, np.int64) for _ in range(3))

    def __len__(self) -> int:
        """Count the numbers given."""
        return len(self._urls)

    def number(self, url: str) -> int:
        """Return the number of a page, over FAR; a new one for a page not seen so far."""
        number = self._number.get(url)
        if number is None:
            at = len(self._urls)
            if at == len(self._shard):
                self._grow()
            number = self._number[url] = FAR + at
            self._urls.append(url)
            self._shard[at] = shard_of(host_of(url), self._shards)
            self.domain[at] = self.domains.number(url)
            self.digest[at] = far_number(url)
        return number

    def find(self, fingerprints: "NDArray[np.uint64]", shard: int) -> Int64s:
        """Return the numbers of links: MISSING for one not seen so far, or whose page is in `shard`."""
        places = self._links.find(fingerprints)
        if not len(self._urls):
            return places
        numbers = np.where(places < 0, MISSING, self._linked[places])
        numbers[self._shard[np.maximum(numbers - FAR, 0)] == shard] = MISSING
        return numbers

    def put(self, fingerprints: "NDArray[np.uint64]", numbers: Int64s) -> None:
        """Keep the numbers of links by their fingerprints."""
        new, first = np.unique(fingerprints, return_index=True)
        missing = self._links.find(new) < 0
        new, first = new[missing], first[missing]
        at = len(self._links)
        self._links.append(new)
        if len(self._links) > len(self._linked):
            self._linked = np.concatenate((self._linked, np.zeros(len(self._links), np.int64)))
        self._linked[at : len(self._links)] = numbers[first]

    def _grow(self) -> None:
        size = max(1024, 2 * len(self._shard))
        for name in ("_shard", "domain", "digest", "grains", "inflow", "at_us"):
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def drop(self) -> None:
        """Take all sums back to zero."""
        for column in (self.grains, self.inflow, self.at_us):
            column[:] = 0

    def take(self, numbers: Int64s, time_us: int) -> dict[int, Transfer]:
        """Return what some pages are owed, by shard, and take their sums back to zero.

        Args:
            numbers: distinct, less FAR.
            time_us: of the last record.
        """
        order = numbers[np.argsort(self._shard[numbers], kind="stable")]
        edges = np.flatnonzero(np.diff(self._shard[order])) + 1
        found = {}
        for some in np.split(order, edges) if len(order) else ():
            urls: Sequence[str] = [self._urls[at] for at in some.tolist()]
            columns = (self.grains[some], self.inflow[some], self.at_us[some])
            found[int(self._shard[some[0]])] = Transfer(time_us, 0, urls, *columns)
        for column in (self.grains, self.inflow, self.at_us):
            column[order] = 0
        return found
