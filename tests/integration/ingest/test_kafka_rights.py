"""The rights that docs/operations.md lists are enough, and what lacks one of them says so."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import curls
import pytest
from conftest import want_server
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from kafka_crawl import Topic, event, opened, opic, serving, settings_of, settle, workers
from kafka_server import PASSWORD, USER, Kafka
from processes import wait_until
from repository import ROOT
from servers import Server

from opic.errors import KafkaRefused
from opic.ingest.publish import Publisher
from opic.settings import Settings

pytestmark = pytest.mark.slow

CHECKED = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
OPERATION = r"\b(?:Read|Write|Describe|DescribeConfigs|Create)\b"
RIGHTS = re.compile(rf"((?:{OPERATION}(?:, | and )?)+) (?:the (group) )?`([^`]+)`")


@pytest.fixture(scope="module")
def strict() -> Iterator[Kafka]:
    """A Kafka that checks rights; clients without SASL may do everything."""
    with Kafka(want_server("kafka"), CHECKED) as kafka:
        yield kafka


def listed(role: str, topic: str) -> list[tuple[str, str, ResourceType]]:
    """The rights of a row of the table: operation, name, type."""
    (row,) = re.findall(rf"^\| {re.escape(role)} \| (.*) \|$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    row = row.replace("of both", f"`{topic}` Describe and DescribeConfigs `{topic}.dlq`")
    found = []
    for operations, group, name in RIGHTS.findall(row):
        of = ResourceType.GROUP if group else ResourceType.TOPIC
        resource = name.replace("<crawl>", topic).replace("crawl.events", topic)
        found += [(operation, resource, of) for operation in re.findall(OPERATION, operations)]
    assert len(found) >= 2, row
    return found


def allow(kafka: Kafka, rights: list[tuple[str, str, ResourceType]]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    try:
        admin.create_acls([
            ACL(f"User:{USER}", "*", operation_of(name), ACLPermissionType.ALLOW, ResourcePattern(of, resource))
            for name, resource, of in rights
        ])  # fmt: skip
    finally:
        admin.close()


def operation_of(name: str) -> ACLOperation:
    return ACLOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()]


def of_user(kafka: Kafka, store: Server, topic: Topic) -> Settings:
    """As the user whose rights are checked."""
    user = {"kafka_sasl_username": USER, "kafka_sasl_password": PASSWORD}
    more = {"kafka_bootstrap": kafka.sasl_bootstrap, "kafka_security_protocol": "SASL_PLAINTEXT", **user}
    return settings_of(kafka, store, topic.name, **more)


def verdicts(settings: Settings) -> dict[str, tuple[str, str]]:
    """What `opic doctor` says, by check: the verdict, and its reason."""
    done = opic(settings, "doctor", "--json")
    return {row["check"]: (row["verdict"], row["found"]) for row in json.loads(done.stdout)["checks"]}


def test_rights_of_workers_are_enough(strict: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(strict)
    settings = of_user(strict, valkey, topic)
    allow(strict, listed("workers", topic.name))
    topic.put([event("http://a.example/"), b"poison"])
    with topic.transactions() as one:
        one.commit("http://b.example/")
    with workers(settings, tmp_path) as (worker,), opened(settings) as crawl:
        settle(crawl, topic)
        assert (crawl.totals().reads, crawl.totals().dead_letters) == (2, 1)
        wait_until(lambda: len(topic.messages(f"{topic.name}.dlq")) == 1)
        worker.stop()
    verdict, found = verdicts(settings)["kafka rights"]
    assert verdict == "ok"
    assert f"what workers do; endpoints also need Write of {topic.name}, Read of {topic.name}.dlq" in found


def test_rights_of_endpoints_are_enough(strict: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(strict)
    settings = of_user(strict, valkey, topic)
    allow(strict, listed("endpoints", topic.name))
    topic.put([b"poison"])
    with workers(settings_of(strict, valkey, topic.name), tmp_path):
        wait_until(lambda: len(topic.messages(f"{topic.name}.dlq")) == 1)
        with serving(settings, tmp_path / "serve.log") as url:
            posted = curls.post(f"{url}/v1/events", json={"url": "http://a.example/"}, timeout=30)
            assert posted.status_code == 202
            letters = curls.get(f"{url}/v1/dead-letters", timeout=30)
            assert (letters.status_code, len(letters.json()["dead_letters"])) == (200, 1)
            wait_until(lambda: curls.get(f"{url}/v1/stats", timeout=30).json()["lag"] == 0)
        replayed = opic(settings, "dead-letters", "replay", "--json")
        assert (replayed.returncode, json.loads(replayed.stdout)) == (0, {"replayed": 1}), replayed.stderr
    verdict, found = verdicts(settings)["kafka rights"]
    assert verdict == "ok"
    assert f"what endpoints do; workers also need Read of {topic.name}, Write of {topic.name}.dlq, Read of the" in found


def test_rights_of_publishers_are_enough(strict: Kafka, valkey: Server) -> None:
    topic = Topic(strict)
    allow(strict, listed("publishers", topic.name))
    with Publisher(settings=of_user(strict, valkey, topic)) as publisher:
        publisher.publish("http://a.example/")
    assert len(topic.messages()) == 1


def test_rights_of_the_commands_about_topics_are_enough(strict: Kafka, valkey: Server) -> None:
    topic = Topic(strict, letters=False)
    topic.delete()
    settings = of_user(strict, valkey, topic)
    allow(strict, listed("`opic topics`, `opic doctor`", topic.name))
    allow(strict, [("Create", topic.name, ResourceType.TOPIC), ("Create", f"{topic.name}.dlq", ResourceType.TOPIC)])
    made = opic(settings, "topics", "create", "--partitions", 2)
    assert (made.returncode, f"{topic.name}\tmade" in made.stdout) == (0, True), made.stderr
    assert opic(settings, "topics", "list").returncode == 0
    found = verdicts(settings)
    assert found["record time"][0] == "ok"  # It reads the configuration.
    verdict, reason = found["kafka rights"]
    assert verdict == "FAIL"
    assert "workers also need Read of" in reason
    assert "endpoints also need Write of" in reason


def test_crawl_without_a_worker_yet_lacks_no_rights(strict: Kafka, valkey: Server) -> None:
    """Kafka knows no group, and so tells no rights on it, until the first worker comes."""
    topic = Topic(strict)
    settings = of_user(strict, valkey, topic)
    needed = {right for role in ("workers", "endpoints") for right in listed(role, topic.name)}
    allow(strict, [right for right in needed if right[2] is ResourceType.TOPIC])
    verdict, found = verdicts(settings)["kafka rights"]
    assert (verdict, f"the group opic-{topic.name}" in found) == ("FAIL", True), "the group may not be described"
    allow(strict, [right for right in needed if right[2] is ResourceType.GROUP])
    everything = ("ok", "this user may do what workers and endpoints do")
    wait_until(lambda: verdicts(settings)["kafka rights"] == everything)
    assert verdicts(settings_of(strict, valkey, topic.name))["kafka rights"] == everything


def test_topic_that_a_user_may_not_see_is_not_called_missing(strict: Kafka, valkey: Server, tmp_path: Path) -> None:
    topic = Topic(strict)
    settings = of_user(strict, valkey, topic)
    hidden = f"does not let this user see the topic {topic.name}"
    with pytest.raises(KafkaRefused, match=hidden):
        Publisher(settings=settings)
    assert hidden in opic(settings, "topics", "list").stderr
    assert verdicts(settings)["kafka"] == ("FAIL", next(f for _, f in verdicts(settings).values() if hidden in f))
    allow(strict, [right for right in listed("endpoints", topic.name) if not right[1].endswith(".dlq")])
    with serving(settings, tmp_path / "serve.log") as url:
        letters = curls.get(f"{url}/v1/dead-letters", timeout=30)
        assert (letters.status_code, letters.json()["type"]) == (503, "urn:opic:problem:kafka-refused")
        assert f"{hidden}.dlq, or whether there is one: allow the rights" in letters.json()["detail"]


def test_worker_without_rights_to_the_group_or_to_dead_letters_says_which(
    strict: Kafka, valkey: Server, tmp_path: Path
) -> None:
    topic = Topic(strict)
    settings = of_user(strict, valkey, topic)
    allow(strict, [right for right in listed("workers", topic.name) if right[2] is ResourceType.TOPIC])
    with workers(settings, tmp_path) as (worker,):
        assert worker.process.wait(60) == 2
        worker.says("GroupAuthorizationFailedError")
        worker.says("`opic doctor` names those that are missing")
    verdict, reason = verdicts(settings)["kafka rights"]
    assert (verdict, f"workers also need Read of the group opic-{topic.name}" in reason) == ("FAIL", True)
