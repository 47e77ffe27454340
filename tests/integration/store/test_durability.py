"""What counts as durable is what the servers' settings and their replicas give, and what they don't give is said."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import redis
from logs import PARTITION, record
from ports import free_port
from processes import wait_until
from record_sources import Durable
from redis_cluster import Cluster
from servers import Server, find_server

from opic.errors import StoreError, StoreUnavailable
from opic.service.backend import Backend
from opic.settings import Settings
from opic.store import Shard
from opic.store.durability import Durability, durability_problem

WAIT_SECONDS = 30.0  # Long enough for a replica whose disk is busy.
LOG = [record(offset, f"http://{offset}.org/", ["http://a.org/"]) for offset in range(3)]


def test_fsync_is_refused_where_the_server_syncs_later(servers: Server) -> None:
    shard = Shard.open(servers.client())
    shard.durability = Durability("fsync")
    store = Durable(shard)
    store.apply(PARTITION, LOG[:1])
    shard.client.config_set("appendfsync", "everysec")
    with pytest.raises(StoreError, match="OPIC_DURABILITY=fsync, but appendfsync is everysec: set"):
        store.apply(PARTITION, LOG[1:2])


def test_durability_problem_names_what_may_be_lost(servers: Server) -> None:
    client = servers.client()
    assert durability_problem(client) is None
    client.config_set("appendfsync", "everysec")
    found = durability_problem(client)
    assert found is not None
    assert not found.fatal
    assert "appendfsync is everysec: a power loss may lose a second or two" in found.text
    found = durability_problem(client, Durability("fsync"))
    assert found is not None
    assert found.fatal
    client.config_set("appendfsync", "always")
    found = durability_problem(client, Durability(replicas=2))
    assert found is not None
    assert found.text == "0 replicas are connected, OPIC_WAIT_REPLICAS wants 2"
    client.config_set("appendonly", "no")
    found = durability_problem(client)
    assert found is not None
    assert found.fatal
    assert "`opic backup`" in found.text
    client.config_set("appendonly", "yes")
    wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])


@pytest.fixture(params=["valkey", "redis"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """A server and its replica."""
    binary = find_server(request.param)
    with Server(binary) as primary, Server(binary) as replica:
        primary.client().config_set("port", port := free_port())
        primary.client().config_set("repl-diskless-sync-delay", 0)  # No other replica is waited for.
        replica.client().execute_command("REPLICAOF", "127.0.0.1", port)
        wait_until(lambda: replica.client().info("replication")["master_link_status"] == "up")
        wait_until(lambda: not replica.client().info("persistence")["aof_rewrite_in_progress"])
        yield primary, replica


@pytest.mark.slow
def test_offset_is_durable_once_the_replica_has_it(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    shard = Shard.open(primary.client())
    shard.durability = Durability("fsync", replicas=1, seconds=WAIT_SECONDS)
    store = Durable(shard)
    for offset in range(2):
        store.apply(PARTITION, LOG[offset : offset + 1])
        assert replica.client().hget(shard.keys.offsets, PARTITION) == b"%d" % (offset + 1)
    found = durability_problem(shard.client)
    assert found is not None
    assert "a failover may lose that moment" in found.text
    replica.kill()
    shard.durability = replace(shard.durability, seconds=0.2)
    with pytest.raises(StoreUnavailable, match=r"only 0 of 1 replicas received the writes within 0\.2 s"):
        store.apply(PARTITION, LOG[2:])


@pytest.mark.slow
def test_event_is_accepted_once_the_replica_has_it(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    backend = Backend(
        Settings.load(store=primary.url, shards=1, wait_replicas=1, wait_seconds=WAIT_SECONDS), primary.url
    )
    try:
        backend.accept([record.value for record in LOG])
        assert replica.client().get(backend.shard.keys.end) == b"%d" % len(LOG)
        replica.kill()
        backend.shard.durability = replace(backend.shard.durability, seconds=0.2)
        with pytest.raises(StoreUnavailable, match="only 0 of 1 replicas"):
            backend.accept([LOG[0].value])
    finally:
        backend.close()


@pytest.mark.slow
def test_a_replica_used_as_the_store_is_refused(pair: tuple[Server, Server]) -> None:
    with pytest.raises(StoreError, match="the store is a replica, which takes no writes: use its primary, 127"):
        Shard.open(pair[1].client())


@pytest.mark.slow
def test_barrier_after_a_restart_is_refused(servers: Server) -> None:
    """What was written before it may be lost: the one who waits has to look again."""
    shard = Shard.open(servers.client(retry=redis.retry.Retry(redis.backoff.NoBackoff(), 3)))
    shard.durability = Durability("fsync")
    Durable(shard).apply(PARTITION, LOG[:1])
    shard.barrier()
    servers.restart()
    with pytest.raises(StoreUnavailable, match="served by another run of the store"):
        shard.barrier()


def leasing(primary: Server, wait_seconds: float) -> Backend:
    """An endpoint that waits for one replica, with a hundred pages."""
    settings = Settings.load(store=primary.url, shards=2, wait_replicas=1, wait_seconds=wait_seconds)
    backend = Backend(settings, primary.url)
    backend.works_here = True
    backend.seed([f"http://h{number}.org/" for number in range(100)])
    return backend


@pytest.mark.slow
def test_page_is_leased_once_the_replica_knows(pair: tuple[Server, Server]) -> None:
    """So after a failover, nobody else gets it."""
    primary, replica = pair
    backend = leasing(primary, WAIT_SECONDS)
    try:
        mine = {page.url for page in backend.frontier.next(10).pages}
        primary.kill()
        replica.client().execute_command("REPLICAOF", "NO", "ONE")
        settings = Settings.load(store=replica.url)
        others = Backend(settings, replica.url)
        theirs = {page.url for page in others.frontier.next(100).pages}
        others.close()
        assert (len(mine), len(theirs), mine & theirs) == (10, 90, set())
    finally:
        backend.close()


@pytest.mark.slow
def test_lease_without_a_replica_is_refused_and_released(pair: tuple[Server, Server]) -> None:
    primary, replica = pair
    backend = leasing(primary, WAIT_SECONDS)
    try:
        replica.kill()
        for shard in backend.crawl.shards:
            shard.durability = replace(shard.durability, seconds=0.2)
        with pytest.raises(StoreUnavailable, match="only 0 of 1 replicas received the writes"):
            backend.frontier.next(10)
        client = backend.shard.client
        assert not client.exists(*(shard.keys.leases for shard in backend.crawl.shards))
        assert not client.exists(*(shard.keys.fails for shard in backend.crawl.shards))
    finally:
        backend.close()


def between_lease_and_wait(backend: Backend, deed: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once pages are leased, before the endpoint waits until the leases are durable."""
    real = backend.frontier._scheduler.ask

    def ask(*arguments: Any) -> Any:
        answers = real(*arguments)
        deed()
        return answers

    monkeypatch.setattr(backend.frontier._scheduler, "ask", ask)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_lease_during_a_restart_counts_if_the_server_kept_it(
    servers: Server, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.load(store=servers.url, shards=1, durability="fsync")
    backend = Backend(settings, servers.url)
    backend.works_here = True
    backend.seed(["http://a.org/"])

    def restart() -> None:
        servers.restart()
        if lost:  # As by a server that had not synced it.
            assert backend.shard.client.delete(backend.shard.keys.leases)

    between_lease_and_wait(backend, restart, monkeypatch)
    try:
        if lost:
            with pytest.raises(StoreUnavailable, match="another run of the store"):
                backend.frontier.next(1)
        else:
            (page,) = backend.frontier.next(1).pages
            assert backend.frontier.release([page.lease]).released == 1
    finally:
        backend.close()


@pytest.mark.slow
def test_lease_is_durable_where_its_slot_moved(cluster_of_six: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that has the slot now is asked for the leases and waited for: no crawler hears of the move."""
    cluster = cluster_of_six
    settings = Settings.load(
        store=cluster.url, shards=2, wait_replicas=1, wait_seconds=WAIT_SECONDS, host_delay_seconds=0
    )
    backend = Backend(settings, cluster.url)
    backend.works_here = True
    urls = [f"http://h{number}.org/" for number in range(100)]
    backend.seed(urls)
    key = backend.crawl.shards[0].keys.books

    def move() -> None:
        cluster.migrate_slot(key, cluster.other(cluster.owner(key)))

    between_lease_and_wait(backend, move, monkeypatch)
    try:
        pages = [page for _ in range(4) for page in backend.frontier.next(10).pages]
        assert len({page.url for page in pages}) == 40
        renewed = backend.frontier.renew([page.lease for page in pages], 60.0)
        assert (len(renewed.renewed), renewed.lost) == (40, [])
        with cluster.replica_of(cluster.owner(key)).client() as replica_client:
            replica_client.execute_command("READONLY")  # Its one connection serves the next command too.
            held = replica_client.zcard(backend.crawl.shards[0].keys.leases)
        assert held == sum(page.lease.startswith("0-") for page in pages) > 0
    finally:
        backend.close()
