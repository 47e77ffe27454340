"""Client for crawlers in Python: typed calls of the HTTP API, retried if that is safe.

`Client` blocks; `AsyncClient` has the same methods with `await`. Both are context managers. For a crawler on asyncio,
`CrawlSession` reports and leases in batches. The types that calls return are in `opic.client.answers`, the exceptions
in `opic.client.errors`.

>>> with Client("http://127.0.0.1:8080", crawler="crawler-7") as client:  # doctest: +SKIP
...     for page in client.next(10).pages:
...         client.event(page.url, links=fetch(page.url))
"""

from opic.client.answers import Event, HostPoliteness, Page, PageClass, Rule
from opic.client.clients import AsyncClient, Client
from opic.client.crawl_session import CrawlSession, LeasedPage
from opic.client.errors import (
    BadAnswer,
    BadRequest,
    CallFailed,
    ClientError,
    Conflict,
    EventsRejected,
    NotBuilt,
    NotFound,
    SeedsRejected,
    ServiceFailed,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from opic.client.host_pace import HostPace, retry_after_seconds

__all__ = [
    "AsyncClient",
    "BadAnswer",
    "BadRequest",
    "CallFailed",
    "Client",
    "ClientError",
    "Conflict",
    "CrawlSession",
    "Event",
    "EventsRejected",
    "HostPace",
    "HostPoliteness",
    "LeasedPage",
    "NotBuilt",
    "NotFound",
    "Page",
    "PageClass",
    "Rule",
    "SeedsRejected",
    "ServiceFailed",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "retry_after_seconds",
]
