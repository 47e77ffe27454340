"""Kafka over TLS: certificates of the broker and of clients, SCRAM, and words for each way in which that fails."""

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from certificates import Certificate
from conftest import want_server
from kafka_crawl import Topic, event, opened, settings_of, settle, workers
from kafka_server import PASSWORD, USER, Kafka
from servers import Server

from opic.errors import KafkaUnavailable
from opic.ingest.kafka.connection import KafkaCluster
from opic.ingest.publish import Publisher
from opic.settings import Settings

pytestmark = pytest.mark.slow

# A listener for each certificate of the broker, since a broker shows one at each.
LISTENERS = {"SERVER": "SSL", "EXPIRED": "SSL", "ELSEWHERE": "SSL", "SCRAM": "SASL_SSL", "MUTUAL": "SSL"}
SCRAM = {"kafka_security_protocol": "SASL_SSL", "kafka_sasl_mechanism": "SCRAM-SHA-512", "kafka_sasl_username": USER}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A broker with the certificates, by name: "server", "expired", "elsewhere", and "client" of a client."""
    folder = tmp_path_factory.mktemp("kafka-tls")
    made = {
        "server": Certificate.make(folder / "server"),
        "expired": Certificate.make(folder / "expired", days=-1),
        "elsewhere": Certificate.make(folder / "elsewhere", "DNS:elsewhere.example"),
        "client": Certificate.make(folder / "client"),
    }
    lines = list[str]()
    for name in map(str.lower, LISTENERS):
        certificate = made.get(name, made["server"])
        both = folder / f"{name}.pem"
        both.write_text(certificate.key.read_text() + certificate.file.read_text())
        lines += [f"listener.name.{name}.ssl.keystore.{key}" for key in ("type=PEM", f"location={both}")]
    trusted = made["client"].file
    lines += [f"listener.name.mutual.ssl.truststore.{key}" for key in ("type=PEM", f"location={trusted}")]
    lines += [
        "listener.name.mutual.ssl.client.auth=required",
        "listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-512",
    ]
    login = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    lines.append(f"listener.name.scram.scram-sha-512.sasl.jaas.config={login}")
    with Kafka(want_server("kafka"), "\n".join(lines), listeners=LISTENERS) as kafka:
        added = f"SCRAM-SHA-512=[iterations=4096,password={PASSWORD}]"
        of_user = ("--entity-type", "users", "--entity-name", USER)
        kafka.run_tool("kafka.admin.ConfigCommand", "--alter", "--add-config", added, *of_user)
        yield SimpleNamespace(kafka=kafka, **made)


def over_tls(secured: SimpleNamespace, store: Server, topic: str, listener: str, **more: Any) -> Settings:
    """Settings of a client that trusts the broker's certificate at this listener unless `more` says else."""
    trusted = getattr(secured, listener.lower(), secured.server).file
    tls = {"kafka_bootstrap": secured.kafka.at[listener], "kafka_security_protocol": "SSL", "kafka_ssl_cafile": trusted}
    return settings_of(secured.kafka, store, topic, **(tls | more))


@pytest.mark.parametrize("listener", ["SERVER", "SCRAM", "MUTUAL"])
def test_events_take_effect_over_tls(secured: SimpleNamespace, valkey: Server, tmp_path: Path, listener: str) -> None:
    topic = Topic(secured.kafka)
    more = {
        "SERVER": {},
        "SCRAM": {**SCRAM, "kafka_sasl_password": PASSWORD},
        "MUTUAL": {"kafka_ssl_certfile": secured.client.file, "kafka_ssl_keyfile": secured.client.key},
    }[listener]
    settings = over_tls(secured, valkey, topic.name, listener, **more)
    topic.put([event("http://a.example/"), b"poison"])
    with Publisher(settings=settings) as publisher:
        publisher.publish("http://b.example/")
    with workers(settings, tmp_path) as (worker,), opened(settings) as crawl:
        settle(crawl, topic)
        assert (crawl.totals().reads, crawl.totals().dead_letters) == (2, 1)
        worker.stop()


BAD = {
    "untrusted": ("SERVER", {"kafka_ssl_cafile": "elsewhere"}, "self-signed.*not trusted: .*OPIC_KAFKA_SSL_CAFILE"),
    "expired": ("EXPIRED", {}, "certificate has expired.*: it has expired: renew it"),
    "of another name": ("ELSEWHERE", {}, "not valid for '127.0.0.1'.*: it is for another name: connect by"),
    "none of the client": ("MUTUAL", {}, "wants a certificate that it trusts .*OPIC_KAFKA_SSL_CERTFILE"),
    "another of the client": ("MUTUAL", {"own": "elsewhere"}, "wants a certificate that it trusts"),
    "password": ("SCRAM", {**SCRAM, "kafka_sasl_password": "guess"}, "wrong user name, password"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.filterwarnings("ignore:.*unclosed <ssl.SSLSocket", "ignore:Exception ignored in. <ssl.SSLSocket")
def test_each_failure_is_named(secured: SimpleNamespace, valkey: Server, bad: str) -> None:
    listener, more, said = BAD[bad]
    given: dict[str, Any] = dict(more)
    if trusted := given.get("kafka_ssl_cafile"):
        given["kafka_ssl_cafile"] = getattr(secured, trusted).file
    if own := given.pop("own", None):
        certificate = getattr(secured, own)
        given |= {"kafka_ssl_certfile": certificate.file, "kafka_ssl_keyfile": certificate.key}
    told = refusal(over_tls(secured, valkey, "no-such", listener, **given))
    assert re.search(said, told), told
    assert "guess" not in told
    gc.collect()  # The client leaves the socket of a handshake that failed to the garbage collector, which warns.


def refusal(settings: Settings) -> str:
    """What the error says; the error itself would keep the socket."""
    try:
        KafkaCluster(settings).admin()
    except KafkaUnavailable as error:
        return str(error)
    return "nothing was refused"
