"""The hot orders of all shards of a crawl, made when they are first wanted and kept up with replicas and leases.

The replicas tell what they apply; a choice holds the locks of all of them, some hundred microseconds. What is held is
read when a shard is first used, and anew when more changed than could be heard of.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from opic.errors import StoreUnavailable
from opic.frontier.admission import Admission, Ration
from opic.frontier.held_pages import read_held, read_released, read_stamps
from opic.frontier.hot_order import HotOrder, Int64s
from opic.frontier.hot_shard import HotShard
from opic.frontier.picking import Fit, Picked, Within, first_free, pick
from opic.frontier.requests import FrontierTerms
from opic.model.cash import Books, Flag
from opic.replica import Crawl
from opic.replica.effect import Effect
from opic.urls.canonical import registered_domain, shard_of

PAGES_EXACT: Final = 100_000  # Up to so many pages,
HELD_EXACT: Final = 5_000  # and leases, waits and delays, each answer is of the very state that the store then has.
DOMAINS_MAX: Final = 64  # Whose hosts and pages are remembered.
PICKS_MAX: Final = 40  # Of one choice, after the store was made anew or pages were shut: each is twice as wide.
JUDGE_REST: Final = 20  # On a larger store, pages have their turn after so many times what the last ones took.
LEASE_SECONDS_MIN: Final = 0.05  # A lease that is over binds for so long, until it is swept.
OVERDRAWN_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Domain:
    """A domain's hosts, as far as they were looked through."""

    within: Within
    seen: list[int] = field(default_factory=list)  # Hosts of each shard.


class HotCrawl:
    """For one thread at a time, beside those that let the replicas follow."""

    def __init__(self, crawl: Crawl, terms: FrontierTerms, admission: Admission | None) -> None:
        """Nothing is ordered yet."""
        self.crawl, self.terms, self._admission = crawl, terms, admission
        self._shards: list[HotShard | None] = [None] * len(crawl)
        self.stale: set[int] = set()  # Shards of which all that is held is to be read anew.
        self._rules: object = None
        self._judged_shard, self._judged_next = 0, float("-inf")  # Whose pages had their turn last; when others have.
        self._domains: dict[str, _Domain] = {}
        self._overdrawn = (float("-inf"), 0)
        for shard, replica in enumerate(crawl.replicas):
            replica.listeners.append(partial(self._applied, shard))

    def _applied(self, shard: int, effect: Effect, changed: Int64s) -> None:
        hot = self._shards[shard]
        if hot is not None and hot.loads == hot.replica.loads:
            hot.applied(effect, changed)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let the replicas stand still."""
        with ExitStack() as stack:
            for replica in self.crawl.replicas:
                stack.enter_context(replica.lock)
            yield

    @property
    def shards(self) -> list[HotShard]:
        """The shards; `prepare` made them."""
        return [hot for hot in self._shards if hot is not None]

    @property
    def orders(self) -> list[HotOrder]:
        """Their orders."""
        return [hot.order for hot in self.shards]

    def drop(self) -> None:
        """Forget all: it is made again from replicas and store."""
        with self.locked():
            self._shards = [None] * len(self.crawl)
            self._domains.clear()
            self.stale.clear()

    # Keeping up.

    def prepare(self) -> None:
        """Let the replicas catch up, and what is held; judge pages that are new."""
        self.crawl.follow()
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
        """Tell whether the store is small enough for each answer to be of its very state."""
        if sum(map(len, self.crawl.replicas)) > PAGES_EXACT:
            return False
        return sum(hot.held_count() for hot in self.shards) <= HELD_EXACT

    def _read(self, shards: Sequence[int]) -> None:
        """Read what is held in shards, making hot orders where there are none of these pages."""
        lsns = []
        for shard in shards:
            replica = self.crawl.replicas[shard]
            with replica.lock:
                hot = self._shards[shard]
                if hot is None or hot.loads != replica.loads:
                    shut = partial(self._admission.shut, shard) if self._admission is not None else None
                    hot = HotShard(replica, self.terms.politeness, self.terms.discovery, shut)
                    self._shards[shard] = hot
                    self._domains.clear()
                hot.begin_call()
                lsns.append(replica.head.lsn)
        found = read_held(self.crawl, shards, self.terms.politeness.retry_seconds, LEASE_SECONDS_MIN)
        for shard, lsn, held in zip(shards, lsns, found, strict=True):
            hot = self._shards[shard]
            assert hot is not None
            with hot.replica.lock:
                if hot.loads == hot.replica.loads:  # Else it is made anew before the next choice.
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
                self._shut(shard, np.arange(len(self.crawl.replicas[shard])))
        if self.is_exact():
            for shard in range(len(self.crawl)):
                self._shut(shard, self._admission.judge_next(shard))
        elif time.monotonic() >= self._judged_next:  # A page that is chosen before its turn is judged then.
            began, self._judged_shard = time.thread_time(), (self._judged_shard + 1) % len(self.crawl)
            self._shut(self._judged_shard, self._admission.judge_next(self._judged_shard))
            self._judged_next = time.monotonic() + JUDGE_REST * (time.thread_time() - began)

    def _shut(self, shard: int, ids: Int64s) -> None:
        """Let the order of a shard take notice of what was said of pages."""
        if not len(ids):
            return
        with self.crawl.replicas[shard].lock:
            hot = self._shards[shard]
            if hot is not None and hot.loads == hot.replica.loads:
                hot.order.changed(ids[ids < len(hot.replica)])

    def _ask_waits(self) -> None:
        """Read how long pages wait whose fetch failed: the journal does not tell how often it did."""
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
        """Take what a shard answered to who gave leases back: what it counts then, and the pages."""
        hot = self._shards[shard]
        if hot is not None and ids:
            with hot.replica.lock:
                if hot.loads == hot.replica.loads:
                    hot.give_back(ids, freed)

    def hear_freed(self, shard: int) -> None:
        """Take what was given back through other endpoints; what is held is stale where that can't be told any more."""
        hot = self.shards[shard]
        freed, ids = read_released(self.crawl, shard, hot.stamp.freed)
        if ids is None:
            self.stale.add(shard)
            return
        with hot.replica.lock:
            hot.hear_freed(ids, freed)

    def look(self) -> None:
        """Be as the store is now, for a look without a call that leases."""
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

    def pick(
        self, mode: str, domain: str | None, count: int, busy: Collection[str], ration: Ration | None = None
    ) -> Picked:
        """Return the first free pages, most cash first, all of them judged; see `opic.frontier.picking.pick`."""
        return self.crawl.steadily(lambda: self._pick(mode, domain, count, busy, ration))

    def _pick(self, mode: str, domain: str | None, count: int, busy: Collection[str], ration: Ration | None) -> Picked:
        wider = count
        for _ in range(PICKS_MAX):
            with self.locked():
                current = all(map(self._is_current, range(len(self.crawl))))
                if current:
                    now, fit = [hot.now() for hot in self.shards], self._fit_of(ration)
                    wanted, numbers = self._within(domain), self._numbers(busy)
                    found = pick(self.orders, wider, now, mode=mode, busy=numbers, within=wanted, fit=fit)
            if not current:
                self.prepare()
                continue
            if self._judged_shut(found):
                if ration is not None:
                    ration.take(())
                wider *= 2
                continue
            following = found.counts[count].item() if len(found) > count else found.following
            return Picked(found.shards[:count], found.ids[:count], found.hosts[:count], found.counts[:count], following)
        raise StoreUnavailable("the store is made anew, or its server started, again and again")

    def _judged_shut(self, found: Picked) -> bool:
        """Judge pages that were chosen; tell whether one of them is not to be offered."""
        if self._admission is None:
            return False
        any_shut = False
        for shard in np.unique(found.shards).tolist():
            shut = self._admission.judge(shard, found.ids[found.shards == shard])
            self._shut(shard, shut)
            any_shut |= len(shut) > 0
        return any_shut

    def _fit_of(self, ration: Ration | None) -> Fit | None:
        if ration is None:
            return None
        shards = len(self.crawl)
        return lambda of_shards, hosts: ration.fit(hosts * shards + of_shards)

    def first_free(self, mode: str, domain: str | None, busy: Collection[str], seconds_max: float) -> float | None:
        """Return in how many seconds the first wanted page is free; None if there is none."""
        with self.locked():
            if not all(map(self._is_current, range(len(self.crawl)))):
                return None
            wanted, numbers = self._within(domain), self._numbers(busy)
            return first_free(self.orders, mode=mode, busy=numbers, within=wanted, seconds_max=seconds_max)

    def number(self, host: str) -> tuple[int, int] | None:
        """Return the shard of a host and its number there; None if it has no pages."""
        shard = shard_of(host, len(self.crawl))
        number = self.crawl.replicas[shard].hosts.number(host)
        return None if number is None else (shard, number)

    def _numbers(self, hosts: Collection[str]) -> list[Int64s] | None:
        if not hosts:
            return None
        found: list[list[int]] = [[] for _ in self.crawl.replicas]
        for place in map(self.number, hosts):
            if place is not None:
                found[place[0]].append(place[1])
        return [np.array(numbers, np.int64) for numbers in found]

    def _within(self, domain: str | None) -> Within | None:
        """Return the hosts of a domain, those that are new among them."""
        if domain is None:
            return None
        known = self._domains.pop(domain, None)
        if known is None:
            nothing = [np.empty(0, np.int64) for _ in self.crawl.replicas]
            known = _Domain(Within(nothing), [0] * len(self.crawl))
            if len(self._domains) >= DOMAINS_MAX:
                del self._domains[next(iter(self._domains))]
        self._domains[domain] = known  # Last in, so that the first one is the longest unused.
        suffix = "." + domain
        for shard, replica in enumerate(self.crawl.replicas):
            names, seen = replica.hosts.names, known.seen[shard]
            if len(names) > seen:
                # All hosts below it are of one registered domain, unless it is a public suffix.
                site, among = replica.hosts.domain(registered_domain(domain)), list(range(seen, len(names)))
                if registered_domain(f"x.{domain}") == registered_domain(domain):
                    among = (
                        seen + np.flatnonzero(replica.hosts.domains[seen:] == (-1 if site is None else site))
                    ).tolist()
                fresh = [i for i in among if names[i] == domain or names[i].endswith(suffix)]
                if fresh:
                    known.within.hosts[shard] = np.concatenate((known.within.hosts[shard], np.array(fresh, np.int64)))
                known.seen[shard] = len(names)
        return known.within

    # Of the whole crawl.

    def running(self) -> int:
        """Count the leases that run, as far as they were heard of."""
        return sum(hot.running for hot in self.shards)

    def live(self) -> int:
        """Count the live pages."""
        return sum(replica.books.live for replica in self.crawl.replicas)

    def total(self, books: Sequence[Books]) -> int:
        """Return the sum of the scores of live pages, at least 1, of which an importance is a share."""
        merged = Books.merged(books, self.crawl.rules)
        if merged.cuts and time.monotonic() - self._overdrawn[0] > OVERDRAWN_SECONDS:
            owed = 0
            for replica in self.crawl.replicas:
                with replica.lock:
                    live = (replica.state & (Flag.KNOWN | Flag.GONE)) == Flag.KNOWN
                    owed -= int(np.minimum(replica.spent() + replica.cash(), 0)[live].sum())
            self._overdrawn = time.monotonic(), owed
        return max(merged.importance_total(self.crawl.rules.minted) + self._overdrawn[1] * bool(merged.cuts), 1)
