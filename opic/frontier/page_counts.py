"""Counts of a shard's pages by what holds them back, kept up to date as pages change.

The reasons are the rows of `opic.messages.hindrances`. Each page counts for one of them: a lease first, then a bit of
its state byte, a mask, a back-off or the latest time until which it is held, and last a lack of cash. Of several masks
or bits, the one of the last row counts.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Float64s, Int32s, Int64s, Uint8s
from opic.messages.hindrances import HINDRANCES, words
from opic.model.cash import CLASS_BITS, CLASSES_MAX, Flag

# A page's code is twice its kind, plus 1 if it was read. UNKNOWN: no page. FREE: apart from what its host says.
UNKNOWN, FREE, FIRST_ROW = range(3)
KINDS: Final = {FIRST_ROW + number: row for number, row in enumerate(HINDRANCES) if row.kind}
CODES: Final = 2 * (FIRST_ROW + len(HINDRANCES))
LEASED, RETRY, SPENT = (
    next(number for number, row in KINDS.items() if row.kind == kind) for kind in ("leased", "retry", "spent")
)
MASKS: Final = [(number, row.mask) for number, row in KINDS.items() if row.mask is not None]
TIMES: Final = [(number, row.until) for number, row in KINDS.items() if row.until is not None]
IS_OFFERED: Final = np.isin(np.arange(CODES // 2), [FREE, SPENT])  # By all orders, or by those without cash.
IS_TIMED: Final = np.isin(np.arange(CODES // 2), [number for number, _ in TIMES])
WORDS: Final = {word: [number for number, row in KINDS.items() if row.word == word] for word in words()}
FOR_GOOD: Final = {row.word for row in HINDRANCES if row.for_good}
# Pages of these kinds are offered some time by waiting alone.
TEMPORARY: Final = [FREE, *(number for number, row in KINDS.items() if row.word and not row.for_good)]
CENSUS_KINDS: Final = ("unread", "read", *dict.fromkeys(row.kind for row in KINDS.values()))
MANY: Final = 1 << 14  # With more changes than this, those of each host are summed first.


def _code_of(state: int) -> int:
    """Return the code of a page that has cash and is not held, by its state byte."""
    kind = FREE if state & Flag.KNOWN else UNKNOWN
    if kind == FREE:
        flags = [number for number, row in KINDS.items() if row.flag and state & getattr(Flag, row.flag)]
        kind = max(flags, default=FREE)
    return 2 * kind + bool(state & Flag.OPEN)


CODE_OF_STATE: Final = np.array([_code_of(state) for state in range(256)], np.uint8)


class Due(NamedTuple):
    """Until when pages are held back by a time. Arrays are (n,)."""

    until: Float64s  # In Unix seconds; 0 for at no time.
    kinds: Uint8s  # The kind that counts: of the latest of several times, ties by row.


def due(columns: Any, ids: Int64s) -> Due | None:
    """Return until when pages are held back by a time; None if none is."""
    latest: Due | None = None
    for kind, until_of in TIMES:
        if (until := until_of(columns, ids)) is None:
            continue
        if latest is None:
            latest = Due(until, np.full(len(ids), kind, np.uint8))
        else:
            later = (until > 0) & (until >= latest.until)
            latest = Due(np.where(later, until, latest.until), np.where(later, np.uint8(kind), latest.kinds))
    return latest


def codes_of(columns: Any, credits: Int64s, ids: Int64s) -> tuple[Uint8s, Int64s]:
    """Return the codes that pages have when nothing holds them, (n,), and their cash in grains, (n,).

    Args:
        columns: of the shard, see `opic.frontier.page_keys.OrderColumns`.
        credits: the credit of each class, (8,).
        ids: the pages.
    """
    state = columns.state[ids]
    codes = CODE_OF_STATE[state]
    free = codes >> 1 == FREE
    for kind, mask_of in MASKS:
        if (mask := mask_of(columns, ids)) is not None:
            masked = np.flatnonzero(mask & free)
            codes[masked] = 2 * kind + (codes[masked] & 1)
    cash = columns.v[ids] + credits[state & CLASS_BITS]
    poor = np.flatnonzero(cash <= 0)
    read = codes[poor] & 1
    spent = poor[(codes[poor] >> 1 == FREE) & ((cash[poor] == 0) | (read == 0))]  # A read page that owes is offered.
    codes[spent] = 2 * SPENT + (codes[spent] & 1)
    return codes, cash


def total(counts: Int64s, word: str) -> int:
    """Sum counts by kind, (kinds, ...), over the kinds that answers count as a word."""
    return int(sum(counts[number].sum() for number in WORDS[word]))


class PageCounts:
    """The code of each page, the number of pages with each code, and the number of free pages of each host."""

    def __init__(self) -> None:
        self.code: Uint8s = np.zeros(0, np.uint8)
        self.totals: Int64s = np.zeros(CODES, np.int64)
        self._free: Int32s = np.zeros((0, 2), np.int32)

    def grow(self, pages: int, hosts: int) -> None:
        """Make room for this number of pages and hosts."""
        if pages > len(self.code):
            self.code = np.concatenate((self.code, np.zeros(pages - len(self.code), np.uint8)))
        if hosts > len(self._free):
            self._free = np.concatenate((self._free, np.zeros((hosts - len(self._free), 2), np.int32)))

    def put(self, ids: Int64s, codes: Uint8s, hosts: NDArray[np.integer]) -> None:
        """Set the codes of distinct pages; `hosts` are their hosts."""
        before = self.code[ids]
        moved = np.flatnonzero(before != codes)
        if not len(moved):
            return
        before, after, hosts = before[moved], codes[moved], hosts[moved]
        self.code[ids[moved]] = after
        self.totals += np.bincount(after, minlength=CODES) - np.bincount(before, minlength=CODES)
        flat = self._free.reshape(-1)
        for codes_then, step in ((before, -1), (after, 1)):
            free = np.flatnonzero(codes_then >> 1 == FREE)
            places = 2 * hosts[free].astype(np.int64) + (codes_then[free] & 1)
            if len(places) > MANY:
                flat += (step * np.bincount(places, minlength=len(flat))).astype(np.int32)
            else:
                np.add.at(flat, places, step)

    def has_free(self, sides: Sequence[int], hosts: int) -> Bools:
        """Return a mask over the first hosts of those with a free page of these sides: 0 for never read, 1 for read."""
        mask: Bools = np.logical_or.reduce([self._free[:hosts, side] > 0 for side in sides])
        return mask

    def free_pages(self, hosts: Int64s) -> Int64s:
        """Return the number of free pages of distinct hosts that were never read, and that were, (2,)."""
        free: Int64s = self._free[hosts].sum(axis=0, dtype=np.int64)
        return free

    def census(self, state: Uint8s) -> Int64s:
        """Count the known pages by class and kind, (classes, CENSUS_KINDS); `state` are the bytes of all pages."""
        known = np.flatnonzero(state & Flag.KNOWN)
        both = (state[known] & CLASS_BITS).astype(np.int64) * CODES + self.code[known]
        counts = np.bincount(both, minlength=CLASSES_MAX * CODES).reshape(CLASSES_MAX, CODES)
        by_kind = np.zeros((CLASSES_MAX, len(CENSUS_KINDS)), np.int64)
        by_kind[:, :2] = counts[:, 2 * FREE : 2 * FREE + 2]
        for number, row in KINDS.items():
            by_kind[:, CENSUS_KINDS.index(row.kind)] += counts[:, 2 * number : 2 * number + 2].sum(axis=1)
        return by_kind
