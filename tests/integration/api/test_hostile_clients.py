"""What clients get that mean harm, or are broken: slow ones, silent ones, too many, and requests of two meanings.

What each of them sees is told in docs/operations.md. Times are shorter here than they are by default.
"""

import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import curls
import httpx
import pytest
from processes import environment, wait_until
from raw_http import WAIT_SECONDS, connected, problem, rest
from serving import serving

from opic.api import ConnectionLimits
from opic.api.server import GRACE_SECONDS
from opic.settings import Settings

pytestmark = pytest.mark.slow

LENIENT_SECONDS = 5.0  # What a loaded machine may add to a time limit.
SHORT = {"head_seconds": 1.0, "body_seconds": 1.0, "linger_seconds": 1.0, "send_seconds": 1.0, "idle_seconds": 2.0}
IDLE = 10_000
BYTES_AN_IDLE_CONNECTION = 16_000


def quiet_service() -> Any:
    """What answers without a store: probes, and whatever is refused before one is asked."""
    settings = Settings.load(max_body_bytes=1_000_000)
    return SimpleNamespace(backend=SimpleNamespace(settings=settings), not_ready=lambda: None)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving(quiet_service()) as url:
        yield int(url.rpartition(":")[2])


@pytest.fixture(scope="module")
def hasty() -> Iterator[int]:
    """One with little patience."""
    with serving(quiet_service(), **SHORT) as url:
        yield int(url.rpartition(":")[2])


def drip(wire: socket.socket, text: bytes) -> float:
    """Send byte by byte until the other side has had enough; the seconds that it bore."""
    began = time.monotonic()
    wire.setblocking(False)
    for n in range(10_000):
        try:
            wire.send(text[n % len(text)].to_bytes())
            if wire.recv(1, socket.MSG_PEEK) is not None:
                break
        except BlockingIOError:
            time.sleep(0.02)
        except (BrokenPipeError, ConnectionResetError):
            break
    wire.setblocking(True)
    wire.settimeout(WAIT_SECONDS)
    return time.monotonic() - began


def sent(wire: socket.socket, part: bytes) -> bool:
    """Send, and tell whether the other side still lets us."""
    try:
        wire.sendall(part)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


# Those that take their time.


@pytest.mark.parametrize("before", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"], ids=["new", "used"])
def test_a_slow_request_head_is_cut_off(hasty: int, before: bytes) -> None:
    with connected(hasty) as wire:
        if before:
            wire.sendall(before)
            assert wire.recv(10_000).startswith(b"HTTP/1.1 200 ")
        wire.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert 0.9 < drip(wire, b"a") < 1 + LENIENT_SECONDS
        assert "head of a request has 1 s" in problem(rest(wire), 408)["detail"]


@pytest.mark.parametrize(
    "head", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"], ids=["of a length", "in chunks"]
)
def test_a_slow_body_is_cut_off(hasty: int, head: bytes) -> None:
    with connected(hasty) as wire:
        wire.sendall(b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n" % head)
        assert 0.9 < drip(wire, b"1\r\n[\r\n") < 1 + LENIENT_SECONDS
        assert "a body has 1 s" in problem(rest(wire), 408)["detail"]


def test_a_body_at_a_fair_pace_is_waited_for(hasty: int) -> None:
    parts, size = 20, 5_000  # 50,000 bytes a second for two seconds.
    with connected(hasty) as wire:
        wire.sendall(b"POST /v1/seeds HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (parts * size))
        for _ in range(parts):
            wire.sendall(b" " * size)
            time.sleep(0.1)
        assert wire.recv(100).startswith(b"HTTP/1.1 400 ")  # All blanks: not JSON.


def test_chunk_extensions_do_not_count_as_body(hasty: int) -> None:
    with connected(hasty) as wire:
        wire.sendall(b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1")
        assert drip(wire, b";a=b") < 1 + LENIENT_SECONDS
        problem(rest(wire), 408)


def test_an_idle_connection_is_closed(hasty: int) -> None:
    with connected(hasty) as new, connected(hasty) as used:
        used.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert used.recv(10_000).startswith(b"HTTP/1.1 200 ")
        began = time.monotonic()
        assert new.recv(100) == b""
        assert 0.5 < time.monotonic() - began < 1 + LENIENT_SECONDS
        assert used.recv(100) == b""
        assert 1.5 < time.monotonic() - began < 2 + LENIENT_SECONDS


def test_blank_lines_do_not_keep_a_connection_alive(hasty: int) -> None:
    with connected(hasty) as wire:
        assert drip(wire, b"\r\n") < 1 + LENIENT_SECONDS
        assert rest(wire) == b""


def test_a_client_that_does_not_read_is_cut_off(hasty: int) -> None:
    with connected(hasty) as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        asked = b"GET /docs/files/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
        wire.sendall(10 * asked)
        began = time.monotonic()
        while sent(wire, b"\r\n"):
            time.sleep(0.02)
        assert 0.9 < time.monotonic() - began < 1 + LENIENT_SECONDS


def test_input_after_the_answer_is_read_for_a_short_time_only(hasty: int) -> None:
    with connected(hasty) as wire:
        wire.sendall(b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n")
        assert wire.recv(100).startswith(b"HTTP/1.1 413 ")
        began = time.monotonic()
        while sent(wire, b" " * 1_000):
            time.sleep(0.001)
        assert time.monotonic() - began < 1 + LENIENT_SECONDS


# Those that are too many, or too large.


def test_beyond_the_limit_the_longest_idle_connection_is_closed() -> None:
    with serving(quiet_service(), connections=3) as url, ExitStack() as stack:
        port = int(url.rpartition(":")[2])
        silent = [stack.enter_context(connected(port)) for _ in range(3)]
        with connected(port) as wire:
            wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert wire.recv(10_000).startswith(b"HTTP/1.1 200 ")
        assert silent[0].recv(1) == b""
        silent[1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            silent[1].recv(1)


def test_with_all_connections_busy_another_one_gets_a_503() -> None:
    with serving(quiet_service(), connections=2) as url, ExitStack() as stack:
        port = int(url.rpartition(":")[2])
        for _ in range(2):
            wire = stack.enter_context(connected(port))
            wire.sendall(
                b"POST /v1/events HTTP/1.1\r\nHost: [::1]\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
            )
            assert wire.recv(100).startswith(b"HTTP/1.1 100 ")
        with connected(port) as late:
            answer = rest(late)
        assert "2 connections are in use" in problem(answer, 503)["detail"]
        assert b"retry-after: 1\r\n" in answer


@pytest.mark.parametrize(
    ("head", "status", "word"),
    [
        (b"GET /healthz HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(101)) + b"\r\n", 431, "100 headers"),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 600_000, 431, "262,144 bytes"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "65,535 is the limit"),
        (b"GET /" + b"a" * 600_000, 431, "262,144 bytes"),
    ],
    ids=["headers", "a long header", "a long path", "a path without end"],
)
def test_a_head_that_is_too_large_is_refused(port: int, head: bytes, status: int, word: str) -> None:
    with connected(port) as wire:
        wire.sendall(head)
        assert word in problem(rest(wire), status)["detail"]


IDLE_SERVER = """
import sys
from types import SimpleNamespace
from opic.api import ConnectionLimits, bind, create_app, serve
from opic.settings import Settings

listener = bind("127.0.0.1", 0)
print(listener.getsockname()[1], flush=True)
app = create_app(SimpleNamespace(backend=SimpleNamespace(settings=Settings.load()), not_ready=lambda: None))
serve(app, sockets=[listener], limits=ConnectionLimits(connections=int(sys.argv[1]), head_seconds=600))
"""


def memory_of(pid: int) -> int:
    return 1024 * int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])


@pytest.mark.slow
def test_ten_thousand_idle_connections_cost_what_the_documents_state() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < IDLE + 500:
        pytest.skip(f"this machine lets a process have {hard} open files, {IDLE + 500} are wanted")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, IDLE + 500), hard))
    command = [sys.executable, "-c", IDLE_SERVER, str(IDLE)]
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()))
        stack.callback(process.terminate)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.get("/healthz").status_code == 200
            before = memory_of(process.pid)
            idle = [stack.enter_context(connected(port)) for _ in range(IDLE)]
            # Ours was silent for longest by then, and has made room for the last.
            assert curls.get(f"{client.base_url}/healthz").status_code == 200
            assert (memory_of(process.pid) - before) / IDLE < BYTES_AN_IDLE_CONNECTION
        assert idle[0].recv(1) == b""  # And this one for the last question.
        idle[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle[-1].recv(100).startswith(b"HTTP/1.1 200 ")
        began = time.monotonic()
        process.terminate()
        assert process.wait(WAIT_SECONDS) == 0
        assert time.monotonic() - began < 8


# Requests of two meanings, or none.

POST = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\n"
NOT_HTTP = {
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 30\r\n\r\n[]",
    "two lengths in one": POST + b"Content-Length: 2, 30\r\n\r\n[]",
    "a length beside chunks": POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks beside a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
    "chunks not at the end": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a length with a sign": POST + b"Content-Length: +2\r\n\r\n[]",
    "a length below 0": POST + b"Content-Length: -1\r\n\r\n[]",
    "a length that is none": POST + b"Content-Length: 0x2\r\n\r\n[]",
    "a blank before the colon": POST + b"Content-Length : 2\r\n\r\n[]",
    "a chunk size that is none": POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    "a chunk size without end": POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
    "a chunk that is longer": POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[]\r\n0\r\n\r\n",
    "a NUL in a header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    "a bare CR in a header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\rY: b\r\n\r\n",
    "no name of a header": b"GET /healthz HTTP/1.1\r\n: a\r\n\r\n",
    "no colon": b"GET /healthz HTTP/1.1\r\nHost a\r\n\r\n",
    "no version": b"GET /healthz\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n",
    "another version": b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "a blank in the path": b"GET /health z HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a NUL in the path": b"GET /healthz\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": bytes(1_000),
}


@pytest.mark.parametrize("request_", NOT_HTTP.values(), ids=NOT_HTTP)
def test_an_ambiguous_request_is_refused(port: int, request_: bytes) -> None:
    with connected(port) as wire:
        wire.sendall(request_ + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = problem(rest(wire), 400)
    assert found["type"] == "urn:opic:problem:not-http"
    assert "\\x" not in found["detail"]


PATHS = [
    *("/../../../etc/passwd", "/docs/files/../../settings.py", "/docs/files/..%2f..%2fsettings.py"),
    *("/docs/files/%2e%2e/%2e%2e/settings.py", "/docs/files//etc/passwd", "/docs/files/%2fetc%2fpasswd"),
    *("/docs/files/..%5c..%5csettings.py", "/docs/files/%00", "/docs/files/a%00.css", "/docs/files/" + "a" * 5_000),
    *("/v1/top%00", "/v1/top;n=1", "/v1//top", "//v1/top", "/v1/top/", "/v1/./top", "/v1/x/../top", "/%", "/%zz"),
    *("/v1/top%0d%0aX-Evil:%201", "/%ff%fe", "/%c0%ae%c0%ae/", "/.git/config", "/.env", "http://a/v1/none", "*"),
]


@pytest.mark.parametrize("path", PATHS)
def test_path_traversal_is_not_possible(port: int, path: str) -> None:
    with connected(port) as wire:
        wire.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = rest(wire)
    assert re.match(rb"HTTP/1.1 (400|404|405) ", answer), answer[:200]
    assert b"application/problem+json" in answer
    assert b"root:" not in answer
    assert b"x-evil" not in answer.lower()


def test_response_headers_cannot_be_injected(port: int) -> None:
    with connected(port) as wire:
        wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: a\tb%0d%0aSet-Cookie: x\r\n\r\n")
        answer = wire.recv(10_000)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"set-cookie" not in answer.lower()
    assert re.search(rb"x-request-id: [0-9a-f]{16}\r\n", answer)


@pytest.mark.parametrize("to", [b"h2c", b"websocket", b"TLS/1.0"])
def test_an_upgrade_is_ignored_and_the_request_answered(port: int, to: bytes) -> None:
    asked = b"Host: [::1]\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nHTTP2-Settings: AAMAAABk\r\n" % to
    with connected(port) as wire:
        wire.sendall(b"GET /healthz HTTP/1.1\r\n" + asked + b"\r\n")
        assert wire.recv(10_000).startswith(b"HTTP/1.1 200 ")
        wire.sendall(b"POST /v1/seeds HTTP/1.1\r\nContent-Length: 1\r\n" + asked + b"\r\n[")
        assert wire.recv(10_000).startswith(b"HTTP/1.1 400 ")
        wire.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wire.recv(10_000).startswith(b"HTTP/1.1 200 ")


def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    with connected(port) as wire:
        wire.sendall(
            20 * b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
            + b"GET /no HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        answers = re.findall(rb"HTTP/1.1 (\d+)", rest(wire))
    assert answers == 20 * [b"200"] + [b"404"]


def test_a_client_that_disconnects_early_leaves_nothing_behind(port: int) -> None:
    for sent in (b"GET /hea", POST + b"Content-Length: 9\r\n\r\n[", b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        for _ in range(20):
            with connected(port) as wire:
                wire.sendall(sent)
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    wait_until(lambda: curls.get(f"http://127.0.0.1:{port}/healthz").status_code == 200)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["the store", "Kafka"])
def test_an_unresponsive_server_is_named(who: str) -> None:
    quiet = quiet_service()
    quiet.backend.waits_for, quiet.not_ready = who, lambda: time.sleep(6)
    with serving(quiet) as url:
        answer = curls.get(f"{url}/readyz", timeout=WAIT_SECONDS)
    assert (answer.status_code, answer.json()["detail"]) == (503, f"{who} did not answer within 5 s")


def test_limits_equal_those_in_the_documents() -> None:
    text = (Path(__file__).parents[3] / "docs/operations.md").read_text()
    limits = ConnectionLimits()
    for told in (
        f"{limits.connections:,} connections",
        f"{limits.head_bytes >> 10} KiB",
        f"{limits.headers} headers",
        f"{limits.head_seconds:g} s for the head",
        f"{limits.body_seconds:g} s for the body",
        f"{limits.body_bytes_a_second:,} bytes",
        f"{limits.idle_seconds:g} s between",
        f"{limits.send_seconds:g} s to take",
        f"calls in hand have {GRACE_SECONDS} s",
        f"{BYTES_AN_IDLE_CONNECTION // 1000} kB",
    ):
        assert told in text
