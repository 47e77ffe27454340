"""A lease that is renewed runs on under its name; one that has ended is lost, and nothing else changes."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from frontiers import Crawl, until
from servers import Server
from serving import serving_embedded

from opic.errors import BadInput
from opic.frontier import PolitenessSettings
from opic.messages.frontier import Renewed

A, B = "http://a.org/", "http://b.org/"
SHORT = 1.5
AT_ONCE = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.0)


def leased(crawl: Crawl, *urls: str, **terms: Any) -> list[str]:
    crawl.seed(urls)
    found = {page.url: page.lease for page in crawl.next(len(urls), **terms)}
    return [found[url] for url in urls]


def test_renewed_lease_holds_its_page_at_all_endpoints_beyond_its_first_end(servers: Server) -> None:
    crawl = Crawl(servers, AT_ONCE)
    other = crawl.endpoint(AT_ONCE)
    lease, ends = leased(crawl, A, B, lease_seconds=SHORT)
    assert other.next().pages == []
    now = time.time()
    answer = other.renew([lease, lease], 600)
    (renewed,) = answer.renewed
    assert (renewed.lease, answer.lost) == (lease, [])
    assert now + 600 <= renewed.lease_until <= time.time() + 600
    assert until(crawl.urls) == [B]  # Its lease was not renewed.
    for frontier in (other, crawl.frontier):
        assert frontier.next().pages == []
    assert crawl.frontier.renew([ends, lease], 300).lost == [ends]
    assert crawl.frontier.release([lease]).released == 1
    assert other.renew([lease]).lost == [lease]
    assert until(lambda: other.next().pages)[0].url == A


def test_lease_that_an_event_has_ended_is_lost(valkey: Server) -> None:
    crawl = Crawl(valkey, AT_ONCE)
    (lease,) = leased(crawl, A)
    assert crawl.frontier.renew([lease]).lost == []
    crawl.event(A)
    assert crawl.frontier.renew([lease]) == Renewed([], [lease])
    forged = lease[:-1] + ("0" if lease[-1] != "0" else "1")
    assert crawl.frontier.renew([forged]).lost == [forged]


def test_renewed_lease_counts_among_the_pages_of_its_host_in_flight(valkey: Server) -> None:
    one_each = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.0, host_in_flight=1)
    crawl = Crawl(valkey, one_each)
    crawl.seed([A, f"{A}2"])
    (page,) = crawl.next(lease_seconds=SHORT)
    until_us = round(page.lease_until * 1e6)
    crawl.frontier.renew([page.lease], 600)
    keys, client = crawl.store.shard.keys, crawl.store.shard.client
    until(lambda: client.fcall_ro("opic_5_now", 1, keys.leases) > until_us)
    assert crawl.urls() == []
    assert crawl.endpoint(one_each).next().pages == []
    crawl.event(A)
    assert crawl.urls() == [f"{A}2"]


@pytest.mark.parametrize("seconds", [0, -1, 86_401, float("nan"), float("inf")])
def test_invalid_duration_is_refused(valkey: Server, seconds: float) -> None:
    crawl = Crawl(valkey, AT_ONCE)
    leases = leased(crawl, A)
    with pytest.raises(BadInput, match="lease_seconds="):
        crawl.frontier.renew(leases, seconds)
    with pytest.raises(BadInput, match="is not a lease"):
        crawl.frontier.renew([*leases, "no-lease"], 5)
    assert crawl.frontier.renew(leases).lost == []


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    directory: Path = tmp_path_factory.mktemp("renewed")
    with serving_embedded(directory, host_delay_seconds=0.0, max_urls=5) as (http, _):
        yield http


def test_leases_are_renewed_over_http(http: httpx.Client) -> None:
    http.post("/v1/seeds", json={"urls": [A]})
    (page,) = until(lambda: http.post("/v1/next", json={"domains": ["b.org", "a.org"]}).json()["pages"])
    answer = http.post("/v1/leases/renew", json={"leases": [page["lease"]], "lease_seconds": 4_000})
    assert answer.status_code == 200
    assert answer.json()["lost"] == []
    (renewed,) = answer.json()["renewed"]
    assert renewed["lease"] == page["lease"]
    assert renewed["lease_until"] > page["lease_until"] + 3_000


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "leases"),
        ({"leases": "0-1-2"}, "leases"),
        ({"leases": [1]}, "leases"),
        ({"leases": ["no-lease"]}, "'no-lease' is not a lease"),
        ({"leases": ["0-1-2"] * 6}, "OPIC_MAX_URLS 5"),
        ({"leases": [], "lease_seconds": 0}, "lease_seconds"),
        ({"leases": [], "lease_seconds": "5"}, "lease_seconds"),
        ({"leases": [], "seconds": 5}, "seconds"),
    ],
)
def test_invalid_renewal_is_refused_with_the_reason(http: httpx.Client, body: object, why: str) -> None:
    answer = http.post("/v1/leases/renew", json=body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert why in answer.json()["detail"]
