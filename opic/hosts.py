"""What the URLs of a crawl say: the host of every page, and which page a URL is. Read as pages become known.

A million URLs are read in about a second and a half, once, and take 16 bytes each here: 4 for the host, 12 for the way
from the URL to the page. An id never changes within an era of the store; in another one all of this is read anew.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from opic.store import Crawl, Shard
from opic.store.columns import Int64s
from opic.store.crawl import Place
from opic.store.keys import ROWS_URLS
from opic.store.links import hashes
from opic.texts import Texts
from opic.urls import host_of

Int32s = NDArray[np.int32]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
N = TypeVar("N", bound=np.generic)

URL_BLOCKS_A_CALL: Final = 64
DOMAINS_KEPT_MAX: Final = 64  # Domains whose hosts are remembered.
READ_AT_ONCE: Final = URL_BLOCKS_A_CALL * ROWS_URLS
RUNS_RATIO: Final = 2  # A run of hashes is merged with the one before unless that is so many times as long.


class Hosts:
    """The host of every page as a number, and the page of every URL, as far as pages were read. It only grows."""

    def __init__(self, crawl: Crawl, eras: tuple[bytes, ...] | None = None) -> None:
        """Nothing is read until a host is asked for; `eras` of the shards are those for which all this is true."""
        self._crawl, self.eras = crawl, eras
        self.names: list[str] = []
        self._number: dict[str, int] = {}
        self._by_authority: dict[str, int] = {}
        self._columns = [_HostColumn(shard) for shard in crawl.shards]
        self._domains: dict[str, tuple[int, list[int]]] = {}
        self._lock = threading.Lock()

    def of_pages(self, pages: Sequence[int]) -> Int32s:
        """Return the host numbers of the pages of each shard with ids below `pages`, one shard after the other."""
        with self._lock:
            parts = [column.read(n, self._numbers_of) for column, n in zip(self._columns, pages, strict=True)]
        return frozen(joined(parts))

    def behind(self, pages: Sequence[int]) -> int:
        """Return how many of the pages of each shard with ids below `pages` were not read yet."""
        return sum(max(0, n - column.pages) for column, n in zip(self._columns, pages, strict=True))

    def read_some(self, pages: Sequence[int]) -> bool:
        """Read up to READ_AT_ONCE more of these pages, some 30 ms; return whether there were any."""
        with self._lock:
            for column, n in zip(self._columns, pages, strict=True):
                if column.pages < n:
                    column.read(min(n, column.pages + READ_AT_ONCE), self._numbers_of)
                    return True
        return False

    def _numbers_of(self, urls: Sequence[str]) -> list[int]:
        authorities, known = Texts(urls).authorities(), self._by_authority
        unknown = {authority: url for authority, url in zip(authorities, urls, strict=True) if authority not in known}
        new = {authority: self._number_of(url, authority) for authority, url in unknown.items()}
        return [known[authority] if authority in known else new[authority] for authority in authorities]

    def _number_of(self, url: str, authority: str) -> int:
        host = host_of(url)
        number = self._number.setdefault(host, len(self.names))
        if number == len(self.names):
            self.names.append(host)
        if "@" not in authority:  # A site may make up any number of users.
            self._by_authority[authority] = number
        return number

    def places_of(self, urls: Sequence[str]) -> list[Place | None]:
        """Return where the pages of canonical URLs are, as far as URLs were read; None for one that was not.

        By Python's own hash, 64 bits under a key of this process: one false match in 10^12 asked for, of 10^7 pages.
        """
        shards = [self._crawl.shard_of(url).number for url in urls] if len(self._crawl) > 1 else [0] * len(urls)
        hashed, of = hashes(urls), np.array(shards)
        found: list[Place | None] = [None] * len(urls)
        for shard in set(shards):
            at = np.flatnonzero(of == shard)
            for i, page in zip(at.tolist(), self._columns[shard].ids.find(hashed[at]).tolist(), strict=True):
                if page >= 0:
                    found[i] = (shard, page)
        return found

    def number(self, host: str) -> int | None:
        """Return a host's number, or None if no page seen so far is there."""
        return self._number.get(host)

    def below(self, domain: str) -> list[int]:
        """Return the numbers of a host or domain and of all hosts below it."""
        with self._lock:
            seen, numbers = self._domains.pop(domain, (0, []))
            suffix = "." + domain
            new = [i for i, h in enumerate(self.names[seen:], seen) if h == domain or h.endswith(suffix)]
            found = (len(self.names), numbers + new)
            self._domains[domain] = found  # Last in, so that the first one is the longest unused.
            if len(self._domains) > DOMAINS_KEPT_MAX:
                del self._domains[next(iter(self._domains))]
        return found[1]


class _HostColumn:
    """The host numbers of a shard's pages, by id."""

    def __init__(self, shard: Shard) -> None:
        self._shard, self.ids = shard, Ids()
        self._of_page = np.zeros(0, np.int32)
        self.pages = 0

    def read(self, pages: int, numbers_of: Callable[[Sequence[str]], list[int]]) -> Int32s:
        if pages > len(self._of_page):
            # A new array: whoever holds a view of the old one keeps what he saw.
            grown = np.zeros(max(pages, 2 * len(self._of_page)), np.int32)
            grown[: self.pages] = self._of_page[: self.pages]
            self._of_page = grown
        step = READ_AT_ONCE
        while self.pages < pages:
            ids = range(self.pages, min(pages, (self.pages // step + 1) * step))
            urls = self._shard.urls_in(ids)
            self._of_page[ids.start : ids.stop] = numbers_of(urls)
            self.ids.add(hashes(urls), ids.start)
            self.pages = ids.stop
        return self._of_page[:pages]


class Ids:
    """The way from hashes of strings to ids: runs of sorted hashes, few since short ones are merged.

    >>> ids = Ids()
    >>> ids.add(np.array([30, 10, 20]), first=0)
    >>> ids.find(np.array([10, 11, 30]))
    array([ 1, -1,  0])
    """

    def __init__(self) -> None:
        """Start empty."""
        self._runs: tuple[tuple[Int64s, Int32s], ...] = ()

    def add(self, hashed: Int64s, first: int) -> None:
        """Add strings with ids from `first` on; whoever looks meanwhile finds what there was before."""
        order = np.argsort(hashed)
        runs = [*self._runs, (hashed[order], (first + order).astype(np.int32))]
        while len(runs) > 1 and len(runs[-2][0]) <= RUNS_RATIO * len(runs[-1][0]):
            (new, new_ids), (old, old_ids) = runs.pop(), runs.pop()
            whole = np.concatenate((old, new))
            order = np.argsort(whole, kind="stable")  # Which is quick where two runs are sorted already.
            runs.append((whole[order], np.concatenate((old_ids, new_ids))[order]))
        self._runs = tuple(runs)

    def find(self, hashed: Int64s) -> Int64s:
        """Return the id of each hash, -1 for one that is not there."""
        found = np.full(len(hashed), -1)
        for run, ids in self._runs:
            at = np.searchsorted(run, hashed).clip(max=max(len(run) - 1, 0))
            if len(run):
                found = np.where(run[at] == hashed, ids[at], found)
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
