"""Segments of kept links: whatever is packed comes back, and no damage goes unnoticed."""

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from link_pools import rows_of

from opic.errors import StoreDamaged
from opic.model.page_links import NO_LINKS, PageLinks
from opic.replica.link_segment import pack_segment, unpack_pages, unpack_segment

LAST_ID = (1 << 32) - 1
LAST_PRINT = (1 << 64) - 1
ids = st.one_of(st.integers(0, 300), st.integers(0, LAST_ID), st.integers(LAST_ID - 300, LAST_ID))
prints = st.one_of(st.integers(0, 5), st.integers(0, LAST_PRINT), st.integers(LAST_PRINT - 5, LAST_PRINT))
far = st.sets(st.tuples(prints, st.sampled_from([0, 1, 300, 65_535])), max_size=12)
Plain = dict[int, tuple[set[int], set[tuple[int, int]]]]
webs = st.dictionaries(ids, st.tuples(st.sets(ids, max_size=12), far), max_size=20)


def links_of(web: Plain) -> PageLinks:
    """The links of pages in the order of the dict; near ones increase in each page, far ones are in any order."""
    near = [sorted(some) for some, _ in web.values()]
    others = [list(some) for _, some in web.values()]
    flat = [pair for some in others for pair in some]
    return PageLinks(
        np.array(list(web), np.uint32),
        np.array(list(map(len, near)), np.uint32),
        np.array([page for some in near for page in some], np.uint32),
        np.array(list(map(len, others)), np.uint32),
        np.array([fingerprint for fingerprint, _ in flat], np.uint64),
        np.array([shard for _, shard in flat], np.uint16),
    )


def web_of(links: PageLinks) -> Plain:
    found: Plain = {}
    for page, near, prints_, shards in rows_of(links):
        assert near.tolist() == sorted(set(near.tolist()))
        found[page] = set(near.tolist()), set(zip(prints_.tolist(), shards.tolist(), strict=True))
    return found


@examples(100)
@given(web=webs)
def test_links_come_back_from_a_segment(web: Plain) -> None:
    links = links_of(dict(sorted(web.items())))
    pages, body = pack_segment(links)
    found = unpack_segment(pages, body)
    assert web_of(found) == web
    assert found.pages.tolist() == sorted(web)
    counts = [(page, len(near), len(others)) for page, (near, others) in sorted(web.items())]
    size, *columns = unpack_pages(pages)
    assert size == len(pages) + len(body)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == counts
    assert [column.dtype for column in (found.pages, found.near, found.far, found.far_shards)] == [
        np.uint32, np.uint32, np.uint64, np.uint16
    ]  # fmt: skip


@examples(60)
@given(web=webs.filter(bool), where=st.integers(0, 1 << 20), bit=st.integers(0, 7), which=st.booleans())
def test_changed_bit_of_a_segment_is_found(web: Plain, where: int, bit: int, which: bool) -> None:
    fields = list(pack_segment(links_of(dict(sorted(web.items())))))
    damaged = bytearray(fields[which])
    damaged[where % len(damaged)] ^= 1 << bit
    fields[which] = bytes(damaged)
    with pytest.raises(StoreDamaged, match=r"a segment of kept links is damaged .*: restore a backup"):
        unpack_segment(fields[0], fields[1])


def test_shortened_and_exchanged_fields_are_found() -> None:
    one = pack_segment(links_of({1: ({2, 3}, {(7, 1)}), 9: ({1}, set())}))
    other = pack_segment(links_of({1: ({2}, set()), 9: ({1}, set())}))
    for pages, body in ((one[0][:-1], one[1]), (one[0], one[1][:-1]), (one[0], b""), (b"", one[1]), (one[0], other[1])):
        with pytest.raises(StoreDamaged, match="damaged"):
            unpack_segment(pages, body)


def test_page_with_many_links_comes_back() -> None:
    rng = np.random.default_rng(1)
    near = np.unique(rng.integers(0, LAST_ID, 100_000, np.uint32, endpoint=True))
    targets = np.unique(rng.integers(0, LAST_PRINT, 50_000, np.uint64, endpoint=True))
    counts = np.array([len(near)], np.uint32), np.array([len(targets)], np.uint32)
    shards = rng.integers(0, 16, len(targets)).astype(np.uint16)
    order = rng.permutation(len(targets))
    links = PageLinks(np.array([LAST_ID], np.uint32), counts[0], near, counts[1], targets[order], shards[order])
    found = unpack_segment(*pack_segment(links))
    assert found.near.tolist() == near.tolist()
    assert (found.far.tolist(), found.far_shards.tolist()) == (targets.tolist(), shards.tolist())


def test_links_take_few_bytes() -> None:
    """The targets: 2.5 bytes a link within the shard, 6 to other shards, no entry a page; at 40 links a page."""
    rng = np.random.default_rng(2)
    for known, bytes_max in ((100_000, 1.7), (1_000_000, 2.15), (10_000_000, 2.55)):
        near = np.sort(rng.integers(0, known, (5_000, 40), np.uint32)).ravel()
        pages = np.sort(rng.choice(known, 5_000, replace=False)).astype(np.uint32)
        counts, none = np.full(5_000, 40, np.uint32), np.zeros(5_000, np.uint32)
        packed = pack_segment(PageLinks(pages, counts, near, none, NO_LINKS.far, NO_LINKS.far_shards))
        assert len(packed[0]) + len(packed[1]) < 5_000 * 40 * bytes_max
    fingerprints, linked = rng.integers(0, LAST_PRINT, 100_000, np.uint64), rng.integers(0, 100_000, 3_200 * 40)
    shards = rng.integers(0, 16, 100_000).astype(np.uint16)
    counts, none = np.full(3_200, 40, np.uint32), np.zeros(3_200, np.uint32)
    pages = np.arange(3_200, dtype=np.uint32)
    packed = pack_segment(PageLinks(pages, none, NO_LINKS.near, counts, fingerprints[linked], shards[linked]))
    assert len(packed[0]) + len(packed[1]) < 3_200 * 40 * 6


@examples(100)
@given(parts=st.lists(webs, max_size=4), data=st.data())
def test_rows_are_joined_selected_and_split_like_lists(parts: list[Plain], data: st.DataObject) -> None:
    links = PageLinks.joined([links_of(part) for part in parts])
    rows = [row for part in parts for row in web_rows(links_of(part))]
    assert web_rows(links) == rows
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10) if rows else st.just([]))
    assert web_rows(links.select_rows(np.array(chosen, np.int64))) == [rows[row] for row in chosen]
    first, end = sorted(data.draw(st.tuples(st.integers(0, len(rows)), st.integers(0, len(rows)))))
    assert web_rows(links.part(first, end)) == rows[first:end]
    last = {page: number for number, (page, *_) in enumerate(rows)}
    assert links.last_of_each().tolist() == [last[page] for page in sorted(last)]


def web_rows(links: PageLinks) -> list[tuple[int, list[int], list[int], list[int]]]:
    return [(page, *(part.tolist() for part in parts)) for page, *parts in rows_of(links)]  # type: ignore[misc]
