"""What reads of a page discovered is counted as a plain table counts it, and can be undone and packed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.arrays import turns
from opic.model.books import Books
from opic.model.cash import CrawlRules
from opic.replica.columns import Undo
from opic.replica.effect import Effect
from opic.replica.page_columns import YIELDS, PageColumns
from opic.replica.page_yields import counts_by_read, note_yields

SECOND_US = 1_000_000
FIRST_NEW = 5  # Pages from here on are new in the record.
READS = st.lists(st.tuples(st.integers(0, 9), st.sets(st.integers(0, 9), max_size=6)), max_size=8)


def effect_of(reads: list[tuple[int, set[int]]]) -> Effect:
    links = [sorted(targets - {page}) for page, targets in reads]
    return Effect(
        1, b"", Books.genesis(CrawlRules(), 0), 10, 1, FIRST_NEW,
        read_page=np.array([page for page, _ in reads], np.uint32),
        read_links=np.array([len(some) for some in links], np.uint32),
        links=np.array([target for some in links for target in some], np.uint32),
    )  # fmt: skip


@given(reads=READS)
def test_page_is_discovered_by_the_first_read_that_links_to_it_unless_it_was_read_before(
    reads: list[tuple[int, set[int]]],
) -> None:
    known, expected = set(range(FIRST_NEW)), []
    for page, targets in reads:
        known.add(page)
        expected.append(len(targets - known))
        known |= targets
    shown, new = counts_by_read(effect_of(reads))
    assert shown.tolist() == [len(targets - {page}) for page, targets in reads]
    assert new.tolist() == expected


HISTORY = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.integers(0, 9), st.integers(1, 50)), max_size=5),
    max_size=4,
)


@given(history=HISTORY)
def test_counts_equal_a_plain_table_and_undo_restores_them(
    history: list[list[tuple[int, int, int, int]]],
) -> None:
    yields, seen, rate, last = PageColumns(), [0] * 5, [0.0] * 5, [0] * 5
    for record in history:
        before = [yields.values_of(of.name, np.arange(5)).tolist() for of in YIELDS]
        pages, links, new, at = np.array(record, np.int64).reshape(-1, 4).T
        before_us = np.array([last[page] for page in pages], np.int64) * SECOND_US
        for undo in (Undo(), None):
            note_yields(
                yields,
                pages.astype(np.uint32),
                links,
                np.minimum(new, links),
                at * SECOND_US,
                before_us,
                turns(pages),
                undo,
            )
            if undo is not None:
                undo.restore()
                assert [yields.values_of(of.name, np.arange(5)).tolist() for of in YIELDS] == before
        for page, shown, fresh, time in record:
            discovered = min(shown, fresh)
            rate[page] = discovered / max(time - last[page], 1) if last[page] else 0.0
            seen[page] += discovered if seen[page] else shown
            last[page] = time
        found = [yields.values_of(of.name, np.arange(5)).tolist() for of in YIELDS]
        assert found[0] == seen
        assert found[1] == pytest.approx(rate, rel=1e-6)
