"""Recrawl policies: pages read before, drawn in proportion to what their past reads have discovered.

    U     each page as likely as any other
    OR    in proportion to the links seen on it so far
    YR    in proportion to its yield: pages that became known by its last read, per second since the read before
    YRU   half by YR, half by U
    LDU   half the page with the greatest link score, half by U

Pages are drawn without replacement from those that are free (`opic.frontier.arrivals`); how much cash they have does
not matter, so also those come that the greedy order leaves until they receive some. Where two orders share the choices,
each next page is of one of them, at random. `opic.replica.page_yields` says what is counted; link scores are those of
`opic.query.kept_links`.

Source: Kumar, Lang, Marlow, Tomkins (2008), section III.
"""

import numpy as np

from opic.arrays import Float64s, Int64s, values_at
from opic.frontier.arrivals import Arrivals, Clock
from opic.frontier.hot_order import HotOrder
from opic.frontier.page_keys import NOWHERE, Order
from opic.query.link_scores import LinkScores
from opic.replica import Replica


class DrawnByYields(Arrivals):
    """The orders OR and YR: by a column of what past reads of pages have discovered, "seen" or "rate"."""

    def __init__(self, hot: HotOrder, clock: Clock, replica: Replica, column: str) -> None:
        super().__init__(hot, clock)
        self._replica, self._column = replica, column

    def weights(self, ids: Int64s) -> Float64s:
        """Return the values of the column."""
        values: Float64s = self._replica.columns.values_of(self._column, ids).astype(np.float64)
        return values


class ByLinkScore(Order):
    """The order of the pages of a shard that have a link score, the greatest first."""

    with_cash = False

    def __init__(self, hot: HotOrder, shard: int) -> None:
        """Order no page before `use`."""
        self._hot, self._shard = hot, shard
        self._scores = np.zeros(0)  # By page.

    def use(self, scores: LinkScores | None) -> None:
        """Order by these scores from now on, by none if None."""
        before, self._scores = self._scores, np.zeros(len(self._scores))
        if scores is not None and len(ids := scores.ids[self._shard]):
            self._scores = np.zeros(max(len(before), int(ids[-1]) + 1))
            self._scores[ids] = scores.scores[self._shard]
        changed = self._scores.copy()
        changed[: len(before)] -= before
        self._hot.changed(np.flatnonzero(changed[: self._hot.known]))

    def keys(self, ids: Int64s) -> Float64s:
        scores = values_at(self._scores, ids, 0.0)
        return np.where(scores > 0, scores, NOWHERE)
