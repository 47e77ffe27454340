"""The store is the ledger in columns: whatever the log, however it is cut, both end in the same state to the bit."""

from dataclasses import asdict, replace
from functools import cache
from itertools import count

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from logs import NOW_US, PARTITION, forget, notes, pep_history, record, seeds, some_packed, trusts
from same_state import BATCH_LINKS, assert_same, assert_same_replica, known, small_batches, small_blocks
from servers import Server

from opic.ingest import ShardWriter
from opic.model.cash import CONTINUOUS, DAY_US, MILLION, CrawlRules
from opic.model.events import EventLimits, Record
from opic.model.ledger import Ledger
from opic.replica import Crawl
from opic.store import Shard

KINDS = ["read"] * 6 + ["gone", "gone", "moved", "failed", "excluded", "seeds", "dead", "forget", "expire"]
PAGES = [f"http://{host}/{name}" for host in ("a.org", "www.a.org", "b.co.uk", "c.net") for name in "pqr"]
urls = st.sampled_from(PAGES)
others = st.sampled_from(
    ["", "mailto:x@y", "/relative", "HTTP://A.org:80/p#top", "http://u:p@a.org/p", "https://www.A.org/p?utm_source=x"]
)
links = st.lists(st.one_of(urls, others), max_size=8)
times = st.integers(0, 40).map(lambda days: (NOW_US + days * DAY_US // 16 - 30 * DAY_US) / MILLION)


# What the log's time does between two records: runs on, makes a new entry of the series due or not quite, runs back.
seconds = st.sampled_from([0, 0, 0, 1, 1_800, 3_599, 3_600, 90_000, -1, -1_800, -90_000])


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    made: list[Record] = []
    late_us = 0
    for offset in range(draw(st.integers(1, 40))):
        kind = draw(
            st.sampled_from(
                ["read"] * 6 + ["gone", "gone", "moved", "failed", "excluded", "seeds", "dead", "forget", "expire"]
            )
        )
        url, at, noted = draw(st.one_of(urls, urls, urls, others)), draw(times), draw(notes)
        if kind == "read":
            made.append(record(offset, url, draw(links), fetched_at=at, **noted))
        elif kind == "moved":
            other = url.replace("://", "://www.").replace("http:", "HTTPS:") + draw(st.sampled_from(["", "?utm_x=1"]))
            to = draw(st.one_of(urls, st.just(other)))  # With rules, `other` is another name of the same page.
            made.append(record(offset, url, status=301, redirect=to, fetched_at=at, **noted))
        elif kind == "seeds":
            made.append(seeds(offset, *draw(st.lists(urls, min_size=1, max_size=3)), trust=draw(trusts), **noted))
        elif kind in {"forget", "expire"}:
            made.append(forget(offset, *draw(st.lists(urls, min_size=1, max_size=4)), kind=kind))
        elif kind == "dead":
            made.append(Record(offset, NOW_US, draw(st.binary(max_size=20))))
        else:
            failed, excluded = draw(st.sampled_from([0, 500, 503])), draw(st.sampled_from([403, 0]))
            status = {"gone": 404, "failed": failed, "excluded": excluded}[kind]
            noted = {**noted, "excluded": kind == "excluded"}
            made.append(record(offset, url, status=status, fetched_at=at, give_up=draw(st.booleans()), **noted))
        late_us += draw(seconds) * MILLION
        made[-1] = replace(made[-1], time_us=made[-1].time_us + late_us)
    return made


@st.composite
def cuts(draw: st.DrawFn, most: int = 41) -> list[int]:
    """Where a log of up to `most` records is cut into batches; a batch may start before the last one ended."""
    return draw(st.lists(st.integers(0, most), max_size=8))


names = count()


def open_store(
    server: Server, rules: CrawlRules, limits: EventLimits | None = None, *, keep_links: bool = False
) -> ShardWriter:
    """Open a crawl of its own: cheaper than an empty server, and crawls must not see each other anyway."""
    shard = Shard.open(server.client(), f"crawl-{next(names)}", asdict(rules))
    shard.keep_links = keep_links
    return ShardWriter(shard, limits)


PAYOUTS = [CrawlRules(), CONTINUOUS]
rules = st.builds(
    replace,
    st.sampled_from(PAYOUTS),
    q=st.sampled_from([150_000, 500_000, 1]),
    regrant_ppm=st.sampled_from([0, 10_000, 500_000]),
    measures_max=st.integers(1, 5),
    inflow=st.booleans(),
    normalize=st.sampled_from(["", "", "www,https,tracking"]),
)


@examples(100)
@given(
    log=some_packed(logs()),
    cut=cuts(),
    rules=rules,
    links=BATCH_LINKS,
    limits=st.builds(EventLimits, st.sampled_from([1, 3, 10_000]), host_pages_max=st.sampled_from([0, 0, 1, 2, 3])),
    keep_links=st.booleans(),
)
def test_store_ends_in_the_state_of_the_ledger(
    valkey: Server,
    log: list[Record],
    cut: list[int],
    rules: CrawlRules,
    links: int,
    limits: EventLimits,
    keep_links: bool,
) -> None:
    ledger = Ledger(rules, limits)
    ledger.trust = {} if keep_links else None
    store = open_store(valkey, rules, limits, keep_links=keep_links)
    ledger.apply(PARTITION, log)
    done = 0
    with small_batches(links):
        for at in [*cut, len(log)]:
            store.apply(PARTITION, log[min(done, at) : max(done, at)])  # Onwards, or again what was done.
            done = max(done, at)
        store.apply(PARTITION, log)  # All of it again.
    assert_same(store.shard, ledger)
    store.shard.client.close()


@examples(25)
@given(
    log=some_packed(logs()),
    rules=st.sampled_from(PAYOUTS),
    turns=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7)), min_size=3, max_size=20),
    links=BATCH_LINKS,
)
def test_workers_that_share_a_shard_apply_each_record_once(
    valkey: Server, log: list[Record], rules: CrawlRules, turns: list[tuple[int, int]], links: int
) -> None:
    """Three workers, each with caches of its own, send the same partition in turns: zombies and successors."""
    ledger, first = Ledger(rules), open_store(valkey, rules)
    ledger.apply(PARTITION, log)
    workers = [first, ShardWriter(first.shard), ShardWriter(first.shard)]
    with small_batches(links):
        for worker, size in turns:
            at = workers[worker].next_offset(PARTITION)
            back = max(0, at - size // 2)
            workers[worker].apply(PARTITION, log[back : at + size])
        for worker in workers:
            worker.apply(PARTITION, log)
    assert_same(first.shard, ledger)
    first.shard.client.close()


@examples(60)
@given(
    log=some_packed(logs()),
    cut=cuts(),
    rules=rules,
    whole=st.booleans(),
    budget=st.sampled_from([1, 2_000, 20_000]),
    keep_links=st.booleans(),
)
def test_readers_that_follow_from_anywhere_and_that_load_any_checkpoint_end_in_one_state(
    valkey: Server, log: list[Record], cut: list[int], rules: CrawlRules, whole: bool, budget: int, keep_links: bool
) -> None:
    """A journal of almost no bytes is trimmed all the time; each cut leaves a reader that follows from there."""
    ledger = Ledger(rules)
    ledger.trust = {} if keep_links else None
    shard = open_store(valkey, rules, keep_links=keep_links).shard
    ledger.apply(PARTITION, log)
    store, readers = ShardWriter(shard, journal_bytes=budget), []
    with small_batches(5), small_blocks():
        for at in [*sorted(cut), len(log)]:
            store.apply(PARTITION, log[:at])
            if whole:
                store.checkpoint()
            readers.append(Crawl([shard]))
            readers[-1].follow()
        cold = Crawl([shard])
        expected = [repr(page) for page in cold.pages()]
        assert len(expected) == len(known(ledger))
        for reader in readers:
            assert [repr(page) for page in reader.pages()] == expected
            assert_same_replica(reader.replicas[0], cold.replicas[0])
        assert_same(shard, ledger)
    shard.client.close()


@cache
def ledger_of_history(rules: CrawlRules) -> Ledger:
    ledger = Ledger(rules)
    ledger.apply(PARTITION, pep_history())
    return ledger


@pytest.mark.parametrize("size", [1000, 60, pytest.param(7, marks=[pytest.mark.slow, pytest.mark.thorough])])
@pytest.mark.parametrize("rules", PAYOUTS, ids=lambda rules: rules.virtual)
def test_real_history_ends_in_the_state_of_the_ledger(servers: Server, rules: CrawlRules, size: int) -> None:
    log, store = pep_history(), open_store(servers, rules)
    for at in range(0, len(log), size):
        store.apply(PARTITION, log[at : at + size])
    assert_same(store.shard, ledger_of_history(rules))


def test_a_credit_beyond_double_precision_is_exact(servers: Server) -> None:
    """A page that is alone gets back all that it spends, so that credit and -v grow with the clock, near its limit."""
    rules = replace(CONTINUOUS, minted=1 << 52)
    ledger, store = Ledger(rules), open_store(servers, rules)
    alone, *others = PAGES[:5]
    events: list[tuple[str, list[str], int]] = [(alone, [], 200)] * 900
    events += [(alone, others, 200), (others[0], others, 200), (others[1], [], 404), (others[0], others[1:], 200)]
    events += [(others[1], [alone], 200), (alone, [], 404), (others[2], [], 200), (alone, others, 200)]
    log = [record(n, url, links, status=status) for n, (url, links, status) in enumerate(events)]
    ledger.apply(PARTITION, log)
    for cut in (900, 902, len(log)):
        store.apply(PARTITION, log[:cut])
    assert ledger.books.credit > 1 << 61
    assert min(page.v for page in ledger.pages.values()) < -(1 << 61)
    assert_same(store.shard, ledger)
    store.apply(PARTITION, [seeds(len(log), "http://late.org/")])
    assert Crawl([store.shard]).audit()[0].conserved


@pytest.mark.slow
@pytest.mark.thorough
def test_real_history_in_batches_of_one_event_ends_in_the_state_of_the_ledger(valkey: Server) -> None:
    log, store = pep_history(), open_store(valkey, CrawlRules())
    for at in range(len(log)):
        store.apply(PARTITION, log[at : at + 1])
    assert_same(store.shard, ledger_of_history(CrawlRules()))
