"""Build the command for the Redis function `opic_5_lease` and parse its answer. The pages come from a replica."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack

from opic.frontier.requests import PolitenessSettings
from opic.replica.effect import Head
from opic.replica.follow import head_of
from opic.store import Keys
from opic.store.keys import of_call

PAGE_LEASED, HOST_HELD, HOST_FULL, PAGE_WAITS = 1, 2, 3, 4  # Reasons to refuse a page; the same as in leases.lua.


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
