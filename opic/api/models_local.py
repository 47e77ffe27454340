"""Request and response models of the calls about ranked lists of local domains."""

from typing import Any, Final

from pydantic import Field

from opic.api.models import _Answer, _Body, _Parameters

METHOD_CHARS_MAX: Final = 64
CHANGES_MAX: Final = 1_000
_OUTSIDE = "Number of pages outside the domain that the estimator fetched."
_METHOD = "How importance was estimated: `combined` uses the service's in-flow, `paper` only the crawled links."
_COVERAGE = "Share of outside importance on pages that the service has read; 0 if it was not used."
_AS_OF = "Time at which the estimator made the list, Unix seconds."
_CHANGES = "How much each round of fetching changed the ranking, oldest first."
_EXPIRES = "Time at which the list expires unless it is replaced, Unix seconds: 30 days after its last update."


class LocalPage(_Body):
    """A page of a ranked list."""

    url: str
    importance: float = Field(ge=0, le=1, allow_inf_nan=False)


class LocalChange(_Body):
    """How much a round of fetching changed the ranking."""

    outside_fetched: int = Field(ge=0, description="Number of outside pages fetched until then.")
    change: float = Field(
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="L1 distance of the domain's PageRank, by the crawled links alone, from that before the round.",
    )


class LocalList(_Body):
    """A ranked list of a domain's pages, descending."""

    pages: list[LocalPage] = Field(description="The most important pages, at most OPIC_MAX_URLS.")
    outside_fetched: int = Field(ge=0, description=_OUTSIDE)
    method: str = Field(min_length=1, max_length=METHOD_CHARS_MAX, description=_METHOD)
    service_coverage: float = Field(ge=0, le=1, allow_inf_nan=False, description=_COVERAGE)
    as_of: float = Field(ge=0, allow_inf_nan=False, description=_AS_OF)
    changes: list[LocalChange] = Field([], max_length=CHANGES_MAX, description=_CHANGES)


class LocalListKept(_Answer):
    """The number of pages that were kept."""

    domain: str
    pages: int


class LocalHead(_Parameters):
    """A request for the first pages of a ranked list."""

    n: int = Field(100, ge=1, description="Maximum number of pages, up to OPIC_MAX_N.")


class RankedPage(_Answer):
    """A page of a local domain, its estimated importance, and its rank from 1."""

    url: str
    importance: float = Field(description="Over all pages of the domain it sums to 1.")
    rank: int


class LocalRanking(_Answer):
    """The last list of the domain's estimator, descending."""

    domain: str
    pages: list[RankedPage]
    outside_fetched: int = Field(description=_OUTSIDE)
    method: str = Field(description=_METHOD)
    service_coverage: float = Field(description=_COVERAGE)
    as_of: float = Field(description=_AS_OF)
    changes: list[LocalChange] = Field(description=_CHANGES)
    expires_at: float = Field(description=_EXPIRES)


class RankedDomain(_Answer):
    """A local domain that has a ranked list."""

    domain: str
    pages: int = Field(description="Number of pages of the list.")
    outside_fetched: int = Field(description=_OUTSIDE)
    method: str = Field(description=_METHOD)
    service_coverage: float = Field(description=_COVERAGE)
    as_of: float = Field(description=_AS_OF)
    expires_at: float = Field(description=_EXPIRES)


class LocalDomains(_Answer):
    """The local domains that have a ranked list, newest first."""

    domains: list[RankedDomain]
    as_of: float = Field(description="Unix seconds of the answer.")


_COUNTS: Final = {"outside_fetched": 40, "method": "combined", "service_coverage": 0.5, "as_of": 1_764_000_000.0}
_LATER: Final = {"expires_at": 1_766_592_000.0}
_ROUNDS: Final = {"changes": [{"outside_fetched": 20, "change": 0.12}, {"outside_fetched": 40, "change": 0.03}]}
PATH_EXAMPLES: Final = {"domain": "a.example"}
EXAMPLES: Final[dict[str, list[dict[str, Any]]]] = {
    "LocalRanking": [
        {"domain": "a.example", "pages": [{"url": "https://a.example/", "importance": 1.0, "rank": 1}], **_COUNTS}
        | _ROUNDS
        | _LATER
    ],
    "LocalDomains": [{"domains": [{"domain": "a.example", "pages": 1, **_COUNTS, **_LATER}], "as_of": 1_764_000_000.0}],
    "LocalListKept": [{"domain": "a.example", "pages": 1}],
}
BODIES: Final[dict[str, dict[str, Any]]] = {
    "LocalList": {"pages": [{"url": "https://a.example/", "importance": 1.0}], **_COUNTS, **_ROUNDS},
}
