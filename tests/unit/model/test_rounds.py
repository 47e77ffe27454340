"""Rounds of a crawl of many shards, counted from time to time: how far they are from a count at every read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.model.books import Books
from opic.model.cash import CrawlRules
from opic.model.event_checks import decode_record
from opic.model.events import EventLimits, Record
from opic.model.ledger import Ledger
from opic.model.rounds import DUE_ROUNDS, UNIT_BITS, RoundCount
from opic.model.series import Entry
from opic.model.transfer import COUNTS

GRANT = 1 << 21
pages = st.integers(0, 10**9)
clocks = st.integers(0, 1 << 62)


@pytest.mark.parametrize("per_read", [1, 7, 40])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_counts_of_a_growing_crawl_are_close_to_a_count_at_each_read(per_read: int, every: int) -> None:
    """Each read finds so many pages; the crawl is counted when its reads have become `every` times more."""
    exact, count, at = 0.0, RoundCount(), 1
    for read in range(1, 3_000):
        exact += 1 / (1 + per_read * read)
        if read >= at:
            count, at = count.until(read * GRANT, 1 + per_read * read, 1 + per_read, GRANT), max(read * every, read + 1)
    found = count.until(2_999 * GRANT, 1 + per_read * 2_999, 1 + per_read, GRANT)
    assert found.rounds / (1 << UNIT_BITS) == pytest.approx(exact, rel=0.1)


@given(clocks, pages, clocks, pages, st.integers(1, 10_000))
def test_rounds_never_run_back_and_lie_between_those_of_few_and_of_many_pages(
    clock: int, live: int, later: int, then: int, least: int
) -> None:
    before = RoundCount(5, min(clock, later), live)
    after = before.until(later, then, least, GRANT)
    assert after.rounds >= before.rounds
    moved = (later - before.clock) / GRANT
    few, many = (moved / max(1, f(max(live, min(least, then)), then)) for f in (max, min))
    rounds = (after.rounds - before.rounds) / (1 << UNIT_BITS)
    assert few * (1 - 1e-6) - 1e-6 <= rounds <= many * (1 + 1e-6) + 1e-6


def test_a_count_is_due_after_a_quarter_of_a_round_or_with_an_eighth_more_or_fewer_pages() -> None:
    last = RoundCount(7, 100, 800)
    assert not last.due(RoundCount(7 + DUE_ROUNDS - 1, 200, 899))
    assert last.due(RoundCount(7 + DUE_ROUNDS, 200, 800))
    assert last.due(RoundCount(8, 101, 900))
    assert last.due(RoundCount(8, 101, 700))
    assert last.due(RoundCount(7, 100, 4_000))  # Nothing was read, but what is read next counts for more pages.
    assert not last.due(last)
    assert not RoundCount().due(RoundCount())


def test_books_keep_the_last_count_and_refuse_an_earlier_one() -> None:
    books = Books()
    assert books.take_count(RoundCount(5, 70, 3))
    assert not books.take_count(RoundCount(9, 69, 4))
    assert not books.take_count(RoundCount(4, 80, 4))
    assert books.round_count == (5, 70, 3)
    assert not books.take_count(RoundCount(5, 70, 4))  # Taken, but the clock has not moved.
    assert books.round_count == (5, 70, 4)


def test_ledger_takes_a_count_as_a_record_of_its_own_partition_alone() -> None:
    value = b"\x93\x05\x46\x03"
    ledger = Ledger(CrawlRules(), shards=4)
    ledger.apply(COUNTS, [Record(0, 1_790_000_000_000_000, value, "count")])
    assert ledger.books.round_count == (5, 70, 3)
    assert list(ledger.round_counts) == [Entry(1_790_000_000_000_000, 5, 70)]
    assert decode_record("test/0", Record(0, 0, value, "count"), EventLimits()).reason


def test_a_store_without_a_count_has_rounds_as_if_its_pages_had_come_evenly() -> None:
    parts = [Books(clock=30 * GRANT, live=10, reads=20, links=80), Books(clock=10 * GRANT, live=30, reads=20, links=80)]
    rules = CrawlRules()
    assert Books.merged(parts, rules).rounds == RoundCount().until(40 * GRANT, 40, 5, rules.grant).rounds
