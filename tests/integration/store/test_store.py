"""What the store promises at its edges: numbers near their limits, settings kept, a log that is read in portions."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace

import httpx
import pytest
import redis
from kafka_crawl import Topic, settings_of
from kafka_server import Kafka
from logs import NOW_US, PARTITION, record, seeds
from processes import wait_until
from redis.backoff import NoBackoff
from redis.retry import Retry
from same_state import assert_same
from servers import LIVE_OPTIONS, Server
from serving import serving

from opic.client import Client
from opic.errors import StoreError, StoreFull, StoreMismatch
from opic.ingest import ShardWriter
from opic.ingest.event_log import EventLog
from opic.model.cash import CLOCK_LIMIT, MINTED_GRAINS, CrawlRules
from opic.model.classes import check_classes, encode_classes
from opic.model.events import Record, encode_ids
from opic.model.ledger import Ledger
from opic.model.series import ENTRIES_MAX, ENTRY_US
from opic.replica import Crawl
from opic.replica.batch import BYTES_A_BATCH_MAX
from opic.service.standing import StandingService
from opic.settings import Settings
from opic.store import Shard

LOADED_KEYS = 5_000
A, B, C = "http://a.org/", "http://b.org/", "http://c.org/"


def opened(server: Server, name: str = "default") -> ShardWriter:
    return ShardWriter(Shard.open(server.client(), name))


def moved(store: ShardWriter, **totals: int) -> None:
    """Let a worker believe in other totals, which its next record makes those of the shard."""
    store.replica.books = replace(store.replica.books, **totals)


def test_a_clock_beyond_double_precision_is_exact(servers: Server) -> None:
    store = opened(servers)
    store.apply(PARTITION, [record(0, A, [B])])
    moved(store, clock=2**53 - 1)
    store.apply(PARTITION, [record(1, B, [A])])
    (replica,) = Crawl([store.shard]).follow()
    assert replica.books.clock == 2**53 - 1 + int(replica.spent()[1])
    assert store.shard.books() == replica.books, "the totals that no replica is loaded for"


def test_a_clock_at_its_limit_stops_the_store_before_anything_is_written(servers: Server) -> None:
    store = opened(servers)
    store.apply(PARTITION, [record(0, A, [B])])
    before = store.shard.books()
    moved(store, clock=CLOCK_LIMIT - 1)
    with pytest.raises(StoreFull, match="reached its limit of 2\\^62"):
        store.apply(PARTITION, [record(1, B, [A])])
    assert store.shard.books() == before
    assert store.shard.next_offset(PARTITION) == 1
    assert store.shard.client.xlen(store.shard.keys.journal) == 1


def test_drift_at_its_limit_stops_counting_while_cash_still_moves(servers: Server) -> None:
    store = opened(servers)
    store.apply(PARTITION, [record(0, A, [B])])
    moved(store, drift_plus=CLOCK_LIMIT - 1)
    store.apply(PARTITION, [record(1, A, [C])])
    books = store.shard.books()
    assert books.drift_plus == CLOCK_LIMIT
    assert books.reads == 2
    assert Crawl([store.shard]).audit()[0].conserved


def test_balances_near_the_end_of_their_range_are_exact(servers: Server) -> None:
    """A page that holds all that was minted spends it, is granted more, and is weighed anew."""
    rules = CrawlRules(grant=MINTED_GRAINS // 64)
    light, heavy = ([{"name": "a", "weight": weight, "hosts": ["a.org"]}] for weight in (0.5, 2))
    log = [record(0, A, [B])]
    log += [record(offset, (A, B)[offset % 2], [(B, A)[offset % 2]]) for offset in range(1, 9)]
    for classes in (heavy, light, []):
        log.append(Record(len(log), NOW_US, encode_classes(check_classes(classes)), "classes"))
        log.append(Record(len(log), NOW_US, encode_ids((0, 9)), "classify"))
        log += [record(len(log) + n, (A, B)[n % 2], [(B, A)[n % 2]]) for n in range(2)]
    ledger, shard = Ledger(rules), Shard.open(servers.client(), given=asdict(rules))
    ledger.apply(PARTITION, log)
    store = ShardWriter(shard, journal_bytes=64)
    for at in range(len(log)):
        store.apply(PARTITION, log[: at + 1])
        store.checkpoint()
    assert ledger.books.clock > MINTED_GRAINS // 8
    assert ledger.books.taken_back > 0
    assert_same(shard, ledger)


def test_balances_near_the_end_of_their_range_leave_the_endpoint_as_exact_text(servers: Server) -> None:
    """No number of theirs passes a double, on the way through the lease call or through JSON, which would round it."""
    rules = CrawlRules(grant=MINTED_GRAINS // 2 - 12_345)
    log = [seeds(0, A, B), record(1, A, [B])]
    ledger = Ledger(rules)
    ledger.apply(PARTITION, log)
    page, books = ledger.pages[B], ledger.books
    cash = page.v + books.credit
    assert MINTED_GRAINS - cash < MINTED_GRAINS // 10
    assert int(float(cash)) != cash
    ShardWriter(Shard.open(servers.client(), given=asdict(rules))).apply(PARTITION, log)
    settings = Settings.load(store=servers.url, host_delay_seconds=0)
    with StandingService(settings) as service, serving(service) as url, httpx.Client(base_url=url) as client:
        for path in (f"/v1/importance?url={B}", f"/v1/explain?url={B}", "/v1/top", "/v1/frontier", "/v1/stats"):
            wanted = books.clock if path == "/v1/stats" else cash
            assert re.search(rf"\b{wanted}\b", client.get(path).raise_for_status().text), path
        audit = client.get("/v1/audit").raise_for_status().text
        for grains in (MINTED_GRAINS, books.pool, MINTED_GRAINS - books.pool):
            assert re.search(rf"(?<!\d){grains}\b", audit), grains
        answer = client.post("/v1/next", json={"n": 1}).raise_for_status()
        assert f'"cash":{cash},' in answer.text.replace(" ", "")
        with Client(url) as typed:
            assert typed.importance(B).cash == cash
            assert typed.release([page["lease"] for page in answer.json()["pages"]]).released == 1
            assert [one.cash for one in typed.next(1).pages] == [cash]


@pytest.mark.parametrize("log", ["store", pytest.param("kafka", marks=pytest.mark.slow)])
def test_a_service_waits_at_its_start_for_a_store_that_loads_its_data(
    valkey: Server,
    log: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server loads slowly until the service has met it so, then at once."""
    settings = Settings.load(store=valkey.url, shards=1)
    if log == "kafka":
        kafka: Kafka = request.getfixturevalue("kafka")
        settings = settings_of(kafka, valkey, Topic(kafka, partitions=1).name)
    opened(valkey)
    with valkey.client() as client, client.pipeline(transaction=False) as pipe:
        for number in range(LOADED_KEYS):
            pipe.set(f"else:{number}", "")
        pipe.execute()
        client.bgrewriteaof()  # The base file: between two of its keys the server answers.
        wait_until(lambda: not client.info("persistence")["aof_rewrite_in_progress"])
    valkey.stop()
    monkeypatch.setitem(LIVE_OPTIONS, "loading-process-events-interval-bytes", "1024")
    monkeypatch.setitem(LIVE_OPTIONS, "key-load-delay", "1000")  # Microseconds a key.
    with (
        ExitStack() as services,
        ThreadPoolExecutor(2) as threads,
        valkey.client(retry=Retry(NoBackoff(), 0)) as client,
    ):
        started = threads.submit(valkey.start)
        wait_until(lambda: is_loading(client))
        service = StandingService(settings)
        opening = threads.submit(services.enter_context, service)
        wait_until(lambda: "the store is loading its data" in caplog.text)
        assert not opening.done()
        client.config_set("key-load-delay", 0)
        started.result()
        opening.result()
        assert service.not_ready() is None


def is_loading(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.exceptions.BusyLoadingError:
        return True
    except redis.ConnectionError:
        return False
    return False


def test_a_store_refuses_contradicting_rules_and_uses_its_own_by_default(servers: Server) -> None:
    Shard.open(servers.client(), given={"q": 500_000, "measures_max": 2})
    assert Shard.open(servers.client()).rules.q == 500_000
    assert Shard.open(servers.client(), given={"measures_max": 2}).rules.measures_max == 2
    with pytest.raises(StoreMismatch, match="OPIC_HISTORY_MEASURES is 4, but this store was made with 2"):
        Shard.open(servers.client(), given={"measures_max": 4})


def test_a_store_of_another_format_is_refused(servers: Server) -> None:
    shard = Shard.open(servers.client())
    shard.client.hset(shard.keys.meta, "format", "0")
    with pytest.raises(StoreMismatch, match="format version 0, this program reads version 5"):
        Shard.open(servers.client())


def test_a_server_that_evicts_is_refused(servers: Server) -> None:
    servers.client().config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreError, match="set it to noeviction"):
        Shard.open(servers.client())


def test_crawls_in_one_store_do_not_see_each_other(servers: Server) -> None:
    one, two = (opened(servers, name) for name in ("one", "two"))
    one.apply(PARTITION, [record(0, A, [B])])
    assert Crawl([two.shard]).page(A) is None
    assert two.next_offset(PARTITION) == 0
    assert Crawl([one.shard]).page(B) is not None


def test_seeds_known_and_new_in_one_record_all_become_known(servers: Server) -> None:
    """The first page has id 0, which once counted as an id that was not found."""
    store = opened(servers)
    store.apply(PARTITION, [seeds(0, A)])
    store.apply(PARTITION, [seeds(1, A, B, C)])
    crawl = Crawl([store.shard])
    assert crawl.page(C) is not None
    assert crawl.audit()[0].conserved


def test_series_keeps_its_newest_entries_in_the_store_as_in_the_ledger(servers: Server) -> None:
    """An entry an hour for a year and a half: dead letters are enough, since it is the time that moves."""
    log = [Record(offset, NOW_US + offset * ENTRY_US, b"") for offset in range(3 * ENTRIES_MAX // 2)]
    store, ledger = opened(servers), Ledger()
    store.apply(PARTITION, log)
    ledger.apply(PARTITION, log)
    for checkpoint in (False, True):
        if checkpoint:
            store.checkpoint()
        (replica,) = Crawl([store.shard]).follow()
        assert len(replica.series) == ENTRIES_MAX
        assert replica.series == list(ledger.series)
        assert replica.series[-1] == (log[-1].time_us, 0, 0)


def test_a_batch_is_limited_in_bytes_and_a_larger_record_comes_alone(servers: Server) -> None:
    """Dead letters, which have no links to count and are kept as they came; and events with long URLs."""
    half = BYTES_A_BATCH_MAX // 2
    store, taken = opened(servers), list[int]()
    small = [record(0, "http://a.example/", [f"http://a.example/{'b' * 1_900}{i}" for i in range(300)])]
    assert half < len(small[0].value) < BYTES_A_BATCH_MAX
    sizes = [half, half, half, half + 1, BYTES_A_BATCH_MAX, BYTES_A_BATCH_MAX + 1, 10, 10]
    log = [*small, *(Record(at, NOW_US, b"x" * size) for at, size in enumerate(sizes, 1))]
    store.apply(PARTITION, log, lambda step: taken.append(step.events))
    assert taken == [1, 2, 1, 1, 1, 1, 2]
    assert store.shard.books().dead_letters == len(sizes)
    with servers.client() as client:
        letters = client.xrange(store.shard.keys.dead)
    assert [len(fields[b"value"]) for _, fields in letters] == sizes


def test_a_read_of_the_log_stops_where_records_grow_large(servers: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    client = servers.client()
    log = EventLog(client, Shard.open(client, "large").keys)
    log.append([b"%d" % i for i in range(250)], NOW_US)
    end = log.append([b"x" * 1_000] * 250, NOW_US)[log.partition]
    assert [r.offset for r in log.read(0, 1_000)] == list(range(end))
    monkeypatch.setattr("opic.ingest.event_log.BYTES_A_READ", 20_000)
    first = log.read(0, 1_000)
    assert [r.offset for r in first] == list(range(300))  # The third hundred took it past the limit.
    assert [r.offset for r in log.read(300, 1_000, wait_seconds=1)] == list(range(300, 400))
    assert [r.offset for r in log.read(120, 7)] == list(range(120, 127))
    assert log.read(end, 10) == []
