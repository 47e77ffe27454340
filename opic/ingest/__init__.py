"""How events become effects: who decides a shard's batches, and who sends records to the shards of a crawl."""

from opic.ingest.shard_writer import ShardWriter, Step
from opic.ingest.writer import Writer

__all__ = ["ShardWriter", "Step", "Writer"]
