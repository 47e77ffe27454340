"""What to fetch where links are kept: never-read pages by exact importance, read ones by importance, change and age.

Never-read pages come by PageRank of the known graph with a share of the teleport on the trusted pages, or on the seeds
where none is trusted. Visits are linear in the teleport, so those of two flows (`opic.query.page_flows`) are added.
Read pages come by the square root of importance times rate of change, times the age: the time since the last read. The
rate is learned from how often a page's reads showed other links (`opic.replica.page_changes`).

In an endpoint the thread that settles the flows computes the order too, while anybody asks for it; a question takes
what was computed last, and waits for nothing.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from opic.arrays import Float64s, Int64s, Uint8s
from opic.errors import NotKept, StoreError
from opic.graph.flow import Flow
from opic.model.cash import MILLION, Flag
from opic.query.kept_links import LinksRead
from opic.query.page_flows import BOUND, LINKS_A_SETTLE, SAYS_SOMETHING, PageFlows, PageStates
from opic.replica import Replica
from opic.replica.effect import Head

log = logging.getLogger("opic.query")

SEED_SHARE: Final = 0.2
REST: Final = 9  # A thread rests for this multiple of the time that its last computation took, within limits,
ORDER_REST: Final = 20  # and for this one of an order: pages leased or read since are left out anyway.
ASKED_SECONDS: Final = 60.0  # How long after a question the order is kept up.
AGES_SECONDS: Final = 5.0  # How often it is computed again where nothing changed but the time.
PAGES_AT_ONCE: Final = 1 << 16  # Pages whose last reads are looked up while a replica waits: some milliseconds.
UNFIT: Final = Flag.GONE | Flag.EXCLUDED


@dataclass(frozen=True, slots=True)
class ShardPages:
    """The pages of a shard that were never read, and those that were, with their keys; ids ascend."""

    unread: Int64s
    unread_keys: Float64s
    read: Int64s
    read_keys: Float64s
    read_us: Int64s  # When each was last read.
    known: int  # How many pages the shard had.


@dataclass(frozen=True, slots=True)
class FetchView:
    """The order as of one position of the journals."""

    heads: list[Head]
    loads: list[int]
    shards: list[ShardPages]
    bound: float  # Of the importance.
    settled: bool


class FetchOrder:
    """Keeps up the order in which pages are worth fetching. Thread-safe."""

    name: Final = "exact"

    def __init__(self, flows: PageFlows, seed_share: float = SEED_SHARE, bound: float = BOUND) -> None:
        """Read nothing yet.

        Args:
            flows: the flows of importance and of trust.
            seed_share: the share of the teleport that is on trusted pages or seeds.
            bound: how exact the importance has to be.
        """
        self._flows, self._kept, self._crawl = flows, flows.kept, flows.kept.crawl
        self._share, self._bound = seed_share, bound
        self._view: FetchView | None = None
        self._at, self._took, self._asked_at = float("-inf"), 0.0, float("-inf")
        self.listeners: list[Callable[[FetchView], object]] = []  # Called with each new order, before it is used.
        self._kept.release_listeners.append(self._forget)

    def _forget(self) -> None:
        self._view = None

    @property
    def kept(self) -> bool:
        """Whether the crawl keeps links that this endpoint can hold, as far as it knows."""
        return self._kept.usable

    def due(self) -> bool:
        """Return whether somebody asked lately, and it is time to compute the order anew."""
        now, view = time.monotonic(), self._view
        if now - self._asked_at >= ASKED_SECONDS:
            return False
        same = view is not None and view.settled
        same = same and (view.heads, view.loads) == (self._crawl.heads(), self._crawl.loads)  # type: ignore[union-attr]
        return now - self._at >= (AGES_SECONDS if same else ORDER_REST * self._took)

    def recent(self) -> FetchView | None:
        """Return the order of a moment ago; None if it can't be told, because links are not kept or not read yet."""
        self._asked_at = time.monotonic()
        if not self._crawl.upkeep.threads:
            self._compute()
        view = self._view
        if view is None or not self._kept.usable or view.loads != self._crawl.loads or view.bound >= SAYS_SOMETHING:
            return None
        return view

    def _compute(self) -> None:
        """Compute the order if that can be done now; pages are suggested by cash if it can't."""
        try:
            if self._kept.usable:
                with self._kept.lock:
                    read = self._kept.catch_up(self._kept.check, PageStates.with_seeds)
                    self._flows.follow(read)
                    self._flows.by_importance(read)
                    if self._share:
                        self._flows.by_seeds(read)
                    self.taken(read)()
        except (NotKept, StoreError) as error:
            log.info("the order of pages waits for the store: %s", error)

    def taken(self, read: LinksRead[PageStates]) -> Callable[[], None]:
        """Take the visits of the flows, which are at the position of `read`; return what sorts the pages by them."""
        began = time.thread_time()
        flow, loads = self._flows.importance, self._kept.loads
        settled = flow.settle(self._bound, LINKS_A_SETTLE)
        worth, bound = _visits(flow), flow.bound
        mixed, both = self._mixed(worth) if self._share else (worth, True)
        pages = [len(taken.state) for taken in read.taken]
        by_shard = [self._kept.numbers.gathered(column, pages) for column in (mixed, worth)]

        def sort() -> None:
            shards = keyed(self._crawl.replicas, [taken.state for taken in read.taken], *by_shard)
            view = FetchView(read.heads, loads, shards, bound, settled and both)
            for listener in self.listeners:
                listener(view)
            self._view = view
            self._at, self._took = time.monotonic(), time.thread_time() - began

        return sort

    def _mixed(self, worth: Float64s) -> tuple[Float64s, bool]:
        """Return the visits with a share of the teleport on trusted pages or seeds, and whether that is settled."""
        seeded = self._flows.trust
        if not seeded.teleport.any():
            return worth, True
        settled = seeded.settle(self._bound, LINKS_A_SETTLE)
        return (1 - self._share) * worth + self._share * _visits(seeded), settled


def _visits(flow: Flow) -> Float64s:
    """Return the visits of each page for a teleport weight of 1 in all."""
    visits: Float64s = np.maximum(flow.visits + flow.residual, 0.0)
    return visits / (float(flow.teleport.sum()) or 1.0)


@dataclass(frozen=True, slots=True)
class _ReadPages:
    """What a replica knows of the reads of some pages; (n,) each."""

    read_us: Int64s  # When each was last read.
    observed: Float64s  # Seconds in which its reads were compared; 0 for a page that was read once.
    changes: Float64s  # How many of these reads showed other links.
    rereads: Float64s  # How often each was read after its first read.

    @classmethod
    def of(cls, replica: Replica, pages: Int64s, known: int) -> "_ReadPages":
        """Look them up, a part at a time so that the replica does not wait; `known`: how many pages it had."""
        read_us, since, changes, rereads = (np.zeros(len(pages), np.int64) for _ in range(4))
        for first in range(0, len(pages), PAGES_AT_ONCE):
            part = slice(first, first + PAGES_AT_ONCE)
            with replica.reading():
                if known > len(replica):  # It was loaded again; this order is not used any more.
                    break
                rows, histories = replica.columns.row[pages[part]], replica.histories
                read_us[part] = histories.last_read_us(rows)
                rereads[part] = histories.rows.reads[rows].astype(np.int64) - 1
                changes[part], since[part] = (
                    replica.columns.values_of(name, pages[part]) for name in ("changes", "since")
                )
        observed = np.where(since > 0, read_us / MILLION - since, 0.0)
        return cls(read_us, np.maximum(observed, 0.0), changes.astype(np.float64), rereads.astype(np.float64))


def keyed(
    replicas: Sequence[Replica],
    states: Sequence[Uint8s],
    mixed: Sequence[Float64s],
    worth: Sequence[Float64s],
) -> list[ShardPages]:
    """Return the pages of each shard with their keys.

    Args:
        replicas: of the shards.
        states: by shard and page, as of the position of the order.
        mixed: what never-read pages come by.
        worth: the importance, which read pages come by.
    """
    fit = [(state & (UNFIT | Flag.KNOWN)) == Flag.KNOWN for state in states]
    opened = [(state & Flag.OPEN) != 0 for state in states]
    unread = [np.flatnonzero(some & ~is_open) for some, is_open in zip(fit, opened, strict=True)]
    read = [np.flatnonzero(some & is_open) for some, is_open in zip(fit, opened, strict=True)]
    read_pages = [
        _ReadPages.of(replica, pages, len(state)) for replica, pages, state in zip(replicas, read, states, strict=True)
    ]
    interval = read_interval([part.observed for part in read_pages], [part.rereads for part in read_pages])
    shards = []
    for shard, (pages, part) in enumerate(zip(read, read_pages, strict=True)):
        ages = np.maximum(time.time() - part.read_us / MILLION, 1 / MILLION)
        rates = change_rates(part.changes, part.observed, interval)
        keys = refresh_keys(worth[shard][pages], rates, ages)
        never = unread[shard]
        shards.append(ShardPages(never, mixed[shard][never], pages, keys, part.read_us, len(states[shard])))
    return shards


def read_interval(observed: Sequence[Float64s], rereads: Sequence[Float64s]) -> float:
    """Return the mean time between two reads of a page, over the pages of all shards that were read again.

    1 where there is none. Arguments by shard: the time in which each page was observed, 0 for none, and how often it
    was read again.
    """
    times, counts = np.concatenate([np.zeros(0), *observed]), np.concatenate([np.zeros(0), *rereads])
    again = (times > 0) & (counts > 0)
    return float((times[again] / counts[again]).mean()) if again.any() else 1.0


def change_rates(changes: Float64s, observed: Float64s, interval: float) -> Float64s:
    """Return the learned rates of change: (changes + 1/2) / (intervals observed + 1), (n,).

    So a page read once counts as one that changes in every second interval, and what is seen outweighs that in time.

    Args:
        changes: how many reads of each page showed other links.
        observed: the time in which it was observed.
        interval: the mean time between two reads of a page.
    """
    return (changes + 0.5) / (observed / interval + 1)


def refresh_keys(worth: Float64s, rates: Float64s, ages: Float64s) -> Float64s:
    """Return the keys of read pages, largest first, all below 0, so that never-read pages come before them."""
    keys: Float64s = -1 / np.maximum(np.sqrt(worth * rates) * ages, np.finfo(np.float64).tiny)
    return keys
