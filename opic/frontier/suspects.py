"""Hosts with a page that was chosen and turned out not to be offered: they rest for a while, as in a delay.

Pages are judged in the order in which they became known. A choice that meets a page before its turn judges it, and
drops it if it is unfit; more of that kind are then likely behind it. So its host rests until all pages are judged, or
for a time that doubles whenever the next try meets an unfit page again.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from opic.arrays import Bools, Int64s
from opic.frontier.hot_shard import HotShard

SECONDS_FIRST: Final = 5.0
SECONDS_MAX: Final = 60.0
SUSPECTS_MAX: Final = 1 << 16  # About 10 MB; the oldest are forgotten, and their hosts rest until their time is over.


class Suspects:
    """The hosts that rest, by shard and number. Not thread-safe; the locks of replicas are taken here."""

    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], tuple[float, float]] = {}  # By host: until when, and for how long.

    def __len__(self) -> int:
        """Count the hosts, including those whose time is over."""
        return len(self._spans)

    def note(self, hots: Sequence[HotShard], shards: Int64s, hosts: Int64s, unfit: Bools) -> None:
        """Let the hosts of unfit pages rest."""
        for shard in set(shards[unfit].tolist()):
            hot, numbers = hots[shard], np.unique(hosts[unfit & (shards == shard)])
            with hot.replica.lock:
                now = hot.now()
                until = [now + self._span(shard, host, now) for host in numbers.tolist()]
                hot.order.rest(numbers, np.array(until))
        while len(self._spans) > SUSPECTS_MAX:
            del self._spans[next(iter(self._spans))]

    def _span(self, shard: int, host: int, now: float) -> float:
        _, span = self._spans.pop((shard, host), (0.0, SECONDS_FIRST / 2))
        span = min(2 * span, SECONDS_MAX)
        self._spans[shard, host] = now + span, span
        return span

    def end(self, hots: Sequence[HotShard]) -> None:
        """Suspect no host any more: choices are from all hosts again."""
        if not self._spans:
            return
        for shard, hot in enumerate(hots):
            mine = {host: until for (number, host), (until, _) in self._spans.items() if number == shard}
            with hot.replica.lock:
                # Otherwise it rests for another reason by now.
                still = [host for host, until in mine.items() if hot.order.host_free[host] == until]
                hot.order.rest(np.array(still, np.int64), np.zeros(len(still)))
        self._spans.clear()
