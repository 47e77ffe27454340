"""A backup is of one state, and comes back as a whole or not at all; then workers read on and end where they did."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard
from conftest import lend_cluster
from logs import NOW_US, PARTITION, pep_history
from processes import environment
from redis_cluster import Cluster
from repository import ROOT
from sameness import assert_same
from servers import Server
from sources import Listed, work_through

from opic import backup as backups
from opic.backup import backup, restore, verify
from opic.errors import SettingsError, StoreError, StoreMismatch, StoreUnavailable
from opic.ledger import Ledger
from opic.log import EventLog
from opic.store import Crawl, Keys, Shard, Store, Writer

LOG = pep_history()[:2_000]
HALF = 1_000


def ledger_of(count: int = len(LOG)) -> Ledger:
    ledger = Ledger()
    ledger.apply(PARTITION, LOG[:count])
    return ledger


def filled(server: Any, count: int = HALF, **options: Any) -> Crawl:
    crawl = Crawl.open(server.client(), **options)
    Writer(crawl).apply(PARTITION, LOG[:count])
    return crawl


@pytest.mark.slow
def test_restored_shard_ends_where_the_first_one_did(servers: Server, tmp_path: Path) -> None:
    crawl = filled(servers)
    told: list[tuple[int, int]] = []
    made = backup(crawl, tmp_path / "copy", lambda *at: told.append(at))
    assert told[-1][0] == told[-1][1] > 0
    assert made["offsets"] == [{PARTITION: HALF}]
    assert made["audit"]["conserved"]
    work_through(Store(crawl.shards[0]), Listed(LOG))
    assert_same(crawl.shards[0], ledger_of())

    servers.reset()
    client = servers.client()
    assert restore(client, tmp_path / "copy", "default") == made
    again = Shard.open(client)
    assert_same(again, ledger_of(HALF))
    work_through(Store(again), Listed(LOG))
    assert_same(again, ledger_of())


def test_worker_that_lived_through_a_restore_reads_on_from_the_copy(servers: Server, tmp_path: Path) -> None:
    """It should have been ended first; what it remembers is of pages that are not known any more."""
    crawl = filled(servers)
    backup(crawl, tmp_path / "copy")
    store = Store(crawl.shards[0])
    work_through(store, Listed(LOG))
    restore(servers.client(), tmp_path / "copy", "default", replace=True)
    work_through(store, Listed(LOG))
    assert_same(store.shard, ledger_of())


def test_accepted_events_are_in_the_copy(servers: Server, tmp_path: Path) -> None:
    crawl = filled(servers, 0)
    log = EventLog(servers.client(), crawl.shards[0].keys)
    log.append([record.value for record in LOG[:500]], NOW_US)
    backup(crawl, tmp_path / "copy")
    restore(servers.client(), tmp_path / "copy", "other")
    found = EventLog(servers.client(), Keys("other", 0))
    assert [r.value for r in found.read(0, 1_000)] == [r.value for r in LOG[:500]]
    assert found.append([LOG[500].value], NOW_US) == {"log/0": 501}


@pytest.mark.slow
def test_records_wait_while_a_backup_is_made_and_go_on_after(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawl = filled(valkey)
    store = Store(Shard.open(valkey.client()))
    copied, looked = threading.Event(), threading.Event()
    keys_of = backups._keys_by_shard

    def watched(*args: Any) -> Any:
        copied.set()
        assert looked.wait(20)
        return keys_of(*args)

    monkeypatch.setattr(backups, "_keys_by_shard", watched)
    made: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: made.append(backup(crawl, tmp_path / "copy")))
    thread.start()
    assert copied.wait(20)
    before = crawl.shards[0].books(), crawl.client.hgetall(crawl.shards[0].keys.ids)
    with pytest.raises(StoreUnavailable, match="a backup is being made"):
        store.apply(PARTITION, LOG[HALF : HALF + 10])
    assert (crawl.shards[0].books(), crawl.client.hgetall(crawl.shards[0].keys.ids)) == before
    looked.set()
    thread.join()
    assert made
    work_through(store, Listed(LOG))
    assert_same(store.shard, ledger_of())


@pytest.mark.slow
def test_backup_that_died_holds_the_service_for_a_while_only(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    crawl = filled(valkey)
    monkeypatch.setattr(backups, "HOLD_SECONDS", 0.5)
    hold = backups._Hold(crawl)
    hold.__enter__()
    hold.close()
    store = Store(Shard.open(valkey.client()))
    with pytest.raises(StoreUnavailable, match="a backup is being made"):
        store.apply(PARTITION, LOG[HALF : HALF + 10])
    work_through(store, Listed(LOG))
    assert_same(store.shard, ledger_of())


@pytest.fixture
def copy(valkey: Server, tmp_path: Path) -> Path:
    """A backup of four shards."""
    backup(filled(valkey, shards=4), tmp_path / "copy")
    return tmp_path / "copy"


def test_shards_are_copied_with_nothing_under_way(valkey: Server, copy: Path) -> None:
    restore(valkey.client(), copy, "other")
    crawl = Crawl.open(valkey.client(), "other")
    whole, _ = crawl.audit()
    assert whole.conserved
    assert whole.in_flight == 0
    assert crawl.waiting() == 0
    writer = Writer(crawl)
    assert writer.resume(PARTITION) == HALF
    writer.apply(PARTITION, LOG[HALF:])
    while writer.deliver():
        pass
    assert crawl.audit()[0].conserved


def test_mixture_of_backups_is_refused_and_nothing_is_written(valkey: Server, copy: Path, tmp_path: Path) -> None:
    backup(Crawl.open(valkey.client()), tmp_path / "later")
    (tmp_path / "later" / "shard-0002.zst").replace(copy / "shard-0002.zst")
    with pytest.raises(SettingsError, match=r"shard-0002\.zst is not shard 2 of backup"):
        restore(valkey.client(), copy, "other")
    assert not valkey.client().exists(Keys("other", 0).meta)


def test_shard_that_was_brought_back_alone_is_refused(valkey: Server, copy: Path) -> None:
    """By a copy of one server's files, say."""
    client = valkey.client()
    restore(client, copy, "other")
    client.hset(Keys("other", 2).meta, "restored", "another")
    with pytest.raises(StoreMismatch, match="shard 2 is of backup another, shard 0 of"):
        Crawl.open(client, "other")


@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "manifest"])
def test_damaged_backup_is_refused_and_nothing_is_written(valkey: Server, copy: Path, damage: str) -> None:
    path = copy / ("manifest.json" if damage == "manifest" else "shard-0003.zst")
    held = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        held[len(held) // 2] ^= 1
        path.write_bytes(held[: len(held) // 2] if damage in ("cut", "manifest") else held)
    with pytest.raises(SettingsError):
        restore(valkey.client(), copy, "other")
    assert not valkey.client().exists(Keys("other", 0).meta)


def test_crawl_that_is_there_is_not_overwritten_unasked(valkey: Server, copy: Path) -> None:
    with pytest.raises(StoreError, match="there is a crawl named 'default' in this store: use --replace"):
        restore(valkey.client(), copy, "default")
    restore(valkey.client(), copy, "default", replace=True)
    assert Writer(Crawl.open(valkey.client())).resume(PARTITION) == HALF


def test_restore_that_broke_off_is_no_crawl_until_it_is_done_again(
    valkey: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, times = backups._put, iter(range(100))

    def breaking(*args: Any) -> None:
        if next(times) == 3:
            raise KeyboardInterrupt
        put(*args)

    with monkeypatch.context() as patched:
        patched.setattr(backups, "_put", breaking)
        with pytest.raises(KeyboardInterrupt):
            restore(valkey.client(), copy, "other")
    with pytest.raises(StoreMismatch, match="a restore broke off"):
        Crawl.open(valkey.client(), "other")
    restore(valkey.client(), copy, "other", replace=True)
    assert Crawl.open(valkey.client(), "other").audit()[0].conserved


def test_directory_that_is_not_empty_is_left_alone(valkey: Server, copy: Path) -> None:
    with pytest.raises(SettingsError, match="is not empty"):
        backup(Crawl.open(valkey.client()), copy)


def test_file_says_what_it_is(copy: Path) -> None:
    made = verify(copy)
    with (copy / "shard-0001.zst").open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as packed:
        first, *entries, last = msgpack.Unpacker(packed)
    assert first == {"id": made["id"], "shard": 1, "shards": 4, "format": 1}
    assert last == {"keys": len(entries)}


@pytest.fixture
def redis_cluster(running_clusters: dict[tuple[str, int], Cluster]) -> Iterator[Cluster]:
    yield from lend_cluster("redis", 0, running_clusters)


@pytest.mark.slow
def test_cluster_is_copied_and_comes_back(redis_cluster: Cluster, tmp_path: Path) -> None:
    crawl = filled(redis_cluster, shards=4)
    made = backup(crawl, tmp_path / "copy")
    redis_cluster.reset()
    restore(redis_cluster.client(), tmp_path / "copy", "default")
    again = Crawl.open(redis_cluster.client())
    assert again.audit()[0].conserved
    assert Writer(again).resume(PARTITION) == HALF
    assert made["shards"] == 4


@pytest.mark.slow
def test_embedded_store_is_copied_and_comes_back_by_the_command_line(tmp_path: Path) -> None:
    import subprocess
    import sys

    def opic(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "opic.cli", *map(str, words)]
        return subprocess.run(
            command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )

    crawl = tmp_path / "crawl.jsonl"
    crawl.write_text("".join(json.dumps({"url": f"http://{c}.org/", "links": ["http://a.org/"]}) + "\n" for c in "abc"))
    assert opic("replay", crawl, "--data", tmp_path / "one").returncode == 0
    made = opic("backup", tmp_path / "copy", "--data", tmp_path / "one", "--json")
    assert made.returncode == 0, made.stderr
    back = opic("restore", tmp_path / "copy", "--data", tmp_path / "two")
    assert back.returncode == 0, back.stderr
    assert json.loads(made.stdout)["id"] in back.stdout
    top = [opic("top", "--data", tmp_path / name, "--json").stdout for name in ("one", "two")]
    pages = [[(p["url"], p["importance"]) for p in json.loads(text)["pages"]] for text in top]
    assert pages[0] == pages[1] != []
    refused = opic("restore", tmp_path / "copy", "--data", tmp_path / "two")
    assert refused.returncode == 2
    assert "use --replace" in refused.stderr
