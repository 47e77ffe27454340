"""Progress of a crawl: error bound and counts of pages over rounds, recorded for people to look at.

Past values can't be computed later, so points are stored as the crawl goes on: one when the rounds first
enter each sixteenth of a doubling. The curve therefore has the same detail at the tenth round as at the thousandth, and
at most POINTS_MAX points in total. Each endpoint checks once a second. Several endpoints may do so; the point written
first stays. Rounds that pass while no endpoint runs have no points, and the curve is a straight line there.
"""

import contextlib
import math
from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

from opic.errors import StoreError
from opic.model.books import Books
from opic.model.cash import CLOCK_LIMIT, MILLION, ROUND_BITS
from opic.model.crawl_clock import Clocks
from opic.query.queries import Query
from opic.replica import Crawl
from opic.store.connection import store_errors

STEPS_A_DOUBLING: Final = 16
POINTS_MAX: Final = STEPS_A_DOUBLING * (CLOCK_LIMIT.bit_length() - 1) + 1  # Plus the current point.
NOTHING_SAID: Final = 2.0  # The maximum distance between two distributions; a bound this large says nothing.
NOTE_SECONDS: Final = 1.0
PACKED: Final = Struct(">qqqqd")
COUNTS: Final = Struct(">qqqqqq")
Counts = tuple[int, int, int, int]  # Pages never read: to be fetched, failed, denied, outside the scope.


class Point(NamedTuple):
    """A point of the curve: time of the last record; rounds in units of 2^-32; clock and unspent cash in grains."""

    time_us: int
    rounds: int
    clock: int
    unspent: int  # Cash on read pages: the residual of the estimate.
    error_bound: float  # Of the default policy then.

    def shown(self) -> dict[str, object]:
        """Return the point as it appears in answers; a bound that says nothing is null."""
        return {
            "time": self.time_us / MILLION,
            "rounds": self.rounds / (1 << ROUND_BITS),
            "clock": self.clock,
            "unspent": self.unspent,
            "error_bound": self.error_bound if self.error_bound < NOTHING_SAID else None,
        }


class PageProgress(NamedTuple):
    """How many pages were read, and what is to be said of those never read, when the last record took effect."""

    time_us: int
    read: int
    to_fetch: int
    failed: int
    denied: int
    outside: int

    def shown(self) -> dict[str, object]:
        """Return the counts as they appear in answers."""
        counts = {f"{name}_pages": count for name, count in self._asdict().items() if name != "time_us"}
        return {"time": self.time_us / MILLION, **counts}


def step_of(rounds: int) -> int:
    """Return the index of the sixteenth of a doubling that rounds (in units of 2^-32) are in; -1 before the first.

    >>> [step_of(rounds) for rounds in (0, 1, 2, 1 << 32, 2 << 32)]
    [-1, 0, 16, 512, 528]
    """
    return math.floor(STEPS_A_DOUBLING * math.log2(rounds)) if rounds > 0 else -1


class Convergence:
    """The curve of a crawl."""

    def __init__(
        self, crawl: Crawl, query: Query, counts: Callable[[], Counts], disk_full: Callable[[], str | None]
    ) -> None:
        """Create the curve.

        Args:
            crawl: the crawl.
            query: tells the error bound.
            counts: counts the pages that were never read.
            disk_full: returns the reason why nothing may be written now, or None.
        """
        self._crawl, self._query, self._counts, self._disk_full = crawl, query, counts, disk_full
        self._noted = -1

    def step(self) -> float:
        """Do as `note`, for a thread; return how many seconds to wait before the next time."""
        with contextlib.suppress(StoreError):  # Requests report such errors; the thread tries again.
            self.note()
        return NOTE_SECONDS

    def note(self) -> bool:
        """Store a point if there is none yet for the current number of rounds; return whether one was stored.

        Raises:
            StoreError: the store is unavailable.
        """
        parts = self._crawl.books()
        books = self._merged(parts)
        step = step_of(books.rounds)
        if step < 0 or step == self._noted or self._disk_full() is not None:
            return False
        first, counts = self._crawl.shards[0], self._progress_now(books)
        with store_errors():
            new = first.client.hsetnx(first.keys.curve, str(step), PACKED.pack(*self._point(parts, books)))
            first.client.hsetnx(first.keys.progress, str(step), COUNTS.pack(*counts))
        self._noted = step
        return bool(new)

    def _merged(self, parts: list[Books]) -> Books:
        return Books.merged(parts, self._crawl.rules)

    def _stored(self, key: str, form: Struct) -> list[tuple[Any, ...]]:
        with store_errors():
            return list(map(form.unpack, self._crawl.shards[0].client.hvals(key)))

    def _point(self, parts: list[Books], books: Books) -> Point:
        _, bound = self._query.default_bound(parts, books)
        said = NOTHING_SAID if bound is None else bound
        return Point(books.time_us, books.rounds, books.clock, books.open_cash, said)

    def _progress_now(self, books: Books) -> PageProgress:
        return PageProgress(books.time_us, books.open, *self._counts())

    def so_far(self) -> tuple[list[Point], list[PageProgress]]:
        """Return the stored points and counts of pages, in order, and as the last of each the present ones.

        Raises:
            StoreError: the store is unavailable.
        """
        keys, parts = self._crawl.shards[0].keys, self._crawl.books()
        books = self._merged(parts)
        now, counts_now = self._point(parts, books), self._progress_now(books)
        # A store that lost its latest records has not reached some of these points again.
        points = map(Point._make, self._stored(keys.curve, PACKED))
        kept = {point.clock: point for point in points if point.clock < now.clock}
        counts = sorted(map(PageProgress._make, self._stored(keys.progress, COUNTS)))
        earlier = [progress for progress in counts if progress.time_us < books.time_us]
        return [*(kept[clock] for clock in sorted(kept)), now], [*earlier, counts_now]

    def series(self, count: int) -> list[dict[str, object]]:
        """Return time, rounds and clock, oldest first: about `count` entries of the stored series, and the current one.

        Raises:
            StoreError: the store is unavailable, or the clocks of all shards are too large for one axis.
        """
        replicas, rules = self._crawl.follow(), self._crawl.rules
        columns = [replica.series for replica in replicas], [replica.books for replica in replicas]
        clocks = Clocks(*columns, rules, replicas[0].round_counts)
        books = clocks.books
        entries = [entry for entry in clocks.series if entry.clock <= books.clock]
        entries = entries[:: -max(1, -(-len(entries) // count))][::-1]
        scale = 1 << ROUND_BITS
        shown = [(entry.time_us, entry.rounds, entry.clock) for entry in entries]
        return [
            {"time": time_us / MILLION, "rounds": rounds / scale, "clock": clock}
            for time_us, rounds, clock in [*shown, (books.time_us, books.rounds, books.clock)]
        ]
