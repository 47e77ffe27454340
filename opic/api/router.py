"""Request routing: find the handler by method and path, check the parameters, call the handler.

Paths are fixed strings, or end with one parameter, as `/v1/local/{domain}` does; so a dictionary finds them. The
beginning `/v1/crawls/NAME` may name the crawl: `/v1/crawls/news/top`, or `/v1/crawls/news/v1/top` for clients that
add the paths to a base URL.
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
from opic.api.request_bodies import media_type, read_asked, read_body
from opic.api.validation import checked
from opic.service.positions import MARK
from opic.service.tokens import Role

Answer = Struct | Mapping[str, object] | Response
Call = Callable[..., Awaitable[Response]] | Callable[..., Answer]
Handler = Callable[[Request], Awaitable[Response]]
VERSION: Final = "/v1/"
CRAWLS: Final = "/v1/crawls"
CRAWL: Final = "crawl"  # The parameter of a path that names a crawl.
AFTER: Final = "after"  # The parameter that names a position, of any call; or a cursor, of some.
WITH_BODY: Final = ("POST", "PUT", "PATCH")


class Route(NamedTuple):
    """A path, the handler that answers requests by one method there, and the role that they want; None for none."""

    path: str
    handler: Handler
    role: Role | None


class Found(NamedTuple):
    """The routes of a path by method, its parameters, and whether anybody may make its calls."""

    by_method: dict[str, Route]
    parameters: dict[str, str]
    is_open: bool


class Routes:
    """The handlers by path and method."""

    def __init__(self, body_bytes_max: int, show: Callable[[str], Awaitable[None]]) -> None:
        """Start without routes.

        Args:
            body_bytes_max: the maximum size of a body.
            show: waits until answers show the write that ended at a position.
        """
        self._fixed: dict[str, Found] = {}
        self._under: dict[str, tuple[str, dict[str, Route]]] = {}  # By what is before the parameter; with its name.
        self._body_bytes_max, self._show = body_bytes_max, show

    def add(self, method: str, path: str, call: Call, role: Role | None) -> None:
        """Add a call; the last part of its path may be a parameter in braces."""
        before, _, last = path.rpartition("/")
        if last.startswith("{"):
            _, by_method = self._under.setdefault(before, (last[1:-1], {}))
        else:
            by_method = self._fixed.setdefault(path, Found({}, {}, is_open=role is None)).by_method
        show = self._show if in_crawl(path) else None
        by_method[method] = Route(path, handler_of(method, call, self._body_bytes_max, show), role)

    def find(self, path: str) -> Found | None:
        """Return what there is at a path; None for an unknown one."""
        if (fixed := self._fixed.get(path)) is not None:
            return fixed
        before, _, last = path.rpartition("/")
        if not last or before not in self._under:
            return None
        name, by_method = self._under[before]
        return Found(by_method, {name: last}, is_open=False)

    def find_in_crawl(self, path: str) -> tuple[str, Found] | None:
        """Return the path of a call without the crawl that it names, and what there is, with the crawl as a parameter.

        None if the path names no crawl, or is unknown.

        >>> Routes(0, None).find_in_crawl("/v1/top") is None
        True
        """
        before, _, rest = path.partition(f"{CRAWLS}/")
        if before or not rest:
            return None
        crawl, _, call = rest.partition("/")
        own = VERSION + call.removeprefix(VERSION[1:])
        matched = None if own.startswith(CRAWLS) else self.find(own)
        return None if matched is None else (own, matched._replace(parameters={**matched.parameters, CRAWL: crawl}))


def in_crawl(path: str) -> bool:
    """Return whether a call is about one crawl, so that its path may have the crawl's name before it."""
    return path.startswith(VERSION) and not path.startswith(CRAWLS)


def asked_of(call: Call) -> type[Struct] | None:
    """Return the type of what a call is asked: of its body, if its method has one, else of its query.

    None if it reads the body itself, or does not look at the query.
    """
    kinds = (parameter.annotation for parameter in inspect.signature(call).parameters.values())
    return next((kind for kind in kinds if issubclass(kind, Struct)), None)


def handler_of(method: str, call: Call, body_bytes_max: int, show: Callable[[str], Awaitable[None]] | None) -> Handler:
    """Return a function that answers a request by a call, once its answer shows what was written before `after`.

    The call takes any of the request itself, parameters of the path (`str`), and last what is asked. If it is no
    coroutine, it may block: it runs in a worker thread, and so does the encoding of its answer.
    """
    asked = asked_of(call)
    body = asked if method in WITH_BODY else None
    parameters = [
        parameter for parameter in inspect.signature(call).parameters.values() if parameter.annotation is not body
    ]
    takers = [_taker(parameter) for parameter in parameters]
    waits = inspect.iscoroutinefunction(call)
    cursor = asked is not None and body is None and AFTER in asked.__struct_fields__

    async def handler(request: Request) -> Response:
        query, position = _parameters(request.scope["query_string"], cursor=cursor)
        given = [taker(request, query) for taker in takers]
        sent = b""
        if body is not None:
            sent = await read_body(request, body_bytes_max, media_type(request))
        if show is not None and position is not None:
            await show(position)

        def ask() -> Any:
            return call(*given) if body is None else call(*given, read_asked(sent, body))

        if waits:
            return _response(await ask())
        return await run_in_threadpool(lambda: _response(ask()))

    return handler


def _response(answer: Answer) -> Response:
    return answer if isinstance(answer, Response) else Json(answer)


def _taker(parameter: inspect.Parameter) -> Callable[[Request, Mapping[str, str]], Any]:
    kind = parameter.annotation
    if kind is Request:
        return lambda request, _: request
    if kind is str:
        return lambda request, _: request.path_params[parameter.name]
    return lambda _, query: checked(query, kind, ("query",), strict=False)


def _parameters(query: bytes, *, cursor: bool) -> tuple[dict[str, str], str | None]:
    """Return the parameters of a query string, and apart from them its position, if any.

    If one is repeated, the last one counts. Of a call that takes a cursor as `after` too, a position is told by how it
    begins.

    >>> _parameters(b"url=http%3A%2F%2Fa.example%2F%C3%A9+%2B&n=1&n=2&flag&%61fter=%40%40log/0:4", cursor=False)
    ({'url': 'http://a.example/é +', 'n': '2', 'flag': ''}, '@@log/0:4')
    >>> _parameters(b"after=c2Vj&n=1&after=@@log/0:4", cursor=True)
    ({'after': 'c2Vj', 'n': '1'}, '@@log/0:4')
    """
    parameters, position = dict[str, str](), None
    for part in filter(None, query.replace(b"+", b" ").split(b"&")):
        name, _, value = part.partition(b"=")
        text = _unquoted(value)
        if (named := _unquoted(name)) == AFTER and (not cursor or text.startswith(MARK)):
            position = text
        else:
            parameters[named] = text
    return parameters, position


def _unquoted(given: bytes) -> str:
    return unquote_to_bytes(given).decode(errors="replace")
