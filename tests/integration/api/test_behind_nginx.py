"""The endpoint behind a real proxy, and asked by real clients that offer HTTP/2 with each request."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import curls
import pytest
from conftest import want_tool
from ports import free_port
from processes import wait_until
from raw_http import (
    HOST,
    INNER,
    LAST,
    UPGRADES,
    WAIT_SECONDS,
    ask,
    chunked,
    connected,
    echoed,
    echoing,
    rest,
)  # fmt: skip
from serving import serving_embedded
from webservers import nginx

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with echoing() as (_, port):
        yield port


# Behind a real proxy, and with real clients.

NGINX = """\
user root; daemon off; master_process off; pid nginx.pid; error_log error.log;
events {{ }}
http {{
  access_log off; client_max_body_size 100m; client_body_buffer_size 1m;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{to}; {more} proxy_set_header Host localhost; }}
  }}
}}
"""


@contextmanager
def behind_nginx(folder: Path, to: int, more: str = "") -> Iterator[int]:
    """The port of an nginx that passes all on to another port."""
    port = free_port()
    with nginx(folder, NGINX.format(port=port, to=to, more=more), port):
        yield port


POST = b"POST /a HTTP/1.1\r\n" + HOST
ONE_CHUNK = b"2\r\n[]\r\n0\r\n\r\n"
REFUSED_BY_NGINX = {
    "a length beside chunks": POST + b"Content-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n" + ONE_CHUNK,
    "chunks beside a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 12\r\n\r\n" + ONE_CHUNK,
    "the same length twice": POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n[]",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n[]x",
    "a list of lengths": POST + b"Content-Length: 2, 2\r\n\r\n[]",
    "an empty length": POST + b"Content-Length:\r\n\r\n",
    "a length with a blank in it": POST + b"Content-Length: 1 2\r\n\r\n[]",
    "a length of 23 digits": POST + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "a header in two lines": POST + b"X: a\r\n Content-Length: 2\r\n\r\n[]",
    "chunks in two lines": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n" + ONE_CHUNK,
    "a coding before chunks": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + ONE_CHUNK,
    "a coding after chunks": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + ONE_CHUNK,
    "a coding in a line of its own": POST
    + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    + ONE_CHUNK,
    "chunks twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + ONE_CHUNK,
    "an empty coding": POST + b"Transfer-Encoding: ,chunked\r\n\r\n" + ONE_CHUNK,
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n[]",
    "a quoted coding": POST + b'Transfer-Encoding: "chunked"\r\n\r\n' + ONE_CHUNK,
    "chunks with a parameter": POST + b"Transfer-Encoding: chunked;a=b\r\n\r\n" + ONE_CHUNK,
    "chunks in HTTP/1.0": b"POST /a HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + ONE_CHUNK,
    "a chunk size with a prefix": POST + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n[]\r\n0\r\n\r\n",
    "a chunk size with a sign": POST + b"Transfer-Encoding: chunked\r\n\r\n+2\r\n[]\r\n0\r\n\r\n",
    "a chunk size that overflows": POST + b"Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\n[]\r\n0\r\n\r\n",
    "a chunk that is longer": POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n[]\r\n0\r\n\r\n",
    "a blank before a colon": POST + b"Content-Length : 2\r\n\r\n[]",
    "a blank before the first name": b"POST /a HTTP/1.1\r\n " + HOST + b"Content-Length: 2\r\n\r\n[]",
    "a bare CR": POST + b"X: a\rContent-Length: 2\r\n\r\n[]",
    "two hosts": POST + HOST + b"Content-Length: 2\r\n\r\n[]",
    "no host": b"POST /a HTTP/1.1\r\nContent-Length: 2\r\n\r\n[]",
    "a tunnel": b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


def test_what_nginx_refuses_is_refused_here_too(port: int, tmp_path: Path) -> None:
    with behind_nginx(tmp_path, port) as proxy:
        for name, text in REFUSED_BY_NGINX.items():
            with connected(proxy) as wire:
                wire.sendall(text + INNER)
                assert rest(wire)[9:12] in (b"400", b"501"), name
            assert ask(port, text, INNER) == [400], name


@pytest.mark.parametrize("more", ["", 'proxy_http_version 1.1; proxy_set_header Connection "";'], ids=["1.0", "1.1"])
def test_upgrades_behind_nginx_are_answered_as_by_us(port: int, tmp_path: Path, more: str) -> None:
    body = INNER * 2_000
    forwarded = "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;"
    for n, settings in enumerate((more, forwarded)):
        folder = tmp_path / str(n)
        folder.mkdir()
        with behind_nginx(folder, port, settings) as proxy:
            for upgrade in UPGRADES.values():
                head = b"POST /a HTTP/1.1\r\n" + HOST + upgrade
                for framed in (
                    b"Content-Length: %d\r\n\r\n" % len(body) + body,
                    b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, [1, 100, 70_000]),
                ):
                    assert ask(proxy, head, framed, LAST) == [echoed("POST", "/a", body), echoed("GET", "/last")]


@pytest.mark.parametrize("more", ["", "proxy_request_buffering off;"], ids=["whole", "at once"])
def test_an_early_answer_reaches_the_client_behind_nginx(port: int, tmp_path: Path, more: str) -> None:
    """By default nginx asks us to close the connection. If that is reset, the client gets a 502."""
    with behind_nginx(tmp_path, port, more) as proxy:
        for size in (2_000_000, 20_000_000):
            for _ in range(10):
                answer = curls.post(f"http://127.0.0.1:{proxy}/unread", content=bytes(size), timeout=WAIT_SECONDS)
                assert answer.status_code == 200


JAVA = """
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

public class Post {
  public static void main(String[] given) throws Exception {
    HttpClient client = HttpClient.newHttpClient();
    for (int n = 1; n < given.length; n++) {
      HttpRequest request = HttpRequest.newBuilder(URI.create(given[0])).header("Content-Type", "application/json")
          .POST(HttpRequest.BodyPublishers.ofString(given[n])).build();
      System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
    }
  }
}
"""


def test_clients_that_offer_http_2_with_each_post_are_answered(tmp_path: Path) -> None:
    curl, java = want_tool("curl", "curl"), want_tool("java", "default-jdk-headless")
    links = [f"http://b.example/{n}" for n in range(5_000)]
    events = [json.dumps({"url": f"http://a.example/{n}", "links": links[: n * 1_000]}) for n in range(6)]
    (tmp_path / "Post.java").write_text(JAVA)
    with serving_embedded(tmp_path / "data") as (http, _):
        url = f"{http.base_url}/v1/events"
        for n, event in enumerate(events[:3]):
            (tmp_path / "event").write_text(event)
            command = [
                curl,
                "--http2",
                "--silent",
                "--show-error",
                "--write-out",
                "%{http_code}",
                "--output",
                "/dev/null",
            ]
            framing = ["--header", "Transfer-Encoding: chunked"] if n % 2 else []
            command += [*framing, "--json", f"@{tmp_path / 'event'}", url]
            assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "202"
        command = [java, str(tmp_path / "Post.java"), url, *events[3:]]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == 3 * ["202"]
        pages = {"urls": [f"http://a.example/{n}" for n in range(6)]}
        wait_until(lambda: all(page.get("reads") for page in http.post("/v1/importance", json=pages).json()["pages"]))
