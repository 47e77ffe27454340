"""The keys by which the frontier orders pages: their cash, a random number, or the time since their last read.

These are the paper's strategies Greedy, Random and Cycle (Abiteboul, Preda, Cobena 2003, section 3.1). A page with a
larger key comes first, and ties are broken by id. A page's priority multiplies its key. By any of them a page without
cash is not offered: a read of it would move nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Float64s, Int64s, Uint8s
from opic.frontier import page_counts
from opic.model.cash import CLASS_BITS, Flag

Keys = NDArray[Any]  # int64, or float64 if the cash of never-read pages is multiplied by `discovery`.

GREEDY, RANDOM, CYCLE = STRATEGIES = ("greedy", "random", "cycle")
OFFERED_BITS: Final = Flag.KNOWN | Flag.GONE | Flag.EXCLUDED
NEVER_READ: Final = 1 << 62  # The key of pages never read in the order Cycle. Times are in microseconds, far below it.
KEY_BITS: Final = 62  # Of a random key.


class OrderColumns(Protocol):
    """The columns of a shard by page id, as a replica keeps them. Arrays may be replaced as they grow."""

    def __len__(self) -> int:
        """Return the number of ids."""

    @property
    def v(self) -> Int64s:
        """Cash minus the credit of the page's class."""

    @property
    def state(self) -> Uint8s:
        """Bits of `opic.model.cash.Flag`, and the class."""

    @property
    def host(self) -> NDArray[np.integer]:
        """The host number of each page; it never changes."""

    @property
    def hosts(self) -> int:
        """Number of hosts."""

    def credits(self) -> Int64s:
        """Return the credit of each class, (8,)."""

    def nearness(self, ids: Int64s) -> Int64s:
        """Return the nearness of pages, 0 where their depth is unknown; see `opic.model.page_notes`."""

    def within_depth(self, least: int) -> Int64s:
        """Return the ids of the pages whose nearness is at least `least`, ascending."""

    def ruled_out(self, ids: Int64s) -> Bools | None:
        """Return a mask of the pages that rules, the scope or their shape keep from being offered; None if none."""

    def host_full(self, ids: Int64s) -> Bools | None:
        """Return a mask of the pages of hosts of which no more may be read; None if there are none."""

    def given_up(self, ids: Int64s) -> Bools | None:
        """Return a mask of the pages that are given up, or whose host is; None if there are none."""

    def priority(self, ids: Int64s) -> Float64s | None:
        """Return the priorities of pages; None if all are 1."""

    def preferred(self) -> Int64s:
        """Return the pages whose priority is above 1, ascending."""

    def revisit_at(self, ids: Int64s) -> Float64s | None:
        """Return when pages may be offered after their last read, in Unix seconds; None if at any time."""

    def not_before(self, ids: Int64s) -> Float64s | None:
        """Return when pages may be offered as was said of them, in Unix seconds; None if at any time."""

    def last_read_us(self, ids: Int64s) -> Int64s:
        """Return when pages were last read, in Unix microseconds; 0 if never."""


@dataclass(frozen=True, slots=True, eq=False)
class PageKeys:
    """A key of the pages of a shard, which puts them in an order."""

    of: Callable[[Int64s], tuple[Keys, Bools]]  # Takes ids; returns their keys, and a mask of the read ones.
    dtype: type = np.float64
    nothing: float = 0  # The key of pages that are not offered, less than all others.
    by_cash: bool = False  # Whether a key changes with the credit of the page's class.
    counted: bool = True  # Whether only pages are offered that `opic.frontier.page_counts` counts as free.


def keys_of(
    columns: OrderColumns, credits: Int64s, discovery: float, ids: Int64s, strategy: str = GREEDY
) -> tuple[Keys, Bools]:
    """Return the keys of pages, 0 for pages that may not be offered, and a mask of the read ones.

    Args:
        columns: the columns of the shard.
        credits: the credit of each class, (8,).
        discovery: factor on the cash of pages never read; 1 with other strategies than greedy.
        ids: the pages.
        strategy: "greedy": the cash. "random": a number that changes at each read of the page. "cycle": pages never
            read first, then the others by the time of their last read, oldest first.
    """
    state = columns.state[ids]
    cash = columns.v[ids] + credits[state & CLASS_BITS]
    read = (state & Flag.OPEN) != 0
    fit = ((state & OFFERED_BITS) == Flag.KNOWN) & ((cash > 0) | read & (cash != 0))
    if (shut := page_counts.shut(columns, ids)) is not None:
        fit &= ~shut
    keys: Keys
    if strategy == CYCLE:
        keys = np.where(read, NEVER_READ - 1 - columns.last_read_us(ids), NEVER_READ)
    elif strategy == RANDOM:
        keys = random_keys(ids, columns.last_read_us(ids))
    else:
        keys = np.abs(cash)
        if discovery != 1:
            keys = np.where(read, keys, np.maximum(keys * discovery, 1.0))
    if (priority := columns.priority(ids)) is not None:
        keys = keys * priority
    return np.where(fit, keys, 0), read


def times_priority(keys: Float64s, priority: Float64s | float) -> Float64s:
    """Return keys times priorities; keys below 0, of pages that come after others, are divided instead.

    >>> times_priority(np.array([6.0, 0.0, -6.0]), np.array([2.0, 2.0, 2.0]))
    array([12.,  0., -3.])
    """
    return np.where(keys < 0, keys / priority, keys * priority)


def random_keys(ids: Int64s, last_read_us: Int64s) -> Int64s:
    """Return numbers from 1 to 2^62 that look random: the finalizer of SplitMix64 over page and time of the last read.

    Source: Steele, Lea, Flood (2014), "Fast splittable pseudorandom number generators", OOPSLA, figure 17.
    """
    mixed = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + last_read_us.astype(np.uint64)
    for _ in range(2):  # Twice, because the inputs differ in few bits.
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    keys: Int64s = (mixed >> np.uint64(64 - KEY_BITS)).astype(np.int64) + 1
    return keys
