"""A crawler that gave up and went gets no leases: its pages stay free for those who are still there."""

import json
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import curls
import pytest
from processes import wait_until
from servers import Server
from serving import serving

from opic.ingest import Writer
from opic.model.events import encode_seeds
from opic.service.standing import StandingService
from opic.settings import Settings

PAGES = [f"http://h{host}.example/" for host in range(8)]


@contextmanager
def paused(server: Server) -> Iterator[None]:
    """A server that stands still; what is sent to it meanwhile it does when it goes on."""
    server.pause()
    try:
        yield
    finally:
        server.wake()


def is_asked_for_pages() -> bool:
    """Whether a thread of the endpoint is at a call for pages."""
    for frame in sys._current_frames().values():
        at = frame
        while at is not None:
            if at.f_code.co_name == "_next" and at.f_code.co_filename.endswith("calls.py"):
                return True
            at = at.f_back  # type: ignore[assignment]
    return False


def ask(url: str, n: int) -> socket.socket:
    """Send a call for pages, and wait for nothing."""
    parts, body = urlsplit(url), json.dumps({"n": n}).encode()
    wire = socket.create_connection((parts.hostname, parts.port))
    head = "POST /v1/next HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    wire.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return wire


@pytest.mark.parametrize("shards", [1, 4])
def test_crawler_that_disconnected_while_the_store_hung_has_no_lease(
    valkey: Server, caplog: pytest.LogCaptureFixture, shards: int
) -> None:
    caplog.set_level(logging.INFO, "opic")
    settings = Settings.load(store=valkey.url, crawl="gone", shards=shards, host_delay_seconds=0)
    with StandingService(settings) as service, serving(service) as url:
        backend = service.backend
        writer, ends = Writer(backend.crawl), backend.accept([encode_seeds(PAGES)], "seeds")
        (partition,) = ends
        writer.apply(partition, backend.log.read(0, 100))  # type: ignore[attr-defined]
        answer = curls.post(f"{url}/v1/next", json={"n": 2}).json()  # All that the endpoint keeps is made by now.
        assert len(answer["pages"]) == 2
        curls.post(f"{url}/v1/release", json={"leases": [page["lease"] for page in answer["pages"]]})

        def leases() -> int:
            return sum(backend.crawl.client.zcard(shard.keys.leases) for shard in backend.crawl.shards)

        assert leases() == 0
        with paused(valkey):
            wires = [ask(url, 3)]
            wait_until(is_asked_for_pages)
            wires += [ask(url, 3) for _ in range(2)]  # These wait for the first.
            for wire in wires:
                wire.close()
            wait_until(lambda: caplog.text.count("disconnected") == len(wires))
        wait_until(lambda: not is_asked_for_pages())
        assert leases() == 0
        assert len(curls.post(f"{url}/v1/next", json={"n": 8}).json()["pages"]) == len(PAGES)
        assert leases() == len(PAGES)
