"""Whoever may write to the topic may send events, but neither classes nor trust: those are signed by an endpoint."""

import time
from pathlib import Path
from typing import Any

import pytest
from kafka_crawl import Topic, event, opened, settings_of, settle, workers
from kafka_server import Kafka
from processes import wait_until
from servers import Server

from opic.ingest.kafka import KafkaCluster, KafkaLog
from opic.ingest.kafka.connection import headers_of, record_of
from opic.ingest.kafka.signatures import SIGNATURE, Signatures
from opic.model.classes import ClassesChange, check_classes, encode_classes
from opic.model.events import encode_ids, encode_seeds
from opic.service.backend import Backend
from opic.service.class_changes import define
from opic.settings import Settings

pytestmark = pytest.mark.slow

CLASSES = encode_classes(check_classes([{"name": "ours", "weight": 1_000.0, "hosts": ["evil.example"]}]))
TRUST = encode_seeds(["http://evil.example/"], trust=1.0)
SEEDS = encode_seeds(["http://a.example/"])
SECRET = b"secret of a store"


def problems(topic: Topic, settings: Settings, secret: bytes = SECRET) -> list[str]:
    """Why each record on the topic is refused; "" if it is taken."""
    signatures = Signatures(settings, lambda: secret)
    return [signatures.checked(message, record_of(message)).problem for message in topic.messages()]


def test_workers_accept_classes_and_trust_from_an_endpoint_only(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put([CLASSES], headers=headers_of("classes"))
    topic.put([TRUST, SEEDS], headers=headers_of("seeds"))
    topic.put([event("http://a.example/", "http://b.example/")])
    with workers(settings, tmp_path), opened(settings) as crawl:
        settle(crawl, topic)
        assert (crawl.totals().dead_letters, crawl.totals().reads, crawl.totals().seeds) == (2, 1, 1)
        wait_until(lambda: len(topic.messages(f"{topic.name}.dlq")) == 2)
        reasons = [dict(m.headers)["opic-error"].decode() for m in topic.messages(f"{topic.name}.dlq")]
        assert all("is not signed: set it through an endpoint" in reason for reason in reasons)
        backend = Backend(settings, valkey.url)
        define(backend, ClassesChange(check_classes([{"name": "good", "weight": 2.0, "hosts": ["a.example"]}])))
        assert [one.name for _, one in crawl.follow()[0].classes.placed] == ["good"]
        (signed,) = [
            m for m in topic.messages() if SIGNATURE in dict(m.headers) and dict(m.headers)["opic-kind"] == b"classes"
        ]
        define(backend, ClassesChange())
        backend.seed(["http://a.example/"], trust=1.0)
        topic.put([signed.value], headers=signed.headers)  # Whoever can read it may send it again.
        settle(crawl, topic)
        assert not crawl.follow()[0].classes
        assert (crawl.totals().dead_letters, crawl.totals().repeats) == (2, 1)
        backend.close()


@pytest.fixture
def log(kafka: Kafka, valkey: Server) -> Any:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    with opened(settings) as crawl:
        backend = Backend(settings, valkey.url)
        yield topic, settings, backend.log, crawl.shards[0].secret
        backend.close()


def test_altered_foreign_and_expired_signatures_are_refused(log: tuple[Topic, Settings, KafkaLog, bytes]) -> None:
    topic, settings, ours, secret = log
    now_us = time.time_ns() // 1000
    for kind, value in (("classes", CLASSES), ("classify", encode_ids((0, 5))), ("seeds", TRUST), ("seeds", SEEDS)):
        ours.append([value], now_us, kind)
    assert problems(topic, settings, secret) == [""] * 4
    found = problems(topic, settings)
    assert ["signed with another key" in problem for problem in found] == [True, True, True, False]
    first = topic.messages()[0]
    other = Topic(topic.kafka)
    for value, headers in (
        (CLASSES.replace(b"evil", b"worse"[:4]), first.headers),
        (CLASSES, [(name, b"seeds" if name == "opic-kind" else text) for name, text in first.headers]),
        (TRUST, [(name, b"seeds" if name == "opic-kind" else text) for name, text in first.headers]),
        (CLASSES, [(name, text[:-1] if name == SIGNATURE else text) for name, text in first.headers]),
        (CLASSES, [(name, b"" if name == "opic-signed-at" else text) for name, text in first.headers]),
        (CLASSES, first.headers),  # Of another topic.
    ):
        other.put([value], headers=headers)
    found = problems(other, settings.model_copy(update={"kafka_topic": other.name}), secret)
    assert [bool(problem) for problem in found] == [True, False, True, True, True, True]
    ours.append([CLASSES], now_us - 2 * 86_400_000_000, "classes")
    assert "more than a day" in problems(topic, settings, secret)[-1]


def test_key_from_the_settings_serves_stores_that_share_a_topic(log: tuple[Topic, Settings, KafkaLog, bytes]) -> None:
    topic, settings, _, secret = log
    shared = settings.model_copy(
        update={"kafka_signing_key": Settings.load(kafka_signing_key="k" * 16).kafka_signing_key}
    )
    with opened(shared) as crawl:
        backend = Backend(shared, shared.store)
        ours = KafkaLog(KafkaCluster(shared), crawl, backend.log._calls)  # type: ignore[attr-defined]
        ours.append([CLASSES], time.time_ns() // 1000, "classes")
        ours.close()
        backend.close()
    assert problems(topic, shared, b"another store") == [""]
    assert problems(topic, settings, secret) != [""]
