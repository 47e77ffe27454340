"""Orders of the pages of a shard: each is one class that gives pages their keys. By cash, at random, by last reads.

These are the paper's strategies Greedy, Random and Cycle (Abiteboul, Preda, Cobena 2003, section 3.1); other orders are
in `opic.frontier.crawl_orders` and `opic.frontier.expansion`.
"""

from typing import ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from opic.arrays import Bools, Float64s, Int64s, Uint8s
from opic.frontier import page_counts
from opic.model.cash import CLASS_BITS, Flag

GREEDY, RANDOM, CYCLE = "greedy", "random", "cycle"
OFFERED_BITS: Final = Flag.KNOWN | Flag.GONE | Flag.EXCLUDED  # KNOWN alone of a page that may be offered.
NOWHERE: Final = -np.inf  # The key of a page that is not in an order.
NEVER_READ: Final = 2.0**53  # The key of pages never read in the order Cycle. Times in microseconds are far below it.
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


class Order:
    """An order of the pages of a shard: the largest key comes first, ties by id. A subclass has `keys`.

    Pages that something holds back for good, and with `with_cash` pages without
    cash, have no place in it.
    """

    with_cash: ClassVar[bool] = True  # A read of a page without cash would move nothing.
    prioritised: ClassVar[bool] = True  # Whether a page's priority multiplies its key.
    growth: float = 0.0  # By how much a key may grow for each grain that the credit of the page's class grows by.

    def keys(self, ids: Int64s) -> Float64s:
        """Return the keys of pages, (n,), in any state; NOWHERE for pages that are not in the order."""
        raise NotImplementedError

    def column(self) -> tuple[Float64s, Bools] | None:
        """Return the keys of the first pages and a mask of the read ones, if they are at hand; None if they are not."""
        return None

    def changed(self, ids: Int64s) -> None:
        """Take in free pages that are new, changed or were held, before their keys are asked for."""

    def hosts_changed(self, hosts: Int64s) -> None:
        """Take in hosts that rest or are free again."""


class ByCash(Order):
    """The order Greedy: the most cash first."""

    def __init__(self, columns: OrderColumns, credits: Int64s, discovery: float) -> None:
        """Take the credit of each class, (8,), changed in place, and the factor on the cash of pages never read."""
        self._columns, self._credits, self._discovery = columns, credits, discovery
        self.growth = max(discovery, 1.0)

    def keys(self, ids: Int64s) -> Float64s:
        """Return the cash, weighted by `discovery`."""
        state = self._columns.state[ids]
        cash = self._columns.v[ids] + self._credits[state & CLASS_BITS]
        return keys_by_cash(cash, (state & Flag.OPEN) != 0, self._discovery)


def keys_by_cash(cash: Int64s, read: Bools, discovery: float) -> Float64s:
    """Return the cash, times `discovery` but at least 1 for pages never read: a key of 0 is not offered."""
    keys: Float64s = np.abs(cash).astype(np.float64)
    return keys if discovery == 1 else np.where(read, keys, np.maximum(keys * discovery, 1.0))


class AtRandom(Order):
    """The order Random: by a number that changes at each read of the page."""

    def __init__(self, columns: OrderColumns, *_: object) -> None:
        self._columns = columns

    def keys(self, ids: Int64s) -> Float64s:
        """Return the numbers."""
        return random_keys(ids, self._columns.last_read_us(ids)).astype(np.float64)


class ByAge(AtRandom):
    """The order Cycle: pages never read first, then the others by the time of their last read, oldest first."""

    def keys(self, ids: Int64s) -> Float64s:
        """Return the time since then, from a far time on."""
        read = (self._columns.state[ids] & Flag.OPEN) != 0
        return np.where(read, NEVER_READ - 1 - self._columns.last_read_us(ids), NEVER_READ)


STRATEGIES: Final = {GREEDY: ByCash, RANDOM: AtRandom, CYCLE: ByAge}


def keys_of(order: Order, columns: OrderColumns, codes: Uint8s, ids: Int64s) -> tuple[Float64s, Bools]:
    """Return the keys of pages times priorities, NOWHERE for pages not to be offered, and a mask of the read ones.

    Args:
        order: of the shard.
        columns: of the shard.
        codes: of the pages; see `opic.frontier.page_counts`.
        ids: the pages.
    """
    kinds = codes >> 1
    fit = kinds == page_counts.FREE if order.with_cash else page_counts.IS_OFFERED[kinds]
    keys = order.keys(ids)
    if order.prioritised and (priority := columns.priority(ids)) is not None:
        keys = times_priority(keys, priority)
    return np.where(fit, keys, NOWHERE), (codes & 1).astype(np.bool_)


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
