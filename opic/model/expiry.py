"""Which pages a rule forgets: those never read, the least important first, while their importance is below a share.

Shares of importance sum to 1. So at most 1 / share pages can have the share or more, and a crawl that forgets the
others in time has no more unread pages than that, and those that are new, however many its links lead to. When some are
forgotten, the shares of those that stay grow: what is taken depends on what was taken before.
"""

import numpy as np

from opic.arrays import Bools, Float64s, Int64s


def expired(importance: Float64s, may_expire: Bools, below: float, most: int) -> Int64s:
    """Return the positions of the pages that the rule takes, the least important first; ties by position.

    A page is taken if its share of what those taken before it leave is less than `below`.

    Args:
        importance: (n,) the share of each page, 0 or more; they sum to 1.
        may_expire: (n,) the pages that the rule may take.
        below: the share; 0 takes none.
        most: how many are taken at most.

    >>> expired(np.array([0.1, 0.5, 0.2, 0.2]), np.array([True, False, True, True]), 0.21, 4)
    array([0])
    """
    candidates = np.flatnonzero(may_expire & (importance < below))
    order = candidates[np.argsort(importance[candidates], kind="stable")]
    shares = importance[order]
    # What those before it leave; the least important come first, so this falls as the shares rise.
    left = 1.0 - np.concatenate(([0.0], np.cumsum(shares)[:-1])) if len(shares) else shares
    stays = np.flatnonzero(shares >= below * left)
    return order[: min(int(stays[0]) if len(stays) else len(order), most)]


def distance_max(taken: float, jump: float, damping: float) -> float:
    """Return a bound on how far forgetting unread pages moves PageRank, in L1: of the others, scaled to sum to 1.

    A page that links to them has fewer links then, and gives the others more. In all pages together that is what links
    gave to those forgotten, and what follows from it: at most 1 / (1 - damping) times as much. Of two vectors, one of
    which is that much larger, the normalised ones differ by twice that share.

    Args:
        taken: the importance of the pages forgotten, in all.
        jump: of that, what they had by the random jump alone.
        damping: of PageRank.

    >>> distance_max(0.2, 0.2, 0.85)
    0.0
    """
    moved = max(taken - jump, 0.0) / (1.0 - damping)
    return 2.0 * moved / (1.0 - taken + moved) if moved else 0.0
