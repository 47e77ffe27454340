"""The index of fingerprints at its true size: it grows a part at a time, and refuses what ids can't name."""

import numpy as np
import pytest

from opic.errors import StoreFull
from opic.replica import index as module
from opic.replica.index import FingerprintIndex


def random_fingerprints(count: int) -> np.ndarray:
    return np.unique(np.random.default_rng(7).integers(1, 1 << 64, count, np.uint64))[:count]


def test_an_index_without_pages_finds_nothing() -> None:
    index = FingerprintIndex()
    assert len(index) == 0
    assert index.find(np.array([], np.uint64)).tolist() == []
    assert index.find(np.array([0, 1, (1 << 64) - 1], np.uint64)).tolist() == [-1, -1, -1]


def test_a_loaded_index_and_an_appended_one_find_the_same() -> None:
    fingerprints = np.random.default_rng(1).permutation(random_fingerprints(200_000))
    loaded, appended = FingerprintIndex.of(fingerprints), FingerprintIndex()
    for part in np.array_split(fingerprints, 60):
        appended.append(part)
    asked = np.concatenate((fingerprints, fingerprints ^ np.uint64(1)))
    expected = np.concatenate((np.arange(200_000), np.full(200_000, -1)))
    assert (loaded.find(asked) == expected).all()
    assert (appended.find(asked) == expected).all()
    assert (appended.fingerprints == fingerprints).all()


def test_a_large_table_is_filled_by_several_appends() -> None:
    fingerprints = random_fingerprints(180_000)
    index = FingerprintIndex.of(fingerprints[:157_000])  # A table of 2^18 slots takes 174,762 pages.
    index.append(fingerprints[157_000:174_000])
    growing = []
    for first in range(174_000, 180_000, 1_000):
        index.append(fingerprints[first : first + 1_000])
        growing.append(index._old is not None)
        assert (index.find(fingerprints[: first + 1_000]) == np.arange(first + 1_000)).all()
    assert growing == [True] * 6


def test_growth_completes() -> None:
    fingerprints = random_fingerprints(200_000)
    index = FingerprintIndex.of(fingerprints[:157_000])
    index.append(fingerprints[157_000:174_000])
    for first in range(174_000, 200_000, 1_000):
        index.append(fingerprints[first : first + 1_000])
    assert index._old is None
    assert (index.find(fingerprints) == np.arange(200_000)).all()


def test_fingerprints_are_read_only() -> None:
    index = FingerprintIndex.of(np.array([5], np.uint64))
    with pytest.raises(ValueError, match="read-only"):
        index.fingerprints[0] = 6
    index.append(np.array([6], np.uint64))
    assert index.fingerprints.tolist() == [5, 6]


def test_pages_that_ids_cannot_name_are_refused_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.PAGES_MAX == (1 << 32) - 1
    monkeypatch.setattr(module, "PAGES_MAX", 3)
    index = FingerprintIndex.of(np.array([1, 2], np.uint64))
    with pytest.raises(StoreFull, match="4 pages exceed the limit of a shard, 3: use more shards"):
        index.append(np.array([3, 4], np.uint64))
    assert index.find(np.array([1, 2, 3, 4], np.uint64)).tolist() == [0, 1, -1, -1]
    index.append(np.array([9], np.uint64))
    with pytest.raises(StoreFull):
        FingerprintIndex.of(np.arange(1, 5, dtype=np.uint64))


@pytest.mark.parametrize("count", [-1, 3])
def test_truncating_to_more_pages_than_there_are_is_refused(count: int) -> None:
    index = FingerprintIndex.of(np.array([1, 2], np.uint64))
    with pytest.raises(ValueError, match="there are 2 pages"):
        index.truncate(count)
    assert len(index) == 2
