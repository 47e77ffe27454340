"""Kafka that is away, or without our topics: commands say so within seconds, in one line, and nothing is created."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kafka_crawl import Topic, WorkerProcess, opened, opic, settings_of
from kafka_server import Kafka
from processes import without_source
from servers import Server

from opic.errors import KafkaUnavailable
from opic.ingest.publish import Publisher
from opic.ops.doctor import run_checks
from opic.service.service import open_backend

pytestmark = pytest.mark.slow

ANSWER_SECONDS_MAX = 5.0


@pytest.fixture(params=["nothing listens", "silent socket", "paused broker"])
def away(request: pytest.FixtureRequest, kafka: Kafka) -> Iterator[str]:
    """The address of a Kafka that does not answer."""
    if request.param == "nothing listens":
        yield "127.0.0.1:1"
    elif request.param == "silent socket":
        with socket.create_server(("127.0.0.1", 0)) as silent:
            yield f"127.0.0.1:{silent.getsockname()[1]}"
    else:
        kafka.pause()
        try:
            yield kafka.bootstrap
        finally:
            kafka.wake()


@pytest.mark.parametrize(
    "away",
    ["nothing listens", pytest.param("silent socket", marks=pytest.mark.thorough), "paused broker"],
    indirect=True,
)
def test_commands_report_in_one_line_that_kafka_is_unavailable(
    away: str, kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    settings = settings_of(kafka, valkey, "any.topic", kafka_bootstrap=away)
    with opened(settings):
        pass  # The crawl is there.
    events = tmp_path / "events.jsonl"
    events.write_text('{"url": "http://a.example/"}\n')
    for words in (["stats"], ["dead-letters", "list"], ["publish", events], ["topics", "list"]):
        done = opic(settings, *words)
        (line,) = without_source(done.stderr)
        assert done.returncode == 2
        assert line.startswith(f"opic: Kafka at {away} does not answer: ")
    done = opic(settings, "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"FAIL\tkafka\tKafka at {away} does not answer: " in done.stdout.replace("  ", "")


def test_each_call_is_answered_within_seconds_while_kafka_is_unavailable(
    away: str, kafka: Kafka, valkey: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = settings_of(kafka, valkey, "any.topic", kafka_bootstrap=away)
    with opened(settings), ExitStack() as stack:
        backend = open_backend(settings, stack)
        for ask in (backend.stats, lambda: backend.letters.newest(1), lambda: Publisher(settings=settings)):
            began = time.monotonic()
            with pytest.raises(KafkaUnavailable, match=f"Kafka at {away} does not answer"):
                ask()
            assert time.monotonic() - began < ANSWER_SECONDS_MAX
        began = time.monotonic()
        findings = {one.check: one for one in run_checks(lambda: settings)}
        assert time.monotonic() - began < ANSWER_SECONDS_MAX
    assert findings["kafka"].verdict == "FAIL"
    assert f"{away} does not answer" in findings["kafka"].text
    assert findings["store"].verdict == "ok"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("letters", [True, False], ids=["no topic", "no topic of dead letters"])
def test_worker_without_its_topics_ends_and_creates_no_crawl(
    kafka: Kafka, valkey: Server, tmp_path: Path, letters: bool
) -> None:
    name = "no.such.topic" if letters else Topic(kafka, letters=False).name
    worker = WorkerProcess(settings_of(kafka, valkey, name), tmp_path / "worker.log")
    assert worker.process.wait(60) == 2
    assert f"has no topic {name}{'' if letters else '.dlq'}" in worker.said()
    assert valkey.client().dbsize() == 0
