"""Exact importance: PageRank of the known graph as last crawled, kept up with the journal, with a bound on its error.

It is there where links are kept (`opic.query.kept_links`). The flow (`opic.graph.flow`) is moved on until the bound
wanted is met: by questions and by a background thread, as `opic.replica.upkeep` rules. An answer is that of one state,
an `ExactView`; its bound holds for what happened since as well, as far as it is known (`opic.query.unsettled`). Nothing
here is authoritative: all of it can be computed again from the links.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from opic.background import lower_priority
from opic.errors import NotKept, StoreError, StoreUnavailable
from opic.graph.flow import BOUND_MAX, Flow
from opic.query.exact_view import ExactView
from opic.query.fetch_order import REST, FetchOrder
from opic.query.host_index import HostNames, joined
from opic.query.kept_links import LinksRead
from opic.query.page_flows import BOUND, LINKS_A_SETTLE, SAYS_SOMETHING, PageFlows, PageStates
from opic.query.unsettled import Unsettled, teleport_by_state
from opic.replica import Replica
from opic.replica.crawl import Place
from opic.replica.effect import Head
from opic.replica.upkeep import AGE_SECONDS_MAX

log = logging.getLogger("opic.query")

AIM: Final = 0.8  # What is settled to, as a share of the bound wanted: the error is then about half of the latter.
FIRST_SECONDS: Final = 2.0  # How long a question waits for the first answer after a start.
LOOK_SECONDS: Final = 0.1  # How often the thread looks for changes, or REST times a settling's CPU time, if longer,
REST_SECONDS_MAX: Final = 0.4  # but no more than this, so that answers are hardly ever a second old,
REST_MIN: Final = 0.25  # and no less than this multiple: its thread has a lower priority anyway.
WAIT_SECONDS: Final = 0.25  # How long a question waits for the thread where the last answer is too old.
FURTHER: Final = 1e-6  # For `top`: with this bound most ranks are certain. It is aimed at,
FURTHER_LINKS: Final = 10_000_000  # but no more links than this are followed for it.
CHECK_SECONDS: Final = 600.0  # How often the residual is computed again.
SAVE_SECONDS: Final = 300.0  # How often the visits are saved, at most.
END_SECONDS: Final = 2.0
NOT_YET: Final = "the kept links are still being read: try again, or ask with policy=static"


@dataclass(frozen=True, slots=True)
class ExactStanding:
    """How the flow stands, for metrics."""

    bound: float
    residual: float  # The visits that were not moved on yet, as a share of all.
    settle_seconds: float  # How long the last settling took.
    age_seconds: float
    drift: float


class Exact:
    """Answers questions about exact importance. Thread-safe."""

    def __init__(self, flows: PageFlows, bound: float = BOUND) -> None:
        """Read nothing yet.

        Args:
            flows: what is settled. Once started, their visits are saved, if they have a file.
            bound: the bound wanted.
        """
        self.flows, self.bound = flows, bound
        self._generation = 0  # Of the links, when the flow was settled last; 0 before.
        self._trust_heads = list[Head]()  # The positions of the journals that trust was settled at.
        self._saved_at, self._saved_heads = time.monotonic(), list[Head]()
        self._kept, self._crawl = flows.kept, flows.kept.crawl
        self._unsettled = Unsettled(self._crawl, flows.damping)
        self._checked_at = time.monotonic()
        self._standing: ExactStanding | None = None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._order: FetchOrder | None = None
        self._always, self._asked = True, False  # Whether a question wanted a view before there was one.
        self._settled = threading.Event()  # Once there is a first view.
        self._kept.release_listeners.append(self._forget)

    def _forget(self) -> None:
        self._unsettled.forget()
        self._standing = None
        self._settled.clear()

    @property
    def kept(self) -> bool:
        """Whether the crawl keeps links that this endpoint can hold, as far as it knows."""
        return self._kept.usable

    def start(self, order: FetchOrder | None = None, *, always: bool = True) -> None:
        """Follow the journals in a background thread until `close`.

        Args:
            order: of the pages to fetch, which is computed in that thread as well.
            always: settle whenever something changed; else when the order is due, and once a question asks.
        """
        self._order, self._always = order, always
        self._crawl.upkeep.threads = True
        self._thread = threading.Thread(target=self._run, name="opic-exact", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop following, and save."""
        self._done.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)
            if self._kept.lock.acquire(timeout=END_SECONDS):
                try:
                    self._save()
                finally:
                    self._kept.lock.release()

    def _run(self) -> None:
        wait, lowered = LOOK_SECONDS, False
        while not self._done.wait(wait):
            began, began_at = time.thread_time(), time.monotonic()
            if not (lowered or self._crawl.upkeep.quick):  # For good. Before, questions wait for this thread.
                lower_priority()
                lowered = True
            try:
                if self._kept.usable:
                    self._keep_up()
                elif self._unsettled.moved is not None:
                    self._kept.release()  # The keeping was ended.
                if time.monotonic() - self._saved_at > SAVE_SECONDS:
                    self._save()
                wait = _rest(time.thread_time() - began, time.monotonic() - began_at)
            except NotKept:  # They were found too large, or the keeping was ended in the meantime.
                wait = LOOK_SECONDS
            except StoreError as error:  # Requests report it too.
                log.info("exact importance waits for the store: %s", error)
                wait = max(LOOK_SECONDS, min(2 * wait, FIRST_SECONDS))

    def _keep_up(self) -> None:
        """Settle both flows where something changed, after one reading of the links: neither misses a change."""
        order = self._order if self._order is not None and self._order.due() else None
        changed = self._is_stale() or self._trust_heads != self._crawl.heads()
        first = self._asked and self._unsettled.moved is None
        if order is None and not (changed and (self._always or first)):
            return
        with self._kept.lock:
            read = self._settle(trust=True)
            sort = order.taken(read) if order is not None else None
        if sort is not None:
            sort()

    def _is_stale(self, *, further: bool = False) -> bool:
        """Whether settling would better the answer: PageRank has moved, or the bound may be met now, or `further`."""
        moved, bound = self._unsettled.moved, FURTHER if further else self.bound
        if moved is None or moved.share:
            return True
        return moved.view.bound > bound and (further or moved.view.heads != self._crawl.heads())

    def _says_something(self) -> bool:
        moved = self._unsettled.moved
        return moved is not None and moved.view.bound < SAYS_SOMETHING

    def usable(self) -> bool:
        """Whether the default policy can be this one: links are kept, and the bound as settled says something."""
        if not self._kept.usable:
            return False
        try:
            if not self._says_something():
                self.view()
        except (NotKept, StoreUnavailable):
            return False
        return self._says_something()

    def told(self) -> ExactView | None:
        """Return what was settled last, however long ago; None if that says nothing.

        It asks no store, but where no thread settles, as in a command without a service: there it settles first.
        """
        if self._thread is None:
            try:
                view = self.view() if self._kept.usable else None
            except NotKept:  # The first read has just arrived, from a worker that keeps no links.
                return None
            return view if self._says_something() else None
        return self._unsettled.told() if self._says_something() else None

    def told_of(self, places: Sequence[Place]) -> ExactView | None:
        """As `told`, but as `view` if one of these pages is newer, or more has happened since than that can bound."""
        view = self.told()
        if view is None or (view.bound < SAYS_SOMETHING and all(map(view.knows, places))):
            return view
        try:
            view = self.view()
        except (NotKept, StoreError) as error:
            log.info("exact importance of pages that just became known: %s", error)
        return view if view.bound < SAYS_SOMETHING else None

    def at_hand(self) -> ExactView | None:
        """Return what `view` would return without asking the store or settling; None if it would do either."""
        view = self.told() if self._thread is not None else None
        return view if view is not None and self._crawl.upkeep.serves(view.as_of) else None

    def view(self, *, further: bool = False, since: float | None = None) -> ExactView:
        """Return the importance as it is now, or as it was a moment ago: as `opic.replica.upkeep` rules.

        Args:
            further: go below the bound wanted where the answer is current, so that more ranks are certain.
            since: as in `Crawl.follow`.

        Raises:
            NotKept: no links are kept.
            StoreUnavailable: the store is unavailable, or its links are still being read.
        """
        upkeep = self._crawl.upkeep
        self._crawl.follow(self._crawl.recent() if since is None else since)
        self._kept.check()
        if self._thread is not None and self._unsettled.moved is None:
            self._asked = True
            if not self._settled.wait(FIRST_SECONDS):
                raise StoreUnavailable(NOT_YET)
        view = self._now()
        if upkeep.serves(view.as_of) or not self._is_stale(further=further):
            return view
        if upkeep.quick or view.as_of < upkeep.shown_from or not self._always:  # Else the thread settles.
            self._renew(further=further)
        elif self._kept.lock.acquire(timeout=WAIT_SECONDS):
            self._kept.lock.release()
        return self._now()

    def settled(self) -> ExactView:
        """Return the importance as it is now, however long settling takes; else as `view`."""
        self._crawl.follow()
        self._kept.check()
        if self._is_stale():
            self._settle()
        return self._now()

    def _renew(self, *, further: bool = False) -> None:
        with self._crawl.upkeep.rested(), self._kept.lock:
            if self._is_stale(further=further):  # Else others did it, and this question had come before.
                self._settle(further=further)

    def _now(self) -> ExactView:
        view = self._unsettled.told()
        if view is None:  # Nothing was settled yet, or a replica was reloaded since.
            self._settle()
            view = self._unsettled.told()
        if view is None:
            raise StoreUnavailable(NOT_YET)
        return view

    def _settle(self, *, further: bool = False, trust: bool = False) -> LinksRead[PageStates]:
        """Settle importance; with `trust` also the flow from trusted pages or seeds: coverage, what to fetch."""
        with self._kept.lock:
            began = time.monotonic()
            follow_trust = trust or self._thread is not None  # A flow that misses a change goes through all links.
            copy = PageStates.with_seeds if follow_trust else PageStates.of
            read = self._kept.catch_up(self._kept.check, partial(self._copied, copy))
            self.flows.follow(read)
            flow = self.flows.by_importance(read)
            self._generation = self._kept.generation
            flow.settle(AIM * self.bound, LINKS_A_SETTLE)
            if further:
                flow.settle(FURTHER, FURTHER_LINKS)
            if time.monotonic() - self._checked_at > CHECK_SECONDS:
                flow.check()
                self._checked_at = time.monotonic()
            with self._crawl.upkeep.measured("importance"):
                view = self._view_of(read, flow)
            self._unsettled.settled(view, [taken.extra for taken in read.taken])
            self._standing = ExactStanding(view.bound, flow.waiting, time.monotonic() - began, 0.0, flow.drift)
            self._settled.set()
            trusted = self.flows.by_seeds(read) if follow_trust else None
            if trusted is not None and trust:
                if trusted.teleport.any():
                    trusted.settle(AIM * self.bound, LINKS_A_SETTLE)
                self._trust_heads = read.heads
        return read

    def _copied(self, copy: Callable[[Replica], PageStates], replica: Replica) -> PageStates:
        """Return what is copied of a shard, whose later records count as unsettled."""
        self._unsettled.begin(replica.shard)
        return copy(replica)

    def _view_of(self, read: LinksRead[PageStates], flow: Flow) -> ExactView:
        """Return what the flow says at the position that the links are at."""
        pages, visits = [len(taken.state) for taken in read.taken], flow.reached
        here = visits[flow.teleport > 0]
        total = float(here.sum())
        shares, unmoved = visits / (total or 1.0), (flow.residual / (total or 1.0)).astype(np.float32)
        heaviest = max(float(teleport_by_state(taken.extra).max()) for taken in read.taken)
        coming = heaviest * self._kept.pages_coming  # Their weight, once their shards know them.
        return ExactView(
            as_of=read.as_of,
            crawl=self._crawl,
            loads=self._kept.loads,
            heads=read.heads,
            starts=np.cumsum([0, *pages]),
            state=joined([taken.state for taken in read.taken]),
            hosts=HostNames(self._crawl.replicas, [taken.hosts for taken in read.taken]),
            host_columns=[taken.host for taken in read.taken],
            bound=min(flow.bound + 2 * coming / total, BOUND_MAX) if total else flow.bound,
            shares=joined(self._kept.numbers.gathered(shares, pages)),
            unmoved=joined(self._kept.numbers.gathered(unmoved, pages)),
            ascending=np.sort(here) / (total or 1.0),
            visits=total,
        )

    def _save(self) -> None:
        """Save the visits as last settled, unless they are saved already."""
        with self._kept.lock:
            moved = self._unsettled.moved
            self._saved_at = time.monotonic()
            if moved is None or moved.view.heads == self._saved_heads:
                return
            if self._generation == self._kept.generation:  # Else ids are others.
                self.flows.save(np.diff(moved.view.starts).tolist(), moved.view.heads)
                self._saved_heads = moved.view.heads

    @property
    def standing(self) -> ExactStanding | None:
        """How the flow stands; None before the first settling. Makes no call to the store."""
        view, standing = self._unsettled.told(), self._standing
        if view is None or standing is None:
            return None
        return replace(standing, age_seconds=max(time.time() - view.as_of, 0.0))


def _rest(cpu_seconds: float, seconds: float) -> float:
    """Return how long the thread rests after a settling: so long that the next one ends before this one is too old."""
    rest = min(REST * cpu_seconds, REST_SECONDS_MAX, AGE_SECONDS_MAX - 2 * seconds)
    return max(LOOK_SECONDS, rest, REST_MIN * cpu_seconds)
