"""The mirror: the columns of a crawl in numpy, for what needs all pages.

Exact on a quiet or small store, at most a second old on a large busy one, and it says how old. There a thread keeps it
fresh for as long as somebody asks, so that who asks waits for nothing. A page has a position: the pages of shard 0 by
id, then those of shard 1, and so on. What is shown of a shard is of one instant; of many shards, each is of an instant
of its own, none older than is said.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from opic import windows
from opic.cash import Books, Flag
from opic.clocks import Clocks
from opic.errors import StoreError
from opic.hosts import READ_AT_ONCE, Floats, Hosts, Int32s, Sites, frozen, joined
from opic.past import Past
from opic.series import Window
from opic.store import Crawl
from opic.store.columns import Bytes, Int64s
from opic.store.crawl import Place
from opic.store.shard import Columns, held

Bools = NDArray[np.bool_]
T = TypeVar("T")

__all__ = ["Bools", "Floats", "Hosts", "Int32s", "Mirror", "Snapshot", "View", "largest"]

log = logging.getLogger("opic.mirror")

PAGES_EXACT = 100_000  # Up to so many pages, some 5 ms of reading, every answer refreshes the mirror if it has to.
REFRESH_REST = 5  # Past it, the mirror rests for so many times what its last refresh took,
AGE_SECONDS_MAX = 0.9  # but never shows a state this old: a second less the time to answer.
TOOK_MEMORY = 0.9  # Of what the slowest took, from a refresh to the next.
SLOW_SPARE = 1.5  # So many times that long may the next one take.
REST_SECONDS_MIN = 0.02
QUIET_LOOKS = 2  # In a row that found nothing moved: the store is quiet, and answers are exact again.
IDLE_SECONDS = 5.0  # Nobody asked for so long: the mirror is left as it is.
VIEW_MEMORY = 0.5  # Of what the last view took, when the next one is foreseen.
REFRESH_TRIES = 3
HEAD_PAGES = 1_024  # The least that is sorted at once, and kept until something moves.
COUNTED_MAX = 50  # Ranks of one state that are counted; past it all scores are sorted.
VIEWS_KEPT_MAX = 4  # Pairs of policy and window whose estimates a snapshot keeps, 16 bytes a page each.
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


@dataclass(frozen=True)
class Snapshot:
    """The columns of a crawl. It never changes; what is worked out of them is kept beside them.

    Arrays are (n,), by position, ids without the KNOWN bit among them.
    """

    as_of: float  # Unix seconds; this is the state of then, or a later one.
    crawl: Crawl
    parts: tuple[Columns, ...]  # Of each shard, each of one instant.
    table: Hosts
    pasts: Sequence[Past]  # Of each shard.
    books: Books  # Of the whole crawl.
    starts: Int64s  # (shards + 1,), where each shard's positions begin, and the end.
    spent: Int64s
    state: Bytes
    kept: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls, as_of: float, crawl: Crawl, parts: Sequence[Columns], table: Hosts, pasts: Sequence[Past]
    ) -> "Snapshot":
        """Put the shards' columns one after the other. Those of one shard are not copied."""
        spent, state = (frozen(joined([getattr(part, name) for part in parts])) for name in ("spent", "state"))
        starts = np.cumsum([0, *(len(part.state) for part in parts)])
        # What is whole and in parts is held once.
        cuts = zip(parts, pairwise(starts.tolist()), strict=True)
        parts = [replace(part, spent=spent[a:b], state=state[a:b]) for part, (a, b) in cuts]
        for part in parts:
            frozen(part.v)
            frozen(part.reads)
        books = Books.merged([part.books for part in parts], crawl.rules)
        return cls(as_of, crawl, tuple(parts), table, pasts, books, starts, spent, state)

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
            self.kept[name] = work_out()
        kept: T = self.kept[name]
        return kept

    def _again(self, name: str, work_out: "Callable[[Snapshot], object]") -> None:
        """Remember that this was asked for: it is worked out for the next state before anybody asks."""
        again: dict[str, Callable[[Snapshot], object]] = self._keep("again", dict)
        again[name] = work_out

    def prepare(self, before: "Snapshot | None") -> None:
        """Work out what was asked of the state before."""
        for work_out in list(before.kept.get("again", {}).values()) if before is not None else ():
            work_out(self)

    @property
    def host(self) -> Int32s:
        """The number of each page's host in `hosts`."""
        self._again("host", lambda later: later.host if later.named else None)
        return self._keep("host", lambda: self.table.of_pages(self.counts))

    @property
    def named(self) -> bool:
        """Tell whether nearly all URLs were read: to read the rest takes no time worth a thought."""
        return self.table.behind(self.counts) < READ_AT_ONCE

    @property
    def counts(self) -> Sequence[int]:
        """How many pages each shard has."""
        return [len(part.state) for part in self.parts]

    @property
    def hosts(self) -> Sequence[str]:
        """Host names by number; there may be more than these pages have."""
        return self.table.names

    @property
    def cash(self) -> Int64s:
        """What live pages hold; of others it means nothing."""
        return self._keep("cash", self._held)

    def _held(self) -> Int64s:
        return frozen(joined([held(part.books, part.v, part.state) for part in self.parts]))

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
        return self.total_of(self.books)

    def total_of(self, books: Books) -> int:
        """Return the same sum by the crawl's books of another instant, at least 1."""
        return max(books.importance_total(self.crawl.rules.minted) + self.overdrawn, 1)

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
        return self._keep("clocks", lambda: Clocks(self.crawl.series(), books, self.crawl.rules))

    def _past(self) -> windows.Past:
        found = [_until(part, *past.measures(part.reads, part.spent)) for part, past in self._each()]
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
        return self._keep(
            "dangling", lambda: joined([past.dangling(part.reads, part.spent) for part, past in self._each()])
        )

    def _each(self) -> Iterable[tuple[Columns, Past]]:
        return zip(self.parts, self.pasts, strict=True)

    def _live(self) -> Bools:
        live: Bools = (self.state & KNOWN_GONE) == Flag.KNOWN
        return live

    def ranks(self, scores: Sequence[int]) -> list[int]:
        """Return 1 + the number of live pages with a larger H + C, for each score."""
        # Counting takes 1 ms for a million pages, sorting 40: worth it for many, or on a store that rests.
        self.kept["counted"] = counted = self.kept.get("counted", 0) + len(scores)
        if counted <= COUNTED_MAX and "ascending" not in self.kept:
            return [1 + int(np.count_nonzero(self.scores > score)) for score in scores]
        larger = len(self.ascending) - np.searchsorted(self.ascending, np.array(scores, np.int64), side="right")
        return [1 + n for n in larger.tolist()]

    @property
    def ascending(self) -> Int64s:
        """The scores, sorted."""
        self._again("ascending", lambda later: later.ascending)
        return self._keep("ascending", lambda: np.sort(self.scores))

    @property
    def sites(self) -> "Sites":
        """What belongs to each host."""
        self._again("sites", lambda later: later.sites if later.named else None)
        return self._keep("sites", lambda: Sites.of(self.host, self._live(), (self.state & Flag.OPEN) != 0))

    def top(self, count: int) -> Int64s:
        """Return the positions of the live pages with most H + C, descending, ties by position."""
        self._again("top", lambda later: later.top(HEAD_PAGES))
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
        """Return the positions of the pages that may be offered, most cash first, up to `count` or some more."""
        self._again(f"greedy {discovery}", lambda later: later.greedy(HEAD_PAGES, discovery))
        return self._head(f"greedy {discovery}", lambda: self.offers(discovery), count)

    def _head(self, name: str, values: Callable[[], Int64s | Floats], count: int) -> Int64s:
        # Lengths grow by 16 so that a rare look far down costs little more than one sort of that length.
        length = HEAD_PAGES
        while length < min(count, len(self)):
            length *= 16
        return self._keep(f"{name} {length}", lambda: largest(values(), length))


class Mirror:
    """A copy of a crawl's columns that keeps itself fresh. Any thread may ask."""

    def __init__(self, crawl: Crawl) -> None:
        """Nothing is read yet."""
        self.crawl = crawl
        self.hosts, self.pasts = Hosts(crawl), [Past(shard) for shard in crawl.shards]
        self._lock, self._view_lock, self._pick_lock = threading.Lock(), threading.Lock(), threading.Lock()
        self._shown: tuple[Snapshot, float] | None = None  # The last state, and since when (monotonic) it may be old.
        self._viewed: Snapshot | None = None  # The state that window policies answer from.
        self._view_seconds = 0.0  # What it took to work out a view of a new state.
        self._took_seconds = 0.0  # By the last refresh,
        self._took_long_seconds = 0.0  # and by the slowest one of late.
        self._asked_at = -math.inf
        self._keeper: threading.Thread | None = None  # While a large store moves.
        self._closed = threading.Event()
        self._names_wanted = False

    def fresh(self, age_seconds_max: float = AGE_SECONDS_MAX) -> Snapshot:
        """Return the state of now, or of up to AGE_SECONDS_MAX (or less, 0 for none) ago on a large busy store.

        One small read when nothing moved. When something did, the columns of the shards that moved are read again.
        Where there are more than PAGES_EXACT pages, a thread then goes on doing so, resting for REFRESH_REST times what
        it took in between, where the age allows that; until it finds nothing moved, or nobody asked for a while,
        questions cost no read at all.
        """
        self._asked_at = time.monotonic()
        kept = self._kept(age_seconds_max)
        if kept is None:
            with self._lock:
                # Whoever had the lock may have read it meanwhile.
                kept = self._kept(age_seconds_max) or self._look()
        return kept

    def of_rows(self, states: Sequence[tuple[bytes, int]], asked_at: float) -> Snapshot:
        """Return what to show beside rows that were read: the very state that they are of, where `fresh` would.

        Args:
            states: the era and the version of each shard, of the instant of the rows.
            asked_at: Unix seconds before they were read.
        """
        self._asked_at = time.monotonic()
        kept, shown = self._kept(AGE_SECONDS_MAX), self._shown
        if shown is not None and list(states) == _states_of(shown[0]):
            return replace(shown[0], as_of=max(asked_at, shown[0].as_of))
        return kept or self.fresh()

    def want_names(self) -> None:
        """Let URLs be read in the background, where this keeps itself fresh: looking up pages is quicker then."""
        self._names_wanted = True

    def _kept(self, age_seconds_max: float) -> Snapshot | None:
        """Return the last state if it is kept fresh and young enough."""
        shown = self._shown
        if self._keeper is None or shown is None or not 0 < age_seconds_max >= time.monotonic() - shown[1]:
            return None
        return shown[0]

    def _look(self, *, ahead: bool = False) -> Snapshot:
        """Read what moved; by whoever has the lock. `ahead` of questions: it is shown once it is prepared for them."""
        now, began = time.time(), time.monotonic()
        kept, moved = self._shown and self._shown[0], list(range(len(self.crawl)))
        versions = self.crawl.versions()
        eras = tuple(era for era, _ in versions)
        if self.hosts.eras != eras:
            for shard in self.crawl.shards:
                shard.renew(create=False)
            self.hosts, self.pasts = Hosts(self.crawl, eras), [Past(shard) for shard in self.crawl.shards]
            self._viewed = kept = None
        if kept is not None:
            both = zip(versions, kept.parts, strict=True)
            moved = [shard for shard, ((_, version), part) in enumerate(both) if version != part.books.version]
            if not moved:
                kept = replace(kept, as_of=now)
                self._shown = kept, began
                return kept
        parts = {} if kept is None else dict(enumerate(kept.parts))
        parts |= {shard: self._read(shard) for shard in moved}
        columns = [parts[shard] for shard in range(len(parts))]
        fresh = Snapshot.of(now, self.crawl, columns, self.hosts, self.pasts)
        if ahead:
            fresh.prepare(kept)
        self._shown, self._took_seconds = (fresh, began), time.monotonic() - began
        self._took_long_seconds = max(self._took_seconds, TOOK_MEMORY * self._took_long_seconds)
        if len(fresh) > PAGES_EXACT and kept is not None and self._keeper is None and not self._closed.is_set():
            self._keeper = threading.Thread(target=self._keep_fresh, name="opic-mirror", daemon=True)
            self._keeper.start()
        return fresh

    def _keep_fresh(self) -> None:
        """Read what moved again and again, while something moves and somebody asks."""
        quiet = 0
        try:
            while quiet < QUIET_LOOKS and time.monotonic() - self._asked_at < IDLE_SECONDS:
                # The next one may be slow: by then what is shown now is as old as both took, and the rest between them.
                rest = min(
                    REFRESH_REST * self._took_seconds,
                    AGE_SECONDS_MAX - self._took_seconds - SLOW_SPARE * self._took_long_seconds,
                )
                end, shown = time.monotonic() + max(rest, REST_SECONDS_MIN), self._shown
                while self._names_wanted and shown is not None and time.monotonic() < end:
                    if not self.hosts.read_some(shown[0].counts):
                        break
                if self._closed.wait(max(end - time.monotonic(), 0.0)):
                    break
                with self._lock:
                    before = self._shown and self._shown[0].parts
                    quiet = quiet + 1 if self._look(ahead=True).parts is before else 0
        except StoreError as error:
            log.info("the mirror is not kept fresh; whoever asks next looks again: %s", error)
        finally:
            self._keeper = None

    def close(self) -> None:
        """Keep nothing fresh any longer; what is asked later is read then."""
        self._closed.set()

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

    def _read(self, shard: int) -> Columns:
        for _ in range(REFRESH_TRIES):
            columns = self.crawl.shards[shard].columns()
            # Pages that became known while we asked how many there are would be missing until the next step.
            if int(np.count_nonzero((columns.state & KNOWN_GONE) == Flag.KNOWN)) == columns.books.live:
                break
        return columns


def _states_of(snapshot: Snapshot) -> list[tuple[bytes, int]]:
    """Return the era and the version of each shard."""
    versions = [part.books.version for part in snapshot.parts]
    return list(zip(snapshot.table.eras or (), versions, strict=False))


def _until(
    part: Columns, starts: Int64s, clock: Int64s, spent: Int64s, anchors: tuple[Int64s, Int64s] | None
) -> tuple[Int64s, Int64s, Int64s, tuple[Int64s, Int64s] | None]:
    """Leave out the measures and anchors of a shard that were made after its columns were read."""
    then = clock <= part.books.clock
    if not then.all():
        counts = np.zeros(len(then) + 1, np.int64)
        np.cumsum(then, out=counts[1:])
        starts, clock, spent = counts[starts], clock[then], spent[then]
    if anchors:
        then = (anchors[0] > 0) & (anchors[0] <= part.books.clock)
        anchors = np.where(then, anchors[0], 0), np.where(then, anchors[1], 0)
    return starts, clock, spent, anchors
