"""A power loss takes the tail of a server's file along. What a worker remembers of it must not outlive it.

Killing a server loses nothing that it wrote: the system has it. So here the file is cut while the server is down, as a
disk does that had not got the last of it.
"""

import random
from collections.abc import Sequence
from contextlib import suppress

import pytest
from append_only_file import EXEC, MULTI, append_only_file, cut, lose_everything
from conftest import lend_server
from logs import PARTITION, pep_history, record
from record_sources import Listed, work_through
from same_state import assert_same
from servers import Server

from opic.errors import BeingRestored, StoreLost, StoreMismatch, StoreUnavailable, TailLost
from opic.ingest import ShardWriter, Writer
from opic.ingest.event_log import EventLog
from opic.model.events import Record
from opic.model.ledger import Ledger
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.service.stored_crawls import begin_anew
from opic.store import Shard, connect

SEED = 19520101
CUTS = 5
LOG = pep_history()[:2_000]


def ledger_of(count: int) -> Ledger:
    ledger = Ledger()
    ledger.apply(PARTITION, LOG[:count])
    return ledger


def refusal(store: ShardWriter, records: Sequence[Record]) -> str:
    """Why a store does not take records that follow on lost ones; a connection may break first."""
    while True:
        with pytest.raises(StoreUnavailable) as refused:
            store.apply(PARTITION, records)
        if isinstance(refused.value, TailLost):
            return str(refused.value)


@pytest.mark.slow
def test_worker_reads_lost_records_again(servers: Server) -> None:
    """Its cache of links names pages that the store has forgotten, and its next records follow on lost ones."""
    rng = random.Random(SEED)
    shard = Shard.open(connect(servers.url))
    store = ShardWriter(shard)
    done = 200
    store.apply(PARTITION, LOG[:done])
    for _ in range(CUTS):
        file = append_only_file(servers)
        durable = file.stat().st_size
        for start in range(done, done + 300, 60):
            store.apply(PARTITION, LOG[start : start + 60])
        servers.kill()
        cut(file, rng.randrange(durable, file.stat().st_size))
        servers.restart()
        assert "its server lost the last of what it wrote" in refusal(store, LOG[done + 300 : done + 310])
        done = store.next_offset(PARTITION)
    work_through(store, Listed(LOG))
    assert_same(shard, ledger_of(len(LOG)))
    shard.client.close()


def test_other_records_after_a_lost_tail_get_their_own_ids(servers: Server) -> None:
    """A log that was lost with the store goes on with others: a link that was cached would name another page."""
    shard = Shard.open(connect(servers.url))
    store, log = ShardWriter(shard), EventLog(connect(servers.url, retries=0), shard.keys)
    kept, lost, other = LOG[:100], LOG[100:700], LOG[800:1_400]
    log.append([record.value for record in kept], kept[0].time_us)
    store.apply(PARTITION, log.read(0, 1_000))
    file = append_only_file(servers)
    durable = file.stat().st_size
    log.append([record.value for record in lost], kept[0].time_us)
    store.apply(PARTITION, log.read(100, 1_000))
    servers.kill()
    cut(file, durable)
    servers.restart()
    assert log.end() == 100
    log.append([record.value for record in other], kept[0].time_us)
    written = log.read(0, 1_000)
    work_through(store, Listed(written))
    ledger = Ledger()
    ledger.apply(PARTITION, written)
    assert_same(shard, ledger)
    shard.client.close()
    log.client.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["valkey", "redis"])
def test_half_a_transaction_is_never_applied(name: str, running_servers: dict[str, Server]) -> None:
    """Redis 7.0 leaves it open in its file: what is written next becomes part of it at the second start."""
    rng = random.Random(SEED)
    for _ in range(CUTS):
        for server in lend_server(name, running_servers):
            with connect(server.url) as client:
                ShardWriter(Shard.open(client)).apply(PARTITION, LOG[:300])
                file = append_only_file(server)
            server.kill()
            written = file.read_bytes()
            begun = written.rindex(MULTI) + len(MULTI)
            cut(file, rng.randrange(begun + 100, written.rindex(EXEC)))
            server.restart()
            with connect(server.url) as client:
                store = ShardWriter(Shard.open(client))
                at = store.next_offset(PARTITION)
                for start in range(at, at + 30, 10):
                    store.apply(PARTITION, LOG[start : start + 10])
            server.kill()
            server.restart()
            with connect(server.url) as client:
                shard = Shard.open(client)
                assert shard.next_offset(PARTITION) == at + 30
                assert_same(shard, ledger_of(at + 30))


def test_endpoint_forgets_lost_pages(valkey: Server) -> None:
    """Though the store comes to the same version again: other pages have the ids, and other hosts."""
    crawl = Crawl.open(valkey.client())
    query = Query(crawl, Snapshots(crawl))
    Writer(crawl).apply(PARTITION, [record(0, "http://first.org/")])
    size = append_only_file(valkey).stat().st_size
    Writer(crawl).apply(PARTITION, [record(1, "http://lost.org/", ["http://lost.org/too"])])
    assert [page["host"] for page in query.top(9, "lost.org")] == ["lost.org"] * 2
    valkey.kill()
    cut(append_only_file(valkey), size)
    valkey.start()
    Writer(crawl).apply(PARTITION, [record(1, "http://other.org/", ["http://other.org/too"])])
    assert query.top(9, "lost.org") == []
    assert [page["host"] for page in query.top(9, "other.org")] == ["other.org"] * 2


def test_page_is_looked_up_again_in_a_recreated_store(valkey: Server) -> None:
    """Its pages have other ids, and the fingerprints of their URLs another key."""
    crawl = Crawl.open(valkey.client())
    query = Query(crawl, Snapshots(crawl))
    Writer(crawl).apply(PARTITION, [record(0, "http://first.org/", ["http://second.org/"])])
    assert len(query.snapshots.fresh().host) == 2  # Reads the URLs.
    valkey.client().flushall()
    begin_anew(valkey.client(), "default", {}, 1)
    crawl.follow()
    Writer(crawl).apply(PARTITION, [record(0, "http://second.org/", ["http://first.org/"])])
    found = query.importance(["http://first.org/", "http://second.org/", "http://third.org/"])
    assert [page and (page["url"], page["reads"]) for page in found] == [
        ("http://first.org/", 0),
        ("http://second.org/", 1),
        None,
    ]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("how", ["power loss", "flush"])
@pytest.mark.parametrize("remade", [False, True], ids=["gone", "made by another"])
def test_writer_starts_anew_after_a_total_loss_only_if_told_to(
    valkey: Server, shards: int, how: str, remade: bool
) -> None:
    """A crawl that is made anew has another secret: with the old one each page would get a second id."""
    given = {"shards": shards}
    crawl = Crawl.open(valkey.client(), "anew", given)
    snapshots, writer = Snapshots(crawl), Writer(crawl)
    writer.apply(PARTITION, LOG[:300])
    assert len(snapshots.fresh().scores) > 30
    if how == "flush":
        valkey.client().flushall()
    else:
        valkey.kill()
        lose_everything(valkey)
        valkey.start()
    if remade:
        Writer(Crawl.open(valkey.client(), "anew", given)).apply(PARTITION, LOG[:50])
    for _ in range(2):
        with pytest.raises(StoreLost, match="made again by a process" if remade else "is gone"):
            writer.apply(PARTITION, LOG[:500])
        with pytest.raises(StoreLost):
            snapshots.fresh()
    assert bool(valkey.client().keys("*")) == remade
    begin_anew(valkey.client(), "anew", given, shards)
    work_through(writer, Listed(LOG[:500]))
    for _ in range(shards):
        with suppress(BeingRestored):  # A shard that had nothing to do until now says so once.
            while writer.deliver():
                pass
    assert writer.deliver() == 0
    again = Crawl.open(valkey.client(), "anew", given)
    assert again.totals().reads == 500
    urls = [page.url for page in again.pages()]
    assert len(urls) == len(set(urls))
    assert all(place is not None for place in again.ids_of(urls))
    assert crawl.ids_of(urls) == again.ids_of(urls)
    assert snapshots.fresh().books == again.totals()
    if shards == 1:
        assert_same(again.shards[0], ledger_of(500))


def test_columns_of_a_lost_shard_are_not_shown(valkey: Server) -> None:
    """Between two looks of a reader that goes on by itself."""
    crawl = Crawl.open(valkey.client(), "looked-at")
    Writer(crawl).apply(PARTITION, LOG[:10])
    snapshots = Snapshots(crawl)
    assert snapshots.fresh().books.reads == 10
    valkey.client().flushall()
    with pytest.raises(StoreUnavailable, match="shard 0 of 1 is gone"):
        snapshots.fresh()
    assert not valkey.client().keys("*"), "a look made the crawl anew"


def test_recreated_crawl_with_other_rules_is_refused(valkey: Server) -> None:
    writer = Writer(Crawl.open(valkey.client(), "other", {"shards": 2}))
    writer.apply(PARTITION, LOG[:10])
    valkey.client().flushall()
    begin_anew(valkey.client(), "other", {"shards": 3}, 3)
    with pytest.raises(StoreMismatch, match="OPIC_SHARDS is 2, but this store was made with 3"):
        work_through(writer, Listed(LOG[:20]))
