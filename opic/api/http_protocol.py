"""HTTP/1.1 on a connection: uvicorn's parser (llhttp), with a limit on everything that a client could let us wait for.

The parser itself refuses what could be read in two ways (two lengths, a length beside chunks, control characters in a
header). Here is what it does not know: how large a head may be, how long anything may take, and how many connections
there may be. A connection over a time limit is found by a look at all of them twice a second, so that a request costs
no timer. Whatever is refused here is a problem (RFC 9457) like all others.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from opic.api.problems import Problem

log = logging.getLogger("opic.api")

LOOK_SECONDS: Final = 0.5  # How often connections are looked at.
TARGET_BYTES_MAX: Final = 65_535  # The parser's numbers for the parts of a URL have 16 bits.


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a connection may cost.

    Attributes:
        connections: at once; one more, and the one that has been silent for longest is closed.
        head_bytes: of a request's line and headers; more than a target may have, which is said of it then.
        headers: of a request.
        head_seconds: for a request's line and headers; as long may a new connection say nothing.
        body_seconds: for a body, and beyond it a second for every
        body_bytes_a_second: that came of it.
        idle_seconds: between two requests: longer than crawlers think, so that they rarely meet one just closed.
        linger_seconds: for which what a client goes on sending after its answer is thrown away, before it is cut off.
        send_seconds: in which a client that we have something for must take some of it.
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
    """The connections of one server that may be closed to make room, the one that was silent longest first."""

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    waiting: dict["Wire", None] = field(default_factory=dict)


class Wire(HttpToolsProtocol):
    """A connection. `state.watch`, set before it is made, has the limits."""

    def __init__(self, config: uvicorn.Config, server_state: Any, app_state: dict[str, Any], **named: Any) -> None:
        """Serve the configuration's application."""
        super().__init__(config=config, server_state=server_state, app_state=app_state, **named)
        assert isinstance(config, Config)
        self._watch, self._limits = config.watch, config.watch.limits
        self._reading = ""  # What the parser is in: nothing, a "head" or a "body";
        self._since = time.monotonic()  # and since when, or since when there is nothing.
        self._bytes = 0  # That came of it.
        self._unsent: tuple[float, int] | None = None  # When what was still to be sent was looked at, and how much.
        self._refused: Problem | None = None
        self._discarding = False

    # What the loop tells.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, and close another where there are too many."""
        super().connection_made(transport)
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
        """Forget it."""
        self._watch.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._discarding:
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return  # Nobody is upgraded: the request is answered as if it had not asked.
        except httptools.HttpParserError as error:
            self._refuse(self._refused or Problem("not-http", f"the request is not HTTP/1.1: {_reason(error)}"))
            return
        if self._reading == "head":
            self._bytes += len(data)
            if self._bytes > self._limits.head_bytes:
                said = f"the line and the headers of a request may have {self._limits.head_bytes:,} bytes together"
                self._refuse(Problem("head-too-large", said))

    # What the parser tells.

    def on_message_begin(self) -> None:
        """Note that a head begins."""
        self._reading, self._since, self._bytes = "head", time.monotonic(), 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, of the head or behind a body in chunks."""
        if len(self.headers) >= self._limits.headers:
            raise self._because(Problem("head-too-large", f"a request may have {self._limits.headers:,} headers"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._watch.waiting.pop(self, None)
        if len(self.url) > TARGET_BYTES_MAX:
            said = f"the path with its query has {len(self.url):,} bytes, {TARGET_BYTES_MAX:,} is the limit: use POST"
            raise self._because(Problem("target-too-long", said))
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise self._because(Problem("not-http", "the request names no version of HTTP that is spoken here: 1.1"))
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            raise self._because(Problem("not-http", f"the request has {hosts} headers Host, and needs one"))
        super().on_headers_complete()
        self._reading, self._since, self._bytes = "body", time.monotonic(), 0

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that all of a request is there."""
        self._reading = ""
        super().on_message_complete()
        if self.cycle.response_complete:
            self._rest()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._since = time.monotonic()
        if not self._reading and self.cycle.response_complete:
            self._rest()

    def _rest(self) -> None:
        self._since = time.monotonic()
        if not self.transport.is_closing():
            self._watch.waiting[self] = None

    def _because(self, problem: Problem) -> Problem:
        """Note why the parser is about to be stopped: it passes on that it was, not by what."""
        self._refused = problem
        return problem

    # What takes too long.

    def look(self, now: float) -> None:
        """Close the connection if its time is over."""
        limits, waited = self._limits, now - self._since
        if self._stalls(now):
            self.transport.abort()
        elif self._discarding:
            if waited > limits.linger_seconds:
                self.transport.close()
        elif self._reading == "head":
            if waited > limits.head_seconds and self._answered():
                self._refuse(Problem("slow", f"the head of a request has {limits.head_seconds:g} s to arrive"))
        elif self._reading == "body":
            if self.cycle.response_complete:
                if waited > limits.linger_seconds:
                    self.transport.close()
            elif waited > limits.body_seconds + self._bytes / limits.body_bytes_a_second:
                said = (
                    f"a body has {limits.body_seconds:g} s, and one more for each {limits.body_bytes_a_second:,} bytes"
                )
                self._refuse(Problem("slow", f"{said}: {self._bytes:,} came in {waited:.0f} s"))
        elif self._answered() and waited > (limits.idle_seconds if self.cycle else limits.head_seconds):
            self.transport.close()

    def _answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _stalls(self, now: float) -> bool:
        """Tell whether the client has not taken anything for long of what we have for it."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self._unsent = None
        elif self._unsent is None or unsent < self._unsent[1]:
            self._unsent = now, unsent
        return self._unsent is not None and now - self._unsent[0] > self._limits.send_seconds

    def _refuse(self, problem: Problem) -> None:
        """Answer with a problem and take no more of this connection.

        It is closed once the client closes it, or after a moment: closed at once, with something unread, the system
        would take back what was just said.
        """
        log.info("refused on the connection from %s: %d %s", _name(self.client), problem.status, problem.detail)
        self._watch.waiting.pop(self, None)
        self._discarding, self._since = True, time.monotonic()
        if self.pipeline or (self.cycle is not None and not self.cycle.response_complete and self._reading != "body"):
            self.transport.close()  # Others are being answered: this must not get in between.
            return
        if self.cycle is not None and not self.cycle.response_complete:  # Somebody waits for its body.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        self.flow.resume_reading()
        answer = problem.response()
        lines = [b"HTTP/1.1 %d %s" % (problem.status, problem.phrase.encode()), b"connection: close"]
        lines += [b"%s: %s" % header for header in answer.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        if self.transport.can_write_eof():
            self.transport.write_eof()


class Config(uvicorn.Config):
    """Uvicorn's, with our limits."""

    watch = ConnectionWatch()


def _reason(error: Exception) -> str:
    cause = error.__context__  # What a callback raised, where it was one.
    return str(cause if cause is not None else error) or type(error).__name__


def _name(client: tuple[str, int] | None) -> str:
    return client[0] if client else "nowhere"
