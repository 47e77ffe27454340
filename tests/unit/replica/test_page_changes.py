"""How often reads of a page showed other links is counted as a plain table counts it, can be undone and packed."""

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from opic.model.cash import MILLION
from opic.replica.columns import Undo
from opic.replica.page_changes import CHANGES_MAX, PageChanges

PAGES = 5
READS = st.lists(st.tuples(st.integers(0, PAGES - 1), st.integers(1, 50), st.integers(0, 2)), max_size=6)


def columns_of(changes: PageChanges) -> list[list[int]]:
    return [column.tolist() for column in changes.rows(np.arange(PAGES))]


def read(changes: PageChanges, record: list[tuple[int, int, int]], last: dict[int, tuple[int, int]]) -> None:
    """Record reads, given as page, time and links; undo them, and record them again."""
    pages, at, digest = np.array(record, np.int64).reshape(-1, 3).T
    before = np.array([last.get(page, (0, 0)) for page in pages.tolist()], np.int64).reshape(-1, 2).T
    shown = columns_of(changes)
    for undo in (Undo(), None):
        times, digests = (at * MILLION, digest.astype("u8")), (before[0] * MILLION, before[1].astype("u8"))
        changes.read(pages.astype(np.uint32), *times, *digests, undo)
        if undo is not None:
            undo.restore()
            assert columns_of(changes) == shown


@given(records=st.lists(READS, max_size=5))
def test_counts_equal_a_plain_table_and_undo_restores_them(records: list[list[tuple[int, int, int]]]) -> None:
    changes, counts, since = PageChanges(), [0] * PAGES, [0] * PAGES
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
    changes = PageChanges()
    reads = CHANGES_MAX + 10
    read(changes, [(1, at + 1, at % 2) for at in range(reads)], {})
    assert columns_of(changes)[0] == [0, CHANGES_MAX, 0, 0, 0]


def test_packed_counts_come_back_in_a_block_that_has_grown() -> None:
    changes, other = PageChanges(), PageChanges()
    read(changes, [(2, 7, 1), (4, 8, 1), (2, 9, 0), (4, 9, 1)], {})
    other.unpack(1, 20, changes.pack(1, 5))
    assert columns_of(other) == columns_of(changes) == [[0, 0, 1, 0, 0], [0, 0, 7, 0, 8]]
    assert PageChanges().pack(0, 9) == changes.pack(0, 2) == b""


def test_packed_counts_of_a_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match="counts of changes have a wrong length"):
        PageChanges().unpack(0, 9, zstandard.ZstdCompressor().compress(b"1234567"))
    with pytest.raises(ValueError, match="determining content size"):
        PageChanges().unpack(0, 9, b"nothing")
