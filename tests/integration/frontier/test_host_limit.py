"""OPIC_MAX_PAGES_PER_HOST: links to further pages of a full host make none known, and pay the virtual page."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import PARTITION, forget, record, seeds
from same_state import assert_same
from servers import Server

from opic.ingest import ShardWriter, Writer
from opic.model.events import EventLimits
from opic.model.ledger import Ledger
from opic.replica import Crawl
from opic.replica.host_limit import REFUSED, NewPages, refuse_links
from opic.settings import Settings
from opic.store import Shard

HUB = "http://hub.org/"
TRAP = [f"http://trap.org/{n}" for n in range(9)]
LIMITED = EventLimits(host_pages_max=3)


def known(crawl: Crawl) -> set[str]:
    return {page.url for page in crawl.pages()}


def test_cash_of_links_beyond_the_limit_goes_to_the_virtual_page(valkey: Server) -> None:
    log = [record(0, HUB, TRAP[:4]), record(1, TRAP[0], [HUB, *TRAP[2:7]])]
    limited = Ledger(limits=LIMITED)
    writer = ShardWriter(Shard.open(valkey.client(), "limited"), LIMITED)
    for one in log:
        writer.apply(PARTITION, [one])
    limited.apply(PARTITION, log)
    crawl = Crawl([writer.shard])
    assert known(crawl) == {HUB, *TRAP[:3]}
    assert_same(writer.shard, limited)
    assert writer.shard.books().sent_to_forgotten > 0
    whole, _ = crawl.audit()
    assert whole.conserved


def test_pages_that_events_and_seeds_name_become_known_all_the_same(valkey: Server) -> None:
    log = [
        record(0, HUB, TRAP),
        seeds(1, TRAP[5], TRAP[6]),
        record(2, TRAP[7], [TRAP[8]]),
        record(3, HUB, [TRAP[7], TRAP[8]]),
        forget(4, *TRAP[:3], *TRAP[5:8]),
        record(5, HUB, [TRAP[8], TRAP[8] + "#top", *TRAP[:3]]),
        record(6, HUB, TRAP),
    ]
    for cut in (1, 2, 7):
        writer, ledger = ShardWriter(Shard.open(valkey.client(), f"named-{cut}"), LIMITED), Ledger(limits=LIMITED)
        for at in range(0, len(log), cut):
            writer.apply(PARTITION, log[at : at + cut])
        ledger.apply(PARTITION, log)
        assert_same(writer.shard, ledger)
        crawl = Crawl([writer.shard])
        assert known(crawl) == {HUB, TRAP[8], *TRAP[:2]}


@pytest.mark.parametrize("shards", [1, 4])
def test_limit_holds_on_any_number_of_shards(valkey: Server, shards: int) -> None:
    crawl = Crawl.open(valkey.client(), f"hosts-{shards}", {"shards": shards})
    writer = Writer(crawl, LIMITED)
    hosts = [f"http://h{n}.org/" for n in range(6)]
    for round_ in range(3):
        links = [host + str(k) for host in hosts for k in range(round_ * 5)]
        log = [record(10 * round_ + n, host, links) for n, host in enumerate(hosts)]
        writer.apply(PARTITION, log)
        writer.drain()
    pages = known(crawl)
    assert [sum(page.startswith(host) for page in pages) for host in hosts] == [3] * 6
    whole, audits = crawl.audit()
    assert whole.conserved
    assert all(audit.conserved for audit in audits)


def test_limit_may_change_and_is_off_by_default(valkey: Server) -> None:
    assert Settings.load().limits().host_pages_max == 0
    assert Settings.load(max_pages_per_host=7).limits().host_pages_max == 7
    shard = Shard.open(valkey.client(), "changed")
    ShardWriter(shard, LIMITED).apply(PARTITION, [record(0, HUB, TRAP)])
    ShardWriter(shard, EventLimits(host_pages_max=5)).apply(PARTITION, [record(1, HUB, TRAP)])
    assert known(Crawl([shard])) == {HUB, *TRAP[:5]}
    ShardWriter(shard).apply(PARTITION, [record(2, HUB, TRAP)])
    assert known(Crawl([shard])) == {HUB, *TRAP}


@given(
    strings=st.lists(st.tuples(st.integers(0, 7), st.booleans(), st.integers(0, 2)), max_size=20),
    hosts=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    full=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    most=st.integers(1, 4),
)
def test_links_are_refused_in_their_order(
    strings: list[tuple[int, bool, int]], hosts: list[int], full: list[int], most: int
) -> None:
    """Eight pages: 0 and 1 are known, 2 was forgotten, the others are new, numbered by where they are first named."""
    first = 3
    order = list(dict.fromkeys(page for page, _, _ in strings if page >= first))
    number = {page: page for page in range(first)} | {page: first + at for at, page in enumerate(order)}
    events = sorted(event for _, _, event in strings)
    counts, admitted, expected = dict(enumerate(full)), dict[int, int](), list[int]()
    refused = set[tuple[int, int]]()
    for (page, explicit, _), event in zip(strings, events, strict=True):
        if page >= 2 and page not in admitted:
            if not explicit and counts[hosts[page]] >= most:
                expected.append(REFUSED)
                refused.add((event, number[page]))
                continue
            counts[hosts[page]] += 1
            admitted[page] = page if page < first else first + sum(p >= first for p in admitted)
        expected.append(admitted.get(page, page))
    ids = np.array([number[page] for page, _, _ in strings], np.int64)
    named = np.array([next(at for at, one in enumerate(strings) if one[0] == page) for page in order], np.int64)
    kept, places, pairs = refuse_links(
        ids,
        np.array([explicit for _, explicit, _ in strings], np.bool_),
        np.array(events, np.int64),
        NewPages(first, named, np.array([hosts[page] for page in order], np.int64)),
        {2: hosts[2]} if any(page == 2 for page, _, _ in strings) else {},
        np.array(full, np.int64),
        most,
    )
    assert ids.tolist() == expected
    assert [order[i] for i in kept.tolist()] == [page for page in admitted if page >= first]
    assert places.tolist() == sorted(places.tolist())
    assert pairs == refused
