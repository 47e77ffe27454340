"""Explain why a page is or is not handed out next: each obstacle (lease, back-off, host delay) and when it ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from opic.admission import Admission
from opic.arrays import Int64s
from opic.frontier.crawl_orders import NOWHERE, RankedOrder
from opic.frontier.held_pages import HostPoliteness, host_politeness_of, ids_of, read_sets
from opic.frontier.host_limits import HostLimits
from opic.frontier.hot_shard import ShardColumns
from opic.frontier.page_keys import keys_of
from opic.frontier.requests import FrontierTerms, PolitenessSettings
from opic.frontier.revisit import RevisitTerms
from opic.model.cash import DAY_US, MILLION, Flag
from opic.model.host_failures import RESTS_FROM
from opic.model.page_notes import GIVEN_UP, failures_of_given_up
from opic.replica import Crawl, Replica
from opic.replica.crawl import Place
from opic.store.refusals import field_of, read_refusal

SAME_SECONDS: Final = 0.001  # The store keeps these times in microseconds, as text.


@dataclass(frozen=True, slots=True)
class PageStanding:
    """The lease, back-off and host state of a page in the store. Times are Unix seconds by its server's clock."""

    now: float
    lease_until: float | None
    waits_until: float | None  # End of the back-off after failed fetches or leases that expired without an event.
    failures: int
    host_free_at: float | None
    delay: float  # The delay in effect for its host, in seconds.
    cap: int
    in_flight: int  # Number of leased pages of its host.
    refused: str | None  # Why its last event was refused, if its lease or back-off is of that time.
    revisit_at: float | None  # When it may be offered again after its last read.
    revisit_seconds: float  # The revisit time in effect for it.
    failed_fetches: int  # In a row.
    given_up: bool  # After OPIC_MAX_FAILURES failed fetches, by an event, or with its host.
    silence: "HostSilence"  # Of its host.
    not_before: float | None
    priority: float
    host_limit: int | None  # How many pages of its host may be read, if that many were.

    @classmethod
    def read(
        cls, crawl: Crawl, place: Place, host: str, politeness: PolitenessSettings, admission: Admission | None
    ) -> "PageStanding":
        """Read the state of a page from the store. Reads all active leases of the shard."""
        keys, replica, page = crawl.shards[place[0]].keys, crawl.replicas[place[0]], str(place[1])
        time_us, lease, waits, failed, host_free, refusal, polite, asked_for, blocked, limit = crawl.ask([
            ["FCALL_RO", "opic_5_now", 1, keys.leases],
            ["ZSCORE", keys.leases, page], ["ZSCORE", keys.waits, page],
            ["HGET", keys.fails, page], ["ZSCORE", keys.hosts, host],
            ["HGET", keys.refusals, field_of(place[1])],
            *(["HGET", key, host] for key in (keys.polite, keys.crawl_delays, keys.blocks, keys.limits)),
        ])  # fmt: skip
        now, retry, failures = time_us / MILLION, politeness.retry_seconds, int(failed or 0)
        lease_until = None if lease is None else float(lease) / MILLION
        waits_until = None if waits is None else float(waits)
        if lease_until is not None and lease_until <= now:  # It expired; the next call that leases pages does this.
            failures += 1
            waits_until = lease_until + back_off_seconds(failures, retry) if retry else None
        leased_then, refused = read_refusal(refusal, place[1]) or (None, None)
        if leased_then != lease_until and not _waits_since(leased_then, waits_until, failures, retry):
            refused = None
        own = host_politeness_of(polite) if polite else HostPoliteness()
        default = max(politeness.host_delay_seconds, float(asked_for or 0))
        delay = default if own.delay_seconds is None else own.delay_seconds
        ((leased, _),) = read_sets(crawl, [(keys.leases, f"({time_us}")])
        revisit = RevisitTerms(replica, politeness.revisit_seconds, admission)
        if own.revisit_seconds is not None:
            revisit.set_hosts({host: own.revisit_seconds})
        due, revisit_seconds, failed_fetches, not_before, priority = _terms_of(replica, revisit, place[1])
        silence, most = _silence_of(replica, host, politeness), failures_of_given_up(politeness.max_failures)
        given_up = failed_fetches >= most or silence.given_up
        return cls(
            now=now,
            lease_until=_later(lease_until, now),
            waits_until=None if given_up else _later(waits_until, now),
            failures=failures,
            host_free_at=_later(max(float(host_free or 0) if delay else 0.0, float(blocked or 0), silence.until), now),
            delay=delay,
            cap=politeness.host_in_flight if own.in_flight is None else own.in_flight,
            in_flight=_count_of(replica, host, ids_of(leased)),
            refused=refused,
            revisit_at=_later(due, now),
            revisit_seconds=revisit_seconds,
            failed_fetches=failed_fetches,
            given_up=given_up,
            silence=silence,
            not_before=_later(not_before, now),
            priority=priority,
            host_limit=int(limit) if limit is not None and _is_full(replica, host, int(limit)) else None,
        )


def _terms_of(replica: Replica, revisit: RevisitTerms, page: int) -> tuple[float, float, int, float, float]:
    """Return when a page is due after its last read, its revisit time, failures, `not_before`, and priority."""
    ids = np.array([page])
    with replica.lock:
        due, seconds = (0.0 if found is None else float(found[0]) for found in (revisit.due(ids), revisit.seconds(ids)))
        (failed,), (not_before_us,), (priority,) = (part.tolist() for part in replica.offers.of(ids))
    return due, seconds, failed, not_before_us / MILLION, priority


class HostSilence(NamedTuple):
    """The failures of a host in a row."""

    times: int
    given_up: bool
    until: float  # When its rest ends, in Unix seconds; 0 without one.


def _silence_of(replica: Replica, host: str, politeness: PolitenessSettings) -> HostSilence:
    with replica.lock:
        number = replica.hosts.number(host)
        rows = replica.host_failures.rows(np.array([] if number is None else [number], np.int64))
    given_up = bool(politeness.patience.gives_up(*rows).any())
    until = 0.0 if given_up else float(politeness.patience.rests_until(*rows).max(initial=0.0))
    return HostSilence(int(rows[0].max(initial=0)), given_up, until)


def _count_of(replica: Replica, host: str, ids: Int64s) -> int:
    """Count the pages of a host among some."""
    with replica.lock:
        hosts = replica.host[ids[ids < len(replica)]]
        return int(np.count_nonzero(hosts == replica.hosts.number(host)))


def _later(time: float | None, now: float) -> float | None:
    """Return a time, or None if it is past."""
    return None if time is None or time <= now else time


def _is_full(replica: Replica, host: str, limit: int) -> bool:
    limits = HostLimits(replica)
    with replica.lock:
        limits.replace({host: limit})
    return limits.any_full


def back_off_seconds(times: int, retry_seconds: float) -> float:
    """Return how long a page waits after `times` consecutive failures, as in back_offs.lua."""
    return float(min(retry_seconds * 2 ** min(times - 1, 30), DAY_US / MILLION))


def _waits_since(lease_until: float | None, waits_until: float | None, failures: int, retry_seconds: float) -> bool:
    """Return whether a page waits because this lease expired, and not because of an event that came later."""
    if lease_until is None or waits_until is None or not failures:
        return False
    return abs(waits_until - lease_until - back_off_seconds(failures, retry_seconds)) < SAME_SECONDS


def state_of(state: int, *, given_up: bool) -> str:
    """Name the state of a page: gone, excluded, given_up, read or unread."""
    for flag, name in ((Flag.GONE, "gone"), (Flag.EXCLUDED, "excluded")):
        if state & flag:
            return name
    return "given_up" if given_up else "read" if state & Flag.OPEN else "unread"


def held_back(standing: PageStanding, state: int, *, shut: bool, trapped: bool) -> list[str]:
    """Return what holds a page back, a word each, as answers to `next` count it."""
    full = bool(standing.cap) and standing.in_flight >= standing.cap
    words = {
        "leased": standing.lease_until is not None,
        "retry": standing.waits_until is not None,
        "revisit": standing.revisit_at is not None,
        "not_before": standing.not_before is not None,
        "host_delay": standing.host_free_at is not None,
        "host_cap": full,
        "denied": bool(state & Flag.EXCLUDED) or (shut and not trapped) or standing.host_limit is not None,
        "trap": shut and trapped,
        "given_up": standing.given_up,
    }
    return [word for word, holds in words.items() if holds]


def against(standing: PageStanding, state: int, cash: int, host: str) -> list[str]:
    """Return the reasons why a page can't be handed out now, one sentence each; if empty, only cash decides."""
    reasons, now = [], standing.now
    if not state & Flag.KNOWN:
        return ["the page is not known"]
    if state & Flag.GONE:
        reasons.append("the page is gone: a read, a seed or, after a while, a link brings it back")
    if state & Flag.EXCLUDED:
        reasons.append("its site does not let crawlers read it: a read or a seed of the page ends that")
    if standing.silence.given_up:
        reasons.append(
            f"its host {host} is given up: it did not answer {standing.silence.times} times in a row; an answer, "
            "or a seed of one of its pages, brings it back"
        )
    elif standing.given_up:
        times = "its crawler said so" if standing.failed_fetches == GIVEN_UP else f"{standing.failed_fetches} in a row"
        reasons.append(f"it is given up after failed fetches ({times}): a successful fetch or a seed brings it back")
    if not state & Flag.GONE and not (cash > 0 or (cash < 0 and state & Flag.OPEN)):
        reasons.append("it has no cash: it received none since it was read")
    refused = None if standing.refused is None else f"its event was refused: {standing.refused}; "
    if standing.lease_until is not None:
        reasons.append(f"{refused or ''}it is leased to a crawler for another {standing.lease_until - now:.1f} s")
    if standing.waits_until is not None:
        times = "once" if standing.failures == 1 else f"{standing.failures} times"
        why = refused or f"its fetch failed, or its lease expired without an event, {times}; "
        reasons.append(f"{why}it waits for another {standing.waits_until - now:.1f} s")
    if standing.revisit_at is not None:
        ago = now - (standing.revisit_at - standing.revisit_seconds)
        reasons.append(
            f"it was read {ago:.1f} s ago; it is offered again {standing.revisit_seconds:g} s after a read, "
            f"in {standing.revisit_at - now:.1f} s"
        )
    if standing.not_before is not None:
        reasons.append(
            f"it is not to be offered for another {standing.not_before - now:.1f} s, as an event or seed said"
        )
    if standing.host_free_at is not None:
        silent = standing.silence.times
        why = "is delayed" if silent < RESTS_FROM else f"did not answer {silent} times in a row, and rests"
        reasons.append(f"its host {host} {why} for another {standing.host_free_at - now:.1f} s")
    if standing.host_limit is not None:
        reasons.append(f"{standing.host_limit:,} pages of its host {host} may be read, and were")
    if standing.cap and standing.in_flight >= standing.cap:
        reasons.append(f"{standing.in_flight} pages of its host {host} are in flight, {standing.cap} may be")
    return reasons


def place_in_order(
    replicas: Sequence[Replica], place: Place, terms: FrontierTerms, ranked: RankedOrder | None
) -> int | None:
    """Return a page's rank in the order of all pages that may be offered, from 1; None if it is not among them.

    Ties are broken by shard and id. In a ranked order, the page's rank among those never read, or among those read.
    Costs about 10 ms for a million pages.
    """
    keys, reads = [], []
    for replica in replicas:
        with replica.lock:
            columns, every = ShardColumns(replica, terms.politeness, None), np.arange(len(replica))
            found, read = keys_of(columns, columns.credits(), terms.discovery, every, terms.strategy)
            keys.append(found)
            reads.append(read)
    if not keys[place[0]][place[1]]:
        return None
    if ranked is not None:
        alike = reads[place[0]][place[1]]
        later = np.finfo(np.float64).min if alike else 0.0  # Pages that came in since are last.
        by = [np.full(len(found), NOWHERE) for found in keys]
        for column, of_shard in zip(by, ranked.shards, strict=True):
            column[: len(of_shard.keys)] = of_shard.keys[: len(column)]
        keys = [
            np.where((found != 0) & (read == alike), np.where(key == NOWHERE, later, key), NOWHERE)
            for found, read, key in zip(keys, reads, by, strict=True)
        ]
    mine = keys[place[0]][place[1]]
    before = int(np.count_nonzero(keys[place[0]][: place[1]] == mine))
    before += sum(int(np.count_nonzero(part == mine)) for part in keys[: place[0]])
    return 1 + before + sum(int(np.count_nonzero(part > mine)) for part in keys)
