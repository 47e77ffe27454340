"""What is new in the links of a read is told as a dict of sets tells it, also after records were refused."""

from collections.abc import Iterable

import numpy as np
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from opic import arrays
from opic.model.page_links import PageLinks
from opic.replica.shown_links import FIRST, OTHER, SAME, ShownLinks

PAGES = st.integers(0, 5)
NEAR = st.sets(st.integers(0, 9), max_size=5)
FAR = st.sets(st.integers(0, 9), max_size=3)
Read = tuple[int, set[int], set[int]]
READS = st.lists(st.tuples(PAGES, NEAR, FAR), max_size=5)
Shown = dict[int, tuple[set[int], set[int]]]


def links_of(reads: Iterable[Read]) -> PageLinks:
    reads = list(reads)
    near, far = [sorted(some) for _, some, _ in reads], [sorted(some) for *_, some in reads]
    flat = [page for some in far for page in some]
    return PageLinks(
        np.array([page for page, *_ in reads], np.uint32),
        np.array(list(map(len, near)), np.uint32),
        np.array([page for some in near for page in some], np.uint32),
        np.array(list(map(len, far)), np.uint32),
        np.array(flat, np.uint64) << np.uint64(20),
        np.zeros(len(flat), np.uint16),
    )


def told(shown: ShownLinks, lsn: int, reads: list[Read], again: list[int]) -> list[tuple[bool, set[int], set[int]]]:
    """By read: whether it was compared, and which of its links are new."""
    links, fresh = links_of(reads), shown.fresh(lsn, links_of(reads), np.array(again, np.uint8))
    near_of = np.repeat(np.arange(len(reads)), links.near_counts)
    far_of = np.repeat(np.arange(len(reads)), links.far_counts)
    return [
        (
            bool(fresh.compared[row]),
            set(links.near[fresh.near & (near_of == row)].tolist()),
            {int(one) >> 20 for one in links.far[fresh.far & (far_of == row)]},
        )
        for row in range(len(reads))
    ]


def expected(shown: Shown, reads: list[Read]) -> tuple[list[int], list[tuple[bool, set[int], set[int]]]]:
    """How each read relates to the one before, and what is to be told; `shown` is brought up to date."""
    again, found = [], []
    for page, near, far in reads:
        before = shown.get(page)
        again.append(FIRST if before is None else SAME if before == (near, far) else OTHER)
        old = before or (near, far)
        found.append((before is not None, near - old[0], far - old[1]))
        shown[page] = near, far
    return again, found


@examples(200)
@given(
    stored=st.dictionaries(PAGES, st.tuples(NEAR, FAR)),
    records=st.lists(st.tuples(READS, st.booleans()), max_size=12),
    small=st.booleans(),
)
def test_new_links_are_those_that_the_last_read_did_not_show(
    stored: Shown, records: list[tuple[list[Read], bool]], small: bool
) -> None:
    confirmed = dict(stored)
    shown = ShownLinks(lambda: [links_of([(page, *links)]) for page, links in confirmed.items()])
    with_minimum, arrays.GARBAGE_MIN = arrays.GARBAGE_MIN, 0 if small else arrays.GARBAGE_MIN  # type: ignore[misc]
    try:
        lsn = 0
        for reads, refused in records:
            after = dict(confirmed)
            again, found = expected(after, reads)
            assert told(shown, lsn, reads, again) == found
            shown.note(lsn + 1, links_of(reads))
            if refused:
                shown.undo(lsn)
            else:
                confirmed, lsn = after, lsn + 1
    finally:
        arrays.GARBAGE_MIN = with_minimum  # type: ignore[misc]


def test_nothing_is_loaded_before_links_differ() -> None:
    shown = ShownLinks(lambda: [links_of([(1, {2}, {3})])])
    assert told(shown, 0, [(1, {2}, {3}), (2, {1}, set())], [SAME, FIRST]) == [
        (True, set(), set()), (False, set(), set())
    ]  # fmt: skip
    assert not shown.loaded
    assert told(shown, 0, [(1, {4}, {3, 5}), (4, {1}, set())], [OTHER, OTHER]) == [
        (True, {4}, {5}), (False, set(), set())
    ]  # fmt: skip
    assert shown.loaded


def test_table_takes_at_most_twice_what_its_links_take() -> None:
    rng, shown = np.random.default_rng(1), ShownLinks(list)
    told(shown, 0, [(0, {1}, set())], [OTHER])
    pages = 2_000
    for lsn in range(1, 200):
        reads: list[Read] = [
            (int(page), set(rng.integers(0, 1 << 20, 40).tolist()), set()) for page in rng.integers(0, pages, 100)
        ]
        shown.note(lsn, links_of(reads))
    live = int(np.maximum(shown._links.counts, 0).sum())
    assert shown._links.used <= 2 * live + arrays.GARBAGE_MIN + 100 * 40
    assert len(shown._links.values) <= 2 * (2 * live + arrays.GARBAGE_MIN)
