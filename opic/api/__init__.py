"""The HTTP API: a JSON endpoint with a generated OpenAPI document."""

from opic.api.app import create_app
from opic.api.calls import Service
from opic.api.http_protocol import ConnectionLimits
from opic.api.server import bind, make_server, serve

__all__ = ["ConnectionLimits", "Service", "bind", "create_app", "make_server", "serve"]
