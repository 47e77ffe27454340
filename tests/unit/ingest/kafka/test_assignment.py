"""Partitions that share a shard go to one worker, whoever joins, leaves or had them, and none to two at once."""

from collections import Counter
from dataclasses import dataclass, field
from math import gcd
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from opic.ingest.kafka.assignment import ShardAssignor, workers_at_once
from opic.ingest.writer import Writer
from opic.urls.canonical import shard_of

TOPIC = "crawl.events"
ROUNDS_MAX = 6  # Of a change: one to revoke, one to give; the library may take another to balance.
NUMBERS = st.integers(1, 24)


@dataclass
class Group:
    """A consumer group as the client moves it on: all join, the leader assigns, all take what they get."""

    partitions: int
    shards: int
    members: dict[str, CooperativeStickyAssignor] = field(default_factory=dict)
    owned: dict[str, set[int]] = field(default_factory=dict)
    rounds: int = 0
    _joined: int = 0

    def join(self, kind: type[CooperativeStickyAssignor] = ShardAssignor) -> str:
        self._joined += 1
        name = f"member-{self._joined:03}"
        self.members[name] = kind(self.shards) if kind is ShardAssignor else kind()
        self.owned[name] = set()
        return name

    def leave(self, name: str) -> None:
        del self.members[name], self.owned[name]

    def settle(self) -> None:
        """Rebalance until no member has revoked anything."""
        for _ in range(ROUNDS_MAX):
            self.rounds += 1
            if not self._rebalance():
                return
        raise AssertionError(f"still moving after {ROUNDS_MAX} rounds: {self.owned}")

    def _rebalance(self) -> bool:
        joined = [
            SimpleNamespace(
                member_id=name, metadata=ConsumerProtocolSubscription.decode(assignor.metadata([TOPIC]).encode())
            )
            for name, assignor in self.members.items()
        ]
        cluster = SimpleNamespace(topics=lambda: {TOPIC}, partitions_for_topic=lambda _: set(range(self.partitions)))
        leader: Any = next(iter(self.members.values()))
        given, revoked = leader.assign(cluster, joined), False
        before = {at: name for name, numbers in self.owned.items() for at in numbers}
        for name, assignor in self.members.items():
            told = ConsumerProtocolAssignment.decode(given[name].encode())
            now = {partition.partition for partition in told.partitions()}
            assert all(before.get(at, name) == name for at in now), "given while another has it"
            revoked |= bool(self.owned[name] - now)
            self.owned[name] = now
            assignor.on_assignment(told, self.rounds)
        return revoked

    def check(self) -> None:
        """Each partition has one owner, lots are whole, and no member has two lots more than another."""
        if not self.members:
            return
        assert Counter(at for one in self.owned.values() for at in one) == Counter(range(self.partitions))
        lots = gcd(self.partitions, self.shards)
        found = {name: {at % lots for at in numbers} for name, numbers in self.owned.items()}
        assert sorted(lot for one in found.values() for lot in one) == list(range(lots))
        sizes = [len(one) for one in found.values()]
        assert max(sizes) - min(sizes) <= 1
        assert sum(size > 0 for size in sizes) == min(len(self.members), workers_at_once(self.partitions, self.shards))


@given(NUMBERS, NUMBERS, st.lists(st.integers(0, 7), max_size=8))
def test_each_lot_has_one_owner_whoever_joins_or_leaves(partitions: int, shards: int, acts: list[int]) -> None:
    group = Group(partitions, shards)
    for act in acts:
        before = {name: set(numbers) for name, numbers in group.owned.items()}
        if act < len(group.members) and act % 2:
            group.leave(gone := sorted(group.members)[act])
            group.settle()
            assert all(group.owned[name] >= had for name, had in before.items() if name != gone)
        else:
            joined = group.join()
            group.settle()
            assert all(group.owned[name] <= had for name, had in before.items())
            assert group.owned[joined] or len(group.members) > gcd(partitions, shards)
        group.check()


@given(NUMBERS, NUMBERS, st.integers(1, 6))
def test_group_of_the_library_s_assignor_is_upgraded_member_by_member(partitions: int, shards: int, count: int) -> None:
    group = Group(partitions, shards)
    old = [group.join(CooperativeStickyAssignor) for _ in range(count)]
    group.settle()
    for name in old:
        group.leave(name)
        group.join()
        group.settle()
        assert Counter(at for one in group.owned.values() for at in one) == Counter(range(partitions))
    group.check()


@given(NUMBERS, st.integers(1, 12), st.integers(1, 12), st.integers(1, 5))
def test_lots_stay_whole_when_partitions_are_added(shards: int, partitions: int, more: int, count: int) -> None:
    group = Group(partitions, shards)
    for _ in range(count):
        group.join()
    group.settle()
    group.partitions += more
    group.settle()
    group.check()


def test_member_that_lost_its_membership_names_nothing_of_what_it_had() -> None:
    """Else its partitions would be held back for it, though it has none to revoke."""
    group = Group(4, 4)
    zombie = group.join()
    group.settle()
    group.owned[zombie] = set()
    assignor = group.members[zombie]
    assert isinstance(assignor, ShardAssignor)
    assignor.forget()
    group.join()
    group.settle()
    group.check()


@given(NUMBERS, NUMBERS, st.text("abcdefghij", min_size=1, max_size=8))
def test_host_is_in_a_partition_and_a_shard_of_one_lot(partitions: int, shards: int, name: str) -> None:
    host, lots = f"{name}.example", workers_at_once(partitions, shards)
    assert shard_of(host, partitions) % lots == shard_of(host, shards) % lots


@pytest.mark.parametrize(("partitions", "shards"), [(1, 1), (3, 1), (5, 4), (4, 16), (6, 4), (16, 16), (7, 3), (2, 16)])
def test_each_shard_is_delivered_to_by_one_partition_of_its_lot(partitions: int, shards: int) -> None:
    writer: Any = SimpleNamespace(crawl=range(shards))
    found = {partition: Writer.responsible(writer, partition, partitions) for partition in range(partitions)}
    assert sorted(shard for some in found.values() for shard in some) == list(range(shards))
    lots = workers_at_once(partitions, shards)
    assert all(shard % lots == partition % lots for partition, some in found.items() for shard in some)
