"""A real Prometheus scrapes a real service under load, and each query of dashboards, rules and alerts has an answer."""

import itertools
import math
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import curls
import httpx
import pytest
from conftest import want_tool
from kafka_crawl import Topic, WorkerProcess, opic, serving, settings_of, workers
from kafka_server import Kafka
from processes import wait_until
from prometheus_files import dashboards, documented, exported, queries, rules
from prometheus_server import Prometheus
from servers import Server

pytestmark = pytest.mark.slow

SHARDS = 4
RULE = {"expire_below": 1e-9, "expire_after_seconds": 60}  # Applied each second, to no page.
WINDOW = "20s"  # In the place of windows of minutes, of which a test has none.
HOSTS, LINKS, EVENTS = 40, 8, 30
ANSWERED_SECONDS_MAX = 120.0  # Some 10 on a machine that does nothing else.
PAUSE_SECONDS = 0.05  # Of the load between two rounds: a picture of it is wanted, not its limit.


@dataclass
class Watched:
    """A crawl under load, and who watches it."""

    prometheus: Prometheus
    endpoint: str
    worker: WorkerProcess


def events(number: int) -> list[dict[str, object]]:
    """Some events; each batch has pages that were there before and links that were not."""
    return [
        {
            "url": f"http://h{(number + i) % HOSTS}.example/{(number + i) % 200}",
            "links": [f"http://h{(number * 7 + i + j) % HOSTS}.example/{number + j}" for j in range(LINKS)],
            "crawler": "c",
        }
        for i in range(EVENTS)
    ]


@contextmanager
def load(url: str) -> Iterator[None]:
    """Do as crawlers and readers do, until told to stop; whatever fails, fails the test."""
    done, failures = threading.Event(), []

    def crawl() -> None:
        with httpx.Client(base_url=url, timeout=30) as client:
            client.post("/v1/seeds", json={"urls": ["http://h1.example/1"], "trust": 1}).raise_for_status()
            for number in itertools.count():
                if done.wait(PAUSE_SECONDS):
                    return
                client.post("/v1/events", json=events(number)).raise_for_status()
                client.post("/v1/next", json={"n": 5, "crawler": "c", "lease_seconds": 2}).raise_for_status()
                client.post("/v1/next", json={"n": 1, "mode": "coverage", "lease_seconds": 2}).raise_for_status()
                client.get("/v1/top", params={"n": 10}).raise_for_status()
                client.get("/v1/importance", params={"url": "http://h1.example/1"})

    def run() -> None:
        try:
            crawl()
        except httpx.HTTPError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(30)
    assert failures == []


@pytest.fixture
def watched(kafka: Kafka, valkey: Server, tmp_path: Path) -> Iterator[Watched]:
    binary = want_tool("prometheus", "prometheus")
    valkey.client().config_set("maxmemory", 2 << 30)
    topic = Topic(kafka, partitions=2)
    topic.put([b"not an event"])
    settings = settings_of(kafka, valkey, topic.name, shards=SHARDS, **RULE)
    with (
        serving(settings, tmp_path / "serve.log") as url,
        workers(settings, tmp_path) as (worker,),
        load(url),
    ):
        wait_until(worker.ready)
        other = f"other-{topic.name}"
        Topic(kafka, name=f"crawl.events.{other}")
        httpx.put(f"{url}/v1/crawls/{other}", json={}, timeout=60).raise_for_status()
        top = wait_until(lambda: httpx.get(f"{url}/v1/top", timeout=30).raise_for_status().json()["pages"])
        (scores := tmp_path / "scores").write_text("".join(f"{page['url']} {page['importance']}\n" for page in top))
        done = opic(settings, "load-importance", scores, "--force")
        assert done.returncode == 0, done.stderr
        targets = {
            "opic-endpoint": [url.removeprefix("http://")],
            "opic-worker": [f"127.0.0.1:{worker.port}"],
        }
        with Prometheus(binary, targets) as prometheus:
            yield Watched(prometheus, url, worker)


def shortened(expression: str) -> str:
    """An expression with its variables filled in, and with windows that a short test has."""
    expression = expression.replace("$__rate_interval", WINDOW)
    expression = re.sub(r"\$(endpoint|worker)\b", ".*", expression)
    expression = re.sub(r"\[\d+[mh]:\d+m\]", f"[{WINDOW}:500ms]", expression)
    expression = re.sub(r"\[\d+[mh]\]", f"[{WINDOW}]", expression)
    expression = re.sub(r" offset \d+d\b", "", expression)
    assert "$" not in expression
    return expression


def operands(expression: str) -> list[str]:
    """The parts of an alert that each must have an answer, be it one that makes it fire or not."""
    parts = re.split(r"\b(?:and|or|unless)\b(?: on ?\([^)]*\))?", re.sub(r"\babsent\(([^)]*)\)", r"\1", expression))
    found = []
    for part in parts:
        while part.count("(") > part.count(")"):
            part = part.replace("(", "", 1)  # noqa: PLW2901 - what the others' parentheses left
        while part.count(")") > part.count("("):
            part = part[: part.rindex(")")] + part[part.rindex(")") + 1 :]  # noqa: PLW2901
        found.append(re.sub(r"(==|>|<) (?=[0-9])", r"\1 bool ", part.strip()))
    return found


def asked() -> dict[str, str]:
    """Every query that deploy/ has, by where it stands."""
    found = {}
    for name, dashboard in dashboards().items():
        for number, (title, expression) in enumerate(queries(dashboard)):
            found[f"{name}: {title} ({number})"] = shortened(expression)
        for variable in dashboard["templating"]["list"]:
            selector = re.fullmatch(r"label_values\((.*), instance\)", variable["definition"])
            assert selector is not None
            found[f"{name}: ${variable['name']}"] = selector[1]
    for rule in rules("record"):
        found[rule["record"]] = shortened(rule["expr"])
    for rule in rules("alert"):
        for number, operand in enumerate(operands(rule["expr"])):
            found[f"{rule['alert']} ({number})"] = shortened(operand)
    return found


def test_every_query_is_answered_by_a_real_prometheus(watched: Watched) -> None:
    waiting = asked()
    assert len(waiting) > 120

    def all_answered() -> bool:
        for place, expression in list(waiting.items()):
            if any(not math.isnan(value) for value in watched.prometheus.query(expression)):
                del waiting[place]
        return not waiting

    # Two scrapes of both are what a rate wants.
    wait_until(lambda: len(watched.prometheus.query(f"count_over_time(opic_build_info[{WINDOW}]) > 1")) == 2)
    try:
        wait_until(all_answered, ANSWERED_SECONDS_MAX)
    except AssertionError as error:
        raise AssertionError(f"no answer to {len(waiting)}: {waiting}") from error
    found = watched.prometheus.rules()
    assert [rule["name"] for rule in found if rule["health"] != "ok"] == []
    assert {rule["name"] for rule in found} == {
        *(rule["record"] for rule in rules("record")),
        *(rule["alert"] for rule in rules("alert")),
    }
    # One came before the first scrape: whether the alert sees it as an increase depends on when it is asked.
    assert {rule["name"] for rule in found if rule.get("state") == "firing"} <= {"OpicDeadLetters"}
    _check_scrapes(watched)


def _check_scrapes(watched: Watched) -> None:
    """What the two export is what the tables say, and promtool has no complaint of either."""
    told = [curls.get(f"{watched.endpoint}/metrics", timeout=9).text, watched.worker.get("/metrics").text]
    assert exported(told[0]) | exported(told[1]) == documented()
    for text in told:
        command = [want_tool("promtool", "prometheus"), "check", "metrics"]
        checked = subprocess.run(command, input=text, text=True, capture_output=True, check=False, timeout=30)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("alert", "parts"),
    [
        ("min(a) == 0", ["min(a) == bool 0"]),
        ("(sum(a) or vector(0)) == 0", ["sum(a)", "vector(0) == bool 0"]),
        ('absent(up{job="x"}) or up{job="x"} == 0', ['up{job="x"}', 'up{job="x"} == bool 0']),
        ("min(a) > 10 and deriv(min(a)[15m:1m]) > 0", ["min(a) > bool 10", "deriv(min(a)[15m:1m]) > bool 0"]),
        ("time() - max(a) > 2 * 86400", ["time() - max(a) > bool 2 * 86400"]),
    ],
)
def test_alert_is_split_into_its_operands(alert: str, parts: list[str]) -> None:
    assert operands(alert) == parts
