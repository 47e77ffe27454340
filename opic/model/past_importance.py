"""The importance of pages at any past time: recorded crawl events, applied again in the order of their time.

A store keeps the present and a page's last reads. Whoever kept the crawl events has the whole past: this applies them
to a ledger, as a worker did, and stops at the times asked for.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opic.errors import BadInput
from opic.model.cash import CrawlRules, Flag
from opic.model.events import EventLimits, Record
from opic.model.ledger import Ledger
from opic.model.series import Window
from opic.model.windows import Past, check_measures, estimate

PARTITION = "recorded/0"


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """An encoded crawl event and the time of its fetch, in microseconds."""

    time_us: int
    value: bytes


class RecordedPast:
    """Recorded events on their way through a ledger."""

    def __init__(
        self, events: Sequence[TimedEvent], rules: CrawlRules | None = None, limits: EventLimits | None = None
    ) -> None:
        """Stand before the first event.

        Args:
            events: in any order; equal times keep their order.
            rules: how cash moves; a window policy needs `measures_max`.
            limits: of one event.
        """
        self._events = sorted(events, key=lambda event: event.time_us)
        self._done = 0
        self.ledger = Ledger(rules, limits)

    def until(self, time_us: int) -> None:
        """Apply all events up to a time, that time included; times may not go back."""
        while self._done < len(self._events) and self._events[self._done].time_us <= time_us:
            event = self._events[self._done]
            self.ledger.apply(PARTITION, [Record(self._done, event.time_us, event.value)])
            self._done += 1

    def past(self) -> Past:
        """Return what window policies read, of all pages in order of first sight."""
        ledger, pages = self.ledger, list(self.ledger.pages.values())
        measures = [(m.clock, m.cash) for page in pages for m in page.measures]
        anchors = None
        if ledger.rules.continuous:
            firsts = np.array([p.anchors[0] if p.anchors else (0, 0) for p in pages], np.int64).reshape(-1, 2)
            anchors = (firsts[:, 0], firsts[:, 1])
        return Past(
            starts=np.cumsum([0, *(len(page.measures) for page in pages)]),
            clock=np.array([clock for clock, _ in measures], np.int64),
            spent=np.array([cash for _, cash in measures], np.int64),
            cash=np.array([ledger.cash(page) for page in pages], np.int64),
            history=np.array([page.spent for page in pages], np.int64),
            live=np.array([not page.has(Flag.GONE) for page in pages], np.bool_),
            now=ledger.books.clock,
            anchors=anchors,
        )

    def importance(
        self, policy: str = "static", window: Window | None = None, measures: int | None = None
    ) -> NDArray[np.float64]:
        """(n,) Return the importance of all pages now, in order of first sight; gone pages have 0.

        A window ends at the last event applied. `measures` is the size of the window of `variable`, at least 2; by
        default all that the ledger keeps.

        Raises:
            BadInput: the ledger keeps too few measures for the policy.
        """
        ledger, books = self.ledger, self.ledger.books
        check_measures(policy, ledger.rules.measures_max)
        if not ledger.pages:
            return np.zeros(0)
        span = (window or Window(8.0)).grains(list(ledger.series), books, ledger.rules.round_grains(books.live))
        return estimate(policy, self.past(), span, max(measures or ledger.rules.measures_max, 2))


@dataclass(frozen=True, slots=True)
class PastStanding:
    """A page at a past time: importance and rank, None while nobody knew it; and how many pages were live."""

    time_us: int
    importance: float | None
    rank: int | None
    pages: int


def standings(
    past: RecordedPast,
    url: str,
    times_us: Sequence[int],
    policy: str = "static",
    window: Window | None = None,
    *,
    measures: int | None = None,
) -> Iterator[PastStanding]:
    """Yield a page's standing at each of some increasing times; the last arguments are those of `importance`.

    Raises:
        BadInput: as `RecordedPast.importance`; or no event names the page.
    """
    for time_us in times_us:
        past.until(time_us)
        page = past.ledger.pages.get(url)
        if page is None:
            yield PastStanding(time_us, None, None, past.ledger.books.live)
            continue
        importance = past.importance(policy, window, measures)
        own = float(importance[page.id])
        rank = None if page.has(Flag.GONE) else int((importance > own).sum()) + 1
        yield PastStanding(time_us, own, rank, past.ledger.books.live)
    if url not in past.ledger.pages:
        raise BadInput(f"no event up to then names {url}: check the URL, or ask for a later time")
