"""Explain why a page is or is not handed out next: each obstacle (lease, back-off, host delay) and when it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from opic.admission import SCOPE, Admission
from opic.arrays import Int64s
from opic.frontier.crawl_orders import ByColumn, RankedOrder
from opic.frontier.held_pages import host_politeness_of, ids_of, read_sets
from opic.frontier.host_groups import group_of
from opic.frontier.hot_shard import ShardColumns
from opic.frontier.page_counts import codes_of
from opic.frontier.page_keys import NOWHERE, STRATEGIES, keys_of
from opic.frontier.requests import FrontierTerms, PolitenessSettings
from opic.messages.frontier import HostPoliteness
from opic.messages.hindrances import HINDRANCES, Hindrance
from opic.messages.importance import AppliedRule
from opic.model.cash import DAY_US, MILLION, Flag
from opic.model.page_notes import GIVEN_UP
from opic.replica import Crawl, Replica
from opic.replica.crawl import Place
from opic.store.keys import Keys
from opic.store.refusals import field_of, read_refusal
from opic.urls.canonical import host_of, shard_of

T = TypeVar("T", bool, float)
SAME_SECONDS: Final = 0.001  # The store keeps these times in microseconds, as text.


class _Holds(NamedTuple):
    """The lease of a page, and its back-off after failed fetches or leases that expired without an event."""

    lease_until: float | None
    waits_until: float | None
    failures: int

    @classmethod
    def of(cls, now: float, lease: bytes | None, waits: bytes | None, failures: int, retry: float) -> "_Holds":
        """Return them as the next call that leases pages will see them; it ends leases that expired."""
        lease_until = None if lease is None else float(lease) / MILLION
        if lease_until is None or lease_until > now:
            return cls(lease_until, None if waits is None else float(waits), failures)
        return cls(lease_until, lease_until + back_off_seconds(failures + 1, retry) if retry else None, failures + 1)

    def since(self, lease_until: float | None, retry: float) -> bool:
        """Return whether this lease runs, or the page waits because it expired and not because of a later event."""
        if lease_until == self.lease_until:
            return True
        if lease_until is None or self.waits_until is None or not self.failures:
            return False
        return abs(self.waits_until - lease_until - back_off_seconds(self.failures, retry)) < SAME_SECONDS


@dataclass(frozen=True, slots=True)
class PageStanding:
    """The lease, back-off and host state of a page in the store. Times are Unix seconds by its server's clock."""

    now: float
    lease_until: float | None
    waits_until: float | None  # End of the back-off after failed fetches or leases that expired without an event.
    failures: int
    host_free_at: float | None
    group: "GroupRest"  # Of its host.
    delay: float  # The delay in effect for its host, in seconds.
    cap: int
    in_flight: int  # Number of leased pages of its host.
    refused: str | None  # Why its event was refused, if its lease or back-off is of that time.
    revisit_at: float | None  # When it may be offered again after its last read.
    revisit_seconds: float  # The revisit time in effect for it.
    failed_fetches: int | None  # In a row; None if an event gave it up.
    silence: "HostSilence"  # Of its host.
    not_before: float | None
    priority: float
    host_limit: int  # How many pages of its host may be read; 0 for any number.
    host: str
    state: int  # Its state byte.
    cash: int
    is_ruled_out: bool  # Whether the scope, a rule or its shape keeps it from being offered.
    is_given_up: bool  # After failed fetches, by an event, or with its host.
    rules: list[AppliedRule]  # Those that apply to it.
    page: Int64s  # Its id, (1,).
    held_by: list[Hindrance]  # Those whose mask or time alone says that it is held back.

    @classmethod
    def read(
        cls, crawl: Crawl, shard_page: Place, url: str, politeness: PolitenessSettings, admission: Admission | None
    ) -> "PageStanding":
        """Read the state of a page, given its canonical URL. Reads all active leases of the shard.

        All that the replica tells is of one moment of it, so that no part contradicts another.
        """
        host, (shard, number) = host_of(url), shard_page
        keys, replica = crawl.shards[shard].keys, crawl.replicas[shard]
        time_us, lease, waits, failed, host_free, refusal, address, polite, asked_for, blocked, limit = crawl.ask(
            _questions(keys, number, host)
        )
        now, refused = time_us / MILLION, read_refusal(refusal, number)
        holds = _Holds.of(now, lease, waits, int(failed or 0), politeness.retry_seconds)
        own = host_politeness_of(polite) if polite else HostPoliteness()
        delay = _delay_of(own, politeness, float(asked_for or 0))
        ((leased, _),), ids = read_sets(crawl, [(keys.leases, f"({time_us}")]), np.array([number])
        group, rules = read_group(crawl, host, address, politeness.by), [] if admission is None else admission.why(url)
        with replica.lock:
            columns = _columns_of(host, own, limit, ShardColumns(replica, politeness, admission))
            held_by = [row for row in HINDRANCES if row.holds is None and _holds_back(row, columns, ids, now)]
            is_given_up, silence = "given_up" in {row.kind for row in held_by}, _silence_of(replica, host, politeness)
            own_free = max(float(host_free or 0) if delay else 0.0, float(blocked or 0), silence.until)
            return cls(
                now=now,
                lease_until=_later(holds.lease_until, now),
                waits_until=None if is_given_up else _later(holds.waits_until, now),
                failures=holds.failures,
                host_free_at=_later(max(own_free, now + group.rests_seconds if delay else 0.0), now),
                group=group,
                delay=delay,
                cap=politeness.host_in_flight if own.in_flight is None else own.in_flight,
                in_flight=_count_of(replica, host, ids_of(leased)),
                refused=refused[1] if refused and holds.since(refused[0], politeness.retry_seconds) else None,
                revisit_at=_later(_first(columns.revisit_at(ids), 0.0), now),
                revisit_seconds=_first(columns.revisit.seconds(ids), 0.0),
                failed_fetches=_failed_fetches(replica, ids),
                silence=silence,
                not_before=_later(_first(columns.not_before(ids), 0.0), now),
                priority=float(replica.column("priority", ids)[0]),
                host_limit=int(limit or 0),
                host=host,
                state=int(replica.state[ids][0]),
                cash=int(replica.cash(ids)[0]),
                is_ruled_out=_first(columns.ruled_out(ids), False),
                is_given_up=is_given_up,
                rules=rules,
                page=ids,
                held_by=held_by,
            )

    @property
    def group_delays(self) -> bool:
        """Whether its host waits for its group."""
        return self.host_free_at == self.now + self.group.rests_seconds

    @property
    def was_read(self) -> bool:
        """Whether it was read since it became known or came back."""
        return bool(self.state & Flag.OPEN)

    @property
    def is_gone(self) -> bool:
        return bool(self.state & Flag.GONE)

    @property
    def is_outside(self) -> bool:
        """Whether it is outside the scope."""
        return any(rule.rule == SCOPE for rule in self.rules)

    @property
    def is_trap(self) -> bool:
        """Whether it is kept from being offered because its URL looks like a trap."""
        return self.is_ruled_out and any(rule.rule.startswith("trap") for rule in self.rules)

    def hindrances(self) -> list[Hindrance]:
        """Return what keeps it from being handed out now, its host last."""
        return sorted((row for row in HINDRANCES if self._is_held_by(row)), key=lambda row: row.kind == "")

    def _is_held_by(self, row: Hindrance) -> bool:
        if row.holds is not None:
            return row.holds(self)
        return bool(self.state & getattr(Flag, row.flag)) if row.flag else row in self.held_by


def _questions(keys: Keys, page: int, host: str) -> list[list[Any]]:
    """Return the commands that read the server's time, and what a shard keeps of a page and its host."""
    of_host = (keys.addresses, keys.polite, keys.crawl_delays, keys.blocks, keys.limits)
    return [
        ["FCALL_RO", "opic_5_now", 1, keys.leases],
        ["ZSCORE", keys.leases, page],
        ["ZSCORE", keys.waits, page],
        ["HGET", keys.fails, page],
        ["ZSCORE", keys.hosts, host],
        ["HGET", keys.refusals, field_of(page)],
        *(["HGET", key, host] for key in of_host),
    ]


def _holds_back(row: Hindrance, columns: ShardColumns, page: Int64s, now: float) -> bool:
    """Return whether the mask or the time of a hindrance holds a page back."""
    if row.mask is not None:
        return _first(row.mask(columns, page), False)
    return row.until is not None and _first(row.until(columns, page), 0.0) > now


def _first(column: NDArray[Any] | None, default: T) -> T:
    """Return the only value of a column, or what no column means."""
    return default if column is None else type(default)(column[0])


def _failed_fetches(replica: Replica, page: Int64s) -> int | None:
    failures = int(replica.column("failures", page)[0])
    return None if failures == GIVEN_UP else failures


def _delay_of(own: HostPoliteness, politeness: PolitenessSettings, asked_for: float) -> float:
    """Return the delay of a host, in seconds, given what an operator and its robots.txt say."""
    return max(politeness.host_delay_seconds, asked_for) if own.delay_seconds is None else own.delay_seconds


def _columns_of(host: str, own: HostPoliteness, limit: bytes | None, columns: ShardColumns) -> ShardColumns:
    """Return columns that know what an operator and a client set for a host."""
    if own.revisit_seconds is not None:
        columns.revisit.set_hosts({host: own.revisit_seconds})
    if limit is not None:
        columns.limits.replace({host: int(limit)})
    return columns


class GroupRest(NamedTuple):
    """The politeness group of a host, and for how long it rests."""

    address: str | None  # Of the host, as crawlers reported it last.
    name: str | None
    rests_seconds: float


def read_group(crawl: Crawl, host: str, address: bytes | None, by: str) -> GroupRest:
    """Read how long the group of a host rests, from its home."""
    text = None if address is None else address.decode()
    name, rests = group_of(host, text, by), 0.0
    if name is not None:
        keys = crawl.shards[shard_of(name, len(crawl))].keys
        time_us, free, own = crawl.ask([
            ["FCALL_RO", "opic_5_now", 1, keys.leases], ["ZSCORE", keys.group_times, name], ["HGET", keys.polite, name],
        ])  # fmt: skip
        if free is not None and (own is None or host_politeness_of(own).delay_seconds != 0):
            rests = max(float(free) - time_us / MILLION, 0.0)
    return GroupRest(text, name, rests)


class HostSilence(NamedTuple):
    """The failures of a host in a row."""

    times: int
    given_up: bool
    until: float  # When its rest ends, in Unix seconds; 0 without one.


def _silence_of(replica: Replica, host: str, politeness: PolitenessSettings) -> HostSilence:
    number = replica.hosts.number(host)
    rows = replica.host_failures.rows(np.array([] if number is None else [number], np.int64))
    given_up = bool(politeness.patience.gives_up(*rows).any())
    until = 0.0 if given_up else float(politeness.patience.rests_until(*rows).max(initial=0.0))
    return HostSilence(int(rows[0].max(initial=0)), given_up, until)


def _count_of(replica: Replica, host: str, ids: Int64s) -> int:
    """Count the pages of a host among some."""
    hosts = replica.host[ids[ids < len(replica)]]
    return int(np.count_nonzero(hosts == replica.hosts.number(host)))


def _later(time: float | None, now: float) -> float | None:
    """Return a time, or None if it is past."""
    return None if time is None or time <= now else time


def back_off_seconds(times: int, retry_seconds: float) -> float:
    """Return how long a page waits after `times` consecutive failures, as in back_offs.lua."""
    return float(min(retry_seconds * 2 ** min(times - 1, 30), DAY_US / MILLION))


def state_of(standing: PageStanding) -> str:
    """Name the state of a page: gone, excluded, given_up, read or unread."""
    if standing.is_gone:
        return "gone"
    if standing.state & Flag.EXCLUDED:
        return "excluded"
    return "given_up" if standing.is_given_up else "read" if standing.was_read else "unread"


def place_in_order(
    replicas: Sequence[Replica], shard_page: Place, terms: FrontierTerms, ranked: RankedOrder | None
) -> int | None:
    """Return a page's rank in the order of all pages that may be offered, from 1; None if it is not among them.

    Ties are broken by shard and id. In a ranked order, the page's rank among those never read, or among those read.
    Costs about 10 ms for a million pages.
    """
    keys, reads = [], []
    for replica, of_shard in zip(replicas, ranked.shards if ranked else [None] * len(replicas), strict=True):
        with replica.lock:
            columns, every = ShardColumns(replica, terms.politeness, None), np.arange(len(replica))
            credits = columns.credits()
            strategy = STRATEGIES[terms.strategy](columns, credits, terms.discovery)
            order = ByColumn(of_shard, columns) if of_shard else strategy
            page_keys, read = keys_of(order, columns, codes_of(columns, credits, every)[0], every)
            keys.append(page_keys)
            reads.append(read)
    mine = keys[shard_page[0]][shard_page[1]]
    if mine == NOWHERE:
        return None
    if ranked is not None:
        alike = reads[shard_page[0]][shard_page[1]]
        keys = [np.where(read == alike, page_keys, NOWHERE) for page_keys, read in zip(keys, reads, strict=True)]
    before = int(np.count_nonzero(keys[shard_page[0]][: shard_page[1]] == mine))
    before += sum(int(np.count_nonzero(part == mine)) for part in keys[: shard_page[0]])
    return 1 + before + sum(int(np.count_nonzero(part > mine)) for part in keys)
