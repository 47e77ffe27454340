"""ASGI middleware for every request: request id, bearer token, access log, and the answer to unexpected errors."""

import hmac
import ipaddress
import logging
import random
import re
import time
from asyncio import CancelledError
from collections.abc import Callable, Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from opic.api.console import PAGE_PATHS
from opic.api.problems import Problem, internal

log = logging.getLogger("opic.api")

OPEN_PATHS: Final = ("/healthz", "/readyz", "/metrics")  # For probes and Prometheus, which have no token.
DOC_PATHS: Final = ("/docs", "/openapi.json")  # Like the console they hold no data: where to enter a token.
DOC_FILES: Final = "/docs/files/"
QUIET_PATHS: Final = ("/healthz", "/readyz", "/metrics")  # Requested every few seconds: logged at DEBUG.
ID_HEADER: Final = "X-Request-ID"
LOGGED_CHARS_MAX: Final = 200
_ids = random.Random()  # noqa: S311 - ids are no secrets and grant no access; system randomness would be slow
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Gate:
    """Our outermost ASGI middleware."""

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        observe: Callable[[Scope, int, float], None] = lambda *_: None,
        hosts: Collection[str] | None = (),
    ) -> None:
        """Wrap `app`.

        Args:
            app: the application.
            token: the bearer token required for all paths but OPEN_PATHS and pages without data; None requires none.
            observe: called after each request with its scope, the status (0: aborted) and the seconds it took.
            hosts: names besides those of this machine's loopback that the header Host may have where no token is
                required; None allows any.
        """
        self._app = app
        self._token = token.encode() if token is not None else None
        self._hosts = None if hosts is None else frozenset(map(_name, hosts))
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        headers = Headers(scope=scope)
        given = headers.get(ID_HEADER, "")
        request_id = given if _ID.fullmatch(given) else f"{_ids.getrandbits(64):016x}"
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[ID_HEADER] = request_id
            await send(message)

        # A GET route answers HEAD too; the server leaves the body out.
        inner = {**scope, "method": "GET" if scope["method"] == "HEAD" else scope["method"], "opic.id": request_id}
        inner["opic.method"] = scope["method"]
        try:
            problem = self._refusal(inner, headers)
            answer: ASGIApp = self._app if problem is None else problem.response(request_id)
            await answer(inner, receive, send_with_id)
        except ClientDisconnect:
            log.info("the client of request %s disconnected", request_id)
        except CancelledError:  # The grace period of the shutdown is over.
            if status:
                raise
            problem = Problem("ending", "the service shut down before the request was done: send it again")
            await problem.response(request_id)(inner, receive, send_with_id)
        except Exception:  # Last resort: the caller gets an answer, the log a traceback.
            log.exception("request %s failed", request_id)
            if not status:
                await internal().response(request_id)(inner, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - started
            self._observe(inner, status, seconds)
            level = logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO
            if log.isEnabledFor(level):
                self._log(level, inner, status, 1000 * seconds)

    def _log(self, level: int, scope: Scope, status: int, ms: float) -> None:
        """Write the access log line of a request."""
        method, request_id = _fit_for_log(scope["opic.method"]), scope["opic.id"]
        log.log(
            level,
            "%s %s %s %.1f ms id=%s%s",
            method,
            _fit_for_log(scope.get("raw_path", b"").decode("latin-1") or scope["path"]),
            status or "aborted",
            ms,
            request_id,
            f" ({_fit_for_log(scope['opic.why'])})" if "opic.why" in scope else "",
            extra={
                "request_id": request_id,
                "method": method,
                "route": getattr(scope.get("route"), "path", "other"),
                "status": status,
                "ms": round(ms, 1),
            },
        )

    def _refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        """Return the problem if the request is not authorised, or None."""
        if self._token is None:
            return _rebound(headers, self._hosts) or _foreign(scope, headers)
        path = scope["path"]
        if path in OPEN_PATHS or path in PAGE_PATHS or path in DOC_PATHS or path.startswith(DOC_FILES):
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._token):
            return None
        said = "this is not it" if scheme else "send the header Authorization: Bearer …"
        return Problem(
            "no-token",
            f"OPIC_API_TOKEN is set here: {said}",
            headers={"WWW-Authenticate": 'Bearer realm="opic"' + (', error="invalid_token"' if scheme else "")},
        )


def _rebound(headers: Headers, hosts: Collection[str] | None) -> Problem | None:
    """Refuse requests that came here by a name of another machine: the name in Host is none of ours.

    A web page of that name can have its name resolved to 127.0.0.1 (DNS rebinding); its scripts then read and write
    here as if this were their own site. A browser always sends Host, and a page can't change it.
    """
    host = headers.get("host")
    if host is None or hosts is None:
        return None
    name = _name(host)
    if name in hosts or _is_loopback(name):
        return None
    return Problem(
        "foreign-host",
        f"the header Host is {_fit_for_log(host)!r}, and OPIC_API_TOKEN is not set: without a token only localhost, "
        "loopback addresses and the name in OPIC_HOST are taken. Use http://localhost, set OPIC_API_TOKEN, or start "
        "with --allow-open",
    )


def _name(host: str) -> str:
    """Return the name or address in a Host header, without its port and brackets.

    >>> _name("LOCALHOST:8080"), _name("[::1]:8080"), _name("[::1]"), _name("::1")
    ('localhost', '::1', '::1', '::1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name = host.rpartition(":")[0] if host.count(":") == 1 else host
    return name.removesuffix(".").lower()


def _is_loopback(name: str) -> bool:
    """Return whether a name or an address is always this machine.

    >>> [_is_loopback(name) for name in ("localhost", "a.localhost", "127.0.0.9", "::1", "127.1", "localhost.org")]
    [True, True, True, True, False, False]
    """
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761: never resolved to anything else.
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _foreign(scope: Scope, headers: Headers) -> Problem | None:
    """Refuse cross-origin requests that another site's web page makes a browser send to a service without a token.

    Before they send JSON across origins, browsers send a preflight request (and get 405); but not for a body without a
    type.
    """
    origin = headers.get("origin")
    if scope["method"] == "GET" or origin is None or origin.partition("://")[2] == headers.get("host"):
        return None
    return Problem("foreign-origin", "the header Origin names another site than Host: set OPIC_API_TOKEN to allow that")


def _fit_for_log(text: str) -> str:
    """Shorten and escape untrusted text: one line, without terminal control sequences."""
    cut = text if len(text) <= LOGGED_CHARS_MAX else text[:LOGGED_CHARS_MAX] + "..."
    return cut if cut.isprintable() and cut.isascii() else ascii(cut)[1:-1]
