"""The series: past values of rounds and clock, for converting windows in rounds or days to grains of the clock.

The time axis of every window policy is the clock. How far it advances in a round depends on the number of pages at that
time, and in a day on how much was crawled; neither can be computed later. The series therefore stores entries: one
before the first record, and one after each record that is an hour or a quarter of a round past the last entry. Times
are those of the records, so that the same log always gives the same series.

The newest ENTRIES_MAX entries are kept: a year of hours. If the crawl advances by more than a quarter of a round per
hour, they cover less time, but at least 2,190 rounds; the default window is 8. An entry takes 24 bytes, a full series
210 KB. Between two entries the clock is assumed to advance evenly, so the start of a window is off by at most what
arrived in that hour or quarter of a round.

- A window of W rounds begins W rounds ago. If the series does not reach back that far (because the store is younger, or
  older entries were deleted), the missing rounds count with the current size of a round.
- A window of D days begins D days before the last record. "Now" is the time of the last record, not of the query, so
  that the answer depends on the state only: a service that was idle for a month answers as on its last day. If the
  series does not reach back that far, the window is the whole clock.
- If nothing moved in the window, its length is set to one grain, so that rates stay finite.
- The times of records may decrease after a machine's clock was corrected. An entry counts as no later than any entry
  after it, so a single time in the future does no harm once that time has passed.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple

from opic.errors import BadInput
from opic.model.books import Books
from opic.model.cash import DAY_US, ROUND_BITS
from opic.urls.canonical import shown

ENTRIES_MAX: Final = 8_760  # opic.lua trims to as many.
ENTRY_US: Final = DAY_US // 24
ENTRY_ROUNDS: Final = 1 << (ROUND_BITS - 2)
UNITS_US: Final = {"h": DAY_US // 24, "d": DAY_US}
FORMS: Final = "neither a positive number of rounds, such as 0.5, nor a duration, such as 30d or 12h"
NUMBER: Final = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
GIVEN = re.compile(rf"({NUMBER})([hd]?)")


class Entry(NamedTuple):
    """Rounds, in units of 2^-32, and clock after a record of this time."""

    time_us: int
    rounds: int
    clock: int

    @classmethod
    def of(cls, books: Books) -> "Entry":
        """Return the entry for the current books."""
        return cls(books.time_us, books.rounds, books.clock)


def entry_due(last: Entry, books: Books) -> bool:
    """Return whether the books have moved far enough since the last entry for a new one."""
    return books.time_us - last.time_us >= ENTRY_US or books.rounds - last.rounds >= ENTRY_ROUNDS


@dataclass(frozen=True, slots=True)
class Window:
    """A window: a number of rounds, of hours ("h") or of days ("d")."""

    amount: float
    unit: str = ""

    @classmethod
    def parse(cls, given: object) -> "Window":
        """Parse a window: a number, or a string such as "0.5" (rounds), "30d" or "12h".

        Raises:
            BadInput: the window is invalid.

        >>> Window.parse("030.0d").shown(), Window.parse(8).shown()
        ('30d', 8.0)
        """
        number, unit = given, ""
        if isinstance(given, str) and (match := GIVEN.fullmatch(given)):
            number, unit = float(match[1]), match[2]
        # The comparison also excludes NaN, and integers too large for a float.
        if isinstance(number, int | float) and not isinstance(number, bool) and 0 < number <= 1e300:
            return cls(float(number), unit)
        # Python refuses to print an integer of 4,301 digits, and another object may be of any size.
        plain = isinstance(given, float) or (isinstance(given, int) and abs(given) < 1 << 63)
        text = shown(given) if isinstance(given, str) else str(given) if plain else "…"
        raise BadInput(f"window={text} is {FORMS}")

    def shown(self) -> float | str | None:
        """Return the window as shown in answers: a number of rounds, a string, or None if there is none."""
        if self == NO_WINDOW:
            return None
        return f"{self.amount!r}".removesuffix(".0") + self.unit if self.unit else self.amount

    def grains(self, series: Sequence[Entry], books: Books, round_grains: int) -> float:
        """Convert to grains of the clock, T: at least 1, and monotonic in `amount` for the same unit.

        Args:
            series: entries in the order of the log; entries later than the books are ignored.
            books: the end of the window.
            round_grains: current size of a round.

        >>> books = Books(time_us=2 * DAY_US, rounds=4 << 32, clock=900, live=10)
        >>> series = [Entry(0, 0, 0), Entry(DAY_US, 2 << 32, 600)]
        >>> [Window.parse(text).grains(series, books, round_grains=200) for text in ("1", "3", "5", "12h", "7d")]
        [150.0, 600.0, 1100.0, 150.0, 900.0]
        """
        entries = [entry for entry in series if entry.clock <= books.clock] + [Entry.of(books)]
        clocks = [entry.clock for entry in entries]
        if self.unit:
            times = list(accumulate((entry.time_us for entry in reversed(entries)), min))[::-1]
            grains = _moved(times, clocks, self.amount * UNITS_US[self.unit])
            return max(float(books.clock) if grains is None else grains, 1.0)
        rounds, ago = [entry.rounds for entry in entries], self.amount * (1 << ROUND_BITS)
        grains = _moved(rounds, clocks, ago)
        if grains is None:
            missing = (ago - (rounds[-1] - rounds[0])) / (1 << ROUND_BITS)
            grains = clocks[-1] - clocks[0] + missing * round_grains
        return max(grains, 1.0)


NO_WINDOW: Final = Window(inf)  # Of a policy that has estimates of its own, but no window.


def _moved(axis: Sequence[int], clocks: Sequence[int], ago: float) -> float | None:
    """Return how far the clock moved in the last `ago` of a non-decreasing axis; None if the axis starts later."""
    # Compute from the end with exact differences: a clock may exceed the integers that a float represents exactly.
    now = axis[-1]
    after = bisect_right(axis, -ago, key=lambda position: position - now)
    if not after:
        return None
    before = after - 1
    share = (axis[after] - now + ago) / (axis[after] - axis[before])
    return clocks[-1] - clocks[after] + share * (clocks[after] - clocks[before])
