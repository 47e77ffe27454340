"""HTTP caching: weak ETags and conditional requests for the paths in KEPT, `no-store` for all other calls.

The ETag is a hash of the answer without `as_of`, which always changes; so it is a weak one. A client that sends it as
If-None-Match gets 304 without a body if the answer would be the same.
"""

import re
from hashlib import blake2b
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

KEPT: Final = ("/v1/top", "/v1/hosts", "/v1/domains", "/openapi.json")
_AS_OF = re.compile(rb'"(?:rank_)?as_of":[-+0-9.eE]+,?')


class Fresh:
    """ASGI middleware that sets ETag and Cache-Control."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"] if scope["type"] == "http" else ""
        if path in KEPT and scope["method"] == "GET":
            await self._app(scope, receive, _Tagging(Headers(scope=scope).get("if-none-match", ""), send))
        elif path.startswith("/v1/"):

            async def not_kept(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).setdefault("Cache-Control", "no-store")
                await send(message)

            await self._app(scope, receive, not_kept)
        else:
            await self._app(scope, receive, send)


class _Tagging:
    """Buffers an answer until it is complete."""

    def __init__(self, known: str, send: Send) -> None:
        self._known = {tag.strip().removeprefix("W/") for tag in known.split(",")}
        self._send = send
        self._start: dict[str, Any] = {}
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = dict(message)
            return
        self._body += message.get("body", b"")
        if message.get("more_body"):
            return
        headers = MutableHeaders(raw=self._start["headers"])
        if self._start["status"] == 200:
            tag = f'"{blake2b(_AS_OF.sub(b"", self._body), digest_size=12).hexdigest()}"'
            headers["ETag"], headers["Cache-Control"] = f"W/{tag}", "no-cache"
            if tag in self._known or "*" in self._known:
                self._start["status"], self._body = 304, bytearray()
                del headers["content-length"], headers["content-type"]
        else:
            headers["Cache-Control"] = "no-store"
        await self._send({**self._start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": bytes(self._body)})
