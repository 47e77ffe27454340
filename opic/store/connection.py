"""Connections to the store, and the words for what can go wrong with one."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import AbstractBackoff, ExponentialBackoff, NoBackoff
from redis.retry import Retry

from opic.errors import NotBuiltYet, SettingsError, StoreError, StoreFull, StoreUnavailable

# redis-py types each answer as bytes or str or None; we never decode answers, and check what may be missing.
Client = Any
TIMEOUT_SECONDS = 30.0
SILENT_SECONDS = 1.0  # After somebody waited for so long in vain, others need not.
LIBRARY = "opic_1"
VERSION_MIN = (7, 0)


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


def connect(url: str, *, retries: int = 3, timeout_seconds: float = TIMEOUT_SECONDS) -> Client:
    """Connect to redis://, rediss:// or unix://. Nothing is sent yet.

    Args:
        url: of the store.
        retries: how often a command is sent again after a lost connection. Reads and the fenced step may be repeated;
            an append may not, since nobody knows whether the lost one took effect. A server that says nothing is not
            asked again: it was given its time.
        timeout_seconds: how long an answer may take.

    Raises:
        SettingsError: no such scheme.
        NotBuiltYet: a cluster.
    """
    scheme = urlsplit(url).scheme
    if scheme == "redis+cluster":
        raise NotBuiltYet("redis+cluster:// is not built yet: use one redis:// server, or the embedded store")
    if scheme not in ("redis", "rediss", "unix"):
        raise SettingsError(f"OPIC_STORE={without_secret(url)}: use redis://, rediss://, unix:// or embedded:DIR")
    backoff = ExponentialBackoff(cap=0.5, base=0.02) if retries else NoBackoff()
    retry = _Patience(backoff, retries)
    return redis.Redis.from_url(url, socket_timeout=timeout_seconds, socket_connect_timeout=5.0, retry=retry)


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn the client's exceptions into ours."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise StoreUnavailable(f"the store does not answer: {error}") from error
    except redis.ResponseError as error:
        text = str(error)
        if "OPICFULL" in text:
            raise StoreFull(text) from error
        if text.startswith(("LOADING", "MASTERDOWN", "CLUSTERDOWN", "BUSY")):
            raise StoreUnavailable(f"the store is not ready: {text}") from error
        if text.startswith("MISCONF") or "OOM command not allowed" in text:
            raise StoreUnavailable(f"the store can't write (is its disk or memory full?): {text}") from error
        raise StoreError(f"the store refused a command: {text}") from error


class Line:
    """One connection, for whoever sends ahead: answers come in the order of the commands."""

    def __init__(self, client: Client) -> None:
        """Take a connection of the client's pool; give it back by `close`."""
        self._pool = client.connection_pool
        with store_errors():
            self._connection = self._pool.get_connection()
        self._open = 0  # Answers still to come.

    def send(self, *commands: Sequence[Any]) -> None:
        """Send commands, in one piece."""
        self._open += len(commands)
        with store_errors():
            self._connection.send_packed_command(self._connection.pack_commands(commands))

    def answer(self) -> Any:
        """Wait for the next answer."""
        with store_errors():
            return self._read()

    def answers(self, count: int) -> list[Any]:
        """Wait for the next answers; a refusal is one of them, not raised."""
        found: list[Any] = []
        with store_errors():
            for _ in range(count):
                try:
                    found.append(self._read())
                except redis.ResponseError as error:
                    found.append(error)
        return found

    def _read(self) -> Any:
        self._open -= 1
        return self._connection.read_response()

    def close(self) -> None:
        """Give the connection back, or end it if answers are under way: nobody else may take them for his."""
        if self._open:
            self._connection.disconnect()
        self._pool.release(self._connection)


def check_server(client: Client) -> None:
    """Refuse a server that could not keep the books: too old, or one that evicts keys.

    Raises:
        StoreError: with what to change.
    """
    with store_errors():
        info = client.info("server")
        version = tuple(int(part) for part in str(info["redis_version"]).split(".")[:2])
        if version < VERSION_MIN:
            raise StoreError(f"the store is Redis {info['redis_version']}: functions need Redis 7.0 or any Valkey")
        policy = client.info("memory").get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            raise StoreError(f"the store's maxmemory-policy is {policy}, which would evict cash: set it to noeviction")


def load_functions(client: Client) -> None:
    """Load the function library, unless the server has this very text already."""
    code = (Path(__file__).parent / "opic.lua").read_text()
    with store_errors():
        for library in client.function_list(LIBRARY, withcode=True):
            flat = dict(zip(library[::2], library[1::2], strict=True)) if isinstance(library, list) else library
            if flat.get(b"library_code", b"").decode() == code:
                return
        client.function_load(code, replace=True)
