"""Request and response models of the HTTP API: they validate requests and describe both in the OpenAPI document.

Request bodies are strict: a number is not a string, true is not 1, and an unknown field is refused, since a mistyped
`lease_seconds` would silently change the behaviour. Answers may contain more fields than are described here.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from opic.errors import BadInput
from opic.frontier.requests import DOMAINS_MAX
from opic.model.page_notes import DEPTH_MAX, META_BYTES_MAX, PRIORITY_MAX, PRIORITY_MIN
from opic.model.series import NUMBER, Window
from opic.model.trust import TRUST_MAX

CRAWLER_CHARS_MAX: Final = 200
DOMAIN_CHARS_MAX: Final = 255
LEASE_SECONDS_MAX: Final = 86_400

PolicyName = Literal["exact", "static", "interpolation", "fixed", "variable", "improved"]

AS_OF = "Time of the state that this answer shows, in Unix seconds."
RANK_AS_OF = "Time of the state that the ranks are computed from, in Unix seconds; present only if older than `as_of`."
CASH_NEXT = "Grains that the page holds. By the default OPIC_STRATEGY, pages with the most cash come first."
IMPORTANCE = "Share of the cash flow that reaches the page; over all known pages it sums to 1."
WINDOW = (
    "Window of a window policy: a number of rounds, or a duration such as 30d or 12h before the last event; default "
    "OPIC_WINDOW_ROUNDS. During one round the clock advances by one grant for every live page; under "
    "OPIC_VIRTUAL=continuous, by the total cash."
)
WINDOW_SHOWN = "The requested window: rounds, or a duration such as 30d; null for the static policy."
DOMAIN = "Only pages of this host or registered domain, including subdomains."
MODE = (
    "any: all pages; discover: pages never read; refresh: pages read before; coverage: pages never read, "
    "those with the most trust waiting at them first."
)
RECRAWL = (
    "With mode refresh: a recrawl policy, which draws pages at random instead of by cash. U: each page as likely as "
    "any other; OR: in proportion to the links seen on it so far; YR: to the new links on its last read, per second; "
    "YRU: half YR, half U; LDU: half U, half the page with the greatest link score, the in-links of these new links. "
    "With mode discover: GAI, most in-links first, or AI, in proportion to in-links. LDU, GAI and AI need kept links."
)
POLICY = (
    "exact: PageRank of the known graph, from kept links. Else from cash, and the policy is what of the past counts. "
    "Default: OPIC_POLICY, else exact; without kept links static, or interpolation under OPIC_VIRTUAL=continuous."
)
NOT_BEFORE = "Unix seconds or RFC 3339: the page is not offered before. The last one given is kept; 0 ends it."
PRIORITY = "Factor on the page's key in the order of suggestions, 1 by default. The last one given is kept."
DEPTH = "Number of links from a seed to the page: the smallest one seen."
META = f"Strings kept with the page: names and values together at most {META_BYTES_MAX:,} bytes."

_WINDOW_SCHEMA = WithJsonSchema(
    {
        "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": rf"^{NUMBER}[hd]$"}],
        "examples": [0.5, "30d"],
    }
)


def _window(given: object) -> float | str:
    try:
        return Window.parse(given).shown()
    except BadInput as error:
        raise PydanticCustomError("window", "{why}", {"why": str(error).removeprefix("window=")}) from None


def _window_in_body(given: object) -> float | str:
    window = _window(given)
    if isinstance(given, str) and not isinstance(window, str):
        raise PydanticCustomError(
            "window", "rounds are a number, not a string; a duration is a string such as 30d or 12h"
        )
    return window


WindowParameter = Annotated[float | str, PlainValidator(_window), _WINDOW_SCHEMA]
WindowInBody = Annotated[float | str, PlainValidator(_window_in_body), _WINDOW_SCHEMA]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


# --- Requests --------------------------------------------------------------------------------------------------------


class Seeds(_Body):
    """Seed pages to add."""

    urls: list[str] = Field(
        description="Absolute http(s) URLs, at most OPIC_MAX_URLS.", examples=[["https://a.example/"]]
    )
    depth: int = Field(0, ge=0, le=DEPTH_MAX, description="Depth of these pages; the smallest depth seen is kept.")
    meta: dict[str, str] | None = Field(
        None, description=f"Metadata of these pages, replacing what they had. {META}", examples=[{"job": "news"}]
    )
    not_before: float | str | None = Field(None, description=NOT_BEFORE, examples=["2031-01-01T00:00:00Z"])
    priority: float | None = Field(None, ge=PRIORITY_MIN, le=PRIORITY_MAX, description=PRIORITY, examples=[2.0])
    trust: float | None = Field(
        None,
        ge=0,
        le=TRUST_MAX,
        allow_inf_nan=False,
        description="Weight of each of these pages among the trusted pages of the coverage guarantee; 0 takes it away.",
        examples=[1.0],
    )


class NextPages(_Body):
    """A crawler's request for pages."""

    n: int = Field(10, ge=1, description="Maximum number of pages, up to OPIC_MAX_N.", examples=[10])
    crawler: str = Field(
        "",
        max_length=CRAWLER_CHARS_MAX,
        description="Name of the crawler, which holds the leases.",
        examples=["crawler-7"],
    )
    lease_seconds: float | None = Field(
        None,
        gt=0,
        le=LEASE_SECONDS_MAX,
        allow_inf_nan=False,
        description="Duration of the leases; default OPIC_LEASE_SECONDS.",
    )
    domain: str | None = Field(
        None,
        min_length=1,
        max_length=DOMAIN_CHARS_MAX,
        description=DOMAIN,
        examples=["a.example"],
    )
    domains: list[Annotated[str, Field(min_length=1, max_length=DOMAIN_CHARS_MAX)]] = Field(
        [],
        max_length=DOMAINS_MAX,
        description="Several such hosts or registered domains, beside `domain`.",
        examples=[["example.org", "b.example"]],
    )
    mode: Literal["any", "discover", "refresh", "coverage"] = Field("any", description=MODE)
    policy: Literal["U", "OR", "YR", "YRU", "LDU", "GAI", "AI"] | None = Field(None, description=RECRAWL)
    max_depth: int | None = Field(
        None, ge=0, description="Only pages whose depth is known and not greater.", examples=[5]
    )
    busy_hosts: list[str] = Field([], description="Hosts to skip, at most OPIC_MAX_URLS.")
    crawl_delays: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        {},
        description="Crawl-delay of hosts' robots.txt, in seconds. It is stored, and applies where it is longer than "
        "OPIC_HOST_DELAY_SECONDS, up to 300; 0 removes it. At most OPIC_MAX_URLS hosts.",
        examples=[{"a.example": 5}],
    )


class ManyPages(_Body):
    """A request about many pages."""

    urls: list[str] = Field(
        description="Absolute http(s) URLs, at most OPIC_MAX_URLS.", examples=[["https://a.example/"]]
    )
    policy: PolicyName | None = Field(None, description=POLICY)
    window: WindowInBody | None = Field(None, description=WINDOW)


class OnePage(_Parameters):
    """A request about one page."""

    url: str = Field(description="An absolute http(s) URL.", examples=["https://a.example/"])
    policy: PolicyName | None = Field(None, description=POLICY)
    window: WindowParameter | None = Field(None, description=WINDOW)


class FrontierHead(_Parameters):
    """A request for the head of the frontier."""

    n: int = Field(10, ge=1, description="Maximum number of pages, up to OPIC_MAX_N.")
    domain: str | None = Field(None, min_length=1, max_length=DOMAIN_CHARS_MAX, description=DOMAIN)
    mode: Literal["any", "discover", "refresh", "coverage"] = Field("any", description=MODE)


class PageHistory(_Parameters):
    """A request for the measures of a page."""

    url: str = Field(description="An absolute http(s) URL.", examples=["https://a.example/"])


class Nothing(_Parameters):
    """A call without parameters: any parameter is an error."""


# --- Answers ---------------------------------------------------------------------------------------------------------


class Rejected(_Answer):
    """An element that was rejected."""

    index: int = Field(description="Index in the array, or among the non-empty lines, from 0.")
    error: str = Field(description="Reason for the rejection.")


class Accepted(_Answer):
    """The accepted events are durable. They take effect in order, usually within milliseconds."""

    accepted: int = Field(description="Number of events accepted.")
    rejected: list[Rejected] = Field(description="The rejected events, in order.")
    links_left_out: int | None = Field(
        None, description="Number of links over OPIC_MAX_LINKS, which take no effect; only if there are any."
    )


class Seeded(_Answer):
    """The result of adding seeds."""

    known: int = Field(description="Number of distinct URLs that were already known.")
    new: int = Field(description="Number of distinct URLs that became known.")
    rejected: list[Rejected] | None = Field(
        None, description="The URLs that can't be taken, in order; only if there are any."
    )


class NextPage(_Answer):
    """A page to fetch."""

    url: str
    cash: int = Field(description=CASH_NEXT)
    importance: float = Field(description=IMPORTANCE)
    fetched_before: bool
    lease: str = Field(description="Lease to pass to /v1/release. A crawl event for the page also ends it.")
    lease_until: float = Field(description="Expiry time of the lease, in Unix seconds.")
    depth: int | None = Field(None, description=f"{DEPTH} Absent if unknown.")
    meta: dict[str, str] | None = Field(None, description="The last metadata given for the page; absent if none.")


class HeldBack(_Answer):
    """How many of the requested pages are held back, by what holds them."""

    leased: int = Field(description="Leased to crawlers; of any mode, since their events may bring new pages.")
    host_delay: int = Field(description="Of hosts that are delayed, have too many pages in flight, or are called busy.")
    revisit: int = Field(description="Read less than OPIC_REVISIT_SECONDS ago.")
    retry: int = Field(description="In the back-off after a failed fetch or an expired lease.")
    not_before: int = Field(description="Not to be offered yet, as an event or a seed said.")
    denied: int = Field(description="Not to be fetched: 401, 403, 451, robots.txt, a rule, a trap.")
    given_up: int = Field(description="Failed OPIC_MAX_FAILURES times in a row, or given up by an event.")


class Next(_Answer):
    """Pages to fetch, best first."""

    pages: list[NextPage]
    retry_after: float = Field(description="Seconds to wait before asking again; 0 means no wait.")
    exhausted: bool = Field(description="True if there are no pages, and waiting alone will bring none.")
    waiting: HeldBack
    order: str | None = Field(None, description="`exact` (importance) or `cash`; only where links are kept.")
    as_of: float = Field(description=AS_OF)


class FrontierPage(_Answer):
    """A page that would be handed out."""

    url: str
    host: str
    cash: int = Field(description=CASH_NEXT)
    importance: float = Field(description=IMPORTANCE)
    fetched_before: bool


class FrontierShown(_Answer):
    """The pages that would be handed out next, best first."""

    pages: list[FrontierPage]
    as_of: float = Field(description=AS_OF)


class PageImportance(_Answer):
    """The importance of a page; `importance` is null for a page never seen."""

    url: str = Field(description="The requested URL in canonical form.")
    importance: float | None = Field(description=IMPORTANCE)
    rank: int | None = Field(None, description="Rank of the page; 1 is the most important.")
    percentile: float | None = Field(None, description="Percentage of pages ranked no higher; 100 for the first.")
    cash: int | None = Field(
        None, description="Grains received since the last read; negative if the page is overdrawn."
    )
    reads: int | None = Field(None, description="Number of reads: fetches answered with 2xx or 3xx.")
    last_read_clock: int | None = Field(None, description="Clock at the last read: grains spent until then.")
    last_fetched_at: float | None = Field(None, description="Time of the last read, in Unix seconds.")
    policy: str | None = Field(None, description="The policy of the estimate.")
    window: float | str | None = Field(None, description=WINDOW_SHOWN)
    error_bound: float | None = Field(
        None,
        description="Upper bound on the L1 distance of all estimates by this policy from PageRank of the known graph; "
        "absent if unknown, and with window policies.",
    )
    teleport: str | None = Field(None, description="uniform, or weighted if classes of pages have weights.")
    page_class: str | None = Field(None, alias="class", description="The page's class, if it is in one.")
    gone: bool | None = Field(None, description="True if the last fetch was answered with 404 or 410.")


class OneImportance(PageImportance):
    """The importance of one page."""

    importance: float = Field(description=IMPORTANCE)
    as_of: float = Field(description=AS_OF)
    rank_as_of: float | None = Field(None, description=RANK_AS_OF)


class ManyImportances(_Answer):
    """The importance of pages, in the order of the request."""

    pages: list[PageImportance]
    as_of: float = Field(description=AS_OF)
    rank_as_of: float | None = Field(None, description=RANK_AS_OF)


class Measured(_Answer):
    """One read of a page."""

    clock: int = Field(description="Clock after the read: grains spent by all pages so far.")
    cash: int = Field(description="Grains spent by the read: those that the page had received since its previous read.")
    fetched_at: float = Field(description="Time of the fetch, in Unix seconds.")


class History(_Answer):
    """The last measures of a page, oldest first; empty for a page never read."""

    url: str = Field(description="The requested URL in canonical form.")
    measures: list[Measured] = Field(description="At most OPIC_HISTORY_MEASURES measures.")
    as_of: float = Field(description=AS_OF)


class Audited(_Answer):
    """The books, recounted: minted = pages + virtual + in_flight, in whole grains."""

    minted: int
    pages: int
    virtual: int
    in_flight: int = Field(description="Grains in transit between shards.")
    conserved: bool = Field(description="True if no grain was created or lost, and every total equals its recount.")
    shards: list[dict[str, Any]] = Field(
        description="The same fields for each shard, and the totals that differ from their recount."
    )


class Stats(_Answer):
    """Counts of the service."""

    known_pages: int
    read_pages: int
    clock: int = Field(description="Total grains spent by reads.")
    rounds: float = Field(
        description="The clock in rounds: in units of one grant for every page known in the whole crawl at that time, "
        "or, under OPIC_VIRTUAL=continuous, of the total cash."
    )
    lag: int = Field(description="Accepted events that have not taken effect yet.")
    given_up_pages: int = Field(description="Pages given up after failed fetches.")
    undelivered: int = Field(description="Deposits and grants on their way between shards.")
    pool: int = Field(description="Grains that the virtual page can still grant, over all shards.")
    granted_rounds: float | None = Field(
        None,
        description="Number of grants that a page of weight 1 has received so far; absent under "
        "OPIC_VIRTUAL=continuous.",
    )
    sweeps_left: float | None = Field(
        None,
        description="How many more times all read pages can be read, at the average cost so far, before the pool is "
        "empty or the clock reaches its limit.",
    )
    shards: Any
    kept_links: Literal["kept", "not kept", "too large"] = Field(description="`too large`: for this endpoint.")
    as_of: float = Field(description=AS_OF)


class Healthy(_Answer):
    """The process answers."""

    status: Literal["ok"]
    instance: str = Field(description="Names this process of the service; another one after a restart.")


class Ready(_Answer):
    """The service is ready for requests."""

    status: Literal["ready"]


# --- Examples of bodies: valid for a new crawl, and about the same pages -------------------------------------------

BODIES: Final[dict[str, dict[str, Any]]] = {
    "Seeds": {"urls": ["https://a.example/", "https://b.example/"], "trust": 1.0},
    "NextPages": {"n": 10, "crawler": "crawler-7"},
    "ManyPages": {"urls": ["https://a.example/", "https://b.example/"]},
}

# --- Examples, which are added to the finished document, because FastAPI would drop their null values ----------------

_PAGE: dict[str, Any] = {
    "url": "https://a.example/",
    "importance": 0.25,
    "rank": 1,
    "percentile": 100.0,
    "cash": 524_288,
    "reads": 3,
    "last_read_clock": 9_437_184,
    "last_fetched_at": 1_764_000_000.0,
    "policy": "static",
    "window": None,
    "error_bound": 0.31,
    "teleport": "uniform",
}
_NEXT: dict[str, Any] = {
    "url": "https://b.example/",
    "cash": 2_097_152,
    "importance": 0.25,
    "fetched_before": False,
    "lease": "0-1-1764000300000000",
    "lease_until": 1_764_000_300.0,
    "depth": 1,
    "meta": {"job": "news"},
}
_SHOWN: dict[str, Any] = {k: _NEXT[k] for k in ("url", "cash", "importance", "fetched_before")}
_TOP: dict[str, Any] = {k: _PAGE[k] for k in ("url", "importance", "rank", "cash", "policy", "window")}
_BOOKS: dict[str, Any] = {
    "minted": 1 << 62,
    "pages": 8_388_608,
    "virtual": (1 << 62) - 8_388_608,
    "in_flight": 0,
    "conserved": True,
}
_NOW: Final = 1_764_000_000.0

EXAMPLES: Final[dict[str, list[dict[str, Any]]]] = {
    "CrawlEvent": [{"url": "https://a.example/", "links": ["https://a.example/b", "https://b.example/"]}],
    "Accepted": [{"accepted": 2, "rejected": [{"index": 1, "error": "url '/about' is not an absolute http(s) URL"}]}],
    "Seeded": [{"known": 1, "new": 2, "rejected": [{"index": 3, "error": "'/about' is not an absolute http(s) URL"}]}],
    "Next": [
        {
            "pages": [_NEXT],
            "retry_after": 0,
            "exhausted": False,
            "waiting": {
                "leased": 1,
                "host_delay": 2,
                "revisit": 40,
                "retry": 0,
                "not_before": 0,
                "denied": 3,
                "given_up": 1,
            },
            "as_of": _NOW,
        }
    ],
    "FrontierShown": [{"pages": [{**_SHOWN, "host": "b.example"}], "as_of": _NOW}],
    "OneImportance": [{**_PAGE, "as_of": _NOW}],
    "ManyImportances": [{"pages": [_PAGE, {"url": "https://b.example/", "importance": None}], "as_of": _NOW}],
    "History": [
        {
            "url": "https://a.example/",
            "measures": [
                {"clock": 2_097_152, "cash": 2_097_152, "fetched_at": _NOW - 86_400},
                {"clock": 9_437_184, "cash": 1_048_576, "fetched_at": _NOW - 3_600},
            ],
            "as_of": _NOW,
        }
    ],
    "Audited": [{**_BOOKS, "shards": [{"shard": 0, **_BOOKS, "mismatches": []}]}],
    "Stats": [
        {
            "known_pages": 4,
            "read_pages": 3,
            "clock": 9_437_184,
            "rounds": 1.125,
            "lag": 0,
            "given_up_pages": 0,
            "undelivered": 0,
            "pool": _BOOKS["virtual"],
            "granted_rounds": 1.02,
            "shards": 1,
            "kept_links": "kept",
            "as_of": _NOW,
        }
    ],
    "Problem": [
        {
            "type": "urn:opic:problem:bad-event",
            "title": "Invalid event",
            "status": 422,
            "detail": "url '/about' is not an absolute http(s) URL",
            "request_id": "1f0c9a2b7d3e4f60",
        }
    ],
}
