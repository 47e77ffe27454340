"""A small polite crawler: asks the service what is next, fetches it, and reports what it found.

    python examples/crawler.py https://a.example/ --pages 100

It stays on the host of the URL, keeps to robots.txt, says who it is, follows no redirect by itself (their targets are
links, and get their own turn), and leaves the pace to the service. It fetches each page once, and ends when the service
says that no page is left. If the site asks for a pause (429 or 503 with Retry-After), it gets one. Without a service it
ends at once; one that goes away later is waited for.
"""

import argparse
import sys
import time
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx
from protego import Protego

from opic.client import Client, Event, retry_after_seconds
from opic.html.links import html_links, redirect_target
from opic.robots import robots_rules

AGENT = "opic-example/1"
BATCH = 10
BODY_BYTES_MAX = 2 << 20
FORBID_ALL = b"User-agent: *\nDisallow: /\n"
SLEEP_SECONDS_MAX = 1.0
IDLE_SECONDS_MAX = 600.0  # Pages of a crawler that was killed come back sooner; those that keep failing do not.


class Robots:
    """What the hosts' robots.txt allow; each is asked once."""

    def __init__(self, web: httpx.Client) -> None:
        """Fetch by `web`."""
        self._web, self._rules = web, dict[str, Protego]()

    def allow(self, url: str) -> bool:
        """Tell whether a page may be fetched. A host that does not answer is not asked for more."""
        site = "://".join(urlsplit(url)[:2])
        if site not in self._rules:
            self._rules[site] = robots_rules(self._fetch(f"{site}/robots.txt"))
        return bool(self._rules[site].can_fetch(url, AGENT))

    def _fetch(self, url: str) -> bytes:
        """Fetch a robots.txt: without one all is allowed; while it can't be had, nothing (RFC 9309, 2.3.1)."""
        try:
            with self._web.stream("GET", url, follow_redirects=True) as answer:
                if answer.is_success:
                    return body_of(answer)
                return FORBID_ALL if answer.is_server_error or answer.status_code == 429 else b""
        except httpx.HTTPError:
            return FORBID_ALL


def fetch(web: httpx.Client, robots: Robots, url: str) -> Event:
    """Fetch a page and say what was found, as an event."""
    if not robots.allow(url):
        return Event(url=url, excluded=True, status=0)
    try:
        with web.stream("GET", url) as answer:
            event = Event(url=url, status=answer.status_code, fetched_at=time.time(), addresses=addresses_of(answer))
            if answer.is_error:
                event.retry_after = retry_after_seconds(answer.headers.get("retry-after"))
            if answer.has_redirect_location:
                event.redirect = redirect_target(url, answer.headers["location"].encode(answer.headers.encoding))
            elif answer.is_success:
                event.links = html_links(url, body_of(answer), content_type=answer.headers.get("content-type"))
            return event
    except httpx.HTTPError:
        return Event(url=url, status=0)


def addresses_of(answer: httpx.Response) -> list[str]:
    """Return the address that answered, so that the service spares it, whatever its hosts; none behind a proxy."""
    stream = answer.extensions.get("network_stream")
    return [] if stream is None or getproxies() else [stream.get_extra_info("server_addr")[0]]


def body_of(answer: httpx.Response) -> bytes:
    """Read the beginning of a page."""
    body = bytearray()
    for part in answer.iter_bytes():
        body += part
        if len(body) > BODY_BYTES_MAX:
            break
    return bytes(body[:BODY_BYTES_MAX])


def crawl(service: Client, seed: str, pages_max: int, timeout_seconds: float = 10.0) -> int:
    """Fetch each page of a site once, until `pages_max` pages were fetched or none is left.

    Returns:
        How many pages were fetched.
    """
    service.seed([seed])
    site = urlsplit(seed).hostname
    fetched, idle_since = 0, time.monotonic()
    with httpx.Client(headers={"user-agent": AGENT}, timeout=timeout_seconds) as web:
        robots = Robots(web)
        while fetched < pages_max and time.monotonic() - idle_since < IDLE_SECONDS_MAX:
            found = service.next(min(BATCH, pages_max - fetched), domain=site, mode="discover")
            if found.exhausted:
                break
            if not found.pages:
                time.sleep(min(found.retry_after, SLEEP_SECONDS_MAX))
                continue
            events = list[Event]()
            for page in found.pages:
                event = fetch(web, robots, page.url)
                events.append(event)
                if event.retry_after and event.status in (429, 503):  # The site asks for a pause.
                    break
            for rejected in service.events(events, raise_rejected=False).rejected:
                print(f"rejected: {events[rejected.index].url}: {rejected.error}", file=sys.stderr)
            if later := found.pages[len(events) :]:
                service.release(later)
            fetched, idle_since = fetched + len(events), time.monotonic()
    return fetched


def main() -> None:
    """Crawl as the command line says."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("url", help="where to begin")
    options.add_argument("--pages", type=int, default=100, help="fetch so many at most")
    options.add_argument("--service", default="http://127.0.0.1:8080", help="where opic answers")
    options.add_argument("--token", help="its OPIC_API_TOKEN")
    given = options.parse_args()
    with Client(given.service, token=given.token, crawler="example") as service:
        if not (ready := service.ready()).ready:
            raise SystemExit(f"no service at {given.service}: {ready.reason}")
        print(f"fetched {crawl(service, given.url, given.pages)} pages; the most important ones:")
        for page in service.top(10).pages:
            print(f"{page.importance or 0:.4f}  {page.url}")


if __name__ == "__main__":
    main()
