"""Admission: which known pages may be suggested now, by the rules of an operator and by what traps look like.

Rules and thresholds are one document in the store, so every endpoint goes by the same, at most LOOK_SECONDS after it
was set. What is said of a page rests on its URL alone and is a byte, worked out once as the page becomes known; what is
said of a host or a site rests on how much of the crawl it has become, and is looked at again as the crawl goes on.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import msgpack
import numpy as np

from opic.cash import Flag
from opic.errors import BadInput, StoreMismatch
from opic.mirror import Bools, Hosts, Int32s, Snapshot
from opic.rules import RuleBook, check_rules
from opic.store import Crawl, Shard
from opic.store.columns import I64, Bytes, Int64s
from opic.store.connection import store_errors
from opic.store.keys import BLOCK_BYTES, ROWS_I64, ROWS_URLS
from opic.traps import WINDOW, Shapes, Traps, Verdict, Window, check_traps, outgrown
from opic.urls import canonical_url, host_of, registered_domain, shown

log = logging.getLogger("opic.admission")

LOOK_SECONDS: Final = 1.0  # How often an endpoint looks whether others set rules.
WEIGH_REST: Final = 50  # Hosts and sites are weighed again after so many times the CPU time that it took,
WEIGH_SECONDS_MIN: Final = 0.1  # and no sooner.
SPARED_SECONDS: Final = 1.0  # Where nothing else is to be had, an outgrown site gives a page so often.
NO_LIMIT: Final = 1 << 40
URL_BLOCKS_A_CALL: Final = 64
FIELDS: Final = ("rules", "traps")


@dataclass(frozen=True, slots=True)
class Policy:
    """What an operator set: rules, and thresholds where they are not the default ones."""

    book: RuleBook
    traps: Traps
    version: str  # Of what is set: the same for the same rules and thresholds.

    def shown(self) -> dict[str, Any]:
        """Return it in the form in which it is given, all thresholds among it."""
        return {
            "rules": [rule.shown() for rule in self.book.rules],
            "traps": self.traps.shown(),
            "version": self.version,
        }


def check_policy(given: object) -> Policy:
    """Check what is to be set, as it comes from JSON; what is left out is the default: no rules, traps as they are.

    Raises:
        BadInput: something can't be taken; it names the place, the value and the limit.
    """
    if not isinstance(given, Mapping):
        raise BadInput("an object with rules and traps is wanted")
    if unknown := [str(key) for key in given if key not in FIELDS]:
        raise BadInput(f"there is no {shown(unknown[0])} to set: there are {', '.join(FIELDS)}")
    rules, traps = check_rules(given.get("rules", ())), check_traps(given.get("traps", {}))
    packed = msgpack.packb([[rule.shown() for rule in rules], traps.shown()])
    return Policy(RuleBook(rules), traps, blake2b(packed, digest_size=8).hexdigest())


class _Verdicts:
    """What is said of a shard's pages, by id. Two threads never read it at once."""

    def __init__(self, shard: Shard, policy: Policy, year: int) -> None:
        self._shard, self._policy = shard, policy
        self._shapes = Shapes(policy.traps, year)
        self._of_page = np.zeros(0, np.uint8)
        self._pages = 0

    def read(self, hosts: Int32s, rules_of: Mapping[int, Sequence[int]]) -> Bytes:
        """Return the verdicts of the pages whose hosts these are, reading the URLs of those that are new."""
        pages = len(hosts)
        if pages > len(self._of_page):
            # A new array: whoever holds a view of the old one keeps what he saw.
            grown = np.zeros(max(pages, 2 * len(self._of_page)), np.uint8)
            grown[: self._pages] = self._of_page[: self._pages]
            self._of_page = grown
        step = URL_BLOCKS_A_CALL * ROWS_URLS
        while self._pages < pages:
            ids = range(self._pages, min(pages, (self._pages // step + 1) * step))
            urls = self._shard.urls_in(ids)
            self._of_page[ids.start : ids.stop] = self._judge(urls, hosts[ids.start : ids.stop], rules_of)
            self._pages = ids.stop
        return self._of_page[:pages]

    def of(self, page: int) -> Verdict:
        """Return what is said of a page, FREE if its URL was not read yet."""
        return Verdict(int(self._of_page[page])) if page < self._pages else Verdict.FREE

    def _judge(self, urls: Sequence[str], hosts: Int32s, rules_of: Mapping[int, Sequence[int]]) -> Bytes:
        book, traps = self._policy.book, self._policy.traps
        found = self._shapes.judge_all(urls) if traps.on else bytearray(len(urls))
        if book.rules:
            for at, (url, host) in enumerate(zip(urls, hosts.tolist(), strict=True)):
                if (among := rules_of[host]) and (number := book.first(url, among)) is not None:
                    allowed = book.rules[number].effect == "allow"
                    found[at] = Verdict.ALLOWED if allowed else Verdict.DENIED
        return np.frombuffer(found, np.uint8)


class _RulesOf(dict[int, tuple[int, ...]]):
    """The rules of each host, by the host's number, found when they are first asked for."""

    def __init__(self, book: RuleBook, hosts: Hosts) -> None:
        super().__init__()
        self._book, self._hosts = book, hosts

    def __missing__(self, number: int) -> tuple[int, ...]:
        self[number] = found = self._book.of_host(self._hosts.names[number])
        return found


class _Weighed:
    """Hosts that are large and sites that have outgrown what others paid them, each a group of hosts."""

    def __init__(self, table: Hosts | None = None, large: Iterable[int] = (), sites: Iterable[str] = ()) -> None:
        """Nothing is weighed without a table of hosts."""
        self.table, self.large = table, sorted(large)
        self.site = {site: len(self.large) + at for at, site in enumerate(sites)}
        groups: list[int | str] = [*self.large, *self.site]
        self.group_of = {key: at for at, key in enumerate(groups)}  # By host or site.
        self._groups = np.full(0, -1, np.int32)
        self._filled = 0

    def groups(self) -> Int32s:
        """Return the group of each host by its number, -1 for none; that of its site if it has outgrown others."""
        assert self.table is not None
        names = self.table.names
        known = len(names)
        if known > len(self._groups):
            grown = np.full(max(known, 2 * len(self._groups)), -1, np.int32)
            grown[: self._filled] = self._groups[: self._filled]
            self._groups = grown
        fresh = [host for host in self.large if host >= self._filled]
        self._groups[fresh] = [self.group_of[host] for host in fresh]
        if self.site:
            for host in range(self._filled, known):
                if (at := self.site.get(registered_domain(names[host]))) is not None:
                    self._groups[host] = at
        self._filled = known
        return self._groups[:known]


class Admission:
    """Keeps pages from being suggested. Any thread may ask."""

    def __init__(self, crawl: Crawl) -> None:
        """Nothing is read yet."""
        self._crawl = crawl
        self._key = crawl.shards[0].keys.rules
        self._lock = threading.RLock()
        self._policy = check_policy({})
        self._version: bytes | None = None  # As the store has it.
        self._looked = float("-inf")
        self._start(None)

    def _start(self, table: Hosts | None) -> None:
        """Forget all that was said of pages and hosts."""
        self._table, self._year = table, time.gmtime().tm_year
        self._verdicts = [_Verdicts(shard, self._policy, self._year) for shard in self._crawl.shards]
        self._rules_of = None if table is None else _RulesOf(self._policy.book, table)
        self._sites: dict[int, str] = {}  # Registered domain of each host that was read, by number.
        self._weighed, self._weighed_at, self._weighing_took = _Weighed(), float("-inf"), 0.0
        self._window = Window()
        self._spared: dict[str, float] = {}  # When an outgrown site was given a page last.

    # What is set.

    def policy(self) -> Policy:
        """Return what is set now."""
        with store_errors():
            stored = self._crawl.client.hget(self._key, "document")
        return _unpacked(stored)

    def put(self, policy: Policy) -> None:
        """Set it, in the place of what was set before, for all endpoints of the crawl."""
        plain = check_policy({}).traps.shown()
        traps = {name: value for name, value in policy.traps.shown().items() if value != plain[name]}
        packed = msgpack.packb({"rules": [rule.shown() for rule in policy.book.rules], "traps": traps})
        with store_errors():
            self._crawl.client.hset(self._key, mapping={"document": packed, "version": policy.version})
        with self._lock:
            self._looked = float("-inf")

    def _look(self) -> None:
        """Go by what is set, as of LOOK_SECONDS ago."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return
        with store_errors():
            version = self._crawl.client.hget(self._key, "version")
        if version != self._version:
            self._policy, self._version = self.policy(), version
            log.info("rules of URLs: %d, version %s", len(self._policy.book.rules), self._policy.version)
            self._start(None)
        self._looked = time.monotonic()

    # What is said of pages.

    def shut(self, snapshot: Snapshot) -> Bools | None:
        """Return which pages are not to be offered whoever asks, (n,) by position; None for none of them.

        The URLs of pages that are new are read, of a million in about a second; all, after the rules changed. The
        same columns have the same object, until the rules change.
        """
        return self._said_of(snapshot)[1]

    def _said_of(self, snapshot: Snapshot) -> tuple[Bytes, Bools | None]:
        found: tuple[Policy, Bytes, Bools | None] | None = snapshot.kept.get("admission")
        if found is None or found[0] is not self._policy or time.monotonic() - self._looked >= LOOK_SECONDS:
            with self._lock:
                self._look()
                if self._table is not snapshot.table or self._year != time.gmtime().tm_year:
                    self._start(snapshot.table)
                found = snapshot.kept.get("admission")
                if found is None or found[0] is not self._policy:
                    snapshot.kept["admission"] = found = (self._policy, *self._judge(snapshot))
                    self._weigh(snapshot)
        return found[1:]

    def _judge(self, snapshot: Snapshot) -> tuple[Bytes, Bools | None]:
        if not self._policy.book.rules and not self._policy.traps.on:
            return np.zeros(len(snapshot), np.uint8), None
        assert self._rules_of is not None
        starts = snapshot.starts.tolist()
        parts = [
            column.read(snapshot.host[start:end], self._rules_of)
            for column, start, end in zip(self._verdicts, starts, starts[1:], strict=False)
        ]
        verdicts = parts[0] if len(parts) == 1 else np.concatenate(parts)
        shut: Bools = verdicts >= Verdict.DENIED
        return verdicts, shut if shut.any() else None

    def counts(self, snapshot: Snapshot) -> dict[str, int]:
        """Return how many pages each rule of shape holds back, how many rules allow and deny, and what has grown."""
        counted = np.bincount(self._said_of(snapshot)[0], minlength=len(Verdict)).tolist()
        found = {verdict.name.lower(): counted[verdict] for verdict in Verdict if verdict != Verdict.FREE}
        weighed = self._weighed
        return {**found, "large_hosts": len(weighed.large), "outgrown_sites": len(weighed.site)}

    # What is said of hosts.

    def ration(self, snapshot: Snapshot, *, idle: bool = False) -> "Ration | None":
        """Return what one choice may take of large hosts and outgrown sites; None: as much as it likes.

        Args:
            snapshot: the state that it chooses from.
            idle: nothing else is to be had, so a large host may have more than its share, and an outgrown site a page
                every SPARED_SECONDS.
        """
        self._said_of(snapshot)
        with self._lock:
            weighed, traps = self._weighed, self._policy.traps
            if not traps.on or weighed.table is not snapshot.table or not weighed.group_of:
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

    def note(self, snapshot: Snapshot, hosts: Sequence[int]) -> None:
        """Remember of which hosts pages were handed out."""
        names, now = snapshot.hosts, time.monotonic()
        with self._lock:
            if self._table is not snapshot.table:
                return
            for host in hosts:
                site = registered_domain(names[host])
                self._window.note(host, site)
                if site in self._weighed.site:
                    self._spared[site] = now

    def _weigh(self, snapshot: Snapshot) -> None:
        """Look which hosts are large and which sites have outgrown others, if the last look is long enough ago."""
        # CPU time: on a busy machine a look that was kept waiting would put off the next one for seconds.
        now, began, traps = time.monotonic(), time.thread_time(), self._policy.traps
        if not traps.on or now - self._weighed_at < max(WEIGH_REST * self._weighing_took, WEIGH_SECONDS_MIN):
            return
        pages = np.bincount(snapshot.host[(snapshot.state & Flag.KNOWN) != 0])
        large = np.flatnonzero(pages > traps.host_pages).tolist() if traps.host_pages else []
        book, names = self._policy.book, snapshot.hosts
        self._weighed = _Weighed(
            snapshot.table,
            [host for host in large if not book.allows_all(names[host])],
            [site for site in self._outgrown(snapshot) if not book.allows_all(site)],
        )
        self._spared = {site: at for site, at in self._spared.items() if site in self._weighed.site}
        self._weighed_at, self._weighing_took = time.monotonic(), time.thread_time() - began

    def _outgrown(self, snapshot: Snapshot) -> frozenset[str]:
        traps = self._policy.traps
        if not traps.site_reads or not self._crawl.rules.inflow or snapshot.books.open < 2 * traps.site_reads:
            return frozenset()
        by_host = np.bincount(snapshot.host[(snapshot.state & Flag.OPEN) != 0])
        reads: Counter[str] = Counter()
        for number in np.flatnonzero(by_host).tolist():
            site = self._sites.get(number)
            if site is None:
                self._sites[number] = site = registered_domain(snapshot.hosts[number])
            reads[site] += int(by_host[number])
        suspected = [site for site, count in reads.items() if outgrown(count, snapshot.books.open - count, 0, 1, traps)]
        if not suspected:
            return frozenset()
        came = np.bincount(snapshot.host, weights=np.maximum(self._inflow(snapshot), 0))
        rules, live = self._crawl.rules, max(snapshot.books.live, 1)
        grant, others = rules.round_grains(live) / live, snapshot.books.open
        return frozenset(
            site
            for site in suspected
            if outgrown(
                reads[site], others - reads[site], float(came[_below(snapshot, site, len(came))].sum()), grant, traps
            )
        )

    def _inflow(self, snapshot: Snapshot) -> Int64s:
        """Read the in-flow of all pages. It has grown a little since the snapshot, which makes no difference here."""
        starts = snapshot.starts.tolist()
        parts = []
        for shard, pages in zip(self._crawl.shards, np.diff(starts).tolist(), strict=True):
            names = [shard.keys.block("f", b) for b in range(-(-pages // ROWS_I64))]
            blocks = self._crawl.ask([["GET", name] for name in names]) if names else []
            filled = b"".join((block or b"").ljust(BLOCK_BYTES, b"\0") for block in blocks)
            parts.append(np.frombuffer(filled, I64)[:pages].astype(np.int64))
        return np.concatenate(parts)

    # What is said of one page.

    def why(self, url: str) -> list[dict[str, str]]:
        """Return the rules that a page meets, each with "rule" and "effect"; those that decide come first.

        Raises:
            BadUrl: not an absolute http(s) URL.
        """
        url = canonical_url(url)
        with self._lock:
            self._look()
            policy = self._policy
            found = self._why_shape(url, policy)
            host, site = host_of(url), registered_domain(host_of(url))
            number = self._table.number(host) if self._table is not None else None
            if policy.traps.on and number is not None and number in self._weighed.group_of:
                share = f"at most {policy.traps.host_share:.0%} of the last {WINDOW} suggestions are of it"
                found.append({"rule": f"large host {host}", "effect": share})
            if policy.traps.on and site in self._weighed.site:
                share = f"at most {policy.traps.site_share:.0%} of the last {WINDOW} suggestions are of it"
                found.append({"rule": f"outgrown site {site}", "effect": share})
        return found

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
            # How many dates were known before this one only its own verdict tells.
            place = self._crawl.ids_of([url])[0]
            verdict = Verdict.FREE if place is None else self._verdicts[place[0]].of(place[1])
        if verdict <= Verdict.DENIED:
            return []
        return [{"rule": f"trap: {verdict.name.lower()}", "effect": f"deny: {policy.traps.effect(verdict)}"}]


class Ration:
    """What one choice may take of groups of hosts. It is for one thread."""

    def __init__(self, groups: Int32s, room: Int64s) -> None:
        """Use `Admission.ration`.

        Args:
            groups: (hosts,) the group of each host, -1 for none.
            room: (groups,) how many pages of each group may be had.
        """
        self._groups, self._room, self._left = groups, room, room.copy()
        self.refused = False

    def fit(self, hosts: Int32s) -> Bools:
        """Tell which pages of these hosts may be had, in this order; each call goes on from the one before."""
        groups = np.where(hosts < len(self._groups), self._groups[np.minimum(hosts, len(self._groups) - 1)], -1)
        fits: Bools = groups < 0
        watched = np.flatnonzero(~fits)
        if len(watched):
            some = groups[watched]
            order = np.argsort(some, kind="stable")
            ordered = some[order]
            place = np.arange(len(some)) - np.searchsorted(ordered, ordered)  # Of each page within its group.
            kept = order[place < self._left[ordered]]
            fits[watched[kept]] = True
            self._left -= np.bincount(some[kept], minlength=len(self._left))
            self.refused |= len(kept) < len(some)
        return fits

    def take(self, hosts: Sequence[int]) -> None:
        """Count pages of these hosts as chosen, and forget what else was asked."""
        groups = self._groups[[host for host in hosts if host < len(self._groups)]]
        self._room = np.maximum(self._room - np.bincount(groups[groups >= 0], minlength=len(self._room)), 0)
        self._left = self._room.copy()


def _below(snapshot: Snapshot, site: str, hosts: int) -> list[int]:
    return [number for number in snapshot.table.below(site) if number < hosts]


def _unpacked(stored: bytes | None) -> Policy:
    """Read what is in the store.

    Raises:
        StoreMismatch: another version of the program set it.
    """
    try:
        return check_policy(msgpack.unpackb(stored) if stored else {})
    except BadInput as error:
        raise StoreMismatch(
            f"the rules in the store can't be read by this program: {error}; set them anew with `opic rules set`"
        ) from None
