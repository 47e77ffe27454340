"""What goes in and what comes out, as the service's OpenAPI document describes it.

Importance is a share: over all known pages it sums to 1. Cash and clock are whole grains. Times are Unix seconds.
Fields that an answer has beyond these are passed over.
"""

from typing import Any, Literal

from msgspec import Struct, field

Policy = Literal["static", "interpolation", "fixed", "variable", "improved"]
Mode = Literal["any", "discover", "refresh"]
Window = float | str  # Rounds, or a text like "30d" or "12h".


class Event(Struct, kw_only=True, omit_defaults=True):
    """What a crawler found at a URL; docs/guide/events.md describes the fields."""

    url: str
    links: list[str] = []
    fetched_at: float | str | None = None
    status: int = 200
    redirect: str | None = None
    excluded: bool = False
    tags: list[str] = []
    crawler: str | None = None


class Rejected(Struct, frozen=True):
    """An event that was not taken: its place in the call, and why."""

    index: int
    error: str


class Accepted(Struct, frozen=True):
    """What became of events: those accepted are durable."""

    accepted: int
    rejected: list[Rejected]


class Seeded(Struct, frozen=True):
    """How many of the seeds were known, and how many were not."""

    known: int
    new: int


class Page(Struct, frozen=True):
    """A page to fetch, this crawler's own until `lease_until`."""

    url: str
    cash: int
    importance: float
    fetched_before: bool
    lease: str
    lease_until: float


class NextPages(Struct, frozen=True):
    """Pages to fetch, the best first; `retry_after` in seconds says when to ask again."""

    pages: list[Page]
    retry_after: float
    as_of: float


class Released(Struct, frozen=True):
    """How many of the leases still ran."""

    released: int


class Importance(Struct, frozen=True):
    """What is known of a page. One never seen has the importance None, and nothing else."""

    url: str
    importance: float | None
    rank: int | None = None
    cash: int | None = None
    reads: int | None = None
    last_read_clock: int | None = None
    last_fetched_at: float | None = None
    policy: str | None = None
    window: Window | None = None
    error_bound: float | None = None
    teleport: str | None = None
    page_class: str | None = field(default=None, name="class")
    gone: bool = False
    as_of: float | None = None
    rank_as_of: float | None = None


class Importances(Struct, frozen=True):
    """Pages in the order asked for."""

    pages: list[Importance]
    as_of: float
    rank_as_of: float | None = None


class Top(Struct, frozen=True):
    """The most important pages, descending."""

    pages: list[Importance]
    as_of: float


class Host(Struct, frozen=True):
    """A site: the importance of its pages together, and how many they are."""

    host: str
    importance: float
    pages: int
    read_pages: int


class Hosts(Struct, frozen=True):
    """The most important sites, descending."""

    hosts: list[Host]
    as_of: float


class Measure(Struct, frozen=True):
    """One read of a page: what it spent, and when."""

    clock: int
    cash: int
    fetched_at: float


class History(Struct, frozen=True):
    """The last reads of a page, oldest first."""

    url: str
    measures: list[Measure]
    as_of: float


class Inflow(Struct, frozen=True):
    """A page of a domain, and the share of all cash that came to it from elsewhere."""

    url: str
    inflow: float


class Inflows(Struct, frozen=True):
    """Pages of a domain; `next` is the value of `after` for those that follow."""

    pages: list[Inflow]
    outside_mass: float
    unread_mass: float
    dangling_mass: float
    known_pages: int
    next: str | None = None
    as_of: float | None = None


class Audit(Struct, frozen=True):
    """The books, recounted: minted = pages + virtual + in_flight."""

    minted: int
    pages: int
    virtual: int
    in_flight: int
    conserved: bool
    shards: list[dict[str, Any]]


class Stats(Struct, frozen=True):
    """Counts of the service.

    `lag` is the events accepted that have not taken effect yet; `pool` the grains that the virtual page has left to
    grant; `sweeps_left` how often all read pages can be read again before that or the clock comes to its end.
    """

    known_pages: int
    read_pages: int
    clock: int
    rounds: float
    lag: int
    pool: int
    shards: Any
    as_of: float
    granted_rounds: float | None = None
    sweeps_left: float | None = None


class PageClass(Struct, kw_only=True, omit_defaults=True):
    """A class of pages: its weight in grants, and what belongs to it."""

    name: str
    weight: float
    hosts: list[str] = []
    urls: list[str] = []
    contains: list[str] = []
    tags: list[str] = []


class ClassCounts(Struct, frozen=True):
    """The pages of a class, and their share of each grant."""

    weight: float
    known_pages: int
    read_pages: int
    grant_share: float
    name: str | None = None
    hosts: list[str] = []
    urls: list[str] = []
    contains: list[str] = []
    tags: list[str] = []


class Classes(Struct, frozen=True):
    """The classes that hold, in order; `reclassified` pages are classified anew where they were just defined."""

    classes: list[ClassCounts]
    other: ClassCounts
    as_of: float
    reclassified: int | None = None


class Ready(Struct, frozen=True):
    """Whether requests are welcome, else why not."""

    ready: bool
    reason: str | None = None
