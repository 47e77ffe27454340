"""Pages that were read come again as a recrawl policy draws them, fed by what their past reads have discovered."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from frontiers import PARTITION, Crawl, drawn_places, pages_of
from processes import wait_until
from same_state import assert_same_replica, small_blocks
from scipy import stats
from servers import Server
from serving import serving

from opic.client import Client
from opic.errors import BadInput, NotKept
from opic.frontier import Frontier, PolitenessSettings
from opic.frontier.requests import NEED_YIELDS, PagesRequest
from opic.ingest import ShardWriter
from opic.model.events import CrawlEvent, Record, encode_crawl_event
from opic.replica import Crawl as Shards
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.store import Shard

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.

CHANCE = 1e-6  # Of right frequencies that the test rejects.
DRAWS = 1_000
WAIT_SECONDS = 20.0
NOW = 1_750_000_000
HUBS = [f"http://hub{n}.org/" for n in range(4)]
# Of each hub: pages that its first read shows, then those that a second read adds, and the seconds between both.
SHOWN, ADDED, SECONDS = (1, 2, 5, 0), (3, 0, 6, 1), (10, 10, 40, 20)


class Recrawl:
    """A store that keeps yields, with four hubs that were read twice; other pages were never read."""

    def __init__(self, server: Server, *, yields: bool = True, revisit_seconds: float = 0.0, **more: Any) -> None:
        self.server = server
        self.crawl = Crawl(server)
        self.crawl.store = self.writer(yields=yields)
        politeness = PolitenessSettings(host_delay_seconds=0.0, revisit_seconds=revisit_seconds)
        self.frontier = Frontier(self.shards(yields=yields), politeness, **more)
        self.frontier._scheduler.choices.rng = np.random.default_rng(7)
        for number, url in enumerate(HUBS):
            links = [f"{url}{n}" for n in range(SHOWN[number] + ADDED[number])]
            self.crawl.event(url, links[: SHOWN[number]], fetched_at=NOW)
            self.crawl.event(url, links, fetched_at=NOW + SECONDS[number])

    def writer(self, *, yields: bool = True, journal_bytes: int = 1 << 20) -> ShardWriter:
        shard = Shard.open(self.server.client())
        shard.yields = yields
        return ShardWriter(shard, journal_bytes=journal_bytes)

    def shards(self, *, yields: bool = True) -> Shards:
        return Shards.open(self.server.client(), yields=yields)

    def drawn(self, policy: str, count: int = 1, **more: Any) -> Counter[str]:
        """How often pages are chosen, without leasing them."""
        found, names = Counter[str](), {}
        request = PagesRequest.of(count, 1.0, mode="refresh", policy=policy, **more)
        for places in drawn_places(self.frontier, request, DRAWS):
            names |= self.frontier.crawl.urls_of([place for place in places if place not in names])
            found.update(names[place] for place in places)
        return found


def assert_frequencies(found: Counter[str], weights: dict[str, float]) -> None:
    assert found.keys() == {url for url, weight in weights.items() if weight}
    total = sum(weights.values())
    expected = {url: sum(found.values()) * weight / total for url, weight in weights.items() if weight}
    assert stats.chisquare([found[url] for url in expected], list(expected.values())).pvalue > CHANCE


SEEN = [a + b for a, b in zip(SHOWN, ADDED, strict=True)]
RATES = [new / seconds for new, seconds in zip(ADDED, SECONDS, strict=True)]


@pytest.mark.parametrize(
    ("policy", "weights"),
    [
        ("U", [1, 1, 1, 1]),
        ("OR", SEEN),
        ("YR", RATES),
        ("YRU", [rate / sum(RATES) / 2 + 1 / 8 for rate in RATES]),
    ],
)
def test_policy_draws_in_proportion_to_discovered_links(valkey: Server, policy: str, weights: list[float]) -> None:
    found = Recrawl(valkey).drawn(policy)
    assert_frequencies(found, dict(zip(HUBS, weights, strict=True)))


def test_within_a_domain_the_policy_draws_from_its_pages_alone(valkey: Server) -> None:
    crawl = Recrawl(valkey)
    found = crawl.drawn("OR", domains=("hub0.org", "hub2.org"))
    assert_frequencies(found, {HUBS[0]: SEEN[0], HUBS[2]: SEEN[2]})


def test_batch_has_each_page_once_and_those_without_weight_last(valkey: Server) -> None:
    crawl = Recrawl(valkey)
    lasts = Counter[str]()
    request = PagesRequest.of(10, 1.0, mode="refresh", policy="YR")
    for picked in drawn_places(crawl.frontier, request, 200):
        urls = crawl.frontier.crawl.urls_of(picked)
        assert sorted(urls[place] for place in picked) == HUBS
        lasts[urls[picked[-1]]] += 1
    assert lasts == {HUBS[1]: 200}  # Its second read discovered nothing.


def test_pages_are_leased_to_one_crawler_and_come_back_when_released(servers: Server) -> None:
    crawl = Recrawl(servers)
    first: Any = crawl.frontier.next(3, mode="refresh", policy="OR")
    second: Any = crawl.frontier.next(3, mode="refresh", policy="U")
    assert sorted(page.url for page in first.pages + second.pages) == HUBS
    assert all(page.fetched_before for page in first.pages)
    empty = crawl.frontier.next(3, mode="refresh", policy="YRU")
    assert (empty.pages, empty.exhausted) == ([], False)
    assert 0 < empty.retry_after <= 5  # type: ignore[operator]
    crawl.frontier.release([page.lease for page in second.pages])
    again: Any = crawl.frontier.next(3, mode="refresh", policy="YR")
    assert [page.url for page in again.pages] == [page.url for page in second.pages]


def test_vanished_or_just_read_page_is_not_suggested(valkey: Server) -> None:
    crawl = Recrawl(valkey, revisit_seconds=3_600)
    crawl.crawl.event(HUBS[0], status=404)
    crawl.crawl.event(HUBS[2], ["http://hub2.org/more"])  # Now.
    assert_frequencies(crawl.drawn("U"), {HUBS[1]: 1, HUBS[3]: 1})


def test_delayed_host_gives_one_page_at_a_time(valkey: Server) -> None:
    crawl = Crawl(valkey)
    for url in pages_of(3, 5):
        crawl.event(url)
    frontier = Frontier(Shards.open(valkey.client()), PolitenessSettings(host_delay_seconds=30.0))
    first: Any = frontier.next(10, mode="refresh", policy="U")
    assert len({page.url.split("/")[2] for page in first.pages}) == len(first.pages) == 3
    assert frontier.next(10, mode="refresh", policy="U").pages == []


def test_crawl_without_read_pages_suggests_none(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.seed(pages_of(3, 1))
    found = crawl.frontier.next(5, mode="refresh", policy="U")
    assert (found.pages, found.exhausted) == ([], True)


def test_every_page_is_drawn_if_all_yields_are_zero(valkey: Server) -> None:
    crawl = Recrawl(valkey)
    for at, url in enumerate(HUBS):
        crawl.crawl.event(url, [], fetched_at=NOW + 100 + at)
    assert_frequencies(crawl.drawn("YR"), dict.fromkeys(HUBS, 1))


@pytest.mark.parametrize("jump", [0, -1_000, 86_400 * 30])
def test_clock_that_jumps_gives_a_finite_yield(valkey: Server, jump: int) -> None:
    crawl = Recrawl(valkey)
    crawl.crawl.event(HUBS[0], [f"{HUBS[0]}new{n}" for n in range(5)], fetched_at=NOW + SECONDS[0] + jump)
    replica = crawl.shards().follow()[0]
    seen, rate = (replica.columns.values_of(name, np.array([0]))[0] for name in ("seen", "rate"))
    assert (seen, rate) == (SEEN[0] + 5, np.float32(5 / max(jump, 1)))


def test_counts_survive_a_restart_by_the_checkpoint_and_the_journal(valkey: Server) -> None:
    rng = np.random.default_rng(3)
    with small_blocks():
        crawl = Recrawl(valkey)
        crawl.crawl.store = writer = crawl.writer(journal_bytes=4_000)
        for step in range(150):
            links = [f"http://h{rng.integers(9)}.org/{n}" for n in rng.integers(0, 60, 4)]
            crawl.crawl.event(f"http://h{rng.integers(9)}.org/{rng.integers(9)}", links, fetched_at=NOW + 60 * step)
        assert writer.checkpointer.blocks_written > 20
        (loaded,) = crawl.shards().follow()
        assert_same_replica(loaded, writer.replica)
        assert np.count_nonzero(loaded.columns.values_of("rate", np.arange(len(loaded)))) > 5
        (without,) = crawl.shards(yields=False).follow()
        assert "rate" not in without.columns.in_use()
        assert without.v.tolist() == loaded.v.tolist()


def test_counts_do_not_depend_on_the_batches(valkey: Server) -> None:
    rng, events = np.random.default_rng(5), []
    for step in range(120):
        links = [f"http://h{rng.integers(5)}.org/{n}" for n in rng.integers(0, 40, 4)]
        page = CrawlEvent(f"http://h{rng.integers(5)}.org/{rng.integers(9)}", links=links, fetched_at=NOW + 60 * step)
        events.append(Record(step, NOW * 1_000_000, encode_crawl_event(page)))
    columns = []
    for size in (len(events), 7, 1):
        valkey.client().flushall()
        shard = Shard.open(valkey.client())
        shard.yields = True
        writer = ShardWriter(shard)
        for at in range(0, len(events), size):
            writer.apply(PARTITION, events[at : at + size])
        ids = np.arange(len(writer.replica))
        columns.append([writer.replica.columns.values_of(name, ids).tolist() for name in ("seen", "rate")])
    assert columns[0] == columns[1] == columns[2]
    assert any(columns[0][1])


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ({"mode": "refresh", "policy": "YDU"}, "policy='YDU' is not one of U, OR, YR, YRU, LDU"),
        ({"mode": "any", "policy": "LDU"}, "policy='LDU' is about pages read before: ask with mode=refresh"),
        ({"mode": "any", "policy": "U"}, "policy='U' is about pages read before: ask with mode=refresh"),
        ({"mode": "discover", "policy": "U"}, "ask with mode=refresh"),
    ],
)
def test_invalid_policy_or_mode_is_refused(terms: dict[str, str], text: str) -> None:
    with pytest.raises(BadInput, match=text):
        PagesRequest.of(1, 1.0, **terms)  # type: ignore[arg-type]


def test_policy_that_needs_yields_is_refused_without(valkey: Server) -> None:
    crawl = Recrawl(valkey, yields=False)
    for policy in NEED_YIELDS:
        with pytest.raises(NotKept, match=f"policy={policy} needs what past reads.*OPIC_YIELDS=off"):
            crawl.frontier.next(1, mode="refresh", policy=policy)
    assert len(crawl.frontier.next(4, mode="refresh", policy="U").pages) == 4


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[httpx.Client, EmbeddedService]]:
    settings = Settings.load(data=tmp_path / "data", host_delay_seconds=0, revisit_seconds=0)
    with EmbeddedService(settings) as service, serving(service) as url:
        yield httpx.Client(base_url=url, timeout=30), service


def test_service_draws_the_pages_of_a_policy(asked: tuple[httpx.Client, EmbeddedService]) -> None:
    http, service = asked
    events = [{"url": url, "links": [f"{url}{n}" for n in range(3)]} for url in HUBS]
    assert http.post("/v1/events", json=events).status_code == 202
    wait_until(lambda: http.get("/v1/stats").json()["read_pages"] == 4, WAIT_SECONDS)
    with Client(str(http.base_url)) as client:
        first = client.next(2, mode="refresh", policy="OR").pages
        second = client.next(9, mode="refresh", policy="YRU").pages
    assert sorted(page.url for page in [*first, *second]) == HUBS
    (replica,) = service.backend.crawl.replicas
    assert replica.columns.values_of("seen", np.arange(len(replica))).sum() == 12
