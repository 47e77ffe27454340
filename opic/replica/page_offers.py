"""When a page is offered: questions about failures in a row, the earliest time and the priority, columns of pages."""

import numpy as np

from opic.arrays import Bools, Float64s, Int64s, Uint8s
from opic.model.cash import MILLION
from opic.model.page_notes import failures_of_given_up
from opic.replica.page_columns import Ids, PageColumns


class PageOffers:
    """What the columns of a replica say of when its pages are offered."""

    def __init__(self, columns: PageColumns) -> None:
        self._columns = columns

    @property
    def prioritised(self) -> bool:
        """Whether a priority was ever given to any page."""
        return self._columns.used("priority")

    @property
    def priorities(self) -> int:
        """How often priorities have changed."""
        return self._columns.puts["priority"]

    def columns_of(self, ids: Ids) -> tuple[Uint8s, Int64s, Float64s]:
        """Return failures, earliest times in Unix microseconds and priorities of pages, (n,) each."""
        failures, not_before_us, priority = (
            self._columns.values_of(name, ids) for name in ("failures", "not_before_us", "priority")
        )
        return failures, not_before_us, priority

    def given_up(self, ids: Ids, max_failures: int) -> Bools | None:
        """Return a mask of the pages that are given up, after so many failures; None if no page ever failed."""
        if not self._columns.used("failures"):
            return None
        return self._columns.values_of("failures", ids) >= failures_of_given_up(max_failures)

    def given_up_pages(self, max_failures: int) -> Int64s:
        """Return the pages that are given up, ascending. Costs .1 ms a million pages."""
        return np.flatnonzero(self._columns.failures >= failures_of_given_up(max_failures))

    def free_at(self, ids: Ids) -> Float64s | None:
        """Return when pages may be offered, in Unix seconds, 0 for at any time; None if no time was ever said."""
        return self._columns.values_of("not_before_us", ids) / MILLION if self._columns.used("not_before_us") else None

    def priority(self, ids: Ids) -> Float64s | None:
        """Return the priorities of pages; None if all are 1."""
        return self._columns.values_of("priority", ids) if self.prioritised else None

    def preferred(self) -> Int64s:
        """Return the pages whose priority is above 1, ascending. Costs 1 ms a million pages."""
        return np.flatnonzero(self._columns.priority > 1)

    def timed_pages(self) -> Int64s:
        """Return the pages of which a time was said, ascending."""
        return np.flatnonzero(self._columns.not_before_us)
