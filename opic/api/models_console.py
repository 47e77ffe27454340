"""Request and response models of the calls used by the console at `/`; see `opic.api.models`."""

from pydantic import Field

from opic.api.models import AS_OF, _Answer, _Parameters

LETTERS_MAX = 100
POINTS_MAX = 1_000


class NewestLetters(_Parameters):
    """A request for dead letters."""

    n: int = Field(20, ge=1, le=LETTERS_MAX, description="How many at most.")


class SeriesPoints(_Parameters):
    """A request for the series, with its level of detail."""

    n: int = Field(400, ge=2, le=POINTS_MAX, description="About how many entries of the series.")


class DeadLetter(_Answer):
    """An event that was refused."""

    id: str = Field(description="Of the entry in the store, or partition-offset on the topic of dead letters.")
    error: str = Field(description="Why it can't be taken.")
    topic: str = Field(description="Where it came from.")
    partition: str
    offset: int
    value: str = Field(description="The beginning of its value, a few hundred bytes; what is no text is escaped.")
    value_bytes: int = Field(description="Size of the whole value.")
    at: float = Field(description="Unix seconds: when it became a dead letter.")
    replayed: bool = Field(description="It was published again.")


class DeadLetters(_Answer):
    """The newest dead letters, newest first."""

    dead_letters: list[DeadLetter]
    as_of: float = Field(description=AS_OF)


class SeriesEntry(_Answer):
    """The position of the crawl at a time."""

    time: float = Field(description="Unix seconds of the last record before.")
    rounds: float
    clock: int = Field(description="Grains spent by reads.")


class CurvePoint(SeriesEntry):
    """The position of the crawl at a time, and the error bound of its estimates."""

    unspent: int = Field(description="Grains on read pages that no read has spent yet; over the clock they go to 0.")
    error_bound: float | None = Field(
        description="Bound on the L1 distance of all static estimates from exact PageRank; null where there is none."
    )


class Series(_Answer):
    """The progress of a crawl, oldest first; the last entry of both lists is the current one."""

    series: list[SeriesEntry] = Field(description="An entry an hour or quarter of a round, thinned.")
    convergence: list[CurvePoint] = Field(
        description="A point each sixteenth of a doubling of the rounds, while an endpoint ran."
    )
    as_of: float = Field(description=AS_OF)
