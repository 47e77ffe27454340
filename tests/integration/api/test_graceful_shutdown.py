"""Told to end while crawlers talk to it, the service answers what it has in hand, ends by itself, and loses nothing."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import Service, gone, running, wait_until
from written import written

from opic.api.server import GRACE_SECONDS

pytestmark = pytest.mark.slow

WAIT_SECONDS = 20.0
LENIENT_SECONDS = 10.0  # For the worker and the store to end, on a loaded machine.
CALLS_MIN = 30  # Of each caller, before the end.
HELD = 5
HOSTS = 20


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path / "data", tmp_path / "serve.log", host_delay_seconds=0) as found:
        yield found


@dataclass
class Caller:
    """One that calls again and again over a connection that it keeps."""

    path: str
    bodies: Iterator[Any]
    answers: list[tuple[Any, httpx.Response]] = field(default_factory=list)
    unanswered: list[Any] = field(default_factory=list)

    def call(self, url: str, enough: threading.Event) -> None:
        """Call until nobody listens any more, or it is enough."""
        with httpx.Client(base_url=url, timeout=WAIT_SECONDS) as client:
            for body in self.bodies:
                if enough.is_set():
                    return
                try:
                    answer = client.send(client.build_request("POST", self.path, json=body), stream=True)
                except httpx.ConnectError:
                    return
                except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                    self.unanswered.append(body)  # The connection was closed as the call set out.
                    continue
                answer.read()  # An answer that has begun must come to its end.
                self.answers.append((body, answer))


def events(name: str) -> Iterator[list[dict[str, Any]]]:
    """Calls of three events each; every event is of a page of its own, whose reads say how often it took effect."""
    for n in count():
        links = [f"http://h{(n + i) % HOSTS}.example/" for i in range(5)]
        yield [{"url": f"http://h{n % HOSTS}.example/{name}/{n}/{i}", "links": links} for i in range(3)]


def hold(service: Service, stack: ExitStack, body: bytes) -> socket.socket:
    """Begin a call that the service has in hand: it asks for the body, which is still to be sent."""
    wire = stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=WAIT_SECONDS))
    head = f"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
    wire.sendall(head.encode())
    assert wire.recv(100).startswith(b"HTTP/1.1 100 ")
    return wire


def rest(wire: socket.socket) -> bytes:
    return b"".join(iter(lambda: wire.recv(1 << 16), b""))


def test_shutdown_under_load_answers_running_calls_and_keeps_every_accepted_event(
    service: Service,
) -> None:
    writers = [Caller("/v1/events", events(f"writer-{n}")) for n in range(3)]
    askers = [Caller("/v1/next", ({"n": 5, "crawler": f"asker-{n}"} for _ in count())) for n in range(2)]
    readers = [Caller("/v1/importance", ({"urls": [f"http://h{n % HOSTS}.example/"]} for n in count()))]
    callers = [*writers, *askers, *readers]
    held = [f"http://held.example/{n}" for n in range(HELD)]
    bodies = [json.dumps({"url": url}).encode() for url in held]
    assert service.process is not None
    with ThreadPoolExecutor(len(callers)) as threads, ExitStack() as stack:
        enough = threading.Event()
        stack.callback(enough.set)  # Should the service not end.
        calling = [threads.submit(caller.call, service.url, enough) for caller in callers]
        wait_until(lambda: all(len(one.answers) >= CALLS_MIN for one in callers) or any(c.done() for c in calling))
        assert not any(call.done() for call in calling), "a caller gave up"
        wires = [hold(service, stack, body) for body in bodies]
        pids = service.pids().values()
        service.process.send_signal(signal.SIGTERM)
        told = time.monotonic()
        wait_until(lambda: not service.ready(), GRACE_SECONDS)
        time.sleep(GRACE_SECONDS / 5)  # Those who are in hand may take their time: the grace is theirs.
        for wire, body in zip(wires, bodies, strict=True):
            wire.sendall(body)
            head, _, answer = rest(wire).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 202 "), head
            assert b"connection: close" in head.lower()
            assert written(json.loads(answer)) == {"accepted": 1, "rejected": []}
        for call in calling:
            call.result(WAIT_SECONDS)
        assert service.process.wait(GRACE_SECONDS + LENIENT_SECONDS - (time.monotonic() - told)) == 0, service.said()
        assert all(gone(pid) for pid in pids), "a process outlived the service"
    for caller in callers:
        assert {answer.status_code for _, answer in caller.answers} == {202 if caller in writers else 200}

    service.start()
    service.settle()
    accepted = [event["url"] for writer in writers for sent, _ in writer.answers for event in sent] + held
    assert service.reads(accepted) == [1] * len(accepted)
    # Who got no answer was not listened to: what was taken is answered.
    lost = [event["url"] for writer in writers for sent in writer.unanswered for event in sent]
    assert service.reads(lost) == [0] * len(lost)
    audit = service.get("/v1/audit").raise_for_status().json()
    assert audit["conserved"] is True
    assert audit["minted"] == audit["pages"] + audit["virtual"] + audit["in_flight"]
    assert service.get("/v1/stats").json()["read_pages"] == len(accepted)


def test_a_stalled_call_is_answered_when_the_grace_period_ends(service: Service) -> None:
    assert service.process is not None
    with ExitStack() as stack:
        wire = hold(service, stack, b'{"url":"http://stalled.example/"}')
        pids = service.pids().values()
        service.process.send_signal(signal.SIGTERM)
        head, _, answer = rest(wire).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 "), head
        assert b"retry-after: " in head.lower()
        assert json.loads(answer)["type"] == "urn:opic:problem:ending"
        service.process.send_signal(signal.SIGTERM)  # Once more changes nothing.
        assert service.process.wait(GRACE_SECONDS + LENIENT_SECONDS) == 0, service.said()
        assert all(gone(pid) for pid in pids), "a process outlived the service"
    assert "Traceback" not in service.said()
    service.start()
    assert service.get("/v1/stats").json()["known_pages"] == 0
