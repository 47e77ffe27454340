"""Coverage: the guaranteed share of personalized PageRank that the fetched pages hold.

The links of fetched pages are read from the store once, when somebody first asks, and then followed with the journal.
The answer is computed from them, from the weights of the trusted pages and from the states of all pages: so it is that
of the known graph as it is now, whatever links, pages and trust were before. Each shard is read at one position of its
journal; a link to a page that its shard does not know yet counts as one to a page that was not fetched.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opic.errors import NoTrust, StoreDamaged, StoreUnavailable
from opic.graph.trust_flow import LINKS_A_SETTLE, UNKNOWN_PAGE, Coverage, TrustFlow
from opic.model.cash import MILLION, Flag
from opic.model.trust import unpack_links
from opic.replica import Crawl
from opic.replica.crawl import Place
from opic.replica.effect import Effect, Head
from opic.store.connection import store_errors

SCAN_COUNT: Final = 1_000
QUEUED_MAX: Final = 200_000  # Pages whose new links wait for the next question; with more, all are read again then.
LOADS_MAX: Final = 5
FIRST: Final = 10  # The first answer, which reads all links, may follow so many times as many links as others.
QUICK_SECONDS: Final = 0.1  # Coverage that takes longer is used for a while as the order of pages:
REST: Final = 20  # for this many times as long.
NO_TRUST: Final = "no page is trusted: give seeds trust with POST /v1/seeds or `opic seed --trust 1 URL`"
Bytes = NDArray[np.uint8]
Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CoverageView:
    """The coverage of a crawl at a time."""

    as_of: float  # Unix seconds; the state is at least as recent.
    heads: list[Head]  # Of the replicas that it was computed from,
    loads: list[int]  # and their load counts.
    flow: Coverage
    shards: int
    fetchable: NDArray[np.bool_]  # By position, see `place`: whether the page may be fetched for the first time.
    fetched_pages: int
    trusted_pages: int

    def answer(self, target: float | None = None) -> dict[str, object]:
        """Return the fields of the answer as the public contract defines them."""
        found: dict[str, object] = {
            "coverage": self.flow.coverage,
            "fetched_pages": self.fetched_pages,
            "trusted_pages": self.trusted_pages,
            "damping": self.flow.damping,
        }
        if target is not None:
            expected = self.flow.fetches_to(target, self.held)
            found |= {"target": target, "fetches_expected": expected}
        return {**found, "as_of": self.as_of}

    @property
    def held(self) -> Float64s:
        """By position: the trust that waits at a page for its first fetch, as a share of all."""
        return np.where(self.fetchable, self.flow.held, 0.0)


class CoverageQuery:
    """Answers questions about coverage. Positions of pages: id times the number of shards, plus the shard. Thread-safe.

    Measured with 100,000 fetched pages of 40 links: 430 bytes a page in memory from the first question on; .6 s to read
    the links.
    """

    def __init__(self, crawl: Crawl) -> None:
        """Read nothing before the first question."""
        self._crawl, self._lock = crawl, threading.Lock()
        self._loads: list[int] = []  # The load counts of the replicas that the links are valid for.
        self._queues: list[deque[dict[int, bytes]]] = [deque() for _ in crawl.shards]
        self._queued, self._lost = [0] * len(crawl), False
        self._listening = False
        self._unknown: dict[Place, bytes] = {}  # Pages with links to pages that their shard did not know.
        self._view: CoverageView | None = None  # The last one.
        self._took, self._at = 0.0, float("-inf")  # Seconds that it took, and when it was computed (monotonic).

    @property
    def trusts(self) -> bool:
        """Whether the crawl has trusted pages, as far as its replicas know."""
        return any(replica.trust for replica in self._crawl.replicas)

    def now(self) -> CoverageView:
        """Return the coverage of the present state.

        Raises:
            NoTrust: no page is trusted, or none that exists.
            StoreUnavailable: the store is unavailable.
        """
        with self._lock:
            for _ in range(LOADS_MAX):
                self._crawl.follow()
                if not self.trusts:
                    raise NoTrust(NO_TRUST)
                loads = self._crawl.loads
                if loads == self._loads and not self._lost:
                    if (view := self._settled(loads)) is not None:
                        return view
                else:
                    self._load(loads)
            raise StoreUnavailable("the store was recreated or its server restarted repeatedly: try again")

    def recent(self) -> CoverageView:
        """Return the coverage of the present state, or of a moment ago where that takes long: for the order of pages.

        Raises:
            NoTrust: as `now`.
            StoreUnavailable: as `now`.
        """
        view = self._view
        if (
            view is not None
            and self._took > QUICK_SECONDS
            and time.monotonic() - self._at < REST * self._took
            and view.loads == self._crawl.loads
            and self.trusts
        ):
            return view
        return self.now()

    # Links.

    def _load(self, loads: list[int]) -> None:
        """Read the links of all pages. What changes meanwhile waits in the queues and is taken after them."""
        if not self._listening:
            for number, replica in enumerate(self._crawl.replicas):
                replica.effect_listeners.append(partial(self._queue, number))
            self._listening = True
        for number, queue in enumerate(self._queues):
            queue.clear()
            self._queued[number] = 0
        self._lost, self._view = False, None
        self._flow = TrustFlow(1 - self._crawl.rules.q / MILLION)
        self._unknown.clear()
        for number, shard in enumerate(self._crawl.shards):
            cursor = -1
            while cursor:
                with store_errors():
                    cursor, found = shard.client.hscan(shard.keys.links, max(cursor, 0), count=SCAN_COUNT)
                self._put(((number, int(page)), links) for page, links in found.items())
        self._loads = loads

    def _queue(self, number: int, effect: Effect) -> None:
        """Note the links that a record changed. Called while the replica's lock is held."""
        if effect.kept_from < 0 or self._lost:
            return
        links = effect.kept_links()
        self._queues[number].append(links)
        self._queued[number] += len(links)
        if self._queued[number] > QUEUED_MAX:
            self._queues[number].clear()
            self._lost = True

    def _put(self, pages: Iterable[tuple[Place, bytes]]) -> None:
        shards = len(self._crawl)
        for (number, page), packed in pages:
            try:
                near, far, far_shards = unpack_links(packed)
            except ValueError as error:
                raise StoreDamaged(f"the links of page {page} of shard {number} are damaged: {error}") from error
            links = near.astype(np.int64) * shards + number
            if len(far):
                links = np.concatenate((links, self._positions(far, far_shards)))
                if (links == UNKNOWN_PAGE).any():
                    self._unknown[number, page] = packed
                else:
                    self._unknown.pop((number, page), None)
            elif self._unknown:
                self._unknown.pop((number, page), None)
            self._flow.set_links(page * shards + number, links.astype(np.uint32))

    def _positions(self, fingerprints: NDArray[np.uint64], of_shards: NDArray[np.uint16]) -> NDArray[np.int64]:
        """Return the positions of pages of other shards, UNKNOWN_PAGE for those not known there yet."""
        found = np.full(len(fingerprints), UNKNOWN_PAGE, np.int64)
        for number in np.unique(of_shards).tolist():
            at = np.flatnonzero(of_shards == number)
            with self._crawl.replicas[number].reading() as replica:
                ids = replica.find(fingerprints[at])
            found[at] = np.where(ids >= 0, ids * len(self._crawl) + number, UNKNOWN_PAGE)
        return found

    # The answer.

    def _settled(self, loads: list[int]) -> CoverageView | None:
        """Return the coverage at the replicas' positions; None if one of them was reloaded meanwhile."""
        as_of, shards = self._crawl.as_of, len(self._crawl)
        heads: list[Head] = []
        states: list[Bytes] = []
        trusts: list[dict[int, float]] = []
        changed: list[tuple[Place, bytes]] = []
        for number, replica in enumerate(self._crawl.replicas):
            with replica.reading():
                heads.append(replica.head)
                states.append(replica.state.copy())
                trusts.append(replica.trust or {})
                while self._queues[number]:
                    changed += [((number, page), links) for page, links in self._queues[number].popleft().items()]
                self._queued[number] = 0
        if self._crawl.loads != loads or self._lost:
            return None
        if self._view is not None and self._view.heads == heads and self._view.flow.settled:
            return replace(self._view, as_of=as_of)
        began = time.monotonic()
        self._put([*changed, *self._unknown.items()])
        size = max(map(len, states)) * shards
        state, trust = np.zeros(size, np.uint8), np.zeros(size)
        for number in range(shards):
            state[number : len(states[number]) * shards : shards] = states[number]
            pages = np.fromiter(trusts[number], np.int64, len(trusts[number]))
            trust[pages * shards + number] = list(trusts[number].values())
        gone, fetched = (state & Flag.GONE) != 0, (state & Flag.OPEN) != 0
        trust[gone] = 0.0
        if not trust.any():
            raise NoTrust(NO_TRUST)
        self._view = CoverageView(
            as_of,
            heads,
            loads,
            self._flow.settle(trust, fetched, gone, LINKS_A_SETTLE * (FIRST if self._view is None else 1)),
            shards,
            (state & (Flag.OPEN | Flag.GONE | Flag.EXCLUDED)) == 0,
            int(fetched.sum()),
            int((trust > 0).sum()),
        )
        self._at = time.monotonic()
        self._took = self._at - began
        return self._view
