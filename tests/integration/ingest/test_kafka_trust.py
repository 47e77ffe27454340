"""Trust that comes by Kafka: the coverage is that of the links and weights on the topic, though workers are killed."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import curls
import pytest
from kafka_crawl import Topic, WorkerProcess, opened, serving, settings_of, settle, workers
from kafka_server import Kafka
from processes import wait_until
from servers import Server
from trust_log import DAMPING, TrustLog

from opic.ingest.kafka.signatures import Signatures
from opic.ingest.publish import Publisher
from opic.model.events import encode_seeds
from opic.replica import Crawl
from opic.settings import Settings

pytestmark = pytest.mark.slow

# A host's events and seeds come in one order: the number of shards is a multiple of that of partitions.
SHARDS, PARTITIONS = 6, 3
PAGES = [f"http://h{page % 14}.example/{page}" for page in range(120)]
FETCHED_AT = 1_700_000_000.0
EVENTS_A_ROUND = 1_500
TIMES = 4  # Workers are killed in each round.


class Web:
    """What crawlers send, drawn at random."""

    def __init__(self, url: str, settings: Settings, draw: random.Random) -> None:
        self.url, self.settings, self.draw = url, settings, draw

    def event(self) -> dict[str, object]:
        """One event; all have the same time, so that no link brings back a page that is gone."""
        found: dict[str, object] = {"url": self.draw.choice(PAGES[:90]), "fetched_at": FETCHED_AT}
        what, links = self.draw.random(), self.draw.sample(PAGES, self.draw.randint(0, 6))
        if what < 0.1:
            return {**found, "status": self.draw.choice([404, 500])}
        if what < 0.2:
            return {**found, "status": 301, "redirect": links[0] if links else None}
        return {**found, "links": links}

    def send(self, count: int) -> None:
        """Send half of some events by the publisher, half by POST."""
        with Publisher(settings=self.settings) as publisher:
            for _ in range(count // 2):
                publisher.publish(**self.event())  # type: ignore[arg-type]
        posted = curls.post(f"{self.url}/v1/events", json=[self.event() for _ in range(count // 2)], timeout=60)
        assert (posted.status_code, posted.json()["accepted"]) == (202, count // 2)

    def seed(self, urls: list[str], trust: float, crawl: Crawl, topic: Topic) -> None:
        """Give trust, and wait until it has taken effect; while killed workers come back, the call may end before."""
        posted = curls.post(f"{self.url}/v1/seeds", json={"urls": urls, "trust": trust}, timeout=60)
        assert posted.status_code == 200 or "accepted, but it did not take effect" in posted.text, posted.text
        settle(crawl, topic)


def killed_on_the_way(
    running: list[WorkerProcess], start: Callable[[], WorkerProcess], crawl: Crawl, topic: Topic, draw: random.Random
) -> int:
    """Kill workers with SIGKILL while they work, and start others; return how many had events left to do."""
    ends, amid = topic.ends(), 0

    def done() -> int:
        return sum(min(crawl.resume(name), end) for name, end in ends.items())

    begun, end = done(), sum(ends.values())
    for turn in range(TIMES):
        wait_until(lambda turn=turn: done() > begun + (end - begun) * turn // TIMES)
        victim = draw.randrange(len(running))
        running[victim].kill()
        amid += done() < end
        running[victim] = start()
    return amid


def test_coverage_matches_the_topic_however_often_workers_are_killed(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    topic, draw, amid = Topic(kafka, partitions=PARTITIONS), random.Random(2007), 0
    settings = settings_of(kafka, valkey, topic.name, shards=SHARDS)
    with (
        serving(settings, tmp_path / "serve.log") as url,
        opened(settings) as crawl,
        workers(settings, tmp_path, 2) as running,
    ):
        web = Web(url, settings, draw)

        def start() -> WorkerProcess:
            return WorkerProcess(settings, tmp_path / "later.log")

        # By the topic itself, seeds of all shards in one record: every shard keeps links before the first event.
        seeds, now_us = encode_seeds(PAGES[:5], trust=2.0), round(time.time() * 1e6)
        signed = Signatures(settings, lambda: crawl.shards[0].secret).headers("seeds", seeds, now_us)
        topic.put([seeds], 1, headers=signed)
        settle(crawl, topic)
        for trusted, weight in ((PAGES[5:9], 1.0), (PAGES[3:7], 0.0), (PAGES[7:20], 0.25)):
            for worker in running:  # The events wait for those that come after them.
                worker.kill()
            web.send(EVENTS_A_ROUND)
            running[:] = [start(), start()]
            amid += killed_on_the_way(running, start, crawl, topic, draw)
            web.seed(trusted, weight, crawl, topic)
            check(url, crawl, topic)
        web.seed(PAGES[:20], 0.0, crawl, topic)
        assert curls.get(f"{url}/v1/coverage", timeout=60).status_code == 409
        web.seed(PAGES[40:41], 1e-3, crawl, topic)
        check(url, crawl, topic)
        for worker in running:
            worker.stop()
    assert amid


def check(url: str, crawl: Crawl, topic: Topic) -> None:
    """Wait until all has taken effect; then compare the service's answer with what the topic says."""
    settle(crawl, topic)
    wait_until(lambda: crawl.waiting() == 0)
    records = [record for records in topic.all_records().values() for record in records]
    log = TrustLog(sorted(records, key=lambda record: record.time_us))  # Stable: each partition keeps its order.
    found = curls.get(f"{url}/v1/coverage", timeout=60).raise_for_status().json()
    flow, least = log.flow(), log.least
    assert 0 < flow.coverage < 1
    assert found["coverage"] == pytest.approx(flow.coverage, abs=1e-5)
    assert found["coverage"] == pytest.approx(least, abs=1e-5)
    assert found["coverage"] <= least
    draw = random.Random(found["fetched_pages"])
    for _ in range(5):
        assert found["coverage"] <= log.exact({page: draw.sample(PAGES, draw.randint(0, 6)) for page in log.known})
    assert (found["fetched_pages"], found["trusted_pages"]) == (len(log.fetched), len(log.weights))
    assert found["damping"] == DAMPING
    whole, _ = crawl.audit()
    assert whole.conserved, whole.mismatches
    assert (crawl.totals().reads, crawl.totals().dead_letters, whole.in_flight) == (log.reads, 0, 0)
