"""An event ends the lease that it belongs to: a late one of a lease that ran out leaves the next crawler's alone."""

from typing import Any

import pytest
from frontiers import Crawl, until
from servers import Server

from opic.frontier import PolitenessSettings

AT_ONCE = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.01)
URL = "http://a.org/"


def leased_again(server: Server, first: str = "", second: str = "") -> tuple[Crawl, dict[str, Any], dict[str, Any]]:
    """A crawl whose page was leased, reported by nobody, and then leased again; with both leases."""
    crawl = Crawl(server, AT_ONCE)
    crawl.seed([URL])
    (before,) = crawl.next(1, crawler=first, lease_seconds=0.05)
    (now,) = until(lambda: crawl.next(1, crawler=second))
    return crawl, before, now


def lease_until(crawl: Crawl) -> float | None:
    shown: Any = crawl.frontier.explain(URL)
    until_seconds: float | None = shown.lease_until
    return until_seconds


@pytest.mark.parametrize("status", [200, 404, 503])
@pytest.mark.parametrize(
    ("first", "second", "event"),
    [
        ("", "", {"arrived": -0.01}),  # It waited for the worker.
        ("", "", {"fetched_at": -0.01}),
        ("fleet", "fleet", {"fetched_at": -0.01, "crawler": "fleet"}),
        ("alice", "bob", {"crawler": "alice"}),
        ("alice", "", {"crawler": "alice"}),
        ("", "bob", {"arrived": -0.01, "crawler": "alice"}),
    ],
)
def test_late_event_of_an_expired_lease_does_not_end_the_next_one(
    valkey: Server, first: str, second: str, event: dict[str, Any], status: int
) -> None:
    crawl, before, now = leased_again(valkey, first, second)
    times = {name: before.lease_until + event[name] for name in ("arrived", "fetched_at") if name in event}
    crawl.event(URL, status=status, **{**event, **times})
    assert lease_until(crawl) == now.lease_until
    assert crawl.next() == []
    assert crawl.fails() == (1 if status == 503 else 0)  # Counted when the first lease ran out.
    crawl.event(URL, status=503, crawler=second or None)
    assert lease_until(crawl) is None


@pytest.mark.parametrize(
    ("first", "second", "event"),
    [
        ("", "", {}),
        ("alice", "bob", {}),
        ("alice", "bob", {"crawler": "bob", "fetched_at": -10.0}),  # Its clock is slow.
        ("alice", "bob", {"crawler": "carol"}),
        ("alice", "alice", {"crawler": "alice"}),
    ],
)
def test_any_other_event_ends_the_lease_regardless_of_its_sender(
    servers: Server, first: str, second: str, event: dict[str, Any]
) -> None:
    crawl, _, now = leased_again(servers, first, second)
    if "fetched_at" in event:
        event = {**event, "fetched_at": now.lease_until - 300 + event["fetched_at"]}
    crawl.event(URL, status=503, **event)
    assert lease_until(crawl) is None


def test_without_an_earlier_lease_any_event_ends_it_however_old_it_is(valkey: Server) -> None:
    crawl = Crawl(valkey, AT_ONCE)
    crawl.seed([URL])
    crawl.next(crawler="bob")
    crawl.event(URL, status=503, crawler="alice", fetched_at="2001-01-01T00:00:00Z", arrived=1_000_000_000.0)
    assert lease_until(crawl) is None


def test_late_event_after_several_leases_is_still_known(valkey: Server) -> None:
    crawl, _, _ = leased_again(valkey, "alice", "bob")
    crawl.event(URL, status=503, crawler="bob")
    (now,) = until(lambda: crawl.next(1, crawler="carol"))
    crawl.event(URL, status=503, crawler="alice")
    assert lease_until(crawl) == now.lease_until
    crawl.event(URL, status=503, crawler="bob")  # Its own lease had an event, so this is just another one.
    assert lease_until(crawl) is None


@pytest.mark.parametrize(("alice", "bob"), [("alice", "bob"), ("", "")])
def test_old_failure_between_two_leases_keeps_earlier_leases_remembered(servers: Server, alice: str, bob: str) -> None:
    """Its back-off ended long ago, and a back-off that ended a day ago is forgotten."""
    crawl = Crawl(servers, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.2))
    crawl.seed([URL])
    crawl.next(1, crawler=alice, lease_seconds=0.05)
    until(lambda: crawl.next(1, crawler=bob, lease_seconds=0.05))
    until(lambda: crawl.next(1) == [] and lease_until(crawl) is None)  # It waits for longer than until its turn.
    crawl.event(URL, status=503, crawler=alice or None, fetched_at="2001-01-01T00:00:00Z", arrived=1e9)
    (now,) = until(lambda: crawl.next(1, crawler="carol"))
    crawl.event(URL, status=503, crawler=bob or None, fetched_at="2001-01-01T00:00:00Z", arrived=1e9)
    assert lease_until(crawl) == now.lease_until


def test_event_is_late_too_if_another_event_ended_its_lease(valkey: Server) -> None:
    crawl = Crawl(valkey, AT_ONCE)
    crawl.seed([URL])
    crawl.next(crawler="alice")
    crawl.event(URL, status=503, crawler="carol")
    (now,) = until(lambda: crawl.next(1, crawler="bob"))
    crawl.event(URL, status=503, crawler="alice")
    assert lease_until(crawl) == now.lease_until


def test_released_lease_does_not_count_as_an_earlier_one(valkey: Server) -> None:
    crawl = Crawl(valkey, AT_ONCE)
    crawl.seed([URL])
    (page,) = crawl.next(crawler="alice")
    crawl.frontier.release([page.lease])
    assert crawl.store.shard.client.exists(crawl.store.shard.keys.holders) == 0
    crawl.next(crawler="bob")
    crawl.event(URL, status=503, crawler="alice")
    assert lease_until(crawl) is None


def test_few_earlier_crawlers_of_a_page_are_remembered(valkey: Server) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.0))
    crawl.seed([URL])
    for number in range(6):
        until(lambda name=f"crawler-{number}": crawl.next(1, crawler=name, lease_seconds=0.01))  # type: ignore[misc]
    (now,) = until(lambda: crawl.next(1, crawler="bob"))
    client, keys = crawl.store.shard.client, crawl.store.shard.keys
    assert len(client.hget(keys.holders, "0")) < 60
    crawl.event(URL, status=503, crawler="crawler-5")
    assert lease_until(crawl) == now.lease_until
    crawl.event(URL, status=503, crawler="crawler-0")
    assert lease_until(crawl) is None
