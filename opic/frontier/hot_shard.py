"""A shard's priority order with its leases, retry waits and host delays: a cache, updated incrementally.

The leases, waits and delays are read in full once. After that, the journal and the stream of changes report what all
endpoints did, in the order of the server. Answers to our own calls tell it a moment earlier, and also which hosts are
blocked or at their cap. This is only a cache: the leasing call in the store decides. Times are Unix seconds by the
clock of the shard's server. The caller must hold the replica's lock.
"""

import time
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from opic.admission import Admission
from opic.arrays import Bools, Float64s, Int64s, grown, values_at
from opic.frontier import page_counts
from opic.frontier.held_pages import Held
from opic.frontier.host_groups import HostGroups
from opic.frontier.host_limits import HostLimits
from opic.frontier.hot_order import HotOrder
from opic.frontier.leases import LeaseAnswer
from opic.frontier.page_counts import LEASED, RETRY
from opic.frontier.requests import FrontierTerms, PolitenessSettings
from opic.frontier.revisit import RevisitTerms
from opic.frontier.silent_hosts import SilentHosts
from opic.model.cash import MILLION
from opic.replica.changes import Change, ChangeId, Fields
from opic.replica.effect import Effect
from opic.replica.replica import Replica

NOTHING: Final = ChangeId(0, 0)
LEASES_ONLY: Final = {b"n", b"t", b"l"}  # The fields of a change that tells of leases alone, as most do.
GROUPS_TOLD: Final = {b"a", b"g"}  # Those that tell of politeness groups.
SET_BACK_SECONDS: Final = 60.0  # An answer may arrive late by less; if it is further behind, the clock was set back.
HELD_SECONDS_MIN: Final = 0.01  # Minimum time before a refused page is requested again, even if clocks differ.
TERMS_PAGES: Final = 1 << 20  # Pages whose revisit time is computed at once.


class ShardColumns:
    """The columns of a replica, as a hot order reads them."""

    v = property(attrgetter("_arrays.v"))
    state = property(attrgetter("_arrays.state"))
    host = property(attrgetter("_arrays.host"))

    def __init__(self, replica: Replica, politeness: PolitenessSettings, admission: Admission | None) -> None:
        """Wrap a replica, with the rules that keep pages from being offered; no host has its own terms yet."""
        self._replica, self._patience, self._admission = replica, politeness.patience, admission
        self._arrays = replica.columns
        self.revisit = RevisitTerms(replica, politeness.revisit_seconds, admission)
        self.limits, self.silent = HostLimits(replica), SilentHosts(replica, self._patience)

    def __len__(self) -> int:
        return self._replica.pages

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self._replica.hosts.names)

    def ruled_out(self, ids: Int64s) -> Bools | None:
        """Return a mask of the pages that rules, the scope or their shape keep from being offered; None if none."""
        return None if self._admission is None else self._admission.shut(self._replica.shard, ids)

    def host_full(self, ids: Int64s) -> Bools | None:
        """Return a mask of the pages of hosts of which no more may be read; None if there are none."""
        return self.limits.shut(ids)

    def given_up(self, ids: Int64s) -> Bools | None:
        """Return a mask of the pages that are given up, or whose host is; None if there are none."""
        pages = self._replica.failed_for_good(ids, self._patience)
        hosts = self.silent.given_up(self.host[ids])
        return pages if hosts is None else hosts if pages is None else pages | hosts

    def revisit_at(self, ids: Int64s) -> Float64s | None:
        """Return when pages may be offered after their last read, in Unix seconds; None if at any time."""
        return self.revisit.due(ids)

    def not_before(self, ids: Int64s) -> Float64s | None:
        """Return when pages may be offered as was said of them, in Unix seconds; None if at any time."""
        return self._arrays.values_of("not_before_us", ids) / MILLION if len(self._arrays.not_before_us) else None

    def priority(self, ids: Int64s) -> Float64s | None:
        """Return the priorities of pages; None if all are 1."""
        return self._arrays.values_of("priority", ids) if len(self._arrays.priority) else None

    def preferred(self) -> Int64s:
        """Return the pages whose priority is above 1, ascending. Costs 1 ms a million pages."""
        return np.flatnonzero(self._arrays.priority > 1)

    def nearness(self, ids: Int64s) -> Int64s:
        """Return the nearness of pages, 0 where their depth is unknown."""
        return self._arrays.values_of("nearness", ids).astype(np.int64)

    def within_depth(self, least: int) -> Int64s:
        """Return the ids of the pages whose nearness is at least `least`, ascending."""
        return self._arrays.near(least, len(self))

    def last_read_us(self, ids: Int64s) -> Int64s:
        """Return when pages were last read, in Unix microseconds; 0 if never."""
        return self._replica.histories.last_read_us(self._arrays.row[ids])

    def credits(self) -> Int64s:
        """Return the credit of each class, (8,)."""
        return np.array(self._replica.books.credits(), np.int64)


class HotShard:
    """The hot order of a replica, valid until the replica is reloaded."""

    def __init__(
        self,
        replica: Replica,
        terms: FrontierTerms,
        admission: Admission | None = None,
        groups: HostGroups | None = None,
    ) -> None:
        self.replica, self.loads = replica, replica.loads
        self._groups, self.group_changes = groups, list[Fields]()  # Those of politeness groups that came since a look.
        self._own_free = np.zeros(0)  # When hosts are free apart from what their groups say,
        self._undelayed = np.zeros(0, np.int64)  # and those that an operator let have no delay.
        self.politeness = politeness = terms.politeness
        columns = ShardColumns(replica, politeness, admission)
        self.revisit, self.limits, self.silent = columns.revisit, columns.limits, columns.silent
        self.order = HotOrder(
            columns,
            terms.discovery,
            terms.strategy,
            single=politeness.host_delay_seconds > 0,
            retry_seconds=politeness.retry_seconds,
        )
        self._loaded = False
        self.lost = False  # Whether the held pages and hosts must be read in full again.
        self.called_at = float("-inf")  # When the store was last asked, monotonic.
        self._clock = -np.inf  # The server's time, as last reported, minus our monotonic time. It never runs ahead.
        self.set_back = False  # Whether the server's clock was, by so much that other times of the order are wrong too.
        self._loading = False  # Whether the held pages are being read. Then:
        self._fetched = dict[int, int]()  # Pages that were fetched since that began, by which record,
        self._unheard = list[Change]()  # and changes since then.
        self._full: dict[int, float] = {}  # Hosts at their cap of pages in flight: when free apart from it.
        self._silent: dict[int, float] = {}  # Hosts that fail in a row: until when they rest.
        self._single: dict[int, bool] = {}  # Hosts with an own delay: whether they have one.

    def now(self) -> float:
        """Return the server's time, in Unix seconds."""
        return self._clock + time.monotonic()

    def monotonic(self, seconds: float) -> float:
        """Return when our monotonic clock shows what the server's shows then, in Unix seconds."""
        return seconds - self._clock

    def hear_time(self, seconds: float) -> None:
        """Adjust the clock to a time reported by the server.

        The order's time never goes back. If the server's clock was set back, the order is rebuilt before the next call.
        """
        heard = seconds - time.monotonic()
        self.set_back |= heard < self._clock - SET_BACK_SECONDS
        self._clock = max(self._clock, heard)

    # The journal.

    def applied(self, effect: Effect, changed: Int64s) -> None:
        """Apply a journal record: changed pages, and fetches, which end leases and waits or start waits."""
        limited = self.limits.applied(effect)
        self.order.changed(np.union1d(changed, limited) if len(limited) else changed)
        if effect.classes is not None:
            self.note_terms()
        timed = [effect.read_page, effect.noted_of("not_before_us")[0], effect.forgotten]
        timed += [effect.state_page] if self.revisit.classes().any() else []
        self.order.note_reads(np.unique(np.concatenate(timed)).astype(np.int64), self.now())
        fetched = np.concatenate((effect.read_page, effect.fetched_page, effect.forgotten)).astype(np.int64)
        pages, failures = effect.noted_of("failures")
        revived = pages[failures == 0].astype(np.int64)  # By an event that ends failures, or a seed.
        fetched = np.concatenate((fetched, revived[self.order.where[revived] == RETRY]))
        self._free(fetched)  # A back-off that begins is the next change.
        self._hear_silence(effect)
        if self._loading:
            self._fetched |= dict.fromkeys(fetched.tolist(), effect.lsn)

    def _hear_silence(self, effect: Effect) -> None:
        """Let hosts rest whose failures in a row changed, or end their rest."""
        changed = self.silent.applied(effect)
        if len(changed):
            self.order.changed(self.order.pages_of(changed))
        hosts = effect.failing_host.astype(np.int64)
        if not len(hosts):
            return
        rests = self.silent.rests(hosts)
        over = [host for host in hosts.tolist() if host not in rests and self._silent.pop(host, None) is not None]
        for host in over:
            single = self._single.get(host, self.politeness.host_delay_seconds > 0)
            self.order.set_single(np.array([host]), single=single)
        self._rest(dict.fromkeys(over, 0.0))
        self._silence(rests)

    def _silence(self, rests: dict[int, float]) -> None:
        """Let hosts rest until these times, and give one page at a time from then on."""
        if rests:
            self._silent |= rests
            hosts = np.array(list(rests), np.int64)
            self.order.set_single(hosts, single=True)
            self._rest({host: max(end, float(self.order.host_free[host])) for host, end in rests.items()})

    def linked(self, ids: Int64s) -> None:
        """Apply changed in-links."""
        self.order.changed(ids[ids < len(self.replica)])

    def note_terms(self, ids: Int64s | None = None) -> None:
        """Apply changed times at which pages may be offered: to all that have any if None, about 100 ns for each."""
        if ids is None:
            ids = np.union1d(self.revisit.read_pages(), np.flatnonzero(self.replica.columns.not_before_us))
        for first in range(0, len(ids), TERMS_PAGES):
            self.order.note_reads(ids[first : first + TERMS_PAGES], self.now())

    def too_early(self, ids: Int64s) -> Bools:
        """Return a mask of the pages that may not be offered yet: read too recently, or said to wait."""
        due = page_counts.due(self.order.columns, ids)
        return np.zeros(len(ids), np.bool_) if due is None else due.until > self.now()

    def _free(self, ids: Int64s) -> None:
        self.order.release(ids)
        self._open_hosts(ids)

    def _open_hosts(self, ids: Int64s) -> None:
        """Unblock hosts that were at their cap of pages in flight, now that one of these pages was fetched."""
        if self._full and len(ids):
            hosts = [host for host in np.unique(self.replica.host[ids]).tolist() if host in self._full]
            self._rest({host: self._full.pop(host) for host in hosts})

    # Held pages and hosts.

    def hear(self, changes: Sequence[Change]) -> None:
        """Apply changes; see `tell` in `opic/store/back_offs.lua`."""
        if self._loading:
            self._unheard += changes
            return
        leases = dict[int, tuple[float, float]]()  # Of entries in a row: page -> end, and when its host is free.
        for fields, lsn in changes:
            if not fields.keys() <= LEASES_ONLY:
                self._hold_leases(leases)
                leases.clear()
                self._hear_others(fields, lsn)
            terms, now = fields.get(b"l", b"").split(), float(fields[b"t"]) / MILLION
            for end, page, delay_ms in zip(terms[::3], map(int, terms[1::3]), map(int, terms[2::3]), strict=True):
                if self._is_newer(page, lsn):  # A renewal, without a delay, leaves that of the lease before.
                    free = now + delay_ms / 1_000 if delay_ms else leases.get(page, (0.0, 0.0))[1]
                    leases[page] = float(end) / MILLION, free
        self._hold_leases(leases)

    def _hear_others(self, fields: Fields, lsn: int) -> None:
        """Apply a change but for its leases."""
        self.lost |= b"r" in fields
        if fields.keys() & GROUPS_TOLD:
            self.group_changes.append(fields)
        if b"m" in fields:
            limit, host = fields[b"m"].decode().split(" ")
            self.order.changed(self.limits.change(host, int(limit)))
        released = [page for page in map(int, fields.get(b"f", b"").split()) if self._is_newer(page, lsn)]
        self._free(np.array(released, np.int64))
        terms = fields.get(b"w", b"").split()
        pairs = zip(map(int, terms[1::2]), map(float, terms[::2]), strict=True)
        waits = {page: end for page, end in pairs if self._is_newer(page, lsn)}
        if waits:
            ids = np.array(list(waits), np.int64)
            self.order.hold(ids, np.array(list(waits.values())), RETRY)
            self._open_hosts(ids)

    def _hold_leases(self, leases: Mapping[int, tuple[float, float]]) -> None:
        if not leases:
            return
        ids, rests = np.array(list(leases), np.int64), dict[int, float]()
        self.order.hold(ids, np.array([end for end, _ in leases.values()]))
        for host, (end, free) in zip(self.replica.host[ids].tolist(), leases.values(), strict=True):
            if free:
                rests[host] = max(free, rests.get(host, 0.0))
            self._rest_silent(host, end, rests)
        self._rest(rests)

    def _is_newer(self, page: int, lsn: int) -> bool:
        """Return whether a page is known, and was not fetched after a record while the held pages were read."""
        return page < len(self.replica) and self._fetched.get(page, 0) <= lsn

    def _rest_silent(self, host: int, end: float, rests: dict[int, float]) -> None:
        """Let a host that fails in a row rest while its page is leased: an event says whether the host is back."""
        if host in self._silent:
            self._full[host], rests[host] = rests.get(host, 0.0), end

    def begin_load(self) -> None:
        """Keep what comes from now on until `load`: what is read for it may be older."""
        self._loading, self.lost = True, False
        self.group_changes.clear()

    def load(self, stored: Held) -> None:
        """Replace everything held by what was read in full from the store."""
        self.order.clear()
        self._full.clear()
        self.hear_time(stored.now)
        over = stored.leases[1] <= stored.now  # The next call ends these; they count as failed fetches already.
        expired = stored.leases[0][over], stored.leases[1][over] + self.politeness.retry_seconds
        for ids, until, kind in (
            (*stored.waits, RETRY), (*expired, RETRY), (stored.leases[0][~over], stored.leases[1][~over], LEASED)
        ):  # fmt: skip
            known = ids < len(self.replica)
            self.order.hold(ids[known], until[known], kind)
        names, free = stored.hosts
        self._rest({
            number: end
            for name, end in zip(names, free.tolist(), strict=True)
            if (number := self.replica.hosts.number(name)) is not None
        })  # fmt: skip
        self._single.clear()
        self._undelayed = np.zeros(0, np.int64)
        for name, own in stored.politeness.items():
            delay = own.delay_seconds
            if delay is not None and (number := self.replica.hosts.number(name)) is not None:
                self._single[number] = delay > 0
                self.order.set_single(np.array([number]), single=delay > 0)
                if not delay:
                    self._undelayed = np.append(self._undelayed, number)
                    self._rest({number: 0.0})
        self._silent.clear()
        self._silence(self.silent.rests())
        self.order.changed(self.limits.replace(stored.limits))
        seconds = {name: own.revisit_seconds for name, own in stored.politeness.items()}
        if self.revisit.set_hosts({k: v for k, v in seconds.items() if v is not None}) or not self._loaded:
            self.note_terms()
        self._loaded, self._loading = True, False
        self._free(np.array([page for page, lsn in self._fetched.items() if lsn > stored.lsn], np.int64))
        self.hear(self._unheard)
        self._fetched.clear()
        self._unheard.clear()
        self.order.settle()

    def record_answer(self, ids: Int64s, hosts: Int64s, answer: LeaseAnswer, heard: ChangeId = NOTHING) -> None:
        """Record which of the requested pages, which are reserved, were leased or refused; free all others.

        What was heard of already, up to the change `heard`, is left as it is: it may have ended since.
        """
        self.called_at = time.monotonic()
        fresh = ChangeId.parse(answer.change) > heard
        now, soon = answer.now_us / MILLION, answer.now_us / MILLION + HELD_SECONDS_MIN
        self.hear_time(now)
        ours = self.now()  # Ahead of the server's time if its clock was set back.
        page_until, leased, done = np.zeros(len(ids)), np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.bool_)
        single = np.unique(hosts[self.order.single[hosts]]).tolist()
        rests: dict[int, float] = {host: self._silent.get(host, 0.0) for host in single}
        for page in answer.granted:
            page_until[page.position], leased[page.position] = page.until_us / MILLION, fresh
            done[page.position] = not fresh
            host = int(hosts[page.position])
            if page.delay_seconds:
                rests[host] = now + page.delay_seconds
            if self._silent:
                self._rest_silent(host, page.until_us / MILLION, rests)
        for refused in answer.refused:
            until = max(refused.until_us / MILLION, soon)
            if until <= ours:  # Else it would be requested again and again.
                until += ours - now
            if refused.host_held:
                host = int(hosts[refused.position])
                if refused.full:
                    self._full.setdefault(host, rests.get(host, 0.0))
                rests[host] = max(rests.get(host, 0.0), until)
            elif refused.leased:
                page_until[refused.position], leased[refused.position] = until - self.politeness.retry_seconds, True
            else:
                page_until[refused.position] = until
        kept = leased | done | (page_until > 0)
        self.order.hold(ids[leased], page_until[leased])
        waits = kept & ~leased & ~done
        self.order.hold(ids[waits], page_until[waits], RETRY)
        self.order.release(ids[~kept])
        self._rest(rests)

    def _rest(self, ends: Mapping[int, float]) -> None:
        """Block hosts until these times, and as long as their groups rest."""
        if not ends:
            return
        hosts, until = np.array(list(ends), np.int64), np.array(list(ends.values()))
        if self._groups is not None:
            if len(self._own_free) <= (last := int(hosts.max())):
                self._own_free = grown(self._own_free, last + 1)
            self._own_free[hosts] = until
            if self._groups:
                until = np.maximum(until, self._group_free(hosts))
        self.order.rest(hosts, until)

    def rest_grouped(self, hosts: Int64s) -> None:
        """Block hosts as their groups, which have changed, and they themselves rest now."""
        own, reserved = values_at(self._own_free, hosts, 0.0), self.order.host_free[hosts] == np.inf
        self.order.rest(hosts, np.where(reserved, np.inf, np.maximum(own, self._group_free(hosts))))

    def _group_free(self, hosts: Int64s) -> Float64s:
        """Return when the groups of hosts are free; hosts without a delay need not wait for that."""
        assert self._groups is not None
        free = self._groups.rests(self.replica.shard, hosts) + self._clock
        if len(self._undelayed):
            free[np.isin(hosts, self._undelayed)] = -np.inf
        return free
