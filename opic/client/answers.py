"""Request and answer types of the client, as in the service's OpenAPI document.

Importance is a share: over all known pages it sums to 1. Cash and clock are whole grains. Times are Unix seconds.
Other fields of an answer are ignored.
"""

from typing import Any, Literal

from msgspec import Struct, field

Policy = Literal["exact", "static", "interpolation", "fixed", "variable", "improved"]
Mode = Literal["any", "discover", "refresh", "coverage"]
TopBy = Literal["importance", "inlinks"]
NextPolicy = Literal["U", "OR", "YR", "YRU", "LDU", "GAI", "AI"]
Window = float | str  # A number of rounds, or a duration such as "30d" or "12h".


class Event(Struct, kw_only=True, omit_defaults=True):
    """A crawl event: the result of fetching a URL. docs/guide/events.md describes the fields."""

    url: str
    links: list[str] = []
    fetched_at: float | str | None = None
    status: int = 200
    redirect: str | None = None
    excluded: bool = False
    tags: list[str] = []
    crawler: str | None = None
    depth: int | None = None
    meta: dict[str, str] | None = None
    give_up: bool = False
    retry_after: float | None = None
    not_before: float | str | None = None
    priority: float | None = None


class Rejected(Struct, frozen=True):
    """A rejected event or seed: its index in the call, and the reason."""

    index: int
    error: str


class Accepted(Struct, frozen=True):
    """The number of accepted events, which are durable, and the rejected ones.

    `links_left_out` counts the links of accepted events beyond the service's limit of links, which take no effect.
    """

    accepted: int
    rejected: list[Rejected]
    links_left_out: int = 0


class Seeded(Struct, frozen=True):
    """The number of seeds that were already known, and of those that became known; and the rejected ones."""

    known: int
    new: int
    rejected: list[Rejected] = []


class CanonicalUrl(Struct, frozen=True):
    """The canonical form of a URL in the crawl, and `plain` without normalization rules; these, and those applied."""

    url: str
    plain: str
    rules: list[str]
    applied: list[str]


class Forgotten(Struct, frozen=True):
    """The number of pages that were forgotten; `more` if there may be more."""

    forgotten: int
    more: bool = False


class Page(Struct, frozen=True):
    """A page to fetch, leased to this crawler until `lease_until`."""

    url: str
    cash: int
    importance: float
    fetched_before: bool
    lease: str
    lease_until: float
    depth: int | None = None
    meta: dict[str, str] = {}


class HeldBack(Struct, frozen=True):
    """How many of the requested pages are held back, by what holds them."""

    leased: int = 0
    host_delay: int = 0
    revisit: int = 0
    retry: int = 0
    not_before: int = 0
    denied: int = 0
    given_up: int = 0


class NextPages(Struct, frozen=True):
    """Pages to fetch, best first; `retry_after` is the number of seconds to wait before asking again.

    `exhausted`: there are no pages, and waiting alone will bring none. `order`: `exact` or `cash`, where links
    are kept.
    """

    pages: list[Page]
    retry_after: float
    exhausted: bool
    waiting: HeldBack
    as_of: float
    order: str | None = None


class Released(Struct, frozen=True):
    """The number of released leases that had not expired."""

    released: int


class RenewedLease(Struct, frozen=True):
    """A lease that runs until `lease_until`, under the same name."""

    lease: str
    lease_until: float


class Renewed(Struct, frozen=True):
    """The leases that were renewed, and those that have ended: their pages may be leased to other crawlers."""

    renewed: list[RenewedLease]
    lost: list[str]


class Importance(Struct, frozen=True):
    """The importance of a page. A page never seen has the importance None and no other values."""

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
    certain: bool | None = None
    inlinks: int | None = None
    as_of: float | None = None
    rank_as_of: float | None = None


class Importances(Struct, frozen=True):
    """The importance of pages, in the order of the request."""

    pages: list[Importance]
    as_of: float
    rank_as_of: float | None = None


class Top(Struct, frozen=True):
    """The most important pages, descending; `next` is the value of `after` for the next call."""

    pages: list[Importance]
    as_of: float
    next: str | None = None


class Host(Struct, frozen=True):
    """A host: the sum of its pages' importance, and the number of its pages."""

    host: str
    importance: float
    pages: int
    read_pages: int


class Hosts(Struct, frozen=True):
    """The most important hosts, descending."""

    hosts: list[Host]
    as_of: float


class SiteDomain(Struct, frozen=True):
    """A registered domain: the sum of its pages' importance, and the numbers of its pages and hosts."""

    domain: str
    importance: float
    pages: int
    read_pages: int
    hosts: int


class SiteDomains(Struct, frozen=True):
    """The most important registered domains, descending."""

    domains: list[SiteDomain]
    as_of: float


class Measure(Struct, frozen=True):
    """One read of a page: the clock after it, the cash it spent, and the time of the fetch."""

    clock: int
    cash: int
    fetched_at: float


class History(Struct, frozen=True):
    """The last reads of a page, oldest first."""

    url: str
    measures: list[Measure]
    as_of: float


class FoundPage(Struct, frozen=True):
    """A page that a search found."""

    url: str
    importance: float


class Search(Struct, frozen=True):
    """The pages found by a part of their URL, the most important first.

    A search ends after about a second: it looked at `looked_at` of `known_pages`, and `next`, unless it is None, is the
    value of `after` to go on with.
    """

    pages: list[FoundPage]
    found: int
    looked_at: int
    known_pages: int
    next: str | None = None
    as_of: float | None = None


class Inflow(Struct, frozen=True):
    """A page of a domain, and the share of all cash that it received from other domains.

    Of a host, `inflow` and `inflow_max` are bounds of what it received from other hosts.
    """

    url: str
    inflow: float
    inflow_max: float | None = None


class Inflows(Struct, frozen=True):
    """Pages of a domain, host, prefix or list; `next` is the value of `after` for the next call.

    `missing` are the pages of a list that are gone or were never seen.
    """

    pages: list[Inflow]
    outside_mass: float
    unread_mass: float
    dangling_mass: float
    known_pages: int
    next: str | None = None
    missing: list[str] | None = None
    policy: str = "static"
    error_bound: float | None = None
    as_of: float | None = None


class Inlinks(Struct, frozen=True):
    """Pages that link to a page, as last read; `known` counts all that the service knows of."""

    url: str
    inlinks: list[str]
    known: int
    as_of: float | None = None


class Coverage(Struct, frozen=True):
    """The share of personalized PageRank that the fetched pages are guaranteed to hold, at least.

    `fetches_expected` is None where the pages known now are not expected to suffice, and without a target; `delta` is
    None where no trust was said to be on other pages.
    """

    coverage: float
    fetched_pages: int
    trusted_pages: int
    damping: float
    links_unknown: int = 0
    delta: float | None = None
    target: float | None = None
    fetches_expected: int | None = None
    as_of: float | None = None


class RankedPage(Struct, frozen=True):
    """A page of a local domain; over all pages of the domain the importance sums to 1."""

    url: str
    importance: float
    rank: int


class LocalChange(Struct, frozen=True):
    """How much a round of fetching changed the ranking: the L1 distance from the one before."""

    outside_fetched: int
    change: float


class LocalRanking(Struct, frozen=True):
    """The last list of a local domain's estimator, descending.

    `method` is "combined" with the service's in-flow, else "paper". `service_coverage` is the share of outside
    importance on pages that the service has read, 0 if it was not used. The list expires at `expires_at`, in Unix
    seconds, unless it is replaced.
    """

    domain: str
    pages: list[RankedPage]
    outside_fetched: int
    method: str
    service_coverage: float
    as_of: float
    changes: list[LocalChange] = []
    expires_at: float | None = None


class RankedDomain(Struct, frozen=True):
    """A local domain that has a ranked list; see `LocalRanking`."""

    domain: str
    pages: int
    outside_fetched: int
    method: str
    service_coverage: float
    as_of: float
    expires_at: float


class LocalDomains(Struct, frozen=True):
    """The local domains that have a ranked list, newest first."""

    domains: list[RankedDomain]
    as_of: float | None = None


class LocalListKept(Struct, frozen=True):
    """The number of pages of a list that were kept."""

    domain: str
    pages: int


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

    `lag` is the number of accepted events that have not taken effect yet; `pool`, the grains that the virtual page can
    still grant; `sweeps_left`, how many more times all read pages can be read before the pool is empty or the clock
    reaches its limit; `kept_links` is `kept`, `not kept`, or `too large` for the endpoint,
    which then answers from cash.
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
    kept_links: str | None = None
    given_up_pages: int | None = None


class FrontierPage(Struct, frozen=True):
    """A page that would be handed out."""

    url: str
    host: str
    cash: int
    importance: float
    fetched_before: bool


class Frontier(Struct, frozen=True):
    """The pages that would be handed out next, the best first. None of them is leased."""

    pages: list[FrontierPage]
    as_of: float


class SeriesEntry(Struct, frozen=True):
    """The position of the crawl at a time: rounds, and grains that reads spent."""

    time: float
    rounds: float
    clock: int


class CurvePoint(Struct, frozen=True):
    """The position of the crawl at a time, and the bound on the error of its estimates; None where there is none."""

    time: float
    rounds: float
    clock: int
    unspent: int
    error_bound: float | None = None


class Series(Struct, frozen=True):
    """The progress of the crawl, oldest first; the last entry of both lists is the current one."""

    series: list[SeriesEntry]
    convergence: list[CurvePoint]
    as_of: float


class DeadLetter(Struct, frozen=True):
    """An event that was refused for good: why, where it came from, and the beginning of its value."""

    id: str
    error: str
    topic: str
    partition: str
    offset: int
    value: str
    value_bytes: int
    at: float
    replayed: bool = False


class DeadLetters(Struct, frozen=True):
    """The newest dead letters, newest first."""

    dead_letters: list[DeadLetter]
    as_of: float


class HostManners(Struct, frozen=True):
    """The politeness settings of a host; the default settings apply to those that are None.

    `delay_seconds` is the least time between two of its pages, `in_flight` how many of them may be leased at once,
    `revisit_seconds` the least time from a page's read to its next suggestion.
    """

    delay_seconds: float | None = None
    in_flight: int | None = None
    revisit_seconds: float | None = None


class Politeness(Struct, frozen=True):
    """The default politeness settings, and those set for individual hosts."""

    host_delay_seconds: float
    host_in_flight: int | None
    revisit_seconds: float
    hosts: dict[str, HostManners]
    as_of: float


class Rule(Struct, kw_only=True, omit_defaults=True):
    """A URL rule: it applies to a URL that meets all given conditions; docs/guide/classes-and-rules.md."""

    effect: Literal["allow", "deny"]
    host: str | None = None
    domain: str | None = None
    path: str = "/"
    query: bool | None = None
    note: str = ""
    revisit_seconds: float | None = None


class Rules(Struct, frozen=True):
    """The current URL rules, in order, and the thresholds of trap detection by name."""

    rules: list[Rule]
    traps: dict[str, Any]
    version: str


class PageClass(Struct, kw_only=True, omit_defaults=True):
    """A class of pages: its weight in grants, and the pages that belong to it."""

    name: str
    weight: float
    hosts: list[str] = []
    urls: list[str] = []
    contains: list[str] = []
    tags: list[str] = []
    revisit_seconds: float | None = None


class ClassCounts(Struct, frozen=True):
    """The number of pages of a class, and their share of each grant."""

    weight: float
    known_pages: int
    read_pages: int
    grant_share: float
    name: str | None = None
    hosts: list[str] = []
    urls: list[str] = []
    contains: list[str] = []
    tags: list[str] = []
    revisit_seconds: float | None = None


class Classes(Struct, frozen=True):
    """The current classes, in order. `reclassified`: after a change, the number of pages that are classified again."""

    classes: list[ClassCounts]
    other: ClassCounts
    as_of: float
    reclassified: int | None = None
    version: str | None = None


class Ready(Struct, frozen=True):
    """Whether the service is ready for requests, and if not, why."""

    ready: bool
    reason: str | None = None
