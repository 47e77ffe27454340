"""Leases: leased pages, the pages requested from a shard in one call, and releasing leases."""

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
    """Return the string that identifies a lease; `given_back` takes it."""
    return f"{place[0]}-{place[1]}-{until_us}"


@dataclass(frozen=True, slots=True)
class Leased:
    """A leased page, with its values at that time."""

    place: Place
    url: str
    cash: int
    counts: float  # Its key in the greedy order, in grains; fractional only if `discovery` is not 1.
    importance: float
    read_before: bool
    until_us: int  # By the clock of its shard's server.
    nearness: int  # See `opic.model.page_notes`, as for `meta`.
    meta: bytes
    loads: int  # Load count of its shard's replica; after a reload the id may belong to another page.


@dataclass(slots=True)
class Chunk:
    """The pages that one call requests from a shard, in order, each with the request part it is for."""

    shard: int
    pages: list[int] = field(default_factory=list)  # Ids.
    of_hosts: list[int] = field(default_factory=list)
    wishes: list[tuple[Any, float]] = field(default_factory=list)  # Request part and lease seconds; none for spares.

    def add(self, page: int, host: int, part: Any = None, seconds: float = 0.0) -> None:
        """Add a page for a request part, or a spare page if `part` is None."""
        self.pages.append(page)
        self.of_hosts.append(host)
        if part is not None:
            self.wishes.append((part, seconds))

    def quotas(self) -> Iterator[tuple[Any, int, float]]:
        """Yield each request part, its number of pages, and the lease duration in seconds."""
        for _, group in groupby(self.wishes, key=lambda wish: id(wish[0])):
            terms = list(group)
            yield terms[0][0], len(terms), terms[0][1]

    @property
    def ids(self) -> Int64s:
        """Ids of the pages."""
        return np.array(self.pages, np.int64)

    @property
    def hosts(self) -> Int64s:
        """Host numbers of the pages."""
        return np.array(self.of_hosts, np.int64)


def given_back(crawl: Crawl, leases: Sequence[str]) -> list[tuple[int, int, list[int]]]:
    """Release leases in the store.

    Returns:
        For each call: the shard, its new `freed` counter, and the pages of the leases that were still active.

    Raises:
        BadInput: a string is not a lease; then none is released.
    """
    tokens: dict[int, list[str]] = {}
    for lease in dict.fromkeys(leases):
        match = LEASE.fullmatch(lease)
        if match is None or int(match[1]) >= len(crawl):
            raise BadInput(f"{shown(lease)} is not a lease: send the `lease` that came with a page")
        tokens.setdefault(int(match[1]), []).extend((match[2], match[3]))
    asked = [
        (shard, pairs[at : at + 2 * RELEASES_A_CALL])
        for shard, pairs in tokens.items()
        for at in range(0, len(pairs), 2 * RELEASES_A_CALL)
    ]
    commands = []
    for shard, pairs in asked:
        keys = crawl.shards[shard].keys
        commands.append(["FCALL", "opic_4_release", 3, keys.leases, keys.freed, keys.released, *pairs])
    answers = crawl.ask(commands) if commands else []
    return [(shard, freed, list(map(int, ids))) for (shard, _), (freed, ids) in zip(asked, answers, strict=True)]
