"""In-links of pages, and link scores: the in-links of the links that the last read of a page showed for the first time.

Both follow from the kept links and from which of them are new, so they are the same in all endpoints and after each
restart. A link to a page that its shard does not know yet is the only one known to it, and counts as one.

Source: Kumar, Lang, Marlow, Tomkins (2008), section III: "the sum over each outlink not present during the prior crawl
of the number of inlinks seen so far to the destination". The paper counts what was seen by the time of the crawl; here
it is what has been seen by now.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from opic.arrays import Int64s, Uint32s, grown
from opic.graph.link_pool import LinkPool

NO_LINKS: Final = np.zeros(0, np.uint32)
CHANGED_MAX: Final = 1 << 20  # With more links that came or went, looking at all pages is as fast.


@dataclass(frozen=True, slots=True)
class LinkScores:
    """The pages that have a link score, by shard: ids, ascending, and scores, (n,) each."""

    loads: list[int]  # The load counts of the replicas that the ids are valid for.
    ids: list[Int64s]
    scores: list[Int64s]


class InLinkCounts:
    """By page: how many pages that were read and exist link to it, as last read; 4 bytes a page."""

    def __init__(self, pool: LinkPool) -> None:
        self._counts: Uint32s = pool.link_counts(pool.pages_linked()).astype(np.uint32)
        self._changed: list[Uint32s] | None = []  # Pages whose counts changed; None for any.
        self._noted = 0

    def replace(self, old: Uint32s, new: Uint32s) -> None:
        """Count the links of pages, distinct in each, in place of those that they had before."""
        size = int(new.max(initial=0)) + 1
        if size > len(self._counts):
            self._counts = grown(self._counts, size)
        np.subtract.at(self._counts, old, 1)
        np.add.at(self._counts, new, 1)
        if self._changed is not None:
            self._changed += (old, new)
            self._noted += len(old) + len(new)
            if self._noted > CHANGED_MAX:
                self._changed = None

    def take_changed(self) -> Uint32s | None:
        """Return the pages whose counts may have changed since the last call; None if there are too many."""
        changed, self._changed, self._noted = self._changed, [], 0
        return None if changed is None else np.unique(np.concatenate([NO_LINKS, *changed]))

    def counts_of(self, pages: Int64s | Uint32s) -> Int64s:
        counts = np.zeros(len(pages), np.int64)
        inside = pages < len(self._counts)
        counts[inside] = self._counts[pages[inside]]
        return counts


def score_pages(new_links: LinkPool, inlinks: InLinkCounts) -> tuple[Int64s, Int64s]:
    """Return the pages that have a link score, and the scores: O(new links of all pages).

    Args:
        new_links: of the last read of each page.
        inlinks: of all pages.
    """
    counts = new_links.counts_to(new_links.pages_linked())
    rows = np.flatnonzero(counts > 0)
    scores = np.zeros(len(counts), np.int64)
    for pages, links, sources in new_links.gathered(rows):
        scores[pages] = np.bincount(sources, inlinks.counts_of(links), len(pages)).astype(np.int64)
    for page, unknown in new_links.unknown.items():
        scores[page] += unknown
    pages = np.flatnonzero(scores)
    return pages, scores[pages]
