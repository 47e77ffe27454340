"""Rates and limits of concurrent calls at a real endpoint, and how clients wait for them."""

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import serving, serving_embedded

from opic.client import AsyncClient, Client, CrawlSession, Unavailable
from opic.service.rates import BURST_SECONDS, LATE_SECONDS, PROMPT_REFUSALS
from opic.service.service import EmbeddedService
from opic.service.tokens import new_token
from opic.settings import Settings

POLICY = re.compile(r'"(\w+)";q=(\d+);qu="([\w-]+)"(?:;w=5)?')
LEFT = re.compile(r'"(\w+)";r=(\d+)(?:;t=(\d+))?')
LIMITS: dict[str, dict[str, float]] = {
    "slow-caller": {"calls_per_second": 1},
    "slow-crawler": {"calls_per_second": 2},
    "slow-publisher": {"events_per_second": 20},
    "client": {"events_per_second": 100},
    "few-bytes": {"bytes_per_second": 1_000},
    "one-at-once": {"concurrent_calls": 1},
    "without-limit": {"calls_per_second": 0},
    "by-default": {},
}


@dataclass(frozen=True)
class Limited:
    """An endpoint whose tokens have rates: its URL, and the secret of each name."""

    url: str
    secrets: dict[str, str]

    def ask(self, method: str, path: str, name: str, **more: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.secrets[name]}", **more.pop("headers", {})}
        return httpx.request(method, self.url + path, headers=headers, timeout=30, **more)

    def refused(self, name: str, reason: str) -> float:
        families = text_string_to_metric_families(httpx.get(f"{self.url}/metrics", timeout=30).text)
        samples = [one for family in families for one in family.samples if one.name == "opic_refused_calls_total"]
        return sum(one.value for one in samples if one.labels == {"token": name, "reason": reason})


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    folder, secrets, lines = tmp_path_factory.mktemp("rates"), dict[str, str](), ""
    for name, limits in LIMITS.items():
        secrets[name], more = new_token(name, ["crawl", "read"], [], **limits)
        lines += more
    (folder / "tokens.toml").write_text(lines)
    terms: dict[str, Any] = {"tokens_file": folder / "tokens.toml", "host_delay_seconds": 0, "keep_links": False}
    with (
        EmbeddedService(Settings.load(data=folder / "data", calls_per_second=100, **terms)) as service,
        serving(service) as url,
    ):
        yield Limited(url, secrets)


def events(count: int, name: str) -> list[dict[str, str]]:
    return [{"url": f"http://{name}.example/{number}"} for number in range(count)]


def checked(answer: httpx.Response, *words: str) -> int:
    """The seconds that a refusal says to wait; its fields agree with them."""
    assert answer.status_code == 429, answer.text
    problem, wait = answer.json(), int(answer.headers["retry-after"])
    assert problem["type"] == "urn:opic:problem:over-rate"
    for word in (*words, f"in {wait} s"):
        assert word in problem["detail"], problem
    assert all(int(seconds or 0) <= wait for _, _, seconds in LEFT.findall(answer.headers["ratelimit"]))
    return wait


def test_calls_over_the_rate_are_told_when_to_come_back(limited: Limited) -> None:
    answers = [limited.ask("GET", "/v1/stats", "slow-caller") for _ in range(7)]
    assert [answer.status_code for answer in answers[:5]] == [200] * 5  # Five seconds of it.
    assert [LEFT.findall(answer.headers["ratelimit"])[0][1] for answer in answers[:5]] == ["4", "3", "2", "1", "0"]
    assert POLICY.fullmatch(answers[0].headers["ratelimit-policy"]).groups() == ("calls", "5", "requests")  # type: ignore[union-attr]
    time.sleep(checked(answers[5], "1 calls a second"))
    assert limited.ask("GET", "/v1/stats", "slow-caller").status_code == 200
    assert limited.refused("slow-caller", "calls") >= 1
    for path in ("/healthz", "/readyz", "/metrics", "/docs"):
        for _ in range(10):
            answer = limited.ask("GET", path, "slow-caller")
            assert (answer.status_code, "ratelimit" in answer.headers) == (200, False)


def test_client_that_does_not_wait_gets_its_refusals_late(limited: Limited) -> None:
    headers = {"authorization": f"Bearer {limited.secrets['slow-caller']}"}
    took = list[float]()  # By refusal, in seconds.
    with httpx.Client(base_url=limited.url, headers=headers, timeout=30) as client:
        began = time.monotonic()
        for _ in range(120):
            asked = time.monotonic()
            answer = client.post("/v1/events", json=events(1, "late"))
            if answer.status_code == 429:
                checked(answer)
                took.append(time.monotonic() - asked)
        prompt = PROMPT_REFUSALS * (BURST_SECONDS + time.monotonic() - began)
    assert sum(seconds >= LATE_SECONDS for seconds in took) >= len(took) - prompt


def test_events_over_the_rate_are_refused_whole(limited: Limited) -> None:
    first = limited.ask("POST", "/v1/events", "slow-publisher", json=events(150, "first"))  # The burst is 100.
    assert first.json()["accepted"] == 150
    key = {"idempotency-key": "again"}
    for headers in ({}, key):
        refused = limited.ask("POST", "/v1/events", "slow-publisher", json=events(10, "second"), headers=headers)
        wait = checked(refused, "20 events a second")
        assert wait in (3, 2)  # 50 of debt and one more.
    assert POLICY.findall(refused.headers["ratelimit-policy"])[1] == ("events", "100", "events")
    seeds = {"urls": ["http://seed.example/"]}
    assert limited.ask("POST", "/v1/seeds", "slow-publisher", json=seeds).status_code == 429
    position = {"after": first.json()["position"]}
    for name, status in (("first", 200), ("second", 404), ("seed", 404)):
        url = f"http://{name}.example/" + ("" if name == "seed" else "0")
        answer = limited.ask("GET", "/v1/importance", "by-default", params={"url": url, **position})
        assert answer.status_code == status
    time.sleep(wait)
    again = limited.ask("POST", "/v1/events", "slow-publisher", json=events(10, "second"), headers=key)
    assert again.json()["accepted"] == 10
    assert limited.refused("slow-publisher", "events") == 3


def test_bytes_over_the_rate_are_refused_before_they_are_read(limited: Limited) -> None:
    large = b" " * 6_000 + b'{"url":"http://bytes.example/"}'
    assert limited.ask("POST", "/v1/events", "few-bytes", content=large).status_code == 202
    checked(limited.ask("POST", "/v1/events", "few-bytes", content=large), "1,000 bytes a second")
    time.sleep(checked(limited.ask("GET", "/v1/canonical?url=http://a.example/", "few-bytes"), "1,000 bytes a second"))
    chunks = iter([b"{}\n" * 2_000])  # Of unknown size: it is taken, and others wait for it.
    lines = {"content-type": "application/x-ndjson"}
    assert limited.ask("POST", "/v1/events", "few-bytes", content=chunks, headers=lines).is_success
    wait = checked(limited.ask("GET", "/v1/canonical?url=http://a.example/", "few-bytes"), "1,000 bytes a second")
    assert wait > 100  # The answer lists 2,000 lines that are no events.


def test_calls_at_once_are_limited_until_one_is_answered(limited: Limited) -> None:
    host, port = limited.url.removeprefix("http://").split(":")
    head = f"POST /v1/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {limited.secrets['one-at-once']}\r\n"
    body = b'{"url":"http://slow.example/"}'
    with socket.create_connection((host, int(port)), timeout=30) as slow:
        slow.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:5])
        while (answer := limited.ask("GET", "/v1/stats", "one-at-once")).status_code == 200:
            pass  # Until the endpoint has the head of the other call.
        assert checked(answer, "1 calls at once") == 1
        assert limited.ask("GET", "/v1/stats", "by-default").status_code == 200
        slow.sendall(body[5:])
        assert slow.recv(100).startswith(b"HTTP/1.1 202")
    assert limited.ask("GET", "/v1/stats", "one-at-once").status_code == 200
    with socket.create_connection((host, int(port)), timeout=30) as gone:  # A client that leaves ends its call too.
        gone.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
    deadline = time.monotonic() + 20
    while limited.ask("GET", "/v1/stats", "one-at-once").status_code != 200:
        assert time.monotonic() < deadline


def test_token_has_the_default_rate_unless_its_file_says_otherwise(limited: Limited) -> None:
    by_default = limited.ask("GET", "/v1/stats", "by-default")
    assert POLICY.findall(by_default.headers["ratelimit-policy"]) == [("calls", "500", "requests")]
    assert "ratelimit" not in limited.ask("GET", "/v1/stats", "without-limit").headers


def test_client_waits_as_it_is_told_and_every_event_counts_once(limited: Limited) -> None:
    began = time.monotonic()
    with Client(limited.url, token=limited.secrets["client"], retry_seconds=30) as client:
        for number in range(3):
            assert client.events(events(300, f"client{number}"), once=False).accepted == 300
    assert time.monotonic() - began > (600 - 500) / 100
    assert limited.refused("client", "events") >= 1
    with (
        Client(limited.url, token=limited.secrets["client"], retry_seconds=0) as client,
        pytest.raises(Unavailable) as refused,
    ):
        client.events(events(900, "impatient"))
    assert refused.value.retry_after is not None
    assert refused.value.status == 429


def test_crawl_session_goes_on_within_its_rate(limited: Limited) -> None:
    async def crawl() -> int:
        client = AsyncClient(limited.url, token=limited.secrets["slow-crawler"], crawler="c")
        async with CrawlSession(client) as session:
            session.seed("http://session.example/", 0)
            read = 0
            while not session.exhausted:
                for lease in await session.turn(lambda: {"n": 5, "domains": ["session.example"], "mode": "discover"}):
                    links = [f"http://session.example/{read}"] if read < 4 else []
                    session.add_event(lease.page.url, links=links)
                    session.end(lease)
                    read += 1
            return read

    assert asyncio.run(crawl()) == 5
    assert limited.refused("slow-crawler", "calls") > 1


def test_rates_hold_for_all_together_where_no_token_is_required(tmp_path: Path) -> None:
    with serving_embedded(tmp_path / "data", calls_per_second=1, keep_links=False) as (http, _):
        statuses = [http.get("/v1/stats").status_code for _ in range(7)]
        assert statuses[:5] == [200] * 5
        assert 429 in statuses[5:]
        assert http.get("/healthz").status_code == 200
        assert 'opic_refused_calls_total{reason="calls",token="none"}' in http.get("/metrics").text
