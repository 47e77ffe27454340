"""What `GET /metrics` tells Prometheus.

All but the times of HTTP requests comes from the store, so that any endpoint tells the same and a restart forgets
nothing. No label holds a URL or a host: labels are few, and known beforehand.
"""

import threading
import time
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.types import Scope

from opic import __version__
from opic.cash import ROUND_BITS
from opic.errors import StoreError, StoreUnavailable
from opic.events import Outcome
from opic.service import Backend
from opic.worker import step_times

TEXT: Final = "text/plain"
OPENMETRICS: Final = "application/openmetrics-text"
AUDIT_SECONDS: Final = 60.0  # Least time between two audits: one reads whole columns, 16 bytes a page.
AUDIT_WAIT_SECONDS: Final = 1.0  # The first scrape gives the first audit this long.
REQUEST_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
METHODS: Final = ("GET", "POST")  # A HEAD is a GET here. A route is matched before its methods are looked at.
OUTCOMES: Final = {
    Outcome.READ: "reads",
    Outcome.FAILED: "failures",
    Outcome.GONE: "departures",
    Outcome.EXCLUDED: "exclusions",
    Outcome.DEAD: "dead_letters",
}


class Metrics:
    """One endpoint's metrics."""

    def __init__(self, backend: Backend) -> None:
        """Nothing is asked of the store yet."""
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "opic_http_request_duration_seconds",
            "Time to answer a request, by route and class of status.",
            ("method", "route", "status"),
            buckets=REQUEST_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_FromStore(backend))

    def observe(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request. A path or a method that no route has gets no label of its own."""
        path = getattr(scope.get("route"), "path", None)
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._requests.labels(method, path or "other", f"{status // 100}xx" if status else "aborted").observe(seconds)

    def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics, and their content type, in the form that the header `Accept` asks for."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind


class _FromStore(Collector):
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._audit = _BackgroundAudit(backend)

    def describe(self) -> Iterator[Metric]:
        """Say nothing, so that registering asks nothing of the store."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield what the store knows; without it only that it is away."""
        build = GaugeMetricFamily("opic_build_info", "1, with the version of the endpoint.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        try:
            found = [*self._books(), self._batches(), *self._audit.metrics()]
        except StoreError:
            found = []
        yield GaugeMetricFamily("opic_store_up", "1 if the store answers.", int(bool(found)))
        yield from found

    def _books(self) -> Iterator[Metric]:
        shard = self._backend.shard
        lag, books, rules = self._backend.lag(), shard.books(), shard.rules
        events = CounterMetricFamily("opic_events", "Crawl events that took effect.", labels=["outcome"])
        for outcome, name in OUTCOMES.items():
            events.add_metric([outcome.value], getattr(books, name))
        yield events
        for name, about, count in (
            ("opic_links", "Links of pages read: distinct, to other pages.", books.links),
            ("opic_bad_links", "Links that were no absolute http(s) URLs, dropped.", books.bad_links),
            ("opic_dead_letters", "Events that can't be taken.", books.dead_letters),
            ("opic_seeds", "Pages asked to be made known by seeds.", books.seeds),
            ("opic_clock_grains", "Grains ever spent by reads: the time axis of importance.", books.clock),
            (
                "opic_rounds",
                "The clock in grants for every known page, or in all cash.",
                books.rounds / (1 << ROUND_BITS),
            ),
        ):
            yield CounterMetricFamily(name, about, count)
        for name, about, value in (
            ("opic_lag_events", "Events accepted that have not taken effect yet.", lag),
            ("opic_known_pages", "Pages known and not gone.", books.live),
            ("opic_read_pages", "Known pages read since they became known or came back.", books.open),
            ("opic_gone_pages", "Pages gone.", books.gone),
            ("opic_virtual_pool_grains", "Cash of the virtual page.", books.pool),
        ):
            yield GaugeMetricFamily(name, about, value)
        if not rules.continuous:
            about = "Bound on the L1 distance of all estimates from exact PageRank of the known graph; 2 says nothing."
            bound = self._backend.query.error_bound(books)
            yield GaugeMetricFamily("opic_error_bound", about, 2.0 if bound is None else bound)

    def _batches(self) -> Metric:
        buckets, seconds = step_times(self._backend.shard)
        about = "Time that a step took, a batch of up to 4,000 links: from the answer to the one before to its own."
        return HistogramMetricFamily("opic_step_seconds", about, buckets=buckets, sum_value=seconds)


class _BackgroundAudit:
    """The last audit, done again beside a scrape when it is old; a scrape waits for the first one only, and shortly."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._began = float("-inf")
        self._last: tuple[bool, float] | None = None

    def metrics(self) -> Iterator[Metric]:
        """Yield the last result and its age."""
        with self._lock:
            alive = self._thread is not None and self._thread.is_alive()
            if not alive and time.monotonic() - self._began >= AUDIT_SECONDS:
                self._began = time.monotonic()
                self._thread = threading.Thread(target=self._run, name="opic-audit", daemon=True)
                self._thread.start()
            thread = self._thread
        if self._last is None and thread is not None:
            thread.join(AUDIT_WAIT_SECONDS)
        if self._last is not None:
            conserved, at = self._last
            about = "1 if the last audit found every grain, 0 if not."
            yield GaugeMetricFamily("opic_cash_conserved", about, int(conserved))
            yield GaugeMetricFamily("opic_audit_age_seconds", "Time since that audit.", time.monotonic() - at)

    def _run(self) -> None:
        at = time.monotonic()
        try:
            self._last = bool(self._backend.query.audit()["conserved"]), at
        except StoreUnavailable:
            pass  # Its age goes on growing.
        except StoreError:
            self._last = False, at  # A block is missing: those grains are.
