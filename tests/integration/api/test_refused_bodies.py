"""Memory after calls that were refused: their bodies are gone at once, and not when the garbage collector runs."""

import gc
import gzip
import json
import logging
import socket
import struct
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgpack
import pytest
import zstandard
from processes import running, wait_until
from raw_http import connected, rest
from serving import serving
from urlfrontier_client import connected as grpc_connected
from urlfrontier_client import discovered, known

from opic.api.http_protocol import Wire
from opic.api.metrics import Metrics
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.urlfrontier import urlfrontier_pb2 as pb
from opic.urlfrontier.server import serving as grpc_serving

pytestmark = pytest.mark.slow

BODY_BYTES_MAX = 2_000_000  # OPIC_MAX_BODY_BYTES here.
SIZE = 1_500_000
HASTY = {"body_seconds": 1.0, "body_bytes_a_second": 1e9, "linger_seconds": 1.0}
FORM = {"json": "application/json", "lines": "application/x-ndjson", "msgpack": "application/msgpack"}


class Case(NamedTuple):
    """A call that is refused: its body is made of a mark by which it is found in memory."""

    status: int
    body: Callable[[str, int], bytes]
    target: str = "POST /v1/events"
    form: str = "json"
    headers: str = ""


def text(body: Callable[[str, int], Any]) -> Callable[[str, int], bytes]:
    return lambda mark, size: json.dumps(body(mark, size)).encode()


def long(mark: str, size: int) -> str:
    return mark * (size // len(mark))


def many(mark: str, size: int) -> list[str]:
    count = size // (len(mark) + 10)
    return [f"{mark}{n:06}" for n in range(count)]


def repeated(mark: str, size: int) -> list[str]:
    """A list that is too long for a call; its strings are one."""
    return [long(mark, size // 2), *[f"http://a.example/{n}" for n in range(10_001)]]


BAD_URL = text(lambda mark, size: {"url": long(mark, size)})
PACKED = msgpack.packb
GZIP, ZSTD = "Content-Encoding: gzip\r\n", "Content-Encoding: zstd\r\n"
CASES = {
    "a bad URL": Case(422, BAD_URL),
    "a long URL": Case(422, text(lambda m, n: {"url": "http://a.example/" + long(m, n)})),
    "a long list in a bad event": Case(422, text(lambda m, n: {"url": "/", "tags": many(m, n)})),
    "a bad list": Case(422, text(lambda m, n: {"url": "http://a.example/", "links": long(m, n)})),
    "many bad events": Case(422, text(lambda m, n: [{"url": url} for url in many(m, n)])),
    "bad events of an array": Case(202, text(lambda m, n: [{"url": long(m, n // 9)}] * 9)),
    "bad lines": Case(202, lambda m, n: b"\n".join(9 * [BAD_URL(m, n // 9)]), form="lines"),
    "lines that are not JSON": Case(202, lambda m, n: long(m, n).encode() + b"\n", form="lines"),
    "not JSON": Case(400, lambda m, n: b'{"url": "' + long(m, n).encode()),
    "an array that is not JSON": Case(400, lambda m, n: b'[{"url": "' + long(m, n).encode()),
    "a NaN": Case(400, lambda m, n: b'{"url": NaN, "tags": ["%s"]}' % long(m, n).encode()),
    "deep": Case(422, lambda m, n: b'{"url": "%s", "x": %s' % (long(m, n).encode(), b"[" * 9_000)),
    "a bad URL in MessagePack": Case(422, lambda m, n: PACKED({"url": long(m, n)}), form="msgpack"),
    "MessagePack cut": Case(400, lambda m, n: PACKED({"url": long(m, n)})[:-9], form="msgpack"),
    "an array of MessagePack cut": Case(400, lambda m, n: PACKED([{"url": long(m, n)}])[:-9], form="msgpack"),
    "a key": Case(422, BAD_URL, headers="Idempotency-Key: a\r\n"),
    "a bad key": Case(422, BAD_URL, headers="Idempotency-Key: a\r\nIdempotency-Key: b\r\n"),
    "not gzip": Case(400, BAD_URL, headers=GZIP),
    "not zstd": Case(400, BAD_URL, headers=ZSTD),
    "gzip cut": Case(400, lambda m, n: gzip.compress(BAD_URL(m, n), 0)[:-9], headers=GZIP),
    "a bad URL in gzip": Case(422, lambda m, n: gzip.compress(BAD_URL(m, n)), headers=GZIP),
    "a bad URL in zstd": Case(422, lambda m, n: zstandard.compress(BAD_URL(m, n)), headers=ZSTD),
    "large in gzip": Case(413, lambda m, n: gzip.compress(BAD_URL(m, 15 * n)), headers=GZIP),
    "another coding": Case(415, BAD_URL, headers="Content-Encoding: br\r\n"),
    "another type": Case(415, BAD_URL, form="text"),
    "no such path": Case(404, BAD_URL, "POST /v1/nothing"),
    "another method": Case(405, BAD_URL, "POST /v1/stats"),
    "a foreign page": Case(403, BAD_URL, headers="Origin: http://b.example\r\n"),
    "a bad seed": Case(422, text(lambda m, n: {"urls": [long(m, n)]}), "POST /v1/seeds"),
    "bad seeds": Case(200, text(lambda mark, n: {"urls": ["http://b.example/", long(mark, n)]}), "POST /v1/seeds"),
    "seeds that are no list": Case(422, text(lambda m, n: {"urls": long(m, n)}), "POST /v1/seeds"),
    "too many seeds": Case(422, text(lambda m, n: {"urls": repeated(m, n)}), "POST /v1/seeds"),
    "a bad number": Case(422, text(lambda m, n: {"n": long(m, n)}), "POST /v1/next"),
    "too many hosts": Case(422, text(lambda m, n: {"busy_hosts": repeated(m, n)}), "POST /v1/next"),
    "an unknown field": Case(422, text(lambda m, n: {m: many(m, n)}), "POST /v1/next"),
    "too many pages": Case(422, text(lambda m, n: {"urls": repeated(m, n)}), "POST /v1/importance"),
    "a bad page": Case(422, text(lambda m, n: {"urls": ["http://a.example/", long(m, n)]}), "POST /v1/importance"),
    "a bad page of many": Case(422, text(lambda m, n: {"urls": repeated(m, n)[:300]}), "POST /v1/importance"),
    "in-flow of a bad page": Case(422, text(lambda m, n: {"urls": [long(m, n)]}), "POST /v1/inflow"),
    "a bad lease": Case(422, text(lambda m, n: {"leases": [long(m, n)]}), "POST /v1/release"),
    "a bad lease to renew": Case(422, text(lambda m, n: {"leases": [long(m, n)]}), "POST /v1/leases/renew"),
    "bad classes": Case(422, text(lambda m, n: {"classes": many(m, n)}), "PUT /v1/classes"),
    "bad rules": Case(422, text(lambda m, n: {"rules": [{"url": long(m, n)}]}), "PUT /v1/rules"),
    "bad politeness": Case(422, text(lambda m, n: {"hosts": {long(m, n): {}}}), "PUT /v1/politeness"),
    "a bad list of a domain": Case(422, text(lambda m, n: {"pages": many(m, n)}), "PUT /v1/local/a.example"),
}


def request(case: Case, body: bytes) -> bytes:
    head = f"{case.target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: {FORM.get(case.form, case.form)}\r\n{case.headers}\r\n".encode() + body


def status(port: int, case: Case, mark: str, size: int = SIZE) -> int:
    with connected(port) as wire:
        wire.sendall(request(case, case.body(mark, size)))
        return int(rest(wire)[9:12])


def marks_in_memory(prefix: str) -> Counter[str]:
    """Bytes of all strings in this process that have a mark, by mark."""
    frames = [frame for top in list(sys._current_frames().values()) for frame in stack(top)]
    owners = [*gc.get_objects(), *[list(frame.f_locals.values()) for frame in frames if frame is not sys._getframe()]]
    found, seen = Counter[str](), set[int]()
    for owner in owners:
        for value in gc.get_referents(owner):
            if type(value) in (str, bytes, bytearray) and len(value) > len(prefix) and id(value) not in seen:
                start = str(value[:200] if isinstance(value, str) else bytes(value[:200]))
                if (at := start.find(prefix)) >= 0:
                    seen.add(id(value))
                    found[start[at : at + len(prefix) + 5]] += len(value)
    return found


def kept() -> dict[str, int]:
    """Bytes of bodies that are still in memory, by mark; a message may quote the first ones."""
    return {mark: size for mark, size in marks_in_memory(PREFIX).items() if size > SIZE // 10}


def stack(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    settings = Settings.load(data=tmp_path_factory.mktemp("refused"), max_body_bytes=BODY_BYTES_MAX)
    with EmbeddedService(settings) as service, serving(service, **HASTY) as url:
        yield int(url.rpartition(":")[2])


@pytest.fixture(autouse=True)
def _no_records() -> Iterator[None]:
    """Log nothing: pytest holds the records, and their errors, until the test ends."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


PREFIX = "-".join(("mark", "of", "a", "body", ""))  # Made here, so that the code has no such constant.


def test_no_refused_body_is_kept(port: int) -> None:
    names = {f"{PREFIX}{n:05}": name for n, name in enumerate(CASES)}
    with without_collector():
        statuses = {name: status(port, CASES[name], mark) for mark, name in names.items()}
        assert statuses == {name: case.status for name, case in CASES.items()}
        wait_until(lambda: not kept(), 30)


def test_a_body_that_the_service_failed_on_is_not_kept() -> None:
    broken = SimpleNamespace(backend=SimpleNamespace(settings=Settings.load()), not_ready=lambda: None)
    seeds = CASES["bad seeds"]
    with serving(broken) as url, without_collector():
        assert status(int(url.rpartition(":")[2]), seeds, f"{PREFIX}00000") == 500
        wait_until(lambda: not kept(), 30)


def whole(body: bytes) -> bytes:
    return b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (len(body) + 9) + body


def in_chunks(body: bytes, after: bytes = b"") -> bytes:
    parts = [body[at : at + 10_000] for at in range(0, len(body), 10_000)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + after


BROKEN_OFF: dict[str, tuple[Callable[[bytes], bytes], int | None]] = {  # Status; None: the client leaves.
    "gone": (whole, None),
    "gone, in chunks": (in_chunks, None),
    "slow": (whole, 408),
    "slow, in chunks": (in_chunks, 408),
    "a broken chunk": (lambda body: in_chunks(body, b"no size\r\n"), 400),
    "too large": (lambda body: in_chunks(2 * body, b"0\r\n\r\n"), 413),
    "too large, and on and on": (lambda body: in_chunks(2 * body), 413),
    "declared too large": (lambda body: whole(2 * body), 413),
}


def test_no_part_of_a_body_that_does_not_come_whole_is_kept(port: int) -> None:
    names = {f"{PREFIX}{n:05}": name for n, name in enumerate(BROKEN_OFF)}
    with without_collector():
        for mark, name in names.items():
            framed, answer = BROKEN_OFF[name]
            with connected(port) as wire:
                wire.sendall(framed(BAD_URL(mark, SIZE)))
                if answer is None:
                    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # Reset it.
                else:
                    assert wire.recv(1_000)[9:12] == b"%d" % answer, name
        wait_until(lambda: not kept(), 30)


GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
CONNECTIONS = {
    "silent": b"",
    "idle": GET + b"\r\n",
    "half a head": GET,
    "closed": GET + b"Connection: close\r\n\r\n",
    "an upgrade": GET + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    "noise": b"noise\r\n\r\n",
    "a head that is refused": b"GET /healthz HTTP/1.1\r\n\r\n",
    "too many headers": GET + 101 * b"X: y\r\n" + b"\r\n",
    "pipelined": 50 * (GET + b"\r\n"),
    "pipelined, and noise": 50 * (GET + b"\r\n") + b"noise\r\n\r\n",
    "pipelined, and half a body": 50 * (GET + b"\r\n") + whole(b"["),
    "half a body": whole(b"["),
}


@pytest.mark.parametrize("reset", [False, True])
def test_no_closed_connection_is_kept(port: int, reset: bool) -> None:
    def open_connections() -> int:
        return sum(type(owner) is Wire for owner in gc.get_objects())

    with without_collector():
        wait_until(lambda: not open_connections(), 30)
        for text in CONNECTIONS.values():
            with connected(port) as wire:
                wire.sendall(text)
                with connected(port) as later:
                    later.sendall(CONNECTIONS["closed"])
                    assert rest(later)[9:12] == b"200"  # So the one before was accepted, and read.
                if reset:
                    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(lambda: not open_connections(), 30)


GRPC_CALLS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "a bad known page": ("PutURLs", lambda long: iter([known(long)])),
    "a bad discovered page": ("PutURLs", lambda long: iter([discovered(long)])),
    "long metadata": ("PutURLs", lambda long: iter([discovered("http://a.example/", {"a": long})])),
    "an unknown crawl": ("PutURLs", lambda long: iter([discovered("http://a.example/", crawlID=long)])),
    "a bad batch": ("PutDiscovered", lambda long: iter([pb.DiscoveredBatch(items=2 * [pb.URLInfo(url=long)])])),
    "a bad URL": ("GetURLStatus", lambda long: pb.URLStatusRequest(url=long)),
    "a bad host to delay": ("SetDelay", lambda long: pb.QueueDelayParams(key=long)),
    "a bad host to limit": ("SetCrawlLimit", lambda long: pb.CrawlLimitParams(key=long)),
    "a bad host to forget": ("DeleteQueue", lambda long: pb.QueueWithinCrawlParams(key=long)),
    "a crawl to delete": ("DeleteCrawl", lambda long: pb.DeleteCrawlMessage(value=long)),
    "counts of an unknown crawl": ("GetStats", lambda long: pb.QueueWithinCrawlParams(crawlID=long)),
    "pages of a bad host": ("GetURLs", lambda long: pb.GetParams(key=long)),
    "a list of an unknown crawl": ("ListURLs", lambda long: pb.ListUrlParams(crawlID=long)),
}


def test_no_refused_message_of_urlfrontier_is_kept(tmp_path: Path) -> None:
    names = {f"{PREFIX}{n:05}": name for n, name in enumerate(GRPC_CALLS)}
    with (
        EmbeddedService(Settings.load(data=tmp_path)) as service,
        grpc_serving(service, 0, Metrics(service.backend)) as address,
        grpc_connected(address) as stub,
        without_collector(),
    ):
        for mark, name in names.items():
            call, asked = GRPC_CALLS[name]
            if call in ("PutURLs", "PutDiscovered"):
                assert list(getattr(stub, call)(asked(long(mark, SIZE))))
            else:
                assert stub.refused(call, asked(long(mark, SIZE))).value[0]
        wait_until(lambda: not kept(), 30)  # The threads of the client end first.


LARGE = {name: CASES[name] for name in ("a long list in a bad event", "a long URL", "an array that is not JSON")}


def test_the_process_of_an_endpoint_does_not_grow_by_refused_calls(tmp_path: Path) -> None:
    def megabytes() -> int:
        return int(Path(f"/proc/{service.pids()['endpoint']}/statm").read_text().split()[1]) * 4096 >> 20

    with running(tmp_path / "data", tmp_path / "log") as service:
        for name, case in LARGE.items():
            body = request(case, case.body(PREFIX, 9_000_000))
            sizes = []
            for _ in range(10):
                with connected(service.port) as wire:
                    wire.sendall(body)
                    assert rest(wire)[9:12] == b"%d" % case.status
                sizes.append(megabytes())
            assert sizes[-1] < sizes[2] + 40, name  # Ten bodies are 90 MB.
