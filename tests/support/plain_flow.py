"""The plain twin of `opic.graph.flow`: PageRank by solving the equations, r by its definition."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def transitions(links: Mapping[int, Sequence[int]], gone: set[int], pages: int) -> Floats:
    """P': [j, i] is the chance to go from page i on to page j. A link to a number of `pages` or more counts, unseen."""
    moves = np.zeros((pages, pages))
    for page, targets in links.items():
        live = [target for target in targets if target not in gone]
        for target in live if page not in gone else ():
            if target < pages:
                moves[target, page] = 1 / len(live)
    return moves


def returns(links: Mapping[int, Sequence[int]], gone: set[int], pages: int) -> Floats:
    """[j, i] is the chance that page i would lead to page j, which is gone, if the page came back; at least that."""
    moves = np.zeros((pages, pages))
    for page, targets in links.items():
        live = [target for target in targets if target not in gone]
        for target in targets if page not in gone else ():
            if target in gone and target < pages:
                moves[target, page] = 1 / max(len(live), 1)
    return moves


def exact(moves: Floats, teleport: Floats, damping: float) -> Floats:
    visits = np.linalg.solve(np.eye(len(teleport)) - damping * moves, teleport)
    return visits / visits.sum()


def residual(moves: Floats, teleport: Floats, damping: float, visits: Floats) -> Floats:
    return teleport + damping * moves @ visits - visits
