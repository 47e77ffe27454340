"""What the frontier knows of leases, waits and hosts follows from what it hears."""

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import pytest

from opic.frontier import HostPoliteness, PolitenessSettings
from opic.frontier.held_pages import Held
from opic.frontier.hot_shard import HotShard
from opic.frontier.leases import Granted, LeaseAnswer, RefusedPage
from opic.frontier.page_counts import FREE, KINDS
from opic.frontier.picking import pick
from opic.frontier.requests import FrontierTerms
from opic.model.cash import CrawlRules, Flag
from opic.replica.changes import ChangeId
from opic.replica.effect import Effect, Head
from opic.replica.replica import Replica

HOSTS = ["a.org", "b.org", "c.org"]


def effect(replica: Replica, **sections: Any) -> Effect:
    """The next record of a journal, with these sections."""
    books = copy(replica.books)
    found = Effect(replica.head.lsn + 1, replica.head.digest, books, replica.pages, len(replica.hosts), **sections)
    found.digest = found.lsn.to_bytes(8, "little")
    return found


def made() -> Replica:
    """Six pages of three hosts that hold 60, 50, .. 10 grains."""
    replica = Replica(CrawlRules())
    replica.apply(
        effect(
            replica,
            fingerprints=np.arange(1, 7, dtype=np.uint64),
            hosts=np.array([0, 0, 1, 1, 2, 2], np.uint32),
            host_names=HOSTS,
            state_page=np.arange(6, dtype=np.uint32),
            state=np.full(6, Flag.KNOWN, np.uint8),
            moved_page=np.arange(6, dtype=np.uint32),
            moved=np.array([60, 50, 40, 30, 20, 10]) - replica.books.credit,
        )
    )
    return replica


def fetches(shard: HotShard, moved: int, read: Sequence[int], failed: Sequence[int], time_us: int = 0) -> None:
    """Let the journal tell of fetches, and page 0 lose some cash."""
    replica = shard.replica
    found = effect(
        replica,
        fetched_page=np.array([*read, *failed], np.uint32),
        failed=np.array([0] * len(read) + [1] * len(failed), np.uint8),
        moved_page=np.array([0], np.uint32),
        moved=np.array([-moved]),
    )
    found.books.time_us = time_us
    replica.listeners = [shard.applied]
    replica.apply(found)


def hot_shard(delay: float = 0.0) -> HotShard:
    shard = HotShard(made(), FrontierTerms(PolitenessSettings(host_delay_seconds=delay, retry_seconds=60.0)))
    shard.hear_time(1_000.0)
    return shard


def picked(shard: HotShard, now: float = 1_000.0) -> list[int]:
    return pick([shard.order], 10, [now]).ids.tolist()  # type: ignore[no-any-return]


def answer(granted: Any = (), refused: Any = ()) -> LeaseAnswer:
    return LeaseAnswer(1_000_000_000, Head(1, b""), b"5-0" if granted else b"", list(granted), list(refused), {})


def told(**fields: str) -> dict[bytes, bytes]:
    """A change, at time 1,000."""
    return {b"t": b"1000000000"} | {name.encode(): text.encode() for name, text in fields.items()}


def counted(shard: HotShard) -> dict[str, int]:
    shard.order.settle()
    kinds = shard.order.counts.totals.reshape(-1, 2).sum(axis=1).tolist()
    names = {FREE: "free", **{number: row.kind for number, row in KINDS.items()}}
    return {name: kinds[number] for number, name in names.items() if kinds[number]}


def ask(shard: HotShard, ids: list[int], said: LeaseAnswer) -> None:
    pages = np.array(ids, np.int64)
    hosts = shard.replica.host[pages].astype(np.int64)
    shard.order.reserve(pages, hosts)
    assert not set(ids) & set(picked(shard))
    shard.record_answer(pages, hosts, said)


def test_leased_and_refused_pages_are_held_and_the_others_are_free_again() -> None:
    shard = hot_shard()
    ask(shard, [0, 1, 2], answer([Granted(0, 0, 1_300_000_000, 0.0)], [RefusedPage(1, False, 1_100_000_000)]))
    assert counted(shard) == {"free": 4, "leased": 1, "retry": 1}
    assert picked(shard) == [2, 3, 4, 5]
    assert picked(shard, 1_100.0) == [1, 2, 3, 4, 5]
    assert counted(shard) == {"free": 5, "leased": 1}
    assert picked(shard, 1_359.9) == [1, 2, 3, 4, 5]  # A lease that nobody ends is a failed fetch.
    assert counted(shard) == {"free": 5, "retry": 1}
    assert picked(shard, 1_360.0) == [0, 1, 2, 3, 4, 5]


def test_page_that_another_endpoint_leased_counts_as_leased() -> None:
    shard = hot_shard()
    ask(shard, [0], answer([], [RefusedPage(0, False, 1_160_000_000, leased=True)]))
    assert counted(shard) == {"free": 5, "leased": 1}
    assert picked(shard, 1_100.0) == [1, 2, 3, 4, 5]
    assert counted(shard) == {"free": 5, "retry": 1}
    assert picked(shard, 1_160.0) == [0, 1, 2, 3, 4, 5]


def test_host_rests_after_its_page_was_leased_or_as_long_as_the_refusal_says() -> None:
    shard = hot_shard(delay=2.0)
    assert picked(shard) == [0, 2, 4]
    ask(shard, [0, 2, 4], answer([Granted(0, 0, 1_300_000_000, 2.0)], [RefusedPage(1, True, 1_005_000_000)]))
    assert picked(shard) == [4]
    assert picked(shard, 1_002.0) == [1, 4]
    assert picked(shard, 1_005.0) == [1, 2, 4]


def test_fetch_ends_a_lease_or_begins_a_wait() -> None:
    shard = hot_shard()
    granted = [Granted(at, 0, 1_300_000_000, 0.0) for at in range(3)]
    ask(shard, [0, 1, 2], answer(granted))
    fetches(shard, 45, [0], [1], 970_000_000)
    assert picked(shard) == [1, 3, 4, 0, 5]
    shard.hear([(told(w="1030.0 1"), 2)])
    assert picked(shard) == [3, 4, 0, 5]
    assert picked(shard, 1_030.0) == [1, 3, 4, 0, 5]


@pytest.mark.parametrize("heard", [ChangeId(4, 9), ChangeId(5, 0)])
def test_what_an_answer_says_is_left_out_if_it_was_heard_of_before(heard: ChangeId) -> None:
    shard = hot_shard()
    pages = np.array([0, 1])
    shard.order.reserve(pages, shard.replica.host[pages].astype(np.int64))
    if heard == ChangeId(5, 0):
        shard.hear([(told(l="1300000000 0 0 1300000000 1 0"), 1)])
        fetches(shard, 0, [0], [])  # It came after the lease, before its answer.
    granted = [Granted(0, 0, 1_300_000_000, 0.0), Granted(1, 0, 1_300_000_000, 0.0)]
    shard.record_answer(pages, shard.replica.host[pages].astype(np.int64), answer(granted), heard)
    assert picked(shard) == ([0, 2, 3, 4, 5] if heard == ChangeId(5, 0) else [2, 3, 4, 5])


def test_fetch_before_a_lease_does_not_end_it() -> None:
    shard = hot_shard()
    ask(shard, [0], answer([Granted(0, 0, 1_300_000_000, 0.0)]))
    fetches(shard, 0, [0], [])  # It ended an earlier lease.
    shard.hear([(told(l="1300000000 0 0"), 2)])
    assert picked(shard) == [1, 2, 3, 4, 5]


def test_lease_of_another_endpoint_holds_the_page_and_its_host() -> None:
    shard = hot_shard(delay=2.0)
    shard.hear([(told(l="1300000000 0 2000"), 1)])
    assert counted(shard) == {"free": 5, "leased": 1}
    assert picked(shard) == [2, 4]
    assert picked(shard, 1_002.0) == [1, 2, 4]
    shard.hear([(told(l="1600000000 0 0"), 1)])  # It was renewed.
    assert counted(shard)["leased"] == 1
    assert picked(shard, 1_599.0) == [1, 2, 4]


def test_host_at_its_limit_in_flight_goes_on_when_a_fetch_ends() -> None:
    shard = hot_shard()
    ask(shard, [0, 1], answer([Granted(0, 0, 1_300_000_000, 0.0)], [RefusedPage(1, True, 1_300_000_000, True)]))
    assert picked(shard) == [2, 3, 4, 5]
    fetches(shard, 0, [0], [])
    assert picked(shard) == [0, 1, 2, 3, 4, 5]


def test_released_pages_are_free() -> None:
    shard = hot_shard()
    granted = [Granted(at, 0, 1_300_000_000, 0.0) for at in range(3)]
    ask(shard, [0, 1, 2], answer(granted))
    shard.hear([(told(f="0 1 77"), 1)])
    assert (picked(shard), counted(shard)["leased"]) == ([0, 1, 3, 4, 5], 1)


def test_what_comes_while_the_held_pages_are_read_is_newer_than_they() -> None:
    shard = hot_shard()
    shard.begin_load()
    shard.hear([(told(l="1300000000 3 0"), 1)])
    shard.hear([(told(l="1300000000 2 0"), 1)])
    fetches(shard, 0, [0, 3], [])
    leased = np.array([0, 1]), np.full(2, 1_240.0)
    none = np.zeros(0, np.int64), np.zeros(0)
    shard.load(Held(1, 1_000.0, leased, none, ([], np.zeros(0)), {}, {}, {}, ([], np.zeros(0))))
    assert picked(shard) == [0, 3, 4, 5]


def test_loading_the_held_pages_replaces_all_that_was_held_before() -> None:
    shard = hot_shard(delay=1.0)
    leases = np.array([0, 1, 77]), np.array([1_240.0, 999.0, 1_100.0])
    waits = np.array([0, 77]), np.array([1_200.0, 1_200.0])
    hosts = ["b.org", "unknown.org"], np.array([1_050.0, 1_050.0])
    shard.order.hold(np.array([4, 5]), np.full(2, np.inf))
    shard.load(Held(3, 1_000.0, leases, waits, hosts, {"c.org": HostPoliteness(0.0)}, {}, {}, ([], np.zeros(0))))
    assert counted(shard) == {"free": 4, "leased": 1, "retry": 1}
    assert picked(shard) == [4, 5]
    assert picked(shard, 1_050.0) == [2, 4, 5]
    assert picked(shard, 1_299.0) == [1, 2, 4, 5]
    assert picked(shard, 1_300.0) == [0, 2, 4, 5]
