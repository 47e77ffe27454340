"""Read leases, retry waits and host delays from the store: the pages and hosts held back, and until when."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from opic.arrays import Float64s, Int64s
from opic.errors import StoreUnavailable
from opic.messages.frontier import HostPoliteness
from opic.model.cash import MILLION
from opic.replica import Crawl
from opic.store.keys import of_call
from opic.store.scan import read_hash

LAST_MEMBERS: Final = 16  # Of a part, after any of which the next one may begin: some are removed meanwhile.
AGAIN_MAX: Final = 20
STRETCH: Final = 4_000  # Members of a sorted set read in one call, which blocks the server for about 2 ms.


@dataclass(frozen=True, slots=True)
class Held:
    """The held pages and hosts of a shard. Times are Unix seconds by the clock of its server."""

    lsn: int  # A record of the journal that the rest is at least as recent as.
    now: float
    leases: tuple[Int64s, Float64s]  # Ids of leased pages, and when each lease ends.
    waits: tuple[Int64s, Float64s]  # Ids of pages in back-off, and when each may be offered again.
    hosts: tuple[list[str], Float64s]
    politeness: dict[str, HostPoliteness]  # Only hosts for which an operator set any.
    limits: dict[str, int]  # How many pages may be read of a host; only hosts that have a limit.
    addresses: dict[str, str]  # Of hosts, as events reported them.
    groups: tuple[list[str], Float64s]  # Politeness groups whose home the shard is, and when they are free.


def read_held(crawl: Crawl, shards: Sequence[int]) -> list[Held]:
    """Read the held pages and hosts of shards.

    The result may include changes made while it was read.
    """
    keys = [crawl.shards[number].keys for number in shards]
    first = crawl.ask([
        command
        for k in keys
        for command in (
            ["HGET", k.head, "lsn"], ["FCALL_RO", "opic_5_now", 1, k.leases],
            ["HGETALL", k.polite], ["HGETALL", k.limits], ["EXISTS", k.addresses],
        )
    ])  # fmt: skip
    now = [us / MILLION for us in first[1::5]]
    parts = read_sets(crawl, [
        (name, least)
        for k, t in zip(keys, now, strict=True)
        for name, least in (
            (k.leases, "-inf"), (k.waits, f"({t:.6f}"), (k.hosts, f"({t:.6f}"), (k.group_times, f"({t:.6f}")
        )
    ])  # fmt: skip
    held_of_shards = []
    for nth, t in enumerate(now):
        lsn, _, rules, limits, some_addresses = first[5 * nth : 5 * nth + 5]
        (leased, ends), (waiting, until), *hosts_and_groups = parts[4 * nth : 4 * nth + 4]
        hosts, groups = ((names.decode().split("\n") if names else [], free) for names, free in hosts_and_groups)
        addresses = read_hash(crawl.client, keys[nth].addresses) if some_addresses else {}
        held_of_shards.append(
            Held(
                int(lsn or 0),
                t,
                (ids_of(leased), ends / MILLION),
                (ids_of(waiting), until),
                hosts,
                {host.decode(): host_politeness_of(rule) for host, rule in rules.items()},
                _limits(limits),
                {host.decode(): address.decode() for host, address in addresses.items()},
                groups,
            )
        )
    return held_of_shards


def _limits(stored: Mapping[bytes, bytes]) -> dict[str, int]:
    return {host.decode(): int(limit) for host, limit in stored.items()}


def read_sets(crawl: Crawl, sets: Sequence[tuple[str, str]]) -> list[tuple[bytes, Float64s]]:
    """Read sorted sets from a minimum score on, STRETCH members per call; members are joined by line feeds.

    The result has every member that is there with one score from the beginning to the end.

    Raises:
        StoreUnavailable: the sets changed faster than they could be read.
    """
    parts: list[list[tuple[bytes, Float64s]]] = [[] for _ in sets]
    todo, again = list(range(len(sets))), 0
    while todo:
        commands = [["FCALL_RO", "opic_5_held", 1, *sets[i], STRETCH, *_last_of(parts[i])] for i in todo]
        longer = []
        for i, reply in zip(todo, crawl.ask(commands), strict=True):
            if reply is None:  # None of the last members is there any more: nothing says where to go on.
                parts[i].clear()
                longer.append(i)
                again += 1
                continue
            scores = np.frombuffer(reply[1], "<f8")
            if len(scores):
                parts[i].append((reply[0], scores))
            if len(scores) == STRETCH:
                longer.append(i)
        if again > AGAIN_MAX:
            raise StoreUnavailable("leases and waits change faster than they can be read: try again")
        todo = longer
    nothing = np.empty(0, np.float64)
    return [
        (b"\n".join(ids for ids, _ in stretches), np.concatenate([nothing, *(scores for _, scores in stretches)]))
        for stretches in parts
    ]


def _last_of(parts: Sequence[tuple[bytes, Float64s]]) -> tuple[bytes, bytes]:
    """Return the last members of what was read, and their scores: where the next part begins."""
    if not parts:
        return b"", b""
    members, scores = parts[-1]
    last = members.rsplit(b"\n", LAST_MEMBERS)[-LAST_MEMBERS:]
    return b"\n".join(last), scores[-len(last) :].tobytes()


def ids_of(members: bytes) -> Int64s:
    """Parse the page ids that `read_sets` returned."""
    return np.fromstring(members, np.int64, sep="\n")


def leased_pages(crawl: Crawl) -> list[Int64s]:
    """Return the ids of the pages that are leased now, by shard, in any order."""
    times_us = crawl.ask([["FCALL_RO", "opic_5_now", 1, shard.keys.leases] for shard in crawl.shards])
    sets = [(shard.keys.leases, f"({time_us}") for shard, time_us in zip(crawl.shards, times_us, strict=True)]
    return [ids_of(members) for members, _ in read_sets(crawl, sets)]


def read_host_politeness(crawl: Crawl) -> dict[str, HostPoliteness]:
    """Return the host settings that an operator set."""
    answers = crawl.ask([["HGETALL", shard.keys.polite] for shard in crawl.shards])
    return {host.decode(): host_politeness_of(rule) for rules in answers for host, rule in rules.items()}


def write_host_politeness(crawl: Crawl, hosts: Mapping[str, HostPoliteness]) -> None:
    """Replace all host settings, atomically in each shard."""
    rules: dict[int, list[str]] = {shard.number: [] for shard in crawl.shards}
    for host, own in hosts.items():
        delay, cap = own.delay_seconds, own.in_flight
        rule = f"{'-' if delay is None else repr(float(delay))} {'-' if cap is None else cap}"
        if own.revisit_seconds is not None:
            rule += f" {float(own.revisit_seconds)!r}"
        rules[crawl.shard_of(f"http://{host}/").number] += (host, rule)
    commands = []
    for number, pairs in rules.items():
        keys = crawl.shards[number].keys
        commands.append(of_call("polite", (keys.polite, keys.changes, keys.head), *pairs))
    crawl.ask(commands)


def host_politeness_of(rule: bytes) -> HostPoliteness:
    """Parse a host's settings from their form in the store."""
    delay, cap, *revisit = rule.decode().split(" ")
    return HostPoliteness(
        None if delay == "-" else float(delay), None if cap == "-" else int(cap), float(revisit[0]) if revisit else None
    )
