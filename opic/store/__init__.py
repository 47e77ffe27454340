"""The store: columns in Redis or Valkey, and the one call by which a batch of events takes effect."""

from opic.store.connection import connect
from opic.store.keys import Keys
from opic.store.shard import Shard
from opic.store.step import Store

__all__ = ["Keys", "Shard", "Store", "connect"]
