"""What may not be handed out and until when: leases, waits, resting hosts, read from the store in stretches."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opic.cash import MILLION
from opic.store import Crawl
from opic.store.columns import Int64s

Float64s = NDArray[np.float64]
STRETCH: Final = 4_000  # Of a sorted set at once: about 2 ms in which the server answers nobody else.


class Stamp(NamedTuple):
    """What tells that a shard stands as it was seen: where all of it is the same, a choice made then still holds."""

    era: bytes
    version: bytes  # Of the books: it counts steps.
    freed: bytes  # Counts what made pages or hosts free before their time.
    leases: int  # How many there are.


class Manners(NamedTuple):
    """How a host is to be spared, where it is not as the settings say."""

    delay_seconds: float | None = None
    in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What was read. Times are Unix seconds by the clock of each shard's own server."""

    stamps: list[Stamp]
    clocks: list[float]  # Of each shard's server: what it said, less our own time (monotonic) when we heard it.
    pages: list[tuple[Int64s, Float64s]]  # Of each shard: ids, and when each may be offered again.
    hosts: list[tuple[list[str], Float64s]]
    running: list[int]  # Leases.
    manners: dict[str, Manners]  # Of hosts that an operator set any for.

    def __len__(self) -> int:
        """Count pages and hosts."""
        return sum(len(ids) for ids, _ in self.pages) + sum(len(names) for names, _ in self.hosts)


def stamps_of(crawl: Crawl) -> list[Stamp]:
    """Read the stamp of each shard."""
    commands = []
    for keys in (shard.keys for shard in crawl.shards):
        commands.append(["HMGET", keys.books, "era", "version"])
        commands += [["HGET", keys.freed, "n"], ["ZCARD", keys.leases]]
    found = crawl.ask(commands)
    return [
        Stamp(era or b"", version or b"", freed or b"0", leases)
        for (era, version), freed, leases in zip(found[::3], found[1::3], found[2::3], strict=True)
    ]


def read_held(crawl: Crawl, retry_seconds: float, least_seconds: float) -> Held:
    """Read what is held in all shards. What changes meanwhile may be in it; then its stamp is an older one.

    Args:
        crawl: whose.
        retry_seconds: the first wait of a page whose lease ends unheard of.
        least_seconds: how long a lease binds at least, from now: one that is over does until it is swept.
    """
    stamps = stamps_of(crawl)
    keys = [shard.keys for shard in crawl.shards]
    first = crawl.ask([c for k in keys for c in (["FCALL_RO", "opic_1_now", 1, k.leases], ["HGETALL", k.polite])])
    heard, now = time.monotonic(), [us / MILLION for us in first[::2]]
    sets = [
        (name, least)
        for k, t in zip(keys, now, strict=True)
        for name, least in ((k.leases, "-inf"), (k.waits, f"({t:.6f}"), (k.hosts, f"({t:.6f}"))
    ]
    parts = read_sets(crawl, sets)
    pages, hosts, running = [], [], []
    for number, t in enumerate(now):
        (leased, ends), (waiting, until), (names, free) = parts[3 * number : 3 * number + 3]
        running.append(int(np.count_nonzero(ends > t * MILLION)))
        ends = np.maximum(ends / MILLION + retry_seconds, t + least_seconds)
        ids = np.array([*leased, *waiting], np.int64)
        pages.append((ids, np.concatenate((ends, until))))
        hosts.append(([name.decode() for name in names], free))
    manners = {host.decode(): manners_of(rule) for found in first[1::2] for host, rule in found.items()}
    return Held(stamps, [t - heard for t in now], pages, hosts, running, manners)


def read_sets(crawl: Crawl, sets: Sequence[tuple[str, str]]) -> list[tuple[list[bytes], Float64s]]:
    """Read sorted sets from a score on, a stretch of each at a time."""
    members: list[list[bytes]] = [[] for _ in sets]
    scores: list[list[Float64s]] = [[] for _ in sets]
    todo, at = list(range(len(sets))), 0
    while todo:
        commands = [["FCALL_RO", "opic_1_held", 1, sets[i][0], sets[i][1], at, STRETCH] for i in todo]
        longer = []
        for i, (packed, raw) in zip(todo, crawl.ask(commands), strict=True):
            part = np.frombuffer(raw, "<f8")
            if len(part):
                members[i] += packed.split(b"\n")
                scores[i].append(part)
            if len(part) == STRETCH:
                longer.append(i)
        todo, at = longer, at + STRETCH
    nothing = np.empty(0, np.float64)
    return [(some, np.concatenate([nothing, *parts])) for some, parts in zip(members, scores, strict=True)]


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
        commands.append(["FCALL", "opic_1_polite", 2, keys.polite, keys.freed, *some])
    crawl.ask(commands)


def manners_of(rule: bytes) -> Manners:
    """Read what an operator set for a host, as the store keeps it."""
    delay, cap = rule.decode().split(" ")
    return Manners(None if delay == "-" else float(delay), None if cap == "-" else int(cap))
