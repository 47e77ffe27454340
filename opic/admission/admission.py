"""URL admission: filter the pages that may be suggested, by operator rules and crawler trap detection.

Rules and thresholds are one document in the store. All endpoints use the same document, at most LOOK_SECONDS after it
was set. The verdict on a page depends on its URL alone and takes one byte. Pages are judged in batches, in the order in
which they became known; a page that is chosen before its turn is judged individually. The verdict on a host or a site
depends on its share of the crawl and is recomputed as the crawl goes on.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import numpy as np

from opic.admission.policy import Policy, StoredPolicy, check_policy
from opic.admission.shares import Ration, Weighed, grouped, large_hosts, outgrown_sites
from opic.admission.verdicts import HostTerms, Verdicts
from opic.arrays import Bools, Float64s, Int64s, Uint8s
from opic.background import lower_priority
from opic.messages.importance import AppliedRule
from opic.query.host_index import HostNames
from opic.query.snapshots import Snapshot
from opic.replica import Crawl
from opic.replica.crawl import Outdated
from opic.urls.canonical import canonical_url, host_of, registered_domain
from opic.urls.rules import RuleBook
from opic.urls.scope import Scope
from opic.urls.traps import WINDOW, Shapes, Verdict

log = logging.getLogger("opic.frontier")

LOOK_SECONDS: Final = 1.0  # Interval at which an endpoint checks whether another one has set rules.
WEIGH_REST: Final = 200  # Pause between two weighings of hosts and sites, as a multiple of the CPU time of the last,
WEIGH_SECONDS_MIN: Final = 0.1  # and its minimum in seconds.
SPARED_SECONDS: Final = 1.0  # Interval between two pages of an outgrown site when no other page is available.
NO_LIMIT: Final = 1 << 40
SCOPE: Final = "scope"  # The name of the rule that pages outside the scope break.
TERMS_OF_MAX: Final = 1 << 16  # Hosts whose scope and rules are remembered: about 10 MB.


class Admission:
    """Decides which pages may be suggested. Thread-safe."""

    def __init__(self, crawl: Crawl, scope: Scope | None = None) -> None:
        """Create the filter: only pages in the scope are offered. It reads the policy from the store on first use."""
        self.scope = scope or Scope()
        self._crawl, self._stored = crawl, StoredPolicy(crawl)
        self._lock = threading.RLock()
        self._policy = check_policy({})
        self._version: bytes | None = None  # The version of the policy in use, as read from the store.
        self._weigher: threading.Thread | None = None
        self._looked = float("-inf")
        # Called with a shard and the pages whose verdict or revisit time changed, in any thread.
        self.listeners: list[Callable[[int, Int64s], None]] = []
        self._start()

    def _start(self) -> None:
        """Discard all verdicts on pages and hosts."""
        self._loads, self._year = self._crawl.loads, time.gmtime().tm_year
        self._table = HostNames(self._crawl.replicas)
        book, traps = self._policy.book, self._policy.traps
        self._verdicts = [
            Verdicts(self._crawl, n, book, traps, self._year, scoped=bool(self.scope)) for n in range(len(self._crawl))
        ]
        self._judging = self._judges(self._policy)
        self._begin()

    def _turn(self, policy: Policy) -> None:
        """Judge by another policy from now on. Pages keep their verdicts until it is their turn."""
        judging, self._policy, self._year = self._judging, policy, time.gmtime().tm_year
        if not judging or not self._judges(policy):
            self._start()
            return
        for verdicts in self._verdicts:
            verdicts.turn(policy.book, policy.traps, self._year)
        self._begin()

    def _judges(self, policy: Policy) -> bool:
        return bool(policy.book.rules) or policy.traps.on or bool(self.scope)

    def _begin(self) -> None:
        book, hosts, scope = self._policy.book, self._table, self.scope

        @lru_cache(TERMS_OF_MAX)
        def terms_of(number: int) -> HostTerms:
            host = hosts[number]
            return HostTerms(scope.of_host(host), book.of_host(host))

        self._terms_of = terms_of
        self._weighed, self._weighed_at, self._weighing_took = Weighed(self._crawl), float("-inf"), 0.0
        self._window = deque[int](maxlen=WINDOW)  # The hosts of the last suggestions.
        self._spared: dict[str, float] = {}  # When a page of each outgrown site was last handed out.

    # The policy.

    def policy(self) -> Policy:
        """Read the current policy from the store."""
        return self._stored.read()

    def replace(self, given: object, version: str = "") -> Policy:
        """Replace the rules, the thresholds, or both; see `StoredPolicy.replace`."""
        return self._heard(self._stored.replace(given, version))

    def change(self, given: Mapping[str, Any], version: str = "") -> Policy:
        """Add and remove some rules, set some thresholds; see `StoredPolicy.change`."""
        return self._heard(self._stored.change(given, version))

    def put(self, policy: Policy) -> None:
        """Replace the policy in the store, for all endpoints of the crawl."""
        self._stored.put(policy)
        self._heard(policy)

    def _heard(self, policy: Policy) -> Policy:
        with self._lock:
            self._looked = float("-inf")
        return policy

    def check_policy(self) -> object:
        """Reload the policy if it was last checked LOOK_SECONDS ago or more.

        Returns:
            An object that stays the same as long as all earlier verdicts remain valid.
        """
        with self._lock:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                version = self._stored.version()
                if version != self._version:
                    policy, self._version = self.policy(), version
                    log.info("loaded %d URL rules, version %s", len(policy.book.rules), policy.version)
                    self._turn(policy)
                self._looked = time.monotonic()
            if self._loads != self._crawl.loads:  # Numbers of pages and hosts may mean others now.
                self._start()
            elif self._year != time.gmtime().tm_year:
                self._turn(self._policy)
            return self._verdicts

    # Verdicts on pages.

    def shut(self, shard: int, ids: Int64s) -> Bools | None:
        """Return a mask of the pages already judged as not to be offered; None if there are none. Sends no command."""
        return self._verdicts[shard].shut(ids) if self._judging else None

    def revisit_seconds(self, shard: int, ids: Int64s) -> Float64s | None:
        """Return the revisit times that rules set for pages, as far as judged; NaN where none does, None if none."""
        return self._verdicts[shard].revisit_seconds(ids) if self._judging else None

    def judge(self, pages: Mapping[int, Int64s]) -> None:
        """Judge those pages that have no verdict by the present rules, by shard. Their URLs are read at once."""
        with self._lock:
            if not self._judging:
                return
            new = [(shard, page) for shard, ids in pages.items() for page in self._verdicts[shard].unjudged(ids)]
            urls = self._crawl.urls_of(new) if new else {}
            for shard in {shard for shard, _ in new}:
                mine = {page: url for (number, page), url in urls.items() if number == shard}
                self._tell(shard, self._verdicts[shard].judge(mine, self._terms_of))

    def judge_next(self, shard: int) -> int:
        """Judge the next pages of a shard, in a millisecond or two; return their number."""
        with self._lock:
            if not self._judging:
                return 0
            before = self._verdicts[shard].pages
            self._tell(shard, self._verdicts[shard].go_on(self._terms_of))
            return self._verdicts[shard].pages - before

    def _tell(self, shard: int, changed: Int64s) -> None:
        if len(changed):
            for listener in self.listeners:
                listener(shard, changed)

    @property
    def behind(self) -> bool:
        """Whether there are pages that were not judged in their turn yet."""
        return self._judging and any(verdicts.behind for verdicts in self._verdicts)

    @property
    def turning(self) -> bool:
        """Whether there are pages whose verdict is by former rules."""
        return self._judging and any(verdicts.turning for verdicts in self._verdicts)

    def outside(self) -> int:
        """Count the known pages outside the scope, as far as they were judged."""
        return sum(verdicts.outside() for verdicts in self._verdicts)

    def verdicts(self, snapshot: Snapshot) -> Uint8s:
        """Return the verdicts on a snapshot's pages, (n,) by position. Reads the URLs of all pages not judged yet."""
        self.check_policy()
        parts = []
        for shard, part in enumerate(snapshot.parts):
            pages = len(part.state)
            while self._judging and self._verdicts[shard].pages < min(pages, len(self._crawl.replicas[shard])):
                self.judge_next(shard)  # Releases the lock between two batches.
            parts.append(self._verdicts[shard].all(pages))
        return np.concatenate(parts)

    def counts(self, snapshot: Snapshot) -> dict[str, int]:
        """Count the pages held back by each trap rule and allowed or denied by rules; large hosts; outgrown sites."""
        return self._crawl.steadily(lambda: self._counted(snapshot))

    def _counted(self, snapshot: Snapshot) -> dict[str, int]:
        counted = np.bincount(self.verdicts(snapshot), minlength=len(Verdict)).tolist()
        by_verdict = {verdict.name.lower(): counted[verdict] for verdict in Verdict if verdict != Verdict.FREE}
        with self._lock:
            self._weigh()
            weighed = self._weighed
        return {**by_verdict, "large_hosts": len(weighed.large), "outgrown_sites": len(weighed.site)}

    # Verdicts on hosts, by the numbers of `opic.query.host_index`.

    def ration(self, *, idle: bool = False) -> Ration | None:
        """Return the quota of one choice for large hosts and outgrown sites; None if there is no limit.

        By the policy as `check_policy` read it.

        Args:
            idle: no other pages are available, so large hosts are not limited, and an outgrown site may give one page
                every SPARED_SECONDS.

        Raises:
            Outdated: a replica was reloaded in the meantime.
        """
        with self._lock:
            self._weigh()
            weighed, traps = self._weighed, self._policy.traps
            if not traps.on or not weighed.group_of:
                return None
            most = (NO_LIMIT, 1) if idle else (int(WINDOW * traps.host_share), int(WINDOW * traps.site_share))
            room = np.repeat(np.array(most, np.int64), [len(weighed.large), len(weighed.site)])
            if idle:
                now = time.monotonic()
                for site, spared_at in self._spared.items():
                    if (group := weighed.site.get(site)) is not None and now - spared_at < SPARED_SECONDS:
                        room[group] = 0
            ration = Ration(weighed.groups(), room)
            if not idle:
                ration.count_chosen(self._window)
            return ration

    def note(self, hosts: Sequence[int]) -> None:
        """Record the hosts of pages that were handed out."""
        with self._lock:
            self._window.extend(hosts)
            if sites := list(self._weighed.site):
                first, now = len(self._weighed.large), time.monotonic()
                groups = set(grouped(self._weighed.groups(), hosts).tolist())
                self._spared |= {sites[group - first]: now for group in groups if group >= first}

    def _weigh(self) -> None:
        """Determine which hosts are large and which sites are outgrown, if the last result is old enough.

        Where that takes long (`opic.replica.upkeep`), a thread does it, and requests for pages use the last result.
        """
        now, traps = time.monotonic(), self._policy.traps
        if not traps.on or now - self._weighed_at < max(WEIGH_REST * self._weighing_took, WEIGH_SECONDS_MIN):
            return
        if self._weighed_at == float("-inf") or self._crawl.upkeep.quick:
            self._take_weighed(self._policy, self._table)
        elif self._weigher is None or not self._weigher.is_alive():
            self._weigher = threading.Thread(
                target=self._weigh_aside, args=(self._policy, self._table), name="opic-weigh", daemon=True
            )
            self._weigher.start()

    def _weigh_aside(self, policy: Policy, names: HostNames) -> None:
        lower_priority()
        with suppress(Outdated):  # The next request starts over.
            self._take_weighed(policy, names)

    def _take_weighed(self, policy: Policy, names: HostNames) -> None:
        """Weigh hosts and sites.

        Raises:
            Outdated: a replica was reloaded in the meantime.
        """
        # Measure CPU time: on a busy machine, wall time includes waiting and would delay the next run by seconds.
        began, book = time.thread_time(), policy.book
        try:
            with self._crawl.upkeep.measured("hosts"):
                heavy, outgrown = large_hosts(self._crawl, policy.traps), outgrown_sites(self._crawl, policy.traps)
            large = [host for host in heavy if host < len(names)]
            large = [host for host in large if not self._is_wanted(names[host], book)]
            sites = [site for site in outgrown if not self._is_wanted(site, book)]
            weighed = Weighed(self._crawl, large, sites)
        except (IndexError, ValueError):
            if names == HostNames(self._crawl.replicas):
                raise
            raise Outdated from None
        if names != HostNames(self._crawl.replicas):
            raise Outdated
        with self._lock:
            if policy is self._policy and names is self._table:  # Otherwise everything starts over.
                self._weighed_at, self._weighing_took = time.monotonic(), time.thread_time() - began
                self._weighed = weighed
                self._spared = {site: spared_at for site, spared_at in self._spared.items() if site in weighed.site}

    def _is_wanted(self, host: str, book: RuleBook) -> bool:
        """Return whether the operator named a host or a site, so that its size is no reason to hold it back."""
        return book.allows_all(host) or self.scope.names(host)

    # Explaining one page.

    def why(self, url: str) -> list[AppliedRule]:
        """Return the rules that apply to a page, the deciding ones first.

        Raises:
            BadUrl: not an absolute http(s) URL.
        """
        url = canonical_url(url, normalization=self._crawl.rules.normalization)
        with self._lock:
            self.check_policy()
            policy = self._policy
            rules = self._why_shape(url, policy)
            host, site = host_of(url), registered_domain(host_of(url))
            number = self._table.number(host)
            if policy.traps.on and number is not None and number in self._weighed.group_of:
                share = f"at most {policy.traps.host_share:.0%} of the last {WINDOW} suggestions"
                rules.append(AppliedRule(f"large host {host}", share))
            if policy.traps.on and site in self._weighed.site:
                share = f"at most {policy.traps.site_share:.0%} of the last {WINDOW} suggestions"
                rules.append(AppliedRule(f"outgrown site {site}", share))
        return rules

    def _why_shape(self, url: str, policy: Policy) -> list[AppliedRule]:
        if not self.scope.holds(url):
            return [AppliedRule(SCOPE, f"deny: outside OPIC_SCOPE={self.scope}")]
        deciding = policy.book.first(url)
        if deciding is not None:
            rule = policy.book.rules[deciding]
            named = f"rule {deciding}" + (f": {rule.note}" if rule.note else "")
            return [AppliedRule(named, rule.effect)]
        if not policy.traps.on:
            return []
        verdict = Shapes(policy.traps, self._year).judge(url)
        if verdict == Verdict.FREE:
            # The date rule depends on how many dates were known before this URL; only its stored verdict tells.
            page = self._crawl.ids_of([url])[0]
            if page is not None:
                self.judge({page[0]: np.array([page[1]])})
                verdict = Verdict(int(self._verdicts[page[0]].verdicts_of(np.array([page[1]]))[0]))
        if verdict <= Verdict.DENIED:
            return []
        return [AppliedRule(f"trap: {verdict.name.lower()}", f"deny: {policy.traps.effect(verdict)}")]
