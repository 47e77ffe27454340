"""All shards of a backup are of one state, though events go on crossing between them while it is made."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backup_crawls import HALF, SHARDS, Living, assert_same_reads, backup_of_four, crossing_log, filled
from conftest import lend_cluster
from logs import PARTITION
from redis_cluster import Cluster
from servers import Server

from opic.errors import DeliveryPaused, SettingsError, StoreMismatch, StoreUnavailable
from opic.ingest import Writer
from opic.ops import backup as backups
from opic.ops.backup import Hold, ShardCopy, backup
from opic.ops.backup_files import MANIFEST
from opic.ops.restore import restore
from opic.replica import Crawl
from opic.store import Keys


@pytest.fixture
def copy(valkey: Server, tmp_path: Path) -> Path:
    """A backup of four shards."""
    return backup_of_four(valkey, tmp_path / "copy")


@pytest.mark.slow
def test_sixteen_shards_are_copied_while_events_cross(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records take effect at every stage of the copy; restored elsewhere and replayed, each counts once."""
    log = crossing_log()
    crawl = Crawl.open(valkey.client(), shards=SHARDS)
    first = Writer(crawl)
    first.apply(PARTITION, log[:2_000])  # Much of it still in outboxes.
    for store in first.stores[::2]:
        store.checkpoint()
    assert crawl.waiting() > 0
    stages: dict[str, list[int]] = {}
    with Living(valkey, log) as worker:
        worker.done = 2_000
        worker.wait(lambda: worker.done > 2_000)

        def watch(name: str) -> None:
            """Go on with the copy only once records took effect at this stage of it."""
            step, lock = getattr(ShardCopy, name), threading.Lock()

            def watched(self: ShardCopy, *args: Any) -> Any:
                found = step(self, *args)
                with lock:
                    if len(stages.setdefault(name, [])) < 3:
                        before = worker.done
                        worker.wait(lambda: worker.done > before)
                        stages[name].append(worker.done)
                return found

            monkeypatch.setattr(ShardCopy, name, watched)

        for name in ("turn", "read_settings", "read_end", "read_outboxes", "read_rest"):
            watch(name)
        began = worker.done
        made = backup(crawl, tmp_path / "copy")
        ended = worker.done
    assert {len(times) for times in stages.values()} == {3}
    assert set(stages) == {"turn", "read_settings", "read_end", "read_outboxes", "read_rest"}
    assert worker.paused  # Deliveries waited; events did not.
    offsets = [found.get(PARTITION, 0) for found in made["offsets"]]
    assert began < max(offsets) < ended
    assert made["audit"]["conserved"]
    assert crawl.audit()[0].conserved
    first = Writer(crawl)
    first.apply(PARTITION, log)
    first.drain()

    valkey_client = valkey.client()
    restore(valkey_client, tmp_path / "copy", "other")
    again = Crawl.open(valkey_client, "other")
    whole, _ = again.audit()
    assert whole.conserved, whole.mismatches
    writer = Writer(again)
    at = writer.resume(PARTITION)
    assert 2_000 <= at <= max(offsets)
    writer.apply(PARTITION, log[at:])
    writer.drain()
    whole, _ = again.audit()
    assert whole.conserved, whole.mismatches
    assert whole.in_flight == 0
    assert_same_reads(again, crawl)


@pytest.mark.slow
def test_events_and_queries_do_not_wait_for_a_backup(valkey: Server, tmp_path: Path) -> None:
    log = crossing_log()
    crawl = Crawl.open(valkey.client(), shards=4)
    with Living(valkey, log) as worker:
        worker.wait(lambda: worker.done >= 500)
        worker.longest = 0.0
        before, began = worker.done, time.monotonic()
        backup(crawl, tmp_path / "copy")
        took = time.monotonic() - began
        during = worker.done - before
        longest = worker.longest
    assert during > 0
    assert longest < max(1.0, took / 2)  # No wait of the length of the backup.


@pytest.mark.slow
def test_inconsistent_shards_are_read_again(valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the hold ran out: a shard took what another one's copy has not sent yet."""
    log = crossing_log()
    crawl = Crawl.open(valkey.client(), shards=4)
    writer = Writer(Crawl.open(valkey.client()))
    writer.apply(PARTITION, log[:500])
    read_end, ended, at = ShardCopy.read_end, [], 500

    def broken(self: ShardCopy) -> Any:
        nonlocal at
        if len(ended) < 4:
            for shard in crawl.shards:
                shard.client.hdel(shard.keys.offsets, "hold")
            writer.apply(PARTITION, log[at : at + 100])
            writer.deliver()
            at += 100
        ended.append(self.shard.number)
        return read_end(self)

    monkeypatch.setattr(ShardCopy, "read_end", broken)
    monkeypatch.setattr(backups, "THREADS_A_SERVER", 1)
    assert backup(crawl, tmp_path / "copy")["audit"]["conserved"]
    assert len(ended) == 8


def taken_from_shards(crawl: Crawl) -> list[dict[bytes, bytes]]:
    """How many entries each shard took from each other one."""
    offsets = [crawl.client.hgetall(shard.keys.offsets) for shard in crawl.shards]
    return [{source: count for source, count in part.items() if b":" in source} for part in offsets]


def test_hold_stops_deliveries_alone_and_ends_by_itself(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    log = crossing_log()
    crawl = Crawl.open(valkey.client(), shards=4)
    writer = Writer(crawl)
    writer.apply(PARTITION, log[:200])
    monkeypatch.setattr(backups, "HOLD_SECONDS", 1.0)
    Hold(crawl).__enter__()  # And then it dies.
    taken = taken_from_shards(crawl)
    with pytest.raises(DeliveryPaused, match="accepts no deliveries from other shards while a backup"):
        writer.deliver()
    writer.apply(PARTITION, log[200:400])
    assert writer.resume(PARTITION) == 400
    assert taken_from_shards(crawl) == taken
    writer.drain()  # Tries again until it may.
    assert crawl.waiting() == 0
    assert crawl.audit()[0].conserved


def test_hold_is_removed_at_the_end_unless_it_is_another_backups(valkey: Server) -> None:
    crawl = Crawl.open(valkey.client(), shards=2)
    with Hold(crawl):
        assert all(crawl.client.hexists(shard.keys.offsets, "hold") for shard in crawl.shards)
    assert not any(crawl.client.hexists(shard.keys.offsets, "hold") for shard in crawl.shards)
    with Hold(crawl):
        crawl.client.hset(crawl.shards[1].keys.offsets, "hold", 2**52)
    assert crawl.client.hget(crawl.shards[1].keys.offsets, "hold") == b"%d" % 2**52


def test_books_that_do_not_balance_make_no_backup(valkey: Server, tmp_path: Path) -> None:
    crawl = Crawl.open(valkey.client(), shards=4)
    Writer(crawl).apply(PARTITION, crossing_log()[:100])
    of, to = next((o, t) for o in crawl.shards for t in range(4) if crawl.client.xlen(o.keys.outbox(t)))
    crawl.client.xtrim(of.keys.outbox(to), maxlen=0)
    with pytest.raises(StoreUnavailable, match="changed during each of"):
        backup(crawl, tmp_path / "copy")
    crawl.client.hset(of.keys.books, "pool", 5)
    one = filled(valkey, 10, name="one")
    one.client.hset(one.shards[0].keys.books, "pool", 5)
    with pytest.raises(SettingsError, match="its totals differ from those of the last record"):
        backup(one, tmp_path / "one")
    assert not (tmp_path / "one" / MANIFEST).exists()


def test_shards_are_copied_with_cash_in_flight(valkey: Server, copy: Path) -> None:
    restore(valkey.client(), copy, "other")
    crawl = Crawl.open(valkey.client(), "other")
    whole, _ = crawl.audit()
    assert whole.conserved
    assert whole.in_flight > 0
    assert crawl.waiting() == Crawl.open(valkey.client()).waiting() > 0
    writer = Writer(crawl)
    assert writer.resume(PARTITION) == HALF
    writer.apply(PARTITION, crossing_log()[HALF:2_000])
    writer.drain()
    whole, _ = crawl.audit()
    assert whole.conserved
    assert whole.in_flight == 0


def test_audit_detects_a_shard_that_took_what_was_never_sent(valkey: Server, copy: Path) -> None:
    """Two branches of one crawl with the same counts: only the digests tell them apart."""
    restore(valkey.client(), copy, "other")
    crawl = Crawl.open(valkey.client(), "other")
    assert crawl.audit()[0].conserved
    of, to = next((o, t) for o in range(4) for t in range(4) if crawl.replicas[o].sent.get(t, (0, b""))[0])
    count, _ = crawl.replicas[of].sent[to]
    crawl.replicas[to].taken[of] = b"another!"
    mismatches = crawl.audit()[0].mismatches
    assert mismatches == (f"what shard {to} took from shard {of} is not what shard {of} sent",)
    assert count > 0


def test_shard_that_was_brought_back_alone_is_refused(valkey: Server, copy: Path) -> None:
    """By a copy of one server's files, say."""
    client = valkey.client()
    restore(client, copy, "other")
    client.hset(Keys("other", 2).meta, "restored", "another")
    with pytest.raises(StoreMismatch, match="shard 2 was restored from backup another, shard 0 from"):
        Crawl.open(client, "other")


@pytest.fixture
def redis_cluster(running_clusters: dict[tuple[str, int], Cluster]) -> Iterator[Cluster]:
    yield from lend_cluster("redis", 0, running_clusters)


@pytest.mark.slow
def test_cluster_is_copied_and_comes_back(redis_cluster: Cluster, valkey: Server, tmp_path: Path) -> None:
    """In the cluster, and in a single server."""
    crawl = Crawl.open(redis_cluster.client(), shards=4)
    Writer(crawl).apply(PARTITION, crossing_log()[:HALF])
    made = backup(crawl, tmp_path / "copy")
    assert made["shards"] == 4
    redis_cluster.reset()
    for client in (redis_cluster.client(), valkey.client()):
        restore(client, tmp_path / "copy", "default")
        again = Crawl.open(client)
        assert again.audit()[0].conserved
        writer = Writer(again)
        assert writer.resume(PARTITION) == HALF
        writer.apply(PARTITION, crossing_log()[HALF:1_500])
        writer.drain()
        assert again.audit()[0].conserved
