"""Who may ask, and how much: by a bearer token; where none is required, requests that are made on this machine.

A call over the rates of its caller is refused with 429.
"""

import asyncio
import ipaddress
from collections.abc import Collection
from functools import lru_cache
from typing import Final

from starlette.requests import Request

from opic.api.problems import Problem, fit_for_log
from opic.service.rates import Limiter
from opic.service.tokens import Role, Token, Tokens

REALM: Final = 'Bearer realm="opic"'
# Keys of a request's scope: what limits its caller's rates, the caller's token, and whether the call counts as running.
LIMITER: Final = "opic.limiter"
TOKEN: Final = "opic.token"  # noqa: S105 - a key
RUNNING: Final = "opic.running"
OVER_RATE: Final = "over-rate"
WITH_EVENTS: Final = ("/v1/events", "/v1/seeds")  # Calls that are within the rate of events.


def header(request: Request, name: bytes) -> str | None:
    """Return the first header of this name in lower case; a fifth of what `request.headers` takes."""
    return next((value.decode("latin-1") for key, value in request.scope["headers"] if key == name), None)


class Access:
    """Decides whether a request is answered."""

    def __init__(self, tokens: Tokens, crawls: Collection[str], hosts: Collection[str] | None = ()) -> None:
        """Take the terms.

        Args:
            tokens: the tokens that are taken.
            crawls: the names of the crawl that answers.
            hosts: names besides those of this machine's loopback that the header Host may have where no token is
                required; None allows any.
        """
        self.tokens, self._crawls = tokens, crawls
        self._hosts = None if hosts is None else frozenset(map(_name, hosts))

    def holder(self, request: Request, *, is_open: bool) -> Token | None:
        """Return what the caller's token allows; None where a call needs no token.

        Args:
            request: the request.
            is_open: whether its path has no data.

        Raises:
            Problem: there is no token, or a wrong one; or none is required, and the request was not made for this
                machine.
        """
        if not self.tokens.required:
            self._check_origin(request)
            return None
        if is_open:
            return None
        authorization = (header(request, b"authorization") or "").encode("latin-1")
        if (token := self.tokens.bearer(authorization)) is not None:
            return token
        scheme = authorization.partition(b" ")[0]
        said = "this is not it" if scheme else "send the header Authorization: Bearer …"
        raise Problem(
            "no-token",
            f"{self.tokens.settings_named} is set here: {said}",
            headers={"WWW-Authenticate": REALM + (', error="invalid_token"' if scheme else "")},
        )

    def _check_origin(self, request: Request) -> None:
        """Refuse what web pages of other sites make a browser send to a service without a token.

        A page can have the name of its own site resolved to 127.0.0.1 (DNS rebinding); its scripts then read and write
        here as if this were their site. A browser always sends Host, and a page can't change it. Before they send JSON
        across origins, browsers send a preflight request (and get 405); but not for a body without a type.

        Raises:
            Problem: Host names another machine, or Origin another site.
        """
        host = header(request, b"host")
        if host is not None and self._hosts is not None and not _is_ours(host, self._hosts):
            raise Problem(
                "foreign-host",
                f"the header Host is {fit_for_log(host)!r}, and OPIC_API_TOKEN is not set: without a token only "
                "localhost, loopback addresses and the name in OPIC_HOST are taken. Use http://localhost, set "
                "OPIC_API_TOKEN, or start with --allow-open",
            )
        if request.method == "GET" or (origin := header(request, b"origin")) is None:
            return
        if origin.partition("://")[2] != host:
            raise Problem(
                "foreign-origin", "the header Origin names another site than Host: set OPIC_API_TOKEN to allow that"
            )

    def check(self, token: Token, role: Role, crawl: str | None = None, *, of_any: bool = False) -> None:
        """Check that a token fits a call.

        Args:
            token: the caller's.
            role: that the call wants.
            crawl: that the call names, if it names one; whether it is there plays no part.
            of_any: whether the call is about no crawl in particular.

        Raises:
            Problem: it does not; with the header of RFC 6750, section 3.1.
        """
        names = self._crawls if crawl is None or crawl in self._crawls else [fit_for_log(crawl)]
        if (why := token.lacks(role) if of_any else token.refusal(role, names)) is not None:
            raise Problem(
                "not-allowed", why, headers={"WWW-Authenticate": f'{REALM}, error="insufficient_scope", scope="{role}"'}
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


# Rates.


def begin_call(request: Request, limiter: Limiter, call: str) -> None:
    """Begin a call within the rates of its caller, before its body is read; if it is, `limiter.end` ends it.

    Args:
        request: the call.
        limiter: that of its caller.
        call: its path, without the crawl that it may name.

    Raises:
        Problem: it is over one of them.
    """
    request.scope[LIMITER] = limiter
    declared = header(request, b"content-length") or "0"
    content_bytes = int(declared[:20]) if declared.isdecimal() else 0
    if (over := limiter.begin(content_bytes, brings_events=call in WITH_EVENTS)) is not None:
        raise Problem(OVER_RATE, str(over), headers={"Retry-After": str(over.seconds)})
    request.scope[RUNNING] = True


async def delay_refusal(request: Request) -> None:
    """Keep a refused call waiting, if its caller has been refused too often of late."""
    if (seconds := request.scope[LIMITER].refusal_delay()) > 0:
        await asyncio.sleep(seconds)


def count_events(request: Request, count: int) -> None:
    """Count the events of a call; later ones wait for them."""
    if (limiter := request.scope.get(LIMITER)) is not None:
        limiter.owe(count, 0)
