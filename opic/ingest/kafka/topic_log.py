"""Kafka producer of the endpoint: an event is accepted once all in-sync replicas have it.

It corresponds to `opic.ingest.event_log.EventLog` for the log in the store. Both remember Idempotency-Keys in the
store; here, records carry the key's digest, and the step skips those that already took effect.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from opic.errors import BadInput, BadUrl, KafkaUnavailable, OpicError
from opic.ingest.event_log import AppendTerms, Begun, EventLog, KeyedCall, Positions
from opic.ingest.kafka.connection import ALL, Client, KafkaCluster, headers_of, name_of, throttled
from opic.ingest.kafka.known_offsets import FirstOffsets
from opic.ingest.kafka.signatures import Headers, Signatures, is_control
from opic.ingest.outage import Outage
from opic.ingest.traces import Spans, end_sending
from opic.model.events import decode_seeds, encode_seeds
from opic.model.packed_events import Packs, pack, url_and_links
from opic.replica import Crawl
from opic.urls.canonical import canonical_url, host_of, shard_of
from opic.urls.normalization import PLAIN, Normalization

log = logging.getLogger("opic.ingest")

ANSWER_SECONDS: Final = 10.0  # The same as the endpoint's timeout for the store.
COUNT_SECONDS: Final = 1.0  # How long a topic's number of partitions counts, before the client is asked again.
LINGER_SECONDS: Final = 0.002  # How long the client waits for more records to send together: some calls come at once.
BATCH_BYTES: Final = 1 << 18  # Before compression; the client's own is 16 KiB, some seven events.
ORDERED: Final = ("classes", "classify")  # Kinds of records that take effect in the order in which they were sent,
CLASSES_PARTITION: Final = 0  # and so are all in one partition, however many there come to be.
CLOSE_SECONDS: Final = 1.0  # For other threads' records in flight on a client that is replaced.


class Sent(NamedTuple):
    """A record in flight."""

    client: Client  # The client that sends it.
    future: Any


_ToSend = tuple[bytes, bytes | None, Headers, int | None]  # Value, key, headers, and the partition if it is decided.


class Producer:
    """Sends records to topics. Thread-safe; each thread waits for its own records."""

    def __init__(self, cluster: KafkaCluster, **options: Any) -> None:
        """Connect.

        Raises:
            KafkaUnavailable: Kafka does not answer.
            KafkaRefused: Kafka refused access.
        """
        self._cluster = cluster
        self._connect = partial(cluster.producer, **options)
        self._spans, self._lock = Spans(), threading.Lock()
        self._counts: dict[str, tuple[int, float]] = {}  # By topic: its partitions, and until when that counts.
        self._client: Client = self._connect()

    def send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int | None = None,
        **more: Any,
    ) -> Sent:
        """Pass a record to the client, which sends it in a batch; return a handle for `wait`.

        The partition is that of the key unless it is given. A record of many events goes to the one that it was filled
        for: if partitions were added since, the key's new one is not that of the other hosts in it.

        Raises:
            BadInput: the record is too large for Kafka.
            KafkaUnavailable: Kafka is unavailable and the client's buffer is full.
        """
        client, span = self._client, None
        try:
            if partition is None:
                partition = self.partition(topic, key)
            if (sending := self._spans.sending(topic, partition)) is not None:
                span, named = sending
                headers = [*headers, *named]
            future = client.send(topic, value, key, list(headers), partition, **more)
            if span is not None:
                future.add_callback(lambda _: end_sending(span))
                future.add_errback(lambda error: end_sending(span, error))
            return Sent(client, future)
        except Exception as error:
            if span is not None:
                end_sending(span, error)
            with self._cluster.errors():  # Here, and not around it: entering it costs 2 us a record.
                raise

    def partition(self, topic: str, key: bytes | None) -> int | None:
        """Return the partition of a key, that of Kafka's own partitioner; None leaves it to the client.

        The client computes the hash in Python for each record; ours is remembered by host.

        Raises:
            KafkaUnavailable: Kafka does not answer.
        """
        if key is None or not key.isascii():
            return None
        return shard_of(key.decode("ascii"), self.count(topic))

    def count(self, topic: str) -> int:
        """Return how many partitions a topic has; more may have been added in the last METADATA_SECONDS.

        Raises:
            KafkaUnavailable: Kafka does not answer.
        """
        now, (count, until) = time.monotonic(), self._counts.get(topic, (0, 0.0))
        if now >= until:
            with self._cluster.errors():
                count = len(self._client.partitions_for(topic))
            self._counts[topic] = count, now + COUNT_SECONDS
        return count

    def wait(self, sent: Iterable[Sent], seconds: float) -> list[Any]:
        """Wait for records; return the topic_partition and offset of each.

        Raises:
            BadInput: a record is too large for its topic; some of the others may have been written.
            KafkaUnavailable: Kafka does not answer; some records may have been written.
        """
        end, written = time.monotonic() + seconds, []
        for client, record in sent:
            try:
                with self._cluster.errors():
                    written.append(record.get(timeout=max(0.0, end - time.monotonic())))
            except (BadInput, KafkaUnavailable) as error:
                self._replace(client, error)
                raise
        return written

    def _replace(self, client: Client, reason: OpicError) -> None:
        """Replace a client that will not send again.

        An idempotent client fails all further records after the broker refused one, and sends none after records
        expired in an outage. While Kafka is away there is no new client either: the old one stays, and the next caller
        that waited in vain tries again.
        """
        refused = isinstance(reason, BadInput)
        if not self._lock.acquire(blocking=refused):  # Another thread is trying: callers must not queue up for that.
            return
        try:
            if self._client is not client:
                return
            self._client = self._connect()
        except KafkaUnavailable:
            if refused:
                raise
            return
        finally:
            self._lock.release()
        # A caller that waits for a record that this client did not send gets an error from its end.
        with suppress(KafkaUnavailable), self._cluster.errors():
            client.close(timeout=CLOSE_SECONDS)

    def close(self, seconds: float = 5.0) -> None:
        """Close the connections; records not sent within `seconds` are dropped."""
        self._client.close(timeout=seconds)


def seeds_by_shard(lists: Iterable[bytes], shards: int) -> Iterator[bytes]:
    """Split lists of seeds, or of pages to forget, by shard: a record's key is that of its first URL, and fits all."""
    for seeds in map(decode_seeds, lists):
        by_shard: dict[int, list[str]] = defaultdict(list)
        for url in seeds.urls:
            by_shard[shard_of(host_of(url), shards)].append(url)
        yield from (encode_seeds(part, *msgspec.structs.astuple(seeds)[1:]) for part in by_shard.values())


class KafkaLog:
    """A Kafka topic as the log of accepted events. Thread-safe."""

    def __init__(self, cluster: KafkaCluster, crawl: Crawl, calls: EventLog) -> None:
        """Connect.

        Args:
            cluster: with the topic.
            crawl: whose events they are.
            calls: remembers calls with an Idempotency-Key.

        Raises:
            KafkaUnavailable: Kafka does not answer.
            KafkaRefused: Kafka refused access, or the topic does not exist.
        """
        self._cluster, self._crawl, self._calls, self._outage = cluster, crawl, calls, Outage(log)
        self.throttle = cluster.throttle
        self._signatures = Signatures(cluster.settings, lambda: crawl.shards[0].secret)
        self._lock = threading.Lock()  # A consumer is for one thread at a time.
        self.mean_events = 1.0  # In a record of the last call.
        self._first = FirstOffsets(crawl, cluster.topic)
        self._replaced = 0.0  # When the consumer was replaced last, monotonic.
        self._consumer: Client = cluster.consumer(isolation_level=ALL)
        try:
            self._partitions = cluster.partitions(self._consumer)
            self.missing()  # From here on the store knows what it needs of the topic, before it accepts anything.
            self._producer = Producer(
                cluster,
                linger_ms=round(LINGER_SECONDS * 1000),
                batch_size=BATCH_BYTES,
                max_block_ms=round(ANSWER_SECONDS * 1000),
                delivery_timeout_ms=round((ANSWER_SECONDS + LINGER_SECONDS) * 1000) + 1,
            )
        except BaseException:
            self._consumer.close()
            raise

    @property
    def single(self) -> bool:
        """Whether all records take effect in the order in which they were accepted."""
        with self._lock, self._cluster.errors():
            self._notice()
        return len(self._partitions) == 1 and len(self._crawl) == 1

    def append(self, values: Sequence[bytes], time_us: int, kind: str = "event") -> Positions:
        """Append records to the topic durably; records of one page keep their order.

        Args:
            values: encoded events, or lists of seeds.
            time_us: the records' time, where the topic does not keep the broker's.
            kind: one of RECORD_KINDS.

        Returns:
            The end offset of each partition that got records.

        Raises:
            BadInput: a record is too large for Kafka, or its kind needs a single shard and a single partition.
            KafkaUnavailable: Kafka is unavailable; some of the records may have been written.
        """
        if kind in ORDERED and len(self._crawl) == 1 and not self.single:
            raise BadInput(
                f"classes can't be set with one shard and {len(self._partitions)} partitions of "
                f"{self._cluster.topic}, because their events have no common order: use one partition, or many shards"
            )
        if kind in ("seeds", "forget", "expire"):
            values = list(seeds_by_shard(values, len(self._crawl)))
        return self._produce(values, time_us, kind)

    def begun(self, call: KeyedCall) -> Begun | None:
        """Return what is known of a call; see `EventLog.begun`. All of its values must be sent."""
        return self._calls.begun(call)

    def left(self, begun: Begun, values: Sequence[bytes]) -> int:
        """Return the number of events of a call: what of it is on the topic is not known."""
        return len(values)

    def append_once(
        self, call: KeyedCall, values: Sequence[bytes], begun: Begun | None, terms: AppendTerms
    ) -> Positions | None:
        """Send a call's events to the topic, marked so that each takes effect once, even if this is repeated.

        See `EventLog.append_once`.
        """
        if not values and begun is None:
            return {}
        if self._calls.remember(call, (), begun, terms) is None:
            return None
        return self._produce(values, terms.time_us, "event", call.key)

    def _produce(self, values: Sequence[bytes], time_us: int, kind: str, key: bytes = b"") -> Positions:
        topic, at_ms = self._cluster.topic, time_us // 1000
        with self._logging_outages():
            if self.throttle.left > ANSWER_SECONDS:  # Its answer would come too late, and the caller try again.
                raise throttled(self._cluster.where, self.throttle)
            sent = [
                self._producer.send(topic, value, host, headers, partition, timestamp_ms=at_ms)
                for value, host, headers, partition in self._records(values, time_us, kind, key)
            ]
            self.mean_events = len(values) / len(sent) if sent else self.mean_events
            written = self._producer.wait(sent, ANSWER_SECONDS)
        ends: dict[str, int] = {}
        for position in written:
            name = name_of(position.topic_partition)
            ends[name] = max(ends.get(name, 0), position.offset + 1)
        return ends

    def _records(self, values: Sequence[bytes], time_us: int, kind: str, key: bytes) -> Iterator[_ToSend]:
        """Yield the records of values: crawl events of one partition are packed, in order."""
        normalization = self._crawl.rules.normalization
        if kind != "event":
            for index, value in enumerate(values):
                control = is_control(kind, value)
                signed = self._signatures.headers(kind, value, time_us) if control else headers_of(kind, key, (index,))
                yield value, key_of(value, kind, normalization), signed, CLASSES_PARTITION if kind in ORDERED else None
            return
        filling = Packs()
        for index, value in enumerate(values):
            host, links = _host_and_links(value, normalization)
            partition = self._producer.partition(self._cluster.topic, host)
            if host is None or partition is None:
                yield value, host, headers_of(kind, key, (index,)), partition
            elif (full := filling.add(partition, host, value, links, index)) is not None:
                yield pack(full.values), full.host, headers_of(kind, key, full.numbers), partition
        for last in filling.pop_packs():
            yield pack(last.values), last.host, headers_of(kind, key, last.numbers), last.partition

    def ends(self, named: Iterable[str] = ()) -> Positions:
        """Return the end of each partition. Kafka is asked for partitions that are named and not known here."""
        with self._logging_outages(), self._lock, self._cluster.errors():
            self._notice(named)
            end_offsets = self._consumer.end_offsets(self._partitions, timeout_ms=round(ANSWER_SECONDS * 1000))
        return {name_of(partition): end for partition, end in end_offsets.items()}

    def _notice(self, named: Iterable[str] = ()) -> None:
        """Notice partitions that were added.

        Clients ask for them now and then, each at its own time: the producer, or another endpoint whose position a
        caller names, may know of some before the consumer. That one is then replaced: asked for the ends of partitions
        of which it does not know all, it would raise a KeyError (findings/kafka-python-added-partitions.sh).
        """
        topic, ours = self._cluster.topic, len(self._partitions)
        known = len(self._consumer.partitions_for_topic(topic) or ())
        beyond = self._producer.count(topic) > ours or not {*map(name_of, self._partitions)}.issuperset(named)
        if known <= ours and beyond and time.monotonic() - self._replaced >= COUNT_SECONDS:
            fresh = self._cluster.consumer(isolation_level=ALL)
            self._consumer.close()
            self._consumer, self._replaced = fresh, time.monotonic()
            known = len(self._cluster.partitions(fresh))
        if known > ours:
            self._partitions = self._cluster.partitions(self._consumer)

    def missing(self) -> Mapping[str, int]:
        """Return how many events are gone from the topic that have not taken effect, by partition."""
        with self._logging_outages(), self._lock, self._cluster.errors():
            partitions = self._cluster.partitions(self._consumer)
            begins = self._consumer.beginning_offsets(partitions, timeout_ms=round(ANSWER_SECONDS * 1000))
        return self._first.missing(begins)

    @contextmanager
    def _logging_outages(self) -> Iterator[None]:
        try:
            yield
        except KafkaUnavailable as error:
            self._outage.began(error)
            raise
        self._outage.ended()

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()


def key_of(value: bytes, kind: str = "event", normalization: Normalization = PLAIN) -> bytes | None:
    """Return the key of an encoded record: the host of its page, or None if it has no page.

    >>> from opic.model.events import CrawlEvent, encode_crawl_event
    >>> key_of(encode_crawl_event(CrawlEvent("http://EXAMPLE.org/a")))
    b'example.org'
    """
    if kind not in ("event", "seeds", "forget", "expire"):
        return kind.encode()
    if kind == "event":
        return _host_and_links(value, normalization)[0]
    try:
        return _host(decode_seeds(value).urls[0], normalization)
    except (msgspec.DecodeError, UnicodeDecodeError, BadUrl, IndexError):
        return None  # It will become a dead letter; the partition does not matter.


def _host_and_links(value: bytes, normalization: Normalization) -> tuple[bytes | None, int]:
    """Return the host of an event's page, None if it names none, and the number of its links."""
    try:
        url, links = url_and_links(value)
        return _host(url, normalization), links
    except (ValueError, BadUrl):
        return None, 0


def _host(url: str, normalization: Normalization) -> bytes:
    return host_of(canonical_url(url, 1 << 16, normalization)).encode()
