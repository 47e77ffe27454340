"""Events of transactions: those committed take effect once, those aborted never, those of an open one wait."""

from pathlib import Path

import curls
import pytest
from kafka_crawl import Topic, event, opened, opic, serving, settings_of, settle, workers
from kafka_server import Kafka
from processes import wait_until
from servers import Server

from opic.replica import Crawl

pytestmark = pytest.mark.slow


def pages(*names: str) -> list[str]:
    return [f"http://h.example/{name}" for name in names]


def known(crawl: Crawl) -> set[str]:
    crawl.follow()
    return {page.url.removeprefix("http://h.example/") for page in crawl.pages()}


@pytest.mark.parametrize("shards", [1, 4])
def test_only_committed_events_take_effect(kafka: Kafka, valkey: Server, tmp_path: Path, shards: int) -> None:
    """Of interleaved transactions in two partitions, also after a restart within them."""
    topic = Topic(kafka, 2)
    settings = settings_of(kafka, valkey, topic.name, shards=shards)
    with opened(settings) as crawl, topic.transactions() as one, topic.transactions() as other:
        for partition in (0, 1):
            one.begin(*pages(f"a{partition}", f"b{partition}"), partition=partition)
            other.abort(*pages(f"aborted{partition}"), partition=partition)
            topic.put([event(page) for page in pages(f"plain{partition}")], partition)
            one.producer.commit_transaction()
        with workers(settings, tmp_path) as (worker,):
            settle(crawl, topic)
            worker.kill()
        other.abort(*pages("later"), partition=1)
        one.commit(*pages("last"), partition=0)
        with workers(settings, tmp_path) as (worker,):
            settle(crawl, topic)
            assert known(crawl) == {"a0", "b0", "plain0", "a1", "b1", "plain1", "last"}
            books = crawl.totals()
            assert (books.reads, books.dead_letters, books.repeats) == (7, 0, 0)
            # The topic ends with markers. They count in no lag, of ours or of Kafka's own tools.
            ends = {int(name.rpartition("/")[2]): end for name, end in topic.ends().items()}
            wait_until(lambda: topic.committed() == ends)
            assert crawl.audit()[0].conserved
            worker.stop()


def test_events_of_an_open_transaction_wait_and_are_lag(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name, host_delay_seconds=0)
    with serving(settings, tmp_path / "serve.log") as url, opened(settings) as crawl:

        def asked() -> tuple[int, bool]:
            """The lag, and whether nothing is left to fetch."""
            pages_left = curls.post(f"{url}/v1/next", json={"n": 1, "mode": "discover"}, timeout=30).json()
            return int(curls.get(f"{url}/v1/stats", timeout=30).json()["lag"]), bool(pages_left["exhausted"])

        with topic.transactions() as one, workers(settings, tmp_path) as (worker,):
            topic.put([event(*pages("before"))])
            one.begin(*pages("open"))
            topic.put([event(*pages("behind"))])
            wait_until(lambda: known(crawl) == {"before"})
            assert asked() == (2, False)
            assert f'opic_worker_lag_events{{partition="{topic.name}/0"}} 2.0' in worker.get("/metrics").text
            one.producer.commit_transaction()
            wait_until(lambda: asked() == (0, True))
            assert known(crawl) == {"before", "open", "behind"}
            one.begin(*pages("aborted"))
            wait_until(lambda: asked() == (1, False))
            one.producer.abort_transaction()
            wait_until(lambda: asked() == (0, True))
            assert known(crawl) == {"before", "open", "behind"}
            waited = opic(settings, "stats", "--wait", "--timeout", "20")
            assert waited.returncode == 0, waited.stderr
            worker.stop()


@pytest.mark.parametrize("shards", [1, 4])
def test_retention_of_markers_and_aborted_records_is_no_loss(
    kafka: Kafka, valkey: Server, tmp_path: Path, shards: int
) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name, shards=shards)
    with opened(settings) as crawl, topic.transactions() as one:
        with workers(settings, tmp_path) as (worker,):
            one.commit(*pages("a"))
            one.abort(*pages("aborted", "too"))
            settle(crawl, topic)
            worker.stop()
        topic.let_go(5)  # All of it.
        with workers(settings, tmp_path) as (worker,):
            one.commit(*pages("b"))
            settle(crawl, topic)
            assert known(crawl) == {"a", "b"}
            worker.stop()


def test_lag_is_0_on_a_topic_whose_beginning_was_deleted_before_the_crawl(
    kafka: Kafka, valkey: Server, tmp_path: Path
) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    topic.put([event(page) for page in pages("a", "b")])
    topic.let_go(2)
    with opened(settings) as crawl, workers(settings, tmp_path) as (worker,):
        settle(crawl, topic)
        assert known(crawl) == set()
        worker.stop()


def test_aborted_events_take_effect_where_all_are_read(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    """By a setting. Back at what is committed, a worker waits for the transaction that it has read a part of."""
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name, kafka_isolation="read_uncommitted")
    with opened(settings) as crawl, topic.transactions() as one:
        one.abort(*pages("aborted"))
        one.begin(*pages("open"))
        with workers(settings, tmp_path) as (worker,):
            settle(crawl, topic)
            assert known(crawl) == {"aborted", "open"}
            worker.stop()
        with workers(settings, tmp_path, kafka_isolation="read_committed") as (worker,):
            worker.says("reading")
            topic.put([event(*pages("behind"))])
            one.producer.commit_transaction()
            settle(crawl, topic)
            assert known(crawl) == {"aborted", "open", "behind"}
            assert crawl.totals().reads == 3
            worker.stop()
