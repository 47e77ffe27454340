"""What a request is given: its parts by mode, the pages leased for it, and the calls that lease them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from opic.frontier.leases import Lease
from opic.frontier.page_keys import times_priority
from opic.frontier.requests import Choice, PagesRequest
from opic.messages.frontier import Page


class Leased(NamedTuple):
    """A leased page."""

    lease: Lease
    page: Page  # As its crawler is told of it, with its importance by history and cash.
    host: int  # Its number within the shard.
    key: float  # What it comes by in the answer: by cash, in grains, fractional only if `discovery` is not 1.
    priority: float

    @property
    def worth(self) -> float:
        """Its key without its priority."""
        return float(times_priority(np.array([self.key]), 1 / self.priority)[0])


@dataclass(slots=True)
class RequestPart:
    """A request, or the part of a request for pages of one mode."""

    index: int  # Index of the request among those answered together.
    request: PagesRequest
    by: Choice  # Which pages it can be given.
    left: int  # How many pages it still wants: 0 also once there are no more for it.
    granted: list[Leased] = field(default_factory=list)
    cut: bool | None = None  # Whether it ends at half of its best page's cash; None until decided.
    # Hosts that gave pages to the whole request, if it has a limit on pages of a host.
    hosts_given: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, index: int, request: PagesRequest, mode: str, wanted: int, hosts_given: set[str]) -> "RequestPart":
        """Return a part of a request for `wanted` hosts, or pages if the request has no limit on hosts."""
        by = request.choice(mode, wanted if request.hosts else None, index)
        pages = wanted * (request.n // request.hosts) if request.hosts else wanted
        return cls(index, request, by, pages, hosts_given=hosts_given)

    @property
    def given(self) -> int:
        """How many hosts it was given pages of, or how many pages if it has no limit on hosts."""
        hosts = {(page.lease.shard_page[0], page.host) for page in self.granted}
        return len(hosts) if self.by.hosts else len(self.granted)

    @classmethod
    def due(cls, parts: Iterable["RequestPart"]) -> list["RequestPart"]:
        """Return the parts to choose pages for in one turn.

        A choice keeps a limit on pages of a host by itself. So parts of a request that has one take turns, and each
        passes over the hosts that gave pages before.
        """
        due, indices = list[RequestPart](), set[int]()
        for part in parts:
            if not part.left or part.index in indices:
                continue
            if part.request.host_pages is not None:
                indices.add(part.index)
                part.by = part.by._replace(busy=part.request.busy | part.hosts_given)
            due.append(part)
        return due


class ChosenPage(NamedTuple):
    """A page that is to be leased."""

    id: int
    host: int  # Its number within the shard.
    key: float  # What it was chosen by.
    priority: float


@dataclass(slots=True)
class ShardCall:
    """The pages that one call requests from a shard, in order: those for each request part, then spare ones."""

    shard: int
    pages: list[ChosenPage] = field(default_factory=list)
    parts: list[RequestPart] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # Number of pages of each part.
