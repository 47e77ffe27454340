"""Forgetting pages: nothing of them is left, their cash goes to the virtual page, and all answers stay true."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from exact_readers import asked, error_and_bound, truth
from linked_web import PAGES, Web
from logs import NOW_US
from migrations import known_since_of
from processes import wait_until
from servers import Server
from serving import serving_embedded

from opic.admission import Admission, check_policy
from opic.client import Client, NotFound
from opic.errors import FenceMoved, UrlMissing
from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import ShardWriter, checkpointer
from opic.model.cash import MILLION, Flag
from opic.query.inlinks import inlinks
from opic.query.kept_links import KeptLinks
from opic.query.snapshots import Snapshots
from opic.query.top_pages import best_pages
from opic.query.verification import verified
from opic.replica import Crawl
from opic.replica.known_since import ENTRY
from opic.replica.page_columns import KNOWN_AGAIN
from opic.store.keys import Keys
from opic.store.refusals import field_of, note_refusals
from opic.urls.canonical import host_of
from opic.urls.scope import Scope

HUB, OLD, OLDER = "http://hub.org/", "http://www.old.org/a/1", "http://www.old.org/a/2"
OTHER, SPARED = "http://old.org:81/b", "http://bold.org/a/1"
BAD = [{}, {"url": OLD, "host": "old.org"}, {"url": "/a"}, {"prefix": "old"}, {"host": "old.org/a"}, {"domain": "a b"}]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Client]]:
    with serving_embedded(tmp_path_factory.mktemp("forget"), host_delay_seconds=0) as clients:
        yield clients


@pytest.fixture
def web(service: tuple[httpx.Client, Client]) -> tuple[httpx.Client, Client]:
    http, client = service
    client.forget(domain="org")
    client.seed([HUB], meta={"job": "news"})
    client.events([
        {"url": HUB, "links": [OLD, OLDER, OTHER, SPARED], "fetched_at": 1.7e9},
        {"url": OLD, "links": [SPARED, OLDER], "meta": {"etag": "secret"}, "depth": 1, "fetched_at": 1.7e9},
        {"url": OLDER, "status": 404, "fetched_at": 1.7e9},
    ])  # fmt: skip
    while client.stats().lag:
        pass
    return http, client


def known(http: httpx.Client) -> set[str]:
    return {page["url"] for page in http.get("/v1/top").json()["pages"]}


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({"url": OLD + "#part"}, {HUB, OTHER, SPARED}),
        ({"prefix": "HTTP://www.old.org/a"}, {HUB, OTHER, SPARED}),
        ({"host": "OLD.org"}, {HUB, OLD, SPARED}),
        ({"domain": "old.org"}, {HUB, SPARED}),
        ({"domain": "org"}, set()),
    ],
)
def test_pages_are_forgotten_by_url_prefix_host_and_domain(
    web: tuple[httpx.Client, Client], chosen: dict[str, str], left: set[str]
) -> None:
    http, client = web
    before = http.get("/v1/audit").json()
    gone = chosen.get("host") != "OLD.org" and "url" not in chosen
    forgotten = len({HUB, OLD, OTHER, SPARED} - left) + gone
    assert http.delete("/v1/pages", params=chosen).json()["forgotten"] == forgotten
    assert client.forget(**chosen).forgotten == 0
    assert known(http) == left
    after = http.get("/v1/audit").json()
    assert after["conserved"]
    assert after["minted"] == after["pages"] + after["virtual"] + after["in_flight"]
    assert after["virtual"] > before["virtual"]
    assert sum(page["importance"] for page in http.get("/v1/top").json()["pages"]) == pytest.approx(float(bool(left)))
    hosts = {host["host"]: host["pages"] for host in http.get("/v1/hosts").json()["hosts"]}
    assert sum(hosts.values()) == len(left)
    assert {page.url for page in client.next(10).pages} <= left
    for url in {OLD, OTHER} - left:
        with pytest.raises(NotFound):
            client.importance(url)
        assert http.get("/v1/explain", params={"url": url}).status_code == 404
    assert client.stats().known_pages == len(left)


@pytest.mark.parametrize("chosen", BAD, ids=str)
def test_invalid_selection_is_refused_and_nothing_is_forgotten(
    web: tuple[httpx.Client, Client], chosen: dict[str, str]
) -> None:
    http, _ = web
    answer = http.delete("/v1/pages", params=chosen)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert known(http) == {HUB, OLD, OTHER, SPARED}


def test_forgotten_page_that_is_linked_again_starts_with_all_granted_cash(web: tuple[httpx.Client, Client]) -> None:
    http, client = web
    client.forget(url=OLD)
    client.event(HUB, [OLD, "http://new.org/"])
    while client.stats().lag:
        pass
    found, new = (http.get("/v1/explain", params={"url": url}).json() for url in (OLD, "http://new.org/"))
    assert (found["cash"], found["reads"]) == (new["cash"], 0)
    assert "meta" not in found or not found["meta"]
    assert http.get("/v1/inlinks", params={"url": OLD}).json()["inlinks"] == [HUB]


def test_forgotten_page_loses_its_lease_and_its_back_off(web: tuple[httpx.Client, Client]) -> None:
    _, client = web

    def offered(wanted: set[str]) -> set[str]:
        """Pages that come, with leases of five minutes, in as many answers as it takes."""
        found = set[str]()

        def ask() -> bool:
            found.update(page.url for page in client.next(10).pages)
            return wanted <= found

        wait_until(ask)
        return found

    client.event(OTHER, status=503)
    wait_until(lambda: client.stats().lag == 0)  # Until the failure takes effect, the page is still offered.
    assert OTHER not in offered({SPARED})
    client.forget(domain="org")
    client.seed([OTHER, SPARED])
    assert offered({OTHER, SPARED}) == {OTHER, SPARED}


@pytest.mark.parametrize("shards", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_exact_importance_and_in_links_stay_true(valkey: Server, shards: int) -> None:
    """Asked by a reader that follows all along, and by one that begins now; links to a page count once it is back."""
    web, draw = Web(valkey, f"forget-{shards}", shards), random.Random(shards)
    following = asked(web.crawl)
    for step in range(60):
        url, links, what = draw.choice(PAGES), draw.sample(PAGES, draw.randint(0, 4)), draw.random()
        if what < 0.3:
            web.forget(*draw.sample(PAGES, draw.randint(1, 3)))
        else:
            web.read(url, links, 404 if what < 0.4 else 200)
        if step % 4 == 3:
            web.writer.drain()
            expected = truth(web)
            for query in (following, asked(web.opened(shards))):
                if expected:
                    error, bound = error_and_bound(query, expected)
                    assert error <= bound <= 0.01
                kept = KeptLinks(query.crawl)
                for page in expected:
                    found: Any = inlinks(query, kept, page, 100)
                    assert set(found["inlinks"]) == {url for url in web.sources()[page] if url in expected}
            if expected:
                told = verified(following)
                assert float(told["error"]) <= float(told["error_bound"])  # type: ignore[arg-type]
    assert web.crawl.audit()[0].conserved


def test_urls_are_removed_within_a_minute_however_often_pages_are_forgotten(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(checkpointer.time, "monotonic", lambda: now[0])
    web = Web(valkey, "forgetful")
    for page in PAGES:
        web.read(page, [])
        web.forget(page)
        now[0] += 10
        assert not web.writer.stores[0].checkpointer.purge_due(60.0) or now[0] >= 1060
    assert web.writer.stores[0].checkpointer.purge_due(60.0)
    web.writer.purge(60.0)
    assert not web.writer.stores[0].checkpointer.purge_due(0.0)
    assert not valkey.client().hexists(web.crawl.shards[0].keys.head, "forgot")


def test_pages_that_come_and_go_without_end_take_no_more_room_and_are_known_since_they_came_last(
    valkey: Server,
) -> None:
    web = Web(valkey, "come-and-go", keep_links=False)
    web.read(PAGES[0], PAGES[1:])
    known = dict.fromkeys(PAGES, NOW_US // MILLION)
    for turn in range(100):
        some = PAGES[turn % 10 + 1 :][:4]
        web.forget(*some)
        web.at_us = NOW_US + (turn + 1) * MILLION
        known |= dict.fromkeys(some, web.at_us // MILLION)
        web.read(PAGES[0], some)
    keys, client = web.crawl.shards[0].keys, valkey.client()
    web.writer.stores[0].checkpoint()
    assert sum(map(len, client.hvals(keys.known_since))) == ENTRY.itemsize  # That of the first minute.
    assert len(client.hget(keys.block(0), KNOWN_AGAIN.key)) < 100
    for crawl in (web.crawl, web.opened()):  # One that has followed, and one that begins with the checkpoint.
        crawl.follow()
        assert known_since_of(crawl) == known
    web.forget(*PAGES[1:])
    web.writer.stores[0].checkpoint()
    assert client.hget(keys.block(0), KNOWN_AGAIN.key) == b""
    assert client.hlen(keys.urls) == 0
    assert web.opened().audit()[0].conserved


def test_readers_that_follow_see_the_same_as_a_new_one(valkey: Server) -> None:
    web = Web(valkey, "readers", 3)
    for page in range(12):
        web.read(PAGES[page], [PAGES[(page + at) % 14] for at in (1, 3, 5)])
    web.forget(*PAGES[:9])
    web.read(PAGES[10], PAGES[:4])
    web.writer.drain()
    new = Crawl.open(valkey.client(), "readers", {"shards": 3})
    web.crawl.follow()
    assert sorted(map(repr, web.crawl.pages())) == sorted(map(repr, new.pages()))
    assert {page.url for page in new.pages() if not page.has(Flag.GONE)} >= set(PAGES[:4])


def test_writer_unaware_that_a_page_was_forgotten_decides_anew(valkey: Server) -> None:
    """It asks for the URLs of the pages that it knows, to classify them again, and finds one that is blank."""
    web, page = Web(valkey, "lagging"), PAGES[0]
    web.read(page, [])
    web.forget(page)
    web.writer.stores[0].checkpoint()  # The only line with its URL is written without it.
    web.read(page, [])
    behind = ShardWriter(web.opened().shards[0])
    behind.follower.catch_up()
    assert behind.urls_of([0]) == {0: page}
    web.forget(page)
    with pytest.raises(FenceMoved, match="another worker forgot"):
        behind.urls_of([0])
    web.read(page, [])
    behind.follower.catch_up()
    assert behind.urls_of([0]) == {0: page}
    web.crawl.client.delete(web.crawl.shards[0].keys.urls)
    with pytest.raises(UrlMissing):
        behind.urls_of([0])


def test_page_that_was_forgotten_since_a_snapshot_is_left_out_of_its_best_pages(valkey: Server) -> None:
    web, page = Web(valkey, "snapshot"), PAGES[0]
    web.read(page, [])
    web.forget(page)
    web.writer.stores[0].checkpoint()
    web.read(page, [PAGES[1]])
    crawl = web.opened()
    snapshot = Snapshots(crawl).fresh()
    all_, lost = best_pages(snapshot, None, 5, None, None)
    assert {one["url"] for one in all_["pages"]} == {page, PAGES[1]}
    assert not lost
    web.forget(page)
    crawl = web.opened()
    crawl.follow()
    for n in (1, 2, 5):
        found, lost = best_pages(replace(snapshot, crawl=crawl), None, n, None, None)
        assert page not in {one["url"] for one in found["pages"]}
        assert lost + sum(one["importance"] for one in found["pages"]) == pytest.approx(
            sum(one["importance"] for one in all_["pages"][:n])
        )
        assert ("next" in found) == (n == 1)


def test_refused_event_of_a_page_is_forgotten_with_it_whatever_its_number(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The field of a page is its number modulo the slots, of which there are two here."""
    monkeypatch.setattr(Keys.refusals, "slots", 2)
    web = Web(valkey, "refused")
    web.read(PAGES[0], PAGES[1:5])
    (place,) = web.crawl.ids_of(PAGES[3:4])
    assert place is not None
    (shard,), page = web.crawl.shards, place[1]
    assert field_of(page) < page
    web.crawl.ask([["ZADD", shard.keys.leases, 1_790_000_000_000_000, page]])
    note_refusals(web.crawl.ask, [(shard.keys, page, f"{PAGES[3]} is refused")])
    assert shard.client.hlen(shard.keys.refusals) == 1
    web.forget(PAGES[3])
    assert not shard.client.exists(shard.keys.refusals, shard.keys.leases)


@pytest.mark.parametrize(
    "rule", [{"path": "/*"}, {"host": host_of(PAGES[5])}, {"path": "/none"}], ids=["all", "its host", "others"]
)
def test_rules_pass_over_pages_that_were_forgotten_until_they_are_known_again(
    valkey: Server, rule: dict[str, str]
) -> None:
    """Their ids stay, without a URL: a rule that was for them failed each question for pages from then on."""
    web = Web(valkey, f"ruled-{len(str(rule))}")
    for page in PAGES[:4]:
        web.read(page, PAGES[4:8])
    web.forget(PAGES[0], PAGES[5])
    web.writer.purge(0.0)
    pages = Crawl.open(valkey.client(), web.name)
    admission = Admission(pages)
    admission.put(check_policy({"rules": [{"effect": "deny", **rule}, {"effect": "allow"}]}))
    frontier = Frontier(pages, PolitenessSettings(host_delay_seconds=0.0), admission=admission)

    def offered() -> set[str]:
        return {page.url for page in frontier.next(20, mode="discover").pages}

    free = {page for page in PAGES if rule != {"path": "/*"} and host_of(page) != rule.get("host")}
    assert offered() == {PAGES[4], PAGES[6], PAGES[7]} & free
    assert not admission.behind
    web.read(PAGES[1], [PAGES[5]])
    assert offered() == {PAGES[5]} & free


def test_forgotten_page_of_the_scope_is_offered_when_it_is_known_again(valkey: Server) -> None:
    paths = [f"http://half.org/docs/{number}" for number in range(3)]
    web = Web(valkey, "scoped")
    web.read(paths[0], paths[1:])
    web.forget(paths[2])
    web.writer.purge(0.0)
    pages = Crawl.open(valkey.client(), web.name)
    admission = Admission(pages, Scope.of("http://half.org/docs/"))
    frontier = Frontier(pages, PolitenessSettings(host_delay_seconds=0.0), admission=admission)
    assert [page.url for page in frontier.next(20, mode="discover").pages] == [paths[1]]
    assert frontier.outside() == 0
    web.read(paths[0], [paths[2]])
    assert [page.url for page in frontier.next(20, mode="discover").pages] == [paths[2]]
