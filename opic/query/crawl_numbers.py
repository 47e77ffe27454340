"""Numbers of the pages of all shards, nearly without gaps: what `opic.graph` calls pages.

A page has an id in its shard. Numbers are given out in blocks of 64 consecutive ids, whenever a shard has more pages
than before. So in each shard fewer than 64 numbers belong to no page, and the numbers of a crawl of one shard are its
ids. A block takes 16 bytes.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Int64s, grown
from opic.errors import StoreFull
from opic.graph.link_pool import UNKNOWN_PAGE

BLOCK_BITS: Final = 6
BLOCK: Final = 1 << BLOCK_BITS
PAGES_MAX: Final = UNKNOWN_PAGE & -BLOCK  # Numbers are 32 bits wide, and the last one stands for an unknown page.


class CrawlNumbers:
    """The numbers of pages: given once, never to another page. One thread at a time may give new ones."""

    def __init__(self, shards: int) -> None:
        self._blocks = [np.zeros(0, np.int64) for _ in range(shards)]  # By shard: the first number of each block.
        self._known = [0] * shards  # How many blocks a shard has.
        self._shard, self._first, self._given = np.zeros(0, np.int64), np.zeros(0, np.int64), 0  # By block.

    def __len__(self) -> int:
        return self._given << BLOCK_BITS

    def reserve(self, shard: int, pages: int) -> None:
        """Give numbers to the pages of a shard with ids below `pages`.

        Raises:
            StoreFull: there are not enough numbers.
        """
        have, want = self._known[shard], -(-pages // BLOCK)
        if want <= have:
            return
        if (self._given + want - have) << BLOCK_BITS > PAGES_MAX:
            raise StoreFull(
                f"shard {shard} has {pages:,} pages, which makes more than {PAGES_MAX:,} in all shards: an endpoint "
                "can't hold the links of more; divide the crawl into several (OPIC_CRAWL)"
            )
        blocks = np.arange(self._given, self._given + want - have)
        end = int(blocks[-1]) + 1
        if end > len(self._shard):
            self._shard, self._first = grown(self._shard, end), grown(self._first, end)
        self._shard[blocks], self._first[blocks] = shard, np.arange(have, want) << BLOCK_BITS
        if want > len(self._blocks[shard]):
            self._blocks[shard] = grown(self._blocks[shard], want)
        self._blocks[shard][have:want] = blocks << BLOCK_BITS
        self._known[shard], self._given = want, end

    def numbers_of(self, shard: int, ids: Int64s) -> Int64s:
        """Return the numbers of pages of a shard; ids that had none get theirs."""
        if len(ids):
            self.reserve(shard, int(ids.max()) + 1)
        numbers: Int64s = self._blocks[shard][ids >> BLOCK_BITS] + (ids & (BLOCK - 1))
        return numbers

    def number_of(self, shard: int, page: int) -> int:
        """Return the number of a page, as `numbers_of` does for several."""
        self.reserve(shard, page + 1)
        return int(self._blocks[shard][page >> BLOCK_BITS]) + (page & (BLOCK - 1))

    def of_first(self, shard: int, pages: int) -> Int64s:
        return self.numbers_of(shard, np.arange(pages))

    def places(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return the shards and ids of numbers that were given."""
        blocks = numbers >> BLOCK_BITS
        return self._shard[blocks], self._first[blocks] + (numbers & (BLOCK - 1))

    def by_shard(self, numbers: Int64s) -> list[tuple[Int64s, Int64s]]:
        """Return for each shard where its pages are in `numbers`, and their ids."""
        shards, ids = self.places(numbers)
        order = np.argsort(shards, kind="stable")
        ends = np.searchsorted(shards[order], np.arange(len(self._blocks) + 1))
        parts = [order[ends[shard] : ends[shard + 1]] for shard in range(len(self._blocks))]
        return [(part, ids[part]) for part in parts]

    def spread(self, columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return a column by number, made of one by id of each shard; 0 for numbers of none of these pages."""
        for shard, column in enumerate(columns):
            self.reserve(shard, len(column))
        by_number = np.zeros(len(self), columns[0].dtype)
        for shard, column in enumerate(columns):
            whole, rest = divmod(len(column), BLOCK)
            blocks = by_number.reshape(-1, BLOCK)
            blocks[self._places(shard, whole)] = column[: len(column) - rest].reshape(-1, BLOCK)
            if rest:
                blocks[self._places(shard, whole + 1)[-1], :rest] = column[-rest:]
        return by_number

    def gathered(self, column: NDArray[Any], pages: Sequence[int]) -> list[NDArray[Any]]:
        """Return a column by number as one by id for the first pages of each shard, which have numbers."""
        blocks = column[: len(column) & -BLOCK].reshape(-1, BLOCK)
        places = [self._places(shard, -(-count // BLOCK)) for shard, count in enumerate(pages)]
        return [blocks[rows].reshape(-1)[:count] for rows, count in zip(places, pages, strict=True)]

    def _places(self, shard: int, blocks: int) -> Int64s:
        """Return where the first blocks of a shard are, counted in blocks."""
        return self._blocks[shard][:blocks] >> BLOCK_BITS
