"""What callers send as JSON bodies. They are strict: a number is not a string, true is not 1."""

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import force_setattr

from opic.api.queries import Chosen, Count, Domain, FieldError, OfPolicy, SomeHost
from opic.frontier.requests import DOMAINS_MAX
from opic.messages.definitions import PageClass, Rule
from opic.messages.frontier import HostPoliteness
from opic.messages.local import ListFacts, LocalChange
from opic.messages.terms import META, NOT_BEFORE, PRIORITY, Depth, NextPolicy, OrNull, about
from opic.model.page_notes import PRIORITY_MAX, PRIORITY_MIN
from opic.model.trust import TRUST_MAX
from opic.urls.rules import RULES_MAX
from opic.urls.traps import NUMBER_MAX, WINDOW

CRAWLER_CHARS_MAX: Final = 200
LEASE_SECONDS_MAX: Final = 86_400
SHARDS_MAX: Final = 64  # Made in a second; all crawls that are to be opened wait for that.
CHANGES_MAX: Final = 1_000
SHARE: Final = f"Maximum share of the last {WINDOW} suggestions for"

Urls = Annotated[list[str], about("Absolute http(s) URLs, at most OPIC_MAX_URLS.", examples=[["https://a.example/"]])]
LeaseSeconds = Annotated[
    Annotated[float, Meta(gt=0, le=LEASE_SECONDS_MAX)] | None,
    about("Duration of the leases from now on; default OPIC_LEASE_SECONDS."),
]
Seconds = Annotated[float, Meta(ge=0)]
Natural = Annotated[int, Meta(ge=0)]
Priority = Annotated[float, Meta(ge=PRIORITY_MIN, le=PRIORITY_MAX)]
Trust = Annotated[float, Meta(ge=0, le=TRUST_MAX)]
Limit = Annotated[int, Meta(ge=0, le=NUMBER_MAX)] | UnsetType
Part = Annotated[float, Meta(ge=1 / WINDOW, le=1)] | UnsetType


class Seeds(Struct, frozen=True, forbid_unknown_fields=True):
    """Seed pages to add."""

    urls: Urls
    depth: Annotated[Depth, about("Depth of these pages; the smallest depth seen is kept.")] = 0
    meta: Annotated[
        dict[str, str] | None,
        about(f"Metadata of these pages, replacing what they had. {META}", examples=[{"job": "news"}]),
    ] = None
    not_before: Annotated[float | str | None, about(NOT_BEFORE, examples=["2031-01-01T00:00:00Z"])] = None
    priority: Annotated[Priority | None, about(PRIORITY, examples=[2.0])] = None
    trust: Annotated[
        Trust | None,
        about(
            "Weight of each of these pages among the trusted pages of the coverage guarantee; 0 takes it away.",
            examples=[1.0],
        ),
    ] = None


class NewCrawl(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of a crawl, which are fixed when it is made; those left out are the endpoint's settings."""

    damping: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | UnsetType,
        about("Share of a page's cash that goes to its links: OPIC_DAMPING.", examples=[0.85]),
    ] = UNSET
    virtual: Annotated[
        Literal["grants", "continuous"] | UnsetType, about("How the virtual page pays: OPIC_VIRTUAL.")
    ] = UNSET
    regrant: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | UnsetType, about("Size of a further grant: OPIC_REGRANT.")
    ] = UNSET
    history_measures: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | UnsetType, about("Measures kept for each page: OPIC_HISTORY_MEASURES.")
    ] = UNSET
    normalize: Annotated[
        str | UnsetType, about("Names of normalization rules, separated by commas, or none: OPIC_NORMALIZE.")
    ] = UNSET
    inflow: Annotated[bool | UnsetType, about("Count the cash from other domains: OPIC_INFLOW.")] = UNSET
    shards: Annotated[
        Annotated[int, Meta(ge=1, le=SHARDS_MAX)] | UnsetType,
        about("Number of shards: OPIC_SHARDS. For more, use `opic crawls --create`.", examples=[1]),
    ] = UNSET


class NextRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A crawler's request for pages."""

    n: Count = 10
    crawler: Annotated[
        str, about("Name of the crawler, which holds the leases.", max_length=CRAWLER_CHARS_MAX, examples=["crawler-7"])
    ] = ""
    lease_seconds: LeaseSeconds = None
    domain: Domain = None
    domains: Annotated[
        OrNull[Annotated[list[SomeHost], Meta(max_length=DOMAINS_MAX)]],
        about(
            "Several such hosts or registered domains, beside `domain`; none is no limit.",
            examples=[["example.org", "b.example"]],
        ),
    ] = []
    mode: Chosen = "any"
    policy: Annotated[
        NextPolicy | None,
        about(
            "With mode refresh: a recrawl policy, which draws pages at random instead of by cash. U: each page as "
            "likely as any other; OR: in proportion to the links seen on it so far; YR: to the new links on its last "
            "read, per second; YRU: half YR, half U; LDU: half U, half the page with the greatest link score, the "
            "in-links of these new links. With mode discover: GAI, most in-links first, or AI, in proportion to "
            "in-links. LDU, GAI and AI need kept links."
        ),
    ] = None
    max_depth: Annotated[Natural | None, about("Only pages whose depth is known and not greater.", examples=[5])] = None
    busy_hosts: Annotated[OrNull[list[str]], about("Hosts to skip, at most OPIC_MAX_URLS.")] = []
    crawl_delays: Annotated[
        OrNull[dict[str, Seconds]],
        about(
            "Crawl-delay of hosts' robots.txt, in seconds. It is stored, and applies where it is longer than "
            "OPIC_HOST_DELAY_SECONDS, up to 300; 0 removes it. At most OPIC_MAX_URLS hosts.",
            examples=[{"a.example": 5}],
        ),
    ] = {}

    def __post_init__(self) -> None:
        """Take null as absent, as of events: Go writes an empty slice or map so."""
        for name, empty in ("domains", []), ("busy_hosts", []), ("crawl_delays", {}):
            if getattr(self, name) is None:
                force_setattr(self, name, empty)


class Leases(Struct, frozen=True, forbid_unknown_fields=True):
    """Leases to end or to renew."""

    leases: Annotated[list[str], about("Leases returned by /v1/next, at most OPIC_MAX_URLS.")]


class RenewLeases(Leases, frozen=True):
    """Leases to renew, and for how long."""

    lease_seconds: LeaseSeconds = None


class ManyPages(OfPolicy, frozen=True, kw_only=True):
    """A request about many pages."""

    urls: Urls

    def __post_init__(self) -> None:
        """Check the window: in JSON, numbers are no strings."""
        super().__post_init__()
        if isinstance(self.window, str) and self.window[-1] not in "hd":
            raise FieldError("window", "rounds are a number, not a string; a duration is a string such as 30d or 12h")


class GivenClass(PageClass, forbid_unknown_fields=True):
    """A class of pages: its weight, and which pages belong to it."""


class ClassesGiven(Struct, frozen=True, forbid_unknown_fields=True):
    """Classes of pages, in order: a page belongs to the first one that it matches."""

    classes: Annotated[list[GivenClass], about("At most 7; an empty list removes all classes.")]


class SomeClasses(Struct, frozen=True, forbid_unknown_fields=True):
    """Classes to set or to remove; all others stay as they are."""

    classes: Annotated[
        list[GivenClass], about("A class of the same name is replaced in its place; a new one comes after the others.")
    ] = []
    remove: Annotated[list[str], about("Names of classes to remove.")] = []


class GivenRule(Rule, forbid_unknown_fields=True):
    """A rule: it applies to a URL that meets all given conditions."""


GivenRules = Annotated[list[GivenRule], Meta(max_length=RULES_MAX)]


class Thresholds(Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds of trap detection; missing fields have their defaults."""

    on: Annotated[bool | UnsetType, about("Whether trap detection is on.")] = UNSET
    url_bytes: Annotated[Limit, about("Hold back URLs longer than this, in bytes. 0 disables this.")] = UNSET
    segments: Annotated[Limit, about("Hold back URLs with more path segments than this. 0 disables this.")] = UNSET
    repeats: Annotated[
        Limit,
        about(
            "Hold back URLs in which a sequence of path segments repeats this many times; can't be 1. 0 disables this."
        ),
    ] = UNSET
    parameters: Annotated[Limit, about("Hold back URLs with more query parameters than this. 0 disables this.")] = UNSET
    years_ahead: Annotated[
        Limit, about("Hold back URLs with a date more than this many years ahead. 0 disables this.")
    ] = UNSET
    dates: Annotated[
        Limit,
        about(
            "Of the pages whose URLs differ only in a date, hold back all after the first this many. 0 disables this."
        ),
    ] = UNSET
    host_pages: Annotated[Limit, about("A host with more known pages than this is large. 0 disables this.")] = UNSET
    host_share: Annotated[Part, about(f"{SHARE} one large host while other hosts have pages to offer.")] = UNSET
    site_reads: Annotated[
        Limit,
        about(
            "A registered domain is outgrown if it was read more often than this, and more often than the links from "
            "other domains paid for. 0 disables this."
        ),
    ] = UNSET
    site_share: Annotated[Part, about(f"{SHARE} one outgrown domain while other domains have pages to offer.")] = UNSET


class RulesGiven(Struct, frozen=True, forbid_unknown_fields=True):
    """Rules, thresholds, or both, which replace those set before; what is left out stays."""

    rules: Annotated[
        GivenRules | UnsetType,
        about("Rules in order; the first that matches a URL decides. A URL that no rule matches is allowed."),
    ] = UNSET
    traps: Annotated[
        Thresholds | UnsetType,
        about("Trap thresholds. Pages that a rule explicitly allows are never held back as traps."),
    ] = UNSET


class SomeRules(Struct, frozen=True, forbid_unknown_fields=True):
    """Rules to add or to remove, and thresholds to set; all others stay as they are."""

    add: Annotated[GivenRules, about("A rule that is there already is moved.")] = []
    first: Annotated[bool, about("Whether the added rules come before the others; else they come after them.")] = False
    remove: Annotated[GivenRules, about("Rules to remove, as they are shown.")] = []
    traps: Annotated[Thresholds | UnsetType, about("Trap thresholds to set; those left out stay.")] = UNSET


class GivenHostPoliteness(HostPoliteness, frozen=True, forbid_unknown_fields=True):
    """The politeness settings of a host; the default settings apply to missing fields."""


class PolitenessGiven(Struct, frozen=True, forbid_unknown_fields=True):
    """The politeness settings of hosts, which replace those set before."""

    hosts: Annotated[
        dict[str, GivenHostPoliteness],
        about(
            "Settings by host, at most OPIC_MAX_URLS hosts.",
            examples=[{"a.example": {"delay_seconds": 10, "in_flight": 1, "revisit_seconds": 86_400}}],
        ),
    ]


class LocalPage(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of a ranked list."""

    url: str
    importance: Annotated[float, about("Over all pages of the domain it sums to 1.", ge=0, le=1)]


class GivenChange(LocalChange, frozen=True, forbid_unknown_fields=True):
    """How much a round of fetching changed the ranking."""


class LocalList(ListFacts, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ranked list of a domain's pages, descending."""

    pages: Annotated[list[LocalPage], about("The most important pages, at most OPIC_MAX_URLS.")]
    changes: Annotated[
        list[GivenChange],
        about("How much each round of fetching changed the ranking, oldest first.", max_length=CHANGES_MAX),
    ] = field(default_factory=list)
