"""Messages of the calls that feed the service: events, seeds, pages to forget."""

from typing import Annotated

from msgspec import Struct

from opic.messages.terms import META, NOT_BEFORE, PRIORITY, Depth, OrNull, Position, about


class Event(Struct, omit_defaults=True):
    """A crawl event: the result of fetching a URL. docs/guide/events.md describes the fields.

    Null is as absent, also of a field whose default is not null.
    """

    url: Annotated[str, about("The page fetched: an absolute http(s) URL.")]
    links: Annotated[
        OrNull[list[str]],
        about(
            "Absolute URLs of its out-links. The service drops fragments, duplicates, self-links, and links after the "
            "first OPIC_MAX_LINKS."
        ),
    ] = []
    fetched_at: Annotated[
        float | str | None,
        about("Unix seconds or RFC 3339, from 1990 to one day ahead of now; default: time of arrival."),
    ] = None
    status: Annotated[OrNull[int], about("HTTP status of the fetch; 0 if there was no answer.")] = 200
    redirect: Annotated[str | None, about("Target of a 3xx redirect.")] = None
    excluded: Annotated[OrNull[bool], about("True if robots.txt forbids fetching the page.")] = False
    tags: Annotated[OrNull[list[str]], about("Topical labels assigned by the crawler.")] = []
    crawler: Annotated[str | None, about("Name of the crawler.")] = None
    depth: Annotated[
        Depth | None,
        about(
            "Number of links from a seed to the page, as counted by the crawler. The smallest one seen is kept; "
            "the links are one deeper."
        ),
    ] = None
    meta: Annotated[dict[str, str] | None, about(f"{META} The last one given is kept, and returned by /v1/next.")] = (
        None
    )
    give_up: Annotated[
        OrNull[bool], about("Of a failed fetch: true if the page is not to be tried again, until it is read or seeded.")
    ] = False
    retry_after: Annotated[
        float | None, about("Of a failed fetch: the seconds that the page waits, instead of a back-off that doubles.")
    ] = None
    not_before: Annotated[float | str | None, about(NOT_BEFORE)] = None
    priority: Annotated[float | None, about(PRIORITY)] = None
    addresses: Annotated[
        OrNull[list[str]],
        about(
            "IP addresses of the host, IPv4 or IPv6, at most 16; first the one that was asked. The host is known by it "
            "until an event names another: hosts of one address share its delay (OPIC_POLITENESS_BY)."
        ),
    ] = []

    def __post_init__(self) -> None:
        if self.links is None:
            self.links = []
        if self.status is None:
            self.status = 200
        if self.excluded is None:
            self.excluded = False
        if self.tags is None:
            self.tags = []
        if self.give_up is None:
            self.give_up = False
        if self.addresses is None:
            self.addresses = []


class Rejected(Struct, frozen=True):
    """An event or a seed that was rejected."""

    index: Annotated[int, about("Index in the array, or among the non-empty lines, from 0.")]
    error: Annotated[str, about("Reason for the rejection.")]


class Accepted(Struct, frozen=True):
    """The accepted events are durable. They take effect in order, usually within milliseconds."""

    accepted: Annotated[int, about("Number of events accepted.")]
    rejected: Annotated[list[Rejected], about("The rejected events, in order.")]
    links_left_out: Annotated[
        int, about("Number of links over OPIC_MAX_LINKS, which take no effect; only if there are any.")
    ] = 0
    position: Position = None


class Seeded(Struct, frozen=True):
    """The result of adding seeds."""

    known: Annotated[int, about("Number of distinct URLs that were already known.")]
    new: Annotated[int, about("Number of distinct URLs that became known.")]
    rejected: Annotated[list[Rejected], about("The URLs that are refused, in order; only if there are any.")] = []
    position: Position = None


class CanonicalUrl(Struct, frozen=True):
    """The URL by which the crawl knows a page."""

    url: Annotated[str, about("The canonical form of the URL in this crawl.")]
    plain: Annotated[str, about("Its canonical form in a crawl without normalization rules.")]
    rules: Annotated[list[str], about("The normalization rules of the crawl.")]
    applied: Annotated[list[str], about("Those of the rules that change the URL.")]


class Forgotten(Struct, frozen=True):
    """The number of pages that were forgotten."""

    forgotten: int
    more: Annotated[bool, about("True if there may be more: call again. A call takes up to 20 seconds.")] = False
    position: Position = None
    would_forget: Annotated[int | None, about("With `dry_run`: how many pages the call would forget.")] = None
    importance: Annotated[
        float | None, about("With `expired`: the importance of the pages that are due, by the default policy.")
    ] = None
