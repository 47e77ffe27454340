"""Rate limits of HTTP calls: refused with 429, told in the fields RateLimit and RateLimit-Policy."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from opic.api.access import header
from opic.api.problems import Problem
from opic.service.rates import Limiter, OverRate

LIMITER: Final = "opic.limiter"
TOKEN: Final = "opic.token"  # noqa: S105 - the key of the caller's token in a request's scope
RUNNING: Final = "opic.running"


def begin(request: Request, limiter: Limiter) -> None:
    """Begin a call within the rates of its caller.

    Raises:
        Problem: it is over one of them.
    """
    request.scope[LIMITER] = limiter
    declared = header(request, b"content-length") or "0"
    _check(limiter.begin(int(declared[:20]) if declared.isdecimal() else 0))
    request.scope[RUNNING] = True


def end(request: Request, sent_bytes: int) -> None:
    """End a call, if it was begun within rates."""
    if RUNNING in request.scope:
        request.scope[LIMITER].end(sent_bytes)


def count_received(request: Request, size: int) -> None:
    """Count the bytes of a body whose size was not declared."""
    if (limiter := request.scope.get(LIMITER)) is not None and header(request, b"content-length") is None:
        limiter.owe(0, size)


def check_events(request: Request, count: int = 0) -> None:
    """Check, before its body is read, that a call may bring events; count those that are known by then.

    Raises:
        Problem: its caller is over the rate of events.
    """
    if (limiter := request.scope.get(LIMITER)) is not None:
        _check(limiter.over_events())
        limiter.owe(count, 0)


def count_events(request: Request, count: int) -> None:
    """Count the events of a call; later ones wait for them."""
    if (limiter := request.scope.get(LIMITER)) is not None:
        limiter.owe(count, 0)


def tell(request: Request, response: Response) -> None:
    """Add the fields to the answer of a caller that has rates."""
    if (limiter := request.scope.get(LIMITER)) is not None:
        response.raw_headers.extend(limiter.fields())


def _check(over: OverRate | None) -> None:
    if over is not None:
        raise Problem("over-rate", str(over), headers={"Retry-After": str(over.seconds)})
