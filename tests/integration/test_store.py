"""What the store promises at its edges: numbers near their limits, columns read while pages come, settings kept."""

from dataclasses import asdict
from typing import Any

import pytest
from logs import NOW_US, PARTITION, record, seeds
from servers import Server

from opic.cash import CLOCK_LIMIT, Books
from opic.errors import StoreError, StoreFull, StoreMismatch
from opic.events import Record
from opic.ledger import Ledger
from opic.log import EventLog
from opic.series import ENTRIES_MAX, ENTRY_US
from opic.store import Shard, Store

A, B, C = "http://a.org/", "http://b.org/", "http://c.org/"


def test_a_clock_past_what_a_double_holds_is_exact(servers: Server) -> None:
    shard = Shard.open(servers.client())
    Store(shard).apply(PARTITION, [record(0, A, [B])])
    shard.client.hset(shard.keys.books, "clock", 2**53 - 1)
    Store(shard).apply(PARTITION, [record(1, B, [A])])
    assert shard.books().clock == 2**53 - 1 + int(shard.rows([1]).spent[0])


def test_a_clock_at_its_limit_stops_the_store_before_anything_is_written(servers: Server) -> None:
    shard = Shard.open(servers.client())
    Store(shard).apply(PARTITION, [record(0, A, [B])])
    shard.client.hset(shard.keys.books, "clock", CLOCK_LIMIT - 1)
    before = asdict(shard.books())
    with pytest.raises(StoreFull, match="reached its limit of 2\\^62"):
        Store(shard).apply(PARTITION, [record(1, B, [A])])
    assert asdict(shard.books()) == before
    assert shard.next_offset(PARTITION) == 1


def test_the_server_refuses_what_the_worker_let_through(servers: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of the boundary check: a worker whose own check is gone changes nothing either."""
    shard = Shard.open(servers.client())
    Store(shard).apply(PARTITION, [record(0, A, [B])])
    shard.client.hset(shard.keys.books, "clock", CLOCK_LIMIT - 1)
    before = asdict(shard.books())
    monkeypatch.setattr(Books, "check", lambda _: None)
    with pytest.raises(StoreFull, match="OPICFULL the clock"):
        Store(shard).apply(PARTITION, [record(1, B, [A])])
    assert asdict(shard.books()) == before
    assert shard.next_offset(PARTITION) == 1


def test_drift_at_its_limit_stops_counting_and_moves_cash_on(servers: Server) -> None:
    shard = Shard.open(servers.client())
    Store(shard).apply(PARTITION, [record(0, A, [B])])
    shard.client.hset(shard.keys.books, "drift_plus", CLOCK_LIMIT - 1)
    Store(shard).apply(PARTITION, [record(1, A, [C])])
    books = shard.books()
    assert books.drift_plus == CLOCK_LIMIT
    assert books.reads == 2
    assert shard.audit().conserved


class StepFirst:
    """A client that lets another worker step just before each pipeline: the worst moment, every time."""

    def __init__(self, client: Any, worker: Store) -> None:
        self._client, self._worker, self._at = client, worker, 1

    def __getattr__(self, name: str) -> Any:
        if name == "pipeline" and self._at < 4:
            urls = [f"http://host-{self._at}.org/{n}" for n in range(3)]
            self._worker.apply(PARTITION, [record(self._at, A, urls)])
            self._at += 1
        return getattr(self._client, name)


def test_columns_are_of_one_instant_while_pages_come(servers: Server) -> None:
    """Pages that became known between the count of ids and the books were missing, and were granted twice."""
    worker = Store(Shard.open(servers.client()))
    worker.apply(PARTITION, [record(0, A, [B])])
    shard = Shard.open(servers.client())
    shard.client = StepFirst(shard.client, worker)
    for _ in range(3):
        audit = shard.audit()
        assert audit.conserved, audit.mismatches
    Store(shard).apply(PARTITION, [record(4, B, ["http://host-3.org/1", "http://host-9.org/"])])
    assert worker.audit().conserved


def test_a_store_refuses_rules_that_contradict_it_and_takes_its_own_where_none_are_given(servers: Server) -> None:
    Shard.open(servers.client(), given={"q": 500_000, "measures_max": 2})
    assert Shard.open(servers.client()).rules.q == 500_000
    assert Shard.open(servers.client(), given={"measures_max": 2}).rules.measures_max == 2
    with pytest.raises(StoreMismatch, match="OPIC_HISTORY_MEASURES is 4, but this store was made with 2"):
        Shard.open(servers.client(), given={"measures_max": 4})


def test_a_store_of_another_format_is_refused(servers: Server) -> None:
    shard = Shard.open(servers.client())
    shard.client.hset(shard.keys.meta, "format", "0")
    with pytest.raises(StoreMismatch, match="format version 0, this program reads version 3"):
        Shard.open(servers.client())


def test_a_server_that_evicts_is_refused(servers: Server) -> None:
    servers.client().config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreError, match="set it to noeviction"):
        Shard.open(servers.client())


def test_crawls_in_one_store_do_not_see_each_other(servers: Server) -> None:
    one, two = (Store(Shard.open(servers.client(), name)) for name in ("one", "two"))
    one.apply(PARTITION, [record(0, A, [B])])
    assert two.shard.page(A) is None
    assert two.next_offset(PARTITION) == 0
    assert one.shard.page(B) is not None


def test_seeds_known_and_new_in_one_record_all_become_known(servers: Server) -> None:
    """The first page has id 0, which once counted as an id that was not found."""
    store = Store(Shard.open(servers.client()))
    store.apply(PARTITION, [seeds(0, A)])
    store.apply(PARTITION, [seeds(1, A, B, C)])
    assert store.shard.page(C) is not None
    assert store.audit().conserved


def test_series_keeps_its_newest_entries_in_the_store_as_in_the_ledger(servers: Server) -> None:
    """An entry an hour for a year and a half: dead letters are enough, since it is the time that moves."""
    log = [Record(offset, NOW_US + offset * ENTRY_US, b"") for offset in range(3 * ENTRIES_MAX // 2)]
    store, ledger = Store(Shard.open(servers.client())), Ledger()
    store.apply(PARTITION, log)
    ledger.apply(PARTITION, log)
    found = store.shard.series()
    assert len(found) == ENTRIES_MAX
    assert found == list(ledger.series)
    assert found[-1] == store.shard.series(newest=1)[0] == (log[-1].time_us, 0, 0)


def test_store_without_a_series_starts_one_where_it_stands(servers: Server) -> None:
    """One that was filled before there was a series; and its worker finds where the last entry is after a reload."""
    store = Store(Shard.open(servers.client()))
    store.apply(PARTITION, [record(0, A, [B])])
    books = store.shard.books()
    store.shard.client.delete(store.shard.keys.series)
    again = Store(store.shard)
    again.apply(PARTITION, [record(1, B, [A])])
    first, *_ = store.shard.series()
    assert (first.rounds, first.clock) == (books.rounds, books.clock)
    (last,) = store.shard.series(newest=1)
    for offset, late_us in ((2, ENTRY_US - 1), (3, ENTRY_US)):
        assert store.shard.series(newest=1) == [last]
        Store(store.shard).apply(PARTITION, [Record(offset, last.time_us + late_us, b"")])
    assert store.shard.series(newest=2)[0] == last
    assert store.shard.series(newest=1)[0].time_us == last.time_us + ENTRY_US


def test_a_read_of_the_log_stops_where_records_grow_large(servers: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    client = servers.client()
    log = EventLog(client, Shard.open(client, "large").keys)
    log.append([b"%d" % i for i in range(250)], NOW_US)
    end = log.append([b"x" * 1_000] * 250, NOW_US)[log.partition]
    assert [r.offset for r in log.read(0, 1_000)] == list(range(end))
    monkeypatch.setattr("opic.log.BYTES_A_READ", 20_000)
    first = log.read(0, 1_000)
    assert [r.offset for r in first] == list(range(300))  # The third hundred took it past the limit.
    assert [r.offset for r in log.read(300, 1_000, wait_seconds=1)] == list(range(300, 400))
    assert [r.offset for r in log.read(120, 7)] == list(range(120, 127))
    assert log.read(end, 10) == []
