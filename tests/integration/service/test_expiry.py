"""The rule that forgets pages never read: what it takes, what it leaves, who applies it, and what it costs."""

import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import networkx as nx
import pytest
from command_line import run_here
from processes import environment, wait_until
from servers import Server
from serving import serving

from opic.errors import BadInput, StoreUnavailable
from opic.model.cash import MILLION, Flag
from opic.model.events import CrawlEvent, encode_crawl_event, encode_forgotten, encode_seeds
from opic.service import expiry, forgetting
from opic.service.backend import Backend
from opic.service.service import EmbeddedService
from opic.settings import Settings

DAY = 86_400.0
HOSTS = [f"h{number}.org" for number in range(9)]
PAGES = [f"http://{HOSTS[number % 9]}/{number}" for number in range(90)]


class Web:
    """A crawl of pages with random links, most of it older than a day; `links` has what each read showed."""

    def __init__(self, backend: Backend, seed: int) -> None:
        self.backend, self.rng = backend, random.Random(seed)
        backend.works_here = True
        self.links: dict[str, list[str]] = {}
        self.young, self.spared = set[str](), set[str]()
        rng, old_us = self.rng, backend.clock.now_us() - 10 * round(DAY) * MILLION
        seeds, trusted = rng.sample(PAGES, 2), rng.sample(PAGES, 2)
        self.accept([encode_seeds(seeds, 0)], "seeds", old_us)
        self.accept([encode_seeds(trusted, None, None, 1.0)], "seeds", old_us)
        self.spared |= {*seeds, *trusted}
        shown = {page: rng.sample(PAGES[:70], rng.randrange(12)) for page in rng.sample(PAGES[:60], 12)}
        events = [CrawlEvent(page, links, fetched_at=old_us / MILLION) for page, links in shown.items()]
        for page, status in zip(rng.sample(PAGES[:70], 6), (404, 403, 500) * 2, strict=True):
            events.append(CrawlEvent(page, status=status, give_up=status == 500))
            self.spared |= set() if status == 404 else {page}  # A link may bring it back, and then it is as any other.
        self.accept(list(map(encode_crawl_event, events)), "event", old_us)
        gone = {event.url for event in events if event.status == 404}
        self.links = {
            page: [link for link in links if link != page] for page, links in shown.items() if page not in gone
        }
        before = {page.url for page in backend.crawl.pages()}
        self.read(rng.choice(PAGES[:60]), rng.sample(PAGES, 9), backend.clock.now_us())
        self.young = {page.url for page in backend.crawl.pages()} - before
        self.leased = {page.url for page in backend.frontier.next(9, "a crawler").pages}  # One of each host.
        assert self.leased
        self.spared |= self.leased

    def accept(self, values: list[bytes], kind: str, time_us: int | None = None) -> None:
        self.backend.settle(self.backend.accept(values, kind, time_us))

    def read(self, page: str, links: list[str], time_us: int) -> None:
        event = CrawlEvent(page, links, fetched_at=time_us / MILLION)
        self.accept([encode_crawl_event(event)], "event", time_us)
        self.links[page] = [link for link in links if link != page]

    def known(self) -> dict[str, Any]:
        return {page.url: page for page in self.backend.crawl.pages()}

    def taken_by_plain_model(self) -> list[str]:
        """What the rule takes, by what the service answers of each page."""
        places = {page.url: number for number, page in enumerate(self.backend.crawl.pages())}
        shares = {page["url"]: page["importance"] for page in self.backend.query.importance(list(places)) if page}
        left, taken = 1.0, list[str]()
        known = self.known()
        for url in sorted(places, key=lambda url: (shares[url], places[url])):
            if known[url].has(Flag.OPEN | Flag.GONE) or url in self.spared | self.young:
                continue
            if shares[url] >= self.backend.expiry.rule.below * left:
                break
            left -= shares[url]
            taken.append(url)
        return taken

    def pagerank(self) -> dict[str, float]:
        graph = nx.DiGraph()
        there = {url: page for url, page in self.known().items() if not page.has(Flag.GONE)}
        graph.add_nodes_from(there)
        for url in (url for url, page in there.items() if page.has(Flag.OPEN)):
            graph.add_edges_from((url, link) for link in self.links.get(url, ()) if link in there)
        return dict(nx.pagerank(graph, 0.85, tol=1e-13, max_iter=1_000))


@contextmanager
def opened(server: Server, **settings: Any) -> Iterator[Backend]:
    backend = Backend(Settings.load(store=server.url, expire_after_seconds=DAY, **settings), server.url)
    try:
        yield backend
    finally:
        backend.close()


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("keep_links", [True, False])
def test_rule_takes_what_a_plain_model_takes(valkey: Server, shards: int, keep_links: bool) -> None:
    for seed, below in enumerate((0.016, 0.1, 0.3)):
        terms = {
            "crawl": f"web{seed}",
            "shards": shards,
            "keep_links": keep_links,
            "expire_below": below,
            "bound": 1e-9,
        }
        with opened(valkey, **terms) as backend:
            web = Web(backend, seed)
            before, expected = set(web.known()), web.taken_by_plain_model()
            shares = {page["url"]: page["importance"] for page in backend.query.importance(list(before)) if page}
            told = backend.forget(expired=True, dry_run=True)
            assert told["would_forget"] == len(expected)
            assert set(web.known()) == before
            assert told["importance"] == pytest.approx(sum(shares[url] for url in expected))
            minted = backend.query.audit()
            assert backend.forget(expired=True)["forgotten"] == len(expected)
            assert set(web.known()) == before - set(expected)
            audit = backend.query.audit()
            assert audit["conserved"]
            assert audit["minted"] == minted["minted"]
            assert float(str(told["importance"])) <= below * len(expected)


def test_bound_says_what_forgetting_costs(valkey: Server) -> None:
    for seed in range(3):
        with opened(valkey, crawl=f"cost{seed}", expire_below=0.02, bound=1e-9) as backend:
            web = Web(backend, seed)
            before = web.pagerank()
            due = backend.expiry.due()
            backend.forget(expired=True)
            after = web.pagerank()
            gone = set(before) - set(after)
            assert gone
            assert due.importance == pytest.approx(sum(before[url] for url in gone), abs=1e-6)
            left = sum(before[url] for url in after)
            moved = sum(abs(after[url] - before[url] / left) for url in after)
            assert due.distance is not None
            assert moved <= due.distance + 1e-6
            answers = backend.query.importance(list(after))
            shown = {page["url"]: float(str(page["importance"])) for page in answers if page}
            assert sum(abs(shown[url] - after[url]) for url in after) < 1e-6  # Exact importance is that of what stays.


def test_no_page_is_forgotten_that_was_read_seeded_or_trusted_since_it_was_chosen(valkey: Server) -> None:
    with opened(valkey, expire_below=0.2) as backend:
        web = Web(backend, 1)
        crawl = backend.crawl
        due = list(web.taken_by_plain_model())
        read, seeded, trusted, excluded = due[:4]
        web.read(read, [], backend.clock.now_us())
        web.accept([encode_seeds([seeded], 0)], "seeds")
        web.accept([encode_seeds([trusted], None, None, 1.0)], "seeds")
        web.accept([encode_crawl_event(CrawlEvent(excluded, status=403))], "event")
        web.accept([encode_forgotten(due)], "expire")
        assert set(due) & {page.url for page in crawl.pages()} == {read, seeded, trusted, excluded}
        assert crawl.audit()[0].conserved


def test_page_that_is_linked_to_again_has_its_id_back_and_its_time_begins_anew(valkey: Server) -> None:
    with opened(valkey, expire_below=0.2) as backend:
        web = Web(backend, 2)
        reader = next(url for url, page in web.known().items() if page.has(Flag.OPEN))
        ids, virtual = len(backend.crawl.replicas[0]), backend.query.audit()["virtual"]
        backend.forget(expired=True)
        for _ in range(3):
            taken = sorted(set(PAGES[:70]) - set(web.known()))
            web.read(reader, taken, backend.clock.now_us())
            assert set(taken) <= set(web.known())
            assert backend.forget(expired=True)["forgotten"] == 0
            web.accept([encode_forgotten(taken)], "forget")
        assert len(backend.crawl.replicas[0]) <= max(ids, 70)
        audit = backend.query.audit()
        assert audit["conserved"]
        assert int(str(audit["virtual"])) >= int(str(virtual))  # No cash leaks to what comes back.


def test_pass_that_breaks_off_is_ended_by_another_endpoint(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "PORTION_PAGES", 3)
    monkeypatch.setattr(expiry, "CLAIM_SECONDS", 0.3)
    with ExitStack() as stack:
        first, second = (stack.enter_context(opened(valkey, expire_below=0.2)) for _ in range(2))
        web = Web(first, 3)
        second.works_here = True
        before, expected = set(web.known()), set(web.taken_by_plain_model())
        accept, portions = first.accept, iter([True, True])

        def accept_twice(*args: Any) -> Any:
            if next(portions, None) is None:
                raise StoreUnavailable("the connection is cut")
            return accept(*args)

        monkeypatch.setattr(first, "accept", accept_twice)
        first.expiry.step()
        assert 0 < len(before - set(web.known())) < len(expected)
        second.expiry.step()
        assert set(web.known()) > before - expected  # The first one's claim still stands.
        wait_until(lambda: second.expiry.step() > 0 and set(web.known()) == before - expected)
        assert second.stats()["expiry"]["expired_pages"] == len(expected) - 6  # type: ignore[index]
        assert second.query.audit()["conserved"]


def test_of_two_endpoints_one_applies_the_rule_at_a_time(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        ends = [stack.enter_context(opened(valkey, expire_below=0.2)) for _ in range(2)]
        web = Web(ends[0], 4)
        ends[1].works_here = True
        expected = len(web.taken_by_plain_model())
        for end in (*ends, *ends):
            end.expiry.step()
        told = ends[1].stats()["expiry"]
        assert (told["passes"], told["expired_pages"]) == (1, expected)  # type: ignore[index]


def test_rule_is_off_by_default(valkey: Server) -> None:
    backend = Backend(Settings.load(store=valkey.url), valkey.url)
    try:
        Web(backend, 5)
        with pytest.raises(BadInput, match="OPIC_EXPIRE_BELOW"):
            backend.forget(expired=True)
        assert "expiry" not in backend.stats()
        assert not backend.expiry.on
    finally:
        backend.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[EmbeddedService, httpx.Client]]:
    settings = Settings.load(data=tmp_path, expire_below=0.9, expire_after_seconds=DAY, host_delay_seconds=0)
    with EmbeddedService(settings) as service, serving(service) as url, httpx.Client(base_url=url) as http:
        yield service, http


def test_service_applies_the_rule_and_tells_of_it(service: tuple[EmbeddedService, httpx.Client]) -> None:
    served, http = service
    backend, old_us = served.backend, served.backend.clock.now_us() - 2 * round(DAY) * MILLION
    due, young, read = PAGES[1:9], PAGES[9], PAGES[0]

    def fed(url: str, links: list[str], time_us: int | None = None) -> None:
        value = encode_crawl_event(CrawlEvent(url, links, fetched_at=old_us / MILLION))
        backend.settle(backend.accept([value], "event", time_us))

    fed(read, due, old_us)
    fed(read, [*due, young])
    answer = http.delete("/v1/pages", params={"expired": True, "dry_run": True}).json()
    assert (answer["forgotten"], answer["would_forget"]) == (0, len(due))
    words = ["forget", "--expired", "--dry-run", "--json", "--service", str(http.base_url)]
    assert json.loads(run_here(words, environment()).stdout)["would_forget"] == len(due)
    explained = {url: http.get("/v1/explain", params={"url": url}).json() for url in (due[0], young, read)}
    assert explained[due[0]]["expiry"]["at"] < backend.clock.now_us() / MILLION
    assert explained[young]["expiry"]["at"] > backend.clock.now_us() / MILLION
    assert explained[read]["expiry"]["at"] is None
    assert [part["about"] for part in explained[young]["reasons"]][-1] == "Forgetting by the rule"
    assert http.delete("/v1/pages", params={"expired": True, "url": read}).status_code == 422
    wait_until(lambda: backend.expiry.step() > 0 and http.get("/v1/stats").json()["expiry"]["passes"] > 0)
    assert {page["url"] for page in http.get("/v1/top").json()["pages"]} == {read, young}
    assert f"opic_expired_pages_total {float(len(due))}" in http.get("/metrics").text
    assert http.get("/v1/audit").json()["conserved"]
