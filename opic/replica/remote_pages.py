"""Remote pages: temporary numbers for pages of other shards that a worker's links lead to, and the cash owed to them.

Such a page has no id in this shard. A worker gives it a number, so that deposits over thousands of links are summed in
numpy, as for pages of the shard. The numbers mean nothing outside the worker, and it clears them when there are too
many. The writers of all shards, which take turns, share one table: a page has the same number whichever shard links to
it, and its URL is parsed once.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.model.transfer import Transfer, far_number
from opic.replica.index import FingerprintIndex
from opic.urls.canonical import host_of, registered_domain, shard_of

FAR: Final = 1 << 39  # Numbers start here: above all ids of a shard, below the bits of the event's position.
FAR_MAX: Final = 1 << 20  # About 260 bytes each.
MISSING: Final = -1
Int64s = NDArray[np.int64]
AUTHORITIES_MAX: Final = 1_000_000  # Cached authorities (host, port, user) with their domains.


class Domains:
    """Numbers of registered domains. Pages of one domain have the same number."""

    def __init__(self) -> None:
        """Start empty."""
        self._domains: dict[str, int] = {}
        self._by_authority: dict[str, int] = {}  # As written in canonical URLs.

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
    """Numbers of pages in other shards, and the sums owed to them. The sums are zero between batches."""

    def __init__(self, shards: int) -> None:
        """Start empty, for a crawl of `shards` shards."""
        self._shards, self.domains = shards, Domains()
        self._number: dict[str, int] = {}
        self.clear()

    def clear(self) -> None:
        """Discard all numbers. Callers must discard the numbers that they hold."""
        self._number.clear()
        self._links = FingerprintIndex()  # Fingerprints of links as given,
        self._linked = np.zeros(0, np.int64)  # and the numbers of their pages.
        self._urls: list[str] = []
        self._shard, self.domain = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self.digest = np.zeros(0, np.int64)
        self.grains, self.inflow, self.at_us, self.nearness = (np.zeros(0, np.int64) for _ in range(4))

    def __len__(self) -> int:
        """Return how many pages have a number."""
        return len(self._urls)

    def number(self, url: str) -> int:
        """Return the number of a page, FAR or above; a page not seen before gets a new one."""
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

    def urls_of(self, numbers: Sequence[int]) -> list[str]:
        """Return the URLs of pages; `numbers` are less FAR."""
        return [self._urls[number] for number in numbers]

    def shards_of(self, numbers: Int64s) -> "NDArray[np.int32]":
        """Return the shards of pages; `numbers` are less FAR."""
        return self._shard[numbers]

    def find(self, fingerprints: "NDArray[np.uint64]", shard: int) -> Int64s:
        """Return the numbers of links; MISSING for a link not seen before or to a page of `shard`."""
        places = self._links.find(fingerprints)
        if not len(self._urls):
            return places
        numbers = np.where(places < 0, MISSING, self._linked[places])
        numbers[self._shard[np.maximum(numbers - FAR, 0)] == shard] = MISSING
        return numbers

    def put(self, fingerprints: "NDArray[np.uint64]", numbers: Int64s) -> None:
        """Store the numbers of links by their fingerprints."""
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
        for name in ("_shard", "domain", "digest", "grains", "inflow", "at_us", "nearness"):
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def drop(self) -> None:
        """Reset all sums to zero."""
        for column in (self.grains, self.inflow, self.at_us, self.nearness):
            column[:] = 0

    def take(self, numbers: Int64s, time_us: int) -> dict[int, Transfer]:
        """Return the sums owed to pages, as one transfer per shard, and reset them to zero.

        Args:
            numbers: numbers of the pages minus FAR, distinct.
            time_us: time of the last record.
        """
        order = numbers[np.argsort(self._shard[numbers], kind="stable")]
        edges = np.flatnonzero(np.diff(self._shard[order])) + 1
        transfers = {}
        for pages in np.split(order, edges) if len(order) else ():
            urls: Sequence[str] = [self._urls[at] for at in pages.tolist()]
            columns = (self.grains[pages], self.inflow[pages], self.at_us[pages], self.nearness[pages])
            transfers[int(self._shard[pages[0]])] = Transfer(time_us, 0, urls, *columns)
        for column in (self.grains, self.inflow, self.at_us, self.nearness):
            column[order] = 0
        return transfers
