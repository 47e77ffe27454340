"""Expansion policies: pages never read chosen by their in-links, as far as links have been seen.

    GAI   the page with the most in-links first (greedy, by apparent in-degree); ties by shard, roughly by first sight
    AI    in proportion to in-links, as recrawl policies draw (`opic.frontier.recrawl`)

In-links are those of `opic.query.kept_links`: distinct pages that were read and link to the page, of all shards. A page
without any comes after all others; with AI these are drawn alike.

GAI is an order by a key as the others are (`opic.frontier.key_blocks`). AI needs the sums of blocks of pages, and looks
at each block again in which a page changed.

Source: Kumar, Lang, Marlow, Tomkins (2008), section II: Crawl-GAI, Crawl-AI.
"""

from collections import deque
from typing import Final, NamedTuple

import numpy as np

from opic.arrays import Bools, Float64s, Int64s, Uint8s, values_at
from opic.frontier.page_keys import OFFERED_BITS, Order
from opic.frontier.recrawl import PageWeights, YieldWeights, fit_for_recrawl
from opic.model.cash import Flag
from opic.query.kept_links import KeptLinks
from opic.query.link_scores import InLinkCounts
from opic.replica.columns import grown
from opic.replica.replica import Replica

UNREAD: Final = "unread"


class _News(NamedTuple):
    """In-links by shard."""

    loads: list[int]  # The load counts of the replicas that the ids are valid for.
    anew: bool  # Whether they are of all pages.
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

    def released(self) -> None:
        """Let go of the links: all were forgotten. An owner that stays gives this to `kept.release_listeners`."""
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
                self._news.append(_News(kept.loads, True, [np.arange(count) for count in pages], counts))
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
            if news.anew:
                self.columns = [np.zeros(0, np.int64) for _ in self.columns]
            for shard, (ids, counts) in enumerate(zip(news.ids, news.counts, strict=True)):
                if len(ids) and (size := int(ids.max()) + 1) > len(self.columns[shard]):
                    self.columns[shard] = grown(self.columns[shard], size)
                self.columns[shard][ids] = counts
                changed[shard].append(ids)
        return [np.concatenate(parts) if parts else np.zeros(0, np.int64) for parts in changed]


def fit_for_discovery(state: Uint8s) -> Bools:
    """Return a mask of the pages that were never read since they became known or came back, and may be offered."""
    fit: Bools = (state & (OFFERED_BITS | Flag.OPEN)) == Flag.KNOWN
    return fit


class InLinkWeights(PageWeights):
    """The in-links of a shard's pages never read, with the sum of each block."""

    def __init__(self, replica: Replica, inlinks: InLinkColumns) -> None:
        """Look at all pages at the first choice: some milliseconds for a million."""
        self._inlinks = inlinks
        super().__init__(replica, fit_for_discovery)

    def _alone(self, ids: Int64s) -> Float64s:
        found = values_at(self._inlinks.columns[self._replica.shard], ids, 0)
        return np.where(self.fits(self._replica.state[ids]), found, 0.0)


class ByInLinks(Order):
    """The order GAI of a shard: the most in-links first, with or without cash."""

    with_cash = False

    def __init__(self, inlinks: InLinkColumns, shard: int) -> None:
        """Take the in-links, which change in place."""
        self._inlinks, self._shard = inlinks, shard

    def keys(self, ids: Int64s) -> Float64s:
        """Return the in-links of pages."""
        return values_at(self._inlinks.columns[self._shard], ids, 0).astype(np.float64)


class PolicyWeights:
    """The weights of a replica's pages by which policies draw, each summed from when it is first asked for."""

    def __init__(self, replica: Replica) -> None:
        """Sum nothing yet."""
        self._replica, self._kinds = replica, dict[str, PageWeights]()
        self._inlinks: tuple[InLinkColumns, InLinkWeights] | None = None

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
        """Note that pages may have other weights or in-links, or are new."""
        for weights in (*self._kinds.values(), *(() if self._inlinks is None else (self._inlinks[1],))):
            weights.changed(ids)
