"""Kafka: source of crawl events and destination of dead letters. Only this package uses the Kafka client."""

from opic.errors import MissingExtra

try:
    from opic.ingest.kafka.connection import INDEX, KEY, KIND, KafkaCluster, dlq_of, kafka_errors
    from opic.ingest.kafka.consumer import KafkaSource
    from opic.ingest.kafka.topic_log import KafkaLog
except ModuleNotFoundError as error:
    if error.name != "kafka":
        raise
    raise MissingExtra("the Kafka client", "kafka") from None

__all__ = ["INDEX", "KEY", "KIND", "KafkaCluster", "KafkaLog", "KafkaSource", "dlq_of", "kafka_errors"]
