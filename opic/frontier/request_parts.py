"""What a request is given: its parts by mode, the pages leased for it, and the calls that lease them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np

from opic.arrays import Int64s
from opic.frontier.leases import Lease
from opic.frontier.page_keys import times_priority
from opic.frontier.requests import Choice, PagesRequest
from opic.messages.frontier import Page
from opic.model.cash import MILLION
from opic.model.page_notes import depth_of, unpack_meta
from opic.replica import Crawl
from opic.replica.crawl import Place
from opic.urls.canonical import host_of


class Leased(NamedTuple):
    """A leased page, with its values at that time."""

    shard_page: Place
    url: str
    name: str  # Under which it answered last; "" if under its URL.
    cash: int
    key: float  # What it comes by in the answer: by cash, in grains, fractional only if `discovery` is not 1.
    importance: float  # By its history and cash.
    read_before: bool
    until_us: int  # By the clock of its shard's server.
    nearness: int  # See `opic.model.page_notes`, as for `meta`.
    meta: bytes
    priority: float
    loads: int  # Load count of its shard's replica; after a reload the id may belong to another page.

    @property
    def worth(self) -> float:
        """Its key without its priority."""
        return float(times_priority(np.array([self.key]), 1 / self.priority)[0])

    @property
    def lease(self) -> Lease:
        """The lease itself."""
        return Lease(self.shard_page, self.until_us)

    def told(self, crawl: Crawl, share: float | None) -> Page:
        """Return the page as its crawler hears of it; `share` is its importance, None if that is by cash."""
        return Page(
            url=self.name or self.url,
            cash=self.cash,
            importance=self.importance if share is None else share,
            fetched_before=self.read_before,
            lease=self.lease.token(crawl),
            lease_until=self.until_us / MILLION,
            depth=depth_of(self.nearness) if self.nearness else None,
            meta=unpack_meta(self.meta) if self.meta else {},
        )


@dataclass(slots=True)
class RequestPart:
    """A request, or the part of a request for pages of one mode."""

    index: int  # Index of the request among those answered together.
    request: PagesRequest
    n: int
    mode: str
    hosts: int | None = None  # Maximum number of hosts.
    granted: list[Leased] = field(default_factory=list)
    cut: bool | None = None  # Whether it ends at half of its best page's cash; None until decided.
    over: bool = False  # Whether there are no more pages for it.

    @classmethod
    def of(cls, index: int, request: PagesRequest, mode: str, wanted: int) -> "RequestPart":
        """Return a part of a request for `wanted` hosts, or pages if the request has no limit on hosts."""
        each = request.n // request.wanted
        return cls(index, request, wanted * each, mode, wanted if request.hosts else None)

    @property
    def given(self) -> int:
        """How many hosts it was given pages of, or how many pages if it has no limit on hosts."""
        return len({host_of(page.url) for page in self.granted}) if self.hosts else len(self.granted)

    @property
    def choice(self) -> Choice:
        """Which pages it can be given."""
        return self.request.choice(self.mode, self.hosts, self.index)

    @property
    def missing(self) -> int:
        """How many pages it still wants. With a limit on hosts it takes what the first choice gives."""
        return 0 if self.over or (self.hosts and self.granted) else self.n - len(self.granted)


class ChosenPage(NamedTuple):
    """A page that is to be leased."""

    id: int
    host: int  # Its number within the shard.
    key: float  # What it was chosen by.
    priority: float


@dataclass(slots=True)
class ShardCall:
    """The pages that one call requests from a shard, in order, each with the request part it is for."""

    shard: int
    pages: list[ChosenPage] = field(default_factory=list)
    parts: list[RequestPart] = field(default_factory=list)  # Of the first pages; those after them are spares.

    def quotas(self) -> Iterator[tuple[RequestPart, int]]:
        """Yield each request part, and its number of pages."""
        for _, group in groupby(self.parts, key=id):
            some = list(group)
            yield some[0], len(some)

    @property
    def ids(self) -> Int64s:
        """Ids of the pages."""
        return np.array([page.id for page in self.pages], np.int64)

    @property
    def hosts(self) -> Int64s:
        """Host numbers of the pages."""
        return np.array([page.host for page in self.pages], np.int64)
