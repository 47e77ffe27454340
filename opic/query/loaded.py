"""Importance that an engine outside computed and `opic load-importance` put into the store: policy loaded.

It is for a crawl whose links are too many to settle here, or are not kept. The numbers are of the pages known at the
load. A page that became known since, or that the file lacked, has its static estimate, (H + C) / sum of H + C; the
others share the rest in proportion to their numbers, so that all estimates sum to 1. A page that is gone has 0.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from opic.arrays import Bools, Float32s, Float64s, Int64s
from opic.errors import NotKept, StoreDamaged
from opic.query.rankings import Ranked
from opic.query.saved_visits import page_prints
from opic.replica import Crawl
from opic.replica.crawl import Outdated
from opic.store.loaded_importance import LoadedAbout, read_about, read_column

LOADED: Final = "loaded"
LOOK_SECONDS: Final = 1.0  # How often the store is asked whether there was another load.
NOTHING: Final = "no importance was loaded: compute it from an export, and give it to `opic load-importance`"


def estimates_of(
    columns: Sequence[Float32s], starts: Int64s, live: Bools, static: Float64s
) -> tuple[Float64s, Float64s, float]:
    """Return the estimates of pages, (n,), which sum to 1; their numbers, (n,), NaN for none; and the numbers' factor.

    Args:
        columns: by shard, the loaded numbers by id; NaN for pages without one.
        starts: (shards + 1,), the first position of each shard, and the end.
        live: (n,), pages that are known and not gone.
        static: (n,), their static estimates.

    Raises:
        Outdated: a shard has fewer pages than the load.

    >>> estimates, _, _ = estimates_of(
    ...     [np.float32([0.75, 0.25, np.nan])], np.array([0, 4]), np.array([True, False, True, True]),
    ...     np.array([0.5, 0.1, 0.1, 0.1]),
    ... )
    >>> estimates.round(3)  # The first has what the third and the fourth leave.
    array([0.8, 0. , 0.1, 0.1])
    """
    numbers = np.full(len(live), np.nan)
    for (first, end), column in zip(pairwise(starts.tolist()), columns, strict=True):
        if end - first < len(column):
            raise Outdated
        numbers[first : first + len(column)] = column
    given = live & ~np.isnan(numbers)
    estimates = np.where(live & ~given, static, 0.0)
    total = float(numbers[given].sum())
    scale = max(1.0 - float(estimates.sum()), 0.0) / total if total > 0 else 0.0
    estimates[given] = numbers[given] * scale
    if (whole := float(estimates.sum())) > 0:  # Other than 1 where no loaded page is left, and by rounding.
        estimates, scale = estimates / whole, scale / whole
    return estimates, numbers, scale


@dataclass(frozen=True, eq=False)
class LoadedView(Ranked):
    """The estimates of all pages of a snapshot, as `opic.query.rankings.View` has them. Arrays are (n,), by position.

    numbers, scale   as `estimates_of` returns them
    """

    about: LoadedAbout
    estimates: Float64s
    scores: Float64s
    ascending: Float64s
    numbers: Float64s
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class LoadedColumns:
    """The numbers of a load, by shard and id, for replicas as they are loaded."""

    about: LoadedAbout
    loads: list[int]  # The load counts of the replicas.
    columns: list[Float32s]

    def view(self, starts: Int64s, live: Bools, static: Float64s) -> LoadedView:
        """Return the estimates of pages; the arguments are those of `estimates_of`."""
        estimates, numbers, scale = estimates_of(self.columns, starts, live, static)
        scores = np.where(live, estimates, -1.0)
        return LoadedView(self.about, estimates, scores, np.sort(scores), numbers, scale)


class LoadedImportance:
    """The loaded importance of a crawl, read when a question needs it: 4 bytes a page. Thread-safe."""

    def __init__(self, crawl: Crawl) -> None:
        self._crawl = crawl
        self._lock = threading.Lock()
        self._about: LoadedAbout | None = None
        self._asked = float("-inf")  # Monotonic.
        self._columns: LoadedColumns | None = None

    def about(self) -> LoadedAbout | None:
        """Return what is known of it as of a moment ago; None if nothing was loaded.

        Raises:
            StoreUnavailable: the store is unavailable.
        """
        if time.monotonic() - self._asked >= LOOK_SECONDS:
            self._about = read_about(self._crawl.client, self._crawl.shards[0].keys)
            self._asked = time.monotonic()
        return self._about

    def usable(self) -> bool:
        """Return whether something was loaded that is of the pages of this store.

        Raises:
            StoreUnavailable: the store is unavailable.
        """
        try:
            self.columns()
        except NotKept:
            return False
        except Outdated:
            pass
        return True

    def columns(self) -> LoadedColumns:
        """Return the numbers.

        Raises:
            NotKept: nothing was loaded, or what was is of other pages.
            StoreUnavailable: the store is unavailable.
            Outdated: a replica was loaded in the meantime.
        """
        about = self.about()
        if about is None:
            self._columns = None
            raise NotKept(NOTHING)
        with self._lock:
            crawl, cached = self._crawl, self._columns
            if not crawl.as_of:
                crawl.follow()  # For the first time.
            if cached is not None and cached.about == about and cached.loads == crawl.loads:
                return cached
            loads, shards = crawl.loads, range(len(crawl))
            if len(about.pages) != len(crawl) or about.prints != [
                page_prints(crawl, n, about.pages[n]) for n in shards
            ]:
                raise NotKept("the loaded importance is of other pages than this store has: load it again")
            if cached is None or cached.about != about:
                columns = [self._column(about, number) for number in shards]
            else:
                columns = cached.columns
            if crawl.loads != loads:
                raise Outdated
            self._columns = LoadedColumns(about, loads, columns)
            return self._columns

    def _column(self, about: LoadedAbout, shard: int) -> Float32s:
        try:
            return read_column(self._crawl.client, self._crawl.shards[shard].keys, about, shard)
        except StoreDamaged:
            self._asked = float("-inf")  # Another load may have ended in the meantime.
            if self.about() != about:
                raise Outdated from None
            raise
