"""Topics, publishing and dead letters, from the command line and from Python."""

import json
import os
from pathlib import Path

import pytest
from kafka_crawl import Topic, opened, opic, settings_of, settle, workers
from kafka_server import PASSWORD, USER, Kafka
from processes import wait_until
from servers import Server

from opic.errors import BadEvent, KafkaRefused, KafkaUnavailable
from opic.ingest.kafka import KafkaCluster
from opic.ingest.publish import Publisher
from opic.model.events import CrawlEvent, decode_crawl_event, encode_crawl_event, split_array
from opic.ops.doctor import run_checks
from opic.settings import Settings
from opic.urls.canonical import shard_of

pytestmark = pytest.mark.slow


def test_topics_are_created_once_and_differences_are_reported(kafka: Kafka, valkey: Server) -> None:
    settings = settings_of(kafka, valkey, f"made.{os.getpid()}")
    missing = opic(settings, "topics", "list", "--json")
    assert missing.returncode == 1
    assert [row["verdict"] for row in json.loads(missing.stdout)["topics"]] == ["missing", "missing"]
    made = opic(settings, "topics", "create", "--partitions", 4, "--json", OPIC_SHARDS="16")
    assert made.returncode == 0, made.stderr
    rows = json.loads(made.stdout)["topics"]
    assert [(row["verdict"], row["partitions"]) for row in rows] == [("made", 4), ("made", 1)]
    again = opic(settings, "topics", "create", "--partitions", 4, "--json", OPIC_SHARDS="16")
    assert again.returncode == 0
    assert [row["verdict"] for row in json.loads(again.stdout)["topics"]] == ["there", "there"]
    other = opic(settings, "topics", "create", "--partitions", 6, OPIC_SHARDS="16")
    assert other.returncode == 1
    assert "4 partitions, not 6" in other.stdout
    assert opic(settings, "topics", "create").returncode == 0  # Any number is right where none is asked for.
    for shards in (1, 3):
        new = settings_of(kafka, valkey, f"new.{shards}.{os.getpid()}", shards=shards)
        rows = json.loads(opic(new, "topics", "create", "--json").stdout)["topics"]
        assert [(row["verdict"], row["partitions"]) for row in rows] == [("made", shards), ("made", 1)]
    assert opic(settings, "topics", "list").returncode == 0
    assert "Kafka at" in opic(settings, "topics", "create", "--replication", 2).stderr


def test_publisher_sends_each_host_to_the_partition_of_its_shard(kafka: Kafka, valkey: Server) -> None:
    topic = Topic(kafka, partitions=4)
    settings = settings_of(kafka, valkey, topic.name)
    with Publisher(settings=settings) as publisher:
        for i in range(300):
            publisher.publish(f"http://h{i % 30}.example/{i}", [f"http://other.example/{i}"], tags=["a"], crawler="c")
        with pytest.raises(BadEvent, match="url 'mailto:a' is not an absolute"):
            publisher.publish("mailto:a")
        assert publisher.flush() == 300
    found = [(message, split_array(message.value)) for message in topic.messages()]
    assert sum(len(values) for _, values in found) == 300
    assert len(found) < 40  # Events that come together share a record.
    for message, values in found:
        events = list(map(decode_crawl_event, values))
        assert message.key == events[0].url.split("/")[2].encode()
        for event in events:
            assert message.partition == shard_of(event.url.split("/")[2], 4)
            assert (event.tags, event.crawler) == (["a"], "c")
            assert event.fetched_at is not None


def test_files_are_published_and_bad_events_counted(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka, partitions=2)
    settings = settings_of(kafka, valkey, topic.name)
    lines = [json.dumps({"url": f"http://a.example/{i}", "status": 200}) for i in range(50)]
    (tmp_path / "crawl.jsonl").write_text("\n".join([*lines, "nonsense", '{"url": "/about"}']))
    (tmp_path / "crawl.msgpack").write_bytes(
        b"".join(encode_crawl_event(CrawlEvent(f"http://b.example/{i}")) for i in range(50))
    )
    done = opic(settings, "publish", tmp_path / "crawl.jsonl", tmp_path / "crawl.msgpack", "--json")
    assert done.returncode == 1
    summary = json.loads(done.stdout)
    assert (summary["delivered"], summary["bad"], summary["topic"]) == (100, 2, topic.name)
    assert "crawl.jsonl:51: not a decodable event" in done.stderr
    assert sum(len(split_array(message.value)) for message in topic.messages()) == 100
    fine = opic(settings, "publish", tmp_path / "crawl.msgpack", "--format", "msgpack")
    assert fine.returncode == 0
    assert "delivered\t50" in fine.stdout


def test_undelivered_events_are_raised(kafka: Kafka, valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(kafka)
    monkeypatch.setattr("opic.ingest.publish.DELIVERY_SECONDS", 2.0)
    monkeypatch.setattr("opic.ingest.kafka.connection.REQUEST_SECONDS", 1.0)
    publisher = Publisher(settings=settings_of(kafka, valkey, topic.name))
    publisher.publish("http://a.example/")
    publisher.flush()
    kafka.pause()
    try:
        publisher.publish("http://b.example/")
        with pytest.raises(KafkaUnavailable, match="does not answer"):
            publisher.close()
    finally:
        kafka.wake()


def test_wrong_address_topic_or_password_is_named(kafka: Kafka, valkey: Server) -> None:
    with pytest.raises(KafkaUnavailable, match=r"Kafka at 127.0.0.1:1 does not answer: .*ECONNREFUSED"):
        Publisher("127.0.0.1:1")
    with pytest.raises(KafkaRefused, match="has no topic no-such: create it with `opic topics create`"):
        Publisher(kafka.bootstrap, "no-such")
    topic = Topic(kafka)
    secure = {"kafka_bootstrap": kafka.sasl_bootstrap, "kafka_security_protocol": "SASL_PLAINTEXT"}
    with Publisher(
        settings=settings_of(
            kafka, valkey, topic.name, **secure, kafka_sasl_username=USER, kafka_sasl_password=PASSWORD
        )
    ) as publisher:
        publisher.publish("http://a.example/")
    wrong = settings_of(kafka, valkey, topic.name, **secure, kafka_sasl_username=USER, kafka_sasl_password="guess")
    with pytest.raises(KafkaUnavailable, match="wrong user name, password or OPIC_KAFKA_SECURITY_PROTOCOL") as caught:
        Publisher(settings=wrong)
    assert "guess" not in str(caught.value)
    with pytest.raises(KafkaUnavailable, match="OPIC_KAFKA_SECURITY_PROTOCOL"):
        KafkaCluster(settings_of(kafka, valkey, topic.name, kafka_bootstrap=kafka.sasl_bootstrap)).consumer()


def test_bad_records_go_to_the_dead_letter_topic_and_are_replayed_once(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    topic = Topic(kafka, partitions=2)
    strict = settings_of(kafka, valkey, topic.name, max_url_bytes=64)
    long = encode_crawl_event(CrawlEvent("http://a.example/" + "a" * 64))
    good = encode_crawl_event(CrawlEvent("http://a.example/"))
    topic.put([good, b"\xff\x00 poison", good, long], 1)
    topic.put([good], 1, headers=[("opic-kind", b"riddle")])
    with workers(strict, tmp_path) as (worker,), opened(strict) as crawl:
        settle(crawl, topic)
        wait_until(lambda: len(topic.messages(f"{topic.name}.dlq")) == 3)
        wait_until(lambda: crawl.shards[0].client.xlen(crawl.shards[0].keys.dead) == 0)
        worker.stop()
        assert crawl.shards[0].books().reads == 2
        letters = [(dict(m.headers), m.value) for m in topic.messages(f"{topic.name}.dlq")]
        assert [value for _, value in letters] == [b"\xff\x00 poison", long, good]
        assert letters[0][0]["opic-topic"] == topic.name.encode()
        assert [(h["opic-partition"], h["opic-offset"]) for h, _ in letters] == [
            (b"1", b"1"),
            (b"1", b"3"),
            (b"1", b"4"),
        ]
        assert b"not a decodable event" in letters[0][0]["opic-error"]
        assert b"81 bytes long, over OPIC_MAX_URL_BYTES 64" in letters[1][0]["opic-error"]
        assert b"not 'riddle'" in letters[2][0]["opic-error"]

        relaxed = settings_of(kafka, valkey, topic.name)
        listed = json.loads(opic(relaxed, "dead-letters", "list", "--json").stdout)["dead_letters"]
        assert [(row["partition"], row["offset"], row["replayed"]) for row in listed] == [
            ("1", 1, False), ("1", 3, False), ("1", 4, False),
        ]  # fmt: skip
        replayed = [
            opic(relaxed, "dead-letters", "replay", "--error", "OPIC_MAX_URL_BYTES", "--json") for _ in range(2)
        ]
        assert [json.loads(done.stdout)["replayed"] for done in replayed] == [1, 0], replayed[0].stderr
        with workers(relaxed, tmp_path):
            settle(crawl, topic)
        assert crawl.shards[0].books().reads == 3
        one = opic(relaxed, "dead-letters", "list", "-n", 1, "--error", "OPIC_MAX_URL_BYTES")
        assert "true" in one.stdout
        assert opic(relaxed, "dead-letters", "replay").stdout == "2 dead letters were published again\n"


def test_dead_letters_without_kafka_stay_in_the_store(valkey: Server, tmp_path: Path) -> None:
    settings = Settings.load(store=valkey.url, shards=1)
    file = tmp_path / "crawl.jsonl"
    file.write_text(json.dumps({"url": "http://a.example/" + "a" * 64}) + "\nnonsense\n")
    done = opic(settings, "replay", file, OPIC_MAX_URL_BYTES="64")
    assert done.returncode == 1  # All of them were refused.
    assert f"dead letter: {file}:2: not a decodable event" in done.stderr
    listed = json.loads(opic(settings, "dead-letters", "list", "--json").stdout)["dead_letters"]
    assert [(row["topic"], row["partition"], row["offset"]) for row in listed] == [("log", "0", 0), ("log", "0", 1)]
    assert listed[1]["value"] == "nonsense"
    assert opic(settings, "dead-letters", "replay", "--error", "OPIC_MAX_URL_BYTES").stdout.startswith("1 dead letters")
    assert opic(settings, "dead-letters", "replay", "--error", "OPIC_MAX_URL_BYTES").stdout.startswith("0 dead letters")
    with opened(settings) as crawl, workers(settings, tmp_path):
        wait_until(lambda: crawl.shards[0].books().reads == 1)
    assert len(json.loads(opic(settings, "dead-letters", "list", "--json").stdout)["dead_letters"]) == 1


def test_doctor_checks_kafka(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    def found(settings: Settings) -> dict[str, tuple[str, str]]:
        return {one.check: (one.verdict, one.text) for one in run_checks(lambda: settings)}

    topic = Topic(kafka, partitions=4)
    before = found(settings_of(kafka, valkey, topic.name, shards=16))
    assert before["kafka"][0] == before["record time"][0] == "ok"
    # One broker can keep one replica only.
    assert before["topic"][0] == "warn"
    assert "4 partitions, 1 replica of each: accepted events are lost if their broker is lost" in before["topic"][1]
    assert before["record size"] == ("warn", before["record size"][1])
    assert "partitions" not in before  # There is no crawl yet.
    for shards, said in ((1, "1 worker is busy at a time"), (6, "up to 2 workers are busy at a time")):
        settings = settings_of(kafka, valkey, topic.name, crawl=f"{topic.name}.{shards}", shards=shards)
        with workers(settings, tmp_path) as (worker,):
            wait_until(worker.ready)
            verdict, text = found(settings)["partitions"]
        assert verdict == "ok"
        assert text.startswith(f"partitions: 4, shards: {shards}; {said}")
    missing = found(settings_of(kafka, valkey, "no.such"))
    assert missing["topic"] == ("FAIL", "there is no topic no.such.dlq: `opic topics create` creates it")
