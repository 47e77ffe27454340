"""Metrics that each endpoint process has of its own.

They are how far it follows the store, its links, its exact importance, its tokens and the crawls that it has open. No
label has a token: those of the file are known by their names.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Final

from prometheus_client.core import CounterMetricFamily as Count
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric

from opic.api.server_metrics import of_each
from opic.replica.crawl import ReplicaStanding
from opic.service.backend import Backend
from opic.service.open_crawls import OpenCrawl, OpenCrawls
from opic.service.rates import UNITS
from opic.service.tokens import Tokens

COVERAGE_SECONDS: Final = 3600.0  # The last coverage asked for is shown for this long; no scrape computes one.


def own(backend: Backend) -> Iterator[Metric]:
    """Yield the metrics. Makes no call to the store."""
    about = "When this endpoint process told these metrics, in Unix seconds: of several, each does so every second."
    yield Gauge("opic_endpoint_seen_timestamp_seconds", about, time.time())
    yield from _of_replicas(backend.crawl.standing())
    about = "Pages that this endpoint chose and the store refused, mostly because another endpoint leased them."
    yield Count("opic_refused_suggestions", about, backend.frontier.refusals)
    yield from _of_coverage(backend)
    yield from _of_exact(backend)


def _of_coverage(backend: Backend) -> Iterator[Metric]:
    view = backend.coverage.latest
    if view is None or (age := max(time.time() - view.as_of, 0.0)) > COVERAGE_SECONDS:
        return
    about = "Share of personalized PageRank that the fetched pages are guaranteed to hold, when last asked for."
    yield Gauge("opic_coverage", about, view.flow.coverage)
    yield Gauge("opic_coverage_age_seconds", "Age of opic_coverage.", age)


def _of_exact(backend: Backend) -> Iterator[Metric]:
    links = backend.links
    about = "Memory that kept links and exact importance take in this endpoint, about."
    yield Gauge("opic_links_bytes", about, links.bytes_held if links.loads else 0)
    yield Gauge("opic_links_limit_bytes", "OPIC_MAX_LINKS_BYTES of this endpoint.", links.bytes_max)
    about = "Whether the kept links are too large for this endpoint, which then answers from cash."
    yield Gauge("opic_links_too_large", about, bool(links.too_large))
    standing = backend.exact.standing
    if standing is None:
        return
    yield Gauge("opic_error_bound_wanted", "What exact importance is settled to: OPIC_BOUND.", backend.exact.bound)
    about = "Visits of read pages that exact importance has not moved on yet, as a share of all."
    yield Gauge("opic_exact_residual", about, standing.residual)
    yield Gauge(
        "opic_exact_settle_seconds", "Duration of the last settling of exact importance.", standing.settle_seconds
    )
    yield Gauge("opic_exact_age_seconds", "Age of the state that exact importance shows.", standing.age_seconds)
    about = (
        "How far the residual of exact importance was from its definition at the last check, as a share of all visits."
    )
    yield Gauge("opic_exact_drift", about, standing.drift)


def _of_replicas(standing: list[ReplicaStanding]) -> Iterator[Metric]:
    """Yield how far this endpoint follows the shards, even while the store is down."""
    compared = "Time since this endpoint last compared its replica with the head of the journal."
    pages = "Pages in this endpoint's replica of the shard, including gone ones."
    loads = "Times that this endpoint loaded the shard from its checkpoint."
    yield from of_each("shard", [asdict(replica) for replica in standing], (
        (Gauge, "opic_replica_lsn", "Last record of the shard's journal applied by this endpoint.", "lsn"),
        (Gauge, "opic_replica_age_seconds", compared, "age_seconds"),
        (Gauge, "opic_replica_pages", pages, "pages"),
        (Count, "opic_replica_loads", loads, "loads"),
    ))  # fmt: skip


def of_tokens(tokens: Tokens | None) -> Iterator[Metric]:
    """Yield the metrics of the tokens of this process."""
    if tokens is None:
        return
    yield Gauge("opic_tokens", "Tokens that this endpoint takes, with OPIC_API_TOKEN.", len(tokens.tokens))
    about = "0 if OPIC_TOKENS_FILE could not be read, and the tokens are those of before; else 1."
    yield Gauge("opic_tokens_file_ok", about, int(not tokens.problem))
    about = "Calls refused because they were over a limit of their token; `none` where no token is required."
    refused = Count("opic_refused_calls", about, labels=["token", "reason"])
    counted = {"none": dict.fromkeys(UNITS, 0)} | {name: limiter.refused for name, limiter in tokens.limiters()}
    for name, by_reason in counted.items():
        for reason, calls in by_reason.items():
            refused.add_metric([name, reason], calls)
    yield refused


def _pages(opened: OpenCrawl) -> int:
    return sum(replica.pages for replica in opened.backend.crawl.standing())


OF_EACH: Final[tuple[tuple[type[Count | Gauge], str, str, Callable[[OpenCrawl], int]], ...]] = (
    (Count, "opic_crawl_calls", "Calls on another crawl than OPIC_CRAWL.", lambda opened: opened.calls),
    (Count, "opic_crawl_suggestions", "Pages of it that were handed out over HTTP.", lambda opened: opened.suggestions),
    (Gauge, "opic_crawl_lag_events", "Its accepted events without effect, every 5 s.", lambda opened: opened.lag),
    (Gauge, "opic_crawl_pages", "Its pages in this endpoint's memory, including gone ones.", _pages),
)


def of_crawls(crawls: OpenCrawls) -> Iterator[Metric]:
    """Yield the metrics of the crawls open besides OPIC_CRAWL, by name. Makes no call to the store."""
    opened = crawls.opened
    yield Gauge("opic_open_crawls", "Crawls that this endpoint has open, OPIC_CRAWL among them.", len(opened) + 1)
    yield Gauge("opic_open_crawls_limit", "OPIC_MAX_CRAWLS of this endpoint.", crawls.limit)
    for kind, name, about, value_of in OF_EACH:
        family = kind(name, about, labels=["crawl"])
        for crawl in opened:
            family.add_metric([crawl.name], value_of(crawl))
        yield family
