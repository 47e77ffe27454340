"""`top` by in-links: the pages that most pages link to, also by the links of the last days."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from linked_web import PAGES, Web
from processes import wait_until
from servers import Server
from serving import serving

from opic.client import BadRequest, Client, Conflict, Event
from opic.errors import BadInput, NotKept
from opic.query.inlinks import most_linked
from opic.query.kept_links import KeptLinks
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.service.service import EmbeddedService
from opic.settings import Settings

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.

WAIT_SECONDS = 20.0


def filled(server: Server, shards: int) -> Web:
    """Each page was read once, a day after the one before; page n links to the n pages before it, and the last goes."""
    web = Web(server, f"authorities-{shards}", shards)
    for number, url in enumerate(PAGES):
        web.read(url, PAGES[:number])
        web.writer.drain()  # An entry that is taken late would be the last record.
    web.read(PAGES[-1], [], status=404)
    web.writer.drain()
    return web


def told(crawl: Crawl, n: int, **asked: Any) -> list[dict[str, Any]]:
    answer = most_linked(Query(crawl, Snapshots(crawl)), KeptLinks(crawl), n, **asked)
    assert answer["as_of"] > 0
    pages: list[dict[str, Any]] = answer["pages"]
    return pages


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("days", [None, 4])
def test_most_linked_pages_agree_with_a_plain_count(valkey: Server, shards: int, days: int | None) -> None:
    web = filled(valkey, shards)
    recent = PAGES if days is None else PAGES[-days:]  # The 404 came a day after the last read.
    counts = Counter(to for url, links in web.links.items() for to in links if url in recent)
    crawl = web.opened(shards)
    window = None if days is None else f"{days}d"
    pages = told(crawl, 5, window=window)
    assert [page["inlinks"] for page in pages] == sorted(counts.values(), reverse=True)[:5]
    assert all(counts[str(page["url"])] == page["inlinks"] for page in pages)
    assert {page["window"] for page in pages} == {window}
    inside = told(crawl, 20, domain="h1.org", window=window)
    assert {page["url"]: page["inlinks"] for page in inside} == {
        url: count for url, count in counts.items() if url.startswith("http://h1.org")
    }


def test_bad_questions_are_refused(valkey: Server) -> None:
    web = Web(valkey, "plain", keep_links=False)
    web.read(PAGES[0], PAGES[1:3])
    query, kept = Query(web.crawl, Snapshots(web.crawl)), KeptLinks(web.crawl)
    with pytest.raises(NotKept, match="OPIC_KEEP_LINKS=off"):
        most_linked(query, kept)
    with pytest.raises(BadInput, match="say a duration"):
        most_linked(query, kept, window=8)


@pytest.mark.parametrize("keep_links", [True, False])
def test_service_answers_the_most_linked_pages(tmp_path: Path, *, keep_links: bool) -> None:
    settings = Settings.load(data=tmp_path / "data", keep_links=keep_links, host_delay_seconds=0)
    with EmbeddedService(settings) as service, serving(service) as url, Client(url) as client:
        client.events([Event(url=page, links=PAGES[:number]) for number, page in enumerate(PAGES)])
        wait_until(lambda: client.stats().read_pages == len(PAGES), WAIT_SECONDS)
        if not keep_links:
            with pytest.raises(Conflict, match="OPIC_KEEP_LINKS=off"):
                client.top(3, by="inlinks")
            return
        pages = client.top(3, by="inlinks", window="1h").pages
        assert [(page.url, page.inlinks) for page in pages] == [
            (PAGES[at], len(PAGES) - 1 - at) for at in range(3)
        ]  # fmt: skip
        assert client.top(3).pages[0].inlinks is None
        with pytest.raises(BadRequest, match="say a duration"):
            client.top(3, by="inlinks", window=8)
