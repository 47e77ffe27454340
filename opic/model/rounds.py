"""Rounds of a crawl that has many shards: counted for all of them, in shard 0.

A round is the clock advancing by one grant for every page known in the whole crawl at that time. One shard counts that
exactly, at each read. Of many shards, none knows at its reads how many pages the others know. So the worker that
delivers to shard 0 adds up the clocks and the known pages of all shards from time to time, after a
delivery, and writes the count of rounds as a record of shard 0's log. The last count is in shard 0's books; all
counts are kept as a series.

Between two counts the known pages are assumed to grow evenly with the clock. If they grow from a to b while the clock
advances by m grains, that is m / (g * (b - a) / ln(b / a)) rounds, with the grant g: the logarithmic mean of the pages.
What has passed since the last count is computed in the same way from the current books. A count is due when the rounds
have advanced by a quarter, or the known pages have changed by an eighth.

Right after a crawl begins, this needs counts at short intervals: `opic.ingest.writer` delivers often at that time. A
store that was made before rounds were counted has no count yet. Its rounds are computed as if its pages had become
known evenly from the first read on.
"""

from math import log
from typing import Final, NamedTuple

UNIT_BITS: Final = 32
DUE_ROUNDS: Final = 1 << (UNIT_BITS - 2)
DUE_SHARE: Final = 8  # An eighth of the known pages.


class RoundCount(NamedTuple):
    """A count of rounds: of the whole crawl, in units of 2^-32, at a clock value, with the pages known then."""

    rounds: int = 0
    clock: int = 0
    live: int = 0

    def until(self, clock: int, live: int, least: int, grant: int) -> "RoundCount":
        """Return the count of a later state.

        Args:
            clock: the clock of the whole crawl.
            live: the known pages of the whole crawl, without gone ones.
            least: pages that a first read finds: itself and its links. Before it, nothing may be known.
            grant: grains granted to each page.

        >>> RoundCount().until(clock=6_000, live=1, least=1, grant=2_000).rounds / (1 << UNIT_BITS)
        3.0
        >>> found = RoundCount(3 << UNIT_BITS, 6_000, 10).until(26_000, 20, least=5, grant=1_000)
        >>> round(found.rounds / (1 << UNIT_BITS), 3)
        4.386
        """
        before = max(self.live, min(least, live), 1)
        after = max(live, 1)
        pages = before if before == after else (after - before) / log(after / before)
        moved = max(clock - self.clock, 0)
        return RoundCount(self.rounds + (moved << UNIT_BITS) // max(int(grant * pages), 1), clock, live)

    def due(self, now: "RoundCount") -> bool:
        """Return whether the crawl has moved far enough since this count for a new one."""
        moved = now.rounds - self.rounds >= DUE_ROUNDS or abs(now.live - self.live) * DUE_SHARE >= self.live
        return moved and now != self
