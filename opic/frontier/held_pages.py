"""What may not be handed out and until when: leases, waits, resting hosts, read from the store in stretches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opic.frontier.lease_call import LeaseStamp
from opic.model.cash import MILLION
from opic.replica import Crawl

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
STRETCH: Final = 4_000  # Of a sorted set at once: about 2 ms in which the server answers nobody else.


class Manners(NamedTuple):
    """How a host is to be spared, where it is not as the settings say."""

    delay_seconds: float | None = None
    in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What was read of a shard. Times are Unix seconds by the clock of its server."""

    stamp: LeaseStamp  # From before.
    now: float
    pages: tuple[Int64s, Float64s]  # Ids, and when each may be offered again; a page may be there twice.
    hosts: tuple[list[str], Float64s]
    running: int  # Leases.
    manners: dict[str, Manners]  # Of hosts that an operator set any for.


def read_stamps(crawl: Crawl) -> list[LeaseStamp]:
    """Read the stamp of the leases of each shard."""
    commands = [c for k in (s.keys for s in crawl.shards) for c in (["HGET", k.freed, "n"], ["ZCARD", k.leases])]
    found = crawl.ask(commands)
    return [LeaseStamp(int(freed or 0), leases) for freed, leases in zip(found[::2], found[1::2], strict=True)]


def read_held(crawl: Crawl, shards: Sequence[int], retry_seconds: float, least_seconds: float) -> list[Held]:
    """Read what is held in shards. What changes meanwhile may be in it; then its stamp is an older one.

    Args:
        crawl: whose.
        shards: their numbers.
        retry_seconds: the first wait of a page whose lease ends unheard of.
        least_seconds: how long a lease binds at least, from now: one that is over does until it is swept.
    """
    keys = [crawl.shards[number].keys for number in shards]
    first = crawl.ask([
        command
        for k in keys
        for command in (
            ["HGET", k.freed, "n"], ["ZCARD", k.leases], ["FCALL_RO", "opic_4_now", 1, k.leases], ["HGETALL", k.polite]
        )
    ])  # fmt: skip
    now = [us / MILLION for us in first[2::4]]
    parts = read_sets(crawl, [
        (name, least)
        for k, t in zip(keys, now, strict=True)
        for name, least in ((k.leases, "-inf"), (k.waits, f"({t:.6f}"), (k.hosts, f"({t:.6f}"))
    ])  # fmt: skip
    found = []
    for nth, t in enumerate(now):
        freed, leases, _, rules = first[4 * nth : 4 * nth + 4]
        (leased, ends), (waiting, until), (names, free) = parts[3 * nth : 3 * nth + 3]
        ids = np.concatenate((ids_of(leased), ids_of(waiting)))
        found.append(
            Held(
                LeaseStamp(int(freed or 0), leases),
                t,
                (ids, np.concatenate((np.maximum(ends / MILLION + retry_seconds, t + least_seconds), until))),
                (names.decode().split("\n") if names else [], free),
                int(np.count_nonzero(ends > t * MILLION)),
                {host.decode(): manners_of(rule) for host, rule in rules.items()},
            )
        )
    return found


def read_released(crawl: Crawl, shard: int, known: int) -> tuple[int, list[int] | None]:
    """Return the count of what made pages free, and the pages given back since it was `known`; None if they are many.

    Then, and after other manners of hosts were set, all that is held is to be read.
    """
    keys = crawl.shards[shard].keys
    (freed, whole), ids = crawl.ask([
        ["HMGET", keys.freed, "n", "whole"],
        ["ZRANGE", keys.released, f"({known}", "+inf", "BYSCORE"],
    ])  # fmt: skip
    count = int(freed or 0)
    return count, None if count < known or known < int(whole or 0) else [int(page) for page in ids]


def read_sets(crawl: Crawl, sets: Sequence[tuple[str, str]]) -> list[tuple[bytes, Float64s]]:
    """Read sorted sets from a score on, a stretch of each at a time: members by line feeds, and their scores."""
    members: list[list[bytes]] = [[] for _ in sets]
    scores: list[list[Float64s]] = [[] for _ in sets]
    todo, at = list(range(len(sets))), 0
    while todo:
        commands = [["FCALL_RO", "opic_4_held", 1, sets[i][0], sets[i][1], at, STRETCH] for i in todo]
        longer = []
        for i, (packed, raw) in zip(todo, crawl.ask(commands), strict=True):
            part = np.frombuffer(raw, "<f8")
            if len(part):
                members[i].append(packed)
                scores[i].append(part)
            if len(part) == STRETCH:
                longer.append(i)
        todo, at = longer, at + STRETCH
    nothing = np.empty(0, np.float64)
    return [(b"\n".join(some), np.concatenate([nothing, *parts])) for some, parts in zip(members, scores, strict=True)]


def ids_of(members: bytes) -> Int64s:
    """Return the pages that `read_sets` found."""
    return np.fromstring(members, np.int64, sep="\n")


def read_manners(crawl: Crawl) -> dict[str, Manners]:
    """Return what an operator set for hosts."""
    answers = crawl.ask([["HGETALL", shard.keys.polite] for shard in crawl.shards])
    return {host.decode(): manners_of(rule) for found in answers for host, rule in found.items()}


def write_manners(crawl: Crawl, manners: Mapping[str, Manners]) -> None:
    """Let these hold in the place of those before: in each shard at one instant."""
    rules: dict[int, list[str]] = {shard.number: [] for shard in crawl.shards}
    for host, (delay, cap) in manners.items():
        rule = f"{'-' if delay is None else repr(float(delay))} {'-' if cap is None else cap}"
        rules[crawl.shard_of(f"http://{host}/").number] += (host, rule)
    commands = []
    for number, some in rules.items():
        keys = crawl.shards[number].keys
        commands.append(["FCALL", "opic_4_polite", 2, keys.polite, keys.freed, *some])
    crawl.ask(commands)


def manners_of(rule: bytes) -> Manners:
    """Read what an operator set for a host, as the store keeps it."""
    delay, cap = rule.decode().split(" ")
    return Manners(None if delay == "-" else float(delay), None if cap == "-" else int(cap))
