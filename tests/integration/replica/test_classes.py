"""Classes of pages as a user meets them: over HTTP, on the command line, on a service that runs."""

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run_here
from logs import PARTITION, record
from servers import Server
from serving import serving

from opic.errors import BadInput, SettingsError
from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import ShardWriter
from opic.model.classes import WEIGHT_MAX, check_classes, read_classes
from opic.replica import Crawl
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.store import Shard

TRUSTED = {"name": "trusted", "weight": 5, "hosts": ["a.example"]}
SPAM = {"name": "spam", "weight": 0.1, "tags": ["spam"]}
BAD_WEIGHTS = [0, -1, -0.5, 1e-7, 1_000.1, 10**30, "2", None, True, [2]]
WAIT_SECONDS = 10.0


@contextmanager
def asking(service: EmbeddedService) -> Iterator[httpx.Client]:
    with serving(service) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[EmbeddedService, httpx.Client]]:
    settings = Settings.load(data=tmp_path / "data", host_delay_seconds=0.0, regrant=0.0, revisit_seconds=0.0)
    with EmbeddedService(settings) as service, asking(service) as client:
        yield service, client


def settle(client: httpx.Client) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := client.get("/v1/stats").json())["lag"]:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return dict(found)


def read(client: httpx.Client, url: str, *links: str, **more: object) -> None:
    answer = client.post("/v1/events", json={"url": url, "links": list(links), **more})
    assert answer.status_code == 202, answer.text
    settle(client)


def importance(client: httpx.Client, url: str) -> dict[str, Any]:
    return dict(client.get("/v1/importance", params={"url": url}).raise_for_status().json())


def opic(*words: object) -> "subprocess.CompletedProcess[str]":
    return run_here(words, {"PATH": "", "NO_COLOR": "1"})


def patch(client: httpx.Client, version: str | None = None, **change: object) -> httpx.Response:
    headers = {} if version is None else {"If-Match": version}
    return client.patch("/v1/classes", json=change, headers=headers)


def test_classes_are_changed_one_by_one(running: tuple[EmbeddedService, httpx.Client]) -> None:
    _, client = running
    read(client, "http://a.example/", "http://b.example/")
    other = {"name": "other-site", "weight": 3, "hosts": ["b.example"]}
    client.put("/v1/classes", json={"classes": [TRUSTED, SPAM]}).raise_for_status()
    found = patch(client, classes=[other, {**TRUSTED, "weight": 2}]).raise_for_status()
    assert [(one["name"], one["weight"]) for one in found.json()["classes"]] == [
        ("trusted", 2), ("spam", 0.1), ("other-site", 3),
    ]  # fmt: skip
    assert found.headers["ETag"] == client.get("/v1/classes").headers["ETag"] == f'"{found.json()["version"]}"'
    left = patch(client, remove=["spam"], classes=[SPAM | {"name": "junk"}]).raise_for_status().json()
    assert [one["name"] for one in left["classes"]] == ["trusted", "other-site", "junk"]
    assert client.get("/v1/audit").json()["conserved"]


def test_a_change_of_another_version_of_the_classes_is_refused(
    running: tuple[EmbeddedService, httpx.Client],
) -> None:
    _, client = running
    old = client.put("/v1/classes", json={"classes": [TRUSTED]}).raise_for_status().headers["ETag"]
    new = patch(client, old, classes=[SPAM]).raise_for_status().headers["ETag"]
    assert new != old
    for late in (
        patch(client, old, remove=["trusted"]),
        client.put("/v1/classes", json={"classes": []}, headers={"If-Match": old}),
    ):
        assert (late.status_code, late.json()["type"].rpartition(":")[2]) == (412, "changed")
        assert "read them again" in late.json()["detail"]
    assert [one["name"] for one in client.get("/v1/classes").json()["classes"]] == ["trusted", "spam"]
    assert client.put("/v1/classes", json={"classes": []}, headers={"If-Match": new}).json()["classes"] == []
    assert patch(client, "*", classes=[SPAM]).is_success
    assert client.get("/v1/dead-letters").json()["dead_letters"] == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({}, "nothing is to change"),
        ({"remove": ["trustd"]}, "no class is called trustd: did you mean trusted?"),
        ({"classes": [SPAM], "remove": ["spam"]}, "class spam is both set and removed"),
        ({"classes": [{**SPAM, "name": f"n{at}"} for at in range(7)]}, "8 classes is over the limit of 7"),
    ],
)
def test_an_impossible_change_changes_nothing(
    running: tuple[EmbeddedService, httpx.Client], change: dict[str, Any], complaint: str
) -> None:
    _, client = running
    before = client.put("/v1/classes", json={"classes": [TRUSTED]}).raise_for_status().headers["ETag"]
    answer = patch(client, **change)
    assert answer.status_code == 422
    assert complaint in answer.json()["detail"]
    assert client.get("/v1/classes").headers["ETag"] == before
    assert patch(client, "xyz", classes=[SPAM]).status_code == 422


@pytest.mark.slow
def test_concurrent_changes_of_classes_do_not_overwrite_each_other(
    running: tuple[EmbeddedService, httpx.Client],
) -> None:
    _, client = running
    names = [f"team-{team}" for team in range(6)]

    def change(name: str) -> None:
        with httpx.Client(base_url=client.base_url, timeout=30) as own:
            for weight in range(1, 6):
                patch(own, classes=[{"name": name, "weight": weight, "tags": [name]}]).raise_for_status()

    with ThreadPoolExecutor(len(names)) as teams:
        list(teams.map(change, names))
    found = client.get("/v1/classes").json()["classes"]
    assert {one["name"]: one["weight"] for one in found} == dict.fromkeys(names, 5)


def test_weights_that_change_on_a_running_service_keep_all_cash(
    running: tuple[EmbeddedService, httpx.Client],
) -> None:
    _, client = running
    read(client, "http://a.example/", "http://a.example/1", "http://b.example/")
    before = client.get("/v1/audit").json()
    assert importance(client, "http://a.example/1")["teleport"] == "uniform"

    answer = client.put("/v1/classes", json={"classes": [TRUSTED, SPAM]}).raise_for_status().json()
    assert (answer["reclassified"], answer["settled"]) == (3, True)
    # The answer shows the change itself, not what was before it.
    assert [(one["name"], one["known_pages"]) for one in answer["classes"]] == [("trusted", 2), ("spam", 0)]
    assert answer["other"]["known_pages"] == 1
    assert answer["classes"][0]["grant_share"] == pytest.approx(10 / 11)
    page = importance(client, "http://a.example/1")
    assert (page["teleport"], page["class"]) == ("weighted", "trusted")
    grant = 1 << 21
    assert page["cash"] > 5 * grant
    assert "class" not in importance(client, "http://b.example/")
    found = client.get("/v1/classes").json()
    assert [(one["name"], one["known_pages"], one["read_pages"]) for one in found["classes"]] == [
        ("trusted", 2, 1),
        ("spam", 0, 0),
    ]
    assert found["classes"][0]["grant_share"] == pytest.approx(10 / 11)
    assert found["other"] == {"weight": 1.0, "known_pages": 1, "read_pages": 0, "grant_share": pytest.approx(1 / 11)}
    assert found["classes"][0]["hosts"] == ["a.example"]

    read(client, "http://b.example/", "http://a.example/", tags=["spam"])
    assert importance(client, "http://b.example/")["class"] == "spam"
    read(client, "http://a.example/", "http://a.example/1", "http://b.example/")

    cut = client.put("/v1/classes", json={"classes": [{**TRUSTED, "weight": 0.5}, SPAM]})
    assert cut.status_code == 200, cut.text
    settle(client)
    first, second = (importance(client, "http://a.example/") for _ in range(2))
    assert first["cash"] < 0
    assert first["as_of"] < second["as_of"], "nothing changed, so the answer is of the moment"
    # What owes most is next too: its read takes back what it gave too much.
    asked = client.post("/v1/next", json={"n": 3, "mode": "refresh"}).json()["pages"]
    assert min(page["cash"] for page in asked) < 0
    read(client, "http://a.example/", "http://a.example/1", "http://b.example/")
    assert importance(client, "http://a.example/")["cash"] >= 0
    stats = settle(client)
    assert 0 < stats.get("error_bound", 1) < 2
    after = client.get("/v1/audit").json()
    assert before["minted"] == after["minted"] == 1 << 62
    assert before["conserved"]
    assert after["conserved"], after

    assert client.put("/v1/classes", json={"classes": []}).json()["reclassified"] == 3
    settle(client)
    assert importance(client, "http://a.example/")["teleport"] == "uniform"
    assert client.get("/v1/audit").json()["conserved"]


@pytest.mark.parametrize("weight", BAD_WEIGHTS, ids=repr)
def test_an_impossible_weight_is_refused_everywhere(
    weight: object, tmp_path: Path, service: EmbeddedService, client: httpx.Client
) -> None:
    bad = {**TRUSTED, "weight": weight}
    with pytest.raises(BadInput, match="class trusted: weight"):
        check_classes([bad])
    answer = client.put("/v1/classes", json={"classes": [bad]})
    assert answer.status_code == 422, answer.text
    assert "weight" in answer.json()["detail"]
    file = tmp_path / "classes.json"
    file.write_text(json.dumps({"classes": [bad]}))
    with pytest.raises(BadInput, match="weight"):
        read_classes(file)
    assert client.get("/v1/classes").json()["classes"] == []


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_a_weight_of_nan_or_infinity_is_refused_everywhere(text: str, tmp_path: Path, client: httpx.Client) -> None:
    body = '{"classes": [{"name": "a", "hosts": ["a.example"], "weight": %s}]}'
    for spelled in ("NaN", "Infinity", "-Infinity", "1e999"):
        answer = client.put("/v1/classes", content=body % spelled, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422), answer.text
    file = tmp_path / "classes.toml"
    file.write_text(f'[[classes]]\nname = "a"\nhosts = ["a.example"]\nweight = {text}\n')
    with pytest.raises(BadInput, match="is not over 0 and up to 1,000"):
        read_classes(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no classes: to remove all of them, write an empty list, classes = []"),
        ("as_of = 5", "it has no classes"),
        ("class = []", "unknown key 'class': did you mean classes?"),
        ("classes = []\nrules = []", "unknown key 'rules': there are classes"),
        ('[[classes]]\nname = "a"\nweight = 2\nhost = ["b"]', "class a has no 'host': did you mean hosts?"),
        ('[[classes]]\nnames = "a"\nweight = 2\nhosts = ["b"]', "a class has no 'names': did you mean name?"),
    ],
)
def test_file_that_would_remove_all_classes_by_mistake_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "classes.toml"
    file.write_text(text)
    with pytest.raises(BadInput) as refused:
        read_classes(file)
    assert str(refused.value).startswith(f"{file}: {said}")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedService]:
    with EmbeddedService(Settings.load(data=tmp_path_factory.mktemp("classes") / "data")) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(service: EmbeddedService) -> Iterator[httpx.Client]:
    with asking(service) as opened:
        yield opened


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ([TRUSTED] * 2, "class trusted is defined twice"),
        ([{**TRUSTED, "name": f"n{i}"} for i in range(8)], "8 classes is over the limit of 7"),
        ([{"name": "a", "weight": 2}], "nothing belongs to it"),
        ([{**TRUSTED, "name": "other"}], "class name 'other'"),
        ([{**TRUSTED, "name": "a b"}], "class name 'a b'"),
        ([{**TRUSTED, "hosts": ["a/b"]}], "not a host or a domain"),
        ([{**TRUSTED, "urls": ["/relative"]}], "not an absolute"),
        ([{**TRUSTED, "contains": [""]}], "1 to 2,048 characters"),
        ([{**TRUSTED, "contains": ["x"] * 1_001}], "1,001 contains is over the limit of 1,000"),
        ([{**TRUSTED, "tags": ["x" * 2_049]}], "1 to 2,048 characters"),
        ([{**TRUSTED, "regex": [".*"]}], "regex"),
    ],
)
def test_an_invalid_definition_is_refused_with_the_reason(
    given: list[dict[str, object]], word: str, client: httpx.Client
) -> None:
    with pytest.raises(BadInput, match=word.split("'", maxsplit=1)[0]):
        check_classes(given)
    answer = client.put("/v1/classes", json={"classes": given})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert word in answer.json()["detail"]
    assert WEIGHT_MAX == 1_000


@pytest.mark.slow
def test_classes_are_set_from_a_file_with_and_without_a_service(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "classes.toml"
    file.write_text('[[classes]]\nname = "trusted"\nweight = 5\nhosts = ["a.example"]\nurls = ["http://B.example"]\n')
    done = opic("classes", "set", file, "--data", data)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["trusted\t5\t0\t0\t0", "other\t1\t0\t0\t0"]
    with EmbeddedService(Settings.load(data=data)) as service, asking(service) as client:
        assert client.get("/v1/classes").json()["classes"][0]["urls"] == ["http://b.example/"]
        client.post("/v1/seeds", json={"urls": ["http://b.example/x", "http://c.example/"]}).raise_for_status()
        assert importance(client, "http://b.example/x")["class"] == "trusted"
        file.write_text("classes = []")
        done = opic("classes", "set", file, "--data", data, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["reclassified"] == 2
        assert json.loads(opic("classes", "--data", data, "--json").stdout)["classes"] == []
    (tmp_path / "bad.toml").write_text('[[classes]]\nname = "a"\nweight = 0\nhosts = ["a.example"]\n')
    done = opic("classes", "set", tmp_path / "bad.toml", "--data", data)
    assert (done.returncode, done.stdout) == (2, "")
    assert "weight '0' is not over 0 and up to 1,000" in done.stderr


def test_under_the_continuous_payout_a_weight_is_refused(tmp_path: Path) -> None:
    with EmbeddedService(Settings.load(data=tmp_path, virtual="continuous")) as service, asking(service) as client:
        answer = client.put("/v1/classes", json={"classes": [TRUSTED]})
        assert answer.status_code == 422
        assert "OPIC_VIRTUAL=continuous" in answer.json()["detail"]


def test_pages_never_read_may_count_more_or_less_in_the_order_of_suggestions(valkey: Server) -> None:
    a, b, c, d = (f"http://{name}.example/" for name in "abcd")
    store = ShardWriter(Shard.open(valkey.client(), given={"regrant_ppm": 0}))
    store.apply(PARTITION, [record(0, a, [b]), record(1, b, [c]), record(2, d, [a])])
    crawl, orders = Crawl([store.shard]), {}
    for weight in (1.0, 3.0, 0.001, 1e-12):
        frontier = Frontier(crawl, PolitenessSettings(host_delay_seconds=0.0), weight)
        found = []
        while pages := frontier.next(1).pages:
            found += pages  # type: ignore[arg-type]
        frontier.release([page.lease for page in found])
        orders[weight] = [(page.url, page.cash) for page in found]
    # c was never read and holds most; a was, and holds what d sent it.
    (first, most), (second, less) = orders[1.0]
    assert (first, second) == (c, a)
    assert orders[3.0] == [(c, most), (a, less)]
    assert orders[0.001] == orders[1e-12] == [(a, less), (c, most)]


def test_a_discovery_weight_needs_an_order_by_cash() -> None:
    assert Settings.load(strategy="greedy", discovery_weight=3).strategy == "greedy"
    for strategy in ("random", "cycle"):
        assert Settings.load(strategy=strategy).strategy == strategy
        with pytest.raises(SettingsError, match=rf"OPIC_STRATEGY={strategy} does not .*OPIC_DISCOVERY_SHARE"):
            Settings.load(strategy=strategy, discovery_weight=3)
    with pytest.raises(SettingsError, match="OPIC_STRATEGY"):
        Settings.load(strategy="best")


def test_an_invalid_discovery_weight_is_refused() -> None:
    for weight in (0, -1, float("nan"), float("inf")):
        with pytest.raises(SettingsError, match="OPIC_DISCOVERY_WEIGHT"):
            Settings.load(discovery_weight=weight)
