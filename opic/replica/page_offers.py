"""What events and seeds say of when a page is offered: failures in a row, the earliest time, the priority.

A column of zeros is what most crawls have, and takes no memory: no failure, any time, and priority 1 as 0.
"""

from typing import Any

import numpy as np

from opic.arrays import Bools, Float64s, Int64s, Uint8s, Uint32s
from opic.model.cash import MILLION
from opic.model.page_notes import failures_of_given_up
from opic.replica.columns import Undo
from opic.replica.page_table import PageTable

Ids = Int64s | Uint32s


class PageOffers(PageTable):
    """The columns by page id. They have rows only up to the last page of which anything was said."""

    NAME = "failures and priorities"
    RETURNS = True
    COLUMNS = (("failures", "u1"), ("not_before_us", "i8"), ("factor", "f8"))
    failures: Uint8s  # See `opic.model.page_notes`.
    not_before_us: Int64s
    factor: Float64s  # The priority, or 0 for 1.

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.timed = self.prioritised = False  # Whether a time, a priority, was ever said of any page.
        self.priorities = 0  # How often priorities have changed.

    def of(self, ids: Ids) -> tuple[Uint8s, Int64s, Float64s]:
        """Return failures, earliest times in Unix microseconds and priorities of pages, (n,) each."""
        failures, not_before_us, factor = self.rows(ids)
        return failures, not_before_us, np.where(factor == 0, 1.0, factor)

    def put(self, ids: Ids, *values: Any, undo: Undo | None) -> None:
        """Set failures, earliest times and priorities of distinct pages; see `PageTable.put`."""
        if not len(ids):
            return
        failures, not_before_us, priority = values
        factor, before = np.where(priority == 1, 0.0, priority), self.column("factor", ids)
        self.priorities += bool((before != factor).any())
        super().put(ids, failures, not_before_us, factor, undo=undo)
        self._look(ids)

    def unpack(self, first: int, pages: int, packed: bytes) -> None:
        """Take in what `pack` packed; see `PageTable.unpack`."""
        super().unpack(first, pages, packed)
        self._look(slice(first, first + pages))

    def _look(self, rows: Ids | slice) -> None:
        self.timed = self.timed or bool(self.not_before_us[rows].any())
        self.prioritised = self.prioritised or bool(self.factor[rows].any())

    def given_up(self, ids: Ids, max_failures: int) -> Bools | None:
        """Return a mask of the pages that are given up, after so many failures; None if no page ever failed."""
        return self.column("failures", ids) >= failures_of_given_up(max_failures) if self.used else None

    def given_up_pages(self, max_failures: int) -> Int64s:
        """Return the pages that are given up, ascending. Costs .1 ms a million pages."""
        return np.flatnonzero(self.failures >= failures_of_given_up(max_failures))

    def free_at(self, ids: Ids) -> Float64s | None:
        """Return when pages may be offered, in Unix seconds, 0 for at any time; None if no time was ever said."""
        return self.column("not_before_us", ids) / MILLION if self.timed else None

    def priority(self, ids: Ids) -> Float64s | None:
        """Return the priorities of pages; None if all are 1."""
        return self.of(ids)[2] if self.prioritised else None

    def preferred(self) -> Int64s:
        """Return the pages whose priority is above 1, ascending. Costs 1 ms a million pages."""
        return np.flatnonzero(self.factor > 1) if self.prioritised else np.empty(0, np.int64)

    def timed_pages(self) -> Int64s:
        """Return the pages of which a time was said, ascending."""
        return np.flatnonzero(self.not_before_us)
