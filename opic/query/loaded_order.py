"""What to fetch where the default policy is loaded: the order of `opic.query.fetch_order`, by loaded importance."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from opic.background import lower_priority
from opic.errors import NotKept, StoreError
from opic.query.fetch_order import AGES_SECONDS, ASKED_SECONDS, REST, FetchView, keyed
from opic.query.loaded import LOADED
from opic.query.snapshots import Snapshots
from opic.replica.crawl import Outdated

log = logging.getLogger("opic.query")

IDLE_SECONDS: Final = 0.5  # How often the thread looks whether the order is due.
NO_ERROR: Final = 0.0  # An order has no bound of its own.


class LoadedOrder:
    """Keeps up the order in which pages are worth fetching. Thread-safe."""

    name: Final = LOADED

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._view: FetchView | None = None
        self._lock = threading.Lock()
        self._at, self._took, self._asked_at = float("-inf"), 0.0, float("-inf")
        self.listeners: list[Callable[[FetchView], object]] = []  # Called with each new order, before it is used.

    @property
    def kept(self) -> bool:
        """Whether something was loaded."""
        return self._snapshots.loaded.usable()

    def recent(self) -> FetchView | None:
        """Return the order of a moment ago; None if nothing was loaded, or it is not computed yet."""
        self._asked_at = time.monotonic()
        if not self._snapshots.crawl.upkeep.threads:
            self._renew()
        view = self._view
        return view if view is not None and view.loads == self._snapshots.crawl.loads else None

    def step(self) -> float:
        """Compute the order if it is due and somebody asked lately; return how long to rest."""
        lower_priority()  # No question waits for this thread.
        if time.monotonic() - self._asked_at < ASKED_SECONDS:
            self._renew()
        return IDLE_SECONDS

    def _renew(self) -> None:
        """Compute the order anew if the last one is old. Pages that were leased or read since are left out anyway."""
        with self._lock:
            began = time.monotonic()
            if self._view is not None and began - self._at < max(AGES_SECONDS, REST * self._took):
                return
            try:
                self._view = self._computed()
            except NotKept:
                self._view = None
            except (StoreError, Outdated) as error:
                log.info("the order by loaded importance waits: %s", error)
                return
            self._at = time.monotonic()
            self._took = self._at - began

    def _computed(self) -> FetchView:
        snapshot = self._snapshots.fresh()
        worth = snapshot.by_loaded().estimates
        by_shard = [worth[a:b] for a, b in zip(snapshot.starts[:-1], snapshot.starts[1:], strict=True)]
        states = [part.state for part in snapshot.parts]
        shards = keyed(snapshot.crawl.replicas, states, by_shard, by_shard)
        view = FetchView(snapshot.heads, snapshot.loads, shards, NO_ERROR, settled=True)
        for listener in self.listeners:
            listener(view)
        return view
