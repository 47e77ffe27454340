"""What is away comes back, what is lost is said: a worker on Kafka neither gives up nor makes anything up."""

import signal
import time
from pathlib import Path

import pytest
from kafka_crawl import (
    SESSION_SECONDS,
    Topic,
    WorkerProcess,
    commit,
    event,
    ledger_of,
    opened,
    opic,
    settings_of,
    settle,
    values,
    workers,
)
from kafka_server import Kafka
from logs import pep_history
from processes import wait_until
from same_state import assert_same
from servers import Server

from opic.ingest import Writer
from opic.service.backend import Backend

pytestmark = pytest.mark.slow

OVER = "everything answers again, after"


def test_unavailable_store_is_waited_for_without_leaving_the_group(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put(values(pep_history()[:2_000]))
    with workers(settings, tmp_path) as (worker,), opened(settings) as crawl:
        settle(crawl, topic)
        (member,) = topic.members()
        valkey.kill()
        began = time.monotonic()
        topic.put(values(pep_history()[2_000:3_000]))
        worker.says("the store does not answer")
        wait_until(lambda: not worker.ready())
        assert "not ready: the store does not answer" in worker.get("/readyz").text
        wait_until(lambda: time.monotonic() - began > 5 * SESSION_SECONDS)
        assert [m["member_id"] for m in topic.members()] == [member["member_id"]]
        valkey.restart()
        settle(crawl, topic)
        wait_until(worker.ready)
        assert_same(crawl.shards[0], ledger_of(topic))
        assert outage_lines(worker) == ["the store does not answer", OVER]
        worker.stop()


def outage_lines(worker: WorkerProcess) -> list[str]:
    """What it logged of outages, by the beginnings of its lines; of the Kafka client's own log there is nothing."""
    lines = worker.said().splitlines()
    assert [line for line in lines if " kafka" in line.partition(": ")[0]] == []
    said = [line.partition("opic.ingest: ")[2] for line in lines if " WARNING opic.ingest: " in line]
    known = ("the store does not answer", "Kafka at", OVER)
    return [next((start for start in known if text.startswith(start)), text) for text in said]


def test_unavailable_kafka_is_waited_for(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put(values(pep_history()[:500]))
    with opened(settings) as crawl, workers(settings, tmp_path) as (worker,):
        settle(crawl, topic)
        for number, fault in enumerate((kafka.kill, kafka.pause), 1):
            fault()
            wait_until(lambda: not worker.ready())
            assert "Kafka at" in worker.get("/readyz").text
            if kafka.alive:
                kafka.wake()
            else:
                kafka.start()
            topic.put([event("http://a.example/", "http://b.example/")])
            settle(crawl, topic)
            wait_until(worker.ready)
            said = outage_lines(worker)
            assert said == ["Kafka at", OVER] * (len(said) // 2)
            assert number <= len(said) // 2 <= 3 * number  # While it elects leaders, it may be away once more.
        assert_same(crawl.shards[0], ledger_of(topic))
        worker.stop()


def test_worker_started_before_its_servers_begins_once_they_are_up(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put(values(pep_history()[:100]))
    kafka.kill()
    valkey.kill()
    with workers(settings, tmp_path) as (worker,):
        worker.says("Kafka at")
        assert worker.get("/healthz").status_code == 200
        assert not worker.ready()
        kafka.start()
        worker.says("the store does not answer")
        valkey.restart()
        with opened(settings) as crawl:
            settle(crawl, topic)
        worker.stop()


def test_paused_worker_that_wakes_as_a_zombie_does_no_harm(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put(values(pep_history()[:6_000]))
    with opened(settings) as crawl, workers(settings, tmp_path) as (zombie,):
        wait_until(lambda: crawl.resume(f"{topic.name}/0") > 0)
        zombie.process.send_signal(signal.SIGSTOP)
        with workers(settings, tmp_path) as (other,):
            settle(crawl, topic)
            zombie.process.send_signal(signal.SIGCONT)
            topic.put(values(pep_history()[6_000:6_500]))
            settle(crawl, topic)
            wait_until(lambda: topic.shares() == [0, 1])
            zombie.stop()
            other.stop()
        assert_same(crawl.shards[0], ledger_of(topic))


def test_recreated_topic_is_refused(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put([event("http://a.example/")] * 5)
    with opened(settings) as crawl, workers(settings, tmp_path) as (worker,):
        settle(crawl, topic)
        worker.stop()
    topic.delete()
    again = Topic(kafka, name=topic.name, letters=False)
    again.put([event("http://b.example/")])
    worker = WorkerProcess(settings, tmp_path / "said")
    assert worker.process.wait(60) == 2
    assert f"{topic.name}/0 ends at offset 1, but events below 5 already took effect in this store" in worker.said()


def test_events_lost_to_retention_are_reported(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put([event("http://a.example/")] * 5)
    with opened(settings) as crawl:
        with workers(settings, tmp_path) as (worker,):
            settle(crawl, topic)
            worker.stop()
        topic.put([event("http://b.example/")] * 5)
        topic.let_go(8)
        worker = WorkerProcess(settings, tmp_path / "said")
        assert worker.process.wait(60) == 2
        assert "begins at offset 8, but this store needs it from 5 on: retention deleted 3 records" in worker.said()
        with workers(settings, tmp_path, kafka_skip_lost=True) as (worker,):
            settle(crawl, topic)
            assert "3 records are lost, as OPIC_KAFKA_SKIP_LOST allows" in worker.said()
            worker.stop()
        assert crawl.shards[0].books().reads == 7

    fresh = settings_of(kafka, valkey, topic.name, crawl=f"{topic.name}.fresh")
    with opened(fresh) as crawl, workers(fresh, tmp_path) as (worker,):  # A new store starts with what there is.
        settle(crawl, topic)
        assert crawl.shards[0].books().reads == 2
        worker.stop()


@pytest.mark.parametrize("shards", [1, 3])
def test_crawl_whose_events_were_deleted_unread_is_not_taken_for_a_new_one(
    kafka: Kafka, valkey: Server, tmp_path: Path, shards: int
) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name, shards=shards)
    backend = Backend(settings, valkey.url)
    try:
        for i in range(1_000):  # A record each.
            backend.log.append([event(f"http://new{i}.org/")], backend.clock.now_us())
        topic.let_go(600)
        assert backend.log.missing() == {f"{topic.name}/0": 600}
        worker = WorkerProcess(settings, tmp_path / "said")
        assert worker.process.wait(60) == 2
        assert "begins at offset 600, but this store needs it from 0 on: retention deleted 600 records" in worker.said()
        assert "OPIC_KAFKA_SKIP_LOST=true" in worker.said()
        told = opic(settings, "doctor")
        assert told.returncode == 1
        assert "retention deleted 600 records of accepted events" in told.stdout
        with workers(settings, tmp_path, kafka_skip_lost=True) as (worker,):
            settle(backend.crawl, topic)
            worker.stop()
        assert backend.crawl.totals().reads == 400
        assert backend.log.missing() == {}
    finally:
        backend.close()


def test_partition_unknown_to_the_store_is_required_from_its_start(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    """In a store of the version before, which kept no first offsets, but has a record of the topic."""
    topic = Topic(kafka, partitions=2)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put([event("http://a.example/")] * 5, 0)
    topic.put([event("http://b.example/")] * 5, 1)
    with opened(settings) as crawl:
        Writer(crawl).apply(f"{topic.name}/1", topic.records(1))
        topic.let_go(3)
        worker = WorkerProcess(settings, tmp_path / "said")
        assert worker.process.wait(60) == 2
        assert "begins at offset 3, but this store needs it from 0 on: retention deleted 3 records" in worker.said()


def test_store_that_lost_its_last_writes_gets_them_again(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    """As after a failover to a replica that lags: the store wants events again that had taken effect."""
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put(values(pep_history()[:1_000]))
    with opened(settings) as crawl, workers(settings, tmp_path) as (worker,):
        settle(crawl, topic)
        client = crawl.shards[0].client
        kept = {key: client.dump(key) for key in client.keys("opic:*")}
        topic.put(values(pep_history()[1_000:2_000]))
        settle(crawl, topic)
        with client.pipeline(transaction=True) as pipe:
            pipe.delete(*client.keys("opic:*"))
            for key, value in kept.items():
                pipe.restore(key, 0, value)
            pipe.execute()
        topic.put(values(pep_history()[2_000:2_500]))
        settle(crawl, topic)
        worker.says("the store lost its last writes")
        assert_same(crawl.shards[0], ledger_of(topic))
        worker.stop()


def test_static_member_keeps_its_partition_over_a_restart(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka, partitions=2)
    settings = settings_of(kafka, valkey, topic.name, kafka_session_seconds=30)
    with opened(settings) as crawl:
        with workers(settings, tmp_path, kafka_group_instance_id="one") as (worker,):
            wait_until(lambda: topic.shares() == [2])
            worker.stop()
        assert topic.shares() == [2]  # It is expected back.
        with workers(settings, tmp_path, kafka_group_instance_id="one") as (worker,):
            topic.put([event("http://a.example/")], 1)
            settle(crawl, topic)
            worker.stop()


def test_committed_offset_ahead_of_the_store_is_ignored(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put([event("http://a.example/")] * 10)
    with opened(settings) as crawl:
        Writer(crawl).apply(f"{topic.name}/0", topic.records()[:3])
        commit(topic, 7)
        with workers(settings, tmp_path) as (worker,):
            settle(crawl, topic)
            assert crawl.shards[0].books().reads == 10
            worker.stop()
