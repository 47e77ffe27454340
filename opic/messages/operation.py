"""Messages of the calls for who operates the service: counts, books, progress, dead letters, problems."""

from typing import Annotated, Any, Literal

from msgspec import Struct

from opic.messages.terms import AsOf, LoadedAsOf, LoadedAt, LoadedBound, about, always


class Audit(Struct, frozen=True):
    """The books, recounted: minted = pages + virtual + in_flight, in whole grains."""

    minted: int
    pages: int
    virtual: int
    in_flight: Annotated[int, about("Grains in transit between shards.")]
    conserved: Annotated[bool, about("True if no grain was created or lost, and every total equals its recount.")]
    shards: Annotated[
        list[dict[str, Any]], about("The same fields for each shard, and the totals that differ from their recount.")
    ]


class ExpiryStanding(Struct, frozen=True):
    """The rule that forgets unread pages, and what it has done in this store."""

    below: Annotated[float, about("The share of all importance below which pages are forgotten,")]
    after_seconds: Annotated[float, about("once they are known for so long without being read.")]
    expired_pages: Annotated[int, about("Pages forgotten by it; 0 again in a crawl that was moved or restored.")]
    expired_importance: Annotated[float, about("The sum of the importance that they had then.")]
    passes: int
    last_pass_at: Annotated[float | None, about("When it looked last, in Unix seconds.")]


class Stats(Struct, frozen=True):
    """Counts of the service."""

    known_pages: int
    read_pages: int
    clock: Annotated[int, about("Total grains spent by reads.")]
    rounds: Annotated[
        float,
        about(
            "The clock in rounds: in units of one grant for every page known in the whole crawl at that time, or, "
            "under OPIC_VIRTUAL=continuous, of the total cash."
        ),
    ]
    lag: Annotated[int, about("Accepted events that have not taken effect yet.")]
    pool: Annotated[int, about("Grains that the virtual page can still grant, over all shards.")]
    shards: Any
    as_of: AsOf
    policy: Annotated[str | None, about("The default policy: that of importance in all answers that name none.")] = None
    error_bound: Annotated[
        float | None,
        about(
            "Upper bound on the L1 distance of importance by the default policy from exact PageRank of the known "
            "graph; absent if unknown."
        ),
    ] = None
    crawl: Annotated[str, always("The crawl that answers,")] = ""
    store: Annotated[str, always("its store, without a password,")] = ""
    opic_version: Annotated[str, always("and the version of the service.")] = ""
    given_up_pages: Annotated[int | None, always("Pages given up after failed fetches.")] = None
    scope: Annotated[str | None, about("Only pages of these may be offered, OPIC_SCOPE; absent without a scope.")] = (
        None
    )
    outside_pages: Annotated[
        int | None,
        about("Known pages outside the scope; on a crawl of many pages, those judged so far. Absent without a scope."),
    ] = None
    loaded_at: LoadedAt = None
    loaded_as_of: LoadedAsOf = None
    loaded_error_bound: LoadedBound = None
    loaded_pages: Annotated[int | None, about("Known pages that were in the file that was loaded.")] = None
    expiry: Annotated[ExpiryStanding | None, about("Where pages are forgotten by a rule, OPIC_EXPIRE_BELOW.")] = None
    undelivered: Annotated[int | None, always("Deposits and grants on their way between shards.")] = None
    warnings: Annotated[list[str], always("What an operator should see to; see /readyz.")] = []
    kept_links: Annotated[
        Literal["kept", "not kept", "too large"] | None, always("`too large`: for this endpoint.")
    ] = None
    granted_rounds: Annotated[
        float | None,
        about("Number of grants that a page of weight 1 has received so far; absent under OPIC_VIRTUAL=continuous."),
    ] = None
    sweeps_left: Annotated[
        float | None,
        about(
            "How many more times all read pages can be read, at the average cost so far, before the pool is empty or "
            "the clock reaches its limit."
        ),
    ] = None


class SeriesEntry(Struct, frozen=True):
    """The position of the crawl at a time."""

    time: Annotated[float, about("Time of the last record until then, in Unix seconds.")]
    rounds: float
    clock: Annotated[int, about("Grains spent by reads.")]


class CurvePoint(SeriesEntry, frozen=True):
    """The position of the crawl at a time, and the error bound of its estimates."""

    unspent: Annotated[int, about("Grains on read pages that are not spent yet; their ratio to the clock tends to 0.")]
    error_bound: Annotated[
        float | None,
        always(
            "Upper bound on the L1 distance of importance, by the default policy then, from exact PageRank; null if "
            "unknown.",
            null=True,
        ),
    ] = None


class PagesAt(Struct, frozen=True):
    """The pages of the crawl at a time: those read, and those never read by what is to become of them."""

    time: Annotated[float, about("Time of the last record until then, in Unix seconds.")]
    read_pages: Annotated[int, about("Pages read.")]
    to_fetch_pages: Annotated[int, about("Pages still to be fetched.")]
    failed_pages: Annotated[int, about("Pages given up after failed fetches.")]
    denied_pages: Annotated[int, about("Pages not to be fetched: 401, 403, 451, robots.txt, a rule, a trap.")]
    outside_pages: Annotated[int, about("Pages outside the scope of the crawl.")]


class Forecast(Struct, frozen=True):
    """When all pages that are known now will be read, if pages are read and found as fast as lately."""

    text: Annotated[str, about("The forecast in words, or why there is none.")]
    pace: Annotated[
        Literal["finished", "new", "idle", "growing", "ending"],
        about("Only one that is `ending` has an end that can be told."),
    ]
    to_fetch: Annotated[int, about("Pages still to be fetched.")]
    idle_seconds: Annotated[float, about("Time since the last event.")]
    reads_per_second: Annotated[float | None, about("Pages read for the first time; null if too few were read.")] = None
    found_per_read: Annotated[float | None, about("New pages to fetch that each of them brought.")] = None
    seconds: Annotated[float | None, about("Until all are read; null if that can't be told.")] = None


class Series(Struct, frozen=True):
    """The progress of a crawl, oldest first; the last entry of each list is the current one."""

    series: Annotated[list[SeriesEntry], about("One entry per hour or quarter of a round, thinned out to about `n`.")]
    convergence: Annotated[
        list[CurvePoint],
        about("Sixteen points for each doubling of the rounds, recorded while an endpoint was running."),
    ]
    as_of: AsOf
    progress: Annotated[list[PagesAt], always("Counts of pages at the same points.")] = []
    forecast: Annotated[Forecast | None, always("When the crawl ends.")] = None


class DeadLetter(Struct, frozen=True):
    """An event that was refused."""

    id: Annotated[str, about("Id of the entry in the store, or partition-offset in the dead-letter topic.")]
    error: Annotated[str, about("Reason for the refusal.")]
    topic: Annotated[str, about("Topic that the event came from.")]
    partition: str
    offset: int
    value: Annotated[str, about("The first few hundred bytes of the value; bytes that are not text are escaped.")]
    value_bytes: Annotated[int, about("Size of the whole value in bytes.")]
    at: Annotated[float, about("Time when it became a dead letter, in Unix seconds.")]
    replayed: Annotated[bool, always("True if it was published again.")] = False
    index: Annotated[int | None, about("Its place in the array of events that its record has; null without one.")] = (
        None
    )


class DeadLetters(Struct, frozen=True):
    """The newest dead letters, newest first."""

    dead_letters: list[DeadLetter]
    as_of: AsOf


class StoredCrawl(Struct, frozen=True):
    """A crawl of the store."""

    name: str
    shards: int
    known_pages: Annotated[int, about("0 while a backup is restored into it, or another crawl is moved to it.")]
    read_pages: int
    open: Annotated[bool, always("Whether this endpoint has it open.")] = False
    moved_to: Annotated[str | None, about("The crawl that took its place, to which the name leads.")] = None


class CrawlList(Struct, frozen=True):
    """The crawls of the store that the token is for."""

    crawls: list[StoredCrawl]
    default: Annotated[str, about("OPIC_CRAWL: the crawl of the calls that name none.")]


class CrawlMade(Struct, frozen=True):
    """A crawl that is there now."""

    name: str
    made: Annotated[bool, about("False if it was there already, with these rules.")]
    worker: Annotated[str, about("Who runs its worker; nothing that is sent takes effect without one.")]
    topic: Annotated[str | None, about("With Kafka: the topic of its events.")] = None


class CrawlRemoved(Struct, frozen=True):
    """A crawl that is gone."""

    deleted: Annotated[str, about("Its name.")]
    keys_removed: int


class Healthy(Struct, frozen=True):
    """The process answers."""

    status: Literal["ok"]
    instance: Annotated[str, about("Names this process of the service; another one after a restart.")]
    crawl: Annotated[str, about("The crawl that it serves.")]


class Readiness(Struct, frozen=True):
    """The service is ready for requests."""

    status: Literal["ready"]
    warnings: Annotated[list[str], about("What an operator should see to, such as that no worker is there.")]


class ProblemDetails(Struct, frozen=True):
    """RFC 9457 problem details: the body of every error response."""

    type: Annotated[str, about("A URN that identifies the kind of problem; it never changes.")]
    title: Annotated[str, about("The kind of problem, for people.")]
    status: Annotated[int, about("The HTTP status.")]
    detail: Annotated[str, about("What went wrong, and what to do about it.")]
    request_id: Annotated[str | None, about("The request's id, as in X-Request-ID and in the service's log.")] = None
    errors: Annotated[list[dict[str, Any]] | None, about("Each invalid value: its location and the reason.")] = None
