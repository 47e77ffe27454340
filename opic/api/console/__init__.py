"""The web console: a page at `/` that shows the state of the service, with its own stylesheet and scripts.

The page contains no data, so it loads without the token. Its scripts make the same calls as any other client, and send
the token that the user has entered. The data they show comes from the web and is untrusted: it is inserted into the
page as text only. The Content-Security-Policy below enforces this: no inline script runs, nothing loads from other
origins, and no text becomes markup (`require-trusted-types-for`, in browsers that support it).
"""

from collections.abc import Callable, Coroutine
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

FILES: Final = {
    "/": ("index.html", "text/html"),
    "/console/console.css": ("console.css", "text/css"),
    "/console/console.js": ("console.js", "text/javascript"),
    "/console/ask.js": ("ask.js", "text/javascript"),
    "/console/draw.js": ("draw.js", "text/javascript"),
    "/console/local.js": ("local.js", "text/javascript"),
    "/console/progress.js": ("progress.js", "text/javascript"),
    "/console/show.js": ("show.js", "text/javascript"),
    "/console/view.js": ("view.js", "text/javascript"),
    "/console/why.js": ("why.js", "text/javascript"),
    "/console/icon.svg": ("icon.svg", "image/svg+xml"),
}
PAGE_PATHS: Final = frozenset(FILES)
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",  # Revalidated on each load; sent again only if the version has changed.
}

_FOLDER: Final = Path(__file__).parent


def page(path: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Return the request handler for a path in PAGE_PATHS; its file is read once."""
    name, kind = FILES[path]
    body = (_FOLDER / name).read_bytes()
    etag = f'"{blake2b(body, digest_size=12).hexdigest()}"'

    async def console(request: Request) -> Response:
        headers = {**HEADERS, "ETag": etag}
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if etag in known or "*" in known:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=kind, headers=headers)

    return console
