"""The worlds of the storm: what runs in each, and which actions break it."""

from dataclasses import dataclass
from typing import Literal

WORKERS = ("kill_a_worker", "kill_a_worker_between_statements", "restart_a_worker", "start_a_worker_with_a_wrong_clock")
WORKERS_OF_A_GROUP = (*WORKERS, "wake_a_worker_as_a_zombie", "add_a_worker")
KAFKA = ("restart_kafka", "apply_all_again", "deliver_twice", "let_retention_delete_unread_events")
PUBLISHERS = ("publish_in_transactions", "publish_poison", "recompress_the_topic", "limit_clients_by_a_quota")
ENDPOINT = ("kill_an_endpoint", "restart_an_endpoint_with_a_wrong_clock")
CRAWLERS = ("deny_a_host", "set_a_trap", "report_late", "offer_an_upgrade", "send_what_is_refused")
PARTITIONS = ("add_a_partition",)  # Of a topic with several: those of a single one have one order.
BACKUP = ("back_up_while_the_server_restarts",)
LINKS = ("restart_the_server_while_kept_links_load",)
SERVER = ("kill_the_server", "restart_the_server", "cut_connections", "delay_connections", "lose_what_is_sent")
MOVES = ("move_a_slot", "move_to_other_shards")
NODES = ("kill_a_node", "restart_a_node")


@dataclass(frozen=True)
class World:
    """What is broken, and how."""

    name: str
    server: Literal["valkey", "redis"]
    feed: Literal["kafka", "log", "embedded"]  # Where events wait: on a topic, or in the store's own log.
    actions: tuple[str, ...]
    partitions: int = 1
    shards: int = 1
    scatter: bool = False  # Events of a host are in any partition.
    nodes: int = 1  # Of a Redis Cluster, if more.
    replicas: int = 0  # Of each node, waited for before an offset or a lease counts.
    workers: int = 3
    endpoints: int = 1
    secured: bool = False  # With TLS to Kafka and to the store, tokens with roles, and rates of the crawlers.


_KAFKA = (*WORKERS_OF_A_GROUP, *KAFKA, *PUBLISHERS, *ENDPOINT, *CRAWLERS, "back_up_under_load")
_OF_A_SERVER = (*_KAFKA, *SERVER, *LINKS, "lose_the_end_of_the_file", "restore_a_backup", *BACKUP)
_LOG = ("move_to_other_shards", *WORKERS, *ENDPOINT, *CRAWLERS, *SERVER, *BACKUP, *LINKS, "restore_beside_appends")
_FAILOVER = (*_KAFKA, *NODES, "fail_over_while_the_replica_lags", "move_a_slot_at_once")
_EMBEDDED = (*CRAWLERS, *BACKUP, "kill_the_embedded_store", "kill_the_embedded_worker", "kill_the_embedded_service")

WORLDS = {
    world.name: world
    for world in (
        World("shards", "valkey", "kafka", (*_OF_A_SERVER, *PARTITIONS), partitions=4, shards=4),
        World("single", "redis", "kafka", _OF_A_SERVER),
        World("scatter", "redis", "kafka", (*_OF_A_SERVER, *PARTITIONS), partitions=4, shards=3, scatter=True),
        World("cluster", "redis", "kafka", (*_KAFKA, *MOVES, *NODES), partitions=4, shards=8, nodes=3),
        World("failover", "valkey", "kafka", _FAILOVER, partitions=4, shards=6, nodes=3, replicas=1, endpoints=2),
        World("secured", "valkey", "kafka", _OF_A_SERVER, endpoints=2, secured=True),
        World("log", "valkey", "log", _LOG, workers=1, endpoints=2),
        World("log-redis", "redis", "log", _LOG, shards=3, workers=1, endpoints=2),
        World("embedded", "valkey", "embedded", _EMBEDDED, workers=0, endpoints=0),
    )
}
