"""Every place that tells importance, or the bound on its error, tells that of the default policy, and which it is."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import curls
import pytest
from processes import Service, running, wait_until
from typer.testing import CliRunner

from opic.cli.main import app
from opic.client import Client, Event
from opic.client.answers import FrontierPage, Page

pytestmark = pytest.mark.slow

HOSTS = [f"http://h{number}.example" for number in range(12)]
PAGES = [f"{host}/{number}" for host in HOSTS for number in range(3)]
# Links by powers of a number, so that no two pages have the same importance; half of the pages are never read.
EVENTS = [
    {"url": page, "links": [PAGES[(at * 7 + step * step + 1) % len(PAGES)] for step in range(at % 5 + 1)]}
    for at, page in enumerate(PAGES[::2])
]
DEFAULTS = {
    "exact": {},
    "static": {"keep_links": "off"},
    "variable": {"policy": "variable", "window_rounds": "2"},
}


@pytest.fixture(scope="module", params=DEFAULTS)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Service]]:
    """A crawl that rests, by its default policy."""
    folder = tmp_path_factory.mktemp("told")
    given = {"host_delay_seconds": 0, **DEFAULTS[request.param]}
    with running(folder / "data", folder / "log", **given) as service:
        service.post("/v1/events", EVENTS).raise_for_status()
        service.settle()
        if request.param == "exact":  # Half a second as a rule, longer on a busy machine.
            wait_until(lambda: service.get("/v1/importance", url=PAGES[0]).json()["error_bound"] <= 0.01)
        yield request.param, service


def opic(service: Service, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*words, "--json", "--service", service.url])
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_importance_of_a_page_is_one_value(told: tuple[str, Service]) -> None:
    policy, service = told
    asked = curls.post(f"{service.url}/v1/importance", json={"urls": PAGES}).json()["pages"]
    right = {page["url"]: page["importance"] for page in asked if page["importance"] is not None}
    assert {page.get("policy", policy) for page in asked} == {policy}
    assert len(set(right.values())) > len(PAGES) / 3
    answers = [
        curls.get(f"{service.url}/v1/frontier", params={"n": 40}).json(),
        opic(service, "frontier", "--n", "40"),
        curls.post(f"{service.url}/v1/next", json={"n": 2}).json(),
        curls.post(f"{service.url}/v1/next", json={"n": 2, "mode": "refresh", "policy": "U"}).json(),
        opic(service, "next", "--n", "2"),
    ]
    for answer in answers:
        assert answer["policy"] == policy
        assert [page["importance"] for page in answer["pages"]] == [right[page["url"]] for page in answer["pages"]]
    assert [len(answer["pages"]) > 0 for answer in answers] == [True, True, True, False, True]


def test_bound_is_one_value(told: tuple[str, Service]) -> None:
    policy, service = told
    right = curls.get(f"{service.url}/v1/importance", params={"url": PAGES[0]}).json().get("error_bound")
    assert (right is not None) == (policy == "exact") or policy == "static"
    stats = curls.get(f"{service.url}/v1/stats").json()
    for answer in (stats, opic(service, "stats")):
        assert (answer["policy"], answer.get("error_bound")) == (policy, right)
    series = curls.get(f"{service.url}/v1/series").json()["convergence"]
    assert series[-1]["error_bound"] == right
    found = re.findall(
        r'^opic_error_bound\{policy="(\w+)"\} (\S+)$', curls.get(f"{service.url}/metrics").text, re.MULTILINE
    )
    assert [(name, float(value)) for name, value in found] == (
        [] if policy == "variable" else [(policy, 2.0 if right is None else right)]
    )


def test_page_that_just_became_known_has_its_importance_at_once(tmp_path: Path) -> None:
    """Also on a service that has nothing yet, where half a second later all is settled."""
    with running(tmp_path / "data", tmp_path / "log", host_delay_seconds=0) as service, Client(service.url) as client:
        for number in range(25):
            site = f"https://a{number}.example/"
            client.seed([site])
            told: list[Page | FrontierPage] = [*client.next(10).pages, *client.frontier(10).pages]
            assert site in {page.url for page in told}
            client.events([Event(site, [f"{site}news", f"https://b{number}.example/"])])
            told += [*(first := client.next(50)).pages, *client.frontier(50).pages]
            client.release(first.pages)
            wait_until(lambda: client.call("GET", "/v1/stats")["lag"] == 0)
            batch = client.next(50)
            right = client.importances([page.url for page in batch.pages]).pages
            assert min(page.importance for page in (*told, *batch.pages)) > 0
            for page, known in zip(batch.pages, right, strict=True):
                assert known.policy == batch.policy == "exact"
                assert page.importance == pytest.approx(known.importance, abs=known.error_bound)
            client.release(batch.pages)
