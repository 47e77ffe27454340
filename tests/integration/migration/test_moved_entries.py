"""What a crawl keeps beside its pages goes along: leases with their tokens, waits, limits, metadata, keys, letters."""

import re
import time
from contextlib import closing
from typing import Any

import pytest
from conftest import ONE_SERVER
from migrations import moved, opened
from servers import Server
from serving import working

from opic.ingest.event_log import AppendTerms, EventLog, KeyedCall
from opic.messages.frontier import HostPoliteness
from opic.migration.source import Source
from opic.model.events import CrawlEvent, encode_crawl_event
from opic.service.backend import Backend
from opic.settings import Settings

REST_SECONDS = 30
HOSTS = [f"h{number}.example" for number in range(12)]
SETTINGS = {"host_delay_seconds": 0.0, "retry_seconds": 600.0, "revisit_seconds": 0.0}


def backend(server: Server, crawl: str, **more: Any) -> Backend:
    return Backend(Settings.load(store=server.url, crawl=crawl, **{**SETTINGS, **more}), server.url)


def event(url: str, **more: Any) -> bytes:
    return encode_crawl_event(CrawlEvent(url=url, **more))


def hindrances(of: Backend) -> dict[str, Any]:
    """What is said of each page in the frontier, but its place among equals and the seconds that pass."""
    found = {}
    for url in (f"http://{host}/{page}" for host in HOSTS for page in range(3)):
        told = of.explain(url, None, None)["frontier"]
        assert isinstance(told, dict)
        why_not = [re.sub(r"[\d.]+ s$", "", why) for why in told["why_not"]]
        found[url] = {**told, "place": told["place"] is not None, "why_not": why_not}
    return found


def urls(found: Any) -> list[str]:
    return sorted(page.url for page in found.pages)


@ONE_SERVER
@pytest.mark.parametrize("chain", [(8,), (8, 1), (1, 8, 3)], ids=str)
def test_leased_page_stays_leased_and_its_token_holds(servers: Server, chain: tuple[int, ...]) -> None:
    with closing(backend(servers, "first")) as first, working(first):
        first.seed([f"http://{host}/" for host in HOSTS])
        given = first.frontier.next(4, crawler="one").pages
        first.frontier.renew([given[0].lease], 500)
    name = "first"
    for at, shards in enumerate(chain):
        moved(servers, name, name := f"crawl{at}", shards=shards, regrant_ppm=20_000)
    with closing(backend(servers, name)) as there:
        tokens = [page.lease for page in given]
        free = urls(there.frontier.next(20, crawler="two"))
        assert len(free) == len(HOSTS) - 4
        assert not {page.url for page in given} & set(free)
        renewed = there.frontier.renew(tokens[:2], 700)
        assert [one.lease for one in renewed.renewed] == tokens[:2]
        assert renewed.lost == []
        assert there.frontier.release(tokens).released == 4
        assert urls(there.frontier.next(20)) == sorted(page.url for page in given)
        assert there.frontier.release(tokens).released == 0


@ONE_SERVER
def test_token_of_the_crawl_before_names_no_other_page(servers: Server) -> None:
    """Leases of one call end at the same microsecond, so shard, number and end may be those of another page there."""
    with closing(backend(servers, "first")) as first, working(first):
        first.seed([f"http://{host}/" for host in HOSTS])
        tokens = [page.lease for page in first.frontier.next(12).pages]
    moved(servers, "first", "second", shards=5)
    with closing(backend(servers, "second")) as there:
        (page,) = [token for token in tokens if token.startswith("0-0-")]
        assert there.frontier.release([page]).released == 1
        assert urls(there.frontier.next(12)) == [f"http://{HOSTS[0]}/"]


@ONE_SERVER
@pytest.mark.parametrize("back", [False, True], ids=["to many shards", "and back"])
def test_waits_failures_delays_limits_and_blocks_go_along(servers: Server, back: bool) -> None:
    with closing(backend(servers, "first")) as first, working(first):
        first.seed([f"http://{host}/{page}" for host in HOSTS for page in range(3)])
        failed = [event(f"http://{HOSTS[0]}/0", status=500), event(f"http://{HOSTS[1]}/1", status=0)]
        first.await_effect(first.accept(failed))
        first.frontier.set_host_politeness({HOSTS[2]: HostPoliteness(0.0, 1)})
        first.frontier.block(HOSTS[3], time.time() + 1_000)
        first.frontier.limit(HOSTS[4], 1)
        first.frontier.next(1, crawl_delays={HOSTS[5]: 900.0})
        before = hindrances(first)
    moved(servers, "first", "second", shards=7)
    name = "second"
    if back:
        moved(servers, "second", "third", shards=1)
        name = "third"
    with closing(backend(servers, name)) as there:
        assert hindrances(there) == before


@ONE_SERVER
def test_metadata_dead_letters_keys_and_events_not_applied_go_along(servers: Server) -> None:
    call = KeyedCall.of("a key", "json", b"the body")
    with closing(backend(servers, "first")) as first:
        with working(first):
            first.seed([f"http://{host}/" for host in HOSTS], meta={"team": "red"})
            first.await_effect(first.log.append([b"not an event", event(f"http://{HOSTS[0]}/")], first.clock.now_us()))
            once = first.accept_once(call, lambda *_: _Judged([event(f"http://{HOSTS[1]}/")]))
            first.await_effect(once[1])
            letters = [letter.error for letter in first.letters.newest(10)]
        waiting = first.accept([event(f"http://{HOSTS[2]}/", links=[f"http://{HOSTS[3]}/new"])])
    moved(servers, "first", "second", shards=6)
    with closing(backend(servers, "second")) as there:
        assert [letter.error for letter in there.letters.newest(10)] == letters
        assert there.lag() == 1
        with working(there):
            there.show(waiting)  # The position is of the crawl before.
            assert there.query.importance([f"http://{HOSTS[3]}/new"]) != [None]
            again = there.accept_once(call, lambda *_: _Judged([event(f"http://{HOSTS[1]}/")]))
            there.await_effect(again[1])
        assert there.crawl.totals().reads == 3
        pages = there.frontier.next(20).pages
        assert {page.meta["team"] for page in pages if page.meta} == {"red"}
    assert opened(servers, "second").audit()[0].conserved


@pytest.mark.parametrize("shards", [(1, 3), (3, 1)], ids=str)
def test_repeated_call_of_many_events_goes_on_where_it_was(valkey: Server, shards: tuple[int, ...]) -> None:
    """The log of one shard packs events, that of many does not; part of a call is as it was begun."""
    call, part = (KeyedCall.of(key, "json", b"the body") for key in ("a key", "another"))
    urls = [[f"http://h{number % 7}.example/{which}/{number}" for number in range(250)] for which in range(2)]
    whole, broken = ([event(url) for url in some] for some in urls)
    with closing(backend(valkey, "crawl0", shards=shards[0])) as first, working(first):
        first.seed(["http://h0.example/"])
        first.await_effect(first.accept_once(call, lambda *_: _Judged(whole))[1])
        terms = AppendTerms(first.clock.now_us(), first.limits)
        assert isinstance(first.log, EventLog)
        first.log.append_once(part, broken[:100], None, terms)  # Whoever sent it died after that.
        first.await_effect({first.log.partition: first.log.end()})
        Source(first.crawl).await_rest(REST_SECONDS)  # With no worker left, nothing on its way arrives.
    for number, count in enumerate(shards[1:]):
        moved(valkey, f"crawl{number}", f"crawl{number + 1}", shards=count)
    with closing(backend(valkey, f"crawl{len(shards) - 1}")) as there, working(there):
        for _ in range(2):
            for key, values in ((call, whole), (part, broken)):
                there.await_effect(there.accept_once(key, lambda *_, values=values: _Judged(values))[1])
        assert there.crawl.totals().reads == 500
        known = there.query.importance([url for some in urls for url in some])
        assert {one and one["reads"] for one in known} == {1}


class _Judged:
    def __init__(self, values: list[bytes]) -> None:
        self.values = values
