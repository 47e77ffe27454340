"""Many shards: each ends in the state of its ledger, fed what it took; between them no grain is lost or doubled."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from logs import NOW_US, PARTITION, array_of, forget, notes, record, seeds, some_packed, trusts
from same_state import BATCH_LINKS, assert_same, small_batches, small_blocks
from servers import Server

from opic.errors import StoreUnavailable, TailLost
from opic.ingest import ShardWriter, Writer
from opic.ingest.class_sweeps import unclassified
from opic.model.cash import CONTINUOUS, DAY_US, MILLION, CrawlRules, Flag
from opic.model.classes import check_classes, encode_classes
from opic.model.events import (
    CheckedEvent,
    EventLimits,
    Outcome,
    Record,
    decode_seeds,
    encode_forgotten,
    encode_seeds,
    split_array,
)
from opic.model.ledger import Ledger
from opic.model.transfer import Transfer
from opic.replica import Crawl
from opic.replica.effect import NO_DIGEST, entry_digest
from opic.replica.inputs import Input
from opic.urls.canonical import host_of, shard_of

HOSTS = [f"{name}.org" for name in "abcdefgh"] + ["www.a.org", "www.b.org"]
PAGES = [f"http://{host}/{name}" for host in HOSTS for name in "pq"]
urls = st.sampled_from(PAGES)
others = st.sampled_from(["", "mailto:x@y", "HTTP://A.org:80/p#top"])
times = st.integers(0, 40).map(lambda days: (NOW_US + days * DAY_US // 16 - 30 * DAY_US) / MILLION)
payouts = st.sampled_from([CrawlRules(), replace(CrawlRules(), regrant_ppm=500_000, inflow=False), CONTINUOUS])
names = count()
KINDS = ["read"] * 6 + ["gone", "gone", "failed", "seeds", "dead", "call", "classes", "forget", "expire"]


def test_hosts_of_the_tests_are_in_all_shards() -> None:
    for shards in (2, 3, 4):
        assert {shard_of(host, shards) for host in HOSTS} == set(range(shards))


patterns = st.sampled_from([
    {"hosts": ["a.org", "c.org"]}, {"hosts": ["org"]}, {"contains": ["/p"]}, {"urls": ["http://b.org/"]},
    {"tags": ["news"]}, {"tags": ["spam"], "hosts": ["d.org"]},
])  # fmt: skip
weights = st.sampled_from([1, 0.5, 3, 40, 0.000001])
definitions = st.dictionaries(st.sampled_from("stuvwxyz"), st.tuples(weights, patterns), max_size=4).map(
    lambda found: [{"name": name, "weight": weight, **what} for name, (weight, what) in found.items()]
)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    made: list[Record] = []
    for offset in range(draw(st.integers(1, 40))):
        kind = draw(
            st.sampled_from(
                ["read"] * 6 + ["gone", "gone", "failed", "seeds", "dead", "call", "classes", "forget", "expire"]
            )
        )
        url, at, noted = draw(urls), draw(times), draw(notes)
        if kind == "read":
            links = draw(st.lists(st.one_of(urls, urls, urls, others), max_size=10))
            tags = draw(st.sampled_from([{}, {}, {"tags": ["news"]}, {"tags": ["spam", "other"]}]))
            made.append(record(offset, url, links, fetched_at=at, **noted, **tags))
        elif kind == "classes":
            made.append(Record(offset, NOW_US + offset, encode_classes(check_classes(draw(definitions))), kind))
        elif kind == "call":
            number = draw(st.integers(0, 3))
            made.append(replace(record(offset, PAGES[number], ["", *PAGES[number + 2 :: 3]]), call=b"call %d" % number))
        elif kind == "seeds":
            made.append(seeds(offset, *draw(st.lists(urls, min_size=1, max_size=4)), trust=draw(trusts), **noted))
        elif kind in {"forget", "expire"}:
            made.append(forget(offset, *draw(st.lists(urls, min_size=1, max_size=6)), kind=kind))
        elif kind == "dead":
            made.append(Record(offset, NOW_US + offset, b"\xff"))
        else:
            status = 404 if kind == "gone" else draw(st.sampled_from([0, 500, 503]))
            made.append(record(offset, url, status=status, fetched_at=at, **noted))
    return made


@contextmanager
def watched() -> Iterator[dict[tuple[str, int], list[Input]]]:
    """Note what takes effect in each shard, in its order."""
    taken: dict[tuple[str, int], list[Input]] = {}
    confirm = ShardWriter._confirm

    def noting(store: ShardWriter, line: Any, sent: Any, *args: Any) -> Any:
        inputs = [replace(one) for one in sent.batch.inputs]  # Those of the batch let go of their events.
        since = confirm(store, line, sent, *args)
        taken.setdefault((store.shard.keys.crawl, store.shard.number), []).extend(inputs)
        return since

    with patch.object(ShardWriter, "_confirm", noting):
        yield taken


class DecidedLedger(Ledger):
    """A ledger that takes definitions of classes as they were decided for all shards, not as they stand in the log."""

    decided: CheckedEvent | None = None

    def _decide(self, event: CheckedEvent) -> None:
        super()._decide(self.decided or event)


def assert_each_shard_is_its_ledger(
    crawl: Crawl, taken: dict[tuple[str, int], list[Input]], limits: EventLimits | None = None
) -> None:
    """Fail on the first difference of a shard from its ledger, and of what was sent from what arrived."""
    sent, arrived = Counter[tuple[int, str, str]](), Counter[tuple[int, str, str]]()
    for shard in crawl.shards:
        ledger = DecidedLedger(crawl.rules, limits, shard=shard.number, shards=len(crawl))
        for one in taken.get((shard.keys.crawl, shard.number), []):
            entry, event = one.record, one.events[0] if one.events else None
            if event is not None and event.outcome is Outcome.FORGET:  # Those of this shard.
                entry = replace(entry, value=encode_forgotten(list(event.seeds)))
            elif event is not None and event.outcome is Outcome.SEEDS:
                given = decode_seeds(entry.value)
                said = given.depth, given.meta, given.trust, given.not_before, given.priority
                value = encode_seeds(list(event.seeds), *said)
                entry = replace(entry, value=value)
            elif entry.packed and one.indexes is not None:
                elements = split_array(entry.value)
                entry = replace(entry, value=array_of([elements[index] for index in one.indexes]))
            ledger.decided = event if one.record.kind == "classes" else None
            ledger.apply(one.partition, [entry])
            if one.record.kind == "transfer":
                note(arrived, shard.number, Transfer.unpack(one.record.value))
        assert_same(shard, ledger)
        assert crawl.follow()[shard.number].classes == ledger.classes
        for to in ledger.outbox:
            note(sent, to, ledger.pop_transfer(to))
            sent.update((to, "classes", placed.pack().hex()) for placed in ledger.placed)
    assert sent == arrived


def note(into: Counter[tuple[int, str, str]], to: int, transfer: Transfer) -> None:
    into[to, "grant", ""] += transfer.grant
    if transfer.classes:
        into[to, "classes", transfer.classes.hex()] += 1
    for url, grains, inflow in zip(transfer.urls, transfer.grains.tolist(), transfer.inflow.tolist(), strict=True):
        into[to, "grains", url] += grains
        into[to, "inflow", url] += inflow
    for url, nearness in zip(transfer.urls, transfer.nearness.tolist(), strict=False):  # None, or one for each.
        into[to, "nearness", url] = max(into[to, "nearness", url], nearness)


def drain(*writers: Writer) -> None:
    while sum(writer.deliver() for writer in writers):
        pass


def assert_drained(crawl: Crawl) -> None:
    for shard in crawl.shards:
        for to in range(len(crawl)):
            assert crawl.client.xlen(shard.keys.outbox(to)) == 0
    books = crawl.books()
    assert sum(part.net for part in books) == 0
    assert len({part.credit for part in books}) == 1
    assert_all_in_their_classes(crawl)
    whole, audits = crawl.audit()
    assert whole.conserved, whole.mismatches
    assert all(audit.conserved for audit in audits), audits
    assert sum(audit.pages + audit.virtual for audit in audits) == crawl.rules.minted


def assert_all_in_their_classes(crawl: Crawl) -> None:
    """All shards have the same classes, and each page is in the one that its URL says, or a tag."""
    replicas = crawl.follow()
    latest = replicas[0].classes
    assert {(replica.classes.placed, replica.classes.version) for replica in replicas} == {
        (latest.placed, latest.version)
    }
    assert len({part.extra for part in crawl.books()}) == 1
    assert unclassified(crawl) == 0
    for page in crawl.pages():
        slot, _ = latest.slot_of(page.url)
        assert page.slot == slot or (page.has(Flag.TAGGED) and latest.has_tags(page.slot)), page


def open_crawl(server: Server, rules: CrawlRules, shards: int) -> Crawl:
    return Crawl.open(server.client(), f"shards-{next(names)}", {**asdict(rules), "shards": shards})


interleaved = given(
    log=some_packed(logs()),
    rules=payouts,
    shards=st.integers(2, 4),
    links=BATCH_LINKS,
    journal_bytes=st.sampled_from([1, 5_000, 1 << 20]),
    limits=st.builds(EventLimits, host_pages_max=st.sampled_from([0, 0, 1, 2, 3])),
    turns=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.sets(st.integers(0, 3))), max_size=12),
)


@examples(25)
@interleaved
def test_shards_end_in_the_states_of_their_ledgers_with_any_writer(valkey: Server, **drawn: Any) -> None:
    """Three workers read the same partition and deliver to any shards, in turns: zombies and successors."""
    write_in_turns(valkey, **drawn)


@pytest.mark.slow
@examples(200)
@interleaved
def test_shards_end_in_the_states_of_their_ledgers_in_many_examples(valkey: Server, **drawn: Any) -> None:
    write_in_turns(valkey, **drawn)


def write_in_turns(
    valkey: Server,
    log: list[Record],
    rules: CrawlRules,
    shards: int,
    links: int,
    journal_bytes: int,
    limits: EventLimits,
    turns: Sequence[tuple[int, int, set[int]]],
) -> None:
    crawl = open_crawl(valkey, rules, shards)
    writers = [Writer(crawl, limits, journal_bytes=journal_bytes) for _ in range(3)]
    with watched() as taken, small_batches(links), small_blocks():
        for which, size, to in turns:
            writer = writers[which]
            at = writer.resume(PARTITION)
            writer.apply(PARTITION, log[max(0, at - size // 2) : at + size])
            writer.deliver({shard for shard in to if shard < shards})
        for writer in writers:
            writer.apply(PARTITION, log)
        drain(*writers)
        assert writers[0].resume(PARTITION) == len(log)
        assert_drained(crawl)
        assert_each_shard_is_its_ledger(crawl, taken, limits)
    crawl.client.close()


@pytest.mark.slow
@pytest.mark.parametrize("rules", [CrawlRules(), CONTINUOUS], ids=["grants", "continuous"])
def test_all_pages_of_all_shards_are_granted_the_same(valkey: Server, rules: CrawlRules) -> None:
    crawl = open_crawl(valkey, rules, 4)
    writer = Writer(crawl)
    for at in range(60):
        ring = [record(at * len(PAGES) + i, url, [PAGES[i - 1], PAGES[i - 7]]) for i, url in enumerate(PAGES)]
        writer.apply(PARTITION, ring)
        drain(writer)
    assert_drained(crawl)
    books = crawl.books()
    assert books[0].credit > (0 if rules.continuous else rules.grant)
    assert sum(part.live for part in books) == len(PAGES)


@pytest.mark.slow
def test_a_step_waits_for_a_shard_with_a_full_outbox(valkey: Server) -> None:
    """And goes on by itself, since whoever is refused takes what waits."""
    crawl = open_crawl(valkey, CrawlRules(), 2)
    writer = Writer(crawl)
    full = next(url for url in PAGES if shard_of(host_of(url), 2) == 0)
    other = next(url for url in PAGES if shard_of(host_of(url), 2) == 1)
    before, entry = NO_DIGEST, Transfer(NOW_US).pack()
    with crawl.client.pipeline() as pipe:
        for number in range(20_000):
            pipe.xadd(crawl.shards[0].keys.outbox(1), {"p": before, "v": entry}, id=f"1-{number}")
            before = entry_digest(before, entry)
        pipe.hset(crawl.shards[0].keys.sent, 1, 20_000)
        pipe.execute()
    writer.stores[0].replica.sent[1] = 20_000, before
    writer.apply(PARTITION, [record(0, full, [other])])
    assert crawl.client.xlen(crawl.shards[0].keys.outbox(1)) < 20_000
    drain(writer)
    assert_drained(crawl)


def test_deposits_of_a_failed_step_are_not_sent_by_another_shard(valkey: Server) -> None:
    """Stores of one writer share the sums for pages of other shards."""
    crawl = open_crawl(valkey, CrawlRules(), 3)
    writer = Writer(crawl)
    a, b, c = (next(url for url in PAGES if shard_of(host_of(url), 3) == shard) for shard in range(3))
    with patch.object(ShardWriter, "_append", side_effect=StoreUnavailable("gone")), pytest.raises(StoreUnavailable):
        writer.apply(PARTITION, [record(0, a, [c])])
    writer.apply("log/other", [record(0, b, [c])])
    writer.apply(PARTITION, [record(0, a, [c])])
    drain(writer)
    assert_drained(crawl)


def test_a_missing_shard_is_not_recreated(valkey: Server) -> None:
    crawl = open_crawl(valkey, CrawlRules(), 3)
    crawl.client.delete(crawl.shards[2].keys.meta)
    with pytest.raises(Exception, match="shard 2 of 3 is gone"):
        Crawl.open(valkey.client(), crawl.shards[0].keys.crawl)


def test_a_shard_that_lost_entries_that_others_took_stops_all_delivery(valkey: Server) -> None:
    crawl = open_crawl(valkey, CrawlRules(), 2)
    writer = Writer(crawl)
    writer.apply(PARTITION, [record(i, url, PAGES) for i, url in enumerate(PAGES)])
    drain(writer)
    sent = crawl.shards[0].keys.sent
    crawl.client.hset(sent, 1, int(crawl.client.hget(sent, 1)) - 1)
    with pytest.raises(Exception, match="lost the end of what it had written"):
        Writer(crawl).deliver()


@pytest.mark.parametrize("shards", [1, 3])
def test_records_behind_a_gap_are_refused(valkey: Server, shards: int) -> None:
    """A store that lost its end after the worker looked where to read on: what lies between was not read again."""
    crawl = open_crawl(valkey, CrawlRules(), shards)
    log = [record(i, url) for i, url in enumerate(PAGES)]
    writer = Writer(crawl)
    writer.apply(PARTITION, log[:4])
    with pytest.raises(TailLost):
        Writer(crawl).apply(PARTITION, log[8:], since=8)
    writer.apply(PARTITION, log[4:], since=4)
    assert writer.resume(PARTITION) == len(log)


def test_zombie_does_not_move_the_resume_point_back(valkey: Server) -> None:
    crawl = open_crawl(valkey, CrawlRules(), 3)
    log = [record(i, url) for i, url in enumerate(PAGES)]
    Writer(crawl).apply(PARTITION, log)
    Writer(crawl).apply(PARTITION, log[2:5], since=2)
    assert crawl.resume(PARTITION) == len(log)
