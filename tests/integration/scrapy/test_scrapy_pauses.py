"""Scrapy's retries, redirects and pauses: real spiders on a site, by the service and, in comparison, without it."""

import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until
from scrapy_crawls import SpiderRun, crawled
from serving import serving_client
from website import WebPage, asking_for_pause, failing_first, linking, redirect, website

from opic.client import Client
from opic.html.links import html_links
from opic.urls.canonical import canonical_url

pytestmark = pytest.mark.slow

DELAY_SECONDS = 1.0
PAUSE_SECONDS = 4
NUMBERS = count(1)

THROTTLED = {"AUTOTHROTTLE_ENABLED": True, "AUTOTHROTTLE_START_DELAY": 0.1}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving_client(tmp_path_factory.mktemp("service"), host_delay_seconds=0, retry_seconds=60) as client:
        yield client


@pytest.fixture(scope="module")
def slow_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving_client(tmp_path_factory.mktemp("slow"), host_delay_seconds=DELAY_SECONDS, retry_seconds=60) as client:
        yield client


@pytest.fixture
def host() -> str:
    """An address of its own for each test, which share a service."""
    return f"127.0.2.{next(NUMBERS)}"


def crawl(folder: Path, service: Client, host: str, start: list[str], **settings: Any) -> SpiderRun:
    return crawled(folder, "everything", start, service.address, **{"allowed_domains": [host], **settings})


def state(client: Client, url: str) -> tuple[str, int]:
    wait_until(lambda: client.stats().lag == 0)
    found = client.explain(url)
    return found.state, found.reads


@pytest.mark.parametrize("settings", [{}, pytest.param(THROTTLED, marks=pytest.mark.thorough)])
def test_delay_of_the_host_holds_for_retries_and_for_requests_of_the_spider(
    slow_service: Client, host: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    failures = {
        "/500": WebPage(status=500),
        "/503": WebPage(status=503),
        "/429": WebPage(status=429, headers={"retry-after": "1"}),
        "/none": WebPage(status=503, headers={"retry-after": "0"}),
        "/slow": WebPage("x" * 60, drip_seconds=1.0),
        "/cookie": redirect("/cookie", "c=1"),
    }
    pages = {path: linking(f"{path}/below") for path in failures} | {f"{path}/below": linking() for path in failures}
    pages |= {"/form": linking()}
    with website(host, failing_first(failures, pages | {"/": linking(*failures)})) as site:
        more = {"OPIC_CLOSE_AFTER_IDLE": 5, "RETRY_TIMES": 2, "DOWNLOAD_TIMEOUT": 5, **settings}
        crawl(tmp_path, slow_service, host, [site.url + "/"], **more)
        expected = dict.fromkeys(pages, 1) | dict.fromkeys(failures, 2) | {"/": 1, "/form": 2}
        assert Counter(site.paths()) == expected
        assert site.kept(DELAY_SECONDS)
        assert {state(slow_service, site.url + path) for path in pages.keys() - {"/form"}} == {("read", 1)}
        assert slow_service.audit().conserved


@pytest.mark.parametrize(("status", "form"), [pytest.param(429, "seconds", marks=pytest.mark.thorough), (503, "date")])
def test_host_that_asks_for_a_pause_gets_one_and_others_go_on(
    service: Client, host: str, tmp_path: Path, status: int, form: str
) -> None:
    many = [f"/{n}" for n in range(8)]  # They wait in the downloader's slot, all at once.
    pages = {"/": linking(*many), "/form": linking()} | dict.fromkeys(many, linking("/below")) | {"/below": linking()}
    others = {"/9": linking()} | {f"/{n}": linking(f"/{n + 1}") for n in range(9)}
    busy = dict[str, float]()

    def first_is_busy(path: str) -> WebPage | None:
        if path not in many or busy:
            return pages.get(path)
        busy[path] = time.monotonic()
        return asking_for_pause(status, PAUSE_SECONDS, form)

    with website(host, first_is_busy) as site, website(f"{host}1", others) as other:
        start = [site.url + "/", other.url + "/0"]
        more = {"allowed_domains": [host, f"{host}1"], "OPIC_CLOSE_AFTER_IDLE": 20, "DOWNLOAD_DELAY": 0.5}
        run = crawl(tmp_path, service, host, start, **more)
        ((path, began),) = busy.items()
        later = [at for _, at in site.asked if at > began]
        assert min(later) >= began + PAUSE_SECONDS - 0.1
        assert any(began < at < min(later) for _, at in other.asked)
        assert Counter(site.paths()) == dict.fromkeys(pages, 1) | {path: 2, "/form": 2}
        assert Counter(other.paths()) == dict.fromkeys(others, 1)
        assert {state(service, site.url + path) for path in (*many, "/", "/below")} == {("read", 1)}
        assert sum(item["method"] == "POST" for item in run.items) == 2


@pytest.mark.parametrize("retries", [pytest.param(0, marks=pytest.mark.thorough), 3])
def test_spider_closes_before_a_long_pause_is_over_and_jobdir_keeps_its_requests(
    service: Client, host: str, tmp_path: Path, retries: int
) -> None:
    pages = {"/": linking("/busy"), "/busy": WebPage(status=503, headers={"Retry-After": "1800"}), "/form": linking()}
    more = {"RETRY_TIMES": retries, "OPIC_CLOSE_AFTER_IDLE": 2, "JOBDIR": str(tmp_path / "job")}
    more |= {"CONCURRENT_REQUESTS_PER_DOMAIN": 1}
    with website(host, pages) as site:
        crawl(tmp_path / "one", service, host, [site.url + "/"], **more)
        assert site.paths().count("/busy") == 1
        waits = service.explain(site.url + "/busy").frontier.waits_until
        assert waits is not None
        assert waits - time.time() > 1_700
        crawl(tmp_path / "two", service, host, [site.url + "/"], **more)  # This one knows of no pause.
        assert Counter(site.paths()) == {"/": 1, "/busy": 1, "/form": 2}


def test_page_behind_a_cookie_is_read_with_its_links(service: Client, host: str, tmp_path: Path) -> None:
    pages = {
        "/": linking("/wall", "/walls", "/member", "/loop"),
        "/wall": WebPage(linking("/in").body, behind=("w=1", redirect("/wall#x", "w=1"))),
        "/walls": WebPage(linking("/in2").body, behind=("a=1", redirect("/walls", "a=1"))),
        "/member": WebPage(linking("/inside").body, behind=("ok=1", redirect("/consent"))),
        "/consent": redirect("/member", "ok=1"),
        "/loop": redirect("/loop"),
        **dict.fromkeys(("/in", "/in2", "/inside", "/form"), linking()),
    }
    with website(host, pages) as site:
        crawl(tmp_path, service, host, [site.url + "/"])
        expected = dict.fromkeys(pages, 1) | dict.fromkeys(("/wall", "/walls", "/member", "/form"), 2)
        assert Counter(site.paths()) == expected
        for path in ("/wall", "/walls", "/in", "/in2", "/inside", "/consent", "/loop"):
            assert state(service, site.url + path) == ("read", 1)
        assert state(service, site.url + "/member") == ("read", 2)  # Once as a redirect to the page of consent.
        assert service.inlinks(site.url + "/inside").inlinks == [site.url + "/member"]
        assert service.inlinks(site.url + "/in").inlinks == [site.url + "/wall"]


def test_circle_of_redirects_that_set_cookies_ends(service: Client, host: str, tmp_path: Path) -> None:
    pages = {"/": linking("/circle", "/a"), "/circle": redirect("/circle", "c=1"), "/form": linking()}
    pages |= {"/a": redirect("/b", "c=1"), "/b": redirect("/a", "c=1")}
    with website(host, pages) as site:
        crawl(tmp_path, service, host, [site.url + "/"], REDIRECT_MAX_TIMES=5)
        asked = Counter(site.paths())
        assert asked["/circle"] == 6
        assert asked["/a"] + asked["/b"] <= 2 * 6
        assert state(service, site.url + "/circle") == ("read", 1)
        assert state(service, site.url + "/a")[0] == state(service, site.url + "/b")[0] == "read"
        assert service.audit().conserved


@pytest.mark.parametrize(
    ("raw", "target"),
    [("/café".encode(), "/caf%C3%A9"), (b"/caf\xe9", "/caf%E9"), (b"/a%20b", "/a%20b")],
    ids=["utf-8", "latin-1", "escaped"],
)
def test_bytes_of_a_location_are_escaped_as_they_are(
    service: Client, host: str, tmp_path: Path, raw: bytes, target: str
) -> None:
    pages = {"/": linking("/moved"), "/moved": redirect(raw.decode("latin-1")), target: linking(), "/form": linking()}
    with website(host, pages) as site:
        crawl(tmp_path, service, host, [site.url + "/"])
        assert Counter(site.paths()) == dict.fromkeys(pages, 1) | {"/form": 2}
        assert service.inlinks(site.url + target).inlinks == [site.url + "/moved"]


def pages_in_encodings() -> dict[str, WebPage]:
    """Pages whose links need their encoding, by path; and below them, where they lead."""
    types = (
        "Text/HTML; Charset=ISO-8859-2",
        'text/html;charset="iso-8859-2"',
        "TEXT/HTML ; version=1; charset=iso-8859-2",
    )
    named = '<meta http-equiv="content-type" content="text/html; charset=gbk"><a href="/p?q=中">x</a>'
    return {
        **{
            f"/t/{n}": WebPage(f'<a href="/ł{n}">x</a>'.encode("iso-8859-2"), headers={"content-type": kind})
            for n, kind in enumerate(types)
        },
        "/prescan": WebPage(named.encode("gbk"), headers={"content-type": "text/html"}),
        "/unnamed": WebPage('<a href="/u?q=é&amp;r">x</a>'.encode("cp1252"), headers={"content-type": "text/html"}),
    }


def hard_site() -> tuple[dict[str, WebPage], dict[str, WebPage]]:
    """A site with all that the tests above have; and what fails when it is first asked for."""
    failures = {
        "/503": WebPage(status=503),
        "/429": WebPage(status=429, headers={"retry-after": "1"}),
        "/dated": asking_for_pause(503, 1, "date"),
    }
    encoded = pages_in_encodings()
    redirects = {
        "/raw": redirect("/caf\xe9"),
        "/raw8": redirect("/thé".encode().decode("latin-1")),
        "/moved": redirect("/target"),
    }
    others = {
        "/refresh": WebPage('<meta http-equiv="Refresh" content="0; URL=refreshed?a=1"><a href="/last">x</a>'),
        "/x/base": WebPage('<base href="/deep/"><a href="one">x</a><a href="../last#part">x</a><a href="?">x</a>'),
        "/elsewhere": WebPage('<base href="http://elsewhere.example/"><a href="no">x</a>'),
        "/text": WebPage('<a href="/no">x</a>', headers={"content-type": "text/plain"}),
        # Three pages, the third of which Scrapy asks for without the question mark.
        "/names": linking("/one#a", "/./one", "/y/../one", "/one#", "/two%41", "/three?", "/again"),
        **dict.fromkeys(("/Doc", "/doc", "/again", *failures), linking("/last")),
        **{f"/chain/{n}": linking(f"/chain/{n + 1}", "/text") for n in range(4)},
    }
    first = linking("/nothing", "/chain/0", *encoded, *redirects, *others)
    walled = {
        "/": WebPage(first.body, behind=("w=1", redirect("/", "w=1"))),
        "/consent": redirect("/member", "ok=1"),
        "/member": WebPage(linking("/inside").body, behind=("ok=1", redirect("/consent", "seen=1"))),
    }
    below = (
        "/caf%E9 /th%C3%A9 /target /refreshed?a=1 /deep/one /deep/ /last /one /two%41 /three /chain/4 /inside /form "
        "/%C5%820 /%C5%821 /%C5%822 /p?q=%D6%D0 /u?q=%E9&r"
    )
    return encoded | redirects | others | walled | dict.fromkeys(below.split(), linking()), failures


def test_same_pages_and_links_as_by_scrapy_alone(service: Client, host: str, tmp_path: Path) -> None:
    seen, asked = [], []
    for name, settings in (("alone", {"ADDONS": {}}), ("opic", {"OPIC_CLOSE_AFTER_IDLE": 5})):
        pages, failures = hard_site()
        with website(host, failing_first(failures, pages)) as site:
            start = [site.url + "/", site.url + "/member"]
            run = crawl(tmp_path / name, service, host, start, RETRY_TIMES=2, **settings)
            seen.append(
                Counter((item["url"].removeprefix(site.url), item["status"], item["method"]) for item in run.items)
            )
            asked.append(Counter(site.paths()))
    assert seen[0] == seen[1]
    assert asked[0] == asked[1]
    assert asked[0].keys() == pages.keys() | {"/nothing"}
    wait_until(lambda: service.stats().lag == 0)
    expected = {
        (site.url + path, canonical_url(link))
        for path, page in pages.items() if page.status == 200
        for link in html_links(site.url + path, page.body, content_type=page.headers.get("content-type", "text/html"))
    }  # fmt: skip
    expected |= {(site.url + path, site.url + target) for path, target in (
        ("/raw", "/caf%E9"), ("/raw8", "/th%C3%A9"), ("/moved", "/target"), ("/consent", "/member"),
    )}  # fmt: skip
    targets = {link for _, link in expected}
    assert {(page, link) for link in targets for page in service.inlinks(link, 1_000).inlinks} == expected
