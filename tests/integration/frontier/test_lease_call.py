"""The call that leases knows leases, waits and hosts."""

from collections.abc import Sequence
from typing import Any

import pytest
from servers import Server

from opic.frontier import PolitenessSettings
from opic.frontier.leases import Granted, LeaseAnswer, Quota, lease_command
from opic.replica.effect import Head
from opic.store import Keys, Shard

AT_ONCE = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=600.0)
PAGES = [(0, "a.org"), (1, "a.org"), (2, "b.org"), (3, "b.org")]


class Caller:
    def __init__(self, server: Server) -> None:
        self.shard = Shard.open(server.client())
        self.keys: Keys = self.shard.keys
        self.client = self.shard.client

    def take(
        self,
        pages: Sequence[tuple[int, str]] = PAGES,
        quotas: Sequence[tuple[Any, ...]] = ((10, 60.0),),
        politeness: PolitenessSettings = AT_ONCE,
    ) -> LeaseAnswer:
        command = lease_command(self.keys, politeness, pages, [Quota(*quota) for quota in quotas])
        return LeaseAnswer.parse(self.client.execute_command(*command))


def places(answer: LeaseAnswer) -> list[tuple[int, int]]:
    return [(page.quota, page.position) for page in answer.granted]


def test_each_crawler_gets_the_next_free_pages(servers: Server) -> None:
    caller = Caller(servers)
    answer = caller.take(quotas=[(1, 60.0), (2, 30.0)])
    assert places(answer) == [(0, 0), (1, 1), (1, 2)]
    assert answer.granted[0] == Granted(0, 0, answer.now_us + 60_000_000, 0.0)
    assert answer.granted[1].until_us == answer.now_us + 30_000_000
    assert answer.refused == []
    again = caller.take()
    assert places(again) == [(0, 3)]
    assert [(page.position, page.host_held) for page in again.refused] == [(0, False), (1, False), (2, False)]
    assert again.refused[0].until_us == answer.granted[0].until_us + 600_000_000


def test_page_named_twice_in_a_call_is_leased_once(servers: Server) -> None:
    assert places(Caller(servers).take([(7, "a.org"), (7, "a.org")])) == [(0, 0)]


def test_host_with_a_delay_gives_one_page(servers: Server) -> None:
    caller = Caller(servers)
    answer = caller.take(politeness=PolitenessSettings(host_delay_seconds=30.0))
    assert places(answer) == [(0, 0), (0, 2)]
    assert [page.delay_seconds for page in answer.granted] == [30.0, 30.0]
    assert {page.host_held for page in answer.refused} == {True}
    assert answer.refused[0].until_us == pytest.approx(answer.now_us + 30_000_000, abs=2)
    caller.client.hset(caller.keys.polite, "a.org", "0 -")
    assert places(
        caller.take([(1, "a.org"), (3, "b.org")], politeness=PolitenessSettings(host_delay_seconds=30.0))
    ) == [(0, 0)]


def test_host_with_a_delay_gives_one_call_as_many_pages_as_it_asks_for(servers: Server) -> None:
    caller, slow = Caller(servers), PolitenessSettings(host_delay_seconds=30.0)
    pages = [(page, "a.org") for page in range(4)] + [(page, "b.org") for page in range(4, 8)]
    answer = caller.take(pages, [(5, 60.0, b"", 3), (5, 60.0, b"", 3)], slow)
    assert places(answer) == [(0, 0), (0, 1), (0, 2), (0, 4), (0, 5)]  # The second may not add to what the first got.
    assert {page.until_us - answer.now_us for page in answer.refused} == {30_000_000}
    assert places(caller.take(pages, [(5, 60.0, b"", 3)], slow)) == []


def test_cap_of_a_host_counts_pages_of_this_call_and_of_others(servers: Server) -> None:
    caller, capped = Caller(servers), PolitenessSettings(host_delay_seconds=0.0, host_in_flight=1)
    first = caller.take(politeness=capped)
    assert places(first) == [(0, 0), (0, 2)]
    again = caller.take([(1, "a.org")], politeness=capped)
    assert [(page.host_held, page.until_us) for page in again.refused] == [(True, first.granted[0].until_us)]


def test_page_that_failed_waits(servers: Server) -> None:
    caller = Caller(servers)
    seconds, _ = caller.client.time()
    caller.client.zadd(caller.keys.waits, {"0": seconds + 100, "1": seconds - 1})
    answer = caller.take(PAGES[:2])
    assert places(answer) == [(0, 1)]
    assert [(page.host_held, page.until_us) for page in answer.refused] == [(False, (seconds + 100) * 1_000_000)]


def test_answer_tells_the_head_and_where_the_change_is_told(servers: Server) -> None:
    caller = Caller(servers)
    caller.client.hset(caller.keys.head, mapping={"lsn": "12", "digest": b"\x01\xff345678"})
    answer = caller.take(PAGES[:1])
    assert (places(answer), answer.head) == ([(0, 0)], Head(12, b"\x01\xff345678"))
    ((name, told),) = caller.client.xrange(caller.keys.changes)
    until = b"%d" % answer.granted[0].until_us
    assert name == answer.change
    assert told == {b"n": b"12", b"t": b"%d" % answer.now_us, b"l": until + b" 0 0"}
    assert caller.take(PAGES[:1]).change == b""


def test_stream_of_changes_is_bounded(servers: Server) -> None:
    caller = Caller(servers)
    with caller.client.pipeline() as pipe:
        for at in range(4_000):
            pipe.execute_command(*lease_command(caller.keys, AT_ONCE, [(at, "a.org")], [Quota(1, 60.0)]))
        pipe.execute()
    assert 2_000 <= caller.client.xlen(caller.keys.changes) <= 2_200  # Whole nodes of a hundred are removed.


def test_nothing_is_leased_while_the_store_is_restored(servers: Server) -> None:
    caller = Caller(servers)
    caller.client.hset(caller.keys.head, mapping={"lsn": "12", "digest": "restoring"})
    answer = caller.take()
    assert (answer.granted, answer.refused) == ([], [])


def test_expired_lease_is_swept_and_its_page_waits(servers: Server) -> None:
    caller = Caller(servers)
    seconds, _ = caller.client.time()
    caller.client.zadd(caller.keys.leases, {"0": (seconds - 1) * 1_000_000})
    assert places(caller.take(PAGES[:1])) == []  # Its back-off began.
    caller.client.zadd(caller.keys.leases, {"1": (seconds - 1) * 1_000_000})
    at_once = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.0)
    assert places(caller.take(PAGES[1:2], politeness=at_once)) == [(0, 0)]
    assert caller.client.hget(caller.keys.fails, "0") == b"1"
