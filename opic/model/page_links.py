"""The links of many pages in flat arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int64s, Uint16s, Uint32s, Uint64s

PAGE_BYTES: Final = 4
NEAR_BYTES: Final = 2
FAR_BYTES: Final = 6


@dataclass(frozen=True, slots=True)
class PageLinks:
    """The links of n pages of one shard, page by page; a page may be there several times."""

    pages: Uint32s  # (n,)
    near_counts: Uint32s  # (n,): numbers of links to pages of the same shard.
    near: Uint32s  # Their ids, which increase in each page.
    far_counts: Uint32s  # (n,): numbers of links to pages of other shards.
    far: Uint64s  # Their fingerprints,
    far_shards: Uint16s  # and their shards.
    near_new: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))  # By link: whether the read before of its
    far_new: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))  # page did not show it. No link, if left out.

    def __post_init__(self) -> None:
        """Take all links as known before where the record does not say which are new."""
        for name, links in (("near_new", self.near), ("far_new", self.far)):
            if len(getattr(self, name)) != len(links):
                object.__setattr__(self, name, np.zeros(len(links), np.bool_))

    def __len__(self) -> int:
        return len(self.pages)

    @classmethod
    def joined(cls, parts: Sequence["PageLinks"]) -> "PageLinks":
        """Return several as one, in their order."""
        if len(parts) == 1:
            return parts[0]
        names = [column.name for column in fields(cls)]
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in names)) if parts else NO_LINKS

    @classmethod
    def none_of(cls, pages: Uint32s) -> "PageLinks":
        none = np.zeros(len(pages), np.uint32)
        return cls(pages, none, _NO_IDS, none, NO_LINKS.far, NO_LINKS.far_shards)

    def select_rows(self, rows: Int64s) -> "PageLinks":
        return self._at(rows, picked(self.near_counts, rows), picked(self.far_counts, rows))

    def weights(self) -> Int64s:
        """Return about how many bytes each row takes in a segment, (n,)."""
        return (
            PAGE_BYTES + NEAR_BYTES * self.near_counts.astype(np.int64) + FAR_BYTES * self.far_counts.astype(np.int64)
        )

    def part(self, first: int, end: int) -> "PageLinks":
        """Return rows `first` to `end`, as views."""
        near = slice(int(self.near_counts[:first].sum()), int(self.near_counts[:end].sum()))
        far = slice(int(self.far_counts[:first].sum()), int(self.far_counts[:end].sum()))
        return self._at(slice(first, end), near, far)

    def _at(self, rows: Int64s | slice, near: Int64s | slice, far: Int64s | slice) -> "PageLinks":
        return PageLinks(
            self.pages[rows], self.near_counts[rows], self.near[near],
            self.far_counts[rows], self.far[far], self.far_shards[far], self.near_new[near], self.far_new[far],
        )  # fmt: skip

    def last_of_each(self) -> Int64s:
        """Return the last row of each page, in order of the pages."""
        order = np.argsort(self.pages, kind="stable")
        sorted_pages = self.pages[order]
        last = np.ones(len(order), np.bool_)
        last[:-1] = sorted_pages[1:] != sorted_pages[:-1]
        return order[last]


_NO_IDS: Final = np.empty(0, np.uint32)
NO_LINKS: Final = PageLinks(_NO_IDS, _NO_IDS, _NO_IDS, _NO_IDS, np.empty(0, np.uint64), np.empty(0, np.uint16))


def picked(counts: NDArray[Any], rows: Int64s) -> Int64s:
    """Return where the values of rows are in a flat array that has `counts` values of each row."""
    some = counts[rows].astype(np.int64)
    shifts = np.cumsum(counts, dtype=np.int64)[rows] - np.cumsum(some)
    return np.arange(int(some.sum())) + np.repeat(shifts, some)
