"""Messages of the calls about ranked lists of local domains."""

from typing import Annotated, Final

from msgspec import Struct, field

from opic.messages.terms import about, always

METHOD_CHARS_MAX: Final = 64
CHANGES: Final = (
    "How much each round of fetching changed the ranking, oldest first; rounds that fetched no page are left out."
)
EXPIRES: Final = "Time at which the list expires unless it is replaced, Unix seconds: 30 days after its last update."


class LocalChange(Struct, frozen=True):
    """How much a round of fetching changed the ranking."""

    outside_fetched: Annotated[int, about("Number of outside pages fetched until then.", ge=0)]
    change: Annotated[
        float,
        about(
            "L1 distance of the domain's PageRank, by the crawled links alone, from that before the round.", ge=0, le=2
        ),
    ]


class ListFacts(Struct, frozen=True):
    """What an estimator says of a list that it made."""

    outside_fetched: Annotated[int, about("Number of pages outside the domain that the estimator fetched.", ge=0)]
    method: Annotated[
        str,
        about(
            "How importance was estimated: `combined` uses the service's in-flow, `paper` only the crawled links.",
            min_length=1,
            max_length=METHOD_CHARS_MAX,
        ),
    ]
    service_coverage: Annotated[
        float,
        about("Share of outside importance on pages that the service has read; 0 if it was not used.", ge=0, le=1),
    ]
    as_of: Annotated[float, about("Time at which the estimator made the list, Unix seconds.", ge=0)]


class RankedPage(Struct, frozen=True):
    """A page of a local domain, its estimated importance, and its rank from 1."""

    url: str
    importance: Annotated[float, about("Over all pages of the domain it sums to 1.")]
    rank: int


class LocalRanking(ListFacts, frozen=True, kw_only=True):
    """The last list of the domain's estimator, descending."""

    domain: str
    pages: list[RankedPage]
    changes: Annotated[list[LocalChange], always(CHANGES)] = field(default_factory=list)
    expires_at: Annotated[float | None, always(EXPIRES)] = None


class RankedDomain(ListFacts, frozen=True, kw_only=True):
    """A local domain that has a ranked list."""

    domain: str
    pages: Annotated[int, about("Number of pages of the list.")]
    expires_at: Annotated[float, about(EXPIRES)]


class LocalDomains(Struct, frozen=True):
    """The local domains that have a ranked list, newest first."""

    domains: list[RankedDomain]
    as_of: Annotated[float | None, always("Unix seconds of the answer.")] = None


class LocalListKept(Struct, frozen=True):
    """The number of pages that were kept."""

    domain: str
    pages: int
