"""Where the pages of a crawl are in another one: the shard of each page's host there, and its number in that shard.

Pages keep their order: that of the source, where that is one shard; else the order in which they became known, to the
minute, since the shards' own orders say nothing of each other. Where the number of shards stays, and no page is left
out, so do the numbers. Pages that become known while the crawl is copied come behind those placed before, so no number
changes. A forgotten page to which a kept link leads is carried along. One to which none does is left out, unless it
becomes known while the crawl is copied: this gives its number back.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int64s, Uint16s, Uint32s
from opic.model.cash import FORGOTTEN
from opic.model.page_links import picked
from opic.replica.known_since import KnownSince
from opic.replica.page_columns import BY_NAME
from opic.replica.replica import Replica
from opic.urls.canonical import shard_of

NO_PLACE: Final = -1  # Instead of a number.


class Places:
    """The places of all pages of a crawl. Pages of the source have one number each: shard after shard, by id.

    These numbers are valid until `extend`.
    """

    def __init__(self, source: Sequence[Replica], shards: int) -> None:
        """Place no page yet.

        Args:
            source: the replicas of the crawl's shards.
            shards: the number of shards of the other crawl.
        """
        self.source, self.shards = source, shards
        self.first = np.zeros(len(source) + 1, np.int64)  # The number of the first page of each shard; then of pages.
        self.shard: Uint16s = np.zeros(0, np.uint16)  # By page: its shard there,
        self.id: Int64s = np.zeros(0, np.int64)  # and its number in it.
        self.pages: list[Int64s] = [
            np.zeros(0, np.int64) for _ in range(shards)
        ]  # By shard there: its pages, in order.
        self._by_host: list[Uint16s] = [np.zeros(0, np.uint16) for _ in source]
        self.left_out = 0  # Forgotten pages that have no place.

    @property
    def stay(self) -> bool:
        """Whether each page has the number in its shard that it has in the source."""
        return self.shards == len(self.source) and not self.left_out

    def extend(
        self, counts: Sequence[int], since: Sequence[KnownSince], spared: Sequence[Int64s], *, leave_out: bool = False
    ) -> None:
        """Place the pages that have become known.

        Args:
            counts: of pages of each shard; they may lag behind the replicas.
            since: when pages became known, for each shard.
            spared: by shard, pages that get a place even if they are forgotten, in any order.
            leave_out: give no place to other forgotten pages among those that are new. Only in the first call.
        """
        before = self.first
        self.first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        shard, number = np.zeros(self.first[-1], np.uint16), np.full(self.first[-1], NO_PLACE)
        moved = self.first[:-1] - before[:-1]
        self.pages = [pages + moved[np.searchsorted(before, pages, side="right") - 1] for pages in self.pages]
        new, seconds = [], []
        for index, replica in enumerate(self.source):
            old = int(before[index + 1] - before[index])
            kept = slice(int(before[index]), int(before[index + 1]))
            shard[self.first[index] : self.first[index] + old] = self.shard[kept]
            number[self.first[index] : self.first[index] + old] = self.id[kept]
            wanted = np.zeros(counts[index], np.bool_)
            wanted[old:] = replica.state[old : counts[index]] != FORGOTTEN if leave_out else True
            wanted[spared[index][spared[index] < counts[index]]] = True
            here = number[self.first[index] : self.first[index] + counts[index]]
            ids = np.flatnonzero(wanted & (here == NO_PLACE))
            shard[self.first[index] + ids] = self._of_hosts(index)[replica.host[ids]]
            new.append(self.first[index] + ids)
            seconds.append(since[index].seconds_of(ids))
        pages = np.concatenate(new)
        stays = len(self.source) in (1, self.shards)
        order = (
            np.argsort(shard[pages], kind="stable") if stays else np.lexsort((np.concatenate(seconds), shard[pages]))
        )
        pages = pages[order]
        edges = np.searchsorted(shard[pages], np.arange(self.shards + 1))
        for to in range(self.shards):
            some = pages[edges[to] : edges[to + 1]]
            number[some] = len(self.pages[to]) + np.arange(len(some))
            self.pages[to] = np.concatenate((self.pages[to], some))
        self.shard, self.id = shard, number
        if leave_out:
            self.left_out = int(np.count_nonzero(number == NO_PLACE))

    def _of_hosts(self, shard: int) -> Uint16s:
        """Return the shard there of each host of a shard."""
        known, names = self._by_host[shard], self.source[shard].hosts.names
        more = np.array([shard_of(name, self.shards) for name in names[len(known) :]], np.uint16)
        self._by_host[shard] = np.concatenate((known, more))
        return self._by_host[shard]

    def count(self, shard: int) -> int:
        """Return how many pages of a shard of the source are placed."""
        return int(self.first[shard + 1] - self.first[shard])

    def has(self, shard: int, ids: NDArray[Any]) -> Bools:
        """Return a mask of those pages of a shard of the source that have a place; an id may be too large."""
        there: Bools = (ids >= 0) & (ids < self.count(shard))
        there[there] = self.id[self.number(shard, ids[there])] != NO_PLACE
        return there

    def number(self, shard: int, ids: NDArray[Any]) -> Int64s:
        """Return the numbers of pages of a shard of the source."""
        numbers: Int64s = self.first[shard] + ids.astype(np.int64)
        return numbers

    def split(self, pages: Int64s) -> list[tuple[int, Int64s, Uint32s]]:
        """Return for each shard of the source that has some of the pages: where they are in `pages`, and their ids."""
        shard_of = np.searchsorted(self.first, pages, side="right") - 1
        parts = ((shard, np.flatnonzero(shard_of == shard)) for shard in range(len(self.source)))
        return [
            (shard, positions, (pages[positions] - self.first[shard]).astype(np.uint32))
            for shard, positions in parts
            if len(positions)
        ]

    def gathered(self, pages: Int64s, dtype: Any, read_values: Callable[[int, Uint32s], NDArray[Any]]) -> NDArray[Any]:
        """Return values of pages, (n,), given a function that takes a shard of the source and ids."""
        values = np.zeros(len(pages), dtype)
        for shard, positions, ids in self.split(pages):
            values[positions] = read_values(shard, ids)
        return values

    def column(self, name: str, pages: Int64s) -> NDArray[Any]:
        """Return what the columns of the source have of pages, (n,), with 0 for the default of a sparse one."""
        return self.gathered(
            pages, BY_NAME[name].dtype, lambda shard, ids: self.source[shard].columns.stored(name, ids)
        )

    def prints(self, pages: Int64s) -> NDArray[np.uint64]:
        """Return the fingerprints of pages, (n,)."""
        return self.gathered(pages, np.uint64, lambda shard, ids: self.source[shard].index.fingerprints[ids])


def last_of_each(counts: Int64s, most: int) -> Int64s:
    """Return where the last `most` values of each row are in a flat array that has `counts` values of each.

    >>> last_of_each(np.array([3, 0, 1]), 2)
    array([1, 2, 3])
    """
    left = np.minimum(counts, most)
    positions = picked(left, np.arange(len(counts)))
    return positions + np.repeat(np.cumsum(counts - left), left)
