"""OpenTelemetry spans of the records on a topic: from who publishes them to their effect in the store.

A producer makes a span for each record that it sends, and puts the span's W3C trace context into the record's headers.
A worker makes a span for each record with such headers, from its poll to its durable effect, in the same trace. So the
time between the two is what the record waited on the topic. Traces that are not sampled cost a look at a flag.

Spans need the extra `otel`. A program that publishes has its own tracer provider; the service's processes make one
where the environment names an exporter (`export_spans`).

Source: W3C Trace Context; OpenTelemetry's semantic conventions for messaging, which this follows in names.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from opic.model.events import Record, TraceContext

try:
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    trace = None  # type: ignore[assignment]

log = logging.getLogger("opic.ingest")

LINKS_MAX: Final = 64  # Traces that a record's span is linked to.
EXPORTERS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_callers: ContextVar[Sequence[TraceContext]] = ContextVar("callers", default=())


def export_spans(service: str) -> None:
    """Export this process's spans by OTLP over HTTP, where the environment says where to; nothing else is read here.

    OpenTelemetry's own variables count: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME and others.

    Args:
        service: the name of the service in the spans, unless OTEL_SERVICE_NAME names another.
    """
    if not any(os.environ.get(name) for name in EXPORTERS):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("%s is set, but spans need a package: pip install 'opic[otel]'", " or ".join(EXPORTERS))
        return
    if isinstance(trace.get_tracer_provider(), TracerProvider):  # Who runs the service in this process has made one.
        return
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: service}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def current_trace() -> TraceContext | None:
    """Return the trace context of this thread's span; None where there is none."""
    if trace is None or not trace.get_current_span().get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


@contextmanager
def called_by(callers: Sequence[TraceContext]) -> Iterator[None]:
    """Link the records that are sent in the block to the traces of calls: several calls are sent together."""
    token = _callers.set(callers)
    try:
        yield
    finally:
        _callers.reset(token)


class Spans:
    """Makes the spans of records. Thread-safe."""

    def __init__(self) -> None:
        """Use the tracer provider of the process, as it is when a span begins."""
        self._tracer = trace.get_tracer("opic") if trace is not None else None
        self._propagator = TraceContextTextMapPropagator() if trace is not None else None

    def sending(self, topic: str, partition: int | None) -> "tuple[Any, list[tuple[str, bytes]]] | None":
        """Begin the span of a record; return it with the headers that name it. None where no span is recorded."""
        if self._tracer is None or self._propagator is None:
            return None
        callers = _callers.get()
        parent = self._propagator.extract(callers[0]) if len(callers) == 1 else None
        links = [] if len(callers) == 1 else [link for caller in callers[:LINKS_MAX] if (link := self._link(caller))]
        span = self._tracer.start_span(
            f"send {topic}",
            context=parent,
            kind=trace.SpanKind.PRODUCER,
            links=links,
            attributes=_attributes("send", topic, partition),
        )
        if not span.is_recording():
            return None
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, trace.set_span_in_context(span))
        return span, [(name, value.encode()) for name, value in carrier.items()]

    def _link(self, caller: TraceContext) -> Any:
        assert self._propagator is not None
        context = trace.get_current_span(self._propagator.extract(caller)).get_span_context()
        return trace.Link(context) if context.is_valid else None

    def took_effect(self, topic: str, partition: int, records: Sequence[Record], polled_ns: int) -> None:
        """Make the spans of records whose effect is durable.

        Args:
            topic: of the records.
            partition: of the topic.
            records: all records that took effect; those without a trace context get no span.
            polled_ns: when they were polled, in nanoseconds since 1970.
        """
        if self._tracer is None or self._propagator is None:
            return
        for record in records:
            if record.trace is None:
                continue
            span = self._tracer.start_span(
                f"process {topic}",
                context=self._propagator.extract(record.trace),
                kind=trace.SpanKind.CONSUMER,
                attributes={
                    **_attributes("process", topic, partition),
                    "messaging.kafka.offset": record.offset,
                    "messaging.batch.message_count": len(records),
                },
                start_time=polled_ns,
            )
            span.end()


def _attributes(operation: str, topic: str, partition: int | None) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "messaging.system": "kafka",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    if partition is not None:
        attributes["messaging.destination.partition.id"] = str(partition)
    return attributes


def end_sending(span: Any, error: BaseException | None = None) -> None:
    """End the span of a record that was acknowledged, or was not."""
    if error is not None:
        span.record_exception(error)
        span.set_status(trace.StatusCode.ERROR, str(error))
    span.end()
