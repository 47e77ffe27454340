"""How often reads of a page showed other links is counted as a plain table counts it, can be undone and packed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opic.model.cash import MILLION
from opic.replica.columns import Undo
from opic.replica.page_changes import CHANGES_MAX, note_changed_links
from opic.replica.page_columns import CHANGES, PageColumns

PAGES = 5
READS = st.lists(st.tuples(st.integers(0, PAGES - 1), st.integers(1, 50), st.integers(0, 2)), max_size=6)


def columns_of(columns: PageColumns) -> list[list[int]]:
    return [columns.values_of(of.name, np.arange(PAGES)).tolist() for of in CHANGES]


def read(changes: PageColumns, record: list[tuple[int, int, int]], last: dict[int, tuple[int, int]]) -> None:
    """Record reads, given as page, time and links; undo them, and record them again."""
    pages, at, digest = np.array(record, np.int64).reshape(-1, 3).T
    before = np.array([last.get(page, (0, 0)) for page in pages.tolist()], np.int64).reshape(-1, 2).T
    shown = columns_of(changes)
    for undo in (Undo(), None):
        times, digests = (at * MILLION, digest.astype("u8")), (before[0] * MILLION, before[1].astype("u8"))
        note_changed_links(changes, pages.astype(np.uint32), *times, *digests, undo)
        if undo is not None:
            undo.restore()
            assert columns_of(changes) == shown


@given(records=st.lists(READS, max_size=5))
def test_counts_equal_a_plain_table_and_undo_restores_them(records: list[list[tuple[int, int, int]]]) -> None:
    changes, counts, since = PageColumns(), [0] * PAGES, [0] * PAGES
    last = dict[int, tuple[int, int]]()
    for record in records:
        read(changes, record, last)
        for page, at, links in record:
            if page in last:
                counts[page] += links != last[page][1]
                since[page] = since[page] or last[page][0]
            last[page] = at, links
        assert columns_of(changes) == [counts, since]


def test_count_stops_at_its_maximum() -> None:
    changes = PageColumns()
    reads = CHANGES_MAX + 10
    read(changes, [(1, at + 1, at % 2) for at in range(reads)], {})
    assert columns_of(changes)[0] == [0, CHANGES_MAX, 0, 0, 0]
