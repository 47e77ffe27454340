"""What is read of a crawl of many shards is what one would say of all its pages together."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from servers import Server

from opic.api.metrics import Metrics
from opic.errors import BadInput
from opic.frontier import Frontier, PolitenessSettings
from opic.ingest import ShardWriter, Writer
from opic.model.books import Books
from opic.model.cash import MILLION, Flag
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.model.ledger_page import LedgerPage
from opic.model.transfer import Deposit, Transfer
from opic.model.windows import POLICIES
from opic.query.queries import Query
from opic.query.snapshots import Snapshots
from opic.replica import Crawl
from opic.replica.effect import NO_DIGEST, entry_digest
from opic.service.backend import Backend
from opic.settings import Settings
from opic.store import Shard
from opic.urls.canonical import host_of, registered_domain, shard_of

SHARDS = 4
NOW_US = 1_790_000_000_000_000
AT_ONCE = PolitenessSettings(host_delay_seconds=0.0)


class Crawled:
    """A crawl in which no page links to another shard, so that each shard can be written by itself.

    The shards but the first one owe the virtual page what their pages were granted.
    """

    def __init__(self, server: Server, shards: int = SHARDS, name: str = "many", **rules: int | str) -> None:
        self.server = server
        self.crawl = Crawl.open(server.client(), name, rules, shards=shards)
        self.stores = [ShardWriter(shard) for shard in self.crawl.shards]
        self.offsets = [count() for _ in self.stores]
        self.names: list[list[str]] = [[] for _ in self.stores]
        hosts = (f"h{i}.d{i % 7}.org" for i in count())
        while min(map(len, self.names)) < 12:
            host = next(hosts)
            self.names[shard_of(host, shards)].append(host)

    def snapshots(self) -> Snapshots:
        return Snapshots(self.crawl)

    def query(self) -> Query:
        return Query(self.crawl, self.snapshots())

    def frontier(self, politeness: PolitenessSettings = AT_ONCE) -> Frontier:
        """One more endpoint on the same store, as if in another process: its connection and snapshots are its own."""
        crawl = Crawl.open(self.server.client(), "many", create=False)
        return Frontier(crawl, politeness)

    def urls(self, shard: int, pages: int) -> list[str]:
        """Pages of a shard, spread over its hosts."""
        hosts = self.names[shard]
        return [f"http://{hosts[i % len(hosts)]}/{i}" for i in range(pages)]

    def apply(self, shard: int, value: bytes, kind: str = "event", time_us: int = NOW_US) -> None:
        offset = next(self.offsets[shard])
        self.stores[shard].apply("test/0", [Record(offset, time_us + offset, value, kind)])

    def seed(self, shard: int, urls: list[str]) -> None:
        self.apply(shard, encode_seeds(urls), "seeds")

    def event(self, url: str, links: tuple[str, ...] | list[str] = (), **more: Any) -> None:
        self.apply(self.crawl.shard_of(url).number, encode_crawl_event(CrawlEvent(url=url, links=list(links), **more)))

    def fill(self, pages: int = 60, reads: int = 120, seed: int = 1) -> None:
        """Seeds and reads of pages at random, in each shard as many more as its number is large; some pages go away."""
        rng = random.Random(seed)
        for shard in range(len(self.stores)):
            urls = self.urls(shard, pages + 5 * shard)
            self.seed(shard, urls[: pages // 2])
            log, at = [], NOW_US + rng.randrange(1000)
            for _ in range(reads + 7 * shard):
                at += rng.randrange(3_600) * MILLION
                gone = {"status": 404} if rng.random() < 0.02 else {}
                event = CrawlEvent(url=rng.choice(urls), links=rng.sample(urls, 4), **gone)
                log.append(Record(next(self.offsets[shard]), at, encode_crawl_event(event)))
            self.stores[shard].apply("test/0", log)

    def send(self, of: int, to: int, grains: int) -> None:
        """As if a shard had sent what it had from its virtual page, and it were still on its way."""
        client, keys = self.crawl.client, self.crawl.shards[of].keys
        number, before = self.stores[of].replica.sent.get(to, (0, NO_DIGEST))
        entry = Transfer.of(NOW_US, 0, {f"http://{self.names[to][0]}/0": Deposit(grains)}).pack()
        client.xadd(keys.outbox(to), {"p": before, "v": entry}, id=f"1-{number}")
        client.hset(keys.sent, to, number + 1)
        self.stores[of].replica.sent[to] = number + 1, entry_digest(before, entry)
        self.move(of, net=grains, pool=-grains)

    def move(self, shard: int, **amounts: int) -> None:
        """Let totals of a shard be others: a record that changes nothing else says so to all who follow."""
        replica = self.stores[shard].replica
        books = {name: getattr(replica.books, name) + amount for name, amount in amounts.items()}
        replica.books = replace(replica.books, **books)
        self.crawl.client.hset(self.crawl.shards[shard].keys.books, mapping=books)
        self.apply(shard, b"no event")

    def pages(self) -> Iterator[tuple[int, LedgerPage, int]]:
        """Every page with its shard and its cash, by shard and id."""
        for number, replica in enumerate(self.crawl.follow()):
            for page in self.crawl._pages(number, range(len(replica))):
                yield number, page, page.v if page.has(Flag.GONE) else page.v + replica.books.credit

    def best(self) -> list[str]:
        """URLs of the pages with most cash, in the greedy order."""
        live = [(cash, page.url) for _, page, cash in self.pages() if not page.has(Flag.GONE) and cash > 0]
        return [url for _, url in sorted(live, key=lambda one: -one[0])]


@pytest.fixture
def crawled(valkey: Server) -> Crawled:
    found = Crawled(valkey)
    found.fill()
    return found


def calls(server: Server, *commands: str) -> list[int]:
    """How often each command was sent since the server started."""
    with server.client() as client:
        stats = client.info("commandstats")
    return [int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"]) for command in commands]


# Queries.


def test_top_and_ranks_equal_a_plain_sort_of_all_pages(servers: Server) -> None:
    crawled = Crawled(servers)
    crawled.fill()
    query = crawled.query()
    live = [(page.spent + cash, cash, page) for _, page, cash in crawled.pages() if not page.has(Flag.GONE)]
    total = sum(score for score, *_ in live)
    assert total == crawled.crawl.totals().importance_total(1 << 62)
    ranked = sorted(live, key=lambda one: -one[0])  # Ties stay in order of shards and ids.
    top = query.top(len(live) + 5)
    assert [page["url"] for page in top] == [page.url for *_, page in ranked]
    assert [page["url"] for page in query.top(7)] == [page.url for *_, page in ranked[:7]]
    assert len({crawled.crawl.shard_of(str(page["url"])).number for page in query.top(20)}) > 1
    for shown, (score, cash, page) in zip(top, ranked, strict=True):
        rank = 1 + sum(other > score for other, *_ in live)
        assert (shown["importance"], shown["rank"], shown["cash"]) == (score / total, rank, cash)
        assert (shown["reads"], shown["host"]) == (page.reads, host_of(page.url))


def test_batch_is_answered_in_the_order_asked_and_like_each_page_alone(crawled: Crawled) -> None:
    query = crawled.query()
    urls = [page.url for _, page, _ in crawled.pages()]
    random.Random(2).shuffle(urls)
    asked = [*urls, "http://never.seen/", urls[0]]
    answers = query.importance(asked)
    assert [answer and answer["url"] for answer in answers] == [*urls, None, urls[0]]
    assert [query.importance([url])[0] for url in urls[:25]] == answers[:25]
    assert sum(float(str(answer["importance"])) for answer in answers[:-1] if answer) == pytest.approx(1, abs=1e-12)
    ranks = {str(page["url"]): page["rank"] for page in query.top(1_000)}
    gone = [answer for answer in answers if answer and "gone" in answer]
    assert gone
    assert {str(answer["url"]): answer["rank"] for answer in answers if answer and "gone" not in answer} == ranks
    for _, page, cash in crawled.pages():
        (answer,) = query.importance([page.url])
        assert answer is not None
        assert (answer["cash"], answer["reads"]) == (cash, page.reads)
        history = query.history(page.url)
        assert history is not None
        assert [(m["clock"], m["cash"]) for m in history["measures"]] == [  # type: ignore[attr-defined]
            (m.clock, m.cash) for m in page.measures
        ]


def test_stats_are_sums_and_rounds_belong_to_the_whole_crawl(crawled: Crawled) -> None:
    parts, stats = crawled.crawl.books(), crawled.query().stats()
    assert (stats["shards"], stats["known_pages"]) == (SHARDS, sum(books.live for books in parts))
    for name, field in (("clock", "clock"), ("read_pages", "open"), ("gone_pages", "gone"), ("reads", "reads")):
        assert stats[name] == sum(getattr(books, field) for books in parts)
    whole, grant = Books.merged(parts, crawled.crawl.rules), crawled.crawl.rules.grant
    assert stats["rounds"] == whole.rounds / 2**32
    assert whole.clock / (grant * whole.live) < whole.rounds / 2**32 < whole.clock / grant


def test_audit_recounts_each_shard_and_their_sum(servers: Server) -> None:
    crawled = Crawled(servers)
    crawled.fill()
    crawled.send(1, 3, 500)
    query = crawled.query()
    audit = query.audit()
    shards: Any = audit["shards"]
    assert (audit["minted"], audit["in_flight"], audit["conserved"]) == (1 << 62, 500, True)
    assert [(one["shard"], one["minted"], one["in_flight"]) for one in shards] == [
        (0, 1 << 62, 0),
        (1, 0, 500),
        (2, 0, 0),
        (3, 0, 0),
    ]
    pages = [sum(cash for at, _, cash in crawled.pages() if at == number) for number in range(SHARDS)]
    assert [one["pages"] for one in shards] == pages
    assert all(one["virtual"] < 0 for one in shards[1:])
    assert all(one["conserved"] and not one["mismatches"] for one in shards)
    assert audit["minted"] == audit["pages"] + audit["virtual"] + audit["in_flight"]  # type: ignore[operator]

    crawled.move(2, net=1)
    crawled.move(3, net=-1)  # The sum is right; the shards are not.
    audit = query.audit()
    shards = audit["shards"]
    assert not audit["conserved"]
    assert [one["conserved"] for one in shards] == [True, True, False, False]


def test_error_bound_counts_cash_in_flight_and_pending_grants(valkey: Server) -> None:
    crawled = Crawled(valkey, regrant_ppm=0)
    for shard in range(SHARDS):
        pages = crawled.urls(shard, 12)
        crawled.seed(shard, pages)
        crawled.event(pages[0], pages[1:])
    query = crawled.query()
    bounds = [query.stats()["error_bound"]]
    crawled.move(2, net=500_000, pool=-500_000)
    bounds.append(query.stats()["error_bound"])
    crawled.move(0, credit=20_000)
    bounds.append(query.stats()["error_bound"])
    first, flying, late = (float(str(bound)) for bound in bounds)
    assert 0 < first < flying < late < 2
    (answer,) = query.importance([crawled.urls(1, 1)[0]])
    assert answer is not None
    assert answer["error_bound"] == late


def test_a_domain_may_have_hosts_in_several_shards(crawled: Crawled) -> None:
    query, domain = crawled.query(), "d3.org"
    whole = [page for page in query.top(1_000) if registered_domain(str(page["host"])) == domain]
    assert len({shard_of(str(page["host"]), SHARDS) for page in whole}) > 1
    assert query.top(1_000, domain=domain) == whole
    host = str(whole[0]["host"])
    assert query.top(1_000, domain=host) == [page for page in whole if page["host"] == host]
    offered = crawled.frontier().next(1_000, domain=domain).pages
    assert (
        [page.url for page in offered]
        == [  # type: ignore[attr-defined]
            url for url in crawled.best() if registered_domain(host_of(url)) == domain
        ][: len(offered)]
    )  # type: ignore[arg-type]
    assert offered


@pytest.mark.parametrize("virtual", ["grants", "continuous"])
def test_estimates_of_every_policy_sum_to_one(valkey: Server, virtual: str) -> None:
    crawled = Crawled(valkey, virtual=virtual)
    crawled.fill(reads=10)
    while Writer(crawled.crawl).deliver():  # What the virtual page has, where it pays at once.
        pass
    crawled.fill(reads=200, seed=2)
    query = crawled.query()
    for policy in POLICIES:
        for window in (0.5, 8.0, "1d", "300d"):
            top = query.top(1_000, policy=policy, window=window)
            assert sum(float(str(page["importance"])) for page in top) == pytest.approx(1, abs=1e-12)
            assert [page["importance"] for page in top] == sorted((page["importance"] for page in top), reverse=True)  # type: ignore[type-var]
            answers = query.importance([str(page["url"]) for page in top], policy, window)
            for answer, page in zip(answers, top, strict=True):
                assert answer is not None
                assert (answer["importance"], answer["rank"]) == (page["importance"], page["rank"])


def test_one_crawl_in_four_shards_is_estimated_as_in_one(valkey: Server) -> None:
    """Exactly by static; by windows, whose clocks come from four series, within .07 by L1."""
    rng, crawls = random.Random(5), [Crawled(valkey, shards, f"in{shards}", regrant_ppm=0) for shards in (SHARDS, 1)]
    urls = [crawls[0].urls(shard, 60) for shard in range(SHARDS)]
    for shard in range(SHARDS):
        for crawled in crawls:
            crawled.seed(min(shard, len(crawled.stores) - 1), urls[shard])
    Writer(crawls[0].crawl).deliver()  # Counts the pages of all shards.
    at, logs = NOW_US, [[list[Record]() for _ in crawled.stores] for crawled in crawls]
    for _ in range(1_200):
        at += rng.choice([1, 1, 1, 900]) * MILLION
        shard = rng.choice([0, 0, 0, 1, 2, 3])
        event = CrawlEvent(url=rng.choice(urls[shard]), links=rng.sample(urls[shard], 5))
        for crawled, log in zip(crawls, logs, strict=True):
            number = min(shard, len(log) - 1)
            log[number].append(Record(next(crawled.offsets[number]), at, encode_crawl_event(event)))
    for crawled, log in zip(crawls, logs, strict=True):
        for store, records in zip(crawled.stores, log, strict=True):
            store.apply("test/0", records)
    four, one = (crawled.query() for crawled in crawls)
    assert {p["url"]: p["importance"] for p in four.top(999)} == {p["url"]: p["importance"] for p in one.top(999)}
    seen = []
    for policy in POLICIES:
        for window in (0.05, 0.3, 1.0, "12h"):
            found, exact = ({p["url"]: p["importance"] for p in q.top(999, None, policy, window)} for q in (four, one))
            assert found.keys() == exact.keys()
            seen.append((sum(abs(found[url] - exact[url]) for url in exact), policy, window))  # type: ignore[operator]
    assert max(distance for distance, *_ in seen) < 0.07


# Snapshots.


def test_changed_shard_is_shown_up_to_date_with_unchanged_ones(crawled: Crawled) -> None:
    snapshots = crawled.snapshots()
    first = snapshots.fresh()
    assert first.starts.tolist() == [0, *np.cumsum([len(part.state) for part in first.parts]).tolist()]
    looked = calls(crawled.server, "get", "hgetall")
    assert snapshots.fresh().parts is first.parts
    assert calls(crawled.server, "get", "hgetall") == looked  # Nothing moved, so only versions were read.
    url = crawled.urls(2, 1)[0]
    crawled.event(url, [crawled.urls(2, 2)[1]])
    before = time.time()
    second = snapshots.fresh()
    for number in (0, 1, 3):
        assert np.array_equal(second.parts[number].cash, first.parts[number].cash)
        assert second.parts[number].books == first.parts[number].books
    assert second.parts[2].books.version == first.parts[2].books.version + 1
    assert second.books.version == first.books.version + 1
    assert before <= second.as_of <= time.time()
    assert second.parts[2].books == crawled.crawl.shards[2].books()


def test_positions_map_to_pages_and_back(crawled: Crawled) -> None:
    snapshot = crawled.snapshots().fresh()
    places = snapshot.places(np.arange(len(snapshot)))
    assert places == [(n, i) for n, part in enumerate(snapshot.parts) for i in range(len(part.state))]
    shards, ids = np.array(places).T
    assert snapshot.positions(shards, ids).tolist() == list(range(len(snapshot)))
    later = [len(part.state) for part in snapshot.parts]  # Not the first page of the next shard.
    assert set(snapshot.positions(np.arange(SHARDS), np.array(later)).tolist()) == {len(snapshot)}
    urls = crawled.crawl.urls_of(places)
    hosts = [snapshot.hosts[number] for number in snapshot.host.tolist()]
    assert hosts == [host_of(urls[place]) for place in places]


def test_empty_shards_do_no_harm(valkey: Server) -> None:
    crawled = Crawled(valkey)
    query, frontier = crawled.query(), crawled.frontier()
    assert query.top(10) == []
    assert frontier.next(10).pages == []
    url = crawled.urls(2, 1)[0]
    crawled.seed(2, [url])
    assert [page["url"] for page in query.top(10)] == [url]
    for policy in POLICIES:
        assert [page["importance"] for page in query.top(10, policy=policy)] == [1.0]
    assert [page.url for page in frontier.next(10).pages] == [url]


# The frontier.


def test_pages_come_in_the_order_of_cash_over_all_shards(servers: Server) -> None:
    crawled = Crawled(servers)
    crawled.fill()
    best, frontier, found = crawled.best(), crawled.frontier(), []
    assert len({crawled.crawl.shard_of(url).number for url in best[:20]}) > 1
    while pages := frontier.next(10).pages:
        found += [page.url for page in pages]
    assert found == best
    assert frontier.next(10).retry_after > 0  # type: ignore[operator]


def test_batch_is_cut_at_half_of_the_best_by_the_leases_of_all_shards(valkey: Server) -> None:
    crawled = Crawled(valkey, regrant_ppm=0)
    rich = []
    for shard in range(SHARDS):
        pages = crawled.urls(shard, 40)
        crawled.seed(shard, pages)
        for page in pages[2:10]:
            crawled.event(page, [pages[0]])
        rich.append(pages[0])
    frontier = crawled.frontier()
    first = frontier.next(4).pages
    assert {page.url for page in first} == set(rich)
    # 4 leased and 12 asked for are a tenth of 160 pages: not over it, so the batch is whole.
    again = frontier.next(12).pages
    assert len(again) == 12  # type: ignore[arg-type]
    for shard in range(SHARDS):
        page = crawled.urls(shard, 40)[30 + shard]
        crawled.event(page, [crawled.urls(shard, 40)[1]])
    (twice, *_) = crawled.query().top(1)
    cut = frontier.next(12).pages
    cash = [page.cash for page in cut]
    assert cash
    assert min(cash) * 2 >= max(cash)
    assert twice


def test_tokens_name_their_shard_and_release_works_across_shards(crawled: Crawled) -> None:
    frontier = crawled.frontier()
    pages: Any = frontier.next(30).pages
    assert {int(page.lease.split("-")[0]) for page in pages} == set(range(SHARDS))
    for page in pages:
        shard, page_id = map(int, page.lease.split("-")[:2])
        crawled.crawl.follow()
        assert crawled.crawl.urls_of([(shard, page_id)]) == {(shard, page_id): page.url}
    other = crawled.frontier()
    taken = {page.url for page in pages}
    assert not taken & {page.url for page in other.next(10).pages}
    leases = [page.lease for page in pages]
    assert other.release([*leases, leases[0]]).released == len(pages)
    assert other.release(leases).released == 0
    again: Any = frontier.next(30).pages
    assert [page.url for page in again] == [page.url for page in pages]
    with pytest.raises(BadInput, match="not a lease"):
        frontier.release([f"{SHARDS}-0-1"])


@pytest.mark.slow
def test_concurrent_frontiers_never_suggest_a_page_twice(valkey: Server) -> None:
    crawled = Crawled(valkey)
    crawled.fill(pages=300, reads=600)
    best, found = crawled.best(), [[] for _ in range(4)]
    frontiers = [crawled.frontier() for _ in found]

    def ask(frontier: Frontier, mine: list[str]) -> None:
        rng = random.Random(id(frontier))
        while pages := frontier.next(rng.randint(1, 25)).pages:
            mine += [page.url for page in pages]

    threads = [threading.Thread(target=ask, args=pair) for pair in zip(frontiers, found, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    counted = Counter(url for mine in found for url in mine)
    assert set(counted.values()) == {1}
    assert set(counted) == set(best)


def test_host_delays_and_busy_hosts_are_respected_across_shards(crawled: Crawled) -> None:
    polite = PolitenessSettings(host_delay_seconds=60.0)
    frontier = crawled.frontier(polite)
    hosts = [host for names in crawled.names for host in names]
    first, *others = (host_of(url) for url in crawled.best())
    found: list[str] = []
    while pages := frontier.next(100, busy_hosts=[first]).pages:
        found += [host_of(page.url) for page in pages]
    assert first not in found
    assert len(found) == len(set(found))  # One a host.
    assert set(found) == set(others) - {first}
    assert set(found) < set(hosts)
    assert {shard_of(host, SHARDS) for host in found} == set(range(SHARDS))
    left = [host_of(page.url) for page in crawled.frontier(polite).next(100).pages]
    assert left == [first]
    answer = frontier.next(10)
    assert answer.pages == []
    assert 0 < answer.retry_after <= 60  # type: ignore[operator]


def test_ended_leases_are_swept_in_every_shard(crawled: Crawled) -> None:
    frontier = crawled.frontier()
    pages: Any = frontier.next(40, lease_seconds=0.001).pages
    shards = {int(page.lease.split("-")[0]) for page in pages}
    assert len(shards) > 1
    while time.time() < max(page.lease_until for page in pages):
        time.sleep(0.001)
    frontier.next(1)
    for shard in crawled.crawl.shards:
        fails = crawled.crawl.client.hvals(shard.keys.fails)
        assert len(fails) == sum(int(page.lease.split("-")[0]) == shard.number for page in pages)


def test_querying_many_shards_takes_no_more_round_trips_than_one(valkey: Server) -> None:
    """By pipelines: what is written to the socket at once is one round trip."""
    trips = []
    for shards in (1, SHARDS):
        valkey.reset()
        crawled = Crawled(valkey, shards=shards)
        crawled.fill()
        frontier = crawled.frontier()
        frontier.next(5)
        before = reads_of(valkey)
        frontier.next(5)
        trips.append(reads_of(valkey) - before)
    assert trips[1] <= trips[0] + 2


def reads_of(server: Server) -> int:
    """How often the server read from a socket."""
    with server.client() as client:
        return int(client.info("stats")["total_reads_processed"])


# The service.


def test_metrics_are_sums_over_shards_including_cash_in_flight(crawled: Crawled, tmp_path: Path) -> None:
    client, shards = crawled.crawl.client, crawled.crawl.shards
    for to, grains in ((0, 100), (0, 250), (3, 150)):
        crawled.send(1, to, grains)
    for shard in shards[:2]:
        more = {"events:10": 2, "events:inf": 1, "events:sum": 20_000, "links": 50, "cached": 40, "round_trips": 9}
        client.hset(shard.keys.metrics, mapping={"0.001": 2, "inf": 1, "sum_us": 3_000_000, **more})
    backend = Backend(Settings.load(crawl="many", data=tmp_path), crawled.server.url)
    text = Metrics(backend).scrape("text/plain")[0].decode()
    backend.close()
    found = {s.name + s.labels.get("le", ""): s.value for f in text_string_to_metric_families(text) for s in f.samples}
    whole = crawled.crawl.totals()
    assert found["opic_known_pages"] == whole.live == sum(books.live for books in crawled.crawl.books())
    assert (found["opic_clock_grains_total"], found["opic_virtual_pool_grains"]) == (whole.clock, float(whole.pool))
    assert (found["opic_shards"], found["opic_in_flight_grains"], found["opic_outbox_entries"]) == (SHARDS, 500, 3)
    assert (found["opic_step_seconds_bucket0.001"], found["opic_step_seconds_bucket+Inf"]) == (4, 6)
    assert found["opic_step_seconds_sum"] == 6
    assert (found["opic_step_events_bucket5.0"], found["opic_step_events_bucket10.0"]) == (0, 4)
    assert (found["opic_step_events_sum"], found["opic_step_round_trips_total"]) == (40_000, 18)
    assert found["opic_cash_conserved"] == 1


def test_a_shard_with_a_negative_pool_passes_the_audit_alone(valkey: Server) -> None:
    """`Shard.open` of one shard alone still answers for its own pages."""
    crawled = Crawled(valkey, shards=2)
    crawled.fill()
    shard = Shard.beside(crawled.crawl.shards[0], 1)
    assert Crawl([shard]).audit()[0].conserved
    assert shard.books().pool < 0
