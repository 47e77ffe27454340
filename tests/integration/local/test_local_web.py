"""Fetching real pages over HTTP: politely, by robots.txt, within limits; whatever a website does, it ends."""

import gzip
import ssl
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from certificates import Certificate
from public_names import Names
from website import WebPage, Website, linking, redirect, website

from opic.addresses import is_public
from opic.errors import BadInput
from opic.local.estimator import Estimator, EstimatorOptions
from opic.local.journal import Journal
from opic.local.web import SILENT_MAX, WebFetcher, WebLimits
from opic.model.events import CrawlEvent, EventLimits
from opic.urls.normalization import Normalization

GUARDED = WebLimits(host_delay_seconds=0, page_seconds=20.0, retry_seconds=0)
QUICK = WebLimits(host_delay_seconds=0, page_seconds=1.0, retry_seconds=0, allow_private=True)


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


def test_bytes_of_a_location_are_escaped_as_they_are(sites: Sites) -> None:
    targets = {
        "/utf-8": ("/café".encode(), "/caf%C3%A9"),
        "/latin-1": (b"/caf\xe9", "/caf%E9"),
        "/a": (b"b%20c", "/b%20c"),
    }
    site = sites({path: redirect(raw.decode("latin-1")) for path, (raw, _) in targets.items()})
    events = fetched([site.url + path for path in targets])
    for path, (_, target) in targets.items():
        assert events[site.url + path].redirect == site.url + target


def test_robots_txt_is_obeyed(sites: Sites) -> None:
    robots = WebPage("User-agent: *\nDisallow: /private*.html$\n\nUser-agent: opic-local\nDisallow: /mine\n")
    site = sites({"/robots.txt": robots, "/mine": linking("/"), "/private1.html": linking("/")})
    events = fetched([f"{site.url}/mine", f"{site.url}/private1.html"])
    assert (events[f"{site.url}/mine"].status, events[f"{site.url}/mine"].excluded) == (0, True)
    assert events[f"{site.url}/private1.html"].status == 200  # The group that names us is the one that counts.
    assert "/mine" not in site.paths()


@pytest.mark.parametrize(
    ("robots", "private"),
    [
        ("\ufeffUser-agent: *\nDisallow: /a/private\n", True),
        ("\ufeff\ufeffUser-agent: *\nDisallow: /a/private\n", True),
        ("User-agent: *\r\nDisallow: /*private$\r\n", True),
        ("User-agent: *\rDisallow: /*/private\rAllow: /a/p\r", True),  # The longest pattern counts,
        ("User-agent: *\nDisallow: /\nAllow: /a\n", False),
        ("User-agent: *\nDisallow: /a\nAllow: /a\n", False),  # of two as long the one that allows.
        ("User-agent: *\nDisallow: /a/private.html$\n", False),
    ],
)
def test_robots_txt_is_read_with_marks_and_wildcards(sites: Sites, robots: str, private: bool) -> None:
    site = sites({"/robots.txt": WebPage(robots), "/a/private": linking("/")})
    assert fetched([f"{site.url}/a/private"])[f"{site.url}/a/private"].excluded == private


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
    limits = WebLimits(host_delay_seconds=0.2, page_seconds=5, allow_private=True)
    fetched([f"{site.url}/{n}" for site in (patient, plain) for n in range(3)], limits)
    for site, delay in ((patient, 0.4), (plain, 0.2)):
        times = [at for path, at in site.asked if path != "/robots.txt"]
        assert min(b - a for a, b in pairwise(times)) >= delay - 0.01


@pytest.mark.slow
def test_hosts_are_fetched_side_by_side(sites: Sites) -> None:
    slow = [sites({"/robots.txt": WebPage("#" * 8, drip_seconds=0.3)}, f"127.0.0.{n}") for n in range(1, 6)]
    fetched([f"{site.url}/" for site in slow], WebLimits(0, 10, allow_private=True))
    asked = [dict(site.asked) for site in slow]
    assert max(one["/robots.txt"] for one in asked) < min(one["/"] for one in asked)


def test_slow_page_is_abandoned_and_a_silent_host_is_left_alone(sites: Sites) -> None:
    dripping = WebPage("x" * 1_000, drip_seconds=0.1)
    site = sites({f"/{n}": dripping for n in range(10)})
    urls = [f"{site.url}/{n}" for n in range(10)]
    began = time.monotonic()
    events = fetched(urls, WebLimits(0, 0.3, allow_private=True))
    assert {event.status for event in events.values()} == {0}
    assert time.monotonic() - began < 5
    assert len([path for path in site.paths() if path != "/robots.txt"]) == SILENT_MAX


def test_missing_host_and_closed_port_count_as_no_answer() -> None:
    urls = ["http://none.invalid/", "http://127.0.0.1:1/"]
    assert {event.status for event in fetched(urls).values()} == {0}


def test_long_page_is_read_up_to_the_limit(sites: Sites) -> None:
    body = '<a href="/first">' + " " * 50_000 + '<a href="/last">'
    site = sites({"/": WebPage(body)})
    assert fetched([f"{site.url}/"], WebLimits(0, 5, body_bytes_max=10_000, allow_private=True))[
        f"{site.url}/"
    ].links == [f"{site.url}/first"]


def test_stopped_fetcher_leaves_the_rest(sites: Sites) -> None:
    site = sites({})
    urls, events = [f"{site.url}/{n}" for n in range(5)], list[CrawlEvent]()
    with WebFetcher(WebLimits(host_delay_seconds=60, page_seconds=5, allow_private=True)) as web:
        web.fetch(urls, events.append, lambda: bool(events))
    assert len(events) == 1


def test_trap_gets_only_a_share_of_the_fetches(sites: Sites) -> None:
    with website("127.0.0.2", lambda path: linking(*(f"{path}/{n}" for n in range(20)))) as trap:
        other = sites({}, "127.0.0.3")
        links = [f"{trap.url}/{n}" for n in range(50)] + [f"{other.url}/{n}" for n in range(3)]
        home = sites({"/": linking(*links, "/1"), "/1": linking("/", *links[:50])})
        limits = WebLimits(0, 5, host_pages_max=2, allow_private=True)
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


def test_domain_whose_pages_are_missing_is_refused(sites: Sites) -> None:
    home = sites({})
    with WebFetcher(QUICK) as web:
        estimator = Estimator("127.0.0.1", EstimatorOptions(5, "sc"), web, Journal("127.0.0.1"))
        with pytest.raises(BadInput, match=r"no page of 127\.0\.0\.1 was fetched"):
            estimator.open(None, [f"{home.url}/"])


def test_redirects_out_and_back_and_in_a_circle_end(sites: Sites) -> None:
    home, other = sites({}), sites({}, "127.0.0.2")
    home.pages = {"/": linking(f"{other.url}/out", f"{other.url}/circle"), "/back": linking("/")}
    other.pages = {
        "/out": redirect(f"{home.url}/back"),
        "/circle": redirect("/circle2"),
        "/circle2": redirect("/circle"),
    }
    with WebFetcher(QUICK) as web:
        estimator = Estimator("127.0.0.1", EstimatorOptions(20, "sc", 1), web, Journal("127.0.0.1"))
        estimator.open(None, [f"{home.url}/"])
        while not estimator.done and estimator.round():
            pass
        found = estimator.ranking()
    assert (found.urls, found.outside_fetched, found.failed) == ([f"{home.url}/"], 3, 0)
    assert {path for path in other.paths() if path != "/robots.txt"} == {"/out", "/circle", "/circle2"}
    assert found.frontier == []


def test_page_that_redirects_to_another_name_of_it_is_fetched_under_that(sites: Sites) -> None:
    home = sites({})
    home.pages = {
        "/": redirect("/index.html"),
        "/index.html": linking("/b/", "/c/"),
        "/b/": redirect("index.php"),
        "/b/index.php": linking("/"),
        "/c/": redirect("index.php"),
        "/c/index.php": redirect("/c/"),
    }
    options = EstimatorOptions(5, "sc", limits=EventLimits(normalization=Normalization.of("index")))
    with WebFetcher(QUICK) as web:
        estimator = Estimator("127.0.0.1", options, web, Journal("127.0.0.1"))
        estimator.open(None, [f"{home.url}/"])
        found = estimator.ranking()
    assert sorted(found.urls) == [f"{home.url}/", f"{home.url}/b/"]
    asked = Counter(path for path in home.paths() if path != "/robots.txt")
    assert asked == {"/": 1, "/index.html": 1, "/b/": 1, "/b/index.php": 1, "/c/": 3, "/c/index.php": 2}


# What must not be reached, and what must not be taken in.


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254",
        "168.63.129.16", "192.0.0.192", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::", "::1", "::127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::",
        "2001:0:1::1", "2001:db8::1", "fd00:ec2::254", "fe80::1", "fe80::1%1", "fec0::1", "ff0e::1",
    ],
)  # fmt: skip
def test_address_of_this_machine_or_network_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"])
def test_private_host_is_not_connected_to(sites: Sites, host: str, caplog: pytest.LogCaptureFixture) -> None:
    site = sites({"/": linking("/1")})
    url = site.url.replace("127.0.0.1", host)
    events = fetched([f"{url}/", f"{url}/2"], GUARDED)
    assert [(event.status, event.excluded) for event in events.values()] == [(0, False)] * 2
    assert site.asked == []
    assert caplog.text.count("it is fetched with --allow-private only") == 1


def test_name_that_resolves_to_another_address_later_does_not_rebind(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = sites({"/": linking("/1")}, "127.0.0.2")
    url = site.url.replace("127.0.0.2", "rebinding.example")
    # One for robots.txt, one for the first page; the second page finds the address that must not be reached.
    Names(monkeypatch, rebinding=[["127.0.0.2"], ["127.0.0.2"], ["127.0.0.1"]])
    events = fetched([f"{url}/", f"{url}/2"], GUARDED)
    assert events[f"{url}/"].links == [f"{url}/1"]
    assert events[f"{url}/2"].status == 0
    assert site.paths() == ["/robots.txt", "/"]


def test_only_public_addresses_of_a_host_are_tried_until_one_answers(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, private = sites({"/": linking("/1")}, "127.0.0.2"), sites({})
    url = site.url.replace("127.0.0.2", "many.example")
    Names(monkeypatch, many=[["127.0.0.1", "127.0.0.9", "127.0.0.2"]] * 2)
    assert fetched([f"{url}/"], GUARDED)[f"{url}/"].status == 200
    assert private.asked == []


def test_redirect_to_a_private_address_is_not_followed(sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    private = sites({"/secret": linking("/1")})
    site = sites({"/robots.txt": redirect(f"{private.url}/secret"), "/": linking("/1")}, "127.0.0.2")
    Names(monkeypatch)
    assert fetched([f"{site.url}/"], GUARDED)[f"{site.url}/"].status == 0
    onward = sites({"/": redirect(f"{private.url}/secret")}, "127.0.0.3")
    home = sites({"/": linking(f"{onward.url}/")}, "127.0.0.4")
    with WebFetcher(GUARDED) as web:
        estimator = Estimator("127.0.0.4", EstimatorOptions(5, "sc"), web, Journal("127.0.0.4"))
        estimator.open(None, [f"{home.url}/"])
        while not estimator.done and estimator.round():
            pass
    assert (estimator.outside_fetched, estimator.ranking().failed) == (1, 1)
    assert private.asked == []


def test_certificate_has_to_name_the_host_and_not_the_address(
    sites: Sites, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate = Certificate.make(tmp_path, "DNS:right.example")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.file, certificate.key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
    site = sites({"/": linking("/1")}, "127.0.0.2")
    site.speak_tls(context)
    port = urlsplit(site.url).port
    Names(monkeypatch, right=[["127.0.0.2"]] * 2, wrong=[["127.0.0.2"]] * 2)
    urls = [f"https://{name}.example:{port}/" for name in ("right", "wrong")]
    events = fetched(urls, GUARDED)
    assert [events[url].status for url in urls] == [200, 0]


def test_body_that_unpacks_to_nothing_ends(sites: Sites) -> None:
    empty = gzip.compress(b"", mtime=0) * 50_000
    page = WebPage(gzip.compress(b'<a href="/1">') + empty, headers={"content-encoding": "gzip"})
    site = sites({"/": page, "/2": linking("/3")})
    tracemalloc.start()
    try:
        events = fetched(
            [f"{site.url}/", f"{site.url}/2"], WebLimits(0, 60, body_bytes_max=100_000, allow_private=True)
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [event.links for event in events.values()] == [[f"{site.url}/1"], [f"{site.url}/3"]]
    assert peak < 4 << 20


def test_body_of_several_gzip_members_is_read_whole(sites: Sites) -> None:
    members = b"".join(gzip.compress(f'<a href="/{n}">'.encode()) for n in range(3))
    site = sites({"/": WebPage(members, headers={"content-encoding": "gzip"})})
    assert fetched([f"{site.url}/"])[f"{site.url}/"].links == [f"{site.url}/{n}" for n in range(3)]


def test_decompression_bomb_is_not_unpacked(sites: Sites) -> None:
    bomb = gzip.compress(b'<a href="/first">' + b" " * (64 << 20) + b'<a href="/last">')
    site = sites({"/": WebPage(bomb, headers={"content-encoding": "gzip"})})
    tracemalloc.start()
    try:
        event = fetched([f"{site.url}/"], WebLimits(0, 60, body_bytes_max=100_000, allow_private=True))[f"{site.url}/"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (event.status, event.links) == (200, [f"{site.url}/first"])
    assert peak < 16 << 20


@pytest.mark.parametrize(
    ("page", "status"),
    [
        (WebPage("<a href=x>", headers={"content-encoding": "zstd"}), 0),
        (WebPage("no gzip", headers={"content-encoding": "gzip"}), 0),
        (WebPage("<a href=x>" + "a-" * 500_000, headers={"content-type": "text/html; charset=punycode"}), 200),
        (WebPage("<a href=x>", headers={"content-type": "text/html; charset=rot13"}), 200),
    ],
)  # fmt: skip
def test_body_of_an_unusual_type_does_no_harm(sites: Sites, page: WebPage, status: int) -> None:
    site = sites({"/": page})
    event = fetched([f"{site.url}/"], WebLimits(0, 60, allow_private=True))[f"{site.url}/"]
    assert (event.status, len(event.links)) == (status, status // 200)


@pytest.mark.slow
def test_page_that_takes_the_parser_too_long_has_no_links_and_the_next_one_has(
    sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    deep = WebPage("<div>" * 200_000 + "<a href=x>")  # A minute and more.
    site = sites({"/1": linking("/"), "/2": deep, "/3": linking("/")})
    events = fetched([f"{site.url}/{n}" for n in (1, 2, 3)], WebLimits(0, 60, allow_private=True))
    assert [(events[f"{site.url}/{n}"].status, len(events[f"{site.url}/{n}"].links)) for n in (1, 2, 3)] == [
        (200, 1),
        (200, 0),
        (200, 1),
    ]
    assert "takes too much time or memory to parse" in caplog.text
