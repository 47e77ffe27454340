"""Events wait for the service: whatever happens, each is sent, in its order, under one key until it is accepted."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from opic.client import unsent_events
from opic.client.unsent_events import UnsentEvents

BATCH_BYTES = 1_000


@pytest.fixture(autouse=True, scope="module")
def small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unsent_events, "BATCH_BYTES_MAX", BATCH_BYTES)
        yield


class UnsentMachine(RuleBasedStateMachine):
    """The queue beside a list."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.queue, self.expected, self.number = UnsentEvents(self.folder.name), list[int](), 0
        self.tried: tuple[str, list[bytes]] | None = None

    @rule(count=st.integers(1, 5), size=st.sampled_from([1, BATCH_BYTES]))
    def add(self, count: int, size: int) -> None:
        for _ in range(count):
            self.queue.add({"n": self.number, "links": "x" * size})
            self.expected.append(self.number)
            self.number += 1

    @rule()
    def try_to_send(self) -> None:
        batch = self.queue.batch()
        assert (batch is None) == (not self.expected)
        if self.tried is not None:
            assert batch == self.tried  # The same events under the same key, as long as no answer came.
        self.tried = batch
        numbers = [msgspec.msgpack.decode(event)["n"] for event in batch[1]] if batch else []
        assert numbers == self.expected[: len(numbers)]

    @precondition(lambda self: self.tried is not None)
    @rule()
    def accepted(self) -> None:
        assert self.tried is not None
        self.queue.done()
        del self.expected[: len(self.tried[1])]
        self.tried = None

    @precondition(lambda self: self.tried is not None)
    @rule()
    def refused_as_a_whole(self) -> None:
        self.queue.split()
        self.tried = None

    @rule()
    def close_and_open(self) -> None:
        assert self.queue.save()
        self.queue = UnsentEvents(self.folder.name)

    @invariant()
    def counts_are_right(self) -> None:
        assert len(self.queue) == len(self.expected)

    def teardown(self) -> None:
        while (batch := self.queue.batch()) is not None:
            numbers = [msgspec.msgpack.decode(event)["n"] for event in batch[1]]
            assert numbers == self.expected[: len(numbers)]
            del self.expected[: len(numbers)]
            self.queue.done()
        assert self.expected == []
        assert list(Path(self.folder.name).iterdir()) == []
        self.folder.cleanup()


TestUnsentEvents = UnsentMachine.TestCase


def test_the_buffer_is_full_by_events_or_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = UnsentEvents(None)
    for number in range(unsent_events.EVENTS_MAX - 1):
        queue.add({"n": number})
    assert not queue.full
    queue.add({"n": -1})
    assert queue.full
    assert not queue.save()  # Without JOBDIR.
    monkeypatch.setattr(unsent_events, "BYTES_MAX", 100)
    queue = UnsentEvents(None)
    queue.add({"links": "x" * 100})
    assert queue.full
    assert queue.batch() is not None
    queue.done()
    assert not queue.full
    assert queue.save()
