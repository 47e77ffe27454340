"""Server checks: requirements of a Redis or Valkey server, and its preparation after each start."""

import time
from collections.abc import Mapping
from typing import Any, Final

import redis

from opic.errors import StoreError, StoreUnavailable
from opic.store.cluster import Cluster
from opic.store.connection import Client, store_errors
from opic.store.library import load_functions, primaries
from opic.store.loader_rights import loader_problem

VERSION_MIN = (7, 0)
SLOTS: Final = 16_384
# The oldest version known to complete a half-written transaction, left in its file by a power loss, before new writes.
VALKEY_MENDS: Final = (9, 1)
REWRITE_SECONDS_MAX: Final = 600.0
POLL_SECONDS: Final = 0.02


def check_server(client: Client) -> None:
    """Refuse a server or a cluster that can't keep the books.

    Raises:
        StoreError: the message says what to change.
        StoreUnavailable: the cluster is down at the moment.
    """
    with store_errors():
        clustered = isinstance(client, Cluster)
        for server in primaries(client):
            info = server.info()
            if (problem := server_problem(info, clustered)) is not None:
                raise StoreError(problem)
            if (rights := loader_problem(server, info)) is not None and rights.fatal:
                raise StoreError(rights.text)
        if clustered:
            cluster_error = cluster_problem(primaries(client)[0].execute_command("CLUSTER INFO"))
            if cluster_error is not None:
                raise cluster_error


def server_problem(info: Mapping[str, Any], clustered: bool = False) -> str | None:
    """Return why a server can't keep the books and what to do, or None.

    Args:
        info: its reply to INFO.
        clustered: whether it was reached as a node of a cluster.
    """
    version = str(info["redis_version"])
    if _version(version) < VERSION_MIN:
        return f"the store is Redis {version}: functions need Redis 7.0 or any Valkey: use one of those"
    if int(info.get("cluster_enabled", 0)) and not clustered:
        return "the store is a node of a cluster: use redis+cluster:// instead of redis://"
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        return f"the store is a replica, which takes no writes: use its primary, {primary}"
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        where = f" of {info['tcp_port']}" if clustered and "tcp_port" in info else ""
        return f"the store's maxmemory-policy{where} is {policy}, which would evict cash: set it to noeviction"
    return None


def cluster_problem(info: Mapping[str, Any]) -> StoreError | None:
    """Return why a cluster can't be used now and what to do, or None; `info` is the reply to CLUSTER INFO."""
    assigned = int(info["cluster_slots_assigned"])
    if assigned < SLOTS:
        return StoreError(
            f"the cluster has nodes for {assigned:,} of {SLOTS:,} slots: give the others to nodes, as by "
            "`redis-cli --cluster fix`"
        )
    if info["cluster_state"] != "ok":
        failed = int(info["cluster_slots_fail"]) + int(info["cluster_slots_pfail"])
        return StoreUnavailable(
            f"the cluster is down (cluster_state:{info['cluster_state']}, {failed:,} slots without a node that "
            "answers): start the nodes that are missing, or wait for their replicas"
        )
    return None


def make_ready(client: Client) -> None:
    """Prepare each server after its start, before anything is written to it.

    Load the function library if it is missing, and rewrite the append-only file: after a power loss the file may end
    in half a transaction, which Redis leaves there and applies at the *next* start, together with everything written
    since. A rewrite since the start removes it, so this is done once per start, by the first client.

    Raises:
        StoreUnavailable: a file can't be rewritten.
    """
    with store_errors():
        load_functions(client)
        waiting = [server for server in primaries(client) if _may_hold_half(server.info())]
        for server in waiting:
            if (rights := loader_problem(server, server.info())) is not None and rights.fatal:
                raise StoreError(rights.text)
            try:
                server.execute_command("BGREWRITEAOF")
            except redis.ResponseError as error:
                if "in progress" not in str(error):  # Another client was first.
                    raise
        deadline = time.monotonic() + REWRITE_SECONDS_MAX
        for server in waiting:
            while _rewriting(server.info("persistence")) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            if _may_hold_half(server.info()):
                raise StoreUnavailable(
                    "the store can't rewrite its append-only file, which is required once after each start: check its "
                    "log, and whether its disk is full"
                )


def _rewriting(info: Mapping[str, Any]) -> bool:
    return bool(int(info["aof_rewrite_in_progress"]) or int(info["aof_rewrite_scheduled"]))


def _may_hold_half(info: Mapping[str, Any]) -> bool:
    if not int(info.get("aof_enabled", 0)) or _version(str(info.get("valkey_version", "0.0"))) >= VALKEY_MENDS:
        return False
    written_anew = int(info["aof_last_rewrite_time_sec"]) >= 0 and info["aof_last_bgrewrite_status"] == "ok"
    return not written_anew


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])
