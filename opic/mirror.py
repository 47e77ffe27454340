"""The mirror: a shard's columns in numpy, for what needs all pages.

Exact on a quiet or small store, at most a second old on a large busy one. Each state is of one instant, and says which.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from opic import windows
from opic.cash import Books, Flag
from opic.series import Window
from opic.store import Shard
from opic.store.columns import Bytes, Int64s, Measures
from opic.store.connection import store_errors
from opic.store.keys import ROWS_MEASURES, ROWS_URLS
from opic.store.shard import Columns, held
from opic.urls import host_of

Int32s = NDArray[np.int32]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
T = TypeVar("T")

PAGES_EXACT = 100_000  # Up to so many pages, some 5 ms of reading, every answer refreshes the mirror if it has to.
REFRESH_REST = 5  # Past it, the mirror rests for so many times what its last refresh took,
AGE_SECONDS_MAX = 0.9  # but never shows a state this old: a second less the time to answer.
VIEW_MEMORY = 0.5  # Of what the last view took, when the next one is foreseen.
REFRESH_TRIES = 3
HEAD_PAGES = 1_024  # The least that is sorted at once, and kept until something moves.
URL_BLOCKS_A_CALL = 64
COUNTED_MAX = 50  # Ranks of one state that are counted; past it all scores are sorted.
VIEWS_KEPT_MAX = 4  # Pairs of policy and window whose estimates a snapshot keeps, 16 bytes a page each.
DOMAINS_KEPT_MAX = 64  # Domains whose hosts are remembered.
KNOWN_GONE = Flag.KNOWN | Flag.GONE


def largest(values: Int64s | Floats, count: int) -> Int64s:
    """Return where the `count` largest values are that are not negative, descending, ties by position.

    Costs one partition, 12 ms for a million, and a sort of `count`.

    >>> largest(np.array([5, -1, 7, 5, 0]), 3)
    array([2, 0, 3])
    """
    at = np.arange(len(values))
    if count < len(values):
        edge = np.partition(values, len(values) - count)[len(values) - count]
        above = np.flatnonzero(values > edge)
        at = np.concatenate((above, np.flatnonzero(values == edge)[: count - len(above)]))
    at = at[values[at] >= 0]
    return at[np.argsort(-values[at], kind="stable")]


def weighed(cash: Int64s, discovery: float) -> Floats:
    """Return what cash of pages never read counts in the greedy order: at least a grain, since 0 is not offered."""
    counts: Floats = np.maximum(cash * discovery, 1.0)
    return counts


class Hosts:
    """The host of every page as a number, read from the URLs as pages become known. It only grows."""

    def __init__(self, shard: Shard) -> None:
        """Nothing is read until a host is asked for: a million URLs take about a second, once."""
        self.shard = shard
        self.names: list[str] = []
        self._number: dict[str, int] = {}
        self._by_authority: dict[str, int] = {}
        self._of_page = np.zeros(0, np.int32)
        self._pages = 0
        self._domains: dict[str, tuple[int, list[int]]] = {}
        self._lock = threading.Lock()

    def of_pages(self, pages: int) -> Int32s:
        """Return the host numbers of the pages with ids below `pages`."""
        with self._lock:
            if pages > len(self._of_page):
                # A new array: whoever holds a view of the old one keeps what he saw.
                grown = np.zeros(max(pages, 2 * len(self._of_page)), np.int32)
                grown[: self._pages] = self._of_page[: self._pages]
                self._of_page = grown
            step = URL_BLOCKS_A_CALL * ROWS_URLS
            while self._pages < pages:
                ids = range(self._pages, min(pages, (self._pages // step + 1) * step))
                urls = self.shard.urls_of(ids)
                self._of_page[ids.start : ids.stop] = [self._number_of(urls[i]) for i in ids]
                self._pages = ids.stop
            view = self._of_page[:pages]
        view.flags.writeable = False
        return view

    def _number_of(self, url: str) -> int:
        authority = url.split("/", 3)[2]
        number = self._by_authority.get(authority)
        if number is None:
            host = host_of(url)
            number = self._number.setdefault(host, len(self.names))
            if number == len(self.names):
                self.names.append(host)
            if "@" not in authority:  # A site may make up any number of users.
                self._by_authority[authority] = number
        return number

    def number(self, host: str) -> int | None:
        """Return a host's number, or None if no page seen so far is there."""
        return self._number.get(host)

    def below(self, domain: str) -> list[int]:
        """Return the numbers of a host or domain and of all hosts below it."""
        with self._lock:
            seen, numbers = self._domains.pop(domain, (0, []))
            suffix = "." + domain
            new = [i for i, h in enumerate(self.names[seen:], seen) if h == domain or h.endswith(suffix)]
            found = (len(self.names), numbers + new)
            self._domains[domain] = found  # Last in, so that the first one is the longest unused.
            if len(self._domains) > DOMAINS_KEPT_MAX:
                del self._domains[next(iter(self._domains))]
        return found[1]


class Past:
    """The measures of all pages, kept from one look to the next: what was read since is read again, and no more.

    The step counts the reads of each bucket of 128 pages (the column `r`), so a bucket whose count stands still has the
    measures that are kept. Where it moved, the pages that spent something since are read again, and with them, of the
    same instant, the bucket's count. A page's record says how often it was read: if those numbers add up to the count,
    no other page was read, since none is ever read less often. If not, a page was read that had no cash, which moves no
    column that the mirror has; or another one in the moment in between. Then the whole bucket is read.

    So what is kept of a bucket is as new as its count was, or newer. Takes 24 bytes a page and 16 a measure, 45 for
    a page where a third were read four times, and 16 more for anchors under the continuous payout; twice that for the
    moment in which new ones take their places. A first look costs a second for a million pages.
    """

    def __init__(self, shard: Shard) -> None:
        """Nothing is read until a window is asked for."""
        self.shard = shard
        self._counts = np.zeros(0, np.int64)  # Reads of each bucket that what is kept has at least; -1 if nothing is.
        self._spent = np.zeros(0, np.int64)  # Of the last look. It says where to look first, no more.
        self._reads, self._starts = np.zeros(0, np.int64), np.zeros(1, np.int64)
        self._clock = self._cash = np.zeros(0, np.int64)
        self._anchors: tuple[Int64s, Int64s] | None = None  # Clock and total history; none under grants.
        if shard.rules.continuous:
            self._anchors = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._lock = threading.Lock()

    def measures(self, counts: Int64s, spent: Int64s) -> tuple[Int64s, Int64s, Int64s, tuple[Int64s, Int64s] | None]:
        """Return the measures of pages, at least as new as the columns.

        Where each page's start, the clocks and the cash of all; and of each page its anchor.

        Args:
            counts: reads of each bucket.
            spent: total history of each page, of the same instant.
        """
        with self._lock:
            self._lengthen(len(counts))
            behind = self._behind(counts)
            if len(behind):
                self._look_at_some(behind, spent)
                behind = self._behind(counts)
                if len(behind):
                    pages = (behind[:, np.newaxis] * ROWS_MEASURES + np.arange(ROWS_MEASURES)).ravel()
                    self._replace(pages, self.shard.measures(behind))
                    self._counts[behind] = counts[behind]
                self._spent = spent
            starts, anchors = self._starts[: len(spent) + 1], self._anchors
            anchors = anchors and (anchors[0][: len(spent)], anchors[1][: len(spent)])
            return starts, self._clock[: starts[-1]], self._cash[: starts[-1]], anchors

    def _behind(self, counts: Int64s) -> Int64s:
        return np.flatnonzero(self._counts[: len(counts)] < counts)

    def _look_at_some(self, behind: Int64s, spent: Int64s) -> None:
        """Read the pages of these buckets that spent something; where that explains all reads, that was all."""
        before = np.zeros(len(spent), np.int64)
        before[: len(self._spent)] = self._spent[: len(spent)]
        pages = np.flatnonzero(spent != before)
        known = np.zeros(len(self._counts), np.bool_)
        known[behind] = self._counts[behind] >= 0
        pages = pages[known[pages // ROWS_MEASURES]]
        if not len(pages):
            return
        counts, new = self.shard.measures_of(pages)
        self._replace(pages, new)
        buckets = np.unique(pages // ROWS_MEASURES)
        explained = self._reads.reshape(-1, ROWS_MEASURES)[buckets].sum(axis=1) == counts
        self._counts[buckets[explained]] = counts[explained]

    def _lengthen(self, buckets: int) -> None:
        more = buckets - len(self._counts)
        if more > 0:
            rows = more * ROWS_MEASURES
            self._counts = np.concatenate((self._counts, np.full(more, -1)))
            self._reads = np.concatenate((self._reads, np.zeros(rows, np.int64)))
            self._starts = np.concatenate((self._starts, np.full(rows, self._starts[-1])))
            if self._anchors:
                clock, spent = (np.concatenate((column, np.zeros(rows, np.int64))) for column in self._anchors)
                self._anchors = clock, spent

    def _replace(self, pages: Int64s, new: Measures) -> None:
        """Put new measures in the place of the old ones, in new arrays: somebody may hold the old."""
        chosen = np.zeros(len(self._reads), np.bool_)
        chosen[pages] = True
        before = np.diff(self._starts)
        after = before.copy()
        after[pages] = np.diff(new.starts)
        self._reads[pages] = new.reads
        stay, come = np.repeat(~chosen, before), np.repeat(chosen, after)
        self._starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(after)))
        self._clock = _merged(come, self._clock[stay], new.clock)
        self._cash = _merged(come, self._cash[stay], new.cash)
        if self._anchors:
            clock, spent = (column.copy() for column in self._anchors)
            clock[pages], spent[pages] = new.anchor_clock, new.anchor_spent
            self._anchors = clock, spent


def _merged(come: Bools, old: Int64s, new: Int64s) -> Int64s:
    column = np.empty(len(come), np.int64)
    column[~come], column[come] = old, new
    return column


@dataclass(frozen=True, slots=True)
class View:
    """What a window policy makes of a snapshot: estimates of pages by id, and what they rest on."""

    estimates: Floats  # 0 for pages that are not live; sums to 1.
    scores: Floats  # The same, but -1 for pages that are not live.
    ascending: Floats  # The scores, sorted.
    warm: bool  # The policy speaks for itself; else its estimates are the static ones as yet.

    def ranks(self, scores: Sequence[float]) -> list[int]:
        """Return 1 + the number of live pages with a larger estimate, for each."""
        larger = len(self.ascending) - np.searchsorted(self.ascending, np.array(scores), side="right")
        return [1 + n for n in larger.tolist()]


@dataclass(frozen=True)
class Snapshot:
    """The columns of one instant. It never changes; what is worked out of them is kept beside them.

    Arrays are (n,), by id, ids without the KNOWN bit among them.
    """

    as_of: float  # Unix seconds; this is the state of then.
    books: Books
    v: Int64s
    spent: Int64s
    state: Bytes
    reads: Int64s  # Not by id: of each bucket of ROWS_MEASURES pages.
    table: Hosts
    past: Past
    kept: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        """Count the ids."""
        return len(self.state)

    def _keep(self, name: str, work_out: Callable[[], T]) -> T:
        """Work something out once. Two threads at once may both do so, to the same result."""
        if name not in self.kept:
            self.kept[name] = work_out()
        kept: T = self.kept[name]
        return kept

    @property
    def host(self) -> Int32s:
        """The number of each page's host in `hosts`."""
        return self._keep("host", lambda: self.table.of_pages(len(self)))

    @property
    def hosts(self) -> Sequence[str]:
        """Host names by number; there may be more than these pages have."""
        return self.table.names

    @property
    def cash(self) -> Int64s:
        """What live pages hold; of others it means nothing."""
        return self._keep("cash", lambda: held(self.books, self.v, self.state))

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
    def scores(self) -> Int64s:
        """H + C of live pages, -1 for others. H is under 2^62 and C under 2^53, so an int64 holds the sum."""

        def work_out() -> Int64s:
            return np.where(self._live(), np.maximum(self.spent + self.cash, 0), -1)

        return self._keep("scores", work_out)

    def view(self, policy: str, window: Window) -> View:
        """Return what a window policy makes of this state; the measures and the series are read the first time.

        They are read later than the columns. A measure or entry made since then tells so by its clock and is left out,
        so that this is the state of one instant; what such a page then lacks is its oldest measures, which the new ones
        pushed out. What this costs for a million pages, a third of them read, is in docs/decisions/0005.
        """
        views: dict[tuple[str, Window], View] = self._keep("views", dict)
        found = views.get((policy, window))
        if found is None:
            shard, past = self.past.shard, self._keep("past", self._past)
            today = shard.rules.round_grains(self.books.live)
            grains = window.grains(self._keep("series", shard.series), self.books, today)
            estimates = windows.estimate(policy, past, grains, shard.rules.measures_max)
            scores = np.where(past.live, estimates, -1.0)
            found = View(estimates, scores, np.sort(scores), windows.warm(policy, past, grains))
            while len(views) >= VIEWS_KEPT_MAX:
                views.pop(next(iter(views), (policy, window)), None)
            views[policy, window] = found
        return found

    def _past(self) -> windows.Past:
        starts, clock, spent, anchors = self.past.measures(self.reads, self.spent)
        then = clock <= self.books.clock
        if not then.all():
            counts = np.zeros(len(then) + 1, np.int64)
            np.cumsum(then, out=counts[1:])
            starts, clock, spent = counts[starts], clock[then], spent[then]
        if anchors:
            then = (anchors[0] > 0) & (anchors[0] <= self.books.clock)
            anchors = np.where(then, anchors[0], 0), np.where(then, anchors[1], 0)
        return windows.Past(
            starts=starts,
            clock=clock,
            spent=spent,
            cash=self.cash,
            history=self.spent,
            live=self._live(),
            now=self.books.clock,
            anchors=anchors,
        )

    def _live(self) -> Bools:
        live: Bools = (self.state & KNOWN_GONE) == Flag.KNOWN
        return live

    def ranks(self, scores: Sequence[int]) -> list[int]:
        """Return 1 + the number of live pages with a larger H + C, for each score."""
        # Counting takes 1 ms for a million pages, sorting 80: worth it for many, or on a store that rests.
        self.kept["counted"] = counted = self.kept.get("counted", 0) + len(scores)
        if counted <= COUNTED_MAX:
            return [1 + int(np.count_nonzero(self.scores > score)) for score in scores]
        ascending = self._keep("ascending", lambda: np.sort(self.scores))
        larger = len(ascending) - np.searchsorted(ascending, np.array(scores, np.int64), side="right")
        return [1 + n for n in larger.tolist()]

    def top(self, count: int) -> Int64s:
        """Return the ids of the live pages with most H + C, descending, ties by id."""
        return self._head("top", lambda: self.scores, count)

    def offers(self, discovery: float = 1.0) -> Int64s | Floats:
        """Return what counts in the greedy order of the pages that may be offered at all, -1 for others.

        These are live and not excluded, and have cash, or owe some. It is that cash, whichever its sign; of pages never
        read so many times as `discovery` says.
        """

        def work_out() -> Int64s | Floats:
            read = (self.state & Flag.OPEN) != 0
            fit = ((self.state & (KNOWN_GONE | Flag.EXCLUDED)) == Flag.KNOWN) & (
                (self.cash > 0) | read & (self.cash < 0)
            )
            weight = np.abs(self.cash)
            return np.where(fit, weight if discovery == 1 else np.where(read, weight, weighed(weight, discovery)), -1)

        return self._keep(f"offers {discovery}", work_out)

    def greedy(self, count: int, discovery: float = 1.0) -> Int64s:
        """Return the ids of the pages that may be offered, most cash first, ties by id, up to `count` or some more."""
        return self._head(f"greedy {discovery}", lambda: self.offers(discovery), count)

    def _head(self, name: str, values: Callable[[], Int64s | Floats], count: int) -> Int64s:
        # Lengths grow by 16 so that a rare look far down costs little more than one sort of that length.
        length = HEAD_PAGES
        while length < min(count, len(self)):
            length *= 16
        return self._keep(f"{name} {length}", lambda: largest(values(), length))


class Mirror:
    """A copy of a shard's columns that keeps itself fresh. Any thread may ask."""

    def __init__(self, shard: Shard) -> None:
        """Nothing is read yet."""
        self.shard = shard
        self.hosts, self.past = Hosts(shard), Past(shard)
        self._lock, self._view_lock, self._pick_lock = threading.Lock(), threading.Lock(), threading.Lock()
        self._snapshot: Snapshot | None = None
        self._viewed: Snapshot | None = None  # The state that window policies answer from.
        self._view_seconds = 0.0  # What it took to work out a view of a new state.
        self._read_at = self._took_seconds = 0.0  # Of the last refresh: when it began (monotonic), how long it took.

    def fresh(self, age_seconds_max: float = AGE_SECONDS_MAX) -> Snapshot:
        """Return the state of now, or of up to AGE_SECONDS_MAX (or less) ago when the store is large and busy.

        One small read when nothing moved. When something did, the columns are read again, unless there are more than
        PAGES_EXACT pages and the last refresh is younger than REFRESH_REST times what it took: so that a busy store
        of 10^7 pages spends a sixth of its reader's time on it at most.
        """
        with self._lock:
            now, kept = time.time(), self._snapshot
            if kept is not None:
                with store_errors():
                    version = int(self.shard.client.hget(self.shard.keys.books, "version") or 0)
                if version == kept.books.version:
                    self._snapshot = kept = replace(kept, as_of=now)
                    return kept
                rest = min(REFRESH_REST * self._took_seconds, age_seconds_max)
                if len(kept) > PAGES_EXACT and time.monotonic() - self._read_at < rest:
                    return kept
            self._snapshot = fresh = self._read()
            return fresh

    def picked(self) -> Snapshot:
        """Return the state that window policies answer from, from now on that or a later one.

        The fresh one; but a large busy store has a new one for nearly every question, and working out a view of it
        takes some tenths of a second. So there one state serves until it is so old that with the time to work out a
        view it would be AGE_SECONDS_MAX.
        """
        with self._pick_lock:
            rest, kept = max(AGE_SECONDS_MAX - self._view_seconds, 0.0), self._viewed
            if kept is None or len(kept) <= PAGES_EXACT or time.time() - kept.as_of >= rest:
                self._viewed = kept = self.fresh(rest)
            return kept

    def view(self, policy: str, window: Window) -> tuple[Snapshot, View]:
        """Return the state picked and what a window policy makes of it. One thread works it out, others wait."""
        with self._view_lock:
            snapshot, began = self.picked(), time.monotonic()
            known = "past" in snapshot.kept
            view = snapshot.view(policy, window)
            if not known:
                # A machine that was busy a moment ago may be so again.
                self._view_seconds = max(time.monotonic() - began, VIEW_MEMORY * self._view_seconds)
            return snapshot, view

    def _read(self) -> Snapshot:
        for _ in range(REFRESH_TRIES):
            as_of, self._read_at = time.time(), time.monotonic()
            columns = self.shard.columns()
            self._took_seconds = time.monotonic() - self._read_at
            snapshot = Snapshot(as_of, *_frozen(columns), self.hosts, self.past)
            # Pages that became known while we asked how many there are would be missing until the next step.
            if int(np.count_nonzero((columns.state & KNOWN_GONE) == Flag.KNOWN)) == columns.books.live:
                break
        return snapshot


def _frozen(columns: Columns) -> tuple[Books, Int64s, Int64s, Bytes, Int64s]:
    for column in (columns.v, columns.spent, columns.state, columns.reads):
        column.flags.writeable = False
    return columns.books, columns.v, columns.spent, columns.state, columns.reads
