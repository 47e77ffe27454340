"""Growable numpy columns, and an undo log for changes to them."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from opic.arrays import grown


class Growing:
    """Columns of equal length, which grow by doubling. A subclass names them. Rows past those in use are zero."""

    COLUMNS: ClassVar[tuple[tuple[str, str], ...]] = ()  # Name, type.

    def __init__(self) -> None:
        for name, dtype in self.COLUMNS:
            setattr(self, name, np.zeros(0, dtype))

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows. This may replace the arrays; references to the old ones then go stale."""
        if rows > len(getattr(self, self.COLUMNS[0][0])):
            for name, _ in self.COLUMNS:
                setattr(self, name, grown(getattr(self, name), rows))

    def clear_rows(self, first: int, end: int) -> None:
        """Set rows to zero."""
        for name, _ in self.COLUMNS:
            getattr(self, name)[first:end] = 0


class Undo:
    """An undo log: old values of rows that are about to change, restored in reverse order."""

    def __init__(self) -> None:
        self._kept: list[tuple[Growing, str, Any, NDArray[Any]]] = []

    def keep(self, owner: Growing, rows: Any, *names: str) -> None:
        """Save the current values of some rows of columns."""
        self._kept += [(owner, name, rows, getattr(owner, name)[rows].copy()) for name in names]

    def restore(self) -> None:
        """Restore all saved values."""
        for owner, name, rows, values in reversed(self._kept):
            getattr(owner, name)[rows] = values
        self._kept.clear()
