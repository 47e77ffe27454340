"""Leases: pages that were leased, those asked of a shard in one call, and how leases are given back."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import numpy as np

from opic.errors import BadInput
from opic.frontier.hot_order import Int64s
from opic.replica import Crawl
from opic.replica.crawl import Place
from opic.urls.canonical import shown

RELEASES_A_CALL: Final = 1_000
LEASE: Final = re.compile(r"([0-9]{1,4})-([0-9]{1,15})-([0-9]{1,16})")  # Shard, page, end of the lease in microseconds.


def lease_of(place: Place, until_us: int) -> str:
    """Return the text by which a lease is given back."""
    return f"{place[0]}-{place[1]}-{until_us}"


@dataclass(frozen=True, slots=True)
class Leased:
    """A page that was leased, as it is then."""

    place: Place
    url: str
    cash: int
    counts: float  # In the greedy order: whole grains, but where pages never read count more, or less.
    importance: float
    read_before: bool
    until_us: int  # By the clock of its shard's server.
    loads: int  # Of its shard's replica: after another one the id may be another page's.


@dataclass(slots=True)
class Chunk:
    """Pages that one call asks a shard for, in their order, and whose they are to be."""

    shard: int
    pages: list[int] = field(default_factory=list)  # Ids.
    of_hosts: list[int] = field(default_factory=list)
    wishes: list[tuple[Any, float]] = field(default_factory=list)  # Of each page but the spare: whose, for how long.

    def add(self, page: int, host: int, part: Any = None, seconds: float = 0.0) -> None:
        """Ask for one more page; a spare one is nobody's."""
        self.pages.append(page)
        self.of_hosts.append(host)
        if part is not None:
            self.wishes.append((part, seconds))

    def quotas(self) -> Iterator[tuple[Any, int, float]]:
        """Yield whose the pages are to be, how many, and for how long."""
        for _, some in groupby(self.wishes, key=lambda wish: id(wish[0])):
            terms = list(some)
            yield terms[0][0], len(terms), terms[0][1]

    @property
    def ids(self) -> Int64s:
        """The pages."""
        return np.array(self.pages, np.int64)

    @property
    def hosts(self) -> Int64s:
        """Their hosts, by number."""
        return np.array(self.of_hosts, np.int64)


def given_back(crawl: Crawl, leases: Sequence[str]) -> list[tuple[int, int, list[int]]]:
    """Let the store take leases back.

    Returns:
        Of each call its shard, what that now counts as `freed`, and the pages of the leases that still ran.

    Raises:
        BadInput: a text is no lease; none is given back.
    """
    tokens: dict[int, list[str]] = {}
    for lease in dict.fromkeys(leases):
        match = LEASE.fullmatch(lease)
        if match is None or int(match[1]) >= len(crawl):
            raise BadInput(f"{shown(lease)} is not a lease: give back what came as `lease` with a page")
        tokens.setdefault(int(match[1]), []).extend((match[2], match[3]))
    asked = [
        (shard, some[at : at + 2 * RELEASES_A_CALL])
        for shard, some in tokens.items()
        for at in range(0, len(some), 2 * RELEASES_A_CALL)
    ]
    commands = []
    for shard, some in asked:
        keys = crawl.shards[shard].keys
        commands.append(["FCALL", "opic_4_release", 3, keys.leases, keys.freed, keys.released, *some])
    answers = crawl.ask(commands) if commands else []
    return [(shard, freed, list(map(int, ids))) for (shard, _), (freed, ids) in zip(asked, answers, strict=True)]
