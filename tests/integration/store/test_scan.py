"""A scan returns all that is there, or begins anew, when its server restarts, fails over or gives a slot away."""

from collections.abc import Callable
from typing import Any

import pytest
from append_only_file import append_only_file, cut
from interrupted_scans import amid_scans
from logs import NOW_US
from redis_cluster import Cluster
from servers import Server

from opic.errors import ScanBroken, StoreUnavailable
from opic.frontier import held_pages
from opic.frontier.held_pages import read_sets
from opic.ingest import Writer
from opic.model.events import CrawlEvent, Record, encode_crawl_event
from opic.query.inlinks import inlinks
from opic.query.kept_links import KeptLinks
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl, stored_links
from opic.store import scan
from opic.store.scan import key_names, one_run, read_hash, scan_hash, scan_sorted_set

HUB = "http://hub.org/"
PAGES = 4_000
FIELDS = {b"field-%d" % n: b"%d" % n for n in range(5_000)}


def restarted(server: Server) -> Callable[[], None]:
    """Kill a server and start it again. Nothing is lost: its file is synced."""

    def restart() -> None:
        server.kill()
        server.start()

    return restart


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "PAUSE_SECONDS", 0.0)


def test_hash_is_read_completely_over_restarts(servers: Server) -> None:
    client = servers.client()
    client.hset("{a}:hash", mapping=FIELDS)
    with amid_scans([2, 5], restarted(servers)) as scans:
        assert read_hash(client, "{a}:hash") == FIELDS
    assert scans.calls > 7


def test_scan_fails_after_a_restart_of_the_server(servers: Server) -> None:
    client = servers.client()
    client.hset("{a}:hash", mapping=FIELDS)
    client.zadd("{a}:set", {name: int(score) for name, score in FIELDS.items()})
    for parts in (scan_hash(client, "{a}:hash"), scan_sorted_set(client, "{a}:set")):
        assert next(iter(parts))  # type: ignore[call-overload]
        restarted(servers)()
        with pytest.raises(ScanBroken, match="the server went away"):
            next(iter(parts))  # type: ignore[call-overload]


@pytest.mark.slow
def test_names_of_keys_are_all_found_over_a_restart(servers: Server) -> None:
    client = servers.client()
    names = {b"opic:{c:0}:b:%d" % n for n in range(3_000)}
    client.mset(dict.fromkeys(names, 1) | {"other": 1})
    with amid_scans([2], restarted(servers)):
        assert key_names(client, "opic:{c:*") == names


@pytest.mark.slow
def test_scan_that_is_interrupted_each_time_fails(valkey: Server) -> None:
    client = valkey.client()
    client.hset("{a}:hash", mapping=FIELDS)
    with amid_scans(range(2, 100, 2), restarted(valkey)), pytest.raises(StoreUnavailable, match="10 scans in a row"):
        read_hash(client, "{a}:hash")


@pytest.mark.slow
def test_block_read_across_two_runs_is_noticed(servers: Server) -> None:
    with one_run(servers.client(), ["a", "b"]):
        pass
    with pytest.raises(ScanBroken, match="restarted"), one_run(servers.client(), ["a", "b"]):
        restarted(servers)()


@pytest.mark.slow
def test_names_of_keys_are_all_found_while_their_slot_moves(cluster: Cluster) -> None:
    client = cluster.client()
    names = {b"opic:{c:0}:b:%d" % n for n in range(1_500)}
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.set(name, 1)
        pipe.execute()

    def move() -> None:
        cluster.migrate_slot("{c:0}", cluster.other(cluster.owner("{c:0}")))

    for number in (1, 2, 3):
        with amid_scans([number], move):
            assert key_names(client, "opic:{c:*") == names
    found: list[str] = []

    def ask() -> None:
        if not found:
            with pytest.raises(StoreUnavailable, match="a slot of the cluster is moving"):
                key_names(client, "opic:{c:*")
            found.append("refused")

    cluster.migrate_slot("{c:0}", cluster.other(cluster.owner("{c:0}")), between=ask)
    assert found


# Kept links, as an endpoint loads them.


def filled(crawl: Crawl) -> Writer:
    """A crawl whose pages all link to HUB."""
    writer = Writer(crawl)
    for first in range(0, PAGES, 1_000):
        writer.apply("log/0", [linking(number) for number in range(first, first + 1_000)])
    return writer


def linking(number: int) -> Record:
    event = CrawlEvent(f"http://h{number % 50}.org/{number}", [HUB], meta={"a": "b"})
    return Record(number, NOW_US + number, encode_crawl_event(event), "event")


class InLinks:
    """An endpoint that knows how many pages link to HUB."""

    def __init__(self, crawl: Crawl) -> None:
        self.query, self.kept = Query(crawl, Snapshots(crawl)), KeptLinks(crawl)

    def count(self) -> object:
        found = inlinks(self.query, self.kept, HUB, 1)
        assert found is not None
        return found["known"]


@pytest.mark.slow
def test_kept_links_are_loaded_completely_over_a_restart(servers: Server) -> None:
    writer = filled(Crawl.open(servers.client(), "c", {"shards": 1}, keep_links=True))
    reader = InLinks(Crawl.open(servers.client(), "c", create=False))
    with amid_scans([2], restarted(servers)):
        assert reader.count() == PAGES
    writer.forget()
    writer.apply("log/0", [linking(PAGES)])
    assert reader.count() == PAGES + 1


@pytest.mark.slow
def test_links_of_a_record_that_the_server_lost_are_not_kept(servers: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were read. Then the server came back without the record, and another record took its place."""
    filled(Crawl.open(servers.client(), "c", {"shards": 1}, keep_links=True))
    file = append_only_file(servers)
    safe = file.stat().st_size
    crawl = Crawl.open(servers.client(), "c", create=False)
    reader, follow, read_segments, read, lost = InLinks(crawl), crawl.follow, stored_links.read_segments, False, False

    def read_again(page: int) -> None:
        event = CrawlEvent(f"http://h{page % 50}.org/{page}", ["http://elsewhere.org/"])
        record = Record(PAGES, NOW_US + PAGES, encode_crawl_event(event), "event")
        Writer(Crawl.open(servers.client(), "c", create=False)).apply("log/0", [record])

    def reading(*given: Any) -> object:
        nonlocal read
        if not read:
            read = True
            read_again(7)
        return read_segments(*given)

    def following(since: float | None = None) -> object:
        nonlocal lost
        if read and not lost:  # The links are read; the replica is one record behind.
            lost = True
            servers.kill()
            cut(file, safe)
            servers.start()
            read_again(8)
        return follow(since)

    monkeypatch.setattr(crawl, "follow", following)
    monkeypatch.setattr(stored_links, "read_segments", reading)
    assert reader.count() == PAGES - 1
    assert lost
    found = inlinks(reader.query, reader.kept, "http://elsewhere.org/", 10)
    assert found is not None
    assert found["inlinks"] == ["http://h8.org/8"]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["failover", "move"])
def test_kept_links_are_loaded_completely_during_a_failover_or_a_slot_migration(
    cluster_of_six: Cluster, what: str
) -> None:
    cluster = cluster_of_six
    filled(Crawl.open(cluster.client(), "c", {"shards": 1}, keep_links=True))
    reader = InLinks(Crawl.open(cluster.client(), "c", create=False))
    with amid_scans([2], lambda: cluster.hand_over("{c:0}", what)):
        assert reader.count() == PAGES


# Leases, waits and hosts, as an endpoint reads them: in parts, while others end and renew leases.


@pytest.mark.parametrize("gone", [range(500), range(90, 100), range(99, 100), range(84, 100), range(80, 120)])
def test_shrinking_sorted_set_is_read_without_missing_remaining_members(
    valkey: Server, monkeypatch: pytest.MonkeyPatch, gone: range
) -> None:
    """Many have the same score. In the second part, all ranks are others."""
    monkeypatch.setattr(held_pages, "STRETCH", 100)
    crawl, client = Crawl.open(valkey.client()), valkey.client()
    key = crawl.shards[0].keys.leases
    members = {b"%04d" % n: n // 30 for n in range(1_000)}
    client.zadd(key, members)
    ask, calls = crawl.ask, 0

    def shrinking(commands: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 2:
            client.zrem(key, *(b"%04d" % n for n in gone))
            client.zadd(key, {b"%04d" % n: 5_000 for n in range(520, 540)})  # Renewed.
        return ask(commands)  # type: ignore[arg-type]

    monkeypatch.setattr(crawl, "ask", shrinking)
    ((found, scores),) = read_sets(crawl, [(key, "-inf")])
    names = found.split(b"\n")
    assert len(names) == len(scores)
    assert len(names) == len(set(names))
    assert {b"%04d" % n for n in range(1_000) if n not in gone} <= set(names) <= set(members)
