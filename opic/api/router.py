"""Request routing: find the handler by method and path, validate the parameters, call the handler.

Paths are fixed strings, or end with one parameter, as `/v1/local/{domain}` does; so a dictionary finds them.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from opic.api.problems import from_validation


class InQuery:
    """Marks a handler's parameter as the model of the query; FastAPI's own marker would import FastAPI."""


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

    The call takes any of the request itself, parameters of the path (`str`), and a model of the query.
    """
    takers = [_taker(parameter) for parameter in inspect.signature(call).parameters.values()]
    if len(takers) == 1:
        (take,) = takers
        return lambda request: call(take(request))
    return lambda request: call(*(take(request) for take in takers))


def _taker(parameter: inspect.Parameter) -> Callable[[Request], Any]:
    asked = parameter.annotation
    if asked is Request:
        return lambda request: request
    if asked is str:
        return lambda request: request.path_params[parameter.name]
    model = get_args(asked)[0]
    assert issubclass(model, BaseModel)
    lists = [name for name, field in model.model_fields.items() if get_origin(field.annotation) is list]
    return lambda request: _checked(model, request, lists)


def _checked(model: type[BaseModel], request: Request, lists: list[str]) -> BaseModel:
    """Validate the query parameters; if one that is no list is repeated, the last one counts."""
    given: dict[str, Any] = dict(request.query_params)
    for name in lists:
        if name in given:
            given[name] = request.query_params.getlist(name)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        raise from_validation([{**detail, "loc": ("query", *detail["loc"])} for detail in errors], model) from None
