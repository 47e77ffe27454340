"""The functions that lease pages refuse wrong arguments before they write anything; and what the model found wrong."""

from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
import redis
from lease_model import MILLION, Fetch, Holder
from lease_server import LeaseServer
from servers import Server

from opic.frontier import PolitenessSettings
from opic.frontier.leases import Quota
from opic.store.keys import Keys

NOW_US = 1_700_000_000_000_000
UNTIL_US = NOW_US + 60 * MILLION
POLITENESS = PolitenessSettings(host_delay_seconds=0.0, retry_seconds=10.0)
A, B = b"crawlA", b"crawlB"


@pytest.fixture
def leases(valkey: Server) -> LeaseServer:
    """Two leased pages, the first one's lease renewed; page 7 waits, host b.org is blocked no longer."""
    shard = LeaseServer(valkey)
    shard.reset()
    shard.set_clock(NOW_US)
    shard.take([(0, "a.org"), (1, "a.org")], [Quota(2, 60.0, A)], POLITENESS)
    shard.renew(90.0, [(0, UNTIL_US, "a.org")])
    shard.client.zadd(shard.keys.waits, {"7": NOW_US / MILLION + 5})
    shard.client.hset(shard.keys.blocks, "b.org", "1700000001.000000")
    shard.client.hset(shard.keys.crawl_delays, "a.org", "3.0")
    return shard


def blob(**changed: Any) -> bytes:
    fields: dict[str, Any] = {"requests": [2, 60.0], "ids": [5, 6], "hosts": ["a.org", "b.org"], "crawlers": [""]}
    fields |= {"host_pages": [1]}
    packed: bytes = msgpack.packb([*(fields | changed).values()], use_bin_type=False)
    return packed


def names_of(shard: LeaseServer, function: str) -> Sequence[str]:
    keys: Keys = shard.keys
    return {
        "lease": shard.take_names(),
        "renew": shard.renew_names(),
        "release": shard.release_names(),
        "delays": [keys.crawl_delays],
        "polite": shard.host_names(keys.polite),
        "block": shard.host_names(keys.blocks),
        "limit": shard.host_names(keys.limits),
        "rules": [keys.rules],
        "claim": [keys.group_times, keys.polite, keys.changes, keys.head],
    }[function]


TERMS = ("10.0", "0.0", "0", blob(), "1000")
WRONG = [
    ("lease", ("soon", *TERMS[1:])),
    ("lease", ("nan", *TERMS[1:])),
    ("lease", ("10.0", "inf", *TERMS[2:])),
    ("lease", ("10.0", "-1", *TERMS[2:])),
    ("lease", TERMS[:4]),
    ("lease", (*TERMS[:4], "many")),
    *(
        ("lease", (*TERMS[:3], blob(**changed), "1000"))
        for changed in (
            {"requests": [2]},
            {"requests": [2.5, 60.0]},
            {"requests": [2, "long"]},
            {"requests": [2, float("nan")]},
            {"crawlers": []},
            {"host_pages": []},
            {"hosts": ["a.org"]},
            {"ids": [5, -1]},
            {"ids": [5, 0.5]},
        )
    ),
    ("renew", ()),
    ("renew", ("soon", 0, UNTIL_US, "a.org")),
    ("renew", ("-1.0", 0, UNTIL_US, "a.org")),
    ("renew", ("60.0", 0, UNTIL_US, "a.org", 1, UNTIL_US)),
    ("renew", ("60.0", 0, UNTIL_US, "a.org", 1, "never", "a.org")),
    ("renew", ("60.0", 0, UNTIL_US, "a.org", 1)),
    ("release", (0, UNTIL_US, 1)),
    ("release", (0, UNTIL_US, 1, "never")),
    ("claim", ("192.0.2.1",)),
    ("claim", ("192.0.2.1", "10", "192.0.2.2", "soon")),
    ("claim", ("192.0.2.1", "10", "192.0.2.2", "-1")),
    ("claim", ("192.0.2.1", "nan")),
    ("delays", ("a.org",)),
    ("delays", ("b.org", "1.0", "a.org")),
    ("delays", ("b.org", "1.0", "a.org", "long")),
    ("delays", ("a.org", "nan")),
    ("delays", ("a.org", "-1.0")),
    ("polite", ("a.org",)),
    ("polite", ("a.org", "1.0")),
    ("polite", ("a.org", "1.0 - - -")),
    ("polite", ("b.org", "1.0 -", "a.org", "nan -")),
    ("block", ("a.org",)),
    ("block", ("a.org", "inf")),
    ("block", ("a.org", "1.0", "more")),
    ("limit", ("a.org",)),
    ("limit", ("a.org", "1e3")),
    ("limit", ("a.org", "-1")),
    ("rules", ("*", "document")),
]


@pytest.mark.parametrize(("function", "arguments"), WRONG)
def test_wrong_arguments_are_refused_before_anything_is_written(
    leases: LeaseServer, function: str, arguments: Sequence[Any]
) -> None:
    leases.set_clock(UNTIL_US + 1)  # A lease is over, and so is the block: a call might sweep.
    before = {key: leases.client.dump(key) for key in leases.client.keys("*")}
    with pytest.raises(redis.ResponseError, match="OPICARGS"):
        leases.call(function, names_of(leases, function), *arguments)
    assert {key: leases.client.dump(key) for key in leases.client.keys("*")} == before


@pytest.mark.parametrize("function", ["lease", "renew", "release", "polite", "block", "limit"])
@pytest.mark.parametrize("missing", ["changes", "head"])
def test_call_that_cannot_tell_of_its_change_is_refused(leases: LeaseServer, function: str, missing: str) -> None:
    names = [name for name in names_of(leases, function) if not name.endswith(f":{missing}")]
    terms = {"lease": TERMS, "renew": ("60.0", 0, UNTIL_US, "a.org"), "release": (0, UNTIL_US)}.get(function, ())
    with pytest.raises(redis.ResponseError, match="OPICARGS expected changes and head"):
        leases.call(function, names, *terms)
    assert leases.client.zscore(leases.keys.leases, 0) == UNTIL_US + 30 * MILLION


def test_nothing_is_swept_while_the_store_is_restored(leases: LeaseServer) -> None:
    leases.set_clock(UNTIL_US + 1)
    leases.client.hset(leases.keys.head, "digest", "restoring")
    before = leases.state()
    assert leases.take([(5, "b.org")], [Quota(1, 60.0)], POLITENESS).granted == []
    assert leases.state() == before


@pytest.mark.parametrize("late_us", [0, 1])
def test_lease_whose_time_is_over_cannot_be_released(leases: LeaseServer, late_us: int) -> None:
    leases.set_clock(UNTIL_US + late_us)  # Page 1's lease is over; no call has ended it yet.
    assert leases.release([(1, UNTIL_US), (0, UNTIL_US)]) == [0]
    leases.take([], [Quota(1, 60.0)], POLITENESS)
    assert leases.state()["fails"] == {1: 1}


def test_lease_can_be_released_until_its_last_microsecond(leases: LeaseServer) -> None:
    leases.set_clock(UNTIL_US - 1)
    assert leases.release([(1, UNTIL_US)]) == [1]


@pytest.mark.parametrize("together", [True, False])
def test_crawler_whose_event_ended_its_lease_is_not_one_without_an_event(leases: LeaseServer, together: bool) -> None:
    first, second = (Fetch(1, False, NOW_US / MILLION, NOW_US, crawler) for crawler in (A, B))
    for fetches in [[first, second]] if together else [[first], [second]]:
        assert leases.step(fetches, 10.0, 1_000) == [b"OK"]
    assert leases.state()["holders"] == {0: Holder(NOW_US, A)}


def test_step_needs_a_sender_for_each_fetch_where_there_are_holders(leases: LeaseServer) -> None:
    fetch = Fetch(1, True, NOW_US / MILLION, NOW_US, A)
    with pytest.raises(redis.ResponseError, match="OPICARGS keys do not match blob"):
        leases.step([fetch], 10.0, 1_000, senders=[])
    assert not leases.client.exists(leases.keys.journal)
