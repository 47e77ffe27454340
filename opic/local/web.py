"""Fetches pages over HTTP: politely, by robots.txt, within limits of size and time, from public addresses only.

Hosts are fetched side by side, the pages of one host one after the other. Redirects are not followed: they are events,
and their targets are links.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httpx
from protego import Protego

from opic import __version__
from opic.addresses import NotReachable, PublicTransport
from opic.compressed import decodable
from opic.html.links import redirect_target
from opic.html.media_types import MediaType
from opic.html.process import LinkProcess
from opic.local.fetcher import NO_ANSWER
from opic.model.events import CrawlEvent
from opic.robots import ROBOTS_BYTES_MAX, robots_rules
from opic.urls.canonical import host_of

AGENT: Final = "opic-local"  # What robots.txt may mention.
USER_AGENT: Final = f"{AGENT}/{__version__}"
CRAWL_DELAY_SECONDS_MAX: Final = 60.0
ROBOTS_REDIRECTS_MAX: Final = 5
SILENT_MAX: Final = 3  # Pages in a row without an answer, after which a host is skipped for this round.
RETRY_FIRST_SECONDS: Final = 0.25  # Doubling.
POLL_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class WebLimits:
    """Limits of fetching. Attributes:

    host_delay_seconds  least time between two pages of a host; a longer Crawl-delay counts instead, up to a minute
    page_seconds        time for a page, its redirects not followed
    retry_seconds       how long to retry the pages of a host that does not answer
    body_bytes_max      of a page, decompressed; the rest of a longer one is not read
    hosts_at_once       hosts that are fetched side by side
    host_pages_max      pages of one host in a round, so that a trap does not use up the fetches
    allow_private       also fetch from addresses that are not public, and through a proxy of the environment
    """

    host_delay_seconds: float = 1.0
    page_seconds: float = 20.0
    retry_seconds: float = 10.0
    body_bytes_max: int = 2 << 20
    hosts_at_once: int = 16
    host_pages_max: int = 10
    allow_private: bool = False


class _Site:
    """A host's robots.txt, when its next page may be fetched, and since when it gives no answer."""

    def __init__(self) -> None:
        self.silent_since: float | None = None
        self.rules: dict[str, Protego | None] = {}  # By scheme and authority; None: nothing may be fetched.
        self.free_at = 0.0
        self.silent = 0


class WebFetcher(AbstractContextManager["WebFetcher"]):
    """Fetches pages over HTTP. Use it as a context manager, in one thread."""

    def __init__(
        self,
        limits: WebLimits = WebLimits(),
        on_text: Callable[[str, str], object] | None = None,
    ) -> None:
        """Open no connection yet.

        Args:
            limits: of fetching.
            on_text: told the URL and the text of each page of HTML, before its event is passed on.
        """
        self._limits, self._on_text = limits, on_text
        self.host_pages_max: int | None = limits.host_pages_max
        self._links = LinkProcess(with_text=on_text is not None)
        self._sites: defaultdict[str, _Site] = defaultdict(_Site)
        self._runner = asyncio.Runner()
        self._web = httpx.AsyncClient(
            headers={"user-agent": USER_AGENT, "accept-encoding": "gzip"},
            timeout=limits.page_seconds,
            transport=None if limits.allow_private else PublicTransport(),
        )

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        self._runner.run(self._web.aclose())
        self._runner.run(self._links.aclose())
        self._runner.close()

    def fetch(self, urls: Sequence[str], took: Callable[[CrawlEvent], object], stopped: Callable[[], bool]) -> None:
        self._runner.run(self._fetch(urls, took, stopped))

    async def _fetch(
        self, urls: Sequence[str], took: Callable[[CrawlEvent], object], stopped: Callable[[], bool]
    ) -> None:
        by_host: defaultdict[str, list[str]] = defaultdict(list)
        for url in urls:
            by_host[host_of(url)].append(url)
        room = asyncio.Semaphore(self._limits.hosts_at_once)

        async def in_turn(host: str, pages: Sequence[str]) -> None:
            async with room:
                await self._fetch_host(self._sites[host], pages, took, stopped)

        waiting = {asyncio.create_task(in_turn(host, pages)) for host, pages in by_host.items()}
        try:
            while waiting and not stopped():
                done, waiting = await asyncio.wait(waiting, timeout=POLL_SECONDS)
                for task in done:
                    task.result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _fetch_host(
        self,
        site: _Site,
        pages: Sequence[str],
        took: Callable[[CrawlEvent], object],
        stopped: Callable[[], bool],
    ) -> None:
        """Fetch the pages of a host, one after the other; once it is silent, the others fail without a try."""
        site.silent = 0
        for url in pages:
            event: CrawlEvent | None = CrawlEvent(url, status=NO_ANSWER, crawler=AGENT)
            if site.silent < SILENT_MAX:
                event = await self._answer(site, url, stopped)
            if event is None:
                return
            took(event)

    async def _wait(self, site: _Site, stopped: Callable[[], bool]) -> bool:
        """Wait until the host's next page may be fetched; return False if stopped in the meantime."""
        while not stopped():
            left = site.free_at - time.monotonic()
            if left <= 0:
                return True
            await asyncio.sleep(min(left, POLL_SECONDS))
        return False

    async def _answer(self, site: _Site, url: str, stopped: Callable[[], bool]) -> CrawlEvent | None:
        """Fetch a page, again and again while its host gives no answer and is not given up; None if stopped.

        A site that is started again loses no page: the ranking does not depend on when it was away.
        """
        wait = RETRY_FIRST_SECONDS
        while await self._wait(site, stopped):
            event, again = await self._page(site, url)
            if event.status != NO_ANSWER or event.excluded:
                site.silent, site.silent_since = 0, None
                return event
            now = time.monotonic()
            site.silent_since = site.silent_since or now
            if not again or now - site.silent_since >= self._limits.retry_seconds:
                site.silent += 1
                return event
            site.free_at = max(site.free_at, now + wait)
            wait *= 2
        return None

    async def _page(self, site: _Site, url: str) -> tuple[CrawlEvent, bool]:
        """Fetch a page; return what was found, as an event, and whether it may help to try again."""
        event, again = CrawlEvent(url, status=NO_ANSWER, crawler=AGENT), False
        delay = self._limits.host_delay_seconds
        try:
            async with asyncio.timeout(self._limits.page_seconds):
                rules = await self._rules(site, url)
                if rules is None or not rules.can_fetch(url, USER_AGENT):
                    event.excluded = rules is not None
                    return event, False
                delay = max(delay, min(rules.crawl_delay(USER_AGENT) or 0.0, CRAWL_DELAY_SECONDS_MAX))
                body, content_type = await self._read(url, event)
            if body:
                event.links, text = await self._links.read(url, body, content_type)
                if self._on_text is not None:
                    self._on_text(url, text)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, UnicodeError) as error:
            again = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
            again = again and not isinstance(error, NotReachable)
            event.status, event.links, event.redirect = NO_ANSWER, [], None
        finally:
            site.free_at = time.monotonic() + delay
        return event, again

    async def _read(self, url: str, event: CrawlEvent) -> tuple[bytes, str | None]:
        """Fetch a page; return its body, empty if it can't have links, and its Content-Type."""
        async with self._web.stream("GET", url) as answer:
            event.fetched_at, event.status = time.time(), answer.status_code
            if 300 <= answer.status_code <= 399:
                event.redirect = _redirect(url, answer)
                return b"", None
            content_type = answer.headers.get("content-type")
            if not answer.is_success or not MediaType.of(content_type).may_have_links:
                return b"", None
            return await _body(answer, self._limits.body_bytes_max), content_type

    async def _rules(self, site: _Site, url: str) -> Protego | None:
        """Return what the robots.txt of the page's site says; None if it does not answer: then nothing is fetched."""
        origin = "://".join(urlsplit(url)[:2])
        if origin not in site.rules:
            rules: Protego | None = None
            target = f"{origin}/robots.txt"
            for _ in range(1 + ROBOTS_REDIRECTS_MAX):
                async with self._web.stream("GET", target) as answer:
                    if answer.has_redirect_location and (onward := _redirect(target, answer)):
                        target = onward
                        continue
                    body = await _body(answer, ROBOTS_BYTES_MAX + 1) if answer.is_success else b""
                    # Without a robots.txt (4xx) all may be fetched: RFC 9309. 429 says nothing of it.
                    if not answer.is_server_error and answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
                        rules = robots_rules(body)
                    break
            if rules is None:
                return None  # Asked again for the next page.
            site.rules[origin] = rules
        return site.rules[origin]


async def _body(answer: httpx.Response, bytes_max: int) -> bytes:
    """Read the beginning of a body, and never decompress more than that: a short answer may hold gigabytes.

    Raises:
        httpx.DecodingError: it is compressed in a way that we did not offer, or damaged.
    """
    coding = answer.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "gzip", "x-gzip"):
        raise httpx.DecodingError(f"content-encoding {coding} was not asked for", request=answer.request)
    packed = bytearray()
    async for part in answer.aiter_raw():
        packed += part
        if len(packed) >= bytes_max:  # Compressed or not: a body that unpacks to nothing may have no end.
            break
    if coding == "identity":
        return bytes(packed[:bytes_max])
    body, whole = decodable(bytes(packed), "gzip", bytes_max)
    if not body and not whole:
        raise httpx.DecodingError("the body is no gzip", request=answer.request)
    return body


def _redirect(url: str, answer: httpx.Response) -> str | None:
    location = answer.headers.get("location")
    return None if location is None else redirect_target(url, location.encode(answer.headers.encoding))
