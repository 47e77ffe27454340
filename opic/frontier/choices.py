"""Choices over all shards: the pages that requests get, and what holds the others back.

A choice holds the locks of all replicas, for some milliseconds. A page that no rule has judged yet is judged when it is
chosen.
"""

import time
from collections.abc import Callable
from typing import Final

import numpy as np

from opic.admission import Admission, Ration
from opic.arrays import Bools, Float64s, Int64s
from opic.errors import StoreUnavailable
from opic.frontier import page_counts
from opic.frontier.arrivals import draw_again
from opic.frontier.crawl_orders import Orders, RankedOrder
from opic.frontier.domain_pages import DomainPages, Within
from opic.frontier.hot_crawl import HotCrawl
from opic.frontier.hot_order import UNHELD
from opic.frontier.page_keys import NOWHERE
from opic.frontier.pages_ahead import PagesAhead
from opic.frontier.picking import SIDES, Fit, Picked, first_free, mixed, near_of, pick
from opic.frontier.policy_orders import Mix, PolicyOrders
from opic.frontier.requests import Choice

PICKS_MAX: Final = 40  # Attempts of one choice, after a reload of a replica.
CENSUS_SECONDS: Final = 1.0
JUDGE_BATCHES: Final = 4  # Batches that a choice judges before it tries again: a few milliseconds.
JUDGE_SECONDS: Final = 0.02  # How long a choice that has a page goes on when others turn out unfit,
JUDGE_SECONDS_MAX: Final = 1.0  # and how long one that has none.
WIDER, WIDER_MAX = 4, 1 << 12  # Factor by which the next try asks for more pages, and the most spare pages.
Scope = tuple[str, tuple[str, ...], int]  # Mode, domains and nearness of a request.
Choose = Callable[[int], Picked]  # Takes a number of pages.


class Choices:
    """Chooses pages from the hot orders of a crawl. Only one thread at a time may use it."""

    def __init__(self, hot: HotCrawl, admission: Admission | None) -> None:
        """Choose by cash until `use` is called."""
        self._hot, self._crawl, self._admission = hot, hot.crawl, admission
        self._domains = DomainPages(hot.crawl, hot.terms.domain_bytes)
        self._built = 0  # As of which building of the orders the cached domains are.
        self.trust = RankedOrder.empty(len(hot.crawl))  # The order of mode coverage,
        self._importance: RankedOrder | None = None  # and that of other modes; None for cash.
        self._census, self._census_at = dict[Scope, dict[str, int] | None](), float("-inf")
        self._ahead = dict[str, PagesAhead]()  # By mode.
        self.rng = np.random.default_rng()  # For policies that draw.
        self._policies = PolicyOrders(hot, lambda: self.rng)

    def use(self, orders: Orders) -> None:
        """Choose by these orders from now on."""
        with self._crawl.locked():  # Threads that let the replicas follow tell the indexes of changes.
            if orders.importance is not self._importance:
                if self._importance is not None:
                    self._importance.drop(self._hot.orders)
                self._importance = orders.importance
            if orders.trust is not None and orders.trust is not self.trust:
                self.trust.drop(self._hot.orders)
                self.trust = orders.trust
            if orders.inlinks is not None:
                self._hot.linked(orders.inlinks.apply_news())
            self._policies.use(orders.inlinks, orders.scores)

    def ranking(self, mode: str, policy: str | None) -> RankedOrder | None:
        """Return the order of a mode that is not by cash; None if it is, or if a policy decides."""
        loads = self._crawl.loads
        if mode == "coverage":
            if self.trust.loads != loads:  # Its ids may belong to other pages now.
                self.trust = RankedOrder.empty(len(self._crawl))
            return self.trust
        ranking = self._importance
        return None if policy or ranking is None or ranking.loads != loads else ranking

    # Choosing.

    def pick(self, by: Choice, count: int, ration: Ration | None = None) -> Picked:
        """Return the first free pages that rules admit; see `opic.frontier.picking.pick`.

        With a limit on hosts, those of the hosts that have the first pages.

        Pages not judged yet are judged when they are chosen, and dropped if they are unfit. While there are such pages,
        the answer may lack some pages that could be had, and unless answers are current (`opic.replica.upkeep`), those
        of hosts with unfit ones.
        """
        if not self._crawl.upkeep.quick and by == Choice(by.mode):
            return self._crawl.steadily(lambda: self._from_ahead(by, count, ration))

        def choose(wide: int) -> Picked:
            return self._choose(by, wide, None if by.hosts is None else by.hosts * wide // count, ration)

        picked = self._crawl.steadily(lambda: self._found(choose, count))
        return picked if by.hosts is None else picked.of_hosts(by.hosts)

    def _from_ahead(self, by: Choice, count: int, ration: Ration | None) -> Picked:
        """Take pages that an earlier choice of this mode chose ahead; choose anew if they are too few, old or unfit."""
        version = self._hot.news, self._crawl.loads, self.ranking(by.mode, None)
        before = self._ahead.get(by.mode)
        if before is not None and before.is_valid(version):
            with self._crawl.locked():
                picked = before.take_free(self._hot.orders, SIDES[by.mode], count, self._fit_of(ration))
            if len(picked) == count and not self._unfit(picked).any():
                return picked
        ahead, rest = before.wanted() if before is not None else 0, list[Picked]()

        def choose(wide: int) -> Picked:
            chosen = self._choose(by, wide + ahead, None, ration)
            rest[:] = [chosen.after(wide)]  # They are judged when they are taken.
            return chosen.first(wide)

        began = time.monotonic()
        picked = self._found(choose, count)
        self._ahead[by.mode] = PagesAhead(picked.followed_by(rest[0]), count, version, time.monotonic() - began)
        return picked

    def _found(self, choose: Choose, count: int) -> Picked:
        ways = [self._from_all, self._without_suspects]
        first, second = ways if self._crawl.upkeep.quick else reversed(ways)
        picked, sure = first(choose, count)
        return picked if len(picked) or sure else second(choose, count)[0]

    def _from_all(self, choose: Choose, count: int) -> tuple[Picked, bool]:
        """Choose among all pages, judging more of them as long as unfit ones are met.

        Returns:
            The pages, and whether there are no others.
        """
        self._hot.end_suspicions()
        wide, began = count, time.monotonic()
        while True:
            picked = choose(wide)
            unfit = self._unfit(picked)
            if not unfit.any() and (len(picked) or not self._hot.turning):
                return picked.first(count), True
            fit = picked.only(~unfit)
            if time.monotonic() - began >= (JUDGE_SECONDS if len(fit) else JUDGE_SECONDS_MAX):
                return fit.first(count), False
            self._hot.judge_batches(JUDGE_BATCHES)
            wide = min(WIDER * wide, count + WIDER_MAX)

    def _without_suspects(self, choose: Choose, count: int) -> tuple[Picked, bool]:
        """Choose among the pages of hosts that had no unfit page lately; return what `_from_all` does."""
        wide, began = count, time.monotonic()
        while True:
            picked = choose(wide)
            unfit = self._unfit(picked)
            self._hot.suspects.note(self._hot.shards, picked.shards, picked.hosts, unfit)
            fit = picked.only(~unfit)
            late = time.monotonic() - began >= (JUDGE_SECONDS if len(fit) else JUDGE_SECONDS_MAX)
            if not unfit.any() or len(fit) >= count or late:
                return fit.first(count), not (len(self._hot.suspects) or self._hot.turning)
            wide = min(WIDER * wide, count + WIDER_MAX)

    def _choose(self, by: Choice, count: int, hosts: int | None, ration: Ration | None) -> Picked:
        for _ in range(PICKS_MAX):
            with self._crawl.locked():
                if self._hot.is_current():
                    within = self._within(by.domains)
                    if hosts is not None:
                        first = self._picked(by, hosts, ration, within, 1)
                        if by.host_pages == 1:
                            return first
                        shards = range(len(self._crawl))
                        within = Within([np.unique(first.hosts[first.shards == shard]) for shard in shards])
                    return self._picked(by, count, ration, within, by.host_pages)
            self._hot.prepare()
        raise StoreUnavailable("the store was rebuilt or its server restarted repeatedly during the call; try again")

    def _picked(
        self, by: Choice, count: int, ration: Ration | None, within: Within | None, host_pages: int | None
    ) -> Picked:
        mix, fit = self._mix(by), self._fit_of(ration)
        picks = [
            pick(
                self._hot.orders,
                count,
                [hot.now() for hot in self._hot.shards],
                mode=by.mode,
                busy=self._hot.numbers(by.busy),
                within=within,
                fit=fit if len(mix) == 1 else None,
                nearness=by.nearness,
                by=orders,
                host_pages=host_pages,
            )
            for _, orders in mix
        ]
        shares = [share for share, _ in mix]
        return picks[0] if len(mix) == 1 else mixed(picks, shares, count, self.rng, self._hot.orders, fit, host_pages)

    def _mix(self, by: Choice) -> Mix:
        """Return the orders that decide, with their shares."""
        if by.policy:
            return self._policies.mix(by.policy)
        ranking, hots = self.ranking(by.mode, by.policy), self._hot.orders
        return [(1.0, [hot.strategy for hot in hots] if ranking is None else ranking.orders(hots))]

    def taken(self, by: Choice, picked: Picked) -> None:
        """Note that pages that were picked are to be leased: those that a policy draws are drawn again."""
        if not by.policy:
            return
        with self._crawl.locked():
            if self._hot.is_current():
                for part, (_, orders) in enumerate(self._policies.mix(by.policy)):
                    own, every = picked.parts == part, not (by.domains or by.nearness)
                    draw_again(orders, picked.shards, picked.ids, own, all_pages=every)

    def _unfit(self, picked: Picked) -> Bools:
        """Judge pages that were chosen; return a mask of those that must not be offered, or not yet."""
        unfit = np.zeros(len(picked), np.bool_)
        if self._admission is None:
            return unfit
        shards = picked.shards.tolist()
        self._crawl.urls_of(zip(shards, picked.ids.tolist(), strict=True))  # At once, for rules and for the answer.
        for shard in set(shards):
            positions = np.flatnonzero(picked.shards == shard)
            ids, hot = picked.ids[positions], self._hot.shards[shard]
            self._admission.judge(shard, ids)
            with hot.replica.lock:
                unfit[positions] = hot.order.where[ids] != UNHELD
                if (shut := self._admission.shut(shard, ids)) is not None:
                    unfit[positions] |= shut
        return unfit

    def _fit_of(self, ration: Ration | None) -> Fit | None:
        groups, shards = self._hot.groups, len(self._crawl)
        if ration is None and not groups:
            return None
        groups.begin()
        if ration is not None:
            ration.count_chosen(())  # A former choice may have been dropped.

        def fit(of_shards: Int64s, hosts: Int64s) -> Bools:
            fits = np.ones(len(hosts), np.bool_) if ration is None else ration.fit(hosts * shards + of_shards)
            if groups:
                fits[fits] = groups.fit(self._hot.orders, of_shards[fits], hosts[fits])
            return fits

        return fit

    def priorities(self, picked: Picked) -> Float64s:
        """Return the priorities of pages."""
        priorities = np.ones(len(picked))
        for shard in set(picked.shards.tolist()):
            positions, replica = np.flatnonzero(picked.shards == shard), self._crawl.replicas[shard]
            with replica.lock:
                priorities[positions] = replica.column("priority", picked.ids[positions])
        return priorities

    # The pages that a request is about.

    def _within(self, domains: tuple[str, ...]) -> Within | None:
        if self._built != self._hot.built:  # Numbers of hosts may mean others now.
            self._domains.clear()
            self._built = self._hot.built
        return self._domains.within(domains)

    def _only(self, within: Within | None, nearness: int) -> list[Int64s] | None:
        """Return the pages of each shard within some domains and a depth; None for all."""
        if within is None and not nearness:
            return None
        orders = self._hot.orders
        pages = [None if within is None else within.pages(shard, order) for shard, order in enumerate(orders)]
        return [near_of(order, ids, nearness) for order, ids in zip(orders, pages, strict=True)]

    def _about(self, mode: str, within: Within | None, nearness: int) -> list[Int64s] | None:
        """Return the pages of each shard that requests of a scope may get some time; None for all of the mode."""
        only = self._only(within, nearness)
        if mode != "coverage":
            return only
        ranking, pages = self.ranking(mode, None), list[Int64s]()
        assert ranking is not None
        for shard, (ranked, order) in enumerate(zip(ranking.shards, self._hot.orders, strict=True)):
            trusted = np.flatnonzero(ranked.keys[: order.known] > NOWHERE)
            pages.append(trusted if only is None else np.intersect1d(trusted, only[shard], assume_unique=True))
        return pages

    def first_free(self, by: Choice, seconds_max: float) -> float | None:
        """Return the number of seconds until the first requested page is free; None if there is none."""
        with self._crawl.locked():
            if not self._hot.is_current():
                return None
            first = first_free(
                self._hot.orders,
                mode=by.mode,
                busy=self._hot.numbers(by.busy),
                only=self._about(by.mode, self._within(by.domains), by.nearness),
                seconds_max=seconds_max,
            )
            return 0.0 if self._hot.turning else first

    def waiting(self, mode: str, domains: tuple[str, ...], nearness: int = 0, *, empty: bool) -> dict[str, int] | None:
        """Count the requested pages by what holds them back; None if it can't be told now.

        Costs a lookup of each delayed host, or with domains some 10 ns for each of their pages. If the request got
        pages, its depth is not considered: that would be a pass over all pages; and unless answers are current, the
        counts may be CENSUS_SECONDS old.

        Args:
            mode: of the request. Leased pages of all modes count, since their events may bring new pages.
            domains: of the request.
            nearness: of the request.
            empty: the request got no page, so all free pages are held back by their hosts.
        """
        scope, now = (mode, domains, nearness), time.monotonic()
        if empty or self._crawl.upkeep.quick:
            return self._count_waiting(*scope, empty=empty)
        if now - self._census_at >= CENSUS_SECONDS:
            self._census, self._census_at = {}, now
        if scope not in self._census:
            self._census[scope] = self._count_waiting(*scope, empty=empty)
        return self._census[scope]

    def _count_waiting(
        self, mode: str, domains: tuple[str, ...], nearness: int, *, empty: bool
    ) -> dict[str, int] | None:
        totals, delayed = np.zeros(page_counts.CODES, np.int64), np.zeros(2, np.int64)
        with self._crawl.locked():
            if not self._hot.is_current():
                return None
            for hot in self._hot.shards:
                hot.order.advance(hot.now())
            only = self._about(mode, self._within(domains), nearness if empty else 0)
            for shard, order in enumerate(self._hot.orders):
                if only is None:
                    totals += order.counts.totals
                    delayed += [order.counts.free_pages(order.resting(), side) for side in (0, 1)]
                else:
                    codes = order.counts.code[only[shard]]
                    totals += np.bincount(codes, minlength=page_counts.CODES)
                    resting = order.host_free[order.columns.host[only[shard]]] > order.now
                    free_codes = [2 * page_counts.FREE, 2 * page_counts.FREE + 1]
                    delayed += [np.count_nonzero(resting & (codes == code)) for code in free_codes]
        kinds, sides = totals.reshape(-1, 2), list(SIDES[mode])
        free, leased = kinds[page_counts.FREE], int(kinds[page_counts.LEASED].sum())
        sums = kinds[:, sides].sum(axis=1).tolist()
        counts = {word: sum(sums[number] for number in numbers) for word, numbers in page_counts.WORDS.items()}
        return counts | {"leased": leased, "host_delay": int((free if empty else delayed)[sides].sum())}
