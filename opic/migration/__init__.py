"""Migration: a living crawl becomes another one, with another number of shards or other rules."""
