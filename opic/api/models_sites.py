"""Request and response models of the calls about hosts, in-flow and score explanations; see `opic.api.models`."""

from typing import Any, Final

from pydantic import Field

from opic.api.models import (
    AS_OF,
    DOMAIN_CHARS_MAX,
    POLICY,
    WINDOW,
    Measured,
    PageImportance,
    PolicyName,
    WindowParameter,
    _Answer,
    _Parameters,
)


class TopHosts(_Parameters):
    """A request for the most important hosts."""

    n: int = Field(100, ge=1, description="How many, at most OPIC_MAX_N.")
    policy: PolicyName | None = Field(None, description=POLICY)
    window: WindowParameter | None = Field(None, description=WINDOW)


class Host(_Answer):
    """A host and its importance."""

    host: str
    importance: float = Field(description="The sum of its pages' importance; over all hosts it sums to 1.")
    pages: int = Field(description="Its pages that are known and not gone.")
    read_pages: int = Field(description="Those of them that were read.")


class Hosts(_Answer):
    """The most important hosts, descending."""

    hosts: list[Host]
    as_of: float = Field(description=AS_OF)


class DomainInflow(_Parameters):
    """A request for the in-flow of a domain."""

    domain: str = Field(
        min_length=1, max_length=DOMAIN_CHARS_MAX, description="A registered domain.", examples=["example.org"]
    )
    after: str | None = Field(None, description="Go on after this page: the `next` of the answer before.")
    n: int = Field(1_000, ge=1, description="How many pages, at most OPIC_MAX_N.")


class PageInflow(_Answer):
    """The in-flow of a page from outside its domain."""

    url: str
    inflow: float = Field(description="Share of all history and cash that came by links from read pages outside.")


class Inflow(_Answer):
    """The in-flow of the pages of a domain, in order of first sight; masses are sums of importance."""

    pages: list[PageInflow]
    next: str | None = Field(None, description="The value for `after`, if there are more pages.")
    outside_mass: float = Field(description="Of all known pages outside the domain.")
    unread_mass: float = Field(description="Of those of them that were never read.")
    dangling_mass: float = Field(description="Of those of them that were read and have no links.")
    known_pages: int = Field(description="Of the whole store.")
    as_of: float = Field(description=AS_OF)


class CashParts(_Answer):
    """The parts of a page's cash, in grains: its cash is the sum of `deposits` and `credit`."""

    deposits: int = Field(description="What links brought, less what its reads spent.")
    credit: int = Field(description="What the virtual page granted or paid so far; 0 for a gone page.")
    from_links: int | None = Field(None, description="All that links ever brought; under OPIC_VIRTUAL=grants.")


class Spent(_Answer):
    """The cash that a page's reads spent, in grains."""

    total: int
    reads: int = Field(description="How many reads there were.")
    measures: list[Measured] = Field(description="The last of them, oldest first, at most OPIC_HISTORY_MEASURES.")


class Estimate(_Answer):
    """How the importance is computed: `value`, the result of the formula, divided by `of`."""

    rule: str = Field(description="static, or the rule by which the window policy saw this page.")
    formula: str = Field(description="In the names of `numbers`; a negative result counts 0.")
    numbers: dict[str, float] = Field(description="Grains of cash, or of the clock.")
    value: float
    of: float = Field(description="The sum of all pages' values.")
    window_grains: float | None = Field(None, description="The window on the clock.")
    warm: bool | None = Field(None, description="The policy speaks for itself; else it answers by whole life as yet.")


class Explained(PageImportance):
    """The explanation of a page's score."""

    importance: float
    known_pages: int = Field(description="Among how many it has its rank.")
    cash_parts: CashParts
    history: Spent
    estimate: Estimate | None = Field(description="Null for a gone page.")
    weight: float = Field(description="How much of each grant its class gets.")
    state: str = Field(description="unread, read (since it became known or came back) or gone.")
    frontier: dict[str, Any] | None = Field(
        description="Whether it is `next` and else `why_not`; `state`, `lease_until`, `waits_until`, `host_free_at`, "
        "`host_delay_seconds`, `host_in_flight`, `failures`, and its `place` in the greedy order."
    )
    excluded: bool = Field(description="It is not offered: forbidden when it was last fetched.")
    as_of: float = Field(description=AS_OF)


_NOW: Final = 1_764_000_000.0

EXAMPLES: Final[dict[str, list[dict[str, Any]]]] = {
    "Hosts": [
        {"hosts": [{"host": "a.example", "importance": 0.4, "pages": 12, "read_pages": 3}], "as_of": _NOW},
    ],
    "Inflow": [
        {
            "pages": [{"url": "https://a.example/", "inflow": 0.02}],
            "next": "https://a.example/",
            "outside_mass": 0.6,
            "unread_mass": 0.1,
            "dangling_mass": 0.05,
            "known_pages": 4,
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
            "excluded": False,
            "frontier": {
                "state": "owed",
                "host": "a.example",
                "lease_until": None,
                "waits_until": None,
                "host_free_at": None,
                "failures": 0,
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
