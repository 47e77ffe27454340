"""A page's priority multiplies its key in the order of suggestions, whatever that order is."""

from itertools import pairwise
from typing import Any

import httpx
import msgpack
import pytest
from frontiers import Crawl
from ordered_web import MANY, Ordered
from servers import Server
from serving import serving_embedded

from opic.frontier import PolitenessSettings
from opic.model.events import Record, encode_seeds
from opic.replica import Crawl as Shards

URLS = [f"http://{name}.org/" for name in "abcdef"]
A, B, C, D, E, F = URLS
NEAR = 1e-6  # The order by importance is settled to a bound of 2e-9.


def all_of(frontier: Any, **terms: Any) -> list[str]:
    """All pages in the order in which they come."""
    found: list[str] = []
    while pages := frontier.next(10, **terms).pages:
        found += [page.url for page in pages]
    return found


def test_pages_come_by_cash_times_priority_and_the_last_priority_wins(servers: Server) -> None:
    crawl = Crawl(servers)
    crawl.seed(URLS)
    other = crawl.endpoint()
    assert [page.url for page in other.peek(6).pages] == URLS
    crawl._apply(encode_seeds([D, E], None, priority=3.0), "seeds")
    crawl._apply(encode_seeds([B], None, priority=0.5), "seeds")
    crawl.event(E, status=404)  # Which is gone, whatever its priority.
    crawl.event(D, status=500, priority=2.0)
    crawl._apply(encode_seeds([D], None), "seeds")  # It ends the back-off, and says nothing of the priority.
    crawl.event("http://hub.org/", [C])
    assert [page.url for page in other.peek(6).pages] == [D, C, A, F, B]
    told: Any = other.explain(D)
    assert (told.priority, told.place, told.next) == (2.0, 1, True)
    assert all_of(other) == [D, C, A, F, B]


def test_high_priority_of_one_page_does_not_end_a_batch(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.seed(URLS)
    crawl._apply(encode_seeds([F], None, priority=1e9), "seeds")
    assert crawl.urls(6) == [F, A, B, C, D, E]


@pytest.mark.parametrize("strategy", ["random", "cycle"])
def test_priority_counts_in_other_strategies(valkey: Server, strategy: str) -> None:
    crawl = Crawl(valkey, strategy=strategy)
    crawl.seed(URLS)
    crawl._apply(encode_seeds([E], None, priority=1e9), "seeds")
    crawl._apply(encode_seeds([B], None, priority=1e-9), "seeds")
    found = all_of(crawl.frontier)
    assert (found[0], sorted(found)) == (E, URLS)
    assert B in found[-2:]  # The first page of all has the least random key there is.


@pytest.mark.parametrize("policy", ["U", "OR"])
def test_read_pages_are_drawn_by_priority(valkey: Server, policy: str) -> None:
    crawl = Crawl(valkey)
    for url in URLS:
        crawl.event(url, [other for other in URLS if other != url])
    crawl.event(E, [A], priority=1e9)
    assert crawl.urls(1, mode="refresh", policy=policy) == [E]


def test_priorities_change_the_order_while_a_shard_is_followed(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.seed(URLS)
    assert crawl.urls(1) == [A]  # The order is made, by cash alone.
    for priority, first in ((2.0, F), (4.0, E), (8.0, D)):
        crawl._apply(encode_seeds([first], None, priority=priority), "seeds")
        assert crawl.urls(1) == [first]
    assert crawl.urls() == [B, C]


def test_priorities_outlive_workers_with_and_without_a_checkpoint(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl._apply(encode_seeds([A, B], None, priority=2.5), "seeds")
    crawl.event(B, priority=1)
    for _ in range(2):
        cold = {page.url: page.priority for page in Shards.open(valkey.client()).pages()}
        assert cold == {A: 2.5, B: 1.0}
        crawl.store.checkpoint()


@pytest.mark.parametrize("shards", [1, 3])
def test_pages_come_by_importance_times_priority(valkey: Server, shards: int) -> None:
    web = Ordered(valkey, f"preferred-{shards}", shards, politeness=PolitenessSettings(0.0))
    web.seed(MANY[:30])
    for at, url in enumerate(MANY[:12]):
        web.read(url, MANY[at + 1 : 4 * at])
    factors = {url: 0.2 * 5 ** (at % 3) for at, url in enumerate(MANY[::4])}
    assert len(web.next(2).pages) > 0  # The order is made, without priorities.
    for url, factor in factors.items():
        record = Record(web.offset, web.at_us, encode_seeds([url], None, priority=factor), "seeds")
        web.writer.apply("log/0", [record])
        web.offset += 1
        web.writer.drain()
    for mode in ("discover", "refresh"):
        keys = {url: key * factors.get(url, 1.0) for url, key in web.keys(mode).items()}
        found = [keys[url] for url in all_of(web.frontier, mode=mode)]
        assert len(found) > 5  # Read pages without cash do not come.
        assert all(one >= other * (1 - NEAR) for one, other in pairwise(found))


@pytest.mark.parametrize("priority", [0, -1, float("nan"), float("inf"), 1e10, "2", True])
def test_invalid_priority_is_a_dead_letter(valkey: Server, priority: object) -> None:
    crawl = Crawl(valkey)
    crawl._apply(msgpack.packb({"url": A, "priority": priority}), "event")
    ((_, letter),) = crawl.store.shard.client.xrange(crawl.store.shard.keys.dead)
    assert "priority" in letter[b"opic-error"].decode()
    assert not crawl.next()


def test_seeds_take_a_time_and_a_priority_over_http(tmp_path: Any) -> None:
    with serving_embedded(tmp_path, host_delay_seconds=0.0, strategy="greedy") as (http, client):
        assert client.seed([A, B]).new == 2
        assert client.seed([B], priority=5.0).known == 1
        client.seed([C], not_before="2098-01-01T00:00:00Z")
        assert [page.url for page in client.next(10).pages] == [B, A]
        standing = client.explain(C).frontier
        assert (standing.held_back, standing.not_before, standing.priority) == (["not_before"], 4_039_372_800.0, 1.0)
        known = client.stats().known_pages
        for field, value in (
            ("priority", 0), ("priority", -1), ("priority", 1e10), ("priority", "2"),
            ("not_before", -1), ("not_before", "soon"), ("not_before", "2098-01-01T00:00:00"), ("not_before", [1]),
        ):  # fmt: skip
            answer: httpx.Response = http.post("/v1/seeds", json={"urls": [D], field: value})
            assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json"), value
            assert field in answer.json()["detail"]
        assert client.stats().known_pages == known
