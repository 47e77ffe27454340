"""Kafka: source of crawl events and destination of dead letters. Only this package uses the Kafka client."""

from opic.errors import MissingExtra
from opic.settings import KAFKA_MODULES

try:
    from opic.ingest.kafka.connection import INDEX, KEY, KIND, KafkaCluster
    from opic.ingest.kafka.consumer import KafkaSource
    from opic.ingest.kafka.topic_log import KafkaLog
except ModuleNotFoundError as error:
    if error.name not in KAFKA_MODULES:
        raise
    raise MissingExtra("the Kafka client", "kafka") from None

__all__ = ["INDEX", "KEY", "KIND", "KafkaCluster", "KafkaLog", "KafkaSource"]
