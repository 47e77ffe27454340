"""A batch that a broker's disk has damaged: a worker says which, takes nothing of it, and loses nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_crawl import Topic, event, opened, settings_of, settle, workers
from kafka_server import Kafka
from processes import wait_until
from servers import Server

pytestmark = pytest.mark.slow

LENGTH_AT, LENGTH_END = 8, 12
HEADER_BYTES = 61


def batches(log: Path) -> Iterator[tuple[int, int, int]]:
    """The first offset of each batch of a segment, and where the batch begins and ends in the file."""
    data, at = log.read_bytes(), 0
    while at < len(data):
        end = at + LENGTH_END + int.from_bytes(data[at + LENGTH_AT : at + LENGTH_END], "big")
        yield int.from_bytes(data[at : at + LENGTH_AT], "big"), at, end
        at = end


def damage(log: Path, offset: int) -> None:
    """Turn a bit in the records of the batch at an offset; the second time, turn it back."""
    (place,) = [at + HEADER_BYTES for first, at, _ in batches(log) if first == offset]
    with log.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("mended", [True, False])
def test_damaged_batch_is_named_and_nothing_is_lost(
    kafka: Kafka, valkey: Server, tmp_path: Path, *, mended: bool
) -> None:
    """Once it is whole again, or its records are deleted and published again, all events have taken effect once."""
    topic = Topic(kafka, 2)
    settings = settings_of(kafka, valkey, topic.name, kafka_skip_lost=not mended)
    pages = [event(f"http://a.example/{number}", "http://b.example/") for number in range(4)]
    for page in pages[:3]:
        topic.put([page])
    damaged = kafka.directory / "logs" / f"{topic.name}-0" / "00000000000000000000.log"
    damage(damaged, 1)
    with opened(settings) as crawl, workers(settings, tmp_path) as (worker,):
        worker.says(f"returned a damaged batch: {topic.name}/0 at offset 1: its checksum (CRC) does not fit its bytes")
        worker.says("Nothing is lost yet: check the leader's disk")
        wait_until(lambda: not worker.ready())
        topic.put([pages[3]], 1)
        wait_until(lambda: crawl.resume(f"{topic.name}/1") == 1)
        assert crawl.resume(f"{topic.name}/0") == 1
        assert crawl.totals().reads == 2
        if mended:
            damage(damaged, 1)
        else:
            topic.let_go(2)
            topic.put([pages[1]])
        settle(crawl, topic)
        wait_until(worker.ready)
        worker.stop()
        books, audit = crawl.totals(), crawl.audit()[0]
        assert (books.reads, books.dead_letters, books.live) == (4, 0, 5)
        assert audit.conserved
    assert mended is ("records are lost, as OPIC_KAFKA_SKIP_LOST allows" not in worker.said())
