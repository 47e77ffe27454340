"""Hosts of one address share one delay, at all endpoints and in all shards; or those of one registered domain."""

import threading
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from conftest import ONE_SERVER
from logs import PARTITION
from redis_cluster import Cluster
from servers import Server

from opic.frontier import Frontier, HostPoliteness, PolitenessSettings
from opic.ingest import Writer
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_forgotten, encode_seeds
from opic.replica import Crawl
from opic.urls.canonical import host_of, shard_of

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.

SHARDS = 4
SHARED, OTHER = "192.0.2.7", "2001:db8::7"
DELAY = 0.3
RESTS = PolitenessSettings(host_delay_seconds=30.0)


class Web:
    """A crawl of several shards, fed event by event, and its endpoints, each with connections of its own."""

    def __init__(self, server: Server | Cluster, shards: int = SHARDS) -> None:
        self.server = server
        self.crawl = Crawl.open(server.client(), "web", {}, shards=shards)
        self.writer, self.offset = Writer(self.crawl), 0

    def endpoint(self, politeness: PolitenessSettings = RESTS) -> Frontier:
        return Frontier(Crawl.open(self.server.client(), "web"), politeness)

    def seed(self, urls: Iterable[str]) -> None:
        self._apply(encode_seeds(list(urls)), "seeds")

    def forget(self, urls: Iterable[str]) -> None:
        self._apply(encode_forgotten(list(urls)), "forget")

    def event(self, url: str, **more: Any) -> None:
        self._apply(encode_crawl_event(CrawlEvent(url=url, **more)), "event")

    def report(self, address: str, hosts: Iterable[str]) -> None:
        for host in hosts:
            self.event(f"http://{host}/", addresses=[address])

    def _apply(self, value: bytes, kind: str) -> None:
        self.writer.apply(PARTITION, [Record(self.offset, time.time_ns() // 1_000, value, kind)])
        self.offset += 1

    def rests_of(self, group: str) -> list[int]:
        """The ends of all rests of a group in microseconds, as its home told them."""
        changes = self.crawl.client.xrange(self.crawl.shards[shard_of(group, len(self.crawl))].keys.changes)
        terms = [fields[b"g"].decode().split() for _, fields in changes if b"g" in fields]
        return [int(end) for some in terms for end, name in zip(some[::2], some[1::2], strict=True) if name == group]

    def addresses(self) -> dict[str, str]:
        read = [self.crawl.client.hgetall(shard.keys.addresses) for shard in self.crawl.shards]
        return {host.decode(): address.decode() for part in read for host, address in part.items()}


def hosts_of(pages: Iterable[Any]) -> list[str]:
    return [host_of(page.url) for page in pages]


def crawl_for(frontier: Frontier, seconds: float, found: list[str]) -> None:
    """Ask for pages, and note their hosts."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = frontier.next(20)
        found += hosts_of(answer.pages)
        if not answer.pages:
            assert answer.waiting.host_delay
            time.sleep(min(answer.retry_after, 0.05))


def assert_spares_an_address(web: Web) -> None:
    """Fifty hosts of one address get no page faster than one host, from two endpoints; other hosts go on."""
    shared, others = [f"h{n}.shared.test" for n in range(50)], [f"a{n}.test" for n in range(6)]
    web.seed(f"http://{host}/{page}" for page in range(9) for host in shared + others)
    web.report(SHARED, shared)
    web.report(OTHER, others[:1])
    endpoints, found = [web.endpoint(PolitenessSettings(host_delay_seconds=DELAY)) for _ in range(2)], list[str]()
    assert len({shard_of(host, SHARDS) for host in shared}) == SHARDS
    threads = [threading.Thread(target=crawl_for, args=(one, 10 * DELAY, found)) for one in endpoints]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pages = Counter("shared" if host in shared else host for host in found)
    # Each page of the group was offered after its home had let the group rest for it, from then on.
    ends = web.rests_of(SHARED)
    assert len(ends) == pages["shared"]
    assert min(later - earlier for earlier, later in pairwise(ends)) >= DELAY * 1e6
    assert pages["shared"] >= 5, "the group goes on"
    assert min(pages[host] for host in others) >= 5, "other hosts go on"


@ONE_SERVER
def test_fifty_hosts_of_one_address_get_no_page_faster_than_one_host(servers: Server) -> None:
    assert_spares_an_address(Web(servers))


def test_hosts_of_one_address_share_its_delay_on_the_servers_of_a_cluster(valkey_cluster: Cluster) -> None:
    web = Web(valkey_cluster)
    keys = [shard.keys.group_times for shard in web.crawl.shards]
    assert len({web.crawl.client.get_node_from_key(key).port for key in keys}) > 1
    assert_spares_an_address(web)


def test_one_call_gets_one_page_of_all_hosts_of_an_address(valkey: Server) -> None:
    web, hosts = Web(valkey), [f"h{n}.test" for n in range(12)]
    web.seed(f"http://{host}/{page}" for page in range(2) for host in [*hosts, "alone.test"])
    web.report(SHARED, hosts)
    frontier = web.endpoint()
    first = frontier.next(20)
    assert len(first.pages) == 2
    assert "alone.test" in hosts_of(first.pages)
    assert frontier.refusals == 0, "no page was leased in vain"
    again, other = frontier.next(20), web.endpoint().next(20)
    for answer in again, other:
        assert answer.pages == []
        assert answer.waiting.host_delay == 26 - 2, "all pages but those leased, and those read"
        assert not answer.exhausted
    assert 25 < frontier._scheduler.choices.first_free(frontier.request(1).choice("any"), 60.0) <= 30


def test_page_of_a_group_that_rests_unheard_of_is_given_back(valkey: Server) -> None:
    web = Web(valkey)
    web.seed(["http://a.test/1", "http://b.test/1", "http://c.test/1"])
    web.report(SHARED, ["a.test", "b.test"])
    frontier = web.endpoint()
    assert frontier.peek(9).pages
    home = web.crawl.shards[shard_of(SHARED, SHARDS)].keys
    web.crawl.client.zadd(home.group_times, {SHARED: time.time() + 25.0})
    answer = frontier.next(9)
    assert hosts_of(answer.pages) == ["c.test"]
    assert frontier.refusals == 1
    leases = [web.crawl.client.zcard(shard.keys.leases) for shard in web.crawl.shards]
    assert sum(leases) == 1, "the other lease was given back"
    told = frontier.explain("http://a.test/1")
    assert told is not None
    assert (told.host_address, told.host_group, told.held_back) == (SHARED, SHARED, ["host_delay"])
    assert told.host_free_at == pytest.approx(time.time() + 25.0, abs=2.0)
    assert f"its host a.test is delayed with all hosts of {SHARED} for another" in told.why_not[0]


def test_host_moves_with_its_address_and_is_forgotten_with_its_pages(valkey: Server) -> None:
    web = Web(valkey)
    web.seed(["http://a.test/1", "http://b.test/1"])
    web.report(SHARED, ["a.test", "b.test"])
    frontier = web.endpoint()
    first = frontier.next(1)
    rests = [host for host in ("a.test", "b.test") if host not in hosts_of(first.pages)]
    assert frontier.next(9).pages == []
    web.event(f"http://{rests[0]}/", addresses=[OTHER.upper(), SHARED])
    assert web.addresses()[rests[0]] == OTHER
    assert hosts_of(frontier.next(9).pages) == rests
    told = frontier.host_group(rests[0])
    assert (told.address, told.group) == (OTHER, f"[{OTHER}]")
    assert 25 < told.rests_seconds <= 30
    web.event(f"http://{rests[0]}/2", status=0)
    assert web.addresses()[rests[0]] == OTHER, "an event without addresses says nothing"
    pages = [f"http://{rests[0]}/", f"http://{rests[0]}/1", f"http://{rests[0]}/2"]
    web.forget(pages[:2])
    assert rests[0] in web.addresses()
    web.forget(pages[2:])
    assert rests[0] not in web.addresses()
    assert frontier.host_group(rests[0]).group is None


def test_operator_decides_for_an_address(valkey: Server) -> None:
    web, hosts = Web(valkey), [f"h{n}.test" for n in range(6)]
    web.seed(f"http://{host}/1" for host in hosts)
    web.report(SHARED, hosts[:3])
    web.report(OTHER, hosts[3:])
    frontier, second = web.endpoint(), web.endpoint()
    frontier.set_host_politeness({SHARED: HostPoliteness(0.0), f"[{OTHER}]": HostPoliteness(1_000.0)})
    assert sorted(hosts_of(second.next(9).pages))[:3] == hosts[:3], "a delay of 0 lets each host have its own"
    assert 900 < frontier.host_group(hosts[3]).rests_seconds <= 1_000
    assert frontier.host_group(hosts[0]).rests_seconds == 0


def test_groups_are_registered_domains_or_none_as_the_setting_says(valkey: Server) -> None:
    web, hosts = Web(valkey), ["a.site.test", "b.site.test", "site.test", "c.other.test"]
    web.seed(f"http://{host}/1" for host in hosts)
    web.report(SHARED, hosts)
    by_domain = web.endpoint(PolitenessSettings(host_delay_seconds=30.0, by="domain"))
    first = by_domain.next(9).pages
    assert sorted(host.partition(".")[2] == "other.test" for host in hosts_of(first)) == [False, True]
    web.seed(["http://new.site.test/1"])
    assert by_domain.next(9).pages == [], "a new host of a domain that rests"
    assert by_domain.host_group("a.site.test").group == "site.test"
    by_host = web.endpoint(PolitenessSettings(host_delay_seconds=30.0, by="host"))
    assert len(by_host.next(9).pages) == 3


def test_crawler_that_takes_several_pages_of_a_host_gets_them_of_one_host_of_a_group(valkey: Server) -> None:
    web = Web(valkey)
    web.seed(f"http://{host}.test/{page}" for page in range(5) for host in "abc")
    web.report(SHARED, ["a.test", "b.test", "c.test"])
    frontier = web.endpoint()
    pages = frontier.next(9, host_pages=3).pages
    assert (len(pages), len(set(hosts_of(pages)))) == (3, 1)


def test_killed_store_keeps_addresses_and_rests(valkey: Server) -> None:
    web = Web(valkey, shards=2)
    web.seed(["http://a.test/1", "http://b.test/1"])
    web.report(SHARED, ["a.test", "b.test"])
    assert len(web.endpoint().next(9).pages) == 1
    valkey.kill()
    valkey.start()
    assert set(web.addresses()) == {"a.test", "b.test"}
    frontier = web.endpoint()
    assert frontier.next(9).pages == []
    assert 20 < frontier.host_group("b.test").rests_seconds <= 30


def test_without_any_address_next_asks_for_no_group(valkey: Server) -> None:
    web = Web(valkey)
    web.seed(["http://a.test/1", "http://b.test/1"])
    frontier, asked = web.endpoint(), list[Any]()
    frontier.peek(1)
    ask = frontier.crawl.ask
    frontier.crawl.ask = lambda commands: asked.extend(commands) or ask(commands)  # type: ignore[method-assign, func-returns-value]
    assert len(frontier.next(9).pages) == 2
    assert "opic_5_lease" in {command[1] for command in asked}
    assert "opic_5_claim" not in {command[1] for command in asked}
