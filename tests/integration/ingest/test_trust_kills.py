"""Trust survives kills of worker and server: weights, kept links and coverage equal those of an undisturbed run."""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import groupby

import msgpack
import pytest
from append_only_file import append_only_file, cut
from crashing_worker import near_the_append, run_worker
from example_counts import part_of
from logs import NOW_US, PARTITION, record, seeds
from same_state import assert_same, assert_same_replica, small_blocks, stored_links
from servers import Server
from trust_log import TrustLog

from opic.ingest.event_log import EventLog
from opic.model.events import Record
from opic.model.ledger import Ledger
from opic.query.coverage import CoverageQuery
from opic.query.kept_links import KeptLinks
from opic.query.page_flows import PageFlows
from opic.replica import Crawl
from opic.replica.fingerprints import Fingerprints
from opic.replica.stored_links import read_list
from opic.store import connect

pytestmark = pytest.mark.slow

SEED = 101
EVENTS = 600
FIRST_TRUST = 60  # The links of reads before it are not kept.
CRASHES_NEAR, CRASHES_LINKS, CRASHES_ELSEWHERE = part_of(10), 12, part_of(6)
PAGES = [f"http://h{page % 11}.example/{page}" for page in range(70)]
FETCHED_AT = 1_700_000_000.0


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """The same blocks of few pages as those of the workers."""
    with small_blocks(64, 8):
        yield


def history(shards: int) -> list[Record]:
    """Trust given, changed and taken away; links that change; pages that go away and come back.

    With one shard, links bring pages back too: an event is three hours after the one before it. With many, that depends
    on when a link arrives at the other shard, so all events have one time.
    """
    draw, made = random.Random(SEED), list[Record]()
    for offset in range(EVENTS):
        at, page = FETCHED_AT + (3 * 3600 * offset if shards == 1 else 0), draw.choice(PAGES[:45])
        links, what = draw.sample(PAGES, draw.randint(0, 7)), draw.random()
        if offset == FIRST_TRUST:
            made.append(seeds(offset, *PAGES[:4], trust=1.0))
        elif what < 0.1:
            made.append(seeds(offset, *draw.sample(PAGES[:8], 2), trust=draw.choice([0.0, 0.3, 1.0, None])))
        elif what < 0.2:
            made.append(record(offset, page, status=draw.choice([404, 410, 500]), fetched_at=at))
        elif what < 0.25:
            made.append(record(offset, page, status=302, redirect=links[0] if links else None, fetched_at=at))
        else:
            made.append(record(offset, page, links, fetched_at=at))
    made[-1] = seeds(EVENTS - 1, PAGES[2], trust=0.7)  # So that some page is trusted in the end.
    return [Record(one.offset, NOW_US, one.value, one.kind) for one in made]


def filled(server: Server, name: str, shards: int, log: Sequence[Record]) -> Crawl:
    crawl = Crawl.open(connect(server.url), name, shards=shards)
    source = EventLog(crawl.client, crawl.shards[0].keys)
    for kind, records in groupby(log, lambda one: one.kind):
        source.append([one.value for one in records], NOW_US, kind)
    return crawl


def state(crawl: Crawl) -> tuple[dict[str, float], dict[str, frozenset[str]]]:
    """The weights of the trusted pages, and the links that the store keeps, by URL."""
    crawl.follow()
    urls = [page.url for page in crawl.pages()]
    places = dict(zip(crawl.ids_of(urls), urls, strict=True))
    prints = dict(zip(Fingerprints(crawl.shards[0].secret).hash_strings(urls).tolist(), urls, strict=True))
    trust: dict[str, float] = {}
    links: dict[str, frozenset[str]] = {}
    for number, (shard, replica) in enumerate(zip(crawl.shards, crawl.replicas, strict=True)):
        trust |= {places[number, page]: weight for page, weight in (replica.trust or {}).items()}
        for page, (near, far, _) in stored_links(shard, replica).items():
            found = {places[number, near_page] for near_page in near.tolist()} | {prints[one] for one in far.tolist()}
            links[places[number, page]] = frozenset(found)
    return trust, links


def loads_what_follows(server: Server, name: str, following: Crawl) -> None:
    """Fail unless replicas loaded now, from checkpoint and journal, are those that followed all along."""
    client = connect(server.url)
    try:
        cold = Crawl.open(client, name)
        for loaded, followed in zip(cold.follow(), following.follow(), strict=True):
            assert_same_replica(loaded, followed)
    finally:
        client.close()


def crash_often(server: Server, crawl: Crawl, name: str, seen: dict[str, int], events: int) -> list[str]:
    """Kill workers and the server near the append, where links are packed, and elsewhere; return what was killed."""
    draw = random.Random(SEED)
    near = near_the_append(seen)
    others = [where for where in sorted(seen) if where.partition(":")[0] in {"checkpoint.py", "trust_changes.py"}]
    others += [where for where in sorted(seen) if where.startswith(("writer.py", "batch.py", "replica.py"))]
    links = [where for where in sorted(seen) if where.startswith(("link_keeper.py", "stored_links.py"))]
    plans = [*draw.sample(near, CRASHES_NEAR), *draw.sample(links, CRASHES_LINKS)]
    plans += draw.sample(others, CRASHES_ELSEWHERE)
    draw.shuffle(plans)
    crashes, lost = list[str](), 0
    for turn, where in enumerate(plans):
        until = events * (turn + 1) // (len(plans) + 1)
        file, size = append_only_file(server), append_only_file(server).stat().st_size
        times = draw.randint(1, max(1, min(seen[where] // len(plans), 5)))
        plan = {"statement": where, "times": times, "victim": server.pid if turn % 2 else 0, "until": until}
        said = run_worker(server, name, draw.choice([1, 7, 40]), plan).stderr
        crashes += [line for line in said.splitlines() if line.startswith("killed the")]
        if not server.alive:
            if (turn % 4 == 1 or not lost) and file == append_only_file(server):
                whole = file.stat().st_size
                cut(file, draw.randrange(size, whole + 1))
                lost += whole > file.stat().st_size
            server.restart()
        audit, _ = crawl.audit()
        assert audit.conserved, (said, audit)
        loads_what_follows(server, name, crawl)
    assert lost
    return crashes


@pytest.mark.parametrize("shards", [pytest.param(1, marks=pytest.mark.thorough), 5])
def test_trust_and_links_equal_those_of_an_undisturbed_run_wherever_it_is_killed(valkey: Server, shards: int) -> None:
    log = history(shards)
    filled(valkey, "scratch", shards, log[: EVENTS // 2]).client.close()
    seen = json.loads(run_worker(valkey, "scratch", 20, {"record": True}).stdout)
    calm = filled(valkey, "calm", shards, log)
    assert run_worker(valkey, "calm", 1_000, {"statement": "", "victim": 0}).returncode == 0

    crawl = filled(valkey, "real", shards, log)
    crashes = crash_often(valkey, crawl, "real", seen, EVENTS)
    assert len(crashes) > (CRASHES_NEAR + CRASHES_LINKS + CRASHES_ELSEWHERE) // 2
    done = run_worker(valkey, "real", 1_000, {"statement": "", "victim": 0})
    assert done.returncode == 0, done.stderr

    assert state(crawl) == state(calm)
    trusts = TrustLog(log)
    trust, links = state(crawl)
    assert trust == {url: weight for url, weight in trusts.trust.items() if weight}
    assert links == {url: frozenset(some) for url, some in trusts.links.items()}
    loads_what_follows(valkey, "real", crawl)
    for shard in crawl.shards:  # What was loaded came from the checkpoint.
        assert "trust" in msgpack.unpackb(shard.client.hget(shard.keys.names_block, "rest"), strict_map_key=False)
        stored = read_list(shard.client, shard.keys)
        assert stored.live
        assert shards > 1 or stored.merges
    assert crawl.totals().reads == trusts.reads

    found, expected = CoverageQuery(PageFlows(KeptLinks(crawl))).now(), CoverageQuery(PageFlows(KeptLinks(calm))).now()
    counts = len(trusts.fetched), len(trusts.weights)
    assert (found.fetched_pages, found.trusted_pages) == (expected.fetched_pages, expected.trusted_pages) == counts
    least = trusts.least
    assert found.flow.coverage == pytest.approx(least, abs=1e-5)
    assert found.flow.coverage <= least
    if shards == 1:
        same_to_the_bit(calm, crawl, log)
        assert found.flow.coverage == expected.flow.coverage
    else:  # Ids depend on when links arrived, and with them the order of the sums.
        assert found.flow.coverage == pytest.approx(expected.flow.coverage, abs=1e-5)
    for one in (calm, crawl):
        one.client.close()


def same_to_the_bit(calm: Crawl, crawl: Crawl, log: Sequence[Record]) -> None:
    """Compare the links as they are read from the store, and all else with the ledger."""
    stored = [stored_links(one.shards[0], one.replicas[0]) for one in (calm, crawl)]
    plain = [{page: [part.tolist() for part in parts] for page, parts in some.items()} for some in stored]
    assert plain[0] == plain[1]
    assert len(plain[0]) > 30
    ledger = Ledger()
    ledger.apply(PARTITION, log)
    assert_same(crawl.shards[0], ledger)
