"""The frontier: which pages to fetch next. Greedy by cash, polite to hosts, no page to two crawlers at once.

Candidates come from the mirror, in the order of their cash; their rows are read again from the store, since a page may
have been read meanwhile; and one call to the store leases those that are still free. That call alone decides, so any
number of endpoints may hand out pages.
"""

import math
import re
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from opic.cash import CLASS_BITS, MILLION, Flag
from opic.errors import BadInput
from opic.mirror import Bools, Mirror, Snapshot
from opic.store import Shard
from opic.store.columns import Int64s, Record
from opic.store.connection import store_errors
from opic.store.shard import ROWS_READ_MAX
from opic.urls import canonical_host, shown

MODES = ("any", "discover", "refresh")
LEASE_SECONDS_MAX = 86_400.0
BATCH_SHARE = 10  # Past one page in ten asked for or out, a batch is cut at half of its best page's cash.
CANDIDATES_SPARE = 16  # Beyond twice what is wanted: some were read since the mirror looked.
SCAN_PAGES = 4_096  # The first stretch of the greedy order that is looked at; it doubles.
HELD_EXACT = 5_000  # Up to so many leases, waits and delays are read anew for every answer, in about 5 ms.
HELD_REST = 5  # Past it, they are kept for so many times what reading them took,
HELD_SECONDS_MAX = 1.0  # and never longer.
RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 60.0
RETRY_SECONDS_DEFAULT = 5.0  # When nothing says when; and while leases run, for each may bring new cash any moment.
RELEASES_A_CALL = 1_000
LEASE = re.compile(r"([0-9]{1,4})-([0-9]{1,15})-([0-9]{1,16})")  # Shard, page, end of the lease in microseconds.
NOT_OFFERED = Flag.GONE | Flag.EXCLUDED
NOTHING: Int64s = np.empty(0, np.int64)
Float64s = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Politeness:
    """What is owed to hosts and among crawlers, in seconds; 0 is none."""

    host_delay_seconds: float = 1.0  # The least time between two suggestions of one host.
    retry_seconds: float = 60.0  # The first wait after a failed fetch or an expired lease, doubling up to a day.
    lease_seconds: float = 300.0  # How long a suggestion is a crawler's own.


@dataclass(frozen=True, slots=True)
class _Page:
    """A candidate as the store has it now."""

    id: int
    host: int
    cash: int
    counts: float  # In the greedy order: whole grains, but where pages never read count more, or less.
    importance: float
    read_before: bool


class _Held:
    """What may not be offered and until when (Unix seconds), as read from the store, and what we leased since."""

    def __init__(self, pages: Int64s, pages_until: Float64s, hosts: Int64s, hosts_until: Float64s) -> None:
        self.pages, self.pages_until, self.hosts, self.hosts_until = pages, pages_until, hosts, hosts_until
        self.read_at = self.took = 0.0  # Monotonic.
        self.since_pages: dict[int, float] = {}
        self.since_hosts: dict[int, float] = {}

    def is_stale(self) -> bool:
        """Tell whether the store is to be asked again: always where that is cheap."""
        few = len(self.pages) + len(self.hosts) <= HELD_EXACT
        return few or time.monotonic() - self.read_at > min(HELD_REST * self.took, HELD_SECONDS_MAX)

    def pages_at(self, now: float) -> Int64s:
        """Return the ids of pages that are not free."""
        since = [page for page, until in self.since_pages.items() if until > now]
        return np.concatenate((self.pages[self.pages_until > now], np.array(since, np.int64)))

    def hosts_at(self, now: float) -> Int64s:
        """Return the numbers of hosts that are not free."""
        since = [host for host, until in self.since_hosts.items() if until > now]
        return np.concatenate((self.hosts[self.hosts_until > now], np.array(since, np.int64)))


class _Scan:
    """The greedy order as one call sees it, without what it may not or need not look at again."""

    def __init__(
        self, snapshot: Snapshot, mode: str, domain: str | None, busy: Iterable[str], discovery: float
    ) -> None:
        self.snapshot, self.mode, self.discovery = snapshot, mode, discovery
        self.host = snapshot.host  # Before the names, which are then as many as these need, or more.
        self.shut = np.zeros(len(snapshot), np.bool_)  # Pages that are held, or were looked at.
        self.unwanted = np.full(len(snapshot.hosts), domain is not None, np.bool_)  # Hosts, by number.
        if domain is not None:
            self.unwanted[self._numbers(snapshot.table.below(domain))] = False
        busy_numbers = (snapshot.table.number(host) for host in busy)
        self.unwanted[self._numbers(i for i in busy_numbers if i is not None)] = True
        self.closed = self.unwanted.copy()  # And those whose delay runs.

    def _numbers(self, hosts: Iterable[int]) -> list[int]:
        return [i for i in hosts if i < len(self.unwanted)]  # More hosts may have come meanwhile.

    def hold(self, pages: Int64s, hosts: Int64s) -> None:
        """Pass over pages, and over all pages of hosts."""
        self.shut[pages[pages < len(self.shut)]] = True
        self.closed[hosts[hosts < len(self.closed)]] = True

    def wanted(self, ids: Int64s) -> Bools:
        """Tell which pages the caller asks for, be they free now or not."""
        fit: Bools = ~self.unwanted[self.host[ids]]
        if self.mode != "any":
            fit &= ((self.snapshot.state[ids] & Flag.OPEN) != 0) == (self.mode == "refresh")
        return fit

    def best(self, count: int, taken: Iterable[int] | None) -> tuple[Int64s, float]:
        """Return the free pages with most cash, and what counts of that of the next one, 0 if there is none.

        A host with all of the hottest pages costs a longer look down the order, no round trip to the store.

        Args:
            count: how many pages.
            taken: hosts of pages already chosen, where one page a host is all that may be had; None: no such limit.
        """
        passed = self.closed.copy()
        passed[list(taken or ())] = True
        found: list[Int64s] = []
        have, at, stretch = 0, 0, SCAN_PAGES
        while have <= count:
            ids = self.snapshot.greedy(at + stretch, self.discovery)[at : at + stretch]
            if not len(ids):
                break
            at, stretch = at + stretch, 2 * stretch
            ids = ids[~self.shut[ids] & ~passed[self.host[ids]]]
            ids = ids[self.wanted(ids)]
            if taken is not None:
                hosts, first = np.unique(self.host[ids], return_index=True)
                passed[hosts] = True
                ids = ids[np.sort(first)]
            found.append(ids)
            have += len(ids)
        ids = np.concatenate([np.empty(0, np.int64), *found])
        return ids[:count], self.snapshot.offers(self.discovery)[ids[count]].item() if have > count else 0


class Frontier:
    """Hands out pages of one shard."""

    def __init__(
        self, shard: Shard, mirror: Mirror, politeness: Politeness | None = None, discovery: float = 1.0
    ) -> None:
        """Offer the pages of an open shard; in their order, cash of pages never read counts `discovery` times."""
        self.shard, self.mirror, self.politeness = shard, mirror, politeness or Politeness()
        self.discovery = discovery
        self._held: _Held | None = None
        # Calls in one process would choose the same pages and all but one would be refused them.
        self._lock = threading.Lock()

    def next(
        self,
        n: int = 10,
        crawler: str = "",
        *,
        lease_seconds: float | None = None,
        busy_hosts: Sequence[str] = (),
        domain: str | None = None,
        mode: str = "any",
    ) -> dict[str, object]:
        """Lease the pages with most cash to a crawler.

        Args:
            n: how many at most; with a host delay, one a host at most. While these and the leases that run are more
                than a tenth of the live pages, the batch is cut at half of its best page's cash.
            crawler: who asks.
            lease_seconds: how long the pages are the crawler's own; as set if None.
            busy_hosts: hosts to pass over.
            domain: only this host or domain, with all below it.
            mode: "discover": only pages never read since they became known or came back; "refresh": only others.

        Returns:
            "pages": most cash first, each with "url", "cash" (grains; negative where a page owes), "importance",
            "fetched_before", "lease" (for `release`) and "lease_until" (Unix seconds); "retry_after": 0, or, without
            pages, the seconds until the first one may be free, at most a minute, and 5 s while leases run: their
            fetches move cash.

        Raises:
            BadInput: a parameter can't be taken.
        """
        seconds = self.politeness.lease_seconds if lease_seconds is None else lease_seconds
        if n < 1:
            raise BadInput(f"n={n}: ask for at least one page")
        if not 0 < seconds <= LEASE_SECONDS_MAX:  # NaN fails every comparison.
            raise BadInput(f"lease_seconds={seconds} is not over 0 and up to {LEASE_SECONDS_MAX:,.0f}, a day")
        if mode not in MODES:
            raise BadInput(f"mode={shown(mode)} is none of {', '.join(MODES)}")
        busy, within = [canonical_host(h) for h in busy_hosts], None if domain is None else canonical_host(domain)
        with self._lock:
            scan = _Scan(self.mirror.fresh(), mode, within, busy, self.discovery)
            now, leases = self._sweep()
            held = self._read_held(now, scan.snapshot)
            scan.hold(held.pages_at(now), held.hosts_at(now))
            granted = self._choose(scan, n, leases, seconds, held)
            if not granted:
                return {"pages": [], "retry_after": self._retry_after(scan, now, leases)}
        urls = self.shard.urls_of(page.id for page, _ in granted)
        return {
            "pages": [
                {
                    "url": urls[page.id],
                    "cash": page.cash,
                    "importance": page.importance,
                    "fetched_before": page.read_before,
                    "lease": f"0-{page.id}-{until_us}",
                    "lease_until": until_us / MILLION,
                }
                for page, until_us in granted
            ],
            "retry_after": 0,
        }

    def _choose(self, scan: _Scan, n: int, leases: int, seconds: float, held: _Held) -> list[tuple[_Page, int]]:
        """Lease up to `n` pages, most cash first; return them with the ends of their leases in microseconds.

        The mirror's order is a promise only: a candidate's cash is read again, and it is leased once no page that was
        not looked at is promised more.
        """
        one_a_host = self.politeness.host_delay_seconds > 0
        cut = (n + leases) * BATCH_SHARE > scan.snapshot.books.live
        granted: list[tuple[_Page, int]] = []
        pool: list[_Page] = []  # Looked at, most cash first.
        following: float = sys.maxsize  # What the best page is promised that was not looked at.
        look = 2 * n + CANDIDATES_SPARE
        while len(granted) < n:
            missing = n - len(granted)
            best = max(page.counts for page, _ in granted) if granted else pool[0].counts if pool else 0
            least = -(-best // 2) if cut else 1
            ready = [page for page in pool if page.counts >= max(following, least)]
            if one_a_host:
                ready = _one_a_host(ready)
            if len(ready) < missing and following >= max(least, 1):
                ids, following = scan.best(min(look, ROWS_READ_MAX), {p.host for p in ready} if one_a_host else None)
                look *= 2
                scan.hold(ids, NOTHING)
                pool = sorted([*pool, *self._fresh(ids, scan)], key=lambda page: (-page.counts, page.id))
                continue
            if not ready:
                break
            asked = ready[: 2 * missing + CANDIDATES_SPARE]
            leased, until_us = self._lease(asked, missing, seconds, scan.snapshot.hosts)
            granted += [(page, until_us) for page in leased]
            self._note(held, leased, until_us, seconds)
            if len(leased) < missing:
                # The others were refused: another endpoint was faster.
                decided = {page.id for page in asked}
                if one_a_host:
                    scan.hold(NOTHING, np.array([page.host for page in asked], np.int64))
                pool = [page for page in pool if page.id not in decided and not scan.closed[page.host]]
        return sorted(granted, key=lambda lease: (-lease[0].counts, lease[0].id))

    def _fresh(self, ids: Int64s, scan: _Scan) -> list[_Page]:
        """Read candidates from the store; leave out those that are no more."""
        if not len(ids):
            return []
        rows = self.shard.rows(ids.tolist())
        credits, total = rows.books.credits(), rows.books.importance_total(self.shard.rules.minted)
        total = max(total + scan.snapshot.overdrawn, 1)
        pages = []
        for page, host, v, spent, state, packed in zip(
            ids.tolist(),
            scan.host[ids].tolist(),
            rows.v.tolist(),
            rows.spent.tolist(),
            rows.state.tolist(),
            rows.records,
            strict=True,
        ):
            cash, read = v + credits[state & CLASS_BITS], bool(state & Flag.OPEN)
            fits = scan.mode == "any" or read == (scan.mode == "refresh")
            if (cash > 0 or (cash < 0 and read)) and fits and state & (Flag.KNOWN | NOT_OFFERED) == Flag.KNOWN:
                counts = abs(cash) if read or self.discovery == 1 else max(cash * self.discovery, 1.0)
                importance, read_before = min(max(spent + cash, 0) / total, 1.0), Record.unpack(packed).reads > 0
                pages.append(_Page(page, host, cash, counts, importance, read_before))
        return pages

    # What only the store decides.

    def _sweep(self) -> tuple[float, int]:
        """End leases that ran out; return the server's time (Unix seconds) and how many leases run."""
        keys = self.shard.keys
        with store_errors():
            now_us, leases = self.shard.client.fcall(
                "opic_1_sweep", 4, keys.leases, keys.waits, keys.fails, keys.hosts, self.politeness.retry_seconds
            )
        return int(now_us) / MILLION, int(leases)

    def _lease(
        self, pages: Sequence[_Page], most: int, seconds: float, hosts: Sequence[str]
    ) -> tuple[list[_Page], int]:
        """Lease up to `most` pages, in order, those that are free; return them and the lease's end in microseconds."""
        keys, delay = self.shard.keys, self.politeness.host_delay_seconds
        blob = msgpack.packb([part for page in pages for part in (page.id, hosts[page.host])])
        with store_errors():
            _, until_us, places = self.shard.client.fcall(
                "opic_1_lease", 3, keys.leases, keys.waits, keys.hosts, most, seconds, delay, blob
            )
        return [pages[place - 1] for place in places], int(until_us)

    def _note(self, held: _Held, leased: Sequence[_Page], until_us: int, seconds: float) -> None:
        until = until_us / MILLION
        for page in leased:
            held.since_pages[page.id] = until + self.politeness.retry_seconds
            held.since_hosts[page.host] = until - seconds + self.politeness.host_delay_seconds

    def _read_held(self, now: float, snapshot: Snapshot, *, anew: bool = False) -> _Held:
        """Return what is held. With very much of it, up to a second old: the lease itself is checked by the store."""
        if self._held is not None and not anew and not self._held.is_stale():
            return self._held
        keys, started = self.shard.keys, time.monotonic()
        with store_errors(), self.shard.client.pipeline(transaction=False) as pipe:
            pipe.execute_command("ZRANGE", keys.leases, "-inf", "+inf", "BYSCORE", "WITHSCORES")
            pipe.execute_command("ZRANGE", keys.waits, f"({now:.6f}", "+inf", "BYSCORE", "WITHSCORES")
            pipe.execute_command("ZRANGE", keys.hosts, f"({now:.6f}", "+inf", "BYSCORE", "WITHSCORES")
            leases, waits, hosts = map(_pairs, pipe.execute())
        # A lease that nobody ends is a failed fetch: its page waits on. One that is over binds until it is swept.
        retry, soon = self.politeness.retry_seconds, now + RETRY_SECONDS_MIN
        free = [(int(page), max(float(until) / MILLION + retry, soon)) for page, until in leases]
        free += [(int(page), float(until)) for page, until in waits]
        numbers = [(snapshot.table.number(host.decode()), float(until)) for host, until in hosts]
        closed = [(number, until) for number, until in numbers if number is not None]
        self._held = held = _Held(*_columns(free), *_columns(closed))
        held.read_at, held.took = started, time.monotonic() - started
        return held

    def _retry_after(self, scan: _Scan, now: float, leases: int) -> float:
        """Return in how many seconds the first of the wanted pages may be free."""
        held = self._read_held(now, scan.snapshot, anew=True)
        most = RETRY_SECONDS_DEFAULT if leases else RETRY_SECONDS_MAX
        ids = np.flatnonzero(scan.snapshot.offers() > 0)
        ids = ids[scan.wanted(ids)]
        if not len(ids):
            return RETRY_SECONDS_DEFAULT
        free = np.zeros(len(scan.snapshot))
        seen = held.pages < len(free)
        np.maximum.at(free, held.pages[seen], held.pages_until[seen])  # A page may wait twice.
        host_free = np.zeros(len(scan.unwanted))
        seen = held.hosts < len(host_free)
        host_free[held.hosts[seen]] = held.hosts_until[seen]
        first = float(np.maximum(free[ids], host_free[scan.host[ids]]).min()) - now
        return math.ceil(min(max(first, RETRY_SECONDS_MIN), most) * 1000) / 1000

    def release(self, leases: Sequence[str]) -> dict[str, object]:
        """Give pages back unread; their hosts' delays go on.

        Returns:
            "released": how many of the leases still ran. One that ended, or whose page is another's now, counts 0.

        Raises:
            BadInput: a text is no lease; none is given back.
        """
        tokens = []
        for lease in dict.fromkeys(leases):
            match = LEASE.fullmatch(lease)
            if match is None or int(match[1]) != 0:
                raise BadInput(f"{shown(lease)} is not a lease: give back what came as `lease` with a page")
            tokens += [match[2], match[3]]
        released = 0
        for at in range(0, len(tokens), 2 * RELEASES_A_CALL):
            with store_errors():
                released += self.shard.client.fcall(
                    "opic_1_release", 1, self.shard.keys.leases, *tokens[at : at + 2 * RELEASES_A_CALL]
                )
        if self._held is not None:
            self._held.read_at = -math.inf  # The pages are free from now on.
        return {"released": released}


def _one_a_host(pages: Iterable[_Page]) -> list[_Page]:
    """Keep the first page of each host."""
    first: dict[int, _Page] = {}
    for page in pages:
        first.setdefault(page.host, page)
    return list(first.values())


def _pairs(reply: Sequence[Any]) -> Iterable[tuple[bytes, Any]]:
    """Return members and scores; RESP3 nests them, RESP2 does not. The client's own parsing is four times slower."""
    return zip(reply[::2], reply[1::2], strict=True) if reply and isinstance(reply[0], bytes) else reply


def _columns(pairs: Sequence[tuple[int, float]]) -> tuple[Int64s, Float64s]:
    return np.array([at for at, _ in pairs], np.int64), np.array([until for _, until in pairs], np.float64)
