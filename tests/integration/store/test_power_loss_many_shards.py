"""Many shards, one of which loses the end of what it had written: what others took of it, or it of them, stays true.

Servers here promise nothing by themselves: whatever was written since the last barrier may be gone after a power loss.
So an entry may be taken only once the shard that sent it has it for good, and be trimmed only once the shard that took
it has. Without these rules the same losses are found to lose cash, or are refused.
"""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from chaos.bank import expected_of, inspect
from conftest import lend_cluster
from logs import PARTITION, record
from redis_cluster import Cluster, Node

from opic.errors import StoreError, StoreUnavailable, TailLost
from opic.ingest import ShardWriter, Writer
from opic.model.events import Record
from opic.replica import Crawl
from opic.store import Shard
from opic.urls.canonical import host_of, shard_of

pytestmark = pytest.mark.slow

SHARDS = 4
SEEDS = 2
PAGES = [f"http://{host}{n}.org/{page}" for host in "abcd" for n in range(4) for page in range(2)]


@pytest.fixture
def cluster(running_clusters: dict[tuple[str, int], Cluster]) -> Iterator[Cluster]:
    """An empty real cluster of the bundled Valkey."""
    yield from lend_cluster("valkey", 0, running_clusters)


class Crash(Exception):
    """The worker's process ends here."""


@dataclass
class Disk:
    """What of a node's file is on the disk for good: up to where it had come at the last barrier."""

    node: Node
    file: Path = field(init=False)
    bytes: int = 0

    def __post_init__(self) -> None:
        self.sync()

    def last(self) -> Path:
        files = (self.node.directory / "appendonlydir").glob("*.incr.aof")
        return max(files, key=lambda path: int(path.name.split(".")[-3]))

    def sync(self) -> None:
        self.file = self.last()
        self.bytes = self.file.stat().st_size

    def lose(self, rng: random.Random, *, everything: bool) -> None:
        """Lose some of what is not there for good, or all."""
        last = self.last()
        safe, size = self.bytes if last == self.file else 0, last.stat().st_size
        os.truncate(last, safe if everything else rng.randint(safe, size))


class PowerLoss:
    """A crawl on a cluster whose workers crash and whose nodes lose what was not synced."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster, self.rng = cluster, random.Random(seed)
        self.crawl = Crawl.open(cluster.client(), f"loss-{seed}", {"shards": SHARDS, "measures_max": 64})
        self.owner = {shard.number: cluster.owner(shard.keys.books) for shard in self.crawl.shards}
        self.disks = {node.port: Disk(node) for node in cluster.nodes}
        self.ignored: Callable[[], bool] = lambda: False
        self.log = [self.event(offset) for offset in range(200)]

    def event(self, offset: int) -> Record:
        return record(offset, self.rng.choice(PAGES), self.rng.sample(PAGES, 5), fetched_at=1e9 + offset)

    @contextmanager
    def crashes(self, chance: float) -> Iterator[None]:
        """Let the worker end now and then, before or after what it was about to do."""
        confirm, barrier = ShardWriter._confirm, self.barrier

        def at_random(before: bool) -> None:
            if self.rng.random() < chance:
                raise Crash("before" if before else "after")

        def confirming(store: ShardWriter, *args: Any) -> Any:
            at_random(True)
            since = confirm(store, *args)
            at_random(False)
            return since

        def passing(shard: Shard) -> None:
            at_random(True)
            barrier(shard)
            at_random(False)

        with patch.object(ShardWriter, "_confirm", confirming), patch.object(Shard, "barrier", passing):
            yield

    def barrier(self, shard: Shard) -> None:
        if not self.ignored():
            self.disks[self.owner[shard.number].port].sync()

    def lose_power(self, node: Node | None = None, *, everything: bool = False) -> None:
        """Let a node end, and lose some or all of what is not there for good."""
        node = node or self.rng.choice(self.cluster.nodes)
        self.cluster.kill(node)
        self.disks[node.port].lose(self.rng, everything=everything)
        self.cluster.restart(node)
        # What it has read from its file is there for good.
        self.disks[node.port].sync()

    def run(self, rounds: int = 14) -> None:
        """Work, crash and lose power; then let everything arrive."""
        writer = Writer(self.crawl)
        with self.crashes(0.03):
            for _ in range(rounds):
                try:
                    for _ in range(self.rng.randrange(1, 5)):
                        at = writer.resume(PARTITION)
                        writer.apply(PARTITION, self.log[at : at + self.rng.randrange(1, 20)], since=at)
                        writer.deliver(self.rng.sample(range(SHARDS), 2))
                except (Crash, StoreUnavailable):
                    pass
                if self.rng.random() < 0.4:
                    self.lose_power()
                if self.rng.random() < 0.5:
                    writer = Writer(self.crawl)
        with self.crashes(0.0):
            writer = Writer(self.crawl)
            while (at := writer.resume(PARTITION)) < len(self.log):
                writer.apply(PARTITION, self.log[at:], since=at)
            while writer.deliver():
                pass

    def wrong(self) -> list[str]:
        return inspect(self.crawl, expected_of(self.log))


def test_no_grain_is_lost_with_the_last_writes_of_a_shard(cluster: Cluster) -> None:
    for seed in range(SEEDS):
        loss = PowerLoss(cluster, seed)
        loss.run()
        assert loss.wrong() == [], f"seed {seed}"


# Each rule by itself: the very moment that it is for.


def page_in(shard: int) -> str:
    return next(url for url in PAGES if shard_of(host_of(url), SHARDS) == shard)


def other_shard(loss: PowerLoss) -> tuple[int, int]:
    """Two shards on two nodes."""
    return next((a, b) for a in range(SHARDS) for b in range(SHARDS) if loss.owner[a] is not loss.owner[b])


def settle(loss: PowerLoss, writer: Writer) -> None:
    while (at := writer.resume(PARTITION)) < len(loss.log):
        writer.apply(PARTITION, loss.log[at:], since=at)
    while writer.deliver():
        pass


@pytest.mark.parametrize("who", ["another worker", "another, after others wrote", "the same, which has nothing for it"])
def test_shard_behind_a_resume_point_gets_its_records_again(cluster: Cluster, who: str) -> None:
    """Its server lost them after the resume point, on another server, had moved past them."""
    loss = PowerLoss(cluster, 3)
    home = loss.crawl.home(PARTITION).number
    lost = next(shard for shard in range(SHARDS) if loss.owner[shard] is not loss.owner[home])
    pages = [page_in(home), page_in(lost)]  # Which link to nobody: so no digest of an outbox tells either.
    loss.log = [record(offset, pages[offset % 2], fetched_at=1e9 + offset) for offset in range(20)]
    worker = Writer(loss.crawl)
    worker.apply(PARTITION, loss.log[:11])
    assert worker.resume(PARTITION) == 11
    for disk in loss.disks.values():
        disk.sync()
    worker.apply(PARTITION, loss.log[11:16], since=11)
    loss.lose_power(loss.owner[lost], everything=True)
    if who.startswith("another"):
        worker = Writer(Crawl.open(cluster.client(), loss.crawl.shards[0].keys.crawl))
    if who.endswith("wrote"):
        worker.apply("log/other", [record(0, page_in(lost))])
    if who.startswith("the same"):
        worker.apply(PARTITION, loss.log[16:17], since=16)  # For the shard at home.
        worker.deliver()
    assert loss.crawl.resume(PARTITION) >= 16
    assert worker.resume(PARTITION) == 10
    with pytest.raises(TailLost):
        Writer(loss.crawl).apply(PARTITION, loss.log[16:], since=16)
    settle(loss, worker)
    assert worker.resume(PARTITION) == 20
    reads = {page.url: page.reads for page in loss.crawl.pages()}
    assert reads == dict.fromkeys(pages, 10) | ({page_in(lost): 11} if who.endswith("wrote") else {})


@pytest.mark.parametrize("held", [True, False], ids=["held", "broken"])
def test_entry_is_taken_only_once_its_sender_has_made_it_durable(cluster: Cluster, held: bool) -> None:
    loss = PowerLoss(cluster, 1)
    a, b = other_shard(loss)
    loss.log = [record(0, page_in(a), [page_in(b)], fetched_at=1e9), record(1, page_in(a), PAGES, fetched_at=1e9 + 1)]
    loss.ignored = lambda: True  # The worker dies after its step, before it sees to it that it is there for good.
    with loss.crashes(0.0):
        Writer(loss.crawl).stores[a].apply(PARTITION, loss.log[:1])
        loss.ignored = lambda: not held
        Writer(loss.crawl).deliver([b])
        loss.lose_power(loss.owner[a], everything=True)
        loss.ignored = lambda: False
        if held:
            settle(loss, Writer(loss.crawl))
            assert loss.wrong() == []
        else:  # The same number comes again with other cash, and not after the entry that was taken.
            Writer(loss.crawl).stores[a].apply(PARTITION, loss.log)  # Both in one step this time.
            with pytest.raises(StoreError, match="does not follow the last entry taken"):
                settle(loss, Writer(loss.crawl))


@pytest.mark.parametrize("held", [True, False], ids=["held", "broken"])
def test_entry_is_dropped_only_once_its_receiver_has_made_it_durable(cluster: Cluster, held: bool) -> None:
    loss = PowerLoss(cluster, 2)
    a, b = other_shard(loss)
    loss.log = [record(0, page_in(a), [page_in(b)], fetched_at=1e9)]
    with loss.crashes(0.0):
        Writer(loss.crawl).apply(PARTITION, loss.log)
        loss.ignored = lambda: not held
        Writer(loss.crawl).deliver([b])
        loss.lose_power(loss.owner[b], everything=True)
        loss.ignored = lambda: False
        if held:
            settle(loss, Writer(loss.crawl))
            assert loss.wrong() == []
        else:
            with pytest.raises(StoreError, match="lost the end of what it had written"):
                settle(loss, Writer(loss.crawl))
