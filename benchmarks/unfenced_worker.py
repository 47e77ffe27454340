"""A worker as it is, but for what makes each event take effect once: what `bench_kafka.py` compares with.

It keeps where it is in memory. Steps neither check nor write offsets of the topic, don't check the version that tells
that somebody else stepped in between, and no resume point is written. What shards send to each other keeps its numbers:
there is no cash between shards without. So it is right while nothing goes wrong, and wrong after the first redelivery.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import opic.store.library
import opic.store.step
from consumers.crawl_events import main
from opic.events import Record
from opic.store.batch import Batch
from opic.store.step import Step, Store
from opic.store.writer import Writer
from opic.transfer import is_own

FENCE = """\
  local version = redis.call('HGET', books, 'version')
  if version ~= args[1] then return {'VERSION', version} end
"""


class UnfencedBatch(Batch):
    """A batch that tells the store nothing of offsets of the topic."""

    def __init__(self, *args: Any) -> None:
        """Forget them."""
        super().__init__(*args)
        triples = zip(*[iter(self._advances)] * 3, strict=True)
        self._advances = [text for triple in triples if is_own(triple[0]) for text in triple]


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
        if self._path.name == "opic.lua":
            assert FENCE in text
            text = text.replace(FENCE, "")
        return text


def take_down_the_fence() -> None:
    """Put these in the place of what the worker uses."""
    at: dict[str, int] = {}
    path, offsets_held, apply = opic.store.library.Path, Store._offsets_held, Writer.apply

    def held(store: Store, partitions: Iterable[str]) -> dict[str, int]:
        names = set(partitions)
        topic = dict.fromkeys([name for name in names if not is_own(name)], 0)
        store._next.update(topic)
        return topic | offsets_held(store, names - topic.keys())

    def applied(writer: Writer, partition: str, records: Sequence[Record], on_step: Callable[[Step], object]) -> None:
        apply(writer, partition, records, on_step)
        at[partition] = records[-1].offset + 1

    opic.store.library.Path = lambda given: _Library(path(given))  # type: ignore[assignment,misc]
    opic.store.step.Batch = UnfencedBatch  # type: ignore[misc]
    Store._offsets_held = held  # type: ignore[method-assign]
    Writer.apply = applied  # type: ignore[assignment,method-assign]
    Writer.resume = lambda _, partition: at.get(partition, 0)  # type: ignore[method-assign]
    Writer._move_resume = lambda *_: None  # type: ignore[method-assign]


if __name__ == "__main__":
    take_down_the_fence()
    sys.exit(main())
