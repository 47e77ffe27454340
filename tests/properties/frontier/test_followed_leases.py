"""After any calls and events, each endpoint knows the same of every page and host as the store."""

from typing import Any

import numpy as np
import pytest
from example_counts import examples
from frontiers import Crawl
from hypothesis import given
from hypothesis import strategies as st
from servers import Server

from opic.frontier import Frontier, HostPoliteness, PolitenessSettings
from opic.frontier.host_groups import group_of_address
from opic.frontier.hot_order import UNHELD
from opic.frontier.page_counts import LEASED, RETRY
from opic.model.events import encode_forgotten

URLS = [f"http://h{at % 4}.org/{at}" for at in range(16)]
CLOCK_SECONDS = 2e-3  # Delays of hosts are told in milliseconds.
WHO = st.integers(0, 1)
PAGE = st.integers(0, len(URLS) - 1)
DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("next"), WHO, st.integers(1, 6)),
        st.tuples(st.just("next"), WHO, st.integers(1, 6)),
        st.tuples(st.just("read"), PAGE, st.sampled_from([None, "c0", "c1"])),
        st.tuples(st.just("fail"), PAGE, st.sampled_from([None, "c0", "c1"])),
        st.tuples(st.just("release"), WHO, st.integers(0, 30)),
        st.tuples(st.just("renew"), WHO, st.integers(0, 30)),
        st.tuples(st.just("limit"), st.integers(0, 3), st.integers(0, 2)),
        st.tuples(st.just("polite"), st.integers(0, 3), st.integers(0, 1)),
        st.tuples(st.just("seed"), PAGE, st.just(0)),
        st.tuples(st.just("forget"), PAGE, st.just(0)),
        st.tuples(st.just("address"), PAGE, st.sampled_from(["192.0.2.1", "2001:db8::1"])),
        st.tuples(st.just("lose"), st.just(0), st.just(0)),
        st.tuples(st.just("look"), WHO, st.just(0)),
    ),
    max_size=20,
)


def do(crawl: Crawl, ends: list[Frontier], leases: list[str], deed: tuple[str, int, Any]) -> None:
    what, which, more = deed
    if what == "next":
        answer = ends[which].next(more, crawler=f"c{which}", lease_seconds=3_600.0 + more)
        leases += [page.lease for page in answer.pages]
    elif what in {"read", "fail"}:
        crawl.event(URLS[which], status=200 if what == "read" else 500, crawler=more or "")
    elif what == "address":
        crawl.event(URLS[which], status=500, retry_after=600.0, addresses=[more])
    elif what in {"release", "renew"} and leases:
        getattr(ends[which], what)([leases[more % len(leases)], leases[-1]])
    elif what == "limit":
        ends[0].limit(f"h{which}.org", more)
    elif what == "polite":
        ends[more].set_host_politeness({f"h{which}.org": HostPoliteness(delay_seconds=900.0)})
    elif what == "seed":
        crawl.seed([URLS[which]])
    elif what == "forget":
        crawl._apply(encode_forgotten([URLS[which]]), "forget")
    elif what == "lose":
        client, keys = crawl.store.shard.client, crawl.store.shard.keys
        client.xtrim(keys.changes, maxlen=0)
    elif what == "look":
        ends[which].peek(3)


def assert_knows_what_the_store_has(crawl: Crawl, end: Frontier) -> None:
    scheduler, client, keys = end._scheduler, crawl.store.shard.client, crawl.store.shard.keys
    (shard,) = scheduler.ask(lambda: scheduler.hot.shards)
    order, replica = shard.order, shard.replica
    order.advance(shard.now())
    leases, waits, hosts = (
        dict(client.zrange(key, 0, -1, withscores=True)) for key in (keys.leases, keys.waits, keys.hosts)
    )
    for page in range(len(URLS)):
        kind, until = int(order.where[page]), float(order._free.get(np.array([page]))[0])
        lease, wait = leases.get(b"%d" % page), waits.get(b"%d" % page, 0.0)
        if lease is not None:
            assert (kind, until) == (LEASED, pytest.approx(lease / 1e6, abs=1e-5)), (page, "leased")
        elif wait > shard.now():
            assert (kind, until) == (RETRY, pytest.approx(wait, abs=1e-5)), (page, "waits")
        else:
            assert kind == UNHELD, (page, "free")
    addresses, rests = client.hgetall(keys.addresses), dict(client.zrange(keys.group_times, 0, -1, withscores=True))
    for number, name in enumerate(replica.hosts.names):
        address = addresses.get(name.encode())
        group = None if address is None else group_of_address(address.decode())
        known = scheduler.hot.groups.group(0, number)
        assert (scheduler.hot.groups.name(known) if known else None) == group, name
        free = max(hosts.get(name.encode(), 0.0), rests.get((group or "").encode(), 0.0))
        assert order.host_free[number] == pytest.approx(free, abs=CLOCK_SECONDS) or (
            free <= shard.now() and order.host_free[number] <= shard.now()
        ), name
    assert scheduler.hot.totals()[LEASED].sum() == len(leases)


@examples(300)
@given(delay=st.sampled_from([0.0, 600.0]), deeds=DEEDS)
def test_endpoints_know_all_leases_waits_and_delays(
    valkey: Server, delay: float, deeds: list[tuple[str, int, Any]]
) -> None:
    valkey.reset()
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=delay, retry_seconds=600.0))
    crawl.seed(URLS)
    ends, leases = [crawl.frontier, crawl.endpoint(crawl.frontier.politeness)], list[str]()
    for deed in deeds:
        do(crawl, ends, leases, deed)
    for end in ends:
        assert_knows_what_the_store_has(crawl, end)
