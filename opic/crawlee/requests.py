"""Requests of Crawlee, and the pages that they fetch."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from crawlee import Request
from crawlee.storage_clients.models import ProcessedRequest

from opic.client import LeasedPage
from opic.client.host_pace import REST_STATUSES
from opic.client.host_pace import host_of as host_of_any
from opic.urls.canonical import canonical_or_none, host_of

FAILED_FROM: Final = 400  # The least status of an answer that is no page.
GONE: Final = (404, 410)


@dataclass(slots=True)
class PageAnswer:
    """The answer of a page when it was last fetched."""

    url: str  # After redirects that the crawler followed.
    status: int
    links: Sequence[str] = ()
    redirect: str | None = None  # One that the crawler did not follow.
    retry_after: float | None = None
    addresses: Sequence[str] = ()  # Of its host.
    fetched_at: float = field(default_factory=time.time)

    @property
    def asks_for_pause(self) -> bool:
        """Whether the host asks not to be asked again for a while."""
        return self.status in REST_STATUSES and bool(self.retry_after)

    @property
    def is_final(self) -> bool:
        """Whether the service does not offer the page again as one that failed."""
        return self.status < FAILED_FROM or self.status in GONE


@dataclass(slots=True)
class RequestWork:
    """A request that the crawler works on."""

    request: Request
    page: str | None  # None: it is no plain GET, and none of the service's business.
    lease: LeasedPage | None = None  # None: the service did not hand the page out for this request.
    answer: PageAnswer | None = None


def put(requests: deque[Request], request: Request, forefront: bool) -> None:
    requests.appendleft(request) if forefront else requests.append(request)


def page_of(request: Request) -> str | None:
    """Return the page that a request fetches; None if it is no plain GET."""
    return None if request.method != "GET" or request.payload else canonical_or_none(request.url)


def identity_of(request: Request) -> int:
    """Return what tells a request from others: by default, Crawlee's keys are equal for pages that differ in case."""
    return hash((canonical_or_none(request.url) or request.url, request.method, request.payload, request.unique_key))


def host_asked(url: str) -> str:
    page = canonical_or_none(url)
    return host_of_any(url) or "" if page is None else host_of(page)


def processed(request: Request, *, known: bool, handled: bool = False) -> ProcessedRequest:
    """Return what Crawlee is told of a request."""
    said: Mapping[str, Any] = {"unique_key": request.unique_key, "was_already_present": known}
    return ProcessedRequest(**said, was_already_handled=handled)
