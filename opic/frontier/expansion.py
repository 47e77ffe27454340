"""Expansion policies: pages never read chosen by their in-links, as far as links have been seen.

    GAI   the page with the most in-links first (greedy, by apparent in-degree); ties by shard and first sight
    AI    in proportion to in-links (`opic.frontier.arrivals`)

In-links are those of `opic.query.kept_links`: distinct pages that were read and link to the page, of all shards. A page
without any comes after all others; with AI these are drawn alike. Pages come with or without cash.

Source: Kumar, Lang, Marlow, Tomkins (2008), section II: Crawl-GAI, Crawl-AI.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from opic.arrays import Float64s, Int64s, grown, values_at
from opic.frontier.arrivals import Arrivals, Clock
from opic.frontier.hot_order import HotOrder
from opic.frontier.page_keys import Order
from opic.query.kept_links import KeptLinks
from opic.query.link_scores import InLinkCounts


class _News(NamedTuple):
    """In-links by shard."""

    loads: list[int]  # The load counts of the replicas that the ids are valid for.
    anew: bool  # Whether they are of all pages.
    ids: list[Int64s]
    counts: list[Int64s]


class InLinkColumns:
    """The in-links of the pages of each shard, by id, as of the last `renew` and `apply_news`."""

    def __init__(self, kept: KeptLinks) -> None:
        self.kept = kept
        self._source: InLinkCounts | None = None
        self._news: deque[_News] = deque()
        self.columns = [np.zeros(0, np.int64) for _ in kept.crawl.shards]
        self.loads: list[int] = []

    def released(self) -> None:
        """Let go of the links: all were forgotten. An owner that stays gives this to `kept.release_listeners`."""
        self._source = None

    def renew(self) -> None:
        """Bring the in-links up to date with the journals, for `apply_news`. For any thread.

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
                counts = [inlinks.counts_of(numbers.of_first(shard, count)) for shard, count in enumerate(pages)]
                self._news.append(_News(kept.loads, True, [np.arange(count) for count in pages], counts))
            elif len(changed):
                new_counts = inlinks.counts_of(changed)
                parts = numbers.by_shard(changed.astype(np.int64))
                news = _News(
                    kept.loads, False, [ids for _, ids in parts], [new_counts[positions] for positions, _ in parts]
                )
                self._news.append(news)

    def apply_news(self) -> list[Int64s]:
        """Take in what `renew` found, and return by shard the pages that changed. For one thread at a time."""
        changed: list[list[Int64s]] = [[] for _ in self.columns]
        while self._news:
            news = self._news.popleft()
            self.loads = news.loads
            if news.anew:
                self.columns = [np.zeros(0, np.int64) for _ in self.columns]
            for shard, (ids, counts) in enumerate(zip(news.ids, news.counts, strict=True)):
                if len(ids) and (size := int(ids.max()) + 1) > len(self.columns[shard]):
                    self.columns[shard] = grown(self.columns[shard], size)
                self.columns[shard][ids] = counts
                changed[shard].append(ids)
        return [np.concatenate(parts) if parts else np.zeros(0, np.int64) for parts in changed]


class ByInLinks(Order):
    """The order GAI: the most in-links first."""

    with_cash = False

    def __init__(self, inlinks: InLinkColumns, shard: int) -> None:
        self._inlinks, self._shard = inlinks, shard

    def keys(self, ids: Int64s) -> Float64s:
        """Return the in-links of pages."""
        return values_at(self._inlinks.columns[self._shard], ids, 0).astype(np.float64)


class DrawnByInLinks(Arrivals):
    """The order AI: each page in proportion to its in-links."""

    def __init__(self, hot: HotOrder, clock: Clock, inlinks: InLinkColumns, shard: int) -> None:
        super().__init__(hot, clock)
        self._inlinks, self._shard = inlinks, shard

    def weights(self, ids: Int64s) -> Float64s:
        """Return the in-links of pages."""
        return values_at(self._inlinks.columns[self._shard], ids, 0).astype(np.float64)
