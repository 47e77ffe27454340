"""Messages of the calls about the pages to fetch: suggestions, leases, politeness, coverage."""

from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct, defstruct

from opic.messages.hindrances import words
from opic.messages.terms import AsOf, Share, about, always

REVISIT_SECONDS_MAX: Final = 31_536_000  # A year.
DELAY_SECONDS_MAX: Final = 86_400
IN_FLIGHT_MAX: Final = 1_000_000
DelaySeconds = Annotated[float, Meta(ge=0, le=DELAY_SECONDS_MAX)]
RevisitSeconds = Annotated[float, Meta(ge=0, le=REVISIT_SECONDS_MAX)]
InFlight = Annotated[int, Meta(ge=0, le=IN_FLIGHT_MAX)]
Cash = Annotated[
    int, about("Grains that the page holds. By the default OPIC_STRATEGY, pages with the most cash come first.")
]
DefaultPolicy = Annotated[str, about("The policy of importance: the default one.")]
Until = Annotated[float, about("Expiry time of the lease, in Unix seconds.")]


class Page(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page to fetch."""

    url: str
    cash: Cash
    importance: Share
    fetched_before: bool
    lease: Annotated[str, about("Lease to pass to /v1/release. A crawl event for the page also ends it.")]
    lease_until: Until
    depth: Annotated[
        int | None, about("Number of links from a seed to the page: the smallest one seen. Absent if unknown.")
    ] = None
    meta: Annotated[dict[str, str], about("The last metadata given for the page; absent if none.")] = {}


if TYPE_CHECKING:

    class HeldBack(Struct, frozen=True):
        """How many of the requested pages are held back, by what holds them."""

        def __init__(self, **counts: int) -> None:
            """Give a count for each word."""

        def __getattr__(self, word: str) -> int:
            """Return a count by its word."""

else:
    HeldBack = defstruct(
        "HeldBack",
        [(word, Annotated[int, about(row.about)]) for word, row in words().items()],
        namespace={"__doc__": "How many of the requested pages are held back, by what holds them."},
        frozen=True,
        module=__name__,
    )


class NextPages(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pages to fetch, best first."""

    pages: list[Page]
    retry_after: Annotated[float, about("Seconds to wait before asking again; 0 means no wait.")]
    exhausted: Annotated[bool, about("True if there are no pages, and waiting alone will bring none.")]
    waiting: HeldBack
    policy: DefaultPolicy
    order: Annotated[str | None, about("`exact` (importance) or `cash`; only where links are kept.")] = None
    as_of: AsOf


class FrontierPage(Struct, frozen=True):
    """A page that would be handed out."""

    url: str
    host: str
    cash: Cash
    importance: Share
    fetched_before: bool
    key: Annotated[float, about("What orders the pages, largest first; see `order`.")]


class FrontierPreview(Struct, frozen=True):
    """The pages that would be handed out next, best first."""

    pages: list[FrontierPage]
    policy: DefaultPolicy
    order: Annotated[
        str,
        about(
            "What the keys are. `exact`: of pages never read, importance with OPIC_SEED_SHARE of the random jumps to "
            "seeds or trusted pages; of pages read before, below 0, by importance, rate of change and age. `cash`; "
            "`trust`, of mode coverage; `random`; `cycle`."
        ),
    ]
    exhausted: Annotated[bool, about("True if there are no pages, and waiting alone will bring none.")]
    waiting: Annotated[HeldBack, about("As in the answer of /v1/next.")]
    held_back: Annotated[list[str], about("`waiting` in sentences, or why there is no page.")]
    as_of: AsOf


class Released(Struct, frozen=True):
    """The result of releasing leases."""

    released: Annotated[int, about("Number of leases that had not expired.")]


class RenewedLease(Struct, frozen=True):
    """A lease that runs on, under the same name."""

    lease: str
    lease_until: Until


class Renewed(Struct, frozen=True):
    """The result of renewing leases."""

    renewed: list[RenewedLease]
    lost: Annotated[list[str], about("Leases that have ended: their pages may be leased to other crawlers.")]


class HostPoliteness(Struct, frozen=True):
    """The politeness settings of a host; the default settings apply to those that are missing or null."""

    delay_seconds: Annotated[
        DelaySeconds | None, about("Minimum time between two suggestions of the host; 0 disables the delay.")
    ] = None
    in_flight: Annotated[InFlight | None, about("Maximum number of leased pages of the host; 0 means no limit.")] = None
    revisit_seconds: Annotated[
        RevisitSeconds | None,
        about("Minimum time from a read of one of its pages to the next suggestion of the page; 0 disables it."),
    ] = None


class HostGroup(Struct, frozen=True):
    """The politeness group of a host: hosts that share its delay."""

    host: str
    address: Annotated[str | None, about("Its address, as an event reported it last; null if none did.")]
    group: Annotated[
        str | None, about("An address, in brackets if it is IPv6, or a registered domain; null if the host is alone.")
    ]
    rests_seconds: Annotated[float, about("For how long the group rests.")]


class Politeness(Struct, frozen=True):
    """The default and the individual politeness settings of hosts."""

    host_delay_seconds: Annotated[float, about("Default delay, OPIC_HOST_DELAY_SECONDS.")]
    host_in_flight: Annotated[int | None, about("Default cap, OPIC_HOST_IN_FLIGHT; null means no limit.")]
    revisit_seconds: Annotated[float, about("Default revisit time, OPIC_REVISIT_SECONDS.")]
    hosts: Annotated[
        dict[str, Annotated[HostPoliteness, Meta(extra_json_schema={"required": HostPoliteness.__struct_fields__})]],
        about("Individual settings by host; null means that the default setting applies."),
    ]
    as_of: AsOf
    politeness_by: Annotated[
        Literal["host", "domain", "address"], always("Whose hosts share one delay: OPIC_POLITENESS_BY.")
    ] = "host"
    host_group: Annotated[
        HostGroup | None, always("What shares the delay of the host that was asked for; null if none was.", null=True)
    ] = None


class Coverage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The share of personalized PageRank, with teleport to the trusted pages, that the fetched pages hold."""

    coverage: Annotated[float, about("Lower bound on the share, for any links of unfetched pages.", ge=0, le=1)]
    fetched_pages: Annotated[int, about("Number of pages that were read since they became known or came back.")]
    links_unknown: Annotated[
        int,
        about(
            "Number of fetched pages whose links are not kept, since they were read before trust was given or links "
            "were kept: they hold less until they are read again."
        ),
    ]
    trusted_pages: Annotated[int, about("Number of trusted pages that are not gone.")]
    damping: Annotated[float, about("Share of visitors that follow a link: OPIC_DAMPING.")]
    delta: Annotated[float | None, about("The delta of the request, if it is over 0.")] = None
    target: Annotated[float | None, about("The target of the request.")] = None
    fetches_expected: Annotated[
        int | None,
        about(
            "About how many more pages to fetch, in the order of mode `coverage`, until the target is reached; null if "
            "the pages known now are not enough."
        ),
    ] = None
    as_of: AsOf
