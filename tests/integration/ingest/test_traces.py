"""Spans of records: who publishes, the endpoint and a worker are in one trace, which a receiver of OTLP has."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import curls
import pytest
from kafka_crawl import Topic, event, serving, settings_of, workers
from kafka_server import Kafka
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from processes import wait_until
from servers import Server

from opic.ingest.publish import Publisher
from opic.ingest.traces import Spans, called_by

OURS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = OURS[:-1] + "0"


@pytest.fixture(scope="module")
def own_spans() -> InMemorySpanExporter:
    """The spans of this process, which has one tracer provider for good."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@contextmanager
def receiving() -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """A receiver of OTLP over HTTP: its address, and the spans that it has, by the name of the service."""
    spans = dict[str, list[Any]]()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
            for resource in body.resource_spans:
                named = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                for scope in resource.scope_spans:
                    spans.setdefault(named["service.name"], []).extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_a_trace_goes_from_who_publishes_to_the_effect(
    own_spans: InMemorySpanExporter, kafka: Kafka, valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic(kafka)
    settings = settings_of(kafka, valkey, topic.name)
    own_spans.clear()
    with receiving() as (address, spans):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        topic.put([event("http://untraced.example/")])
        tracer = trace.get_tracer("a crawler")
        with Publisher(settings=settings) as publisher, tracer.start_as_current_span("fetch") as fetched:
            publisher.publish("http://a.example/")
        began_ns = time.time_ns()
        with workers(settings, tmp_path) as (worker,), serving(settings, tmp_path / "serve.log") as url:
            for parent in (OURS, NOT_SAMPLED):
                answer = curls.post(
                    f"{url}/v1/events", json={"url": "http://b.example/"}, headers={"traceparent": parent}
                )
                assert answer.status_code == 202
            wait_until(lambda: len(spans.get("opic-worker", ())) >= 2 and spans.get("opic-endpoint"))
            wait_until(lambda: curls.get(f"{url}/v1/stats").json()["lag"] == 0)
            worker.stop()
    sent = next(span for span in own_spans.get_finished_spans() if span.name == f"send {topic.name}")
    assert sent.parent is not None
    assert sent.parent.span_id == fetched.get_span_context().span_id
    (posted,) = spans["opic-endpoint"]  # That of the trace that is not sampled is not recorded.
    assert (posted.trace_id.hex(), posted.parent_span_id.hex()) == tuple(OURS.split("-")[1:3])
    by_parent = {span.parent_span_id: span for span in spans["opic-worker"]}
    assert by_parent.keys() == {sent.context.span_id.to_bytes(8, "big"), posted.span_id}
    first = by_parent[sent.context.span_id.to_bytes(8, "big")]
    assert first.trace_id == sent.context.trace_id.to_bytes(16, "big")
    assert first.start_time_unix_nano > began_ns > sent.end_time
    attributes = {pair.key: pair.value for pair in first.attributes}
    assert attributes["messaging.destination.name"].string_value == topic.name
    assert attributes["messaging.kafka.offset"].int_value == 1


def test_a_record_of_several_calls_is_linked_to_each(own_spans: InMemorySpanExporter) -> None:
    own_spans.clear()
    other = OURS.replace("b7ad", "a7ad")
    with called_by([{"traceparent": OURS}, {"traceparent": "no trace"}, {"traceparent": other}]):
        begun = Spans().sending("pages", 3)
    assert begun is not None
    begun[0].end()
    (span,) = own_spans.get_finished_spans()
    assert [f"{link.context.span_id:016x}" for link in span.links] == ["b7ad6b7169203331", "a7ad6b7169203331"]
    assert span.parent is None
    assert dict(begun[1])["traceparent"].decode().split("-")[2] == f"{span.context.span_id:016x}"
    assert span.attributes is not None
    assert span.attributes["messaging.destination.partition.id"] == "3"
