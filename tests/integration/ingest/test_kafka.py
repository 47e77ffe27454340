"""Crawl events on Kafka take effect once each, whatever is killed, redelivered or away."""

import json
from pathlib import Path

import pytest
from kafka_crawl import Topic, WorkerProcess, commit, event, ledger_of, opened, settings_of, settle, values, workers
from kafka_server import Kafka
from logs import pep_history
from processes import wait_until
from same_state import assert_same
from servers import Server

pytestmark = pytest.mark.slow


def test_events_of_a_topic_take_effect_as_in_the_ledger(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put([*values(pep_history()[:3_000]), b"not an event"])
    with workers(settings, tmp_path) as (worker,), opened(settings) as crawl:
        settle(crawl, topic)
        assert_same(crawl.shards[0], ledger_of(topic))
        wait_until(lambda: topic.committed() == {0: 3_001})  # For lag tools.
        told = worker.get("/metrics").text
        assert f'opic_worker_events_total{{partition="{topic.name}/0"}} 3001.0' in told
        assert f'opic_worker_lag_events{{partition="{topic.name}/0"}} 0.0' in told
        assert worker.ready()
        worker.stop()
        assert topic.members() == []


def test_cloudevent_in_binary_mode_is_an_event(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    said = {"specversion": "1.0", "type": "example.fetched", "source": "/crawler", "id": "1"}
    headers = [("content-type", b"application/json"), *((f"ce_{name}", text.encode()) for name, text in said.items())]
    topic.put([b'{"url": "http://a.example/", "links": ["http://b.example/"]}'], headers=headers)
    topic.put([json.dumps(said | {"data": {"url": "http://c.example/"}}).encode()])  # In structured mode it is none.
    with workers(settings, tmp_path), opened(settings) as crawl:
        settle(crawl, topic)
        assert {page.url for page in crawl.pages()} == {"http://a.example/", "http://b.example/"}
        assert crawl.books().pop().dead_letters == 1


def test_killed_workers_neither_lose_nor_repeat_events(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put(values(pep_history()[:9_000]))
    ledger = ledger_of(topic)
    with opened(settings) as crawl:
        for share in (1, 3_000, 6_000):
            with workers(settings, tmp_path) as (worker,):
                wait_until(lambda at=share: crawl.resume(f"{topic.name}/0") >= at)
                worker.kill()
        with workers(settings, tmp_path) as (worker,):
            settle(crawl, topic)
            worker.stop()
        assert_same(crawl.shards[0], ledger)


def test_offsets_committed_to_kafka_are_ignored(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    """Redelivered events do nothing, and a group whose offsets ran ahead loses none."""
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put(values(pep_history()[:500]))
    with opened(settings) as crawl:
        for at in (0, 300, 10_000):
            with workers(settings, tmp_path) as (worker,):
                settle(crawl, topic)
                worker.stop()
            commit(topic, at)
            topic.put([event(f"http://a.example/{at}", "http://b.example/")])
        with workers(settings, tmp_path) as (worker,):
            settle(crawl, topic)
            worker.stop()
        assert_same(crawl.shards[0], ledger_of(topic))


def test_two_workers_share_four_partitions(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka, partitions=4)
    settings = settings_of(kafka, valkey, topic.name, shards=4)
    with workers(settings, tmp_path, 2) as (one, other), opened(settings) as crawl:
        wait_until(lambda: topic.shares() == [2, 2])
        for partition in range(4):
            topic.put([event(f"http://{partition}.example/{i}", "http://x.example/") for i in range(200)], partition)
        settle(crawl, topic)
        other.kill()  # The one that is left takes all.
        topic.put([event(f"http://{p}.example/{p}", "http://x.example/") for p in range(4)], None)
        settle(crawl, topic)
        wait_until(lambda: crawl.waiting() == 0)
        one.stop()
        assert crawl.totals().reads == 804
        assert crawl.audit()[0].conserved


def test_worker_without_a_partition_says_so(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    with workers(settings, tmp_path, 2) as running:
        wait_until(lambda: any("on standby: " in one.said() for one in running))


def test_missing_topic_is_named(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    worker = WorkerProcess(settings_of(kafka, valkey, "no.such.topic"), tmp_path / "said")
    assert worker.process.wait(60) == 2
    assert "has no topic no.such.topic: create it with `opic topics create`" in worker.said()
