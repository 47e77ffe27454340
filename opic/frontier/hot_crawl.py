"""The hot orders of all shards of a crawl: created on first use, kept up to date with replicas and leases.

The replicas notify the orders of the records they apply. Held pages and hosts are read in full when a shard is first
used, and again when changes by other endpoints may have been missed.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import numpy as np

from opic.admission import Admission
from opic.admission.verdicts import URLS_AT_ONCE
from opic.arrays import Bools, Int64s
from opic.frontier.group_claims import Ruling
from opic.frontier.held_pages import Held, read_held
from opic.frontier.host_groups import HostGroups
from opic.frontier.hot_order import HotOrder
from opic.frontier.hot_shard import HELD_SECONDS_MIN, HotShard
from opic.frontier.page_counts import CENSUS_KINDS, CODES, LEASED
from opic.frontier.requests import BY_DOMAIN, FrontierTerms
from opic.model.books import Books
from opic.model.cash import CLASSES_MAX, MILLION, Flag
from opic.replica import Crawl
from opic.replica.changes import Change, ChangeId, Changes
from opic.replica.crawl import Outdated
from opic.replica.effect import Effect
from opic.store.keys import of_call
from opic.urls.canonical import shard_of

JUDGE_REST: Final = 20  # Where answers need not be current, the pause between two batches of judging, as a multiple,
JUDGE_REST_SUSPECTS: Final = 5  # and while hosts are left out because of pages not judged yet.
OVERDRAWN_SECONDS: Final = 1.0
FREEING: Final = {b"f", b"m", b"r"}  # Fields of changes after which pages may be free.

SUSPECT_SECONDS_FIRST: Final = 5.0
SUSPECT_SECONDS_MAX: Final = 60.0
SUSPECTS_MAX: Final = 1 << 16  # About 10 MB; the oldest are forgotten, and their hosts rest until their time is over.


class Suspects:
    """Hosts with a page that was chosen and turned out not to be offered: they rest for a while, as in a delay.

    Pages are judged in the order in which they became known. A choice that meets a page before its turn judges it, and
    drops it if it is unfit; more of that kind are then likely behind it. So its host rests until all pages are judged,
    or for a time that doubles whenever the next try meets an unfit page again.

    Not thread-safe; the locks of replicas are taken here.
    """

    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], tuple[float, float]] = {}  # By shard and host: until when, and for how long.

    def __len__(self) -> int:
        """Count the hosts, including those whose time is over."""
        return len(self._spans)

    def note(self, hots: Sequence[HotShard], shards: Int64s, hosts: Int64s, unfit: Bools) -> None:
        """Let the hosts of unfit pages rest."""
        for shard in set(shards[unfit].tolist()):
            hot, numbers = hots[shard], np.unique(hosts[unfit & (shards == shard)])
            with hot.replica.lock:
                now = hot.now()
                until = [now + self._span(shard, host, now) for host in numbers.tolist()]
                hot.order.rest(numbers, np.array(until))
        while len(self._spans) > SUSPECTS_MAX:
            del self._spans[next(iter(self._spans))]

    def _span(self, shard: int, host: int, now: float) -> float:
        _, span = self._spans.pop((shard, host), (0.0, SUSPECT_SECONDS_FIRST / 2))
        span = min(2 * span, SUSPECT_SECONDS_MAX)
        self._spans[shard, host] = now + span, span
        return span

    def end(self, hots: Sequence[HotShard]) -> None:
        """Suspect no host any more: choices are from all hosts again."""
        if not self._spans:
            return
        for shard, hot in enumerate(hots):
            mine = {host: until for (number, host), (until, _) in self._spans.items() if number == shard}
            with hot.replica.lock:
                # Otherwise it rests for another reason by now.
                still = [host for host, until in mine.items() if hot.order.host_free[host] == until]
                hot.order.rest(np.array(still, np.int64), np.zeros(len(still)))
        self._spans.clear()


class HotCrawl:
    """The hot orders of all shards. Only one thread at a time may use it; other threads may update the replicas."""

    def __init__(self, crawl: Crawl, terms: FrontierTerms, admission: Admission | None) -> None:
        """Register with the replicas. `prepare` creates the orders."""
        self.crawl, self.terms, self._admission = crawl, terms, admission
        self._shards: list[HotShard | None] = [None] * len(crawl)
        # As `prepare` left them: the order of each shard, with its leases and hosts, and without.
        self.shards, self.orders = list[HotShard](), list[HotOrder]()
        self.built = 0  # How often orders were made anew: before that, numbers of hosts may have meant others.
        self.news = 0  # How often pages became free other than by the journal or their time.
        self._rules: object = None
        self.suspects = Suspects()
        self.groups = HostGroups(crawl.replicas, terms.politeness.by)
        self._judged_shard, self._judged_next = 0, float("-inf")  # The shard judged last; time of the next batch.
        self._overdrawn = (float("-inf"), 0)
        self._changes = list[Changes]()
        for shard, replica in enumerate(crawl.replicas):
            replica.listeners.append(partial(self._applied, shard))
            hear, lost = partial(self._hear, shard), partial(self._lose, shard)
            self._changes.append(Changes(crawl.shards[shard].keys.changes, hear, lost))
        if admission is not None:
            admission.listeners.append(self._judged)

    def _applied(self, shard: int, effect: Effect, changed: Int64s) -> None:
        if (hot := self._current(shard)) is not None:
            hot.applied(effect, changed)

    def _hear(self, shard: int, changes: list[Change]) -> None:
        self.news += any(FREEING & fields.keys() for fields, _ in changes)
        if (hot := self._current(shard)) is not None:
            hot.hear(changes)

    def _lose(self, shard: int) -> None:
        if (hot := self._current(shard)) is not None:
            hot.lost = True

    def heard(self, shard: int) -> ChangeId:
        """Return the last change that was heard of; the caller holds the replica's lock."""
        return self._changes[shard].heard

    def _current(self, shard: int) -> HotShard | None:
        """Return the order of a replica as it was loaded last, if there is one; the caller holds its lock."""
        hot = self._shards[shard]
        return hot if hot is not None and hot.loads == hot.replica.loads else None

    @contextmanager
    def locked(self, shard: int) -> Iterator[HotShard]:
        """Hold the lock of a shard.

        Raises:
            Outdated: its replica was reloaded since `prepare`.
        """
        hot = self.shards[shard]
        with hot.replica.lock:
            if hot.loads != hot.replica.loads:
                raise Outdated
            yield hot

    @contextmanager
    def all_locked(self) -> Iterator[None]:
        """Hold the locks of all shards.

        Raises:
            Outdated: a replica was reloaded since `prepare`.
        """
        with self.crawl.locked():
            if any(hot.loads != hot.replica.loads for hot in self.shards):
                raise Outdated
            yield

    def drop(self) -> None:
        """Drop all state; `prepare` builds it again from the replicas and the store."""
        with self.crawl.locked():
            for shard in range(len(self.crawl)):
                self._discard(shard)
            self.shards, self.orders = [], []
            self.groups = HostGroups(self.crawl.replicas, self.terms.politeness.by)
            self._begin_anew()

    def _discard(self, shard: int) -> None:
        """Drop the order of a shard, if there is one."""
        with self.crawl.replicas[shard].lock:
            if (hot := self._shards[shard]) is not None:
                self._shards[shard] = None
                hot.order.close()

    def _begin_anew(self) -> None:
        self.suspects = Suspects()
        self.built += 1

    # Updating.

    def prepare(self) -> None:
        """Read the held pages and hosts where they are not known, and judge new pages. For `FrontierScheduler.ask`."""
        if self._admission is not None:
            self._judge_more(self._admission)
        for shard, hot in enumerate(self._shards):
            if hot is not None and hot.set_back:
                self._discard(shard)
        if wanted := [shard for shard in range(len(self._shards)) if (hot := self._current(shard)) is None or hot.lost]:
            self._read(wanted)
            self.shards = [hot for hot in self._shards if hot is not None]
            self.orders = [hot.order for hot in self.shards]
        self._hear_groups()

    def reserve(self, shards: Int64s, ids: Int64s, hosts: Int64s) -> None:
        """Keep pages, (n,) each, from other choices until the answer of the store arrives."""
        for shard in set(shards.tolist()):
            mine = shards == shard
            with self.locked(shard) as hot:
                hot.order.reserve(ids[mine], hosts[mine])
                if self.groups:
                    self.groups.reserve(shard, hosts[mine].tolist())

    def _read(self, shards: Sequence[int]) -> None:
        """Read the held pages and hosts of shards; create a hot order where there is none for the loaded replica."""
        self.news += 1
        for shard in shards:
            replica = self.crawl.replicas[shard]
            with replica.lock:
                if (hot := self._current(shard)) is None:
                    self._discard(shard)
                    hot = self._shards[shard] = HotShard(replica, self.terms, self._admission, self.groups)
                    self._begin_anew()
                hot.begin_load()
                self.groups.clear(shard)
        self.crawl.begin_changes({shard: self._changes[shard] for shard in shards})
        read = read_held(self.crawl, shards)
        for shard, held_pages in zip(shards, read, strict=True):
            with self.crawl.replicas[shard].lock:
                if (hot := self._current(shard)) is not None:  # Otherwise it is made anew before the next choice.
                    hot.load(held_pages)
                    self.groups.note_addresses(shard, held_pages.addresses)
                    self.groups.note_domains(shard)
        self._load_groups(dict(zip(shards, read, strict=True)))

    # Politeness groups.

    def _load_groups(self, read: Mapping[int, Held]) -> None:
        """Take in when the groups are free whose home is among these shards, and let their hosts rest."""
        rests = dict[str, tuple[int, float]]()
        for home, stored in read.items():
            own = {name for name, politeness in stored.politeness.items() if politeness.delay_seconds == 0}
            self.groups.undelay(home, frozenset(own))
            names, free = stored.groups
            rests |= {name: (home, until) for name, until in zip(names, free.tolist(), strict=True)}
        self.rest_groups(rests, anew=True)

    def _hear_groups(self) -> None:
        """Take in what the changes that came since told of groups."""
        rests = dict[str, tuple[int, float]]()
        for shard, hot in enumerate(self._shards):
            if hot is None or not (hot.group_changes or self.groups.by == BY_DOMAIN):
                continue
            with hot.replica.lock:
                if self._current(shard) is None:  # The next choice makes a new one.
                    continue
                told, hot.group_changes = hot.group_changes, []
                if len(hosts := self.groups.note_domains(shard)):
                    hot.rest_grouped(hosts)
                for fields in told:
                    terms = fields.get(b"a", b"").decode().split()
                    pairs = zip(terms[::2], terms[1::2], strict=True)
                    named = {host: "" if address == "-" else address for address, host in pairs}
                    if len(hosts := self.groups.note_addresses(shard, named)):
                        hot.rest_grouped(hosts)
                    ends = fields.get(b"g", b"").decode().split()
                    pairs = zip(ends[::2], ends[1::2], strict=True)
                    rests |= {name: (shard, float(end) / MILLION) for end, name in pairs}
        if rests:
            self.rest_groups(rests)

    def rest_claimed(self, rulings: Mapping[int, Sequence[Ruling]]) -> None:
        """Let groups rest as their homes said when they were claimed."""
        self.rest_groups({
            ruling.name: (home, max(ruling.until, ruling.now + HELD_SECONDS_MIN))
            for home, by_home in rulings.items()
            for ruling in by_home
            if ruling.until
        })  # fmt: skip

    def rest_groups(self, rests: Mapping[str, tuple[int, float]], *, anew: bool = False) -> None:
        """Let groups rest, given their homes and when they are free by the clocks there, in Unix seconds.

        With `anew`, all groups that rest: some of their hosts are new.
        """
        resting = set[int]()
        for name, (home, until) in rests.items():
            hot = self._shards[home]
            if hot is not None and (group := self.groups.number(name)) is not None:
                self.groups.rest(group, hot.monotonic(until))
                resting.add(group)
        if anew:
            resting.update(self.groups.resting())
        if not resting:
            return
        for shard, hot in enumerate(self._shards):
            if hot is None:
                continue
            with hot.replica.lock:
                if self._current(shard) is not None and len(hosts := self.groups.hosts_in(shard, resting)):
                    hot.rest_grouped(hosts)

    def _judge_more(self, admission: Admission) -> None:
        rules = admission.check_policy()
        if rules is not self._rules:
            self._rules = rules
            for shard in range(len(self.crawl)):
                self._judged(shard, np.arange(len(self.crawl.replicas[shard])))
        if not admission.behind:
            self.suspects.end(self.shards)
        elif self.crawl.upkeep.quick:
            self.judge_batches(1)
        elif time.monotonic() >= self._judged_next:  # Choices judge what they meet before.
            began, self._judged_shard = time.thread_time(), (self._judged_shard + 1) % len(self.crawl)
            admission.judge_next(self._judged_shard)
            rest = JUDGE_REST_SUSPECTS if len(self.suspects) else JUDGE_REST
            self._judged_next = time.monotonic() + rest * (time.thread_time() - began)

    def judge_batches(self, count: int) -> None:
        """Judge the next pages of all shards, up to `count` batches in total."""
        left = count * URLS_AT_ONCE
        for shard in range(len(self.crawl)):
            while self._admission is not None and left > 0 and (judged := self._admission.judge_next(shard)):
                left -= judged

    def _judged(self, shard: int, ids: Int64s) -> None:
        """Update the order of a shard after the verdicts on distinct pages changed."""
        with self.crawl.replicas[shard].lock:
            if (hot := self._current(shard)) is not None:
                ids = ids[ids < len(hot.replica)]
                hot.order.changed(ids)
                hot.note_terms(ids)

    @property
    def turning(self) -> bool:
        """Whether pages are still held back, or not, by former rules."""
        return self._admission is not None and self._admission.turning

    def linked(self, by_shard: Sequence[Int64s]) -> None:
        """Apply changed in-links of pages; the caller holds the locks."""
        for hot, ids in zip(self._shards, by_shard, strict=True):
            if hot is not None and len(ids):
                hot.linked(ids)

    def number(self, host: str) -> tuple[int, int] | None:
        """Return the shard of a host and its number there; None if it has no pages."""
        shard = shard_of(host, len(self.crawl))
        number = self.crawl.replicas[shard].hosts.number(host)
        return None if number is None else (shard, number)

    def numbers(self, hosts: Collection[str]) -> list[Int64s] | None:
        """Return by shard the numbers of hosts; None if there are none."""
        if not hosts:
            return None
        by_shard: list[list[int]] = [[] for _ in self.crawl.replicas]
        for shard_host in map(self.number, hosts):
            if shard_host is not None:
                by_shard[shard_host[0]].append(shard_host[1])
        return [np.array(numbers, np.int64) for numbers in by_shard]

    # What is said of hosts.

    def report(self, delays: Mapping[str, float]) -> None:
        """Store crawl-delays, but only of hosts that have pages here, so that a client can't fill the store.

        Each report is sent, because another endpoint may have stored another one since, and the last one counts.
        """
        by_shard: dict[int, list[str]] = {}
        for host, delay in delays.items():
            if (shard_host := self.number(host)) is not None:
                by_shard.setdefault(shard_host[0], []).extend((host, repr(delay)))
        if by_shard:
            self.crawl.ask([
                of_call("delays", ((keys := self.crawl.shards[shard].keys).crawl_delays, keys.head), *pairs)
                for shard, pairs in by_shard.items()
            ])  # fmt: skip

    def block(self, host: str, until: float) -> None:
        """Lease no page of a host before a time, in Unix seconds, if it has pages here; a past time ends that."""
        if (shard_host := self.number(host)) is not None:
            keys = self.crawl.shards[shard_host[0]].keys
            self.crawl.ask([of_call("block", (keys.blocks, keys.changes, keys.head), host, repr(until))])

    def limit(self, host: str, pages: int) -> bool:
        """Limit how many pages of a host are read; 0 removes the limit. Return whether the host has pages."""
        if (shard_host := self.number(host)) is None:
            return False
        keys = self.crawl.shards[shard_host[0]].keys
        self.crawl.ask([of_call("limit", (keys.limits, keys.changes, keys.head), host, pages)])
        return True

    # Totals of the crawl.

    def leases(self) -> int:
        """Count the leases of all endpoints; one whose time is over counts until the next choice."""
        return int(sum(order.counts.totals[2 * LEASED : 2 * LEASED + 2].sum() for order in self.orders))

    def totals(self) -> Int64s:
        """Count the pages by what holds them back, (`page_counts.CODES` / 2, 2): never read, and read."""
        counts = np.zeros(CODES, np.int64)
        for hot in self.shards:
            with hot.replica.lock:
                hot.order.settle()
                counts += hot.order.counts.totals
        return counts.reshape(-1, 2)

    def census(self) -> Int64s:
        """Count the known pages by class and by what holds them back, (classes, `page_counts.CENSUS_KINDS`)."""
        counts = np.zeros((CLASSES_MAX, len(CENSUS_KINDS)), np.int64)
        for hot in self._advanced():
            counts += hot.order.counts.census(hot.replica.state)
        return counts

    def kinds(self) -> Int64s:
        """Count the pages as `totals` does, as of now."""
        for _ in self._advanced():
            pass
        return self.totals()

    def _advanced(self) -> Iterator[HotShard]:
        """Yield each shard as of now, while its lock is held."""
        for hot in self.shards:
            with hot.replica.lock:
                hot.order.advance(hot.now())
                yield hot

    def group_counts(self) -> tuple[int, int]:
        """Count the politeness groups, and the free pages of hosts whose group rests."""
        resting, pages = self.groups.resting(), 0
        for shard, hot in enumerate(self._advanced() if resting else ()):
            pages += int(hot.order.counts.free_pages(self.groups.hosts_in(shard, resting)).sum())
        return len(self.groups), pages

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
