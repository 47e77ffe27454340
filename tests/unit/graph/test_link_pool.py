"""The pool of links answers as a plain dict of lists does, through any changes and compactions."""

import numpy as np
import pytest
from link_pools import links_of

from opic import arrays
from opic.graph import link_pool
from opic.graph.link_pool import UNKNOWN_PAGE, LinkPool
from opic.graph.pooled_matrix import PooledMatrix

PAGES = 30


def test_pool_has_the_links_and_in_links_of_a_dict_through_many_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "GARBAGE_MIN", 10)
    for module in (arrays, link_pool):
        monkeypatch.setattr(module, "VALUES_AT_ONCE", 3)
    pool, seen, draw = LinkPool(), dict[int, list[int]](), np.random.default_rng(7)
    for step in range(300):
        pages = draw.choice(20, draw.integers(1, 4), replace=False)
        for page in pages.tolist():
            seen[page] = draw.choice(PAGES, draw.integers(0, 6), replace=False).tolist()
            seen[page] += [UNKNOWN_PAGE] * int(draw.integers(2))
        counts = np.array([len(seen[page]) for page in pages.tolist()], np.uint32)
        pool.put_many(pages, counts, np.array([link for page in pages.tolist() for link in seen[page]], np.uint32))
        named = [page for page, links in seen.items() if UNKNOWN_PAGE in links and draw.integers(4) == 0]
        pool.drop_unknown(np.array(named, np.int64))
        at = np.array([page for page in named if len(seen[page]) % 2], np.int64)
        pool.add_links(at, np.full(len(at), PAGES + step, np.uint32))
        for page in named:
            seen[page] = seen[page][:-1] + [PAGES + step] * (len(seen[page]) % 2)
        if step % 10:
            continue
        sources = {to: sorted(page for page, links in seen.items() if to in links) for to in range(PAGES)}
        for page in range(PAGES):
            links = links_of(pool, page)
            assert (links is None) == (page not in seen)
            assert links is None or links.tolist() == seen[page]
            assert pool.to(page).tolist() == sources[page]
        flags = draw.random(PAGES + step + 1) < 0.1
        assert pool.to_any(flags).tolist() == sorted({page for to in np.flatnonzero(flags) for page in pool.to(to)})
        assert pool.link_counts(PAGES).tolist() == [len(sources[to]) for to in range(PAGES)]
        assert pool.link_counts(5).tolist() == [len(sources[to]) for to in range(5)]


def test_links_to_pages_without_a_number_are_only_counted() -> None:
    pool = LinkPool()
    pages, counts = np.array([4, 2, 7]), np.array([2, 0, 3], np.uint32)
    pool.put_many(pages, counts, np.array([9, UNKNOWN_PAGE, UNKNOWN_PAGE, 1, UNKNOWN_PAGE], np.uint32))
    assert [links_of(pool, page).tolist() for page in (4, 2, 7)] == [[9, UNKNOWN_PAGE], [], [1] + 2 * [UNKNOWN_PAGE]]  # type: ignore[union-attr]
    assert (pool.unknown, pool.used, pool.linked_end) == ({4: 1, 7: 2}, 2, 10)
    assert pool.to(9).tolist() == [4]
    with pytest.raises(ValueError, match="page 9, the matrix is to have 9"):
        PooledMatrix(pool, 9)
