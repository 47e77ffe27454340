"""Links of single pages in a pool, and the rows of a record's links, as tests put and compare them."""

from collections.abc import Iterator

import numpy as np

from opic.arrays import Uint16s, Uint32s, Uint64s
from opic.graph.link_pool import UNKNOWN_PAGE, LinkPool
from opic.model.page_links import PageLinks


def put(pool: LinkPool, page: int, links: Uint32s) -> None:
    """Replace the links of a page."""
    pool.put_many(np.array([page]), np.array([len(links)]), links)


def links_of(pool: LinkPool, page: int) -> Uint32s | None:
    """Return the links of a page, with an UNKNOWN_PAGE for each to a page without a number; None if not known."""
    if page >= len(pool.counts) or pool.counts[page] < 0:
        return None
    start = int(pool.starts[page])
    unknown = np.full(pool.unknown.get(page, 0), UNKNOWN_PAGE, np.uint32)
    return np.concatenate((pool.values[start : start + int(pool.counts[page])], unknown))


def rows_of(links: PageLinks) -> Iterator[tuple[int, Uint32s, Uint64s, Uint16s]]:
    """Yield each page, the ids of its near links, the fingerprints and the shards of its far links."""
    near_at = far_at = 0
    for page, near, far in zip(
        links.pages.tolist(), links.near_counts.tolist(), links.far_counts.tolist(), strict=True
    ):
        some = slice(far_at, far_at + far)
        yield page, links.near[near_at : near_at + near], links.far[some], links.far_shards[some]
        near_at, far_at = near_at + near, far_at + far
