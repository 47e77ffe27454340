"""A shard's state in memory: loaded from the checkpoint, kept up by following the journal."""

from opic.replica.crawl import Crawl
from opic.replica.replica import Replica

__all__ = ["Crawl", "Replica"]
