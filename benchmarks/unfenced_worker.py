"""A worker as it is, but for what makes each event take effect once: what `bench_kafka.py` compares with.

It keeps where it is in memory. Steps neither check nor write offsets of the topic, don't check the head that tells that
somebody else appended in between, and no resume point is written. What shards send to each other keeps its numbers:
there is no cash between shards without. So it is right while nothing goes wrong, and wrong after the first redelivery.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import opic.ingest.shard_writer
import opic.store.library
from consumers.crawl_events import main
from opic.ingest import ShardWriter, Step, Writer
from opic.ingest.writer import Taken
from opic.model.events import Record
from opic.model.transfer import is_own
from opic.replica.batch import Batch

FENCE = """\
  local other = moved(keys.head, args[1], args[2])
  if other then return other[2] == args[3] and other[3] == args[4] and {'OK'} or other end
"""


class UnfencedBatch(Batch):
    """A batch that tells the store nothing of offsets of the topic."""

    def __init__(self, *args: Any) -> None:
        """Forget them."""
        super().__init__(*args)
        self.offsets = {name: offset for name, offset in self.offsets.items() if is_own(name)}


class _Library:
    """The function library's files, without the fence."""

    def __init__(self, path: Any) -> None:
        self._path = path

    def __truediv__(self, name: str) -> "_Library":
        return _Library(self._path / name)

    @property
    def parent(self) -> "_Library":
        return _Library(self._path.parent)

    def read_text(self) -> str:
        text: str = self._path.read_text()
        if self._path.name == "journal.lua":
            assert FENCE in text
            text = text.replace(FENCE, "")
        return text


def take_down_the_fence() -> None:
    """Put these in the place of what the worker uses."""
    at: dict[str, int] = {}
    path, offsets_held, apply = opic.store.library.Path, ShardWriter._offsets_held, Writer._apply_routed
    apply_alone = Writer.apply

    def held(store: ShardWriter, partitions: Iterable[str]) -> dict[str, int]:
        names = set(partitions)
        topic = dict.fromkeys([name for name in names if not is_own(name)], 0)
        return topic | offsets_held(store, names - topic.keys())

    def applied(
        writer: Writer, partition: str, records: Sequence[Record], on_step: Callable[[Step], object], since: int
    ) -> None:
        apply_alone(writer, partition, records, on_step, since)
        at[partition] = records[-1].offset + 1

    def routed(writer: Writer, takings: Sequence[Taken], *rest: Any, **more: Any) -> None:
        apply(writer, takings, *rest, **more)  # Of many shards: a portion at a time.
        at.update({taken.partition: taken.end for taken in takings})

    opic.store.library.Path = lambda given: _Library(path(given))  # type: ignore[assignment,misc]
    opic.ingest.shard_writer.Batch = UnfencedBatch  # type: ignore[misc]
    ShardWriter._offsets_held = held  # type: ignore[method-assign]
    Writer.apply = applied  # type: ignore[assignment,method-assign]
    Writer._apply_routed = routed  # type: ignore[assignment,method-assign]
    Writer.resume = lambda _, partition: at.get(partition, 0)  # type: ignore[method-assign]
    Writer._move_resume = lambda *_: None  # type: ignore[method-assign]


if __name__ == "__main__":
    take_down_the_fence()
    sys.exit(main())
