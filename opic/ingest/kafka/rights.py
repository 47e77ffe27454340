"""Rights on topics and on the group: what workers and endpoints need, and what a user lacks."""

from contextlib import closing
from typing import Final

from opic.ingest.kafka.connection import KafkaCluster

NAMES: Final = {"READ": "Read", "WRITE": "Write", "DESCRIBE": "Describe"}  # Read and Write include Describe.

NO_GROUP: Final = "Dead"  # The state that Kafka tells of a group that does not exist.


def missing_rights(cluster: KafkaCluster) -> dict[str, list[str]]:
    """Return what this user lacks to do as workers do, and as endpoints do: such as "Read of crawl.events".

    Kafka tells no rights on a group that does not exist, as before the first worker: they are left out.

    Raises:
        KafkaRefused: this user may not describe a topic.
        KafkaUnavailable: Kafka does not answer.
    """
    with closing(cluster.admin()) as admin:
        topics = cluster.described(admin, [cluster.topic, cluster.dlq])
    group = f"the group {cluster.group}"
    of_group = cluster.ask_group(lambda admin: admin.describe_groups([cluster.group])[cluster.group])
    has = {name: topic["authorized_operations"] or () for name, topic in topics.items()}
    if of_group is None or of_group["authorized_operations"] is not None or of_group["group_state"] != NO_GROUP:
        has[group] = (of_group or {}).get("authorized_operations") or ()
    needs = {
        "workers": {cluster.topic: "READ", cluster.dlq: "WRITE", group: "READ"},
        "endpoints": {cluster.topic: "WRITE", cluster.dlq: "READ", group: "DESCRIBE"},
    }
    return {
        role: [f"{NAMES[right]} of {name}" for name, right in wanted.items() if name in has and right not in has[name]]
        for role, wanted in needs.items()
    }
