"""What a server says of itself decides whether it may keep the books; and each refusal says what to do."""

import pytest
import redis
from redis.exceptions import MovedError, RedisClusterException

from opic.errors import SettingsError, SlotMoving, StoreError, StoreUnavailable
from opic.store.connection import connect, store_errors
from opic.store.server import cluster_problem, server_problem

GOOD = {"redis_version": "7.0.15", "role": "master", "cluster_enabled": 0, "maxmemory_policy": "noeviction"}
WHOLE = {
    "cluster_slots_assigned": "16384",
    "cluster_state": "ok",
    "cluster_slots_fail": "0",
    "cluster_slots_pfail": "0",
}


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"redis_version": "6.2.14"}, "Redis 6.2.14: functions need Redis 7.0 or any Valkey"),
        ({"redis_version": "7.4.0-rc1"}, None),
        ({"redis_version": "10.0.1"}, None),
        ({"cluster_enabled": 1}, "use redis+cluster:// instead of redis://"),
        ({"role": "slave", "master_host": "db1", "master_port": 6379}, "use its primary, db1:6379"),
        ({"maxmemory_policy": "allkeys-lru"}, "maxmemory-policy is allkeys-lru, which would evict cash"),
    ],
)
def test_unsuitable_server_is_refused_with_a_reason(said: dict[str, object], wanted: str | None) -> None:
    found = server_problem(GOOD | said)
    assert (found is None) if wanted is None else (found is not None and wanted in found)


def test_misconfigured_cluster_node_is_named() -> None:
    node = GOOD | {"cluster_enabled": 1, "tcp_port": 7001}
    assert server_problem(node, clustered=True) is None
    found = server_problem(node | {"maxmemory_policy": "volatile-ttl"}, clustered=True)
    assert found is not None
    assert "maxmemory-policy of 7001 is volatile-ttl" in found


def test_cluster_with_missing_slots_is_an_error_and_one_that_is_down_is_unavailable() -> None:
    assert cluster_problem(WHOLE) is None
    missing = cluster_problem(WHOLE | {"cluster_slots_assigned": "16383", "cluster_state": "fail"})
    assert type(missing) is StoreError
    assert "16,383 of 16,384 slots" in str(missing)
    down = cluster_problem(WHOLE | {"cluster_state": "fail", "cluster_slots_fail": "5461"})
    assert type(down) is StoreUnavailable
    assert "5,461 slots without a node that answers" in str(down)


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (redis.AuthenticationError("Authentication required."), StoreError, "wrong user or password"),
        (redis.ConnectionError("Error 1 … [SSL: WRONG_VERSION_NUMBER]"), StoreUnavailable, "does that port speak TLS"),
        (redis.exceptions.NoPermissionError("no 'info'"), StoreError, "the store's user lacks a permission"),
        (redis.exceptions.ReadOnlyError("READONLY"), StoreUnavailable, "a replica, which takes no writes"),
        (MovedError("1 127.0.0.1:7000"), SlotMoving, "a slot of the cluster is moving"),
        (redis.exceptions.ClusterDownError("CLUSTERDOWN"), StoreUnavailable, "a slot of the cluster is moving or down"),
        (RedisClusterException("no reachable node"), StoreUnavailable, "does not answer: no reachable node"),
        (redis.ResponseError("Function not found"), StoreUnavailable, "lost the function library"),
        (redis.ResponseError("MISCONF errors writing"), StoreUnavailable, "is its disk or memory full"),
        (redis.ResponseError("ERR syntax"), StoreError, "the store refused a command"),
    ],
)
def test_each_connection_error_names_its_remedy(raised: Exception, kind: type, text: str) -> None:
    with pytest.raises(StoreError, match=text.replace("?", r"\?")) as told, store_errors():
        raise raised
    assert type(told.value) is kind


@pytest.mark.parametrize("url", ["redis+cluster://", "redis+cluster://a:b", "rediss+cluster://h:1,:2"])
def test_malformed_cluster_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"use rediss?\+cluster://host:port,host:port"):
        connect(url)


def test_cluster_url_shows_no_secret() -> None:
    with pytest.raises(SettingsError) as told:
        connect("redis+cluster://user:hunter2@host:port")
    assert "hunter2" not in str(told.value)
