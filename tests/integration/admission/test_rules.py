"""Which pages may be suggested: rules over HTTP and on the command line, and traps beside an honest site."""

import json
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run_here
from serving import serving

from opic.service.service import EmbeddedService
from opic.settings import Settings


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedService]:
    settings = Settings.load(data=tmp_path_factory.mktemp("rules"), host_delay_seconds=0.0)
    with EmbeddedService(settings) as opened:
        yield opened


@pytest.fixture
def client(service: EmbeddedService) -> Iterator[httpx.Client]:
    with serving(service) as url, httpx.Client(base_url=url, timeout=30) as found:
        yield found
        found.put("/v1/rules", json={"rules": [], "traps": {}}).raise_for_status()


def opic(service: EmbeddedService, *words: str) -> subprocess.CompletedProcess[str]:
    return run_here((*words, "--data", service.settings.data_dir()), os.environ)


def test_without_rules_all_pages_are_allowed_and_thresholds_are_the_defaults(client: httpx.Client) -> None:
    found = client.get("/v1/rules").raise_for_status().json()
    assert found["rules"] == []
    assert found["traps"]["on"] is True
    assert found["traps"]["segments"] == 20


def test_rules_are_shown_as_they_were_set(client: httpx.Client) -> None:
    rules = [{"effect": "deny", "domain": "a.example", "path": "/cal*"}, {"effect": "allow"}]
    told = client.put("/v1/rules", json={"rules": rules, "traps": {"segments": 9}}).raise_for_status().json()
    assert told == client.get("/v1/rules").raise_for_status().json()
    assert told["rules"] == rules
    assert told["traps"]["segments"] == 9
    again = client.put("/v1/rules", json={"traps": {"segments": 9}, "rules": rules}).raise_for_status().json()
    assert again["version"] == told["version"]
    assert client.put("/v1/rules", json={"rules": []}).raise_for_status().json()["version"] != told["version"]


def test_rules_are_added_and_removed_one_by_one(client: httpx.Client) -> None:
    one, two, three = ({"effect": "deny", "path": f"/{name}"} for name in ("one", "two", "three"))

    def change(version: str = "*", **given: object) -> httpx.Response:
        return client.patch("/v1/rules", json=given, headers={"If-Match": version})

    assert change(add=[one, two], traps={"segments": 9}).raise_for_status().json()["rules"] == [one, two]
    first = change(add=[three], first=True).raise_for_status()
    assert first.json()["rules"] == [three, one, two]
    assert first.json()["traps"]["segments"] == 9
    moved = change(first.headers["ETag"], add=[three]).raise_for_status()
    assert moved.json()["rules"] == [one, two, three]
    late = change(first.headers["ETag"], remove=[one])
    assert (late.status_code, late.json()["type"].rpartition(":")[2]) == (412, "changed")
    assert client.put("/v1/rules", json={"rules": []}, headers={"If-Match": first.headers["ETag"]}).status_code == 412
    left = change(remove=[two, one], traps={"dates": 3}).raise_for_status().json()
    assert (left["rules"], left["traps"]["segments"], left["traps"]["dates"]) == ([three], 9, 3)
    for given, complaint in (
        ({}, "nothing is to change"),
        ({"remove": [one]}, "no rule is"),
        ({"add": [{"effect": "maybe"}]}, "add.0.effect"),
    ):
        refused = change(**given)
        assert refused.status_code == 422
        assert complaint in refused.json()["detail"]
    assert client.get("/v1/rules").json() == left


@pytest.mark.slow
def test_concurrent_changes_of_rules_do_not_overwrite_each_other(client: httpx.Client) -> None:
    def add(team: int) -> None:
        with httpx.Client(base_url=client.base_url, timeout=30) as own:
            for number in range(10):
                rule = {"effect": "deny", "path": f"/{team}/{number}"}
                own.patch("/v1/rules", json={"add": [rule]}).raise_for_status()

    with ThreadPoolExecutor(6) as teams:
        list(teams.map(add, range(6)))
    paths = [rule["path"] for rule in client.get("/v1/rules").json()["rules"]]
    assert sorted(paths) == sorted(f"/{team}/{number}" for team in range(6) for number in range(10))


def test_command_adds_and_removes_rules(service: EmbeddedService, client: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text('[[rules]]\neffect = "deny"\npath = "/new"\n')
    client.put("/v1/rules", json={"rules": [{"effect": "deny", "path": "/old"}]}).raise_for_status()
    assert opic(service, "rules", "add", str(tmp_path / "more.toml"), "--first").returncode == 0
    assert [rule["path"] for rule in client.get("/v1/rules").json()["rules"]] == ["/new", "/old"]
    assert opic(service, "rules", "remove", "1").returncode == 0
    assert [rule["path"] for rule in client.get("/v1/rules").json()["rules"]] == ["/new"]
    refused = opic(service, "rules", "remove", "1")
    assert (refused.returncode, "there is no rule 1: `opic rules` shows 1, from 0 on" in refused.stderr) == (2, True)


def test_omitted_part_stays_and_an_empty_change_is_refused(client: httpx.Client) -> None:
    rules = [{"effect": "deny", "path": "/a"}]
    client.put("/v1/rules", json={"rules": rules, "traps": {"segments": 9}}).raise_for_status()
    answer = client.put("/v1/rules", json={})
    assert answer.status_code == 422
    assert "to remove all rules, give an empty list of rules" in answer.json()["detail"]
    found = client.put("/v1/rules", json={"traps": {"segments": 8}}).json()
    assert (found["rules"], found["traps"]["segments"]) == (rules, 8)
    found = client.put("/v1/rules", json={"rules": []}).json()
    assert (found["rules"], found["traps"]["segments"]) == ([], 8)
    assert client.put("/v1/rules", json={"traps": {}}).json()["traps"]["segments"] == 20
    assert client.get("/v1/rules").json()["rules"] == []


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"rule": []}, "rule"),
        ({"rules": [{"effect": "drop"}]}, "effect"),
        ({"rules": [{"effect": "deny", "hosts": "a.example"}]}, "hosts"),
        ({"rules": [{"effect": "deny", "host": "a.example/x"}]}, "rule 0"),
        ({"rules": [{"effect": "deny", "path": "x"}]}, "path"),
        ({"rules": [{"effect": "deny", "note": "a\nb"}]}, "note"),
        ({"rules": [{"effect": "deny"}] * 1_001}, "rules"),
        ({"traps": {"segments": -1}}, "segments"),
        ({"traps": {"repeats": 1}}, "repeats"),
        ({"traps": {"hops": 1}}, "hops"),
        ([], ""),
    ],
    ids=lambda value: str(value)[:50],
)
def test_invalid_rule_is_refused_and_nothing_changes(client: httpx.Client, body: Any, word: str) -> None:
    before = client.get("/v1/rules").json()
    answer = client.put("/v1/rules", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert word in answer.text
    assert client.get("/v1/rules").json() == before


@pytest.mark.slow
def test_output_of_the_command_line_can_be_set_again(
    service: EmbeddedService, client: httpx.Client, tmp_path: Path
) -> None:
    toml, copy = tmp_path / "rules.toml", tmp_path / "copy.json"
    toml.write_text('[[rules]]\neffect = "deny"\ndomain = "a.example"\nnote = "asked us to"\n[traps]\ndates = 100\n')
    done = opic(service, "rules", "set", str(toml))
    assert done.returncode == 0, done.stderr
    assert "0\tdeny\t\ta.example\t\t\t\tasked us to" in done.stdout
    assert "dates\t100" in done.stdout
    found = opic(service, "rules", "--json")
    assert json.loads(found.stdout) == client.get("/v1/rules").json()
    copy.write_text(found.stdout)
    assert opic(service, "rules", "set", str(copy), "--json").stdout == found.stdout
    toml.write_text('[[rules]]\neffect = "deny"\npath = "x"\n')
    refused = opic(service, "rules", "set", str(toml))
    assert refused.returncode == 2
    assert "rules.toml: rule 0: path 'x' begins neither" in refused.stderr
