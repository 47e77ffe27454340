"""In-memory priority orders of all shards of a crawl: created on first use, kept up to date with replicas and leases.

The replicas notify the orders of the records they apply. A choice holds the locks of all replicas, for some hundred
microseconds. Held pages and hosts are read when a shard is first used, and again when changes may have been missed.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import numpy as np

from opic.admission import Admission, Ration
from opic.admission.verdicts import URLS_AT_ONCE
from opic.errors import StoreUnavailable
from opic.frontier import page_counts
from opic.frontier.domain_pages import DomainPages, Within
from opic.frontier.expansion import UNREAD, InLinkColumns
from opic.frontier.held_pages import read_held, read_released, read_stamps
from opic.frontier.hot_order import FREE, LEASED, HotOrder
from opic.frontier.hot_shard import HotShard
from opic.frontier.key_blocks import KeyBlocks
from opic.frontier.leases import Lease
from opic.frontier.page_keys import Bools, Floats, Int64s
from opic.frontier.page_sources import PageSource
from opic.frontier.pages_ahead import PagesAhead
from opic.frontier.picking import SIDES, Fit, Picked, first_free, near_of, pick
from opic.frontier.ranked_order import NOWHERE, RankedOrder
from opic.frontier.recrawl import PageWeights, draw_pages
from opic.frontier.requests import BY_LINK_SCORE, EXPANSIONS, GREEDY_LINKS, Choice, FrontierTerms
from opic.frontier.suspects import Suspects
from opic.model.books import Books
from opic.model.cash import MILLION, Flag
from opic.query.link_scores import LinkScores
from opic.replica import Crawl
from opic.replica.effect import Effect
from opic.urls.canonical import shard_of

HELD_EXACT: Final = 5_000  # Where no more leases, waits and delays are known, each choice on a small crawl is exact.
PICKS_MAX: Final = 40  # Attempts of one choice, after a reload of a replica.
CENSUS_SECONDS: Final = 1.0
JUDGE_REST: Final = 20  # On a larger store, the pause between two batches of judging, as a multiple of the last one,
JUDGE_REST_SUSPECTS: Final = 5  # and while hosts are left out because of pages not judged yet.
JUDGE_BATCHES: Final = 4  # Batches that a choice judges before it tries again: a millisecond.
JUDGE_SECONDS: Final = 0.02  # How long a choice that has a page goes on when others turn out unfit,
JUDGE_SECONDS_MAX: Final = 1.0  # and how long one that has none.
WIDER, WIDER_MAX = 4, 1 << 12  # Factor by which the next try asks for more pages, and the most spare pages.
LEASE_SECONDS_MIN: Final = 0.05  # How long an expired lease still holds its page, until it is swept.
OVERDRAWN_SECONDS: Final = 1.0
Choose = Callable[[int], Picked]  # Takes a number of pages.


class HotCrawl:
    """The hot orders of all shards. Only one thread at a time may use it; other threads may update the replicas."""

    def __init__(self, crawl: Crawl, terms: FrontierTerms, admission: Admission | None) -> None:
        """Register with the replicas. `prepare` creates the orders."""
        self.crawl, self.terms, self._admission = crawl, terms, admission
        self._shards: list[HotShard | None] = [None] * len(crawl)
        self.stale: set[int] = set()  # Shards whose held pages and hosts must all be read again.
        self._rules: object = None
        self._suspects = Suspects()
        self._judged_shard, self._judged_next = 0, float("-inf")  # The shard judged last; time of the next batch.
        self._domains = DomainPages(crawl, terms.domain_bytes)
        self.trust = RankedOrder.empty(len(crawl))  # The order of mode coverage,
        self.worth: RankedOrder | None = None  # and that of other modes; None for cash.
        self.scores: LinkScores | None = None  # For the recrawl policy that draws by them.
        self._inlinks: InLinkColumns | None = None  # For the expansion policies.
        # What held pages back at the last count, by mode, domains and nearness.
        self._census, self._census_at = dict[tuple[str, tuple[str, ...], int], dict[str, int] | None](), float("-inf")
        self._overdrawn = (float("-inf"), 0)
        self._ahead = dict[str, PagesAhead]()  # By mode, on a store that is not exact.
        self.rng = np.random.default_rng()  # For recrawl policies.
        for shard, replica in enumerate(crawl.replicas):
            replica.listeners.append(partial(self._applied, shard))
        if admission is not None:
            admission.listeners.append(self._judged)

    def _applied(self, shard: int, effect: Effect, changed: Int64s) -> None:
        hot = self._shards[shard]
        if hot is not None and hot.loads == hot.replica.loads:
            hot.applied(effect, changed)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the locks of all replicas, so that they do not change."""
        with ExitStack() as stack:
            for replica in self.crawl.replicas:
                stack.enter_context(replica.lock)
            yield

    @property
    def shards(self) -> list[HotShard]:
        """The shards that `prepare` created."""
        return [hot for hot in self._shards if hot is not None]

    @property
    def orders(self) -> list[HotOrder]:
        """The hot order of each shard."""
        return [hot.order for hot in self.shards]

    def drop(self) -> None:
        """Drop all state; `prepare` builds it again from the replicas and the store."""
        with self.locked():
            self._shards = [None] * len(self.crawl)
            self._suspects = Suspects()
            self._domains.clear()
            self._ahead.clear()
            self.stale.clear()

    # Updating.

    def prepare(self) -> None:
        """Bring the replicas and the held pages and hosts up to date, and judge new pages."""
        self.crawl.follow(self.crawl.recent())
        self.crawl.steadily(self._prepare)

    def _prepare(self) -> None:
        self._judge_more()
        wanted = {shard for shard in range(len(self.crawl)) if not self._is_current(shard)} | self.stale
        if self.is_exact():
            wanted |= {shard for shard, hot in enumerate(self._shards) if hot is not None and not hot.complete}
        if wanted:
            self._read(sorted(wanted))
        self._ask_waits()

    def _is_current(self, shard: int) -> bool:
        hot = self._shards[shard]
        return hot is not None and hot.loads == hot.replica.loads

    def is_exact(self) -> bool:
        """Return whether the store is small enough for each answer to reflect its exact current state."""
        if self.crawl.is_large:
            return False
        return sum(hot.held_count() for hot in self.shards) <= HELD_EXACT

    def _read(self, shards: Sequence[int]) -> None:
        """Read the held pages and hosts of shards; create a hot order where there is none for the loaded replica."""
        self._ahead.clear()
        lsns = []
        for shard in shards:
            replica = self.crawl.replicas[shard]
            with replica.lock:
                hot = self._shards[shard]
                if hot is None or hot.loads != replica.loads:
                    by_rules = self._admission
                    shut = partial(by_rules.shut, shard) if by_rules is not None else None
                    revisit = partial(by_rules.revisit_seconds, shard) if by_rules is not None else None
                    terms = self.terms
                    hot = HotShard(replica, terms.politeness, terms.discovery, shut, revisit, strategy=terms.strategy)
                    self._shards[shard] = hot
                    self._suspects = Suspects()  # Numbers of hosts may mean others now.
                    self._domains.clear()
                hot.begin_call()
                lsns.append(replica.head.lsn)
        found = read_held(self.crawl, shards, self.terms.politeness.retry_seconds, LEASE_SECONDS_MIN)
        for shard, lsn, held in zip(shards, lsns, found, strict=True):
            hot = self._shards[shard]
            assert hot is not None
            with hot.replica.lock:
                if hot.loads == hot.replica.loads:  # Otherwise the order is rebuilt before the next choice.
                    hot.load(held)
                    hot.end_call(lsn)
        self.stale -= set(shards)

    def _judge_more(self) -> None:
        if self._admission is None:
            return
        rules = self._admission.look()
        if rules is not self._rules:
            self._rules = rules
            for shard in range(len(self.crawl)):
                self._judged(shard, np.arange(len(self.crawl.replicas[shard])))
        if self.is_exact():
            self._judge_batches(1)
        elif time.monotonic() >= self._judged_next:  # A page that is chosen earlier is judged when it is chosen.
            began, self._judged_shard = time.thread_time(), (self._judged_shard + 1) % len(self.crawl)
            self._admission.judge_next(self._judged_shard)
            rest = JUDGE_REST_SUSPECTS if len(self._suspects) else JUDGE_REST
            self._judged_next = time.monotonic() + rest * (time.thread_time() - began)
        if len(self._suspects) and not self._admission.behind:
            self._suspects.end(self.shards)

    def _judge_batches(self, count: int) -> None:
        """Judge the next pages of all shards, up to `count` batches in total."""
        left = count * URLS_AT_ONCE
        for shard in range(len(self.crawl)):
            while self._admission is not None and left > 0 and (judged := self._admission.judge_next(shard)):
                left -= judged

    def _judged(self, shard: int, ids: Int64s) -> None:
        """Update the order of a shard after the verdicts on distinct pages changed."""
        with self.crawl.replicas[shard].lock:
            hot = self._shards[shard]
            if hot is not None and hot.loads == hot.replica.loads:
                ids = ids[ids < len(hot.replica)]
                hot.order.changed(ids)
                hot.note_terms(ids)

    @property
    def turning(self) -> bool:
        """Whether pages are still held back, or not, by former rules."""
        return self._admission is not None and self._admission.turning

    def _ask_waits(self) -> None:
        """Read the back-off of pages whose fetch failed; the journal does not record how often it failed."""
        asked, commands = [], []
        for shard, hot in enumerate(self.shards):
            with hot.replica.lock:
                if hot.unsure:
                    hot.begin_call()
                    asked.append((hot, hot.unsure, hot.replica.head.lsn))
                    commands.append(["ZMSCORE", self.crawl.shards[shard].keys.waits, *hot.unsure])
                    hot.unsure = []
        for (hot, ids, lsn), found in zip(asked, self.crawl.ask(commands) if commands else (), strict=True):
            with hot.replica.lock:
                if hot.loads == hot.replica.loads:
                    hot.hear_waits(ids, [None if score is None else float(score) for score in found])
                    hot.end_call(lsn)

    def give_back(self, shard: int, freed: int, ids: Sequence[int]) -> None:
        """Free pages after a shard's answer to a release: its new `freed` counter, and the released pages."""
        hot = self._shards[shard]
        if hot is not None and ids:
            self._ahead.clear()
            with hot.replica.lock:
                if hot.loads == hot.replica.loads:
                    hot.give_back(ids, freed)

    def renewed(self, ends: Mapping[Lease, int]) -> None:
        """Note the new ends of leases, in Unix microseconds."""
        for ((shard, page), _), until_us in ends.items():
            hot = self._shards[shard]
            if hot is not None:
                with hot.replica.lock:
                    if hot.loads == hot.replica.loads and hot.order.where[page] == LEASED:
                        hot.order.hold(np.array([page]), np.array([until_us / MILLION]))

    def hear_freed(self, shard: int) -> None:
        """Free pages released through other endpoints; mark the shard stale if the list does not cover all of them."""
        hot = self.shards[shard]
        self._ahead.clear()
        released = read_released(self.crawl, shard, hot.stamp.freed)
        if released.pages is None:
            self.stale.add(shard)
            return
        with hot.replica.lock:
            if hot.loads == hot.replica.loads:
                hot.hear_freed(released.pages, released.freed, released.limits)

    def look(self) -> None:
        """Bring everything up to date with the store, for a peek, which makes no leasing call."""
        self.prepare()
        exact = self.is_exact()
        for shard, stamp in enumerate(read_stamps(self.crawl)):
            if exact and stamp != self.shards[shard].stamp:
                self.stale.add(shard)
            elif stamp.freed != self.shards[shard].stamp.freed:
                self.hear_freed(shard)
        if self.stale:
            self.prepare()

    # Choices.

    def pick(self, by: Choice, count: int, ration: Ration | None = None) -> Picked:
        """Return the first free pages that rules admit, most cash first; see `opic.frontier.picking.pick`.

        With a limit on hosts, those of the hosts that have the first pages.

        With a recrawl policy, pages that were read as it draws them; see `opic.frontier.recrawl`. Pages not judged yet
        are judged when they are chosen, and dropped if they are unfit. While there are such pages, the answer may lack
        some pages that could be had, and on a store that is not exact, those of hosts with unfit ones.
        """
        if not self.is_exact() and by == Choice(by.mode):
            return self.crawl.steadily(lambda: self._from_ahead(by, count, ration))

        def choose(wide: int) -> Picked:
            return self._choose(by, wide, None if by.hosts is None else by.hosts * wide // count, ration)

        picked = self.crawl.steadily(lambda: self._found(choose, count))
        return picked if by.hosts is None else picked.of_hosts(by.hosts)

    def _found(self, choose: Choose, count: int) -> Picked:
        ways = [self._from_all, self._without_suspects]
        first, second = ways if self.is_exact() else reversed(ways)
        picked, sure = first(choose, count)
        return picked if len(picked) or sure else second(choose, count)[0]

    def _from_ahead(self, by: Choice, count: int, ration: Ration | None) -> Picked:
        """Take pages that an earlier choice of this mode chose ahead; choose anew if they are too few, old or unfit."""
        ranking, before = self.ranking(by.mode, None), self._ahead.get(by.mode)
        if before is not None and before.is_valid(self.crawl.loads, ranking):
            if ration is not None:
                ration.take(())
            with self.locked():
                picked = before.take(self.orders, SIDES[by.mode], count, self._fit_of(ration))
            if len(picked) == count and not self._unfit(picked).any():
                return picked
        ahead, rest = before.wanted() if before is not None else 0, list[Picked]()

        def choose(wide: int) -> Picked:
            found = self._choose(by, wide + ahead, None, ration)
            rest[:] = [found.after(wide)]  # They are judged when they are taken.
            return found.first(wide)

        picked = self._found(choose, count)
        self._ahead[by.mode] = PagesAhead(picked.followed_by(rest[0]), count, self.crawl.loads, ranking)
        return picked

    def _from_all(self, choose: Choose, count: int) -> tuple[Picked, bool]:
        """Choose among all pages, judging more of them as long as unfit ones are met.

        Returns:
            The pages, and whether there are no others.
        """
        if len(self._suspects):
            self._suspects.end(self.shards)
        wide, began = count, time.monotonic()
        while True:
            picked = choose(wide)
            unfit = self._unfit(picked)
            if not unfit.any() and (len(picked) or not self.turning):
                return picked.first(count), True
            fit = picked.only(~unfit)
            if time.monotonic() - began >= (JUDGE_SECONDS if len(fit) else JUDGE_SECONDS_MAX):
                return fit.first(count), False
            self._judge_batches(JUDGE_BATCHES)
            wide = min(WIDER * wide, count + WIDER_MAX)

    def _without_suspects(self, choose: Choose, count: int) -> tuple[Picked, bool]:
        """Choose among the pages of hosts that had no unfit page lately; return what `_from_all` does."""
        wide, began = count, time.monotonic()
        while True:
            picked = choose(wide)
            unfit = self._unfit(picked)
            self._suspects.note(self.shards, picked.shards, picked.hosts, unfit)
            fit = picked.only(~unfit)
            late = time.monotonic() - began >= (JUDGE_SECONDS if len(fit) else JUDGE_SECONDS_MAX)
            if not unfit.any() or len(fit) >= count or late:
                return fit.first(count), not (len(self._suspects) or self.turning)
            wide = min(WIDER * wide, count + WIDER_MAX)

    def _choose(self, by: Choice, count: int, hosts: int | None, ration: Ration | None) -> Picked:
        for _ in range(PICKS_MAX):
            with self.locked():
                if all(map(self._is_current, range(len(self.crawl)))):
                    within = self._domains.within(by.domains)
                    if hosts is not None:
                        first = self._picked(by, hosts, ration, within, 1)
                        if by.host_pages == 1:
                            return first
                        shards = range(len(self.crawl))
                        within = Within([np.unique(first.hosts[first.shards == shard]) for shard in shards])
                    return self._picked(by, count, ration, within, by.host_pages)
            self.prepare()
        raise StoreUnavailable("the store was rebuilt or its server restarted repeatedly during the call; try again")

    def _picked(
        self, by: Choice, count: int, ration: Ration | None, within: Within | None, host_pages: int | None
    ) -> Picked:
        if ration is not None:
            ration.take(())
        return pick(
            self.orders,
            count,
            [hot.now() for hot in self.shards],
            mode=by.mode,
            busy=self._numbers(by.busy),
            within=within,
            fit=self._fit_of(ration),
            nearness=by.nearness,
            drawn=partial(self._drawn, by.policy, within, by.nearness)
            if by.policy and by.policy != GREEDY_LINKS
            else None,
            indexes=partial(self._indexes, by),
            host_pages=host_pages,
        )

    def _indexes(self, by: Choice) -> list[KeyBlocks]:
        """Return the index of each shard by the keys that decide."""
        if by.policy == GREEDY_LINKS:
            inlinks = self._usable_inlinks()
            return [hot.weights.most_linked(hot.order, inlinks) for hot in self.shards]
        ranking = self.ranking(by.mode, by.policy)
        return [order.by_cash for order in self.orders] if ranking is None else ranking.indexes(self.orders)

    def priorities(self, shards: Int64s, ids: Int64s) -> Floats:
        """Return the priorities of pages."""
        found = np.ones(len(ids))
        for shard in set(shards.tolist()):
            at, replica = np.flatnonzero(shards == shard), self.crawl.replicas[shard]
            with replica.lock:
                if (priority := replica.offers.priority(ids[at])) is not None:
                    found[at] = priority
        return found

    def ranking(self, mode: str, policy: str | None) -> RankedOrder | None:
        """Return the order of a mode that is not by cash; None if it is, or if a recrawl policy draws the pages."""
        if mode == "coverage":
            if self.trust.loads != self.crawl.loads:  # Its ids may belong to other pages now.
                self.trust = RankedOrder.empty(len(self.crawl))
            return self.trust
        worth = self.worth
        return None if policy or worth is None or worth.loads != self.crawl.loads else worth

    def take_inlinks(self, inlinks: InLinkColumns) -> None:
        """Take in what changed of the in-links, for the expansion policies."""
        with self.locked():
            for shard, ids in enumerate(inlinks.take()):
                if len(ids) and (hot := self._shards[shard]) is not None:
                    hot.linked(ids)
        self._inlinks = inlinks

    def inlinks_of(self, place: tuple[int, int]) -> float:
        """Return the in-links of a page as of the last `take_inlinks`."""
        column = self._inlinks.columns[place[0]] if self._inlinks is not None else ()
        return float(column[place[1]]) if place[1] < len(column) else 0.0

    def _usable_inlinks(self) -> InLinkColumns:
        inlinks = self._inlinks
        assert inlinks is not None
        # Otherwise its ids may belong to other pages now.
        return inlinks if inlinks.loads == self.crawl.loads else InLinkColumns(inlinks.kept)

    def _drawn(self, policy: str, within: Within | None, nearness: int) -> Sequence[PageSource]:
        """Return the pages of each shard, within some domains and a depth, as a policy draws them."""
        only = self._only(within, nearness)
        if policy in EXPANSIONS:
            inlinks = self._usable_inlinks()
            unread = [[hot.weights.by_inlinks(inlinks)] for hot in self.shards]
            return draw_pages(self.orders, unread, self.rng, only, alike=partial(self._alike, UNREAD))
        scores = self.scores if policy == BY_LINK_SCORE else None
        if scores is not None and scores.loads != self.crawl.loads:  # Its ids may belong to other pages now.
            scores = None
        kinds = [hot.weights.kinds(policy) for hot in self.shards]
        return draw_pages(self.orders, kinds, self.rng, only, scores, alike=partial(self._alike, "one"))

    def _only(self, within: Within | None, nearness: int) -> list[Int64s] | None:
        """Return the pages of each shard within some domains and a depth; None for all."""
        if within is None and not nearness:
            return None
        pages = [None if within is None else within.pages(at, order) for at, order in enumerate(self.orders)]
        return [near_of(order, ids, nearness) for order, ids in zip(self.orders, pages, strict=True)]

    def _alike(self, kind: str) -> list[PageWeights]:
        return [hot.weights.kind(kind) for hot in self.shards]

    def _unfit(self, picked: Picked) -> Bools:
        """Judge pages that were chosen; return a mask of those that must not be offered, or not yet."""
        unfit = np.zeros(len(picked), np.bool_)
        if self._admission is None:
            return unfit
        for shard in set(picked.shards.tolist()):
            at = np.flatnonzero(picked.shards == shard)
            ids, hot = picked.ids[at], self.shards[shard]
            self._admission.judge(shard, ids)
            with hot.replica.lock:
                unfit[at] = hot.order.where[ids] != FREE
                if (shut := self._admission.shut(shard, ids)) is not None:
                    unfit[at] |= shut
        return unfit

    def _fit_of(self, ration: Ration | None) -> Fit | None:
        if ration is None:
            return None
        shards = len(self.crawl)
        return lambda of_shards, hosts: ration.fit(hosts * shards + of_shards)

    def first_free(self, by: Choice, seconds_max: float) -> float | None:
        """Return the number of seconds until the first requested page is free; None if there is none."""
        with self.locked():
            if not all(map(self._is_current, range(len(self.crawl)))):
                return None
            only = self._only(self._domains.within(by.domains), by.nearness)
            if by.mode == "coverage":
                only = self._trusted(only)
            first = first_free(
                self.orders,
                mode=by.mode,
                busy=self._numbers(by.busy),
                only=only,
                nearness=by.nearness,
                seconds_max=seconds_max,
            )
            return 0.0 if self.turning else first

    def waiting(self, mode: str, domains: tuple[str, ...], nearness: int = 0, *, empty: bool) -> dict[str, int] | None:
        """Count the requested pages by what holds them back; None if it can't be told now.

        Costs a lookup of each delayed host; with domains, also 2 ns for each of their pages. If the request got pages,
        its depth is not considered: that would be a pass over all pages; and on a large store, the counts may be
        CENSUS_SECONDS old.

        Args:
            mode: of the request. Leased pages of all modes count, since their events may bring new pages.
            domains: of the request.
            nearness: of the request.
            empty: the request got no page, so all free pages are held back by their hosts.
        """
        scope, now = (mode, domains, nearness), time.monotonic()
        if empty or self.is_exact():
            return self._count_waiting(*scope, empty=empty)
        if scope not in self._census or now - self._census_at >= CENSUS_SECONDS:
            if now - self._census_at >= CENSUS_SECONDS:
                self._census, self._census_at = {}, now
            self._census[scope] = self._count_waiting(*scope, empty=empty)
        return self._census[scope]

    def _count_waiting(
        self, mode: str, domains: tuple[str, ...], nearness: int, *, empty: bool
    ) -> dict[str, int] | None:
        totals, delayed = np.zeros(page_counts.CODES, np.int64), np.zeros(2, np.int64)
        with self.locked():
            if not all(map(self._is_current, range(len(self.crawl)))):
                return None
            within = self._domains.within(domains)
            for order, hot in zip(self.orders, self.shards, strict=True):
                order.advance(hot.now())
            only = self._only(within, nearness if empty else 0)
            if mode == "coverage":
                only = self._trusted(only)
            for shard, order in enumerate(self.orders):
                counts = order.counts
                totals += counts.totals if only is None else counts.of(only[shard])
                hosts = order.resting()
                if within is not None and len(hosts):
                    hosts = hosts[within.mask(shard, order)[hosts]]
                delayed += [counts.free_pages(hosts, side) for side in (0, 1)]
        kinds, sides = totals.reshape(-1, 2), list(SIDES[mode])
        free, leased = kinds[page_counts.FREE], int(kinds[page_counts.LEASED].sum())
        unknown = self.running() - sum(hot.leased() for hot in self.shards)  # Leases of other endpoints, not heard of.
        if unknown > 0 and only is None:
            free, leased = np.maximum(free - unknown, 0), leased + unknown
        elif unknown > 0 and empty and not kinds[page_counts.FREE : page_counts.DENIED].any():
            self.stale |= set(range(len(self.crawl)))
            return None
        return {
            "leased": leased,
            "host_delay": int((free if empty else delayed)[sides].sum()),
            "revisit": int(kinds[page_counts.REVISIT, sides].sum()),
            "retry": int(kinds[page_counts.RETRY, sides].sum()),
            "not_before": int(kinds[page_counts.NOT_BEFORE, sides].sum()),
            "denied": int(kinds[page_counts.DENIED, sides].sum()),
            "given_up": int(kinds[page_counts.GIVEN_UP, sides].sum()),
        }

    def number(self, host: str) -> tuple[int, int] | None:
        """Return the shard of a host and its number there; None if it has no pages."""
        shard = shard_of(host, len(self.crawl))
        number = self.crawl.replicas[shard].hosts.number(host)
        return None if number is None else (shard, number)

    def _numbers(self, hosts: Collection[str]) -> list[Int64s] | None:
        if not hosts:
            return None
        by_shard: list[list[int]] = [[] for _ in self.crawl.replicas]
        for place in map(self.number, hosts):
            if place is not None:
                by_shard[place[0]].append(place[1])
        return [np.array(numbers, np.int64) for numbers in by_shard]

    def _trusted(self, only: Sequence[Int64s] | None) -> list[Int64s]:
        """Return those of some pages of each shard, or of all, that hold trust."""
        ranking = self.ranking("coverage", None)
        assert ranking is not None
        keys = [ranked.keys[: len(order.columns)] for ranked, order in zip(ranking.shards, self.orders, strict=True)]
        if only is None:
            return [np.flatnonzero(some > NOWHERE) for some in keys]
        within = [ids[ids < len(some)] for some, ids in zip(keys, only, strict=True)]
        return [ids[some[ids] > NOWHERE] for some, ids in zip(keys, within, strict=True)]

    # Totals of the crawl.

    def running(self) -> int:
        """Count the active leases that this process knows of."""
        return sum(hot.running for hot in self.shards)

    def free(self, side: int) -> int:
        """Count the pages of a side that nothing but their hosts holds back."""
        return sum(hot.free(side) for hot in self.shards)

    def live(self) -> int:
        """Count the live pages."""
        return sum(replica.books.live for replica in self.crawl.replicas)

    def total(self, books: Sequence[Books]) -> int:
        """Return the sum of the scores of live pages, at least 1: the denominator of an importance."""
        merged = Books.merged(books, self.crawl.rules)
        if merged.cuts and time.monotonic() - self._overdrawn[0] > OVERDRAWN_SECONDS:
            owed = 0
            for replica in self.crawl.replicas:
                with replica.lock:
                    live = (replica.state & (Flag.KNOWN | Flag.GONE)) == Flag.KNOWN
                    owed -= int(np.minimum(replica.spent() + replica.cash(), 0)[live].sum())
            self._overdrawn = time.monotonic(), owed
        return merged.static_total(self.crawl.rules.minted, self._overdrawn[1] if merged.cuts else 0)
