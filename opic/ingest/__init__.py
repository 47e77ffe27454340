"""Ingestion: decides batches of events, appends their effects, and routes records to the shards of a crawl."""

from opic.ingest.shard_writer import ShardWriter
from opic.ingest.step import Step
from opic.ingest.writer import Writer

__all__ = ["ShardWriter", "Step", "Writer"]
