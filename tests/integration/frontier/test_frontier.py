"""Crawlers get the pages with most cash, each page one crawler, each host its rest."""

import math
import random
import threading
import time
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import pytest
from conftest import ONE_SERVER
from frontiers import CLOCK_SECONDS, Crawl, pages_of, until
from logs import PARTITION, pep_history
from servers import Server

from opic.errors import BadInput, StoreUnavailable
from opic.frontier import Frontier, PolitenessSettings
from opic.frontier.scheduler import FrontierScheduler
from opic.model.cash import CrawlRules, Flag
from opic.model.ledger import Ledger
from opic.urls.canonical import host_of

pytestmark = pytest.mark.slow  # `make check` stays under two minutes.

# The order.


@ONE_SERVER
def test_order_equals_the_order_of_cash_in_the_model(servers: Server) -> None:
    ledger, crawl = Ledger(), Crawl(servers, regrant_ppm=CrawlRules().regrant_ppm)
    log = pep_history()[:9_000]
    ledger.apply(PARTITION, log)
    crawl.store.apply(PARTITION, log)
    credit, total = ledger.books.credit, ledger.books.importance_total(1 << 62)
    offered = [page for page in ledger.pages.values() if not page.has(Flag.GONE) and ledger.cash(page) > 0]
    offered.sort(key=lambda page: (-ledger.cash(page), page.id))
    found: list[dict[str, Any]] = []
    while len(found) < len(offered):
        batch = crawl.next(random.Random(len(found)).randint(1, 40))
        assert batch
        found += batch
    for shown, page in zip(found, offered, strict=True):
        assert (shown.url, shown.cash) == (page.url, page.v + credit)
        assert shown.importance == (page.spent + page.v + credit) / total
        assert shown.fetched_before == (page.reads > 0)
    assert crawl.next() == []


def test_more_pages_than_one_read_may_be_requested(valkey: Server) -> None:
    crawl, urls = Crawl(valkey), pages_of(100, 60)
    for at in range(0, 6_000, 1_000):
        crawl.seed(urls[at : at + 1_000])
    assert crawl.urls(5_000) == urls[:5_000]


def test_pages_of_equal_cash_come_in_the_order_of_discovery(valkey: Server) -> None:
    crawl, urls = Crawl(valkey), pages_of(30, 10)
    crawl.seed(urls)
    assert crawl.urls(20) + crawl.urls(7) == urls[:27]


def test_page_just_read_is_not_offered_on_a_store_too_large_to_compare(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cash that decides is of now, however many pages there are."""
    too_large(monkeypatch)
    crawl, urls = Crawl(valkey), pages_of(200, 1)
    crawl.seed(urls)
    for i, url in enumerate(urls[:20]):
        crawl.event(f"http://hub{i}.org/", [url])
    assert crawl.urls(1) == [urls[0]]
    for i, url in enumerate(urls[1:10]):
        crawl.event(url, [urls[199]])
        crawl.event(f"http://late{i}.org/", [url, urls[198], urls[197]])  # A little comes back, less than others hold.
    assert crawl.urls(10) == [urls[199], *urls[197:199], *urls[10:17]]


# One page, one crawler.


@pytest.mark.slow
@ONE_SERVER
def test_ten_thousand_suggestions_to_four_threads_of_two_endpoints_repeat_no_page(servers: Server) -> None:
    crawl = Crawl(servers)
    urls = pages_of(400, 30)
    for at in range(0, len(urls), 1000):
        crawl.seed(urls[at : at + 1000])
    endpoints = [crawl.frontier, crawl.endpoint()]
    found: list[str] = []
    ends: list[int] = []

    def crawler(frontier: Frontier) -> None:
        mine = 0
        while len(found) < 10_000:
            pages: Any = frontier.next(20, crawler=f"crawler of {id(frontier)}").pages
            assert pages
            found.extend(page.url for page in pages)
            mine += len(pages)
        ends.append(mine)

    threads = [threading.Thread(target=crawler, args=(endpoints[i % 2],)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ends) == 4
    assert len(found) >= 10_000
    assert len(set(found)) == len(found)


def test_cached_leases_are_respected(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are chosen by leases known a moment ago; the store has the last word."""
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)
    crawl, urls = Crawl(valkey), pages_of(100, 10)
    crawl.seed(urls)
    other, found = crawl.endpoint(), []
    for turn in range(50):
        pages: Any = (crawl.frontier, other)[turn % 2].next(10).pages
        found += [page.url for page in pages]
    assert sorted(found) == sorted(urls[:500])


def test_leases_of_a_call_that_fails_halfway_are_given_back(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store granted them before it failed. No crawler has them, so they must not count as failed fetches."""
    crawl, urls = Crawl(valkey), pages_of(10, 1)
    crawl.seed(urls)

    def fail(*_: object) -> None:
        assert len(crawl.store.shard.client.zrange(crawl.store.shard.keys.leases, 0, -1)) == 10
        raise StoreUnavailable("away for a moment")

    with monkeypatch.context() as patch:
        patch.setattr(FrontierScheduler, "_grant", fail)
        with pytest.raises(StoreUnavailable):
            crawl.next(10)
    assert not crawl.store.shard.client.zrange(crawl.store.shard.keys.leases, 0, -1)
    assert sorted(crawl.urls(10)) == sorted(urls)
    assert crawl.fails() == 0


def test_lease_ends_by_the_servers_clock(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.seed(pages_of(10, 1))
    client = crawl.store.shard.client
    before = client.time()
    (page,) = crawl.next(1, lease_seconds=40.0)
    after = client.time()
    assert before[0] + before[1] / 1e6 <= page.lease_until - 40 + CLOCK_SECONDS
    assert page.lease_until - 40 <= after[0] + after[1] / 1e6 + CLOCK_SECONDS
    assert isinstance(page.lease, str)
    (page,) = crawl.next(1)
    assert page.lease_until - client.time()[0] == pytest.approx(300, abs=5)


def test_expired_lease_is_a_failed_fetch_and_doubles_the_wait(servers: Server) -> None:
    crawl = Crawl(servers, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.1))
    crawl.seed(["http://a.org/"])
    ended = crawl.next(1, lease_seconds=0.05)[0].lease_until
    for times in range(1, 4):
        (page,) = until(lambda: crawl.next(1, lease_seconds=0.05))
        assert page.lease_until - 0.05 >= ended + 0.1 * 2 ** (times - 1) - CLOCK_SECONDS
        assert crawl.fails() == times
        ended = page.lease_until
    crawl.event("http://a.org/", ["http://b.org/"])
    assert crawl.fails() == 0


def test_leases_that_ended_are_not_counted_as_leased_before_a_page_is_asked_for(valkey: Server) -> None:
    """By the endpoint that granted them, and by others: one that knew of them, and one that did not."""
    crawl = Crawl(valkey)
    crawl.seed(pages_of(100, 1))
    frontier, late, other = crawl.frontier, crawl.endpoint(), crawl.endpoint()
    other.peek()
    assert len(frontier.next(1, lease_seconds=300).pages) == 1
    leased = frontier.next(5, lease_seconds=0.5).pages
    assert late.peek().waiting.leased == 1 + len(leased)
    waiting: Any = until(lambda: (found := frontier.peek().waiting).retry and found)
    assert (waiting.leased, waiting.retry) == (1, len(leased))
    for endpoint in (late, other):
        until(lambda endpoint=endpoint: endpoint.peek().waiting.leased == 1)
        kinds = Counter[str]()
        for (_, kind), count in endpoint.census().items():
            kinds[kind] += count
        assert kinds["leased"] <= 1


def test_without_a_retry_delay_an_expired_lease_frees_its_page_at_once(valkey: Server) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.0))
    crawl.seed(["http://a.org/"])
    first = crawl.next(1, lease_seconds=0.05)
    (again,) = until(lambda: crawl.next(1, lease_seconds=0.05))
    assert again.lease != first[0].lease
    assert again.lease_until - 0.05 >= first[0].lease_until - CLOCK_SECONDS


def test_event_ends_the_lease_of_its_page_whoever_sends_it(valkey: Server) -> None:
    crawl, a, b = Crawl(valkey), "http://a.org/", "http://b.org/"
    crawl.seed([a, b])
    assert crawl.urls() == [a, b]
    assert crawl.urls() == []
    crawl.event(a, [b], crawler="another one")
    assert crawl.urls() == []  # Read: no cash. The other page is still leased.
    crawl.event(b, [a])
    assert crawl.urls() == [a]


def test_leases_and_waits_survive_a_restart_of_the_server(valkey: Server) -> None:
    crawl, urls = Crawl(valkey, PolitenessSettings(host_delay_seconds=30.0)), pages_of(30, 2)
    crawl.seed(urls)
    assert len(crawl.next(10)) == 10
    valkey.kill()
    valkey.start()
    assert {host_of(url) for url in crawl.urls(60)} == {f"h{h}.org" for h in range(10, 30)}


def test_released_page_is_free_at_once(servers: Server) -> None:
    crawl = Crawl(servers)
    crawl.seed(["http://a.org/", "http://b.org/"])
    a, b = crawl.next()
    assert crawl.frontier.release([a.lease, a.lease]).released == 1
    assert crawl.urls() == [a.url]
    assert crawl.fails() == 0
    assert crawl.frontier.release([b.lease]).released == 1
    assert crawl.frontier.release([]).released == 0


def test_only_a_running_lease_of_its_holder_is_released(valkey: Server) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.0))
    crawl.seed(["http://a.org/"])
    (mine,) = crawl.next(lease_seconds=0.05)
    (theirs,) = until(crawl.next)
    assert crawl.frontier.release([mine.lease]).released == 0
    assert crawl.next() == []
    crawl.event("http://a.org/")
    assert crawl.frontier.release([theirs.lease]).released == 0
    assert crawl.frontier.release(["0-77-1790000000000000"]).released == 0


def test_lease_is_released_only_with_its_token(servers: Server) -> None:
    """Page and end of a lease can be guessed or read in `explain`; the rest of its token can't."""
    crawl = Crawl(servers)
    crawl.seed(pages_of(3, 1))
    theirs = crawl.next(2)
    shown = crawl.frontier.explain(theirs[0].url)
    assert shown is not None
    terms = f"0-0-{round(shown.lease_until * 1e6)}"  # type: ignore[operator]
    token = theirs[0].lease
    assert token.startswith(f"{terms}-")
    assert token.removeprefix(f"{terms}-") not in repr(shown)
    other = theirs[1].lease.rpartition("-")[2]
    forged = [terms, f"{terms}-{'0' * 20}", f"{terms}-{other}", token[:-1] + ("1" if token[-1] == "0" else "0")]
    assert crawl.frontier.release(forged).released == 0
    assert crawl.urls() == [pages_of(3, 1)[2]]
    assert crawl.endpoint().release([token]).released == 1


def too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the store were too large for each answer to be of the very state that it has."""
    monkeypatch.setattr("opic.replica.upkeep.Upkeep.quick", False)


def asked_of_others(other: Frontier, n: int) -> list[str]:
    """What another endpoint hands out, by what it knows by then."""
    return [page.url for page in other.next(n).pages]


@pytest.mark.parametrize("lost", [False, True])
def test_page_released_through_another_endpoint_is_free_at_once(
    servers: Server, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """It leased the page itself, or another endpoint did; and where changes are gone unread, it reads everything."""
    too_large(monkeypatch)
    crawl, urls = Crawl(servers), pages_of(40, 1)
    other = crawl.endpoint()
    crawl.seed(urls)
    mine = crawl.next(8)
    theirs: Any = other.next(8).pages
    assert [page.url for page in [*mine, *theirs]] == urls[:16]
    client, keys = crawl.store.shard.client, crawl.store.shard.keys
    assert other.release([page.lease for page in mine[:6]]).released == 6
    if lost:
        client.xtrim(keys.changes, maxlen=0)
    assert crawl.urls(6) == urls[:6]
    assert crawl.frontier.release([page.lease for page in theirs[:3]]).released == 3
    assert asked_of_others(other, 3) == urls[8:11]


def test_counts_of_waiting_pages_are_reused_for_a_moment(valkey: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    too_large(monkeypatch)
    crawl = Crawl(valkey)
    crawl.seed(f"http://h{page}.example/" for page in range(6))

    def leased(n: int) -> int:
        return int(crawl.frontier.next(n).waiting.leased)

    assert [leased(1), leased(1)] == [1, 1]
    monkeypatch.setattr("opic.frontier.choices.CENSUS_SECONDS", 0.0)
    assert leased(1) == 3
    monkeypatch.setattr("opic.frontier.choices.CENSUS_SECONDS", 60.0)
    assert len(crawl.urls(6)) == 3
    assert leased(1) == 6  # Of an answer without a page they are always current.


@pytest.mark.parametrize(
    "lease",
    ["", "0", "0-1", "1-1-1790000000000000", "0-1-x", "0-1--5", "0-\u0661-1790000000000000", "x" * 999, "0-1-2-3"],
)
def test_malformed_lease_is_refused_and_none_is_released(valkey: Server, lease: str) -> None:
    crawl = Crawl(valkey)
    crawl.seed(["http://a.org/"])
    (page,) = crawl.next()
    with pytest.raises(BadInput, match="is not a lease"):
        crawl.frontier.release([page.lease, lease])
    assert crawl.next() == []


# Hosts.


def test_host_delay_is_kept_between_pages(servers: Server) -> None:
    """By the times of the suggestions, which are the server's, over two endpoints that poll without a pause."""
    rest = PolitenessSettings(host_delay_seconds=0.2, lease_seconds=100.0)
    crawl = Crawl(servers, rest)
    crawl.seed(pages_of(20, 40))
    times: dict[str, list[float]] = defaultdict(list)

    def crawler(frontier: Frontier) -> None:
        while sum(map(len, times.values())) < 120:
            pages: Any = frontier.next(15).pages
            hosts = [host_of(page.url) for page in pages]
            assert len(set(hosts)) == len(hosts)
            for host, page in zip(hosts, pages, strict=True):
                times[host].append(page.lease_until - 100)

    threads = [threading.Thread(target=crawler, args=(f,)) for f in (crawl.frontier, crawl.endpoint(rest))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(times) == 20
    for at in map(sorted, times.values()):
        assert all(after - before >= 0.2 - CLOCK_SECONDS for before, after in pairwise(at))
    assert max(map(len, times.values())) >= 3


def test_without_a_delay_a_host_gives_many_pages_at_once(valkey: Server) -> None:
    crawl, urls = Crawl(valkey), pages_of(1, 200)
    crawl.seed(urls)
    assert crawl.urls(20) == urls[:20]


def test_host_delay_continues_after_a_release(valkey: Server) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=30.0))
    crawl.seed(["http://a.org/1", "http://a.org/2"])
    (page,) = crawl.next()
    crawl.frontier.release([page.lease])
    assert crawl.next() == []


def test_busy_hosts_are_skipped(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.seed(["http://a.org/", "http://b.a.org/", "https://user@A.org:8443/x", "http://xn--bcher-kva.example/"])
    assert crawl.urls(busy_hosts=["A.org", "bücher.example", "unknown.org"]) == ["http://b.a.org/"]
    assert len(crawl.urls()) == 3


def test_host_with_all_the_best_pages_costs_no_extra_round_trips(valkey: Server) -> None:
    """20,000 pages, of which one host owns the hottest 10,000."""
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=60.0))
    huge = [f"http://huge.org/{i}" for i in range(10_000)]
    small = [f"http://s{i % 2_000}.org/{i}" for i in range(10_000)]
    for at in range(0, 10_000, 1_000):
        crawl.seed(huge[at : at + 1_000] + small[at : at + 1_000])
    for at in range(0, 10_000, 2_500):
        crawl.event(f"http://hub{at}.org/", huge[at : at + 2_500])

    def function_calls() -> int:
        stats = crawl.store.shard.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("fcall", "fcall_ro"))

    assert host_of(crawl.urls(1)[0]) == "huge.org"
    for n in (1, 10, 500):
        before = function_calls()
        hosts = [host_of(url) for url in crawl.urls(n)]
        assert function_calls() - before <= 3  # Sweep, read the candidates, lease.
        assert len(set(hosts)) == len(hosts) == n
        assert "huge.org" not in hosts


# Which pages.


def test_excluded_page_is_not_offered_until_it_is_read_or_seeded(valkey: Server) -> None:
    crawl, a, b = Crawl(valkey), "http://a.org/", "http://b.org/"
    crawl.seed([a, b])
    crawl.event(a, status=403)
    crawl.event(b, excluded=True)
    assert crawl.urls() == []
    crawl.event("http://hub.org/", [a, b])  # A link is not enough.
    assert crawl.urls() == []
    crawl.seed([a])
    assert crawl.urls() == [a]
    crawl.event(b, [])
    crawl.event("http://other.org/", [b])
    assert crawl.urls() == [b]


def test_gone_page_is_offered_again_once_it_is_back(valkey: Server) -> None:
    crawl, a, b = Crawl(valkey), "http://a.org/", "http://b.org/"
    crawl.seed([a, b])
    crawl.event(a, status=404)
    crawl.event(b, status=410, fetched_at=time.time() - 2 * 86_400)
    assert crawl.urls() == []
    crawl.event("http://hub.org/", [a, b])  # Too soon for a link to bring the first one back.
    assert crawl.urls() == [b]
    crawl.seed([a])
    assert crawl.urls() == [a]


def test_each_failure_doubles_the_wait(servers: Server) -> None:
    crawl, a = Crawl(servers, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.1)), "http://a.org/"
    crawl.seed([a])
    for times in range(1, 4):
        before = time.time()
        crawl.event(a, status=500)
        (page,) = until(lambda: crawl.next(lease_seconds=10.0))
        assert page.lease_until - 10.0 >= before + 0.1 * 2 ** (times - 1) - CLOCK_SECONDS
    crawl.event(a, [])
    assert crawl.fails() == 0


def test_page_that_was_read_has_no_cash_and_is_not_offered(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.event("http://a.org/", ["http://b.org/"])
    (page,) = crawl.next()
    assert (page.url, page.fetched_before) == ("http://b.org/", False)


def test_batch_is_cut_at_half_of_its_best_page_past_a_tenth_of_the_pages(valkey: Server) -> None:
    crawl, urls = Crawl(valkey), pages_of(100, 1)
    crawl.seed(urls)
    for i in range(12):
        crawl.event(f"http://hub{i}.org/", urls[:3])  # Four times the cash of the others.
    assert crawl.store.replica.books.live == 112
    found = crawl.next(11)  # No more than a tenth: as many as asked for.
    assert len(found) == 11
    crawl.frontier.release([page.lease for page in found])
    assert crawl.urls(12) == urls[:3]
    assert crawl.urls(8) == urls[3:11]  # With the 3 that are out no more than a tenth.
    assert crawl.urls(1) == urls[11:12]  # Past it, but one page is always its batch's best.
    assert crawl.urls(90) == urls[12:]  # All hold what the best holds.


def test_batch_is_not_cut_for_released_leases(valkey: Server) -> None:
    crawl = Crawl(valkey)
    pages = pages_of(50, 1)
    crawl.seed(pages)
    for url in pages[1:6]:
        crawl.event(url, pages[:1])  # It has five times what others have.
    first = crawl.next(5)
    assert len(first) == 5  # With those that run, a tenth of all.
    crawl.frontier.release([page.lease for page in first])
    assert [page.url for page in crawl.next(5)] == [page.url for page in first]


def test_batch_is_cut_by_the_best_page_that_is_free(valkey: Server) -> None:
    crawl, urls = Crawl(valkey), pages_of(100, 1)
    crawl.seed(urls)
    for i in range(12):
        crawl.event(f"http://hub{i}.org/", urls[:1])
    assert crawl.urls(50) == urls[:1]
    assert crawl.urls(50) == urls[1:51]


def test_modes_separate_unread_pages_from_read_ones(valkey: Server) -> None:
    crawl, a, b, c = Crawl(valkey), "http://a.org/", "http://b.org/", "http://c.org/"
    crawl.seed([a, b, c])
    crawl.event(a, [b])
    crawl.event(b, [a, c])
    assert crawl.urls(mode="refresh") == [a]
    assert crawl.urls(mode="discover") == [c]
    crawl.event(a, status=404)
    crawl.event("http://hub.org/", [a])
    crawl.seed([a])
    (page,) = crawl.next(mode="discover")  # Back, and not read since.
    assert (page.url, page.fetched_before) == (a, True)
    with pytest.raises(BadInput, match="not one of any, discover, refresh"):
        crawl.next(mode="new")


def test_domain_is_a_host_with_all_below_it(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.seed(["http://a.org/", "http://b.a.org/", "http://nota.org/", "http://xn--bcher-kva.example/x"])
    assert crawl.urls(domain="BÜCHER.example") == ["http://xn--bcher-kva.example/x"]
    assert crawl.urls(domain="b.a.org") == ["http://b.a.org/"]
    assert crawl.urls(domain="a.org", busy_hosts=["a.org"]) == []
    assert crawl.urls(domain="a.org") == ["http://a.org/"]
    assert crawl.urls(domain="unknown.org") == []
    assert crawl.urls() == ["http://nota.org/"]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"n": 0}, "at least one page"),
        ({"lease_seconds": 0.0}, "lease_seconds=0.0"),
        ({"lease_seconds": math.nan}, "lease_seconds=nan"),
        ({"lease_seconds": 1e9}, "a day"),
        ({"domain": "a.org/x"}, "not a host"),
        ({"busy_hosts": ["a.org", ""]}, "not a host"),
    ],
)
def test_bad_parameter_is_refused_by_name(valkey: Server, bad: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        Crawl(valkey).frontier.next(**bad)


# What is shown without a lease.


def test_peek_shows_the_pages_that_next_leases(servers: Server) -> None:
    crawl, urls = Crawl(servers, PolitenessSettings(host_delay_seconds=30.0)), pages_of(20, 3)
    crawl.seed(urls)
    for i in range(3):
        crawl.event(f"http://hub{i}.org/", urls[7:9] + urls[30:31])
    for n in (1, 4, 6):
        shown = crawl.frontier.peek(n).pages
        assert crawl.frontier.peek(n).pages == shown
        keys = [page.key for page in shown]
        assert keys == sorted(keys, reverse=True)
        alike = ("url", "cash", "importance", "fetched_before")
        assert [[getattr(page, name) for name in alike] for page in crawl.next(n)] == [
            [getattr(page, name) for name in alike] for page in shown
        ]
        assert [page.host for page in shown] == [host_of(page.url) for page in shown]
    assert len(crawl.frontier.peek(100).pages) == 20 - 11
    with pytest.raises(BadInput, match="at least one page"):
        crawl.frontier.peek(0)
    with pytest.raises(BadInput, match="not one of any"):
        crawl.frontier.peek(1, mode="new")


def test_each_reason_that_holds_a_page_back_is_explained(servers: Server) -> None:
    crawl = Crawl(servers, PolitenessSettings(host_delay_seconds=30.0, retry_seconds=60.0))
    a, b, c, d, e, f = (f"http://{name}.org/" for name in "abcdef")
    crawl.seed([a, b, c, d, e, f"{a}2"])
    crawl.event("http://hub.org/", [b])
    crawl.event(c, status=404)
    crawl.event(d, status=403)
    crawl.event(e, status=500)
    crawl.event(e, status=500)

    def told(url: str) -> Any:
        return crawl.frontier.explain(url)

    assert told(f) is None
    first = told(b)
    assert (first.next, first.why_not, first.place, first.state) == (True, [], 1, "unread")
    assert (first.lease_until, first.waits_until, first.host_free_at) == (None, None, None)
    assert told(a).place == 2
    assert [page.url for page in crawl.next(2)] == [b, a]
    for url, state, word in (
        (b, "unread", "leased to a crawler"),
        (f"{a}2", "unread", "its host a.org is delayed"),
        (c, "gone", "is gone"),
        (d, "excluded", "does not let crawlers"),
        (e, "unread", "without an event, 2 times; it waits for another 1"),
        ("http://hub.org/", "read", "no cash"),
    ):
        found = told(url)
        assert (found.next, found.state) == (False, state)
        assert any(word in text for text in found.why_not), (url, found)
    assert told(b).lease_until > time.time() + 200
    assert (told(b).host_in_flight, told(c).host_in_flight) == (1, 0)
    assert (told(e).failures, told(c).place, told(d).place) == (2, None, None)


# When to come back.


def retry_after(crawl: Crawl, **more: Any) -> float:
    answer: Any = crawl.frontier.next(**more)
    assert answer.pages == []
    assert answer.retry_after > 0
    return float(answer.retry_after)


def test_empty_answer_says_when_a_host_delay_ends(valkey: Server) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=0.6))
    crawl.seed(["http://a.org/1", "http://a.org/2"])
    (first,) = crawl.next()
    assert crawl.frontier.next(1, busy_hosts=["a.org"]).retry_after == 5.0  # None of that host's are wanted.
    wait = retry_after(crawl)
    assert 0.05 <= wait <= 0.6
    time.sleep(wait)
    (second,) = crawl.next()
    assert {first.url, second.url} == {"http://a.org/1", "http://a.org/2"}


def test_empty_answer_says_when_a_failed_page_is_due(valkey: Server) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.5))
    crawl.seed(["http://a.org/"])
    crawl.event("http://a.org/", status=0)
    wait = retry_after(crawl)
    assert 0.05 <= wait <= 0.5
    time.sleep(wait)
    assert crawl.urls() == ["http://a.org/"]


@pytest.mark.parametrize("retry", [0.0, 0.3])
def test_empty_answer_says_when_a_lease_expires(valkey: Server, retry: float) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=retry))
    crawl.seed(["http://a.org/"])
    assert crawl.next(lease_seconds=0.3)
    wait = retry_after(crawl)
    assert 0.05 <= wait <= 0.3 + retry
    time.sleep(wait)
    assert crawl.urls() == ["http://a.org/"]


def test_retry_after_is_at_most_a_minute_or_five_seconds_while_leases_run(valkey: Server) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=3_600.0))
    assert retry_after(crawl) == 5.0  # Nothing is known.
    crawl.seed(["http://a.org/", "http://b.org/"])
    crawl.event("http://b.org/", status=500)
    assert retry_after(crawl, domain="b.org") == 60.0
    assert crawl.urls() == ["http://a.org/"]
    assert retry_after(crawl) == 5.0  # Its fetch may bring pages long before the lease ends.


def test_retry_after_is_short_while_accepted_records_may_bring_pages(valkey: Server) -> None:
    crawl = Crawl(valkey)
    answer = crawl.endpoint(pending=lambda: True).next(1)
    assert (answer.pages, answer.retry_after, answer.exhausted) == ([], 0.25, False)


def test_answer_with_pages_says_to_come_back_at_once(valkey: Server) -> None:
    crawl = Crawl(valkey)
    crawl.seed(["http://a.org/"])
    assert crawl.frontier.next().retry_after == 0


def test_expiry_of_very_many_leases_delays_no_call(valkey: Server) -> None:
    """2,500 leases end at once; each call ends a thousand of them, and offers other pages meanwhile."""
    crawl, urls = Crawl(valkey, PolitenessSettings(host_delay_seconds=0.0, retry_seconds=0.0)), pages_of(100, 26)
    for at in range(0, 2_600, 1_300):
        crawl.seed(urls[at : at + 1_300])
    keys, client = crawl.store.shard.keys, crawl.store.shard.client
    over = (client.time()[0] - 1) * 1_000_000
    client.zadd(keys.leases, {str(i): over for i in range(2_500)})
    assert crawl.urls(1) == [urls[0]]  # Its lease is over; it was among the first thousand.
    assert client.zcard(keys.leases) == 1_501
    assert len(crawl.next(500)) == 500
    crawl.next(1)
    assert client.zcount(keys.leases, 0, over) == 0
    assert crawl.fails() == 2_500


def test_strategy_cycle_offers_new_pages_first_and_then_those_read_longest_ago(valkey: Server) -> None:
    crawl, urls = Crawl(valkey, strategy="cycle"), [f"http://a.org/{i}" for i in range(6)]
    crawl.seed(urls)
    for url, at in ((urls[4], 300.0), (urls[0], 500.0), (urls[2], 100.0)):
        crawl.event(url, urls, fetched_at=1.7e9 + at)
    crawl.event("http://b.org/", urls)  # So that each has cash.
    assert crawl.urls(4) == [urls[1], urls[3], urls[5], urls[2]]
    assert crawl.frontier.explain(urls[4]).place == 5  # type: ignore[union-attr]
    assert crawl.urls(1, mode="refresh") == [urls[4]]
    crawl.event(urls[2], urls, fetched_at=1.7e9 + 900.0)
    crawl.event("http://b.org/", [*urls, "http://b.org/1"])
    crawl.event("http://b.org/1", urls)
    assert crawl.urls() == [urls[0], urls[2]]


def test_strategy_random_ignores_cash_and_keeps_its_order_until_a_page_is_read(valkey: Server) -> None:
    crawl, urls = Crawl(valkey, strategy="random"), [f"http://a.org/{i}" for i in range(200)]
    crawl.seed(urls)
    crawl.event("http://b.org/", urls[150:])
    assert len(set(urls[150:]) & set(crawl.urls(50))) < 30  # Greedy, they would be all.
    other = crawl.endpoint(strategy="random")
    places = {url: other.explain(url).place for url in urls}  # type: ignore[union-attr]
    left = sorted(set(urls) - {url for url in urls if other.explain(url).lease_until}, key=places.__getitem__)  # type: ignore[union-attr]
    assert crawl.urls(200) == [url for url in left if url != "http://b.org/"]
    crawl.event(urls[0], urls)
    assert other.explain(urls[0]).place != places[urls[0]]  # type: ignore[union-attr]


def test_batch_by_another_strategy_is_not_cut_at_half_of_the_best_cash(valkey: Server) -> None:
    crawl, urls = Crawl(valkey), [f"http://a.org/{i}" for i in range(9)]
    crawl.seed(urls)
    for url in (urls[0], urls[2]):
        crawl.event(url, [urls[1]])
    greedy = crawl.next(10)
    assert [page.url for page in greedy] == [urls[1]]
    crawl.frontier.release([page.lease for page in greedy])
    pages = crawl.endpoint(strategy="cycle").next(10).pages
    assert [page.url for page in pages] == [urls[1], *urls[3:]]  # type: ignore[union-attr, index]


def test_suggestions_spread_over_hosts_when_each_has_a_delay(valkey: Server) -> None:
    crawl = Crawl(valkey, PolitenessSettings(host_delay_seconds=30.0))
    crawl.seed(pages_of(50, 10))
    hosts = Counter(host_of(url) for _ in range(5) for url in crawl.urls(10))
    assert len(hosts) == 50
    assert set(hosts.values()) == {1}
    assert crawl.next() == []
