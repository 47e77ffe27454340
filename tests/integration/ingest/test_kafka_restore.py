"""A restore beside an endpoint that goes on accepting and workers that go on reading a topic of Kafka."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import curls
import httpx
import pytest
from kafka_crawl import Topic, event, ledger_of, opened, opic, serving, settings_of, settle, workers
from kafka_server import Kafka
from processes import wait_until
from same_state import assert_same
from servers import Server

from opic.ops.backup import backup
from opic.replica import Crawl
from opic.service.backend import Backend
from opic.settings import Settings

pytestmark = pytest.mark.slow

POST_SECONDS_MAX = 60.0


class Publisher(threading.Thread):
    """Posts reads of one page after the other, each call with a key; repeats a call until it is confirmed."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, self._over = url, threading.Event()
        self.confirmed: list[str] = []

    def run(self) -> None:
        number = 0
        with httpx.Client(base_url=self._url, timeout=POST_SECONDS_MAX) as client:
            while not self._over.is_set():
                page = f"http://h{number % 50}.example/{number}"
                body = [{"url": page, "links": [f"http://h{(number + 1) % 50}.example/{number + 1}"]}]
                answer = client.post("/v1/events", json=body, headers={"Idempotency-Key": f"call-{number}"})
                if answer.status_code == 503:  # As a client that retries.
                    self._over.wait(0.05)
                    continue
                assert answer.status_code == 202, answer.text
                self.confirmed.append(page)
                number += 1

    def end(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def publishing(url: str) -> Iterator[Publisher]:
    publisher = Publisher(url)
    publisher.start()
    try:
        yield publisher
    finally:
        publisher.end()


def restored(settings: Settings, copy: Path) -> str:
    done = opic(settings, "restore", copy, "--replace")
    assert done.returncode == 0, done.stderr
    return done.stderr


def reads_of(crawl: Crawl, pages: list[str]) -> list[int]:
    crawl.follow()
    places, rows = crawl.find_rows(pages)
    assert None not in places
    found: list[int] = rows.reads.tolist()
    return found


@pytest.mark.parametrize("shards", [1, 4])
def test_events_confirmed_around_a_restore_take_effect_once_and_workers_go_on(
    kafka: Kafka, valkey: Server, tmp_path: Path, shards: int
) -> None:
    topic = Topic(kafka, partitions=shards)
    settings = settings_of(kafka, valkey, topic.name, shards=shards)
    with serving(settings, tmp_path / "serve.log") as url, workers(settings, tmp_path, min(2, shards)) as running:
        with publishing(url) as publisher, opened(settings) as crawl:
            wait_until(lambda: crawl.totals().reads >= 100)
            backup(crawl, tmp_path / "copy")
            at_backup = len(publisher.confirmed)
            wait_until(lambda: crawl.totals().reads >= at_backup + 200)  # These take effect a second time.
            before = len(publisher.confirmed)
            restored(settings, tmp_path / "copy")
            if len(running) > 1:
                running.pop().kill()
            wait_until(lambda: len(publisher.confirmed) >= before + 200)
            publisher.end()
        with opened(settings) as crawl:
            settle(crawl, topic)
            wait_until(lambda: crawl.waiting() == 0)
            confirmed = publisher.confirmed
            assert reads_of(crawl, confirmed) == [1] * len(confirmed)
            assert crawl.totals().reads == len(confirmed)
            assert crawl.audit()[0].conserved
            if shards == 1:
                assert_same(crawl.shards[0], ledger_of(topic))
        wait_until(lambda: curls.get(f"{url}/v1/stats", timeout=30).json()["lag"] == 0)
        (worker,) = running
        wait_until(worker.ready)
        assert " ERROR " not in worker.said()
        worker.stop()


def test_worker_during_a_restore_says_which_events_kafka_no_longer_has(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put([event("http://a.example/")] * 5)
    with opened(settings) as crawl, workers(settings, tmp_path) as (worker,):
        settle(crawl, topic)
        backup(crawl, tmp_path / "copy")
        topic.put([event("http://b.example/")] * 5)
        settle(crawl, topic)
        topic.let_go(8)  # As retention may do with what took effect.
        restored(settings, tmp_path / "copy")
        assert worker.process.wait(60) == 2
        said = worker.said()
        assert "begins at offset 8, but this store needs it from 5 on: retention deleted 3 records" in said
        assert "Publish them again and raise retention.ms" in said
    found = opic(settings, "doctor")
    assert found.returncode == 1
    assert "Kafka's retention deleted 3 records of accepted events" in found.stdout
    Backend(settings, valkey.url).close()  # An endpoint goes on answering.
