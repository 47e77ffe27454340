"""Leases: the call that makes them, their tokens, releasing and renewing them, and waiting until they are durable."""

import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgpack

from opic.errors import BadInput, SlotMoving, StoreUnavailable
from opic.frontier.requests import PolitenessSettings
from opic.replica import Crawl
from opic.replica.crawl import Place
from opic.replica.effect import Head
from opic.replica.follow import head_of
from opic.store import Keys, Shard
from opic.store.cluster import MOVING_SECONDS, PAUSE_SECONDS
from opic.store.connection import Line
from opic.store.durability import await_durable
from opic.store.keys import of_call
from opic.urls.canonical import shown

RELEASES_A_CALL: Final = 1_000
# Shard, page, end of the lease in microseconds, and a MAC, without which it names no lease.
TOKEN: Final = re.compile(r"([0-9]{1,4})-([0-9]{1,15})-([0-9]{1,16})(?:-[0-9a-f]{20})?")
MAC_BYTES: Final = 10
PAGE_LEASED, HOST_HELD, HOST_FULL, PAGE_WAITS = 1, 2, 3, 4  # Reasons to refuse a page; the same as in leases.lua.
_Written = tuple[str, int | str, float]  # A sorted set, a member of it, and its score.


class Lease(NamedTuple):
    """A lease: its page, and when it ends."""

    shard_page: Place
    until_us: int

    def token(self, crawl: Crawl) -> str:
        """Return the string by which a crawler names its lease. It cannot be made without the store's secret."""
        return self.signed(crawl.shards[0].secret, crawl.shards[0].lineage)

    def signed(self, secret: bytes, lineage: str) -> str:
        """Return the token, given the secret of the crawl and what tells its leases from those of crawls before it."""
        terms = f"{self.shard_page[0]}-{self.shard_page[1]}-{self.until_us}"
        mac = blake2b(f"{terms}{lineage}".encode(), digest_size=MAC_BYTES, key=secret, person=b"opic lease")
        return f"{terms}-{mac.hexdigest()}"

    @classmethod
    def parse(cls, crawl: Crawl, token: str) -> "Lease | None":
        """Return the lease that a token names; None if this crawl has not signed the token.

        Raises:
            BadInput: the string has not the form of a token.
        """
        match, moved = TOKEN.fullmatch(token), bool(crawl.shards[0].lineage)  # From a crawl of more shards.
        if match is None or (int(match[1]) >= len(crawl) and not moved):
            raise BadInput(f"{shown(token)} is not a lease: send the `lease` that came with a page")
        lease = cls((int(match[1]), int(match[2])), int(match[3]))
        return lease if secrets.compare_digest(lease.token(crawl), token) else None


# The call that leases pages, of `opic/store/leases.lua`; they come from a replica.


class Quota(NamedTuple):
    """How many of the next pages go to one crawler, and the duration of its leases."""

    pages: int
    seconds: float
    crawler: bytes = b""  # Digest of its name; see `opic.model.events.crawler_digest`.
    host_pages: int = 1  # Of a host that has a delay.


class Granted(NamedTuple):
    """A page that was leased."""

    position: int  # Index among the requested pages, from 0.
    quota: int  # Index of the quota that it belongs to, from 0.
    until_us: int  # End of its lease, in Unix microseconds by the server's clock.
    delay_seconds: float  # The delay of its host that starts now; 0 for none.


class RefusedPage(NamedTuple):
    """A page that was not leased."""

    position: int
    host_held: bool  # The whole host is held, not only this page.
    until_us: int
    full: bool = False  # The host is at its cap of pages in flight; it is free earlier if one of these leases ends.
    leased: bool = False  # The page is leased; `until_us` includes the back-off after the lease.


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """A shard's answer. Pages in neither list were not examined: all quotas were met, or a backup is being restored."""

    now_us: int
    head: Head
    change: bytes  # The id of the entry in the stream of changes that tells of it; b"" if nothing changed.
    granted: list[Granted]
    refused: list[RefusedPage]
    metas: dict[int, bytes]  # The packed metadata of those granted that have some, by position.
    names: dict[int, str] = field(default_factory=dict)  # Under which they answered last, if not under their URLs.

    @classmethod
    def parse(cls, answer: Sequence[Any]) -> "LeaseAnswer":
        """Parse the answer of the call."""
        now_us, (lsn, digest), change, granted, refused, metas = answer
        return cls(
            now_us,
            head_of((lsn or None, digest or None)),
            change,
            [
                Granted(flat[i] - 1, quota, flat[i + 1], flat[i + 2] / 1_000)
                for quota, flat in enumerate(granted)
                for i in range(0, len(flat), 3)
            ],
            [
                RefusedPage(position - 1, why in {HOST_HELD, HOST_FULL}, until, why == HOST_FULL, why == PAGE_LEASED)
                for position, why, until in zip(refused[::3], refused[1::3], refused[2::3], strict=True)
            ],
            {metas[i] - 1: metas[i + 1] for i in range(0, len(metas), 2) if metas[i] > 0},
            {-metas[i] - 1: metas[i + 1].decode() for i in range(0, len(metas), 2) if metas[i] < 0},
        )


def lease_command(
    keys: Keys,
    politeness: PolitenessSettings,
    pages: Sequence[tuple[int, str]],
    quotas: Sequence[Quota],
) -> list[Any]:
    """Return the command that ends expired leases and leases pages of a shard.

    Args:
        keys: the keys of the shard.
        politeness: host delay, retry delay and host cap.
        pages: id and host of each page, in the order in which to hand them out; spare pages last.
        quotas: the first quota gets the first free pages, and so on.
    """
    names = [keys.leases, keys.waits, keys.fails, keys.hosts, keys.changes, keys.polite, keys.crawl_delays]
    names += [keys.flights, keys.flight_ends, keys.head, keys.page_meta, keys.holders, keys.blocks]
    blob = [
        [term for quota in quotas for term in (quota.pages, quota.seconds)],
        [page for page, _ in pages],
        [host for _, host in pages],
        [quota.crawler for quota in quotas],
        [quota.host_pages for quota in quotas],
    ]
    terms = (politeness.retry_seconds, politeness.host_delay_seconds, politeness.host_in_flight)
    packed = msgpack.packb(blob, use_bin_type=False)
    return of_call("lease", names, *terms, packed, politeness.waits_max)


# What is done with leases.


def leases_of(crawl: Crawl, tokens: Iterable[str]) -> dict[str, Lease | None]:
    """Return the leases that tokens name, also those of the crawl that was moved to this one; None for unknown ones.

    Raises:
        BadInput: a string has not the form of a token.
    """
    named = {token: Lease.parse(crawl, token) for token in tokens}
    unknown = [token for token, lease in named.items() if lease is None]
    if unknown and crawl.shards[0].lineage:
        (renamed,) = crawl.ask([["HMGET", crawl.shards[0].keys.former, *unknown]])
        present = zip(unknown, renamed, strict=True)
        named |= {token: Lease.parse(crawl, now.decode()) for token, now in present if now is not None}
    return named


def release_leases(crawl: Crawl, leases: Iterable[Lease]) -> int:
    """Release leases in the store; return how many of them were still active."""
    asked = _by_shard(leases)
    commands = []
    for shard, some in asked:
        keys, pairs = crawl.shards[shard].keys, [term for (_, page), until_us in some for term in (page, until_us)]
        names = (keys.leases, keys.changes, keys.head, keys.waits, keys.holders, keys.renewed)
        commands.append(of_call("release", names, *pairs))
    return sum(map(len, crawl.ask(commands))) if commands else 0


def renew_leases(crawl: Crawl, leases: Iterable[Lease], seconds: float) -> dict[Lease, int]:
    """Let leases run for so many seconds from now. Their tokens stay the same.

    Returns:
        The new ends, in Unix microseconds, of those that still run.
    """
    wanted = list(leases)
    if any(page >= len(crawl.replicas[shard]) for (shard, page), _ in wanted):
        crawl.follow()
    known = (lease for lease in wanted if lease.shard_page[1] < len(crawl.replicas[lease.shard_page[0]]))
    asked, commands = _by_shard(known), []
    for shard, some in asked:
        keys, replica = crawl.shards[shard].keys, crawl.replicas[shard]
        with replica.lock:
            hosts = [replica.hosts.names[int(replica.host[page])] for (_, page), _ in some]
        names = (keys.leases, keys.renewed, keys.flights, keys.flight_ends, keys.changes, keys.head)
        terms = [
            term for ((_, page), until_us), host in zip(some, hosts, strict=True) for term in (page, until_us, host)
        ]
        commands.append(of_call("renew", names, repr(float(seconds)), *terms))
    answers = crawl.ask(commands) if commands else []
    return {
        lease: until_us
        for (_, some), (until_us, done) in zip(asked, answers, strict=True)
        for lease, runs in zip(some, done, strict=True)
        if runs
    }


def _by_shard(leases: Iterable[Lease]) -> list[tuple[int, list[Lease]]]:
    """Return distinct leases by shard, as many together as fit into one call."""
    by_shard: dict[int, list[Lease]] = {}
    for lease in dict.fromkeys(leases):
        by_shard.setdefault(lease.shard_page[0], []).append(lease)
    return [
        (shard, some[start : start + RELEASES_A_CALL])
        for shard, some in by_shard.items()
        for start in range(0, len(some), RELEASES_A_CALL)
    ]


def server_runs(crawl: Crawl) -> list[bytes]:
    """Return the run id of each shard's server, or nothing if leases need not wait until they are durable."""
    return [shard.run_now() for shard in crawl.shards] if crawl.shards[0].durability.wanted else []


def await_leases(
    crawl: Crawl,
    ends: Mapping[Lease, int],
    runs: Sequence[bytes],
    claimed: Mapping[int, Mapping[str, float]] = MappingProxyType({}),
) -> None:
    """Wait until leases are durable, as accepted events are, so that no failover gives the pages to others.

    A slot of a cluster may have moved since the leases were granted, or a replica have taken over. The server that has
    the slot now is asked whether it has the leases, and is waited for.

    Args:
        crawl: the crawl.
        ends: the leases that were granted or renewed, and their ends in Unix microseconds.
        runs: what `server_runs` returned before that.
        claimed: by home, the politeness groups that rest since then, and until when, in Unix seconds.

    Raises:
        StoreUnavailable: they are not durable in time, or a server restarted or was replaced and has lost them.
    """
    if not runs:
        return
    by_shard: dict[int, list[_Written]] = {}
    for lease, until_us in ends.items():
        shard, page = lease.shard_page
        by_shard.setdefault(shard, []).append((crawl.shards[shard].keys.leases, page, until_us))
    for home, rests in claimed.items():
        key = crawl.shards[home].keys.group_times
        by_shard.setdefault(home, []).extend((key, group, until) for group, until in rests.items())
    durable = set[bytes]()  # Runs of servers that were waited for: one wait is enough for all their shards.
    moving_until = time.monotonic() + MOVING_SECONDS
    while by_shard:
        shard, written = next(iter(by_shard.items()))
        try:
            _await_shard(crawl.shards[shard], written, runs[shard], durable)
        except SlotMoving:
            if time.monotonic() > moving_until:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            del by_shard[shard]


def _await_shard(shard: Shard, written: Sequence[_Written], granted_in: bytes, durable: set[bytes]) -> None:
    with closing(Line(shard.client, shard.keys.head)) as line:
        if line.run_id != granted_in:
            line.send(*(["ZSCORE", key, member] for key, member, _ in written))
            scores = line.answers(len(written))
            if any(score is None or float(score) != end for score, (*_, end) in zip(scores, written, strict=True)):
                raise StoreUnavailable(
                    f"shard {shard.number} is served by another run of the store than a moment ago, which lacks leases "
                    "that were just granted: call again"
                )
        elif line.run_id in durable:
            return
        await_durable(line, shard.keys, shard.durability)
        durable.add(line.run_id)
