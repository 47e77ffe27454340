"""Mode discover by in-links: GAI takes the page with the most first, AI draws in proportion to them."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linked_web import Web
from processes import wait_until
from servers import Server
from serving import serving

from opic.client import Client, Conflict, Event
from opic.errors import BadInput, NotKept
from opic.frontier import Frontier, PolitenessSettings
from opic.frontier.requests import PagesRequest
from opic.model.cash import Flag
from opic.model.events import CrawlEvent
from opic.query.kept_links import KeptLinks
from opic.service.service import EmbeddedService
from opic.settings import Settings

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.

WAIT_SECONDS = 20.0
AT_ONCE = PolitenessSettings(host_delay_seconds=0.0)
HUBS = [f"http://hub{n}.org/" for n in range(12)]
INLINKS = (7, 5, 5, 3, 1, 1)
TARGETS = [f"http://t{n}.org/" for n in range(len(INLINKS))]


def linked(server: Server, shards: int) -> Web:
    """Hubs that were read, which link to targets that were not."""
    web = Web(server, f"expansion-{shards}", shards)
    web.apply(*[
        CrawlEvent(hub, [to for to, count in zip(TARGETS, INLINKS, strict=True) if number < count])
        for number, hub in enumerate(HUBS)
    ])  # fmt: skip
    web.writer.drain()
    return web


def frontier_of(web: Web, shards: int, **politeness: Any) -> Frontier:
    crawl = web.opened(shards)
    terms = PolitenessSettings(**{"host_delay_seconds": 0.0, **politeness})
    frontier = Frontier(crawl, terms, links=KeptLinks(crawl))
    frontier._scheduler.choices.rng = np.random.default_rng(7)
    return frontier


def taken(frontier: Frontier, policy: str, count: int, **more: Any) -> list[str]:
    request = PagesRequest.of(count, 1.0, mode="discover", policy=policy, **more)
    places = frontier._scheduler.peek(request).places
    urls = frontier.crawl.urls_of(places)
    return [urls[place] for place in places]


def test_choices_while_replicas_are_reloaded_leave_nothing_behind(valkey: Server) -> None:
    frontier = frontier_of(linked(valkey, 1), 1)
    assert len(taken(frontier, "GAI", 2)) == 2
    choices = frontier._scheduler.choices
    inlinks = choices._policies.usable_inlinks()
    listeners = list(inlinks.kept.release_listeners)
    inlinks.loads = [-1]  # As if the replica had been loaded since: the ids may belong to other pages.
    for _ in range(3):
        assert not choices._policies.usable_inlinks().columns[0].any()
    assert inlinks.kept.release_listeners == listeners


@pytest.mark.parametrize("shards", [1, 16])
def test_gai_suggests_pages_with_most_in_links_first_before_and_after_a_restart(valkey: Server, shards: int) -> None:
    web = linked(valkey, shards)
    inlinks = dict(zip(TARGETS, INLINKS, strict=True))
    frontier = frontier_of(web, shards)
    for one in (frontier, frontier_of(web, shards)):
        found = taken(one, "GAI", 9)
        assert sorted(found) == TARGETS
        assert [inlinks[url] for url in found] == list(INLINKS)
    web.read(HUBS[11], [TARGETS[4]])  # A page in the middle gets more,
    for number in range(5, 11):
        web.read(HUBS[number], [TARGETS[5]])
    web.read(HUBS[0], [], status=404)  # and others lose what a page that is gone gave them.
    web.writer.drain()
    inlinks = dict(zip(TARGETS, (4, 4, 4, 2, 1, 6), strict=True))
    for one in (frontier, frontier_of(web, shards)):
        assert [inlinks[url] for url in taken(one, "GAI", 9)] == sorted(inlinks.values(), reverse=True)


@pytest.mark.parametrize("policy", ["GAI", "AI"])
def test_pages_without_in_links_come_last(valkey: Server, policy: str) -> None:
    web = linked(valkey, 1)
    store = web.writer.stores[0]
    assert store.replica.state[0] & Flag.OPEN
    for url in TARGETS:  # Only they, and pages that nobody links to any more, are left.
        web.read(url, [f"{url}new"])
    for url in TARGETS[:3]:
        web.read(url, [])
    found = taken(frontier_of(web, 1), policy, 9)
    assert sorted(found) == sorted(f"{url}new" for url in TARGETS)
    assert sorted(found[:3]) == sorted(f"{url}new" for url in TARGETS[3:])


def test_leased_page_leaves_its_turn_to_the_next_and_comes_back(valkey: Server) -> None:
    frontier = frontier_of(linked(valkey, 1), 1)
    first: Any = frontier.next(2, mode="discover", policy="GAI")
    assert [page.url for page in first.pages] == TARGETS[:2]
    second: Any = frontier.next(2, mode="discover", policy="GAI")
    assert [page.url for page in second.pages] == TARGETS[2:4]
    frontier.release([page.lease for page in first.pages])
    again: Any = frontier.next(3, mode="discover", policy="GAI")
    assert [page.url for page in again.pages] == [*TARGETS[:2], TARGETS[4]]


def test_domains_and_host_delays_are_respected(valkey: Server) -> None:
    web = linked(valkey, 1)
    web.read(HUBS[0], [TARGETS[0] + "deep", *TARGETS])
    frontier = frontier_of(web, 1, host_delay_seconds=60.0)
    inside = taken(frontier, "GAI", 9, domains=("t0.org", "t3.org"))
    assert inside == [TARGETS[0], TARGETS[3]]  # One page of a host.
    assert set(taken(frontier, "AI", 9, domains=("t0.org",))) <= {TARGETS[0], TARGETS[0] + "deep"}


def test_choice_over_many_blocks_equals_a_sort(valkey: Server) -> None:
    web, rng = Web(valkey, "blocks"), np.random.default_rng(1)
    pages = [f"http://p{number % 50}.org/{number}" for number in range(1_500)]
    for number in range(40):
        web.read(f"http://hub{number}.org/", [pages[at] for at in np.unique(rng.zipf(1.3, 200) % len(pages))])
    frontier = frontier_of(web, 1)
    for _ in range(4):
        counts = Counter(to for links in web.links.values() for to in links if to not in web.links)
        best = sorted(counts.values(), reverse=True)
        urls = taken(frontier, "GAI", 300)
        assert [counts[url] for url in urls] == best[:300]
        for number in rng.integers(0, 40, 5):
            web.read(f"http://hub{number}.org/", [pages[at] for at in np.unique(rng.zipf(1.3, 200) % len(pages))])
        for url in urls[:5]:
            web.read(url, [f"{url}/new"])


def test_policy_without_kept_links_or_with_another_mode_is_refused(valkey: Server) -> None:
    web = Web(valkey, "none", keep_links=False)
    web.read(HUBS[0], TARGETS)
    for policy in ("GAI", "AI"):
        with pytest.raises(NotKept, match="OPIC_KEEP_LINKS=off"):
            Frontier(web.crawl, AT_ONCE, links=KeptLinks(web.crawl)).next(1, mode="discover", policy=policy)
        with pytest.raises(BadInput, match="ask with mode=discover"):
            Frontier(web.crawl, AT_ONCE).next(1, mode="refresh", policy=policy)


@pytest.mark.parametrize("keep_links", [True, False])
def test_service_answers_by_in_links_where_links_are_kept(tmp_path: Path, *, keep_links: bool) -> None:
    settings = Settings.load(data=tmp_path / "data", keep_links=keep_links, host_delay_seconds=0)
    with EmbeddedService(settings) as service, serving(service) as url, Client(url) as client:
        client.events([Event(url=hub, links=TARGETS[: 1 + number]) for number, hub in enumerate(HUBS[:4])])
        wait_until(lambda: client.stats().read_pages == 4, WAIT_SECONDS)
        if not keep_links:
            for policy in ("GAI", "AI"):
                with pytest.raises(Conflict, match="OPIC_KEEP_LINKS=off"):
                    client.next(1, mode="discover", policy=policy)  # type: ignore[arg-type]
            return
        pages = client.next(9, mode="discover", policy="GAI").pages
        assert [page.url for page in pages] == TARGETS[:4]
