"""The pages of a crawl as numbers: what their events say, and which of them belong to the local domain."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from opic.arrays import Bools, Int64s
from opic.errors import BadEvent, BadUrl
from opic.model.event_checks import check_event
from opic.model.events import CrawlEvent, EventLimits, Outcome
from opic.urls.canonical import host_of

OPEN, LOCAL, TRIED = 0, 1, 2  # A page that may be fetched, a page of the domain, a page that was fetched or failed.


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """What an event says of its page: canonical URLs, without bad ones."""

    url: str
    outcome: Outcome
    links: Sequence[str]


def fetched_page(event: CrawlEvent, limits: EventLimits) -> FetchedPage:
    """Check an event; bad links are left out, as the service does.

    Raises:
        BadEvent: the event is invalid.
    """
    checked = check_event(event, time.time_ns() // 1000, limits)
    return FetchedPage(checked.url, checked.outcome, list(canonical_links(checked.links, limits)))


def other_name(event: CrawlEvent, limits: EventLimits) -> str | None:
    """Return the URL that a page redirects to, if that is another name of the page by the normalization rules."""
    try:
        checked = check_event(event, time.time_ns() // 1000, limits)
    except BadEvent:
        return None
    return checked.name or checked.url if checked.outcome is Outcome.ALIAS else None


def canonical_links(links: Iterable[str], limits: EventLimits) -> Iterable[str]:
    """Yield the canonical forms of links, without those that are no absolute http(s) URLs."""
    for link in links:
        try:
            yield limits.canonical(link)
        except BadUrl:
            continue


def is_of(host: str, domain: str) -> bool:
    """Tell whether a host is a domain or below it.

    >>> is_of("www.a.example", "a.example"), is_of("nota.example", "a.example")
    (True, False)
    """
    return host == domain or host.endswith(f".{domain}")


class PageNumbers:
    """Numbers pages in order of first sight, and knows which may be fetched. A million pages take some 200 MB."""

    def __init__(self, domain: str) -> None:
        """Number the pages of a crawl whose local domain is `domain`."""
        self.urls: list[str] = []
        self._domain = domain
        self._ids: dict[str, int] = {}
        self._state = bytearray()

    def id_of(self, url: str) -> int:
        """Return the number of a page, a new one if it was not seen before."""
        page = self._ids.get(url)
        if page is None:
            page = self._ids[url] = len(self.urls)
            self.urls.append(url)
            self._state.append(LOCAL if is_of(host_of(url), self._domain) else OPEN)
        return page

    def ids_of(self, urls: Iterable[str]) -> Int64s:
        return np.fromiter(map(self.id_of, urls), np.int64)

    def is_local(self, page: int) -> bool:
        """Tell whether a page belongs to the domain."""
        return self._state[page] == LOCAL

    def tried(self, page: int) -> None:
        """Note that an outside page was fetched, or could not be."""
        self._state[page] = TRIED

    def may_be_fetched(self, pages: Int64s) -> Bools:
        """Return a mask of the outside pages that were not tried yet."""
        mask: Bools = np.frombuffer(bytes(self._state), np.uint8)[pages] == OPEN
        return mask
