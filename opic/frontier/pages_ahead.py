"""Pages chosen ahead: one choice serves the requests of the next tenth of a second, or longer.

Pages are chosen ahead where answers need not be current (`opic.replica.upkeep`).

A choice costs some milliseconds on one shard, and a multiple on many; hardly more for a hundred pages than for ten.
What it chose beyond the request that asked waits here, in order, and each page is looked at again when it is taken: it
may be held, read or shut by then. The longer a choice took, the longer it serves, so that choices take a tenth of the
time.
"""

import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from opic.frontier.hot_order import UNHELD, HotOrder
from opic.frontier.page_keys import NOWHERE
from opic.frontier.picking import Fit, Picked

AHEAD_SECONDS: Final = 0.1  # How long pages chosen ahead are of use at least; their order is that of the choice.
AHEAD_SECONDS_MAX: Final = 0.5
AHEAD_TIMES: Final = 10  # As many times as long as the choice took.
AHEAD_MAX: Final = 512
STRETCH: Final = 3  # As many times the pages asked for are looked at: those before were taken a moment ago.


class PagesAhead:
    """The pages of one choice that no request has taken yet."""

    def __init__(self, picked: Picked, taken: int, version: object, seconds: float) -> None:
        """Keep a choice.

        Args:
            picked: the chosen pages.
            taken: how many of them the request that asked has taken.
            version: of what they were chosen from.
            seconds: that the choice took.
        """
        self._picked, self._at, self._asked = picked, 0, taken
        self._version, self._made = version, time.monotonic()
        self._seconds = max(min(AHEAD_TIMES * seconds, AHEAD_SECONDS_MAX), AHEAD_SECONDS)
        # Where fewer pages were found than wanted, looking for more is in vain.
        self._short = len(picked) < taken

    def is_valid(self, version: object) -> bool:
        """Return whether the pages may be taken still."""
        return time.monotonic() - self._made < self._seconds and self._version == version

    def wanted(self) -> int:
        """Return how many pages the next choice should choose ahead: as many as were asked for since this one."""
        lately = time.monotonic() - self._made < 2 * self._seconds
        return min(self._asked, AHEAD_MAX) if lately and not self._short else 0

    def take_free(self, orders: Sequence[HotOrder], sides: Sequence[int], count: int, fit: Fit | None) -> Picked:
        """Take the next pages that are free, up to `count`. The caller holds the locks of all replicas.

        Args:
            orders: the order of each shard.
            sides: which sides the mode takes.
            count: maximum number of pages.
            fit: as in `opic.frontier.picking.pick`.
        """
        self._asked += count
        some = self._picked.only(slice(self._at, self._at + STRETCH * count))
        free = np.zeros(len(some), np.bool_)
        for shard in set(some.shards.tolist()):
            positions = np.flatnonzero(some.shards == shard)
            order, ids, hosts = orders[shard], some.ids[positions], some.hosts[positions]
            keys, read = order.keys_when_free(ids)
            free[positions] = (order.where[ids] == UNHELD) & (order.host_free[hosts] <= order.now) & (keys > NOWHERE)
            if len(sides) == 1:
                free[positions] &= read == sides[0]
        # Pages before the first free one were leased; those that are taken now may be free again, as spares are.
        self._at += int(free.argmax()) if free.any() else len(some)
        if fit is not None:
            free[free] = fit(some.shards[free], some.hosts[free])
        return some.only(np.flatnonzero(free)[:count])
