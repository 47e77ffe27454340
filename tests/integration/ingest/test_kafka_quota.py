"""A quota of Kafka makes it silent for a while. It is told as what it is, and not as an outage."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import curls
import pytest
from kafka_crawl import Topic, event, opened, serving, settings_of, settle, workers
from kafka_server import Kafka
from processes import wait_until
from servers import Server

pytestmark = pytest.mark.slow

NOISE = random.Random(1)
HELD_BACK = "answers, but holds this user back by a quota for another"


@contextmanager
def quota(kafka: Kafka, name: str, bytes_a_second: int) -> Iterator[None]:
    """Limit all that our clients send or fetch."""
    alter = ("--alter", "--entity-type", "clients", "--entity-name", "opic")
    kafka.run_tool("kafka.admin.ConfigCommand", *alter, "--add-config", f"{name}={bytes_a_second}")
    try:
        yield
    finally:
        kafka.run_tool("kafka.admin.ConfigCommand", *alter, "--delete-config", name)


def links(count: int) -> list[str]:
    """Which no compression makes much smaller."""
    return [f"http://b.example/{NOISE.getrandbits(1_000):x}" for _ in range(count)]


def seconds_throttled(told: str) -> float:
    (row,) = (row for row in told.splitlines() if "kafka_throttled_seconds_total " in row and row[0] != "#")
    return float(row.split()[1])


def test_throttled_worker_stays_ready_and_says_why_it_is_slow(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put([event(f"http://a.example/{number}", *links(10)) for number in range(400)])
    with (
        quota(kafka, "consumer_byte_rate", 100_000),
        workers(settings, tmp_path) as (worker,),
        opened(settings) as crawl,
    ):
        wait_until(worker.ready)
        worker.says(f"Kafka at {kafka.bootstrap} {HELD_BACK}")
        assert worker.ready()
        settle(crawl, topic, 120)
        assert "does not answer" not in worker.said()
        assert seconds_throttled(worker.get("/metrics").text) > 1
        worker.stop()


def test_throttled_endpoint_says_when_to_come_back(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    with serving(settings, tmp_path / "serve.log") as url:

        def post(number: int) -> int:
            body = [{"url": f"http://a.example/{number}", "links": links(500)} for _ in range(10)]
            answer = curls.post(f"{url}/v1/events", json=body, timeout=60)
            if answer.status_code == 503:
                assert answer.json()["type"] == "urn:opic:problem:kafka-throttled"
                assert HELD_BACK in answer.json()["detail"]
                assert int(answer.headers["retry-after"]) > 1
            return answer.status_code

        with quota(kafka, "producer_byte_rate", 5_000):
            wait_until(lambda: post(1) == 503, 60)
            told = curls.get(f"{url}/metrics", timeout=30).text
            assert "opic_kafka_up 1.0" in told.splitlines()
            assert seconds_throttled(told) > 1
            assert curls.get(f"{url}/readyz", timeout=30).status_code == 200
    assert "does not answer" not in (tmp_path / "serve.log").read_text()
