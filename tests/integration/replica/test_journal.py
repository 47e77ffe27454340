"""The journal and its checkpoint are exact: whichever call fails, whatever is lost, whoever reads meanwhile."""

import random
import shutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from append_only_file import append_only_file, boundaries, cut
from chaos.proxy import Proxy
from example_counts import THOROUGH, part_of
from faults import Chosen, calls_of, cut_off, refused
from logs import NOW_US, PARTITION, pep_history
from same_state import assert_same, assert_same_replica, small_batches, small_blocks
from servers import Server

from opic.errors import StoreUnavailable
from opic.ingest import ShardWriter
from opic.model.classes import check_classes, encode_classes
from opic.model.events import Record, encode_ids
from opic.model.ledger import Ledger
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl, Replica
from opic.replica.follow import Follower
from opic.replica.urls import read_urls
from opic.store import Shard, connect

LOG = pep_history()[:1_500]
A_CALL = 50
TINY = 6_000  # Bytes of journal: checkpoints and trims happen all the time.
TRIES_MAX = 200
SEED = 20260512


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Blocks of 16 pages, each in a call of its own, and records of some events each."""
    with small_blocks(16, 4), small_batches(150):
        yield


@cache
def ledger_of(count: int = len(LOG)) -> Ledger:
    ledger = Ledger()
    ledger.apply(PARTITION, LOG[:count])
    return ledger


def loaded(shard: Shard) -> Replica:
    """A replica that is put together now, from the checkpoint and the journal."""
    replica = Replica(shard.rules, shard.number)
    Follower(shard.client, shard.keys, replica).catch_up()
    return replica


def work_on(store: ShardWriter, log: Sequence[Record], until: int | None = None, a_call: int = A_CALL) -> int:
    """Let records take effect from where the store says, however often it refuses; return how often it did."""
    refusals = 0
    while True:
        try:
            at = store.next_offset(PARTITION)
            if at >= (until or len(log)):
                return refusals
            store.apply(PARTITION, log[at : min(at + a_call, until or len(log))])
        except StoreUnavailable:
            refusals += 1
            assert refusals < TRIES_MAX


def checkpointed(server: Server, store: ShardWriter) -> tuple[Path, int]:
    """Write a whole checkpoint and trim the journal; return the append-only file, and its size before that."""
    file = append_only_file(server)
    size = file.stat().st_size
    store.checkpointer.budget = 1
    store.checkpoint()
    return file, size


def assert_all_same(store: ShardWriter, *readers: Crawl, count: int = len(LOG)) -> None:
    """Fail unless the worker's own state, readers that followed, and a cold load are one, and that of the ledger."""
    cold = loaded(store.shard)
    assert_same(store.shard, ledger_of(count))
    store.follower.catch_up()
    assert_same_replica(store.replica, cold)
    for reader in readers:
        reader.follow()
        assert_same_replica(reader.replicas[0], cold)


# Each call fails alone.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "function"),
    [
        ("memory full", "step"),
        ("memory full", "blocks"),
        ("too few replicas", "step"),
        ("too few replicas", "blocks"),
        ("too few replicas", "trim"),
    ],
)
def test_single_refused_call_changes_nothing(servers: Server, reason: str, function: str) -> None:
    shard = Shard.open(servers.client())
    store, reader = ShardWriter(shard, journal_bytes=TINY), Crawl([shard])
    chosen = Chosen(function, 19 if function == "blocks" else 3)
    with refused(chosen, reason):
        for until in range(100, len(LOG) + 1, 100):
            work_on(store, LOG, until)
            reader.follow()
    assert chosen.failed > 5
    assert store.checkpointer.blocks_written > 50
    assert_all_same(store, reader)


@pytest.mark.parametrize("reason", ["memory full", "too few replicas"])
def test_call_that_writes_blocks_and_is_refused_keeps_those_blocks_dirty_and_no_others(
    servers: Server, reason: str
) -> None:
    shard = Shard.open(servers.client())
    store = ShardWriter(shard, journal_bytes=1 << 30)
    work_on(store, LOG, 600)
    store.checkpointer.budget = 1  # From here on all that changed is written.
    dirty, chosen = store.checkpointer.dirty, Chosen("blocks", 3, most=1)
    with refused(chosen, reason):
        store.apply(PARTITION, LOG[600:601])
    assert chosen.calls == dirty > 5
    assert store.checkpointer.dirty == 1
    assert store.checkpointer.blocks_written == dirty - 2  # And the names.
    (missed,) = np.flatnonzero(store.checkpointer._blocks.since).tolist()
    written = [shard.client.hget(shard.keys.block(block), "l") for block in range(dirty - 1)]
    assert [block for block, lsn in enumerate(written) if lsn is None] == [missed]
    assert shard.client.xlen(shard.keys.journal) == store.replica.head.lsn, "the journal was trimmed past it"
    store.apply(PARTITION, LOG[601:602])
    store.apply(PARTITION, LOG[602:603])
    assert shard.client.xlen(shard.keys.journal) < 3
    assert_all_same(store, count=603)


@pytest.mark.slow
@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("function", ["step", "blocks", "trim"])
def test_dropped_connection_costs_only_time(valkey: Server, function: str, answered: bool) -> None:
    with Proxy(valkey.socket_path) as proxy, connect(f"redis://127.0.0.1:{proxy.port}") as client:
        store = ShardWriter(Shard.open(client), journal_bytes=TINY)
        reader, chosen = Crawl([Shard.open(valkey.client())]), Chosen(function, 4, most=12)
        with cut_off(chosen, proxy, calls_of(valkey.client()), answered=answered):
            for until in range(100, len(LOG) + 1, 100):
                work_on(store, LOG, until)
                reader.follow()
        assert chosen.failed > 3
        assert_all_same(store, reader)


def test_trimmable_journal_recovers_from_full_memory(servers: Server) -> None:
    """What was written of the checkpoint is enough to let go of records; with memory full no other call can."""
    shard = Shard.open(servers.client())
    store = ShardWriter(shard, journal_bytes=1 << 30)
    store.apply(PARTITION, LOG[:1_000])
    store.checkpointer.budget = 64  # From here on it is time to trim.
    head = store.replica.head
    written = store.checkpointer.write(head, everything=True)
    assert written
    for call in written:
        shard.client.execute_command(*call.command)
    store.checkpointer.confirm(head, written)
    entries = shard.client.xlen(shard.keys.journal)
    shard.client.config_set("maxmemory", 1)
    for _ in range(2):  # As the worker does: again after a while.
        with pytest.raises(StoreUnavailable, match="disk or memory full"):
            store.apply(PARTITION, LOG[1_000:1_010])
    assert shard.client.xlen(shard.keys.journal) < entries
    shard.client.config_set("maxmemory", 0)
    work_on(store, LOG)
    assert_all_same(store)


# What is lost.


@pytest.mark.slow
def test_after_any_truncation_of_the_file_workers_and_readers_agree(servers: Server) -> None:
    """At the end of a call or in its middle; all three have seen what is lost, and live on."""
    rng = random.Random(SEED)
    shards = [Shard.open(connect(servers.url)) for _ in range(2)]
    owners = [ShardWriter(shard, journal_bytes=TINY) for shard in shards]
    reader, at = Crawl([Shard.open(connect(servers.url))]), 0
    for number in range(part_of(12)):
        file = append_only_file(servers)
        size = file.stat().st_size
        for owner in rng.sample(owners, 2):
            at = min(at + rng.randrange(20, 120), len(LOG))
            work_on(owner, LOG, at)
        for owner in owners:
            owner.follower.catch_up()
        reader.follow()
        servers.kill()
        ends = [end for end in boundaries(file) if end >= size]
        cut(file, rng.choice(ends) if number % 2 else rng.randrange(size, file.stat().st_size + 1))
        servers.restart()
        at = owners[number % 2].next_offset(PARTITION)
        for owner in rng.sample(owners, 2):
            at = min(at + rng.randrange(5, 60), len(LOG))
            work_on(owner, LOG, at)
            if rng.random() < 0.5:
                reader.follow()
        assert_all_same(owners[0], reader, count=at)
        assert_all_same(owners[1], reader, count=at)
    for shard in (*shards, *reader.shards):
        shard.client.close()


@pytest.mark.slow
def test_after_truncation_at_each_call_all_readers_agree(valkey: Server, tmp_path: Path) -> None:
    """Former owners, who had seen all of it, go on from there; so does a reader, and who loads it cold."""
    owners = [ShardWriter(Shard.open(connect(valkey.url)), journal_bytes=2_000) for _ in range(2)]
    reader, file = Crawl([Shard.open(connect(valkey.url))]), append_only_file(valkey)
    size, log = file.stat().st_size, LOG[:60]
    for at in range(0, 40, 4):
        owners[at // 4 % 2].apply(PARTITION, log[: at + 4])
        reader.follow()
    valkey.kill()
    ends = [end for end in boundaries(file) if end >= size]
    whole = shutil.copytree(file.parent, tmp_path / "whole")
    written = file.read_bytes()[size:]
    counts = [written.count(name) for name in (b"XADD", b":b:", b"XTRIM")]
    assert min(counts) > 3, counts
    assert len(ends) > 20
    for number, end in enumerate(ends if THOROUGH else ends[random.Random(SEED).randrange(3) :: 3]):
        valkey.kill()
        shutil.rmtree(file.parent)
        shutil.copytree(whole, file.parent)
        cut(file, end)
        valkey.start()
        first, second = owners[number % 2], owners[(number + 1) % 2]
        at = first.next_offset(PARTITION)
        reader.follow()
        assert_same_replica(reader.replicas[0], loaded(first.shard))
        work_on(first, log, at + 3)
        work_on(second, log, at + 6)
        first.follower.catch_up()
        reader.follow()
        cold, ledger = loaded(first.shard), Ledger()
        ledger.apply(PARTITION, log[: at + 6])
        assert_same(first.shard, ledger)
        for replica in (first.replica, second.replica, reader.replicas[0]):
            assert_same_replica(replica, cold)
    for shard in (owners[0].shard, owners[1].shard, reader.shards[0]):
        shard.client.close()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_lost_checkpoint_is_written_again_before_the_journal_is_trimmed(servers: Server, share: float) -> None:
    """The worker took its blocks for written. It lives on, and lets go of records only once they are there again."""
    shard = Shard.open(connect(servers.url))
    store = ShardWriter(shard, journal_bytes=1 << 20)
    store.apply(PARTITION, LOG[:600])
    file, size = checkpointed(servers, store)
    assert shard.client.xlen(shard.keys.journal) == 1
    servers.kill()
    ends = [end for end in boundaries(file) if end >= size]
    assert len(ends) >= 8
    cut(file, ends[int(share * len(ends))])
    servers.restart()
    work_on(store, LOG, 610)
    store.checkpoint()
    assert shard.client.xlen(shard.keys.journal) == 1
    assert_all_same(store, count=610)
    shard.client.close()


def test_reader_finds_urls_of_a_lost_checkpoint_in_the_journal(servers: Server) -> None:
    """It began when the journal was trimmed. The server comes back with the same head, the journal and no block."""
    shard = Shard.open(connect(servers.url))
    store = ShardWriter(shard, journal_bytes=1 << 20)
    store.apply(PARTITION, LOG[:600])
    file, size = checkpointed(servers, store)
    readers = [Crawl([Shard.open(connect(servers.url))]) for _ in range(2)]
    for reader in readers:
        reader.follow()
        assert reader.replicas[0].tail.first > 0
    before = Query(readers[0], Snapshots(readers[0])).top(100)
    servers.kill()
    cut(file, size)
    servers.restart()
    assert shard.client.xlen(shard.keys.journal) > 1
    assert Query(readers[0], Snapshots(readers[0])).top(100) == before
    assert_same_replica(readers[0].replicas[0], loaded(shard))
    assert sorted(page.url for page in readers[1].pages()) == sorted(ledger_of(600).pages)
    for used in (shard, *(reader.shards[0] for reader in readers)):
        used.client.close()


def test_worker_goes_on_when_a_checkpoint_is_lost_while_it_reads_urls(
    servers: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are classified by their URLs. It takes what is missing for news of another run, not for damage."""
    shard = Shard.open(connect(servers.url))
    store = ShardWriter(shard, journal_bytes=1 << 20)
    classes = encode_classes(check_classes([{"name": "a", "weight": 2.0, "hosts": ["peps.python.org"]}]))
    log = [*LOG[:600], Record(600, NOW_US, classes, "classes"), Record(601, NOW_US, encode_ids((0, 100)), "classify")]
    work_on(store, log[:601])
    file, size = checkpointed(servers, store)
    lost: list[int] = []

    def losing(*asked: Any) -> dict[int, str]:
        if not lost:
            lost.append(1)
            servers.kill()
            cut(file, size)
            servers.restart()
        return read_urls(*asked)

    monkeypatch.setattr("opic.ingest.shard_writer.read_urls", losing)
    assert work_on(store, log) == 1
    ledger = Ledger()
    ledger.apply(PARTITION, log)
    assert_same(shard, ledger)
    shard.client.close()
