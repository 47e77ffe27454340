"""Many shards take the records of several partitions at once: the same takes effect, once, in fewer journal records."""

import random

from logs import NOW_US
from servers import Server

from opic.ingest import Writer
from opic.ingest.writer import Taken
from opic.model.events import CrawlEvent, Record, encode_crawl_event
from opic.replica import Crawl

SHARDS, PARTITIONS, EVENTS = 4, 5, 12
PAGES = [f"http://h{page % 20}.org/{page}" for page in range(60)]


def read_of(draw: random.Random) -> bytes:
    return encode_crawl_event(CrawlEvent(draw.choice(PAGES), draw.sample(PAGES, 5)))


def portion(partition: int, first: int, seed: int) -> Taken:
    draw = random.Random(f"{seed} {partition}")
    records = [Record(first + i, NOW_US, read_of(draw), "event") for i in range(EVENTS)]
    return Taken(f"log/{partition}", records, first, first + EVENTS)


def crawl_of(server: Server, name: str) -> tuple[Crawl, Writer]:
    crawl = Crawl.open(server.client(), name, {"shards": SHARDS})
    writer, draw = Writer(crawl), random.Random(0)
    writer.apply("log/first", [Record(i, NOW_US, read_of(draw), "event") for i in range(2 * PARTITIONS * EVENTS)])
    writer.drain()
    return crawl, writer


def pages_of(crawl: Crawl) -> list[tuple[str, int, int, int, int]]:
    crawl.follow()
    return sorted((page.url, page.v, page.spent, page.reads, page.state) for page in crawl.pages())


def records_of(crawl: Crawl) -> int:
    crawl.follow()
    return sum(head.lsn for head in crawl.heads())


def test_records_of_several_partitions_take_the_same_effect_together_as_in_turn(valkey: Server) -> None:
    (one, alone), (other, together) = crawl_of(valkey, "alone"), crawl_of(valkey, "together")
    takings = [portion(partition, 0, seed=1) for partition in range(PARTITIONS)]
    before = records_of(one), records_of(other)
    for taken in takings:
        alone.apply(taken.partition, taken.records, since=taken.since)
    together.apply_together(takings)
    assert pages_of(other) == pages_of(one)
    assert records_of(one) - before[0] > 2 * (records_of(other) - before[1])
    assert [other.resume(taken.partition) for taken in takings] == [EVENTS] * PARTITIONS
    together.drain()
    assert other.audit()[0].conserved


def test_redelivered_records_take_no_effect_whatever_comes_with_them(valkey: Server) -> None:
    crawl, writer = crawl_of(valkey, "again")
    first = [portion(partition, 0, seed=2) for partition in range(PARTITIONS)]
    writer.apply_together(first[:3])
    late = Writer(Crawl.open(valkey.client(), "again", create=False))  # As a worker after the first was killed.
    late.apply_together(first)
    assert crawl.totals().reads == 3 * PARTITIONS * EVENTS
    later = [portion(partition, EVENTS, seed=3) for partition in range(PARTITIONS)]
    late.apply_together(later)
    late.apply_together(later)
    assert crawl.totals().reads == 4 * PARTITIONS * EVENTS
    late.drain()
    assert crawl.audit()[0].conserved
