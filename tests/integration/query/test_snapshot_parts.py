"""The columns of a snapshot are copied while the replica follows, and still are those of one record."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from logs import PARTITION, pep_history
from servers import Server

from opic.errors import StoreUnavailable
from opic.ingest import ShardWriter
from opic.model.cash import Flag
from opic.query import snapshot_parts
from opic.query.crawl_pages import KNOWN_GONE
from opic.query.snapshot_parts import COPIES_MAX, ROOM, Part
from opic.replica import Crawl
from opic.replica.replica import live_cash
from opic.store import Shard


def followed(server: Server) -> tuple[ShardWriter, Crawl]:
    """A writer of a store, and a crawl that follows it."""
    writer = ShardWriter(Shard.open(server.client(), "default", {}))
    return writer, Crawl([writer.shard])


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen in the midst of each copy."""
    take = np.take

    def taken(*given: Any, **named: Any) -> Any:
        happens()
        found = take(*given, **named)
        happens()
        return found

    monkeypatch.setattr(snapshot_parts.np, "take", taken)


def test_pages_that_change_or_become_known_during_a_copy_are_of_its_record(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = pep_history()[:6_000]
    writer, crawl = followed(valkey)
    writer.apply(PARTITION, log[:1_000])
    (replica,) = crawl.follow()
    steps = iter(range(1_000, len(log), 500))
    known = len(replica)

    def step() -> None:
        if (at := next(steps, None)) is not None:
            writer.apply(PARTITION, log[at : at + 500])
            crawl.follow()

    meanwhile(monkeypatch, step)
    for _ in range(4):
        before = replica.head
        part = Part.of(replica)
        assert part.head == replica.head != before
        cash = live_cash(replica.books, replica.v, replica.state)
        assert part.cash.tolist() == cash.tolist()
        assert part.sums.tolist() == (replica.spent() + cash).tolist()
        assert part.state.tolist() == replica.state.tolist()
        live = (part.state & KNOWN_GONE) == Flag.KNOWN
        assert part.books.importance_total(1 << 62) == int(part.sums[live].sum())
    assert len(replica) > known
    assert replica.listeners == []


def test_copy_of_a_replica_that_is_reloaded_or_grows_is_made_again(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = pep_history()[:2_000]
    writer, crawl = followed(valkey)
    writer.apply(PARTITION, log)
    (replica,) = crawl.follow()
    reloads = [1]
    meanwhile(monkeypatch, lambda: reloads and (reloads.pop(), replica.reset(), crawl._followers[0].load()))
    part = Part.of(replica)
    assert (part.loads, part.head) == (replica.loads, replica.head)
    assert part.cash.tolist() == live_cash(replica.books, replica.v, replica.state).tolist()
    lengths = [len(replica), len(replica) + ROOM + len(replica) // ROOM + 1]  # Of the first copy.
    monkeypatch.setattr(type(replica), "__len__", lambda one: lengths.pop(0) if lengths else one.pages)
    assert len(Part.of(replica).cash) == replica.pages


def test_copy_of_a_replica_that_grows_whenever_it_may_is_made(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, crawl = followed(valkey)
    writer.apply(PARTITION, pep_history()[:100])
    (replica,) = crawl.follow()
    growths, tries = list[int](), list[bool]()

    def may_grow() -> bool:
        if free := replica.lock.acquire(blocking=False):
            replica.lock.release()
        return free

    def grow() -> None:
        with ThreadPoolExecutor(1) as other:
            tries.append(other.submit(may_grow).result())
        if tries[-1]:
            growths[:] = [ROOM + replica.pages // ROOM + 1]

    meanwhile(monkeypatch, grow)
    monkeypatch.setattr(type(replica), "__len__", lambda one: one.pages + (growths.pop() if growths else 0))
    assert len(Part.of(replica).cash) == replica.pages
    assert tries == [True, True] * (COPIES_MAX - 1) + [False, False]  # Before and after the columns are taken.


def test_copy_of_a_replica_that_is_reloaded_each_time_fails_with_a_remedy(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, crawl = followed(valkey)
    writer.apply(PARTITION, pep_history()[:100])
    (replica,) = crawl.follow()
    meanwhile(monkeypatch, lambda: (replica.reset(), crawl._followers[0].load()))
    with pytest.raises(StoreUnavailable, match="reloaded repeatedly while it was read: try again"):
        Part.of(replica)
    assert replica.listeners == []
