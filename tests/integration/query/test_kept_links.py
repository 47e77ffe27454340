"""Kept links without trust: OPIC_KEEP_LINKS begins the keeping, and /v1/inlinks says which pages link to a page."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from link_pools import links_of
from linked_web import PAGES, Web
from logs import PARTITION
from processes import wait_until
from servers import Server
from serving import serving, serving_embedded

from opic.client import Client, Conflict, NotFound
from opic.errors import NotKept, StoreFull
from opic.graph.link_pool import UNKNOWN_PAGE
from opic.ingest import ShardWriter, Writer
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.ops.backup import backup
from opic.ops.restore import restore
from opic.query import crawl_numbers, kept_links
from opic.query.inlinks import inlinks
from opic.query.kept_links import KeptLinks
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl, Replica
from opic.replica.crawl import Place
from opic.replica.stored_links import read_list
from opic.service.backend import Backend
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.store import Shard

WAIT_SECONDS = 20.0


class Asked:
    """A reader of a crawl's in-links."""

    def __init__(self, crawl: Crawl) -> None:
        self.kept, self.query = KeptLinks(crawl), Query(crawl, Snapshots(crawl))

    def __call__(self, url: str, n: int = 100) -> set[str] | None:
        found = inlinks(self.query, self.kept, url, n)
        if found is None:
            return None
        pages = found["inlinks"]
        assert isinstance(pages, list)
        assert len(pages) == min(n, found["known"])  # type: ignore[call-overload]
        assert len(set(pages)) == len(pages)
        return set(pages)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_in_links_come_from_the_last_reads_of_live_pages(valkey: Server, shards: int) -> None:
    """Asked by a reader that follows all along, by one that begins now, and from a backup at the end."""
    web, draw = Web(valkey, f"inlinks-{shards}", shards), random.Random(shards)
    asked = Asked(web.crawl)
    for step in range(60):
        url, links, what = draw.choice(PAGES), draw.sample(PAGES, draw.randint(0, 4)), draw.random()
        if what < 0.15:
            web.read(url, [], status=404)
        elif what < 0.25:
            web.read(url, links[:1], status=301)
        else:
            web.read(url, links)
        if step % 2:
            web.writer.drain()
        if step % 5 == 4:
            web.writer.drain()
            known = {page.url for page in web.crawl.pages()}
            readers = [asked, Asked(web.opened(shards))]
            for page, sources in web.sources().items():
                for reader in readers:
                    assert reader(page) == (sources if page in known else None)
                    assert (reader(page, 1) or set()) <= sources


def test_in_links_of_many_shards_are_found_once_the_linked_page_is_known_there(valkey: Server) -> None:
    web = Web(valkey, "in-flight", 4)
    there = next(url for url in PAGES if web.crawl.shard_of(url).number != web.crawl.shard_of(PAGES[0]).number)
    asked = Asked(web.crawl)
    web.read(PAGES[0], [there])
    assert asked(there) is None
    web.writer.drain()
    assert asked(there) == {PAGES[0]}


def test_memory_of_links_follows_the_number_of_pages_however_unequal_the_shards(valkey: Server) -> None:
    """All pages of a host are in one shard; the others have none."""
    web = Web(valkey, "unequal", 64)
    for page in range(200):
        web.read(f"http://big.org/{page}", [f"http://big.org/{page + 1}"])
    asked = Asked(web.crawl)
    assert asked("http://big.org/200") == {"http://big.org/199"}
    assert asked.kept.pool.pages_linked() <= 1_024  # At first there is room for that.
    assert len(asked.kept.numbers) == 256


def test_pages_beyond_the_last_number_are_refused(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web(valkey, "beyond", 2)
    monkeypatch.setattr(crawl_numbers, "PAGES_MAX", 64)
    for page in range(64):
        web.read(f"http://big.org/{page}", [])
    asked = Asked(web.crawl)
    assert asked("http://big.org/0") == set()
    web.read("http://big.org/64", [])
    with pytest.raises(StoreFull, match=r"has 65 pages.*more than 64 in all"):
        asked("http://big.org/0")


def test_reader_that_fell_behind_reads_all_links_again(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_links, "QUEUED_MAX", 3)
    web = Web(valkey, "behind")
    asked = Asked(web.crawl)
    web.read(PAGES[0], PAGES[1:])
    assert asked(PAGES[5]) == {PAGES[0]}
    for url in PAGES[1:]:
        web.read(url, [PAGES[0]])
    assert asked(PAGES[0]) == set(PAGES[1:])
    assert asked.kept.generation == 2


def test_links_are_kept_while_the_setting_is_on(valkey: Server) -> None:
    web = Web(valkey, "begins", keep_links=False)
    web.read(PAGES[0], [PAGES[1]])
    with pytest.raises(NotKept, match="OPIC_KEEP_LINKS=off"):
        Asked(web.crawl)(PAGES[1])
    segments = web.crawl.shards[0].keys.link_segments
    assert not valkey.client().exists(segments)
    asked = Asked(web.opened())
    for keep_links in (True, None):  # A worker that was told nothing goes on.
        web.writer = Writer(web.opened(keep_links=keep_links))
        web.read(PAGES[2], [PAGES[1 if keep_links else 3]])
        assert asked(PAGES[1]) == ({PAGES[2]} if keep_links else set())  # Page 0 was read before.
    assert asked(PAGES[3]) == {PAGES[2]}
    web.writer.stores[0].checkpoint()
    assert read_list(valkey.client(), web.crawl.shards[0].keys).live
    web.writer = Writer(web.opened(keep_links=False))
    web.read(PAGES[4], [PAGES[5]])
    with pytest.raises(NotKept, match="OPIC_KEEP_LINKS=off"):
        asked(PAGES[3])
    web.writer.stores[0].checkpoint()
    assert not read_list(valkey.client(), web.crawl.shards[0].keys).live
    assert not [name for name in valkey.client().hkeys(segments) if name[:1] in b"pl" and name[1:].isdigit()]


@pytest.mark.parametrize("checkpoints", [False, True])
def test_links_kept_in_an_earlier_period_do_not_come_back(valkey: Server, tmp_path: Path, *, checkpoints: bool) -> None:
    """Whether they are in segments or in the journal yet, and whether a reader has followed or begins now."""
    web = Web(valkey, f"again-{checkpoints}")
    asked = Asked(web.opened())

    def work(keep_links: bool, url: str, links: list[str]) -> None:
        web.writer = Writer(web.opened(keep_links=keep_links))
        web.read(url, links)
        if checkpoints:
            web.writer.stores[0].checkpoint()

    work(True, PAGES[0], [PAGES[1]])
    work(True, PAGES[2], [PAGES[1]])
    assert asked(PAGES[1]) == {PAGES[0], PAGES[2]}
    work(False, PAGES[0], [PAGES[3]])  # What page 0 shows now is not kept.
    work(True, PAGES[4], [PAGES[1]])
    for reader in (asked, Asked(web.opened())):
        assert reader(PAGES[1]) == {PAGES[4]}
        assert reader(PAGES[3]) == set()
    work(True, PAGES[2], [PAGES[1]])
    backup(web.crawl, tmp_path)
    restore(valkey.client(), tmp_path, f"restored-{checkpoints}")
    restored = Crawl.open(valkey.client(), f"restored-{checkpoints}")
    for reader in (asked, Asked(web.opened()), Asked(restored)):
        assert reader(PAGES[1]) == {PAGES[2], PAGES[4]}


def test_crawl_with_trusted_pages_keeps_links_with_the_setting_off(valkey: Server) -> None:
    """Of every shard, also where no page is trusted: coverage needs them."""
    web = Web(valkey, "trusting", 3)
    web.trust(PAGES[0])
    web.writer = Writer(web.opened(3, keep_links=False))
    for page in PAGES[1:]:
        web.read(page, [PAGES[0]])
    web.writer.drain()
    assert Asked(web.opened(3))(PAGES[0]) == set(PAGES[1:])
    web.trust(PAGES[0], 0.0)
    web.read(PAGES[0], [PAGES[1]])
    web.writer.drain()
    assert Asked(web.opened(3))(PAGES[1]) == {PAGES[0]}


def test_restored_crawl_has_the_in_links(valkey: Server, tmp_path: Path) -> None:
    web = Web(valkey, "saved")
    web.read(PAGES[0], [PAGES[1], PAGES[2]])
    web.writer.stores[0].checkpoint()
    web.read(PAGES[3], [PAGES[1]])
    for number in range(2):  # With records behind the checkpoint, and without.
        backup(web.crawl, tmp_path / f"{number}")
        restore(valkey.client(), tmp_path / f"{number}", f"again{number}")
        assert Asked(Crawl.open(valkey.client(), f"again{number}"))(PAGES[1]) == {PAGES[0], PAGES[3]}
        web.writer.stores[0].checkpoint()


@pytest.mark.slow
def test_service_answers_in_links(tmp_path: Path) -> None:
    with serving_embedded(tmp_path / "data", keep_links=True) as (http, client):
        assert http.get("/v1/inlinks", params={"url": PAGES[0]}).status_code == 404
        events = [{"url": page, "links": [PAGES[0]]} for page in PAGES[1:]]
        assert http.post("/v1/events", json=events).status_code == 202
        wait_until(lambda: http.get("/v1/stats").json()["read_pages"] == len(PAGES) - 1, WAIT_SECONDS)
        found = client.inlinks(PAGES[0], 5)
        assert (found.url, found.inlinks, found.known) == (PAGES[0], PAGES[1:6], 13)
        assert found.as_of is not None
        assert client.inlinks(PAGES[1]).inlinks == []
        with pytest.raises(NotFound, match="was never seen"):
            client.inlinks("http://nowhere.example/")
        assert http.get("/v1/inlinks", params={"url": "nowhere"}).status_code == 422
        assert "OPIC_MAX_N" in http.get("/v1/inlinks", params={"url": PAGES[0], "n": 1_001}).json()["detail"]


@pytest.mark.slow
def test_service_with_the_setting_off_says_what_to_set(tmp_path: Path) -> None:
    with (
        EmbeddedService(Settings.load(data=tmp_path / "data", keep_links=False)) as service,
        serving(service) as url,
        Client(url) as client,
    ):
        client.seed(PAGES[:1])
        with pytest.raises(Conflict, match="OPIC_KEEP_LINKS=off is set for the workers"):
            client.inlinks(PAGES[0])
        client.seed(PAGES[:1], trust=1.0)
        assert client.inlinks(PAGES[0]).known == 0


@pytest.mark.slow
def test_page_that_became_known_after_the_copy_gets_its_in_links_later(valkey: Server) -> None:
    """Another thread may follow the journals in the middle of a call."""
    web = Web(valkey, "later", 2)
    for url in PAGES[:5]:
        web.read(url, [])
    web.writer.drain()
    reader = web.opened(2)
    kept = KeptLinks(reader)
    kept.present()
    first, last = (next(url for url in PAGES[:5] if place_of(web, url)[0] == shard) for shard in (0, 1))
    web.read(last, [new := f"{first}new"])  # The shard of the new page does not know it yet.

    def copied(replica: Replica) -> int:
        pages = len(replica)
        if replica is reader.replicas[1]:
            web.writer.drain()
            reader._followers[0].catch_up()
        return pages

    with kept.lock:
        read = kept.catch_up(kept.check, copied)
        source = kept.numbers.number_of(*place_of(web, last))
        assert place_of(web, new) == (0, read.taken[0])
        assert links_of(kept.pool, source) == [UNKNOWN_PAGE]
        kept.catch_up(kept.check, copied)
        assert links_of(kept.pool, source) == [kept.numbers.number_of(*place_of(web, new))]


def place_of(web: Web, url: str) -> Place:
    web.crawl.follow()
    (place,) = web.crawl.ids_of([url])
    assert place is not None
    return place


def test_links_count_as_kept_while_their_replica_is_loaded(valkey: Server) -> None:
    """Half loaded, a replica knows of reads and not of links: a question then was told that none are kept."""
    web = Web(valkey, "half-loaded")
    web.read(PAGES[0], PAGES[1:3])
    web.crawl.follow()
    kept, (replica,) = KeptLinks(web.crawl), web.crawl.replicas
    with ThreadPoolExecutor(1) as thread:
        with replica.following():
            trust, replica.trust = replica.trust, None
            asked = thread.submit(kept.check)
            with pytest.raises(TimeoutError):
                asked.result(timeout=0.2)
            replica.trust = trust
        assert asked.result(timeout=WAIT_SECONDS) is None


def test_questions_are_answered_by_cash_once_a_first_read_shows_that_no_links_are_kept(valkey: Server) -> None:
    """The endpoint is to keep links, but the worker, which may be of another host, is not."""
    backend = Backend(Settings.load(store=valkey.url), valkey.url)
    worker = ShardWriter(Shard.open(valkey.client()))
    worker.apply(PARTITION, [Record(0, 1, encode_seeds(PAGES), "seeds")])
    places = [place for place in backend.crawl.ids_of(PAGES[:2]) if place is not None]
    assert backend.query.shares(places)[0] == "exact"
    worker.apply(PARTITION, [Record(1, 2, encode_crawl_event(CrawlEvent(url=PAGES[0], links=PAGES[1:3])), "event")])
    assert backend.query.shares(places) == ("static", [None, None])
