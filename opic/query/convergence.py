"""The curve: how the bound on the error moved while the rounds went by. For a person to look at; nothing rests on it.

What the bound was cannot be worked out later, so points are kept while the crawl goes on: one the first time that the
rounds get into each sixteenth of a doubling. So the curve has the same detail at the tenth round as at the thousandth,
and no more than POINTS_MAX points in all. Whoever serves the endpoint looks once a second; several do no harm, the
first one's point stays. Rounds that went by while no endpoint ran have no points, and the line goes straight there.
"""

import contextlib
import math
import threading
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from opic.errors import StoreError
from opic.model.cash import CLOCK_LIMIT, MILLION, ROUND_BITS, Books
from opic.model.crawl_clock import Clocks
from opic.query.queries import Query
from opic.replica import Crawl
from opic.store.connection import store_errors

STEPS_A_DOUBLING: Final = 16
POINTS_MAX: Final = STEPS_A_DOUBLING * (CLOCK_LIMIT.bit_length() - 1) + 1  # And the one of now.
NOTHING_SAID: Final = 2.0  # No distance of two distributions is more.
NOTE_SECONDS: Final = 1.0
END_SECONDS: Final = 2.0
PACKED = Struct(">qqqqd")


class Point(NamedTuple):
    """Where a crawl stood: time of its last record; rounds in units of 2^-32; clock and unspent cash in grains."""

    time_us: int
    rounds: int
    clock: int
    unspent: int  # Cash on read pages: the residual of the estimate.
    error_bound: float

    def shown(self) -> dict[str, object]:
        """Return it as answers have it; a bound that says nothing is null."""
        return {
            "time": self.time_us / MILLION,
            "rounds": self.rounds / (1 << ROUND_BITS),
            "clock": self.clock,
            "unspent": self.unspent,
            "error_bound": self.error_bound if self.error_bound < NOTHING_SAID else None,
        }


def step_of(rounds: int) -> int:
    """Return which sixteenth of a doubling rounds (in units of 2^-32) are in; -1 before the first.

    >>> [step_of(rounds) for rounds in (0, 1, 2, 1 << 32, 2 << 32)]
    [-1, 0, 16, 512, 528]
    """
    return math.floor(STEPS_A_DOUBLING * math.log2(rounds)) if rounds > 0 else -1


class Convergence:
    """The curve of a crawl."""

    def __init__(self, crawl: Crawl, query: Query, disk_full: Callable[[], str | None] = lambda: None) -> None:
        """Note nothing yet; `disk_full` says why nothing may be written now, or None."""
        self._crawl, self._query, self._disk_full = crawl, query, disk_full
        self._noted = -1
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Note points from now on, beside whatever else is done, until `close`."""
        self._thread = threading.Thread(target=self._run, name="opic-curve", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End that."""
        self._done.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)  # A store that stands still would keep it longer; it ends by itself then.

    def _run(self) -> None:
        while not self._done.wait(NOTE_SECONDS):
            with contextlib.suppress(StoreError):  # Whoever asks for something is told; there is a next time.
                self.note()

    def note(self) -> bool:
        """Keep a point if the rounds got to where there is none yet; tell whether they did.

        Raises:
            StoreError: the store is away.
        """
        parts = self._crawl.books()
        step = step_of(Books.merged(parts, self._crawl.rules).rounds)
        if step < 0 or step == self._noted or self._disk_full() is not None:
            return False
        first = self._crawl.shards[0]
        with store_errors():
            new = first.client.hsetnx(first.keys.curve, str(step), PACKED.pack(*self._point(parts)))
        self._noted = step
        return bool(new)

    def _point(self, parts: list[Books]) -> Point:
        books, bound = Books.merged(parts, self._crawl.rules), self._query.error_bound(parts)
        said = NOTHING_SAID if bound is None else bound
        return Point(books.time_us, books.rounds, books.clock, books.open_cash, said)

    def points(self) -> list[Point]:
        """Return the points that were kept, and that of now; by the clock.

        Raises:
            StoreError: the store is away.
        """
        first = self._crawl.shards[0]
        with store_errors():
            packed = first.client.hvals(first.keys.curve)
        now = self._point(self._crawl.books())
        # A store that lost its tail has not been where some of them were.
        kept = {point.clock: point for point in map(Point._make, map(PACKED.unpack, packed)) if point.clock < now.clock}
        return [*(kept[clock] for clock in sorted(kept)), now]

    def series(self, count: int) -> list[dict[str, object]]:
        """Return where time, rounds and clock stood, oldest first: about `count` entries of the stored series, and now.

        Raises:
            StoreError: the store is away, or the clocks of all shards are past what one axis holds.
        """
        replicas = self._crawl.follow()
        clocks = Clocks([replica.series for replica in replicas], [r.books for r in replicas], self._crawl.rules)
        books = clocks.books
        found = [entry for entry in clocks.series if entry.clock <= books.clock]
        found = found[:: -max(1, -(-len(found) // count))][::-1]
        scale = 1 << ROUND_BITS
        shown = [(entry.time_us, entry.rounds, entry.clock) for entry in found]
        return [
            {"time": time_us / MILLION, "rounds": rounds / scale, "clock": clock}
            for time_us, rounds, clock in [*shown, (books.time_us, books.rounds, books.clock)]
        ]
