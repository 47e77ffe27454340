"""Request and response models of the calls about top pages, hosts, in-flow, explanations; see `opic.api.models`."""

from typing import Any, Final, Literal

from pydantic import Field

from opic.api.models import (
    _TOP,
    AS_OF,
    DOMAIN,
    DOMAIN_CHARS_MAX,
    IMPORTANCE,
    POLICY,
    WINDOW,
    WINDOW_SHOWN,
    Measured,
    PageImportance,
    PolicyName,
    WindowParameter,
    _Answer,
    _Parameters,
)

DELTA: Final = (
    "Share of all trust that is on other pages than the trusted ones. The guarantee then assumes that nothing of it "
    "reaches a fetched page, and is at most 1 - delta (Cho, Schonfeld 2007, theorem 3)."
)


class TopPages(_Parameters):
    """A request for the most important pages."""

    n: int = Field(100, ge=1, description="Maximum number of pages, up to OPIC_MAX_N.")
    domain: str | None = Field(None, min_length=1, max_length=DOMAIN_CHARS_MAX, description=DOMAIN)
    policy: PolicyName | None = Field(None, description=POLICY)
    window: WindowParameter | None = Field(None, description=WINDOW)
    by: Literal["importance", "inlinks"] = Field(
        "importance",
        description="inlinks: by the number of known pages that link to a page, where links are kept; with a window, a "
        'duration like "7d", only links from pages read in it count.',
    )
    after: str | None = Field(
        None,
        description="Continue here: `next` of the previous answer. While the crawl goes on, a page that passes the "
        "last one of that answer meanwhile is left out or comes twice.",
    )


class TopPage(_Answer):
    """A page and its importance."""

    url: str
    importance: float = Field(description=IMPORTANCE)
    policy: str = Field(description="The policy of the estimate.")
    window: float | str | None = Field(description=WINDOW_SHOWN)
    error_bound: float | None = Field(None, description="As of importance.")
    certain: bool | None = Field(None, description="With policy exact: whether the bound makes the rank certain.")
    inlinks: int | None = Field(None, description="With by=inlinks: how many known pages link to the page.")


class Top(_Answer):
    """The most important pages, or those with the most in-links, descending."""

    pages: list[TopPage]
    next: str | None = Field(None, description="Value of `after` for the next call, if there are more pages.")
    as_of: float = Field(description=AS_OF)


class TopSites(_Parameters):
    """A request for the most important hosts or registered domains."""

    n: int = Field(100, ge=1, description="Maximum number of hosts or domains, up to OPIC_MAX_N.")
    policy: PolicyName | None = Field(None, description=POLICY)
    window: WindowParameter | None = Field(None, description=WINDOW)


class _SiteFields(_Answer):
    importance: float = Field(description="Sum over its pages; over all hosts, or all domains, it sums to 1.")
    pages: int = Field(description="Number of its known pages that are not gone.")
    read_pages: int = Field(description="Number of these pages that were read.")
    error_bound: float | None = Field(None, description="As of importance; also of all sites.")


class Host(_SiteFields):
    """A host and its importance."""

    host: str


class Hosts(_Answer):
    """The most important hosts, descending."""

    hosts: list[Host]
    as_of: float = Field(description=AS_OF)


class SiteDomain(_SiteFields):
    """A registered domain and its importance."""

    domain: str
    hosts: int = Field(description="Number of its hosts that have such pages.")


class SiteDomains(_Answer):
    """The most important registered domains, descending."""

    domains: list[SiteDomain]
    as_of: float = Field(description=AS_OF)


class DomainInflow(_Parameters):
    """A request for the in-flow of a domain or a host; exactly one of the two."""

    domain: str | None = Field(
        None,
        min_length=1,
        max_length=DOMAIN_CHARS_MAX,
        description="A registered domain.",
        examples=["a.example"],
        json_schema_extra={"example": "a.example"},  # The page at /docs fills in a parameter that may be left out.
    )
    host: str | None = Field(
        None, min_length=1, max_length=DOMAIN_CHARS_MAX, description="Or a host: its pages have bounds."
    )
    prefix: str | None = Field(
        None, min_length=1, max_length=2_048, description="Or the beginning of URLs, where links are kept."
    )
    after: str | None = Field(None, description="Continue after this page: `next` of the previous answer.")
    n: int = Field(1_000, ge=1, description="Maximum number of pages, up to OPIC_MAX_N.")
    policy: PolicyName | None = Field(None, description="Where links are kept, any; else none or static.")
    window: str | None = Field(
        None, max_length=DOMAIN_CHARS_MAX, description="Of a window policy, where links are kept."
    )


class PageInflow(_Answer):
    """The in-flow of a page from outside its domain."""

    url: str
    inflow: float = Field(
        description="Share of all history and cash that the page received by links from read pages outside its domain; "
        "of a host, at least that much came from other hosts."
    )
    inflow_max: float | None = Field(
        None, description="Of a host: at most so much came from other hosts, those of its domain included."
    )


class Inflow(_Answer):
    """The in-flow of the pages of a domain, host, prefix or list; masses are sums of importance.

    Pages of a list come in its order, others in order of first sight.
    """

    pages: list[PageInflow]
    next: str | None = Field(None, description="Value of `after` for the next call, if there are more pages.")
    missing: list[str] | None = Field(None, description="Of a list: its pages that are gone or were never seen.")
    outside_mass: float = Field(description="Importance of all known pages outside the domain.")
    unread_mass: float = Field(description="Importance of the pages outside the domain that were never read.")
    dangling_mass: float = Field(
        description="Importance of the pages outside the domain that were read and have no links."
    )
    known_pages: int = Field(description="Number of known pages in the whole store.")
    policy: str = Field(description="static where in-flow is counted; else the policy of the importance that came.")
    error_bound: float | None = Field(
        None,
        description="Bound on the L1 distance of the in-flow of all pages from that of exact PageRank of the known "
        "graph; omitted if it says nothing.",
    )
    as_of: float = Field(description=AS_OF)


class PagesToForget(_Parameters):
    """The pages to forget: give one of these."""

    url: str | None = Field(None, description="A page: absolute http(s) URL.", examples=["https://a.example/old"])
    prefix: str | None = Field(None, description="Pages whose URLs begin so: absolute http(s) URL.")
    host: str | None = Field(None, max_length=DOMAIN_CHARS_MAX, description="Pages of this host.")
    domain: str | None = Field(
        None, max_length=DOMAIN_CHARS_MAX, description="Pages of this host or domain, including subdomains."
    )


class CanonicalUrl(_Answer):
    """The URL by which the crawl knows a page."""

    url: str = Field(description="The canonical form of the URL in this crawl.")
    plain: str = Field(description="Its canonical form in a crawl without normalization rules.")
    rules: list[str] = Field(description="The normalization rules of the crawl.")
    applied: list[str] = Field(description="Those of the rules that change the URL.")


class Forgotten(_Answer):
    """The number of pages that were forgotten."""

    forgotten: int
    more: bool = Field(False, description="True if there may be more: call again. A call takes up to 20 seconds.")


class PageInlinks(_Parameters):
    """A request for the pages that link to a page."""

    url: str = Field(description="Absolute http(s) URL.", examples=["https://a.example/"])
    n: int = Field(100, ge=1, description="Maximum number of pages, up to OPIC_MAX_N.")


class Inlinks(_Answer):
    """The pages known to link to a page."""

    url: str = Field(description="Canonical URL of the page.")
    inlinks: list[str] = Field(description="Pages that were read, are not gone, and link to it as last read.")
    known: int = Field(description="How many such pages there are in all.")
    as_of: float = Field(description=AS_OF)


class CoverageTarget(_Parameters):
    """A request for the coverage guarantee."""

    target: float | None = Field(
        None, gt=0, le=1, allow_inf_nan=False, description="Coverage wanted, such as 0.98.", examples=[0.98]
    )
    delta: float = Field(0.0, ge=0, lt=1, allow_inf_nan=False, description=DELTA)


class CoverageFound(_Answer):
    """The share of personalized PageRank, with teleport to the trusted pages, that the fetched pages hold."""

    coverage: float = Field(ge=0, le=1, description="Lower bound on the share, for any links of unfetched pages.")
    fetched_pages: int = Field(description="Number of pages that were read since they became known or came back.")
    links_unknown: int = Field(
        description="Number of fetched pages whose links are not kept, since they were read before trust was given or "
        "links were kept: they hold less until they are read again."
    )
    trusted_pages: int = Field(description="Number of trusted pages that are not gone.")
    damping: float = Field(description="Share of visitors that follow a link: OPIC_DAMPING.")
    delta: float | None = Field(None, description="The delta of the request, if it is over 0.")
    target: float | None = Field(None, description="The target of the request.")
    fetches_expected: int | None = Field(
        None,
        description="About how many more pages to fetch, in the order of mode `coverage`, until the target is reached; "
        "null if the pages known now are not enough.",
    )
    as_of: float = Field(description=AS_OF)


class CashParts(_Answer):
    """The parts of a page's cash, in grains: its cash is the sum of `deposits` and `credit`."""

    deposits: int = Field(description="Cash received by links, minus the cash spent by reads.")
    credit: int = Field(description="Cash received from the virtual page so far; 0 for a gone page.")
    from_links: int | None = Field(None, description="All cash ever received by links; only under OPIC_VIRTUAL=grants.")


class Spent(_Answer):
    """The cash that a page's reads spent, in grains."""

    total: int
    reads: int = Field(description="Number of reads.")
    measures: list[Measured] = Field(description="The last reads, oldest first, at most OPIC_HISTORY_MEASURES.")


class Estimate(_Answer):
    """How the importance is computed: `value`, the result of the formula, divided by `of`."""

    rule: str = Field(description="static, or the rule that the window policy applied to this page.")
    formula: str = Field(description="Formula in the names of `numbers`; a negative result counts as 0.")
    numbers: dict[str, float] = Field(
        description="Values of the names in the formula, in grains of cash or of the clock."
    )
    value: float
    of: float = Field(description="Sum of the values of all pages.")
    window_grains: float | None = Field(None, description="Length of the window in grains of the clock.")
    warm: bool | None = Field(
        None,
        description="False while the window policy has too little past: estimates then count each page's whole life.",
    )


class Explained(PageImportance):
    """The explanation of a page's score."""

    importance: float
    known_pages: int = Field(description="Number of pages that are ranked.")
    cash_parts: CashParts
    history: Spent
    estimate: Estimate | None = Field(description="Null for a gone page.")
    weight: float = Field(description="The page receives this multiple of every grant, by its class.")
    state: str = Field(description="unread, read (since it became known or came back), gone, excluded or given_up.")
    frontier: dict[str, Any] | None = Field(
        description="Whether the page is `next`, and if not, `why_not` in sentences and `held_back` in words; `state`, "
        "`lease_until`, `waits_until`, `revisit_at`, `revisit_seconds`, `not_before`, `priority`, `host_free_at`, "
        "`host_delay_seconds`, `host_in_flight`, `failures` (with expired leases), `failed_fetches` in a row of "
        "`max_failures`, `refused` (why the event of its lease was refused), its `place` in the order of suggestions."
    )
    depth: int | None = Field(description="Number of links from a seed to the page; null if unknown.")
    meta: dict[str, str] = Field(description="The last metadata given for the page.")
    excluded: bool = Field(description="True if the page was forbidden when it was last fetched; it is not offered.")
    as_of: float = Field(description=AS_OF)


_NOW: Final = 1_764_000_000.0

EXAMPLES: Final[dict[str, list[dict[str, Any]]]] = {
    "Top": [{"pages": [_TOP], "as_of": _NOW}],
    "Hosts": [
        {"hosts": [{"host": "a.example", "importance": 0.4, "pages": 12, "read_pages": 3}], "as_of": _NOW},
    ],
    "CanonicalUrl": [
        {"url": "https://a.example/", "plain": "https://www.a.example/", "rules": ["www", "index"], "applied": ["www"]}
    ],
    "SiteDomains": [
        {
            "domains": [{"domain": "a.example", "importance": 0.5, "pages": 20, "read_pages": 7, "hosts": 2}],
            "as_of": _NOW,
        },
    ],
    "Inflow": [
        {
            "pages": [{"url": "https://a.example/", "inflow": 0.02}],
            "next": "https://a.example/",
            "outside_mass": 0.6,
            "unread_mass": 0.1,
            "dangling_mass": 0.05,
            "known_pages": 4,
            "policy": "static",
            "error_bound": 0.3,
            "as_of": _NOW,
        }
    ],
    "Inlinks": [
        {
            "url": "https://a.example/",
            "inlinks": ["https://b.example/", "https://a.example/new"],
            "known": 2,
            "as_of": _NOW,
        }
    ],
    "CoverageFound": [
        {
            "coverage": 0.62,
            "fetched_pages": 3,
            "links_unknown": 0,
            "trusted_pages": 1,
            "damping": 0.85,
            "target": 0.98,
            "fetches_expected": None,
            "as_of": _NOW,
        }
    ],
    "Explained": [
        {
            "url": "https://a.example/",
            "importance": 0.25,
            "rank": 1,
            "percentile": 100.0,
            "known_pages": 4,
            "cash": 524_288,
            "cash_parts": {"deposits": -1_572_864, "credit": 2_097_152, "from_links": 524_288},
            "history": {
                "total": 2_097_152,
                "reads": 1,
                "measures": [{"clock": 2_097_152, "cash": 2_097_152, "fetched_at": _NOW - 3_600}],
            },
            "reads": 1,
            "last_read_clock": 2_097_152,
            "last_fetched_at": _NOW - 3_600,
            "policy": "static",
            "window": None,
            "teleport": "uniform",
            "estimate": {
                "rule": "static",
                "formula": "H + C",
                "numbers": {"H": 2_097_152, "C": 524_288},
                "value": 2_621_440,
                "of": 10_485_760,
            },
            "class": "other",
            "weight": 1.0,
            "state": "read",
            "depth": 1,
            "meta": {"job": "news"},
            "excluded": False,
            "frontier": {
                "state": "read",
                "held_back": [],
                "host": "a.example",
                "lease_until": None,
                "waits_until": None,
                "host_free_at": None,
                "failures": 0,
                "failed_fetches": 0,
                "max_failures": 8,
                "not_before": None,
                "priority": 1.0,
                "refused": None,
                "revisit_at": None,
                "revisit_seconds": 3_600.0,
                "host_delay_seconds": 1.0,
                "host_in_flight": 0,
                "host_in_flight_max": None,
                "place": 1,
                "next": True,
                "why_not": [],
            },
            "as_of": _NOW,
        }
    ],
}
