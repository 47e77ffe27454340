"""Coverage in the running service: a lower bound that follows the crawl, wherever the pages are, whatever is killed."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from frontiers import AT_ONCE, Crawl, until
from logs import NOW_US
from processes import environment
from same_state import stored_links
from servers import Server
from serving import serving
from written import written

from opic.errors import BadInput, NoTrust
from opic.frontier import Frontier, page_sources
from opic.ingest import ShardWriter, Writer
from opic.model.cash import DAY_US, Flag
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.ops.backup import backup
from opic.ops.restore import restore
from opic.query import kept_links
from opic.query.coverage import CoverageQuery
from opic.query.kept_links import KeptLinks
from opic.query.page_flows import PageFlows
from opic.replica import Crawl as Shards
from opic.service.service import EmbeddedService
from opic.settings import Settings

DAMPING = 0.85
PAGES = [f"http://h{page % 5}.org/{page}" for page in range(14)]
OVER = "input should be less than or equal to 1000000000"
BAD_TRUST = {
    "-1": "input should be greater than or equal to 0",
    "NaN": "input should be a finite number",
    "Infinity": "input should be a finite number",
    "1000000001": OVER,
    "1e308": OVER,
    "true": "input should be a valid number",
    '"1"': "input should be a valid number",
}
BAD_TARGETS = {"0": "greater than 0", "-0.5": "greater than 0", "1.01": "less than or equal to 1", "nan": "finite"}


class Web:
    """A crawl over a few shards, and what was seen of the graph."""

    def __init__(self, server: Server, name: str, shards: int) -> None:
        """Start empty."""
        self.server, self.name = server, name
        self.crawl = Shards.open(server.client(), name, {"shards": shards})
        self.writer = Writer(self.crawl)
        self.offset, self.at_us = 0, NOW_US
        self.links: dict[str, list[str]] = {}
        self.trust: dict[str, float] = {}

    def apply(self, value: bytes, kind: str) -> None:
        self.writer.apply("log/0", [Record(self.offset, self.at_us, value, kind)])
        self.offset, self.at_us = self.offset + 1, self.at_us + DAY_US

    def seed(self, urls: Sequence[str], trust: float | None) -> None:
        self.apply(encode_seeds(list(urls), trust=trust), "seeds")
        if trust is not None:
            self.trust |= dict.fromkeys(urls, trust)

    def event(self, url: str, links: Sequence[str], status: int = 200) -> None:
        redirect = links[0] if links and 300 <= status < 400 else None
        self.apply(encode_crawl_event(CrawlEvent(url, list(links), status=status, redirect=redirect)), "event")
        if status < 400:
            self.links[url] = [link for link in links if link != url]

    def settle(self) -> None:
        self.writer.drain()

    def truth(self, draw: random.Random) -> float:
        """The share of the fetched pages, if the pages not fetched link to what `draw` says."""
        known = list(self.crawl.pages())
        gone = {page.url for page in known if page.has(Flag.GONE)}
        opened = {page.url for page in known if page.has(Flag.OPEN)}
        live = [url for url in PAGES if url not in gone]
        moves = np.zeros((len(PAGES), len(PAGES)))
        for at, url in enumerate(PAGES):
            here = self.links[url] if url in opened else draw.sample(live, draw.randint(0, 3))
            targets = [PAGES.index(link) for link in here if link in live and link != url]
            for target in targets if url in live else ():
                moves[target, at] += DAMPING / len(targets)
        start = np.array([0 if url in gone else self.trust.get(url, 0.0) for url in PAGES])
        visits = np.linalg.solve(np.eye(len(PAGES)) - moves, start / start.sum())
        return float(visits[[url in opened for url in PAGES]].sum() / visits.sum())


def random_crawl(web: Web, draw: random.Random, steps: int) -> Iterator[None]:
    for _ in range(steps):
        url, links = draw.choice(PAGES), draw.sample(PAGES, draw.randint(0, 4))
        what = draw.random()
        if what < 0.15:
            web.event(url, [], status=404)
        elif what < 0.25:
            web.event(url, links[:1], status=301)
        elif what < 0.35:
            web.event(url, [], status=500)
        elif what < 0.45:
            web.seed([url], draw.choice([None, 0.0, 1.0, 2.5]))
        else:
            web.event(url, links)
        yield


@pytest.mark.parametrize("shards", [1, 3])
def test_bound_holds_for_every_state_of_a_crawl_and_every_shape_of_the_rest(valkey: Server, shards: int) -> None:
    draw = random.Random(shards)
    for run in range(4):
        web = Web(valkey, f"coverage-{shards}-{run}", shards)
        web.event(PAGES[0], PAGES[1:4])  # Before the first trusted page: its links are not kept.
        web.seed(PAGES[3:5], 1.0)
        asked = CoverageQuery(PageFlows(KeptLinks(web.crawl)))
        for number, _ in enumerate(random_crawl(web, draw, 30)):
            if number % 3 == 0:
                web.settle()
            if number % 2 == 0:
                try:
                    found = asked.now()
                except NoTrust:
                    continue
                for _ in range(3):
                    assert 0 <= found.flow.coverage <= web.truth(draw) + 1e-12
        web.settle()
        web.seed([PAGES[3]], 1.0)
        for url in PAGES:
            web.event(url, draw.sample(PAGES, 3))
        web.settle()
        assert asked.now().flow.coverage == pytest.approx(1.0, abs=1e-5)
        web.crawl.client.close()


def test_many_shards_have_the_bound_of_one_once_nothing_is_in_flight(valkey: Server) -> None:
    bounds = []
    for shards in (1, 4):
        web, draw = Web(valkey, f"same-{shards}", shards), random.Random(5)
        web.seed(PAGES[:2], 1.0)
        for _ in random_crawl(web, draw, 25):
            web.settle()
        web.seed(PAGES[:2], 1.0)
        web.settle()
        bounds.append(CoverageQuery(PageFlows(KeptLinks(web.crawl))).now())
    one, many = bounds
    assert one.flow.coverage == pytest.approx(many.flow.coverage, abs=1e-5)
    assert (one.fetched_pages, one.trusted_pages) == (many.fetched_pages, many.trusted_pages)


def test_link_in_flight_between_shards_is_not_covered(valkey: Server) -> None:
    web = Web(valkey, "in-flight", 4)
    there = next(url for url in PAGES if web.crawl.shard_of(url).number != web.crawl.shard_of(PAGES[0]).number)
    web.seed([PAGES[0]], 1.0)
    web.event(PAGES[0], [there])
    asked = CoverageQuery(PageFlows(KeptLinks(web.crawl)))
    assert asked.now().flow.coverage == pytest.approx(0.15, abs=1e-5)
    web.settle()
    web.event(there, [])
    assert asked.now().flow.coverage == pytest.approx(1.0, abs=1e-5)


def test_new_reader_agrees_with_one_that_followed_all_along(valkey: Server) -> None:
    crawl, draw = Crawl(valkey), random.Random(3)
    crawl._apply(encode_seeds(PAGES[:2], trust=1.0), "seeds")
    following = CoverageQuery(PageFlows(KeptLinks(Shards.open(valkey.client()))))
    for number in range(40):
        crawl.event(draw.choice(PAGES), draw.sample(PAGES, 3))
        if number % 8 == 0:
            crawl.store.checkpoint()
        cold = CoverageQuery(PageFlows(KeptLinks(Shards.open(valkey.client()))))
        assert following.now().flow.coverage == pytest.approx(cold.now().flow.coverage, abs=1e-5)


def test_reader_that_fell_behind_reads_all_links_again(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_links, "QUEUED_MAX", 3)
    crawl = Crawl(valkey)
    crawl._apply(encode_seeds([PAGES[0]], trust=1.0), "seeds")
    asked = CoverageQuery(PageFlows(KeptLinks(crawl.pages)))
    before = asked.now().flow.coverage
    for at in range(10):
        crawl.event(PAGES[at], [PAGES[at + 1]])
    assert asked.now().flow.coverage > before
    crawl.event(PAGES[10], [])
    assert asked.now().flow.coverage == pytest.approx(1.0, abs=1e-5)


def test_refused_and_repeated_records_leave_the_links_of_the_last_read(valkey: Server) -> None:
    """Two workers send the same records in turns, as one that was killed and its successor do."""
    crawl = Crawl(valkey)
    other = ShardWriter(crawl.store.shard)
    values = [(encode_seeds([PAGES[0]], trust=1.0), "seeds")]
    values += [(encode_crawl_event(CrawlEvent(PAGES[0], PAGES[1 : 2 + at])), "event") for at in range(6)]
    records = [Record(at, NOW_US + at, *value) for at, value in enumerate(values)]
    for worker, upto in ((crawl.store, 3), (other, 5), (crawl.store, 4), (other, 7), (crawl.store, 7)):
        worker.apply("log/0", records[:upto])
    view = CoverageQuery(PageFlows(KeptLinks(crawl.pages))).now()
    assert np.count_nonzero(view.frontier_trust[0]) == 6
    (replica,) = crawl.pages.follow()
    (links,) = stored_links(crawl.store.shard, replica).values()
    assert len(links[0]) == 6


def test_crawl_without_trust_keeps_no_links_and_has_no_coverage(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl._apply(encode_seeds(PAGES[:2], trust=0.0), "seeds")
    crawl.event(PAGES[0], PAGES)
    shard = crawl.store.shard
    crawl.store.checkpoint()
    assert not shard.client.exists(shard.keys.link_segments)
    assert not shard.client.hexists(shard.keys.names_block, "trust")
    with pytest.raises(NoTrust, match="no page is trusted"):
        CoverageQuery(PageFlows(KeptLinks(crawl.pages))).now()


@pytest.mark.parametrize("shards", [1, 3])
def test_mode_coverage_suggests_the_pages_that_hold_most_trust(valkey: Server, shards: int) -> None:
    web = Web(valkey, f"next-{shards}", shards)
    one, two, three, four, five = PAGES[:5]
    crawl = Shards.open(valkey.client(), web.name)
    frontier = Frontier(crawl, AT_ONCE, coverage=CoverageQuery(PageFlows(KeptLinks(crawl))))
    web.seed([five], None)
    with pytest.raises(NoTrust):
        frontier.next(mode="coverage")
    web.seed([one], 3.0)
    web.seed([two], 1.0)
    web.event(one, [three, four])
    web.event(PAGES[5], [four])  # Holds no trust, so what it links to gets none from it.
    web.settle()
    # Three and four hold .31 of all trust each, two holds a quarter, and five none.
    (first,) = frontier.next(1, mode="coverage").pages
    assert first.url in {three, four}
    found = frontier.next(10, mode="coverage")
    while pages := frontier.next(10, mode="coverage").pages:
        found["pages"] += pages  # type: ignore[operator]
    assert [page.url for page in found.pages] == [({three, four} - {first.url}).pop(), two]
    left = frontier.next(10, mode="coverage")
    assert (left.pages, left.exhausted, left.waiting.leased) == ([], False, 3)
    for url in (two, three, four):
        web.event(url, [])
    web.settle()
    left = frontier.next(10, mode="coverage")
    assert (left.pages, left.exhausted) == ([], True)
    assert five in {page.url for page in frontier.next(10).pages}


@pytest.mark.parametrize("shards", [1, 3])
def test_mode_coverage_suggests_all_pages_in_the_order_of_a_plain_sort(
    valkey: Server, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at a block at a time; pages that are leased, read meanwhile, or on other hosts are passed over."""
    monkeypatch.setattr(page_sources, "BLOCKS_FIRST", 1)
    web, draw = Web(valkey, f"sorted-{shards}", shards), random.Random(shards)
    pages = [f"http://h{page % 9}.org/{page}" for page in range(400)]
    web.seed(pages[:40], 1.0)
    for page in pages[:60]:
        web.event(page, draw.sample(pages[60:], draw.randint(1, 9)))
    web.settle()
    crawl = Shards.open(valkey.client(), web.name)
    asked = CoverageQuery(PageFlows(KeptLinks(crawl)))
    frontier = Frontier(crawl, AT_ONCE, coverage=asked)

    def expected(urls: Sequence[str]) -> list[float]:
        places = dict(zip(urls, crawl.ids_of(urls), strict=True))
        held = asked.now().frontier_trust
        trust = {url: held[place[0]][place[1]] for url, place in places.items() if place is not None}
        found = sorted((trust[url] for url in trust if trust[url] > 0), reverse=True)
        assert len(found) > 5
        return found

    given = set[str]()

    def handed(**terms: Any) -> list[float]:
        held, found = asked.now().frontier_trust, list[float]()
        while got := frontier.next(draw.randint(1, 7), mode="coverage", **terms).pages:
            urls = [page.url for page in got]
            places = crawl.ids_of(urls)
            given.update(urls)
            found += [held[place[0]][place[1]] for place in places if place is not None]
        return found

    within = [page for page in pages if page.startswith(("http://h3.org/", "http://h4.org/"))]
    wanted = expected(within)
    assert handed(domains=["h3.org", "h4.org"]) == wanted
    wanted = expected([page for page in pages if page not in within])
    assert handed(busy_hosts=["h3.org"]) == wanted
    new = [f"http://h{page % 9}.org/{page}" for page in range(400, 420)]
    for page in draw.sample(sorted(given), 20):  # What is read holds no trust any more; what it links to holds some.
        web.event(page, draw.sample(new, 3))
    web.settle()
    wanted = expected([page for page in pages + new if page not in given])
    assert handed() == wanted


def test_mode_coverage_stays_within_the_domains_and_the_depth_asked_for(valkey: Server) -> None:
    crawl = Crawl(valkey)
    frontier = Frontier(crawl.pages, AT_ONCE, coverage=CoverageQuery(PageFlows(KeptLinks(crawl.pages))))
    crawl._apply(encode_seeds(["http://a.org/", "http://b.org/"], depth=0, trust=1.0), "seeds")
    crawl.event("http://a.org/", ["http://www.a.org/", "http://www.b.org/"])

    def urls(**terms: Any) -> list[str]:
        peeked = frontier.peek(mode="coverage", **terms).pages
        return [page.url for page in peeked]

    assert urls() == ["http://b.org/", "http://www.a.org/", "http://www.b.org/"]
    assert urls(domain="a.org") == ["http://www.a.org/"]
    near = frontier.next(10, mode="coverage", max_depth=0).pages
    assert [page.url for page in near] == ["http://b.org/"]


def test_backup_has_trust_and_links(valkey: Server, tmp_path: Path) -> None:
    crawl = Crawl(valkey)
    crawl._apply(encode_seeds([PAGES[0]], trust=1.0), "seeds")
    for at in range(6):
        crawl.event(PAGES[at], PAGES[at + 1 : at + 3])
    before = CoverageQuery(PageFlows(KeptLinks(crawl.pages))).now().flow.coverage
    for number in range(2):  # The links from the journal alone, then from the copy of the hash.
        backup(crawl.pages, tmp_path / f"copy{number}")
        restore(valkey.client(), tmp_path / f"copy{number}", f"restored{number}")
        restored = CoverageQuery(PageFlows(KeptLinks(Shards.open(valkey.client(), f"restored{number}"))))
        assert restored.now().flow.coverage == pytest.approx(before, abs=1e-9)
        crawl.store.checkpoint()


@pytest.mark.parametrize("trust", [-1.0, float("nan"), float("inf"), 1e10])
def test_invalid_trust_is_a_dead_letter(valkey: Server, trust: float) -> None:
    crawl = Crawl(valkey)
    crawl._apply(encode_seeds([PAGES[0]], trust=trust), "seeds")
    assert crawl.store.shard.books().dead_letters == 1
    with pytest.raises(BadInput, match="no page is trusted"):
        CoverageQuery(PageFlows(KeptLinks(crawl.pages))).now()


def test_vanished_trusted_pages_are_distinguished_from_none_and_count_again_when_back(valkey: Server) -> None:
    web = Web(valkey, "vanish", 1)
    crawl = Shards.open(valkey.client(), web.name)
    asked = CoverageQuery(PageFlows(KeptLinks(crawl)))
    frontier = Frontier(crawl, AT_ONCE, coverage=asked)
    web.seed(PAGES[:2], 1.0)
    web.event(PAGES[0], [PAGES[1]])
    before = asked.now().flow.coverage
    for url in PAGES[:2]:
        web.event(url, [], status=404)
    assert asked.latest is not None
    for ask in (asked.now, lambda: frontier.next(mode="coverage")):
        with pytest.raises(NoTrust, match=r"every trusted page is gone .*: give other seeds trust with"):
            ask()
    assert asked.latest is None
    web.seed(PAGES[:2], None)  # Back, and trusted as before; nobody knows their links yet.
    assert (asked.now().trusted_pages, asked.now().flow.coverage) == (2, 0)
    web.event(PAGES[0], [PAGES[1]])
    assert asked.now().flow.coverage == pytest.approx(before, abs=1e-5)


@pytest.mark.slow
def test_invalid_trust_and_targets_are_refused_and_change_nothing(tmp_path: Path) -> None:
    settings = Settings.load(data=tmp_path / "data")
    with (
        EmbeddedService(settings) as service,
        serving(service) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):

        def seed(trust: str, page: str = PAGES[0]) -> httpx.Response:
            body = f'{{"urls": ["{page}"], "trust": {trust}}}'
            return client.post("/v1/seeds", content=body, headers={"content-type": "application/json"})

        assert written(seed("0")) == {"known": 0, "new": 1}  # Trust that sums to nothing is none.
        assert "no page is trusted" in client.get("/v1/coverage").json()["detail"]
        for trust, complaint in BAD_TRUST.items():
            for page in (PAGES[0], PAGES[1]):
                refused = seed(trust, page)
                assert (refused.status_code, refused.json()["detail"]) == (422, f"trust: {complaint}"), trust
        refused = client.post("/v1/seeds", json={"urls": ["nonsense"], "trust": 1})
        assert (refused.status_code, "'nonsense' is not an absolute" in refused.json()["detail"]) == (422, True)
        done = run_opic(url, "seed", "--trust", "1e10", PAGES[1])
        assert (done.returncode, "trust 1e+10 is not between 0 and 1,000,000,000" in done.stderr) == (2, True)
        stats = client.get("/v1/stats").json()
        assert (stats["known_pages"], stats["lag"]) == (1, 0)
        assert client.get("/v1/coverage").status_code == 409

        assert seed("1e9").status_code == 200
        for target, complaint in BAD_TARGETS.items():
            refused = client.get("/v1/coverage", params={"target": target})
            assert (refused.status_code, complaint in refused.json()["detail"]) == (422, True), target
            done = run_opic(url, "coverage", f"--target={target}")
            assert (done.returncode, complaint in done.stderr) == (2, True), target


@pytest.mark.slow
def test_unreachable_target_is_reported(tmp_path: Path) -> None:
    settings = Settings.load(data=tmp_path / "data")
    with (
        EmbeddedService(settings) as service,
        serving(service) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        client.post("/v1/seeds", json={"urls": PAGES[:2], "trust": 1}).raise_for_status()
        one = {"url": PAGES[0], "links": [PAGES[1], PAGES[2]]}
        client.post("/v1/events", json=[one, {"url": PAGES[1], "excluded": True}]).raise_for_status()
        until(lambda: client.get("/v1/stats").json()["lag"] == 0)
        # An excluded page holds most trust: no crawler will ever move it on.
        assert client.get("/v1/coverage", params={"target": 0.9}).json()["fetches_expected"] is None
        done = run_opic(url, "coverage", "--target", "0.9")
        assert done.returncode == 1
        assert "fetching all pages known now is not expected to be enough" in done.stdout
        client.post("/v1/events", json=[{"url": page, "links": PAGES[:2]} for page in PAGES[:3]]).raise_for_status()
        until(lambda: client.get("/v1/stats").json()["read_pages"] == 3)
        assert run_opic(url, "coverage", "--target", "0.99999").returncode == 0
        done = run_opic(url, "coverage", "--target", "1")  # All there is was fetched, and yet.
        assert done.returncode == 1
        assert "the guarantee may stay some 0.00001 below what is true: ask for 0.99999 at most" in done.stdout


@pytest.mark.slow
def test_service_and_command_report_what_is_covered_and_what_is_missing(tmp_path: Path) -> None:
    settings = Settings.load(data=tmp_path / "data")
    with (
        EmbeddedService(settings) as service,
        serving(service) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        assert client.post("/v1/next", json={"mode": "coverage"}).status_code == 409
        answer = client.get("/v1/coverage")
        assert (answer.status_code, answer.json()["type"].rpartition(":")[2]) == (409, "no-trust")
        seeded = client.post("/v1/seeds", json={"urls": PAGES[:2], "trust": 2})
        assert written(seeded) == {"known": 0, "new": 2}
        assert client.get("/v1/coverage", params={"target": 1.5}).status_code == 422
        found = client.get("/v1/coverage", params={"target": 0.9}).json()
        assert found.pop("as_of") > 0
        counts = {"fetched_pages": 0, "links_unknown": 0, "trusted_pages": 2}
        assert found == {**counts, "coverage": 0.0, "damping": DAMPING, "target": 0.9, "fetches_expected": None}
        client.post("/v1/events", json=[{"url": page, "links": PAGES[:2]} for page in PAGES[:2]])
        wait_for_reads(client, 2)
        found = client.get("/v1/coverage", params={"target": 0.9}).json()
        assert found["coverage"] == pytest.approx(1, abs=1e-5)
        assert found["fetches_expected"] == 0
        done = run_coverage(url, "--target", "0.9", "--json")
        assert done.returncode == 0
        assert json.loads(done.stdout)["coverage"] == found["coverage"]
        found = client.get("/v1/coverage", params={"target": 0.9, "delta": 0.25}).json()
        assert (found["coverage"], found["delta"]) == (pytest.approx(0.75, abs=1e-5), 0.25)
        assert found["fetches_expected"] is None
        done = run_coverage(url, "--target", "0.9", "--delta", "0.25")
        assert (done.returncode, "no more than 0.75 can be guaranteed" in done.stdout) == (1, True)
        for delta in ("1", "-0.1", "nan"):
            assert client.get("/v1/coverage", params={"delta": delta}).status_code == 422, delta
        client.post("/v1/seeds", json={"urls": PAGES[2:4], "trust": 2})
        done = run_coverage(url, "--target", "0.9")
        assert done.returncode == 1
        assert "missing\t" in done.stdout
        assert "opic_coverage " in client.get("/metrics").text
        kept = client.get("/v1/coverage").json()
    with (
        EmbeddedService(settings) as service,
        serving(service) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        found = client.get("/v1/coverage").json()
        assert found["coverage"] == pytest.approx(kept["coverage"], abs=1e-5)
        assert (found["fetched_pages"], found["trusted_pages"]) == (2, 4)
        client.post("/v1/seeds", json={"urls": PAGES[:4], "trust": 0})
        assert client.get("/v1/coverage").status_code == 409
        done = run_coverage(url)
        assert (done.returncode, "no page is trusted" in done.stderr) == (2, True)


@pytest.mark.slow
def test_pages_read_before_trust_was_given_are_counted_where_links_were_not_kept(tmp_path: Path) -> None:
    settings = Settings.load(data=tmp_path / "data", keep_links=False)
    with (
        EmbeddedService(settings) as service,
        serving(service) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        for trust in ({}, {"trust": 1}):
            client.post("/v1/seeds", json={"urls": PAGES[:3], **trust}).raise_for_status()
            client.post("/v1/events", json=[{"url": PAGES[len(trust)], "links": PAGES[:2]}]).raise_for_status()
            wait_for_reads(client, 1 + len(trust))
        found = client.get("/v1/coverage").json()
        assert (found["fetched_pages"], found["links_unknown"]) == (2, 1)
        client.post("/v1/events", json=[{"url": PAGES[0], "links": PAGES[:2]}]).raise_for_status()
        until(lambda: client.get("/v1/coverage").json()["links_unknown"] == 0)


def wait_for_reads(client: httpx.Client, reads: int) -> None:
    until(lambda: client.get("/v1/stats").json()["read_pages"] >= reads)


def run_coverage(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_opic(url, "coverage", *arguments)


def run_opic(url: str, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "opic", verb, "--service", url, *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
