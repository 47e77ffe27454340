"""The series: where rounds and the clock stood in the past, so that windows in rounds or in days become grains.

The time axis of every window policy is the clock. How far it moves in a round depends on how many pages there were, in
a day on how much was crawled; neither can be worked out later. So entries are kept: what the books said before the
first record, and then after each record that came an hour or more after the last entry's, or took the rounds a quarter
or more past it. Times are those of the records, so one log makes one series, whoever works through it.

ENTRIES_MAX of them are kept, the newest: a year of hours. A crawl that moves by more than a quarter of a round an hour
uses them up sooner: they reach back 2,190 rounds at least, when the default window is 8. They take 24 bytes each,
210 KB for a store. Between two entries the clock is taken to move evenly: a window's start is off by no more than what
came in that hour or quarter of a round.

- A window of W rounds reaches from where the rounds stood W ago until now. Where the series does not go back so far
  (a store that is younger, or older entries that were let go), the missing rounds count at today's size of a round.
- A window of D days reaches from D days before the last record until now. "Now" is the last record's time, not that of
  the question: so a state has one answer, whenever it is asked, and a service that stands still for a month answers as
  on the day it stopped. Where the series does not go back so far it is the whole life, all of the clock.
- Where nothing moved the window is empty. It is one grain then, so that rates stay finite.
- Records' times may run backwards, when a machine's clock was put right. An entry counts as made no later than any that
  follow it: so one time from the future does no harm once it is past.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple

from opic.errors import BadInput
from opic.model.cash import DAY_US, ROUND_BITS, Books
from opic.urls.canonical import shown

ENTRIES_MAX: Final = 8_760  # opic.lua trims to as many.
ENTRY_US: Final = DAY_US // 24
ENTRY_ROUNDS: Final = 1 << (ROUND_BITS - 2)
PACKED = Struct(">qqq")
UNITS_US: Final = {"h": DAY_US // 24, "d": DAY_US}
FORMS: Final = "neither a positive number of rounds, like 0.5, nor a time, like 30d or 12h"
NUMBER: Final = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
GIVEN = re.compile(rf"({NUMBER})([hd]?)")


class Entry(NamedTuple):
    """Where the books stood: after a record of this time; rounds in units of 2^-32."""

    time_us: int
    rounds: int
    clock: int

    @classmethod
    def of(cls, books: Books) -> "Entry":
        """Say where books stand."""
        return cls(books.time_us, books.rounds, books.clock)

    def pack(self) -> bytes:
        """Pack as the store keeps it."""
        return PACKED.pack(*self)


def unpack(packed: Iterable[bytes]) -> list[Entry]:
    """Unpack entries."""
    return [Entry(*PACKED.unpack(entry)) for entry in packed]


def entry_due(last: Entry, books: Books) -> bool:
    """Tell whether books have moved far enough from the last entry for another one."""
    return books.time_us - last.time_us >= ENTRY_US or books.rounds - last.rounds >= ENTRY_ROUNDS


@dataclass(frozen=True, slots=True)
class Window:
    """How much of the past counts: an amount of rounds, of hours ("h") or of days ("d")."""

    amount: float
    unit: str = ""

    @classmethod
    def parse(cls, given: object) -> "Window":
        """Read a window: a number, or a text like 0.5 (rounds), 30d or 12h.

        Raises:
            BadInput: it is neither.

        >>> Window.parse("030.0d").shown(), Window.parse(8).shown()
        ('30d', 8.0)
        """
        number, unit = given, ""
        if isinstance(given, str) and (found := GIVEN.fullmatch(given)):
            number, unit = float(found[1]), found[2]
        # NaN fails every comparison, and a whole number may be too large for a float.
        if isinstance(number, int | float) and not isinstance(number, bool) and 0 < number <= 1e300:
            return cls(float(number), unit)
        # Python prints no whole number of 4,301 digits, and a stranger's object may be of any size.
        plain = isinstance(given, float) or (isinstance(given, int) and abs(given) < 1 << 63)
        text = shown(given) if isinstance(given, str) else str(given) if plain else "…"
        raise BadInput(f"window={text} is {FORMS}")

    def shown(self) -> float | str:
        """Return it as answers repeat it: the number of rounds, or a text without needless digits."""
        return f"{self.amount!r}".removesuffix(".0") + self.unit if self.unit else self.amount

    def grains(self, series: Sequence[Entry], books: Books, round_grains: int) -> float:
        """Translate into grains of the clock, T: at least 1, and never less for a longer window of the same kind.

        Args:
            series: entries in order of the log; any that are later than the books are passed over.
            books: where the window ends.
            round_grains: what a round is today.

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


def _moved(axis: Sequence[int], clocks: Sequence[int], ago: float) -> float | None:
    """Return how far the clock moved in the last `ago` of an axis that never falls; None if it starts later."""
    # From the end, so that differences are exact: a clock may be past what a float holds.
    now = axis[-1]
    after = bisect_right(axis, -ago, key=lambda at: at - now)
    if not after:
        return None
    before = after - 1
    share = (axis[after] - now + ago) / (axis[after] - axis[before])
    return clocks[-1] - clocks[after] + share * (clocks[after] - clocks[before])
