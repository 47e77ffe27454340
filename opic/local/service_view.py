"""Questions to the service about a domain. If it is away, slow or wrong, there is no answer, and work goes on."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import isfinite
from typing import Any, Final, TypeVar

import httpx
import msgspec

from opic.client import AsyncClient, BadAnswer, BadRequest, ClientError, Conflict, Event, NotFound, Page
from opic.client.answers import Importance, Inflow, Inflows
from opic.model.events import CrawlEvent
from opic.urls.canonical import registered_domain

log = logging.getLogger("opic.local")

CALL_SECONDS: Final = 10.0
INFLOW_SECONDS: Final = 120.0  # All pages of a domain, a thousand a call.
AWAY_FIRST_SECONDS: Final = 1.0
AWAY_MAX_SECONDS: Final = 60.0
INFLOW_PAGES_MAX: Final = 1_000_000
URLS_A_CALL: Final = 1_000
HOSTS_A_CALL: Final = 100
SUGGESTION_SECONDS: Final = 300.0
INLINKS_MAX: Final = 1_000  # Of a page; what OPIC_MAX_N allows by default.

T = TypeVar("T")


class ServiceView(AbstractContextManager["ServiceView"]):
    """Asks one service, each question within a time limit. After a failure it waits before it asks again.

    `away` says why it gives no answer; None while it does. Use it as a context manager, in one thread.
    """

    def __init__(
        self,
        url: str,
        domain: str,
        *,
        crawl: str | None = None,
        token: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        call_seconds: float = CALL_SECONDS,
        inflow_seconds: float = INFLOW_SECONDS,
    ) -> None:
        """Take the address; nothing is connected yet.

        Args:
            url: base URL of the service.
            domain: the local domain.
            crawl: the one to ask about; None is the service's own.
            token: the service's OPIC_API_TOKEN.
            transport: an httpx transport to use instead of the default one.
            call_seconds: time for one call, its whole answer included.
            inflow_seconds: time for the in-flow of all pages of the domain.
        """
        self.away: str | None = None
        self._refusals: set[str] = set()
        self._domain, self._call_seconds, self._inflow_seconds = domain, call_seconds, inflow_seconds
        self._wait, self._ask_at = AWAY_FIRST_SECONDS, 0.0
        self._runner = asyncio.Runner()
        self._client = AsyncClient(
            url, crawl=crawl, token=token, crawler="opic-local", timeout_seconds=call_seconds, retry_seconds=0,
            transport=transport,
        )  # fmt: skip

    def __exit__(self, *raised: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()

    def try_now(self) -> None:
        """Ask again at the next question, however recently the service was away."""
        self._ask_at = 0.0

    def inflow(self) -> Inflows | None:
        """Return the in-flow of all the domain's pages, and the masses outside it; None if the service is away."""
        if (whole := registered_domain(self._domain)) != self._domain:
            self._refused(f"in-flow is counted by registered domain, and {self._domain} is a part of {whole}")
            return None
        return self._ask(self._inflow, self._inflow_seconds)

    def importances(self, urls: Sequence[str]) -> dict[str, Importance]:
        """Return what the service says of those of the pages that it knows; nothing if it is away."""
        known: dict[str, Importance] = {}
        for start in range(0, len(urls), URLS_A_CALL):
            part = urls[start : start + URLS_A_CALL]
            if (answer := self._ask(partial(AsyncClient.importances, urls=part))) is None:
                return known
            if len(answer.pages) != len(part):
                self._unusable(f"{len(part)} pages were asked for, {len(answer.pages)} came")
                return known
            for url, page in zip(part, answer.pages, strict=True):
                if page.importance is not None and 0 <= page.importance <= 1:
                    known[url] = page
        return known

    def inlinks(self, url: str) -> list[str] | None:
        """Return up to INLINKS_MAX pages that the service knows to link to a page; None if it is away.

        Raises:
            Conflict: the service keeps no links.
        """

        async def asked(client: AsyncClient) -> list[str]:
            try:
                return (await client.inlinks(url, INLINKS_MAX)).inlinks
            except NotFound:
                return []
            except BadRequest as error:
                self._refused(str(error))
                return []

        return self._ask(asked, refusals=True)

    def suggestions(self, hosts: Sequence[str], n: int) -> list[Page]:
        """Lease the pages of some hosts that the service would have fetched next."""
        domains = hosts[:HOSTS_A_CALL]
        if not domains:
            return []
        answer = self._ask(
            lambda client: client.next(n, domains=domains, mode="discover", lease_seconds=SUGGESTION_SECONDS)
        )
        return answer.pages if answer is not None else []

    def release(self, pages: Sequence[Page]) -> None:
        """Give back the leases of pages that will not be fetched."""
        if pages:
            self._ask(lambda client: client.release(pages))

    def publish(self, events: Sequence[CrawlEvent], key: str) -> bool:
        """Send events; return whether they need not be sent again: taken, or refused for good."""
        sent = [_event(event) for event in events if event.status or event.excluded]
        if not sent:
            return True
        try:
            answer = self._ask(lambda client: client.events(sent, key=key, raise_rejected=False), refusals=True)
        except (BadRequest, Conflict) as error:
            log.warning("the service refused %d events: %s", len(sent), error)
            return True
        if answer is not None and answer.rejected:
            log.warning("the service refused %d of %d events", len(answer.rejected), len(sent))
        return answer is not None

    def settled(self) -> bool:
        """Return whether all events that the service accepted have taken effect."""
        answer = self._ask(lambda client: client.stats())
        return answer is None or answer.lag == 0

    def show(self, ranking: Mapping[str, Any]) -> bool:
        """Send the ranked list, for GET /v1/local/{domain}; return whether the service has it."""
        return self._ask(lambda client: client.put_local(self._domain, **ranking)) is not None

    async def _inflow(self, client: AsyncClient) -> Inflows:
        pages: dict[str, Inflow] = {}
        after: str | None = None
        while True:
            answer = await client.inflow(self._domain, after=after)
            before = len(pages)
            pages |= {page.url: page for page in answer.pages}
            masses = (answer.outside_mass, answer.unread_mass, answer.dangling_mass)
            if not all(0 <= value <= 1 for value in (*masses, *(page.inflow for page in answer.pages))):
                raise BadAnswer("an in-flow or a mass is not between 0 and 1")
            if (after := answer.next) is None:
                return msgspec.structs.replace(answer, pages=list(pages.values()))
            if len(pages) == before or len(pages) > INFLOW_PAGES_MAX:
                raise BadAnswer("the pages of the in-flow do not end")

    def _ask(
        self,
        question: Callable[[AsyncClient], Awaitable[T]],
        seconds: float | None = None,
        *,
        refusals: bool = False,
    ) -> T | None:
        """Return the answer to a question; None if the service is away, or its answer can't be used."""
        if time.monotonic() < self._ask_at:
            return None
        limit = self._call_seconds if seconds is None else seconds

        async def asked() -> T:
            async with asyncio.timeout(limit):
                return await question(self._client)

        try:
            answer = self._runner.run(asked())
        except (BadRequest, Conflict) as error:
            if refusals:
                raise
            self._refused(str(error))
        except ClientError as error:
            self._unusable(str(error))
        except TimeoutError:
            self._unusable(f"no answer within {limit:g} s")
        else:
            if self.away is not None:
                log.info("the service is used again")
            self.away, self._wait = None, AWAY_FIRST_SECONDS
            return answer
        return None

    def _refused(self, why: str) -> None:
        """Log once why the service refuses a question."""
        if why not in self._refusals:
            self._refusals.add(why)
            log.warning("the service has no answer: %s", why)

    def _unusable(self, why: str) -> None:
        if self.away != why:
            log.warning("going on without the service: %s", why)
        self.away, self._ask_at = why, time.monotonic() + self._wait
        self._wait = min(2 * self._wait, AWAY_MAX_SECONDS)


def _event(event: CrawlEvent) -> Event:
    given = event.fetched_at
    assert given is None or isinstance(given, str) or isfinite(given)
    return Event(**{name: getattr(event, name) for name in Event.__struct_fields__})
