"""Messages of the calls about importance: of pages, hosts and domains, and why."""

from typing import Annotated

from msgspec import Struct, field

from opic.messages.terms import (
    AsOf,
    LaterAsOf,
    LoadedAsOf,
    LoadedAt,
    LoadedBound,
    Next,
    RankAsOf,
    Share,
    Window,
    about,
    always,
)  # fmt: skip


class Importance(Struct, frozen=True):
    """The importance of a page; `importance` is null for a page never seen."""

    url: Annotated[str, about("The requested URL in canonical form.")]
    importance: Share | None
    rank: Annotated[int | None, about("Rank of the page; 1 is the most important.")] = None
    percentile: Annotated[float | None, about("Percentage of pages ranked no higher; 100 for the first.")] = None
    cash: Annotated[int | None, about("Grains received since the last read; negative if the page is overdrawn.")] = None
    reads: Annotated[int | None, about("Number of reads: fetches answered with 2xx or 3xx.")] = None
    last_read_clock: Annotated[int | None, about("Clock at the last read: grains spent until then.")] = None
    last_fetched_at: Annotated[float | None, about("Time of the last read, in Unix seconds.")] = None
    policy: Annotated[str | None, about("The policy of the estimate.")] = None
    window: Annotated[
        Window | None, about("The requested window: rounds, or a duration such as 30d; null for the static policy.")
    ] = None
    error_bound: Annotated[
        float | None,
        about(
            "Upper bound on the L1 distance of all estimates by this policy from PageRank of the known graph; absent "
            "if unknown, and with window policies."
        ),
    ] = None
    teleport: Annotated[str | None, about("uniform, or weighted if classes of pages have weights.")] = None
    page_class: Annotated[str | None, about("The page's class, if it is in one.")] = field(default=None, name="class")
    gone: Annotated[bool, about("True if the last fetch was answered with 404 or 410.")] = False
    certain: Annotated[
        bool | None, about("Of top pages with policy exact: whether the bound makes the rank certain.")
    ] = None
    inlinks: Annotated[int | None, about("Of top pages by=inlinks: how many known pages link to the page.")] = None
    as_of: Annotated[float | None, about("Of one page: time of the state that this answer shows, in Unix seconds.")] = (
        None
    )
    rank_as_of: RankAsOf = None
    loaded_at: LoadedAt = None
    loaded_as_of: LoadedAsOf = None
    loaded_error_bound: LoadedBound = None


class OneImportance(Importance, frozen=True, kw_only=True):
    """The importance of one page."""

    importance: Share
    as_of: LaterAsOf = None


class Importances(Struct, frozen=True):
    """The importance of pages, in the order of the request."""

    pages: list[Importance]
    as_of: AsOf
    rank_as_of: RankAsOf = None


class TopPage(Importance, frozen=True, kw_only=True):
    """A page and its importance."""

    importance: Share
    policy: Annotated[str | None, always("The policy of the estimate.")] = None
    window: Annotated[
        Window | None,
        always("The requested window: rounds, or a duration such as 30d; null for the static policy.", null=True),
    ] = None


class Top(Struct, frozen=True):
    """The most important pages, or those with the most in-links, descending."""

    pages: list[TopPage]
    as_of: AsOf
    next: Next = None
    certainty: Annotated[
        str | None, about("Which ranks the error bound makes certain, in a sentence; absent by=inlinks.")
    ] = None


class Site(Struct, frozen=True):
    """A host or a domain: the sums over its pages."""

    importance: Annotated[float, about("Sum over its pages; over all hosts, or all domains, it sums to 1.")]
    pages: Annotated[int, about("Number of its known pages that are not gone.")]
    read_pages: Annotated[int, about("Number of these pages that were read.")]
    error_bound: Annotated[float | None, about("As of importance; also of all sites.")] = None
    loaded_at: LoadedAt = None
    loaded_as_of: LoadedAsOf = None
    loaded_error_bound: LoadedBound = None


class Host(Site, frozen=True, kw_only=True):
    """A host and its importance."""

    host: str


class Hosts(Struct, frozen=True):
    """The most important hosts, descending."""

    hosts: list[Host]
    as_of: AsOf


class SiteDomain(Site, frozen=True, kw_only=True):
    """A registered domain and its importance."""

    domain: str
    hosts: Annotated[int, about("Number of its hosts that have such pages.")]


class SiteDomains(Struct, frozen=True):
    """The most important registered domains, descending."""

    domains: list[SiteDomain]
    as_of: AsOf


class Measure(Struct, frozen=True):
    """One read of a page."""

    clock: Annotated[int, about("Clock after the read: grains spent by all pages so far.")]
    cash: Annotated[int, about("Grains spent by the read: those that the page had received since its previous read.")]
    fetched_at: Annotated[float, about("Time of the fetch, in Unix seconds.")]


class History(Struct, frozen=True):
    """The last measures of a page, oldest first; empty for a page never read."""

    url: Annotated[str, about("The requested URL in canonical form.")]
    measures: Annotated[list[Measure], about("At most OPIC_HISTORY_MEASURES measures.")]
    as_of: AsOf


class FoundPage(Struct, frozen=True):
    """A page that was found."""

    url: str
    importance: Share


class Search(Struct, frozen=True):
    """The pages found among those looked at, the most important first. A search ends after about a second."""

    pages: list[FoundPage]
    found: Annotated[int, about("How many pages were found; `pages` has the best of them.")]
    looked_at: Annotated[int, about("At how many pages this call looked, in order of first sight.")]
    known_pages: Annotated[int, about("How many there are to look at.")]
    as_of: LaterAsOf = None
    next: Annotated[str | None, about("The value for `after`, if the time was over before the end.")] = None


class Inflow(Struct, frozen=True):
    """The in-flow of a page from outside its domain."""

    url: str
    inflow: Annotated[
        float,
        about(
            "Share of all history and cash that the page received by links from read pages outside its domain; of a "
            "host, at least that much came from other hosts."
        ),
    ]
    inflow_max: Annotated[
        float | None, about("Of a host: at most so much came from other hosts, those of its domain included.")
    ] = None


class Inflows(Struct, frozen=True):
    """The in-flow of the pages of a domain, host, prefix or list; masses are sums of importance.

    Pages of a list come in its order, others in order of first sight.
    """

    pages: list[Inflow]
    outside_mass: Annotated[float, about("Importance of all known pages outside the domain.")]
    unread_mass: Annotated[float, about("Importance of the pages outside the domain that were never read.")]
    dangling_mass: Annotated[
        float, about("Importance of the pages outside the domain that were read and have no links.")
    ]
    known_pages: Annotated[int, about("Number of known pages in the whole store.")]
    policy: Annotated[str, always("static where in-flow is counted; else the policy of the importance that came.")] = (
        "static"
    )
    as_of: LaterAsOf = None
    next: Next = None
    missing: Annotated[list[str] | None, about("Of a list: its pages that are gone or were never seen.")] = None
    error_bound: Annotated[
        float | None,
        about(
            "Bound on the L1 distance of the in-flow of all pages from that of exact PageRank of the known graph; "
            "omitted if it says nothing."
        ),
    ] = None


class Inlinks(Struct, frozen=True):
    """The pages known to link to a page."""

    url: Annotated[str, about("Canonical URL of the page.")]
    inlinks: Annotated[list[str], about("Pages that were read, are not gone, and link to it as last read.")]
    known: Annotated[int, about("How many such pages there are in all.")]
    as_of: LaterAsOf = None


class CashParts(Struct, frozen=True):
    """The parts of a page's cash, in grains: its cash is the sum of `deposits` and `credit`."""

    deposits: Annotated[int, about("Cash received by links, minus the cash spent by reads.")]
    credit: Annotated[int, about("Cash received from the virtual page so far; 0 for a gone page.")]
    from_links: Annotated[int | None, about("All cash ever received by links; only under OPIC_VIRTUAL=grants.")] = None


class Spent(Struct, frozen=True):
    """The cash that a page's reads spent, in grains."""

    total: int
    reads: Annotated[int, about("Number of reads.")]
    measures: Annotated[list[Measure], about("The last reads, oldest first, at most OPIC_HISTORY_MEASURES.")]


class Estimate(Struct, frozen=True):
    """How the importance is computed: `value`, the result of the formula, divided by `of`."""

    rule: Annotated[str, about("static, exact, loaded, or the rule that the window policy applied to this page.")]
    formula: Annotated[str, about("Formula in the names of `numbers`; a negative result counts as 0.")]
    numbers: Annotated[
        dict[str, float], about("Values of the names in the formula, in grains of cash or of the clock.")
    ]
    value: float
    of: Annotated[float, about("Sum of the values of all pages.")]
    window_grains: Annotated[float | None, about("Length of the window in grains of the clock.")] = None
    warm: Annotated[
        bool | None,
        about("False while the window policy has too little past: estimates then count each page's whole life."),
    ] = None


class AppliedRule(Struct, frozen=True):
    """A URL rule or a trap rule that applies to a page."""

    rule: str
    effect: str


class Standing(Struct, frozen=True, kw_only=True):
    """Whether a page is handed out next, and if not, why not. Times are null once they are past."""

    state: Annotated[str, about("As beside `frontier`.")]
    held_back: Annotated[list[str], about("`why_not` in the words of `waiting`, and `host_cap`, `trap`.")]
    host: str
    lease_until: Annotated[float | None, about("Expiry time of its lease, in Unix seconds.")]
    waits_until: Annotated[float | None, about("End of the wait after a failed fetch, in Unix seconds.")]
    failures: Annotated[int, about("Failed fetches and expired leases since the last success.")]
    failed_fetches: Annotated[int | None, about("Failed fetches in a row; null if an event gave the page up.")]
    max_failures: Annotated[
        int | None, about("Failed fetches in a row after which a page is given up; null for never.")
    ]
    not_before: Annotated[float | None, about("When it may be offered, as last given, in Unix seconds.")]
    priority: Annotated[float, about("Factor on its key in the order of suggestions.")]
    refused: Annotated[str | None, about("Why the event of its lease was refused.")]
    revisit_at: Annotated[float | None, about("End of the revisit time, in Unix seconds.")]
    revisit_seconds: Annotated[float, about("The revisit time in effect.")]
    host_free_at: Annotated[float | None, about("End of the host's delay, or of its group's, in Unix seconds.")]
    host_delay_seconds: Annotated[float, about("The delay in effect for the host.")]
    host_in_flight: Annotated[int, about("Number of leased pages of the host.")]
    host_in_flight_max: Annotated[int | None, about("The cap on that; null if there is none.")]
    rules: Annotated[list[AppliedRule], about("The rules that apply to its URL.")]
    place: Annotated[int | None, about("Rank in the order of suggestions; null if it is not in it.")]
    order: Annotated[str, about("What orders suggestions; as in the answer to /v1/frontier.")]
    next: Annotated[bool, about("Whether nothing keeps the page from being handed out.")]
    why_not: Annotated[list[str], about("What does, in sentences.")]
    host_address: Annotated[str | None, always("The host's address, as reported last.", null=True)] = None
    host_group: Annotated[
        str | None,
        always("What shares the host's delay: an address, or a registered domain; see OPIC_POLITENESS_BY.", null=True),
    ] = None


class Giver(Struct, frozen=True):
    """A page that links to the page."""

    url: str
    share: Annotated[float, about("Share of the page's importance that comes by this link.")]


class GivenBy(Struct, frozen=True):
    """Where the importance of a page comes from; only with policy exact."""

    pages: Annotated[list[Giver], about("The pages that give it most.")]
    known: Annotated[int, about("How many pages that were read link to it.")]
    jump: Annotated[float, about("Share that comes by the random jump, which reaches every page.")]


class Reason(Struct, frozen=True):
    """A part of the explanation, in sentences."""

    about: str
    sentences: list[str]


class PageExpiry(Struct, frozen=True):
    """What the rule that forgets unread pages says of a page."""

    below: Annotated[float, about("OPIC_EXPIRE_BELOW, the share of all importance below which it forgets pages.")]
    at: Annotated[
        float | None,
        about(
            "From when on it may forget the page, in Unix seconds, if nothing changes; null while it does not: the "
            "page was read, is a seed, trusted, excluded or given up, or has that share."
        ),
    ]


class Explanation(OneImportance, frozen=True, kw_only=True):
    """The explanation of a page's score."""

    known_pages: Annotated[int, about("Number of pages that are ranked.")]
    cash_parts: CashParts
    history: Spent
    estimate: Annotated[Estimate | None, about("Null for a gone page.")]
    weight: Annotated[float, about("The page receives this multiple of every grant, by its class.")]
    state: Annotated[str, about("unread, read (since it became known or came back), gone, excluded or given_up.")]
    frontier: Annotated[Standing, about("Whether the page is `next`, and if not, why not.")]
    given_by: Annotated[GivenBy | None, about("Who links to it, and what that gives it.")] = None
    expiry: Annotated[PageExpiry | None, about("Where pages are forgotten by a rule.")] = None
    reasons: Annotated[list[Reason], always("The explanation in sentences.")] = []
    depth: Annotated[int | None, always("Number of links from a seed to the page; null if unknown.", null=True)] = None
    meta: Annotated[dict[str, str], always("The last metadata given for the page.")] = {}
    excluded: Annotated[bool, always("True if the page was forbidden when it was last fetched; it is not offered.")] = (
        False
    )
