"""The ledger is a bank: cash moves between pages, is never made or lost, and its error bound is true."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import pytest
from example_counts import examples
from hypothesis import given
from hypothesis import strategies as st
from ledger_machine import (
    FIRST_DAY_S,
    FLOAT_SLACK,
    HOUR_US,
    LOG_US,
    RULES,
    SPELLINGS,
    URLS,
    Crawl,
    LedgerMachine,
    state,
)

from opic.model.cash import CONTINUOUS, GRANT_GRAINS, MILLION, CrawlRules, Flag
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.model.ledger import Ledger
from opic.model.ledger_page import LedgerPage


class ThoroughLedgerMachine(LedgerMachine):
    """The same for longer."""


TestLedger = LedgerMachine.TestCase
TestLedger.settings = examples(150, stateful_step_count=30)
TestLedgerThoroughly = pytest.mark.slow(ThoroughLedgerMachine.TestCase)
TestLedgerThoroughly.settings = examples(1_000, stateful_step_count=60)


# One log, one state.


def site(pages: int, links_max: int, seed: int) -> dict[str, list[str]]:
    """Make a random web of one host, a third of it without links."""
    draw = random.Random(seed)
    urls = [f"http://site.example/{i}" for i in range(pages)]
    return {url: draw.sample(urls, draw.randint(1, links_max)) if draw.random() > 0.33 else [] for url in urls}


def random_log(seed: int, records: int) -> list[Record]:
    """Draw the log of a crawl in which every kind of record occurs."""
    draw = random.Random(seed)
    urls, spellings = URLS, tuple(SPELLINGS)
    log = []
    for offset in range(records):
        event = CrawlEvent(
            draw.choice(urls),
            draw.choices(spellings, k=draw.randrange(5)),
            FIRST_DAY_S + draw.randrange(40 * 86_400),
            draw.choice([200, 200, 200, 200, 301, 404, 500, 403]),
            draw.choice([None, *urls]),
        )
        kind, value = "event", encode_crawl_event(event)
        if draw.random() < 0.1:
            kind, value = draw.choice([("seeds", encode_seeds(draw.choices(urls, k=3))), ("event", b"nonsense")])
        log.append(Record(offset, LOG_US + offset, value, kind))
    return log


LOGS = st.builds(random_log, st.integers(0, 2**32), st.integers(0, 120))


@given(log=LOGS, rules=st.sampled_from(RULES))
def test_the_same_log_ends_in_the_same_state(log: list[Record], rules: CrawlRules) -> None:
    one, other = Ledger(rules), Ledger(rules)
    one.apply("p", log)
    other.apply("p", log)
    assert state(one) == state(other)


@given(log=LOGS, rules=st.sampled_from(RULES), cuts=st.lists(st.integers(0, 120)))
def test_the_state_does_not_depend_on_the_batches(log: list[Record], rules: CrawlRules, cuts: list[int]) -> None:
    whole, cut = Ledger(rules), Ledger(rules)
    whole.apply("p", log)
    for start, end in pairwise(sorted({0, *cuts, len(log)})):
        cut.apply("p", log[start:end])
    assert state(cut) == state(whole)


@given(log=LOGS, rules=st.sampled_from(RULES), data=st.data())
def test_a_record_takes_effect_once_however_often_and_late_it_is_delivered(
    log: list[Record], rules: CrawlRules, data: st.DataObject
) -> None:
    once, often = Ledger(rules), Ledger(rules)
    once.apply("p", log)
    done = 0
    while done < len(log):
        start = data.draw(st.integers(0, done))
        end = data.draw(st.integers(done, len(log)))
        often.apply("p", log[start:end])
        done = max(done, end)
    often.apply("p", log)
    assert state(often) == state(once)
    assert often.next_offset("p") == once.next_offset("p") == len(log)


def test_offsets_are_counted_for_each_partition_apart() -> None:
    ledger = Ledger()
    value = encode_crawl_event(CrawlEvent(URLS[0]))
    ledger.apply("p", [Record(7, LOG_US, value)])
    ledger.apply("q", [Record(3, LOG_US, value)])
    assert (ledger.next_offset("p"), ledger.next_offset("q"), ledger.next_offset("r")) == (8, 4, 0)
    assert ledger.books.reads == 2


def test_gaps_in_the_offsets_are_accepted() -> None:
    """Compacted or transactional topics have gaps."""
    ledger = Ledger()
    value = encode_crawl_event(CrawlEvent(URLS[0]))
    ledger.apply("p", [Record(0, LOG_US, value), Record(5, LOG_US, value), Record(3, LOG_US, value)])
    assert ledger.books.reads == 2
    assert ledger.next_offset("p") == 6


# Late pages, and pages that come and go: the crawls that broke other bookkeeping.


def greedy_steps(crawl: Crawl, web: Mapping[str, Sequence[str]]) -> Iterator[str]:
    while True:
        url = crawl.richest()
        crawl.read(url, web[url])
        yield url


def crawl_until(crawl: Crawl, web: Mapping[str, Sequence[str]], done: Callable[[Crawl], bool], reads_max: int) -> None:
    for reads, _ in enumerate(greedy_steps(crawl, web)):
        if done(crawl):
            return
        assert reads < reads_max, "the crawl does not get there"


def further_grants(crawl: Crawl) -> int:
    return (crawl.ledger.books.credit - crawl.rules.grant) // (crawl.rules.grant * crawl.rules.regrant_ppm // MILLION)


@pytest.mark.parametrize(
    "rules", [CrawlRules(), CrawlRules(regrant_ppm=500_000), CrawlRules(regrant_ppm=1_000, q=500_000)]
)
@pytest.mark.parametrize("seed", range(3))
def test_a_page_discovered_late_holds_all_that_was_granted_so_far_and_the_bound_holds(
    rules: CrawlRules, seed: int
) -> None:
    web = site(pages=30, links_max=6, seed=seed)
    first = list(web)[:10]
    old = {url: [link for link in links if link in first] for url, links in web.items()}
    crawl = Crawl(rules)
    crawl.append(encode_seeds(first), "seeds")
    crawl.witness.seed(first)
    crawl_until(crawl, old, lambda c: further_grants(c) >= 3 + seed, reads_max=5_000)

    late: list[LedgerPage] = []
    for url in first:  # Their links to the rest of the web appear.
        before, granted = set(crawl.ledger.pages), crawl.ledger.books.credit
        crawl.read(url, web[url])
        late = [page for known, page in crawl.ledger.pages.items() if known not in before]
        for page in late:
            share = crawl.witness.received[page.url]
            assert page.v == share
            assert crawl.ledger.cash(page) == crawl.ledger.books.credit + share
            assert crawl.ledger.books.credit >= granted > rules.grant
        assert crawl.error() <= crawl.bound() + FLOAT_SLACK
    newcomer = "http://elsewhere.example/"
    crawl.append(encode_seeds([newcomer]), "seeds")
    crawl.witness.seed([newcomer])
    assert crawl.ledger.cash(crawl.ledger.pages[newcomer]) == crawl.ledger.books.credit
    for _, _ in zip(range(300), greedy_steps(crawl, {newcomer: [], **web}), strict=False):
        assert crawl.error() <= crawl.bound() + FLOAT_SLACK
    assert crawl.ledger.audit().conserved


@pytest.mark.parametrize("seed", range(3))
def test_a_crawl_of_an_unchanging_web_converges_to_pagerank_within_a_bound_that_narrows(seed: int) -> None:
    web = site(pages=40, links_max=8, seed=seed)
    crawl = Crawl(CrawlRules(regrant_ppm=500))
    crawl.append(encode_seeds(list(web)), "seeds")
    crawl.witness.seed(list(web))
    crawl_until(crawl, web, lambda c: c.bound() < 0.01, reads_max=5_000)
    assert crawl.error() <= crawl.bound() < 0.01


@pytest.mark.slow
def test_a_thousand_sweeps_leave_the_pool_full_and_narrow_the_error() -> None:
    """A trigger that is a share of all that was ever granted would have emptied this pool after 500 sweeps."""
    web = site(pages=30, links_max=6, seed=1)
    readable = [url for number, url in enumerate(web) if number % 3 == 0]  # Most pages of a crawl are never read.
    crawl = Crawl(CrawlRules(minted=30 * 40 * GRANT_GRAINS))
    crawl.append(encode_seeds(list(web)), "seeds")
    crawl.witness.seed(list(web))
    seen: dict[int, tuple[float, float, int]] = {}
    for sweep in range(1, 1_001):
        before = crawl.ledger.books.credit
        for _ in readable:
            url = max(readable, key=lambda url: crawl.ledger.cash(crawl.ledger.pages[url]))
            assert crawl.ledger.cash(crawl.ledger.pages[url]) > 0, "nothing would be offered"
            crawl.read(url, web[url])
        if sweep in (10, 100, 400, 1_000):
            seen[sweep] = crawl.error(), crawl.bound(), crawl.ledger.books.credit
        if sweep > 100:  # Every few dozen sweeps, linearly: not one after the other.
            assert crawl.ledger.books.credit - before <= crawl.rules.grant // 20
    errors, bounds, credits = zip(*seen.values(), strict=True)
    assert list(errors) == sorted(errors, reverse=True)
    assert list(bounds) == sorted(bounds, reverse=True)
    assert all(error <= bound for error, bound in zip(errors, bounds, strict=True))
    a_sweep = (credits[3] - credits[2]) / 600
    assert a_sweep == pytest.approx((credits[2] - credits[1]) / 300, rel=0.1)
    assert crawl.ledger.books.pool > crawl.rules.minted // 4
    forecast = crawl.ledger.books.sweeps_left(crawl.rules)
    assert forecast == pytest.approx(crawl.ledger.books.pool / (30 * a_sweep), rel=0.05)
    assert crawl.ledger.audit().conserved


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_under_the_continuous_payout_history_of_a_web_known_from_the_start_converges_to_pagerank(seed: int) -> None:
    """The paper's theorem: the error is at most some constant over the clock. So four times the reads, a quarter."""
    web = site(pages=40, links_max=8, seed=seed)
    crawl = Crawl(CONTINUOUS)
    crawl.append(encode_seeds(list(web)), "seeds")
    crawl.witness.seed(list(web))
    errors = {}
    for reads, _ in enumerate(greedy_steps(crawl, web), 1):
        if reads in (1_000, 4_000, 16_000):
            errors[reads] = crawl.error()
        if reads == 16_000:
            break
    assert errors[1_000] < 0.05
    assert errors[4_000] < 0.4 * errors[1_000]
    assert errors[16_000] < 0.4 * errors[4_000]


def test_under_the_continuous_payout_a_gone_page_gives_all_its_cash_and_returns_with_what_links_sent() -> None:
    crawl = Crawl(CONTINUOUS)
    parent, child = URLS[:2]
    crawl.append(encode_seeds([parent, child]), "seeds")
    ledger = crawl.ledger
    page, half = ledger.pages[child], crawl.rules.minted // 2
    assert ledger.cash(page) == half
    crawl.event(CrawlEvent(child, status=404), 0)
    assert ledger.cash(page) == 0
    assert ledger.cash(ledger.pages[parent]) == 2 * half
    crawl.event(CrawlEvent(parent, [child]), 0)
    sent = ledger.cash(page)
    assert sent == 2 * half - 2 * half * 150_000 // MILLION
    crawl.append(encode_seeds([child]), "seeds")
    assert ledger.cash(page) == sent
    assert ledger.cash(ledger.pages[parent]) == 2 * half - sent
    newcomer = "http://new.example/"
    crawl.append(encode_seeds([newcomer]), "seeds")
    assert ledger.cash(ledger.pages[newcomer]) == 0
    assert ledger.audit().conserved


def test_pages_that_go_away_and_come_back_while_crawled_leave_the_bound_true_and_useful() -> None:
    """A bound of 2 would hold of anything: this one has to say something while pages come and go."""
    web = site(pages=60, links_max=8, seed=7)
    draw = random.Random(7)
    crawl = Crawl(CrawlRules())
    crawl.append(encode_seeds(list(web)), "seeds")
    crawl.witness.seed(list(web))
    said_something = 0
    for step, url in zip(range(600), greedy_steps(crawl, web), strict=False):
        if step % 100 == 50:
            victim = draw.choice(list(web))
            crawl.event(CrawlEvent(victim, status=410), hours=0)
            crawl.witness.go_away(victim, FIRST_DAY_S * MILLION)
        for keep in (False, True):
            assert crawl.error(links_to_gone_keep_their_share=keep) <= crawl.bound() + FLOAT_SLACK, (step, url)
        said_something += crawl.bound() < 1
    assert said_something > 300


def host(name: str, pages: int) -> list[str]:
    return [f"http://{name}.example/{i}" for i in range(pages)]


def drained_trap(crawl: Crawl, name: str) -> list[str]:
    """Two pages that link to each other only: whatever comes in goes round until the virtual page has it all."""
    trap = host(name, 2)
    for i in range(200):
        crawl.read(trap[i % 2], [trap[1 - i % 2]])
    return trap


def test_the_bound_is_nearly_reached_by_cash_that_waits_before_a_trap() -> None:
    """So a bound that were a fifth smaller would be wrong."""
    crawl = Crawl(CrawlRules(regrant_ppm=0))
    bystanders, feeders, gate = host("bystanders", 400), host("feeders", 60), "http://gate.example/"
    crawl.append(encode_seeds(bystanders), "seeds")
    crawl.witness.seed(bystanders)
    crawl.read(gate, host("trap", 1))
    drained_trap(crawl, "trap")
    for feeder in feeders:
        crawl.read(feeder, [gate])
    assert 0.8 * crawl.bound() < crawl.error() <= crawl.bound() < 1


def test_the_bound_is_within_twice_the_error_where_a_page_that_gave_much_shows_other_links() -> None:
    crawl = Crawl(CrawlRules(regrant_ppm=0))
    bystanders, feeders, giver = host("bystanders", 400), host("feeders", 20), "http://giver.example/"
    crawl.append(encode_seeds(bystanders), "seeds")
    crawl.witness.seed(bystanders)
    for feeder in feeders:
        crawl.read(feeder, [giver])
    crawl.read(giver, host("before", 1))
    drained_trap(crawl, "before")
    drained_trap(crawl, "after")
    assert crawl.error() <= crawl.bound() < 0.001
    crawl.read(giver, host("after", 1))
    assert 0.45 * crawl.bound() < crawl.error() <= crawl.bound() < 1


def test_links_bring_a_gone_page_back_only_after_a_day_that_doubles() -> None:
    crawl = Crawl(CrawlRules())
    parent, child = URLS[:2]

    def gone_after_a_link(hours: int) -> bool:
        crawl.read(parent, [child], hours)
        return crawl.ledger.pages[child].has(Flag.GONE)

    for hours, wait in ((0, 24), (100, 48), (200, 96)):
        crawl.event(CrawlEvent(child, status=404), hours)
        crawl.witness.go_away(child, FIRST_DAY_S * MILLION + hours * HOUR_US)
        assert gone_after_a_link(hours + wait - 1)
        assert not gone_after_a_link(hours + wait)


def test_the_same_links_in_another_order_or_spelling_are_no_change() -> None:
    crawl = Crawl(CrawlRules())
    for links in (URLS[1:4], URLS[3:0:-1], ["HTTP://A.EXAMPLE/1#x", *URLS[1:4], URLS[0]]):
        crawl.event(CrawlEvent(URLS[0], list(links)), hours=0)
    books = crawl.ledger.books
    assert books.reads == 3
    assert (books.drift_plus, books.drift_minus) == (0, 0)


def test_a_gone_page_returns_its_grants_and_keeps_what_links_sent() -> None:
    crawl = Crawl(CrawlRules(regrant_ppm=0))
    parent, child = URLS[:2]
    crawl.read(parent, [child])
    sent = crawl.witness.received[child]
    pool = crawl.ledger.books.pool
    crawl.event(CrawlEvent(child, status=404), 0)
    assert crawl.ledger.cash(crawl.ledger.pages[child]) == sent
    assert crawl.ledger.books.pool == pool + GRANT_GRAINS
    crawl.append(encode_seeds([child]), "seeds")
    assert crawl.ledger.cash(crawl.ledger.pages[child]) == sent + GRANT_GRAINS
    assert crawl.ledger.books.pool == pool


def test_a_failed_fetch_an_exclusion_and_a_dead_letter_move_no_cash() -> None:
    crawl = Crawl(CrawlRules(regrant_ppm=0))
    crawl.read(URLS[0], [URLS[1], URLS[2]])
    held = {url: crawl.ledger.cash(page) for url, page in crawl.ledger.pages.items()}
    for status in (0, 500, 403):
        crawl.event(CrawlEvent(URLS[1], [URLS[2]], status=status), 0)
    crawl.append(b"nonsense")
    assert {url: crawl.ledger.cash(page) for url, page in crawl.ledger.pages.items()} == held
