"""Kafka topics: required configuration, comparison with the existing topics, and creation."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from opic.errors import BadInput, SettingsError
from opic.ingest.kafka.connection import Client, KafkaCluster

RETENTION_MS: Final = 7 * 86_400_000  # Limits what can be read again after a restore; long enough for a weekend.
DEAD_RETENTION_MS: Final = 30 * 86_400_000  # A person has to look at them.
DEAD_RETENTION_BYTES: Final = 1 << 30  # However fast they come.
REPLICATION_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class TopicSetup:
    """The configuration of a topic, as it is wanted or as it is."""

    name: str
    partitions: int
    replication: int
    config: Mapping[str, str]


def wanted(cluster: KafkaCluster, partitions: int = 1, replication: int = 1) -> tuple[TopicSetup, TopicSetup]:
    """Return the required configuration of the events topic and of the dead-letter topic.

    LogAppendTime makes the broker's clock the records' time, which decides what "now" is for an event: no crawler's
    wrong clock moves it.
    """
    config = {
        "cleanup.policy": "delete",
        "max.message.bytes": str(cluster.record_bytes_max),
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(max(1, replication - 1)),
        "retention.ms": str(RETENTION_MS),
    }
    dead = {**config, "retention.ms": str(DEAD_RETENTION_MS), "retention.bytes": str(DEAD_RETENTION_BYTES)}
    return TopicSetup(cluster.topic, partitions, replication, config), TopicSetup(cluster.dlq, 1, replication, dead)


def brokers(cluster: KafkaCluster, admin: Client) -> int:
    with cluster.errors():
        return len(admin.describe_cluster()["brokers"])


def find(cluster: KafkaCluster, admin: Client, names: list[str]) -> dict[str, TopicSetup]:
    """Return those of the topics that exist, by name; without their configuration where this user may not read it.

    Raises:
        KafkaRefused: this user may not describe one of them.
        KafkaUnavailable: Kafka does not answer.
    """
    described = cluster.described(admin, names)
    resources = [
        ConfigResource(ConfigResourceType.TOPIC, name)
        for name, topic in described.items()
        if "DESCRIBE_CONFIGS" in (topic["authorized_operations"] or ())
    ]
    configs: Any = {}
    if resources:
        with cluster.errors():
            configs = admin.describe_configs(resources, config_filter="all")
    config_of = {
        name: {key: str(entry["value"]) for key, entry in entries.items()}
        for kind, topics in configs.items()
        if str(getattr(kind, "name", kind)).upper() == "TOPIC"
        for name, entries in topics.items()
    }
    return {
        name: TopicSetup(
            name,
            len(topic["partitions"]),
            min((len(part["replica_nodes"]) for part in topic["partitions"]), default=0),
            config_of.get(name, {}),
        )
        for name, topic in described.items()
    }


def differences(want: TopicSetup, actual: TopicSetup) -> Iterator[str]:
    """Describe how a topic differs from its required configuration."""
    if actual.partitions != want.partitions:
        yield f"{actual.partitions} partitions, not {want.partitions}"
    if actual.replication != want.replication:
        yield f"{actual.replication} replicas, not {want.replication}"
    if not actual.config:
        yield "its configuration is unknown: this user may not read it (DescribeConfigs)"
        return
    for key, value in want.config.items():
        if (other := actual.config.get(key)) != value:
            yield f"{key}={other}, not {value}"


def create(
    cluster: KafkaCluster, partitions: int | None, replication: int | None
) -> Iterator[tuple[TopicSetup, TopicSetup | None]]:
    """Create missing topics; yield each topic's required configuration, and its actual one if it existed.

    Args:
        cluster: the cluster for the topics.
        partitions: of the events topic; None: as many as a new crawl has shards, and any number where it exists.
        replication: replicas of each partition; None: as many as brokers, up to REPLICATION_MAX.

    Raises:
        SettingsError: there are fewer brokers than replicas wanted.
        BadInput: no partitions.
    """
    if partitions is not None and partitions < 1:
        raise BadInput(f"--partitions {partitions}: a topic needs at least one")
    with closing(cluster.admin()) as admin:
        there = brokers(cluster, admin)
        replication = min(there, REPLICATION_MAX) if replication is None else replication
        if not 1 <= replication <= there:
            raise SettingsError(f"--replication {replication}: Kafka at {cluster.where} has only {there} brokers")
        existing = find(cluster, admin, [cluster.topic, cluster.dlq])
        if partitions is None:
            partitions = existing[cluster.topic].partitions if cluster.topic in existing else cluster.settings.shards
        for plan in wanted(cluster, partitions, replication):
            if plan.name not in existing:
                topic = NewTopic(plan.name, plan.partitions, plan.replication, topic_configs=dict(plan.config))
                with cluster.errors():
                    admin.create_topics([topic])
                    admin.wait_for_topics([plan.name])
            yield plan, existing.get(plan.name)
