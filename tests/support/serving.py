"""The HTTP endpoint, or a worker, in a thread of the test's own process, alone or with all of the service."""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx

from opic.api import ConnectionLimits, bind, create_app, make_server
from opic.api.server import url_of
from opic.client import Client
from opic.ingest import Writer
from opic.ingest.event_log import EventLog
from opic.ingest.worker import LogSource, work
from opic.ingest.writer import Taken
from opic.service.backend import Backend
from opic.service.service import EmbeddedService
from opic.service.tokens import Tokens
from opic.settings import Settings

STOP_SECONDS = 10.0
IDLE_SECONDS = 0.02


@contextmanager
def serving_embedded(directory: Path, **settings: object) -> Iterator[tuple[httpx.Client, Client]]:
    """Run the whole service with its data in a directory; lend two clients of it."""
    with (
        EmbeddedService(Settings.load(data=directory, **settings)) as service,
        serving(service) as url,
        httpx.Client(base_url=url, timeout=30) as http,
        Client(url) as client,
    ):
        yield http, client


@contextmanager
def serving_client(directory: Path, **settings: object) -> Iterator[Client]:
    """Run the whole service; lend a client that has its `address`."""
    with serving_embedded(directory, **settings) as (http, client):
        client.address = str(http.base_url)  # type: ignore[attr-defined]
        yield client


@contextmanager
def serving(service: Any, *, allow_open: bool = False, tokens: Tokens | None = None, **limits: float) -> Iterator[str]:
    """Serve a service, or what looks like one, on a free port, with other limits on connections; lend the URL."""
    listener = bind("127.0.0.1", 0)
    app = create_app(service, allow_open=allow_open, tokens=tokens, crawls=getattr(service, "crawls", None))
    server = make_server(app, ConnectionLimits(**limits))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join(STOP_SECONDS)
        assert not thread.is_alive()


class PromptSource(LogSource):
    """The log in the store, read by a worker that ends as soon as it is told to."""

    def poll(self, wait_seconds: float) -> list[Taken]:
        return super().poll(min(wait_seconds, IDLE_SECONDS))


@contextmanager
def working(backend: Backend) -> Iterator[None]:
    """Let what is appended to the store's log take effect, as a worker does beside an endpoint."""
    own = Backend(backend.settings, backend.store)
    assert isinstance(own.log, EventLog)
    writer = Writer.of(own.crawl, own.settings)
    with closing(own), applying(writer, PromptSource(own.log, writer.resume)):
        yield


@contextmanager
def applying(writer: Writer, source: LogSource) -> Iterator[None]:
    """Apply records in a thread."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(writer, source), kwargs={"stopped": ended.is_set})
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(STOP_SECONDS)
        assert not thread.is_alive()
