"""TLS to the store, with certificates made for the test; and words for each way in which it fails."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from certificates import Certificate
from conftest import want_server
from ports import free_ports
from processes import wait_until

from opic.errors import StoreError, StoreUnavailable
from opic.store import Shard, connect

pytestmark = pytest.mark.slow

STARTS_MAX = 3
IN_CLUSTER = pytest.mark.parametrize("secured", [False, True], ids=["server", "cluster"], indirect=True)
NAME = "node.store.test"
BY_NAME = {"cluster-announce-hostname": NAME, "cluster-preferred-endpoint-type": "hostname"}


@contextmanager
def speaking_tls(
    folder: Path, made: Certificate, *, cluster: bool = False, more: dict[str, str] | None = None
) -> Iterator[int]:
    """Start a Redis that speaks TLS alone, as a cluster of one node if asked; give its port."""
    binary = want_server("redis")
    # A port that was free may be somebody's a moment later: then the server ends at its start, and gets others.
    for _ in range(STARTS_MAX):
        port, bus = free_ports(2)
        options = {"port": 0, "tls-port": port, "tls-cert-file": made.file, "tls-key-file": made.key}
        options |= {"tls-ca-cert-file": made.file, "tls-auth-clients": "no", "save": "", "requirepass": "hunter2"}
        if cluster:
            options |= {"cluster-enabled": "yes", "cluster-port": bus, "tls-cluster": "yes"}
        command = [binary.path, "--dir", str(folder)]
        for name, value in {**options, **(more or {})}.items():
            command += [f"--{name}", str(value)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_until(partial(answers_or_ended, process, port, made, cluster))
            if process.poll() is None:
                yield port
                return
        finally:
            process.kill()
            process.wait()
    pytest.fail(f"the server ended at each of {STARTS_MAX} starts")


def answers_or_ended(process: "subprocess.Popen[bytes]", port: int, made: Certificate, cluster: bool) -> bool:
    if process.poll() is not None:
        return True
    own = {"ssl_certfile": str(made.file), "ssl_keyfile": str(made.key)}
    try:
        with redis.Redis(port=port, ssl=True, ssl_cert_reqs="none", password="hunter2", **own) as client:
            client.ping()
            if cluster:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            return True
    except redis.ConnectionError:
        return False


@pytest.fixture
def secured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A server, or a cluster, whose certificate is good."""
    made = Certificate.make(tmp_path)
    with speaking_tls(tmp_path, made, cluster=request.param) as port:
        scheme = "rediss+cluster" if request.param else "rediss"
        yield SimpleNamespace(scheme=scheme, port=port, trusted=f"?ssl_ca_certs={made.file}")


def opened(url: str) -> bool:
    try:
        with connect(url) as client:
            return Shard.open(client).books().live == 0
    except StoreUnavailable:  # A new cluster takes no commands for its first seconds.
        return False


@IN_CLUSTER
def test_store_is_reached_over_tls(secured: SimpleNamespace) -> None:
    wait_until(lambda: opened(f"{secured.scheme}://:hunter2@127.0.0.1:{secured.port}{secured.trusted}"))


@IN_CLUSTER
@pytest.mark.parametrize(
    ("url", "kind", "told"),
    [
        ("{scheme}://:hunter2@{at}", StoreUnavailable, "TLS with the store failed.*not trusted: .*ssl_ca_certs="),
        ("{scheme}://:wrong-secret@{at}{trusted}", StoreError, "wrong user or password"),
        ("{plain}://:hunter2@{at}", StoreUnavailable, "does not answer"),
    ],
    ids=["untrusted", "password", "plain"],
)
def test_each_tls_failure_is_reported_without_a_secret(
    secured: SimpleNamespace, url: str, kind: type[StoreError], told: str
) -> None:
    plain, at = secured.scheme.replace("rediss", "redis"), f"127.0.0.1:{secured.port}"
    with pytest.raises(kind, match=told) as raised:
        Shard.open(connect(url.format(scheme=secured.scheme, plain=plain, at=at, trusted=secured.trusted), retries=0))
    assert "hunter2" not in str(raised.value)
    assert "wrong-secret" not in str(raised.value)


BAD = {
    "expired": ("IP:127.0.0.1", -1, "has expired.*: it has expired: renew it"),
    "of another name": ("DNS:elsewhere.example", 2, "it is for another name: .*cluster-preferred-endpoint-type"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_certificate_is_named(tmp_path: Path, bad: str) -> None:
    names, days, told = BAD[bad]
    made = Certificate.make(tmp_path, names, days)
    with speaking_tls(tmp_path, made) as port, pytest.raises(StoreUnavailable, match=told):
        Shard.open(connect(f"rediss://:hunter2@127.0.0.1:{port}?ssl_ca_certs={made.file}", retries=0))


def test_a_certificate_of_the_client_is_shown_where_it_is_wanted(tmp_path: Path) -> None:
    made = Certificate.make(tmp_path)
    own = f"&ssl_certfile={made.file}&ssl_keyfile={made.key}"
    with speaking_tls(tmp_path, made, more={"tls-auth-clients": "yes"}) as port:
        url = f"rediss://:hunter2@127.0.0.1:{port}?ssl_ca_certs={made.file}"
        with pytest.raises(StoreUnavailable, match=r"wants? a certificate .*\?ssl_certfile="):
            Shard.open(connect(url, retries=0))
        assert opened(url + own)


def test_nodes_of_a_cluster_are_reached_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their certificate has no address. A cluster that tells addresses is refused, and the error says what to set."""
    resolve = socket.getaddrinfo  # Not localhost, which redis-py resolves itself.
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda name, *more: resolve("127.0.0.1" if name == NAME else name, *more)
    )
    made = Certificate.make(tmp_path, f"DNS:{NAME}")

    def told(port: int) -> str:
        try:
            Shard.open(connect(f"rediss+cluster://:hunter2@{NAME}:{port}?ssl_ca_certs={made.file}", retries=0))
        except StoreUnavailable as error:  # A new cluster takes no commands for its first seconds.
            return str(error)
        return "opened"

    with speaking_tls(tmp_path, made, cluster=True, more=BY_NAME) as port:
        wait_until(lambda: told(port) == "opened")
    (tmp_path / "nodes.conf").unlink()
    with speaking_tls(tmp_path, made, cluster=True, more={"cluster-announce-ip": "127.0.0.1"}) as port:
        wait_until(lambda: "cluster-preferred-endpoint-type hostname" in told(port))
