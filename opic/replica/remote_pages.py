"""Remote pages: temporary numbers for pages of other shards that a worker's links lead to, and the cash owed to them.

Such a page has no id in this shard. A worker gives it a number, so that deposits over thousands of links are summed in
numpy, as for pages of the shard. The numbers mean nothing outside the worker, and it clears them when there are too
many. The writers of all shards, which take turns, share one table: a page has the same number whichever shard links to
it, and its URL is parsed once.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from opic.arrays import Int32s, Int64s, Uint64s, distinct
from opic.model.transfer import Transfer, far_numbers
from opic.replica.columns import Growing
from opic.replica.index import FingerprintIndex, in_order
from opic.urls.canonical import host_of, registered_domain, shard_of
from opic.urls.url_batch import UrlBatch

FAR: Final = 1 << 39  # Numbers start here: above all ids of a shard, below the bits of the event's position.
FAR_MAX: Final = 1 << 20  # About 260 bytes each.
MISSING: Final = -1
DOMAIN_BITS: Final = 32
OWED: Final = ("grains", "inflow", "at_us", "nearness")  # As `Transfer` has them.
AUTHORITIES_MAX: Final = 1_000_000  # Cached authorities (host, port, user) with their shards and domains.


class RemotePages(Growing):
    """Numbers of pages in other shards, and the sums owed to them. The sums are zero between batches."""

    COLUMNS = (
        ("_shard", "i4"), ("domain", "i4"), ("digest", "i8"), ("fingerprint", "u8"), ("grains", "i8"), ("inflow", "i8"),
        ("at_us", "i8"), ("nearness", "i8"),
    )  # fmt: skip
    domain: Int32s
    digest: Int64s
    fingerprint: Uint64s
    grains: Int64s
    inflow: Int64s
    at_us: Int64s
    nearness: Int64s
    _shard: Int32s

    def __init__(self, shards: int) -> None:
        """Start empty, for a crawl of `shards` shards."""
        self._shards = shards
        self._domains: dict[str, int] = {}  # Numbers of registered domains.
        self._by_authority: dict[str, int] = {}  # The shard and the domain of an authority, as canonical URLs have it.
        self.clear()

    def clear(self) -> None:
        """Discard all numbers. Callers must discard the numbers that they hold."""
        self._links = FingerprintIndex()  # Fingerprints of links, as given and canonical,
        self._linked = np.zeros(0, np.int64)  # and the numbers of their pages.
        self._urls: list[str] = []
        super().__init__()

    def __len__(self) -> int:
        return len(self._urls)

    def resolve(self, urls: Sequence[str], fingerprints: Uint64s, shard: int) -> Int64s:
        """Return the numbers of canonical URLs, FAR or above; MISSING for those of pages of `shard`.

        Args:
            urls: canonical; pages not seen before get the next numbers, in this order.
            fingerprints: of these URLs.
            shard: whose pages are not remote.
        """
        shards, domains = self._places(urls)
        numbers = np.full(len(urls), MISSING)
        away = np.flatnonzero(shards != shard)
        rows = self._links.find(fingerprints[away])
        known = rows >= 0
        numbers[away[known]] = self._linked[rows[known]]
        new = away[~known]
        if len(new):
            first, same_as = in_order(fingerprints[new])
            numbers[new] = FAR + len(self._urls) + same_as
            once = new[first]
            self._add([urls[i] for i in once.tolist()], fingerprints[once], shards[once], domains[once])
        return numbers

    def _add(self, urls: Sequence[str], fingerprints: Uint64s, shards: Int64s, domains: Int64s) -> None:
        """Give pages the next numbers."""
        first, end = len(self._urls), len(self._urls) + len(urls)
        self.reserve(end)
        self._urls += urls
        self._shard[first:end], self.domain[first:end] = shards, domains
        self.digest[first:end], self.fingerprint[first:end] = far_numbers(urls), fingerprints
        self._link(fingerprints, np.arange(FAR + first, FAR + end))

    def _places(self, urls: Sequence[str]) -> tuple[Int64s, Int64s]:
        """Return the shards of canonical URLs and the numbers of their domains."""
        known, authorities = self._by_authority, UrlBatch(urls).authorities()
        for index, authority in enumerate(authorities):
            if authority not in known:
                host = host_of(urls[index])
                known[authority] = shard_of(host, self._shards) << DOMAIN_BITS | self.domain_of(host)
        places = np.array([known[authority] for authority in authorities], np.int64)
        if len(known) > AUTHORITIES_MAX:
            known.clear()
        return places >> DOMAIN_BITS, places & (1 << DOMAIN_BITS) - 1

    def domain_of(self, host: str) -> int:
        """Return the number of the registered domain of a host."""
        return self._domains.setdefault(registered_domain(host), len(self._domains))

    def shards_of(self, numbers: Int64s) -> Int32s:
        """Return the shards of pages; `numbers` are less FAR."""
        return self._shard[numbers]

    def find(self, fingerprints: Uint64s, shard: int) -> Int64s:
        """Return the numbers of links; MISSING for a link not seen before or to a page of `shard`."""
        places = self._links.find(fingerprints)
        if not len(self._urls):
            return places
        numbers = np.where(places < 0, MISSING, self._linked[places])
        numbers[self._shard[np.maximum(numbers - FAR, 0)] == shard] = MISSING
        return numbers

    def put(self, fingerprints: Uint64s, numbers: Int64s) -> None:
        """Store the numbers of links by their fingerprints."""
        new, first = np.unique(fingerprints, return_index=True)
        missing = self._links.find(new) < 0
        self._link(new[missing], numbers[first[missing]])

    def _link(self, fingerprints: Uint64s, numbers: Int64s) -> None:
        """Store the numbers of links; the fingerprints are distinct and unknown."""
        start = len(self._links)
        self._links.append(fingerprints)
        if len(self._links) > len(self._linked):
            self._linked = np.concatenate((self._linked, np.zeros(len(self._links), np.int64)))
        self._linked[start : len(self._links)] = numbers

    def paid(
        self, sent: Sequence[Int64s], owed: Sequence[tuple[int, int, int, int, int]], time_us: int, *, inflow: bool
    ) -> dict[int, Transfer]:
        """Return what reads paid, as one transfer for each shard; the deposits for a page are combined.

        Args:
            sent: per read, the pages that it links to, less FAR,
            owed: and what each of them is owed: grains, fetch time, nearness, the domain it comes from; their number.
            time_us: time of the last record.
            inflow: whether in-flow is counted.
        """
        if not owed:
            return {}
        far = np.concatenate(sent)
        *columns, counts = np.array(owed, np.int64).T
        grains, at_us, nearness, domains = (np.repeat(column, counts) for column in columns)
        np.add.at(self.grains, far, grains)
        np.maximum.at(self.at_us, far, at_us)
        if nearness.any():
            np.maximum.at(self.nearness, far, nearness)
        if inflow:
            across = self.domain[far] != domains
            np.add.at(self.inflow, far[across], grains[across])
        return self._take(distinct(far), time_us)

    def drop(self) -> None:
        """Reset all sums to zero."""
        for name in OWED:
            getattr(self, name)[:] = 0

    def _take(self, numbers: Int64s, time_us: int) -> dict[int, Transfer]:
        """Return the sums owed to distinct pages, as one transfer per shard, and reset them to zero."""
        order = numbers[np.argsort(self._shard[numbers], kind="stable")]
        edges = np.flatnonzero(np.diff(self._shard[order])) + 1
        transfers = {}
        for pages in np.split(order, edges) if len(order) else ():
            urls: Sequence[str] = [self._urls[page] for page in pages.tolist()]
            columns = (getattr(self, name)[pages] for name in OWED)
            transfers[int(self._shard[pages[0]])] = Transfer(time_us, 0, urls, *columns)
        for name in OWED:
            getattr(self, name)[order] = 0
        return transfers
