"""Policy LDU: half the draws are the free page with the greatest link score, half are any page."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_counts import part_of
from frontiers import drawn_places
from linked_web import PAGES, Web
from processes import wait_until
from same_state import small_blocks
from scipy import stats
from servers import Server
from serving import serving

from experiments.algorithms.discovery import DiscoveryCrawl, SampledOrder
from opic.client import Client, Conflict, Event
from opic.errors import NotKept
from opic.frontier import Frontier, PolitenessSettings
from opic.frontier.requests import PagesRequest
from opic.ingest import Writer
from opic.model.events import CrawlEvent
from opic.query.kept_links import KeptLinks
from opic.service.service import EmbeddedService
from opic.settings import Settings

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.

CHANCE = 1e-6  # Of right frequencies that the test rejects.
DRAWS = 1_000
WAIT_SECONDS = 20.0
READ = PAGES[:6]


def told(kept: KeptLinks) -> dict[str, int]:
    """The pages that have a score."""
    found = kept.scores()
    places = [(shard, page) for shard, ids in enumerate(found.ids) for page in ids.tolist()]
    urls = kept.crawl.urls_of(places)
    scores = itertools.chain.from_iterable(scores.tolist() for scores in found.scores)
    return {urls[place]: score for place, score in zip(places, scores, strict=True)}


class PlainScores:
    """What the definition says, in dicts: links as last read, and those that are new by each page's last read."""

    def __init__(self, links: dict[str, list[str]]) -> None:
        """Begin with links that are none of them new."""
        self.links, self.new = {url: set(shown) for url, shown in links.items()}, dict[str, set[str]]()

    def read(self, url: str, links: Sequence[str]) -> None:
        before, self.links[url] = self.links.get(url), set(links) - {url}
        self.new[url] = set() if before is None else self.links[url] - before

    def go(self, url: str) -> None:
        self.links.pop(url, None)
        self.new.pop(url, None)

    def positive(self) -> dict[str, int]:
        found = {url: sum(map(self.inlinks, new)) for url, new in self.new.items()}
        return {url: score for url, score in found.items() if score}

    def inlinks(self, url: str) -> int:
        return sum(url in shown for shown in self.links.values())


@pytest.mark.parametrize("shards", [1, 3])
def test_score_is_the_in_links_of_the_links_that_the_last_read_added(valkey: Server, shards: int) -> None:
    for run in range(part_of(15)):
        web, draw = Web(valkey, f"scores-{shards}-{run}", shards), random.Random(run)
        web.apply(*[CrawlEvent(url, PAGES) for url in PAGES])  # All pages are known to their shards.
        web.writer.drain()
        for url in PAGES:
            web.read(url, draw.sample(PAGES, 3))
        web.writer.drain()
        kept, plain = KeptLinks(web.crawl), PlainScores(web.links)
        assert told(kept) == {}
        for step in range(50):
            url, links = draw.choice(PAGES), draw.sample(PAGES, draw.randint(0, 5))
            if draw.random() < 0.15:
                web.read(url, [], status=404)
                plain.go(url)
            else:
                web.read(url, links)
                plain.read(url, links)
            web.writer.drain()
            assert told(kept) == plain.positive()
            assert inlinks_of(kept) == {url: plain.inlinks(url) for url in PAGES}
            if step % 10 == 9:  # Who starts now tells the same, and so does a worker that starts now.
                other = KeptLinks(web.opened(shards))
                assert (told(other), inlinks_of(other)) == (told(kept), inlinks_of(kept))
                web.writer = Writer(web.opened(shards, keep_links=True))


def inlinks_of(kept: KeptLinks) -> dict[str, int]:
    with kept.lock:
        kept.catch_up(kept.check, lambda _: None)
        places = kept.crawl.ids_of(PAGES)
        numbers = [-1 if place is None else kept.numbers.number_of(*place) for place in places]
        return dict(zip(PAGES, kept.inlinks.counts_of(np.array(numbers)).tolist(), strict=True))


@pytest.mark.parametrize("shards", [1, 3])
def test_scores_stay_the_same_when_links_are_loaded_from_segments(valkey: Server, shards: int) -> None:
    draw = random.Random(4)
    with small_blocks():
        web = Web(valkey, f"segments-{shards}", shards)
        for _ in range(120):
            web.read(draw.choice(PAGES), draw.sample(PAGES, draw.randint(0, 5)))
        web.writer.drain()
        followed = KeptLinks(web.crawl)
        before = told(followed), inlinks_of(followed)
        assert before[0]
        for writer in web.writer.stores:
            writer.checkpoint()
        other = KeptLinks(web.opened(shards))
        assert (told(other), inlinks_of(other)) == before


def test_pages_read_twice_in_one_batch_are_scored_read_by_read(valkey: Server) -> None:
    web = Web(valkey, "twice")
    web.apply(CrawlEvent(PAGES[0], PAGES[1:3]), CrawlEvent(PAGES[1], PAGES[2:3]))
    kept, plain = KeptLinks(web.crawl), PlainScores(web.links)
    assert told(kept) == {}
    events = [(PAGES[0], PAGES[1:2]), (PAGES[0], PAGES[1:4]), (PAGES[1], PAGES[2:5]), (PAGES[5], PAGES[:3])]
    web.apply(*[CrawlEvent(url, links) for url, links in events])
    for url, links in events:
        plain.read(url, links)
    assert told(kept) == plain.positive() == {PAGES[0]: 5, PAGES[1]: 3}


def test_score_of_the_last_page_read_equals_that_of_the_experiments(valkey: Server) -> None:
    web, draw = Web(valkey, "experiments"), random.Random(3)
    kept = KeptLinks(web.crawl)
    web.read(PAGES[0], [])
    assert told(kept) == {}
    order = SampledOrder(np.ones(len(PAGES)), np.random.default_rng(1))
    crawl = DiscoveryCrawl(order, "LDU", np.random.default_rng(1))
    shown: dict[int, set[int]] = {}
    crawl.fetched(0, 0.0, [], [])
    for step in range(1, 60):
        page = draw.randrange(len(PAGES))
        links = shown.setdefault(page, set())
        links |= {to for to in draw.sample(range(len(PAGES)), 2) if to != page}
        web.read(PAGES[page], [PAGES[to] for to in sorted(links)])
        crawl.fetched(page, float(step), [page * 100 + to for to in sorted(links)], sorted(links))
        assert crawl.recrawl.by_score.weight(page) == told(kept).get(PAGES[page], 0)


def test_link_to_a_page_that_its_shard_does_not_know_yet_has_one_in_link(valkey: Server) -> None:
    web = Web(valkey, "in-flight", 4)
    there = next(url for url in PAGES if web.crawl.shard_of(url).number != web.crawl.shard_of(PAGES[0]).number)
    web.read(PAGES[0], [])
    kept = KeptLinks(web.crawl)
    assert told(kept) == {}
    web.read(PAGES[0], [there])
    assert told(kept) == {PAGES[0]: 1}
    web.writer.drain()
    assert told(kept) == {PAGES[0]: 1}
    web.read(PAGES[0], [there])
    assert told(kept) == {}


class Scored:
    """A frontier on six pages that were read, of which two have scores: the first 6, the second 4."""

    def __init__(self, server: Server, shards: int = 1, **politeness: Any) -> None:
        self.web = Web(server, f"scored-{shards}", shards)
        self.web.apply(*[CrawlEvent(url, []) for url in READ])
        terms = {"host_delay_seconds": 0.0, "revisit_seconds": 0.0, **politeness}
        self.kept = KeptLinks(self.web.crawl)
        self.frontier = Frontier(self.web.crawl, PolitenessSettings(**terms), links=self.kept)
        self.frontier._scheduler.choices.rng = np.random.default_rng(7)
        assert told(self.kept) == {}
        target = READ[5]
        for url in READ[2:5]:  # Each finds what others found before it; a further read finds nothing.
            self.web.read(url, [target])
            self.web.read(url, [target])
        self.web.read(READ[1], [READ[0], READ[2], READ[3]])
        self.web.writer.drain()
        assert told(self.kept) == {READ[1]: 3}
        self.web.read(READ[0], [target, READ[2]])
        self.web.writer.drain()
        assert told(self.kept) == {READ[0]: 6, READ[1]: 4}

    def start_again(self) -> None:
        """Go on with the frontier of an endpoint that starts now, and reads links from a checkpoint."""
        for writer in self.web.writer.stores:
            writer.checkpoint()
        crawl = self.web.opened(len(self.web.crawl))
        self.frontier = Frontier(crawl, self.frontier.politeness, links=KeptLinks(crawl))
        self.frontier._scheduler.choices.rng = np.random.default_rng(11)

    def drawn(self, count: int, **more: Any) -> Iterator[tuple[str, ...]]:
        request = PagesRequest.of(count, 1.0, mode="refresh", policy="LDU", **more)
        urls: dict[Any, str] = {}
        for places in drawn_places(self.frontier, request, DRAWS):
            urls |= self.frontier.crawl.urls_of([place for place in places if place not in urls])
            yield tuple(urls[place] for place in places)


def chances(pages: Sequence[str], count: int) -> dict[tuple[str, ...], float]:
    """The chance of each order of draws: half the best page that is left, half any that is left."""
    best = [page for page in READ[:2] if page in pages]
    found = {(): 1.0}
    for _ in range(count):
        longer: dict[tuple[str, ...], float] = {}
        for drawn, chance in found.items():
            left = [page for page in pages if page not in drawn]
            first = next((page for page in best if page in left), None)
            for page in left:
                share = 1 / len(left) if first is None else 0.5 / len(left) + 0.5 * (page == first)
                longer[*drawn, page] = chance * share
        found = longer
    return found


@pytest.mark.parametrize("shards", [1, 3])
def test_half_the_draws_are_the_page_with_the_greatest_score(valkey: Server, shards: int) -> None:
    scored = Scored(valkey, shards)
    for count in (1, 2, 3):
        expected = chances(READ, count)
        found = Counter(scored.drawn(count))
        assert found.keys() <= expected.keys()
        counts = [found[order] for order in expected]
        assert stats.chisquare(counts, [DRAWS * chance for chance in expected.values()]).pvalue > CHANCE
    assert all(sorted(drawn) == sorted(READ) for drawn in itertools.islice(scored.drawn(9), 50))


@pytest.mark.parametrize("shards", [1, pytest.param(16, marks=pytest.mark.thorough), 4])
def test_endpoint_that_starts_later_draws_like_the_one_that_saw_the_reads(valkey: Server, shards: int) -> None:
    scored = Scored(valkey, shards)
    expected = chances(READ, 2)
    for _ in ("followed", "started later"):
        found = Counter(scored.drawn(2))
        counts = [found[order] for order in expected]
        assert stats.chisquare(counts, [DRAWS * chance for chance in expected.values()]).pvalue > CHANCE
        scored.start_again()


def test_within_a_domain_the_best_of_its_pages_is_drawn(valkey: Server) -> None:
    scored = Scored(valkey)
    inside = [READ[1], READ[2], READ[3]]
    expected = chances(inside, 2)
    found = Counter(scored.drawn(2, domains=("h1.org", "h2.org", "h3.org")))
    counts = [found[order] for order in expected]
    assert stats.chisquare(counts, [DRAWS * chance for chance in expected.values()]).pvalue > CHANCE


def test_leased_and_vanished_pages_leave_their_turn_to_the_next_best(valkey: Server) -> None:
    scored = Scored(valkey)
    got: Any = scored.frontier.next(6, mode="refresh", policy="LDU", domain="h1.org")
    assert [page.url for page in got.pages] == [READ[1]]
    scored.web.read(READ[0], [], status=404)
    firsts = Counter(drawn[0] for drawn in scored.drawn(1))
    assert firsts.keys() == set(READ[2:])  # No page that has a score is free.
    scored.frontier.release([got.pages[0].lease])
    firsts = Counter(drawn[0] for drawn in scored.drawn(1))
    assert abs(firsts[READ[1]] / DRAWS - (0.5 + 0.5 / 5)) < 0.1


def test_half_the_draws_are_by_score_also_while_most_pages_are_leased(valkey: Server) -> None:
    scored = Scored(valkey)
    domains = ["h2.org", "h3.org", "h4.org"]
    leased: Any = scored.frontier.next(9, mode="refresh", policy="U", domains=domains)
    assert len(leased.pages) == 3
    firsts = Counter(drawn[0] for drawn in scored.drawn(1))  # Of three free pages.
    assert firsts.keys() == {READ[0], READ[1], READ[5]}
    assert abs(firsts[READ[0]] / DRAWS - (0.5 + 0.5 / 3)) < 0.06


def test_host_with_a_delay_gives_one_page_and_its_best(valkey: Server) -> None:
    scored = Scored(valkey, host_delay_seconds=60.0)
    assert READ[0].startswith("http://h0.org")
    assert READ[5].startswith("http://h0.org")
    firsts = Counter(drawn[0] for drawn in scored.drawn(2))
    assert abs(firsts[READ[0]] / DRAWS - (0.5 + 0.5 / 6)) < 0.1
    assert all(len({url.split("/")[2] for url in drawn}) == len(drawn) for drawn in scored.drawn(6))


def test_without_kept_links_the_policy_is_refused(valkey: Server) -> None:
    web = Web(valkey, "none", keep_links=False)
    web.read(PAGES[0], PAGES[1:3])
    for frontier in (Frontier(web.crawl, links=KeptLinks(web.crawl)), Frontier(web.crawl)):
        with pytest.raises(NotKept, match=r"OPIC_KEEP_LINKS=off|no link scores"):
            frontier.next(1, mode="refresh", policy="LDU")


def test_service_draws_by_link_scores(tmp_path: Path) -> None:
    settings = Settings.load(data=tmp_path / "data", keep_links=True, host_delay_seconds=0, revisit_seconds=0)
    with EmbeddedService(settings) as service, serving(service) as url, Client(url) as client:
        client.events([Event(url=page) for page in READ])
        wait_until(lambda: client.stats().read_pages == len(READ), WAIT_SECONDS)
        assert len(client.next(2, mode="refresh", policy="LDU").pages) == 2
        client.events([Event(url=READ[3], links=[READ[5]])])
        wait_until(lambda: told(service.backend.links) == {READ[3]: 1}, WAIT_SECONDS)


def test_service_without_kept_links_says_what_to_set(tmp_path: Path) -> None:
    with (
        EmbeddedService(Settings.load(data=tmp_path / "data", keep_links=False)) as service,
        serving(service) as url,
        Client(url) as client,
    ):
        client.seed(PAGES[:1])
        with pytest.raises(Conflict, match="OPIC_KEEP_LINKS=off is set for the workers"):
            client.next(1, mode="refresh", policy="LDU")
        assert client.next(1, mode="refresh", policy="U").pages == []
