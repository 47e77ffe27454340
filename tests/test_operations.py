"""docs/operations.md keeps its word: each command, setting, metric and alert that it names exists."""

import re
import shlex
from itertools import pairwise

import pytest
from compose_file import services
from documents import Command, anchors, commands, parse, plain_text, program, spans, wrong_opic
from prometheus_files import ROW, documented, metrics_in, names, rules
from repository import ROOT
from test_deploy import SETTINGS

from opic.cli.kafka import letters_app, topics_app
from opic.store.library import LIBRARY

PAGE = ROOT / "docs/operations.md"
TEXT = PAGE.read_text()
# What an operator has beside opic. Those of Kafka are in its bin directory.
OTHERS = (
    "cp",
    "export",
    "curl",
    "docker",
    "valkey-cli",
    "kafka-topics.sh",
    "kafka-configs.sh",
    "kafka-consumer-groups.sh",
)
COMPOSE_VERBS = ("up", "run", "exec", "stop", "kill", "build", "ps", "logs")


def calls() -> list[list[str]]:
    """What the page calls: its blocks of commands, and code spans that begin as one does."""
    found = [call for command in commands(PAGE) for call in command.calls]
    named = [
        shlex.split(span.replace("\n", " ")) for span in spans(PAGE) if re.match(r"(opic|docker|valkey-cli) ", span)
    ]
    return found + named


def of_compose(call: list[str]) -> tuple[str, list[str]]:
    """The verb of a call of Docker Compose, and the words behind it that are no flags."""
    assert call[:2] == ["docker", "compose"]
    words, skip = [], False
    for word in call[3:]:
        if not skip and not word.startswith("-"):
            words.append(word)
        skip = word in ("--scale", "--since")
    return call[2], words


def headings(level: str, below: str | None = None) -> list[str]:
    """The headings of a level, of all the page or below a heading of the level above."""
    found, inside, tokens = [], below is None, parse(PAGE)
    for opening, inline in pairwise(tokens):
        if opening.type != "heading_open":
            continue
        if opening.tag < level:
            inside = below is None or plain_text(inline) == below
        elif opening.tag == level and inside:
            found.append(plain_text(inline))
    return found


def test_each_alert_has_its_heading_and_each_heading_its_alert() -> None:
    assert headings("h3", "Alerts") == [rule["alert"] for rule in rules("alert")]


def test_each_alert_names_its_section_as_runbook() -> None:
    for rule in rules("alert"):
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert ROOT / path == PAGE, rule["alert"]
        assert anchor == rule["alert"].lower()
        assert anchor in anchors(PAGE), rule["alert"]


def test_page_begins_with_the_first_looks() -> None:
    assert headings("h2")[0] == "First looks"
    assert (
        len([command for command in commands(PAGE) if command.line < TEXT[: TEXT.index("## Deploy")].count("\n")]) == 5
    )


def test_each_command_is_checked_by_a_test() -> None:
    assert [call for call in calls() if program(call) not in ("opic", *OTHERS)] == []
    assert sum(program(call) == "opic" for call in calls()) > 20


def test_each_opic_command_exists_with_its_flags() -> None:
    ours = []
    for call in calls():
        if program(call) == "opic":
            ours.append(call)
        elif call[:3] == ["docker", "compose", "exec"]:
            ours.append(call[4:])
        elif call[:4] == ["docker", "compose", "run", "--rm"] and len(call) > 5:
            ours.append(["opic", *call[5:]])
    assert [sentence for call in ours for sentence in wrong_opic(call)] == []


def test_each_compose_service_exists() -> None:
    for call in calls():
        if program(call) == "docker":
            verb, words = of_compose(call)
            assert verb in COMPOSE_VERBS
            assert set(words[:1]) <= set(services()), call
        for scaled in re.findall(r"--scale (\w+)=", " ".join(call)):
            assert scaled in services()


def test_each_setting_exists() -> None:
    named = set(re.findall(r"\bOPIC_[A-Z_]*[A-Z]\b", TEXT))
    assert len(named) > 15
    assert named <= SETTINGS


def test_each_metric_exists() -> None:
    there = documented()
    recorded = {rule["record"] for rule in rules("record")}
    assert metrics_in(TEXT) <= names(there) | {one.name for one in there} | recorded | {LIBRARY}


def test_tables_name_the_metrics_of_the_code() -> None:
    paths = [*(ROOT / "opic/api").glob("*metrics.py"), ROOT / "opic/ingest/worker_health.py"]
    source = "".join(path.read_text() for path in paths)
    in_code = set(re.findall(r'"(opic_[a-z_]+)"', source))
    rows = [name for name, *_ in ROW.findall(TEXT)]
    assert in_code == {name.removesuffix("_total") for name in rows}
    assert len(rows) == len(set(rows))


def test_groups_of_commands_are_named_as_the_page_names_them() -> None:
    """The page speaks of `opic topics` and `opic dead-letters` as wholes."""
    assert {command.name for command in topics_app.registered_commands} == {"create", "list"}
    assert {command.name for command in letters_app.registered_commands} == {"list", "replay"}


def test_quoted_messages_of_a_worker_exist_in_its_source() -> None:
    source = re.sub(r'"\s*f?"', "", re.sub(r"\s+", " ", (ROOT / "opic/ingest/deliveries.py").read_text()))
    for words in (
        "entries of shard",
        "a shard lost the end of what it had written; restore all shards from one backup",
    ):
        assert words in re.sub(r"\s+", " ", TEXT)
        assert words in source


def test_section_for_the_largest_crawl_is_there() -> None:
    assert "Sizing: 10^9 events a day" in headings("h3", "Size")


@pytest.mark.parametrize("text", ["opic backup --slowly x", "opic topics remove", "opic dead-letters replay --all"])
def test_command_that_does_not_exist_is_detected(text: str) -> None:
    (call,) = Command(1, text).calls
    assert list(wrong_opic(call))
