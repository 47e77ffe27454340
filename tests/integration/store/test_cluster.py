"""A real Redis Cluster under the store: slots move, primaries die, nodes come; each event takes effect once."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from logs import NOW_US, PARTITION, pep_history
from ports import free_port
from processes import wait_until
from record_sources import Durable, Listed, work_through
from redis_cluster import SLOTS, Cluster, Node
from same_state import assert_same, assert_same_replica
from servers import Server

from opic.errors import OpicError, StoreError, StoreUnavailable, TailLost
from opic.ingest import ShardWriter, Writer
from opic.ingest.event_log import EventLog
from opic.model.ledger import Ledger
from opic.ops.doctor import run_checks
from opic.replica import Crawl
from opic.service.backend import Backend
from opic.settings import Settings
from opic.store import Shard, connect
from opic.store.cluster import PAUSE_SECONDS
from opic.store.connection import store_errors
from opic.store.durability import Durability
from opic.store.library import LIBRARY

pytestmark = pytest.mark.slow

LOG = pep_history()[:3_000]
KEY = "opic:{default:0}:books"
WAITED_SECONDS = 20.0  # In a server, for a record of the log.


def ledger_of(records: Any = LOG) -> Ledger:
    ledger = Ledger()
    ledger.apply(PARTITION, records)
    return ledger


def test_log_takes_effect_on_a_cluster_as_in_the_ledger(cluster: Cluster) -> None:
    store = ShardWriter(Shard.open(cluster.client()))
    store.apply(PARTITION, LOG)
    assert_same(store.shard, ledger_of())


def test_all_that_the_service_does_works_on_a_cluster(cluster: Cluster) -> None:
    backend = Backend(Settings.load(store=cluster.url, host_delay_seconds=0), cluster.url)
    try:
        backend.settle_here(backend.accept([record.value for record in LOG], time_us=NOW_US))
        top = backend.query.top(10)
        assert len(top) == 10
        (page,) = backend.frontier.next(1, "crawler").pages
        assert backend.frontier.release([page.lease]).released == 1
        assert backend.stats()["lag"] == 0
        assert backend.crawl.audit()[0].conserved
        assert [r.offset for r in backend.log.read(len(LOG), 10, wait_seconds=0.1)] == []
    finally:
        backend.close()


def test_doctor_checks_all_nodes(cluster: Cluster) -> None:
    def found() -> dict[str, tuple[str, str]]:
        settings = Settings.load(store=cluster.url)
        return {one.check: (one.verdict, one.text) for one in run_checks(lambda: settings)}

    ShardWriter(Shard.open(cluster.client())).apply(PARTITION, LOG[:100])
    first = found()
    assert [check for check, (verdict, _) in first.items() if verdict != "ok"] == ["workers"]  # None runs.
    assert "a cluster, 3 primaries of " in first["store"][1]
    other = cluster.other(cluster.owner(KEY))
    other.ask("CONFIG", "SET", "appendfsync", "everysec")
    assert found()["durability"][0] == "warn"
    other.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert found()["eviction"][0] == "FAIL"


@contextmanager
def meanwhile(deed: Any) -> Iterator[None]:
    """Do something in a thread while the block runs, again and again until it ends."""
    done, failed = threading.Event(), []

    def run() -> None:
        try:
            while not done.is_set():
                deed()
        except Exception as error:  # noqa: BLE001 - handed to the test
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        if failed:  # The block may have waited for it in vain: this is why.
            raise failed[0]


def test_slot_that_moves_back_and_forth_costs_only_time(cluster: Cluster) -> None:
    """Readers meanwhile get an error or a state that is conserved, never columns of two instants."""
    store, reader = ShardWriter(Shard.open(cluster.client())), Crawl([Shard.open(cluster.client(retries=0))])
    store.apply(PARTITION, LOG[:500])
    known = len(store.replica)
    home = cluster.owner(KEY)
    away = cluster.other(home)
    moves, audits, slowest = 0, 0, 0.0

    def move() -> None:
        nonlocal moves
        cluster.migrate_slot(KEY, away if cluster.owner(KEY) is home else home, between=lambda: time.sleep(0.005))
        moves += 1
        time.sleep(0.05)

    def look() -> None:
        nonlocal audits, slowest
        began = time.monotonic()
        audit, _ = reader.audit()
        slowest = max(slowest, time.monotonic() - began)
        assert audit.conserved, audit.mismatches
        assert audit.minted == reader.rules.minted
        assert len(reader.replicas[0]) >= known
        audits += 1

    with meanwhile(move), meanwhile(look):
        work_through(store, Listed(LOG, 50))
    assert moves > 3, "the log was through before the slot moved"
    assert slowest > PAUSE_SECONDS, "the moves were not felt"
    assert audits
    assert_same(store.shard, ledger_of())


def test_reader_goes_on_when_the_slot_that_it_waits_at_moves(cluster: Cluster) -> None:
    """The worker's read of the log is the one call that waits in a server; followers look again and again."""
    store = ShardWriter(Shard.open(cluster.client()))
    keys, reader = store.shard.keys, Crawl([Shard.open(cluster.client())])
    sending, waiting = (EventLog(cluster.client(retries=0), keys) for _ in range(2))
    sending.append([LOG[0].value], NOW_US)
    store.apply(PARTITION, waiting.read(0, 10))
    reader.follow()
    found: list[Any] = []

    def wait() -> None:
        while not found:
            try:
                found.extend(waiting.read(1, 10, wait_seconds=WAITED_SECONDS))
            except StoreUnavailable as error:
                refusals.append(str(error))

    refusals, home, thread = list[str](), cluster.owner(KEY), threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: home.info("clients")["blocked_clients"] == 1)
    began = time.monotonic()
    cluster.migrate_slot(KEY, cluster.other(home))
    sending.append([LOG[1].value], NOW_US)
    thread.join()
    assert time.monotonic() - began < WAITED_SECONDS, "it waited at a server that has nothing to say"
    assert [(one.offset, one.value) for one in found] == [(1, LOG[1].value)]
    work_through(store, Listed(LOG[:2]))
    assert_same_replica(reader.follow()[0], store.replica)
    assert_same(store.shard, ledger_of(LOG[:2]))


def test_node_that_joined_later_gets_the_library_when_it_is_called(cluster: Cluster) -> None:
    store = ShardWriter(Shard.open(cluster.client()))
    store.apply(PARTITION, LOG[:500])
    added = cluster.add_node()
    assert added.ask("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY) == []
    cluster.migrate_slot(KEY, added)
    other = Shard.open(cluster.client())
    added.ask("FUNCTION", "FLUSH")
    EventLog(other.client, other.keys).append([b"{}"], NOW_US)  # By the client.
    added.ask("FUNCTION", "FLUSH")
    work_through(store, Listed(LOG))  # By the line.
    assert added.ask("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY) != []
    assert_same(store.shard, ledger_of())


def test_restarted_primary_costs_only_time(cluster: Cluster) -> None:
    store = ShardWriter(Shard.open(cluster.client(timeout_seconds=5.0)))
    node = cluster.owner(KEY)
    restarts: list[threading.Thread] = []

    def restart() -> None:
        cluster.kill(node)
        cluster.restart(node)

    def before(offset: int) -> None:
        if offset >= 1_000 and not restarts:
            restarts.append(threading.Thread(target=restart))
            restarts[0].start()

    work_through(store, Listed(LOG, 50, before))
    restarts[0].join()
    assert_same(store.shard, ledger_of())


def test_primary_that_dies_loses_nothing_that_a_replica_acknowledged(cluster_of_six: Cluster) -> None:
    """The new primary has no replica until the dead one is back as such: until then nothing counts as durable."""
    shard = Shard.open(cluster_of_six.client())
    shard.durability = Durability(replicas=1, seconds=0.2)
    dead: list[Node] = []

    def before(offset: int) -> None:
        if offset >= 1_500 and not dead:
            dead.append(cluster_of_six.owner(KEY))
            cluster_of_six.kill(dead[0])
        elif dead and not dead[0].alive and cluster_of_six.owner(KEY) is not dead[0]:
            cluster_of_six.restart(dead[0])

    source = Listed(LOG, 50, before)
    work_through(Durable(shard), source)
    assert cluster_of_six.owner(KEY) is not dead[0]
    assert source.asked == sorted(source.asked), "records that counted as durable were read again"
    assert_same(shard, ledger_of())


def test_unreplicated_writes_of_a_dead_primary_are_read_again(cluster_of_six: Cluster) -> None:
    """Asynchronous replication: the replica is away while the primary confirms; then it takes over without that.

    The worker holds records that follow on lost ones. Were they applied, the lost ones would never be.
    """
    store = ShardWriter(Shard.open(cluster_of_six.client()))
    primary = cluster_of_six.owner(KEY)
    replica = cluster_of_six.replica_of(primary)
    work_through(store, Listed(LOG), until=1_000)
    assert primary.ask("WAIT", 1, 10_000) == 1
    cluster_of_six.kill(replica)
    store.apply(PARTITION, LOG[1_000:1_200])
    reader = Crawl([Shard.open(cluster_of_six.client())])
    assert reader.follow()[0].books.reads == ledger_of(LOG[:1_200]).books.reads
    cluster_of_six.kill(primary)
    replica.start()
    cluster_of_six.await_failover(KEY, primary)
    assert Shard.open(cluster_of_six.client()).next_offset(PARTITION) == 1_000
    assert reader.follow()[0].books.reads == ledger_of(LOG[:1_000]).books.reads, "it shows what was lost"

    # As the loop goes on that has records in hand.
    deadline = time.monotonic() + 30
    while True:
        with pytest.raises(StoreUnavailable) as refused:
            store.apply(PARTITION, LOG[1_200:1_300])
        if isinstance(refused.value, TailLost):
            break
        assert time.monotonic() < deadline, refused.value
    work_through(store, Listed(LOG))
    assert_same(store.shard, ledger_of())


def test_too_few_replicas_are_reported_and_the_offset_is_not_durable(cluster_of_six: Cluster) -> None:
    shard = Shard.open(cluster_of_six.client())
    shard.durability = Durability(replicas=2, seconds=0.05)
    with pytest.raises(StoreUnavailable, match=r"only 1 of 2 replicas received the writes within 0\.05 s"):
        Durable(shard).apply(PARTITION, LOG[:100])


def test_planned_failover_loses_nothing_and_is_noticed(cluster_of_six: Cluster) -> None:
    store = ShardWriter(Shard.open(cluster_of_six.client()))
    work_through(store, Listed(LOG), until=1_000)
    run_id, reader = store.shard.run_id, Crawl([Shard.open(cluster_of_six.client())])
    reader.follow()
    cluster_of_six.failover(KEY)
    work_through(store, Listed(LOG))
    assert store.shard.run_id != run_id
    assert_same(store.shard, ledger_of())
    assert_same_replica(reader.follow()[0], store.replica)


# What can't be used is said.


def test_cluster_with_uncovered_slots_is_refused(cluster: Cluster) -> None:
    node = cluster.other(cluster.owner(KEY))
    cluster._changed = True
    slots = [slot for start, end, owner, *_ in node.ask("CLUSTER", "SLOTS") if owner[1] == node.port
             for slot in range(start, end + 1)]  # fmt: skip
    for peer in cluster.nodes:
        peer.ask("CLUSTER", "DELSLOTS", *slots[:10])
    with pytest.raises(StoreError, match=f"nodes for {SLOTS - 10:,} of 16,384 slots"):
        Shard.open(cluster.client())


def test_node_without_slots_is_refused_as_a_store(cluster: Cluster) -> None:
    alone = Node(cluster.binary)
    try:
        alone.start()
        with pytest.raises(StoreError, match="has no slots: assign them to its nodes"):
            connect(f"redis+cluster://{alone.name}")
    finally:
        alone.close()


def test_cluster_that_lost_a_primary_is_down(cluster: Cluster) -> None:
    node = cluster.other(cluster.owner(KEY))
    cluster.kill(node)
    deadline = time.monotonic() + 20
    while cluster.owner(KEY).ask("CLUSTER INFO")["cluster_state"] == "ok":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(StoreUnavailable):
        Shard.open(cluster.client())


def test_any_primary_that_evicts_is_refused(cluster: Cluster) -> None:
    other = cluster.other(cluster.owner(KEY))
    other.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreError, match=f"maxmemory-policy of {other.port} is allkeys-lru.*set it to noeviction"):
        Shard.open(cluster.client())


def test_url_of_the_wrong_kind_is_refused_with_the_right_one(cluster: Cluster, valkey: Server) -> None:
    with pytest.raises(StoreError, match=r"node of a cluster: use redis\+cluster://"):
        Shard.open(connect(f"redis://{cluster.nodes[0].name}"))
    with redis.Redis(unix_socket_path=str(valkey.socket_path)) as client:
        client.config_set("port", port := free_port())
        try:
            with pytest.raises(StoreError, match="is not a cluster: use redis://"):
                connect(f"redis+cluster://127.0.0.1:{port}")
        finally:
            client.config_set("port", "0")


def test_any_node_leads_to_the_primaries(cluster_of_six: Cluster) -> None:
    """Whoever asks for all nodes finds the primaries by any of them, a replica too."""
    replica = cluster_of_six.replica_of(cluster_of_six.owner(KEY))
    assert Shard.open(connect(f"redis+cluster://{replica.name}")).books().live == 0


def test_cluster_that_does_not_answer_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable, match="does not answer"):
        connect("redis+cluster://127.0.0.1:1,127.0.0.1:2")


def test_wrong_password_is_reported_and_none_is_shown(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "opic", "on", ">rightsecret", "~opic:*", "+@all")
    try:
        secret = cluster.url.replace("://", "://opic:rightsecret@")
        assert Shard.open(connect(secret)).books().live == 0
        for url in (secret.replace("right", "wrong"), secret.replace("opic:right", "nobody:right")):
            with pytest.raises(StoreError, match="wrong user or password") as told:
                connect(url)
            assert "secret" not in str(told.value)
    finally:
        for node in cluster.nodes:
            node.ask("ACL", "DELUSER", "opic")


def test_paused_node_delays_a_call_once(cluster: Cluster) -> None:
    shard = Shard.open(cluster.client(timeout_seconds=1.0))
    node = cluster.owner(KEY)
    os.kill(node.pid, signal.SIGSTOP)
    try:
        started = time.monotonic()
        for _ in range(5):
            with pytest.raises(OpicError), store_errors():
                shard.books()
        assert time.monotonic() - started < 5.0
    finally:
        os.kill(node.pid, signal.SIGCONT)
        cluster._changed = True


# Many shards, on all nodes of the cluster.


def balanced(crawl: Crawl) -> None:
    """All that was sent arrived, and no grain is lost or doubled."""
    whole, parts = crawl.audit()
    assert whole.conserved, whole.mismatches
    assert crawl.waiting() == whole.in_flight == 0
    assert len({books.credit for books in crawl.books()}) == 1
    assert whole.minted == sum(part.minted for part in parts)


def test_shards_on_a_cluster_whose_primary_dies_keep_every_grain(cluster_of_six: Cluster) -> None:
    """With a replica waited for. Without, a shard may lose what another has taken: see docs/decisions."""
    crawl = Crawl.open(cluster_of_six.client(), shards=6, durability=Durability(replicas=1, seconds=0.5))
    dead: list[Node] = []

    def before(offset: int) -> None:
        if offset >= 1_000 and not dead:
            dead.append(cluster_of_six.owner(KEY))
            cluster_of_six.kill(dead[0])
        elif dead and not dead[0].alive and cluster_of_six.owner(KEY) is not dead[0]:
            cluster_of_six.restart(dead[0])

    writer = Writer(crawl)
    work_through(writer, Listed(LOG, 100, before))
    assert dead
    while writer.deliver():
        pass
    balanced(crawl)
    expected = ledger_of()
    found = {page.url: page for page in crawl.pages()}
    assert found.keys() == expected.pages.keys()
    assert {url: page.reads for url, page in found.items()} == {u: p.reads for u, p in expected.pages.items()}


def test_shards_whose_slots_move_keep_every_grain(cluster: Cluster) -> None:
    crawl = Crawl.open(cluster.client(), shards=4)
    keys = [shard.keys.books for shard in crawl.shards]
    turns = iter(range(1_000))

    def move() -> None:
        key = keys[next(turns) % len(keys)]
        cluster.migrate_slot(key, cluster.other(cluster.owner(key)))
        time.sleep(0.05)

    writer = Writer(crawl)
    with meanwhile(move):
        work_through(writer, Listed(LOG, 100))
    while writer.deliver():
        pass
    balanced(crawl)


def test_slots_that_valkey_moves_at_once_lose_and_double_nothing(valkey_cluster: Cluster) -> None:
    """Also to a node that has no function library: that does not come with a slot."""
    cluster = valkey_cluster
    added = cluster.add_node()
    added.ask("CONFIG", "SET", "cluster-allow-replica-migration", "no")  # Else it is a replica once it has no slot.
    backend = Backend(Settings.load(store=cluster.url, shards=4, host_delay_seconds=0), cluster.url)
    crawl = backend.crawl
    keys = [shard.keys.books for shard in crawl.shards]
    log = LOG[:1_500]
    source, worked_through, moves, leased = Listed(log, 50), threading.Event(), 0, 0

    def move() -> None:
        """And let some events through before the next one."""
        nonlocal moves
        key, asked = keys[moves % len(keys)], len(source.asked)
        to = cluster.other(added) if cluster.owner(key) is added else added
        cluster.migrate_slot_at_once(key, to)
        moves += 1
        wait_until(lambda: len(source.asked) > asked or worked_through.is_set())

    def ask() -> None:
        nonlocal leased
        pages = backend.frontier.next(3, "crawler").pages
        backend.frontier.release([page.lease for page in pages])
        leased += len(pages)

    try:
        assert added.ask("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY) == []
        writer = Writer(Crawl.open(cluster.client(), shards=4))
        with meanwhile(move), meanwhile(ask):
            try:
                work_through(writer, source)
            finally:
                worked_through.set()
            wait_until(lambda: moves >= 2 * len(keys) and leased > 3)
        assert added.ask("FUNCTION", "LIST", "LIBRARYNAME", LIBRARY) != []
        while writer.deliver():
            pass
        balanced(crawl)
        found = {page.url: page.reads for page in crawl.pages()}
        assert found == {url: page.reads for url, page in ledger_of(log).pages.items()}
    finally:
        backend.close()


def test_pipeline_waits_while_its_keys_are_on_both_sides_of_a_move(cluster: Cluster) -> None:
    client, names = cluster.client(), [f"{{half-moved}}{number}" for number in range(40)]
    for name in names:
        client.set(name, 1)
    found: list[Any] = []

    def ask() -> None:
        with store_errors(), client.pipeline(transaction=False) as pipe:
            pipe.exists(*names)
            found.extend(pipe.execute())

    asking, calls = threading.Thread(target=ask), iter(range(1_000))

    def half_moved() -> None:
        if next(calls) == 1:
            asking.start()
            asking.join(1.5)  # Longer than a few quick repeats take.
            assert asking.is_alive()

    cluster.migrate_slot(names[0], cluster.other(cluster.owner(names[0])), between=half_moved)
    asking.join()
    assert found == [len(names)]
