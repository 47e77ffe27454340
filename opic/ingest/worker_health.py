"""Health endpoint of a worker, on a port of its own: /metrics, /healthz, /readyz.

Labels never contain URLs or hosts, only partitions, whose number is small and fixed.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from opic import __version__
from opic.errors import SettingsError
from opic.ingest import Step
from opic.ingest.step_counts import STEP_EVENTS, STEP_SECONDS
from opic.ingest.throttle import ABOUT, Throttle
from opic.ingest.worker import Lag, RecordSource, WorkerWatch
from opic.ingest.writer import Taken

log = logging.getLogger("opic.ingest")

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]


class HealthAnswers(Collector):
    """Answers /metrics, /healthz and /readyz. `reason` is why the process is not ready, None if it is."""

    def __init__(self, gauges: Callable[[], Iterable[tuple[str, str, float]]] = tuple) -> None:
        """Start as not ready; `gauges` gives more metrics at each request: name, help, value."""
        self.reason: str | None = "starting"
        self._gauges = gauges
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self._metrics = make_wsgi_app(self.registry)

    def answer(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path == "/metrics":
            body: Iterable[bytes] = self._metrics(environ, start_response)
            return body
        status, text = "404 Not Found", "unknown path: use /metrics, /healthz or /readyz"
        if path == "/healthz":
            status, text = "200 OK", "ok"
        elif path == "/readyz" and (reason := self.reason) is not None:
            status, text = "503 Service Unavailable", f"not ready: {reason}"
        elif path == "/readyz":
            status, text = "200 OK", "ready"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode() + b"\n"]

    def collect(self) -> Iterator[Metric]:
        build = GaugeMetricFamily("opic_build_info", "Always 1; the label has the running version.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        for name, about, value in self._gauges():
            yield GaugeMetricFamily(name, about, value)


class Health(HealthAnswers, WorkerWatch):
    """Metrics and readiness of a worker."""

    def __init__(self) -> None:
        super().__init__()
        self._lag: Mapping[str, Lag] = {}
        self.throttle: Throttle | None = None  # Of Kafka.
        counter, histogram = partial(Counter, registry=self.registry), partial(Histogram, registry=self.registry)
        self._events = counter("opic_worker_events", "Records applied by this worker.", ("partition",))
        self._steps = histogram("opic_worker_step_seconds", "Duration of a step.", buckets=STEP_SECONDS)
        self._step_events = histogram("opic_worker_step_events", "Number of events in a step.", buckets=STEP_EVENTS)
        self._round_trips = counter("opic_worker_step_round_trips", "Round trips to the store made by steps.")
        about = "Links looked up, by whether they were in the worker's cache."
        lookups = counter("opic_worker_link_lookups", about, ("cache",))
        self._hits, self._misses = lookups.labels("hit"), lookups.labels("miss")
        self._deliveries = counter("opic_worker_deliveries", "Transfers between shards applied by this worker.")
        self._backoffs = counter("opic_worker_backoffs", "Waits because the store or Kafka was unavailable.")

    def stepped(self, step: Step) -> None:
        self._steps.observe(step.seconds)
        self._step_events.observe(step.events)
        self._round_trips.inc(step.round_trips)
        self._hits.inc(step.cached)
        self._misses.inc(step.links - step.cached)

    def took(self, taken: Taken) -> None:
        self._events.labels(taken.partition).inc(taken.rough_events)

    def delivered(self, entries: int) -> None:
        self._deliveries.inc(entries)

    def well(self, source: RecordSource) -> None:
        self._lag = source.lag()
        if self.reason is not None:
            log.info("ready")
        self.reason = None

    def away(self, reason: str) -> None:
        self._backoffs.inc()
        self.reason = reason

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        yield GaugeMetricFamily(
            "opic_worker_ready", "1 if the store and Kafka answer, else 0.", int(self.reason is None)
        )
        events = GaugeMetricFamily(
            "opic_worker_lag_events", "Records of the partition that have not taken effect yet.", labels=["partition"]
        )
        seconds = GaugeMetricFamily(
            "opic_worker_lag_seconds",
            "Age of the record that took effect last; 0 if no records are waiting.",
            labels=["partition"],
        )
        for partition, lag in self._lag.items():
            events.add_metric([partition], lag.events)
            seconds.add_metric([partition], lag.seconds)
        yield events
        yield seconds
        if self.throttle is not None:
            yield CounterMetricFamily("opic_worker_kafka_throttled_seconds", ABOUT, self.throttle.total)


class _Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


class HealthPort:
    """Serves a process's health in a thread. Use it as a context manager; `port` is the port in use."""

    def __init__(self, health: HealthAnswers, host: str, port: int, name: str = "OPIC_WORKER_PORT=") -> None:
        """Bind the port, which an error calls by `name`.

        Raises:
            SettingsError: the port is in use, or the address is not local.
        """
        try:
            self._server = make_server(host, port, health.answer, handler_class=_Silent)
        except OSError as error:
            raise SettingsError(f"{name}{port} on {host}: {error.strerror or error}") from None
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="opic-health", daemon=True)

    def __enter__(self) -> "HealthPort":
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
