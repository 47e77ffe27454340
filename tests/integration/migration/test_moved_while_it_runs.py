"""A crawl that is moved while crawlers work on it: they notice nothing but a moment's wait."""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import curls
from command_line import run_here
from kafka_crawl import Topic, serving, settings_of, workers
from kafka_server import Kafka
from processes import environment, running, wait_until
from servers import Server

from opic.client import Client
from opic.service.backend import Backend

HOSTS = 40
SECONDS = 3.0  # Of traffic around each migration.


class Crawlers:
    """Threads that ask for pages, report them, and note every lease that they were given."""

    def __init__(self, url: str, count: int = 2) -> None:
        self.url, self.leased, self.reported = url, list[tuple[str, float, float]](), list[str]()
        self.errors, self.slowest = list[str](), 0.0
        self._done, self._lock = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._crawl, args=(number,)) for number in range(count)]

    def _crawl(self, number: int) -> None:
        links = itertools.count(number * 1_000_000)
        with Client(self.url, crawler=f"crawler{number}") as client:
            while not self._done.is_set():
                try:
                    began = time.time()
                    pages = client.next(3, lease_seconds=600).pages
                    self.slowest = max(self.slowest, time.time() - began)
                    with self._lock:
                        self.leased += [(page.url, began, page.lease_until) for page in pages]
                    if pages:
                        client.events([{"url": page.url, "links": [_new(links) for _ in range(4)]} for page in pages])
                        with self._lock:
                            self.reported += [page.url for page in pages]
                    else:
                        time.sleep(0.05)
                except Exception as error:  # noqa: BLE001 - the test shows it
                    self.errors.append(repr(error))
                    return

    def __enter__(self) -> "Crawlers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(60)

    def leased_twice(self) -> list[str]:
        """Pages that were given out twice: each is read once, and none comes back within a revisit."""
        seen = set[str]()
        return [url for url, _, _ in self.leased if url in seen or seen.add(url)]  # type: ignore[func-returns-value]


def _new(numbers: Iterator[int]) -> str:
    return f"http://h{next(numbers) % HOSTS}.example/{next(numbers)}"


def migrate(*words: object) -> dict[str, Any]:
    done = run_here(["migrate", *words, "--json"], environment())
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_embedded_service_goes_on_while_its_crawl_is_moved(tmp_path: Path) -> None:
    settings = {"host_delay_seconds": 0, "revisit_seconds": 86_400}
    with running(tmp_path / "data", tmp_path / "said", **settings) as service:
        with Client(service.url) as client:
            client.seed([f"http://h{host}.example/" for host in range(HOSTS)])
        with Crawlers(service.url) as crawlers:
            for name, shards in (("second", 4), ("third", 1)):
                time.sleep(SECONDS)
                given = len(crawlers.leased)
                report = migrate(name, "--shards", shards, "--data", tmp_path / "data")
                assert report["shards"] == shards
                wait_until(lambda name=name: service.get("/healthz").json()["crawl"] == name)
                wait_until(lambda given=given: crawlers.errors or len(crawlers.leased) > given + 30, 20)
                assert crawlers.errors == []
        assert crawlers.errors == []
        assert crawlers.leased_twice() == []
        service.settle()
        wait_until(lambda: service.get("/v1/stats").json()["undelivered"] == 0)
        assert service.get("/v1/stats").json()["reads"] == len(crawlers.reported)
        assert set(service.reads(crawlers.reported)) == {1}
        assert service.get("/v1/audit").json()["conserved"]


def test_name_of_the_endpoints_own_crawl_is_not_made_again_after_it_was_moved(tmp_path: Path) -> None:
    with running(tmp_path / "data", tmp_path / "said") as service:
        migrate("second", "--shards", 2, "--data", service.data)
        wait_until(lambda: service.get("/healthz").json()["crawl"] == "second")
        opened = [(crawl["name"], crawl["open"]) for crawl in service.get("/v1/crawls").json()["crawls"]]
        assert opened == [("default", True), ("second", True)]
        removed = run_here(["crawls", "--delete", "default", "--yes", "--data", service.data], environment())
        assert removed.returncode == 0, removed.stderr
        refused = curls.request("PUT", f"{service.url}/v1/crawls/default", json={})
        assert (refused.status_code, "OPIC_CRAWL=second" in refused.json()["detail"]) == (409, True)
        assert [crawl["name"] for crawl in service.get("/v1/crawls").json()["crawls"]] == ["second"]


def test_kafka_workers_and_endpoint_go_on_with_any_number_of_shards(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    topic = Topic(kafka, partitions=4)
    settings = settings_of(kafka, valkey, topic.name, host_delay_seconds=0.0, revisit_seconds=86_400.0)
    with ExitStack() as stack:
        stack.enter_context(workers(settings, tmp_path, 2))
        url = stack.enter_context(serving(settings, tmp_path / "said"))
        with Client(url) as client:
            client.seed([f"http://h{host}.example/" for host in range(HOSTS)])
        with Crawlers(url) as crawlers:
            for name, shards in (("second", 4), ("third", 2), ("fourth", 1)):
                time.sleep(SECONDS)
                given = len(crawlers.leased)
                report = migrate(name, "--shards", shards, "--store", valkey.url, "--crawl", topic.name)
                assert report["shards"] == shards
                wait_until(lambda given=given: crawlers.errors or len(crawlers.leased) > given + 30, 60)
                assert crawlers.errors == []
        assert crawlers.leased_twice() == []
        with closing(Backend(settings, valkey.url)) as backend:
            assert backend.settings.crawl == "fourth"
            wait_until(lambda: backend.lag() == 0)
            crawl = backend.crawl
            assert crawl.totals().reads == len(crawlers.reported)
            rows = backend.query.importance(crawlers.reported, "static")
            assert {row["reads"] for row in rows if row is not None} == {1}
            assert crawl.audit()[0].conserved
