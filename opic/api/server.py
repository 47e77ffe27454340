"""Bind the listening socket and run the HTTP server, with graceful shutdown."""

import contextlib
import errno
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
from starlette.types import ASGIApp

from opic.api.access import is_loopback
from opic.api.http_protocol import LOOK_SECONDS, Config, ConnectionLimits, ConnectionWatch, Wire
from opic.errors import SettingsError
from opic.memory import search_garbage_rarely

BACKLOG: Final = 2_048
GRACE_SECONDS: Final = 5  # Time for running requests at shutdown.
SWITCH_SECONDS: Final = 0.0005
FILES_OF_OURS: Final = 256  # Open files besides the connections: the store, Kafka, files being read.


def bind(host: str, port: int, *, token_set: bool = False, allow_open: bool = False) -> socket.socket:
    """Listen on `host` and `port`; clients that connect wait until the socket is served.

    Args:
        host: a name or an address, IPv4 or IPv6 (with or without brackets).
        port: 0 for any free port.
        token_set: whether OPIC_API_TOKEN protects the endpoint. Without it, only loopback addresses are allowed.
        allow_open: allow any address, even without a token.

    Raises:
        SettingsError: the address can't be used; the message says what to do.
    """
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    where = f"[{name}]" if ":" in name else name
    try:
        if not name:
            raise socket.gaierror
        addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise SettingsError(f"--host {where!r} can't be resolved on this machine: use 127.0.0.1") from None
    family, _, _, _, address = addresses[0]
    if not (token_set or allow_open or is_loopback(str(address[0]))):
        raise SettingsError(
            f"--host {where} accepts other machines, and OPIC_API_TOKEN is not set: set it, use --host 127.0.0.1, or "
            "give --allow-open to let anyone in"
        )
    # Name the protocol: asyncio disables Nagle's algorithm only if it is named; otherwise answers are delayed by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _refused(error, where, port) from None
    return listener


def _refused(error: OSError, where: str, port: int) -> SettingsError:
    if error.errno == errno.EADDRINUSE:
        return SettingsError(f"port {port} on {where} is in use: end what uses it, or choose another with --port")
    if error.errno in (errno.EACCES, errno.EPERM):
        return SettingsError(f"port {port} on {where} is not for this user: choose one from 1024 on with --port")
    if error.errno == errno.EADDRNOTAVAIL:
        return SettingsError(f"--host {where} is no address of this machine: choose another, or 127.0.0.1")
    return SettingsError(f"can't listen on {where} port {port}: {error.strerror}")


def reserved(listener: socket.socket) -> socket.socket:
    """Close a listener; return a socket that keeps its address for those of `beside`, and accepts no connection."""
    family, address = listener.family, listener.getsockname()
    listener.close()  # As long as it listened, no other program could.
    return _sharing(family, address)


def beside(kept: socket.socket) -> socket.socket:
    """Listen on a reserved address, as other processes do: each connection goes to one of them, by its hash."""
    listener = _sharing(kept.family, kept.getsockname())
    listener.listen(BACKLOG)
    return listener


def _sharing(family: int, address: object) -> socket.socket:
    shared = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        shared.setsockopt(socket.SOL_SOCKET, option, 1)
    shared.bind(address)  # type: ignore[arg-type]
    return shared


def url_of(listener: socket.socket) -> str:
    """Return the URL of the endpoint for clients on this machine.

    >>> with bind("127.0.0.1", 0) as listener:
    ...     url_of(listener).startswith("http://127.0.0.1:")
    True
    """
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - told, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Uvicorn's server, which on a signal stops serving and returns to its caller."""

    _looked = 0.0

    async def on_tick(self, counter: int) -> bool:
        """Check the connections every LOOK_SECONDS, and end those over a time limit."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            for connection in list(self.server_state.connections):
                assert isinstance(connection, Wire)
                connection.check_time(now)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM while serving.

        Uvicorn's own method raises them again afterwards, and the process would die before its store is closed.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        # Our caller ignores SIGTERM after the first one. Its SystemExit may have been swallowed, so check for it here.
        self.should_exit = before[signal.SIGTERM] == signal.SIG_IGN
        try:
            yield
        finally:
            # Ignore further SIGTERMs: the caller goes on to close its store, which must not be interrupted.
            if self.should_exit:
                before[signal.SIGTERM] = signal.SIG_IGN
            for number, handler in before.items():
                signal.signal(number, handler)


def make_server(app: ASGIApp, limits: ConnectionLimits = ConnectionLimits()) -> Server:  # noqa: B008 - frozen
    """Configure a server: our own access log, HTTP/1.1 only, limits on connections.

    Args:
        app: the application, as from `create_app`.
        limits: the limits of its connections.
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
    """Raise this process's limit of open files for `connections`, as far as its hard limit allows.

    Returns:
        The number of connections that the limit allows, at most `connections`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES_OF_OURS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(connections, soft - FILES_OF_OURS))


def serve(
    app: ASGIApp,
    sockets: list[socket.socket],
    limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008 - frozen
) -> None:
    """Serve until SIGINT or SIGTERM; return once the running requests are answered, at most GRACE_SECONDS later.

    SIGTERM is ignored from then on.

    Args:
        app: the application, as from `create_app`.
        sockets: from `bind`; they are closed at the end.
        limits: the limits of connections; their number is reduced if this process may not open as many files.
    """
    # A full garbage collection would delay all requests by 50 ms.
    search_garbage_rarely()
    # Let worker threads yield to the event loop sooner than after the default 5 ms.
    sys.setswitchinterval(SWITCH_SECONDS)
    server = make_server(app, replace(limits, connections=make_room(limits.connections)))
    server.run(sockets)
