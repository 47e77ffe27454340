"""Who loads or follows a shard while it is written is exact or says that it could not: never wrong, never old."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
from conftest import ONE_SERVER
from logs import PARTITION, pep_history
from msgpack import packb
from same_state import assert_same, assert_same_replica, small_batches, small_blocks
from servers import Server

from opic.errors import StoreDamaged, StoreUnavailable
from opic.ingest import ShardWriter
from opic.model.ledger import Ledger
from opic.replica import Crawl, Replica
from opic.replica.follow import Follower
from opic.store import Shard
from opic.store.connection import Client, ask

LOG = pep_history()[:1_500]
TINY = 3_000  # Bytes of journal.
TURNS = 10


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Blocks of 16 pages, each in a call of its own, read two at a time; records of some events."""
    names = {"BLOCKS_A_READ": 2, "ENTRIES_LOADED_MAX": 3, "ENTRIES_MAX": 2, "JITTER_SECONDS": 0.0}
    with small_blocks(16, 4), small_batches(60), patch.multiple("opic.replica.follow", **names):
        yield


class Pausing:
    """A client whose reader rests after each of its answers while something happens."""

    def __init__(self, client: Any, pause: Callable[[], object]) -> None:
        self._client, self._pause = client, pause

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name not in ("hget", "hgetall"):
            return found

        def asking(*args: Any) -> Any:
            answer = found(*args)
            self._pause()
            return answer

        return asking


class Writing:
    """A worker with a journal of almost no bytes, whose log comes round again with other times."""

    def __init__(self, shard: Shard) -> None:
        self.store, self.done = ShardWriter(shard, journal_bytes=TINY), 0

    def go_on(self, events: int) -> None:
        self.done += events
        assert self.done <= len(LOG)
        self.store.apply(PARTITION, LOG[: self.done])

    def turn_over(self) -> None:
        """Append, write blocks and trim until nothing of the journal is left that was there before."""
        for _ in range(TURNS):
            last = self.store.replica.head.lsn
            while (first := self.first()) <= last:
                self.go_on(4)
                self.store.checkpointer.budget = 64
                self.store.checkpoint()
                assert self.first() > first

    def first(self) -> int:
        ((name, _),) = self.store.shard.client.xrange(self.store.shard.keys.journal, count=1)
        return int(name.partition(b"-")[0])

    def assert_same(self, replica: Replica) -> None:
        ledger = Ledger()
        ledger.apply(PARTITION, LOG[: self.done])
        assert_same(self.store.shard, ledger)
        self.store.follower.catch_up()
        assert_same_replica(replica, self.store.replica)


def load_with_pauses(shard: Shard, pause: Callable[[int], object]) -> tuple[Replica, int]:
    """Load a replica; tell `pause` the number of each read of the store once it was answered; return their count."""
    numbers = count()
    pausing = Pausing(shard.client, lambda: pause(next(numbers)))

    def asking(client: Client, commands: Any) -> Any:
        answers = ask(client, commands)
        if client is pausing:
            pause(next(numbers))
        return answers

    replica = Replica(shard.rules, shard.number)
    follower = Follower(pausing, shard.keys, replica)
    with patch("opic.replica.follow.ask", asking):
        follower.load()
    return replica, next(numbers)


@pytest.mark.slow
@ONE_SERVER
def test_loader_overtaken_after_any_of_its_reads_ends_in_the_state_of_the_writer(servers: Server) -> None:
    """Meanwhile journal and checkpoint turn over ten times: what it has read so far is of another time."""
    writing = Writing(Shard.open(servers.client()))
    writing.go_on(300)
    shard = Shard.open(servers.client())
    _, reads = load_with_pauses(shard, lambda _: None)
    assert reads > 6
    for paused in range(reads):

        def pause(number: int, paused: int = paused) -> None:
            if number == paused:
                writing.turn_over()

        replica, _ = load_with_pauses(shard, pause)
        follower = Follower(shard.client, shard.keys, replica)
        follower._loaded = True
        follower.catch_up()
        writing.assert_same(replica)


def test_loader_overtaken_after_each_of_its_reads_gives_up_with_an_error(valkey: Server) -> None:
    writing = Writing(Shard.open(valkey.client()))
    writing.go_on(100)

    def pause(_: int) -> None:
        if writing.done + 50 < len(LOG):
            writing.go_on(5)
            writing.store.checkpointer.budget = 64
            writing.store.checkpoint()

    with patch("opic.replica.follow.LOADS_MAX", 5), pytest.raises(StoreUnavailable, match="trimmed during every load"):
        load_with_pauses(Shard.open(valkey.client()), pause)


def test_reader_loads_again_when_the_journal_is_trimmed_beyond_its_position(servers: Server) -> None:
    writing = Writing(Shard.open(servers.client()))
    writing.go_on(100)
    reader = Crawl([Shard.open(servers.client())])
    (replica,) = reader.follow()
    loads = replica.loads
    for _ in range(3):
        writing.turn_over()
        reader.follow()
        assert replica.loads > loads
        loads = replica.loads
        writing.assert_same(replica)
        writing.go_on(1)
        reader.follow()
        assert replica.loads == loads, "a record that could be read was not followed"


# Damage.


def record_damaged(shard: Shard, change: Callable[[bytes], bytes]) -> None:
    """Change the journal's last record, and put it back under its number."""
    client, key = shard.client, shard.keys.journal
    entries = client.xrange(key)
    client.delete(key)
    for name, fields in entries:
        value = fields[b"r"] if name != entries[-1][0] else change(fields[b"r"])
        client.xadd(key, {"r": value}, id=name)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda record: record[:-1], "damaged"),
        (lambda record: record + b"\0", "damaged"),
        (lambda record: record[:100], "damaged"),
        (lambda _: b"", "damaged"),
        (lambda record: b"OPIX" + record[4:], "format b'OPIX'"),
        (lambda record: record[:4] + b"\xff\x00" + record[6:], "version 255, but this program reads version"),
    ],
)
def test_unreadable_record_is_reported_to_loaders_and_followers(
    valkey: Server, change: Callable[[bytes], bytes], word: str
) -> None:
    writing = Writing(Shard.open(valkey.client()))
    writing.go_on(100)
    following = Crawl([Shard.open(valkey.client())])
    following.follow()
    writing.go_on(1)
    record_damaged(writing.store.shard, change)
    for reader in (following, Crawl([Shard.open(valkey.client())])):
        with pytest.raises(StoreDamaged, match=word):
            reader.follow()


def test_record_with_a_changed_byte_does_not_match_the_head(valkey: Server) -> None:
    """It can be unpacked; its digest is another one, so that nobody takes it for what the head names."""
    writing = Writing(Shard.open(valkey.client()))
    writing.go_on(100)
    following = Crawl([Shard.open(valkey.client())])
    following.follow()
    writing.go_on(1)
    record_damaged(writing.store.shard, lambda record: record[:150] + bytes([record[150] ^ 1]) + record[151:])
    for reader in (following, Crawl([Shard.open(valkey.client())])):
        with pytest.raises(StoreDamaged, match="do not form a chain"):
            reader.follow()


def set_field(name: str, change: Callable[[bytes], bytes | None]) -> Callable[[Shard], None]:
    def changing(shard: Shard) -> None:
        key = shard.keys.block(1)
        found = change(shard.client.hget(key, name))
        shard.client.hdel(key, name)
        if found is not None:
            shard.client.hset(key, name, found)

    return changing


@pytest.mark.parametrize(
    ("change", "word"),
    [
        *((set_field(name, lambda value: value[:-1]), "wrong length") for name in ("v", "f", "p", "o")),
        *((set_field(name, lambda _: None), "wrong length") for name in ("v", "f", "p", "o")),
        (set_field("s", lambda value: value[:-1]), "wrong length"),
        (set_field("s", lambda _: None), "damaged|wrong length"),
        (set_field("l", lambda _: None), "damaged"),
        (set_field("l", lambda _: b"soon"), "damaged"),
        (set_field("l", lambda _: b"1000000"), "of record 1000000, but the journal ends at"),
        (set_field("m", lambda _: None), "damaged"),
        (set_field("y", lambda value: value[:-3]), "a column or the histories are damaged"),
        (set_field("m", lambda value: value[:-3]), "damaged"),
        (lambda shard: shard.client.delete(shard.keys.block(1)), "block 1 of the checkpoint is missing"),
        (lambda shard: shard.client.delete(shard.keys.names_block), "host names: restore a backup"),
        (lambda shard: shard.client.hset(shard.keys.names_block, "l", 1_000_000), "journal ends at"),
        (lambda shard: shard.client.hdel(shard.keys.names_block, "rest"), "block of names is damaged"),
        (lambda shard: shard.client.hset(shard.keys.names_block, "rest", b"\xc1"), "block of names is damaged"),
        (lambda shard: shard.client.hset(shard.keys.names_block, "rest", packb({"series": []})), "names is damaged"),
        (lambda shard: shard.client.delete(shard.keys.journal), "lacks its last record"),
    ],
)
def test_invalid_checkpoint_is_reported(valkey: Server, change: Callable[[Shard], None], word: str) -> None:
    shard = Shard.open(valkey.client())
    store = ShardWriter(shard, journal_bytes=64)
    store.apply(PARTITION, LOG[:500])
    store.checkpoint()
    change(shard)
    with pytest.raises(StoreDamaged, match=word):
        Crawl([shard]).follow()


def test_missing_urls_are_reported(valkey: Server) -> None:
    shard = Shard.open(valkey.client())
    store = ShardWriter(shard, journal_bytes=64)
    store.apply(PARTITION, LOG[:500])
    store.checkpoint()
    shard.client.hdel(shard.keys.block(1), "u0")
    with pytest.raises(StoreDamaged, match="the URL of page 16 is missing"):
        list(Crawl([shard]).pages())
