"""The columns of a replica: those of `opic.model.ledger_page`, and those that only replicas have.

A sparse column has rows only up to the last page whose value is not the default. Most crawls give no priority, and many
no depth: such a column takes no memory, and no field of a block.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int64s, Uint8s, Uint16s, Uint32s, grown, values_at
from opic.model.compression import compress, decompress
from opic.model.host_failures import HostFailures, Patience
from opic.model.ledger_page import COLUMNS, NOTED, Column, ColumnKind
from opic.replica.columns import Growing, Undo

Ids = Int64s | Uint32s
# Columns that follow from the reads of pages, and that the ledger does not have: see `opic.replica.page_yields`,
YIELDS: Final = (Column("seen", ColumnKind.SPARSE, "u4", "y"), Column("rate", ColumnKind.SPARSE, "f4", "r"))
# and `opic.replica.page_changes`.
CHANGES: Final = (Column("changes", ColumnKind.SPARSE, "u2", "c"), Column("since", ColumnKind.SPARSE, "u4", "x"))
# When a page that was forgotten became known again, in Unix seconds: see `opic.replica.known_since`.
KNOWN_AGAIN: Final = Column("known_again", ColumnKind.SPARSE, "u4", "k")
PAGE_COLUMNS: Final = (
    *COLUMNS,
    Column("host", ColumnKind.DENSE, "u4", "o"),  # Number of its host.
    Column("row", ColumnKind.DENSE, "u4"),  # Row in the histories; 0 means none.
    *YIELDS,
    *CHANGES,
    KNOWN_AGAIN,
)
BY_NAME: Final = {column.name: column for column in PAGE_COLUMNS}
BY_KEY: Final = {column.key: column for column in PAGE_COLUMNS if column.key}
DENSE: Final = tuple(column for column in PAGE_COLUMNS if column.kind is ColumnKind.DENSE)
SPARSE: Final = tuple(column for column in PAGE_COLUMNS if column.kind is ColumnKind.SPARSE)
# Columns of a replica that events give.
NOTED_ARRAYS: Final = tuple((column, merge) for column, merge in NOTED if column.dtype)
LASTING: Final = ("state", "host")  # What stays of a forgotten page: that it is, and how its id is found again.


class SparseColumns(Growing):
    """Columns by number, each with rows of its own; those past its end are 0."""

    SPARSE: ClassVar[tuple[Column, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        for column in self.SPARSE:
            setattr(self, column.name, np.zeros(0, column.dtype))

    def in_use(self) -> set[str]:
        """Return the names of the columns that ever had another value than the default."""
        return {column.name for column in self.SPARSE if len(getattr(self, column.name))}

    def stored(self, name: str, ids: Ids) -> NDArray[Any]:
        """Return the values of a column, (n,), with 0 for the default."""
        return values_at(getattr(self, name), ids, 0)

    def room(self, name: str, rows: int) -> NDArray[Any]:
        """Return a sparse column, grown to the wanted number of rows."""
        if rows > len(getattr(self, name)):
            setattr(self, name, grown(getattr(self, name), rows))
        column: NDArray[Any] = getattr(self, name)
        return column

    def keep(self, ids: Ids, undo: Undo | None, *names: str) -> list[NDArray[Any]]:
        """Return sparse columns whose values of `ids` are about to change; `undo` receives the old ones, if any."""
        rows = int(ids.max()) + 1
        columns = [self.room(name, rows) for name in names]
        if undo is not None:
            undo.keep(self, ids, *names)
        return columns

    def put(self, name: str, ids: Ids, values: NDArray[Any], undo: Undo | None) -> None:
        """Set the values of distinct rows, (n,), with 0 for the default."""
        if not values.any():
            inside = ids < len(getattr(self, name))
            ids, values = ids[inside], values[inside]
        if len(ids):
            self.keep(ids, undo, name)[0][ids] = values

    def pack(self, name: str, first: int, end: int) -> bytes:
        """Pack rows of a sparse column for the checkpoint; b"" where all are 0."""
        values = getattr(self, name)[first:end]
        return compress(values.astype(values.dtype.newbyteorder("<")).tobytes()) if values.any() else b""

    def unpack(self, name: str, first: int, rows: int, packed: bytes) -> None:
        """Take in what `pack` packed of at most `rows` rows; a block may have grown since.

        Raises:
            ValueError: it is damaged.
        """
        dtype = getattr(self, name).dtype
        values = np.frombuffer(decompress(packed, dtype.itemsize * rows), dtype.newbyteorder("<")) if packed else ()
        if len(values):
            self.room(name, first + len(values))[first : first + len(values)] = values


class PageColumns(SparseColumns):
    """Columns by page id. Rows past the known pages are 0."""

    COLUMNS = tuple((column.name, column.dtype) for column in DENSE)
    SPARSE = SPARSE
    v: Int64s  # Cash minus the credit of the page's class.
    inflow: Int64s
    state: Uint8s  # See `opic.model.cash.Flag`.
    host: Uint32s
    row: Uint32s
    nearness: Uint16s
    failures: Uint8s
    not_before_us: Int64s
    priority: NDArray[np.float64]  # 0 for 1.
    known_again: Uint32s

    def values_of(self, name: str, ids: Ids) -> NDArray[Any]:
        """Return the values of a column, (n,)."""
        stored, default = values_at(getattr(self, name), ids, 0), BY_NAME[name].default
        return np.where(stored == 0, default, stored) if default else stored

    def near(self, least: int, pages: int) -> Int64s:
        """Return the ids below `pages` whose nearness is at least `least`, ascending. Costs .3 ms a million pages."""
        return np.flatnonzero(self.nearness[:pages] >= least)

    def note(self, name: str, ids: Ids, values: NDArray[Any], *, undo: Undo | None) -> None:
        """Set what events gave of distinct pages, (n,); `undo` receives the old values."""
        default = BY_NAME[name].default
        self.put(name, ids, np.where(values == default, 0, values) if default else values, undo)

    def clear(self, ids: Ids, *, undo: Undo | None) -> None:
        """Clear every column of pages that are forgotten; the ids are distinct."""
        for name in (column.name for column in (*DENSE, *SPARSE) if column.name not in LASTING):
            there = ids[ids < len(getattr(self, name))]
            if len(there):
                if undo is not None:
                    undo.keep(self, there, name)
                getattr(self, name)[there] = 0


class HostColumns(SparseColumns):
    """Failures of hosts in a row, by number of the host; see `opic.model.host_failures`."""

    SPARSE = (
        Column("times", ColumnKind.SPARSE, "u2", "hosttimes"),
        Column("first_us", ColumnKind.SPARSE, "i8", "hostfirst"),
        Column("last_us", ColumnKind.SPARSE, "i8", "hostlast"),
    )
    times: Uint16s
    first_us: Int64s
    last_us: Int64s

    def rows(self, hosts: Ids) -> tuple[NDArray[Any], ...]:
        """Return the columns of hosts, (n,) each."""
        return tuple(self.stored(column.name, hosts) for column in self.SPARSE)

    def failures_of(self, host: int) -> HostFailures:
        return HostFailures(*(int(column[0]) for column in self.rows(np.array([host]))))

    def note(self, hosts: Ids, rows: Sequence[NDArray[Any]], undo: Undo | None) -> None:
        """Set the columns of distinct hosts, (n,) each."""
        for column, values in zip(self.SPARSE, rows, strict=True):
            self.put(column.name, hosts, values, undo)

    def given_up(self, patience: Patience) -> Bools:
        """Return a mask of the hosts that are given up; hosts past its end are not."""
        return patience.gives_up(*self.rows(np.arange(len(self.times))))
