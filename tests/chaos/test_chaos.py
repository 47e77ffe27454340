"""Whatever breaks, each event's effect is there exactly once and the books balance: a short storm over each world.

`make chaos MINUTES=60` is the long form, with a seed of its own. A failure names its seed: `make chaos SEED=N` breaks
the same things in the same order.
"""

import os
import random
from contextlib import ExitStack
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from exact_readers import pagerank
from kafka_server import Kafka
from logs import PARTITION, record
from servers import Server

from chaos.actions import ACTIONS
from chaos.bank import expected_of, inspect, lost_and_doubled
from chaos.checks import failed_while_up, inlinks_wrong, leased_twice
from chaos.exactness import importance_wrong
from chaos.fetchers import CallNote, LeaseNote, Notes
from chaos.storm import a_kafka, run
from chaos.worlds import WORLDS
from opic.ingest import ShardWriter, Writer
from opic.replica import Crawl

# The same each time, so that a failure here is a change's; `make chaos` draws a new one.
SEED = int(os.environ.get("OPIC_CHAOS_SEED") or 20030524)
SPELL_SECONDS = 8.0
EVENTS_MIN = 100
ALIKE = ("scatter", "cluster", "secured")  # Worlds much like others.

PAGES = [f"http://{name}.org/" for name in "abcdef"]
LOG = [record(i, PAGES[i % 6], [PAGES[(i + k) % 6] for k in (1, 2, 4)], fetched_at=1e9 + i) for i in range(60)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "world", [pytest.param(world, marks=pytest.mark.thorough if world in ALIKE else ()) for world in WORLDS]
)
def test_every_event_takes_effect_once_whatever_breaks(
    request: pytest.FixtureRequest, tmp_path: Path, world: str
) -> None:
    with ExitStack() as stack:
        kafka: Kafka | None = None
        if WORLDS[world].secured:
            kafka = stack.enter_context(a_kafka())
        elif WORLDS[world].feed == "kafka":
            kafka = request.getfixturevalue("kafka")
        print(f"seed {SEED}")
        report = run([WORLDS[world]], SEED, SPELL_SECONDS, kafka, tmp_path)
    assert not report.wrong, report.text()
    (mine,) = report.worlds
    assert mine.actions, report.text()
    assert mine.confirmed >= EVENTS_MIN, report.text()
    assert mine.leases, report.text()
    assert mine.exact, report.text()
    assert bool(mine.over_rate) == WORLDS[world].secured, report.text()


def test_every_action_is_in_a_world() -> None:
    used = {name for world in WORLDS.values() for name in world.actions}
    assert used == ACTIONS.keys()


def lease(begun: float, until: float, ended: float | None = None, url: str = "http://w1.e1.net/1") -> LeaseNote:
    return LeaseNote(url, "a crawler", "token", begun, until, ended)


def test_a_second_lease_is_detected_only_while_the_first_one_runs() -> None:
    assert leased_twice([lease(0, 10), lease(10, 20), lease(10, 20, url="http://w1.e1.net/2")]) == []
    assert leased_twice([lease(0, 10, ended=4), lease(4, 20)]) == []
    assert len(leased_twice([lease(0, 10), lease(9, 20)])) == 1
    assert len(leased_twice([lease(9, 20), lease(0, 10, ended=9.5)])) == 1
    assert len(leased_twice([lease(0, 30), lease(1, 2), lease(3, 4)])) == 2


def test_a_lease_that_the_store_forgot_stays_ended() -> None:
    """Its holder may set out to report it, or to release it, only after the store lost it and another one has it."""
    notes = Notes([lease(0, 10)])
    notes.forget_leases()
    notes.leases[0].end(9)
    assert leased_twice([*notes.leases, lease(5, 20)]) == []


def test_a_failed_call_counts_only_while_the_store_is_up() -> None:
    calls = [CallNote(0, 1, 503, ""), CallNote(4, 6, 503, ""), CallNote(8, 9, 503, ""), CallNote(8, 9, 200, "")]
    assert failed_while_up(calls, [(5, 8)]) == [calls[0], calls[2]]


def test_a_missing_in_link_is_detected() -> None:
    links = {"http://a.org/": {"http://b.org/", "http://c.org/"}, "http://b.org/": set[str]()}
    rng = random.Random(1)
    assert inlinks_wrong("it", lambda url: links[url], links, rng) == []
    assert len(inlinks_wrong("it", lambda url: links[url] - {"http://c.org/"}, links, rng)) == 1


def test_pagerank_of_the_inspector_equals_networkx() -> None:
    graph = nx.gnp_random_graph(40, 0.1, seed=3, directed=True)
    graph.remove_edges_from(list(graph.edges(range(5))))  # Pages without links.
    ends = np.array(list(graph.edges()))
    found = pagerank(ends[:, 0], ends[:, 1], len(graph))
    assert dict(enumerate(found)) == pytest.approx(nx.pagerank(graph, 0.85, tol=1e-13, max_iter=1_000), abs=1e-12)


def test_importance_further_from_pagerank_than_its_bound_is_detected() -> None:
    truth = {"http://a.org/": 0.75, "http://b.org/": 0.25}
    near = {"http://a.org/": 0.752, "http://b.org/": 0.248, "http://gone.org/": 0.0}
    assert importance_wrong("it", near, 0.005, truth) == []
    for told, bound in ((near, 0.003), (near | {"http://gone.org/": 0.002}, 0.005), (near, 0.02)):
        assert len(importance_wrong("it", told, bound, truth)) == 1
    assert any("has no importance" in text for text in importance_wrong("it", {"http://a.org/": 0.75}, 0.01, truth))


@pytest.fixture
def crawl(valkey: Server) -> Crawl:
    """A small crawl with nothing wrong."""
    found = Crawl.open(valkey.client(), "bank", {"shards": 3, "measures_max": 64})
    writer = Writer(found)
    writer.apply(PARTITION, LOG)
    while writer.deliver():
        pass
    assert inspect(found, expected_of(LOG)) == []
    return found


def test_inspector_detects_an_event_that_took_effect_twice(crawl: Crawl) -> None:
    writer = Writer(crawl)
    writer.apply("another/0", LOG[:1])
    while writer.deliver():
        pass
    assert any("was read 11 times, by 10 events" in text for text in inspect(crawl, expected_of(LOG)))
    assert lost_and_doubled(crawl, expected_of(LOG)) == (0, 1)


def test_inspector_detects_a_lost_event(crawl: Crawl) -> None:
    missing = record(60, PAGES[0], fetched_at=1.7e9)
    assert any("by 11 events" in text for text in inspect(crawl, expected_of([*LOG, missing])))
    assert lost_and_doubled(crawl, expected_of([*LOG, missing])) == (1, 0)


def test_inspector_detects_a_grain_on_the_wrong_page(crawl: Crawl) -> None:
    """Though the books balance, in the checkpoint."""
    shard = next(shard for shard in crawl.shards if shard.books().live > 1)
    ShardWriter(shard).checkpoint()
    cash = np.frombuffer(crawl.client.hget(shard.keys.block(0), "v"), "<i8").copy()
    cash[:2] += (1, -1)
    crawl.client.hset(shard.keys.block(0), "v", cash.tobytes())
    assert sum("was sent" in text for text in inspect(Crawl(crawl.shards), expected_of(LOG))) == 2


def test_inspector_detects_cash_that_does_not_arrive(crawl: Crawl) -> None:
    writer = Writer(crawl)
    more = [record(60, PAGES[0], PAGES, fetched_at=1.7e9)]
    writer.apply(PARTITION, more)
    assert any("still on their way" in text for text in inspect(crawl, expected_of([*LOG, *more])))
