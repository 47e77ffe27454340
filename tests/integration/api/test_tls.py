"""TLS to the store, with a certificate made for the test; and words for each way in which it fails."""

import subprocess
from collections.abc import Iterator
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


@pytest.fixture(params=[False, True], ids=["server", "cluster"])
def secured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A Redis that speaks TLS alone; as a cluster of one node, too."""
    binary = want_server("redis")
    made = Certificate.make(tmp_path)
    key, certificate = made.key, made.file
    scheme = "rediss+cluster" if request.param else "rediss"
    # A port that was free may be somebody's a moment later: then the server ends at its start, and gets others.
    for _ in range(STARTS_MAX):
        port, bus = free_ports(2)
        options = {"port": 0, "tls-port": port, "tls-cert-file": certificate, "tls-key-file": key}
        options |= {"tls-ca-cert-file": certificate, "tls-auth-clients": "no", "save": "", "requirepass": "hunter2"}
        if request.param:
            options |= {"cluster-enabled": "yes", "cluster-port": bus, "tls-cluster": "yes"}
        command = [binary.path, "--dir", str(tmp_path)]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_until(partial(answers_or_ended, process, port, certificate, request.param))
            if process.poll() is None:
                yield SimpleNamespace(scheme=scheme, port=port, trusted=f"?ssl_ca_certs={certificate}")
                return
        finally:
            process.kill()
            process.wait()
    pytest.fail(f"the server ended at each of {STARTS_MAX} starts")


def answers_or_ended(process: "subprocess.Popen[bytes]", port: int, certificate: Path, cluster: bool) -> bool:
    if process.poll() is not None:
        return True
    try:
        with redis.Redis(port=port, ssl=True, ssl_ca_certs=str(certificate), password="hunter2") as client:
            client.ping()
            if cluster:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            return True
    except redis.ConnectionError:
        return False


def test_store_is_reached_over_tls(secured: SimpleNamespace) -> None:
    url = f"{secured.scheme}://:hunter2@127.0.0.1:{secured.port}{secured.trusted}"

    def opened() -> bool:
        try:
            with connect(url) as client:
                return Shard.open(client).books().live == 0
        except StoreUnavailable:  # A new cluster takes no commands for its first seconds.
            return False

    wait_until(opened)


@pytest.mark.parametrize(
    ("url", "kind", "told"),
    [
        ("{scheme}://:hunter2@{at}", StoreUnavailable, "TLS with the store failed.*ssl_ca_certs="),
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
