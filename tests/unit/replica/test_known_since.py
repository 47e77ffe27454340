"""When pages became known, as told by the notes of the steps and by the column of pages that came back."""

from itertools import pairwise

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from opic.model.cash import CrawlRules
from opic.replica import Replica
from opic.replica.known_since import ENTRY, INTERVAL_SECONDS, KnownSince, KnownSinceNotes

STEPS = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 3), st.sets(st.integers(0, 9)), st.booleans(), st.integers(0, 4)),
    max_size=30,
)


def replica() -> Replica:
    return Replica(CrawlRules(), 0)


@example(steps=[(0, 3, set(), True, 0), (50, 1, set(), False, 0), (100, 2, set(), True, 0)])
@example(steps=[(0, 3, set(), True, 0), (61, 2, set(), True, 3), (61, 2, set(), True, 0)])
@given(steps=STEPS)
def test_each_page_is_known_since_its_step_up_to_a_minute(
    steps: list[tuple[int, int, set[int], bool, int]],
) -> None:
    notes, packed, now, known, of = KnownSinceNotes(), b"", 1_000, list[int](), replica()
    for wait, new, revived, took_effect, lost in steps:
        now += wait
        entries = notes.entries(now, len(known) if new else None)
        if not took_effect:  # Another worker appended first.
            continue
        notes.confirm()
        packed += entries
        known += [now] * new
        again = np.array([page for page in revived if page < len(known) - new], np.int64)
        of.columns.put("known_again", again, np.full(len(again), now), None)
        for page in again.tolist():
            known[page] = now
        if lost:  # The server lost its last writes, but here not their entries, which is the harder case.
            del known[len(known) - lost :]
            of.columns.known_again[len(known) :] = 0
            notes = KnownSinceNotes()
    fields = {b"1": packed[90:], b"0": packed[:90]}
    told = KnownSince(fields, of).seconds_of(range(len(known))).tolist()
    assert all(0 <= page - since < INTERVAL_SECONDS for page, since in zip(known, told, strict=True))
    for before in {0.0, now - 0.5, now + 1.0, *(page + 0.5 for page in known)}:
        assert KnownSince(fields, of).before(before, len(known)).tolist() == [
            page for page, since in enumerate(told) if since < before
        ]


def test_pages_from_before_the_first_entry_became_known_before_it() -> None:
    notes = KnownSinceNotes()
    since = KnownSince({b"0": notes.entries(5_000, 3)}, replica())
    assert since.seconds_of([0, 2, 3, 9]).tolist() == [0, 0, 5_000, 5_000]
    assert [since.before(seconds, 5).tolist() for seconds in (4_999.0, 5_000.0, 5_001.0)] == [
        [], [0, 1, 2], [0, 1, 2, 3, 4]
    ]  # fmt: skip
    nothing = KnownSince({}, replica())
    assert nothing.seconds_of([0]).tolist() == [0]
    assert nothing.before(1e9, 4).tolist() == []


def test_entries_of_single_pages_from_an_earlier_release_count_until_the_page_comes_back_again() -> None:
    entries = np.array([(1_000, 0, 0), (5_000, 1, 1), (6_000, 3, 1), (7_000, 1, 1)], ENTRY)
    of = replica()
    since = KnownSince({b"0": entries.tobytes()}, of)
    assert since.seconds_of(range(5)).tolist() == [1_000, 7_000, 1_000, 6_000, 1_000]
    of.columns.put("known_again", np.array([3, 4]), np.array([8_000, 9_000]), None)
    assert since.seconds_of(range(5)).tolist() == [1_000, 7_000, 1_000, 8_000, 9_000]
    assert since.before(7_000.0, 5).tolist() == [0, 2]


def test_entries_are_a_minute_apart() -> None:
    notes, times = KnownSinceNotes(), list[int]()
    for second in range(300):
        if notes.entries(second, second):
            times.append(second)
        notes.confirm()
    assert {later - earlier for earlier, later in pairwise(times)} == {INTERVAL_SECONDS}
