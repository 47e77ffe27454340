"""Request and response models of the calls used by the console at `/`; see `opic.api.models`."""

from pydantic import Field

from opic.api.models import AS_OF, DOMAIN_CHARS_MAX, IMPORTANCE, _Answer, _Parameters

LETTERS_MAX = 100
TEXT_CHARS_MAX = 500
POINTS_MAX = 1_000


class NewestLetters(_Parameters):
    """A request for dead letters."""

    n: int = Field(20, ge=1, le=LETTERS_MAX, description="Maximum number of dead letters.")


class SeriesPoints(_Parameters):
    """A request for the series, with its level of detail."""

    n: int = Field(400, ge=2, le=POINTS_MAX, description="Approximate number of entries of the series.")


class UrlPart(_Parameters):
    """A search for pages by a part of their URL."""

    text: str = Field(
        min_length=1,
        max_length=TEXT_CHARS_MAX,
        description="A part of the URL; case does not matter.",
        examples=["news"],
    )
    n: int = Field(20, ge=1, description="How many pages, at most OPIC_MAX_N.")
    domain: str | None = Field(
        None,
        min_length=1,
        max_length=DOMAIN_CHARS_MAX,
        description="Only pages of this host or registered domain, with all below it.",
    )
    after: str | None = Field(None, description="Go on here: the `next` of the answer before.")


class FoundPage(_Answer):
    """A page that was found."""

    url: str
    importance: float = Field(description=IMPORTANCE)


class Search(_Answer):
    """The pages found among those looked at, the most important first. A search ends after about a second."""

    pages: list[FoundPage]
    found: int = Field(description="How many pages were found; `pages` has the best of them.")
    looked_at: int = Field(description="At how many pages this call looked, in order of first sight.")
    known_pages: int = Field(description="How many there are to look at.")
    next: str | None = Field(None, description="The value for `after`, if the time was over before the end.")
    as_of: float = Field(description=AS_OF)


class DeadLetter(_Answer):
    """An event that was refused."""

    id: str = Field(description="Id of the entry in the store, or partition-offset in the dead-letter topic.")
    error: str = Field(description="Reason for the refusal.")
    topic: str = Field(description="Topic that the event came from.")
    partition: str
    offset: int
    value: str = Field(description="The first few hundred bytes of the value; bytes that are not text are escaped.")
    value_bytes: int = Field(description="Size of the whole value in bytes.")
    at: float = Field(description="Time when it became a dead letter, in Unix seconds.")
    replayed: bool = Field(description="True if it was published again.")


class DeadLetters(_Answer):
    """The newest dead letters, newest first."""

    dead_letters: list[DeadLetter]
    as_of: float = Field(description=AS_OF)


class SeriesEntry(_Answer):
    """The position of the crawl at a time."""

    time: float = Field(description="Time of the last record until then, in Unix seconds.")
    rounds: float
    clock: int = Field(description="Grains spent by reads.")


class CurvePoint(SeriesEntry):
    """The position of the crawl at a time, and the error bound of its estimates."""

    unspent: int = Field(
        description="Grains on read pages that are not spent yet; their ratio to the clock tends to 0."
    )
    error_bound: float | None = Field(
        description="Upper bound on the L1 distance of all static estimates from exact PageRank; null if unknown."
    )


class Series(_Answer):
    """The progress of a crawl, oldest first; the last entry of both lists is the current one."""

    series: list[SeriesEntry] = Field(description="One entry per hour or quarter of a round, thinned out to about `n`.")
    convergence: list[CurvePoint] = Field(
        description="Sixteen points for each doubling of the rounds, recorded while an endpoint was running."
    )
    as_of: float = Field(description=AS_OF)
