"""/metrics tells what the store knows, in the words of Prometheus, and nothing that a stranger wrote."""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from conftest import want_tool
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from serving import serving

from opic import __version__
from opic.ingest.step_counts import CRAWLER_CHARS_MAX, CRAWLERS_MAX, OTHER_CRAWLERS
from opic.service.service import EmbeddedService
from opic.settings import Settings

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.

WAIT_SECONDS = 15.0
OPENMETRICS = {"accept": "application/openmetrics-text; version=1.0.0, text/plain;q=0.5"}
TOKEN = "s3cret-token-of-the-tests"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[httpx.Client, EmbeddedService]]:
    settings = Settings.load(data=tmp_path, host_delay_seconds=0.0, api_token=TOKEN, keep_links=False)
    headers = {"authorization": f"Bearer {TOKEN}"}
    with (
        EmbeddedService(settings) as service,
        serving(service) as url,
        httpx.Client(base_url=url, headers=headers, timeout=30) as client,
    ):
        yield client, service


def scraped(client: httpx.Client) -> dict[str, float]:
    """Samples by name and labels."""
    answer = client.get("/metrics", headers={"authorization": ""})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        sample.name + "".join(f",{label}={value}" for label, value in sorted(sample.labels.items())): sample.value
        for family in parse_text(answer.text)
        for sample in family.samples
    }


def wait_for(client: httpx.Client, **wanted: float) -> dict[str, float]:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = scraped(client)
        if all(found.get(name) == value for name, value in wanted.items()):
            return found
        assert time.monotonic() < deadline, {name: found.get(name) for name in wanted}
        time.sleep(0.1)


def test_metrics_equal_the_books_of_the_store(served: tuple[httpx.Client, EmbeddedService]) -> None:
    client, service = served
    events = [
        {"url": "http://secret-host.example/", "links": ["http://b.example/", "http://c.example/", "nonsense"]},
        {"url": "http://b.example/", "status": 404},
        {"url": "http://c.example/", "status": 500},
        {"url": "http://d.example/", "status": 403},
    ]
    assert client.post("/v1/events", json=events).json()["accepted"] == 4
    service.backend.await_effect({"log/0": 4})
    found = wait_for(client, opic_step_seconds_count=1)
    for outcome in ("read", "gone", "failed", "excluded"):
        assert found[f"opic_events_total,outcome={outcome}"] == 1
    assert found["opic_events_total,outcome=dead"] == found["opic_dead_letters_total"] == 0
    assert (found["opic_links_total"], found["opic_bad_links_total"]) == (2, 1)
    stats = client.get("/v1/stats").json()
    assert found["opic_known_pages"] == stats["known_pages"]
    assert (found["opic_read_pages"], found["opic_gone_pages"], found["opic_lag_events"]) == (1, 1, 0)
    assert found["opic_clock_grains_total"] == stats["clock"]
    assert service.backend.shard.books().pool == stats["pool"]
    assert found["opic_virtual_pool_grains"] == float(stats["pool"])  # Prometheus knows doubles alone.
    assert found["opic_virtual_pool_ratio"] == stats["pool"] / service.backend.crawl.rules.minted
    assert found["opic_sweeps_left"] == stats["sweeps_left"] > 1e6
    assert (found["opic_store_up"], found["opic_cash_conserved"]) == (1, 1)
    assert found[f"opic_error_bound,policy={stats['policy']}"] == stats["error_bound"] < 2
    assert 0 <= found["opic_audit_age_seconds"] < 60
    assert 0 < found["opic_step_seconds_sum"] < 10
    assert found["opic_step_seconds_bucket,le=+Inf"] == 1
    assert found["opic_http_request_duration_seconds_count,method=POST,route=/v1/events,status=2xx"] == 1
    # All four in one step: the pages and their links are looked up before any of them is known.
    assert (found["opic_step_events_sum"], found["opic_step_events_bucket,le=5.0"]) == (4, 1)
    assert found["opic_link_lookups_total,cache=hit"] == 0
    assert found["opic_link_lookups_total,cache=miss"] == 7
    assert 1 <= found["opic_step_round_trips_total"] <= 3
    assert (found["opic_lag_seconds"], found["opic_backup_timestamp_seconds"]) == (0, 0)
    pages = service.backend.crawl.rules.minted - stats["pool"]
    assert sum(found[f"opic_page_cash_grains,pages={kind}"] for kind in ("read", "unread", "gone")) == pages
    unspent = pages - found["opic_page_cash_grains,pages=gone"]
    assert found["opic_error_factor"] == pytest.approx(unspent / found["opic_clock_grains_total"])
    assert found["opic_store_servers"] == 1
    assert found["opic_store_memory_bytes,server=0"] > 1e6
    assert found["opic_store_cpu_seconds_total,server=0"] > 0


def test_each_page_of_the_frontier_is_counted_in_one_state(served: tuple[httpx.Client, EmbeddedService]) -> None:
    client, service = served
    links = [f"http://h{n}.example/" for n in range(12)]
    events = [
        {"url": "http://hub.example/", "links": links},
        {"url": links[0], "status": 404},
        {"url": links[1], "status": 500},
        {"url": links[2], "status": 403},
        {"url": links[3], "links": links[4:6]},
        {"url": links[10], "status": 500, "give_up": True},
        {"url": links[11], "status": 500, "not_before": "2099-01-01T00:00:00Z"},
    ]
    client.post("/v1/events", json=events)
    service.backend.await_effect({"log/0": 7})
    assert len(client.post("/v1/next", json={"n": 2, "mode": "discover"}).json()["pages"]) == 2
    wanted = {"unread": 4, "read": 0, "leased": 2, "retry": 2, "revisit": 2, "denied": 0, "spent": 0}
    wanted |= {"excluded": 1, "gone": 1, "given_up": 1}
    found = scraped(client)  # The hub and links[3] were read a moment ago.
    counted = {kind: found[f"opic_frontier_pages,class=other,kind={kind}"] for kind in wanted}
    assert counted == wanted
    assert sum(wanted.values()) == found["opic_known_pages"] + found["opic_gone_pages"]
    assert (found["opic_leases"], found["opic_page_waits"], found["opic_host_waits"]) == (2, 3, 0)
    assert client.get("/v1/stats").json()["given_up_pages"] == 1
    assert found["opic_suggestions_total,mode=discover,policy="] == 2
    assert found["opic_suggestion_calls_total,answer=pages,mode=discover,policy="] == 1
    assert 0 <= found["opic_estimate_age_seconds"] < 1
    assert 0 <= found["opic_frontier_age_seconds"] < 10


def test_suggestions_are_counted_by_mode_and_policy(served: tuple[httpx.Client, EmbeddedService]) -> None:
    client, _ = served
    client.post("/v1/seeds", json={"urls": [f"http://h{n}.example/" for n in range(8)]}).raise_for_status()
    for mode, count in (("any", 1), ("discover", 3), ("refresh", 2)):
        client.post("/v1/next", json={"n": count, "mode": mode}).raise_for_status()
    assert client.post("/v1/next", json={"mode": "refresh", "policy": "U"}).json()["pages"] == []
    assert client.post("/v1/next", json={"mode": "refresh", "policy": "LDU"}).status_code == 409  # No links are kept.
    found = scraped(client)
    handed = {name.partition(",")[2]: value for name, value in found.items() if name.startswith("opic_suggestions_t")}
    assert {name: value for name, value in handed.items() if value} == {
        "mode=any,policy=": 1,
        "mode=discover,policy=": 3,
    }
    assert len(handed) == 11  # Each mode, and each policy of modes discover and refresh, from the first scrape on.
    none = "opic_suggestion_calls_total,answer=none"
    assert (found[f"{none},mode=refresh,policy="], found[f"{none},mode=refresh,policy=U"]) == (1, 1)
    assert found[f"{none},mode=refresh,policy=LDU"] == 0


def test_order_of_suggestions_is_counted_where_links_are_kept(served: tuple[httpx.Client, EmbeddedService]) -> None:
    client, service = served
    assert "order" not in client.post("/v1/next", json={"n": 1}).json()
    none = {f"opic_suggestion_orders_total,order={order}": 0 for order in ("exact", "cash")}
    assert scraped(client).items() >= none.items()
    client.post("/v1/seeds", json={"urls": ["http://a.example/"], "trust": 1}).raise_for_status()
    client.post("/v1/events", json={"url": "http://a.example/", "links": ["http://b.example/"]}).raise_for_status()
    service.backend.await_effect({"log/0": 2})
    told = Counter(client.post("/v1/next", json={"n": 1, "mode": "discover"}).json()["order"] for _ in range(3))
    found = scraped(client)
    assert {order: found[f"opic_suggestion_orders_total,order={order}"] for order in told} == told
    assert sum(found[name] for name in none) == 3


def test_no_scrape_computes_the_coverage(served: tuple[httpx.Client, EmbeddedService]) -> None:
    client, service = served
    client.post("/v1/seeds", json={"urls": ["http://a.example/"], "trust": 1}).raise_for_status()
    client.post("/v1/events", json={"url": "http://a.example/", "links": ["http://b.example/"]}).raise_for_status()
    service.backend.await_effect({"log/0": 2})
    assert "opic_coverage" not in scraped(client)
    (page,) = client.post("/v1/next", json={"mode": "coverage"}).json()["pages"]
    found = scraped(client)
    assert found["opic_coverage"] == pytest.approx(0.15, abs=1e-5)
    assert 0 <= found["opic_coverage_age_seconds"] < 10
    assert found["opic_suggestions_total,mode=coverage,policy="] == 1
    client.post("/v1/events", json={"url": page["url"]}).raise_for_status()
    service.backend.await_effect({"log/0": 3})
    assert scraped(client)["opic_coverage"] == found["opic_coverage"]
    now = client.get("/v1/coverage").json()["coverage"]
    assert now > found["opic_coverage"]
    assert scraped(client)["opic_coverage"] == now
    client.post("/v1/seeds", json={"urls": ["http://a.example/"], "trust": 0}).raise_for_status()
    assert client.get("/v1/coverage").status_code == 409
    assert "opic_coverage" not in scraped(client)


def test_pages_that_rules_hold_back_are_counted_apart(served: tuple[httpx.Client, EmbeddedService]) -> None:
    client, service = served
    service.backend.frontier.admission = service.backend.admission
    client.put("/v1/rules", json={"rules": [{"effect": "deny", "path": "/private/"}]}).raise_for_status()
    urls = ["http://a.example/private/1", "http://a.example/private/2", "http://a.example/"]
    client.post("/v1/seeds", json={"urls": urls}).raise_for_status()
    found = scraped(client)
    kinds = {kind: found[f"opic_frontier_pages,class=other,kind={kind}"] for kind in ("denied", "unread")}
    assert kinds == {"denied": 2, "unread": 1}


def test_pages_of_classes_are_counted_apart(served: tuple[httpx.Client, EmbeddedService]) -> None:
    client, _ = served
    client.put("/v1/classes", json={"classes": [{"name": "trusted", "hosts": ["a.example"], "weight": 2.0}]})
    client.post("/v1/seeds", json={"urls": ["http://a.example/1", "http://a.example/2", "http://b.example/"]})
    found = scraped(client)
    assert found["opic_frontier_pages,class=trusted,kind=unread"] == 2
    assert found["opic_frontier_pages,class=other,kind=unread"] == 1


def test_labels_stay_few_whatever_is_requested(served: tuple[httpx.Client, EmbeddedService]) -> None:
    client, _ = served
    for n in range(20):
        client.get(f"/none-{n}")
        client.request(f"METHOD{n}", "/v1/top")
        client.get("/v1/importance", params={"url": f"http://secret-host.example/{n}"})
        client.get("/v1/top", headers={"authorization": "Bearer wrong"})
    text = client.get("/metrics").text
    for stranger in ("none-", "METHOD", "secret-host", TOKEN):
        assert stranger not in text
    requests = {line.split(" ")[0] for line in text.splitlines() if "_duration_seconds_count" in line}
    assert len(requests) < 8
    assert any('route="/v1/importance",status="4xx"' in line for line in requests)


def test_events_are_counted_by_crawler_and_only_so_many_names_apart(
    served: tuple[httpx.Client, EmbeddedService],
) -> None:
    client, _ = served

    def send(*names: str | None) -> None:
        events = [{"url": f"http://c.example/{number}", "crawler": name} for number, name in enumerate(names)]
        assert client.post("/v1/events", json=events).json()["accepted"] == len(names)

    def counts(found: dict[str, float]) -> dict[str, float]:
        name = "opic_crawler_events_total,crawler="
        return {label.removeprefix(name): value for label, value in found.items() if label.startswith(name)}

    send("a", "a", 'b"\n\\', "é", None)
    found = counts(wait_for(client, **{"opic_crawler_events_total,crawler=a": 2}))
    assert found == {"a": 2, 'b"\n\\': 1, "é": 1}
    send("a", "x" * CRAWLER_CHARS_MAX, "x" * (CRAWLER_CHARS_MAX + 1), *(f"c{number}" for number in range(200)))
    found = counts(wait_for(client, **{"opic_crawler_events_total,crawler=a": 3}))
    assert len(found) == CRAWLERS_MAX + 1
    assert found[OTHER_CRAWLERS] == 1 + 200 - (CRAWLERS_MAX - 4)
    assert found["x" * CRAWLER_CHARS_MAX] == 1
    assert sum(found.values()) == 4 + 203


def test_both_formats_parse_and_pass_promtool(served: tuple[httpx.Client, EmbeddedService]) -> None:
    client, service = served
    client.post("/v1/events", json={"url": "http://a.example/"})
    service.backend.await_effect({"log/0": 1})
    plain, strict = client.get("/metrics"), client.get("/metrics", headers=OPENMETRICS)
    assert strict.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    names = {family.name for family in parse_text(plain.text) if not family.name.endswith("_created")}
    assert names == {family.name for family in parse_openmetrics(strict.text)}
    command = [want_tool("promtool", "prometheus"), "check", "metrics"]
    checked = subprocess.run(command, input=plain.text, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_frozen_store_delays_a_scrape_by_seconds_only(served: tuple[httpx.Client, EmbeddedService]) -> None:
    client, service = served
    assert scraped(client)["opic_store_up"] == 1
    assert service.server.process is not None
    os.kill(service.server.process.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        found = scraped(client)
        assert time.monotonic() - began < 9  # Prometheus would wait for 10 s.
        assert found["opic_store_up"] == 0
        assert found["opic_build_info,version=" + __version__] == 1
        assert not any(name.startswith("opic_events") for name in found)
    finally:
        os.kill(service.server.process.pid, signal.SIGCONT)
    wait_for(client, opic_store_up=1)


def test_unavailable_store_is_shown(served: tuple[httpx.Client, EmbeddedService]) -> None:
    client, service = served
    assert scraped(client)["opic_store_up"] == 1
    assert service.server.process is not None
    os.kill(service.server.process.pid, signal.SIGKILL)
    assert scraped(client)["opic_store_up"] in (0, 1)
    wait_for(client, opic_store_up=1)
