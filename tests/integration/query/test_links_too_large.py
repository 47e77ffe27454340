"""An endpoint that has no memory for the kept links says so, and answers from cash."""

import logging
from pathlib import Path

import httpx
import pytest
from linked_web import PAGES, Web
from processes import wait_until
from servers import Server
from serving import serving

from opic.client import Client, Conflict
from opic.errors import LinksTooLarge
from opic.frontier import Frontier, PolitenessSettings
from opic.query.exact import Exact
from opic.query.fetch_order import FetchOrder
from opic.query.inflow import inflow
from opic.query.kept_links import LINK_BYTES, PAGE_BYTES, KeptLinks
from opic.query.page_flows import PageFlows
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.service.service import EmbeddedService
from opic.settings import Settings

WAIT_SECONDS = 20.0
ENOUGH = 12 * PAGE_BYTES + 5 * LINK_BYTES


def test_links_that_grow_over_the_limit_are_released(valkey: Server, caplog: pytest.LogCaptureFixture) -> None:
    web = Web(valkey, "grows")
    crawl = web.opened()
    kept = KeptLinks(crawl, ENOUGH)
    flows = PageFlows(kept)
    query = Query(crawl, Snapshots(crawl), exact=Exact(flows))
    at_once = PolitenessSettings(host_delay_seconds=0.0, revisit_seconds=0.0)
    frontier = Frontier(crawl, at_once, worth=FetchOrder(flows), links=kept)
    web.read(PAGES[0], PAGES[1:6])
    assert query.importance(PAGES[:1])[0]["policy"] == "exact"  # type: ignore[index]
    assert (frontier.next(1).order, kept.too_large) == ("exact", "")
    with caplog.at_level(logging.WARNING, "opic.query"):
        web.read(PAGES[6], [*PAGES[:6], *PAGES[7:13]])
        assert query.importance(PAGES[:1])[0]["policy"] == "exact"  # type: ignore[index]
        web.read(PAGES[7], [])
        assert query.importance(PAGES[:1])[0]["policy"] == "static"  # type: ignore[index]
    assert "OPIC_MAX_LINKS_BYTES 1,220 of this endpoint" in caplog.text
    assert frontier.next(1).order is None
    assert {one["policy"] for one in query.sites("host")["hosts"]} == {"static"}
    assert query.exact is not None
    for ask in (query.exact.view, kept.scores, lambda: query.top(policy="exact")):
        with pytest.raises(LinksTooLarge, match="13 pages with 17 links read so far need 1,368 bytes"):
            ask()
    assert kept.pool.used == 0
    with pytest.raises(LinksTooLarge):
        frontier.next(1, mode="refresh", policy="LDU")
    counted = inflow(query, domain="h1.org")
    assert counted["policy"] == "static"
    assert len(caplog.records) == 1  # It is told once.


def test_links_too_large_from_the_start_are_read_up_to_the_limit(valkey: Server) -> None:
    web = Web(valkey, "large")
    for page in range(200):
        web.read(f"http://big.org/{page}", [f"http://big.org/{link}" for link in range(200) if link != page])
    for limit, held in ((200 * PAGE_BYTES - 1, False), (200 * PAGE_BYTES + 4 * 199 * 200, True)):
        kept = KeptLinks(web.opened(), limit)
        if held:
            assert kept.scores().ids[0].size == 0
        else:
            with pytest.raises(LinksTooLarge):
                kept.scores()
        assert kept.bytes_held <= limit or not kept.pool.used


@pytest.mark.slow
def test_service_says_that_the_links_are_too_large_for_it(tmp_path: Path) -> None:
    settings = Settings.load(data=tmp_path / "data", max_links_bytes=1_024, host_delay_seconds=0)
    with (
        EmbeddedService(settings) as service,
        serving(service) as url,
        httpx.Client(base_url=url, timeout=30) as http,
        Client(url) as client,
    ):
        client.seed(PAGES[:1])
        wait_until(lambda: http.get("/v1/importance", params={"url": PAGES[0]}).json()["policy"] == "exact", 20)
        assert client.stats().kept_links == "kept"
        events = [{"url": page, "links": [PAGES[0], PAGES[3]]} for page in PAGES]
        assert http.post("/v1/events", json=events).status_code == 202
        wait_until(lambda: client.stats().kept_links == "too large", WAIT_SECONDS)
        wait_until(lambda: client.stats().read_pages == len(PAGES), WAIT_SECONDS)
        assert http.get("/readyz").status_code == 200
        assert client.importance(PAGES[0]).policy == "static"
        assert client.next(1).order is None
        with pytest.raises(Conflict, match="OPIC_MAX_LINKS_BYTES 1,024"):
            client.importance(PAGES[0], policy="exact")
        client.seed(PAGES[:1], trust=1.0)
        with pytest.raises(Conflict, match="OPIC_MAX_LINKS_BYTES 1,024"):
            client.next(1, mode="coverage")
        shown = http.get("/metrics").text
        for line in ("opic_links_too_large 1.0", "opic_links_bytes 0.0", "opic_links_limit_bytes 1024.0"):
            assert f"\n{line}\n" in shown
        assert "\nopic_exact_residual " not in shown
