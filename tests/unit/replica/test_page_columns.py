"""Columns of pages: sparse ones grow only as they are needed, are packed and come back, and can be undone."""

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from opic.model.ledger_page import Column
from opic.replica.columns import Undo
from opic.replica.page_columns import NOTED_ARRAYS, SPARSE, PageColumns

PAGES = 9
IDS = st.lists(st.integers(0, PAGES - 1), unique=True, min_size=1, max_size=4)


@pytest.mark.parametrize("of", [of for of, _ in NOTED_ARRAYS], ids=lambda of: of.name)
@given(puts=st.lists(st.tuples(IDS, st.sampled_from([None, 2, 3])), max_size=6), first=st.integers(0, PAGES))
def test_given_values_come_back_from_a_block_that_has_grown_and_undo_restores_them(
    of: Column, puts: list[tuple[list[int], int | None]], first: int
) -> None:
    columns, other, all_pages = PageColumns(), PageColumns(), np.arange(PAGES)
    expected = [of.default] * PAGES
    for ids, said in puts:
        value, undo = of.default if said is None else said, Undo()
        for log in (undo, None):
            columns.note(of.name, np.array(ids, np.uint32), np.full(len(ids), value, of.dtype), undo=log)
            if log is not None:
                log.restore()
                assert columns.values_of(of.name, all_pages).tolist() == expected
        for page in ids:
            expected[page] = value
        assert columns.values_of(of.name, all_pages).tolist() == expected
    assert (of.name in columns.in_use()) == any(said is not None for _, said in puts)
    other.unpack(of.name, first, 2 * PAGES, columns.pack(of.name, first, PAGES))
    assert other.values_of(of.name, all_pages)[first:].tolist() == expected[first:]
    assert other.values_of(of.name, all_pages)[:first].tolist() == [of.default] * first


def test_column_of_defaults_takes_no_rows_and_no_bytes() -> None:
    columns = PageColumns()
    columns.note("priority", np.array([7], np.uint32), np.array([1.0]), undo=None)
    columns.note("failures", np.array([7], np.uint32), np.array([0], np.uint8), undo=None)
    columns.reserve(100)
    assert not columns.in_use()
    assert {columns.pack(of.name, 0, 100) for of in SPARSE} == {b""}


def test_forgotten_pages_have_the_defaults_and_undo_brings_their_values_back() -> None:
    columns, undo, ids = PageColumns(), Undo(), np.array([1, 3], np.uint32)
    columns.reserve(5)
    columns.v[1:4] = 7
    columns.host[1:4] = 2
    columns.note("priority", np.arange(4), np.array([2.0, 3.0, 4.0, 5.0]), undo=None)
    columns.clear(ids, undo=undo)
    assert (columns.v[:5].tolist(), columns.host[:5].tolist()) == ([0, 0, 7, 0, 0], [0, 2, 2, 2, 0])
    assert columns.values_of("priority", np.arange(5)).tolist() == [2.0, 1.0, 4.0, 1.0, 1.0]
    undo.restore()
    assert columns.v[:5].tolist() == [0, 7, 7, 7, 0]
    assert columns.values_of("priority", np.arange(5)).tolist() == [2.0, 3.0, 4.0, 5.0, 1.0]


def test_packed_column_of_a_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of element size"):
        PageColumns().unpack("since", 0, 9, zstandard.ZstdCompressor().compress(b"1234567"))
    with pytest.raises(ValueError, match="determining content size"):
        PageColumns().unpack("since", 0, 9, b"nothing")
