"""Prometheus metrics of the endpoint (`GET /metrics`).

Nearly all metrics come from the store, so that all endpoints report the same values and a restart loses nothing. The
exceptions, which each process counts itself, are the times of HTTP requests, the pages handed out, the lag of its
replicas, and its resource use. No label contains a URL or a host: label values are few and known in advance.
docs/operations.md lists all metrics.

The store, Kafka and the columns are read in background threads: a backend that hangs delays a scrape by some seconds,
and all other metrics are still reported.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.types import Scope

from opic import __version__
from opic.api.frontier_counts import Census, count
from opic.api.scrape_cache import Beside
from opic.errors import StoreError, StoreUnavailable
from opic.ingest.event_log import Positions
from opic.ingest.step_counts import Tallied
from opic.model.cash import MILLION, ROUND_BITS, Books
from opic.model.events import Outcome
from opic.replica.crawl import ReplicaStanding
from opic.service.service import Backend
from opic.store.connection import store_errors
from opic.store.library import primaries
from opic.store.shard import books_of

TEXT: Final = "text/plain"
OPENMETRICS: Final = "application/openmetrics-text"
STORE_SECONDS: Final = 5.0  # Timeout after which the store counts as down; Prometheus itself waits for 10 s.
KAFKA_SECONDS: Final = 2.0
FIRST_SECONDS: Final = 1.0  # How long the first scrape waits for the first audit, and for the first census.
AUDIT_SECONDS: Final = 60.0  # Minimum time between two audits: an audit reads whole columns, 16 bytes per page.
CENSUS_SECONDS: Final = 10.0  # Minimum time between two censuses, each of which needs a current snapshot.
SHARE_MAX: Final = 0.05  # Maximum share of the time for audits, and the same for censuses.
REQUEST_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
METHODS: Final = ("GET", "POST", "PUT")  # HEAD counts as GET. A route matches before its methods are checked.
OUTCOMES: Final = {
    Outcome.READ: "reads",
    Outcome.FAILED: "failures",
    Outcome.GONE: "departures",
    Outcome.EXCLUDED: "exclusions",
    Outcome.DEAD: "dead_letters",
}


class Metrics:
    """The metrics of one endpoint process."""

    def __init__(self, backend: Backend) -> None:
        """Register the metrics. This does not query the store."""
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "opic_http_request_duration_seconds",
            "Time to answer a request, by route and class of status.",
            ("method", "route", "status"),
            buckets=REQUEST_SECONDS,
            registry=self._registry,
        )
        self._suggestions = Counter(
            "opic_suggestions", "Pages handed out to crawlers by this endpoint.", registry=self._registry
        )
        about = "Calls of crawlers for pages, by whether they got any."
        calls = Counter("opic_suggestion_calls", about, ("answer",), registry=self._registry)
        self._calls = {name: calls.labels(name) for name in ("pages", "none")}
        ProcessCollector(registry=self._registry)
        self._registry.register(_Collector(backend))

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request. Unknown paths and methods get no label of their own."""
        path = getattr(scope.get("route"), "path", None)
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._requests.labels(method, path or "other", f"{status // 100}xx" if status else "aborted").observe(seconds)

    def handed(self, found: Mapping[str, Any]) -> None:
        """Count the pages handed out to a crawler."""
        self._suggestions.inc(len(found["pages"]))
        self._calls["pages" if found["pages"] else "none"].inc()

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the format that the header `Accept` requests, and their content type."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind


class _Collector(Collector):
    """A Prometheus collector for the metrics of the store, Kafka, the snapshots and the books."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kafka = Beside("opic-kafka-look", self._ends)
        self._store = Beside("opic-store-look", self._look)
        self._census = Beside("opic-census", lambda: count(backend), CENSUS_SECONDS, SHARE_MAX)
        self._audit = Beside("opic-audit", self._is_conserved, AUDIT_SECONDS, SHARE_MAX)

    def describe(self) -> Iterator[Metric]:
        """Return nothing, so that registering the collector does not query the store."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics available; for a backend that is down, only that it is down."""
        build = GaugeMetricFamily("opic_build_info", "1, with the version that runs here.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield from _of_replicas(self._backend.crawl.standing())
        seen = self._store.now(STORE_SECONDS)
        yield _gauge("opic_store_up", "1 if the store answers.", int(seen is not None))
        if self._backend.settings.kafka_bootstrap is not None:
            ends = seen.ends if seen is not None else self._kafka.now(KAFKA_SECONDS)
            yield _gauge("opic_kafka_up", "1 if Kafka answers.", int(ends is not None))
        if seen is None:
            return
        yield from _of_books(seen.books)
        yield from _of_cash(self._backend, seen)
        yield from _of_work(seen)
        yield from _of_frontier(seen, self._census.lately(FIRST_SECONDS))
        yield from _of_servers(seen.servers)
        about = "When the last backup was done, in Unix time; 0 without any."
        yield _gauge("opic_backup_timestamp_seconds", about, seen.backup_at)
        if (audited := self._audit.lately(FIRST_SECONDS)) is not None:
            conserved, age = audited
            yield _gauge("opic_cash_conserved", "1 if the last audit found every grain, 0 if not.", int(conserved))
            yield _gauge("opic_audit_age_seconds", "Time since that audit.", age)

    def _ends(self) -> Positions:
        return self._backend.log.ends()

    def _look(self) -> "_Seen":
        # Read the ends first: if there is no lag then, all events accepted before have taken effect.
        kafka = self._backend.settings.kafka_bootstrap is not None
        return _Seen.of(self._backend, self._kafka.now(KAFKA_SECONDS) if kafka else self._ends())

    def _is_conserved(self) -> bool:
        try:
            return bool(self._backend.query.audit()["conserved"])
        except StoreUnavailable:
            raise
        except StoreError:
            return False  # A block is missing, and its grains with it.


@dataclass(frozen=True, slots=True)
class _Seen:
    """The values read from the store for one scrape."""

    parts: list[Books]
    books: Books  # Of the whole crawl.
    ends: Positions | None  # End offsets of the log; None if Kafka is down.
    lag: int  # 0 if Kafka is down.
    outbox: int
    tallied: Tallied
    leases: int
    page_waits: int
    host_waits: int
    backup_at: float  # Unix seconds; 0 if there is none.
    error_bound: float | None  # None if there is none, as under the continuous payout.
    servers: list[Mapping[str, Any]]  # INFO of each server, in order of their names.

    @classmethod
    def of(cls, backend: Backend, ends: Positions | None) -> "_Seen":
        """Read the values. All shards are queried together, in a few round trips."""
        crawl, now = backend.crawl, time.time()
        lag = sum(max(0, end - crawl.resume(partition)) for partition, end in (ends or {}).items())
        books = [["HGETALL", shard.keys.books] for shard in crawl.shards]
        counts = [
            ["ZCOUNT", name, f"({least:.6f}", "+inf"]
            for shard in crawl.shards
            for name, least in (
                (shard.keys.leases, now * MILLION),
                (shard.keys.waits, now),
                (shard.keys.hosts, now),
            )
        ]
        last = [["HGET", crawl.shards[0].keys.meta, "backup_at"]]
        answers = crawl.ask([*books, *Tallied.commands(crawl), *counts, *last])
        shards = len(crawl)
        parts = [books_of(stored) for stored in answers[:shards]]
        bound = backend.query.error_bound(parts)
        held = answers[2 * shards : -1]
        return cls(
            parts,
            Books.merged(parts, crawl.rules),
            ends,
            lag,
            crawl.waiting(),
            Tallied.of(answers[shards : 2 * shards]),
            sum(map(int, held[::3])),
            sum(map(int, held[1::3])),
            sum(map(int, held[2::3])),
            float(answers[-1] or 0),
            None if crawl.rules.continuous else 2.0 if bound is None else bound,
            _servers(crawl.client),
        )


def _of_books(books: Books) -> Iterator[Metric]:
    events = CounterMetricFamily("opic_events", "Crawl events that took effect.", labels=["outcome"])
    for outcome, name in OUTCOMES.items():
        events.add_metric([outcome.value], getattr(books, name))
    yield events
    for name, about, value in (
        ("opic_links", "Links of pages read: distinct, to other pages.", books.links),
        ("opic_bad_links", "Links that were no absolute http(s) URLs, dropped.", books.bad_links),
        ("opic_dead_letters", "Events that can't be taken.", books.dead_letters),
        ("opic_seeds", "Pages asked to be made known by seeds.", books.seeds),
        ("opic_clock_grains", "Grains ever moved by reads of pages: the time axis of importance.", books.clock),
        ("opic_rounds", "The clock in grants for every known page, or in all cash.", books.rounds / (1 << ROUND_BITS)),
    ):
        yield CounterMetricFamily(name, about, value)
    yield _gauge("opic_known_pages", "Pages known and not gone.", books.live)
    yield _gauge("opic_read_pages", "Known pages read since they became known or came back.", books.open)
    yield _gauge("opic_gone_pages", "Pages gone.", books.gone)


def _of_cash(backend: Backend, seen: _Seen) -> Iterator[Metric]:
    books, rules = seen.books, backend.crawl.rules
    pages = rules.minted - books.pool - books.net
    yield _gauge("opic_shards", "Shards of the crawl.", len(seen.parts))
    yield _gauge("opic_virtual_pool_grains", "Cash of the virtual page.", books.pool)
    if not rules.continuous:
        about = "What the virtual page has left to grant, as a share of all that was minted."
        yield _gauge("opic_virtual_pool_ratio", about, books.pool / rules.minted)
    if (left := books.sweeps_left(rules)) is not None:
        about = "How often all read pages can be read again before the pool is dry or the clock at its limit."
        yield _gauge("opic_sweeps_left", about, left)
    yield _gauge("opic_in_flight_grains", "Cash on its way from one shard to another.", books.net)
    cash = GaugeMetricFamily("opic_page_cash_grains", "Cash that pages hold and have not spent.", labels=["pages"])
    # Gone pages have no cash under the continuous payout; under grants their cash may be negative.
    for name, grains in (
        ("read", books.open_cash),
        ("never_read", pages - books.open_cash - books.v_gone),
        ("gone", books.v_gone),
    ):
        cash.add_metric([name], grains)
    yield cash
    about = "Cash on pages against all that was ever spent: OPIC's own measure of its error, no bound on it."
    yield _gauge("opic_error_factor", about, max(pages - books.v_gone, 0) / max(books.clock, 1))
    if seen.error_bound is not None:
        about = "Bound on the L1 distance of all estimates from exact PageRank of the known graph; 2 says nothing."
        yield _gauge("opic_error_bound", about, seen.error_bound)
    yield _gauge("opic_outbox_entries", "Transfers that shards sent and others have not taken yet.", seen.outbox)


def _of_work(seen: _Seen) -> Iterator[Metric]:
    if seen.ends is not None:
        yield _gauge("opic_lag_events", "Events accepted that have not taken effect yet.", seen.lag)
        age = max(time.time() - seen.books.time_us / MILLION, 0.0) if seen.lag else 0.0
        yield _gauge("opic_lag_seconds", "Age of the event that took effect last, while more wait; else 0.", age)
    tallied = seen.tallied
    about = "Time that a step took, a batch of up to 4,000 links: from the answer to the one before to its own."
    yield HistogramMetricFamily("opic_step_seconds", about, buckets=tallied.seconds, sum_value=tallied.seconds_sum)
    about = "Events of a step."
    yield HistogramMetricFamily("opic_step_events", about, buckets=tallied.events, sum_value=tallied.events_sum)
    about = "Round trips to the store that steps took."
    yield CounterMetricFamily("opic_step_round_trips", about, tallied.round_trips)
    about = "Links looked up, by whether the worker had them in its cache."
    lookups = CounterMetricFamily("opic_link_lookups", about, labels=["cache"])
    lookups.add_metric(["hit"], tallied.cached)
    lookups.add_metric(["miss"], tallied.links - tallied.cached)
    yield lookups


def _of_frontier(seen: _Seen, census: tuple[Census, float] | None) -> Iterator[Metric]:
    yield _gauge("opic_leases", "Pages that crawlers have.", seen.leases)
    yield _gauge("opic_page_waits", "Pages that wait after a failed fetch or a lease that ran out.", seen.page_waits)
    yield _gauge("opic_host_waits", "Hosts that rest between two of their pages.", seen.host_waits)
    if census is None:
        return
    counted, age = census
    pages = GaugeMetricFamily("opic_frontier_pages", "All pages, by class and kind.", labels=["class", "kind"])
    for labels, number in counted.pages.items():
        pages.add_metric(list(labels), number)
    yield pages
    yield _gauge("opic_frontier_age_seconds", "Time since the pages of the frontier were counted.", age)
    about = "Age of the state that answers over all pages were made from then."
    yield _gauge("opic_estimate_age_seconds", about, counted.age_seconds)


def _of_replicas(standing: list[ReplicaStanding]) -> Iterator[Metric]:
    """Yield how far this endpoint follows the shards, even while the store is down."""
    for kind, name, about, values in (
        (GaugeMetricFamily, "opic_replica_lsn", "The last record of a shard's journal that this endpoint has.", "lsn"),
        (
            GaugeMetricFamily,
            "opic_replica_age_seconds",
            "Time since this endpoint last compared that with the head of the journal.",
            "age_seconds",
        ),
        (GaugeMetricFamily, "opic_replica_pages", "Pages of the shard that this endpoint has, gone ones too.", "pages"),
        (CounterMetricFamily, "opic_replica_loads", "How often it loaded the shard from its checkpoint.", "loads"),
    ):
        family = kind(name, about, labels=["shard"])
        for shard, replica in enumerate(standing):
            family.add_metric([str(shard)], float(getattr(replica, values)))
        yield family


def _of_servers(servers: list[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield the metrics of the store's servers, labelled by index, because an address may be arbitrary."""
    yield _gauge("opic_store_servers", "Servers of the store, replicas apart.", len(servers))
    for kind, name, about, entry in (
        (GaugeMetricFamily, "opic_store_memory_bytes", "Memory that a server of the store uses.", "used_memory"),
        (GaugeMetricFamily, "opic_store_memory_limit_bytes", "Its maxmemory; 0 is none.", "maxmemory"),
        (GaugeMetricFamily, "opic_store_file_bytes", "Its append-only file; 0 without one.", "aof_current_size"),
        (GaugeMetricFamily, "opic_store_replicas", "Replicas that are connected to it.", "connected_slaves"),
        (CounterMetricFamily, "opic_store_commands", "Commands that it did.", "total_commands_processed"),
    ):
        family = kind(name, about, labels=["server"])
        for place, info in enumerate(servers):
            family.add_metric([str(place)], float(info.get(entry, 0)))
        yield family
    cpu = CounterMetricFamily("opic_store_cpu_seconds", "Processor time that it took.", labels=["server"])
    for place, info in enumerate(servers):
        cpu.add_metric([str(place)], float(info["used_cpu_sys"]) + float(info["used_cpu_user"]))
    yield cpu


def _servers(client: Any) -> list[Mapping[str, Any]]:
    with store_errors():
        return [server.info() for server in sorted(primaries(client), key=_address)]


def _address(client: Any) -> str:
    options = client.connection_pool.connection_kwargs
    return f"{options.get('host', options.get('path'))}:{options.get('port')}"


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value)
