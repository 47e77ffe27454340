"""The known graph: every page known and not gone, with the links of its last read, and how it changed.

A page never fetched has no links here. Links to a page that is gone count for nothing: the others of their page get
more. One that was fetched before its links were kept counts as fetched, and nothing moves along its links.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int64s, Uint32s
from opic.graph.link_pool import NOT_KEPT, UNKNOWN_PAGE, LinkPool
from opic.graph.pooled_matrix import PooledMatrix

ROWS_MAX: Final = 20_000  # With more pages whose links changed, going through all links is faster.
NO_LINKS: Final = np.zeros(0, np.uint32)
NO_PAGES: Final = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class LinkRows:
    """The links of some pages, to pages that are known; also to those gone, see `opic.graph.flow`."""

    pages: Int64s
    shares: NDArray[np.float64]  # By page, what each of its links gets: 1 / the number of those to pages not gone.
    links: Int64s
    sources: Int64s  # Of each link, the index of its page.


@dataclass(frozen=True, slots=True)
class LinkChanges:
    """From one version of the graph to the next: the links of some pages before and after."""

    version: int  # The one before.
    before: LinkRows
    after: LinkRows
    ended: Int64s  # Pages that moved visits on before, and do not now: those that went away.


class KnownGraph:
    """A pool of links, and the states of pages. For one thread at a time.

    `fetched` and `gone` are by page, as is `moves`: whether the page has links here, or is known to have none. Versions
    are counted from 0; `change` says what the last one changed, None where everything may have.
    """

    def __init__(self, pool: LinkPool) -> None:
        self.pool, self.version = pool, 0
        self.fetched, self.gone, self.moves = (np.zeros(0, np.bool_) for _ in range(3))
        self.moves_at, self.gone_at = np.zeros(0, np.int64), np.zeros(0, np.int64)  # Where they are set.
        self.live = np.zeros(0, np.int32)  # By page: how many links count.
        self.change: LinkChanges | None = None
        self._matrix: PooledMatrix | None = None

    def __len__(self) -> int:
        return len(self.gone)

    @property
    def matrix(self) -> PooledMatrix:
        """The links as they are now."""
        if self._matrix is None:
            self._matrix = PooledMatrix(self.pool, len(self))
        return self._matrix

    def advance(self, fetched: Bools, gone: Bools, replaced: Mapping[int, Uint32s | None] | None) -> None:
        """Take over the present states of pages, and what was put into the pool since the last call.

        Args:
            fetched: (n,) whether the page was fetched, and has not gone since. No fewer pages than before.
            gone: (n,) whether the page does not exist any more.
            replaced: by page the links that it had before, None if none were known; None if this is not known.
        """
        pages = len(fetched)
        moves = fetched & ~gone & (self.pool.counts_to(pages) != NOT_KEPT)
        turned = gone.copy()  # Pages that went away or came back: who links to them gives each live link another share.
        turned[: len(self)] ^= self.gone
        linking = self.pool.to_any(turned) if turned.any() else NO_PAGES
        ended = self.moves_at[~moves[self.moves_at]]
        old, changed = None, None
        if replaced is not None and len(replaced) + len(linking) + len(ended) <= ROWS_MAX:
            old = self._before(replaced, np.union1d(linking, ended))
            changed = np.union1d(linking, np.fromiter(replaced, np.int64, len(replaced)))
        self._matrix = None
        self.fetched, self.gone, self.moves = fetched, gone, moves
        self.moves_at, self.gone_at = np.flatnonzero(moves), np.flatnonzero(gone)
        self._count_live(pages, changed)
        self.change = None
        if old is not None:
            after = old.pages[moves[old.pages]]
            self.change = LinkChanges(self.version, old, self._rows(after, *self._links(after)), ended)
        self.version += 1

    def _before(self, replaced: Mapping[int, Uint32s | None], others: Int64s) -> LinkRows:
        """Return the links so far of the pages that moved: those replaced, and others whose links are as they were."""
        some = sorted(page for page in replaced if page < len(self) and self.moves[page])
        others = np.setdiff1d(others[others < len(self)], some)
        others = others[self.moves[others]]
        (replaced_links, rows), (links, other_rows) = _together([replaced[page] for page in some]), self._links(others)
        pages = np.concatenate((np.array(some, np.int64), others))
        joined = np.concatenate((replaced_links, links)), np.concatenate((rows, len(some) + other_rows))
        return self._rows(pages, *joined)

    def _links(self, pages: Int64s) -> tuple[Uint32s, Int64s]:
        """Return the links of pages as they are now, in one array; and of each link its page's index."""
        return self.pool.joined(pages), np.repeat(np.arange(len(pages)), self.pool.counts[pages])

    def _rows(self, pages: Int64s, links: Uint32s, sources: Int64s) -> LinkRows:
        return LinkRows(pages, 1 / np.maximum(self.live[pages], 1), links.astype(np.int64), sources)

    def _count_live(self, pages: int, changed: Int64s | None) -> None:
        """Count the links that count, of all pages or of those whose links changed."""
        if changed is None:
            self.live = np.maximum(self.pool.counts_to(pages), 0)
            if len(self.gone_at):
                self.live -= self.matrix.links_to(self.gone).astype(np.int32)
        else:
            live = np.zeros(pages, np.int32)
            live[: len(self.live)] = self.live
            live[changed] = np.maximum(self.pool.counts_to(pages)[changed], 0)
            if len(self.gone_at):
                for some, links, sources in self.pool.gathered(changed):
                    live[some] -= np.bincount(sources, self.gone[links], len(some)).astype(np.int32)
            self.live = live
        unknown = self.pool.unknown
        for page in unknown if changed is None else unknown.keys() & set(changed.tolist()):
            self.live[page] += unknown[page]


def _together(links: list[Uint32s | None]) -> tuple[Uint32s, Int64s]:
    """Return the links of pages to those that have a number, in one array; and of each link its page's index."""
    parts = [NO_LINKS if some is None else some for some in links]
    targets, sources = np.concatenate([NO_LINKS, *parts]), np.repeat(np.arange(len(parts)), list(map(len, parts)))
    known = targets != UNKNOWN_PAGE
    return targets[known], sources[known]
