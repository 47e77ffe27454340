"""A backup is of one state, and comes back as a whole or not at all; then workers read on and end where they did."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from backup_crawls import HALF, LOG, around, backup_of_four, filled, ledger_of
from logs import NOW_US, PARTITION, values_in
from processes import environment, wait_until
from record_sources import Listed, work_through
from repository import ROOT
from same_state import assert_same
from servers import Server

from opic.errors import BeingRestored, StoreError, StoreUnavailable, TailLost
from opic.ingest import ShardWriter, Writer
from opic.ingest.event_log import EventLog
from opic.model.event_checks import decode_record
from opic.model.events import EventLimits, Record
from opic.ops import restore as restores
from opic.ops.backup import backup
from opic.ops.backup_files import MANIFEST
from opic.ops.restore import restore
from opic.ops.shard_copy import ShardCopy
from opic.replica import Crawl
from opic.service.backend import Backend
from opic.settings import Settings
from opic.store import Keys, Shard


@pytest.fixture
def copy(valkey: Server, tmp_path: Path) -> Path:
    """A backup of four shards."""
    return backup_of_four(valkey, tmp_path / "copy")


@pytest.mark.slow
def test_restored_shard_ends_where_the_first_one_did(servers: Server, tmp_path: Path) -> None:
    crawl = filled(servers)
    told: list[tuple[int, int]] = []
    made = backup(crawl, tmp_path / "copy", lambda *at: told.append(at))
    assert told[-1][0] == told[-1][1] > 0
    assert made["offsets"] == [{PARTITION: HALF}]
    assert made["audit"]["conserved"]
    work_through(ShardWriter(crawl.shards[0]), Listed(LOG))
    assert_same(crawl.shards[0], ledger_of())

    servers.reset()
    client = servers.client()
    assert restore(client, tmp_path / "copy", "default")[0] == made
    again = Shard.open(client)
    assert_same(again, ledger_of(HALF))
    work_through(ShardWriter(again), Listed(LOG))
    assert_same(again, ledger_of())


@pytest.mark.parametrize("checkpoints", [[], [300], [300, 301, 999]])
def test_copy_of_any_checkpoint_is_the_same_state(valkey: Server, tmp_path: Path, checkpoints: list[int]) -> None:
    crawl = Crawl.open(valkey.client())
    writer = ShardWriter(crawl.shards[0])
    for first in range(0, HALF, 50):
        writer.apply(PARTITION, LOG[first : first + 50])
        if any(first <= at < first + 50 for at in checkpoints):
            writer.checkpoint()
    backup(crawl, tmp_path / "copy")
    restore(valkey.client(), tmp_path / "copy", "other")
    assert_same(Shard.open(valkey.client(), "other"), ledger_of(HALF))


def test_worker_that_outlives_a_restore_reads_on_from_the_copy(servers: Server, tmp_path: Path) -> None:
    """It should have been ended first; what it remembers is of pages that are not known any more."""
    crawl = filled(servers)
    backup(crawl, tmp_path / "copy")
    store = ShardWriter(crawl.shards[0])
    work_through(store, Listed(LOG))
    restore(servers.client(), tmp_path / "copy", "default", replace=True)
    work_through(store, Listed(LOG))
    assert_same(store.shard, ledger_of())


def test_reader_that_outlives_a_restore_sees_the_copy(servers: Server, tmp_path: Path) -> None:
    """Also where its journal ended at the very number at which the restored one ends."""
    crawl = Crawl.open(servers.client())
    writer = ShardWriter(crawl.shards[0])
    writer.apply(PARTITION, LOG[:HALF])
    writer.checkpoint()
    backup(crawl, tmp_path / "copy")
    before = crawl.follow()[0].head
    writer.apply(PARTITION, LOG[HALF : HALF + 10])
    head = crawl.follow()[0].head
    assert head.lsn == before.lsn + 1
    loads = crawl.replicas[0].loads
    restore(servers.client(), tmp_path / "copy", "default", replace=True)
    (replica,) = crawl.follow()
    assert replica.head.lsn == head.lsn
    assert replica.head.digest != head.digest
    assert replica.loads > loads
    assert {page.url: page for page in crawl.pages()} == dict(ledger_of(HALF).pages)

    # And once more: two restores of one backup are two branches as well.
    digest, loads = replica.head.digest, replica.loads
    restore(servers.client(), tmp_path / "copy", "default", replace=True)
    (replica,) = crawl.follow()
    assert (replica.head.lsn, replica.loads > loads) == (head.lsn, True)
    assert replica.head.digest != digest


def test_readers_and_writers_are_refused_while_a_restore_runs(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawl = filled(valkey)
    backup(crawl, tmp_path / "copy")
    writer = ShardWriter(crawl.shards[0])
    writer.apply(PARTITION, LOG[HALF : HALF + 10])
    crawl.follow()
    send, refused = restores._send, []

    def watched(*args: Any) -> None:
        send(*args)
        for tries in range(2):
            with pytest.raises(StoreUnavailable, match="shard 0 is being restored from a backup"):
                crawl.follow()
            with pytest.raises(StoreUnavailable, match="shard 0 is being restored from a backup"):
                writer.apply(PARTITION, LOG[HALF + 10 : HALF + 20])
            with pytest.raises(BeingRestored, match="a backup is being restored"):
                Crawl.open(valkey.client())
            refused.append(tries)

    with monkeypatch.context() as patched:
        patched.setattr(restores, "_send", watched)
        restore(valkey.client(), tmp_path / "copy", "default", replace=True)
    assert refused
    assert {page.url: page for page in crawl.pages()} == dict(ledger_of(HALF).pages)
    with pytest.raises(TailLost):
        writer.apply(PARTITION, LOG[HALF + 10 : HALF + 20])
    writer.apply(PARTITION, LOG[HALF:])
    assert_same(crawl.shards[0], ledger_of())


def asked(backend: Backend, url: str) -> list[Any]:
    """What an endpoint says of all pages, of one, and of what is next."""
    found: list[Any] = [backend.query.top(50), backend.query.importance([url]), backend.query.history(url)]
    explained = {**(backend.explain(url, None, None) or {}), "as_of": None}
    counts = {name: value for name, value in backend.stats().items() if name != "warnings"}  # Which tell the time.
    found += [backend.query.sites("host", 5)["hosts"], explained, backend.frontier.peek(20).pages, counts]
    found.append([page.url for page in backend.frontier.next(3).pages])
    return [*found, backend.frontier.census()]


def test_endpoint_that_outlives_a_restore_refuses_meanwhile_and_then_answers_from_the_copy(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to start it again. What was leased since the copy was made is free."""
    crawl, settings = filled(valkey), Settings.load(store=valkey.url, host_delay_seconds=0)
    backup(crawl, tmp_path / "copy")
    url = decode_record(PARTITION, LOG[HALF - 1], EventLimits()).url
    live = Backend(settings, valkey.url)
    live.start()
    ShardWriter(Shard.open(valkey.client())).apply(PARTITION, LOG[HALF : HALF + 300])
    before, refused, send = asked(live, url), [], restores._send
    (leased,) = live.frontier.next(1).pages

    def watched(*args: Any) -> None:
        send(*args)
        questions = [lambda: live.query.top(3), lambda: live.query.importance([url]), lambda: live.frontier.next(1)]
        for question in questions:
            with pytest.raises(StoreUnavailable, match="is being restored from a backup"):
                question()
            refused.append(question)

    with monkeypatch.context() as patched:
        patched.setattr(restores, "_send", watched)
        restore(valkey.client(), tmp_path / "copy", "default", replace=True)
    assert refused
    assert live.frontier.release([leased.lease]).released == 0
    after = asked(live, url)
    live.close()
    valkey.client().flushall()
    restore(valkey.client(), tmp_path / "copy", "default")
    fresh = Backend(settings, valkey.url)
    assert after == asked(fresh, url) != before
    fresh.close()


def test_accepted_events_are_in_the_copy(servers: Server, tmp_path: Path) -> None:
    crawl = filled(servers, 0)
    log = EventLog(servers.client(), crawl.shards[0].keys)
    log.append([record.value for record in LOG[:500]], NOW_US)
    backup(crawl, tmp_path / "copy")
    restore(servers.client(), tmp_path / "copy", "other")
    found = EventLog(servers.client(), Keys("other", 0))
    assert [value for record in found.read(0, 1_000) for value in values_in(record)] == [r.value for r in LOG[:500]]
    assert found.append([LOG[500].value], NOW_US) == {"log/0": 501}


def test_log_that_is_trimmed_under_the_copy_is_in_it_from_the_offset_on(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker takes events and lets go of them at every step of the copy."""
    crawl = filled(valkey, 0)
    log, writer = EventLog(valkey.client(), crawl.shards[0].keys), Writer(Crawl.open(valkey.client()))
    values = [record.value for record in LOG[:HALF]]
    log.append(values[:200], NOW_US)
    done = 200

    def live() -> None:
        nonlocal done
        log.append(values[done : done + 30], NOW_US)
        done = min(done + 30, HALF)
        at = writer.resume(PARTITION)
        writer.apply(PARTITION, log.read(at, 40))
        log.trim(writer.resume(PARTITION))

    client = valkey.client()
    client.config_set("stream-node-max-entries", 1)  # So that trims are exact.
    around(monkeypatch, live, "turn", "read_settings", "read_resume", "read_end", "read_outboxes", "read_rest")
    made = backup(crawl, tmp_path / "copy")
    (offsets,) = made["offsets"]
    assert 0 < offsets[PARTITION] < done < HALF
    for _ in range(5):
        live()
    client.config_set("stream-node-max-entries", 100)
    assert not client.xrange(log.keys.log, "-", f"1-{offsets[PARTITION]}")  # Only the hold kept it for the copy.
    restore(valkey.client(), tmp_path / "copy", "other")
    again = Crawl.open(valkey.client(), "other")
    assert Writer(again).resume(PARTITION) == offsets[PARTITION]
    left = EventLog(valkey.client(), again.shards[0].keys)
    rest = [value for record in left.read(offsets[PARTITION], HALF) for value in values_in(record)]
    assert rest == values[offsets[PARTITION] : left.end()]


def not_keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers trim what was not copied, as where the backup stood still for long."""
    monkeypatch.setattr(ShardCopy, "keep_journal", lambda self, _=0: ["SET", self.keys.copied, 0, "PX", 1])


@pytest.mark.slow
@pytest.mark.parametrize("keeping", [True, False])
def test_copy_under_a_journal_that_turns_over_is_the_state_of_its_head(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeping: bool
) -> None:
    """A worker appends, writes all blocks and trims the journal to its last record at every step of the copy."""
    crawl = filled(valkey, 100)
    writer, at, turns = ShardWriter(Shard.open(valkey.client())), 100, 0
    trimming = ShardWriter(Shard.open(valkey.client()), journal_bytes=1)

    def append() -> None:
        nonlocal at
        writer.apply(PARTITION, LOG[at : at + 7])
        at += 7

    def turn_over() -> None:
        nonlocal turns
        turns += 1
        if turns < 12:
            append()
            trimming.checkpoint()

    if not keeping:
        not_keeping(monkeypatch)
    around(monkeypatch, append, "read_settings", "read_end", "read_outboxes")
    around(monkeypatch, turn_over, "_take")
    again_, begins = ShardCopy._begin, []
    monkeypatch.setattr(ShardCopy, "_begin", lambda self, why: (begins.append(why), again_(self, why)))
    made = backup(crawl, tmp_path / "copy")
    assert begins == [""] if keeping else len(begins) > 3
    (offsets,) = made["offsets"]
    assert 100 < offsets[PARTITION] < at
    trimming.checkpoint()
    wait_until(lambda: valkey.client().xlen(crawl.shards[0].keys.journal) == 1 or trimming.checkpoint())
    restore(valkey.client(), tmp_path / "copy", "other")
    again = Shard.open(valkey.client(), "other")
    assert_same(again, ledger_of(offsets[PARTITION]))
    work_through(ShardWriter(again), Listed(LOG))
    assert_same(again, ledger_of())


def test_backup_that_cannot_keep_up_says_so(valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crawl = filled(valkey, 100)
    writer, at = ShardWriter(Shard.open(valkey.client()), journal_bytes=1), 100

    def live() -> None:
        nonlocal at
        for _ in range(3):
            writer.apply(PARTITION, LOG[at : at + 1])
            at += 1
        writer.checkpoint()

    not_keeping(monkeypatch)
    around(monkeypatch, live, "_follow")
    with pytest.raises(StoreUnavailable, match="copied 20 times, and each time the store deleted"):
        backup(crawl, tmp_path / "copy")
    assert not (tmp_path / "copy" / MANIFEST).exists()


def test_repeats_of_calls_are_known_in_the_copy_and_only_those(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crawl = Crawl.open(valkey.client())
    writer, keys = ShardWriter(Shard.open(valkey.client())), crawl.shards[0].keys
    named = [Record(r.offset, r.time_us, r.value, r.kind, call=b"c%d" % r.offset) for r in LOG[:100]]
    writer.apply(PARTITION, named[:10])
    at = 10

    def live() -> None:
        nonlocal at
        writer.apply(PARTITION, named[at : at + 3])
        at += 3

    around(monkeypatch, live, "turn", "read_end", "read_rest")
    (offsets,) = backup(crawl, tmp_path / "copy")["offsets"]
    assert 10 < offsets[PARTITION] < at
    restore(valkey.client(), tmp_path / "copy", "other")
    seen = valkey.client().zrange(Keys("other", 0).seen, 0, -1, withscores=True)
    expected = {r.call: float(r.time_us) for r in named[: offsets[PARTITION]]}
    assert dict(seen) == expected
    assert keys.seen != Keys("other", 0).seen


def test_dead_letters_and_settings_of_operators_are_in_the_copy(valkey: Server, tmp_path: Path) -> None:
    crawl = Crawl.open(valkey.client())
    keys, client = crawl.shards[0].keys, valkey.client()
    Writer(crawl).apply(PARTITION, [*LOG[:5], Record(5, NOW_US, b"no event at all")])
    client.hset(keys.polite, "a.org", "2.5 3")
    client.hset(keys.crawl_delays, "b.org", "7")
    client.hset(keys.blocks, "c.org", "1795000000.5")
    client.hset(keys.limits, "d.org", "100")
    client.hset(keys.rules, mapping={"document": b"\x80", "version": "v"})
    client.hset(keys.curve, "1", b"point")
    client.hset(keys.progress, "1", b"counts")
    client.hset(keys.local_lists, "a.org", b"list")
    client.sadd(keys.replayed, "dead/0@3")
    client.zadd(keys.waits, {"1": 1_795_000_000.25, "9999": 1})  # No page of this copy has the number 9999.
    client.hset(keys.fails, mapping={"1": 3, "9999": 1})
    client.zadd(keys.leases, {"1": 5})
    backup(crawl, tmp_path / "copy")
    restore(client, tmp_path / "copy", "other")
    other = Keys("other", 0)
    for name in ("polite", "crawl_delays", "blocks", "limits", "rules", "curve", "progress", "local_lists"):
        assert client.hgetall(getattr(other, name)) == client.hgetall(getattr(keys, name)) != {}
    assert client.zrange(other.waits, 0, -1, withscores=True) == [(b"1", 1_795_000_000.25)]
    assert client.hgetall(other.fails) == {b"1": b"3"}
    assert client.smembers(other.replayed) == {b"dead/0@3"}
    assert client.xrange(other.dead) == client.xrange(keys.dead)
    assert client.xlen(other.dead) == 1
    assert not client.exists(other.leases)


def test_existing_crawl_is_not_overwritten_unasked(valkey: Server, copy: Path) -> None:
    with pytest.raises(StoreError, match=r"already has a crawl named 'default', .*: use --replace"):
        restore(valkey.client(), copy, "default")
    restore(valkey.client(), copy, "default", replace=True)
    assert Writer(Crawl.open(valkey.client())).resume(PARTITION) == HALF


def test_nothing_is_left_of_a_crawl_that_is_replaced(valkey: Server, copy: Path) -> None:
    client = valkey.client()
    client.set(Keys("default", 9).meta + ":left", 1)
    restore(client, copy, "default", replace=True)
    assert not client.keys("opic:{default:9*")
    assert not client.hexists(Keys("default", 0).meta, "restoring")


def test_interrupted_restore_leaves_no_crawl_until_it_is_repeated(
    valkey: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, times = restores._send, iter(range(100))

    def breaking(*args: Any) -> None:
        if next(times) == 3:
            raise KeyboardInterrupt
        send(*args)

    with monkeypatch.context() as patched:
        patched.setattr(restores, "_send", breaking)
        with pytest.raises(KeyboardInterrupt):
            restore(valkey.client(), copy, "other")
    with pytest.raises(BeingRestored, match="a restore broke off"):
        Crawl.open(valkey.client(), "other")
    restore(valkey.client(), copy, "other", replace=True)
    assert Crawl.open(valkey.client(), "other").audit()[0].conserved


@pytest.mark.slow
def test_embedded_store_is_copied_and_comes_back_by_the_command_line(tmp_path: Path) -> None:
    def opic(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "opic.cli.main", *map(str, words)]
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
