"""The links of the pages that were fetched: which go to other fetched pages, and which to pages that might be next.

In the words of Davis and Dhillon (2006, section 4): F are the fetched pages, L the local domain among them, and Fout
the links from F to the rest of the web. A page of that rest that F links to is a candidate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from opic.arrays import Float64s, Int64s
from opic.errors import BadInput

LinkMatrix = Any  # scipy.sparse.csr_array of float64: [i, j] is 1 where page i links to page j.


@dataclass(frozen=True, slots=True)
class CrawledGraph:
    """The fetched pages, with their links. Attributes:

    local       number of local pages, n > 0: they are the first n fetched pages
    inside      (l, l) links among the l fetched pages
    outward     (l, c) links from fetched pages to the c candidates
    fetched     (l,) ids of the fetched pages
    candidates  (c,) ids of the candidates, increasing
    """

    local: int
    inside: LinkMatrix
    outward: LinkMatrix
    fetched: Int64s
    candidates: Int64s

    @property
    def out_degrees(self) -> Float64s:
        """(l,) Number of all links of each fetched page."""
        return degrees(self.inside) + degrees(self.outward)


class CrawledLinks:
    """Collects the links of pages as they are fetched. Ids are numbers >= 0 that the caller gives to pages."""

    def __init__(self, local: Sequence[int], links: Sequence[Sequence[int] | Int64s]) -> None:
        """Begin with the local pages and the links of each.

        Raises:
            BadInput: no local page, or one twice.
        """
        if not len(local):
            raise BadInput("the local domain has no page: give the crawl events of its pages")
        self.local = len(local)
        self._fetched: list[int] = []
        self._targets: list[Int64s] = []
        self._known: set[int] = set()
        for page, targets in zip(local, links, strict=True):
            self.add(page, targets)

    def __contains__(self, page: int) -> bool:
        """Tell whether a page was fetched."""
        return page in self._known

    def __len__(self) -> int:
        return len(self._fetched)

    def add(self, page: int, targets: Sequence[int] | Int64s) -> None:
        """Add a fetched page; links to itself and repeated links count for nothing.

        Raises:
            BadInput: the page was added before.
        """
        if page in self._known:
            raise BadInput(f"page {page} was fetched before")
        distinct = np.unique(np.asarray(targets, np.int64))
        self._known.add(page)
        self._fetched.append(page)
        self._targets.append(distinct[distinct != page])

    def graph(self) -> CrawledGraph:
        """Return the graph of all pages fetched so far, in O(links log links)."""
        fetched = np.array(self._fetched, np.int64)
        counts = np.array([len(targets) for targets in self._targets], np.int64)
        targets = np.concatenate(self._targets)
        sources = np.repeat(np.arange(len(fetched)), counts)
        order = np.argsort(fetched)
        positions = np.searchsorted(fetched[order], targets)
        positions[positions == len(fetched)] = 0
        number = order[positions]
        inner = fetched[number] == targets
        candidates, column = np.unique(targets[~inner], return_inverse=True)
        return CrawledGraph(
            self.local,
            link_matrix(sources[inner], number[inner], (len(fetched), len(fetched))),
            link_matrix(sources[~inner], column, (len(fetched), len(candidates))),
            fetched,
            candidates,
        )


def link_matrix(sources: Int64s, targets: Int64s, shape: tuple[int, int]) -> LinkMatrix:
    """Return distinct links as a matrix of that shape."""
    return sparse.csr_array((np.ones(len(sources)), (sources, targets)), shape=shape)


def degrees(links: LinkMatrix) -> Float64s:
    """Return the number of links of each row of a matrix."""
    counts: Float64s = np.diff(links.indptr).astype(np.float64)
    return counts
