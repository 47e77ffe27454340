"""The mirror: the state of all pages of a crawl as of one moment, for what needs all of them.

The replicas change in place as they follow their journals. What needs all pages (the top, ranks, hosts, windows) is
worked out from a snapshot, a copy of the columns that never changes; what is worked out of it is kept beside it. On a
quiet or small store a snapshot is of now; on a large busy one it serves for a moment, and says of when it is. A page
has a position: the pages of shard 0 by id, then those of shard 1, and so on. What is shown of a shard is of one record
of its journal; of many shards, each is of a record of its own, none older than is said.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from opic.model import windows
from opic.model.cash import Books, Flag
from opic.model.crawl_clock import Clocks
from opic.model.series import Window
from opic.query.host_index import Bools, Floats, HostNames, Int32s, Sites, frozen, joined
from opic.replica import Crawl
from opic.replica.crawl import Outdated, Place, Rows
from opic.replica.effect import Head
from opic.replica.histories import Measures
from opic.replica.hosts import HostTable
from opic.replica.replica import Replica, held

Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
T = TypeVar("T")

PAGES_EXACT = 100_000  # Up to so many pages, a copy in a millisecond, every answer is of now.
SNAPSHOT_SECONDS = 0.08  # Past it, a snapshot of a store that moves serves for so long,
REST = 5  # or so many times what it took to make it and to work out what was asked of it, if that is longer,
AGE_SECONDS_MAX = 0.9  # but never longer than this: a second less the time to answer.
VIEW_MEMORY = 0.5  # Of what the last view took, when the next one is foreseen.
HEAD_PAGES = 1_024  # The least that is sorted at once, and kept until something moves.
GUESSED_MAX = 8  # Times the values wanted: past it a guess was too low to help.
RANKING_SECONDS = 0.7  # A ranking of a large busy store serves for so long.
VIEWS_KEPT_MAX = 4  # Pairs of policy and window whose estimates a snapshot keeps, 16 bytes a page each.
LOOKS_MAX = 4  # At rows and the state beside them, on a store that moves.
KNOWN_GONE = Flag.KNOWN | Flag.GONE


def largest(values: Int64s | Floats, count: int, least: float | None = None) -> Int64s:
    """Return where the `count` largest values are that are not negative, descending, ties by position.

    Costs one partition, 12 ms for a million, and a sort of `count`; a tenth of that with a good guess.

    Args:
        values: (n,).
        count: how many at most.
        least: a guess of the smallest of them; the answer is the same whatever it is.

    >>> largest(np.array([5, -1, 7, 5, 0]), 3)
    array([2, 0, 3])
    """
    if count >= len(values):
        at = np.arange(len(values))
    elif least is not None and count <= len(some := np.flatnonzero(values >= least)) <= GUESSED_MAX * count:
        at = some[largest(values[some], count)]
    else:
        edge = np.partition(values, len(values) - count)[len(values) - count]
        above = np.flatnonzero(values > edge)
        at = np.concatenate((above, np.flatnonzero(values == edge)[: count - len(above)]))
    at = at[values[at] >= 0]
    return at[np.argsort(-values[at], kind="stable")]


@dataclass(frozen=True, slots=True)
class View:
    """What a window policy makes of a snapshot: estimates of pages by position, and what they rest on."""

    estimates: Floats  # 0 for pages that are not live; sums to 1.
    scores: Floats  # The same, but -1 for pages that are not live.
    ascending: Floats  # The scores, sorted.
    warm: bool  # The policy speaks for itself; else its estimates are the static ones as yet.
    past: windows.Past  # What the estimates were worked out from,
    grains: float  # with a window of so much,
    rates_total: float  # and what the rates were divided by.

    def ranks(self, scores: Sequence[float]) -> list[int]:
        """Return 1 + the number of live pages with a larger estimate, for each."""
        larger = len(self.ascending) - np.searchsorted(self.ascending, np.array(scores), side="right")
        return [1 + n for n in larger.tolist()]


@dataclass(frozen=True, slots=True)
class Part:
    """A shard's columns, (n,) each, by id, as of one record of its journal."""

    replica: Replica
    loads: int  # Of the replica, then: after another one ids may be other pages'.
    head: Head
    books: Books
    series: NDArray[np.int64]  # (m, 3): time, rounds and clock.
    cash: Int64s  # Of live pages; of others it means nothing.
    spent: Int64s
    state: Bytes
    host: NDArray[np.uint32]
    hosts: HostTable

    @classmethod
    def of(cls, replica: Replica) -> "Part":
        """Copy the columns that change in place.

        Raises:
            StoreUnavailable: loading the replica broke off.
        """
        with replica.reading():
            series = np.array(replica.series, np.int64).reshape(-1, 3)
            return cls(
                replica, replica.loads, replica.head, replica.books, series,
                frozen(held(replica.books, replica.v, replica.state)), replica.spent(), frozen(replica.state.copy()),
                frozen(replica.host), replica.hosts,
            )  # fmt: skip

    def histories(self) -> tuple[Measures, tuple[Int64s, Int64s] | None]:
        """Return the measures of the pages, and the older anchor of each; of that instant, or of later."""
        replica = self.replica
        with replica.lock:
            if replica.loads != self.loads:
                raise Outdated
            rows = replica.columns.row[: len(self.state)]
            return replica.histories.measures(rows), replica.histories.older_anchors(rows)

    def inflow(self) -> Int64s:
        """Return the in-flow of the pages, of that instant or of later; 0 where the replica was loaded anew since."""
        with self.replica.lock:
            if self.replica.loads != self.loads:
                return np.zeros(len(self.state), np.int64)
            return self.replica.columns.inflow[: len(self.state)].copy()

    def dangling(self) -> Bools:
        """Return which pages were without links when they were last read."""
        with self.replica.lock:
            if self.replica.loads != self.loads:
                raise Outdated
            rows = self.replica.columns.row[: len(self.state)]
            table = self.replica.histories.rows
            found: Bools = (table.reads[rows] > 0) & (table.digest[rows] == 0)
            return found


@dataclass(frozen=True, slots=True)
class Ranking:
    """The scores of all pages of one state: enough to tell the rank of any page. 8 bytes a page."""

    as_of: float  # Unix seconds.
    heads: list[Head]
    books: Books  # Of the whole crawl.
    overdrawn: int  # See `Snapshot.overdrawn`.
    ascending: Int64s

    def ranks(self, scores: Sequence[int]) -> list[int]:
        """Return 1 + the number of live pages with a larger H + C, for each score."""
        larger = len(self.ascending) - np.searchsorted(self.ascending, np.array(scores, np.int64), side="right")
        return [1 + n for n in larger.tolist()]

    def percentile(self, rank: int) -> float:
        """Return how many in a hundred live pages are no better than the page of a rank: 100 for the best."""
        return percentile(rank, self.books.live)


def percentile(rank: int, live: int) -> float:
    """Return how many in a hundred of the live pages are no better than the page of a rank: 100 for the best.

    >>> percentile(1, 200), percentile(200, 200)
    (100.0, 0.5)
    """
    return 100.0 * max(live + 1 - rank, 0) / max(live, 1)


@dataclass(frozen=True)
class Snapshot:
    """The columns of a crawl. It never changes; what is worked out of them is kept beside them.

    Arrays are (n,), by position, ids without the KNOWN bit among them.
    """

    as_of: float  # Unix seconds; this is the state of then, or a later one.
    crawl: Crawl
    parts: tuple[Part, ...]  # Of each shard.
    table: HostNames
    books: Books  # Of the whole crawl.
    starts: Int64s  # (shards + 1,), where each shard's positions begin, and the end.
    cash: Int64s  # Of live pages; of others it means nothing.
    spent: Int64s
    state: Bytes
    guesses: dict[int, int] = field(repr=False, compare=False)  # The least score of the top, by its length, of late.
    kept: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, as_of: float, crawl: Crawl, guesses: dict[int, int] | None = None) -> "Snapshot":
        """Copy what the replicas show now. Those of one shard are not put together."""
        parts = [Part.of(replica) for replica in crawl.replicas]
        cash, spent, state = (
            frozen(joined([getattr(part, name) for part in parts])) for name in ("cash", "spent", "state")
        )
        starts = np.cumsum([0, *(len(part.state) for part in parts)])
        # What is whole and in parts is held once.
        cuts = zip(parts, pairwise(starts.tolist()), strict=True)
        parts = [replace(part, cash=cash[a:b], spent=spent[a:b], state=state[a:b]) for part, (a, b) in cuts]
        books = Books.merged([part.books for part in parts], crawl.rules)
        table = HostNames(crawl.replicas, [part.hosts for part in parts])
        return cls(
            as_of, crawl, tuple(parts), table, books, starts, cash, spent, state, {} if guesses is None else guesses
        )

    @property
    def heads(self) -> list[Head]:
        """The journal position of each shard."""
        return [part.head for part in self.parts]

    def __len__(self) -> int:
        """Count the ids."""
        return len(self.state)

    def places(self, positions: Int64s) -> list[Place]:
        """Return the shard and the id of pages."""
        if len(self.parts) == 1:
            return [(0, i) for i in positions.tolist()]
        shards = np.searchsorted(self.starts, positions, side="right") - 1
        return list(zip(shards.tolist(), (positions - self.starts[shards]).tolist(), strict=True))

    def positions(self, shards: Int64s, ids: Int64s) -> Int64s:
        """Return the positions of pages, len(self) for those that came later."""
        found: Int64s = self.starts[shards] + ids
        return np.where(found < self.starts[shards + 1], found, len(self))

    def _keep(self, name: str, work_out: Callable[[], T]) -> T:
        """Work something out once. Two threads at once may both do so, to the same result."""
        if name not in self.kept:
            began = time.thread_time()  # What it costs, not how long others kept it waiting.
            self.kept[name] = work_out()
            self.kept["seconds"] = self.kept.get("seconds", 0.0) + time.thread_time() - began
        kept: T = self.kept[name]
        return kept

    @property
    def host(self) -> Int32s:
        """The number of each page's host in `hosts`."""
        return self._keep("host", lambda: self.table.numbers([part.host for part in self.parts]))

    @property
    def hosts(self) -> Sequence[str]:
        """Host names by number; there may be more than these pages have."""
        return self.table

    @property
    def debt(self) -> int:
        """What open pages owe in all: none does before a weight was cut."""
        if not self.books.cuts:
            return 0
        return self._keep("debt", lambda: -int(self.cash[((self.state & Flag.OPEN) != 0) & (self.cash < 0)].sum()))

    @property
    def overdrawn(self) -> int:
        """What live pages would have to have more for H + C of none to be negative, which is shown as 0."""
        if not self.books.cuts:
            return 0
        return self._keep("overdrawn", lambda: -int(np.minimum(self.spent + self.cash, 0)[self._live()].sum()))

    @property
    def total(self) -> int:
        """Sum of the scores of live pages: what a static estimate is a share of."""
        return max(self.books.importance_total(self.crawl.rules.minted) + self.overdrawn, 1)

    @property
    def scores(self) -> Int64s:
        """H + C of live pages, -1 for others. An int64 holds the sum: `Books.check` sees to that."""

        def work_out() -> Int64s:
            scores = self.spent + self.cash
            np.maximum(scores, 0, out=scores)
            scores[~self._live()] = -1
            return frozen(scores)

        return self._keep("scores", work_out)

    def view(self, policy: str, window: Window) -> View:
        """Return what a window policy makes of this state; the measures are gathered the first time.

        They are gathered later than the columns were copied. A measure made since then tells so by its clock and is
        left out, so that this is the state of one instant; what such a page then lacks is its oldest measures, which
        the new ones pushed out.

        Raises:
            Outdated: a replica was loaded anew meanwhile.
        """
        views: dict[tuple[str, Window], View] = self._keep("views", dict)
        found = views.get((policy, window))
        if found is None:
            rules, past = self.crawl.rules, self._keep("past", self._past)
            grains = window.grains(self._clocks().series, self.books, rules.round_grains(self.books.live))
            rates = windows.rates(policy, past, grains, rules.measures_max)
            estimates = windows.shares(rates, past.live)
            scores = np.where(past.live, estimates, -1.0)
            warm, total = windows.warm(policy, past, grains), float(rates.sum())
            found = View(estimates, scores, np.sort(scores), warm, past, grains, total)
            while len(views) >= VIEWS_KEPT_MAX:
                views.pop(next(iter(views), (policy, window)), None)
            views[policy, window] = found
        return found

    def _clocks(self) -> Clocks:
        books = [part.books for part in self.parts]
        return self._keep("clocks", lambda: Clocks([part.series for part in self.parts], books, self.crawl.rules))

    def _past(self) -> windows.Past:
        found = [_until(part, *part.histories()) for part in self.parts]
        clocks, anchors = [part[1] for part in found], [part[3] for part in found]
        if len(found) > 1:
            axis = self._clocks()
            clocks = [axis.translate(shard, clock) for shard, clock in enumerate(clocks)]
            # 0 is no anchor.
            anchors = [
                a and (np.where(a[0] > 0, np.maximum(axis.translate(shard, a[0]), 1), 0), a[1])
                for shard, a in enumerate(anchors)
            ]
        ends = np.cumsum([0, *(part[0][-1] for part in found)])
        starts = [part[0][1:] + ends[shard] if shard else part[0] for shard, part in enumerate(found)]
        some = [a for a in anchors if a is not None]
        return windows.Past(
            starts=joined(starts),
            clock=joined(clocks),
            spent=joined([part[2] for part in found]),
            cash=self.cash,
            history=self.spent,
            live=self._live(),
            now=self.books.clock,
            anchors=(joined([a[0] for a in some]), joined([a[1] for a in some])) if some else None,
            shards=self.starts,
        )

    @property
    def dangling(self) -> Bools:
        """Which pages were without links when they were last read."""
        return self._keep("dangling", lambda: joined([part.dangling() for part in self.parts]))

    def _live(self) -> Bools:
        live: Bools = (self.state & KNOWN_GONE) == Flag.KNOWN
        return live

    @property
    def ranking(self) -> "Ranking":
        """The scores of all pages, to tell ranks by."""

        def work_out() -> Ranking:
            return Ranking(self.as_of, self.heads, self.books, self.overdrawn, np.sort(self.scores))

        return self._keep("ranking", work_out)

    @property
    def sites(self) -> "Sites":
        """What belongs to each host."""
        return self._keep("sites", lambda: Sites.of(self.host, self._live(), (self.state & Flag.OPEN) != 0))

    def top(self, count: int) -> Int64s:
        """Return the positions of the live pages with most H + C, descending, ties by position; `count` or more."""
        # Lengths grow by 16 so that a rare look far down costs little more than one sort of that length.
        length = HEAD_PAGES
        while length < min(count, len(self)):
            length *= 16

        def work_out() -> Int64s:
            found = largest(self.scores, length, self.guesses.get(length))
            if len(found):
                self.guesses[length] = int(self.scores[found[-1]])
            return found

        return self._keep(f"top {length}", work_out)


class Snapshots:
    """Snapshots of a crawl, made when they are asked for. Any thread may ask."""

    def __init__(self, crawl: Crawl) -> None:
        """Nothing is read yet."""
        self.crawl = crawl
        self._lock, self._view_lock = threading.Lock(), threading.Lock()
        self._shown: Snapshot | None = None
        self._took_seconds = 0.0  # By the last snapshot.
        self._guesses: dict[int, int] = {}  # Of the top; from one snapshot to the next.
        self._ranking: Ranking | None = None
        self._ranked: list[int] = []  # Loads of the replicas when it was made.
        self._viewed: Snapshot | None = None  # The state that window policies answer from.
        self._view_seconds = 0.0  # What it took to work out a view of a new state.

    def fresh(self, age_seconds_max: float = AGE_SECONDS_MAX) -> Snapshot:
        """Return the state of now, or of up to `age_seconds_max` (0: none) ago on a large busy store.

        One round trip; and a copy of the columns where something moved, unless the last one may still serve.
        """
        self.crawl.follow()
        with self._lock:
            return self._current(age_seconds_max)

    def beside(self, ask: Callable[[], tuple[T, Rows]]) -> tuple[T, Rows, Ranking]:
        """Return what is asked, its rows, and ranks: of the very state of the rows, where `fresh` would be.

        Another thread may let the replicas move on between the two; then rows are asked for again, a few times. On a
        large busy store ranks are up to RANKING_SECONDS older.
        """
        for _ in range(LOOKS_MAX):
            found, rows = ask()
            ranking = self._ranking_beside(rows)
            if ranking.heads == rows.heads or len(ranking.ascending) > PAGES_EXACT:
                break
        return found, rows, ranking

    def _ranking_beside(self, rows: Rows) -> Ranking:
        with self._lock:
            kept = self._ranking
            if kept is not None and (kept.heads == rows.heads or self._serves(kept)) and self._loads() == self._ranked:
                return kept
            shown = self._shown
            if shown is None or shown.heads != rows.heads or not self._still_true(shown):
                shown = self._current(AGE_SECONDS_MAX)
            self._ranked, self._ranking = self._loads(), shown.ranking
            return self._ranking

    def _serves(self, ranking: Ranking) -> bool:
        return len(ranking.ascending) > PAGES_EXACT and time.time() - ranking.as_of < RANKING_SECONDS

    def _loads(self) -> list[int]:
        return [replica.loads for replica in self.crawl.replicas]

    def _current(self, age_seconds_max: float) -> Snapshot:
        shown, as_of = self._shown, self.crawl.as_of
        if shown is not None and not self._still_true(shown):
            shown = None  # Though it may be of the same head: what it would yet ask its replicas for is refused.
        if shown is not None and shown.heads == self.crawl.heads():
            self._shown = shown = replace(shown, as_of=max(as_of, shown.as_of))
            return shown
        if shown is not None and len(shown) > PAGES_EXACT:
            took = shown.kept.get("seconds", 0.0)
            rest = min(max(SNAPSHOT_SECONDS, REST * took), AGE_SECONDS_MAX, age_seconds_max)
            if time.time() - shown.as_of < rest - self._took_seconds:
                return shown
        began, cost = time.monotonic(), time.thread_time()
        self._shown = shown = Snapshot.of(as_of, self.crawl, self._guesses)
        self._took_seconds = time.monotonic() - began
        shown.kept["seconds"] = time.thread_time() - cost
        return shown

    @staticmethod
    def _still_true(shown: Snapshot) -> bool:
        return all(part.loads == part.replica.loads for part in shown.parts)

    def picked(self) -> Snapshot:
        """Return the state that window policies answer from, from now on that or a later one.

        The fresh one; but a large busy store has a new one for nearly every question, and working out a view of it
        takes some tenths of a second. So there one state serves until it is so old that with the time to work out a
        view it would be AGE_SECONDS_MAX.
        """
        rest, kept = max(AGE_SECONDS_MAX - self._view_seconds, 0.0), self._viewed
        if kept is None or len(kept) <= PAGES_EXACT or time.time() - kept.as_of >= rest or not self._still_true(kept):
            self._viewed = kept = self.fresh(rest)
        return kept

    def view(self, policy: str, window: Window) -> tuple[Snapshot, View]:
        """Return the state picked and what a window policy makes of it. One thread works it out, others wait."""
        with self._view_lock:
            while True:
                snapshot, began = self.picked(), time.monotonic()
                known = "past" in snapshot.kept
                try:
                    view = snapshot.view(policy, window)
                except Outdated:
                    self._viewed = self._shown = None
                    continue
                if not known:
                    # A machine that was busy a moment ago may be so again.
                    self._view_seconds = max(time.monotonic() - began, VIEW_MEMORY * self._view_seconds)
                return snapshot, view


def _until(
    part: Part, measures: Measures, anchors: tuple[Int64s, Int64s] | None
) -> tuple[Int64s, Int64s, Int64s, tuple[Int64s, Int64s] | None]:
    """Leave out the measures and anchors of a shard that were made after its columns were copied."""
    starts, clock, spent = measures.starts, measures.clock, measures.cash
    then = clock <= part.books.clock
    if not then.all():
        counts = np.zeros(len(then) + 1, np.int64)
        np.cumsum(then, out=counts[1:])
        starts, clock, spent = counts[starts], clock[then], spent[then]
    if anchors:
        then = (anchors[0] > 0) & (anchors[0] <= part.books.clock)
        anchors = np.where(then, anchors[0], 0), np.where(then, anchors[1], 0)
    return starts, clock, spent, anchors
