"""The calls of the HTTP API without HTTP: the same handlers, on a store that this process has opened."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from opic.api.calls import Calls
from opic.api.definitions import Definitions
from opic.api.router import Handler, handler_of
from opic.service.backend import Backend


class InProcess:
    """Makes calls as a client does, and answers them itself."""

    def __init__(self, backend: Backend) -> None:
        self._calls = Calls(backend, backend.not_ready)
        self._handlers = (self._calls, Definitions(backend))
        self._body_bytes_max = backend.settings.max_body_bytes

    def __call__(
        self, method: str, path: str, parameters: Mapping[str, object], body: Mapping[str, object] | None
    ) -> dict[str, Any]:
        """Make a call and return the JSON of its answer.

        Raises:
            Problem: the endpoint would answer with it.
            OpicError: the endpoint would answer with the problem for it.
        """
        name = name_of(method, path)
        call = next(getattr(some, name) for some in self._handlers if hasattr(some, name))
        handler = handler_of(method, call, self._body_bytes_max, self._calls.show)
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [],
            "query_string": urlencode({name: str(value) for name, value in parameters.items()}).encode(),
        }
        response = asyncio.run(_answer(handler, scope, json.dumps(body).encode() if body is not None else b""))
        answer: dict[str, Any] = json.loads(bytes(response.body))
        return answer


def name_of(method: str, path: str) -> str:
    """Return the name of the handler of a call.

    >>> name_of("GET", "/v1/dead-letters")
    'get_dead_letters'
    """
    return f"{method.lower()}_{path.removeprefix('/').removeprefix('v1/').replace('-', '_').replace('/', '_')}"


async def _answer(handler: Handler, scope: dict[str, Any], body: bytes) -> Response:
    waiting: list[Message] = [{"type": "http.request", "body": body}]

    async def receive() -> Message:
        if not waiting:
            await asyncio.Event().wait()  # The caller never disconnects.
        return waiting.pop()

    return await handler(Request(scope, receive))
