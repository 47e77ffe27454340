"""Request routing: find the handler by method and path, check the parameters, call the handler.

Paths are fixed strings, or end with one parameter, as `/v1/local/{domain}` does; so a dictionary finds them.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from msgspec import Struct
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from opic.api.problems import Json
from opic.api.request_bodies import read_asked, read_json
from opic.api.validation import checked

Answer = Mapping[str, object] | Response
Call = Callable[..., Awaitable[Response]] | Callable[..., Answer]
Handler = Callable[[Request], Awaitable[Response]]
WITH_BODY: Final = ("POST", "PUT", "PATCH")


class Route(NamedTuple):
    """A path, and the handler that answers requests by one method there."""

    path: str
    handler: Handler


class Routes:
    """The handlers by path and method."""

    def __init__(self, body_bytes_max: int) -> None:
        """Start without routes; `body_bytes_max` is the maximum size of a body."""
        self._fixed: dict[str, dict[str, Route]] = {}
        self._under: dict[str, tuple[str, dict[str, Route]]] = {}  # By what is before the parameter; with its name.
        self._body_bytes_max = body_bytes_max

    def add(self, method: str, path: str, call: Call) -> None:
        """Add a call; its last part may be a parameter in braces."""
        before, _, last = path.rpartition("/")
        if last.startswith("{"):
            _, by_method = self._under.setdefault(before, (last[1:-1], {}))
        else:
            by_method = self._fixed.setdefault(path, {})
        by_method[method] = Route(path, handler_of(method, call, self._body_bytes_max))

    def find(self, path: str) -> tuple[Mapping[str, Route], dict[str, str]] | None:
        """Return the routes of a path by method, and its parameters; None for an unknown path."""
        if (fixed := self._fixed.get(path)) is not None:
            return fixed, {}
        before, _, last = path.rpartition("/")
        if not last or before not in self._under:
            return None
        name, by_method = self._under[before]
        return by_method, {name: last}


def asked_of(call: Call) -> type[Struct] | None:
    """Return the type of what a call is asked: of its body, if its method has one, else of its query.

    None if it reads the body itself, or does not look at the query.
    """
    kinds = (parameter.annotation for parameter in inspect.signature(call).parameters.values())
    return next((kind for kind in kinds if issubclass(kind, Struct)), None)


def handler_of(method: str, call: Call, body_bytes_max: int) -> Handler:
    """Return a function that answers a request by a call.

    The call takes any of the request itself, parameters of the path (`str`), and last what is asked. If it is no
    coroutine, it may block: it runs in a worker thread, and so does the encoding of its answer.
    """
    asked = asked_of(call)
    body = asked if method in WITH_BODY else None
    parameters = [one for one in inspect.signature(call).parameters.values() if one.annotation is not body]
    takers = [_taker(one) for one in parameters]
    waits = inspect.iscoroutinefunction(call)

    async def handler(request: Request) -> Response:
        given = [take(request) for take in takers]
        sent = await read_json(request, body_bytes_max) if body is not None else b""

        def ask() -> Any:
            return call(*given) if body is None else call(*given, read_asked(sent, body))

        if waits:
            return _response(await ask())
        return await run_in_threadpool(lambda: _response(ask()))

    return handler


def _response(found: Answer) -> Response:
    return found if isinstance(found, Response) else Json(found)


def _taker(parameter: inspect.Parameter) -> Callable[[Request], Any]:
    kind = parameter.annotation
    if kind is Request:
        return lambda request: request
    if kind is str:
        return lambda request: request.path_params[parameter.name]
    return lambda request: checked(_parameters(request.scope["query_string"]), kind, ("query",), strict=False)


def _parameters(query: bytes) -> dict[str, str]:
    """Return the parameters of a query string. If one is repeated, the last one counts.

    >>> _parameters(b"url=http%3A%2F%2Fa.example%2F%C3%A9+%2B&n=1&n=2&flag")
    {'url': 'http://a.example/é +', 'n': '2', 'flag': ''}
    """
    pairs = (part.partition(b"=") for part in query.replace(b"+", b" ").split(b"&") if part)
    return {_unquoted(name): _unquoted(value) for name, _, value in pairs}


def _unquoted(given: bytes) -> str:
    return unquote_to_bytes(given).decode(errors="replace")
