"""While cash is on its way between shards, every answer says so, and none is wrong."""

import random
import threading
from itertools import count
from typing import Any

import numpy as np
import pytest
from conftest import ONE_SERVER
from logs import NOW_US, PARTITION
from servers import Server

from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import Writer
from opic.model.cash import MILLION, Flag
from opic.model.events import CrawlEvent, Record, encode_crawl_event
from opic.model.transfer import Transfer, source_of
from opic.model.windows import POLICIES
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.replica.crawl_audit import CrawlAudit
from opic.store import Shard

PAGES = [f"http://h{host}.org/{page}" for page in range(8) for host in range(25)]
DAMPING = 0.85
names = count()


def web(seed: int) -> dict[str, list[str]]:
    """A few pages have most of the links to them; one in eight has no links."""
    rng = random.Random(seed)
    return {
        url: []
        if rng.random() < 0.125
        else list({PAGES[int(len(PAGES) * rng.random() ** 3)] for _ in range(6)} - {url})
        for url in PAGES
    }


def reads(links: dict[str, list[str]], number: int, seed: int) -> list[Record]:
    """Pages at random, in bursts and rests."""
    rng, at, log = random.Random(seed), NOW_US, []
    for offset in range(number):
        at += rng.choice([1, 1, 1, 900]) * MILLION
        url = rng.choice(PAGES)
        log.append(Record(offset, at, encode_crawl_event(CrawlEvent(url=url, links=links[url]))))
    return log


def opened(server: Server, shards: int, **rules: int | str) -> tuple[Crawl, Writer, Query]:
    crawl = Crawl.open(server.client(), f"transfers-{next(names)}", rules, shards=shards)
    return crawl, Writer(crawl), Query(crawl, Snapshots(crawl))


def drain(writer: Writer) -> None:
    while writer.deliver():
        pass


def in_outboxes(crawl: Crawl) -> tuple[int, int]:
    """Entries that wait, and the grains in them."""
    entries = grains = 0
    for shard in crawl.shards:
        for to, other in enumerate(crawl.shards):
            taken = int(crawl.client.hget(other.keys.offsets, source_of(shard.number)) or 0)
            for _, entry in crawl.client.xrange(shard.keys.outbox(to), min=f"1-{taken}"):
                entries, grains = entries + 1, grains + int(Transfer.unpack(entry[b"v"]).grains.sum())
    return entries, grains


def exact(links: dict[str, list[str]], read: dict[str, bool], *, all_links: bool) -> dict[str, float]:
    """PageRank of the known graph; a link to a page that is not known yet keeps its share, or is no link."""
    urls = list(read)
    at = {url: i for i, url in enumerate(urls)}
    moves = np.zeros((len(urls), len(urls)))
    for url, was_read in read.items():
        known = [link for link in links[url] if link in at] if was_read else []
        for link in known:
            moves[at[link], at[url]] = DAMPING / len(links[url] if all_links else known)
    ranks = np.linalg.solve(np.eye(len(urls)) - moves, np.ones(len(urls)))
    return dict(zip(urls, (ranks / ranks.sum()).tolist(), strict=True))


def distance(found: dict[str, float], other: dict[str, float]) -> float:
    assert found.keys() == other.keys()
    return sum(abs(found[url] - other[url]) for url in other)


def shares(query: Query, policy: str = "static", window: float | str = 8.0) -> dict[str, float]:
    top: list[dict[str, Any]] = query.top(len(PAGES), None, policy, window)
    return {page["url"]: page["importance"] for page in top}


@pytest.mark.slow
@ONE_SERVER
def test_books_balance_and_the_bound_holds_with_cash_in_flight(servers: Server) -> None:
    crawl, writer, query = opened(servers, 4)
    links, rng, moved = web(1), random.Random(1), 0
    log = reads(links, 1_500, 2)
    for start in range(0, len(log), 75):
        writer.apply(PARTITION, log[start : start + 75])
        if start % 4:
            writer.deliver(rng.sample(range(4), 2))
        entries, grains = in_outboxes(crawl)
        audit: Any = query.audit()
        assert (audit["in_flight"], crawl.waiting()) == (grains, entries)
        assert audit["conserved"]
        assert audit["minted"] == audit["pages"] + audit["virtual"] + grains == 1 << 62
        assert sum(shard["in_flight"] for shard in audit["shards"]) == grains
        found, bound = shares(query), query.stats().get("error_bound", 2.0)
        assert sum(found.values()) == pytest.approx(1, abs=1e-12)
        read = {page.url: page.has(Flag.OPEN) for page in crawl.pages()}
        for all_links in (True, False):
            assert distance(found, exact(links, read, all_links=all_links)) <= bound  # type: ignore[operator]
        moved += grains > 0
    assert moved > 5
    drain(writer)
    assert (query.audit()["in_flight"], crawl.waiting()) == (0, 0)
    assert float(str(query.stats()["error_bound"])) < 1


def test_audit_finds_a_lost_entry_and_missing_grains(servers: Server) -> None:
    crawl, writer, query = opened(servers, 3)
    for one in reads(web(6), 40, 7):  # Nothing is delivered in between.
        writer.apply(PARTITION, [one])
    pairs = [(of, to) for of in crawl.shards for to in range(3) if crawl.client.xlen(of.keys.outbox(to))]
    assert query.audit()["conserved"]
    (of, to), taken = pairs[0], crawl.shards[pairs[0][1]].keys.offsets
    ((entry_id, _),) = crawl.client.xrange(of.keys.outbox(to), count=1)
    crawl.client.xdel(of.keys.outbox(to), entry_id)
    with pytest.raises(AssertionError, match=rf"from shard {of.number} to {to}, 1 are lost"):
        assert_conserved(crawl)
    # As if it had been taken, without its grains.
    crawl.client.hset(taken, source_of(of.number), 1)
    with pytest.raises(AssertionError, match="grains are in flight"):
        assert_conserved(crawl)
    crawl.client.hset(taken, source_of(of.number), 1_000)
    with pytest.raises(AssertionError, match=rf"shard {to} took 1000 entries of shard {of.number}, which knows of"):
        assert_conserved(crawl)


@pytest.mark.slow
@ONE_SERVER
def test_audit_during_writes_reports_no_false_mismatch(servers: Server) -> None:
    crawl, writer, _ = opened(servers, 4)
    log, done = reads(web(8), 4_000, 9), threading.Event()

    def deliver() -> None:
        mine = Writer(Crawl.open(servers.client(), crawl.shards[0].keys.crawl))
        while not done.is_set():
            mine.deliver()

    def write() -> None:
        try:
            for start in range(0, len(log), 20):
                writer.apply(PARTITION, log[start : start + 20])
        finally:
            done.set()

    threads = [threading.Thread(target=deliver), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    looks = 0
    watching = Crawl.open(servers.client(), crawl.shards[0].keys.crawl)
    while not done.is_set():
        assert_conserved(watching)
        looks += 1
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert writer.resume(PARTITION) == len(log)
    assert looks > 5
    drain(writer)
    assert_conserved(watching)


def test_audit_beside_a_thread_that_follows_reports_no_false_mismatch(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that were followed after a shard was recounted are in the outboxes, and not in what was counted."""
    crawl, writer, _ = opened(valkey, 4)
    watching, recount = Crawl.open(valkey.client(), crawl.shards[0].keys.crawl), CrawlAudit._totals_wrong
    log = reads(web(8), 400, 9)
    batches = [log[start : start + 20] for start in range(0, len(log), 20)]

    def then_follow(audit: CrawlAudit, shard: Shard) -> list[str]:
        found = recount(audit, shard)
        if batches and shard.number < 3:
            writer.apply(PARTITION, batches.pop(0))
            watching.follow()
        return found

    monkeypatch.setattr(CrawlAudit, "_totals_wrong", then_follow)
    while batches:
        assert_conserved(watching)
        drain(writer)


def assert_conserved(crawl: Crawl) -> None:
    whole, _ = crawl.audit()
    assert whole.conserved, whole.mismatches


@pytest.mark.slow
@pytest.mark.parametrize("virtual", ["grants", "continuous"])
def test_estimates_of_many_shards_are_close_to_those_of_one(valkey: Server, virtual: str) -> None:
    """By L1 distance, after 15 reads a page in one order: .005 static and .1 by windows under grants."""
    links = web(3)
    log, runs = reads(links, 3_000, 4), []
    for shards in (1, 4):
        _, writer, query = opened(valkey, shards, virtual=virtual)
        for start in range(0, len(log), 25):
            writer.apply(PARTITION, log[start : start + 25])
            drain(writer)
        runs.append({p: {w: shares(query, p, w) for w in (0.5, 4.0, "2d")} for p in POLICIES})
    one, four = runs
    for policy, by_window in one.items():
        for window, shares_of_one in by_window.items():
            static, windowed = (0.005, 0.1) if virtual == "grants" else (0.25, 0.15)  # The latter pays at every moment.
            assert distance(four[policy][window], shares_of_one) < (static if policy == "static" else windowed)


@pytest.mark.slow
def test_a_greedy_crawl_over_shards_finds_every_page(valkey: Server) -> None:
    crawl, writer, _ = opened(valkey, 4)
    frontier = Frontier(crawl, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.0))
    links, offset, fetched = web(5), 0, set[str]()
    reached = set(PAGES[:9])
    while more := {link for url in reached for link in links[url]} - reached:
        reached |= more
    writer.apply(PARTITION, [Record(offset, NOW_US, encode_crawl_event(CrawlEvent(url=PAGES[0], links=PAGES[1:9])))])
    for _ in range(400):
        drain(writer)
        pages: Any = frontier.next(5).pages
        log = []
        for page in pages:
            offset, event = offset + 1, CrawlEvent(url=page.url, links=links[page.url])
            log.append(Record(offset, NOW_US + offset, encode_crawl_event(event)))
        writer.apply(PARTITION, log)
        fetched |= {page.url for page in pages}
        if reached - {PAGES[0]} <= fetched:
            break
    assert reached - {PAGES[0]} <= fetched <= reached
    for shard in crawl.shards:
        assert not crawl.client.zcard(shard.keys.leases)  # The event of a fetch ends its lease, in its shard.
