"""Connections to Redis or Valkey: clients, error translation, and pipelined connections to a shard's server."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import AbstractBackoff, ExponentialBackoff, NoBackoff
from redis.exceptions import ClusterError, RedisClusterException
from redis.retry import Retry

from opic.errors import CrawlStopped, SettingsError, SlotMoving, StoreError, StoreFull, StoreLoading, StoreUnavailable
from opic.redaction import without_secret
from opic.store.cluster import ELSEWHERE, MOVING, SCHEMES, SILENT_SECONDS, Cluster, connect_cluster
from opic.store.library import LoadsLibrary, is_missing
from opic.store.library import load_functions as _load
from opic.tls import certificate_fault

# redis-py types each reply as bytes, str or None. Replies are never decoded here; possibly missing ones are checked.
Client = Any
TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 5.0
ESCAPES = (
    "'@' comes after '/', '?' or '#'. In a user name, a password or an option write '/' as %2F, '?' as %3F, '#' as %23 "
    "and '@' as %40"
)
FORMS = "use redis://HOST:PORT, rediss://, redis+cluster://, rediss+cluster://, unix:// or embedded:DIR"
TRUST = "?ssl_ca_certs=FILE in OPIC_STORE"
OWN_CERTIFICATE = "?ssl_certfile=FILE&ssl_keyfile=FILE in OPIC_STORE"
BY_ADDRESS = (
    ". A cluster names its nodes by address, unless they have cluster-announce-hostname, and "
    "cluster-preferred-endpoint-type hostname"
)
AWAY = (redis.ConnectionError, redis.TimeoutError, *ELSEWHERE)  # What says that a slot's server may be another one.
RUN_ID = re.compile(rb"run_id:(\w+)")
RUN = "opic_run_id"  # Attribute of a connection: the run id of its server; empty on a new connection.


class _Silence:
    """The time until which calls fail at once after a timeout; shared by all connections of a client."""

    until = 0.0

    def __deepcopy__(self, _: dict[int, Any]) -> "_Silence":
        return self  # The client copies its retry for each connection.


class _Patience(Retry):
    """Retries after connection errors, but not after timeouts: then calls fail at once for SILENT_SECONDS.

    Calls may queue behind a lock for a paused server. Without this, each of them would wait for its own timeout, one
    after the other.
    """

    def __init__(self, backoff: AbstractBackoff, retries: int) -> None:
        super().__init__(backoff, retries, supported_errors=(redis.ConnectionError,))
        self._silence = _Silence()

    def call_with_retry(self, *args: Any, **options: Any) -> Any:
        if time.monotonic() < self._silence.until:
            raise redis.TimeoutError("the previous call to it timed out")
        try:
            return super().call_with_retry(*args, **options)
        except redis.TimeoutError:
            self._silence.until = time.monotonic() + SILENT_SECONDS
            raise


class _Server(LoadsLibrary, redis.Redis):
    """A client of one server."""


def _mark(connection: Any) -> None:
    """Mark a new connection: redis-py reconnects silently, possibly to a server that has restarted."""
    setattr(connection, RUN, b"")


def _mark_connected(connection: Any) -> None:
    connection.on_connect()
    _mark(connection)


def connect(url: str, *, retries: int = 3, timeout_seconds: float = TIMEOUT_SECONDS) -> Client:
    """Connect to redis://, rediss://, unix://, redis+cluster:// or rediss+cluster://.

    Nothing is sent yet, except to a cluster: one of its nodes is asked for the list of nodes.

    Args:
        url: URL of the store; for a cluster with some of its nodes: redis+cluster://user:password@host:port,host:port.
        retries: how often a command is resent after a lost connection. Reads and the fenced step may be repeated; an
            append may not, because the lost one may have taken effect. Commands are not resent after a timeout.
        timeout_seconds: timeout of a reply.

    Raises:
        SettingsError: the scheme is unknown, or the URL is invalid.
        StoreError: no node of the cluster answers, or none is part of a cluster.
    """
    scheme = _scheme_of(url)
    options = {"socket_timeout": timeout_seconds, "socket_connect_timeout": CONNECT_SECONDS}
    if scheme in SCHEMES:
        with store_errors():
            return connect_cluster(url, retries=retries, on_connect=_mark, **options)
    if scheme not in ("redis", "rediss", "unix"):
        what = "that is the URL of a service; a store is a Redis server: " if scheme in ("http", "https") else ""
        raise _invalid(url, f"{what}{FORMS}")
    backoff = ExponentialBackoff(cap=0.5, base=0.02) if retries else NoBackoff()
    retry = _Patience(backoff, retries)
    try:
        return _Server.from_url(url, redis_connect_func=_mark_connected, retry=retry, **options)
    except ValueError:
        raise _invalid(url, f"its port or an option is invalid: use {scheme}://user:password@HOST:PORT") from None


def _scheme_of(url: str) -> str:
    """Return the scheme of a store's URL.

    Raises:
        SettingsError: the URL is invalid, or a part of the password would be taken for the host or the port.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _invalid(url, "its host is invalid: use HOST:PORT, or [ADDRESS]:PORT for IPv6") from None
    after = f"{parts.path}{parts.query}{parts.fragment}"
    if "@" in after and (parts.netloc or parts.scheme != "unix"):
        raise _invalid(url, ESCAPES if "://" in url else FORMS)
    return parts.scheme


def _invalid(url: str, what: str) -> SettingsError:
    return SettingsError(f"OPIC_STORE={without_secret(url)}: {what}")


@contextmanager
def store_errors(cluster: Cluster | None = None) -> Iterator[None]:
    """Translate redis-py's exceptions into StoreError and its subclasses.

    Args:
        cluster: reads its slot table again for the next line, after a redirection or a lost connection.
    """
    try:
        yield
    except (redis.RedisError, RedisClusterException) as error:
        if cluster is not None and isinstance(error, AWAY):
            cluster.outdated = True
        raise _ours(error) from error


def _ours(error: Exception) -> StoreError:
    """Return a StoreError that names the problem and, if there is one, the remedy. redis-py's texts hold no secrets."""
    if isinstance(error, RedisClusterException) and error.__cause__ is not None:
        return _ours(error.__cause__) if isinstance(error.__cause__, Exception) else StoreUnavailable(str(error))
    text = str(error)
    if isinstance(error, redis.AuthenticationError) or "WRONGPASS" in text or "NOAUTH" in text:
        return StoreError(f"the store says: wrong user or password ({text}): check those in OPIC_STORE")
    if isinstance(error, redis.exceptions.NoPermissionError):
        return StoreError(f"the store's user lacks a permission ({text}): docs/operations.md lists what it needs")
    if "Cluster mode is not enabled" in text:
        return StoreError("the store is not a cluster: use redis:// instead of redis+cluster://")
    if "SSL" in text or "_ssl.c" in text:
        # A server that wants a certificate of its clients closes the connection without a word in TLS 1.3.
        open_question = f"does it run, does that port speak TLS, and does it want a certificate ({OWN_CERTIFICATE})?"
        fault = certificate_fault(text, TRUST, OWN_CERTIFICATE) or open_question
        by_address = BY_ADDRESS if "IP address mismatch" in text else ""
        return StoreUnavailable(f"TLS with the store failed ({text}): {fault}{by_address}")
    if isinstance(error, redis.exceptions.ReadOnlyError):
        return StoreUnavailable(f"the store is a replica, which takes no writes: {text}")
    if isinstance(error, (*ELSEWHERE, ClusterError)):
        kind = SlotMoving if isinstance(error, MOVING) else StoreUnavailable
        return kind(f"a slot of the cluster is moving or down: {text}")
    if is_missing(error):
        return StoreUnavailable(f"the store lost the function library: {text}")
    if isinstance(error, redis.exceptions.InvalidResponse):
        # The first byte of the answer: H of HTTP/1.1, or < of a page of an older server.
        http = text.startswith(('Protocol error, got "H"', 'Protocol error, got "<"'))
        speaks = "this answers HTTP" if http else text
        return StoreError(
            f"what answers is no Redis server ({speaks}): OPIC_STORE wants the URL of one, such as redis://HOST:6379"
        )
    if isinstance(error, redis.exceptions.BusyLoadingError) or text.startswith("LOADING"):
        return StoreLoading(f"the store is loading its data: {text}")
    if not isinstance(error, redis.ResponseError):
        return StoreUnavailable(f"the store does not answer: {text}")
    if "OPICFULL" in text:
        return StoreFull(text)
    if "OPICSTOPPED" in text:
        return CrawlStopped()
    if text.startswith(("MASTERDOWN", "CLUSTERDOWN", "BUSY")):
        return StoreUnavailable(f"the store is not ready: {text}")
    if isinstance(error, redis.exceptions.OutOfMemoryError) or text.startswith("MISCONF") or "OOM command" in text:
        return StoreUnavailable(f"the store can't write (is its disk or memory full?): {text}")
    if text.startswith("NOREPLICAS"):
        return StoreUnavailable(
            f"the store refuses writes until more replicas are connected (min-replicas-to-write): {text}"
        )
    return StoreError(f"the store refused a command: {text}")


def ask(client: Client, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Send commands together, each to the server of the key that it names; return the replies in order.

    Raises:
        StoreError: a server can't be reached, or refused a command.
    """
    with store_errors():
        if len(commands) == 1:
            return [client.execute_command(*commands[0])]
        with client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            answers: list[Any] = pipe.execute()
    return answers


class Line:
    """One pipelined connection to the server of a shard: commands may be sent ahead; replies come in the same order.

    `run_id` identifies the run of that server: after a restart it may have lost its last writes.
    """

    def __init__(self, client: Client, key: str) -> None:
        """Take a connection to the server of a key from the client's pool; `close` returns it.

        Raises:
            StoreUnavailable: the server can't be reached.
        """
        self._client, self._cluster = client, client if isinstance(client, Cluster) else None
        self._open = 0  # Outstanding replies.
        self.sent = 0  # Messages sent, each a round trip.
        with store_errors(self._cluster):
            self._pool = self._cluster.pool_of(key) if self._cluster is not None else client.connection_pool
            self._connection = self._pool.get_connection()
        try:
            self.run_id: bytes = getattr(self._connection, RUN, None) or self._ask_run_id()
        except BaseException:
            self.close()
            raise

    def _ask_run_id(self) -> bytes:
        self.send(["INFO", "server"])
        match = RUN_ID.search(self.answer())
        if match is None:
            raise StoreError("the store's INFO has no run_id: is there a proxy in front of it?")
        if hasattr(self._connection, RUN):  # Only connections that are marked when new may cache it.
            setattr(self._connection, RUN, match[1])
        return match[1]

    def send(self, *commands: Sequence[Any]) -> None:
        self._open += len(commands)
        self.sent += bool(commands)
        with store_errors(self._cluster):
            self._connection.send_packed_command(self._connection.pack_commands(commands))

    def answer(self) -> Any:
        with store_errors(self._cluster):
            return self._read()

    def answers(self, count: int) -> list[Any]:
        """Wait for the next replies. Error replies are returned, not raised, except redirections."""
        replies: list[Any] = []
        with store_errors(self._cluster):
            for _ in range(count):
                try:
                    replies.append(self._read())
                except ELSEWHERE:
                    raise
                except redis.ResponseError as error:
                    replies.append(error.with_traceback(None))  # Whose frames hold this list.
        return replies

    def _read(self) -> Any:
        self._open -= 1
        try:
            return self._connection.read_response()
        except redis.ResponseError as error:
            if is_missing(error):  # Nothing was written; a retry finds the library.
                _load(self._client)
            raise

    def close(self) -> None:
        """Return the connection to the pool; disconnect it if replies are outstanding, so that no one reads them."""
        if self._open:
            self._connection.disconnect()
        self._pool.release(self._connection)


def run_of(client: Client, key: str) -> bytes:
    """Return the run id of the server that has a key now."""
    with closing(Line(client, key)) as line:
        return line.run_id
