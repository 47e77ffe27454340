"""Expansion policies: pages never read chosen by their in-links, as far as links have been seen.

    GAI   the page with the most in-links first (greedy, by apparent in-degree); ties by shard, roughly by first sight
    AI    in proportion to in-links, as recrawl policies draw (`opic.frontier.recrawl`)

In-links are those of `opic.query.kept_links`: distinct pages that were read and link to the page, of all shards. A page
without any comes after all others; with AI these are drawn alike.

GAI keeps a bound on the counts of each block of pages, looks at the pages of the blocks with the greatest bounds, as
many as are needed to find pages that are free, and then knows their greatest counts. A page that changed may raise the
bound of its block, which costs O(1); one that fell behind leaves it too high until the block is looked at. So a choice
costs O(blocks + pages changed), and O(pages) only where nearly all pages with many in-links are not free. AI needs the
sums of the blocks, and looks at each block again in which a page changed.

Source: Kumar, Lang, Marlow, Tomkins (2008), section II: Crawl-GAI, Crawl-AI.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opic.frontier.hot_order import Bools, HotOrder, Int64s, is_held
from opic.frontier.page_keys import OFFERED_BITS, Keys
from opic.frontier.recrawl import (
    BLOCK_PAGES,
    PARTS_MAX,
    Floats,
    PageWeights,
    YieldWeights,
    fit_for_recrawl,
    free_pages,
)
from opic.frontier.requests import POLICIES
from opic.model.cash import Flag
from opic.query.kept_links import KeptLinks
from opic.query.link_scores import InLinkCounts
from opic.replica.replica import Replica

UNREAD: Final = "unread"
BLOCKS_AT_ONCE: Final = 1 << 8  # Blocks whose pages are looked at together: a megabyte.
BLOCKS_FIRST: Final = 4  # Blocks that a choice looks at first; twice as many each further time.


class _News(NamedTuple):
    """In-links by shard."""

    loads: list[int]  # The load counts of the replicas that the ids are valid for.
    anew: bool  # Whether they are of all pages, and ids are left out.
    ids: list[Int64s]
    counts: list[Int64s]


class InLinkColumns:
    """The in-links of the pages of each shard, by id, as of the last `renew` and `take`."""

    def __init__(self, kept: KeptLinks) -> None:
        """Read nothing before the first question."""
        self.kept = kept
        self._source: InLinkCounts | None = None
        self._news: deque[_News] = deque()
        self.columns = [np.zeros(0, np.int64) for _ in kept.crawl.shards]
        self.loads: list[int] = []
        kept.release_listeners.append(self._released)

    def _released(self) -> None:
        self._source = None

    def renew(self) -> None:
        """Bring the in-links up to date with the journals, for `take`. For any thread.

        Raises:
            NotKept: no links are kept.
            StoreUnavailable: the store is unavailable.
        """
        kept = self.kept
        with kept.lock:
            pages = kept.catch_up(kept.check, len).taken
            inlinks, numbers = kept.inlinks, kept.numbers
            changed = inlinks.take_changed() if inlinks is self._source else None
            self._source = inlinks
            if changed is None:
                counts = [inlinks.of(numbers.of_first(shard, count)) for shard, count in enumerate(pages)]
                self._news.append(_News(kept.loads, True, [], counts))
            elif len(changed):
                found = inlinks.of(changed)
                parts = numbers.by_shard(changed.astype(np.int64))
                news = _News(kept.loads, False, [ids for _, ids in parts], [found[at] for at, _ in parts])
                self._news.append(news)

    def take(self) -> list[Int64s]:
        """Take in what `renew` found, and return by shard the pages that changed. For one thread at a time."""
        changed: list[list[Int64s]] = [[] for _ in self.columns]
        while self._news:
            news = self._news.popleft()
            self.loads = news.loads
            for shard, counts in enumerate(news.counts):
                if news.anew:
                    self.columns[shard] = counts
                    changed[shard].append(np.arange(len(counts)))
                    continue
                ids = news.ids[shard]
                if len(ids) and (size := int(ids.max()) + 1) > len(self.columns[shard]):
                    grown = np.zeros(max(size, 2 * len(self.columns[shard])), np.int64)
                    grown[: len(self.columns[shard])] = self.columns[shard]
                    self.columns[shard] = grown
                self.columns[shard][ids] = counts
                changed[shard].append(ids)
        return [np.concatenate(parts) if parts else np.zeros(0, np.int64) for parts in changed]


def fit_for_discovery(state: NDArray[np.uint8]) -> Bools:
    """Return a mask of the pages that were never read since they became known or came back, and may be offered."""
    fit: Bools = (state & (OFFERED_BITS | Flag.OPEN)) == Flag.KNOWN
    return fit


class InLinkWeights(PageWeights):
    """The in-links of a shard's pages never read, with the sum of each block, and at least its maximum."""

    def __init__(self, replica: Replica, inlinks: InLinkColumns) -> None:
        """Look at all pages at the first choice: some milliseconds for a million."""
        self._inlinks, self.most, self._raised = inlinks, np.zeros(0), list[Int64s]()
        super().__init__(replica, fit_for_discovery)

    def changed(self, ids: Int64s) -> None:
        """Note that pages may have other weights, or are new."""
        super().changed(ids)
        if len(self._raised) <= PARTS_MAX:
            self._raised.append(ids)

    def _alone(self, ids: Int64s | slice) -> Floats:
        if isinstance(ids, slice):
            ids = np.arange(ids.start, min(ids.stop, len(self._replica)))
        column = self._inlinks.columns[self._replica.shard]
        found = np.zeros(len(ids))
        inside = ids < len(column)
        found[inside] = column[ids[inside]]
        found[~fit_for_discovery(self._replica.state[ids])] = 0.0
        return found

    def total(self) -> float:
        """Return the sum of all weights."""
        if self._stale:
            stale = np.unique(np.concatenate(self._stale))
            self._grow()
            for first in range(0, len(stale), BLOCKS_AT_ONCE):
                some = stale[first : first + BLOCKS_AT_ONCE]
                self.sums[some] = self.table(some)[1].sum(axis=1)
            self._stale.clear()
            self._raised.clear()
        return float(self.sums.sum())

    def _grow(self) -> None:
        blocks = -(-len(self._replica) // BLOCK_PAGES)
        if blocks > len(self.sums):
            more = np.zeros(blocks - len(self.sums))
            self.sums, self.most = np.concatenate((self.sums, more)), np.concatenate((self.most, more))

    def table(self, blocks: Int64s) -> tuple[Int64s, Floats]:
        """Return the pages of blocks and their weights, a row each; weight 0 where a page does not exist."""
        ids = blocks[:, None] * BLOCK_PAGES + np.arange(BLOCK_PAGES)
        known = ids < len(self._replica)
        weights = np.zeros(ids.shape)
        weights[known] = self.of(ids[known])
        self.most[blocks] = weights.max(axis=1)
        return ids, weights

    def ranked(self) -> Int64s:
        """Return the blocks that may have a page with in-links, the greatest bound first."""
        raised, parts = sum(map(len, self._raised)), len(self._raised)
        if not len(self.most) or parts > PARTS_MAX or raised > len(self._replica) // 2:
            self.total()
        elif raised:
            self._grow()
            ids = np.concatenate(self._raised)
            ids = ids[ids < len(self._replica)]
            np.maximum.at(self.most, ids // BLOCK_PAGES, self.of(ids))
            self._raised.clear()
        return np.argsort(-self.most, kind="stable")[: np.count_nonzero(self.most)]


class GreedyPages:
    """The free pages of a shard that were never read, most in-links first; a `PageSource` of `opic.frontier.picking`.

    A page's key is its in-links plus one.
    """

    def __init__(self, shard: int, order: HotOrder, weights: InLinkWeights, only: Int64s | None) -> None:
        """Start at the most in-links; with `only`, among these pages."""
        self.shard, self._order, self._weights, self._only = shard, order, weights, only
        self.ids: Int64s = np.empty(0, np.int64)
        self.neg: Keys = np.empty(0)
        self.done = self.short = False
        self._blocks = weights.ranked()
        self._at, self._step = 0, BLOCKS_FIRST
        self._ids, self._found = self.ids, np.empty(0)  # Pages looked at whose turn has not come.

    def fill(self, size: int) -> None:
        """Look at the pages of more blocks, or at all others."""
        if self._only is not None:
            self.done = True
            self._offer(self._only, self._weights.of(self._only))
        elif self._at == len(self._blocks):
            self.done = True
            ids = np.flatnonzero(~is_held(self._order.where[: len(self._order.columns)]))
            ids = ids[self._weights.of(ids) == 0]
            self._offer(ids, np.zeros(len(ids)))
        else:
            blocks = self._blocks[self._at : self._at + self._step]
            self._at, self._step = self._at + len(blocks), 2 * self._step
            ids, weights = self._weights.table(np.sort(blocks))
            some = weights > 0
            ids, found = np.concatenate((self._ids, ids[some])), np.concatenate((self._found, weights[some]))
            last = self._at == len(self._blocks)
            now = found >= (0.0 if last else self._weights.most[self._blocks[self._at]])
            self._ids, self._found = ids[~now], found[~now]
            self._offer(ids[now], found[now])

    def _offer(self, ids: Int64s, weights: Floats) -> None:
        free = free_pages(self._order, ids, fit_for_discovery)
        ids, weights = ids[free], weights[free]
        order = np.lexsort((ids, -weights))
        self.ids, self.neg = ids[order], -weights[order] - 1

    def close(self) -> None:
        """Do nothing: this source does not change the order."""


class PolicyWeights:
    """The weights of a replica's pages by which policies draw, each summed from when it is first asked for."""

    def __init__(self, replica: Replica) -> None:
        """Sum nothing yet."""
        self._replica, self._kinds = replica, dict[str, PageWeights]()
        self._inlinks: tuple[InLinkColumns, InLinkWeights] | None = None

    def kinds(self, policy: str) -> list[PageWeights]:
        """Return what a recrawl policy draws by."""
        return [self.kind(name) for name in POLICIES[policy]]

    def kind(self, name: str) -> PageWeights:
        """Return the weights of read pages of a kind in POLICIES; of UNREAD, 1 for each page never read."""
        if name not in self._kinds:
            alike = {"one": fit_for_recrawl, UNREAD: fit_for_discovery}.get(name)
            made = YieldWeights(self._replica, name) if alike is None else PageWeights(self._replica, alike)
            self._kinds[name] = made
        return self._kinds[name]

    def by_inlinks(self, inlinks: InLinkColumns) -> InLinkWeights:
        """Return the in-links of pages never read."""
        if self._inlinks is None or self._inlinks[0] is not inlinks:
            self._inlinks = inlinks, InLinkWeights(self._replica, inlinks)
        return self._inlinks[1]

    def changed(self, ids: Int64s) -> None:
        """Note that pages may have other weights, or are new."""
        for weights in self._kinds.values():
            weights.changed(ids)
        self.linked(ids)

    def linked(self, ids: Int64s) -> None:
        """Note that pages may have other in-links."""
        if self._inlinks is not None:
            self._inlinks[1].changed(ids)


def most_linked(
    orders: Sequence[HotOrder], weights: Sequence[InLinkWeights], only: Sequence[Int64s] | None = None
) -> list[GreedyPages]:
    """Return the pages of each shard as GAI takes them, of `only` these pages if it is given."""
    return [
        GreedyPages(shard, order, of_shard, None if only is None else only[shard])
        for shard, (order, of_shard) in enumerate(zip(orders, weights, strict=True))
    ]
