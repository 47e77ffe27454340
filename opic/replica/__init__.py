"""In-memory replicas of shards: loaded from the checkpoint and kept current by following the journal."""

from opic.replica.crawl import Crawl
from opic.replica.replica import Replica

__all__ = ["Crawl", "Replica"]
