"""Crawlee's requests: depth, pauses, retries, several requests of a page, cookie walls, on a site and a service."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from crawlee import Request
from crawlee.crawlers import ParselCrawler, ParselCrawlingContext
from crawlee.http_clients import ImpitHttpClient
from crawlee.storage_clients import MemoryStorageClient
from crawlee_crawls import crawl, state
from processes import wait_until
from serving import serving_client
from website import WebPage, asking_for_pause, failing_first, linking, redirect, website

from opic.client import Client
from opic.crawlee import OpicRequestManager, attach
from opic.crawlee.requests import identity_of

pytestmark = pytest.mark.slow

DELAY_SECONDS = 1.0
PAUSE_SECONDS = 4
NUMBERS = count(1)


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
    return f"127.0.1.{next(NUMBERS)}"


# Depth.


def test_depth_of_pages_that_only_links_found_is_kept(service: Client, host: str) -> None:
    pages = {f"/{n}": linking(f"/{n + 1}") for n in range(4)} | {"/4": redirect("/5"), "/5": linking()}
    seen = list[int]()

    async def note(context: ParselCrawlingContext) -> None:
        seen.append(context.request.crawl_depth)

    with website(host, pages) as site:
        crawl(service.address, [site.url + "/0"], note)
        wait_until(lambda: service.stats().lag == 0)
        depths = [service.explain(f"{site.url}/{n}").depth for n in range(6)]
    assert depths == [0, 1, 2, 3, 4, 5]
    assert sorted(seen) == [0, 1, 2, 3, 4]  # Crawlee follows the redirect in the request for page 4.


def test_pages_deeper_than_max_depth_are_not_fetched(service: Client, host: str) -> None:
    pages = {f"/{n}": linking(f"/{n + 1}") for n in range(5)}
    with website(host, pages) as site:
        crawl(service.address, [site.url + "/0"], max_depth=2, close_after_idle=2)
        assert sorted(site.paths()) == ["/0", "/1", "/2"]


# Media types.


def test_media_types_and_their_parameters_are_case_insensitive(service: Client, host: str) -> None:
    headers = [
        "TEXT/HTML; CHARSET=ISO-8859-2",
        'text/html;charset="iso-8859-2"',
        "text/html ; version=1; charset=ISO-8859-2 ",
        "Application/XHTML+XML; Charset=ISO-8859-2",
    ]
    pages = {"/": linking(*(f"/{n}" for n in range(4)))} | {
        f"/{n}": WebPage(
            f'<html xmlns="http://www.w3.org/1999/xhtml"><a href="/ł{n}">x</a></html>'.encode("iso-8859-2"),
            headers={"content-type": header},
        )
        for n, header in enumerate(headers)
    }
    with website(host, lambda path: pages.get(path, linking())) as site:
        crawl(service.address, [site.url + "/"])
        wait_until(lambda: service.stats().lag == 0)
        found = [service.inlinks(f"{site.url}/%C5%82{n}").inlinks for n in range(4)]
        assert found == [[f"{site.url}/{n}"] for n in range(4)]


# Delays and pauses.


def test_delay_of_the_host_holds_for_retries(slow_service: Client, host: str) -> None:
    failures = {
        "/500": WebPage(status=500),
        "/503": WebPage(status=503),
        "/429": WebPage(status=429),
        "/403": WebPage(status=403),
        "/pause": WebPage(status=429, headers={"retry-after": "1"}),
        "/none": WebPage(status=503, headers={"retry-after": "0"}),
        "/slow": WebPage("x" * 60, drip_seconds=1.0),
    }
    pages = {path: linking(f"{path}/below") for path in failures} | {f"{path}/below": linking() for path in failures}
    with website(host, failing_first(failures, pages | {"/": linking(*failures)})) as site:
        crawl(slow_service.address, [site.url + "/"], navigation_timeout=timedelta(seconds=5))
        assert Counter(site.paths()) == dict.fromkeys(pages, 1) | dict.fromkeys(failures, 2) | {"/": 1}
        assert site.kept(DELAY_SECONDS)
        assert {state(slow_service, site.url + path) for path in pages} == {("read", 1)}
        assert slow_service.audit().conserved


def test_delay_of_the_host_holds_where_the_handler_fails(slow_service: Client, host: str) -> None:
    tries = Counter[str]()

    async def fail_once(context: ParselCrawlingContext) -> None:
        tries[context.request.url] += 1
        if tries[context.request.url] == 1:
            raise RuntimeError("this handler fails at first")

    with website(host, {"/": linking("/a"), "/a": linking()}) as site:
        crawl(slow_service.address, [site.url + "/"], fail_once)
        assert Counter(site.paths()) == {"/": 2, "/a": 2}
        assert site.kept(DELAY_SECONDS)
        assert state(slow_service, site.url + "/") == state(slow_service, site.url + "/a") == ("read", 1)


def test_delay_of_the_host_holds_for_requests_that_the_service_does_not_hand_out(
    slow_service: Client, host: str
) -> None:
    async def search(context: ParselCrawlingContext) -> None:
        if context.request.url.endswith("/"):
            url = context.request.url + "search"
            posts = [Request.from_url(url, method="POST", payload=b"%d" % n) for n in range(3)]
            again = [Request.from_url(context.request.url, always_enqueue=True) for _ in range(2)]
            await context.add_requests([*posts, *(again if not context.request.unique_key.count("|") else [])])

    with website(host, {"/": linking("/a"), "/a": linking(), "/search": linking()}) as site:
        crawl(slow_service.address, [site.url + "/"], search)
        assert Counter(site.paths()) == {"/": 3, "/a": 1, "/search": 3}
        assert site.kept(DELAY_SECONDS)
        assert state(slow_service, site.url + "/") == ("read", 1)


@pytest.mark.parametrize(("status", "form"), [(429, "seconds"), (503, "date")])
def test_host_that_asks_for_a_pause_gets_one_and_others_go_on(
    service: Client, host: str, status: int, form: str
) -> None:
    pages = {"/": linking("/busy", "/other"), "/busy": linking("/below"), "/below": linking(), "/other": linking()}
    others = {"/": linking("/0"), "/9": linking()} | {f"/{n}": linking(f"/{n + 1}") for n in range(9)}
    busy = list[float]()

    def first_is_busy(path: str) -> WebPage | None:
        if path != "/busy" or busy:
            return pages.get(path)
        busy.append(time.monotonic())
        return asking_for_pause(status, PAUSE_SECONDS, form)

    with website(host, first_is_busy) as site, website(f"{host}1", others) as other:
        crawl(service.address, [site.url + "/", other.url + "/"])
        (began,) = busy
        later = [at for _, at in site.asked if at > began + 0.5]  # What was sent before the answer came is past.
        assert min(later) >= began + PAUSE_SECONDS - 0.1
        assert Counter(site.paths()) == {"/": 1, "/busy": 2, "/other": 1, "/below": 1}
        assert Counter(other.paths()) == dict.fromkeys(others, 1)
        assert any(began < at < min(later) for _, at in other.asked)
        assert state(service, site.url + "/busy") == ("read", 1)


@pytest.mark.parametrize("retries", [0, 3])
def test_page_waits_as_long_as_its_host_asked_and_the_crawl_ends_before(
    service: Client, host: str, retries: int
) -> None:
    pages = {"/": linking("/busy"), "/busy": WebPage(status=503, headers={"Retry-After": "1800"})}
    with website(host, pages) as site:
        crawl(service.address, [site.url + "/"], close_after_idle=2, max_request_retries=retries)
        wait_until(lambda: service.stats().lag == 0)
        assert site.paths() == ["/", "/busy"]
        waits = service.explain(site.url + "/busy").frontier.waits_until
        assert waits is not None
        assert waits - time.time() > 1_700


# Several requests of a page.


def special_requests(url: str) -> list[Request]:
    return [
        Request.from_url(url, always_enqueue=True),
        Request.from_url(url, always_enqueue=True),
        Request.from_url(url + "#one", keep_url_fragment=True),
        Request.from_url(url + "#two", keep_url_fragment=True),
        Request.from_url(url, unique_key="mine"),
        Request.from_url(url, use_extended_unique_key=True, headers={"accept-language": "fr"}),
        Request.from_url(url, method="POST", payload=b"1"),
        Request.from_url(url, method="POST", payload=b"2"),
    ]


@pytest.mark.parametrize("asker", ["/", "/last"])
def test_each_request_of_a_page_is_handled_and_the_page_is_read_once(service: Client, host: str, asker: str) -> None:
    handled, asked = Counter[int](), list[Request]()
    which = ["/", "/linked", "/unlinked", "/shaky"]
    pages = {"/": linking("/linked", "/shaky", "/last"), "/linked": linking("/below")}
    shaky = {"/shaky": WebPage(status=500)}

    async def note(context: ParselCrawlingContext) -> None:
        handled[identity_of(context.request)] += 1
        if not asked and context.request.url == site.url + asker:
            asked.extend(request for path in which for request in special_requests(site.url + path))
            await context.add_requests([*asked, *asked])  # One that is asked for twice is handled once.

    with website(
        host, failing_first(shaky, {f"/{n}": linking() for n in ("unlinked", "below", "last", "shaky")} | pages)
    ) as site:
        crawl(service.address, [site.url + "/"], note)
        assert len(asked) == 8 * len(which)
        assert [handled[identity_of(request)] for request in asked] == [1] * len(asked)
        assert {state(service, site.url + path) for path in (*pages, *which, "/below", "/last")} == {("read", 1)}
        assert service.audit().conserved


def test_keys_of_crawlee_do_not_mix_up_pages_that_differ_in_case_or_query(service: Client, host: str) -> None:
    pages = {"/": linking("/Doc", "/doc", "/doc/", "/doc?utm_x=1", "/doc?b=1&a=2", "/doc?a=2&b=1")}
    pages |= {path: linking(f"/from{number}") for number, path in enumerate(("/Doc", "/doc", "/doc/", "/doc?utm_x=1"))}
    with website(host, lambda path: pages.get(path, linking())) as site:
        crawl(service.address, [site.url + "/"])
        wait_until(lambda: service.stats().lag == 0)
        inlinks = [service.inlinks(f"{site.url}/from{number}").inlinks for number in range(4)]
        assert inlinks == [[site.url + path] for path in ("/Doc", "/doc", "/doc/", "/doc?utm_x=1")]
        assert set(Counter(site.paths()).values()) == {1}


def test_request_that_an_error_handler_puts_in_place_of_another_gets_the_turn(service: Client, host: str) -> None:
    handled = list[str]()
    pages = {"/": linking("/shaky"), "/shaky": linking("/below"), "/below": linking()}

    async def run() -> None:
        async with OpicRequestManager(service.address) as manager:
            crawler = ParselCrawler(
                request_manager=manager, storage_client=MemoryStorageClient(), configure_logging=False
            )
            attach(crawler)

            @crawler.error_handler
            async def replace(context: Any, error: Exception) -> Request:
                return Request.from_url(context.request.url, always_enqueue=True, label="again")

            @crawler.router.handler("again")
            async def again(context: ParselCrawlingContext) -> None:
                handled.append(context.request.url)

            @crawler.router.default_handler
            async def other(context: ParselCrawlingContext) -> None:
                pass

            await crawler.run([site.url + "/"])

    with website(host, failing_first({"/shaky": WebPage(status=500)}, pages)) as site:
        asyncio.run(run())
        assert handled == [site.url + "/shaky"]
        assert state(service, site.url + "/shaky") == ("read", 1)
        assert state(service, site.url + "/below") == ("read", 1)


def test_requests_whose_page_never_comes_are_handled_at_the_end(service: Client, host: str) -> None:
    with website(host, {"/": linking()}) as site:
        crawl(service.address, [site.url + "/"])
        crawl(service.address, [site.url + "/", Request.from_url(site.url + "/", unique_key="mine")])
        assert site.paths() == ["/", "/"]  # The page was read before: only the request with a key of its own is left.


# Redirects.


def test_page_behind_a_cookie_is_read_once_with_its_links(service: Client, host: str) -> None:
    pages = {
        "/": linking("/wall", "/member"),
        "/wall": WebPage(linking("/in").body, behind=("w=1", redirect("/wall", "w=1"))),
        "/member": WebPage(linking("/inside").body, behind=("ok=1", redirect("/consent"))),
        "/consent": redirect("/member", "ok=1"),
        "/in": linking(),
        "/inside": linking(),
    }
    with website(host, pages) as site:
        crawl(service.address, [site.url + "/"])
        for path in ("/wall", "/member", "/in", "/inside"):
            assert state(service, site.url + path) == ("read", 1)
        assert service.inlinks(site.url + "/in").inlinks == [site.url + "/wall"]
        assert service.inlinks(site.url + "/inside").inlinks == [site.url + "/member"]


@pytest.mark.parametrize("follow", [True, False])
def test_target_of_a_redirect_may_have_raw_bytes(service: Client, host: str, follow: bool) -> None:
    raw = "/café".encode().decode("latin-1")  # The server sends it as it stands.
    pages = {"/": linking("/moved"), "/moved": redirect(raw), "/caf%C3%A9": linking("/below"), "/below": linking()}
    with website(host, pages) as site:
        crawl(service.address, [site.url + "/"], http_client=ImpitHttpClient(follow_redirects=follow))
        assert Counter(site.paths()) == dict.fromkeys(pages, 1)
        assert service.inlinks(site.url + "/caf%C3%A9").inlinks == [site.url + "/moved"]
