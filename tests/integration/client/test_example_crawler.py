"""The example crawler on a site of our own: what it fetches, how fast, and what the service learns of it."""

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from processes import wait_until
from repository import ROOT
from serving import serving
from website import WebPage, website

from opic.client import Client
from opic.service.service import EmbeddedService
from opic.settings import Settings

pytestmark = pytest.mark.slow

DELAY_SECONDS = 0.1
PAGES = {
    "/": '<a href="a">a</a><A HREF="b#x">b</A><a href="/private/x">x</a><a href="http://[bad">y</a><a>z</a>',
    "/a": '<a href="/">home</a><a href="old">old</a><a href="gone">gone</a><a href="mailto:x@a.example">m</a>',
    "/b": '<a href="/">home</a><a href="http://elsewhere.example/">away</a>',
    "/new": '<a href="/">home</a>',
}


class Site(BaseHTTPRequestHandler):
    """A site of four pages, one that moved and one that is gone; it notes who came when."""

    seen: list[tuple[float, str, str]]

    def do_GET(self) -> None:
        self.seen.append((time.monotonic(), self.path, self.headers["user-agent"]))
        if self.path == "/robots.txt":
            self.say(200, b"User-agent: *\nDisallow: /private/\n", "text/plain")
        elif self.path == "/old":
            self.say(301, b"", "text/html", "/new")
        else:
            self.say(200 if self.path in PAGES else 404, PAGES.get(self.path, "").encode(), "text/html; charset=utf-8")

    def say(self, status: int, body: bytes, kind: str, location: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""


@contextmanager
def serving_site(kind: type[Site]) -> Iterator[str]:
    Site.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def site() -> Iterator[str]:
    with serving_site(Site) as url:
        yield url


@pytest.fixture
def crawler() -> ModuleType:
    spec = spec_from_file_location("example_crawler", ROOT / "examples/crawler.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_site_is_crawled_politely_and_ranked(site: str, crawler: ModuleType, tmp_path: Path) -> None:
    settings = Settings.load(data=tmp_path, host_delay_seconds=DELAY_SECONDS, retry_seconds=3_600)
    with EmbeddedService(settings) as service, serving(service) as url, Client(url, crawler="example") as client:
        fetched = crawler.crawl(client, f"{site}/", pages_max=9)
        wait_until(lambda: client.stats().lag == 0)
        reads = {path: client.importance(site + path).reads for path in (*PAGES, "/old", "/private/x", "/gone")}
        gone = client.importance(f"{site}/gone").gone
        best = client.top(1, domain="127.0.0.1").pages[0].url
        assert client.importance("http://elsewhere.example/").reads == 0
        assert client.audit().conserved
        assert client.politeness(host="127.0.0.1").host_group.address == "127.0.0.1"
    assert fetched == len(PAGES) + len(("/old", "/gone", "/private/x"))  # Then the service said that none was left.
    assert {reads[path] for path in (*PAGES, "/old")} == {1}
    assert (reads["/private/x"], reads["/gone"], gone) == (0, 0, True)
    assert best == f"{site}/"
    asked = Counter(path for _, path, _ in Site.seen)
    assert set(asked.values()) == {1}
    assert not asked["/private/x"]
    assert {agent for _, _, agent in Site.seen} == {crawler.AGENT}
    times = [at for at, path, _ in Site.seen if path != "/robots.txt"]
    assert min(after - before for before, after in pairwise(times)) > DELAY_SECONDS / 2
    assert times[-1] - times[0] > (len(times) - 1) * DELAY_SECONDS * 0.9


@pytest.mark.parametrize(
    ("status", "robots", "path", "free"),
    [
        (200, "\ufeffUser-agent: *\nDisallow: /a\n", "/a", False),
        (200, "User-agent: *\nDisallow: /*.pdf$\nAllow: /x/open.pdf\n", "/x/y.pdf", False),
        (200, "User-agent: *\nDisallow: /*.pdf$\nAllow: /x/open.pdf\n", "/x/open.pdf", True),
        (403, "User-agent: *\nDisallow: /", "/", True),
        (429, "", "/", False),
        (503, "", "/", False),
    ],
)
def test_robots_txt_is_read_as_search_engines_read_it(
    crawler: ModuleType, status: int, robots: str, path: str, free: bool
) -> None:
    with website("127.0.0.1", {"/robots.txt": WebPage(robots, status)}) as site, httpx.Client() as web:
        assert crawler.Robots(web).allow(site.url + path) == free
    with httpx.Client() as web:
        assert not crawler.Robots(web).allow(site.url + path)  # It gives no answer now.


class LargerSite(Site):
    """A tree of pages, each of which takes a moment."""

    PAGES = 40

    def do_GET(self) -> None:
        self.seen.append((time.monotonic(), self.path, self.headers["user-agent"]))
        number = 0 if self.path == "/" else int(self.path[1:]) if self.path[1:].isdigit() else None
        if number is None:
            self.say(404, b"", "text/plain")
            return
        time.sleep(0.02)
        below = [at for at in (2 * number + 1, 2 * number + 2) if at < self.PAGES]
        self.say(200, "".join(f'<a href="/{at}">{at}</a>' for at in below).encode(), "text/html")


@pytest.mark.slow
def test_crawlers_share_a_site_and_end_though_one_is_killed(tmp_path: Path) -> None:
    with serving_site(LargerSite) as site, ExitStack() as stack:
        settings = Settings.load(data=tmp_path, host_delay_seconds=0, lease_seconds=2, retry_seconds=0.2)
        service = stack.enter_context(EmbeddedService(settings))
        url = stack.enter_context(serving(service))
        client = stack.enter_context(Client(url))
        command = [sys.executable, str(ROOT / "examples/crawler.py"), f"{site}/", "--service", url]
        crawlers = [stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE)) for _ in range(3)]
        wait_until(lambda: len(Site.seen) > LargerSite.PAGES // 4)
        crawlers[0].kill()
        assert [crawler.wait(60) for crawler in crawlers[1:]] == [0, 0]
        pages = ["/", *(f"/{number}" for number in range(1, LargerSite.PAGES))]
        assert {client.importance(site + path).reads for path in pages} == {1}
        last = client.next(1, mode="discover")
        assert (last.exhausted, last.waiting.leased, last.waiting.retry) == (True, 0, 0)
        assert client.next(1).waiting.revisit == LargerSite.PAGES


class BusySite(Site):
    """A site that asks for a pause once, by a date or in seconds, and then answers."""

    PAGES = ("/one", "/two", "/three", "/four")
    PAUSE_SECONDS = 3
    header: Callable[[], str]
    paused_at: float | None

    def do_GET(self) -> None:
        kind = type(self)
        self.seen.append((time.monotonic(), self.path, self.headers["user-agent"]))
        if self.path == "/":
            self.say(200, "".join(f'<a href="{page}">{page}</a>' for page in self.PAGES).encode(), "text/html")
        elif self.path == "/robots.txt":
            self.say(404, b"", "text/plain")
        elif kind.paused_at is None:
            kind.paused_at = time.monotonic()
            self.send_response(503)
            self.send_header("Retry-After", kind.header())
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.say(200, b"", "text/html")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_site_that_asks_for_a_pause_gets_one(crawler: ModuleType, tmp_path: Path, form: str) -> None:
    later = lambda: formatdate(time.time() + BusySite.PAUSE_SECONDS + 1, usegmt=True)  # noqa: E731 - whole seconds
    BusySite.header = staticmethod(later if form == "date" else lambda: str(BusySite.PAUSE_SECONDS))
    BusySite.paused_at = None
    settings = Settings.load(data=tmp_path, host_delay_seconds=0, retry_seconds=3_600)
    with (
        serving_site(BusySite) as site,
        EmbeddedService(settings) as service,
        serving(service) as url,
        Client(url, crawler="example") as client,
    ):
        crawler.crawl(client, f"{site}/", pages_max=20)
        assert client.stats().read_pages == 1 + len(BusySite.PAGES)
    asked = Counter(path for _, path, _ in Site.seen)
    assert [asked[page] for page in BusySite.PAGES] == [2, 1, 1, 1]  # The other pages of its batch were released.
    assert BusySite.paused_at is not None
    after = min(at for at, _, _ in Site.seen if at > BusySite.paused_at + 0.001)
    assert after >= BusySite.paused_at + BusySite.PAUSE_SECONDS


def test_without_a_service_the_crawler_says_so(crawler: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["crawler.py", "http://a.example/", "--service", "http://127.0.0.1:1"])
    with pytest.raises(SystemExit, match="no service at http"):
        crawler.main()
