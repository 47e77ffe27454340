"""A plain model of one shard's leases: what `opic/store/leases.lua` and `back_offs.lua` do, in dicts.

Times of leases are microseconds, those of waits and hosts seconds with six digits, as in the store. Each method is one
call, at a time of the server's clock.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from opic.frontier import PolitenessSettings
from opic.frontier.leases import (
    HOST_FULL,
    HOST_HELD,
    PAGE_LEASED,
    PAGE_WAITS,
    Granted,
    LeaseAnswer,
    Quota,
    RefusedPage,
)
from opic.replica.effect import Head

MILLION = 1_000_000
DAY_SECONDS = 86_400
EARLIER_SECONDS = 3_600  # Crawlers of earlier leases are remembered for so long.
NOBODY = bytes(6)


def stored(seconds: float) -> float:
    """A time in seconds, as the store keeps it."""
    return float(f"{seconds:.6f}")


def first(times: Mapping[Any, float], latest: float, most: int) -> list[Any]:
    """The first `most` members of a sorted set up to a time, in its order."""
    return [member for _, _, member in sorted((at, str(m).encode(), m) for m, at in times.items() if at <= latest)][
        :most
    ]


@dataclass(frozen=True)
class Bounds:
    """How much one call does, and what is kept; in the store these are larger."""

    swept: int = 3
    flights_swept: int = 2
    forgotten: int = 2
    earlier: int = 2


class Holder(NamedTuple):
    """Who leases a page."""

    start_us: int = 0  # 0: no one does.
    crawler: bytes = NOBODY
    earlier: tuple[bytes, ...] = ()  # Crawlers of leases that ended without an event of theirs.


class Fetch(NamedTuple):
    """An event of a page, as a step reports it."""

    page: int
    failed: bool
    seconds: float  # From which a back-off runs.
    at_us: int
    crawler: bytes
    wait: float | None = None  # Asked for by the event.


@dataclass
class LeaseModel:
    """The state of a shard."""

    bounds: Bounds = field(default_factory=Bounds)
    lsn: int = 0
    restoring: bool = False
    leases: dict[int, int] = field(default_factory=dict)
    holders: dict[int, Holder] = field(default_factory=dict)
    renewed: dict[tuple[int, int], int] = field(default_factory=dict)
    waits: dict[int, float] = field(default_factory=dict)
    fails: dict[int, int] = field(default_factory=dict)
    hosts: dict[str, float] = field(default_factory=dict)
    flights: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    flight_ends: dict[str, int] = field(default_factory=dict)
    changes: list[dict[str, list[str]]] = field(default_factory=list)
    polite: dict[str, tuple[float | None, int | None]] = field(default_factory=dict)
    crawl_delays: dict[str, float] = field(default_factory=dict)
    blocks: dict[str, float] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    group_times: dict[str, float] = field(default_factory=dict)

    def _tell(self, now: int, **told: list[Any]) -> None:
        """What endpoints are told of a call; times of back-offs as the store prints them."""
        fields = {name: [f"{term:.6f}" if isinstance(term, float) else str(term) for term in terms]
                  for name, terms in told.items()}  # fmt: skip
        self.changes.append({"n": [str(self.lsn)], "t": [str(now)], **fields})

    # Back-offs, and the end of leases.

    def _back_off(self, page: int, start: float, retry: float, asked: float | None = None) -> None:
        times = self.fails[page] = self.fails.get(page, 0) + 1
        wait = min(retry * 2.0 ** min(times - 1, 30), DAY_SECONDS) if asked is None else asked
        self.waits[page] = stored(start + wait)

    def _end_holder(self, now: int, page: int, earlier: tuple[bytes, ...]) -> None:
        """Keep the earlier crawlers of a page whose lease ended, and a wait that is over, with which they go."""
        self.holders.pop(page, None)
        if earlier:
            self.holders[page] = Holder(earlier=earlier)
            past = stored(now / MILLION - DAY_SECONDS + EARLIER_SECONDS)
            self.waits[page] = max(self.waits.get(page, past), past)

    def _with(self, earlier: tuple[bytes, ...], crawler: bytes) -> tuple[bytes, ...]:
        return earlier if crawler in earlier else (*earlier, crawler)[-self.bounds.earlier :]

    def _forget_waits(self, now: int, waits_max: int, most: int) -> None:
        pages = first(self.waits, stored(now / MILLION - DAY_SECONDS), most)
        over = min(len(self.waits) - waits_max, most)
        for page in first(self.waits, math.inf, over) if len(pages) < over else pages:
            del self.waits[page]
            self.fails.pop(page, None)
            if page not in self.leases:
                self.holders.pop(page, None)

    def _sweep(self, now: int, retry: float, waits_max: int) -> list[float | int]:
        """End leases whose time is over; each counts as a failed fetch. Return the back-offs: end, page, .."""
        told = list[float | int]()
        for page in first(self.leases, now, self.bounds.swept):
            self._back_off(page, self.leases.pop(page) / MILLION, retry)
            told += self.waits[page], page
            holder = self.holders.get(page, Holder())
            self._end_holder(now, page, self._with(holder.earlier, holder.crawler))
        self._forget_waits(now, waits_max, self.bounds.forgotten)
        self.hosts = {host: free for host, free in self.hosts.items() if free > stored(now / MILLION)}
        for host in first(self.flight_ends, now, self.bounds.flights_swept):
            del self.flight_ends[host], self.flights[host]
        return told

    @staticmethod
    def _is_late(holder: Holder, fetch: Fetch) -> bool:
        """Whether an event belongs to an earlier lease: its crawler tells, else its time."""
        if not holder.earlier or not holder.start_us:
            return False
        if fetch.crawler != NOBODY:
            if fetch.crawler == holder.crawler and fetch.crawler not in holder.earlier:
                return False
            if fetch.crawler != holder.crawler and fetch.crawler in holder.earlier:
                return True
            if fetch.crawler != holder.crawler and holder.crawler != NOBODY and NOBODY not in holder.earlier:
                return False
        return fetch.at_us < holder.start_us

    def step(
        self,
        now: int,
        fetches: Sequence[Fetch],
        retry: float,
        waits_max: int,
        revived: Iterable[int] = (),
        forgotten: Iterable[int] = (),
        addresses: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """A record of the journal: events end leases, failures begin a back-off, seeds end it, pages are forgotten.

        Hosts have new addresses, "" for none any more.
        """
        self.lsn += 1
        failed, delayed = list[int](), list[int]()
        for fetch in fetches:
            holder = self.holders.get(fetch.page)
            late = holder is not None and self._is_late(holder, fetch)
            if not fetch.failed:
                self.waits.pop(fetch.page, None)
                self.fails.pop(fetch.page, None)
            elif not late:
                failed.append(fetch.page)
                self._back_off(fetch.page, fetch.seconds, retry, fetch.wait)
            if late:
                delayed.append(fetch.page)
            else:
                self.leases.pop(fetch.page, None)
            if holder is not None and not late:
                other = NOBODY not in {holder.crawler, fetch.crawler} and holder.crawler != fetch.crawler
                self._end_holder(
                    now, fetch.page, self._with(holder.earlier, holder.crawler) if other else holder.earlier
                )
        if failed:
            self._forget_waits(now, waits_max, self.bounds.forgotten + len(failed))
        if failed or delayed:
            waits = [term for page in failed if page in self.waits for term in (self.waits[page], page)]
            leases = [term for page in delayed if page in self.leases for term in (self.leases[page], page, 0)]
            self._tell(now, w=waits, l=leases)
        changed = {host: new for host, new in addresses.items() if self.addresses.get(host, "") != new}
        self.addresses = {host: one for host, one in (self.addresses | changed).items() if one}
        if changed:
            self._tell(now, a=[term for host, new in changed.items() for term in (new or "-", host)])
        for page in revived:
            if page in self.waits:
                self.waits[page] = stored(now / MILLION - DAY_SECONDS + EARLIER_SECONDS)
            self.fails.pop(page, None)
        for page in forgotten:
            for kept in (self.leases, self.holders, self.waits, self.fails):
                kept.pop(page, None)  # type: ignore[attr-defined]

    # Leasing.

    def in_flight(self, now: int, host: str) -> list[tuple[int, int]]:
        """The pages of a host whose leases run on as they were noted."""
        return [(page, end) for page, end in self.flights.get(host, []) if self.leases.get(page) == end > now]

    def take(
        self,
        now: int,
        pages: Sequence[tuple[int, str]],
        quotas: Sequence[Quota],
        politeness: PolitenessSettings,
    ) -> LeaseAnswer:
        """Lease the pages that are free to the quotas, one after the other."""
        if self.restoring:
            return self._answer(now, [], [])
        swept, told = self._sweep(now, politeness.retry_seconds, politeness.waits_max), list[int]()
        granted, refused = list[Granted](), list[RefusedPage]()
        taken = dict[int, int]()  # Page -> quota.
        free_at = dict[str, float]()  # When hosts with a delay are free, after this call.
        given = dict[tuple[str, int], int]()  # Host with a delay, quota -> its pages.
        left = [quota.pages for quota in quotas]
        for place, (page, host) in enumerate(pages):
            nth = next((nth for nth, missing in enumerate(left) if missing), None)
            if nth is None:
                break
            own_delay, own_cap = self.polite.get(host, (None, None))
            delay = max(politeness.host_delay_seconds, self.crawl_delays.get(host, 0.0))
            delay = delay if own_delay is None else own_delay
            cap = politeness.host_in_flight if own_cap is None else own_cap
            flying = self.in_flight(now, host)
            block = self.blocks.get(host, 0.0) * MILLION
            if block <= now:
                self.blocks.pop(host, None)
            free = free_at.get(host, self.hosts.get(host, 0.0)) * MILLION if delay else 0.0
            if 0 < given.get((host, nth), 0) < quotas[nth].host_pages:
                free = 0.0
            if block > now:
                why, until = HOST_HELD, block
            elif page in self.leases:
                end = now if page in taken else self.leases[page]
                why, until = PAGE_LEASED, end + politeness.retry_seconds * MILLION
            elif self.waits.get(page, 0.0) * MILLION > now:
                why, until = PAGE_WAITS, self.waits[page] * MILLION
            elif free > now:
                why, until = HOST_HELD, free
            elif cap and len(flying) >= cap:
                why, until = HOST_FULL, min(end for _, end in flying)
            else:
                end = math.floor(now + quotas[nth].seconds * MILLION)
                granted.append(Granted(place, nth, end, math.ceil(delay * 1_000) / 1_000))
                told += end, page, math.ceil(delay * 1_000)
                left[nth] -= 1
                taken[page], self.leases[page] = nth, end
                crawler = quotas[nth].crawler or NOBODY
                self.holders[page] = Holder(now, crawler, self.holders.get(page, Holder()).earlier)
                if delay:
                    free_at[host] = now / MILLION + delay
                    given[host, nth] = given.get((host, nth), 0) + 1
                if cap:
                    self.flights[host] = [*flying, (page, end)]
                    self.flight_ends[host] = max(end for _, end in self.flights[host])
                continue
            held, full = why in {HOST_HELD, HOST_FULL}, why == HOST_FULL
            refused.append(RefusedPage(place, held, math.ceil(until), full, why == PAGE_LEASED))
        self.hosts |= {host: stored(free) for host, free in free_at.items()}
        if told or swept:
            self._tell(now, l=told, **({"w": swept} if swept else {}))
        return self._answer(now, granted, refused)

    def _answer(self, now: int, granted: list[Granted], refused: list[RefusedPage]) -> LeaseAnswer:
        head = Head(0, b"restoring") if self.restoring else Head(self.lsn, b"digest%02d" % (self.lsn % 100))
        return LeaseAnswer(now, head, b"", granted, refused, {}, {})

    def _runs(self, now: int, page: int, granted: int) -> bool:
        end = self.leases.get(page)
        return end is not None and end > now and end == self.renewed.get((page, granted), granted)

    def renew(self, now: int, seconds: float, leases: Sequence[tuple[int, int, str]]) -> tuple[int, list[int]]:
        """Set when leases (page, end as it was granted, host) end, if they run."""
        until, done, told = math.floor(now + seconds * MILLION), list[int](), list[int]()
        self.renewed = {lease: end for lease, end in self.renewed.items() if end > now}
        for page, granted, host in leases:
            runs = self._runs(now, page, granted)
            done.append(int(runs))
            if not runs:
                continue
            told += until, page, 0
            before = page, self.leases[page]
            self.leases[page] = self.renewed[page, granted] = until
            if host in self.flights:
                self.flights[host] = [(page, until) if one == before else one for one in self.flights[host]]
                self.flight_ends[host] = max(self.flight_ends.get(host, 0), until)
        if told:
            self._tell(now, l=told)
        return until, done

    def release(self, now: int, leases: Sequence[tuple[int, int]]) -> list[int]:
        """End leases (page, end as it was granted) that run, without a failure."""
        pages = list[int]()
        for page, granted in leases:
            if self._runs(now, page, granted):
                del self.leases[page]
                pages.append(page)
        if pages:
            self._tell(now, f=pages)
        for page in pages:
            if page in self.holders:
                self._end_holder(now, page, self.holders[page].earlier)
        return pages

    # What is said of hosts.

    def set_polite(self, now: int, rules: Mapping[str, tuple[float | None, int | None]]) -> None:
        """Replace the rules of an operator."""
        self.polite = dict(rules)
        self._tell(now, r=[1])

    def set_delay(self, host: str, seconds: float) -> None:
        """Set what a host's robots.txt asks for."""
        self.crawl_delays[host] = seconds
        if not seconds:
            del self.crawl_delays[host]

    def block(self, now: int, host: str, until: float) -> None:
        """Lease no page of a host until then."""
        before = self.blocks.pop(host, 0.0)
        if until * MILLION > now:
            self.blocks[host] = stored(until)
        if until < before:
            self._tell(now, r=[1])

    def limit(self, now: int, host: str, pages: int) -> None:
        """Set how many pages of a host may be read."""
        self.limits[host] = pages
        if not pages:
            del self.limits[host]
        self._tell(now, m=[pages, host])

    def claim(self, now: int, claims: Sequence[tuple[str, int]]) -> list[int]:
        """Begin the rests of groups that are free, for pages of hosts with these delays, in milliseconds.

        For each: when its rest ends, 0 without one; negative: when the rest ends that runs already.
        """
        ends, told = list[int](), list[Any]()
        self.group_times = {group: free for group, free in self.group_times.items() if free > stored(now / MILLION)}
        for group, delay_ms in claims:
            own, _ = self.polite.get(group, (None, None))
            delay_us = math.floor(delay_ms * 1_000 if own is None else own * MILLION)
            if not delay_us:
                ends.append(0)
            elif group in self.group_times:
                ends.append(-round(self.group_times[group] * MILLION))
            else:
                ends.append(now + delay_us)
                self.group_times[group] = stored((now + delay_us) / MILLION)
                told += now + delay_us, group
        if told:
            self._tell(now, g=told)
        return ends

    def borders(self) -> list[int]:
        """The times, in microseconds, at which anything changes."""
        seconds = [*self.waits.values(), *self.hosts.values(), *self.blocks.values(), *self.group_times.values()]
        ends = [*self.leases.values(), *self.renewed.values(), *self.flight_ends.values()]
        ends += [round(at * MILLION) for at in seconds]
        return sorted({*ends, *(round((at + DAY_SECONDS) * MILLION) for at in self.waits.values())})
