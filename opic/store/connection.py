"""Connections to the store, and the words for what can go wrong with one."""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import AbstractBackoff, ExponentialBackoff, NoBackoff
from redis.exceptions import ClusterError, RedisClusterException
from redis.retry import Retry

from opic.errors import SettingsError, StoreError, StoreFull, StoreUnavailable
from opic.store.cluster import ELSEWHERE, SCHEMES, SILENT_SECONDS, Cluster, connect_cluster
from opic.store.library import LoadsLibrary, is_missing
from opic.store.library import load_functions as _load

# redis-py types each answer as bytes or str or None; we never decode answers, and check what may be missing.
Client = Any
TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 5.0
RUN_ID = re.compile(rb"run_id:(\w+)")
RUN = "opic_run_id"  # What a connection of ours remembers of its server; "" on a new one.


def without_secret(url: str) -> str:
    """Return a store's URL fit for a log: no user, no password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class _Silence:
    """Until when a server that somebody waited for in vain is not asked again; one for all connections of a client."""

    until = 0.0

    def __deepcopy__(self, _: dict[int, Any]) -> "_Silence":
        return self  # The client copies its retry for each connection.


class _Patience(Retry):
    """Try again where the connection broke, not where the server said nothing: then nobody waits for a moment.

    Calls may stand in a row, behind a lock, for a server that is paused. Without this each of them would wait for its
    own time, one after the other.
    """

    def __init__(self, backoff: AbstractBackoff, retries: int) -> None:
        super().__init__(backoff, retries, supported_errors=(redis.ConnectionError,))
        self._silence = _Silence()

    def call_with_retry(self, *args: Any, **options: Any) -> Any:
        if time.monotonic() < self._silence.until:
            raise redis.TimeoutError("it said nothing to the one before")
        try:
            return super().call_with_retry(*args, **options)
        except redis.TimeoutError:
            self._silence.until = time.monotonic() + SILENT_SECONDS
            raise


class _Server(LoadsLibrary, redis.Redis):
    """A client of one server."""


def _mark(connection: Any) -> None:
    """Tell a new connection: the client makes them silently, maybe to a server that was started again."""
    setattr(connection, RUN, b"")


def _mark_connected(connection: Any) -> None:
    connection.on_connect()
    _mark(connection)


def connect(url: str, *, retries: int = 3, timeout_seconds: float = TIMEOUT_SECONDS) -> Client:
    """Connect to redis://, rediss://, unix://, redis+cluster:// or rediss+cluster://.

    Nothing is sent yet, but to a cluster: one of its nodes is asked for the others.

    Args:
        url: of the store; of a cluster, of some of its nodes: redis+cluster://user:password@host:port,host:port.
        retries: how often a command is sent again after a lost connection. Reads and the fenced step may be repeated;
            an append may not, since nobody knows whether the lost one took effect. A server that says nothing is not
            asked again: it was given its time.
        timeout_seconds: how long an answer may take.

    Raises:
        SettingsError: no such scheme.
        StoreError: none of the cluster's nodes answers, or none is part of a cluster.
    """
    scheme = urlsplit(url).scheme
    options = {"socket_timeout": timeout_seconds, "socket_connect_timeout": CONNECT_SECONDS}
    if scheme in SCHEMES:
        with store_errors():
            return connect_cluster(url, retries=retries, on_connect=_mark, **options)
    if scheme not in ("redis", "rediss", "unix"):
        raise SettingsError(
            f"OPIC_STORE={without_secret(url)}: use redis://, rediss://, redis+cluster://, rediss+cluster://, unix:// "
            "or embedded:DIR"
        )
    backoff = ExponentialBackoff(cap=0.5, base=0.02) if retries else NoBackoff()
    retry = _Patience(backoff, retries)
    return _Server.from_url(url, redis_connect_func=_mark_connected, retry=retry, **options)


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn the client's exceptions into ours."""
    try:
        yield
    except (redis.RedisError, RedisClusterException) as error:
        raise _ours(error) from error


def _ours(error: Exception) -> StoreError:
    """Say what went wrong and, where somebody can do something, what. No text of the client holds a secret."""
    if isinstance(error, RedisClusterException) and error.__cause__ is not None:
        return _ours(error.__cause__) if isinstance(error.__cause__, Exception) else StoreUnavailable(str(error))
    text = str(error)
    if isinstance(error, redis.AuthenticationError) or "WRONGPASS" in text or "NOAUTH" in text:
        return StoreError(f"the store says: wrong user or password ({text}): see those in OPIC_STORE")
    if isinstance(error, redis.exceptions.NoPermissionError):
        return StoreError(f"the store's user lacks a right ({text}): see docs/operations.md for what it needs")
    if "Cluster mode is not enabled" in text:
        return StoreError("the store is no cluster: use redis:// in the place of redis+cluster://")
    if "SSL" in text or "CERTIFICATE" in text:
        return StoreUnavailable(
            f"TLS with the store failed ({text}): does that port speak TLS, and does ?ssl_ca_certs=FILE in OPIC_STORE "
            "name who signed its certificate?"
        )
    if isinstance(error, redis.exceptions.ReadOnlyError):
        return StoreUnavailable(f"the store is a replica, which takes no writes: {text}")
    if isinstance(error, (*ELSEWHERE, ClusterError)):
        return StoreUnavailable(f"a slot of the cluster is moving or down: {text}")
    if is_missing(error):
        return StoreUnavailable(f"the store lost the function library: {text}")
    if not isinstance(error, redis.ResponseError):
        return StoreUnavailable(f"the store does not answer: {text}")
    if "OPICFULL" in text:
        return StoreFull(text)
    if text.startswith(("LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY")):
        return StoreUnavailable(f"the store is not ready: {text}")
    if isinstance(error, redis.exceptions.OutOfMemoryError) or text.startswith("MISCONF") or "OOM command" in text:
        return StoreUnavailable(f"the store can't write (is its disk or memory full?): {text}")
    if text.startswith("NOREPLICAS"):
        return StoreUnavailable(f"the store wants more replicas before it writes (min-replicas-to-write): {text}")
    return StoreError(f"the store refused a command: {text}")


class Line:
    """One connection to the server of a shard, for whoever sends ahead: answers come in the order of the commands.

    `run_id` names the run of that server: another one may have lost the last of what it was told.
    """

    def __init__(self, client: Client, key: str) -> None:
        """Take a connection of the client's pool, to the server that has the key; give it back by `close`.

        Raises:
            StoreUnavailable: it can't be reached.
        """
        self._client, self._cluster = client, client if isinstance(client, Cluster) else None
        self._open = 0  # Answers still to come.
        self.sent = 0  # Messages, each a round trip.
        with store_errors(), self._sent_elsewhere():
            self._pool = self._cluster.pool_of(key) if self._cluster is not None else client.connection_pool
            self._connection = self._pool.get_connection()
        try:
            self.run_id = self._run_id()
        except BaseException:
            self.close()
            raise

    def _run_id(self) -> bytes:
        known: bytes | None = getattr(self._connection, RUN, None)
        if known:
            return known
        self.send(["INFO", "server"])
        found = RUN_ID.search(self.answer())
        if found is None:
            raise StoreError("the store's INFO names no run_id: is something between us and it?")
        if known is not None:  # Not one of ours is marked when it is new: it is asked each time.
            setattr(self._connection, RUN, found[1])
        return found[1]

    def send(self, *commands: Sequence[Any]) -> None:
        """Send commands, in one piece."""
        self._open += len(commands)
        self.sent += bool(commands)
        with store_errors(), self._sent_elsewhere():
            self._connection.send_packed_command(self._connection.pack_commands(commands))

    def answer(self) -> Any:
        """Wait for the next answer."""
        with store_errors():
            return self._read()

    def answers(self, count: int) -> list[Any]:
        """Wait for the next answers; a refusal is one of them, not raised, unless it says to ask elsewhere."""
        found: list[Any] = []
        with store_errors():
            for _ in range(count):
                try:
                    found.append(self._read())
                except ELSEWHERE:
                    raise
                except redis.ResponseError as error:
                    found.append(error)
        return found

    def _read(self) -> Any:
        self._open -= 1
        with self._sent_elsewhere():
            try:
                return self._connection.read_response()
            except redis.ResponseError as error:
                if is_missing(error):  # Nothing was written: whoever tries again will find it.
                    _load(self._client)
                raise

    @contextmanager
    def _sent_elsewhere(self) -> Iterator[None]:
        """Let the next line ask who has which slot, if this one's server has it no more."""
        try:
            yield
        except (redis.ConnectionError, redis.TimeoutError, *ELSEWHERE):
            if self._cluster is not None:
                self._cluster.outdated = True
            raise

    def close(self) -> None:
        """Give the connection back, or end it if answers are under way: nobody else may take them for his."""
        if self._open:
            self._connection.disconnect()
        self._pool.release(self._connection)
