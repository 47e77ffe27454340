"""Streaming page importance for crawlers: crawl events in, importance and next pages out.

The client is here too, imported on first use: `from opic import Client`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opic.client import AsyncClient, Client, Event

__version__ = "1.0.0"
__all__ = ["AsyncClient", "Client", "Event", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the client when one of its names is asked for, so that `import opic` stays cheap."""
    if name in __all__:
        return getattr(import_module("opic.client"), name)
    raise AttributeError(f"module 'opic' has no attribute {name!r}")
