"""The store: columns in Redis or Valkey, and the one call by which a batch of events takes effect."""

from opic.store.connection import connect
from opic.store.crawl import Crawl
from opic.store.keys import Keys
from opic.store.shard import Shard
from opic.store.step import Step, Store
from opic.store.writer import Writer

__all__ = ["Crawl", "Keys", "Shard", "Step", "Store", "Writer", "connect"]
