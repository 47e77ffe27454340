"""The store: connections to Redis or Valkey, its keys, and the functions by which effects are appended."""

from opic.store.connection import connect
from opic.store.keys import Keys
from opic.store.shard import Shard

__all__ = ["Keys", "Shard", "connect"]
