"""The best pages of a snapshot: a part of a stable sort."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opic.query.rankings import largest


@given(st.lists(st.integers(-2, 6)), st.integers(1, 12), st.none() | st.integers(-3, 7))
def test_largest_is_the_head_of_a_stable_sort_for_any_guess(values: list[int], count: int, least: int | None) -> None:
    expected = sorted((i for i, value in enumerate(values) if value >= 0), key=lambda i: -values[i])
    # Negative values are left out, wherever they stand.
    assert largest(np.array(values, np.int64), count, least).tolist() == expected[:count]
