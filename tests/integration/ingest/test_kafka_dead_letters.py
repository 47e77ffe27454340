"""Nothing that a record holds ends a worker: what can't be taken becomes a dead letter, and the rest goes on."""

import json
import random
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka_crawl import Topic, WorkerProcess, event, ledger_of, opened, opic, settings_of, settle, workers
from kafka_server import Kafka
from processes import wait_until
from same_state import assert_same
from servers import Server

from opic.ingest.kafka.record_batches import KEPT_BYTES
from opic.ingest.step_counts import Tallied
from opic.replica import Crawl

pytestmark = pytest.mark.slow

MIB = 1 << 20
GOOD = event("http://a.example/", "http://b.example/")
NOISE = random.Random(1).randbytes(3 * MIB)  # No compression makes it smaller.


def test_dead_letter_over_the_limit_of_its_topic_is_cut_and_the_worker_goes_on(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    """By the broker's limit; and one of a record over our own, of which no more is read. A replay passes them over."""
    topic = Topic(kafka, config={"max.message.bytes": str(8 * MIB)})  # Its dead letters have the broker's limit, 1 MiB.
    settings = settings_of(kafka, valkey, topic.name, max_body_bytes=2 * MIB)
    topic.put([b"\xff small", NOISE[: 3 * MIB // 2], GOOD, NOISE, b"\xff last"])
    with workers(settings, tmp_path) as (worker,), opened(settings) as crawl:
        settle(crawl, topic)
        wait_until(lambda: len(topic.messages(f"{topic.name}.dlq")) >= 4)
        wait_until(lambda: crawl.client.xlen(crawl.shards[0].keys.dead) == 0)
        topic.put([GOOD])
        settle(crawl, topic)
        worker.stop()
        assert (crawl.totals().reads, crawl.totals().dead_letters) == (2, 4)
        letters = {
            dict(m.headers)["opic-offset"]: (dict(m.headers), m.value) for m in topic.messages(f"{topic.name}.dlq")
        }
        for offset, whole, kept in ((b"1", NOISE[: 3 * MIB // 2], MIB // 2), (b"3", NOISE, KEPT_BYTES - 8)):
            headers, value = letters[offset]
            assert headers["opic-value-bytes"] == str(len(whole)).encode()
            assert value == whole[:kept]
        assert b"over the limit of 2,162,688: see OPIC_MAX_BODY_BYTES" in letters[b"3"][0]["opic-error"]
        for offset, value in ((b"0", b"\xff small"), (b"4", b"\xff last")):
            assert letters[offset][1] == value
            assert "opic-value-bytes" not in letters[offset][0]
        listed = json.loads(opic(settings, "dead-letters", "list", "--json").stdout)["dead_letters"]
        assert sorted(row["value_bytes"] for row in listed) == sorted([7, 6, 3 * MIB // 2, 3 * MIB])
        replayed = opic(settings, "dead-letters", "replay", "--json")
        assert json.loads(replayed.stdout)["replayed"] == 2
        assert (
            "can't be published again: the dead letter has only the first 65,528 of its 3,145,728 bytes"
            in replayed.stderr
        )


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_record_that_decompresses_to_much_takes_no_memory(
    kafka: Kafka, valkey: Server, tmp_path: Path, codec: str
) -> None:
    """A topic limits what is sent, compressed. A value of 100 MiB on it becomes a dead letter with its beginning."""
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap, compression_type=codec, batch_size=1 << 28, max_request_size=1 << 28
    )
    with workers(settings, tmp_path) as (worker,), opened(settings) as crawl:
        topic.put([GOOD])
        settle(crawl, topic)
        before = memory_peak(worker)
        producer.send(topic.name, GOOD + b" " * (100 * MIB), partition=0).get(60)
        producer.close()
        topic.put([GOOD])
        settle(crawl, topic)
        assert (crawl.totals().reads, crawl.totals().dead_letters) == (2, 1)
        (letter,) = wait_until(lambda: topic.messages(f"{topic.name}.dlq"))
        assert letter.value.startswith(GOOD)
        assert len(letter.value) == KEPT_BYTES - 8
        assert memory_peak(worker) - before < 30 * MIB
        worker.stop()


def memory_peak(worker: WorkerProcess) -> int:
    (line,) = [row for row in Path(f"/proc/{worker.process.pid}/status").read_text().splitlines() if "VmHWM" in row]
    return int(line.split()[1]) << 10


def test_missing_topic_of_dead_letters_stops_no_events(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    with workers(settings, tmp_path) as (worker,), opened(settings) as crawl:
        wait_until(worker.ready)
        topic.delete(f"{topic.name}.dlq")
        topic.put([b"poison", GOOD])
        settle(crawl, topic)
        worker.says("retrying until this is over")
        topic.put([GOOD])
        settle(crawl, topic)
        assert worker.ready()
        assert (crawl.totals().reads, crawl.totals().dead_letters) == (2, 1)
        assert crawl.client.xlen(crawl.shards[0].keys.dead) == 1
        assert opic(settings, "topics", "create").returncode == 1  # The other topic is not as it would make it.
        wait_until(lambda: crawl.client.xlen(crawl.shards[0].keys.dead) == 0, 90)
        assert [letter.value for letter in topic.messages(f"{topic.name}.dlq")] == [b"poison"]
        worker.stop()


def test_dead_letter_whose_headers_do_not_fit_is_left_out_with_a_warning(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    topic = Topic(kafka, letters_config={"max.message.bytes": "120"})
    settings = settings_of(kafka, valkey, topic.name)
    topic.put([b"\xff poison", GOOD])
    with workers(settings, tmp_path) as (worker,), opened(settings) as crawl:
        settle(crawl, topic)
        worker.says("even without its value")
        wait_until(lambda: crawl.client.xlen(crawl.shards[0].keys.dead) == 0)
        assert (crawl.totals().reads, crawl.totals().dead_letters) == (1, 1)
        worker.stop()


def test_record_of_a_far_future_or_of_no_time_is_a_dead_letter_and_the_worker_goes_on(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    """Whoever may publish sets a record's time where the topic has CreateTime, up to the end of an int64."""
    any_time = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str(2**63 - 1)}
    topic = Topic(kafka, config=any_time)
    settings = settings_of(kafka, valkey, topic.name)
    times = [2**63 - 1, 1_790_000_000_000_000, 253_402_300_800_000, 1_790_000_000, 1_790_000_000_000]
    for at_ms in times:
        topic.put([GOOD], timestamp_ms=at_ms)
    with workers(settings, tmp_path) as (worker,), opened(settings) as crawl:
        settle(crawl, topic)
        assert (crawl.totals().reads, crawl.totals().dead_letters) == (1, 4)
        assert_same(crawl.shards[0], ledger_of(topic))
        letters = wait_until(lambda: found if len(found := topic.messages(f"{topic.name}.dlq")) == 4 else None)
        for letter, at_ms in zip(letters, times, strict=False):
            assert f"the record's time, {at_ms} ms, is not between" in dict(letter.headers)["opic-error"].decode()
        worker.stop()


def test_headers_and_values_of_any_kind_are_dead_letters(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put([GOOD], headers=[("opic-kind", b"")])
    topic.put([GOOD], headers=[("opic-key", b"k" * 16), ("opic-index", b"9" * 5_000)])
    topic.put([GOOD], headers=[("opic-kind", b"\xff" * 500_000)])
    topic.put([None], key=b"a.example")  # type: ignore[list-item]
    topic.put([GOOD], headers=[("other", b""), ("\u2603" * 1_000, b"\xff")])
    with workers(settings, tmp_path) as (worker,), opened(settings) as crawl:
        settle(crawl, topic)
        assert (crawl.totals().reads, crawl.totals().dead_letters) == (1, 4)
        wait_until(lambda: len(topic.messages(f"{topic.name}.dlq")) == 4)
        worker.stop()


def test_unknown_fields_and_links_over_the_limit_are_counted_and_the_events_accepted(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    """A newer producer's events are no dead letters, and a mistyped field is not lost in silence."""
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name, max_links=2)
    links = ["http://a.example/#top", *(f"http://{name}.example/" for name in "bcde")]
    newer, mistyped = ({"url": "http://a.example/", "links": links, "weather": "fine"}, {"url": "http://b.example/"})
    topic.put([json.dumps(newer).encode(), json.dumps({**mistyped, "link": links}).encode()], key=b"one")
    with workers(settings, tmp_path) as (worker,), opened(settings) as crawl:
        settle(crawl, topic)
        worker.says("ignored 2 unknown fields of events, among them 'link': did you mean links?")
        totals = crawl.totals()
        assert (totals.reads, totals.links, totals.dead_letters) == (2, 2, 0)
        wait_until(lambda: tallied(crawl).links_left_out == 2)
        unknown = {name: count for name, count in tallied(crawl).unknown.items() if count}
        assert unknown == {"links": 1, "none": 1}
        worker.stop()


def tallied(crawl: Crawl) -> Tallied:
    return Tallied.of(crawl.ask(Tallied.commands(crawl)))
