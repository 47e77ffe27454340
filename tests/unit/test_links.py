"""The cache of links may forget, but what it says is true."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opic.store.links import MISSING, WAYS, LinkCache, hashes

NUMBERS = st.integers(-(2**63), 2**63 - 1)


@given(batches=st.lists(st.dictionaries(st.one_of(NUMBERS, st.integers(-9, 9)), st.integers(-1, 2**40), max_size=40)))
def test_what_is_found_is_what_was_put(batches: list[dict[int, int]]) -> None:
    cache, put = LinkCache(sets=8), dict[int, int]()
    for batch in batches:
        new = {hashed: page for hashed, page in batch.items() if hashed not in put}
        cache.put(np.array(list(new), np.int64), np.array(list(new.values()), np.int64))
        put |= new
        asked = [*put, *(hashed + 1 for hashed in batch if hashed < 2**63 - 1)]
        found = cache.find(np.array(asked, np.int64)).tolist()
        assert all(page in (put.get(hashed, MISSING), MISSING) for hashed, page in zip(asked, found, strict=True))
        assert sum(page != MISSING for page in found) <= 2 * 8 * WAYS


def test_it_keeps_what_there_is_room_for_and_the_latest_where_there_is_none() -> None:
    cache = LinkCache(sets=1 << 12)
    strings = [f"http://example.org/{i}" for i in range(4_000)]
    hashed, pages = hashes(strings), np.arange(4_000)
    for at in range(0, 4_000, 50):  # Of several in one call that want the same place, the last one has it.
        cache.put(hashed[at : at + 50], pages[at : at + 50])
    assert np.count_nonzero(cache.find(hashed) == pages) > 3_900
    small = LinkCache(sets=1)
    for i in range(100):
        small.put(hashed[i : i + 1], pages[i : i + 1])
        assert small.find(hashed[i : i + 1]).tolist() == [i]
    assert np.count_nonzero(small.find(hashed[:100]) >= 0) == WAYS


def test_the_empty_string_whose_hash_is_zero_is_never_kept() -> None:
    cache = LinkCache(sets=2)
    cache.put(hashes([""]), np.array([7]))
    assert cache.find(hashes(["", "a"])).tolist() == [MISSING, MISSING]
