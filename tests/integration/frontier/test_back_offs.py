"""Back-offs and failures in a row take bounded memory: what no longer matters is forgotten, and the rest doubles."""

import time

import pytest
from frontiers import Crawl, pages_of
from logs import PARTITION
from servers import Server

from opic.frontier import PolitenessSettings
from opic.ingest import ShardWriter
from opic.model.events import CrawlEvent, Record, encode_crawl_event
from opic.store import Shard
from opic.store.back_offs import WAIT_BYTES, waits_max

PATIENT = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=60.0)


def waiting(crawl: Crawl) -> list[int]:
    """The pages whose back-off is remembered; their failures are as well."""
    client, keys = crawl.store.shard.client, crawl.store.shard.keys
    pages = sorted(map(int, client.zrange(keys.waits, 0, -1)))
    assert pages == sorted(map(int, client.hkeys(keys.fails)))
    return pages


def test_beyond_the_limit_the_back_offs_that_end_first_are_forgotten(servers: Server) -> None:
    crawl = Crawl(servers, PATIENT)
    crawl.store.steps.waits_max = 5
    crawl.seed(pages_of(12, 1))
    crawl.event("http://h0.org/0", status=503)
    crawl.event("http://h0.org/0", status=503)
    for number in range(1, 12):
        crawl.event(f"http://h{number}.org/0", status=503)
    assert waiting(crawl) == [0, 8, 9, 10, 11]  # The first one waits for twice as long.


def test_back_off_is_forgotten_a_day_after_its_end(servers: Server) -> None:
    crawl = Crawl(servers, PATIENT)
    crawl.seed(pages_of(4, 1))
    client, keys = crawl.store.shard.client, crawl.store.shard.keys
    for number in range(2):
        crawl.event(f"http://h{number}.org/0", status=503)
    now, day = time.time(), 86_400
    client.zadd(keys.waits, {"0": now - day - 1, "1": now - day + 100})
    crawl.event("http://h2.org/0", status=503)
    assert waiting(crawl) == [1, 2]
    crawl.event("http://h1.org/0", status=503)  # It is known how often it failed.
    assert client.zscore(keys.waits, "1") == pytest.approx(time.time() + 120, abs=10)
    client.zadd(keys.waits, {"1": now - day - 1})
    crawl.next(1)
    assert waiting(crawl) == [2]


def test_back_offs_of_expired_leases_have_the_same_limit(valkey: Server) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=60.0, waits_max=3))
    crawl.seed(pages_of(10, 1))
    pages = crawl.next(8)
    client, keys = crawl.store.shard.client, crawl.store.shard.keys
    over = (client.time()[0] - 10) * 1_000_000
    client.zadd(keys.leases, {str(page): over + page for page in range(8)}, xx=True)
    crawl.next(1)
    assert len(pages) == 8
    assert waiting(crawl) == [5, 6, 7]
    assert sorted(map(int, client.hkeys(keys.holders))) == [5, 6, 7, 8]
    shown = crawl.frontier.explain("http://h0.org/0")
    assert shown is not None
    assert (shown.lease_until, shown.waits_until, shown.failures) == (None, None, 0)  # It was forgotten.


def test_success_leaves_nothing_behind_even_without_a_back_off(valkey: Server) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.0))
    crawl.seed(pages_of(3, 1))
    for status in (503, 0, 200):
        crawl.next(crawler="alice")
        for number in range(3):
            crawl.event(f"http://h{number}.org/0", status=status, crawler="alice")
    client, keys = crawl.store.shard.client, crawl.store.shard.keys
    assert waiting(crawl) == []
    assert client.exists(keys.waits, keys.fails, keys.holders, keys.leases) == 0


@pytest.mark.slow
def test_memory_of_back_offs_stays_within_the_setting(servers: Server) -> None:
    """As many pages as fit into a setting stay within it, and thrice as many that fail take no more."""
    shard = Shard.open(servers.client())
    limit = waits_max(2 << 20, 1)
    store, client, keys = ShardWriter(shard, waits_max=limit), shard.client, shard.keys
    for first in range(0, 3 * limit, 2_000):
        records = [
            Record(at, time.time_ns() // 1000, encode_crawl_event(CrawlEvent(f"http://h.org/{at}", status=503)))
            for at in range(first, min(first + 2_000, 3 * limit))
        ]
        store.apply(PARTITION, records)
    assert client.zcard(keys.waits) == client.hlen(keys.fails) == limit
    size = sum(client.memory_usage(key, samples=0) for key in (keys.waits, keys.fails))
    assert size <= limit * WAIT_BYTES, size / limit
