"""The HTTP API: a JSON endpoint with a generated OpenAPI document.

The names below are imported when they are asked for: a command that runs the handlers in its own process does without
the server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opic.api.app import create_app
    from opic.api.calls import Service
    from opic.api.http_protocol import ConnectionLimits
    from opic.api.server import bind, make_server, serve

__all__ = ["ConnectionLimits", "Service", "bind", "create_app", "make_server", "serve"]
_MODULE: Final = {
    "ConnectionLimits": "http_protocol",
    "Service": "calls",
    "bind": "server",
    "create_app": "app",
    "make_server": "server",
    "serve": "server",
}


def __getattr__(name: str) -> Any:
    """Import the module that has a name."""
    if name in _MODULE:
        return getattr(import_module(f"opic.api.{_MODULE[name]}"), name)
    raise AttributeError(f"module 'opic.api' has no attribute {name!r}")
