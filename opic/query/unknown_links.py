"""Links to pages that their shard does not know: on their way to it, or refused.

The share of a link to a page of another shard goes there with a deposit, and its arrival makes the page known. Until
then the link is on its way. A link whose deposit has arrived, to a page that is still not known, was refused: its host
has as many pages as OPIC_MAX_PAGES_PER_HOST allows. It counts as none, until the page becomes known in another way.

A link takes 14 bytes, and 12 more once it is sorted.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int32s, Int64s, Uint8s, Uint32s, Uint64s, grown

DROPPED, COMING, REFUSED = 0, 1, 2
RECENT_MAX: Final = 1 << 16  # Links that are not sorted yet, or an eighth of all, if that is more.
LINK_BYTES: Final = 26


@dataclass(frozen=True, slots=True)
class LinksFound:
    """Links whose page has become known. Arrays are (n,)."""

    sources: Int64s  # The number of the page that links.
    targets: Int64s  # Which of the pages that became known it leads to.
    fresh: Bools  # Whether the read before of the source did not show it.
    coming: Bools  # Whether it was on its way until now.


class UnknownLinks:
    """The links, by fingerprint of their page. For one thread at a time."""

    def __init__(self) -> None:
        self._source: Uint32s = np.zeros(0, np.uint32)
        self._target: Uint64s = np.zeros(0, np.uint64)
        self._fresh: Bools = np.zeros(0, np.bool_)
        self._state: Uint8s = np.zeros(0, np.uint8)
        self._used = self._dropped = 0
        self._of_source: dict[int, int] = {}  # How many links each page has here.
        # The targets of the first links, sorted, and where each is.
        self._sorted: Uint64s = np.zeros(0, np.uint64)
        self._order: Int32s = np.zeros(0, np.int32)
        # Of links on their way: where they are here, the shards that they come from and go to, and how many entries had
        # been sent from one to the other once theirs was.
        self._coming: Int64s = np.zeros((0, 4), np.int64)

    def __len__(self) -> int:
        """Return how many links there is room taken for."""
        return self._used

    @property
    def pages_coming(self) -> int:
        """The number of pages that links on their way lead to."""
        rows = self._coming[:, 0]
        return len(np.unique(self._target[rows[self._state[rows] == COMING]])) if len(rows) else 0

    def add(self, sources: Int64s, targets: Uint64s, fresh: Bools, deposits: Int64s) -> None:
        """Add links of pages, which have none here.

        Args:
            sources: (n,) numbers of the pages that link.
            targets: (n,) fingerprints.
            fresh: (n,) whether the read before of the source did not show the link.
            deposits: (n, 3) the shard that the link's deposit comes from, the one that it goes to, and how many entries
                the first had sent to the second once this one was sent, or later.
        """
        first, self._used = self._used, self._used + len(sources)
        if self._used > len(self._source):
            for name in ("_source", "_target", "_fresh", "_state"):
                setattr(self, name, grown(getattr(self, name), self._used))
        rows = slice(first, self._used)
        self._source[rows], self._target[rows], self._fresh[rows] = sources, targets, fresh
        self._state[rows] = COMING
        coming = np.column_stack((np.arange(first, self._used), deposits))
        self._coming = np.concatenate((self._coming, coming))
        pages, counts = np.unique(sources, return_counts=True)
        for page, count in zip(pages.tolist(), counts.tolist(), strict=True):
            self._of_source[page] = self._of_source.get(page, 0) + count

    def drop(self, pages: Int64s) -> None:
        """Drop the links of pages, which are replaced."""
        here = self._of_source.keys() & set(pages.tolist()) if self._of_source else set()
        if not here:
            return
        flags = np.zeros(int(self._source[: self._used].max()) + 1, np.bool_)
        flags[list(here)] = True
        self._take_out(np.flatnonzero(flags[self._source[: self._used]] & (self._state[: self._used] != DROPPED)))

    def pop_known(self, prints: Uint64s) -> LinksFound:
        """Take out and return the links to pages that have become known, by their fingerprints: distinct, not none."""
        rows, which = self._matches(prints)
        there = self._state[rows] != DROPPED
        rows, which = rows[there], which[there]
        sources = self._source[rows].astype(np.int64)
        result = LinksFound(sources, which, self._fresh[rows].copy(), self._state[rows] == COMING)
        self._take_out(rows)
        return result

    def refused(self, received: NDArray[Any]) -> tuple[Int64s, Bools]:
        """Note which links were refused, of those whose page is still not known; return their sources, and `fresh`.

        Args:
            received: (shards, shards) how many entries a shard has taken, [to, from].
        """
        rows, home, to, marks = self._coming.T
        waits = self._state[rows] == COMING
        arrived = waits & (received[to, home] >= marks)
        self._coming = self._coming[waits & ~arrived]
        gone = rows[arrived]
        self._state[gone] = REFUSED
        return self._source[gone].astype(np.int64), self._fresh[gone].copy()

    def _matches(self, prints: Uint64s) -> tuple[Int64s, Int64s]:
        """Return where links to pages are, and which of the pages each leads to."""
        if self._used - len(self._sorted) > max(RECENT_MAX, len(self._sorted) // 8):
            self._order = np.argsort(self._target[: self._used], kind="stable").astype(np.int32)
            self._sorted = self._target[self._order]
        first, end = (np.searchsorted(self._sorted, prints, side=side) for side in ("left", "right"))
        counts = end - first
        which = np.repeat(np.arange(len(prints)), counts)
        rows = self._order[np.arange(len(which)) + np.repeat(first - (np.cumsum(counts) - counts), counts)]
        order, recent = np.argsort(prints), self._target[len(self._sorted) : self._used]
        places = np.minimum(np.searchsorted(prints[order], recent), len(prints) - 1)
        hits = np.flatnonzero(prints[order][places] == recent)
        return np.concatenate((rows, len(self._sorted) + hits)), np.concatenate((which, order[places[hits]]))

    def _take_out(self, rows: Int64s) -> None:
        self._state[rows] = DROPPED
        self._dropped += len(rows)
        pages, counts = np.unique(self._source[rows], return_counts=True)
        for page, count in zip(pages.tolist(), counts.tolist(), strict=True):
            self._of_source[page] -= count
            if not self._of_source[page]:
                del self._of_source[page]
        if self._dropped > max(RECENT_MAX, self._used // 2):
            self._compact()

    def _compact(self) -> None:
        there = self._state[: self._used] != DROPPED
        moved = np.cumsum(there) - 1
        self._coming = self._coming[there[self._coming[:, 0]]]
        self._coming[:, 0] = moved[self._coming[:, 0]]
        for name in ("_source", "_target", "_fresh", "_state"):
            setattr(self, name, getattr(self, name)[: self._used][there])
        self._used, self._dropped = int(there.sum()), 0
        self._sorted, self._order = self._sorted[:0], self._order[:0]
