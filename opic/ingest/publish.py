"""Publisher for Python crawlers: checks crawl events and sends them to the Kafka topic.

    from opic.ingest.publish import Publisher

    with Publisher("kafka:9092") as publisher:
        publisher.publish("http://example.org/", ["http://example.org/about", "http://example.com/"])

An event is delivered once all in-sync replicas have it. A failed delivery raises an exception from the next `publish`,
from `flush` or on leaving the block; it is never ignored. The record key is the page's host, so that Kafka keeps a
host's events in order and in the partition of its shard. Events of one partition that are published within
LINGER_SECONDS share a record, up to 100 of them.
"""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

from opic.errors import SettingsError
from opic.ingest.kafka import KafkaCluster
from opic.ingest.kafka.topic_log import BATCH_BYTES, Producer, Sent
from opic.ingest.traces import called_by, current_trace
from opic.model.event_checks import check_event
from opic.model.events import CrawlEvent, TraceContext, decode_crawl_event, encode_crawl_event
from opic.model.packed_events import Pack, Packs, is_map, pack
from opic.settings import Settings
from opic.urls.canonical import host_of

LINGER_SECONDS: Final = 0.02  # How long an event waits for more of its partition, to share a record with them.
CLIENT_LINGER_SECONDS: Final = 0.005  # How long the client waits for more records, to send them in one batch.
WAITING_MAX: Final = 10_000  # Events sent but not acknowledged; at this limit `publish` waits for the oldest.
DELIVERY_SECONDS: Final = 120.0  # How long the client retries. The producer is idempotent: no event is sent twice.


class Publisher(AbstractContextManager["Publisher"]):
    """Sends crawl events to the topic. Not thread-safe. Close it, or use it as a context manager."""

    def __init__(
        self, bootstrap: str | None = None, topic: str | None = None, settings: Settings | None = None
    ) -> None:
        """Connect.

        Args:
            bootstrap: brokers, as HOST:PORT,HOST:PORT; OPIC_KAFKA_BOOTSTRAP if None.
            topic: OPIC_KAFKA_TOPIC if None.
            settings: all other settings, such as TLS and SASL; read from the environment if None.

        Raises:
            SettingsError: no brokers are given, or an option is invalid.
            KafkaUnavailable: Kafka does not answer.
            KafkaRefused: Kafka refused access, or the topic does not exist.
        """
        if settings is None:
            settings = Settings.load(None, kafka_bootstrap=bootstrap, kafka_topic=topic)
        elif bootstrap is not None or topic is not None:
            raise SettingsError("with `settings`, give the brokers and the topic in it, not as arguments")
        cluster = KafkaCluster(settings)
        cluster.check_topics(cluster.topic)  # Fails at once if it does not exist; the producer would wait for it.
        self._topic, self._limits = cluster.topic, settings.limits()
        self._producer = Producer(
            cluster,
            linger_ms=round(CLIENT_LINGER_SECONDS * 1000),
            batch_size=BATCH_BYTES,
            delivery_timeout_ms=round(DELIVERY_SECONDS * 1000),
        )
        self._waiting: deque[tuple[Sent, int]] = deque()  # Records in flight, each with the number of its events,
        self._in_flight = 0  # and how many events they have.
        self.delivered = 0
        self._lock = threading.RLock()  # Of all that follows, and of the records in flight.
        self._filling = Packs()
        self._callers = defaultdict[int | None, list[TraceContext]](list)  # Traces of what fills, by partition.
        self._failed: Exception | None = None  # Of the thread that sends what has lingered.
        self._filled, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._send_lingering, name="opic-publisher", daemon=True)
        self._thread.start()

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
        depth: int | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> None:
        """Send one crawl event, batched with others; see the table in the public contract.

        Args:
            url: the page fetched.
            links: its out-links, absolute.
            status: the HTTP status; 0 means no answer.
            fetched_at: Unix seconds, or RFC 3339; now if None.
            redirect: the target of a 3xx.
            tags: topical labels.
            crawler: name of the crawler.
            excluded: whether robots.txt forbids the fetch.
            depth: links from a seed to the page.
            meta: strings to keep with the page.

        Raises:
            BadEvent: the event is invalid; nothing was sent.
            KafkaUnavailable: an event sent before was not delivered.
        """
        read_at = time.time() if fetched_at is None else fetched_at
        notes = None if meta is None else dict(meta)
        self.send(CrawlEvent(url, list(links), read_at, status, redirect, excluded, list(tags), crawler, depth, notes))

    def send(self, event: CrawlEvent) -> None:
        """Send one crawl event given as an object; see `publish`."""
        checked = check_event(event, time.time_ns() // 1000, self._limits)
        self._send(encode_crawl_event(event), host_of(checked.url), len(event.links))

    def send_encoded(self, value: bytes) -> None:
        """Send one crawl event already encoded as JSON or MessagePack; see `publish`."""
        event = decode_crawl_event(value)
        checked = check_event(event, time.time_ns() // 1000, self._limits)
        self._send(value if is_map(value) else encode_crawl_event(event), host_of(checked.url), len(event.links))

    def _send(self, value: bytes, host: str, links: int) -> None:
        key = host.encode()
        with self._lock:
            self._raise_failure()
            self._reap(wait=self._in_flight >= WAITING_MAX)
            partition = self._producer.partition(self._topic, key)
            if not self._filling:
                self._filled.set()
            if (caller := current_trace()) is not None:
                self._callers[partition].append(caller)
            if (full := self._filling.add(partition, key, value, links)) is not None:
                self._send_filled(full)

    def _send_filled(self, filled: Pack) -> None:
        with called_by(self._callers.pop(filled.partition, ())):
            sent = self._producer.send(self._topic, pack(filled.values), filled.host, partition=filled.partition)
        self._waiting.append((sent, len(filled.values)))
        self._in_flight += len(filled.values)

    def _send_lingering(self) -> None:
        """Send records that are not full but have waited for LINGER_SECONDS, in a thread of its own."""
        while not self._closed.is_set():
            self._filled.wait()
            self._closed.wait(LINGER_SECONDS / 2)
            with self._lock:
                try:
                    for filled in self._filling.pop_packs(time.monotonic() - LINGER_SECONDS / 2):
                        self._send_filled(filled)
                except Exception as error:  # noqa: BLE001 - raised by the next call
                    self._failed = error
                if not self._filling and not self._closed.is_set():
                    self._filled.clear()

    def _raise_failure(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _reap(self, *, wait: bool) -> None:
        """Collect acknowledgements; if `wait` is set, wait for the oldest."""
        waiting = self._waiting
        while waiting and (wait or waiting[0][0].future.is_done):
            sent, events = waiting.popleft()
            self._in_flight -= events
            if not sent.future.succeeded():
                self._producer.wait([sent], DELIVERY_SECONDS)
            self.delivered += events
            wait = False

    def flush(self) -> int:
        """Wait until all events are delivered; return the total number delivered so far.

        Raises:
            KafkaUnavailable: some events were not delivered.
        """
        with self._lock:
            self._raise_failure()
            for filled in self._filling.pop_packs():
                self._send_filled(filled)
            while self._waiting:
                self._reap(wait=True)
        return self.delivered

    def close(self) -> None:
        """Deliver the remaining events and close the connections."""
        try:
            self.flush()
        finally:
            self._end()

    def _end(self) -> None:
        self._closed.set()
        self._filled.set()
        self._thread.join()
        self._producer.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Deliver the remaining events, unless the block raised an exception, and close."""
        if error is None:
            self.close()
        else:
            with self._lock:
                self._filling = Packs()
            self._end()


__all__ = ["CrawlEvent", "Publisher"]
