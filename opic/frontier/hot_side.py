"""One side of a hot order: the hot pages that were never read, or those that were, with their thresholds."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Keys = NDArray[Any]
Bools = NDArray[np.bool_]

IN_RUN: Final = 1  # Where a page is, for pages never read; plus 1 for a read page.
IN_FRESH: Final = 3


class Side:
    """The hot pages of one kind: pages never read, or pages that were read."""

    def __init__(self, number: int, dtype: type) -> None:
        """Start with an empty run and an infinite threshold; `number` is 0 for pages never read, 1 for read ones."""
        self.number, self.in_run, self.in_fresh = number, IN_RUN + number, IN_FRESH + number
        self.ids: Int64s = np.empty(0, np.int64)
        self.neg: Keys = np.empty(0, dtype)  # Negated keys of the run, ascending; ties by id.
        self.fresh: list[Int64s] = []  # Hot pages that are not in the run yet.
        self.dirty = False  # Pages left the run, but their entries are still in it.
        self.nothing = np.iinfo(np.int64).max if dtype is np.int64 else np.inf
        # Thresholds: a page at or above its threshold is hot. Entry 0 is the default; some hosts have their own.
        self.cut_key: Keys = np.array([self.nothing], dtype)
        self.cut_id = np.array([-1])
        self.slot: NDArray[np.int32] | None = None  # Index of each host's threshold.
        self.slot_of: dict[int, int] = {}
        self._spare: list[int] = []
        self.open: list[tuple[Any, int, int]] = []  # Heap of the own thresholds of free hosts: (-key, id, host).

    @property
    def whole(self) -> bool:
        """Whether all pages with a key above 0 are above the default threshold."""
        return bool(self.cut_key[0] == 0)

    def passes(self, keys: Keys, ids: Int64s, hosts: NDArray[np.integer]) -> Bools:
        """Return a mask of the hot pages."""
        if self.slot is None:
            cut, cut_id = self.cut_key[0], self.cut_id[0]
            hot: Bools = (keys > cut) | ((keys == cut) & (ids <= cut_id))
            return hot
        slots = self.slot[hosts]
        cuts = self.cut_key[slots]
        hot = (keys > cuts) | ((keys == cuts) & (ids <= self.cut_id[slots]))
        return hot

    def place(self, neg: Any, page: int) -> int:
        """Return how many entries of the run are at or before a place in the order."""
        low, high = (int(np.searchsorted(self.neg, neg, side=side)) for side in ("left", "right"))
        return low + int(np.searchsorted(self.ids[low:high], page, side="right"))

    def insert(self, ids: Int64s, keys: Keys) -> None:
        """Insert pages into the run; none of them may be in it."""
        order = np.lexsort((ids, -keys))
        ids, neg = ids[order], -keys[order]
        if not len(self.ids):
            self.ids, self.neg = ids, neg
            return
        low, high = np.searchsorted(self.neg, neg, side="left"), np.searchsorted(self.neg, neg, side="right")
        while (wide := low < high).any():  # Binary search by id among equal keys.
            middle = (low + high) // 2
            before = self.ids[np.minimum(middle, len(self.ids) - 1)] < ids
            low, high = np.where(wide & before, middle + 1, low), np.where(wide & ~before, middle, high)
        self.ids, self.neg = np.insert(self.ids, low, ids), np.insert(self.neg, low, neg)

    def set_cut(self, host: int, key: Any, page: int, hosts: int) -> None:
        """Set a host's own threshold."""
        if self.slot is None or len(self.slot) < hosts:
            grown = np.zeros(hosts + hosts // 2, np.int32)
            if self.slot is not None:
                grown[: len(self.slot)] = self.slot
            self.slot = grown
        at = self.slot_of.get(host)
        if at is None:
            at = self._spare.pop() if self._spare else len(self.slot_of) + 1
            self.slot_of[host] = self.slot[host] = at
            if at >= len(self.cut_key):
                self.cut_key = np.concatenate((self.cut_key, np.zeros_like(self.cut_key)))
                self.cut_id = np.concatenate((self.cut_id, np.zeros_like(self.cut_id)))
        self.cut_key[at], self.cut_id[at] = key, page

    def forget_low_cuts(self) -> None:
        """Drop the own thresholds of hosts that are at or below the default one."""
        usual = -self.cut_key[0], int(self.cut_id[0])
        for host in [host for host in self.slot_of if self.cut_of(host) >= usual]:
            assert self.slot is not None
            self.slot[host] = 0
            self._spare.append(self.slot_of.pop(host))

    def cut_of(self, host: int) -> tuple[Any, int]:
        """Return the place of a host's threshold in the order: its negated key, and an id."""
        at = self.slot_of.get(host, 0)
        return -self.cut_key[at], int(self.cut_id[at])
