"""Each page of each shard has a number of its own, and fewer than 64 numbers a shard belong to no page."""

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st

from opic.errors import StoreFull
from opic.query.crawl_numbers import PAGES_MAX, CrawlNumbers

SHARDS = 5


@examples(100)
@given(st.lists(st.tuples(st.integers(0, SHARDS - 1), st.integers(0, 700)), min_size=1, max_size=20))
def test_numbers_are_distinct_stable_and_map_back_to_pages(asked: list[tuple[int, int]]) -> None:
    numbers, given_before, pages = CrawlNumbers(SHARDS), dict[tuple[int, int], int](), [0] * SHARDS
    for shard, page in asked:
        number = numbers.number_of(shard, page)
        assert given_before.setdefault((shard, page), number) == number
        pages[shard] = max(pages[shard], page + 1)
    everyone = [numbers.of_first(shard, count) for shard, count in enumerate(pages)]
    together = np.concatenate(everyone)
    assert len(np.unique(together)) == len(together)
    assert together.max() < len(numbers) < sum(pages) + 64 * SHARDS
    for shard, (of_shard, (at, ids)) in enumerate(zip(everyone, numbers.by_shard(together), strict=True)):
        assert together[at].tolist() == of_shard.tolist()
        assert ids.tolist() == list(range(pages[shard]))
    for (shard, page), number in given_before.items():
        assert everyone[shard][page] == number
    columns = [shard + np.arange(1, count + 1) / 1_000 for shard, count in enumerate(pages)]
    spread = numbers.spread(columns)
    assert np.count_nonzero(spread) == sum(pages)
    for at, column, back in zip(everyone, columns, numbers.gathered(spread, pages), strict=True):
        assert spread[at].tolist() == column.tolist() == back.tolist()


def test_pages_of_4096_shards_have_numbers_that_differ_where_the_last_page_of_one_is_the_millionth() -> None:
    """A number made of an id and a shard would need more than 32 bits here."""
    numbers = CrawlNumbers(4_096)
    last = 2**32 // 4_096 + 2
    assert numbers.number_of(7, last) == last
    assert numbers.number_of(7, 2) == 2
    assert numbers.number_of(4_095, 0) == len(numbers) - 64 < 2**21


def test_a_page_beyond_the_last_number_is_refused() -> None:
    numbers = CrawlNumbers(2)
    numbers.reserve(0, 128)
    with pytest.raises(StoreFull, match="more than 4,294,967,232 in all shards"):
        numbers.reserve(1, PAGES_MAX - 127)
    assert len(numbers) == 128
