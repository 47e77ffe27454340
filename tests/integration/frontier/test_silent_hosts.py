"""A host that does not answer costs as many tries as a page that does not, however many pages it has."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontiers import Crawl, until
from servers import Server
from serving import serving

from opic.client import Client, Event
from opic.frontier import PolitenessSettings
from opic.ingest import ShardWriter
from opic.model.host_failures import HostFailures, Patience, host_failures_after
from opic.service.service import EmbeddedService
from opic.settings import Settings
from opic.store import Shard
from opic.urls.canonical import host_of

pytestmark = pytest.mark.slow

DEAD = [f"http://dead.example/{n}" for n in range(50)]
ALIVE = [f"http://alive.example/{n}" for n in range(30)]
FAILURES, RETRY = 4, 0.1
PATIENT = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=RETRY, max_failures=FAILURES, lease_seconds=60.0)
HELD = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=600.0, max_failures=FAILURES, lease_seconds=60.0)
AT_ONCE = replace(PATIENT, retry_seconds=0.0)


def crawled(client: Client, answers: Callable[[str], int], n: int) -> Counter[str]:
    """Fetch all pages as the crawler of the README does; return the tries by host."""
    tries = Counter[str]()
    deadline = time.monotonic() + 60
    while not (batch := client.next(n, mode="discover")).exhausted:
        assert time.monotonic() < deadline, "it does not end"
        tries.update(host_of(page.url) for page in batch.pages)
        client.events([Event(page.url, status=answers(page.url)) for page in batch.pages])
        while client.call("GET", "/v1/stats")["lag"]:  # Else more pages of the host come meanwhile.
            assert time.monotonic() < deadline, "the worker does not apply them"
        time.sleep(min(batch.retry_after, RETRY))
    return tries


@pytest.mark.parametrize("n", [1, 10])
@pytest.mark.parametrize("status", [0, 503])
def test_crawl_ends_after_a_few_tries_of_a_dead_host(tmp_path: Path, n: int, status: int) -> None:
    settings = Settings.load(
        data=tmp_path, host_delay_seconds=0.0, retry_seconds=RETRY, max_failures=FAILURES, revisit_seconds=60.0
    )
    with EmbeddedService(settings) as service, serving(service) as url, Client(url) as client:
        client.seed([*DEAD, *ALIVE])
        tries = crawled(client, lambda page: 200 if "alive" in page else status, n)
        assert tries["alive.example"] == len(ALIVE)
        assert FAILURES <= tries["dead.example"] <= FAILURES + n  # The first batch was out before it was known.
        stats: Any = client.call("GET", "/v1/stats")
        assert (stats["given_up_pages"], stats["read_pages"]) == (len(DEAD), len(ALIVE))
        told = client.explain(DEAD[-1])
        assert (told.state, told.frontier.held_back) == ("given_up", ["given_up"])
        assert "its host dead.example is given up: it did not answer" in told.frontier.why_not[0]
        client.seed([DEAD[7]])
        assert client.explain(DEAD[-1]).state == "unread"
        assert set(crawled(client, lambda _: 200, n)) == {"dead.example"}
        stats = client.call("GET", "/v1/stats")  # A page that used up its own tries stays given up.
        assert stats["read_pages"] + stats["given_up_pages"] == len(DEAD) + len(ALIVE)
        assert stats["given_up_pages"] <= 1
        assert client.audit().conserved


def given_up(crawl: Crawl, endpoint: Any = None) -> int:
    frontier = endpoint or crawl.frontier
    frontier.crawl.follow()
    return sum(len(ids) for _, ids in frontier.given_up())


def fail(crawl: Crawl, *urls: str, status: int = 0) -> None:
    for url in urls:
        crawl.event(url, status=status)


def test_endpoints_agree_and_restarts_forget_nothing(valkey: Server) -> None:
    valkey.reset()
    crawl = Crawl(valkey, AT_ONCE)
    crawl.seed([*DEAD, *ALIVE])
    fail(crawl, *DEAD[: FAILURES - 1])
    assert given_up(crawl) == given_up(crawl, crawl.endpoint(AT_ONCE)) == 0
    fail(crawl, DEAD[9])
    for endpoint in (crawl.frontier, crawl.endpoint(AT_ONCE)):
        assert given_up(crawl, endpoint) == len(DEAD)
        assert endpoint.next(100).waiting.given_up == len(DEAD)
    assert given_up(crawl, crawl.endpoint(replace(AT_ONCE, max_failures=0))) == 0
    assert given_up(crawl, crawl.endpoint(replace(AT_ONCE, max_failures=FAILURES + 1))) == 0
    assert given_up(crawl, crawl.endpoint(HELD)) == 0, "they did not last as long as the back-offs of a page"


def test_failures_of_hosts_are_in_the_checkpoint(valkey: Server) -> None:
    valkey.reset()
    crawl, shard = Crawl(valkey, AT_ONCE), Shard.open(valkey.client())
    crawl.store = ShardWriter(shard, retry_seconds=0.0, journal_bytes=1)

    def trimmed() -> bool:
        crawl.store.checkpoint()
        return bool(shard.client.xlen(shard.keys.journal) == 1)

    crawl.seed([*DEAD, *ALIVE])
    until(trimmed)  # The names of hosts are written: only their failures change from now on.
    fail(crawl, *DEAD[:FAILURES])
    crawl.event(ALIVE[0])  # The last record, which is never trimmed, says nothing of the host.
    until(trimmed)
    assert given_up(crawl, crawl.endpoint(AT_ONCE)) == len(DEAD)
    crawl.event(DEAD[0])
    crawl.event(ALIVE[0])
    until(trimmed)
    assert given_up(crawl, crawl.endpoint(AT_ONCE)) == 0


@pytest.mark.parametrize("end", ["read", "gone", "500", "seed"])
def test_any_answer_or_a_seed_of_the_host_brings_its_pages_back(valkey: Server, end: str) -> None:
    valkey.reset()
    crawl = Crawl(valkey, AT_ONCE)
    crawl.seed(DEAD)
    fail(crawl, *DEAD[:FAILURES])
    assert (given_up(crawl), crawl.urls(100)) == (len(DEAD), [])
    crawl.event(DEAD[1], status=0, excluded=True)  # It was not asked.
    assert given_up(crawl) == len(DEAD) - 1
    if end == "seed":
        crawl.seed([DEAD[20]])
    else:
        crawl.event(DEAD[20], status={"read": 200, "gone": 404, "500": 500}[end])
    assert given_up(crawl) == 0
    assert len(crawl.urls(100)) >= len(DEAD) - 2


def test_host_that_failed_twice_rests_and_gives_one_page_at_a_time(valkey: Server) -> None:
    valkey.reset()
    crawl = Crawl(valkey, HELD)
    crawl.seed(DEAD)
    assert len(crawl.urls(3)) == 3
    fail(crawl, DEAD[0])
    assert len(crawl.urls(3)) == 3, "one failure may be that of a page alone"
    fail(crawl, DEAD[1])
    assert crawl.urls(3) == []
    told: Any = crawl.frontier.explain(DEAD[-1])
    assert "its host dead.example did not answer 2 times in a row, and rests" in " ".join(told.why_not)
    assert told.held_back == ["host_delay"]
    assert crawl.endpoint(HELD).next(3).pages == [], "a restart ends no rest"
    patient = crawl.endpoint(PATIENT)
    (probe,) = until(lambda: patient.next(10).pages)
    time.sleep(2 * RETRY)
    assert patient.next(10).pages == [], "until an event says whether its host is back"
    crawl.event(probe.url)
    assert len(until(lambda: patient.next(10).pages)) == 10


@pytest.mark.parametrize("seconds", [0.0, 1.0, 30.0])
def test_tries_of_a_host_are_about_those_of_a_page(seconds: float) -> None:
    """Each try takes so long to fail; the next comes when the host has rested."""
    patience, found, now, tries = Patience(8, 60.0), HostFailures(), 1.7e9, 0
    while not patience.gives_up(*(np.array([number]) for number in found)).any():
        now += seconds
        tries += 1
        found = host_failures_after(found, failed=True, time_us=round(now * 1e6))
        now = max(now, float(patience.rests_until(*(np.array([number]) for number in found))[0]))
    assert tries in (8, 9)
    assert found.last_us - found.first_us >= patience.seconds() * 1e6
