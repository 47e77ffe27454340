"""The HTTP status of the last event of each page: a column of crawls in which not every event was a read with 200.

A status is kept as `opic.model.page_notes.noted_status` says: 0 is a read with 200, or no event so far.
"""

import numpy as np
from numpy.typing import NDArray

from opic.replica.columns import Undo
from opic.replica.page_table import PageTable

Int64s = NDArray[np.int64]
Uint32s = NDArray[np.uint32]
Uint16s = NDArray[np.uint16]


class PageStatuses(PageTable):
    """The column by page id. It has rows only up to the last page with another status than 200."""

    NAME = "statuses"
    COLUMNS = (("noted", "u2"),)
    noted: Uint16s

    def of(self, ids: Int64s | Uint32s) -> Uint16s:
        """Return the statuses of pages, as they are kept."""
        return self.column("noted", ids)

    def put(self, ids: Uint32s, noted: Uint16s, undo: Undo | None) -> None:
        """Set the statuses of distinct pages; `undo` receives the old ones, unless it is None."""
        if len(ids):
            self.reserve(int(ids.max()) + 1)
            if undo is not None:
                undo.keep(self, "noted", ids)
            self.noted[ids] = noted
