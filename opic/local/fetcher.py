"""Where outside pages come from: a recorded crawl; `opic.local.web` fetches real ones."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from opic.model.events import CrawlEvent

NO_ANSWER = 0  # The status of a page that could not be fetched.


class Fetcher(Protocol):
    """Fetches pages. A page that can't be fetched is an event too, with the status 0."""

    host_pages_max: int | None  # Maximum number of pages of one host in a round; None for no limit.

    def fetch(self, urls: Sequence[str], took: Callable[[CrawlEvent], object], stopped: Callable[[], bool]) -> None:
        """Fetch pages and pass the event of each to `took`, in any order; leave the rest when `stopped`."""

    def close(self) -> None:
        """Close all connections."""


class RecordedFetcher:
    """Takes pages from a recorded crawl. A page that is not in it can't be fetched."""

    host_pages_max: int | None = None

    def __init__(self, events: Mapping[str, CrawlEvent]) -> None:
        """Answer from events by the canonical URLs of their pages."""
        self._events = events

    def fetch(self, urls: Sequence[str], took: Callable[[CrawlEvent], object], stopped: Callable[[], bool]) -> None:
        """Pass the events of pages on."""
        for url in urls:
            if stopped():
                return
            took(self._events.get(url) or CrawlEvent(url, status=NO_ANSWER))

    def close(self) -> None:
        """Do nothing: the events are in memory."""
