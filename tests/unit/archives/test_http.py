"""HTTP answers of records: line ends, interim answers, codings, media types."""

import gzip
import random
import time
import zlib
from collections.abc import Callable
from itertools import count

import brotli
import pytest
import zstandard
from archive_files import answer

from opic.archives import http
from opic.archives.http import HttpAnswer, method_of, parse_answer
from opic.html.links import redirect_target

TEXT = b"".join(b'<p>entry %d<a href="/%d">x</a>' % (n, n * 7919) for n in range(400))


def packed(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)


def chunked(body: bytes) -> bytes:
    return b"%x;name=value\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def parsed(block: bytes) -> HttpAnswer:
    found = parse_answer(block)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, TEXT),
        ({"Transfer_Encoding": "chunked"}, chunked(TEXT)),
        (
            {"Transfer_Encoding": "chunked"},
            b"4\n" + TEXT[:4] + b"\n %X \r\n" % (len(TEXT) - 4) + TEXT[4:] + b"\r\n0\r\n",
        ),
        ({"Transfer_Encoding": "chunked"}, TEXT),
        ({"Transfer_Encoding": "Chunked"}, chunked(TEXT)),
        ({"Transfer_Encoding": "gzip"}, packed(TEXT)),
        ({"Transfer_Encoding": "gzip, chunked"}, chunked(packed(TEXT))),
        ({"Transfer_Encoding": "gzip, chunked", "Content_Encoding": "br"}, chunked(packed(brotli.compress(TEXT)))),
        ({"Content_Encoding": "gzip"}, packed(TEXT)),
        ({"Content_Encoding": "X-GZIP"}, packed(TEXT)),
        ({"Content_Encoding": "gzip"}, packed(TEXT[:500]) + packed(b"") + packed(TEXT[500:])),
        ({"Content_Encoding": "gzip"}, packed(TEXT) + b"data behind it"),
        ({"Content_Encoding": "gzip, gzip"}, packed(packed(TEXT))),
        ({"Content_Encoding": "gzip,br , zstd"}, zstandard.compress(brotli.compress(packed(TEXT)))),
        ({"Content_Encoding": "gzip\r\nContent-Encoding: br"}, brotli.compress(packed(TEXT))),
        ({"Content_Encoding": "gzip"}, zlib.compress(TEXT)),
        ({"Content_Encoding": "deflate"}, zlib.compress(TEXT)),
        ({"Content_Encoding": "deflate"}, zlib.compress(TEXT)[2:-4]),
        ({"Content_Encoding": "deflate"}, packed(TEXT)),
        ({"Content_Encoding": "br"}, brotli.compress(TEXT)),
        ({"Content_Encoding": "zstd"}, zstandard.compress(TEXT[:500]) + zstandard.compress(TEXT[500:])),
        ({"Content_Encoding": "identity"}, TEXT),
        ({"Content_Encoding": "none"}, TEXT),
        ({"Content_Encoding": "utf-8"}, TEXT),
        *(({"Content_Encoding": coding}, TEXT) for coding in ("gzip", "br", "zstd", "deflate", "compress")),
    ],
)
def test_body_is_decoded_and_one_that_has_not_its_coding_is_taken_as_it_is(
    headers: dict[str, str], body: bytes
) -> None:
    found = parsed(answer(body, **headers))
    assert (found.body, found.cut) == (TEXT, False)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_of_a_body_that_is_cut_what_is_before_counts(coding: str) -> None:
    whole = {"gzip": packed, "deflate": zlib.compress, "br": brotli.compress, "zstd": zstandard.compress}[coding]
    body = whole(random.Random(7).randbytes(300_000).hex().encode())
    found = parsed(answer(body[: len(body) // 2], Content_Encoding=coding))
    assert found.cut
    assert len(found.body) > 100_000
    if coding in ("gzip", "deflate"):  # The others need no checksum.
        found = parsed(answer(body[:50_000] + bytes(9) + body[50_009:], Content_Encoding=coding))
        assert found.cut
        assert len(found.body) > 40_000


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", brotli.compress(TEXT)),
        ("br", packed(TEXT)),
        ("compress", b"\x1f\x9d\x90" + bytes(99)),
        ("dcb", b"\xffDCB" + bytes(99)),
    ],
)
def test_body_that_can_not_be_decoded_is_counted(coding: str, body: bytes) -> None:
    assert parsed(answer(body, Content_Encoding=coding)).cut


@pytest.mark.parametrize(
    ("body", "found"), [(b"4\r\nabcd\r\nzz\r\ne", b"abcd"), (b"ff\r\nabcd", b"abcd"), (b"4\r\nabcd\r\n", b"abcd")]
)
def test_of_broken_chunks_what_is_before_counts(body: bytes, found: bytes) -> None:
    told = parsed(answer(body, Transfer_Encoding="chunked"))
    assert (told.body, told.cut) == (found, True)


def test_long_body_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_BYTES_MAX", 60)
    for body, headers in ((TEXT, {}), (packed(TEXT), {"Content_Encoding": "gzip"})):
        assert (parsed(answer(body, **headers)).body, parsed(answer(body, **headers)).cut) == (TEXT[:60], True)


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("block", "status", "body"),
    [
        (b"HTTP/1.0 200 OK\nContent-Type: text/html\n\nabc", 200, b"abc"),
        (b"HTTP/1.0 200 OK\r\nno colon\r\n\r\na\n\nb", 200, b"a\n\nb"),
        (b"HTTP/1.0 200 OK\r\nA: b\n\r\nabc", 200, b"abc"),
        (b"HTTP/1.1 404\r\n\r\nabc", 404, b"abc"),
        (b"HTTP/2 200 \r\na: b\r\n\r\nabc", 200, b"abc"),
        (b"http/1.1 301 moved", 301, b""),
        (b"HTTP 200 OK\r\n\r\nabc", 200, b"abc"),
        (b"\r\nHTTP/1.1 200 OK\r\n\r\nabc", 200, b"abc"),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\nLink: </x>\n\nHTTP/1.1 410 G\r\n\r\nabc",
            410,
            b"abc",
        ),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nabc", 101, b"abc"),
        (HEAD + b"A: b\r\n", 200, b""),
    ],
)
def test_final_answer_is_found(block: bytes, status: int, body: bytes) -> None:
    found = parsed(block)
    assert (found.status, found.body) == (status, body)


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"garbage",
        b"<html>",
        b"HTTP/1.1",
        b"HTTP/1.1 OK 200",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 E\r\n\r\n<html>",
        HEAD + b"A: b\r\n" * 100_000,
    ],
    ids=map(str, count()),
)
def test_what_is_no_answer_is_told(block: bytes) -> None:
    assert parse_answer(block) is None


@pytest.mark.parametrize(
    ("lines", "location"),
    [
        (b"Location: /there\r\n", "http://a.example/there"),
        (b"LOCATION:/there \r\nlocation: /other\r\n", "http://a.example/there"),
        (b"Location:\r\n /there\r\n", "http://a.example/there"),
        (b"Location: http://b.example/\r\n\ta b\r\n", "http://b.example/%20a%20b"),
        (b"Location : /there\r\n", "http://a.example/there"),
        ("Location: /stra\u00dfe?q=\u00e9\r\n".encode(), "http://a.example/stra%C3%9Fe?q=%C3%A9"),
        ("Location: /stra\u00dfe\r\n".encode("latin-1"), "http://a.example/stra%DFe"),
        (b"Location: \r\n", "http://a.example/x"),
        (b"", "http://a.example/x"),
    ],
)
def test_target_of_a_redirect_has_the_bytes_of_its_field(lines: bytes, location: str) -> None:
    answer = parsed(b"HTTP/1.1 302 Found\r\n" + lines + b"\r\n")
    assert redirect_target("http://a.example/x", answer.location) == location


@pytest.mark.parametrize(
    ("block", "method"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "GET"),
        (b"post /a HTTP/1.0\n\n", "POST"),
        (b"\r\nHEAD * HTTP/1.1", "HEAD"),
        (b"", ""),
        (b"\0", ""),
    ],
)
def test_method_is_the_first_word_of_a_request(block: bytes, method: str) -> None:
    assert method_of(block) == method


@pytest.mark.parametrize(
    ("lines", "content_type"),
    [
        (b"Content-Type: text/html; charset=x\r\n", "text/html; charset=x"),
        (b"Content-Type: text/plain\r\nCONTENT-TYPE:\r\n text/html\r\n", "text/plain,text/html"),
        (b"", ""),
        (b"X-Content-Type-Options: NoSniff\r\n", "text/plain"),
        (b"X-Content-Type-Options: nosniff, x\r\nContent-Type: */*\r\n", "text/plain"),
        (b"X-Content-Type-Options: nosniff\r\nContent-Type: image/png\r\n", "image/png"),
    ],
)
def test_content_type_is_that_of_all_fields_and_not_sniffed_where_that_is_forbidden(
    lines: bytes, content_type: str
) -> None:
    assert parsed(HEAD + lines + b"\r\n<html>").content_type == content_type


@pytest.mark.parametrize(
    "made",  # As the test runs: every process of a run collects all cases.
    [
        lambda: b"HTTP/1.1 100 C\r\n\r\n" * 400_000,
        lambda: HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 1_000_000,
        lambda: HEAD + b"X: \r\n" + b" \r\n" * 80_000 + b"\r\n",
        lambda: HEAD + b"Content-Type: " + b'"\\' * 100_000 + b"\r\n\r\n",
        lambda: HEAD + b"Content-Type: a/b;c=" + b'"\\a' * 60_000 + b"\r\n\r\n",
        lambda: HEAD + b"Content-Type: a/b" + b" " * 200_000 + b"\r\n\r\n",
        lambda: answer(packed(b"") * 100_000, Content_Encoding="gzip"),
        lambda: answer(zstandard.compress(b"") * 100_000, Content_Encoding="zstd"),
        lambda: answer(brotli.compress(bytes(1 << 26), quality=5), Content_Encoding="br"),
        lambda: answer(packed(packed(packed(bytes(1 << 24)))), Content_Encoding="gzip," * 9_000),
    ],
    ids=["interim", "chunks", "folded", "quotes", "pairs", "blanks", "members", "frames", "brotli", "codings"],
)
def test_time_is_bounded(made: Callable[[], bytes]) -> None:
    block = made()
    began = time.thread_time()
    found = parse_answer(block)
    assert found is None or len(found.body) <= http.BODY_BYTES_MAX
    assert time.thread_time() - began < 4
