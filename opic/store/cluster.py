"""Redis Cluster client: reaches the server of a shard, whose keys are all in one slot.

It is redis-py's client, which follows moved slots and changed primaries, with three differences. The keys of a function
call are taken from the call, without asking a server. A pipeline is sent to one server as a whole and succeeds or fails
as a whole: if single commands were resent later, columns would be of different instants. And when a server does not
respond, one caller waits for it, instead of all callers in turn.
"""

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import redis
from redis._parsers.commands import CommandsParser
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import parse_url
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, RedisClusterException, SlotNotCoveredError, TryAgainError
from redis.retry import Retry

from opic.errors import SettingsError, StoreError
from opic.redaction import without_secret
from opic.store.library import LoadsLibrary, is_missing, load_functions

SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
SILENT_SECONDS = 1.0  # After a timeout, calls to the same server fail at once for this long.
PAUSE_SECONDS = 0.1  # Before a pipeline is resent: an election takes seconds, a moved slot is found at once.
# How long a pipeline is resent while a slot moves: until the move ends, calls that name keys on both sides are refused.
MOVING_SECONDS = 5.0
# Errors that mean that a slot is served elsewhere or temporarily unavailable. MOVED is a subclass of AskError.
ELSEWHERE = (AskError, TryAgainError, ClusterDownError, SlotNotCoveredError, redis.exceptions.ReadOnlyError)
MOVING = (AskError, TryAgainError)


class _Keys(CommandsParser):
    """Finds the keys of a command; redis-py would send the whole call to a server to find them."""

    def get_keys(self, redis_conn: Any, *args: Any) -> Any:
        """Return one of the keys; the server checks that all keys are in its slot."""
        name = args[0].upper() if isinstance(args[0], str) else ""
        if name in ("FCALL", "FCALL_RO"):
            return args[3:4] if int(args[2]) else None
        if name == "XREAD":
            words = [word.upper() if isinstance(word, str) else word for word in args]
            position = next(index for index, word in enumerate(words) if word in ("STREAMS", b"STREAMS"))
            return args[position + 1 : position + 2]
        return super().get_keys(redis_conn, *args)


class Cluster(LoadsLibrary, RedisCluster):
    """A client of all nodes of a cluster. Thread-safe."""

    # After a timeout, the command is not sent again.
    ERRORS_ALLOW_RETRY: Any = tuple(e for e in RedisCluster.ERRORS_ALLOW_RETRY if e is not redis.TimeoutError)

    def __init__(self, *args: Any, **options: Any) -> None:
        self.outdated = False  # Set after a redirection: the next call reads the slot table again.
        self._silent_until: dict[str, float] = {}
        super().__init__(*args, **options)
        self.commands_parser = _Keys(self)

    def node_of(self, key: str | bytes) -> ClusterNode:
        """Return the primary of a key's slot, according to the cached slot table."""
        if self.outdated:
            self.nodes_manager.initialize()
            self.outdated = False
        node: ClusterNode = self.get_node_from_key(key)
        return node

    def pool_of(self, key: str | bytes) -> Any:
        """Return the connection pool of the server that has a key's slot."""
        return self.get_redis_connection(self.node_of(key)).connection_pool

    def check_silence(self, name: str) -> None:
        """Raise TimeoutError if a call to the node has just timed out."""
        if time.monotonic() < self._silent_until.get(name, 0.0):
            raise redis.TimeoutError("the previous call to it timed out")

    def was_silent(self, name: str) -> None:
        """Record that a call to a node timed out."""
        self._silent_until[name] = time.monotonic() + SILENT_SECONDS
        self.outdated = True

    def _execute_command(self, target_node: ClusterNode, *args: Any, **options: Any) -> Any:
        self.check_silence(target_node.name)
        try:
            return super()._execute_command(target_node, *args, **options)
        except redis.TimeoutError:
            self.was_silent(target_node.name)
            raise

    def pipeline(self, transaction: bool | None = True, shard_hint: Any = None) -> Any:
        """Return a pipeline that sends its commands to each server as a whole."""
        return _Pipeline(self, bool(transaction))


class _Pipeline(Pipeline):
    """A pipeline. Commands for several servers are grouped; each group is sent as a whole, one after the other."""

    def __init__(self, cluster: Cluster, transaction: bool) -> None:
        super().__init__(None, {}, transaction, None)  # type: ignore[arg-type]
        self._cluster, self._held = cluster, transaction

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send the commands; return the replies in order."""
        try:
            stack = list(self.command_stack)
            keys = [self._cluster._get_command_keys(*args)[0] for args, _ in stack]
            if self._held and len({key_slot(_bytes(key)) for key in keys}) > 1:
                raise RedisClusterException("a transaction over several shards")
            answers: list[Any] = [None] * len(stack)
            left, tries = list(range(len(stack))), self._cluster.retry.get_retries()
            moving_until = time.monotonic() + MOVING_SECONDS
            while left:
                groups: dict[str, list[int]] = {}
                nodes = {}
                for index in left:
                    node = self._cluster.node_of(keys[index])
                    nodes[node.name] = node
                    groups.setdefault(node.name, []).append(index)
                left = []
                for name, places in groups.items():
                    try:
                        replies = self._of_one(nodes[name], [stack[index] for index in places])
                    except (redis.ConnectionError, *ELSEWHERE) as error:
                        self._cluster.outdated = True
                        moving = isinstance(error, MOVING) and time.monotonic() < moving_until
                        if not tries and not moving:
                            raise
                        left += places
                        continue
                    for index, answer in zip(places, replies, strict=True):
                        answers[index] = answer
                if left:
                    tries = max(tries - 1, 0)
                    time.sleep(PAUSE_SECONDS)
            if raise_on_error and (wrong := next((a for a in answers if isinstance(a, Exception)), None)):
                raise wrong
            return answers
        finally:
            self.reset()

    def _of_one(self, node: ClusterNode, stack: Sequence[Any]) -> list[Any]:
        self._cluster.check_silence(node.name)
        server = self._cluster.get_redis_connection(node)
        with Pipeline(server.connection_pool, server.response_callbacks, self._held, None) as pipe:
            pipe.command_stack = list(stack)
            try:
                answers: list[Any] = pipe.execute(raise_on_error=False)
            except redis.TimeoutError:
                self._cluster.was_silent(node.name)
                raise
        if any(
            isinstance(a, Exception) and is_missing(a) for a in answers
        ):  # Safe to resend: function calls are idempotent.
            load_functions(self._cluster)
            with Pipeline(server.connection_pool, server.response_callbacks, self._held, None) as pipe:
                pipe.command_stack = list(stack)
                answers = pipe.execute(raise_on_error=False)
        if sent_away := next((a for a in answers if isinstance(a, ELSEWHERE)), None):
            raise sent_away
        return answers


def connect_cluster(url: str, *, retries: int, on_connect: Any, **options: Any) -> Cluster:
    """Connect to redis+cluster://[user:password@]host:port[,host:port…][?option=value], or rediss+cluster:// for TLS.

    Raises:
        SettingsError: the URL is invalid.
        StoreError: no node has a slot.
    """
    parts, shown = urlsplit(url), without_secret(url)
    login, at_sign, hosts = parts.netloc.rpartition("@")
    try:
        nodes = [_host_and_port(host) for host in hosts.split(",")]
        query = f"?{parts.query}" if parts.query else ""
        options |= parse_url(f"{SCHEMES[parts.scheme]}://{login}{at_sign}{hosts.split(',')[0]}{parts.path}{query}")
    except (ValueError, KeyError):
        raise SettingsError(f"OPIC_STORE={shown}: use {parts.scheme}://host:port,host:port") from None
    if options.pop("db", 0):
        raise SettingsError(f"OPIC_STORE={shown}: a cluster has only database 0")
    for name in ("host", "port", "connection_class"):
        options.pop(name, None)
    if parts.scheme.startswith("rediss"):
        options["ssl"] = True
    try:
        return Cluster(
            startup_nodes=[ClusterNode(host, port) for host, port in nodes],
            retry=Retry(NoBackoff(), retries),
            require_full_coverage=False,  # `check_server` reports missing slots.
            redis_connect_func=on_connect,
            **options,
        )
    except IndexError:
        raise StoreError(
            f"the cluster at {shown} has no slots: assign them to its nodes, as by `redis-cli --cluster create`"
        ) from None


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text.rpartition("]")[2] else (text, "", "6379")
    if not host:
        raise ValueError(text)
    return host.strip("[]"), int(port)


def _bytes(key: Any) -> bytes:
    return key if isinstance(key, bytes) else str(key).encode()
