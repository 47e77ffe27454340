"""Columns by page id of which most pages have nothing, and how they are packed for the checkpoint.

Those of one column are here: depths, which a crawl without depths does not have, and the HTTP status of the last event
of each page, which a crawl does not have in which every event was a read with 200.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int64s, Uint16s
from opic.model.compression import compress, decompress
from opic.model.host_failures import HostFailures, Patience
from opic.replica.columns import Growing, Undo

Ids = Int64s | NDArray[np.uint32]


class PageTable(Growing):
    """Columns by page id that are a part of a block of the checkpoint. Where they are all 0 there need be no rows."""

    NAME: ClassVar[str]  # In errors.
    RETURNS: ClassVar[bool] = False  # Whether what a page has may become 0 again.

    @property
    def used(self) -> bool:
        """Whether any page has a row."""
        return len(getattr(self, self.COLUMNS[0][0])) > 0

    def rows(self, ids: Ids) -> tuple[NDArray[Any], ...]:
        """Return the columns of pages, (n,) each; 0 where a page has no row."""
        return tuple(self.column(name, ids) for name, _ in self.COLUMNS)

    def column(self, name: str, ids: Ids) -> NDArray[Any]:
        """Return one column of pages, (n,); 0 where a page has no row."""
        column = getattr(self, name)
        found, inside = np.zeros(len(ids), column.dtype), ids < len(column)
        found[inside] = column[ids[inside]]
        return found

    def keep(self, ids: Ids, undo: Undo | None) -> None:
        """Give pages rows that are about to change; `undo` receives the old values, unless it is None."""
        self.reserve(int(ids.max()) + 1)
        if undo is not None:
            for name, _ in self.COLUMNS:
                undo.keep(self, name, ids)

    def put(self, ids: Ids, *values: NDArray[Any], undo: Undo | None) -> None:
        """Set the columns of distinct pages, (n,) each; `undo` receives the old values, unless it is None."""
        if len(ids):
            self.keep(ids, undo)
            for (name, _), new in zip(self.COLUMNS, values, strict=True):
                getattr(self, name)[ids] = new

    def pack(self, first: int, end: int) -> bytes:
        """Pack the columns of pages `first` to `end` for the checkpoint; b"" where all is 0."""
        parts = self.rows(np.arange(first, end))
        if not any(part.any() for part in parts):
            return b""
        return compress(b"".join(part.astype(part.dtype.newbyteorder("<")).tobytes() for part in parts))

    def unpack(self, first: int, pages: int, packed: bytes) -> None:
        """Take in what `pack` packed of at most `pages` pages; a block may have grown since.

        Raises:
            ValueError: it is damaged.
        """
        dtypes = {name: np.dtype(dtype).newbyteorder("<") for name, dtype in self.COLUMNS}
        page_bytes = sum(dtype.itemsize for dtype in dtypes.values())
        columns = decompress(packed, page_bytes * pages)
        count, rest = divmod(len(columns), page_bytes)
        if rest:
            raise ValueError(f"{self.NAME} have a wrong length")
        self.reserve(first + count)
        at = 0
        for name, dtype in dtypes.items():
            getattr(self, name)[first : first + count] = np.frombuffer(columns, dtype, count, at)
            at += dtype.itemsize * count


class PageDepths(PageTable):
    """Nearness by page id, see `opic.model.page_notes`. It has rows only up to the last page whose depth is known."""

    NAME = "depths"
    COLUMNS = (("nearness", "u2"),)
    nearness: Uint16s

    def of(self, ids: Ids) -> Int64s:
        """Return the nearness of pages; 0 if unknown."""
        return self.column("nearness", ids).astype(np.int64)

    def within(self, least: int, pages: int) -> Int64s:
        """Return the ids below `pages` whose nearness is at least `least`, ascending. Costs .3 ms a million pages."""
        return np.flatnonzero(self.nearness[:pages] >= least)


class HostFailureTable(PageTable):
    """Failures of hosts in a row, by number of the host; see `opic.model.host_failures`."""

    NAME = "failures of hosts"
    RETURNS = True
    COLUMNS = (("times", "u2"), ("first_us", "i8"), ("last_us", "i8"))
    times: Uint16s
    first_us: Int64s
    last_us: Int64s

    def of(self, host: int) -> HostFailures:
        """Return the failures of a host."""
        if host >= len(self.times):
            return HostFailures()
        return HostFailures(int(self.times[host]), int(self.first_us[host]), int(self.last_us[host]))

    def given_up(self, patience: Patience) -> Bools:
        """Return a mask of the hosts that are given up; hosts past its end are not."""
        return patience.gives_up(self.times, self.first_us, self.last_us)


class PageStatuses(PageTable):
    """Statuses as `opic.model.page_notes.noted_status` keeps them, up to the last page with another one than 200."""

    NAME = "statuses"
    RETURNS = True
    COLUMNS = (("noted", "u2"),)
    noted: Uint16s

    def of(self, ids: Ids) -> Uint16s:
        """Return the statuses of pages, as they are kept; 0 is a read with 200, or no event so far."""
        return self.column("noted", ids)
