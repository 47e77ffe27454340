"""Clocks of shards come onto one axis by the times at which they stood where."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.errors import StoreFull
from opic.model import windows
from opic.model.books import Books
from opic.model.cash import CONTINUOUS, MILLION, CrawlRules
from opic.model.crawl_clock import TOTAL_LIMIT, Clocks
from opic.model.events import CrawlEvent, Record, encode_crawl_event, encode_seeds
from opic.model.ledger import Ledger
from opic.model.rounds import RoundCount
from opic.model.series import Entry, Window, entry_due
from opic.model.windows import Past

RULES = CrawlRules()
PAGES, READS, SHARDS = 300, 6_000, 4
START_US = 1_790_000_000_000_000

STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(-1, 4), st.integers(0, 1 << 40), st.integers(0, 1 << 30)),
    min_size=1,
    max_size=12,
)


def shard(steps: list[tuple[int, int, int, int]]) -> tuple[list[Entry], Books]:
    """A series and the books at its end: times may stand still or run backwards, clocks and rounds only grow."""
    entries, at = [], Entry(100, 0, 0)
    for hours, back, clock, rounds in steps:
        entries.append(at)
        at = Entry(at.time_us + hours - (back == -1), at.rounds + rounds, at.clock + clock)
    return entries, Books(time_us=at.time_us, rounds=at.rounds, clock=at.clock, live=3)


def test_rounds_of_a_crawl_come_from_its_own_counts_not_from_those_of_shards() -> None:
    """Shard 0 read its few pages often while the crawl was small; then shard 1 found many, and they are read since."""
    old = Books(time_us=100, clock=40 * RULES.grant, rounds=20 << 32, live=2, reads=40)
    counted = RoundCount(10 << 32, 40 * RULES.grant, 20)
    old.take_count(counted)
    new = Books(time_us=200, clock=180 * RULES.grant, rounds=10 << 32, live=18, reads=18)
    clocks = Clocks(
        [[Entry(0, 0, 0), Entry(100, 20 << 32, old.clock)], [Entry(100, 0, 0)]], [old, new], RULES,
        [Entry(100, *counted[:2])],
    )  # fmt: skip
    assert clocks.books.rounds == 19 << 32
    spans = [Window.parse(text).grains(clocks.series, clocks.books, 20 * RULES.grant) for text in ("9", "14", "19")]
    assert [span / RULES.grant for span in spans] == [180, 200, 220]


def test_one_shard_has_the_crawls_clock() -> None:
    series, books = [Entry(0, 0, 0), Entry(5, 1, 7)], Books(time_us=9, clock=11)
    clocks, moments = Clocks([series], [books], RULES), np.array([0, 3, 7, 11])
    assert clocks.translate(0, moments) is moments
    assert clocks.series == series
    assert clocks.books is books


@given(st.lists(STEPS, min_size=2, max_size=4), st.sampled_from([RULES, CONTINUOUS]))
def test_a_later_moment_of_a_shard_is_never_an_earlier_one_of_the_crawl(
    steps: list[list[tuple[int, int, int, int]]], rules: CrawlRules
) -> None:
    found = [shard(some) for some in steps]
    clocks = Clocks([series for series, _ in found], [books for _, books in found], rules)
    now = sum(books.clock for _, books in found)
    assert clocks.books.clock == now
    for number, (series, books) in enumerate(found):
        moments = np.array(sorted({0, books.clock, books.clock // 3, *(entry.clock for entry in series)}))
        crawl = clocks.translate(number, moments)
        assert (np.diff(crawl) >= 0).all()
        assert (crawl[0], crawl[-1] <= now) == (0, True)
        # Whatever the others did, this shard's own part of the crawl's clock had been moved by then.
        assert (crawl >= moments - now * 1e-12).all()
    axis = [*clocks.series, Entry.of(clocks.books)]
    for name in ("time_us", "clock", "rounds"):
        column = [getattr(entry, name) for entry in axis]
        assert column == sorted(column)


def test_shards_without_time_entries_are_taken_to_have_moved_in_step() -> None:
    parts = [Books(time_us=7, clock=100, live=1), Books(time_us=7, clock=300, live=1)]
    clocks = Clocks([[Entry(7, 0, 0)], [Entry(7, 0, 0)]], parts, RULES)
    assert clocks.translate(0, np.array([0, 50, 100])).tolist() == [0, 200, 400]
    assert clocks.translate(1, np.array([0, 150, 300])).tolist() == [0, 200, 400]


def test_an_idle_shard_reached_its_clock_before_the_others_went_on() -> None:
    busy, resting = Books(time_us=100, clock=1_000, live=1), Books(time_us=20, clock=50, live=1)
    clocks = Clocks([[Entry(0, 0, 0)], [Entry(0, 0, 0)]], [busy, resting], RULES)
    assert clocks.translate(1, np.array([50])).tolist() == [250]
    assert clocks.translate(0, np.array([200, 1_000])).tolist() == [250, 1_050]


def test_before_the_oldest_entry_shards_are_taken_to_have_moved_in_step() -> None:
    """One shard let its old entries go: before its first one nothing is known of it."""
    parts = [Books(time_us=100, clock=1_000, live=1), Books(time_us=100, clock=500, live=1)]
    clocks = Clocks([[Entry(50, 0, 600)], [Entry(0, 0, 0), Entry(50, 0, 200)]], parts, RULES)
    assert clocks.translate(0, np.array([0, 300, 600])).tolist() == [0, 400, 800]
    assert clocks.translate(1, np.array([0, 100, 200])).tolist() == [0, 400, 800]
    assert [entry.clock for entry in clocks.series] == [800, 1_500]


def test_entries_later_than_the_books_are_ignored() -> None:
    parts = [Books(time_us=10, clock=10, live=1), Books(time_us=10, clock=10, live=1)]
    late = [Entry(0, 0, 0), Entry(90, 0, 5_000)]
    assert Clocks([late, late[:1]], parts, RULES).translate(0, np.array([5])).tolist() == [10]


def test_a_sum_of_clocks_that_an_int64_might_not_hold_is_refused() -> None:
    parts = [Books(clock=TOTAL_LIMIT // 2, live=1)] * 2
    with pytest.raises(StoreFull, match="static"):
        Clocks([[], []], parts, RULES)
    Clocks([[], []], [replace(parts[0], clock=TOTAL_LIMIT // 2 - 1), parts[1]], RULES)


# One crawl, seen by one shard and by four.


@cache
def crawled(
    rules: CrawlRules,
) -> tuple[Ledger, list[list[Entry]], list[Books], list[list[tuple[int, int]]], list[Entry]]:
    """A crawl in a ledger; and the same, as four shards would have kept it: series, books, measures, counts of rounds.

    Bursts of reads, and rests; one shard is asked ten times as seldom in the second half.
    """
    rng, urls = random.Random(1), [f"http://h{i}.example/" for i in range(PAGES)]
    links = [rng.sample(urls[: 1 + i * i // PAGES + 8], 6) for i in range(PAGES)]
    values = [encode_crawl_event(CrawlEvent(url=url, links=some)) for url, some in zip(urls, links, strict=True)]
    ledger, at = Ledger(rules), START_US
    ledger.apply("p", [Record(0, at, encode_seeds(urls), kind="seeds")])
    live = ledger.books.live // SHARDS
    parts = [Books(live=live, time_us=at) for _ in range(SHARDS)]
    series, counts = [[Entry.of(part)] for part in parts], list[Entry]()
    measures: list[list[tuple[int, int]]] = [[] for _ in urls]
    for read in range(READS):
        whole = Books.merged(parts, rules)
        count = RoundCount(whole.rounds, whole.clock, whole.live)
        if whole.round_count.due(count) and parts[0].take_count(count):
            counts.append(Entry(at, count.rounds, count.clock))
        page = rng.randrange(PAGES)
        while read > READS // 2 and page % SHARDS == 0 and rng.random() < 0.9:
            page = rng.randrange(PAGES)
        at += rng.choice([1, 1, 1, 2_000]) * MILLION
        clock = ledger.books.clock
        ledger.apply("p", [Record(read + 1, at, values[page])])
        part, spent = parts[page % SHARDS], ledger.books.clock - clock
        part.clock, part.time_us = part.clock + spent, at
        part.rounds += (spent << 32) // (rules.minted if rules.continuous else rules.grant * live)
        measures[page].append((part.clock, spent))
        if entry_due(series[page % SHARDS][-1], part):
            series[page % SHARDS].append(Entry.of(part))
    return ledger, series, parts, measures, counts


def past_of(ledger: Ledger, measures: list[list[tuple[int, int]]]) -> Past:
    pages = list(ledger.pages.values())
    kept = [some[-ledger.rules.measures_max :] for some in measures]
    anchors = None
    if ledger.rules.continuous:
        anchors = np.zeros(len(pages), np.int64), np.zeros(len(pages), np.int64)
    return Past(
        starts=np.cumsum([0, *map(len, kept)]),
        clock=np.array([clock for some in kept for clock, _ in some]),
        spent=np.array([spent for some in kept for _, spent in some]),
        cash=np.array([ledger.cash(page) for page in pages]),
        history=np.array([page.spent for page in pages]),
        live=np.ones(len(pages), np.bool_),
        now=ledger.books.clock,
        anchors=anchors,
    )


@pytest.mark.parametrize("rules", [RULES, CONTINUOUS], ids=["grants", "continuous"])
@pytest.mark.parametrize("policy", ["interpolation", "fixed", "variable", "improved"])
def test_estimates_of_four_shards_are_close_to_those_of_one(policy: str, rules: CrawlRules) -> None:
    """By L1 distance: within .07, windows of two rounds within .02. Clocks as they are would be off by tenths."""
    ledger, series, parts, measures, counts = crawled(rules)
    whole = past_of(ledger, [[(m.clock, m.cash) for m in page.measures] for page in ledger.pages.values()])
    clocks = Clocks(series, parts, rules, counts)
    assert clocks.books.clock == ledger.books.clock
    apart = past_of(ledger, measures)
    pages, moments = np.repeat(np.arange(PAGES), np.diff(apart.starts)), apart.clock.copy()
    for number in range(SHARDS):
        of_shard = pages % SHARDS == number
        moments[of_shard] = clocks.translate(number, apart.clock[of_shard])
    translated = replace(apart, clock=moments)
    today = rules.round_grains(ledger.books.live)
    for text, within in (("0.5", 0.07), ("2", 0.02), ("12h", 0.07), ("2d", 0.07)):
        window = Window.parse(text)
        exact = windows.estimate(policy, whole, window.grains(ledger.series, ledger.books, today), 4)
        span = window.grains(clocks.series, clocks.books, today)
        found = windows.estimate(policy, translated, span, 4)
        assert found.sum() == pytest.approx(1, abs=1e-12)
        assert np.abs(found - exact).sum() < within
        if rules.continuous and text == "2":
            assert np.abs(windows.estimate(policy, apart, span, 4) - exact).sum() > 0.3
