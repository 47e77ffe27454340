"""Any number of partitions feeds any number of shards, and partitions that share a shard have one worker at a time."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos.bank import expected_of, inspect, lost_and_doubled
from kafka_crawl import Topic, WorkerProcess, opened, settings_of, settle, workers
from kafka_server import Kafka
from processes import wait_until
from servers import Server

from opic.ingest.kafka.assignment import workers_at_once
from opic.ingest.publish import Publisher
from opic.ops.doctor import run_checks
from opic.replica import Crawl
from opic.settings import Settings

pytestmark = pytest.mark.slow

EVENTS = 1_500
MEASURES = 64  # Kept of a page: all of its reads.
FETCHED_AT = 1_700_000_000


def publish(settings: Settings, seed: int, count: int = EVENTS) -> None:
    """Publish events, keyed by their hosts: reads of pages that link across hosts, failures, pages that are gone."""
    draw = random.Random(seed)
    pages = [f"http://h{number % 37}.example/{number}" for number in range(400)]
    with Publisher(settings=settings) as publisher:
        for number in range(count):
            status = draw.choices([200, 500, 404], [18, 1, 1])[0]
            links = draw.sample(pages, draw.randint(0, 8)) if status == 200 else []
            at = FETCHED_AT + seed * EVENTS + number  # Each at a time of its own, by which the inspection knows it.
            publisher.publish(draw.choice(pages), links, status=status, fetched_at=float(at))


def wrong_with(crawl: Crawl, topic: Topic) -> list[str]:
    """Return how the store differs from what the topic's events come to."""
    expected = expected_of(record for some in topic.all_records().values() for record in some)
    assert lost_and_doubled(crawl, expected) == (0, 0)
    return inspect(crawl, expected)


def busy(topic: Topic) -> int:
    return sum(share > 0 for share in topic.shares())


@pytest.mark.parametrize(("partitions", "shards"), [(3, 1), (5, 4), (4, 16), (6, 4)])
def test_state_is_what_the_events_come_to(
    kafka: Kafka, valkey: Server, tmp_path: Path, partitions: int, shards: int
) -> None:
    """With two workers, of which one is killed and another comes on the way."""
    topic = Topic(kafka, partitions)
    settings = settings_of(kafka, valkey, topic.name, shards=shards, history_measures=MEASURES)
    publish(settings, 1)
    with opened(settings) as crawl, workers(settings, tmp_path, 2) as running:
        wait_until(lambda: crawl.totals().reads > EVENTS // 10)
        running[0].kill()
        with workers(settings, tmp_path) as later:
            publish(settings, 2)
            settle(crawl, topic)
            wait_until(lambda: busy(topic) == min(2, workers_at_once(partitions, shards)))
            wait_until(lambda: crawl.waiting() == 0)
            for one in (running[1], *later):
                wait_until(one.ready)
                one.stop()
        assert wrong_with(crawl, topic) == []


def parted(running: list[WorkerProcess], topic: Topic) -> tuple[WorkerProcess, WorkerProcess]:
    """Return the worker that has all partitions, and the one that has none, by what they say."""

    def having() -> Iterator[WorkerProcess]:
        return (one for one in running if f"reading {topic.name}/" in one.said())

    wait_until(lambda: topic.shares() == [0, 3] and len(list(having())) == 1)
    (active,) = having()
    (standby,) = (one for one in running if one is not active)
    return active, standby


def test_one_of_two_workers_has_all_partitions_of_a_shard(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    """The other stands by, which is no fault, and takes over all when the first is killed."""
    topic = Topic(kafka, 3)
    settings = settings_of(kafka, valkey, topic.name, history_measures=MEASURES)
    with opened(settings) as crawl, workers(settings, tmp_path, 1) as (first,):
        first.says(f"reading {topic.name}/2")
        with workers(settings, tmp_path, 1) as (second,):
            active, standby = parted([first, second], topic)
            assert active is first  # The one that comes later moves nothing.
            publish(settings, 1)
            settle(crawl, topic)
            standby.says(
                f"on standby: the topic {topic.name} has 3 partitions, the crawl 1 shard: they occupy 1 worker of the "
                f"group opic-{topic.name}, and this one takes over when another ends"
            )
            assert standby.ready()
            told = standby.get("/metrics").text
            assert "opic_worker_ready 1.0" in told
            assert "opic_worker_lag_events{" not in told
            assert "opic_worker_events_total{" not in told  # None of its steps was refused: it took none.
            found = {one.check: one for one in run_checks(lambda: settings)}
            assert (found["workers"].verdict, found["partitions"].verdict) == ("ok", "ok")
            assert "1 worker is busy at a time" in found["partitions"].text

            publish(settings, 2)
            active.kill()
            publish(settings, 3)
            settle(crawl, topic)
            assert topic.shares() == [3]
            wait_until(standby.ready)
            standby.stop()
        assert wrong_with(crawl, topic) == []


def test_worker_that_ends_in_order_hands_over_at_once(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    """Within much less than the session time, after which a killed one is missed."""
    topic = Topic(kafka, 3)
    settings = settings_of(kafka, valkey, topic.name, kafka_session_seconds=300, history_measures=MEASURES)
    with opened(settings) as crawl, workers(settings, tmp_path, 2) as running:
        active, standby = parted(running, topic)
        active.stop()
        publish(settings, 1)
        settle(crawl, topic)
        standby.stop()
        assert wrong_with(crawl, topic) == []
