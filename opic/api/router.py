"""Fast request routing: look up the handler by method and path, validate the parameters, call the handler.

FastAPI describes the calls and could serve them as well, at three times the cost per request (for its dependency
injection, exit stacks, and a search through all routes). All paths here are fixed strings, so a dictionary finds them.
All other requests go on to FastAPI: unknown paths, wrong methods, pages and files.
"""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from opic.api.problems import from_validation


class InQuery:
    """Marks a handler's parameter as the model of the query; FastAPI's own marker would import FastAPI."""


Call = Callable[..., Awaitable[Response]]
Handler = Callable[[Request], Awaitable[Response]]
OnError = Callable[[Request, Any], Coroutine[Any, Any, Response]]


class Routes(dict[tuple[str, str], tuple[BaseRoute, Handler]]):
    """Routes and handlers by method and path."""

    def add(self, method: str, path: str, route: BaseRoute, call: Call) -> None:
        """Add a call, if its parameters are of a kind supported here."""
        if (handler := handler_of(call)) is not None:
            self[method, path] = route, handler


class Direct:
    """ASGI middleware: answers requests that have a route here, and passes all others to the application."""

    def __init__(self, app: ASGIApp, routes: Routes, on_error: Mapping[int | type[Exception], OnError]) -> None:
        """Answer by `routes`; the handlers in `on_error` answer for exceptions of their kinds."""
        self._app, self._routes, self._on_error = app, routes, on_error
        self._kinds = tuple(kind for kind in on_error if isinstance(kind, type))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        found = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        scope["route"], call = found
        request = Request(scope, receive, send)
        try:
            response = await call(request)
        except self._kinds as error:
            answer = next(self._on_error[kind] for kind in type(error).__mro__ if kind in self._on_error)
            response = await answer(request, error)
        await response(scope, receive, send)


def handler_of(call: Call) -> Handler | None:
    """Return a function that answers a request by a call, or None if its parameters are of a kind not supported."""
    parameters = list(inspect.signature(call).parameters.values())
    if not parameters:
        return lambda _: call()
    if len(parameters) > 1:
        return None
    asked = parameters[0].annotation
    if asked is Request:
        return call
    if get_origin(asked) is not Annotated or not isinstance(get_args(asked)[1], InQuery):
        return None
    model: Any = get_args(asked)[0]
    assert issubclass(model, BaseModel)
    if any(get_origin(field.annotation) is list for field in model.model_fields.values()):
        return None
    return lambda request: call(_checked(model, request))


def _checked(model: type[BaseModel], request: Request) -> BaseModel:
    """Validate the query parameters; if a parameter is repeated, the last one counts."""
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        raise from_validation([{**detail, "loc": ("query", *detail["loc"])} for detail in errors], model) from None
