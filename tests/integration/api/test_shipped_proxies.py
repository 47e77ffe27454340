"""TLS by the proxies of deploy/proxy before a real endpoint: what they pass on and refuse, and bad certificates."""

import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from certificates import Certificate
from conftest import want_tool
from ports import free_port
from processes import wait_until
from raw_http import connected
from repository import ROOT
from serving import serving_embedded
from webservers import caddy, nginx
from written import written

from opic.client import Client, Event
from opic.errors import OpicError

pytestmark = pytest.mark.slow

TOKEN = "token-behind-a-proxy"
SLOW_CLIENTS = 200
PROXIES = ("nginx", "caddy")


def start_proxy(stack: ExitStack, name: str, folder: Path, certificate: Certificate, to: int) -> int:
    """Start a proxy by its file in deploy/, with other ports, names and certificates; return its port."""
    folder.mkdir()
    port = free_port()
    words = {"127.0.0.1:8080": f"127.0.0.1:{to}", "opic.example": "localhost"}
    words |= {"/etc/opic/tls/cert.pem": str(certificate.file), "/etc/opic/tls/key.pem": str(certificate.key)}
    if name == "nginx":
        text = (ROOT / "deploy/proxy/nginx.conf").read_text()
        words |= {"listen 443 ssl": f"listen 127.0.0.1:{port} ssl"}
        head = "user root; daemon off; master_process off; pid nginx.pid; error_log error.log; events {}\n"
        paths = "".join(f"{part}_temp_path {part}; " for part in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        config = f"{head}http {{ access_log off; {paths}\n{put_in(text, words)}\n}}\n"
        stack.enter_context(nginx(folder, config, port))
        return port
    text = (ROOT / "deploy/proxy/Caddyfile").read_text()
    words |= {"opic.example {": f"https://localhost:{port}, https://127.0.0.1:{port} {{"}
    del words["opic.example"]
    own = "{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n"
    stack.enter_context(caddy(folder, put_in(text, words).replace("{\n", own, 1), port))
    return port


def put_in(text: str, words: dict[str, str]) -> str:
    """Replace words, each of which is there."""
    for word, new in words.items():
        assert word in text, word
        text = text.replace(word, new)
    return text


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """An endpoint with a token, and both proxies before it."""
    folder = tmp_path_factory.mktemp("proxies")
    certificate = Certificate.make(folder / "tls")
    with ExitStack() as stack:
        http, _ = stack.enter_context(serving_embedded(folder / "data", api_token=TOKEN))
        ports = {
            name: start_proxy(stack, name, folder / name, certificate, http.base_url.port or 0) for name in PROXIES
        }
        yield SimpleNamespace(ports=ports, certificate=certificate, to=http.base_url.port)


@pytest.fixture(params=PROXIES)
def proxied(request: pytest.FixtureRequest, world: SimpleNamespace) -> Iterator[httpx.Client]:
    """A client of the endpoint behind one of the proxies."""
    trusted = ssl.create_default_context(cafile=str(world.certificate.file))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    url = f"https://localhost:{world.ports[request.param]}"
    with httpx.Client(base_url=url, verify=trusted, headers=headers, timeout=30) as client:
        yield client


def test_a_crawl_goes_on_behind_the_proxy(proxied: httpx.Client) -> None:
    seed = f"https://port{proxied.base_url.port}.example/"
    assert written(proxied.post("/v1/seeds", json={"urls": [seed]})) == {"known": 0, "new": 1}
    event = {"url": seed, "links": [f"{seed}{n}" for n in range(3_000)]}
    assert proxied.post("/v1/events", json=event, headers={"Idempotency-Key": seed}).json()["accepted"] == 1
    assert proxied.post("/v1/events", json=event, headers={"Idempotency-Key": seed}).json()["accepted"] == 1
    wait_until(lambda: proxied.get("/v1/importance", params={"url": seed}).json().get("reads") == 1)
    top = proxied.get("/v1/top", params={"n": 1_000}, headers={"Accept-Encoding": "gzip"})
    assert (top.status_code, top.headers["content-encoding"]) == (200, "gzip")
    again = proxied.get("/v1/top", params={"n": 1_000}, headers={"If-None-Match": top.headers["etag"]})
    assert again.status_code in (200, 304)
    assert "<title>" in proxied.get("/").text
    assert proxied.get("/docs").status_code == 200
    assert proxied.get("/v1/top", headers={"Authorization": "Bearer another"}).status_code == 401


def test_sizes_are_limited_before_the_endpoint(proxied: httpx.Client) -> None:
    assert proxied.post("/v1/events", content=bytes(17 << 20)).status_code == 413
    assert proxied.get("/v1/top", headers={"X-Large": "a" * (300 << 10)}).status_code in (400, 431)
    assert proxied.get("/healthz").status_code == 200


@pytest.mark.parametrize("name", PROXIES)
def test_slow_clients_hold_up_nobody(world: SimpleNamespace, name: str) -> None:
    """They are the proxy's: the endpoint gets a request once its head is there."""
    trusted = ssl.create_default_context(cafile=str(world.certificate.file))
    with ExitStack() as stack:
        for n in range(SLOW_CLIENTS):
            wire = stack.enter_context(connected(world.ports[name]))
            wire.settimeout(30)
            secured = trusted.wrap_socket(wire, server_hostname="localhost")
            head = b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
            secured.sendall(head[: 20 + n % 40] if n % 2 else head + b"\r\n[")
            stack.callback(secured.close)
        url = f"https://localhost:{world.ports[name]}/healthz"
        assert httpx.get(url, verify=trusted, timeout=30).status_code == 200


BAD = {
    "untrusted": ("DNS:localhost", 2, False, "the certificate of .* is refused .*self-signed certificate"),
    "of another host": ("DNS:elsewhere.example", 2, True, "the certificate of .* is refused .*Hostname mismatch"),
    "expired": ("DNS:localhost", -1, True, "the certificate of .* is refused .*certificate has expired"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_certificate_is_named(
    world: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    names, days, trusted, said = BAD[bad]
    certificate = Certificate.make(tmp_path / "tls", names, days)
    with ExitStack() as stack:
        port = start_proxy(stack, "nginx", tmp_path / "nginx", certificate, world.to)
        if trusted:
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate.file))
        with Client(f"https://localhost:{port}", token=TOKEN) as client, pytest.raises(OpicError, match=said):
            client.events([Event("https://a.example/")])
        command = [sys.executable, "-m", "opic.cli.main", "top", "--service", f"https://localhost:{port}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert done.returncode == 2, done.stderr
        assert re.search(said, done.stderr), done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize("name", PROXIES)
def test_plain_http_and_tls_mixed_up_are_named(world: SimpleNamespace, name: str) -> None:
    with Client(f"https://localhost:{world.to}", token=TOKEN) as client, pytest.raises(OpicError, match="no TLS with"):
        client.stats()
    with Client(f"http://localhost:{world.ports[name]}", token=TOKEN) as client, pytest.raises(OpicError, match="400"):
        client.stats()


def test_the_shipped_caddyfile_is_formatted() -> None:
    text = (ROOT / "deploy/proxy/Caddyfile").read_text()
    done = subprocess.run(
        [want_tool("caddy", "caddy"), "fmt", "-"], input=text, capture_output=True, text=True, check=True
    )
    assert done.stdout == text
