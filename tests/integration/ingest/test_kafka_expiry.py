"""The rule that forgets pages never read, over Kafka: through the topic, signed, from several endpoints at once."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
from kafka_crawl import Topic, opened, settings_of, settle, workers
from kafka_server import Kafka
from processes import wait_until
from servers import Server

from opic.ingest.kafka.connection import headers_of
from opic.model.cash import MILLION
from opic.model.events import CrawlEvent, encode_crawl_event, encode_forgotten
from opic.replica import Crawl
from opic.service.backend import Backend

pytestmark = pytest.mark.slow

DAY = 86_400
READ = [f"http://h{number}.example/" for number in range(12)]


def has_pages(crawl: Crawl, count: int) -> bool:
    """Whether all links have arrived, and as many pages are known."""
    return not crawl.undelivered() and sum(books.live for books in crawl.books()) == count


def test_two_endpoints_of_three_shards_forget_what_is_due_once(kafka: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(kafka, partitions=4, config={"message.timestamp.type": "CreateTime"})
    rule = {"expire_below": 0.5, "expire_after_seconds": DAY}
    settings = settings_of(kafka, valkey, topic.name, shards=3, **rule)
    with workers(settings, tmp_path, count=2), opened(settings) as crawl, ExitStack() as stack:
        ends = []
        for _ in range(2):
            ends.append(Backend(settings, valkey.url))
            stack.callback(ends[-1].close)
        old_us = ends[0].clock.now_us() - 2 * DAY * MILLION
        for round_of_links, time_us in enumerate((old_us, None)):
            events = [
                CrawlEvent(url, [f"http://x{round_of_links}{number % 7}.example/{number}{link}" for link in range(20)])
                for number, url in enumerate(READ)
            ]
            values = list(map(encode_crawl_event, events))
            ends[0].settle(ends[0].accept(values, "event", time_us))
            known = 12 + 240 * (round_of_links + 1)  # A deposit makes its page known at the time of its shard.
            wait_until(partial(has_pages, crawl, known))
        for _ in range(2):  # One pass at a time; the limit of a pass is above all pages.
            threads = [Thread(target=end.expiry.step) for end in ends]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        left = {page.url for page in crawl.pages()}
        assert set(READ) < left
        assert not any(url.startswith("http://x0") for url in left)
        assert len(left) == 12 + 240
        told = ends[1].stats()["expiry"]
        assert (told["passes"], told["expired_pages"]) == (1, 240)  # type: ignore[index]
        topic.put([encode_forgotten(sorted(left))], headers=headers_of("expire"))  # Of who may write to the topic.
        settle(crawl, topic)
        assert crawl.totals().dead_letters == 1
        assert len(list(crawl.pages())) == len(left)
        assert crawl.audit()[0].conserved
