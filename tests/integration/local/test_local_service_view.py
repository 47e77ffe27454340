"""The estimator beside the service: it uses what the service knows, and goes on without it, slow, wrong or away."""

import json
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import curls
import pytest
from processes import Service, running
from website import WebPage, Website, website

from opic.local.estimator import DomainRanking, Estimator, EstimatorOptions
from opic.local.fetcher import RecordedFetcher
from opic.local.journal import Journal
from opic.local.service_view import ServiceView
from opic.model.events import CrawlEvent

pytestmark = pytest.mark.slow

DOMAIN, LOCAL_PAGES, PAGES = "a.example", 30, 300


def url_of(page: int) -> str:
    return f"http://{'a' if page < LOCAL_PAGES else f'h{page % 11}'}.example/{page}"


def web(seed: int = 3) -> dict[str, CrawlEvent]:
    choice = random.Random(seed)
    links = {page: {int(PAGES * choice.random() ** 1.5) for _ in range(5)} - {page} for page in range(PAGES)}
    return {url_of(page): CrawlEvent(url_of(page), links=sorted(map(url_of, to))) for page, to in links.items()}


WEB = web()
LOCAL = [event for url, event in WEB.items() if url.startswith(f"http://{DOMAIN}/")]


def estimated(service: ServiceView | None, options: EstimatorOptions, state: Path | None = None) -> DomainRanking:
    with Journal(DOMAIN, state) as journal:
        estimator = Estimator(DOMAIN, options, RecordedFetcher(WEB), journal, service)
        estimator.open(LOCAL, ())
        while not estimator.done and estimator.round():
            pass
        return estimator.ranking()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that has read half of the web."""
    data = tmp_path_factory.mktemp("local")
    with running(data / "store", data / "log", host_delay_seconds=0) as service:
        events = [{"url": event.url, "links": event.links} for event in list(WEB.values())[::2]]
        service.post("/v1/events", events).raise_for_status()
        service.settle()
        yield service


def exact() -> dict[str, float]:
    """The PageRank of the whole web, of the domain's pages, sum 1."""
    from opic.graph.crawled import CrawledLinks
    from opic.graph.pagerank import pagerank

    ids = {url: page for page, url in enumerate(WEB)}
    graph = CrawledLinks(list(ids.values()), [[ids[link] for link in event.links] for event in WEB.values()]).graph()
    ranks = pagerank(graph.inside, threshold=1e-12)[:LOCAL_PAGES]
    return dict(zip(list(WEB)[:LOCAL_PAGES], (ranks / ranks.sum()).tolist(), strict=True))


def error(ranking: DomainRanking) -> float:
    truth = exact()
    return sum(abs(truth[url] - one) for url, one in zip(ranking.urls, ranking.importance, strict=True))


def test_service_makes_the_estimate_better(service: Service) -> None:
    options = EstimatorOptions(20, "combined", 5, publish=False)
    alone = estimated(None, options)
    with ServiceView(service.url, DOMAIN) as view:
        found = estimated(view, options)
    assert (alone.method, alone.service_coverage) == ("paper", 0.0)
    assert found.method == "combined"
    assert 0.2 < found.service_coverage < 0.9
    assert found.service_away is None
    assert sum(found.importance) == pytest.approx(1)
    assert error(found) < 0.7 * error(alone)


def test_fetched_pages_are_published_once(service: Service, tmp_path: Path) -> None:
    options = EstimatorOptions(20, "sc", 5)
    before = dict(zip(WEB, service.reads(list(WEB)), strict=True))
    for _ in range(2):  # The second one finds everything in its state.
        with ServiceView(service.url, DOMAIN) as view:
            found = estimated(view, options, tmp_path)
            assert view.show(found.sent(100))
    service.settle()
    after = dict(zip(WEB, service.reads(list(WEB)), strict=True))
    assert sum(after.values()) - sum(before.values()) == found.outside_fetched == 20
    assert max(after[page] - before[page] for page in WEB) == 1
    kept = service.get("/v1/local/a.example", n="1000").raise_for_status().json()
    assert [page["url"] for page in kept["pages"]] == found.urls
    assert (kept["method"], kept["outside_fetched"]) == ("combined", 20)


def test_leases_of_suggestions_that_are_not_fetched_are_released(service: Service) -> None:
    with ServiceView(service.url, DOMAIN) as view:
        estimated(view, EstimatorOptions(10, "combined", 2, publish=False))
    assert service.get("/metrics").text.count("\nopic_leases 0.0\n") == 1


def test_host_below_a_registered_domain_is_ranked_by_the_paper(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    name = "www.a.example"
    with ServiceView(service.url, name) as view:
        estimator = Estimator(name, EstimatorOptions(5), RecordedFetcher({}), Journal(name), view)
        estimator.open([CrawlEvent(f"http://{name}/", links=[url_of(40)])], ())
        assert estimator.ranking().method == "paper"
        assert view.away is None
    assert "www.a.example is a part of a.example" in caplog.text


# A service that is none.


@contextmanager
def silent() -> Iterator[str]:
    """A port that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def answering(body: str, status: int = 200, drip_seconds: float = 0.0) -> WebPage:
    return WebPage(body, status, {"content-type": "application/json"}, drip_seconds)


INFLOW = {"pages": [], "outside_mass": 0.5, "unread_mass": 0.1, "dangling_mass": 0.1, "known_pages": 9, "as_of": 1.0}
STATS = {"known_pages": 9, "read_pages": 3, "clock": 1, "rounds": 1, "lag": 0, "pool": 1, "shards": 1, "as_of": 1.0}


@pytest.mark.parametrize(
    ("inflow", "why"),
    [
        (answering("not json"), "unexpected answer"),
        (answering("{}"), "unexpected answer"),
        (answering(json.dumps({**INFLOW, "outside_mass": 7})), "not between 0 and 1"),
        (answering(json.dumps({**INFLOW, "pages": [{"url": "http://a/", "inflow": -1}]})), "not between 0 and 1"),
        (answering(json.dumps({**INFLOW, "next": "http://a.example/"})), "do not end"),
        (answering(json.dumps({"title": "Oops"}), 500), "500 Oops"),
        (answering(json.dumps({"title": "Away"}), 503), "503 Away"),
        (answering(" " * 1_000, drip_seconds=0.05), "no answer within 0.5 s"),
    ],
)  # fmt: skip
def test_wrong_or_slow_service_does_not_stop_the_estimator(inflow: WebPage, why: str) -> None:
    def pages(path: str) -> WebPage | None:
        return inflow if path.startswith("/v1/inflow") else answering(json.dumps(STATS)) if "stats" in path else None

    with (
        website("127.0.0.1", pages) as site,
        ServiceView(site.url, DOMAIN, call_seconds=0.5, inflow_seconds=0.5) as view,
    ):
        began = time.monotonic()
        found = estimated(view, EstimatorOptions(20, "sc", 5, publish=False))
        assert time.monotonic() - began < 10
    assert found.method == "paper"
    assert why in str(found.service_away)
    alone = estimated(None, EstimatorOptions(20, "sc", 5))
    assert (found.urls, found.importance) == (alone.urls, alone.importance)


@pytest.mark.parametrize("select", ["sc", "combined"])
def test_silent_or_missing_service_does_not_stop_the_estimator(select: str) -> None:
    options = EstimatorOptions(20, select, 5)
    alone = estimated(None, options)
    with silent() as quiet:
        for url in (quiet, "http://127.0.0.1:1"):
            began = time.monotonic()
            with ServiceView(url, DOMAIN, call_seconds=0.3) as view:
                found = estimated(view, options)
            assert time.monotonic() - began < 10
            assert (found.method, found.urls, found.importance) == ("paper", alone.urls, alone.importance)
            assert found.service_away


def test_service_that_comes_back_is_used_again_and_gets_the_events_that_it_missed(tmp_path: Path) -> None:
    service = Service(tmp_path / "store", tmp_path / "log", host_delay_seconds=0)
    with ServiceView(service.url, DOMAIN) as view, Journal(DOMAIN) as journal:
        estimator = Estimator(DOMAIN, EstimatorOptions(20, "sc", 5), RecordedFetcher(WEB), journal, view)
        estimator.open(LOCAL, ())
        assert estimator.round()
        assert "nothing answers" in str(estimator.ranking().service_away)
        service.start()
        try:
            service.post("/v1/seeds", {"urls": [event.url for event in LOCAL]}).raise_for_status()
            view.try_now()
            while not estimator.done and estimator.round():
                pass
            assert estimator.ranking().method == "combined"
            service.settle()
            assert sum(service.reads(list(WEB))) == 20
        finally:
            service.stop()


def test_website_at_the_address_is_not_taken_for_a_service(tmp_path: Path) -> None:
    site: Website
    with website("127.0.0.1", {"/": WebPage("hello")}) as site, ServiceView(site.url, DOMAIN) as view:
        assert curls.get(f"{site.url}/").text == "hello"
        assert estimated(view, EstimatorOptions(5)).method == "paper"
        assert "another program listens there" in str(view.away)
