"""Assignment of partitions to the workers of a consumer group: those that share shards go to one worker.

A host is in the partition and in the shard that its one hash gives modulo their numbers P and S. So a partition p has
events of a shard s only if p = s modulo gcd(P, S). Partitions that are equal modulo gcd(P, S) share their shards, and
are one lot. Two workers on one lot would append to the same journals, where of two steps one is refused.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import gcd
from typing import Any, Final

from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyAssignmentExecutor, StickyAssignorMemberMetadataV1
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment
from kafka.structs import TopicPartition

NO_GENERATION: Final = -1  # As the client gives it where a member's metadata has none.


def workers_at_once(partitions: int, shards: int) -> int:
    """Return how many workers of a group can have partitions; further ones stand by.

    >>> workers_at_once(16, 1), workers_at_once(4, 16), workers_at_once(5, 16), workers_at_once(6, 4)
    (1, 4, 1, 2)
    """
    return gcd(partitions, shards)


class ShardAssignor(CooperativeStickyAssignor):  # type: ignore[misc]
    """Gives each lot to one worker: balanced and sticky by lots, and cooperative (KIP-429).

    A partition that moves is first revoked from the worker that has it, and given to the other one in the next
    rebalance. The name is the one of Kafka's own cooperative assignor, whose members understand what the leader of
    their group assigns, whichever of the two computes it.
    """

    def __init__(self, shards: int) -> None:
        """Assign for a crawl with this number of shards."""
        super().__init__()
        self._shards = shards

    def forget(self) -> None:
        """Forget the partitions of a lost membership: otherwise the client claims them when it joins again."""
        self.member_assignment = None

    def assign(self, cluster: Any, members: Sequence[Any]) -> dict[str, ConsumerProtocolAssignment]:
        """Compute what each member of the group gets, as its leader does.

        Args:
            cluster: the client's view of the topics.
            members: with their ids and what they said when they joined.
        """
        said = {member.member_id: self.parse_member_metadata(member.metadata) for member in members}
        topics = {topic for metadata in said.values() for topic in metadata.subscription}
        counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        lots = _Lots({topic: workers_at_once(count, self._shards) for topic, count in counts.items() if count})
        executor = StickyAssignmentExecutor(lots, lots.lots_by_member(said))
        executor.perform_initial_assignment()
        executor.balance()
        owners: dict[TopicPartition, set[str]] = defaultdict(set)
        for member, metadata in said.items():
            for partition in metadata.partitions:
                owners[partition].add(member)
        assignments = {}
        for member in said:
            given = [
                (topic, [number for number in lots.partitions(topic, numbers, counts[topic])
                         if owners[TopicPartition(topic, number)] <= {member}])
                for topic, numbers in sorted(executor.get_final_assignment(member))
            ]  # fmt: skip
            assignments[member] = ConsumerProtocolAssignment(self.version, [entry for entry in given if entry[1]], b"")
        return assignments


class _Lots:
    """The lots in the place of partitions, as the library's sticky algorithm asks for them."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts  # Of the lots of each topic.

    def topics(self) -> set[str]:
        return set(self._counts)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._counts[topic])) if topic in self._counts else None

    def partitions(self, topic: str, numbers: Iterable[int], count: int) -> list[int]:
        """Return the partitions of some lots, of `count` of the topic."""
        return sorted(partition for number in numbers for partition in range(number, count, self._counts[topic]))

    def lots_by_member(
        self, said: Mapping[str, StickyAssignorMemberMetadataV1]
    ) -> dict[str, StickyAssignorMemberMetadataV1]:
        """Return which lots each member has: those of which no other one has more partitions."""
        most: dict[TopicPartition, tuple[int, str]] = {}
        for member, metadata in said.items():
            have = Counter(TopicPartition(partition.topic, partition.partition % self._counts[partition.topic])
                           for partition in metadata.partitions if partition.topic in self._counts)  # fmt: skip
            for lot, count in have.items():
                most[lot] = max(most.get(lot, (0, "")), (count, member))
        lots: dict[str, list[TopicPartition]] = {member: [] for member in said}
        for lot, (_, member) in sorted(most.items()):
            lots[member].append(lot)
        return {
            member: StickyAssignorMemberMetadataV1(list(metadata.subscription), lots[member], NO_GENERATION)
            for member, metadata in said.items()
        }
