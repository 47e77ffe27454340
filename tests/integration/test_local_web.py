"""Fetching real pages over HTTP: politely, by robots.txt, within limits; whatever a website does, it ends."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise

import pytest
from website import WebPage, Website, linking, redirect, website

from opic.local.estimator import Estimator, EstimatorOptions
from opic.local.journal import Journal
from opic.local.web import SILENT_MAX, WebFetcher, WebLimits
from opic.model.events import CrawlEvent

QUICK = WebLimits(host_delay_seconds=0, page_seconds=1.0)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def sites() -> Iterator["Sites"]:
    with ExitStack() as stack:
        yield Sites(stack)


class Sites:
    """Makes websites that are stopped at the end."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __call__(self, pages: dict[str, WebPage], address: str = "127.0.0.1") -> Website:
        return self._stack.enter_context(website(address, pages))


def fetched(urls: Sequence[str], limits: WebLimits = QUICK) -> dict[str, CrawlEvent]:
    events: dict[str, CrawlEvent] = {}
    with WebFetcher(limits) as web:
        web.fetch(urls, lambda event: events.__setitem__(event.url, event), lambda: False)
    assert list(events) == [url for url in events if url in urls]
    assert len(events) == len(urls)
    return events


def test_page_redirect_and_missing_page_are_events(sites: Sites) -> None:
    site = sites({
        "/": linking("/1", "http://b.example/x#part"),
        "/moved": redirect("/1"),
        "/text": WebPage('<a href="/2">', headers={"content-type": "text/plain"}),
        "/base": WebPage('<base href="http://c.example/d/"><a href="e">'),
    })  # fmt: skip
    paths = ["/", "/moved", "/text", "/base", "/none"]
    events = fetched([site.url + path for path in paths])
    found = {path: events[site.url + path] for path in paths}
    assert found["/"].links == [f"{site.url}/1", "http://b.example/x#part"]
    assert (found["/moved"].status, found["/moved"].redirect) == (302, f"{site.url}/1")
    assert (found["/text"].status, found["/text"].links) == (200, [])
    assert found["/base"].links == ["http://c.example/d/e"]
    assert found["/none"].status == 404
    assert site.paths().count("/robots.txt") == 1


def test_robots_txt_is_obeyed(sites: Sites) -> None:
    robots = WebPage("User-agent: *\nDisallow: /private*.html$\n\nUser-agent: opic-local\nDisallow: /mine\n")
    site = sites({"/robots.txt": robots, "/mine": linking("/"), "/private1.html": linking("/")})
    events = fetched([f"{site.url}/mine", f"{site.url}/private1.html"])
    assert (events[f"{site.url}/mine"].status, events[f"{site.url}/mine"].excluded) == (0, True)
    assert events[f"{site.url}/private1.html"].status == 200  # The group that names us is the one that counts.
    assert "/mine" not in site.paths()


def test_site_whose_robots_txt_fails_is_left_alone(sites: Sites) -> None:
    site = sites({"/robots.txt": WebPage(status=500), "/": linking("/1")})
    event = fetched([f"{site.url}/"])[f"{site.url}/"]
    assert (event.status, event.excluded) == (0, False)
    assert site.paths() == ["/robots.txt"]


def test_robots_txt_behind_a_redirect_counts_and_a_loop_of_them_ends(sites: Sites) -> None:
    site = sites({"/robots.txt": redirect("/r"), "/r": WebPage("User-agent: *\nDisallow: /"), "/": linking("/1")})
    assert fetched([f"{site.url}/"])[f"{site.url}/"].excluded
    loop = sites({"/robots.txt": redirect("/robots.txt"), "/": linking("/1")}, "127.0.0.2")
    assert fetched([f"{loop.url}/"])[f"{loop.url}/"].status == 0


def test_host_delay_and_crawl_delay_are_kept(sites: Sites) -> None:
    patient = sites({"/robots.txt": WebPage("User-agent: *\nCrawl-delay: 0.4")})
    plain = sites({}, "127.0.0.2")
    limits = WebLimits(host_delay_seconds=0.2, page_seconds=5)
    fetched([f"{site.url}/{n}" for site in (patient, plain) for n in range(3)], limits)
    for site, delay in ((patient, 0.4), (plain, 0.2)):
        times = [at for path, at in site.asked if path != "/robots.txt"]
        assert min(b - a for a, b in pairwise(times)) >= delay - 0.01


def test_hosts_are_fetched_side_by_side(sites: Sites) -> None:
    slow = [sites({"/robots.txt": WebPage("#" * 8, drip_seconds=0.3)}, f"127.0.0.{n}") for n in range(1, 6)]
    fetched([f"{site.url}/" for site in slow], WebLimits(0, 10))
    asked = [dict(site.asked) for site in slow]
    assert max(one["/robots.txt"] for one in asked) < min(one["/"] for one in asked)


def test_slow_page_is_given_up_and_a_silent_host_is_left_alone(sites: Sites) -> None:
    dripping = WebPage("x" * 1_000, drip_seconds=0.1)
    site = sites({f"/{n}": dripping for n in range(10)})
    urls = [f"{site.url}/{n}" for n in range(10)]
    began = time.monotonic()
    events = fetched(urls, WebLimits(0, 0.3))
    assert {event.status for event in events.values()} == {0}
    assert time.monotonic() - began < 5
    assert len([path for path in site.paths() if path != "/robots.txt"]) == SILENT_MAX


def test_host_that_does_not_exist_and_port_without_server_are_no_answer() -> None:
    urls = ["http://none.invalid/", "http://127.0.0.1:1/"]
    assert {event.status for event in fetched(urls).values()} == {0}


def test_rest_of_a_long_page_is_not_read(sites: Sites) -> None:
    body = '<a href="/first">' + " " * 50_000 + '<a href="/last">'
    site = sites({"/": WebPage(body)})
    assert fetched([f"{site.url}/"], WebLimits(0, 5, body_bytes_max=10_000))[f"{site.url}/"].links == [
        f"{site.url}/first"
    ]


def test_stopped_fetcher_leaves_the_rest(sites: Sites) -> None:
    site = sites({})
    urls, events = [f"{site.url}/{n}" for n in range(5)], list[CrawlEvent]()
    with WebFetcher(WebLimits(host_delay_seconds=60, page_seconds=5)) as web:
        web.fetch(urls, events.append, lambda: bool(events))
    assert len(events) == 1


def test_trap_gets_only_a_share_of_the_fetches(sites: Sites) -> None:
    with website("127.0.0.2", lambda path: linking(*(f"{path}/{n}" for n in range(20)))) as trap:
        other = sites({}, "127.0.0.3")
        links = [f"{trap.url}/{n}" for n in range(50)] + [f"{other.url}/{n}" for n in range(3)]
        home = sites({"/": linking(*links, "/1"), "/1": linking("/", *links[:50])})
        limits = WebLimits(0, 5, host_pages_max=2)
        with WebFetcher(limits) as web:
            estimator = Estimator("127.0.0.1", EstimatorOptions(12, "sc", 4), web, Journal("127.0.0.1"))
            estimator.open(None, [f"{home.url}/"])
            while not estimator.done and estimator.round():
                pass
            found = estimator.ranking()
        assert sorted(found.urls) == [f"{home.url}/", f"{home.url}/1"]
        assert len([path for path in trap.paths() if path != "/robots.txt"]) <= 10
        assert {"/0", "/1", "/2"} <= set(other.paths())
        assert found.outside_fetched + found.failed == 12
