"""URL admission: filter the pages that may be suggested, by operator rules and crawler trap detection.

Rules and thresholds are one document in the store. All endpoints use the same document, at most LOOK_SECONDS after it
was set. The verdict on a page depends on its URL alone and takes one byte. Pages are judged in batches, in the order in
which they became known; a page that is chosen before its turn is judged individually. The verdict on a host or a site
depends on its share of the crawl and is recomputed as the crawl goes on.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import msgpack
import numpy as np

from opic.background import lower_priority
from opic.errors import BadInput, ChangedMeanwhile, StoreMismatch, instead_of
from opic.frontier.host_sums import sums_by_domain, sums_by_host
from opic.frontier.verdicts import Verdicts
from opic.model.cash import Flag
from opic.query.host_index import Bools, Floats, HostNames, Int32s
from opic.query.snapshots import Bytes, Int64s, Snapshot
from opic.replica import Crawl
from opic.replica.crawl import Outdated, Place
from opic.store.connection import store_errors
from opic.urls.canonical import canonical_url, host_of, registered_domain, shown
from opic.urls.rules import RuleBook, check_rules
from opic.urls.traps import WINDOW, Shapes, SuggestionWindow, Traps, Verdict, check_traps, outgrown

log = logging.getLogger("opic.frontier")

LOOK_SECONDS: Final = 1.0  # Interval at which an endpoint checks whether another one has set rules.
WEIGH_REST: Final = 200  # Pause between two weighings of hosts and sites, as a multiple of the CPU time of the last,
WEIGH_SECONDS_MIN: Final = 0.1  # and its minimum in seconds.
SPARED_SECONDS: Final = 1.0  # Interval between two pages of an outgrown site when no other page is available.
NO_LIMIT: Final = 1 << 40
RULES_OF_MAX: Final = 1 << 16  # About 10 MB.
FIELDS: Final = ("rules", "traps")
NOTHING_GIVEN: Final = (
    "neither rules nor traps are given: to remove all rules, give an empty list of rules; for the default thresholds, "
    "an empty object of traps"
)


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules and trap thresholds that an operator set."""

    book: RuleBook
    traps: Traps
    version: str  # A hash: the same rules and thresholds always have the same version.

    def shown(self) -> dict[str, Any]:
        """Return the policy in the form that `check_policy` takes, with all thresholds."""
        return {
            "rules": [rule.shown() for rule in self.book.rules],
            "traps": self.traps.shown(),
            "version": self.version,
        }


def check_policy(given: object) -> Policy:
    """Validate a policy decoded from JSON. Missing fields get the defaults: no rules, default trap thresholds.

    Raises:
        BadInput: a field is invalid; the message names the field, the value and the limit.
    """
    if not isinstance(given, Mapping):
        raise BadInput("the policy must be an object with `rules` and `traps`")
    if unknown := [str(key) for key in given if key not in FIELDS]:
        raise BadInput(f"unknown field {shown(unknown[0])}: {instead_of(unknown[0], FIELDS)}")
    rules, traps = check_rules(given.get("rules", ())), check_traps(given.get("traps", {}))
    packed = msgpack.packb([[rule.shown() for rule in rules], traps.shown()])
    return Policy(RuleBook(rules), traps, blake2b(packed, digest_size=8).hexdigest())


class _RulesOf(dict[int, tuple[int, ...]]):
    """The rules of each host, by host number, looked up on first use; those of up to RULES_OF_MAX hosts are kept."""

    def __init__(self, book: RuleBook, hosts: HostNames) -> None:
        super().__init__()
        self._book, self._hosts = book, hosts

    def __missing__(self, number: int) -> tuple[int, ...]:
        if len(self) >= RULES_OF_MAX:
            self.clear()
        self[number] = rules = self._book.of_host(self._hosts[number])
        return rules


class _Weighed:
    """Large hosts and outgrown sites (read more often than their in-flow pays for); each is one group of hosts."""

    def __init__(self, crawl: Crawl, large: Iterable[int] = (), sites: Iterable[str] = ()) -> None:
        self._tables, self.large = [replica.hosts for replica in crawl.replicas], sorted(large)
        self.site = {site: len(self.large) + at for at, site in enumerate(sites)}
        groups: list[int | str] = [*self.large, *self.site]
        self.group_of = {key: at for at, key in enumerate(groups)}  # By host or site.
        self._groups = np.full(0, -1, np.int32)
        self._filled = [0] * len(self._tables)  # Number of hosts of each shard that have their group.

    def groups(self) -> Int32s:
        """Return the group of each host by number, -1 for none. The group of an outgrown site takes precedence."""
        counts = list(map(len, self._tables))  # Read once, because the tables grow concurrently.
        shards, hosts = len(self._tables), max(counts)
        if shards * hosts > len(self._groups):
            grown = np.full(shards * (hosts + hosts // 4), -1, np.int32)
            grown[: len(self._groups)] = self._groups
            if not len(self._groups):
                grown[self.large] = np.arange(len(self.large))
            self._groups = grown
        for shard, (table, known) in enumerate(zip(self._tables, counts, strict=True)):
            filled = self._filled[shard]
            if known > filled and self.site:
                domains = table.domains[filled:known]
                of_domain = np.full(int(domains.max()) + 1, -1, np.int32)
                for site, group in self.site.items():
                    if (number := table.domain(site)) is not None and number < len(of_domain):
                        of_domain[number] = group
                column, site_groups = self._groups[shard::shards][filled:known], of_domain[domains]
                column[site_groups >= 0] = site_groups[site_groups >= 0]
            self._filled[shard] = known
        return self._groups


class Admission:
    """Decides which pages may be suggested. Thread-safe."""

    def __init__(self, crawl: Crawl) -> None:
        """Create the filter. It reads the policy from the store on first use."""
        self._crawl = crawl
        self._key = crawl.shards[0].keys.rules
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
        self._table, self._year = HostNames(self._crawl.replicas), time.gmtime().tm_year
        book, traps = self._policy.book, self._policy.traps
        self._verdicts = [Verdicts(self._crawl, n, book, traps, self._year) for n in range(len(self._crawl))]
        self._judging = bool(book.rules) or traps.on
        self._begin()

    def _turn(self, policy: Policy) -> None:
        """Judge by another policy from now on. Pages keep their verdicts until it is their turn."""
        judging, self._policy, self._year = self._judging, policy, time.gmtime().tm_year
        if not judging or not (policy.book.rules or policy.traps.on):
            self._start()
            return
        for verdicts in self._verdicts:
            verdicts.turn(policy.book, policy.traps, self._year)
        self._begin()

    def _begin(self) -> None:
        self._rules_of = _RulesOf(self._policy.book, self._table)
        self._weighed, self._weighed_at, self._weighing_took = _Weighed(self._crawl), float("-inf"), 0.0
        self._window = SuggestionWindow()
        self._spared: dict[str, float] = {}  # When a page of each outgrown site was last handed out.

    # The policy.

    def policy(self) -> Policy:
        """Read the current policy from the store."""
        return self._stored()[0]

    def _stored(self) -> tuple[Policy, bytes]:
        """Return the current policy, and its version as the store has it; b"" if none was set."""
        with store_errors():
            document, version = self._crawl.client.hmget(self._key, ["document", "version"])
        return _unpacked(document), version or b""

    def replace(self, given: object, version: str = "") -> Policy:
        """Replace the rules, the thresholds, or both; the other part stays. Return the new policy.

        Args:
            given: the new rules and thresholds, as `check_policy` takes them.
            version: of the policy that may be replaced; "" for any.

        Raises:
            BadInput: a field is invalid, or neither part is given: only an explicit empty list removes all rules.
            ChangedMeanwhile: the policy is of another version.
        """
        check_policy(given)
        assert isinstance(given, Mapping)
        if not given:
            raise BadInput(NOTHING_GIVEN)
        return self._changed(lambda policy: {**policy, **given}, version)

    def change(self, given: Mapping[str, Any], version: str = "") -> Policy:
        """Add and remove some rules, set some thresholds; the others stay. Return the new policy.

        Args:
            given: "add" and "remove", lists of rules; "first", whether the added ones come before the others; "traps".
            version: of the policy that may be changed; "" for any.

        Raises:
            BadInput: a field is invalid, nothing is given, or a rule to remove is not there.
            ChangedMeanwhile: the policy is of another version.
        """
        added, removed = ([rule.shown() for rule in check_rules(given.get(name, ()))] for name in ("add", "remove"))
        traps = given.get("traps", {})
        if not (added or removed or traps):
            raise BadInput("nothing is to change: give rules to add or to remove, or thresholds to set")

        def changed(policy: Mapping[str, Any]) -> dict[str, Any]:
            rules = policy["rules"]
            if missing := next((rule for rule in removed if rule not in rules), None):
                raise BadInput(f"no rule is {shown(str(missing))}: give it as `opic rules --json` shows it")
            others = [rule for rule in rules if rule not in removed and rule not in added]
            return {
                "rules": [*added, *others] if given.get("first") else [*others, *added],
                "traps": {**policy["traps"], **traps},
            }

        return self._changed(changed, version)

    def _changed(self, change: Callable[[Mapping[str, Any]], object], version: str) -> Policy:
        """Change the policy, again if another endpoint did so meanwhile."""
        while True:
            present, stored = self._stored()
            if version not in ("", present.version):
                raise ChangedMeanwhile(
                    f"the rules are of version {present.version}, not {version}: read them again, and change those"
                )
            policy = check_policy(change({name: part for name, part in present.shown().items() if name in FIELDS}))
            if self.put(policy, stored):
                return policy

    def put(self, policy: Policy, stored: bytes = b"*") -> bool:
        """Replace the policy in the store, for all endpoints of the crawl, if its version there is this one."""
        plain = check_policy({}).traps.shown()
        traps = {name: value for name, value in policy.traps.shown().items() if value != plain[name]}
        packed = msgpack.packb({"rules": [rule.shown() for rule in policy.book.rules], "traps": traps})
        with store_errors():
            done = self._crawl.client.fcall("opic_4_rules", 1, self._key, stored, packed, policy.version)
        with self._lock:
            self._looked = float("-inf")
        return bool(done)

    def look(self) -> object:
        """Reload the policy if it was last checked LOOK_SECONDS ago or more.

        Returns:
            An object that stays the same as long as all earlier verdicts remain valid.
        """
        with self._lock:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                with store_errors():
                    version = self._crawl.client.hget(self._key, "version")
                if version != self._version:
                    policy, self._version = self.policy(), version
                    log.info("loaded %d URL rules, version %s", len(policy.book.rules), policy.version)
                    self._turn(policy)
                self._looked = time.monotonic()
            if self._table != HostNames(self._crawl.replicas):
                self._start()
            elif self._year != time.gmtime().tm_year:
                self._turn(self._policy)
            return self._verdicts

    # Verdicts on pages.

    def shut(self, shard: int, ids: Int64s) -> Bools | None:
        """Return a mask of the pages already judged as not to be offered; None if there are none. Sends no command."""
        return self._verdicts[shard].shut(ids) if self._judging else None

    def revisit_seconds(self, shard: int, ids: Int64s) -> Floats | None:
        """Return the revisit times that rules set for pages, as far as judged; NaN where none does, None if none."""
        return self._verdicts[shard].revisit_seconds(ids) if self._judging else None

    def judge(self, shard: int, ids: Int64s) -> None:
        """Judge those pages that have no verdict by the present rules."""
        with self._lock:
            if self._judging:
                self._tell(shard, self._verdicts[shard].judge(ids, self._rules_of))

    def judge_next(self, shard: int) -> int:
        """Judge the next pages of a shard, in about a third of a millisecond; return their number."""
        with self._lock:
            if not self._judging:
                return 0
            before = self._verdicts[shard].pages
            self._tell(shard, self._verdicts[shard].go_on(self._rules_of))
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

    def is_shut(self, place: Place) -> bool:
        """Return whether a page must not be offered."""
        self.look()
        ids = np.array([place[1]])
        self.judge(place[0], ids)
        shut = self.shut(place[0], ids)
        return shut is not None and bool(shut[0])

    def verdicts(self, snapshot: Snapshot) -> Bytes:
        """Return the verdicts on a snapshot's pages, (n,) by position. Reads the URLs of all pages not judged yet."""
        self.look()
        parts = []
        for shard, part in enumerate(snapshot.parts):
            pages = len(part.state)
            while self._judging and self._verdicts[shard].pages < min(pages, len(self._crawl.replicas[shard])):
                self.judge_next(shard)  # Releases the lock between two batches.
            parts.append(self._verdicts[shard].all(pages) if self._judging else np.zeros(pages, np.uint8))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

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

    def ration(self, *, idle: bool = False) -> "Ration | None":
        """Return the quota of one choice for large hosts and outgrown sites; None if there is no limit.

        Args:
            idle: no other pages are available, so large hosts are not limited, and an outgrown site may give one page
                every SPARED_SECONDS.
        """
        return self._crawl.steadily(lambda: self._ration(idle=idle))

    def _ration(self, *, idle: bool) -> "Ration | None":
        self.look()
        with self._lock:
            self._weigh()
            weighed, traps = self._weighed, self._policy.traps
            if not traps.on or not weighed.group_of:
                return None
            most = (NO_LIMIT, 1) if idle else (int(WINDOW * traps.host_share), int(WINDOW * traps.site_share))
            room = np.repeat(np.array(most, np.int64), [len(weighed.large), len(weighed.site)])
            if idle:
                now = time.monotonic()
                for site, at in self._spared.items():
                    if (group := weighed.site.get(site)) is not None and now - at < SPARED_SECONDS:
                        room[group] = 0
            else:
                for key, count in self._window.counts().items():
                    if (group := weighed.group_of.get(key)) is not None:
                        room[group] = max(room[group] - count, 0)
            return Ration(weighed.groups(), room)

    def note(self, hosts: Sequence[int]) -> None:
        """Record the hosts of pages that were handed out."""
        now = time.monotonic()
        with self._lock:
            for host in hosts:
                if host >= len(self._table) or not (name := self._table[host]):
                    continue  # The number is from before a reload of the replica, and belonged to another host.
                site = registered_domain(name)
                self._window.note(host, site)
                if site in self._weighed.site:
                    self._spared[site] = now

    def _weigh(self) -> None:
        """Determine which hosts are large and which sites are outgrown, if the last result is old enough.

        On a large crawl a background thread does this, so requests for pages never wait; they use the last result.
        """
        now, traps = time.monotonic(), self._policy.traps
        if not traps.on or now - self._weighed_at < max(WEIGH_REST * self._weighing_took, WEIGH_SECONDS_MIN):
            return
        if self._weighed_at == float("-inf") or not self._crawl.is_large:
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
            weighed = _Weighed(
                self._crawl,
                [host for host in self._large(policy.traps) if host < len(names) and not book.allows_all(names[host])],
                [site for site in self._outgrown(policy.traps) if not book.allows_all(site)],
            )
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
                self._spared = {site: at for site, at in self._spared.items() if site in weighed.site}

    def _large(self, traps: Traps) -> list[int]:
        """Return the numbers of the hosts with more known pages than `traps.host_pages`."""
        hosts, most = list[int](), traps.host_pages
        for shard, replica in enumerate(self._crawl.replicas if most else ()):
            pages = sums_by_host(replica, lambda part: ((part[0] & Flag.KNOWN) != 0, None))
            hosts += (np.flatnonzero(pages > most) * len(self._crawl) + shard).tolist()
        return hosts

    def _outgrown(self, traps: Traps) -> list[str]:
        """Return the sites that were read more often than the cash flowing in from other hosts pays for."""
        replicas, rules = self._crawl.replicas, self._crawl.rules
        reads, live = (sum(getattr(replica.books, name) for replica in replicas) for name in ("open", "live"))
        if not traps.site_reads or not rules.inflow or reads < 2 * traps.site_reads:
            return []
        by_domain, suspected = [], set[str]()
        for replica in replicas:
            counts = sums_by_domain(replica, sums_by_host(replica, lambda part: ((part[0] & Flag.OPEN) != 0, None)))
            with replica.lock:
                domains = replica.hosts.domains
                # A site's hosts are in several shards. If the site exceeds the limit, it exceeds 1/n of the limit in
                # at least one of the n shards.
                many = np.flatnonzero(counts > traps.site_reads // len(replicas)).tolist()
                suspected |= {registered_domain(replica.hosts.names[int((domains == d).argmax())]) for d in many}
            by_domain.append(counts)
        grant, found = rules.round_grains(live) / max(live, 1), []
        sums = {site: self._sum_of(site, by_domain) for site in suspected}
        sums = {site: count for site, count in sums.items() if outgrown(count, reads - count, 0, 1, traps)}
        if not sums:
            return []
        came = [
            sums_by_domain(replica, sums_by_host(replica, lambda part: (slice(None), np.maximum(part[1], 0))))
            for replica in replicas
        ]
        for site, count in sorted(sums.items()):
            if outgrown(count, reads - count, self._sum_of(site, came), grant, traps):
                found.append(site)
        return found

    def _sum_of(self, site: str, by_domain: Sequence[Any]) -> Any:
        """Sum the values of a site over all shards, from columns indexed by registered domain number."""
        numbers = [replica.hosts.domain(site) for replica in self._crawl.replicas]
        pairs = zip(numbers, by_domain, strict=True)
        return sum(column[number].item() for number, column in pairs if number is not None and number < len(column))

    # Explaining one page.

    def why(self, url: str) -> list[dict[str, str]]:
        """Return the rules that apply to a page, each with "rule" and "effect"; the deciding ones come first.

        Raises:
            BadUrl: not an absolute http(s) URL.
        """
        url = canonical_url(url, normalization=self._crawl.rules.normalization)
        with self._lock:
            self.look()
            policy = self._policy
            rules = self._why_shape(url, policy)
            host, site = host_of(url), registered_domain(host_of(url))
            number = self._table.number(host)
            if policy.traps.on and number is not None and number in self._weighed.group_of:
                share = f"at most {policy.traps.host_share:.0%} of the last {WINDOW} suggestions"
                rules.append({"rule": f"large host {host}", "effect": share})
            if policy.traps.on and site in self._weighed.site:
                share = f"at most {policy.traps.site_share:.0%} of the last {WINDOW} suggestions"
                rules.append({"rule": f"outgrown site {site}", "effect": share})
        return rules

    def _why_shape(self, url: str, policy: Policy) -> list[dict[str, str]]:
        deciding = policy.book.first(url)
        if deciding is not None:
            rule = policy.book.rules[deciding]
            named = f"rule {deciding}" + (f": {rule.note}" if rule.note else "")
            return [{"rule": named, "effect": rule.effect}]
        if not policy.traps.on:
            return []
        verdict = Shapes(policy.traps, self._year).judge(url)
        if verdict == Verdict.FREE:
            # The date rule depends on how many dates were known before this URL; only its stored verdict tells.
            place = self._crawl.ids_of([url])[0]
            if place is not None:
                self.judge(place[0], np.array([place[1]]))
                verdict = Verdict(int(self._verdicts[place[0]].of(np.array([place[1]]))[0]))
        if verdict <= Verdict.DENIED:
            return []
        return [{"rule": f"trap: {verdict.name.lower()}", "effect": f"deny: {policy.traps.effect(verdict)}"}]


class Ration:
    """The quota of one choice for each group of hosts. Not thread-safe."""

    def __init__(self, groups: Int32s, room: Int64s) -> None:
        """Use `Admission.ration`.

        Args:
            groups: (hosts,) the group of each host, -1 for none.
            room: (groups,) how many pages of each group may be chosen.
        """
        self._groups, self._room, self._left = groups, room, room.copy()
        self.refused = False

    def fit(self, hosts: Int64s) -> Bools:
        """Return a mask of the pages, given by their hosts in order, that fit the quota; calls are cumulative."""
        groups = np.where(hosts < len(self._groups), self._groups[np.minimum(hosts, len(self._groups) - 1)], -1)
        fits: Bools = groups < 0
        watched = np.flatnonzero(~fits)
        if len(watched):
            limited = groups[watched]
            order = np.argsort(limited, kind="stable")
            ordered = limited[order]
            place = np.arange(len(limited)) - np.searchsorted(ordered, ordered)  # Of each page within its group.
            kept = order[place < self._left[ordered]]
            fits[watched[kept]] = True
            self._left -= np.bincount(limited[kept], minlength=len(self._left))
            self.refused |= len(kept) < len(limited)
        return fits

    def take(self, hosts: Sequence[int]) -> None:
        """Count pages of these hosts as chosen, and undo the other counts of `fit`."""
        groups = self._groups[[host for host in hosts if host < len(self._groups)]]
        self._room = np.maximum(self._room - np.bincount(groups[groups >= 0], minlength=len(self._room)), 0)
        self._left = self._room.copy()


def _unpacked(stored: bytes | None) -> Policy:
    """Decode the policy stored in the store.

    Raises:
        StoreMismatch: another version of the program wrote it.
    """
    try:
        return check_policy(msgpack.unpackb(stored) if stored else {})
    except BadInput as error:
        raise StoreMismatch(
            f"this version can't read the rules in the store: {error}; set them again with `opic rules set`"
        ) from None
