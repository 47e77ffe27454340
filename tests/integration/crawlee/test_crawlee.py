"""Crawlee crawls what the service says: real crawlers on a site and a service of our own."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from crawlee import Request
from crawlee.crawlers import ParselCrawlingContext
from crawlee_crawls import crawl, state
from ports import free_port
from processes import wait_until
from serving import serving_client, serving_embedded
from website import WebPage, Website, linking, redirect, website

from opic.client import Client, ClientError
from opic.crawlee import OpicRequestManager
from opic.html.links import html_links

pytestmark = pytest.mark.slow

SERVICE = {"host_delay_seconds": 0, "retry_seconds": 60, "lease_seconds": 3}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Client]:
    with serving_client(tmp_path / "service", **SERVICE) as client:
        yield client


def tree(pages: int) -> dict[str, WebPage]:
    """Pages that each link to two others, home, and another site."""
    found = {}
    for page in range(pages):
        below = [at for at in (2 * page + 1, 2 * page + 2) if at < pages]
        links = "".join(f'<a href="/p/{at}">page {at}</a>' for at in below)
        found[f"/p/{page}"] = WebPage(f'{links}<a href="/p/0">home</a><area href="http://elsewhere.example/{page}">')
    return found


def known_links(client: Client, site: Website, pages: dict[str, WebPage]) -> None:
    """Hold the links that the service has to those of a plain parse."""
    wait_until(lambda: client.stats().lag == 0)
    expected = {
        (site.url + path, link) for path, page in pages.items() for link in html_links(site.url + path, page.body)
    }
    targets = {link for _, link in expected}
    found = {(page, target) for target in targets for page in client.inlinks(target, 1_000).inlinks}
    assert found == {(source, target) for source, target in expected if source != target}
    assert client.audit().conserved


def test_each_page_of_a_site_is_fetched_once_and_the_crawl_ends_by_itself(service: Client) -> None:
    pages = tree(31)
    with website("127.0.0.1", pages) as site:
        manager = crawl(service.address, [site.url + "/p/0"])
        assert Counter(site.paths()) == dict.fromkeys(pages, 1)
        known_links(service, site, pages)
        assert service.stats().read_pages == 31
        assert asyncio.run(manager.get_handled_count()) == 31
        crawl(service.address, [site.url + "/p/0"])  # There is nothing left to discover.
        assert len(site.paths()) == 31


def test_requests_of_the_crawler_are_kept_until_their_pages_come(service: Client) -> None:
    asked = list[tuple[str, Any]]()

    async def by_default(context: ParselCrawlingContext) -> None:
        asked.append((context.request.url.rsplit("/", 1)[1], None))
        if context.request.url.endswith("/p/0"):
            await context.enqueue_links(label="labelled", user_data={"said": "by home"})

    async def labelled(context: ParselCrawlingContext) -> None:
        asked.append((context.request.url.rsplit("/", 1)[1], context.request.user_data.get("said")))

    with website("127.0.0.1", tree(7)) as site:
        crawl(service.address, [site.url + "/p/0"], by_default, label=labelled)
    assert sorted(asked, key=str) == [
        ("0", None),
        ("1", "by home"),
        ("2", "by home"),
        *((str(n), None) for n in range(3, 7)),
    ]


def test_redirects_failures_and_pages_that_are_gone_are_reported(service: Client) -> None:
    pages = {
        "/": linking("/moved", "/gone", "/broken", "/good"),
        "/moved": redirect("/target"),
        "/target": linking("/"),
        "/good": linking("/gone"),
        "/gone": WebPage(status=404),
        "/broken": WebPage(status=500),
    }

    async def failing(context: ParselCrawlingContext) -> None:
        if context.request.url.endswith("/good"):
            raise RuntimeError("this callback fails")

    with website("127.0.0.1", pages) as site:
        crawl(service.address, [site.url + "/"], failing, max_request_retries=1, close_after_idle=1)
        assert state(service, site.url + "/moved") == ("read", 1)
        assert state(service, site.url + "/good") == ("read", 1)  # It was fetched all the same, with its links.
        assert site.url + "/good" in service.inlinks(site.url + "/gone").inlinks
        assert service.inlinks(site.url + "/target").inlinks == [site.url + "/moved"]
        assert service.explain(site.url + "/gone").state == "gone"
        assert service.explain(site.url + "/broken").frontier.held_back == ["retry"]
        assert Counter(site.paths())["/broken"] == 2  # One retry.


def test_page_that_robots_txt_excludes_is_not_offered_again(service: Client) -> None:
    robots = WebPage("User-agent: *\nDisallow: /private", headers={"content-type": "text/plain"})
    pages = {"/robots.txt": robots, "/": linking("/private", "/open"), "/open": linking("/"), "/private": linking("/")}
    with website("127.0.0.1", pages) as site:
        crawl(service.address, [site.url + "/"], respect_robots_txt_file=True)
        wait_until(lambda: service.stats().lag == 0)
        assert service.explain(site.url + "/private").state == "excluded"
        assert "/private" not in site.paths()
        assert service.stats().read_pages == 2


def test_page_that_takes_longer_than_its_lease_stays_with_its_crawler(service: Client) -> None:
    with website("127.0.0.1", tree(3)) as site:
        still_ours = list[int]()

        async def slow(context: ParselCrawlingContext) -> None:
            until = asyncio.get_running_loop().time() + 2 * SERVICE["lease_seconds"]
            while asyncio.get_running_loop().time() < until:  # Meanwhile nobody else gets the page.
                still_ours.append(len((await asyncio.to_thread(service.next, 5)).pages))
                await asyncio.sleep(0.2)

        crawl(service.address, [site.url + "/p/0"], slow, domains=["127.0.0.1"], max_requests_per_crawl=1)
        assert set(still_ours) == {0}


def test_other_requests_are_handled_without_the_service(service: Client) -> None:
    with website("127.0.0.1", {"/": WebPage("hello")}) as site:
        posted = Request.from_url(site.url + "/form", method="POST", payload=b"x")
        crawl(service.address, [posted, site.url + "/"], max_request_retries=0)
        wait_until(lambda: service.stats().lag == 0)
        assert service.stats().known_pages == 1


def test_page_that_the_service_refuses_holds_up_no_other(tmp_path: Path) -> None:
    async def ask_for_a_long_one(context: ParselCrawlingContext) -> None:
        if context.request.url.endswith("/"):
            await context.add_requests([context.request.url + "x" * 300])

    pages = {"/": linking("/a"), "/a": linking()}
    settings = {"host_delay_seconds": 0, "max_url_bytes": 200}
    with serving_client(tmp_path, **settings) as client, website("127.0.0.1", pages) as site:
        crawl(client.address, [site.url + "/"], ask_for_a_long_one)
        assert Counter(site.paths()) == dict.fromkeys(pages, 1)
        assert state(client, site.url + "/a") == ("read", 1)


def test_without_a_service_the_crawler_says_so() -> None:
    with pytest.raises(ClientError):
        crawl(f"http://127.0.0.1:{free_port()}", ["http://a.example/"], retry_on_blocked=False)


def test_events_that_the_service_did_not_take_are_sent_by_the_next_run(tmp_path: Path) -> None:
    kept, data = tmp_path / "kept", tmp_path / "service"
    kept.mkdir()
    page = "http://a.example/"

    async def interrupted(running: ExitStack, address: str) -> None:
        manager = OpicRequestManager(address, directory=str(kept))
        await manager.add_request(page)
        assert not await manager.is_empty()
        request = await manager.fetch_next_request()
        assert request is not None
        await manager.note(request, page, 200, {"content-type": "text/html"}, b'<a href="/b">b</a>')
        await asyncio.to_thread(running.close)
        await manager.mark_request_as_handled(request)
        await manager.drop()

    async def again(address: str) -> None:
        async with OpicRequestManager(address, directory=str(kept)) as manager:
            assert not await manager.is_finished()  # The other page is known now.

    with ExitStack() as running:
        http, _ = running.enter_context(serving_embedded(data, **SERVICE))
        asyncio.run(interrupted(running, str(http.base_url)))
    assert list(kept.iterdir())
    with serving_embedded(data, **SERVICE) as (http, client):
        assert client.stats().read_pages == 0
        asyncio.run(again(str(http.base_url)))
        wait_until(lambda: client.stats().lag == 0)
        assert client.stats().read_pages == 1
        assert client.inlinks("http://a.example/b").inlinks == [page]
    assert not list(kept.iterdir())
