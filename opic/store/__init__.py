"""The store: connections to Redis or Valkey, key names, and the server-side functions that append effects."""

from opic.store.connection import connect
from opic.store.keys import Keys
from opic.store.shard import Shard

__all__ = ["Keys", "Shard", "connect"]
