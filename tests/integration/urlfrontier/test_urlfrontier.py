"""URLFrontier's gRPC interface: real clients of gRPC, a real service."""

import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import networkx
import numpy as np
import pytest
from command_line import run_here
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from ports import free_port
from processes import environment, wait_until
from repository import ROOT
from servers import Server
from urlfrontier_client import FAIL, INTERFACE, OK, SKIPPED, Stub, connected, discovered, info, known, served_by_command

from opic.api.metrics import Metrics
from opic.errors import SettingsError
from opic.ingest import Writer
from opic.model.events import Record, encode_forgotten, encode_seeds
from opic.replica.known_since import ENTRY
from opic.service.service import EmbeddedService
from opic.service.standing import StandingService
from opic.settings import Settings
from opic.urlfrontier import crawls
from opic.urlfrontier import urlfrontier_pb2 as pb
from opic.urlfrontier.server import serving

pytestmark = pytest.mark.slow

INTERFACE_FILE = "opic/urlfrontier/urlfrontier.proto"
WAIT_SECONDS = 30
A, B, C = (f"http://a.example/{name}" for name in "abc")


@contextmanager
def frontier(directory: Path, *, allow_delete: bool = False, **settings: Any) -> Iterator[tuple[Stub, EmbeddedService]]:
    terms = {"host_delay_seconds": 0, "revisit_seconds": 0, **settings}
    with (
        EmbeddedService(Settings.load(data=directory, **terms)) as service,
        serving(service, 0, Metrics(service.backend), allow_delete=allow_delete) as address,
        connected(address, settings.get("api_token")) as stub,
    ):
        yield stub, service


@contextmanager
def two_endpoints(settings: Settings) -> Iterator[tuple[Stub, Stub, StandingService]]:
    """Two services on one store: a client of each, and the first service."""
    with (
        StandingService(settings) as service,
        StandingService(settings) as beside,
        serving(service, 0, Metrics(service.backend)) as address,
        serving(beside, 0, Metrics(beside.backend)) as another,
        connected(address) as stub,
        connected(another) as stranger,
    ):
        yield stub, stranger, service


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Stub, EmbeddedService]]:
    with frontier(tmp_path / "data") as both:
        yield both


def settled(service: EmbeddedService) -> dict[str, Any]:
    """Return the totals once all accepted events have taken effect."""
    return wait_until(lambda: (stats := service.backend.stats())["lag"] == 0 and stats)


def test_the_compiled_interface_matches_its_proto_file(tmp_path: Path) -> None:
    out = (f"--python_out={tmp_path}", f"--pyi_out={tmp_path}")
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *out, INTERFACE_FILE], cwd=ROOT, check=True)
    for ending in ("_pb2.py", "_pb2.pyi"):
        name = INTERFACE_FILE.replace(".proto", ending)
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()
    assert len(INTERFACE.methods) == 19


@pytest.mark.parametrize("way", ["opic.links", "url.path", "batch"])
def test_a_crawl_over_grpc_ranks_pages_like_their_graph(served: tuple[Stub, EmbeddedService], way: str) -> None:
    stub, service = served
    graph = networkx.gnp_random_graph(30, 0.1, seed=1, directed=True)
    graph.add_edges_from((0, page) for page in range(1, 6))
    reachable = graph.subgraph(networkx.descendants(graph, 0) | {0})
    urls = {page: f"http://h{page % 3}.example/{page}" for page in graph}
    pages = {url: page for page, url in urls.items()}
    assert set(stub.put([discovered(urls[0])]).values()) == {OK}
    fetched = list[str]()
    while found := stub.take(max_urls_per_queue=2, max_queues=3):
        for one in found:
            fetched.append(one.url)
            links = [urls[page] for page in graph[pages[one.url]]]
            items, batches = [], []
            if way == "opic.links":
                items.append(known(one.url, {"opic.links": links, "opic.base": one.url}))
            elif way == "url.path":
                items += [discovered(link, {"url.path": [urls[0], one.url]}) for link in links]
                items.append(known(one.url))
            else:
                batches.append(pb.DiscoveredBatch(ID=one.url, items=[info(link) for link in links]))
            answers = stub.PutDiscovered(iter(batches)) if batches else ()
            assert way == "batch" or set(stub.put(items).values()) == {OK}
            if way == "batch":
                assert stub.put([known(one.url)]) == {one.url: OK}
            assert all(set(answer.statuses) <= {OK} for answer in answers)
        settled(service)
    stats = settled(service)
    assert sorted(fetched) == sorted(urls[page] for page in reachable)
    # Pages of a batch may come before or behind their page, whose event then lacks them.
    assert stats["links"] == reachable.number_of_edges() or way == "batch"
    assert stats["reads"] == len(reachable)
    if way != "batch":
        wanted = networkx.pagerank(reachable, alpha=0.85, tol=1e-12, max_iter=1_000)
        (answer,) = service.backend.query.importance([urls[0]])
        assert answer is not None
        assert abs(answer["importance"] - wanted[0]) <= answer["error_bound"]


def test_a_discovered_page_waits_for_the_page_that_links_to_it(
    served: tuple[Stub, EmbeddedService], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, service = served
    monkeypatch.setattr(crawls, "PARENT_SECONDS", 0.5)
    stub.put([discovered(A)])
    assert [one.url for one in stub.take()] == [A]
    began = time.monotonic()
    assert stub.put([discovered(B, {"url.path": A})]) == {B: OK}
    assert time.monotonic() - began >= 0.5
    stats = settled(service)
    assert (stats["known_pages"], stats["links"]) == (2, 0)
    assert service.backend.crawl.page(B).nearness == 0  # It is no seed.
    assert stub.put([known(A, {"opic.links": [B, "/c"]})]) == {A: OK}
    assert settled(service)["links"] == 2


def test_a_list_of_links_is_all_that_a_page_links_to(served: tuple[Stub, EmbeddedService]) -> None:
    stub, service = served
    kept = {"url.path": A, "depth": "1"}
    items = [discovered(B, kept), discovered(C, kept), discovered("http://b.example/", {"url.path": A})]
    assert set(stub.put([*items, known(A, {"opic.links": [B, "/d"]})]).values()) == {OK}
    stats = settled(service)
    assert (stats["links"], stats["known_pages"]) == (2, 5)
    pages = {item.ID: item.discovered.info.metadata for item in stub.ListURLs(pb.ListUrlParams())}
    assert [pages[url]["depth"].values for url in (B, C)] == [["1"], ["1"]]


def test_a_discovered_page_survives_a_refused_report_of_its_parent(
    served: tuple[Stub, EmbeddedService],
) -> None:
    stub, service = served
    stub.put([discovered(A)])
    items = [discovered(B, {"url.path": A}), known(A, {"fetch.statusCode": "99999"})]
    assert stub.put(items) == {B: OK, A: SKIPPED}
    stats = settled(service)
    assert (stats["known_pages"], stats["reads"], stats["links"]) == (2, 0, 0)


def test_each_of_many_pages_keeps_metadata_of_its_own(served: tuple[Stub, EmbeddedService]) -> None:
    stub, _ = served
    urls = [f"http://a.example/{page}" for page in range(300)]
    assert set(stub.put([discovered(url, {"name": url}) for url in urls]).values()) == {OK}
    found = stub.take(max_urls_per_queue=300, max_queues=1)
    assert {one.url: list(one.metadata["name"].values) for one in found} == {url: [url] for url in urls}


def test_hosts_beyond_the_limit_are_not_delayed(tmp_path: Path) -> None:
    with frontier(tmp_path / "data", host_delay_seconds=60) as (stub, _):
        stub.put([discovered(f"http://h{host}.example/{page}") for host in range(6) for page in range(5)])
        rounds = [stub.take(max_urls_per_queue=3, max_queues=2) for _ in range(4)]
        assert [len(found) for found in rounds] == [6, 6, 6, 0]
        assert [len({one.key for one in found}) for found in rounds] == [2, 2, 2, 0]
        assert len({one.key for found in rounds for one in found}) == 6


@pytest.mark.parametrize(
    ("limits", "keys"),
    [
        ({"max_urls_per_queue": 1, "max_queues": 3}, [1, 1, 1]),
        ({"max_urls_per_queue": 1}, [1, 1, 1, 1]),
        ({"max_urls_per_queue": 2, "max_queues": 2}, [2, 2]),
        ({"max_urls_per_queue": 2, "max_queues": 100}, [2, 2, 2, 2]),
    ],
)
def test_limit_of_a_queue_holds_for_read_and_unread_pages_together_where_hosts_have_no_delay(
    tmp_path: Path, limits: dict[str, int], keys: list[int]
) -> None:
    with frontier(tmp_path / "data", host_delay_seconds=0, revisit_seconds=0) as (stub, service):
        urls = [f"http://h{host}.example/{page}" for host in range(4) for page in range(20)]
        stub.put([discovered(url) for url in urls])
        stub.put([known(url, {"opic.links": urls}, date=1) for url in urls[::2]])
        settled(service)
        found = stub.take(**limits)
        assert sorted(Counter(one.key for one in found).values()) == keys
        assert len({one.url for one in found}) == len(found)


def test_hosts_of_the_best_pages_come_first_each_with_its_best_pages(tmp_path: Path) -> None:
    with frontier(tmp_path / "data", host_delay_seconds=60, keep_links=False) as (stub, service):
        urls = [f"http://{host}.example/{page}" for host in "pqr" for page in range(4)]
        stub.put([discovered(A)])
        for some in (urls, urls[3:4] * 3, urls[9:11] * 2):  # Cash goes to what the last reads link to.
            stub.put([known(A, {"opic.links": some})])
        settled(service)
        _, rows = service.backend.crawl.find_rows(urls)
        cash = dict(zip(urls, rows.cash.tolist(), strict=True))
        hosts = sorted("pqr", key=lambda host: -max(cash[url] for url in urls if url[7] == host))
        by_host = [sorted((url for url in urls if url[7] == host), key=lambda url: -cash[url]) for host in hosts]
        assert [one.url for one in stub.take(max_urls_per_queue=2, max_queues=2)] == [
            *by_host[0][:2], *by_host[1][:2]
        ]  # fmt: skip
        assert [one.url for one in stub.take(max_urls_per_queue=3, max_queues=1)] == by_host[2][:3]


def test_a_report_without_a_fetch_changes_the_schedule_only(served: tuple[Stub, EmbeddedService]) -> None:
    stub, service = served
    later = int(time.time()) + 3_600
    stub.put([discovered(A, {"depth": "3", "many": ["1", "2"], "url.path": []}), discovered(B)])
    assert stub.put([known(A, {"depth": "4", "many": ["x"]}, date=later)]) == {A: OK}
    assert settled(service)["reads"] == 0
    assert [one.url for one in stub.take()] == [B]
    item = stub.GetURLStatus(pb.URLStatusRequest(url=A))
    assert item.known.info.metadata["depth"].values == ["4"]
    assert item.known.refetchable_from_date == later
    assert stub.put([known(A, {"depth": "4"}, date=1)]) == {A: OK}
    (one,) = stub.take()
    assert (one.url, one.key, list(one.metadata["depth"].values)) == (A, "a.example", ["4"])


def test_a_list_of_pages_can_be_put_into_an_empty_crawl(tmp_path: Path) -> None:
    with frontier(tmp_path / "data", allow_delete=True) as (stub, _):
        later = int(time.time()) + 3_600
        stub.put([known(A, {"k": "a"}, date=later), known(B), discovered(C, {"k": ["c", "d"]})])
        before = {item.ID: item for item in stub.ListURLs(pb.ListUrlParams())}
        assert [before[url].WhichOneof("item") for url in (A, B, C)] == ["known", "known", "discovered"]
        counted = stub.GetStats(pb.QueueWithinCrawlParams(key="a.example"))
        assert (counted.size, counted.counts["completed"]) == (2, 1)
        stub.DeleteCrawl(pb.DeleteCrawlMessage())
        assert stub.put(before.values()) == {A: OK, B: OK, C: OK}
        again = {item.ID: item for item in stub.ListURLs(pb.ListUrlParams())}
        for item in (*before.values(), *again.values()):
            assert item.creation_date  # What the client sends is not taken.
            item.creation_date = 0
        assert again == before


def test_a_batch_is_answered_with_a_status_for_each_of_its_pages(served: tuple[Stub, EmbeddedService]) -> None:
    stub, service = served
    batches = {"none": [], "two": [A, A], "mixed": ["", B, "no url", A]}
    acks = stub.PutDiscovered(
        pb.DiscoveredBatch(ID=name, items=[info(url) for url in urls]) for name, urls in batches.items()
    )
    statuses = {ack.ID: list(ack.statuses) for ack in acks}
    assert statuses == {"none": [], "two": [OK, OK], "mixed": [SKIPPED, OK, SKIPPED, OK]}
    assert settled(service)["known_pages"] == 2


def test_each_outcome_of_a_fetch_takes_effect(served: tuple[Stub, EmbeddedService]) -> None:
    stub, service = served
    names = ("done", "again", "gone", "robots", "moved", "failed", "page")
    urls = {name: f"http://a.example/{name}" for name in names}
    stub.put([discovered(url) for url in urls.values()])
    assert len(stub.take()) == len(urls)
    later = int(time.time()) + 3_600
    said = [
        known(urls["done"], {"fetch.statusCode": "200", "opic.links": ["/page"], "k": ["a", "b"]}),
        known(urls["again"], {"fetch.statusCode": "200"}, date=later),
        known(urls["gone"], {"fetch.statusCode": "404", "error.cause": "HTTP 404"}),
        known(urls["robots"], {"error.cause": "robots.txt"}),
        known(urls["moved"], {"fetch.statusCode": "302", "_redirTo": "/page"}),
        known(urls["failed"], {"fetch.error.count": "1", "error.cause": "timeout"}, date=later),
        known(urls["page"]),
    ]
    assert set(stub.put(said).values()) == {OK}
    stats = settled(service)
    assert (stats["reads"], stats["failures"], stats["departures"], stats["exclusions"]) == (4, 1, 1, 1)
    assert stats["links"] == 2
    shown = {name: stub.GetURLStatus(pb.URLStatusRequest(url=url)).known for name, url in urls.items()}
    assert list(shown["done"].info.metadata["k"].values) == ["a", "b"]
    assert "opic.links" not in shown["done"].info.metadata
    assert (shown["done"].refetchable_from_date, shown["again"].refetchable_from_date) == (0, later)
    assert stub.take() == []
    counted = stub.GetStats(pb.QueueWithinCrawlParams(key="a.example"))
    assert (counted.size, counted.inProcess, counted.counts["completed"]) == (2, 0, 3)


def test_links_are_resolved_as_browsers_do_and_bad_ones_are_left_out(served: tuple[Stub, EmbeddedService]) -> None:
    stub, service = served
    links = ["//[x", "http://[x", "mailto:a@a.example", "javascript:f()", "", "#top", " b\n", "C", "//b.example/?a=1#f"]
    bases = {"http://a.example/x/y": ["../z/"], "http://a.example/no": ["//[x"], "http://a.example/other": ["mailto:a"]}
    items = [known(url, {"opic.links": links, "opic.base": base}) for url, base in bases.items()]
    moved = known("http://a.example/moved", {"fetch.statusCode": "301", "_redirTo": "//[x"})
    assert set(stub.put([*items, moved]).values()) == {OK}
    assert settled(service)["reads"] == 4
    pages = {item.ID for item in stub.ListURLs(pb.ListUrlParams())}
    targets = {f"http://a.example/{page}" for page in ("z/", "z/b", "z/C", "b", "C")} | {"http://b.example/?a=1"}
    assert pages == {*bases, "http://a.example/moved", *targets}


def test_metadata_about_a_fetch_is_not_returned_for_the_next_one(served: tuple[Stub, EmbeddedService]) -> None:
    stub, service = served
    stub.put([discovered(A, {"depth": "1"})])
    for metadata in ({"fetch.statusCode": "302", "_redirTo": B}, {"fetch.statusCode": "200", "opic.links": [C]}):
        (page,) = wait_until(lambda: [one for one in stub.take() if one.url == A])
        handed = {name: list(found.values) for name, found in page.metadata.items()}
        assert handed == {"depth": ["1"]}
        # As StormCrawler does, which adds to what it was handed.
        assert stub.put([known(A, {**handed, **metadata}, date=1)]) == {A: OK}
        assert stub.put([known(B, {"opic.links": [A]})]) == {B: OK}  # So that A has cash again.
        stats = settled(service)
    assert (stats["reads"], stats["links"]) == (4, 4)
    assert service.backend.crawl.page(C) is not None


# The host of a URL as it stands there, and other names by which StormCrawler or another client may call its queue.
KEYS = {
    "http://A.example:8080/": ["A.example", "a.EXAMPLE", "a.example:8080", "A.example.", "_DEFAULT_", "192.0.2.1"],
    "http://b.example./": ["b.example.", "b.example", "B.example.:80"],
    "http://b\u00fccher.example/": [
        "b\u00fccher.example",
        "B\u00dcCHER.example",
        "xn--bcher-kva.example",
        "b\u00fccher\u3002example",
    ],
    "http://exampl%65.org/": ["exampl%65.org", "example.org"],
    "http://user@c.example\\x/": ["c.example\\x"],
    "http://d.\texample/": ["d.\texample"],
    "http://[2001:DB8::1]:81/": ["[2001:DB8::1]", "[2001:db8:0:0:0:0:0:1]", "2001:db8:0:0:0:0:0:1", "[2001:db8::1]:81"],
    "http://0x7f.1/": ["0x7f.1", "127.0.0.1", "2130706433"],
    "http://www.news.bbc.co.uk/": ["www.news.bbc.co.uk", "bbc.co.uk", "BBC.co.uk.", "news.bbc.co.uk"],
    "http://www.a.github.io/": ["a.github.io", "github.io"],  # By private suffixes, and without them.
    "http://e.xn--p1ai/": ["e.\u0440\u0444", "e.xn--p1ai"],
}


def test_a_key_is_the_host_or_a_domain_above_it_in_any_spelling(served: tuple[Stub, EmbeddedService]) -> None:
    stub, service = served
    items = [(url, key) for url, keys in KEYS.items() for key in keys]
    reports = [known(url, {"fetch.statusCode": "200"}, key=key) for url, key in items]
    puts = [discovered(url, key=key) for url, key in items] + reports
    for number, item in enumerate(puts):
        item.ID = str(number)
    assert stub.put(puts) == {item.ID: OK for item in puts}
    assert settled(service)["known_pages"] == len(KEYS)
    batch = pb.DiscoveredBatch(items=[info(url, key=key) for url, key in items])
    assert [set(ack.statuses) for ack in stub.PutDiscovered(iter([batch]))] == [{OK}]


def test_a_key_is_read_by_the_rules_of_the_crawl(tmp_path: Path) -> None:
    with frontier(tmp_path / "data", normalize="www") as (stub, service):
        for key in ("www.a.example", "WWW.a.example.", "a.example"):
            assert set(stub.put([discovered("http://www.a.example/", key=key)]).values()) == {OK}
        assert settled(service)["known_pages"] == 1
        assert stub.CountURLs(pb.CountUrlParams(key="www.a.example")).value == 1
        assert len(stub.take(key="www.a.example")) == 1


def test_a_key_that_is_no_name_of_the_host_is_skipped(served: tuple[Stub, EmbeddedService]) -> None:
    stub, service = served
    bad = {
        "http://a.example/": [
            "b.example",
            "www.a.example",
            "a.example.b",
            "xa.example",
            "example",
            "no host",
            "[",
            "x" * 9_999,
        ],
        "http://xa.example/": ["a.example"],
        "http://a.github.io/": ["b.github.io", "io"],
        "http://192.0.2.1/": ["192.0.2.2", "0.2.1", "[2001:db8::1]"],
        "http://[2001:db8::1]/": ["[2001:db8::2]", "192.0.2.1"],
    }
    batch = pb.DiscoveredBatch(items=[info(url, key=key) for url, keys in bad.items() for key in keys])
    (answer,) = stub.PutDiscovered(iter([batch]))
    assert set(answer.statuses) == {SKIPPED}
    assert len(answer.statuses) == sum(map(len, bad.values()))
    assert settled(service)["known_pages"] == 0


@pytest.mark.parametrize(
    ("url", "keys"),
    [
        ("http://a.example/", ["A.Example:80", "a.example."]),
        ("http://b.example./", ["b.example", "B.example."]),
        ("http://xn--bcher-kva.example/", ["B\u00fccher.example", "xn--Bcher-kva.example:8080"]),
        ("http://[2001:db8::1]/", ["[2001:DB8:0::1]:8080", "2001:db8::1"]),
        ("http://example.org/", ["EXAMPL%65.org"]),
    ],
)
def test_calls_find_a_queue_by_any_spelling_of_its_host(
    served: tuple[Stub, EmbeddedService], url: str, keys: list[str]
) -> None:
    stub, service = served
    for key in keys:
        stub.put([discovered(url), discovered("http://other.example/")])
        assert stub.GetStats(pb.QueueWithinCrawlParams(key=key)).size == 1
        assert [item.ID for item in stub.ListURLs(pb.ListUrlParams(key=key))] == [url]
        assert stub.CountURLs(pb.CountUrlParams(key=key)).value == 1
        stub.SetCrawlLimit(pb.CrawlLimitParams(key=key, limit=5))
        stub.BlockQueueUntil(pb.BlockQueueParams(key=key, time=int(time.time()) + 3_600))
        assert stub.take(key=key) == []
        stub.BlockQueueUntil(pb.BlockQueueParams(key=key))
        stub.SetDelay(pb.QueueDelayParams(key=key, delay_requestable=9))
        told = service.backend.frontier.explain(url)
        assert told is not None
        assert told.host_delay_seconds == 9
        stub.SetDelay(pb.QueueDelayParams(key=key))
        assert wait_until(lambda key=key: [one.url for one in stub.take(key=key)]) == [url]
        assert stub.PurgeURLs(pb.PurgeUrlParams(key=key, days=1)).value == 0
        assert stub.DeleteQueue(pb.QueueWithinCrawlParams(key=key)).value == 1


def test_a_domain_as_key_gets_the_pages_of_its_hosts(served: tuple[Stub, EmbeddedService]) -> None:
    stub, _ = served
    urls = {"http://a.github.io/", "http://b.github.io/"}
    stub.put([*map(discovered, urls), discovered("http://a.example/")])
    assert {one.url for one in stub.take(key="GitHub.io.", max_urls_per_queue=2)} == urls


def test_a_call_refuses_a_key_that_is_no_host(served: tuple[Stub, EmbeddedService]) -> None:
    stub, _ = served
    for call, asked in (
        ("GetURLs", pb.GetParams(key="no host")),
        ("GetStats", pb.QueueWithinCrawlParams(key="no host")),
        ("CountURLs", pb.CountUrlParams(key="a.example/x")),
        ("ListURLs", pb.ListUrlParams(key="[")),
        ("PurgeURLs", pb.PurgeUrlParams(key="a.example?")),
        ("DeleteQueue", pb.QueueWithinCrawlParams(key="u@a.example")),
        ("DeleteQueue", pb.QueueWithinCrawlParams()),
    ):
        assert stub.refused(call, asked) == grpc.StatusCode.INVALID_ARGUMENT


def test_bad_items_are_skipped_and_the_others_accepted(served: tuple[Stub, EmbeddedService]) -> None:
    stub, service = served
    bad = [
        discovered("no url"),
        discovered(""),
        discovered("http://b.example/key", key="a.example"),
        discovered("http://b.example/crawl", crawlID="an other"),
        discovered("http://b.example/large", {"text": "x" * 2_000}),
        known("http://b.example/code", {"fetch.statusCode": "many"}),
        known("http://b.example/status", {"fetch.statusCode": "99999"}),
        pb.URLItem(ID="none"),
    ]
    good = [discovered("http://www.b.example/", key="b.example", crawlID="DEFAULT"), discovered(A, key="a.example")]
    found = stub.put([*bad[:4], *good, *bad[4:]])
    assert {status for key, status in found.items() if key in {item.discovered.info.url for item in good}} == {OK}
    assert list(found.values()).count(SKIPPED) == len(bad)
    assert settled(service)["known_pages"] == 2
    large = discovered("http://b.example/", {"text": "x" * (5 << 20)})
    assert stub.refused("PutURLs", iter([large])) == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert stub.refused("GetURLs", pb.GetParams(key="no host")) == grpc.StatusCode.INVALID_ARGUMENT
    assert stub.refused("GetURLStatus", pb.URLStatusRequest(url="no url")) == grpc.StatusCode.INVALID_ARGUMENT
    assert stub.refused("GetURLStatus", pb.URLStatusRequest(url=C)) == grpc.StatusCode.NOT_FOUND
    assert stub.take(crawlID="another") == []


def test_bytes_that_are_no_message_are_refused_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        EmbeddedService(Settings.load(data=tmp_path / "data")) as service,
        serving(service, 0, Metrics(service.backend)) as address,
        grpc.insecure_channel(address) as channel,
    ):
        for method in INTERFACE.methods:
            sides = ["stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming)]
            call = getattr(channel, "_".join(sides))(f"/{INTERFACE.full_name}/{method.name}")
            with pytest.raises(grpc.RpcError) as refused:
                list(call(iter([b"", b"\xff"]) if method.client_streaming else b"\xff", timeout=WAIT_SECONDS))
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT, method.name
            assert method.input_type.full_name in refused.value.details()
    assert not [record for record in caplog.records if record.exc_info]


def test_only_loggers_that_are_there_get_a_level_that_there_is(served: tuple[Stub, EmbeddedService]) -> None:
    stub, _ = served
    before, level = set(logging.root.manager.loggerDict), logging.getLogger("opic.frontier").level
    assert stub.refused("SetLogLevel", pb.LogLevelParams(package="opic.none")) == grpc.StatusCode.NOT_FOUND
    beyond = pb.LogLevelParams.FromString(b"\x0a\x0dopic.frontier\x10\x60")
    assert stub.refused("SetLogLevel", beyond) == grpc.StatusCode.INVALID_ARGUMENT
    assert set(logging.root.manager.loggerDict) == before
    assert logging.getLogger("opic.frontier").level == level
    stub.SetLogLevel(pb.LogLevelParams(package="opic.frontier", level=pb.LogLevelParams.WARN))
    assert logging.getLogger("opic.frontier").level == logging.WARNING
    logging.getLogger("opic.frontier").setLevel(level)


def test_an_unavailable_store_fails_items_which_may_be_sent_again(valkey: Server) -> None:
    with (
        StandingService(Settings.load(store=valkey.url, shards=1)) as service,
        serving(service, 0, Metrics(service.backend)) as address,
        connected(address) as stub,
    ):
        valkey.kill()
        assert stub.put([known(A, {"fetch.statusCode": "200"})]) == {A: FAIL}
        assert stub.refused("GetURLs", pb.GetParams()) == grpc.StatusCode.UNAVAILABLE
        valkey.restart()
        wait_until(lambda: stub.put([known(A, {"fetch.statusCode": "200"})]) == {A: OK})


def test_limits_of_a_call_apply_and_pages_beyond_them_are_free_again(served: tuple[Stub, EmbeddedService]) -> None:
    stub, _ = served
    urls = [f"http://h{host}.example/{page}" for host in range(4) for page in range(4)]
    stub.put(map(discovered, urls))
    found = stub.take(max_urls_per_queue=1, max_queues=2, delay_requestable=60)
    assert len({one.key for one in found}) == len(found) <= 2
    only = stub.take(key="h3.example", max_urls_per_queue=2)
    assert {one.key for one in only} == {"h3.example"}
    assert len(only) == 2
    rest = stub.take()
    assert sorted(one.url for one in [*found, *only, *rest]) == sorted(urls)
    assert stub.GetStats(pb.QueueWithinCrawlParams()).inProcess == len(urls)


def test_operators_list_block_and_delete_queues(tmp_path: Path) -> None:
    with frontier(tmp_path / "data", allow_delete=True) as (stub, service):
        stub.put(map(discovered, [A, B, "http://b.example/a", "http://www.c.example/"]))
        assert list(stub.ListQueues(pb.Pagination(start=1, size=1)).values) == ["b.example"]
        assert stub.ListQueues(pb.Pagination(size=10)).total == 3
        assert list(stub.ListCrawls(pb.Local()).values) == ["default"]
        assert len(stub.ListNodes(pb.Empty()).values) == 1
        listed = [item.ID for item in stub.ListURLs(pb.ListUrlParams(key="a.example", filter="/B", ignoreCase=True))]
        assert listed == [B]
        assert stub.CountURLs(pb.CountUrlParams(filter=".example/a")).value == 2
        stub.SetActive(pb.Active(state=False))
        assert not stub.GetActive(pb.Local()).state
        assert stub.take() == []
        stub.SetActive(pb.Active(state=True))
        stub.SetDelay(pb.QueueDelayParams(key="a.example", delay_requestable=600))
        assert sum(one.key == "a.example" for one in stub.take()) == 1
        assert stub.refused("SetDelay", pb.QueueDelayParams(delay_requestable=1)) == (
            grpc.StatusCode.FAILED_PRECONDITION
        )
        assert stub.DeleteQueue(pb.QueueWithinCrawlParams(key="a.example")).value == 2
        assert stub.GetStats(pb.QueueWithinCrawlParams(key="a.example")).numberOfQueues == 0  # Though a page is leased.
        assert list(stub.ListQueues(pb.Pagination()).values) == ["b.example", "www.c.example"]
        assert stub.DeleteCrawl(pb.DeleteCrawlMessage(value="another")).value == 0
        assert stub.DeleteCrawl(pb.DeleteCrawlMessage(value="default")).value == 2
        assert settled(service)["known_pages"] == 0


def test_a_blocked_host_has_no_pages_at_any_endpoint_until_the_block_ends(valkey: Server) -> None:
    settings = Settings.load(store=valkey.url, shards=2, host_delay_seconds=0, retry_seconds=0)
    with two_endpoints(settings) as (stub, stranger, service):
        urls = [f"http://{host}.example/{page}" for host in "ab" for page in range(30)]
        Writer(service.backend.crawl).apply(
            "p/0", [Record(0, service.backend.clock.now_us(), encode_seeds(urls), "seeds")]
        )
        in_an_hour = int(time.time()) + 3_600
        stub.BlockQueueUntil(pb.BlockQueueParams(key="A.example", time=in_an_hour))
        assert {one.key for one in stranger.take(max_urls_per_queue=5, max_queues=2)} == {"b.example"}
        assert {one.key for one in stub.take(max_urls_per_queue=5, max_queues=2)} == {"b.example"}
        assert stub.take(key="a.example") == []
        told = service.backend.frontier.explain(urls[0])
        assert told is not None
        assert (told.host_free_at, told.next) == (in_an_hour, False)
        stub.BlockQueueUntil(pb.BlockQueueParams(key="a.example"))
        assert len(stranger.take(key="a.example", max_urls_per_queue=4)) == 4
        assert len(stub.take(key="a.example", max_urls_per_queue=4)) == 4
        soon = time.time() + 1.5
        stub.BlockQueueUntil(pb.BlockQueueParams(key="a.example", time=int(soon)))
        wait_until(lambda: stranger.take(key="a.example", max_urls_per_queue=1))
        assert time.time() >= int(soon)
        stub.BlockQueueUntil(pb.BlockQueueParams(key="unknown.example", time=in_an_hour))
        assert stub.refused("BlockQueueUntil", pb.BlockQueueParams(key="no host")) == grpc.StatusCode.INVALID_ARGUMENT


def test_a_host_gives_no_page_once_its_limit_of_reads_is_reached(valkey: Server) -> None:
    settings = Settings.load(store=valkey.url, shards=2, host_delay_seconds=0, revisit_seconds=0)
    with two_endpoints(settings) as (stub, stranger, service):
        writer, now_us = Writer(service.backend.crawl), service.backend.clock.now_us()
        urls = [f"http://{host}.example/{page}" for host in "ab" for page in range(10)]
        reads = [json.dumps({"url": url}).encode() for url in (urls[0], urls[0], urls[1], urls[2])]
        records = [Record(at, now_us, value) for at, value in enumerate(reads, 1)]
        records.insert(0, Record(0, now_us, encode_seeds(urls), "seeds"))
        writer.apply("p/0", records[:3])
        assert stub.take(max_urls_per_queue=1, max_queues=2)
        assert stranger.take(max_urls_per_queue=1, max_queues=2)
        stub.SetCrawlLimit(pb.CrawlLimitParams(key="A.example", limit=2))
        assert len(stranger.take(key="a.example", max_urls_per_queue=1)) == 1  # Of its limit of 2, one is left.
        writer.apply("p/0", records[3:4])
        for one in (stub, stranger):
            assert one.take(key="a.example") == []
            assert {found.key for found in one.take(max_urls_per_queue=2, max_queues=2)} == {"b.example"}
        told = service.backend.frontier.explain(urls[5])
        assert told is not None
        assert (told.held_back, told.next) == (["denied"], False)
        assert told.why_not == ["2 pages of its host a.example may be read, and were"]
        answer = service.backend.frontier.next(5, domain="a.example")
        assert answer.waiting.denied > 0
        stub.SetCrawlLimit(pb.CrawlLimitParams(key="a.example", limit=3))
        assert len(stranger.take(key="a.example", max_urls_per_queue=2)) == 2
        writer.apply("p/0", records[4:])
        assert stub.take(key="a.example") == stranger.take(key="a.example") == []
        writer.apply("p/0", [Record(5, now_us, encode_forgotten(urls[2:3]), "forget")])
        assert len(stub.take(key="a.example", max_urls_per_queue=1)) == 1
        stub.SetCrawlLimit(pb.CrawlLimitParams(key="a.example"))
        assert len(stranger.take(key="a.example", max_urls_per_queue=2)) == 2
        assert stub.refused("SetCrawlLimit", pb.CrawlLimitParams(key="c.example")) == grpc.StatusCode.NOT_FOUND


def test_pages_known_for_longer_than_some_days_are_purged(tmp_path: Path) -> None:
    with frontier(tmp_path / "data") as (stub, service):
        crawl, now = service.backend.crawl, int(time.time())
        stub.put(map(discovered, [A, B, "http://b.example/a"]))

        def created(url: str) -> int:
            return int(stub.GetURLStatus(pb.URLStatusRequest(url=url)).creation_date)

        assert all(now - 60 <= created(url) <= time.time() for url in (A, B))
        assert {now - 60 <= one.creation_date for one in stub.ListURLs(pb.ListUrlParams())} == {True}
        assert stub.PurgeURLs(pb.PurgeUrlParams(days=1)).value == 0
        stub.put([discovered(C)])
        entries = np.array([(now - 864_000, 0, 0), (now, 3, 0)], ENTRY)  # As if C alone came today.
        crawl.client.hset(crawl.shards[0].keys.known_since, "0", entries.tobytes())
        assert created(A) == now - 864_000
        assert created(C) >= now - 60
        assert stub.PurgeURLs(pb.PurgeUrlParams(days=11)).value == 0
        assert stub.PurgeURLs(pb.PurgeUrlParams(days=9, key="b.example")).value == 1
        assert stub.PurgeURLs(pb.PurgeUrlParams(days=9)).value == 2
        assert [item.ID for item in stub.ListURLs(pb.ListUrlParams())] == [C]
        stub.put([discovered(A)])  # It is known again, since now.
        assert created(A) >= now - 60
        assert stub.PurgeURLs(pb.PurgeUrlParams(days=9)).value == 0
        assert stub.PurgeURLs(pb.PurgeUrlParams()).value == 2


def test_crawls_are_opened_when_they_are_named_and_keep_apart(tmp_path: Path) -> None:
    with frontier(tmp_path / "data", max_crawls=3) as (stub, _):
        assert stub.take(crawlID="news") == []
        items = [
            discovered(A),
            discovered(B, crawlID="news"),
            discovered(C, crawlID="more"),
            discovered(A, crawlID="x"),
        ]
        assert [ack.status for ack in stub.PutURLs(iter(items[:3]))] == [OK] * 3
        assert stub.put(items[3:]) == {A: FAIL}  # It would be the fourth.
        assert stub.put([discovered(A, crawlID="no name")]) == {A: SKIPPED}
        assert list(stub.ListCrawls(pb.Local()).values) == ["default", "more", "news"]
        assert stub.refused("ListURLs", pb.ListUrlParams(crawlID="x")) == grpc.StatusCode.INVALID_ARGUMENT
        assert stub.CountURLs(pb.CountUrlParams(crawlID="news")).value == 1
        (page,) = stub.take(crawlID="news")
        assert (page.url, page.crawlID) == (B, "news")
        assert stub.put([known(B, {"opic.links": [A, C]}, crawlID="news")]) == {B: OK}
        wait_until(lambda: stub.GetStats(pb.QueueWithinCrawlParams(crawlID="news")).counts["completed"] == 1)
        stub.SetActive(pb.Active(state=False))
        assert stub.take(anyCrawlID=pb.AnyCrawlID()) == []
        stub.SetActive(pb.Active(state=True))
        found = {(one.url, one.crawlID) for _ in range(3) for one in stub.take(anyCrawlID=pb.AnyCrawlID())}
        assert found == {(A, "default"), (A, "news"), (C, "news"), (C, "more")}
    with frontier(tmp_path / "data", max_crawls=3) as (stub, service):  # After a restart they are there.
        assert list(stub.ListCrawls(pb.Local()).values) == ["default", "more", "news"]
        assert len(list(stub.ListURLs(pb.ListUrlParams(crawlID="news")))) == 3
        worker = service._workers.process("news")
        worker.kill()
        wait_until(lambda: service._workers.process("news") is not worker)
        assert stub.put([discovered("http://b.example/", crawlID="news")]) == {"http://b.example/": OK}
    with frontier(tmp_path / "data", max_crawls=1) as (stub, _):
        assert stub.refused("GetURLs", pb.GetParams(crawlID="news")) == grpc.StatusCode.UNAVAILABLE
        assert stub.take(anyCrawlID=pb.AnyCrawlID()) == []


def test_a_token_is_required_where_one_is_set(tmp_path: Path) -> None:
    with frontier(tmp_path / "data", api_token="secret-of-the-test") as (stub, service):
        assert stub.put([discovered(A)]) == {A: OK}
        with (
            serving(service, 0, Metrics(service.backend)) as address,
            connected(address) as stranger,
        ):
            assert stranger.refused("GetURLs", pb.GetParams()) == grpc.StatusCode.UNAUTHENTICATED
            assert stranger.refused("PutURLs", iter([discovered(B)])) == grpc.StatusCode.UNAUTHENTICATED
            assert stranger.refused("DeleteCrawl", pb.DeleteCrawlMessage()) == grpc.StatusCode.UNAUTHENTICATED
        assert stub.refused("DeleteCrawl", pb.DeleteCrawlMessage()) == grpc.StatusCode.PERMISSION_DENIED


def test_without_a_token_other_machines_are_refused(tmp_path: Path) -> None:
    with (
        EmbeddedService(Settings.load(data=tmp_path / "data", host="0.0.0.0")) as service,
        pytest.raises(SettingsError, match="OPIC_API_TOKEN"),
        serving(service, 0, Metrics(service.backend)),
    ):
        pass


def test_items_answered_with_ok_survive_a_kill(tmp_path: Path) -> None:
    urls, taken = [f"http://h{page % 7}.example/{page}" for page in range(20_000)], list[str]()
    with served_by_command(tmp_path / "data") as (process, address), connected(address) as stub:

        def put() -> None:
            for ack in stub.PutURLs(known(url, {"opic.links": [urls[0]]}) for url in urls):
                taken.extend([ack.ID] if ack.status == OK else [])
                if len(taken) == 500:
                    process.kill()

        with pytest.raises(grpc.RpcError):
            put()
    assert 500 <= len(taken) < len(urls)
    with served_by_command(tmp_path / "data") as (_, address), connected(address) as stub:

        def read() -> set[str]:
            listed = stub.ListURLs(pb.ListUrlParams(size=len(urls)))
            return {item.ID for item in listed if item.WhichOneof("item") == "known"}

        wait_until(lambda: set(taken) <= read())


def test_calls_go_on_with_the_crawl_that_takes_the_place_of_this_one(tmp_path: Path) -> None:
    data, terms = tmp_path / "data", {"host_delay_seconds": "0"}
    with served_by_command(data, **terms) as (process, address), connected(address) as stub:
        assert stub.put([discovered(A), discovered(B)]) == {A: OK, B: OK}
        (first,) = stub.take(max_urls_per_queue=1, max_queues=1)
        for name, shards in (("second", 2), ("third", 1)):
            moved = run_here(["migrate", name, "--shards", shards, "--data", data, "--json"], environment())
            assert moved.returncode == 0, moved.stderr
            wait_until(lambda: stub.put([discovered(C, crawlID="DEFAULT")]) == {C: OK})  # FAIL for that moment.
            assert stub.GetStats(pb.QueueWithinCrawlParams()).numberOfQueues == 1
            assert stub.GetURLStatus(pb.URLStatusRequest(url=C)).ID == C
        assert first.url not in {one.url for one in stub.take(max_urls_per_queue=5)}  # Its lease went along.
        assert list(stub.ListCrawls(pb.Local()).values) == ["default"]  # Whatever crawls it was.
        assert stub.put([known(first.url, {"opic.links": [C]})]) == {first.url: OK}
        deleted = run_here(["crawls", "--delete", "default", "--yes", "--data", data], environment())
        assert deleted.returncode == 0, deleted.stderr  # No worker seems to be on it.
    assert process.wait(30) == 0


def test_the_command_prints_its_address_and_answers_health_and_reflection(tmp_path: Path) -> None:
    port = free_port()
    with (
        served_by_command(tmp_path / "data", port) as (process, address),
        grpc.insecure_channel(address) as channel,
        connected(address) as stub,
    ):
        asked = health_pb2.HealthCheckRequest(service=INTERFACE.full_name)
        assert health_pb2_grpc.HealthStub(channel).Check(asked).status == health_pb2.HealthCheckResponse.SERVING
        names = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        listed = {one.name for answer in names for one in answer.list_services_response.service}
        assert INTERFACE.full_name in listed
        assert stub.put([discovered(A)]) == {A: OK}
        stub.put([discovered("no url")])
        assert [one.url for one in stub.take()] == [A]
        told = wait_until(lambda: httpx.get(f"http://127.0.0.1:{port}/metrics")).text
        assert 'opic_urlfrontier_items_total{status="ok"} 1.0' in told
        assert 'opic_urlfrontier_items_total{status="skipped"} 1.0' in told
        assert 'opic_suggestions_total{mode="any",policy=""} 1.0' in told
    assert process.wait(30) == 0
