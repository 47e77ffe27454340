"""A sparse column of times gives what a dictionary does, whatever is forgotten when it grows."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opic.frontier.timers import SparseTimes

NUMBERS = st.sets(st.integers(0, 2_000), max_size=40)


@given(calls=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=30))
def test_sparse_timers_agree_with_a_dict(calls: list[tuple[set[int], set[int]]]) -> None:
    times, held = SparseTimes(), dict[int, float]()

    def kept() -> Any:
        return np.array(sorted(held), np.int64)

    for nth, (released, added) in enumerate(calls):
        for number in released:
            held.pop(number, None)
        times.set(np.array(list(added), np.int64), np.full(len(added), nth + 1.0), kept)
        held |= dict.fromkeys(added, nth + 1.0)
        assert times.get(kept()).tolist() == [held[number] for number in sorted(held)]
    assert times.get(np.array([10_000])).tolist() == [0.0]
