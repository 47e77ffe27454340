"""Depths of the pages of a replica: a column that a crawl without depths does not have."""

import numpy as np
from numpy.typing import NDArray

from opic.replica.columns import Growing, Undo

Int64s = NDArray[np.int64]
Uint16s = NDArray[np.uint16]
Ids = Int64s | NDArray[np.uint32]


class PageDepths(Growing):
    """Nearness by page id, see `opic.model.page_notes`. It has rows only up to the last page whose depth is known."""

    COLUMNS = (("nearness", "u2"),)
    nearness: Uint16s

    @property
    def used(self) -> bool:
        """Whether the depth of any page was ever known."""
        return len(self.nearness) > 0

    def of(self, ids: Ids) -> Int64s:
        """Return the nearness of pages; 0 if unknown."""
        if not self.used:
            return np.zeros(len(ids), np.int64)
        last = len(self.nearness) - 1
        return np.where(ids <= last, self.nearness[np.minimum(ids, last)], 0).astype(np.int64)

    def part(self, first: int, end: int) -> Uint16s:
        """Return the nearness of pages `first` to `end`, shape (end - first,)."""
        found = np.zeros(end - first, np.uint16)
        known = self.nearness[first:end]
        found[: len(known)] = known
        return found

    def within(self, least: int, pages: int) -> Int64s:
        """Return the ids below `pages` whose nearness is at least `least`, ascending. Costs .3 ms a million pages."""
        return np.flatnonzero(self.nearness[:pages] >= least)

    def put(self, ids: Ids, nearness: Uint16s, undo: Undo | None) -> None:
        """Set the nearness of pages; `undo` receives the old values, unless it is None."""
        if not len(ids):
            return
        self.reserve(int(ids.max()) + 1)
        if undo is not None:
            undo.keep(self, "nearness", ids)
        self.nearness[ids] = nearness
