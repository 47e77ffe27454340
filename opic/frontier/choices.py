"""Choices over all shards: the pages that requests get, and what holds the others back.

A choice holds the locks of all replicas, for some milliseconds. A page that no rule has judged yet is judged when it is
chosen.
"""

import time
from typing import Final

import numpy as np

from opic.admission import Admission, Ration
from opic.arrays import Bools, Float64s, Int64s, values_at
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

CENSUS_SECONDS: Final = 1.0
JUDGE_BATCHES: Final = 4  # Batches that a choice judges before it tries again: a few milliseconds.
JUDGE_SECONDS: Final = 0.02  # How long a choice that has a page goes on when others turn out unfit,
JUDGE_SECONDS_MAX: Final = 1.0  # and how long one that has none.
WIDER, WIDER_MAX = 4, 1 << 12  # Factor by which the next try asks for more pages, and the most spare pages.
Scope = tuple[str, tuple[str, ...], int]  # Mode, domains and nearness of a request.


class Choices:
    """Chooses pages from the hot orders of a crawl. Only one thread at a time may use it."""

    def __init__(self, hot: HotCrawl, admission: Admission | None) -> None:
        """Choose by cash until `use` is called."""
        self._hot, self._crawl, self._admission = hot, hot.crawl, admission
        self._domains = DomainPages(hot.crawl, hot.terms.domain_bytes)
        self._built = 0  # As of which building of the orders the cached domains are.
        self.trust = RankedOrder.empty(len(hot.crawl))  # The order of mode coverage,
        self._importance: RankedOrder | None = None  # and that of other modes; None for cash.
        self._census, self._census_at = dict[Scope, dict[str, int]](), float("-inf")
        self._ahead = dict[str, PagesAhead]()  # By mode.
        self.rng = np.random.default_rng()  # For policies that draw.
        self._policies = PolicyOrders(hot, lambda: self.rng)

    def use(self, orders: Orders) -> None:
        """Choose by these orders from now on, but for those whose ids may belong to other pages by now."""
        loads, importance, trust = self._crawl.loads, orders.importance, orders.trust or self.trust
        if importance is not None and importance.loads != loads:
            importance = None
        if trust.loads and trust.loads != loads:
            trust = RankedOrder.empty(len(loads))
        with self._crawl.locked():  # Threads that let the replicas follow tell the indexes of changes.
            if self._importance is not None and self._importance is not importance:
                self._importance.drop(self._hot.orders)
            if self.trust is not trust:
                self.trust.drop(self._hot.orders)
            self._importance, self.trust = importance, trust
            if orders.inlinks is not None:
                self._hot.linked(orders.inlinks.apply_news())
            if orders.inlinks is not None or orders.scores is not None:
                self._policies.use(orders.inlinks, orders.scores)

    def ranking(self, mode: str) -> RankedOrder | None:
        """Return the order of a mode where no policy decides; None if it is by cash."""
        return self.trust if mode == "coverage" else self._importance

    # Choosing.

    def pick(self, by: Choice, count: int, ration: Ration | None = None) -> Picked:
        """Return the first free pages that rules admit; see `opic.frontier.picking.pick`.

        With a limit on hosts, those of the hosts that have the first pages.

        Pages not judged yet are judged when they are chosen, and dropped if they are unfit. While there are such pages,
        the answer may lack some pages that could be had, and unless answers are current (`opic.replica.upkeep`), those
        of hosts with unfit ones.
        """
        quick = self._crawl.upkeep.quick
        if not quick and by == Choice(by.mode):
            return self._from_ahead(by, count, ration)
        picked, _ = self._choose_fit(by, count, ration, quick=quick)
        return picked if by.hosts is None else picked.of_hosts(by.hosts)

    def _from_ahead(self, by: Choice, count: int, ration: Ration | None) -> Picked:
        """Take pages that an earlier choice of this mode chose ahead; choose anew if they are too few, old or unfit."""
        version = self._hot.news, self._crawl.loads, self.ranking(by.mode)
        before = self._ahead.get(by.mode)
        if before is not None and before.is_valid(version):
            with self._hot.all_locked():
                picked = before.take_free(self._hot.orders, SIDES[by.mode], count, self._fit_of(ration))
            if len(picked) == count and not self._unfit(picked).any():
                return picked
        began = time.monotonic()
        ahead = before.wanted() if before is not None else 0
        picked, rest = self._choose_fit(by, count, ration, ahead, quick=False)
        self._ahead[by.mode] = PagesAhead(picked.followed_by(rest), count, version, time.monotonic() - began)
        return picked

    def _choose_fit(
        self, by: Choice, count: int, ration: Ration | None, ahead: int = 0, *, quick: bool
    ) -> tuple[Picked, Picked]:
        """Return the first pages that may be offered, and `ahead` more behind them, which were not judged.

        With `quick`, where answers are current, they come from all hosts; else first from those without suspicion.
        """
        picked, rest, sure = self._judged(by, count, ration, ahead, suspect=not quick)
        if not (sure or len(picked)):
            picked, rest, _ = self._judged(by, count, ration, ahead, suspect=quick)
        return picked, rest

    def _judged(
        self, by: Choice, count: int, ration: Ration | None, ahead: int, *, suspect: bool
    ) -> tuple[Picked, Picked, bool]:
        """Choose and judge, wider and wider while unfit pages are met.

        With `suspect`, hosts that had an unfit page lately are left out; else more pages are judged in between.

        Returns:
            The pages, those ahead, and whether there are no others.
        """
        if not suspect:
            self._hot.suspects.end(self._hot.shards)
        wide, began = count, time.monotonic()
        while True:
            chosen = self._choose(by, wide + ahead, None if by.hosts is None else by.hosts * wide // count, ration)
            picked, rest = chosen.only(slice(wide)), chosen.only(slice(wide, None))  # Judged when they are taken.
            unfit = self._unfit(picked)
            positions = np.flatnonzero(~unfit)[:count]
            fit = picked.only(positions)
            is_late = time.monotonic() - began >= (JUDGE_SECONDS if len(positions) else JUDGE_SECONDS_MAX)
            if suspect:
                self._hot.suspects.note(self._hot.shards, picked.shards, picked.hosts, unfit)
                if not unfit.any() or len(positions) == count or is_late:
                    return fit, rest, not (len(self._hot.suspects) or self._hot.turning)
            elif not unfit.any() and (len(unfit) or not self._hot.turning):
                return fit, rest, True
            elif is_late:
                return fit, rest, False
            else:
                self._hot.judge_batches(JUDGE_BATCHES)
            wide = min(WIDER * wide, count + WIDER_MAX)

    def _choose(self, by: Choice, count: int, hosts: int | None, ration: Ration | None) -> Picked:
        with self._hot.all_locked():
            within = self._within(by.domains)
            if hosts is not None:
                first = self._picked(by, hosts, ration, within, 1)
                if by.host_pages == 1:
                    return first
                shards = range(len(self._hot.shards))
                within = Within([np.unique(first.hosts[first.shards == shard]) for shard in shards])
            return self._picked(by, count, ration, within, by.host_pages)

    def _picked(
        self, by: Choice, count: int, ration: Ration | None, within: Within | None, host_pages: int | None
    ) -> Picked:
        ranking, hots, fit = self.ranking(by.mode), self._hot.orders, self._fit_of(ration)
        mix: Mix = [(1.0, [hot.strategy for hot in hots] if ranking is None else ranking.orders(hots))]
        if by.policy:
            mix = self._policies.mix(by.policy)
        picks = [
            pick(
                hots,
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
        return picks[0] if len(mix) == 1 else mixed(picks, shares, count, self.rng, hots, fit, host_pages)

    def taken(self, by: Choice, picked: Picked) -> None:
        """Note that pages that a policy picked are to be leased: those that it draws are drawn again."""
        assert by.policy is not None
        with self._hot.all_locked():
            for part, (_, orders) in enumerate(self._policies.mix(by.policy)):
                own, every = picked.parts == part, not (by.domains or by.nearness)
                draw_again(orders, picked.shards, picked.ids, own, all_pages=every)

    def _unfit(self, picked: Picked) -> Bools:
        """Judge pages that were chosen; return a mask of those that must not be offered, or not yet."""
        unfit = np.zeros(len(picked.ids), np.bool_)
        if self._admission is None:
            return unfit
        positions = {shard: np.flatnonzero(picked.shards == shard) for shard in set(picked.shards.tolist())}
        self._admission.judge({shard: picked.ids[mine] for shard, mine in positions.items()})
        for shard, mine in positions.items():
            ids = picked.ids[mine]
            with self._hot.locked(shard) as hot:
                unfit[mine] = hot.order.where[ids] != UNHELD
                if (shut := self._admission.shut(shard, ids)) is not None:
                    unfit[mine] |= shut
        return unfit

    def _fit_of(self, ration: Ration | None) -> Fit | None:
        groups, shards = self._hot.groups, len(self._hot.shards)
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
        priorities = np.ones(len(picked.ids))
        for shard in set(picked.shards.tolist()):
            mine = picked.shards == shard
            if (own := self._hot.orders[shard].columns.priority(picked.ids[mine])) is not None:
                priorities[mine] = own
        return priorities

    # The pages that a request is about.

    def _within(self, domains: tuple[str, ...]) -> Within | None:
        if not domains:
            return None
        if self._built != self._hot.built:  # Numbers of hosts may mean others now.
            self._domains.clear()
            self._built = self._hot.built
        return self._domains.within(domains)

    def _about(self, mode: str, within: Within | None, nearness: int) -> list[Int64s] | None:
        """Return the pages of each shard that requests of a scope may get some time; None for all of the mode."""
        if mode != "coverage" and within is None and not nearness:
            return None
        pages = list[Int64s]()
        for shard, (order, ranked) in enumerate(zip(self._hot.orders, self.trust.shards, strict=True)):
            ids = None if within is None else within.pages(shard, order)
            if nearness:
                ids = near_of(order, ids, nearness)
            if ids is None:
                ids = np.arange(order.known)
            if mode == "coverage":
                ids = ids[values_at(ranked.keys, ids, NOWHERE) > NOWHERE]
            pages.append(ids)
        return pages

    def first_free(self, by: Choice, seconds_max: float) -> float | None:
        """Return the number of seconds until the first requested page is free; None if there is none."""
        with self._hot.all_locked():
            first = first_free(
                self._hot.orders,
                mode=by.mode,
                busy=self._hot.numbers(by.busy),
                only=self._about(by.mode, self._within(by.domains), by.nearness),
                seconds_max=seconds_max,
            )
        return 0.0 if self._hot.turning else first

    def waiting(self, mode: str, domains: tuple[str, ...], nearness: int = 0, *, empty: bool) -> dict[str, int]:
        """Count the requested pages by what holds them back.

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

    def _count_waiting(self, mode: str, domains: tuple[str, ...], nearness: int, *, empty: bool) -> dict[str, int]:
        totals, delayed = np.zeros(page_counts.CODES, np.int64), np.zeros(2, np.int64)
        with self._hot.all_locked():
            for order in self._hot.orders:
                order.settle()
            only = self._about(mode, self._within(domains), nearness if empty else 0)
            for shard, order in enumerate(self._hot.orders):
                if only is None:
                    totals += order.counts.totals
                    delayed += order.counts.free_pages(order.resting())
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
