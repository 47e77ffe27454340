"""Hosts are spared, as the settings, an operator, or their robots.txt say; and nobody has to wait for that."""

import itertools
import math
import time
from collections import Counter
from typing import Any

import pytest
from conftest import ONE_SERVER
from frontiers import CLOCK_SECONDS, Crawl, pages_of, until
from servers import Server

from opic.admission import check_policy
from opic.errors import BadInput
from opic.frontier import Frontier, HostPoliteness, PolitenessSettings
from opic.messages.importance import AppliedRule
from opic.urls.canonical import host_of

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.

NOW_AND_THEN = PolitenessSettings(host_delay_seconds=30.0)


def hosts_of(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(host_of(page.url) for page in found)


# A cap on pages in flight.


def test_host_has_no_more_pages_in_flight_than_its_cap(servers: Server) -> None:
    crawl, urls = Crawl(servers, PolitenessSettings(host_delay_seconds=0.0, host_in_flight=2)), pages_of(2, 10)
    crawl.seed(urls)
    first = crawl.next(10)
    assert hosts_of(first) == {"h0.org": 2, "h1.org": 2}
    assert crawl.next(10) == []
    crawl.event(first[0].url)  # A fetch ends its lease,
    assert hosts_of(crawl.next(10)) == {host_of(first[0].url): 1}
    crawl.frontier.release([first[1].lease])  # so does giving it back.
    assert hosts_of(crawl.next(10)) == {host_of(first[1].url): 1}
    shown: Any = crawl.frontier.explain(urls[-1])
    assert (shown.host_in_flight, shown.host_in_flight_max, shown.next) == (2, 2, False)
    assert "2 pages of its host h1.org are in flight, 2 may be" in shown.why_not


@ONE_SERVER
def test_cap_applies_across_endpoints_and_ends_with_leases(servers: Server) -> None:
    politeness = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.0, host_in_flight=3)
    crawl = Crawl(servers, politeness)
    other = crawl.endpoint(politeness)
    crawl.seed(pages_of(1, 20))
    found: Any = [crawl.next(2, lease_seconds=3.0), other.next(2, lease_seconds=3.0).pages, crawl.next(2)]
    assert [len(pages) for pages in found] == [2, 1, 0]
    again: list[Any] = []
    while len(again) < 3:  # One lease ends later than the other two.
        again += until(lambda: other.next(10).pages)
    assert again[0].lease_until - 300 >= found[0][0].lease_until - CLOCK_SECONDS
    keys, client = crawl.store.shard.keys, crawl.store.shard.client
    assert client.hlen(keys.flights) == 1
    crawl.frontier.release([page.lease for page in again])
    client.zadd(keys.flight_ends, {"h0.org": 1})  # As if that had been long ago.
    crawl.next(1, busy_hosts=["h0.org"])
    assert client.hlen(keys.flights) == 0  # What is over is forgotten.


def test_cap_lowered_below_the_pages_in_flight_keeps_them_and_leases_no_more(servers: Server) -> None:
    crawl = Crawl(servers, PolitenessSettings(host_delay_seconds=0.0, host_in_flight=5))
    other = crawl.endpoint(PolitenessSettings(host_delay_seconds=0.0, host_in_flight=5))
    crawl.seed(pages_of(1, 20))
    leased = crawl.next(10)
    assert len(leased) == 5
    crawl.frontier.set_host_politeness({"h0.org": HostPoliteness(None, 2)})
    for page in leased:
        assert other.next(10).pages == []
        shown: Any = other.explain(page.url)
        assert shown.lease_until == page.lease_until
        in_flight = shown.host_in_flight
        crawl.event(page.url, status=500)
        if in_flight <= 2:
            break
    assert len(other.next(10).pages) == 1


def test_first_cap_of_a_host_counts_pages_leased_from_then_on(servers: Server) -> None:
    crawl = Crawl(servers)
    other = crawl.endpoint()
    crawl.seed(pages_of(1, 20))
    earlier = crawl.next(5)
    crawl.frontier.set_host_politeness({"h0.org": HostPoliteness(None, 2)})
    assert len(other.next(10).pages) == 2
    shown: Any = other.explain(earlier[0].url)
    assert (shown.host_in_flight, shown.host_in_flight_max) == (7, 2)
    for page in earlier:
        assert other.next(10).pages == []
        crawl.event(page.url, status=503)
    assert other.next(10).pages == []


# What an operator sets.


def test_operators_delay_and_cap_of_a_host_win_over_the_settings(servers: Server) -> None:
    crawl = Crawl(servers, NOW_AND_THEN)
    crawl.seed(pages_of(3, 8))
    other = crawl.endpoint(NOW_AND_THEN)
    crawl.frontier.set_host_politeness({"h0.org": HostPoliteness(0.0), "h1.org": HostPoliteness(0.0, 3)})
    assert other.host_politeness() == {"h0.org": HostPoliteness(0.0, None), "h1.org": HostPoliteness(0.0, 3)}
    found: Any = other.next(20).pages
    assert hosts_of(found) == {"h0.org": 8, "h1.org": 3, "h2.org": 1}
    crawl.frontier.set_host_politeness({})
    assert hosts_of(crawl.next(20)) == {"h1.org": 1}
    assert hosts_of(crawl.next(20)) == {}


def test_delay_set_for_a_host_is_kept(servers: Server) -> None:
    crawl = Crawl(servers)
    crawl.seed(pages_of(2, 20))
    crawl.frontier.set_host_politeness({"h0.org": HostPoliteness(0.3)})
    assert hosts_of(crawl.next(40)) == {"h0.org": 1, "h1.org": 20}
    times = [page.lease_until for page in (until(lambda: crawl.next(5))[0] for _ in range(3))]
    assert all(b - a >= 0.3 - CLOCK_SECONDS for a, b in itertools.pairwise(times))


# What robots.txt asks for.


def test_reported_crawl_delay_is_kept_if_it_is_longer(servers: Server) -> None:
    crawl = Crawl(servers, PolitenessSettings(host_delay_seconds=0.1))
    crawl.seed(pages_of(3, 5))
    delays = {"h0.org": 60.0, "h1.org": 0.001, "unknown.org": 5.0}
    assert len(crawl.next(10, crawl_delays=delays)) == 3
    seen = hosts_of(until(lambda: crawl.next(10)))
    while sum(seen.values()) < 6:
        seen += hosts_of(until(lambda: crawl.next(10)))
    assert set(seen) == {"h1.org", "h2.org"}
    shown: Any = crawl.frontier.explain("http://h0.org/4")
    assert shown.host_delay_seconds == 60.0
    assert shown.host_free_at > time.time() + 50
    keys, client = crawl.store.shard.keys, crawl.store.shard.client
    assert b"unknown.org" not in client.hgetall(keys.crawl_delays)  # Nobody fills the store with hosts.
    crawl.frontier.set_host_politeness({"h0.org": HostPoliteness(0.0)})
    assert hosts_of(crawl.next(10, busy_hosts=["h1.org", "h2.org"]))["h0.org"] > 1  # The operator has the last word.
    crawl.next(1, crawl_delays={"h0.org": 0.0})
    assert b"h0.org" not in client.hgetall(keys.crawl_delays)


def test_last_report_of_a_crawl_delay_counts_whichever_endpoint_took_it(servers: Server) -> None:
    crawl = Crawl(servers)
    crawl.seed(["http://a.org/", "http://b.org/"])
    other = crawl.endpoint()
    keys, client = crawl.store.shard.keys, crawl.store.shard.client
    reports = (crawl.frontier, 60.0), (other, 0.0), (crawl.frontier, 60.0), (other, 0.0), (other, 30.0)
    for frontier, seconds in reports:
        frontier.next(1, crawl_delays={"a.org": seconds})
        shown: Any = crawl.frontier.explain("http://a.org/")
        assert shown.host_delay_seconds == seconds
    client.delete(keys.crawl_delays)  # As by a restore.
    crawl.next(1, crawl_delays={"a.org": 60.0})
    assert client.hgetall(keys.crawl_delays) == {b"a.org": b"60.0"}


def test_crawl_delay_that_is_known_is_not_written_again(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.seed(["http://a.org/"])
    crawl.next(1, crawl_delays={"a.org": 60.0})
    written = crawl.store.shard.client.info("replication")["master_repl_offset"]
    size = crawl.store.shard.client.info("persistence")["aof_current_size"]
    crawl.frontier.next(1, busy_hosts=["a.org"], crawl_delays={"a.org": 60.0})
    assert crawl.store.shard.client.info("persistence")["aof_current_size"] == size
    assert crawl.store.shard.client.info("replication")["master_repl_offset"] == written


def test_crawl_delay_is_capped_and_an_invalid_one_refused(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.seed(["http://a.org/"])
    crawl.next(1, crawl_delays={"A.org": 1e9})
    assert crawl.store.shard.client.hget(crawl.store.shard.keys.crawl_delays, "a.org") == b"300.0"
    for bad in ({"a.org": -1.0}, {"a.org": math.nan}, {"a/b": 1.0}):
        with pytest.raises(BadInput):
            crawl.next(1, crawl_delays=bad)


# Shares of discovery.


def test_share_of_suggestions_goes_to_discovery_while_there_is_something(servers: Server) -> None:
    crawl = Crawl(servers, share=0.25)
    new, read = pages_of(40, 1), [f"http://read{i}.org/" for i in range(40)]
    crawl.seed([*new, *read])
    for url in read:
        crawl.event(url)
    for _ in range(3):
        crawl.event("http://hub.org/", read)  # More cash than a grant each, but less.
        crawl.event("http://hub2.org/", ["http://hub.org/"])
    found = [page for _ in range(7) for page in crawl.next(4)]
    known = {page.url: page.fetched_before for page in found}
    assert len(known) == 28
    assert sum(known.values()) == 21
    assert [page.fetched_before for page in crawl.next(2, mode="discover")] == [False, False]
    assert len(crawl.next(20)) == 20  # 40 pages were never read, less 7 and 2: those that are left fill up.
    assert len(crawl.next(40, mode="refresh")) < 20


# What keeps pages from being offered, whatever their cash.


def test_pages_that_are_not_admitted_are_never_offered(servers: Server) -> None:
    crawl = Crawl(servers, admitted=True)
    admission = crawl.frontier.admission
    assert admission is not None
    admission.put(check_policy({"rules": [{"effect": "deny", "path": "*calendar", "note": "calendar"}]}))
    crawl.seed([f"http://h{i}.org/{word}" for i in range(20) for word in ("calendar", "page")])
    assert {url.rpartition("/")[2] for url in crawl.urls(40)} == {"page"}
    assert crawl.next(1, domain="h1.org") == crawl.next(1, mode="discover") == []
    shown: Any = crawl.frontier.explain("http://h3.org/calendar")
    assert (shown.next, shown.rules) == (False, [AppliedRule("rule 0: calendar", "deny")])
    assert "a rule keeps it from being fetched" in shown.why_not
    admission.put(check_policy({}))  # Rules may change while nothing moves.
    assert len(crawl.next(40)) == 20


# The hot order is a cache.


def test_order_may_be_dropped_at_any_time(servers: Server) -> None:
    crawl, urls = Crawl(servers, PolitenessSettings(host_delay_seconds=0.0)), pages_of(40, 5)
    crawl.seed(urls)
    found: list[str] = []
    while len(found) < len(urls):
        crawl.frontier._scheduler.forget()
        found += crawl.urls(7)
    assert found == urls
    assert crawl.next() == []


@ONE_SERVER
def test_large_store_suggests_no_page_twice_and_none_of_too_little_cash(
    servers: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is chosen is of a moment ago; the store has the last word on each page."""
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)
    politeness = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=600.0)
    crawl, urls = Crawl(servers, politeness), pages_of(50, 20)
    crawl.seed(urls)
    other = crawl.endpoint(politeness)
    out: set[str] = set()
    read: set[str] = set()
    for turn in range(60):
        frontier: Frontier = (crawl.frontier, other)[turn % 2]
        pages: Any = frontier.next(8).pages
        for page in pages:
            assert page.url not in out
            assert page.url not in read, "a page that was read a moment ago has next to nothing"
            out.add(page.url)
        # Others read pages that were never handed to them.
        for url in urls[-turn - 1 :: 60][:3]:
            crawl.event(url)
            read.add(url)
            out.discard(url)
    assert len(out) > 400


def test_concurrent_requests_get_the_same_pages_as_requests_in_turn(servers: Server) -> None:
    crawl, urls = Crawl(servers, NOW_AND_THEN), pages_of(60, 3)
    crawl.seed(urls)
    for i in range(8):
        crawl.event(f"http://hub{i}.org/", urls[i : 60 - 7 * i])
    asked = [(3, {}), (1, {}), (2, {"domain": "h1.org"}), (5, {"busy_hosts": ["h3.org"]}), (4, {"mode": "discover"})]
    one_by_one = [crawl.next(n, **more) for n, more in asked]
    crawl.frontier.release([page.lease for pages in one_by_one for page in pages])
    crawl.store.shard.client.delete(crawl.store.shard.keys.hosts)
    crawl.frontier._scheduler.forget()
    together: Any = crawl.frontier.next_many([crawl.frontier.request(n, **more) for n, more in asked])
    assert [[page.url for page in answer.pages] for answer in together] == [
        [page.url for page in pages] for pages in one_by_one
    ]


def test_batched_requests_cost_one_round_trip(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.seed(pages_of(200, 2))
    requests = [crawl.frontier.request(5) for _ in range(32)]
    crawl.frontier.next_many(requests)
    before = crawl.store.shard.client.info("commandstats")["cmdstat_fcall"]["calls"]
    assert sum(len(answer.pages) for answer in crawl.frontier.next_many(requests)) == 160  # type: ignore[misc, arg-type]
    assert crawl.store.shard.client.info("commandstats")["cmdstat_fcall"]["calls"] - before == 1


def test_host_with_nine_in_ten_of_the_best_pages_does_not_slow_the_answer(valkey: Server) -> None:
    """By the places of the order that a choice looks at, beside those of a crawl without such a host."""
    looked = []
    for huge in (False, True):
        valkey.reset()
        crawl = Crawl(valkey, NOW_AND_THEN)
        hot = [f"http://{'huge' if huge and i % 10 else f'n{i}'}.org/{i}" for i in range(20_000)]
        for at in range(0, 20_000, 2_000):
            crawl.seed(hot[at : at + 2_000])
        crawl.seed(pages_of(500, 2))
        crawl.event("http://hub.org/", hot[:10_000])
        crawl.next(1)
        (order,) = crawl.frontier._scheduler.hot.orders
        before = order.looked
        for _ in range(20):
            found = crawl.next(10)
            assert len(found) == 10
            assert max(hosts_of(found).values()) == 1
        assert crawl.frontier._scheduler.hot.orders == [order]
        looked.append(order.looked - before)
    assert looked[1] <= 4 * looked[0], looked


# Crawlers that misbehave.


def test_pages_of_a_silent_crawler_come_back_ever_later(valkey: Server) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.05))
    crawl.seed(["http://a.org/"])
    starts = []
    for _ in range(4):
        (page,) = until(lambda: crawl.next(1, lease_seconds=0.01))
        starts.append(page.lease_until)
    waits = [b - a for a, b in itertools.pairwise(starts)]
    assert all(wait >= 0.05 * 2**at for at, wait in enumerate(waits))


def test_unreadable_pages_do_not_stay_at_the_top(servers: Server) -> None:
    """The richest pages can't be read, each in its own way: whoever asks is given others."""
    crawl = Crawl(servers, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=3_600.0))
    ends = {"gone": 404, "forbidden": 403, "login": 401, "law": 451, "down": 503, "nobody": 0}
    rich = {name: f"http://{name}.org/" for name in ends}
    plain = pages_of(10, 1)
    crawl.seed([*rich.values(), *plain])
    for i in range(9):
        crawl.event(f"http://hub{i}.org/", rich.values())
    assert set(crawl.urls(6)) == set(rich.values())
    for name, status in ends.items():
        crawl.event(rich[name], status=status)
        crawl.event("http://again.org/", [rich[name]])
    for _ in range(3):
        found = crawl.next(5)
        assert not {page.url for page in found} & set(rich.values())
        crawl.frontier.release([page.lease for page in found])


def test_events_for_unleased_pages_leave_other_leases_alone(valkey: Server) -> None:
    crawl, urls = Crawl(valkey), pages_of(30, 1)
    crawl.seed(urls)
    mine = crawl.next(10, crawler="mine")
    for url in urls[10:20]:
        crawl.event(url, urls[:10], crawler="somebody else")
    assert {page.url for page in crawl.next(30)} == set(urls[20:])
    assert crawl.frontier.release([page.lease for page in mine]).released == 10
