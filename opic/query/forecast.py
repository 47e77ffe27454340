"""When a crawl will have read all its pages, told from its recent progress, or why that can't be told."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from opic.model.cash import MILLION
from opic.query.convergence import PageProgress

RECENT: Final = 4  # The pace is that of the last 1 / RECENT of all reads.
READS_MIN: Final = 20  # Fewer say nothing.
IDLE_SECONDS: Final = 120.0  # A crawl that has read nothing for so long has no pace.
SECONDS_MAX: Final = 10 * 365 * 86_400.0
# finished: nothing is left to fetch; new: too few reads; idle: no event lately; growing: pages are found faster than
# they are read, or nearly so; ending: it has an end.
Pace = Literal["finished", "new", "idle", "growing", "ending"]


@dataclass(frozen=True, slots=True)
class CrawlForecast:
    """The pace of a crawl, and its end where there is one."""

    pace: Pace
    to_fetch: int
    idle_seconds: float  # Since the last event.
    reads_per_second: float | None = None
    found_per_read: float | None = None  # New pages to fetch that each page read for the first time brought.
    seconds: float | None = None  # Until all pages are read, at this pace.


def forecast(progress: Sequence[PageProgress], now_us: int) -> CrawlForecast:
    """Return when all pages will be read, if pages are read and found as fast as lately.

    The number of pages to fetch is taken to fall in a straight line; where it does not fall, there is no end to tell.

    Args:
        progress: the counts of the crawl, oldest first; the last are the present ones.
        now_us: Unix time in microseconds.
    """
    last = progress[-1]
    idle = max(now_us - last.time_us, 0) / MILLION if last.time_us else 0.0
    if not last.to_fetch:
        return CrawlForecast("finished" if last.read else "new", 0, idle)
    start = next((point for point in progress if point.read * RECENT >= last.read * (RECENT - 1)), last)
    earlier = [point for point in progress if last.read - point.read >= READS_MIN and point.time_us < last.time_us]
    if start not in earlier:
        start = earlier[-1] if earlier else last
    seconds, read = (last.time_us - start.time_us) / MILLION, last.read - start.read
    if read < READS_MIN:
        return CrawlForecast("new", last.to_fetch, idle)
    pace, new_per_read = read / seconds, max((last.to_fetch - start.to_fetch + read) / read, 0.0)
    if idle > max(IDLE_SECONDS, READS_MIN / pace):
        return CrawlForecast("idle", last.to_fetch, idle, pace, new_per_read)
    fall = (start.to_fetch - last.to_fetch) / seconds
    left = last.to_fetch / fall if fall > 0 else SECONDS_MAX
    if left >= SECONDS_MAX:
        return CrawlForecast("growing", last.to_fetch, idle, pace, new_per_read)
    return CrawlForecast("ending", last.to_fetch, idle, pace, new_per_read, left)
