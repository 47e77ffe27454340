"""Where a request ends and the next one begins, over a real socket and in all segments of TCP.

An endpoint that reads part of a body as another request lets one caller speak for the next one on a proxy's connection.
"""

import json
import random
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import h11
import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from raw_http import (
    HOST,
    INNER,
    LAST,
    UPGRADES,
    WAIT_SECONDS,
    Connection,
    Echoed,
    answers,
    ask,
    chunked,
    connected,
    echoed,
    echoing,
    problem,
    rest,
)  # fmt: skip

from opic.api import ConnectionLimits
from opic.api.server import Server

pytestmark = pytest.mark.slow

HEAD_BYTES = ConnectionLimits().head_bytes


@pytest.fixture(scope="module")
def echo_server() -> Iterator[tuple[Server, int]]:
    with echoing() as found:
        yield found


@pytest.fixture(scope="module")
def port(echo_server: tuple[Server, int]) -> int:
    return echo_server[1]


def read_by_h11(text: bytes) -> list[Echoed]:
    """The requests in a text, as another parser reads them."""
    connection, found = h11.Connection(h11.SERVER), []
    connection.receive_data(text)
    while type(asked := connection.next_event()) is h11.Request:
        body = b""
        while type(part := connection.next_event()) is h11.Data:
            body += part.data
        assert type(part) is h11.EndOfMessage
        found.append(echoed(asked.method.decode(), asked.target.decode(), body))
        if connection.our_state is not h11.SEND_RESPONSE:
            continue
        connection.send(h11.Response(status_code=204, headers=[]))
        connection.send(h11.EndOfMessage())
        if connection.our_state is not h11.DONE:
            break
        connection.start_next_cycle()
    return found


class Request(NamedTuple):
    """A request: as it is sent, and what it says."""

    text: bytes
    says: Echoed


@st.composite
def requests(draw: st.DrawFn) -> Request:
    method = draw(st.sampled_from(["POST", "PUT", "GET", "DELETE"]))
    target = draw(st.sampled_from(["/", "/v1/events", "/a%20b?c=d"]))
    body = draw(st.sampled_from([b"", b"x", b"\r\n", INNER, b"0\r\n\r\n" + INNER, 3 * INNER]) | st.binary(max_size=300))
    fields = [UPGRADES[draw(st.sampled_from(sorted(UPGRADES)))], HOST, b"X-Note: a\r\n"]
    if draw(st.booleans()):
        extension = draw(st.sampled_from([b"", b";a", b";a=b", b';a="b c"']))
        trailer = draw(st.sampled_from([b"", b"X-Sum: 1\r\n", b"Host: b\r\nConnection: upgrade\r\nUpgrade: h2c\r\n"]))
        framed = chunked(body, draw(st.lists(st.integers(0, 300), max_size=6)), extension, trailer)
        fields.append(draw(st.sampled_from([b"Transfer-Encoding: chunked\r\n", b"transfer-encoding:Chunked \r\n"])))
    else:
        framed = body
        if body or draw(st.booleans()):
            fields.append(b"Content-Length: %d\r\n" % len(body))
    head = f"{method} {target} HTTP/1.1\r\n".encode() + b"".join(draw(st.permutations(fields))) + b"\r\n"
    return Request(head + framed, echoed(method, target.partition("?")[0], body))


@examples(300)
@given(asked=st.lists(requests(), min_size=1, max_size=4), data=st.data())
def test_requests_are_read_as_they_were_sent_in_all_segments(
    echo_server: tuple[Server, int], asked: list[Request], data: st.DataObject
) -> None:
    server, port = echo_server
    text = b"".join(request.text for request in asked) + LAST
    sent = [request.says for request in asked] + [echoed("GET", "/last")]
    assert [one._replace(target=one.target.partition("?")[0]) for one in read_by_h11(text)] == sent
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=12))})
    with connected(port) as wire:
        connection = Connection(server, wire)
        for start, end in pairwise(cuts):
            connection.send(text[start:end])
        assert answers(rest(wire)) == sent


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("size", [0, 1, 64 << 10, 1 << 20])
@pytest.mark.parametrize("chunks", [0, 1, 7, 1_000])
def test_a_body_beside_an_upgrade_is_read(port: int, upgrade: str, size: int, chunks: int) -> None:
    chance = random.Random(size + chunks)
    body = chance.randbytes(size)
    cuts = [chance.randrange(size + 1) for _ in range(chunks)]
    head = b"POST /a HTTP/1.1\r\n" + HOST + UPGRADES[upgrade]
    framed = b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, cuts)
    if not chunks:
        framed = b"Content-Length: %d\r\n\r\n" % size + body
    for expect in (b"", b"Expect: 100-continue\r\n"):
        found = ask(port, head, expect, framed, LAST)
        last = [] if expect else [echoed("GET", "/last")]  # The connection ends with a request that has Expect.
        assert found == [echoed("POST", "/a", body), *last]


def test_many_requests_for_an_upgrade_in_one_segment_are_answered_in_order(port: int) -> None:
    one = b"POST /a HTTP/1.1\r\n" + HOST + UPGRADES["h2c"] + b"Content-Length: %d\r\n\r\n" % len(INNER) + INNER
    assert ask(port, 1_000 * one, LAST) == [*1_000 * [echoed("POST", "/a", INNER)], echoed("GET", "/last")]


@pytest.mark.parametrize("target", [b"localhost:80", b"/a"])
def test_a_tunnel_is_refused(port: int, target: bytes) -> None:
    body = b"Content-Length: %d\r\n\r\n" % len(INNER) + INNER
    assert ask(port, b"CONNECT " + target + b" HTTP/1.1\r\n" + HOST + body) == [400]


def test_an_unasked_body_of_a_client_that_waits_is_not_waited_for(port: int) -> None:
    """Such a client may take the final answer as leave to send its next request instead."""
    asked = b"POST /unread HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(INNER)
    with connected(port) as wire:
        wire.sendall(asked)
        answer = rest(wire)
    assert answers(answer) == [echoed("POST", "/unread")]
    assert b"\r\nconnection: close\r\n" in answer
    assert b" 100 " not in answer


def test_a_client_of_http_1_0_gets_no_interim_answer(port: int) -> None:
    with connected(port) as wire:
        wire.sendall(b"POST /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n[]")
        answer = rest(wire)
    assert answers(answer) == [echoed("POST", "/a", b"[]")]
    assert b" 100 " not in answer


# The end of a connection.


@pytest.mark.parametrize("requests", [1, 3])
def test_requests_before_a_broken_one_are_answered_first(port: int, requests: int) -> None:
    whole = b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\n[]"
    broken = b"POST /b HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[]x\r\n"
    for ending in (b"garbage\r\n\r\n", broken, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n"):
        *before, last = ask(port, requests * whole, ending)
        assert before == requests * [echoed("POST", "/a", b"[]")]
        assert last in (400, 431)


def test_nothing_is_answered_after_the_last_request(port: int) -> None:
    part = b"POST /b HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n["
    began = time.monotonic()
    for after in (INNER, INNER + INNER, b"garbage\r\n\r\n", part, INNER + part):
        assert ask(port, LAST, after) == [echoed("GET", "/last")]
    assert time.monotonic() - began < WAIT_SECONDS


def test_a_body_broken_after_its_answer_gets_no_second_one(port: int) -> None:
    with connected(port) as wire:
        wire.sendall(b"POST /unread HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n[")
        first = wire.recv(10_000)
        wire.sendall(b"garbage\r\n\r\n")
        assert answers(first + rest(wire)) == [echoed("POST", "/unread")]


def test_the_rest_of_a_body_is_discarded_before_the_next_request(port: int) -> None:
    body = 1_000 * INNER
    with connected(port) as wire:
        wire.sendall(b"POST /unread HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(body))
        first = wire.recv(10_000)
        wire.sendall(body + LAST)
        assert answers(first + rest(wire)) == [echoed("POST", "/unread"), echoed("GET", "/last")]


# Heads and trailers.


def head_of(size: int, first: bytes = b"GET /a HTTP/1.1") -> bytes:
    """A head of so many bytes, which ends the connection."""
    lines = [first, b"Host: localhost", b"Connection: close"]
    lines += [b"X-%02d: " % n + b"a" * 3_000 for n in range((size - 1_000) // 3_008)]
    left = size - len(b"\r\n".join([*lines, b"X: ", b"", b""]))
    return b"\r\n".join([*lines, b"X: " + b"a" * left, b"", b""])


@pytest.mark.parametrize("first", [b"GET /a HTTP/1.1", b"DELETE /abc HTTP/1.1"])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_limit_of_a_head_is_exact(echo_server: tuple[Server, int], first: bytes, parts: int) -> None:
    server, port = echo_server
    method, path = first.decode().split()[:2]
    for size, found in ((HEAD_BYTES, [echoed(method, path)]), (HEAD_BYTES + 1, [431]), (300_000, [431])):
        head = head_of(size, first)
        assert len(head) == size
        with connected(port) as wire:
            connection = Connection(server, wire)
            for n in range(parts):
                connection.send(head[n * size // parts : (n + 1) * size // parts])
            assert answers(rest(wire)) == found


def test_heads_that_are_small_each_may_be_many(port: int) -> None:
    asked = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"
    many = HEAD_BYTES // len(asked) + 100
    with connected(port) as wire:
        sending = threading.Thread(target=wire.sendall, args=(many * asked + LAST,))
        sending.start()
        found = answers(rest(wire))
        sending.join()
    assert found == [*many * [echoed("GET", "/a")], echoed("GET", "/last")]


@pytest.mark.parametrize("noise", [b"1;" + b"a" * 1_000_000, b"1\r\n[\r\n0\r\nX: " + b"a" * 1_000_000])
def test_what_frames_a_body_is_limited_too(port: int, noise: bytes) -> None:
    with connected(port) as wire:
        wire.sendall(b"POST /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
        threading.Thread(target=lambda: wire.sendall(noise)).start()
        assert f"trailer are over the limit of {HEAD_BYTES:,} bytes" in problem(rest(wire), 431)["detail"]


def test_fields_of_a_trailer_are_no_headers(port: int) -> None:
    trailer = b"Authorization: Bearer a\r\nHost: b\r\nIdempotency-Key: c\r\n" + b"X: y\r\n" * 200
    head = b"POST /a HTTP/1.1\r\n" + HOST + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(port) as wire:
        wire.sendall(head + chunked(b"[]", [1], trailer=trailer))
        body = rest(wire).partition(b"\r\n\r\n")[2]
    assert json.loads(body)["headers"] == ["host", "connection", "transfer-encoding"]
