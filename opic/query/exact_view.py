"""Exact importance in one state of the crawl: which pages there are, their shares, and the bound on these."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from opic.arrays import Float32s, Float64s
from opic.graph.flow import BOUND_MAX
from opic.model.cash import Flag
from opic.query.crawl_pages import CrawlPages
from opic.query.rankings import Ranked
from opic.replica.crawl import Place


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactView(CrawlPages, Ranked):
    """The importance of all pages as of one position of the journals. Immutable.

    `bound` holds for PageRank of this state, and of each later state that was known when it was told: what happened
    since is in it, see `opic.query.unsettled`.
    """

    bound: float
    # The share of each page that is there, and at one that is gone what links would bring it if it came back;
    shares: Float64s = field(repr=False)
    unmoved: Float32s = field(repr=False)  # of that, what was not moved on yet, of either sign.
    ascending: Float64s = field(repr=False)  # The shares of all pages that are there, sorted.
    visits: float  # How many visits a share of 1 is.

    @property
    def scores(self) -> Float64s:
        """The shares, -1 for pages that are not there."""
        return self._keep("scores", lambda: np.where(self.live, self.shares, -1.0))

    @property
    def total(self) -> float:
        """The sum of the scores of live pages."""
        return 1.0

    @property
    def estimates(self) -> Float64s:
        """The shares, 0 for pages that are not there; they sum to 1."""
        return np.where(self.live, self.shares, 0.0)

    @property
    def jump(self) -> float:
        """The share that a page of weight 1 has by the random jump alone."""
        return min(1 / self.visits, 1.0) if self.visits else 1.0

    def without(self, lost: float) -> "ExactView":
        """Return the view for an answer that leaves pages with this importance out, in all."""
        return replace(self, bound=min(self.bound + lost, BOUND_MAX))

    def share(self, shard_page: Place) -> float | None:
        """Return the importance of a page, None if it is gone; 0 if this state does not know it."""
        position = int(self.starts[shard_page[0]]) + shard_page[1]
        if not self.knows(shard_page):
            return 0.0
        return None if self.state[position] & Flag.GONE else float(self.shares[position])

    def knows(self, shard_page: Place) -> bool:
        position = int(self.starts[shard_page[0]]) + shard_page[1]
        return position < self.starts[shard_page[0] + 1] and bool(self.state[position] & Flag.KNOWN)

    def visits_of(self, shard_page: Place) -> tuple[float, float]:
        """Return the visits counted at a page, and those not moved on yet; their sum is its share of all."""
        if not (share := self.share(shard_page)):
            return 0.0, 0.0
        unmoved = float(self.unmoved[int(self.starts[shard_page[0]]) + shard_page[1]])
        return (share - unmoved) * self.visits, unmoved * self.visits

    def certain(self, shares: Sequence[float]) -> list[bool]:
        """Return whether the rank of each share is that in exact PageRank: no other is as near as the bound.

        The errors of all pages sum to 0, and their sizes to the bound at most: those of two differ by no more.
        """
        told, last = np.array(shares, np.float64), len(self.ascending) - 1
        if last < 0:
            return [False] * len(told)
        positions = np.searchsorted(self.ascending, told, side="left")
        below = np.where(positions > 0, self.ascending[np.maximum(positions - 1, 0)], -BOUND_MAX)
        above = np.where(positions < last, self.ascending[np.minimum(positions + 1, last)], BOUND_MAX)
        sure: list[bool] = ((told - below > self.bound) & (above - told > self.bound)).tolist()
        return sure
