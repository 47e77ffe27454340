"""A crawl is moved to another store, a cluster, and within it; and what was written is as durable as events are."""

import pytest
from backup_crawls import crossing_log
from logs import PARTITION
from migrations import answers_of, links_of, pages_of
from redis_cluster import Cluster
from servers import Server

from opic.errors import BadInput, CrawlMoved, StoreUnavailable
from opic.ingest import Writer
from opic.migration import migrate
from opic.migration.migrate import Migration, abort, begin
from opic.replica import Crawl
from opic.store.durability import Durability
from opic.store.keys import Keys
from opic.store.scan import key_names

LOG = crossing_log()[:1_500]


def test_crawl_is_moved_to_a_cluster_and_within_it(valkey: Server, valkey_cluster: Cluster) -> None:
    crawl = Crawl.open(valkey.client(), "first", keep_links=True)
    Writer(crawl).apply(PARTITION, LOG[:1_000])
    pages, links, totals = pages_of(crawl), links_of(crawl), answers_of(crawl)
    there = valkey_cluster.client()
    begin(crawl, there, Migration("second", "redis+cluster://elsewhere", {"shards": 6}), lambda _: None)
    with pytest.raises(CrawlMoved, match="to crawl 'second' in the store redis"):
        Crawl.open(valkey.client(), "first", create=False)
    for name, to, shards in (("second", "third", 2), ("third", "fourth", 6)):
        now = Crawl.open(there, name, create=False)
        assert now.audit()[0].conserved
        assert (pages_of(now), links_of(now), answers_of(now)) == (pages, links, totals)
        begin(now, there, Migration(to, changes={"shards": shards}), lambda _: None)
    now = Crawl.open(there, "fourth", create=False)
    Writer(now).apply(PARTITION, LOG[1_000:])
    Writer(now).drain()
    assert now.audit()[0].conserved
    assert now.totals().reads == len(LOG)


def test_migration_to_another_store_ends_there_alone(
    valkey: Server, valkey_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    Writer(Crawl.open(valkey.client(), "first")).apply(PARTITION, LOG[:50])
    there, wanted = valkey_cluster.client(), Migration("second", "redis+cluster://elsewhere", {"shards": 2})
    crawl = Crawl.open(valkey.client(), "first", create=False)
    with monkeypatch.context() as patch:
        patch.setattr(migrate.Target, "check_claimed", lambda _: (_ for _ in ()).throw(Killed))
        patch.setattr(migrate, "abort", lambda *_: None)
        with pytest.raises(Killed):
            begin(crawl, there, wanted, lambda _: None)
    with pytest.raises(BadInput, match="goes to another store: give its URL with --to-store: redis"):
        abort(valkey.client(), "first", valkey.client())
    assert abort(valkey.client(), "first", there, wanted.store).to == "second"
    assert not key_names(there, "opic:{second:*")
    Writer(Crawl.open(valkey.client(), "first")).apply(PARTITION, LOG[50:60])


class Killed(BaseException):
    """The process is gone."""


def test_copy_that_is_not_durable_does_not_take_over(valkey: Server) -> None:
    crawl = Crawl.open(valkey.client(), "first", durability=Durability(replicas=1, seconds=0.2))
    Writer(Crawl.open(valkey.client(), "first")).apply(PARTITION, LOG[:50])
    with pytest.raises(StoreUnavailable, match="only 0 of 1 replicas received the writes"):
        begin(crawl, valkey.client(), Migration("second", changes={"shards": 2}), lambda _: None)
    assert not valkey.client().hexists(Keys("first", 0).meta, "moved")
    assert not key_names(valkey.client(), "opic:{second:*")
    Writer(Crawl.open(valkey.client(), "first")).apply(PARTITION, LOG[50:60])
