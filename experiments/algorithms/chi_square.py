"""Pearson's χ² test, for counts of the pages that a walk was on."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy import stats

from opic.arrays import Float64s, Int64s
from opic.errors import BadInput

EXPECTED_MIN: Final = 5.0  # In each cell.


def chi_square(observed: Sequence[float] | Int64s, expected: Sequence[float] | Float64s) -> float:
    """Return the p-value of Pearson's χ² test: how likely counts are as far as these from what was expected.

    Rare cells are put together until each expects 5. The samples must be independent.

    Args:
        observed: (n,) counts.
        expected: (n,) shares, or any numbers in proportion to them.

    Raises:
        BadInput: there is no count, or only one cell is left.

    >>> round(chi_square([48, 52], [1, 1]), 3), chi_square([10, 90], [1, 1]) < 1e-9
    (0.689, True)
    """
    counts, shares = np.asarray(observed, np.float64), np.asarray(expected, np.float64)
    order = np.argsort(shares)
    counts, shares = counts[order], shares[order] / shares.sum() * counts.sum()
    cells: list[list[float]] = [[0.0, 0.0]]
    for count, share in zip(counts.tolist(), shares.tolist(), strict=True):
        if cells[-1][1] >= EXPECTED_MIN:
            cells.append([0.0, 0.0])
        cells[-1][0] += count
        cells[-1][1] += share
    if len(cells) > 1 and cells[-1][1] < EXPECTED_MIN:
        last = cells.pop()
        cells[-1] = [cells[-1][0] + last[0], cells[-1][1] + last[1]]
    if len(cells) < 2:
        raise BadInput(f"{counts.sum():g} counts in {len(counts)} cells are too few for a χ² test")
    table = np.array(cells)
    return float(stats.chisquare(table[:, 0], table[:, 1]).pvalue)
