"""Who may ask: the bearer token, and without one only requests that browsers and others make on this machine."""

import hmac
import ipaddress
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from starlette.requests import Request

from opic.api.console import PAGE_PATHS
from opic.api.problems import Problem, fit_for_log

OPEN_PATHS: Final = ("/healthz", "/readyz", "/metrics")  # For probes and Prometheus, which have no token.
DOC_PATHS: Final = ("/docs", "/openapi.json")  # Like the console they hold no data: where to enter a token.
DOC_FILES: Final = "/docs/files/"


def header(request: Request, name: bytes) -> str | None:
    """Return the first header of this name in lower case; a fifth of what `request.headers` takes."""
    return next((value.decode("latin-1") for found, value in request.scope["headers"] if found == name), None)


class Access:
    """Decides whether a request is answered."""

    def __init__(self, token: str | None, hosts: Collection[str] | None = ()) -> None:
        """Take the terms.

        Args:
            token: the bearer token required for all paths but OPEN_PATHS and pages without data; None requires none.
            hosts: names besides those of this machine's loopback that the header Host may have where no token is
                required; None allows any.
        """
        self._token = token.encode() if token is not None else None
        self._hosts = None if hosts is None else frozenset(map(_name, hosts))

    def refusal(self, request: Request) -> Problem | None:
        """Return the problem if the request is not authorised, or None."""
        if self._token is None:
            return _rebound(header(request, b"host"), self._hosts) or _foreign(request)
        path = request.scope["path"]
        if path in OPEN_PATHS or path in PAGE_PATHS or path in DOC_PATHS or path.startswith(DOC_FILES):
            return None
        scheme, _, given = (header(request, b"authorization") or "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1"), self._token):
            return None
        said = "this is not it" if scheme else "send the header Authorization: Bearer …"
        return Problem(
            "no-token",
            f"OPIC_API_TOKEN is set here: {said}",
            headers={"WWW-Authenticate": 'Bearer realm="opic"' + (', error="invalid_token"' if scheme else "")},
        )


def _rebound(host: str | None, hosts: frozenset[str] | None) -> Problem | None:
    """Refuse requests that came here by a name of another machine: the name in Host is none of ours.

    A web page of that name can have its name resolved to 127.0.0.1 (DNS rebinding); its scripts then read and write
    here as if this were their own site. A browser always sends Host, and a page can't change it.
    """
    if host is None or hosts is None or _is_ours(host, hosts):
        return None
    return Problem(
        "foreign-host",
        f"the header Host is {fit_for_log(host)!r}, and OPIC_API_TOKEN is not set: without a token only localhost, "
        "loopback addresses and the name in OPIC_HOST are taken. Use http://localhost, set OPIC_API_TOKEN, or start "
        "with --allow-open",
    )


@lru_cache(256)
def _is_ours(host: str, hosts: frozenset[str]) -> bool:
    name = _name(host)
    return name in hosts or is_loopback(name)


def _name(host: str) -> str:
    """Return the name or address in a Host header, without its port and brackets.

    >>> _name("LOCALHOST:8080"), _name("[::1]:8080"), _name("[::1]"), _name("::1")
    ('localhost', '::1', '::1', '::1')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name = host.rpartition(":")[0] if host.count(":") == 1 else host
    return name.removesuffix(".").lower()


def is_loopback(name: str) -> bool:
    """Return whether a name or an address is always this machine.

    >>> [is_loopback(name) for name in ("localhost", "a.localhost", "127.0.0.9", "::1", "127.1", "localhost.org")]
    [True, True, True, True, False, False]
    """
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761: never resolved to anything else.
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _foreign(request: Request) -> Problem | None:
    """Refuse cross-origin requests that another site's web page makes a browser send to a service without a token.

    Before they send JSON across origins, browsers send a preflight request (and get 405); but not for a body without a
    type.
    """
    origin = header(request, b"origin")
    if request.method == "GET" or origin is None or origin.partition("://")[2] == header(request, b"host"):
        return None
    return Problem("foreign-origin", "the header Origin names another site than Host: set OPIC_API_TOKEN to allow that")
