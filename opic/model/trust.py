"""Trusted pages: the teleport vector of the coverage guarantee.

A seed may be trusted, with a weight. From the first trusted page on, a crawl keeps the links of each page that is read:
`opic.graph.rank_coverage` computes from them how much of personalized PageRank the fetched pages hold. A crawl without
trusted pages keeps links only if OPIC_KEEP_LINKS is on.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from opic.errors import BadInput

TRUST_MAX: Final = 1e9  # Only ratios count; so sums over all pages of a crawl stay exact enough.
_WEIGHTS: Final = np.dtype([("page", "<u4"), ("weight", "<f8")])


def check_trust(trust: float | None) -> float | None:
    """Return a trust weight, if it is one; None is none given.

    Raises:
        BadInput: it is negative, no number, or over TRUST_MAX.
    """
    if trust is not None and not 0 <= trust <= TRUST_MAX:  # NaN fails every comparison.
        shown = f"{trust:g}" if math.isfinite(trust) else str(trust)
        raise BadInput(f"trust {shown} is not between 0 and {TRUST_MAX:,.0f}: 0 takes trust away")
    return trust


def with_trust(weights: dict[str, float] | None, trust: float | None, urls: Iterable[str]) -> dict[str, float] | None:
    """Return the weights of the trusted pages after pages were given a weight; None as long as there never were any.

    >>> with_trust(None, 0.0, ["a"]), with_trust(None, 0.5, ["a", "b"]), with_trust({"a": 0.5}, 0.0, ["a"])
    (None, {'a': 0.5, 'b': 0.5}, {})
    """
    if trust is None or (weights is None and not trust):
        return weights
    return {url: weight for url, weight in {**(weights or {}), **dict.fromkeys(urls, trust)}.items() if weight}


def pack_weights(weights: Mapping[int, float]) -> bytes:
    """Serialise the weights of pages: 12 bytes each."""
    return np.array(list(weights.items()), _WEIGHTS).tobytes()


def unpack_weights(packed: bytes) -> dict[int, float]:
    """Deserialise weights packed by `pack_weights`.

    >>> unpack_weights(pack_weights({7: 0.5, 3: 2.0}))
    {7: 0.5, 3: 2.0}
    """
    weights: dict[int, float] = dict(np.frombuffer(packed, _WEIGHTS).tolist())
    return weights
