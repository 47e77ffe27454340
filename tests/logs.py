"""Logs for the tests: a real one, and the short forms in which tests write their own."""

import gzip
import json
from collections.abc import Iterable
from functools import cache

from repository import ROOT

from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds

NOW_US = 1_790_000_000_000_000
PARTITION = "log/0"


def record(offset: int, url: str, links: Iterable[str] = (), **more: object) -> Record:
    """One crawl event as a record of the log."""
    return Record(offset, NOW_US + offset, encode_crawl_event(CrawlEvent(url=url, links=list(links), **more)))  # type: ignore[arg-type]


def seeds(offset: int, *urls: str) -> Record:
    """A record that makes pages known."""
    return Record(offset, NOW_US + offset, encode_seeds(list(urls)), kind="seeds")


@cache
def pep_history() -> tuple[Record, ...]:
    """The history of the Python proposals as a crawl: 17,365 events, pages that change, go away and come back."""
    records = []
    with gzip.open(ROOT / "tests/data/pep-history/events.jsonl.gz", "rt") as lines:
        for offset, line in enumerate(lines):
            row = json.loads(line)
            event = CrawlEvent(url=row["url"], links=row["out"], status=row["status"], fetched_at=row["t"])
            records.append(Record(offset, NOW_US + offset, encode_crawl_event(event)))
    return tuple(records)
