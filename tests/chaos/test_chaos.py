"""Whatever breaks, each event's effect is there exactly once and the books balance: a short storm over each world.

`make chaos MINUTES=30` is the long form, with a seed of its own. A failure names its seed: `make chaos SEED=N` breaks
the same things in the same order.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from kafka_server import Kafka
from logs import PARTITION, record
from servers import Server

from chaos.bank import expected_of, inspect
from chaos.storm import EVENTS_A_SPELL_MIN, WORLDS, run
from opic.ingest import ShardWriter, Writer
from opic.replica import Crawl

# The same each time, so that a failure here is a change's; `make chaos` draws a new one.
SEED = int(os.environ.get("OPIC_CHAOS_SEED") or 20030524)
SPELL_SECONDS = 12.0

PAGES = [f"http://{name}.org/" for name in "abcdef"]
LOG = [record(i, PAGES[i % 6], [PAGES[(i + k) % 6] for k in (1, 2, 4)], fetched_at=1e9 + i) for i in range(60)]


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_every_effect_is_there_once_whatever_breaks(kafka: Kafka, tmp_path: Path, world: str) -> None:
    print(f"seed {SEED}")
    report = run([WORLDS[world]], SEED, SPELL_SECONDS, kafka, tmp_path)
    assert not report.wrong, report.text()
    assert report.faults
    assert report.events >= EVENTS_A_SPELL_MIN


@pytest.fixture
def crawl(valkey: Server) -> Crawl:
    """A small crawl with nothing wrong."""
    found = Crawl.open(valkey.client(), "bank", {"shards": 3, "measures_max": 64})
    writer = Writer(found)
    writer.apply(PARTITION, LOG)
    while writer.deliver():
        pass
    assert inspect(found, expected_of(LOG)) == []
    return found


def test_inspector_sees_an_event_that_took_effect_twice(crawl: Crawl) -> None:
    writer = Writer(crawl)
    writer.apply("another/0", LOG[:1])
    while writer.deliver():
        pass
    assert any("was read 11 times, by 10 events" in text for text in inspect(crawl, expected_of(LOG)))


def test_inspector_sees_an_event_that_is_lost(crawl: Crawl) -> None:
    missing = record(60, PAGES[0], fetched_at=1.7e9)
    assert any("by 11 events" in text for text in inspect(crawl, expected_of([*LOG, missing])))


def test_inspector_sees_a_grain_on_the_wrong_page(crawl: Crawl) -> None:
    """Though the books balance, in the checkpoint."""
    shard = next(shard for shard in crawl.shards if shard.books().live > 1)
    ShardWriter(shard).checkpoint()
    cash = np.frombuffer(crawl.client.hget(shard.keys.block(0), "v"), "<i8").copy()
    cash[:2] += (1, -1)
    crawl.client.hset(shard.keys.block(0), "v", cash.tobytes())
    assert sum("was sent" in text for text in inspect(Crawl(crawl.shards), expected_of(LOG))) == 2


def test_inspector_sees_cash_that_does_not_arrive(crawl: Crawl) -> None:
    writer = Writer(crawl)
    more = [record(60, PAGES[0], PAGES, fetched_at=1.7e9)]
    writer.apply(PARTITION, more)
    assert any("still on their way" in text for text in inspect(crawl, expected_of([*LOG, *more])))
