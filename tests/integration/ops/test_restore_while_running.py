"""A restore beside endpoints and workers that go on: nothing that is confirmed is lost, and each finds its way."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from backup_crawls import backup_of_four, crossing_log
from logs import NOW_US
from processes import wait_until
from servers import Server
from serving import applying

from opic.errors import BeingRestored, SettingsError, StoreError, StoreLost, StoreUnavailable
from opic.ingest import Writer, event_log
from opic.ingest import worker as worker_loop
from opic.ingest.event_log import AppendTerms, EventLog, KeyedCall
from opic.ingest.worker import LogSource, work
from opic.model.events import CrawlEvent, EventLimits, Record, encode_crawl_event
from opic.ops import restore as restores
from opic.ops.backup import backup
from opic.ops.restore import restore
from opic.replica import Crawl
from opic.service.backend import Backend
from opic.settings import Settings

TERMS = AppendTerms(NOW_US, EventLimits())
WAIT_SECONDS = 20.0


def event(name: str) -> bytes:
    return encode_crawl_event(CrawlEvent(f"http://{name}.org/", []))


def log_of(server: Server) -> EventLog:
    crawl = Crawl.open(server.client())
    return EventLog(server.client(), crawl.shards[0].keys)


def taken(log: EventLog, name: str) -> bool:
    try:
        return bool(log.append([event(name)], NOW_US))
    except BeingRestored:
        return False


def worked_off(server: Server) -> set[str]:
    """Apply what is in the log; return the hosts of all pages."""
    crawl = Crawl.open(server.client(), create=False)
    writer, log = Writer(crawl), EventLog(server.client(), crawl.shards[0].keys)
    work(writer, LogSource(log, writer.resume, until_offset=log.end()))
    return {page.url.removeprefix("http://").removesuffix(".org/") for page in crawl.pages()}


@pytest.fixture
def copy(valkey: Server, tmp_path: Path) -> Path:
    """A backup with two events that took effect and one that waits."""
    log_of(valkey).append([event("one"), event("two")], NOW_US)
    worked_off(valkey)
    log_of(valkey).append([event("three")], NOW_US)
    backup(Crawl.open(valkey.client()), tmp_path / "copy")
    return tmp_path / "copy"


def during(monkeypatch: pytest.MonkeyPatch, function: str, what: Any) -> list[str]:
    """Do something while a restore runs, just before it calls one of its functions for the first time."""
    found, done = getattr(restores, function), list[str]()

    def watched(*args: Any, **options: Any) -> Any:
        if not done:
            done.append(function)
            what()
        return found(*args, **options)

    monkeypatch.setattr(restores, function, watched)
    return done


@pytest.mark.parametrize("function", ["check_backup", "_send", "_check_ours"])
def test_log_accepts_nothing_while_a_restore_runs(
    valkey: Server, copy: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    log, call = log_of(valkey), KeyedCall(b"k" * 16, b"b" * 16)

    def refused() -> None:
        with pytest.raises(BeingRestored, match="accepts nothing while a backup is restored"):
            log.append([event("lost")], NOW_US)
        with pytest.raises(BeingRestored, match="accepts nothing while a backup is restored"):
            log.append_once(call, [event("lost")], None, TERMS)

    done = during(monkeypatch, function, refused)
    restore(valkey.client(), copy, "default", replace=True)
    assert done
    log.append([event("four")], NOW_US)
    assert log.append_once(call, [event("five")], None, TERMS)
    assert worked_off(valkey) == {"one", "two", "three", "four", "five"}


@pytest.mark.slow
def test_every_event_that_is_confirmed_during_and_after_a_restore_takes_effect(
    servers: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_of(servers).append([event(f"old{n}") for n in range(5_000)], NOW_US)
    backup(Crawl.open(servers.client()), tmp_path / "copy")
    log, stop = log_of(servers), threading.Event()
    before, after, refused = dict[str, int](), list[str](), list[str]()
    era = log.era()

    def post() -> None:
        number = 0
        while not stop.is_set():
            name, number = f"new{number}", number + 1
            try:
                positions = log.append([event(name)], NOW_US)
            except BeingRestored:
                refused.append(name)
            else:
                assert isinstance(positions, event_log.LogPositions)
                if positions.era == era:
                    before[name] = positions[log.partition]
                else:
                    after.append(name)

    thread = threading.Thread(target=post)
    thread.start()
    wait_until(lambda: len(before) > 50, WAIT_SECONDS)
    _, fence = restore(servers.client(), tmp_path / "copy", "default", replace=True)
    wait_until(lambda: len(after) > 50, WAIT_SECONDS)
    stop.set()
    thread.join()
    assert refused
    assert list(before.values()) == list(range(5_001, fence.log_end + 1))  # The last event is just before the fence.
    known = worked_off(servers)
    assert set(after) <= known
    assert not before.keys() & known


def test_restore_that_stood_still_while_events_were_accepted_changes_nothing(
    valkey: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restores, "CLOSED_SECONDS", 0.1)
    log = log_of(valkey)

    def stand_still() -> None:
        wait_until(lambda: taken(log, "four"), WAIT_SECONDS)

    with monkeypatch.context() as patched:
        done = during(patched, "check_backup", stand_still)
        with pytest.raises(
            StoreError, match=r"accepted 1 events while .*, because the restore stood still for over 0.1 s"
        ):
            restore(valkey.client(), copy, "default", replace=True)
    assert done
    log.append([event("six")], NOW_US)
    assert worked_off(valkey) == {"one", "two", "three", "four", "six"}
    _, fence = restore(valkey.client(), copy, "default", replace=True)
    assert fence.log_end == 5
    assert worked_off(valkey) == {"one", "two", "three"}


def test_log_accepts_events_again_if_the_check_of_a_backup_fails(valkey: Server, copy: Path) -> None:
    (copy / "shard-0000.blocks.zst").write_bytes(b"damaged")
    with pytest.raises(SettingsError):
        restore(valkey.client(), copy, "default", replace=True)
    log_of(valkey).append([event("four")], NOW_US)
    assert worked_off(valkey) == {"one", "two", "three", "four"}


def test_log_accepts_events_again_if_the_check_of_a_backup_is_killed(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restores, "CLOSED_SECONDS", 0.2)
    log = log_of(valkey)
    restores._close_for(valkey.client(), log.keys, 0.2)
    with pytest.raises(BeingRestored):
        log.append([event("four")], NOW_US)

    wait_until(lambda: taken(log, "four"), WAIT_SECONDS)
    assert restores._close_for(valkey.client(), log.keys, 1.0).log_end == 1


def test_call_in_two_parts_is_not_confirmed_if_a_restore_comes_between(
    valkey: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part went with the old log. With a key, the repeat of the call has all of it."""
    monkeypatch.setattr(event_log, "VALUES_A_CALL", 2)
    monkeypatch.setattr("opic.model.packed_events.EVENTS_A_PACK", 1)
    log, call, names = log_of(valkey), KeyedCall(b"k" * 16, b"b" * 16), ["a", "b", "c", "d"]
    values = [event(name) for name in names]
    append, appended = log._append, 0

    def restored_between(*args: Any, **options: Any) -> Any:
        nonlocal appended
        appended += 1
        if appended in (2, 4):
            restore(valkey.client(), copy, "default", replace=True)
        return append(*args, **options)

    monkeypatch.setattr(log, "_append", restored_between)
    with pytest.raises(BeingRestored, match="was restored into crawl 'default' meanwhile: send all of it again"):
        log.append(values, NOW_US)
    with pytest.raises(BeingRestored, match="send all of it again"):
        log.append_once(call, values, None, TERMS)
    assert log.begun(call) is None
    assert log.append_once(call, values, None, TERMS)
    assert worked_off(valkey) == {"one", "two", "three", *names}


def test_repeat_with_progress_from_the_old_log_starts_anew(
    valkey: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "VALUES_A_CALL", 2)
    monkeypatch.setattr("opic.model.packed_events.EVENTS_A_PACK", 1)
    log, call, names = log_of(valkey), KeyedCall(b"k" * 16, b"b" * 16), ["a", "b", "c"]
    values = [event(name) for name in names]
    log._append(values[:2], NOW_US, "event", (call.key, call.body, TERMS.pack(), 0))  # Then its sender died.
    begun = log.begun(call)
    assert begun is not None
    assert begun.done == 2
    restore(valkey.client(), copy, "default", replace=True)
    with pytest.raises(BeingRestored, match="send all of it again"):
        log.append_once(call, values, begun, TERMS)
    assert log.append_once(call, values, log.begun(call), TERMS)
    assert worked_off(valkey) == {"one", "two", "three", *names}


def test_call_that_waits_for_its_effect_fails_with_the_restore_as_reason(valkey: Server, copy: Path) -> None:
    backend = Backend(Settings.load(store=valkey.url), valkey.url)
    positions = backend.accept([event("four"), event("five")])
    restore(valkey.client(), copy, "default", replace=True)
    with pytest.raises(BeingRestored, match="accepted, but then a backup was restored"):
        backend.await_effect(positions, 0.05)
    positions = backend.accept([event("four")])
    assert "four" in worked_off(valkey)
    backend.await_effect(positions, 0.05)
    backend.close()


def test_worker_does_not_apply_records_of_the_old_log(
    valkey: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read an event, stood still while a backup was restored, and another event has that offset now."""
    log_of(valkey).append([event("gone")], NOW_US)
    crawl = Crawl.open(valkey.client())
    writer, log = Writer(crawl), log_of(valkey)
    source, since = LogSource(log, writer.resume), writer.resume("log/0")
    writer.stores[0].apply_inputs([])
    (taken,) = source.poll(0.0)
    assert (since, taken.end) == (2, 4)
    restore(valkey.client(), copy, "default", replace=True)
    log.append([event("four")], NOW_US)
    with pytest.raises(BeingRestored, match="reading on from there"):
        writer.apply(taken.partition, taken.records, since=taken.since)
    source.done(taken)  # Trims nothing: the records are others now.
    work(writer, LogSource(log, writer.resume, until_offset=log.end()))
    assert {page.url for page in crawl.pages()} == {f"http://{n}.org/" for n in ("one", "two", "three", "four")}
    monkeypatch.undo()


@pytest.mark.parametrize("shards", [1, 3])
def test_idle_worker_reads_on_from_the_offset_of_the_backup(
    valkey: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    """No event comes after the restore, and those that the backup holds lie before the worker's position."""
    monkeypatch.setattr(worker_loop, "COMPARE_SECONDS", 0.1)
    crawl = Crawl.open(valkey.client(), shards=shards)
    log = EventLog(valkey.client(), crawl.shards[0].keys)
    log.append([event("one"), event("two")], NOW_US)
    backup(crawl, tmp_path / "copy")
    writer = Writer(Crawl.open(valkey.client()))
    source = LogSource(log_of(valkey), writer.resume)
    with applying(writer, source):
        log.append([event("three")], NOW_US)
        wait_until(lambda: crawl.resume("log/0") == 3, WAIT_SECONDS)
        restore(valkey.client(), tmp_path / "copy", "default", replace=True)
        wait_until(lambda: crawl.resume("log/0") == 2, WAIT_SECONDS)
    assert {page.url for page in crawl.pages()} == {"http://one.org/", "http://two.org/"}


def test_source_ends_where_another_worker_has_applied_and_trimmed_the_rest(valkey: Server) -> None:
    crawl = Crawl.open(valkey.client())
    log, writer = EventLog(valkey.client(), crawl.shards[0].keys), Writer(crawl)
    log.append([event("one"), event("two")], NOW_US)
    source = LogSource(log, writer.resume, until_offset=2)
    assert not source.ended
    other = Writer(Crawl.open(valkey.client()))
    work(other, LogSource(log_of(valkey), other.resume, until_offset=2))
    while not source.ended:
        assert source.poll(0.01) == []


@pytest.mark.parametrize("shards", [1, 3])
def test_writer_skips_no_record_that_took_effect_only_before_the_restore(
    valkey: Server, tmp_path: Path, shards: int
) -> None:
    crawl = Crawl.open(valkey.client(), shards=shards)
    backup(crawl, tmp_path / "copy")
    writer = Writer(Crawl.open(valkey.client()))
    records = [Record(n, NOW_US, event(name), "event") for n, name in enumerate(("one", "two", "three"))]
    writer.apply("log/0", records)
    restore(valkey.client(), tmp_path / "copy", "default", replace=True)
    assert writer.resume("log/0") == 0
    for _ in range(shards):
        with suppress(BeingRestored):  # As the worker's loop does; each shard may say so once.
            writer.apply("log/0", records)
    writer.apply("log/0", records)
    assert {page.url for page in crawl.pages()} == {f"http://{n}.org/" for n in ("one", "two", "three")}


@pytest.mark.parametrize("shards", [1, 3])
def test_crawl_being_restored_or_gone_has_no_resume_offset(valkey: Server, shards: int) -> None:
    crawl = Crawl.open(valkey.client(), shards=shards)
    writer, home = Writer(crawl), crawl.home("log/0").keys
    assert writer.resume("log/0") == 0
    valkey.client().hset(home.meta, "restoring", "1")
    with pytest.raises(BeingRestored):
        writer.resume("log/0")
    valkey.client().flushall()
    with pytest.raises(StoreLost):
        writer.resume("log/0")


def test_resume_points_and_outboxes_of_the_old_crawl_leave_the_restored_one_alone(
    valkey: Server, tmp_path: Path
) -> None:
    copy = backup_of_four(valkey, tmp_path / "four")
    crawl = Crawl.open(valkey.client())
    writer, era = Writer(crawl), crawl.era()
    waiting = crawl.waiting()
    assert waiting
    restore(valkey.client(), copy, "default", replace=True)
    outboxes = {key: valkey.client().xlen(key) for key in valkey.client().keys("opic:{default:*}:out:*")}
    at = crawl.resume("log/0")
    with pytest.raises(BeingRestored, match=r"records of log/0 took effect: reading on"):
        writer._move_resume("log/0", at + 500, {}, era, since=at)
    for to in range(4):
        for store in writer.stores:
            store.offsets([f"shard:{at}" for at in range(4)])
            store._next |= {f"shard:{at}": 10_000 for at in range(4)}
        writer._deliveries._trim({to: range(4)}, era)
    assert {key: valkey.client().xlen(key) for key in outboxes} == outboxes
    assert crawl.resume("log/0") == at
    fresh = Writer(Crawl.open(valkey.client()))
    fresh.apply("log/0", crossing_log()[at : at + 200], since=at)
    fresh.drain()
    assert fresh.crawl.audit()[0].conserved


def test_interrupted_restore_is_reported_everywhere_and_can_be_repeated(
    valkey: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, backend = log_of(valkey), Backend(Settings.load(store=valkey.url), valkey.url)
    assert backend.not_ready() is None

    def broken(*_: Any) -> None:
        raise StoreUnavailable("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(restores, "_send", broken)
        with pytest.raises(StoreError, match=r"broke off .the store does not answer.: crawl 'default' can't"):
            restore(valkey.client(), copy, "default", replace=True)
    with pytest.raises(BeingRestored, match="if a restore broke off, run `opic restore --replace` again"):
        log.append([event("lost")], NOW_US)
    with pytest.raises(BeingRestored, match="or a restore broke off"):
        Crawl.open(valkey.client())
    assert "or a restore broke off" in str(backend.not_ready())
    with pytest.raises(StoreError, match="a restore into it broke off: use --replace"):
        restore(valkey.client(), copy, "default")
    restore(valkey.client(), copy, "default", replace=True)
    assert backend.not_ready() is None
    backend.close()
    assert worked_off(valkey) == {"one", "two", "three"}


def test_the_later_of_two_concurrent_restores_completes(
    valkey: Server, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    during(monkeypatch, "_send", lambda: restore(valkey.client(), copy, "default", replace=True))
    with pytest.raises(StoreError, match="another restore into this crawl has begun"):
        restore(valkey.client(), copy, "default", replace=True)


@pytest.mark.slow
def test_restore_during_a_restart_of_the_server_fails(
    servers: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have lost what it confirmed."""
    log_of(servers).append([event("one")], NOW_US)
    backup(Crawl.open(servers.client()), tmp_path / "copy")

    def restart() -> None:
        servers.kill()
        servers.start()

    with monkeypatch.context() as patched:
        during(patched, "portions", restart)
        with pytest.raises(StoreError, match="the restore broke off"):
            restore(servers.client(), tmp_path / "copy", "default", replace=True)
    restore(servers.client(), tmp_path / "copy", "default", replace=True)
    assert worked_off(servers) == {"one"}
