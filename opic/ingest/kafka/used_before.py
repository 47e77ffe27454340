"""What Kafka remembers of a crawl: the offsets that its workers committed. An empty store beside them is a loss."""

from opic.errors import StoreLost
from opic.ingest.kafka.connection import KafkaCluster, name_of
from opic.settings import Settings
from opic.store import connect
from opic.store.connection import Client, store_errors
from opic.store.keys import Keys
from opic.store.recognition import ANEW, RESTORED


def check_topic(settings: Settings) -> None:
    """Check that the topic exists, and that the store has not lost what was read of it.

    Raises:
        KafkaRefused: there is no such topic, or Kafka refused access.
        StoreLost: the store has lost the crawl.
        StoreUnavailable: the store or Kafka does not answer.
    """
    cluster = KafkaCluster(settings)
    cluster.check_topics(cluster.topic)
    with connect(settings.store) as client:
        check_used(cluster, client)


def check_used(cluster: KafkaCluster, client: Client) -> None:
    """Refuse a store without a record of the topic, if the crawl's workers have committed offsets of it.

    Raises:
        StoreLost: the store has lost the crawl.
        KafkaUnavailable: Kafka does not answer.
    """
    crawl = cluster.settings.crawl
    with store_errors():
        meta = client.hgetall(Keys(crawl, 0).meta)
        if {ANEW, RESTORED, b"restoring"} & meta.keys():
            return
        committed = cluster.committed()
        names = [name_of(partition) for partition in committed]
        for number in range(int(meta.get(b"shards", 0)) if names else 0):
            if any(offset is not None for offset in client.hmget(Keys(crawl, number).offsets, names)):
                return
    if committed:
        partition, offset = max(committed.items(), key=lambda item: item[1])
        raise StoreLost(
            crawl,
            f"it has no record of {cluster.topic}, of which workers of the group {cluster.group} applied all below "
            f"offset {offset:,} of {name_of(partition)}",
        )
