"""The same bytes have the same links in each way in: archives, Scrapy, Crawlee, local-rank, the example."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import httpx
import pytest
from archive_files import packed, record
from crawlee.crawlers import HttpCrawler, HttpCrawlingContext
from crawlee.storage_clients import MemoryStorageClient
from processes import environment, wait_until
from repository import ROOT
from scrapy_crawls import crawled
from serving import serving_client
from website import WebPage, Website, website

from opic.archives.events import ArchivedEvent, ArchiveEvents
from opic.archives.files import ArchiveFile
from opic.client import Client
from opic.crawlee import OpicRequestManager, attach
from opic.html.links import html_links
from opic.local.web import WebFetcher, WebLimits
from opic.model.events import CrawlEvent

pytestmark = pytest.mark.slow

TO = "http://elsewhere.example"
XHTML = 'xmlns="http://www.w3.org/1999/xhtml"'
# Content-Type ("" for none), body, links to TO.
PAGES: dict[str, tuple[str, str | bytes, list[str]]] = {
    "plain": ("text/html", f'<a href="{TO}/1"><area href="{TO}/2">', ["/1", "/2"]),
    "named": ("Text/HTML; Charset=ISO-8859-1", f'<a href="{TO}/é?q=é#é">'.encode("latin-1"), ["/%C3%A9?q=%E9"]),
    "label": ("text/html;charset=windows-874", f'<a href="{TO}/ก">'.encode("cp874"), ["/%E0%B8%81"]),
    "meta": ("text/html", f'<meta charset=x-sjis><a href="{TO}/日?日">'.encode("cp932"), ["/%E6%97%A5?%93%FA"]),
    "utf-8": ("text/html", f'<a href="{TO}/é?é">'.encode(), ["/%C3%A9?%C3%A9"]),
    "windows-1252": ("text/html", f'<a href="{TO}/é?€">'.encode("cp1252"), ["/%C3%A9?%80"]),
    "mark": ("text/html; charset=latin1", f'\ufeff<a href="{TO}/é?é">'.encode("utf-16-le"), ["/%C3%A9?%C3%A9"]),
    "base": ("text/html", f'<base href="{TO}/b/"><base href="/c/"><a href="1">', ["/b/1"]),
    "ftp": ("text/html", f'<base href="ftp://x.example/"><a href="no"><a href="{TO}/1">', ["/1"]),
    "svg": ("text/html", f'<svg><a xlink:href="{TO}/1"/><a href="{TO}/2" xlink:href="/no"/></svg>', ["/1", "/2"]),
    "xhtml": ("application/xhtml+xml", f'<html {XHTML}><a href="{TO}/1"/>&no;<a href="/no"/></html>', ["/1"]),
    "xml": ("text/xml", f"<?xml version='1.0' encoding='l1'?><a {XHTML} href='{TO}/?é'/>".encode("l1"), ["/?%E9"]),
    "drawing": ("image/svg+xml", f'<svg xmlns="http://www.w3.org/2000/svg"><a href="{TO}/1"/></svg>', ["/1"]),
    "untyped": ("", f'<!DOCTYPE html><a href="{TO}/1">', ["/1"]),
    "untyped-text": ("", f'see <a href="{TO}/no">', []),
    "text": ("text/plain", f'<html><a href="{TO}/no">', []),
    "json": ("application/json", f'["<a href={TO}/no>"]', []),
    "refresh": ("text/html", f'<meta http-equiv=refresh content="0; url={TO}/r"><a href="{TO}/1">', ["/r", "/1"]),
    "later": ("text/html", f'<meta http-equiv=Refresh content="900;{TO}/r"><a href="{TO}/1">', ["/r", "/1"]),
    "hidden": ("text/html", f'<noscript><a href="{TO}/1"></noscript><template><a href="/no"></template>', ["/1"]),
}  # fmt: skip


def body_of(name: str) -> bytes:
    body = PAGES[name][1]
    return body if isinstance(body, bytes) else body.encode()


@pytest.fixture(scope="module")
def site() -> Iterator[Website]:
    pages = {f"/{name}": WebPage(body_of(name), headers={"content-type": kind}) for name, (kind, *_) in PAGES.items()}
    with website("127.0.0.1", pages) as found:
        yield found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Client]:
    with serving_client(tmp_path / "service", host_delay_seconds=0) as client:
        yield client


def wanted(site: Website) -> dict[str, list[str]]:
    return {f"{site.url}/{name}": sorted(TO + link for link in links) for name, (*_, links) in PAGES.items()}


def found_in(events: list[CrawlEvent]) -> dict[str, list[str]]:
    return {event.url: sorted(link.partition("#")[0] for link in event.links) for event in events}


def links_in(service: Client, folder: Path, site: Website) -> dict[str, list[str]]:
    """The links that a running service has of the pages of a site."""
    wait_until(lambda: service.stats().lag == 0)
    command = [
        sys.executable,
        "-m",
        "opic",
        "export",
        str(folder / "x.jsonl"),
        "--links",
        "--data",
        str(folder / "service"),
    ]
    subprocess.run(command, check=True, env=environment(), capture_output=True)
    rows, pairs = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()] for name in ("x.jsonl", "x.links.jsonl")
    )
    found: dict[str, list[str]] = {row["url"]: [] for row in rows if row["state"] == "read"}
    for pair in pairs:
        found[rows[pair["from"]]["url"]].append(rows[pair["to"]]["url"])
    return {url: sorted(links) for url, links in found.items() if url.startswith(site.url)}


def test_function_has_these_links(site: Website) -> None:
    events = [
        CrawlEvent(url := f"{site.url}/{name}", html_links(url, body_of(name), content_type=kind or None))
        for name, (kind, *_) in PAGES.items()
    ]
    assert found_in(events) == wanted(site)


@pytest.mark.parametrize("kind", ["response", "resource"])
def test_archives_have_the_same(site: Website, tmp_path: Path, kind: str) -> None:
    records = list[bytes]()
    for name, (content_type, *_) in PAGES.items():
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\n" if content_type else "HTTP/1.1 200 OK\r\n"
        if kind == "response":
            records.append(record(kind, f"{site.url}/{name}", f"{head}\r\n".encode() + body_of(name)))
        else:
            records.append(record(kind, f"{site.url}/{name}", body_of(name), Content_Type=content_type))
    (tmp_path / "crawl.warc.gz").write_bytes(packed(*records))
    file = ArchiveFile("crawl.warc.gz", tmp_path / "crawl.warc.gz")
    with closing(ArchiveEvents()) as events:
        found = [one.event for one in events.events_of(file) if isinstance(one, ArchivedEvent)]
    assert found_in(found) == wanted(site)


def test_fetcher_of_local_rank_has_the_same(site: Website) -> None:
    found = list[CrawlEvent]()
    with WebFetcher(WebLimits(host_delay_seconds=0, allow_private=True, host_pages_max=100)) as web:
        web.fetch(list(wanted(site)), found.append, lambda: False)
    assert found_in(found) == wanted(site)


def test_example_has_the_same(site: Website) -> None:
    spec = spec_from_file_location("example_crawler", ROOT / "examples/crawler.py")
    assert spec is not None
    assert spec.loader is not None
    crawler = module_from_spec(spec)
    spec.loader.exec_module(crawler)
    with httpx.Client() as web:
        robots = crawler.Robots(web)
        found = {url: crawler.fetch(web, robots, url).links for url in wanted(site)}
    assert {url: sorted(link.partition("#")[0] for link in links) for url, links in found.items()} == wanted(site)


def test_scrapy_has_the_same(site: Website, service: Client, tmp_path: Path) -> None:
    crawled(tmp_path / "run", "following", list(wanted(site)), service.address, METAREFRESH_IGNORE_TAGS=[])
    assert links_in(service, tmp_path, site) == wanted(site)


def test_crawlee_has_the_same(site: Website, service: Client, tmp_path: Path) -> None:
    async def crawl() -> None:
        async with OpicRequestManager(service.address) as manager:
            crawler = HttpCrawler(
                request_manager=manager, storage_client=MemoryStorageClient(), configure_logging=False
            )
            attach(crawler)

            @crawler.router.default_handler
            async def nothing(context: HttpCrawlingContext) -> None:
                pass

            await crawler.run(list(wanted(site)))

    asyncio.run(crawl())
    assert links_in(service, tmp_path, site) == wanted(site)
