"""Windows become grains: against a plain twin, by hand, at every edge of the series."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.errors import BadInput
from opic.model.books import Books
from opic.model.cash import DAY_US
from opic.model.series import ENTRY_ROUNDS, ENTRY_US, FORMS, Entry, Window, entry_due

ROUND = 1 << 32
GRANT = 20
# By the day: 4 rounds of 100 grains, 3 days' rest, 2 rounds of 50; and a day after the last entry half a round.
SERIES = [
    Entry(0, 0, 0),
    Entry(DAY_US, 4 * ROUND, 400),
    Entry(4 * DAY_US, 4 * ROUND, 400),
    Entry(5 * DAY_US, 6 * ROUND, 500),
]
NOW = Books(time_us=6 * DAY_US, rounds=6 * ROUND + ROUND // 2, clock=520, live=10)


def grains(text: str, series: list[Entry] = SERIES, books: Books = NOW) -> float:
    return Window.parse(text).grains(series, books, GRANT * books.live)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ("0.25", 10),  # Since the last entry, half of half a round.
        ("0.5", 20),  # From an entry.
        ("1.5", 70),
        ("2.5", 120),  # From where the clock stood for three days.
        ("3.5", 220),
        ("6.5", 520),  # From the start.
        ("7.5", 520 + 1 * GRANT * 10),  # Older than the store: a round more, of today's size.
        ("106.5", 520 + 100 * GRANT * 10),
        ("0.000000001", 1),
        ("6h", 5),
        ("1d", 20),
        ("1.5d", 70),
        ("48h", 120),
        ("3d", 120),  # It stood still.
        ("5d", 120),
        ("5.5d", 320),
        ("6d", 520),
        ("6.1d", 520),  # Older than the store: the whole life.
        ("1e300d", 520),
        ("1e-9d", 1),
    ],
)
def test_window_in_grains_is_how_far_the_clock_moved(window: str, expected: float) -> None:
    assert grains(window) == pytest.approx(expected, rel=1e-9)


def test_store_without_a_series_has_rounds_of_todays_size_and_days_of_its_whole_life() -> None:
    assert grains("2", []) == 2 * GRANT * 10
    assert grains("2d", []) == 520
    assert grains("2", [], Books()) == grains("2d", [], Books()) == 1


def test_dropped_entries_count_in_rounds_at_todays_size_and_in_days_as_the_whole_life() -> None:
    assert grains("2.5", SERIES[2:]) == 120
    assert grains("4.5", SERIES[2:]) == 120 + 2 * GRANT * 10
    assert grains("2d", SERIES[2:]) == 120
    assert grains("3d", SERIES[2:]) == 520


def test_entries_later_than_the_books_are_ignored() -> None:
    later = [*SERIES, Entry(7 * DAY_US, 9 * ROUND, 700)]
    assert grains("1.5", later) == grains("1.5")
    assert grains("1.5d", later) == grains("1.5d")
    # Of the same clock, and a later time: records that moved no cash.
    still = [*SERIES, Entry(7 * DAY_US, NOW.rounds, NOW.clock)]
    assert grains("1.5d", still) == grains("1.5d")


def test_idle_service_has_an_empty_window_and_keeps_its_answer() -> None:
    idle = Books(time_us=40 * DAY_US, rounds=NOW.rounds, clock=NOW.clock, live=10)
    still = [*SERIES, Entry(6 * DAY_US, NOW.rounds, NOW.clock)]  # Then dead letters only.
    assert grains("30d", still, idle) == 1
    assert grains("1.5", still, idle) == grains("1.5")


def test_time_from_the_future_does_no_harm_once_it_is_past() -> None:
    wrong = [*SERIES[:3], Entry(4_000 * DAY_US, 5 * ROUND, 450), *SERIES[3:]]
    assert grains("1d", wrong) == grains("1d")
    assert grains("1.5d", wrong) == 70 + 25  # The entry counts as of day 5, so the 50 before it came by then.
    assert grains("3d", wrong) == pytest.approx(120)
    assert grains("1.5", wrong) == grains("1.5")


def test_time_that_runs_back_makes_entries_before_it_old() -> None:
    back = Books(time_us=2 * DAY_US, rounds=NOW.rounds, clock=NOW.clock, live=10)
    assert grains("1d", SERIES, back) == 120
    assert grains("1.5d", SERIES, back) == 120 + 200


@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        (8, 8.0),
        (0.5, 0.5),
        ("8", 8.0),
        ("1e1", 10.0),
        (".5", 0.5),
        ("30d", "30d"),
        ("030.0d", "30d"),
        ("1.5d", "1.5d"),
        ("1e2h", "100h"),
        ("12.h", "12h"),
        ("36h", "36h"),
        ("0.1234567890123d", "0.1234567890123d"),
    ],
)
def test_window_is_repeated_in_its_shortest_form(given_: object, shown: object) -> None:
    window = Window.parse(given_)
    assert window.shown() == shown
    assert type(window.shown()) is type(shown)
    assert Window.parse(window.shown()) == window


NOT_WINDOWS = [
    "",
    "d",
    "0",
    "0d",
    "-1",
    "-1d",
    "nan",
    "inf",
    "infd",
    "1w",
    "1D",
    "1 d",
    " 1",
    "1_0",
    "30dd",
    "1d2h",
    "١d",
]


@pytest.mark.parametrize(
    "given_", [*NOT_WINDOWS, 0, -1, float("nan"), float("inf"), 10**400, True, None, [], "9" * 400, "9" * 400 + "d"]
)
def test_invalid_window_is_refused_with_both_valid_forms(given_: object) -> None:
    with pytest.raises(BadInput, match=FORMS):
        Window.parse(given_)


# The twin: step by step back from now.


def twin(series: list[Entry], books: Books, amount: Fraction, rounds: bool) -> Fraction:
    entries = [entry for entry in series if entry.clock <= books.clock] + [Entry.of(books)]
    points = []
    for i, entry in enumerate(entries):
        earliest = min(later.time_us for later in entries[i:])
        points.append((Fraction(entry.rounds if rounds else earliest), entry.clock))
    start = points[-1][0] - amount
    if start < points[0][0]:
        missing = (points[0][0] - start) / ROUND
        found = books.clock - points[0][1] + missing * GRANT * books.live if rounds else Fraction(books.clock)
        return max(found, Fraction(1))
    after = points[-1]
    for point in reversed(points):
        if point[0] <= start:
            stood = point[1] + (after[1] - point[1]) * (start - point[0]) / ((after[0] - point[0]) or 1)
            return max(books.clock - stood, Fraction(1))
        after = point
    raise AssertionError("one of them is not later")


@st.composite
def pasts(draw: st.DrawFn) -> tuple[list[Entry], Books]:
    """A series and books, or books somewhere before its end; clocks may be past what a float holds."""
    scale = draw(st.sampled_from([1, 1, 1 << 40, 1 << 56]))
    entries, at = [], Entry(draw(st.integers(0, 9)) * DAY_US, draw(st.integers(0, 3)) * ROUND, draw(st.integers(0, 9)))
    for _ in range(draw(st.integers(0, 9))):
        entries.append(at)
        moved = draw(st.integers(0, 3))
        at = Entry(
            max(0, at.time_us + draw(st.sampled_from([-2, 0, 0, 1, 1, 3])) * ENTRY_US),
            at.rounds + (draw(st.integers(0, 3)) * ENTRY_ROUNDS if moved else 0),
            at.clock + moved * scale,
        )
    if entries and draw(st.booleans()):
        at = draw(st.sampled_from(entries))
    return entries, Books(time_us=at.time_us, rounds=at.rounds, clock=at.clock, live=draw(st.integers(0, 9)))


amounts = st.one_of(st.integers(1, 200).map(lambda quarters: quarters / 16), st.floats(1e-6, 1e6))


@given(pasts(), amounts, st.sampled_from(["", "h", "d"]))
def test_translation_equals_the_plain_twin(drawn: tuple[list[Entry], Books], amount: float, unit: str) -> None:
    series, books = drawn
    ago = Fraction(amount) * {"": ROUND, "h": DAY_US // 24, "d": DAY_US}[unit]
    expected = twin(series, books, ago, rounds=not unit)
    assert Window(amount, unit).grains(series, books, GRANT * books.live) == pytest.approx(float(expected), rel=1e-9)


@given(pasts(), amounts, amounts, st.sampled_from(["", "h", "d"]))
def test_a_longer_window_is_never_smaller(drawn: tuple[list[Entry], Books], one: float, two: float, unit: str) -> None:
    series, books = drawn
    less, more = (Window(amount, unit).grains(series, books, GRANT * books.live) for amount in sorted((one, two)))
    assert 1 <= less <= more * (1 + 1e-12)


def test_entry_is_due_after_an_hour_or_a_quarter_of_a_round() -> None:
    last = Entry(1_000, 5, 7)
    assert not entry_due(last, Books(time_us=1_000 + ENTRY_US - 1, rounds=5 + ENTRY_ROUNDS - 1, clock=1 << 60))
    assert entry_due(last, Books(time_us=1_000 + ENTRY_US, rounds=5))
    assert entry_due(last, Books(time_us=0, rounds=5 + ENTRY_ROUNDS))
