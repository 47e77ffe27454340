"""What happened since exact importance was settled, and how far it can have moved PageRank.

Exact importance is told as of one state of the crawl, which is settled some times a second. Records of the journal
that arrive in between change PageRank: a page goes, comes, or is read for the first time; its links or its class
change.
What such a change can move is known before it is settled, from the shares of the pages concerned, and is added to the
bound at once. So the bound holds for the state that is told, and for every later one that the endpoint knows of.

With y = h + r, the visits at each page (see `opic.graph.flow`), T their sum, and m the visits that the changes set in
motion, PageRank moves by 2m / T at most. A change sets in motion, at most,

- a page that comes: the random jump to it, its weight; and if it had been gone, what links bring it, divided by 1 - d;
- a page that goes, is read for the first time, or counts as not read any more: the visits there, divided by 1 - d;
- other links of a page: d times the visits that were moved on from it, divided by 1 - d;
- another weight of a page or a class: the difference, divided by 1 - d.

For what is set in motion at one page may be followed from page to page without end, d of it at each step. And as the
new state can have fewer visits than T, by m at most, the bound told is (bound + 2m / T) / (1 - m / T).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from opic.arrays import Float64s, Int64s, Uint8s
from opic.graph.flow import BOUND_MAX
from opic.model.cash import CLASS_BITS, MILLION, Flag
from opic.query.crawl_pages import KNOWN_GONE
from opic.query.exact_view import ExactView
from opic.replica import Crawl
from opic.replica.effect import Effect, Head

EFFECTS_MAX: Final = 4_096  # Records of a shard that may come during a settling. With more, the bound says nothing.


def teleport_by_state(extra: Sequence[int]) -> Float64s:
    """Return the weight in the random jump of a page by its state byte: that of its class, 0 if it is not there.

    Args:
        extra: by class, by how many millionths its weight is above 1.
    """
    states, of_class = np.arange(1 << 8), 1 + np.array(extra, np.float64) / MILLION
    live = (states & KNOWN_GONE) == Flag.KNOWN
    slots = np.minimum(states & CLASS_BITS, len(of_class) - 1)  # No page is in a class that does not exist.
    return np.where(live, of_class[slots], 0.0)


class Moved:
    """How far the records since a view may have moved PageRank from it."""

    def __init__(self, view: ExactView, extras: Sequence[Sequence[int]], damping: float) -> None:
        """Begin with no records.

        Args:
            view: as it was settled.
            extras: the weights of classes in each shard by then, as in `teleport_by_state`.
            damping: the share of visitors that follow a link.
        """
        self.view, self._damping = view, damping
        self._shares = [0.0] * len(extras)  # m / T, by shard.
        self._heads: list[Head] = list(view.heads)  # The last record of each that is counted.
        self._extras: list[Sequence[int]] = list(extras)
        self._before, self._now = (list(map(teleport_by_state, extras)) for _ in range(2))

    @property
    def share(self) -> float:
        """m / T: 0 while PageRank is that of the view."""
        return sum(self._shares)

    def told(self, as_of: float) -> ExactView:
        """Return the view with the bound for all states since then. If nothing has moved, it is that of `as_of`.

        Args:
            as_of: a time (Unix seconds); all records before it were counted.
        """
        heads = self._heads.copy()  # First: a record that arrives now may only widen the bound.
        share, view = self.share, self.view
        if not share:
            return replace(view, as_of=max(as_of, view.as_of), heads=heads)
        bound = (view.bound + 2 * share) / (1 - share) if share < 1 else BOUND_MAX
        return replace(view, bound=min(bound, BOUND_MAX))

    def count(self, shard: int, effect: Effect) -> None:
        """Count a record of a shard, which follows the last one that was counted."""
        if effect.ends_links:
            self.lose_count(shard)
        direct, through = 0.0, 0.0  # In visits of the view; the second is followed from page to page.
        if effect.books.extra != self._extras[shard]:
            through += self._reweighed(shard, effect) * self.view.jump
        if len(effect.state_page):
            more, followed = self._of_states(shard, effect.state_page.astype(np.int64), effect.state)
            direct, through = direct + more, through + followed
        if len(effect.other_links):
            pages = effect.read_page[effect.other_links].astype(np.int64)
            state, shares, unmoved = self._at(shard, pages)
            opened = (state & (Flag.OPEN | Flag.GONE)) == Flag.OPEN
            through += self._damping * float(np.abs(shares - unmoved)[opened].sum())
        self._shares[shard] += direct + through / (1 - self._damping)
        self._heads[shard] = effect.head

    def lose_count(self, shard: int) -> None:
        """Say nothing about the present any more."""
        self._shares[shard] = BOUND_MAX

    def _at(self, shard: int, pages: Int64s) -> tuple[Uint8s, Float64s, Float64s]:
        """Return the states of pages in the view, their shares, and what of these was not moved on; 0 if not known."""
        view = self.view
        positions, there = view.starts[shard] + pages, pages < view.starts[shard + 1] - view.starts[shard]
        positions = np.where(there, positions, 0)
        if not len(view.state):
            return np.zeros(len(positions), np.uint8), np.zeros(len(positions)), np.zeros(len(positions))
        columns = (np.where(there, column[positions], 0) for column in (view.state, view.shares, view.unmoved))
        state, shares, unmoved = columns
        return state, shares, unmoved

    def _of_states(self, shard: int, pages: Int64s, now: Uint8s) -> tuple[float, float]:
        """Return what new states of pages set in motion: directly, and what is followed from page to page."""
        before, shares, unmoved = self._at(shard, pages)
        visits = np.maximum(shares, shares - unmoved)
        old, new = self._before[shard][before], self._now[shard][now]
        was, here = old > 0, new > 0
        stays, comes, turns = was & here, here & ~was, ((before ^ now) & Flag.OPEN) != 0
        followed = float(visits[was != here].sum()) + self._damping * float(visits[stays & turns].sum())
        weight = float(np.abs(new - old)[stays].sum())
        weight += self._damping * float(new[comes & ((now & Flag.OPEN) != 0)].sum())
        return self.view.jump * float(new[comes].sum()), followed + self.view.jump * weight

    def _reweighed(self, shard: int, effect: Effect) -> float:
        """Take new weights of classes; return by how much those of all pages differ from the last ones."""
        books, last = effect.books, self._extras[shard]
        self._extras[shard], self._now[shard] = books.extra, teleport_by_state(books.extra)
        return sum(
            abs(now - before) / MILLION * books.live_of(slot)
            for slot, (now, before) in enumerate(zip(books.extra, last, strict=True))
        )


class Unsettled:
    """Follows the journals beside the settled view of a crawl. Thread-safe."""

    def __init__(self, crawl: Crawl, damping: float) -> None:
        """Listen from now on; there is no view yet."""
        self._crawl, self._damping = crawl, damping
        self._moved: Moved | None = None
        # By shard: where records are counted; and those since `begin`, None if none are noted, or there are too many.
        self._counting: list[tuple[Moved, ...]] = [() for _ in crawl.replicas]
        self._since: list[list[Effect] | None] = [None for _ in crawl.replicas]
        for number, replica in enumerate(crawl.replicas):
            replica.effect_listeners.append(partial(self._note, number))

    @property
    def moved(self) -> Moved | None:
        """What was settled last, and what happened since; None if there is nothing, or a replica was reloaded."""
        moved = self._moved
        return moved if moved is not None and moved.view.loads == self._crawl.loads else None

    def told(self) -> ExactView | None:
        """Return the last view with the bound for the present, as far as it is known; None as `moved`."""
        as_of, moved = self._crawl.as_of, self.moved  # The time first: by then its records were counted.
        return None if moved is None else moved.told(as_of)

    def forget(self) -> None:
        self._moved = None

    def begin(self, shard: int) -> None:
        """Note the records of a shard from now on, for `settled`. The caller holds the replica's lock."""
        self._since[shard] = []

    def settled(self, view: ExactView, extras: Sequence[Sequence[int]]) -> None:
        """Take a view of the positions at which `begin` was called for each shard. For one thread at a time."""
        moved = Moved(view, extras, self._damping)
        for shard, replica in enumerate(self._crawl.replicas):
            with replica.lock:
                effects, self._since[shard] = self._since[shard], None
                if effects is None:
                    moved.lose_count(shard)
                for effect in effects or ():
                    moved.count(shard, effect)
                # In both, for the last view is told until this one has all shards.
                self._counting[shard] = (*self._counting[shard][-1:], moved)
        self._moved = moved
        for shard in range(len(self._counting)):
            self._counting[shard] = (moved,)

    def _note(self, shard: int, effect: Effect) -> None:
        for moved in self._counting[shard]:
            moved.count(shard, effect)
        since = self._since[shard]
        if since is not None:
            since.append(effect)
            if len(since) > EFFECTS_MAX:
                self._since[shard] = None
