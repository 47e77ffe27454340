"""Counts of a shard's pages by what holds them back, kept up to date as pages change."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Int32s, Int64s, Uint8s
from opic.model.cash import CLASS_BITS, CLASSES_MAX, Flag

# A page's code is twice its kind, plus 1 if it was read. NEITHER: unknown, gone, or without cash to be offered for.
# Pages of the kinds from DENIED on are not offered by waiting.
NEITHER, FREE, LEASED, RETRY, REVISIT, NOT_BEFORE, DENIED, GIVEN_UP = range(8)
WAITS: Final = {"revisit": REVISIT, "retry": RETRY, "not_before": NOT_BEFORE, "denied": DENIED, "given_up": GIVEN_UP}
KINDS: Final = ("leased", "host_delay", *WAITS)
FOR_GOOD: Final = ("denied", "given_up")
CODES: Final = 16
# Each known page has one kind in the census. Pages of the first two could be handed out, apart from host delays;
# the kinds from "leased" to "given_up" are in the order of the codes above.
CENSUS_KINDS: Final = (
    "unread", "read", "leased", "retry", "revisit", "not_before", "denied", "given_up", "spent", "excluded", "gone",
)  # fmt: skip
CODE_BITS: Final = 4
MANY: Final = 1 << 14  # With more changes than this, those of each host are summed first.


def _code_of(state: int) -> int:
    kind = FREE if state & (Flag.KNOWN | Flag.GONE) == Flag.KNOWN else NEITHER
    if kind == FREE and state & Flag.EXCLUDED:
        kind = DENIED
    return 2 * kind + bool(state & Flag.OPEN)


# The code of a page that has cash and is neither held nor shut, by its state byte.
CODE_OF_STATE: Final = np.array([_code_of(state) for state in range(256)], np.uint8)


def _census_place(state: int, code: int) -> int:
    """Return the place of a page in the census, by its state byte and its code; -1 if it is not known."""
    kind = CENSUS_KINDS[code >> 1] if code >> 1 > FREE else "read" if code & 1 else "unread"
    if code >> 1 == NEITHER:
        kind = "gone" if state & Flag.GONE else "spent"
    elif code >> 1 == DENIED and state & Flag.EXCLUDED:
        kind = "excluded"
    return (state & CLASS_BITS) * len(CENSUS_KINDS) + CENSUS_KINDS.index(kind) if state & Flag.KNOWN else -1


_PLACES: Final = np.array([_census_place(both >> CODE_BITS, both % CODES) for both in range(256 << CODE_BITS)])


class PageCounts:
    """The code of each page, the number of pages with each code, and the number of free pages of each host."""

    def __init__(self) -> None:
        """Start with no pages."""
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

    def has_free(self, side: int, hosts: int) -> Bools:
        """Return a mask over the first hosts of those with a free page that was never read (side 0), or was (1)."""
        mask: Bools = self._free[:hosts, side] > 0
        return mask

    def free_pages(self, hosts: Int64s, side: int) -> int:
        """Return the number of free pages of distinct hosts that were never read (side 0), or were (1)."""
        return int(self._free[hosts, side].sum(dtype=np.int64))

    def census(self, state: Uint8s) -> Int64s:
        """Count the known pages by class and kind, (classes, kinds); `state` are the bytes of all pages."""
        both = np.bincount(state.astype(np.uint16) << CODE_BITS | self.code[: len(state)], minlength=len(_PLACES))
        known = _PLACES >= 0
        size = CLASSES_MAX * len(CENSUS_KINDS)
        return np.bincount(_PLACES[known], both[known], size).astype(np.int64).reshape(CLASSES_MAX, -1)
