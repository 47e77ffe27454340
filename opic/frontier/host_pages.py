"""Index from host to pages: the host column sorted by host, in parts that are each sorted only once."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Int64s, Uint32s

PART_PAGES: Final = 1 << 17  # Pages in a part; sorting one takes about 10 ms. A look-up searches every part.


class HostPages:
    """Finds the pages of hosts. Takes 4 bytes per page.

    >>> pages = HostPages()
    >>> pages.extend(np.array([2, 0, 2, 1], np.int32))
    >>> pages.pages_of(np.array([2, 1]))
    array([0, 2, 3])
    """

    def __init__(self) -> None:
        self._parts: list[Uint32s] = []  # For each range of ids, the permutation that sorts it by host.
        self._host: NDArray[np.integer] = np.empty(0, np.int32)
        self._sorted = 0  # Pages in parts.

    def extend(self, host: NDArray[np.integer]) -> None:
        """Set the host column, (n,), which only grows. Sorts at most one part per call; later pages are scanned."""
        self._host = host
        if len(host) - self._sorted >= PART_PAGES:
            stretch = host[self._sorted : self._sorted + PART_PAGES]
            self._parts.append(np.argsort(stretch, kind="stable").astype(np.uint32))
            self._sorted += PART_PAGES

    def pages_of(self, hosts: Int64s) -> Int64s:
        """Return the ids of the pages of distinct hosts, each once; the ids of one host ascend."""
        ids, wanted = [], hosts.astype(self._host.dtype)
        for number, order in enumerate(self._parts):
            stretch = self._host[number * PART_PAGES :][: len(order)]
            low, high = (np.searchsorted(stretch, wanted, side=side, sorter=order) for side in ("left", "right"))
            lengths = high - low
            starts = np.repeat(low - (np.cumsum(lengths) - lengths), lengths)
            positions = order[starts + np.arange(int(lengths.sum()))].astype(np.int64)
            ids.append(number * PART_PAGES + positions)
        later = self._host[self._sorted :]
        ids.append(self._sorted + np.flatnonzero(np.isin(later, hosts) if len(hosts) != 1 else later == hosts))
        return np.concatenate(ids)
