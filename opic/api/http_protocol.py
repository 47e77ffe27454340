"""HTTP/1.1 connection handling: uvicorn's protocol (llhttp) with time and size limits against slow or hostile clients.

The parser itself refuses ambiguous requests (two lengths, a length beside chunks, control characters in a header). This
module adds limits on the size of a head, on the time for each phase, and on the number of connections. All connections
are checked against the time limits twice a second, so that a request needs no timer. Refused requests are answered with
a problem (RFC 9457), as everywhere else.
"""

import asyncio
import logging
import time
import weakref
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from opic.api.problems import Problem

log = logging.getLogger("opic.api")

LOOK_SECONDS: Final = 0.5  # Interval of the check of all connections.
TARGET_BYTES_MAX: Final = 65_535  # The URL parser uses 16-bit offsets.


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Size and time limits of connections.

    Attributes:
        connections: maximum number at once; a further one closes the one that has been idle longest.
        head_bytes: maximum size of the request line and headers. It is larger than the limit of the target, so that a
            long target gets its own error.
        headers: maximum number of headers of a request.
        head_seconds: time for the request line and headers; also for a new connection to send its first byte.
        body_seconds: time for a body, plus one second for every
        body_bytes_a_second: bytes received of it.
        idle_seconds: maximum idle time between two requests; longer than crawlers usually pause, so that they rarely
            use a connection that was just closed.
        linger_seconds: how long we discard what a client still sends after its answer, before we close the connection.
        send_seconds: maximum time in which a client must read some of the data waiting for it.
    """

    connections: int = 10_000
    head_bytes: int = 256 << 10
    headers: int = 100
    head_seconds: float = 20.0
    body_seconds: float = 20.0
    body_bytes_a_second: int = 10_000
    idle_seconds: float = 75.0
    linger_seconds: float = 5.0
    send_seconds: float = 30.0


@dataclass
class ConnectionWatch:
    """The idle connections of one server, longest idle first; they may be closed to make room."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    waiting: dict["Wire", None] = field(default_factory=dict)


class _Corked:
    """A transport that collects the writes of one turn of the event loop, and sends head and body in one packet.

    If the client is still sending, closing it ends our side only. If all were closed with unread data, the operating
    system would reset the connection, and the client, or the proxy before it, might not receive the answer.
    """

    def __init__(self, transport: asyncio.Transport, wire: "Wire") -> None:
        self._transport, self._loop = transport, wire.loop
        self._wire = weakref.proxy(wire)  # Which holds this transport.
        self._parts: list[bytes] = []
        self._closing = False

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._uncork)
        self._parts.append(data)

    def _uncork(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))

    def is_closing(self) -> bool:
        return self._closing or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        self._uncork()
        if self._wire.lingers():
            self._transport.write_eof()
        else:
            self._transport.close()
        self._closing = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Wire(HttpToolsProtocol):
    """A connection. Its limits are in `watch` of the server's `Config`."""

    def __init__(self, config: uvicorn.Config, server_state: Any, app_state: dict[str, Any], **named: Any) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state, **named)
        assert isinstance(config, Config)
        self._watch, self._limits = config.watch, config.watch.limits
        self._reading = ""  # What the parser is reading: "head", "body", or nothing;
        self._since = time.monotonic()  # and since when, or since when the connection is idle.
        self._body_bytes = 0  # Bytes received of the body.
        self._framing_bytes = 0  # Bytes received since the head began, or since a part of the body.
        self._unanswered = 0  # Requests with a head that was accepted.
        self._unsent: tuple[float, int] | None = None  # When the client last read data, and the bytes then unsent.
        self._refused: Problem | None = None  # Why nothing more is read from the connection.

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; if there are too many, close the longest idle one."""
        super().connection_made(_Corked(transport, self))  # type: ignore[arg-type]
        waiting = self._watch.waiting
        if len(self.connections) > self._limits.connections:
            if not waiting:
                self._refuse(Problem("too-many-connections", f"{self._limits.connections:,} connections are in use"))
                return
            oldest = next(iter(waiting))
            del waiting[oldest]
            oldest.transport.close()
        waiting[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the idle ones, and drop what it holds of requests, which may hold it."""
        self._watch.waiting.pop(self, None)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._refused is not None or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._framing_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            self._refuse(self._refused or Problem("not-http", f"the request is not HTTP/1.1: {_reason(error)}"))
            return
        if self._reading and self._framing_bytes > self._limits.head_bytes:
            self._refuse(self._head_too_large())

    def _parse(self, data: bytes) -> None:
        """Parse data; parse a request for an upgrade again without that, since the parser skips its body."""
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
                version = self.parser.get_http_version().encode()
                lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
                lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn does.
                self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))
            else:
                return

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        """Start the clock of a request head."""
        self._reading, self._since, self._framing_bytes = "head", time.monotonic(), 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. The fields of a trailer are ignored: they come after the request was checked."""
        if self._reading == "body":
            return
        if len(self.headers) >= self._limits.headers:
            self._stop(Problem("head-too-large", f"a request may have {self._limits.headers:,} headers"))
        super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Check the head and start answering."""
        version = self.parser.get_http_version()
        self._check_head(version)
        if self.parser.should_upgrade():
            return
        self._watch.waiting.pop(self, None)
        self.expect_100_continue &= version == "1.1"
        super().on_headers_complete()
        if self.expect_100_continue:  # If it is refused before it sends its body, a client may never send that.
            self.cycle.keep_alive = False
        self._unanswered += 1
        self._reading, self._since, self._body_bytes, self._framing_bytes = "body", time.monotonic(), 0, 0

    def _check_head(self, version: str) -> None:
        """Refuse a head that is too large, or that a proxy may read differently."""
        if len(self.url) > TARGET_BYTES_MAX:
            said = f"the path with its query has {len(self.url):,} bytes, {TARGET_BYTES_MAX:,} is the limit: use POST"
            self._stop(Problem("target-too-long", said))
        if version not in ("1.0", "1.1"):
            self._stop(Problem("not-http", "the HTTP version of the request is not supported: use HTTP/1.1"))
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._stop(Problem("not-http", "CONNECT is not supported: this is not a proxy"))
        hosts, size = 0, len(method) + len(self.url) + len("  HTTP/1.1\r\n\r\n")
        for name, value in self.headers:
            size += len(name) + len(value) + len(": \r\n")
            hosts += name == b"host"
            if name == b"transfer-encoding" and (version == "1.0" or value.lower() != b"chunked"):
                self._stop(Problem("not-http", "a body may be sent in chunks with HTTP/1.1, and in no other coding"))
        if size > self._limits.head_bytes:
            self._stop(self._head_too_large())
        if hosts > 1 or (not hosts and version == "1.1"):
            self._stop(Problem("not-http", f"the request has {hosts} Host headers, and needs exactly one"))

    def _head_too_large(self) -> Problem:
        what = "the chunk extensions and trailer" if self._reading == "body" else "the request line and headers"
        return Problem("head-too-large", f"{what} are over the limit of {self._limits.head_bytes:,} bytes")

    def on_body(self, body: bytes) -> None:
        """Count and pass on a part of a body."""
        self._body_bytes += len(body)
        self._framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Record that the request is complete."""
        if self.parser.should_upgrade():
            return
        self._reading = ""
        super().on_message_complete()
        if self.cycle.response_complete:
            self._rest()

    def on_response_complete(self) -> None:
        """Wait for the next request, or refuse the one that could not be read."""
        self._unanswered -= 1
        super().on_response_complete()
        self._since = time.monotonic()
        if self._unanswered:
            return
        if self._refused is not None:
            self._end(self._refused)
        elif not self._reading:
            self._rest()

    def _rest(self) -> None:
        self._since = time.monotonic()
        if not self.transport.is_closing():
            self._watch.waiting[self] = None

    def _stop(self, problem: Problem) -> NoReturn:
        """Stop the parser; its own exception does not carry the reason."""
        self._refused = problem
        raise httptools.HttpParserCallbackError

    # Timeouts.

    def check_time(self, now: float) -> None:
        """Refuse or close the connection if it has exceeded a time limit."""
        limits, waited = self._limits, now - self._since
        if self._stalls(now):
            self.transport.abort()
        elif self.transport.is_closing():
            if waited > limits.linger_seconds and self._unsent is None:
                self.transport.abort()
        elif self._refused is not None:
            return  # The requests before it are being answered.
        elif self._reading == "head":
            if waited > limits.head_seconds and not self._unanswered:
                self._refuse(Problem("slow", f"the head of a request has {limits.head_seconds:g} s to arrive"))
        elif self._reading == "body":
            if self.cycle.response_complete:
                if waited > limits.linger_seconds:
                    self.transport.abort()
            elif not self.pipeline and waited > limits.body_seconds + self._body_bytes / limits.body_bytes_a_second:
                said = (
                    f"a body has {limits.body_seconds:g} s, and one more for each {limits.body_bytes_a_second:,} bytes"
                )
                self._refuse(Problem("slow", f"{said}: {self._body_bytes:,} came in {waited:.0f} s"))
        elif not self._unanswered and waited > (limits.idle_seconds if self.cycle else limits.head_seconds):
            self.transport.close()

    def _stalls(self, now: float) -> bool:
        """Return whether the client has not read any of the data waiting for it for `send_seconds`."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self._unsent = None
        elif self._unsent is None or unsent < self._unsent[1]:
            self._unsent = now, unsent
        return self._unsent is not None and now - self._unsent[0] > self._limits.send_seconds

    # The end of a connection.

    def _refuse(self, problem: Problem) -> None:
        """Read no more from this connection, and answer with a problem after the requests that came before it."""
        log.info("refused on the connection from %s: %d %s", _name(self.client), problem.status, problem.detail)
        self._watch.waiting.pop(self, None)
        self._refused = problem
        if self._reading == "body":
            if self.cycle.response_complete:  # It was refused before it was all read.
                self.transport.close()
                return
            self._unanswered -= 1
            if self.pipeline:
                self.pipeline.popleft()
            else:  # A handler is waiting for the body.
                self.cycle.disconnected = True
                self.cycle.message_event.set()
                if self.cycle.response_started:
                    self.transport.close()
                    return
        if not self._unanswered:
            self._end(problem)

    def _end(self, problem: Problem) -> None:
        """Answer with a problem, and close the connection when the client has read it."""
        answer = problem.response()
        lines = [b"HTTP/1.1 %d %s" % (problem.status, problem.phrase.encode()), b"connection: close"]
        lines += [b"%s: %s" % header for header in answer.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()

    def lingers(self) -> bool:
        """Return whether the client may still be sending; from now on that is discarded, for `linger_seconds`."""
        if self._refused is None and self._reading != "body":
            return False
        self._since = time.monotonic()
        self.flow.resume_reading()
        return self.transport.can_write_eof()


class Config(uvicorn.Config):
    """Uvicorn's configuration, with the limits of connections."""

    watch = ConnectionWatch()


def _reason(error: Exception) -> str:
    cause = error.__context__  # The exception of a callback, if a callback raised.
    return str(cause if cause is not None else error) or type(error).__name__


def _name(client: tuple[str, int] | None) -> str:
    return client[0] if client else "nowhere"
