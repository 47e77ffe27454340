"""The two ends of `opic_4_lease`: what a shard is asked to lease, and what it answers. Pages come from a replica."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack

from opic.frontier.requests import PolitenessSettings
from opic.replica.effect import Head
from opic.replica.follow import head_of
from opic.store import Keys

PAGE_HELD, HOST_HELD, HOST_FULL = 1, 2, 3  # Why a page was refused; compare leases.lua.
LEASE: Final = "opic_4_lease"


class LeaseStamp(NamedTuple):
    """What tells that a shard's leases stand as they were seen."""

    freed: int  # Counts what made pages or hosts free before their time.
    leases: int | None  # How many there are; None as an expectation is any number.


class Quota(NamedTuple):
    """How many of the next pages are one crawler's, and for how long."""

    pages: int
    seconds: float


class Granted(NamedTuple):
    """A page that was leased."""

    place: int  # Among those asked for, from 0.
    quota: int  # Whose it is, from 0.
    until_us: int  # The end of its lease, by its server's clock.
    delay_seconds: float  # For so long its host rests; 0 if it does not.


class RefusedPage(NamedTuple):
    """A page that was not leased."""

    place: int
    host_held: bool  # All of its host is held, not this page alone.
    until_us: int
    full: bool = False  # The host has as many pages in flight as it may: what ends one of them ends this sooner.


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """What a shard answered. Pages in neither list were not reached: all quotas were met, or the state was another."""

    now_us: int
    head: Head
    stamp: LeaseStamp
    running: int  # Leases, these among them.
    granted: list[Granted]
    refused: list[RefusedPage]

    @classmethod
    def parse(cls, answer: Sequence[Any]) -> "LeaseAnswer":
        """Read the answer of the call."""
        now_us, (lsn, digest, freed, leases), running, granted, refused = answer
        return cls(
            now_us,
            head_of((lsn or None, digest or None)),
            LeaseStamp(int(freed), leases),
            running,
            [
                Granted(flat[i] - 1, quota, flat[i + 1], flat[i + 2] / 1_000)
                for quota, flat in enumerate(granted)
                for i in range(0, len(flat), 3)
            ],
            [
                RefusedPage(refused[i] - 1, refused[i + 1] != PAGE_HELD, refused[i + 2], refused[i + 1] == HOST_FULL)
                for i in range(0, len(refused), 3)
            ],
        )


def lease_command(
    keys: Keys,
    politeness: PolitenessSettings,
    pages: Sequence[tuple[int, str]],
    quotas: Sequence[Quota],
    *,
    head: Head | None = None,
    stamp: LeaseStamp | None = None,
    sweep: bool = False,
) -> list[Any]:
    """Return the command that leases pages of a shard.

    Args:
        keys: of the shard.
        politeness: towards hosts and among crawlers.
        pages: id and host of each, in the order in which they are to be handed out; spare ones last.
        quotas: the first one takes the first pages that are free, and so on.
        head: lease nothing if the shard's journal goes on behind it.
        stamp: nor if the leases are others.
        sweep: first end leases that ran out.
    """
    names = [keys.leases, keys.waits, keys.fails, keys.hosts, keys.freed, keys.polite, keys.crawl_delays]
    names += [keys.flights, keys.flight_ends, keys.head]
    wishes = [term for quota in quotas for term in quota]
    blob = [
        head and ([b"%d" % head.lsn, head.digest] if head.lsn else [b"", b""]),
        stamp and [b"%d" % stamp.freed, stamp.leases],
        wishes,
        [page for page, _ in pages],
        [host for _, host in pages],
    ]
    terms = (politeness.retry_seconds, politeness.host_delay_seconds, politeness.host_in_flight, int(sweep))
    return ["FCALL", LEASE, len(names), *names, *terms, msgpack.packb(blob, use_bin_type=False)]
