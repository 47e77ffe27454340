"""For crawlers in Python: crawl events onto the Kafka topic, checked before they are sent.

    from opic.ingest.publish import Publisher

    with Publisher("kafka:9092") as publisher:
        publisher.publish("http://example.org/", ["http://example.org/about", "http://example.com/"])

An event counts once all replicas in sync have it; what was not delivered is raised by the next `publish`, by `flush` or
by leaving the block, never swallowed. The key is the page's host, so that Kafka keeps a host's events in order and in
the partition of its shard.
"""

import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from opic.errors import SettingsError
from opic.ingest.kafka import KafkaCluster
from opic.ingest.kafka.topic_log import Producer, Sent
from opic.model.events import CrawlEvent, check_event, decode_crawl_event, encode_crawl_event
from opic.settings import Settings
from opic.urls.canonical import host_of

LINGER_SECONDS: Final = 0.02  # How long the client waits for more events to send together.
BATCH_BYTES: Final = 1 << 18
WAITING_MAX: Final = 10_000  # Events sent and not yet acknowledged; past it `publish` waits for the oldest.
DELIVERY_SECONDS: Final = 120.0  # The client tries again for so long; idempotent, so that no event comes twice.


class Publisher:
    """Puts crawl events on the topic. For one thread; close it, or use it as a context manager."""

    def __init__(
        self, bootstrap: str | None = None, topic: str | None = None, settings: Settings | None = None
    ) -> None:
        """Connect.

        Args:
            bootstrap: brokers, as HOST:PORT,HOST:PORT; OPIC_KAFKA_BOOTSTRAP if None.
            topic: OPIC_KAFKA_TOPIC if None.
            settings: for all else, such as TLS and SASL; those of the environment if None.

        Raises:
            SettingsError: no brokers are named, or an option can't be taken.
            KafkaUnavailable: Kafka does not answer.
            KafkaRefused: it does not want us, or there is no such topic.
        """
        if settings is None:
            settings = Settings.load(None, kafka_bootstrap=bootstrap, kafka_topic=topic)
        elif bootstrap is not None or topic is not None:
            raise SettingsError("give the brokers and the topic in the settings, where those are given")
        cluster = KafkaCluster(settings)
        consumer = cluster.consumer()
        try:
            cluster.partitions(consumer)  # Else a topic that is not there would be waited for.
        finally:
            consumer.close()
        self._topic, self._limits = cluster.topic, settings.limits()
        self._producer = Producer(
            cluster,
            linger_ms=round(LINGER_SECONDS * 1000),
            batch_size=BATCH_BYTES,
            delivery_timeout_ms=round(DELIVERY_SECONDS * 1000),
        )
        self._waiting: deque[Sent] = deque()
        self.delivered = 0

    def publish(
        self,
        url: str,
        links: Sequence[str] = (),
        *,
        status: int = 200,
        fetched_at: float | str | None = None,
        redirect: str | None = None,
        tags: Sequence[str] = (),
        crawler: str | None = None,
        excluded: bool = False,
    ) -> None:
        """Send one crawl event, with others; see the table in the public contract.

        Args:
            url: the page fetched.
            links: its out-links, absolute.
            status: of HTTP; 0 is no answer.
            fetched_at: Unix seconds, or RFC 3339; now if None.
            redirect: the target of a 3xx.
            tags: topical labels.
            crawler: who fetched.
            excluded: robots.txt forbids it.

        Raises:
            BadEvent: it can't be taken; nothing was sent.
            KafkaUnavailable: an event sent before was not delivered.
        """
        at = time.time() if fetched_at is None else fetched_at
        self.send(CrawlEvent(url, list(links), at, status, redirect, excluded, list(tags), crawler))

    def send(self, event: CrawlEvent) -> None:
        """Send one crawl event that is an object already; see `publish`."""
        checked = check_event(event, time.time_ns() // 1000, self._limits)
        self._send(encode_crawl_event(event), host_of(checked.url))

    def send_encoded(self, value: bytes) -> None:
        """Send one crawl event in its wire form, JSON or MessagePack, as it is; see `publish`."""
        checked = check_event(decode_crawl_event(value), time.time_ns() // 1000, self._limits)
        self._send(value, host_of(checked.url))

    def _send(self, value: bytes, host: str) -> None:
        self._reap(wait=len(self._waiting) >= WAITING_MAX)
        self._waiting.append(self._producer.send(self._topic, value, host.encode()))

    def _reap(self, *, wait: bool) -> None:
        """Look at what was acknowledged; and wait for the oldest."""
        while self._waiting and (wait or self._waiting[0].future.is_done):
            self._producer.wait([self._waiting.popleft()], DELIVERY_SECONDS)
            self.delivered += 1
            wait = False

    def flush(self) -> int:
        """Return once all that was sent is delivered; and how many events that are in all.

        Raises:
            KafkaUnavailable: some are not.
        """
        while self._waiting:
            self._reap(wait=True)
        return self.delivered

    def close(self) -> None:
        """Deliver what is left, and let go of the connections."""
        try:
            self.flush()
        finally:
            self._producer.close()

    def __enter__(self) -> "Publisher":
        """Publish."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Deliver what is left, unless the block failed."""
        if error is None:
            self.close()
        else:
            self._producer.close()


__all__ = ["CrawlEvent", "Publisher"]
