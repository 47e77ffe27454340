"""Snapshots of all pages of a crawl, for queries over all pages: top, ranks, hosts, window policies.

The replicas change in place as they follow their journals. Queries over all pages therefore use a snapshot, an
immutable copy of the columns, which also caches the results computed from it. It is current, or is reused for a moment:
see `opic.replica.upkeep`; `as_of` tells its time.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from opic.arrays import Bools, Float64s, Int64s
from opic.errors import NotKept, StoreError
from opic.model import windows
from opic.model.books import Books
from opic.model.cash import Flag
from opic.model.crawl_clock import Clocks
from opic.model.series import Window
from opic.query.crawl_pages import CrawlPages
from opic.query.host_index import HostNames, frozen, joined
from opic.query.loaded import LOADED, NOTHING, LoadedImportance, LoadedView
from opic.query.rankings import Ranking, View, WindowView, largest
from opic.query.snapshot_parts import Part
from opic.replica import Crawl
from opic.replica.crawl import Outdated, Rows
from opic.replica.upkeep import AGE_SECONDS_MAX

SNAPSHOT_SECONDS = 0.6  # Where a snapshot and its ranking are renewed in a thread, it is at this age.
VIEW_SECONDS = 0.5  # A view of a window policy is reused up to this age, as it takes some tenths of a second.
HEAD_PAGES = 1_024  # Minimum number of top pages sorted at once; they are cached until the store changes.
VIEWS_KEPT_MAX = 4  # Number of (policy, window) pairs whose estimates a snapshot caches, 16 bytes per page each.


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot(CrawlPages):
    """An immutable copy of the columns of a crawl, with a cache of the results computed from them."""

    parts: tuple[Part, ...]  # Of each shard.
    books: Books  # Of the whole crawl.
    cash: Int64s  # Only meaningful for live pages.
    sums: Int64s  # H + C, the same; below 0 for pages that owe.
    guesses: dict[int, int] = field(repr=False)  # Recent smallest score of the top, by its length.
    loaded: LoadedImportance | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        as_of: float,
        crawl: Crawl,
        guesses: dict[int, int] | None = None,
        loaded: LoadedImportance | None = None,
    ) -> "Snapshot":
        """Copy the current state of the replicas. With a single shard, columns are not concatenated."""
        parts = [Part.of(replica) for replica in crawl.replicas]
        cash, sums, state = (
            frozen(joined([getattr(part, name) for part in parts])) for name in ("cash", "sums", "state")
        )
        starts = np.cumsum([0, *(len(part.state) for part in parts)])
        # Parts become views of the whole columns, so that the memory is used only once.
        cuts = zip(parts, pairwise(starts.tolist()), strict=True)
        parts = [replace(part, cash=cash[a:b], sums=sums[a:b], state=state[a:b]) for part, (a, b) in cuts]
        return cls(
            as_of=as_of,
            crawl=crawl,
            loads=[part.loads for part in parts],
            heads=[part.head for part in parts],
            starts=starts,
            state=state,
            hosts=HostNames(crawl.replicas, [part.hosts for part in parts]),
            host_columns=[part.host for part in parts],
            parts=tuple(parts),
            books=Books.merged([part.books for part in parts], crawl.rules),
            cash=cash,
            sums=sums,
            guesses={} if guesses is None else guesses,
            loaded=loaded,
        )

    @property
    def spent(self) -> Int64s:
        """H, the total history of each page; only meaningful for live pages."""
        return self.sums - self.cash

    @property
    def debt(self) -> int:
        """Total debt of open pages; 0 until a weight was cut."""
        if not self.books.cuts:
            return 0
        return self._keep("debt", lambda: -int(self.cash[((self.state & Flag.OPEN) != 0) & (self.cash < 0)].sum()))

    @property
    def overdrawn(self) -> int:
        """Sum over live pages of how far H + C is below 0; a negative H + C is shown as 0."""
        if not self.books.cuts:
            return 0
        return self._keep("overdrawn", lambda: -int(np.minimum(self.sums, 0)[self.live].sum()))

    @property
    def total(self) -> int:
        """Sum of the scores of live pages: the denominator of a static estimate."""
        return self.books.static_total(self.crawl.rules.minted, self.overdrawn)

    @property
    def scores(self) -> Int64s:
        """H + C of live pages, -1 for others. The sum fits in an int64, which `Books.check` ensures."""

        def work_out() -> Int64s:
            live = self.live
            if live.all() and not self.overdrawn:
                return self.sums
            scores = np.maximum(self.sums, 0)
            scores[~live] = -1
            return frozen(scores)

        return self._keep("scores", work_out)

    def shares(self, view: View | None) -> Float64s:
        """Return the importance of all pages by a view, or the static one."""
        return np.maximum(self.scores, 0) / self.total if view is None else view.estimates

    def view(self, policy: str, window: Window) -> WindowView | LoadedView:
        """Return the view of a policy other than static on this snapshot; see `windowed`."""
        return self.by_loaded() if policy == LOADED else self.windowed(policy, window)

    def by_loaded(self) -> LoadedView:
        """Return the view of the loaded importance on this snapshot.

        Raises:
            NotKept: nothing was loaded.
            Outdated: a replica was reloaded in the meantime.
        """
        if self.loaded is None:
            raise NotKept(NOTHING)
        columns = self.loaded.columns()
        if columns.loads != self.loads:
            raise Outdated
        kept: LoadedView | None = self.kept.get(LOADED)
        if kept is None or kept.about != columns.about:
            kept = self.kept[LOADED] = columns.view(self.starts, self.live, self.shares(None))
        return kept

    def windowed(self, policy: str, window: Window) -> WindowView:
        """Return the view of a window policy on this snapshot; the first call collects the measures.

        The measures are collected later than the columns were copied. Newer measures are recognised by their clock and
        left out, so the view shows the state of one instant; but such a page lacks its oldest measures, which the new
        ones replaced.

        Raises:
            Outdated: a replica was reloaded in the meantime.
        """
        views: dict[tuple[str, Window], WindowView] = self._keep("views", dict)
        view = views.get((policy, window))
        if view is None:
            rules, past = self.crawl.rules, self._keep("past", self._past)
            grains = window.grains(self._clocks().series, self.books, rules.round_grains(self.books.live))
            rates = windows.rates(policy, past, grains, rules.measures_max)
            estimates = windows.shares(rates, past.live)
            scores = np.where(past.live, estimates, -1.0)
            warm, total = windows.warm(policy, past, grains), float(rates.sum())
            view = WindowView(estimates, scores, np.sort(scores), warm, past, grains, total)
            while len(views) >= VIEWS_KEPT_MAX:
                views.pop(next(iter(views), (policy, window)), None)
            views[policy, window] = view
        return view

    def _clocks(self) -> Clocks:
        parts, rules = self.parts, self.crawl.rules
        terms = [part.series for part in parts], [part.books for part in parts], rules, parts[0].round_counts
        return self._keep("clocks", lambda: Clocks(*terms))

    def _past(self) -> windows.Past:
        histories = [part.histories() for part in self.parts]
        clocks, anchors = [part[1] for part in histories], [part[3] for part in histories]
        if len(histories) > 1:
            axis = self._clocks()
            clocks = [axis.translate(shard, clock) for shard, clock in enumerate(clocks)]
            # 0 means that there is no anchor.
            anchors = [
                a and (np.where(a[0] > 0, np.maximum(axis.translate(shard, a[0]), 1), 0), a[1])
                for shard, a in enumerate(anchors)
            ]
        ends = np.cumsum([0, *(part[0][-1] for part in histories)])
        starts = [part[0][1:] + ends[shard] if shard else part[0] for shard, part in enumerate(histories)]
        known = [a for a in anchors if a is not None]
        return windows.Past(
            starts=joined(starts),
            clock=joined(clocks),
            spent=joined([part[2] for part in histories]),
            cash=self.cash,
            history=self.spent,
            live=self.live,
            now=self.books.clock,
            anchors=(joined([a[0] for a in known]), joined([a[1] for a in known])) if known else None,
            shards=self.starts,
        )

    @property
    def dangling(self) -> Bools:
        """Mask of the pages that had no links when they were last read."""
        return self._keep("dangling", lambda: joined([part.dangling() for part in self.parts]))

    @property
    def ranking(self) -> Ranking:
        """The sorted scores of all pages, for computing ranks."""

        def work_out() -> Ranking:
            return Ranking(self.as_of, self.loads, self.heads, self.books, self.overdrawn, np.sort(self.scores))

        return self._keep("ranking", work_out)

    def top(self, count: int) -> Int64s:
        """Return the positions of `count` or more live pages with the largest H + C, descending, ties by position."""
        # Lengths grow by a factor of 16, so that a rare long list costs little more than one sort of that length.
        length = HEAD_PAGES
        while length < min(count, len(self)):
            length *= 16

        def work_out() -> Int64s:
            positions = largest(self.scores, length, self.guesses.get(length))
            if len(positions):
                self.guesses[length] = int(self.scores[positions[-1]])
            return positions

        return self._keep(f"top {length}", work_out)


class Snapshots:
    """Makes and caches snapshots of a crawl on request. Thread-safe."""

    def __init__(self, crawl: Crawl) -> None:
        self.crawl, self.loaded = crawl, LoadedImportance(crawl)
        self._lock, self._view_lock = threading.Lock(), threading.Lock()
        self._shown: Snapshot | None = None
        self._guesses: dict[int, int] = {}  # `Snapshot.guesses`, passed from one snapshot to the next.
        self._ranking: Ranking | None = None
        self._viewed: Snapshot | None = None  # The snapshot that window policies answer from.
        self._renewer: threading.Thread | None = None

    def fresh(self, age_seconds_max: float = AGE_SECONDS_MAX) -> Snapshot:
        """Return a current snapshot or, as `opic.replica.upkeep` rules, one at most `age_seconds_max` old.

        Costs one round trip, and a copy of the columns if the store changed and the last snapshot is not used again.
        """
        self.crawl.follow(self.crawl.recent())
        shown = self._shown
        if shown is not None and shown.heads != self.crawl.heads() and self._serves(shown, age_seconds_max):
            return shown
        return self._current(age_seconds_max)

    def ranking_of(self, rows: Rows) -> Ranking:
        """Return a ranking for rows that were just read, as `fresh` gives it, or of a moment later."""
        if (kept := self.ranking_at_hand(rows)) is None:
            shown = self._shown
            if shown is None or shown.heads != rows.heads or not self._still_true(shown):
                shown = self._current(AGE_SECONDS_MAX)
            kept = self._ranking = shown.ranking
        return kept

    def ranking_at_hand(self, rows: Rows) -> Ranking | None:
        """Return a ranking that `ranking_of` might give; None if there is none yet."""
        kept = self._ranking
        if kept is None or not self._still_true(kept):
            return None
        return kept if kept.heads == rows.heads or self._serves(kept, AGE_SECONDS_MAX) else None

    def _serves(self, kept: "Snapshot | Ranking", age_seconds_max: float) -> bool:
        """Return whether questions are answered from this, although it is not current; it is renewed in good time."""
        if not self._still_true(kept) or not self.crawl.upkeep.serves(kept.as_of, age_seconds_max):
            return False
        if time.time() - kept.as_of >= SNAPSHOT_SECONDS and (self._renewer is None or not self._renewer.is_alive()):
            self._renewer = threading.Thread(target=self._renew, name="opic-snapshot", daemon=True)
            self._renewer.start()
        return True

    def _renew(self) -> None:
        with suppress(Outdated, StoreError):  # The question that comes when it is too old reports them.
            self.crawl.follow(self.crawl.recent())
            self._ranking = self._current(SNAPSHOT_SECONDS).ranking

    def _current(self, age_seconds_max: float) -> Snapshot:
        with self._lock:
            if (kept := self._kept(age_seconds_max)) is not None:
                return kept
        with self.crawl.upkeep.rested(), self._lock:
            if (kept := self._kept(age_seconds_max)) is None:  # Else another question made it.
                with self.crawl.upkeep.measured("snapshot"):
                    kept = self._shown = Snapshot.of(self.crawl.as_of, self.crawl, self._guesses, self.loaded)
            return kept

    def _kept(self, age_seconds_max: float) -> Snapshot | None:
        """Return the last snapshot if it is current, or young and answers need not be. The caller holds the lock."""
        shown, as_of = self._shown, self.crawl.as_of  # The heads are read later: as of that time, or newer.
        if shown is None or not self._still_true(shown):  # Even with the same head, reading more would raise Outdated.
            return None
        if shown.heads == self.crawl.heads():
            shown = self._shown = replace(shown, as_of=max(as_of, shown.as_of))
            return shown
        return shown if self.crawl.upkeep.serves(shown.as_of, age_seconds_max) else None

    def _still_true(self, shown: Snapshot | Ranking) -> bool:
        return shown.loads == self.crawl.loads

    def view(self, policy: str, window: Window) -> tuple[Snapshot, WindowView | LoadedView]:
        """Return a snapshot as `fresh` does, and its view; see `Snapshot.view`. One thread computes it, others wait."""
        with self._view_lock:
            while True:
                kept = self._viewed
                if kept is None or not self._still_true(kept) or not self.crawl.upkeep.serves(kept.as_of, VIEW_SECONDS):
                    self._viewed = kept = self.fresh(VIEW_SECONDS)
                try:
                    return kept, kept.view(policy, window)
                except Outdated:
                    self._viewed = self._shown = None
