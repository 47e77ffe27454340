"""Kafka: where crawl events come from, and where those go that can't be taken. Only this package knows its client."""

from opic.kafka.connection import INDEX, KEY, KIND, Cluster, dlq_of, kafka_errors, quiet_client
from opic.kafka.log import KafkaLog
from opic.kafka.source import KafkaSource

__all__ = ["INDEX", "KEY", "KIND", "Cluster", "KafkaLog", "KafkaSource", "dlq_of", "kafka_errors", "quiet_client"]
