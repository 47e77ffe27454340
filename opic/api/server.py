"""Listening, and a server that ends in order: requests in hand are answered, idle connections closed."""

import contextlib
import errno
import ipaddress
import math
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import uvicorn
from fastapi import FastAPI

from opic.api.http_protocol import LOOK_SECONDS, Config, ConnectionLimits, ConnectionWatch, Wire
from opic.errors import SettingsError
from opic.memory import search_garbage_rarely

BACKLOG: Final = 2_048
GRACE_SECONDS: Final = 5  # For the requests in hand when told to end.
SWITCH_SECONDS: Final = 0.0005
FILES_OF_OURS: Final = 256  # Open files beside the connections: the store's, Kafka's, what is read.


def bind(host: str, port: int, *, token_set: bool = False, allow_open: bool = False) -> socket.socket:
    """Listen on `host` and `port`; whoever connects waits until the socket is served.

    Args:
        host: a name or an address, IPv4 or IPv6 (brackets or not).
        port: 0 for any that is free.
        token_set: OPIC_API_TOKEN guards the endpoint. Without it only loopback is listened on.
        allow_open: listen wherever told, even without a token.

    Raises:
        SettingsError: that can't be; with the way out.
    """
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    where = f"[{name}]" if ":" in name else name
    try:
        if not name:
            raise socket.gaierror
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise SettingsError(f"--host {where!r} is no name or address that this machine knows: use 127.0.0.1") from None
    family, _, _, _, address = found[0]
    if not (token_set or allow_open or _is_loopback(str(address[0]))):
        raise SettingsError(
            f"--host {where} lets other machines in, and OPIC_API_TOKEN is not set: set it, "
            "or use 127.0.0.1, or allow an open endpoint by name"
        )
    # The protocol is named because asyncio turns Nagle's algorithm off only where it is; else answers wait for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(error, where, port) from None
    return listener


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _refused(error: OSError, where: str, port: int) -> SettingsError:
    if error.errno == errno.EADDRINUSE:
        return SettingsError(f"port {port} on {where} is in use: end what uses it, or choose another with --port")
    if error.errno in (errno.EACCES, errno.EPERM):
        return SettingsError(f"port {port} on {where} is not for this user: choose one from 1024 on with --port")
    if error.errno == errno.EADDRNOTAVAIL:
        return SettingsError(f"--host {where} is no address of this machine: choose another, or 127.0.0.1")
    return SettingsError(f"can't listen on {where} port {port}: {error.strerror}")


def url_of(listener: socket.socket) -> str:
    """Return where a client on this machine finds the endpoint.

    >>> with bind("127.0.0.1", 0) as listener:
    ...     url_of(listener).startswith("http://127.0.0.1:")
    True
    """
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - told, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Uvicorn that ends when told to, and leaves it to its caller what to do then."""

    _looked = 0.0

    async def on_tick(self, counter: int) -> bool:
        """Look at the connections now and then, and end those whose time is over."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            for connection in list(self.server_state.connections):
                assert isinstance(connection, Wire)
                connection.look(now)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM while serving.

        Uvicorn's own raises them again behind itself, and the process would die before its store is closed.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        # Whoever started us ignores SIGTERM once one has come. Its SystemExit may have met code that swallows all.
        self.should_exit = before[signal.SIGTERM] == signal.SIG_IGN
        try:
            yield
        finally:
            # Once is enough: whoever served goes on to close its store, and is not to be stopped in the middle of it.
            if self.should_exit:
                before[signal.SIGTERM] = signal.SIG_IGN
            for number, handler in before.items():
                signal.signal(number, handler)


def make_server(app: FastAPI, limits: ConnectionLimits = ConnectionLimits()) -> Server:  # noqa: B008 - frozen
    """Configure a server: our own log lines, HTTP/1.1 only, limits on what is waited for.

    Args:
        app: from `create_app`.
        limits: of its connections.
    """
    config = Config(
        app,
        http=Wire,
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    config.watch = ConnectionWatch(limits)
    config.timeout_keep_alive = math.ceil(config.watch.limits.idle_seconds)
    return Server(config)


def make_room(connections: int) -> int:
    """Let this process have as many open files as so many connections want, where its hard limit allows it.

    Returns:
        How many connections there may be.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES_OF_OURS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(connections, soft - FILES_OF_OURS))


def serve(
    app: FastAPI,
    host: str = "127.0.0.1",
    port: int = 8080,
    sockets: list[socket.socket] | None = None,
    limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008 - frozen
) -> None:
    """Serve until SIGINT or SIGTERM; return once the requests in hand are answered, after GRACE_SECONDS at most.

    SIGTERM is ignored from then on.

    Args:
        app: from `create_app`.
        host: to listen on, if there are no sockets.
        port: likewise.
        sockets: from `bind`; they are closed at the end.
        limits: of connections; fewer of them where this process may not open so many files.

    Raises:
        SettingsError: see `bind`.
    """
    if sockets is None:
        sockets = [bind(host, port, token_set=app.state.secured)]
    # Looking through all objects for garbage would hold up all callers for 50 ms at a time.
    search_garbage_rarely()
    # A thread that works for many callers lets the loop have its turn sooner than in 5 ms.
    sys.setswitchinterval(SWITCH_SECONDS)
    make_server(app, replace(limits, connections=make_room(limits.connections))).run(sockets)
