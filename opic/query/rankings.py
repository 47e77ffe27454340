"""Estimates and ranks: the pages with the largest scores, and the rank of any score among all pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from opic.arrays import Float64s, Int64s
from opic.model import windows
from opic.model.books import Books
from opic.replica.effect import Head

GUESSED_MAX = 8  # A guess that selects more than this multiple of the requested count is too low to help.


def largest(values: Int64s | Float64s, count: int, least: float | None = None) -> Int64s:
    """Return the indices of the `count` largest non-negative values, descending, ties by position.

    Costs one partition, 12 ms for a million values, and a sort of `count`; a tenth of that with a good guess.

    Args:
        values: (n,).
        count: maximum number of indices.
        least: a guess of the smallest value returned; it affects only the speed.

    >>> largest(np.array([5, -1, 7, 5, 0]), 3)
    array([2, 0, 3])
    """
    if count >= len(values):
        positions = np.arange(len(values))
    elif least is not None and count <= len(some := np.flatnonzero(values >= least)) <= GUESSED_MAX * count:
        positions = some[largest(values[some], count)]
    else:
        edge = np.partition(values, len(values) - count)[len(values) - count]
        above = np.flatnonzero(values > edge)
        positions = np.concatenate((above, np.flatnonzero(values == edge)[: count - len(above)]))
    positions = positions[values[positions] >= 0]
    return positions[np.argsort(-values[positions], kind="stable")]


class View(Protocol):
    """Estimates of all pages, by position, other than the static ones."""

    @property
    def estimates(self) -> Float64s:
        """0 for pages that are not live; sums to 1."""

    @property
    def scores(self) -> Float64s:
        """The same, but -1 for pages that are not live."""

    @property
    def ascending(self) -> Float64s:
        """The estimates of live pages, sorted; others that are there are below 0."""

    def ranks(self, scores: Sequence[float]) -> list[int]:
        """Return 1 + the number of live pages with a larger estimate, for each."""


class Ranked:
    """What has the sorted scores of all pages, `ascending`: of those that are not live below 0, or none."""

    ascending: Int64s | Float64s

    def ranks(self, scores: Sequence[float]) -> list[int]:
        """Return 1 + the number of live pages with a larger score, for each."""
        asked = np.array(scores, self.ascending.dtype)
        larger = len(self.ascending) - np.searchsorted(self.ascending, asked, side="right")
        return [1 + n for n in larger.tolist()]


@dataclass(frozen=True)
class WindowView(Ranked):
    """The estimates of a window policy for a snapshot, as `View` has them, and the inputs they were computed from."""

    estimates: Float64s
    scores: Float64s
    ascending: Float64s
    warm: bool  # Whether there is enough data for the policy; until then its estimates are the static ones.
    past: windows.Past  # The measures used,
    grains: float  # the window in grains of the clock,
    rates_total: float  # and the sum that the rates were divided by.


@dataclass(frozen=True)
class Ranking(Ranked):
    """The sorted scores of all pages of one snapshot, which give the rank of any page. Takes 8 bytes per page."""

    as_of: float  # Unix seconds.
    loads: list[int]  # Of the replicas.
    heads: list[Head]
    books: Books  # Of the whole crawl.
    overdrawn: int  # See `Snapshot.overdrawn`.
    ascending: Int64s  # H + C.


def percentile(rank: int, live: int) -> float:
    """Return the percentage of live pages that rank no better than `rank`: 100 for the best page.

    >>> percentile(1, 200), percentile(200, 200)
    (100.0, 0.5)
    """
    return 100.0 * max(live + 1 - rank, 0) / max(live, 1)


def ranks_of_best(scores: Sequence[int]) -> list[int]:
    """Return the rank, 1 + the number of larger scores, of each of the largest scores, given in descending order.

    >>> ranks_of_best([9, 7, 7, 2])
    [1, 2, 2, 4]
    """
    ranks: list[int] = []
    for position, score in enumerate(scores):
        ranks.append(ranks[-1] if position and score == scores[position - 1] else position + 1)
    return ranks
