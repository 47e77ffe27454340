"""Metrics of the crawls that an endpoint has open besides OPIC_CRAWL; the label `crawl` has the name of each."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily as Count
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric

from opic.service.open_crawls import OpenCrawl, OpenCrawls


def _pages(opened: OpenCrawl) -> int:
    return sum(replica.pages for replica in opened.backend.crawl.standing())


OF_EACH: Final[tuple[tuple[type[Count | Gauge], str, str, Callable[[OpenCrawl], int]], ...]] = (
    (Count, "opic_crawl_calls", "Calls on another crawl than OPIC_CRAWL.", lambda opened: opened.calls),
    (Count, "opic_crawl_suggestions", "Pages of it that were handed out over HTTP.", lambda opened: opened.suggestions),
    (Gauge, "opic_crawl_lag_events", "Its accepted events without effect, every 5 s.", lambda opened: opened.lag),
    (Gauge, "opic_crawl_pages", "Its pages in this endpoint's memory, including gone ones.", _pages),
)


def of_crawls(crawls: OpenCrawls) -> Iterator[Metric]:
    """Yield the metrics. Makes no call to the store."""
    opened = crawls.opened
    yield Gauge("opic_open_crawls", "Crawls that this endpoint has open, OPIC_CRAWL among them.", len(opened) + 1)
    yield Gauge("opic_open_crawls_limit", "OPIC_MAX_CRAWLS of this endpoint.", crawls.limit)
    for kind, name, about, value_of in OF_EACH:
        family = kind(name, about, labels=["crawl"])
        for crawl in opened:
            family.add_metric([crawl.name], value_of(crawl))
        yield family
