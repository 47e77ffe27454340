"""Kafka connections: clients, their options, error translation, and record headers."""

import logging
import math
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache
from typing import Any, Final, TypeVar

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka import errors as broken
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.record.util import crc32c_c

from opic.errors import BadInput, KafkaRefused, KafkaThrottled, KafkaUnavailable, SettingsError
from opic.ingest.kafka.record_batches import BoundedConsumer
from opic.ingest.throttle import Throttle
from opic.model.events import (
    CALL_INDEX_BYTES,
    CALL_KEY_BYTES,
    PACKED_EVENTS_MAX,
    RECORD_KINDS,
    TIME_MAX_US,
    TIME_MIN_US,
    Record,
    trace_of,
)
from opic.redaction import without_secret
from opic.settings import Settings
from opic.tls import certificate_fault

log = logging.getLogger("opic.ingest")

# kafka-python's own types are loose; what comes out of it is checked where it matters.
Client = Any
Message = Any
T = TypeVar("T")

# Headers of records: the kind, unless it is a crawl event; the digest of an Idempotency-Key and the event's number in
# the call. Headers of dead letters: the reason and the origin.
KIND: Final = "opic-kind"
KEY: Final = "opic-key"
# Of an event: its number in the call with the key; of an array, a number for each event. Of a dead letter: its place in
# the array that was its record's value.
INDEX: Final = "opic-index"
ERROR: Final = "opic-error"
TOPIC: Final = "opic-topic"
PARTITION: Final = "opic-partition"
OFFSET: Final = "opic-offset"
VALUE_BYTES: Final = "opic-value-bytes"  # For a dead letter cut to fit its topic: the original size of the value.
CLIENT_ID: Final = "opic"
ALL: Final = "read_uncommitted"  # What the lag counts: records of transactions that have not ended, too.
INDEX_DIGITS_MAX: Final = 10

BOOTSTRAP_SECONDS: Final = 3.0  # A command answers within 5 s when Kafka is away; whoever waits for Kafka retries.
REQUEST_SECONDS: Final = 10.0
COORDINATOR_SECONDS: Final = 10.0
COORDINATOR_POLL_SECONDS: Final = 0.1
METADATA_SECONDS: Final = (
    10.0  # How often a client asks for the partitions of its topics; its own default is 5 minutes.
)
RECONNECT_SECONDS_MAX: Final = 2.0  # The client's default, 30 s, is much longer than a restart of Kafka.
RECORD_BYTES_MIN: Final = 1 << 20  # Kafka's own limit.
RECORD_OVERHEAD_BYTES: Final = 1 << 16  # Headers and framing around the largest body.

# Errors that retries can't fix: a setting, a permission or a topic must be changed.
_FOR_GOOD = (
    broken.SaslAuthenticationFailedError,
    broken.UnsupportedSaslMechanismError,
    broken.IllegalSaslStateError,
    broken.AuthorizationError,
    broken.FencedInstanceIdError,
    broken.KafkaConfigurationError,
    broken.InvalidTopicError,
)
# A group's coordinator is being chosen, or is loading.
_COORDINATOR = (
    broken.CoordinatorNotAvailableError,
    broken.NotCoordinatorError,
    broken.CoordinatorLoadInProgressError,
)
CAFILE: Final = "OPIC_KAFKA_SSL_CAFILE"
CERTFILE: Final = "OPIC_KAFKA_SSL_CERTFILE and OPIC_KAFKA_SSL_KEYFILE"
_TOO_LARGE = (broken.MessageSizeTooLargeError, broken.RecordListTooLargeError)


@contextmanager
def kafka_errors(where: str, throttle: Throttle) -> Iterator[None]:
    """Translate the client's exceptions into opic's. While a quota holds the client back, silence is no outage."""
    try:
        yield
    except _TOO_LARGE as error:
        raise BadInput(f"the record is too large for Kafka ({error}): raise the topic's max.message.bytes") from error
    except broken.UnknownTopicOrPartitionError as error:
        raise KafkaRefused(f"Kafka at {where} has no such topic: create it with `opic topics create`") from error
    except broken.FencedInstanceIdError as error:
        raise KafkaRefused(
            "another worker with the same OPIC_KAFKA_GROUP_INSTANCE_ID joined the group: give each worker its own id"
        ) from error
    except broken.UnsupportedCodecError as error:
        raise KafkaUnavailable(f"Kafka at {where} returned unreadable records: {_said(error)}") from error
    except broken.CorruptRecordError as error:
        raise KafkaUnavailable(
            f"Kafka at {where} returned a damaged batch: {_said(error)}. Nothing is lost yet: check the leader's disk, "
            "and let a replica that is whole take over; reading goes on from there by itself. Without one, set "
            "OPIC_KAFKA_SKIP_LOST=true, delete the partition's records up to the end of the batch with "
            "kafka-delete-records, and publish their events again"
        ) from error
    except _FOR_GOOD as error:
        raise KafkaRefused(
            f"Kafka at {where} refused access: {_said(error)}; check OPIC_KAFKA_SECURITY_PROTOCOL, OPIC_KAFKA_SASL_… "
            "and OPIC_KAFKA_SSL_…, and this user's rights: `opic doctor` names those that are missing"
        ) from error
    except (broken.KafkaError, OSError) as error:
        if throttle.left or isinstance(error, broken.ThrottlingQuotaExceededError):
            raise throttled(where, throttle) from error
        raise KafkaUnavailable(f"Kafka at {where} does not answer: {_said(error)}") from error


def throttled(where: str, throttle: Throttle) -> KafkaThrottled:
    """Return the error of a client that a quota holds back."""
    seconds = max(1, math.ceil(throttle.left))
    return KafkaThrottled(
        f"Kafka at {where} answers, but holds this user back by a quota for another {seconds:,} s: see "
        f"producer_byte_rate, consumer_byte_rate and request_percentage of the user and of the client id {CLIENT_ID}",
        seconds,
    )


class _Words(logging.Handler):
    """Captures why the client lost its first connection, which it logs but does not raise."""

    def __init__(self) -> None:
        super().__init__()
        self.said = ""

    def emit(self, record: logging.LogRecord) -> None:
        who, lost, why = record.getMessage().partition("Connection lost: ")
        if lost and "bootstrap" in who and not self.said:  # Other clients of this process log here too.
            self.said = why.removeprefix("KafkaConnectionError: ")


class _Manager(KafkaConnectionManager):  # type: ignore[misc]
    """The client's connections. A throttled one is silent for so long, and forgotten by the client where it closes."""

    def __init__(self, net: NetworkSelector, throttle: Throttle, **options: Any) -> None:
        self._throttle = throttle
        super().__init__(net, **options)

    def send(self, *args: Any, **more: Any) -> Any:
        """Send a request; note how long the answer says that the client is held back."""
        future = super().send(*args, **more)
        future.add_callback(self._heard)
        return future

    def _heard(self, answer: Any) -> None:
        if held_ms := getattr(answer, "throttle_time_ms", 0):
            self._throttle.hold(held_ms / 1000)


def _connect(
    where: str, kind: Callable[..., Client], options: Mapping[str, Any], throttle: Throttle, **more: Any
) -> Client:
    """Create a client and connect. If that fails, close its thread and sockets, which it would leave behind."""
    logger, words = logging.getLogger("kafka.net.connection"), _Words()
    made: list[KafkaNetClient] = []

    def make(**given: Any) -> KafkaNetClient:
        net = NetworkSelector(**given)
        made.append(KafkaNetClient(net, _Manager(net, throttle, **given), **given))
        return made[-1]

    logger.addHandler(words)
    try:
        with kafka_errors(where, throttle):
            return kind(**options, **more, kafka_client=make)
    except BaseException as error:
        for client in made:
            client.close()
        if not isinstance(error, KafkaUnavailable) or not words.said:
            raise
        if (fault := certificate_fault(words.said, CAFILE, CERTFILE)) is not None:
            raise KafkaUnavailable(f"no TLS with Kafka at {where} ({words.said}): {fault}") from error
        hint = ""
        if "disconnected" in words.said or "Sasl" in words.said or "SSL" in words.said:
            hint = "; this is typical of a wrong user name, password or OPIC_KAFKA_SECURITY_PROTOCOL for this port"
        raise KafkaUnavailable(f"Kafka at {where} does not answer: {words.said}{hint}") from error
    finally:
        logger.removeHandler(words)


def slow_checksums() -> str | None:
    """Return what to do where checksums of Kafka's batches are computed in Python; None where they are not."""
    if crc32c_c is not None:
        return None
    return (
        "the package crc32c is missing, so Kafka's checksums are computed in Python, which takes much of a worker's "
        "CPU: pip install crc32c, or install opic[kafka] again"
    )


@cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def _quiet_client() -> None:
    """Suppress the client's own log: it writes a dozen lines for each unavailable broker; opic logs one.

    A program that has set a level or a handler for the logger `kafka` keeps them; the client itself adds a NullHandler.
    """
    logger = logging.getLogger("kafka")
    if logger.level == logging.NOTSET and all(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.propagate = False


def _said(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "…"


class KafkaCluster:
    """The Kafka cluster named by the settings. Connections are opened only when needed."""

    def __init__(self, settings: Settings) -> None:
        """Check the options.

        Raises:
            SettingsError: they contradict each other, or a file can't be read.
        """
        if settings.kafka_bootstrap is None:
            raise SettingsError("OPIC_KAFKA_BOOTSTRAP is not set: set it to the brokers, HOST:PORT,HOST:PORT")
        self.settings = settings
        self.where = without_secret(settings.kafka_bootstrap)
        self.topic, self.dlq = settings.kafka_topic, f"{settings.kafka_topic}.dlq"
        self.group = f"opic-{settings.crawl}"  # The consumer group of the crawl's workers.
        # That of a request body, so that every event that the endpoint accepts fits.
        self.record_bytes_max = max(RECORD_BYTES_MIN, settings.max_body_bytes) + RECORD_OVERHEAD_BYTES
        self.throttle = Throttle()
        self._options = _options(settings)
        _quiet_client()
        if (slow := slow_checksums()) is not None:
            _warn_once(slow)

    def errors(self) -> AbstractContextManager[None]:
        """Translate the client's exceptions into opic's."""
        return kafka_errors(self.where, self.throttle)

    def admin(self) -> Client:
        return _connect(
            self.where, KafkaAdminClient, self._options, self.throttle, request_timeout_ms=_ms(REQUEST_SECONDS)
        )

    def consumer(self, **more: Any) -> Client:
        """Create a consumer. It never creates topics and never resets offsets silently."""
        given: dict[str, Any] = {
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "allow_auto_create_topics": False,
            "request_timeout_ms": _ms(REQUEST_SECONDS),
            "metadata_max_age_ms": _ms(METADATA_SECONDS),
            "metrics_enabled": False,
            "isolation_level": self.settings.kafka_isolation,
            "record_bytes_max": self.record_bytes_max,
        }
        return _connect(self.where, BoundedConsumer, self._options, self.throttle, **given | more)

    def producer(self, **more: Any) -> Client:
        """Create an idempotent producer, which waits for all in-sync replicas."""
        given: dict[str, Any] = {
            "acks": "all",
            "enable_idempotence": True,
            "allow_auto_create_topics": False,
            "compression_type": "zstd",
            "max_request_size": self.record_bytes_max,
            "request_timeout_ms": _ms(REQUEST_SECONDS),
            "metadata_max_age_ms": _ms(METADATA_SECONDS),
            "max_block_ms": _ms(REQUEST_SECONDS),
            "delivery_timeout_ms": _ms(2 * REQUEST_SECONDS),
            "metrics_enabled": False,
        }
        return _connect(self.where, KafkaProducer, self._options, self.throttle, **given | more)

    def committed(self) -> dict[TopicPartition, int]:
        """Return what the workers have committed of the topic; nothing where this user may not ask.

        Raises:
            KafkaUnavailable: Kafka does not answer.
        """
        offsets = self.ask_group(lambda admin: admin.list_group_offsets({self.group: None})[self.group])
        if offsets is None:
            log.info("can't see what %s has committed: this user may not describe that group", self.group)
            return {}
        return {
            partition: position.offset
            for partition, position in offsets.items()
            if partition.topic == self.topic and position.offset > 0
        }

    def ask_group(self, ask: Callable[[Client], T]) -> T | None:
        """Return what an admin client is told of the group; None where this user may not describe it.

        Raises:
            KafkaUnavailable: Kafka does not answer.
        """
        end = time.monotonic() + COORDINATOR_SECONDS
        with closing(self.admin()) as admin:
            while True:
                try:
                    with self.errors():
                        return ask(admin)
                except KafkaUnavailable as error:
                    # The first question after Kafka's own first start makes it look for a coordinator.
                    if not isinstance(error.__cause__, _COORDINATOR) or time.monotonic() > end:
                        raise
                    time.sleep(COORDINATOR_POLL_SECONDS)
                except KafkaRefused as error:
                    if not isinstance(error.__cause__, broken.GroupAuthorizationFailedError):
                        raise
                    return None

    def described(self, admin: Client, names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Return what Kafka says of those of the topics that exist, by name.

        Raises:
            KafkaRefused: this user may not describe one of them.
            KafkaUnavailable: Kafka does not answer.
        """
        topics = {}
        with self.errors():
            for topic in admin.describe_topics(list(names)):
                if topic["error_code"] == broken.TopicAuthorizationFailedError.errno:
                    raise KafkaRefused(
                        f"Kafka at {self.where} does not let this user see the topic {topic['name']}, or whether there "
                        "is one: allow the rights in docs/operations.md; `opic doctor` names those that are missing"
                    )
                if not topic["error_code"]:
                    topics[topic["name"]] = topic
                elif topic["error_code"] != broken.UnknownTopicOrPartitionError.errno:
                    raise broken.for_code(topic["error_code"])
        return topics

    def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where partitions end, with the records of transactions that have not ended.

        Raises:
            KafkaUnavailable: Kafka does not answer.
        """
        with closing(self.consumer(isolation_level=ALL)) as consumer, self.errors():
            ends: dict[TopicPartition, int] = consumer.end_offsets(partitions, timeout_ms=_ms(REQUEST_SECONDS))
        return ends

    def check_topics(self, *topics: str) -> None:
        """Check that topics exist.

        Raises:
            KafkaUnavailable: Kafka does not answer.
            KafkaRefused: Kafka refused access, or a topic does not exist.
        """
        with closing(self.consumer()) as consumer:
            for topic in topics:
                self.partitions(consumer, topic)

    def partitions(self, consumer: Client, topic: str | None = None) -> list[TopicPartition]:
        """Return the partitions of a topic, in order.

        Raises:
            KafkaRefused: there is no such topic, or this user may not describe it.
        """
        topic = topic or self.topic
        with self.errors():
            numbers = consumer.partitions_for_topic(topic)
        if not numbers:  # The client leaves out topics that this user may not describe.
            with closing(self.admin()) as admin:
                self.described(admin, [topic])
            raise KafkaRefused(
                f"Kafka at {self.where} has no topic {topic}: create it with `opic topics create`, or set "
                "OPIC_KAFKA_TOPIC to another one"
            )
        return [TopicPartition(topic, number) for number in sorted(numbers)]


def name_of(partition: TopicPartition) -> str:
    """Return the name of a partition in the store."""
    return f"{partition.topic}/{partition.partition}"


def record_of(message: Message) -> Record:
    """Convert a Kafka message to a record. It never raises, because publishers may send anything.

    A record with invalid headers or time becomes a dead letter later. An invalid time is replaced by 0: a dead letter
    moves no cash, so neither the series nor anything with a time limit depends on it.
    """
    headers = {name: value or b"" for name, value in message.headers or ()}  # A header's value may be null.
    kind = headers.get(KIND, b"event").decode("utf-8", "replace")
    key, index = headers.get(KEY, b""), headers.get(INDEX, b"")
    call, problem, time_us = b"", "", message.timestamp * 1000
    if key or index:
        numbers = _numbers(index)
        if len(key) == CALL_KEY_BYTES and numbers is not None:
            call = key + b"".join(number.to_bytes(CALL_INDEX_BYTES, "big") for number in numbers)
        else:
            problem = (
                f"the headers {KEY} and {INDEX} must be {CALL_KEY_BYTES} bytes and a number below 2^32 for each event, "
                "with commas between them, or both missing"
            )
    if not TIME_MIN_US <= time_us <= TIME_MAX_US:
        problem = (
            f"the record's time, {message.timestamp} ms, is not between 1990 and 2100: set it in milliseconds, or set "
            "message.timestamp.type=LogAppendTime on the topic"
        )
        time_us = 0
    return Record(message.offset, time_us, message.value or b"", kind, call, problem, trace=trace_of(headers))


def _numbers(text: bytes) -> list[int] | None:
    """Return the numbers of the header INDEX; None if they are not numbers below 2^32."""
    parts = text.split(b",", PACKED_EVENTS_MAX)
    # Python refuses to read a number of 4,301 digits.
    if not all(part.isdigit() and len(part) <= INDEX_DIGITS_MAX for part in parts):
        return None
    numbers = list(map(int, parts))
    return numbers if max(numbers) < 1 << 8 * CALL_INDEX_BYTES else None


def headers_of(kind: str = "event", key: bytes = b"", indexes: Iterable[int] = (0,)) -> list[tuple[str, bytes]]:
    """Return the headers that `record_of` reads."""
    assert kind in RECORD_KINDS
    headers = [] if kind == "event" else [(KIND, kind.encode())]
    return headers + ([(KEY, key), (INDEX, ",".join(map(str, indexes)).encode())] if key else [])


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _options(settings: Settings) -> Mapping[str, Any]:
    assert settings.kafka_bootstrap is not None
    protocol = settings.kafka_security_protocol
    if "@" in settings.kafka_bootstrap:
        raise SettingsError(
            f"OPIC_KAFKA_BOOTSTRAP={without_secret(settings.kafka_bootstrap)} has a user and password: set it to "
            "HOST:PORT,HOST:PORT, and give them in OPIC_KAFKA_SASL_USERNAME and OPIC_KAFKA_SASL_PASSWORD"
        )
    options: dict[str, Any] = {
        "bootstrap_servers": [part.strip() for part in settings.kafka_bootstrap.split(",")],
        "client_id": CLIENT_ID,
        "security_protocol": protocol,
        "reconnect_backoff_max_ms": _ms(RECONNECT_SECONDS_MAX),
        "bootstrap_timeout_ms": _ms(BOOTSTRAP_SECONDS),
    }
    if protocol.startswith("SASL"):
        user, password = settings.kafka_sasl_username, settings.kafka_sasl_password
        if user is None or password is None:
            raise SettingsError(
                f"OPIC_KAFKA_SECURITY_PROTOCOL={protocol} needs OPIC_KAFKA_SASL_USERNAME and OPIC_KAFKA_SASL_PASSWORD"
            )
        options["sasl_mechanism"] = settings.kafka_sasl_mechanism
        options["sasl_plain_username"], options["sasl_plain_password"] = user, password.get_secret_value()
    if protocol.endswith("SSL"):
        options["ssl_context"] = _tls(settings)
    return options


def _tls(settings: Settings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.kafka_ssl_cafile)
        context.check_hostname = settings.kafka_ssl_check_hostname
        if settings.kafka_ssl_certfile is not None:
            secret = settings.kafka_ssl_password
            context.load_cert_chain(
                settings.kafka_ssl_certfile,
                settings.kafka_ssl_keyfile,
                secret.get_secret_value() if secret is not None else None,
            )
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"OPIC_KAFKA_SSL_CAFILE, _CERTFILE, _KEYFILE or _PASSWORD: {error}") from None
    return context
