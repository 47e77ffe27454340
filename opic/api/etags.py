"""HTTP caching: weak ETags and conditional requests for the paths in KEPT, `no-store` for all other calls.

The ETag is a hash of the answer without `as_of`, which always changes; so it is a weak one. A client that sends it as
If-None-Match gets 304 without a body if the answer would be the same.
"""

import re
from hashlib import blake2b
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

KEPT: Final = ("/v1/top", "/v1/hosts", "/v1/domains", "/openapi.json")
_AS_OF = re.compile(rb'"(?:rank_)?as_of":[-+0-9.eE]+,?')


def set_cache_headers(request: Request, path: str, response: Response) -> None:
    """Set ETag and Cache-Control of an answer, and make it a 304 if the caller knows it already."""
    if path not in KEPT or request.method != "GET":
        if path.startswith("/v1/"):
            response.raw_headers.append((b"cache-control", b"no-store"))
        return
    headers = response.headers
    if response.status_code != 200:
        headers["Cache-Control"] = "no-store"
        return
    tag = f'"{blake2b(_AS_OF.sub(b"", response.body), digest_size=12).hexdigest()}"'
    headers["ETag"], headers["Cache-Control"] = f"W/{tag}", "no-cache"
    known = {etag.strip().removeprefix("W/") for etag in request.headers.get("if-none-match", "").split(",")}
    if tag in known or "*" in known:
        response.status_code, response.body = 304, b""
        del headers["content-length"], headers["content-type"]
