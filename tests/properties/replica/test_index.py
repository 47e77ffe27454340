"""The index of fingerprints answers as a dict would, whatever is appended and undone, even while it grows."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from opic.errors import StoreFull
from opic.replica import index as module
from opic.replica.index import FingerprintIndex

# Few different high bits, which the slots go by, or few low ones: long runs of slots in use, over the table's end too.
CROWDED = st.builds(lambda high, low: (high << 56) | low, st.sampled_from([0, 1, 127, 255]), st.integers(1, 60))
SPREAD = st.integers(1, (1 << 64) - 1)
LOW_ALIKE = st.integers(0, (1 << 48) - 1).map(lambda high: (high << 16) | 7)
FINGERPRINTS = st.lists(CROWDED | SPREAD | LOW_ALIKE, max_size=40, unique=True)


def column(fingerprints: list[int]) -> np.ndarray:
    return np.array(fingerprints, np.uint64)


@pytest.fixture(autouse=True, scope="module")
def _small_steps() -> Iterator[None]:
    """Tables and columns that grow all the time, and slowly."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MOVED_MIN", "MOVED_A_NEW_PAGE", "COPIED_MIN", "COPIED_A_NEW_PAGE", "PREPARED_MIN"):
            patch.setattr(module, name, 1)
        patch.setattr(module, "TABLE_BITS_MIN", 2)
        patch.setattr(module, "ROWS_MIN", 4)
        patch.setattr(module, "COPY_FROM", 0.5)
        patch.setattr(module, "LOADED_AT_ONCE", 7)
        patch.setattr(module, "PAGES_MAX", 400)
        yield


class IndexAgainstDict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = FingerprintIndex()
        self.pages: list[int] = []
        self.forgotten: set[int] = set()

    @initialize(fingerprints=FINGERPRINTS)
    def load(self, fingerprints: list[int]) -> None:
        self.index = FingerprintIndex.of(column(fingerprints))
        self.pages = list(fingerprints)

    @rule(fingerprints=FINGERPRINTS)
    def append(self, fingerprints: list[int]) -> None:
        new = [f for f in fingerprints if f not in self.pages]
        if len(self.pages) + len(new) > module.PAGES_MAX:
            with pytest.raises(StoreFull, match="use more shards"):
                self.index.append(column(new))
            return
        self.index.append(column(new))
        self.pages += new

    @rule(data=st.data())
    def append_one_at_a_time(self, data: st.DataObject) -> None:
        for fingerprint in data.draw(FINGERPRINTS):
            self.append([fingerprint])

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        count = round(share * len(self.pages))
        self.index.truncate(count)
        self.forgotten.update(self.pages[count:])
        del self.pages[count:]

    @precondition(lambda self: self.pages)
    @rule()
    def undo_the_last_page(self) -> None:
        self.index.truncate(len(self.pages) - 1)
        self.forgotten.add(self.pages.pop())

    @rule(fingerprints=FINGERPRINTS)
    def find_anything(self, fingerprints: list[int]) -> None:
        ids = {fingerprint: i for i, fingerprint in enumerate(self.pages)}
        asked = [*fingerprints, *fingerprints, 0]
        assert self.index.find(column(asked)).tolist() == [ids.get(f, -1) for f in asked]

    @invariant()
    def all_pages_are_found_and_nothing_else(self) -> None:
        assert len(self.index) == len(self.pages)
        assert self.index.fingerprints.tolist() == self.pages
        assert self.index.find(column(self.pages)).tolist() == list(range(len(self.pages)))
        gone = sorted(self.forgotten - set(self.pages))
        assert (self.index.find(column(gone)) == -1).all()


TestIndexAgainstDict = IndexAgainstDict.TestCase
TestIndexAgainstDict.settings = settings(stateful_step_count=40, deadline=None)


def test_undo_during_growth_restores_the_index() -> None:
    """Not by luck of the draw: truncate at every count while a larger table is filled."""
    rng = np.random.default_rng(3)
    fingerprints = rng.integers(1, 1 << 64, 120, np.uint64)
    amid = 0
    for pages in range(len(fingerprints)):
        for count in {0, pages // 2, max(pages - 3, 0), pages}:
            index = FingerprintIndex()
            for i in range(pages):
                index.append(fingerprints[i : i + 1])
            amid += index._old is not None
            index.truncate(count)
            assert index.find(fingerprints).tolist() == [i if i < count else -1 for i in range(120)]
            index.append(fingerprints[count:])
            assert index.find(fingerprints).tolist() == list(range(120))
    assert amid > 50
