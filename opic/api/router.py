"""Request routing: find the handler by method and path, check the parameters, call the handler.

Paths are fixed strings, or end with one parameter, as `/v1/local/{domain}` does; so a dictionary finds them.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from opic.api.validation import checked

Call = Callable[..., Awaitable[Response]]
Handler = Callable[[Request], Awaitable[Response]]


class Route(NamedTuple):
    """A path, and the handler that answers requests by one method there."""

    path: str
    handler: Handler


class Routes:
    """The handlers by path and method."""

    def __init__(self) -> None:
        """Start without any."""
        self._fixed: dict[str, dict[str, Route]] = {}
        self._under: dict[str, tuple[str, dict[str, Route]]] = {}  # By what is before the parameter; with its name.

    def add(self, method: str, path: str, call: Call) -> None:
        """Add a call; its last part may be a parameter in braces."""
        before, _, last = path.rpartition("/")
        if last.startswith("{"):
            _, by_method = self._under.setdefault(before, (last[1:-1], {}))
        else:
            by_method = self._fixed.setdefault(path, {})
        by_method[method] = Route(path, handler_of(call))

    def find(self, path: str) -> tuple[Mapping[str, Route], dict[str, str]] | None:
        """Return the routes of a path by method, and its parameters; None for an unknown path."""
        if (fixed := self._fixed.get(path)) is not None:
            return fixed, {}
        before, _, last = path.rpartition("/")
        if not last or before not in self._under:
            return None
        name, by_method = self._under[before]
        return by_method, {name: last}


def handler_of(call: Call) -> Handler:
    """Return a function that answers a request by a call.

    The call takes any of the request itself, parameters of the path (`str`), and a type of the query.
    """
    takers = [_taker(parameter) for parameter in inspect.signature(call).parameters.values()]
    if len(takers) == 1:
        (take,) = takers
        return lambda request: call(take(request))
    return lambda request: call(*(take(request) for take in takers))


def query_of(call: Call) -> type[Struct] | None:
    """Return the type of the query that a call takes, None if it does not look at the query."""
    asked = (parameter.annotation for parameter in inspect.signature(call).parameters.values())
    return next((kind for kind in asked if issubclass(kind, Struct)), None)


def _taker(parameter: inspect.Parameter) -> Callable[[Request], Any]:
    asked = parameter.annotation
    if asked is Request:
        return lambda request: request
    if asked is str:
        return lambda request: request.path_params[parameter.name]
    # If a query parameter is repeated, the last one counts.
    return lambda request: checked(dict(request.query_params), asked, ("query",), strict=False)
