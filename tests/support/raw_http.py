"""HTTP as bytes on a socket: what no HTTP client sends, to an application that says what came."""

import fcntl
import hashlib
import json
import socket
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

from processes import wait_until

from opic.api import ConnectionLimits, bind, make_server
from opic.api.server import Server

WAIT_SECONDS = 15.0
LINGER_SECONDS = 1.0
HOST = b"Host: localhost\r\n"
UPGRADES = {
    "none": b"",
    "h2c": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "websocket": b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    "several": b"Upgrade: foo/2\r\nConnection: x\r\nUpgrade: bar\r\nConnection: upgrade\r\n",
}
INNER = b"GET /inner HTTP/1.1\r\n" + HOST + b"\r\n"  # As a body: it must never be answered.
LAST = b"GET /last HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS) as wire:
        yield wire


def rest(wire: socket.socket) -> bytes:
    """All that still comes, until the other side closes."""
    found = bytearray()
    try:
        while part := wire.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return bytes(found)


def problem(answer: bytes, status: int) -> dict[str, Any]:
    """The one problem that an answer is, the last one of its connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    assert b"application/problem+json" in head
    assert b"connection: close" in head
    assert answer.count(b"HTTP/1.1 ") == 1
    found = dict(json.loads(body))
    assert found["status"] == status
    return found


class Echoed(NamedTuple):
    """A request as the application got it."""

    method: str
    target: str
    body_bytes: int
    digest: str


def echoed(method: str, target: str, body: bytes = b"") -> Echoed:
    return Echoed(method, target, len(body), hashlib.sha256(body).hexdigest())


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with what came; at /unread without reading the body."""
    body, more = bytearray(), scope["raw_path"] != b"/unread"
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        body += message["body"]
        more = message["more_body"]
    found = echoed(scope["method"], scope["raw_path"].decode(), bytes(body))
    names = [name.decode() for name, _ in scope["headers"]]
    answer = json.dumps({"request": found, "headers": names}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(answer))]})
    await send({"type": "http.response.body", "body": answer})


@contextmanager
def echoing() -> Iterator[tuple[Server, int]]:
    listener = bind("127.0.0.1", 0)
    server = make_server(echo, ConnectionLimits(linger_seconds=LINGER_SECONDS))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield server, listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


class Connection:
    """A connection to our server in this process, which gets each segment by itself."""

    def __init__(self, server: Server, wire: socket.socket) -> None:
        self.wire = wire
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._theirs = wait_until(lambda: self._end(server))

    def _end(self, server: Server) -> Any:
        ours = self.wire.getsockname()
        return next((one for one in list(server.server_state.connections) if one.client == ours), None)

    def send(self, segment: bytes) -> None:
        """Send, and wait until it is read."""
        self.wire.sendall(segment)
        wait_until(self._is_read)

    def _is_read(self) -> bool:
        file = self._theirs.transport.get_extra_info("socket")
        if file is None or file.fileno() < 0:
            return True
        try:
            return int.from_bytes(fcntl.ioctl(file.fileno(), termios.FIONREAD, bytes(4)), "little") == 0
        except OSError:  # Closed since.
            return True


def answers(text: bytes) -> list[Echoed | int]:
    """What came back, in order: requests as the application got them, or the status of an error; no 100."""
    found: list[Echoed | int] = []
    while text:
        head, blank, text = text.partition(b"\r\n\r\n")
        assert blank, head
        assert head.startswith(b"HTTP/1.1 "), head[:100]
        status = int(head[9:12])
        if status == 100:
            continue
        (length,) = (int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: "))
        body, text = text[:length], text[length:]
        found.append(Echoed(*json.loads(body)["request"]) if status == 200 else status)
    return found


def ask(port: int, *parts: bytes) -> list[Echoed | int]:
    """Send to a server that closes the connection in the end."""
    with connected(port) as wire:
        wire.sendall(b"".join(parts))
        return answers(rest(wire))


def chunked(body: bytes, cuts: Sequence[int], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    """A body in chunks that end at `cuts`."""
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    parts = [body[start:end] for start, end in pairwise(edges)]
    return b"".join(b"%X%s\r\n%s\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n%s\r\n" % trailer
