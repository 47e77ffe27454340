"""The endpoint with Kafka: accepted means on the topic, and what waits is counted over all partitions."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import curls
import pytest
from kafka_crawl import Topic, event, opened, opic, serving, settings_of, settle, workers
from kafka_server import Kafka
from ports import free_port
from processes import environment, wait_until
from repository import ROOT
from servers import Server
from written import written

from opic.model.events import split_array
from opic.settings import Settings

pytestmark = pytest.mark.slow


def lag(url: str) -> int:
    return int(curls.get(f"{url}/v1/stats", timeout=30).raise_for_status().json()["lag"])


def reads(url: str, *pages: str) -> list[int]:
    found = curls.post(f"{url}/v1/importance", json={"urls": list(pages)}, timeout=30).raise_for_status().json()
    return [page.get("reads", 0) for page in found["pages"]]


@pytest.mark.parametrize("shards", [1, 4])
def test_events_and_seeds_take_effect_and_are_counted_in_stats(
    kafka: Kafka, valkey: Server, tmp_path: Path, shards: int
) -> None:
    topic = Topic(kafka, partitions=4)
    settings = settings_of(kafka, valkey, topic.name, shards=shards)
    with serving(settings, tmp_path / "serve.log") as url:
        events = [{"url": f"http://h{i}.example/", "links": ["http://x.example/"]} for i in range(40)]
        answer = curls.post(f"{url}/v1/events", json=[*events, {"url": "/about"}], timeout=30)
        assert (answer.status_code, answer.json()["accepted"], len(answer.json()["rejected"])) == (202, 40, 1)
        messages = topic.messages()
        assert len(messages) <= 4  # Events of a partition share a record.
        assert sum(len(split_array(m.value)) for m in messages) == 40
        assert lag(url) == 40  # No worker runs yet.
        with workers(settings, tmp_path) as (worker,):
            wait_until(lambda: lag(url) == 0)
            seeds = [f"http://s{i}.example/{j}" for i in range(20) for j in range(2)]
            known = curls.post(f"{url}/v1/seeds", json={"urls": seeds}, timeout=30)
            assert written(known) == {"known": 0, "new": 40}
            again = curls.post(f"{url}/v1/seeds", json={"urls": seeds}, timeout=30)
            assert written(again) == {"known": 40, "new": 0}
            records = [m for m in topic.messages() if ("opic-kind", b"seeds") in m.headers]
            assert len(records) == 2 * shards
            wait_until(lambda: reads(url, "http://h7.example/", "http://h39.example/") == [1, 1])
            stats = curls.get(f"{url}/v1/stats", timeout=30).json()
            assert (stats["read_pages"], stats["known_pages"], stats["lag"]) == (40, 81, 0)
            wait_until(lambda: curls.get(f"{url}/v1/audit", timeout=30).json()["in_flight"] == 0)
            assert curls.get(f"{url}/v1/audit", timeout=30).json()["conserved"] is True
            # What an autoscaler sees, which goes by what the group has committed, is then the lag that we tell.
            ends = {int(name.rpartition("/")[2]): end for name, end in topic.ends().items() if end}
            wait_until(lambda: {part: at for part, at in topic.committed().items() if at} == ends)
            assert "opic_lag_events 0.0" in curls.get(f"{url}/metrics", timeout=30).text.splitlines()
            classes = {"classes": [{"name": "a", "weight": 2, "hosts": ["h7.example", "h8.example"]}]}
            answer = curls.put(f"{url}/v1/classes", json=classes, timeout=60)
            if shards == 1:  # Its events have no common order.
                assert answer.status_code == 422
            else:
                assert answer.status_code == 200, answer.text
                wait_until(lambda: curls.get(f"{url}/v1/classes").json()["classes"][0]["known_pages"] == 2)
                assert curls.get(f"{url}/v1/audit", timeout=30).json()["conserved"] is True
            worker.stop()


def test_repeated_call_carries_its_key_to_the_step(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka, partitions=2)
    settings = settings_of(kafka, valkey, topic.name)
    with serving(settings, tmp_path / "serve.log") as url, workers(settings, tmp_path) as (worker,):
        body = [{"url": f"http://{host}.example/"} for host in "aba"]
        answers = [
            curls.post(f"{url}/v1/events", json=body, headers={"Idempotency-Key": "one"}, timeout=30) for _ in range(3)
        ]
        assert [(a.status_code, a.json()["accepted"]) for a in answers] == [(202, 3)] * 3
        other = curls.post(f"{url}/v1/events", json=body[:1], headers={"Idempotency-Key": "one"}, timeout=30)
        assert other.status_code == 422
        keys = {(dict(m.headers)["opic-key"], dict(m.headers)["opic-index"]) for m in topic.messages()}
        assert len({key for key, _ in keys}) == 1
        assert {number for _, index in keys for number in index.split(b",")} == {b"0", b"1", b"2"}
        wait_until(lambda: lag(url) == 0)
        worker.stop()


def test_unavailable_kafka_is_a_503_until_it_is_back(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    with serving(settings, tmp_path / "serve.log") as url:
        kafka.kill()
        refused = curls.post(f"{url}/v1/events", json={"url": "http://a.example/"}, timeout=60)
        assert refused.status_code == 503
        assert "Kafka at" in refused.json()["detail"]
        assert "Retry-After" in refused.headers
        assert curls.get(f"{url}/readyz", timeout=30).status_code == 503
        told = curls.get(f"{url}/metrics", timeout=9).text  # Prometheus would wait for 10 s.
        assert {"opic_store_up 1.0", "opic_kafka_up 0.0", "opic_known_pages 0.0"} <= set(told.splitlines())
        assert "\nopic_lag_events" not in told  # Nobody knows.
        kafka.start()
        wait_until(lambda: curls.get(f"{url}/readyz", timeout=30).status_code == 200)
        told = curls.get(f"{url}/metrics", timeout=9).text
        assert {"opic_store_up 1.0", "opic_kafka_up 1.0", "opic_lag_events 0.0"} <= set(told.splitlines())
        taken = curls.post(f"{url}/v1/events", json={"url": "http://a.example/"}, timeout=60)
        assert taken.status_code == 202
    lines = (tmp_path / "serve.log").read_text().splitlines()
    assert sum("opic.ingest: Kafka at" in line for line in lines) == 1
    assert sum("opic.ingest: everything answers again" in line for line in lines) == 1
    assert not [line for line in lines if " kafka" in line.partition(": ")[0]]


def test_endpoint_without_kafka_feeds_a_worker_through_the_store(valkey: Server, tmp_path: Path) -> None:
    settings = Settings.load(store=valkey.url, crawl=f"plain.{os.getpid()}", shards=1)
    with serving(settings, tmp_path / "serve.log") as url:
        posted = curls.post(f"{url}/v1/events", json={"url": "http://a.example/", "links": []}, timeout=30)
        assert posted.status_code == 202
        assert lag(url) == 1
        with workers(settings, tmp_path) as (worker,):
            wait_until(lambda: lag(url) == 0)
            worker.stop()
        assert reads(url, "http://a.example/") == [1]


def test_endpoint_without_its_topic_says_so(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    settings = settings_of(kafka, valkey, "no.such.topic")
    done = subprocess.run(
        [sys.executable, "-m", "opic.cli.main", "serve", "--port", str(free_port())],
        env=environment() | settings.environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert valkey.client().dbsize() == 0  # It created no crawl.
    assert "has no topic no.such.topic: create it with `opic topics create`" in done.stderr


def test_missing_dead_letter_topic_is_a_503_until_it_is_created(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka, letters=False)
    settings = settings_of(kafka, valkey, topic.name)
    with serving(settings, tmp_path / "serve.log") as url:
        missing = curls.get(f"{url}/v1/dead-letters", timeout=30)
        assert (missing.status_code, missing.json()["type"]) == (503, "urn:opic:problem:kafka-refused")
        assert f"has no topic {topic.name}.dlq: create it with `opic topics create`" in missing.json()["detail"]
        assert int(missing.headers["retry-after"]) > 0
        described = curls.get(f"{url}/openapi.json", timeout=30).json()["paths"]["/v1/dead-letters"]["get"]["responses"]
        assert "Kafka is misconfigured" in described["503"]["description"]
        made = opic(settings, "topics", "create", "--partitions", 1)
        assert f"{topic.name}.dlq\tmade" in made.stdout, made.stderr
        found = curls.get(f"{url}/v1/dead-letters", timeout=30)
        assert (found.status_code, found.json()["dead_letters"]) == (200, [])
    assert "Traceback" not in (tmp_path / "serve.log").read_text()


def test_many_shards_and_workers_keep_every_event(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    """Four shards, four partitions, three workers; one is killed on the way."""
    topic = Topic(kafka, partitions=4)
    settings = settings_of(kafka, valkey, topic.name, shards=4)

    values = [
        event(f"http://h{i % 50}.example/{i}", *(f"http://h{j}.example/" for j in range(i % 7))) for i in range(2_000)
    ]
    with opened(settings) as crawl, workers(settings, tmp_path, 3) as running:
        for partition in range(4):
            topic.put(values[partition::4], partition)  # Not by host: the slow path is right as well.
        wait_until(lambda: any(crawl.resume(name) > 0 for name in topic.ends()))
        running[0].kill()
        settle(crawl, topic)
        wait_until(lambda: crawl.waiting() == 0)
        whole, _ = crawl.audit()
        assert whole.conserved, whole
        assert whole.in_flight == 0
        assert crawl.totals().reads == 2_000
        for one in running[1:]:
            one.stop()


def test_endpoint_accepts_events_again_after_an_outage_in_which_records_expired(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    topic = Topic(kafka, partitions=2)
    with serving(settings_of(kafka, valkey, topic.name), tmp_path / "serve.log") as url:

        def answer(number: int) -> int:
            body = {"url": f"http://h{number}.example/"}
            return curls.post(f"{url}/v1/events", json=body, timeout=60).status_code

        assert answer(0) == 202
        kafka.pause()
        try:
            with ThreadPoolExecutor(8) as pool:
                assert set(pool.map(answer, range(1, 9))) == {503}
        finally:
            kafka.wake()
        wait_until(lambda: answer(0) == 202, 60)
