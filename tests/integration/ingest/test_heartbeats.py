"""Workers say in the store that they are there: how many they are, and when one was last seen."""

import time

from servers import Server

from opic.ingest.heartbeats import ALIVE_SECONDS, KEPT_SECONDS, PREFIX, Heartbeat, WorkersSeen, workers_seen
from opic.ingest.step_counts import Tallied
from opic.replica import Crawl


def test_each_worker_counts_until_it_ends_or_is_silent(servers: Server) -> None:
    crawl = Crawl.open(servers.client(), "seen", {}, shards=2)
    client, keys = crawl.client, crawl.shards[0].keys

    def last() -> int:
        return Tallied.of(crawl.ask(Tallied.commands(crawl))).worker_at

    assert (workers_seen(client, keys), last()) == (WorkersSeen(0, None), 0)
    one, other = Heartbeat(crawl.shards[0]), Heartbeat(crawl.shards[0])
    one.beat()
    other.beat()
    seen = workers_seen(client, keys)
    assert (seen.workers, seen.alive) == (2, True)
    assert seen.seconds is not None
    assert seen.seconds < 10
    assert abs(last() - time.time()) < 10
    # One ends in order: the other is still known, at once.
    one.end()
    assert workers_seen(client, keys).workers == 1
    # Others were killed: one a short time ago, one before.
    now = int(time.time())
    client.hset(
        keys.metrics,
        mapping={f"{PREFIX}a": now - round(ALIVE_SECONDS) - 1, f"{PREFIX}b": now - round(KEPT_SECONDS) - 1},
    )
    assert workers_seen(client, keys).workers == 1
    Heartbeat(crawl.shards[0]).beat()
    assert [client.hexists(keys.metrics, f"{PREFIX}{name}") for name in "ab"] == [True, False]
    assert workers_seen(client, keys).workers == 2


def test_last_that_was_killed_stays_known(servers: Server) -> None:
    crawl = Crawl.open(servers.client(), "killed", {}, shards=1)
    keys, last = crawl.shards[0].keys, Heartbeat(crawl.shards[0])
    last.beat()
    crawl.client.hset(keys.metrics, f"{PREFIX}a", f"{int(time.time()) - 30}")
    last.end()
    seen = workers_seen(crawl.client, keys)
    assert (seen.workers, seen.alive) == (0, False)
    assert seen.seconds is not None
    assert 30 <= seen.seconds < 60
