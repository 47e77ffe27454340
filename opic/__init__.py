"""Streaming page importance for crawlers: crawl events in, importance and next pages out."""

__version__ = "0.1.0"
