"""A link graph whose every page and link is known, as the web of a focused walk: where the truth is known."""

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from opic.graph.crawled import LinkMatrix
from opic.graph.focused_walk import SeenPage


class MatrixPages:
    """The pages of a link matrix, numbered. `looked` has those that were looked at: what a walk would have fetched."""

    def __init__(self, links: LinkMatrix, on_topic: NDArray[np.bool_], host: NDArray[np.int64] | None = None) -> None:
        """Take the pages of a graph.

        Args:
            links: (N, N) [i, j] is 1 where page i links to page j; no self-links.
            on_topic: (N,) which pages are on the topic.
            host: (N,) the host of each page, a number; each page is a host of its own without it.
        """
        self.looked: set[int] = set()
        self._out, self._in = links.tocsr(), links.T.tocsr()
        self._topic = on_topic.tolist()
        self._host = host.tolist() if host is not None else None

    def load_page(self, page: int) -> SeenPage[int]:
        """Return a page."""
        self.looked.add(page)
        return SeenPage(page, _row(self._out, page), self._topic[page])

    def inlinks(self, page: int) -> list[int]:
        """Return the pages that link to a page."""
        return _row(self._in, page)

    def host(self, page: int) -> Hashable:
        """Return the host of a page."""
        return page if self._host is None else self._host[page]


def _row(links: LinkMatrix, page: int) -> list[int]:
    found: list[int] = links.indices[links.indptr[page] : links.indptr[page + 1]].tolist()
    return found
