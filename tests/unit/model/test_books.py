"""The books know how far the estimates are off, and refuse to overflow."""

import json
from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opic.errors import StoreFull
from opic.model.books import BOOK_FIELDS, DEBT_MAX, Books
from opic.model.cash import (
    CLOCK_LIMIT,
    CONTINUOUS,
    GRANT_GRAINS,
    MILLION,
    MINTED_GRAINS,
    CrawlRules,
    split,
)
from opic.model.crawl_books import grants_due_of
from opic.model.rounds import RoundCount

QS = st.integers(1, MILLION - 1)
RULES = CrawlRules()


def books_after_a_crawl() -> Books:
    """Return totals as a crawl of a million pages might leave them, a third of them read."""
    granted = GRANT_GRAINS + GRANT_GRAINS // 100
    pages = 1_000_000 * granted - 10**11
    return Books(
        clock=2 * 10**12,
        pool=MINTED_GRAINS - pages,
        credit=granted,
        live=1_000_000,
        gone=1_000,
        open=300_000,
        open_cash=10**10,
        v_gone=10**8,
        h_gone=10**8,
        rounding=10**7,
        drift_plus=10**9,
        drift_minus=10**9,
    )


# Totals that are no longer exact are refused.


@pytest.mark.parametrize("name", ["pool", "net", "open_cash", "v_gone"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_balance_of_2_to_the_63_is_refused_and_one_grain_less_is_not(name: str, sign: int) -> None:
    replace(Books(), **{name: sign * (2**63 - 1)}).check()
    with pytest.raises(StoreFull, match=name):
        replace(Books(), **{name: sign * 2**63}).check()


@pytest.mark.parametrize("name", ["clock", "credit"])
def test_a_sum_of_2_to_the_62_that_only_grows_is_refused_and_one_grain_less_is_not(name: str) -> None:
    assert CLOCK_LIMIT == 2**62
    replace(Books(), **{name: 2**62 - 1}).check()
    with pytest.raises(StoreFull, match=name):
        replace(Books(), **{name: 2**62}).check()


def test_the_pool_may_be_negative() -> None:
    Books(pool=-MINTED_GRAINS).check()


def test_history_and_cash_of_all_pages_together_fit_an_int64_or_are_refused() -> None:
    """So does the score of each page."""
    full = Books(clock=2**62 - 1, pool=-1)
    full.check(MINTED_GRAINS - 1)
    for books in (replace(full, pool=-2), replace(full, net=-1)):
        with pytest.raises(StoreFull, match="together"):
            books.check(MINTED_GRAINS - 1)


def test_all_grains_of_format_3_fit_at_genesis_and_all_on_pages() -> None:
    rules = CrawlRules(minted=MINTED_GRAINS)
    Books.genesis(rules).check(rules.minted)
    Books(clock=2**62 - 1, credit=2**62 - 1, live=1, open=1, open_cash=2**62 - 1, pool=1).check(rules.minted)


def test_book_fields_are_the_fields_of_the_books_in_their_order() -> None:
    assert tuple(f.name for f in fields(Books)) == BOOK_FIELDS


# A further grant.


@pytest.mark.parametrize("credit", [GRANT_GRAINS, 10 * GRANT_GRAINS, 2**62 - 1])
def test_a_further_grant_is_due_once_open_pages_hold_less_than_its_share_of_one_grant_for_each(credit: int) -> None:
    one_each = 10 * GRANT_GRAINS
    threshold = one_each // 100 + 1  # Ten open pages, one per cent, rounded up.
    full = Books(pool=MINTED_GRAINS, credit=credit, live=50, open=10, open_cash=threshold)
    drained = replace(full, open_cash=threshold - 1)
    assert full.due(RULES) == 0
    assert drained.due(RULES) == GRANT_GRAINS // 100


def test_the_grant_that_open_pages_have_to_drain_below_is_by_weight() -> None:
    by = (0, 4, 0, 0, 0, 0, 0, 0)
    books = Books(pool=2**62, credit=50 * GRANT_GRAINS, live=10, open=10, known_by=by, live_by=by, open_by=by)
    books.extra = (0, 2 * MILLION, 0, 0, 0, 0, 0, 0)  # Four pages of weight 3.
    threshold = (6 + 4 * 3) * GRANT_GRAINS // 2
    assert replace(books, open_cash=threshold).due(CrawlRules(regrant_ppm=500_000)) == 0
    assert replace(books, open_cash=threshold - 1).due(CrawlRules(regrant_ppm=500_000)) == GRANT_GRAINS // 2
    assert replace(books, open_cash=1 - threshold).due(CrawlRules(regrant_ppm=500_000)) == GRANT_GRAINS // 2


def test_cash_on_pages_that_were_never_read_holds_no_grant_back() -> None:
    books = Books(pool=MINTED_GRAINS, credit=GRANT_GRAINS, live=10**6, open=1)
    assert books.due(RULES) > 0


def test_nothing_is_granted_before_a_page_was_read() -> None:
    assert Books(pool=MINTED_GRAINS, credit=GRANT_GRAINS, live=9).due(RULES) == 0


def test_regrant_0_never_grants_again() -> None:
    books = Books(pool=MINTED_GRAINS, credit=GRANT_GRAINS, live=9, open=9)
    assert books.due(CrawlRules(regrant_ppm=0)) == 0


def test_a_pool_that_cannot_pay_every_live_page_waits() -> None:
    amount = GRANT_GRAINS // 100
    books = Books(pool=9 * amount, credit=GRANT_GRAINS, live=9, open=9)
    assert books.due(RULES) == amount
    assert replace(books, pool=9 * amount - 1).due(RULES) == 0


# Paid at once.


@given(pool=st.integers(0, 2**46), live=st.integers(0, 50), read=st.integers(0, 50))
def test_continuous_payout_gives_every_live_page_the_same_and_keeps_the_remainder(
    pool: int, live: int, read: int
) -> None:
    books = Books(pool=pool, live=live, open=min(read, live), open_cash=7, credit=2**60)
    books.grant_all(books.due(CONTINUOUS))
    paid = books.credit - 2**60
    assert books.pool + paid * live == pool
    assert 0 <= books.pool < live or (live == 0 and books.pool == pool)
    assert books.open_cash == 7 + paid * books.open


# The error bound.


def test_the_bound_says_nothing_before_a_page_is_known() -> None:
    assert Books(pool=MINTED_GRAINS, credit=GRANT_GRAINS).error_bound(MINTED_GRAINS, RULES.q) == 2


def test_the_bound_is_zero_when_nothing_can_move() -> None:
    """Pages that were never read dangle: what they hold is final, and the estimate is exact."""
    books = Books(pool=MINTED_GRAINS - 5 * GRANT_GRAINS, credit=GRANT_GRAINS, live=5)
    assert books.error_bound(MINTED_GRAINS, RULES.q) == 0


@given(
    name=st.sampled_from(["reads", "rounding", "drift_plus", "drift_minus"]),
    grains=st.integers(0, 2**52),
    q=QS,
)
def test_cash_that_may_still_move_never_narrows_the_bound(name: str, grains: int, q: int) -> None:
    books = books_after_a_crawl()
    more = replace(books, **{name: getattr(books, name) + grains})
    assert 0 < books.error_bound(MINTED_GRAINS, q) <= more.error_bound(MINTED_GRAINS, q) + 1e-12 <= 2 + 1e-12


def test_the_bound_sums_each_geometric_series_and_counts_rounding_both_ways() -> None:
    """2 max(A / max(Y, Y + A - B), B / Y), where a grain that moves at damping .8 moves five in all."""
    minted, granted = 10**6, 10_000
    books = Books(
        clock=50_000,
        pool=minted - 80_000,  # All pages hold 80,000: five open ones 3,000, a gone one 2,000.
        credit=granted,
        live=12,
        gone=1,
        open=5,
        open_cash=3_000,
        v_gone=2_000,
        h_gone=1_000,
        rounding=100,
        drift_plus=500,
        drift_minus=250,
        reads=40,
    )
    total = (50_000 - 1_000) + (80_000 - 2_000)
    more = 5 * (0.8 * (3_000 + 500) + 100 + (2_000 + 1_000))
    less = 5 * (0.8 * 250 + 40)
    assert books.importance_total(minted) == total
    assert books.error_bound(minted, q=200_000) == pytest.approx(2 * more / (total + more - less))
    much_lost = replace(books, drift_minus=15_000)
    assert much_lost.error_bound(minted, q=200_000) == pytest.approx(2 * 5 * (0.8 * 15_000 + 40) / total)


def test_drift_stops_counting_before_it_overflows_and_the_bound_says_nothing_then() -> None:
    books = books_after_a_crawl()
    books.misplace(CLOCK_LIMIT - 1, 0)
    books.misplace(2**62, 0)
    assert books.drift_plus == CLOCK_LIMIT
    assert books.error_bound(MINTED_GRAINS, q=999_999) == 2


def test_history_and_cash_make_up_the_importance_of_all_live_pages() -> None:
    books = books_after_a_crawl()
    cash_of_live_pages = MINTED_GRAINS - books.pool - books.v_gone
    history_of_live_pages = books.clock - books.h_gone
    assert books.open_cash == 10**10
    assert books.importance_total(MINTED_GRAINS) == cash_of_live_pages + history_of_live_pages


# Many shards.


class Shards:
    """Pages in shards, all known from the start, and cash on its way between them: the smallest model there is."""

    def __init__(self, links: list[list[int]], shards: int) -> None:
        self.links, self.shard_of = links, [page % shards for page in range(len(links))]
        self.v, self.history, self.read = ([0] * len(links) for _ in range(3))
        live = [self.shard_of.count(shard) for shard in range(shards)]
        self.parts = [Books(pool=0 if s else MINTED_GRAINS, live=n) for s, n in enumerate(live)]
        self.flying: list[tuple[int, int]] = []  # Page and grains.
        self.grants: list[list[int]] = [[] for _ in range(shards)]  # Those that a shard did not hear of yet.
        self.grant(GRANT_GRAINS)
        for shard in range(shards):
            self.hear(shard)

    def cash(self, page: int) -> int:
        return self.v[page] + self.parts[self.shard_of[page]].credit

    def grant(self, grains: int) -> None:
        for waiting in self.grants:
            waiting.append(grains)
        self.hear(0)

    def hear(self, shard: int) -> None:
        books = self.parts[shard]
        for grains in self.grants[shard]:
            books.credit += grains
            books.pool -= grains * books.live
            books.open_cash += grains * books.open
        self.grants[shard].clear()

    def fetch(self, page: int) -> None:
        books, cash = self.parts[self.shard_of[page]], self.cash(page)
        out = split(cash, len(self.links[page]), RULES.q)
        books.open_cash -= cash if self.read[page] else 0
        books.open += not self.read[page]
        books.clock, books.pool, books.reads = books.clock + cash, books.pool + out.virtual, books.reads + 1
        books.rounding += out.rounding
        self.v[page], self.history[page], self.read[page] = self.v[page] - cash, self.history[page] + cash, 1
        for link in self.links[page]:
            if self.shard_of[link] == self.shard_of[page]:
                self.take(link, out.share)
            else:
                books.net += out.share
                self.flying.append((link, out.share))

    def land(self) -> None:
        page, grains = self.flying.pop(0)
        self.parts[self.shard_of[page]].net -= grains
        self.take(page, grains)

    def take(self, page: int, grains: int) -> None:
        self.v[page] += grains
        self.parts[self.shard_of[page]].open_cash += grains * self.read[page]

    def error(self) -> float:
        """L1 distance of the estimate from exact PageRank, where pages never read have no links."""
        n, damping = len(self.links), 1 - RULES.q / MILLION
        moves = np.zeros((n, n))
        for page, links in enumerate(self.links):
            if self.read[page]:
                moves[links, page] = damping / len(links) if links else 0
        exact = np.linalg.solve(np.eye(n) - moves, np.ones(n))
        score = np.array([self.history[page] + self.cash(page) for page in range(n)], float)
        return float(np.abs(score / score.sum() - exact / exact.sum()).sum())


@given(
    links=st.lists(st.sets(st.integers(0, 7), max_size=4), min_size=8, max_size=8),
    shards=st.integers(1, 4),
    acts=st.lists(st.one_of(st.integers(0, 7), st.sampled_from(["land", "grant", "hear 1", "hear 2"])), max_size=60),
)
def test_the_bound_holds_with_cash_in_flight_between_shards(
    links: list[set[int]], shards: int, acts: list[int | str]
) -> None:
    crawl = Shards([sorted(some - {page}) for page, some in enumerate(links)], shards)
    for act in acts:
        if isinstance(act, int):
            crawl.fetch(act)
        elif act == "land":
            crawl.land() if crawl.flying else None
        elif act == "grant":
            crawl.grant(GRANT_GRAINS // 10)
        else:
            crawl.hear(int(act[-1]) % shards)
        whole = Books.merged(crawl.parts, RULES)
        on_pages = sum(map(crawl.cash, range(8)))
        assert whole.net == sum(grains for _, grains in crawl.flying)
        assert on_pages + whole.pool + whole.net == MINTED_GRAINS
        assert whole.importance_total(MINTED_GRAINS) == on_pages + sum(crawl.history)
        late = grants_due_of(crawl.parts)
        assert late == sum(sum(some) * crawl.parts[shard].live for shard, some in enumerate(crawl.grants))
        assert crawl.error() <= whole.error_bound(MINTED_GRAINS, RULES.q, late=late) + 1e-12


def test_cash_in_flight_and_pending_grants_widen_the_bound() -> None:
    books = books_after_a_crawl()
    bound = books.error_bound(MINTED_GRAINS, RULES.q)
    # A grain in flight was spent already, so it counts more than one that a page may spend.
    flying = replace(books, net=10**10, open_cash=0)
    assert flying.error_bound(MINTED_GRAINS, RULES.q) > replace(books, open_cash=10**10).error_bound(
        MINTED_GRAINS, RULES.q
    )
    assert replace(books, net=-(10**9)).error_bound(MINTED_GRAINS, RULES.q) > bound
    assert books.error_bound(MINTED_GRAINS, RULES.q, late=10**9) > bound


def test_books_of_one_shard_are_merged_into_themselves() -> None:
    books = books_after_a_crawl()
    assert Books.merged([books], RULES) is books


def test_merged_books_are_sums_except_for_credit_time_and_rounds() -> None:
    one = Books(version=3, clock=10, rounds=6 << 32, time_us=5, pool=7, net=2, credit=90, live=1, reads=4)
    two = Books(version=4, clock=20, rounds=2 << 32, time_us=3, pool=-9, net=-1, credit=80, live=3, reads=5)
    whole = Books.merged([one, two], RULES)
    assert (whole.version, whole.clock, whole.pool, whole.net, whole.live, whole.reads) == (7, 30, -2, 1, 4, 9)
    assert (whole.credit, whole.time_us) == (90, 5)
    assert whole.rounds == RoundCount().until(30, 4, 1, RULES.grant).rounds  # Each counts those of its own pages.
    assert Books.merged([one, two], CONTINUOUS).rounds == 8 << 32  # Each counts its part of all cash.
    assert Books.merged([Books(), Books()], RULES) == Books()


# By class.


@given(st.builds(Books, clock=st.integers(0, 2**62), extra=st.tuples(st.just(0), *[st.integers(-9, 9)] * 7)))
def test_books_are_restored_from_the_numbers_in_the_store(books: Books) -> None:
    assert Books.unflat({name.encode(): b"%d" % number for name, number in books.flat().items()}) == books


@given(
    weights=st.lists(st.integers(1, 10**9), min_size=7, max_size=7),
    pages=st.lists(st.integers(0, 50), min_size=8, max_size=8),
    credit=st.integers(0, 2**40),
)
def test_a_grant_by_weight_pays_each_class_what_its_credit_rose_by(
    weights: list[int], pages: list[int], credit: int
) -> None:
    by = (0, *pages[1:])
    books = Books(pool=2**62, credit=credit, live=sum(pages), open=sum(pages), live_by=by, open_by=by, known_by=by)
    books.extra = (0, *(weight - MILLION for weight in weights))
    before = books.credits()
    books.grant_all(books.due(CrawlRules()))
    rise = [b - a for a, b in zip(before, books.credits(), strict=True)]
    assert 2**62 - books.pool == books.open_cash == sum(r * n for r, n in zip(rise, pages, strict=True))
    one_each = sum((GRANT_GRAINS + GRANT_GRAINS * e // MILLION) * n for e, n in zip(books.extra, pages, strict=True))
    assert bool(books.credit > credit) == (one_each > 0)


# How long a crawl can go on.


def test_sweeps_left_by_the_clock_scale_with_the_rest_of_its_range() -> None:
    books = Books(clock=2**60, pool=2**61, credit=GRANT_GRAINS, live=900, open=300, reads=30_000)
    assert books.sweeps_left(RULES) == 3 * 100
    assert books.sweeps_left(CONTINUOUS) == 3 * 100
    assert replace(books, clock=2**62 + 1).sweeps_left(RULES) == 0  # Of many shards together.


def test_sweeps_left_by_the_pool_are_at_the_cost_of_the_further_grants_so_far() -> None:
    """A hundred sweeps took two further grants of 900 pages; the pool has six more."""
    books = Books(clock=2**40, pool=6 * 900 * GRANT_GRAINS, credit=3 * GRANT_GRAINS, live=900, open=300, reads=30_000)
    assert books.sweeps_left(RULES) == pytest.approx(300)
    heavy = replace(books, live_by=(0, 900, *[0] * 6), extra=(0, MILLION, *[0] * 6))
    assert heavy.sweeps_left(RULES) == pytest.approx(150)
    assert replace(books, pool=-1).sweeps_left(RULES) == 0


def test_sweeps_left_are_unknown_before_a_read_moved_cash() -> None:
    for books in (Books(live=9), Books(live=9, open=1, reads=1), Books(live=9, reads=1, clock=5)):
        assert books.sweeps_left(RULES) is None


# Near the ends of 64-bit integers: all is exact, in Python integers.

NEAR_THE_END = st.one_of(st.integers(2**53 - 2, 2**53 + 2), st.integers(2**62 - 2, 2**62 - 1))


@given(credit=NEAR_THE_END, amount=NEAR_THE_END, live=st.integers(1, 9), read=st.integers(0, 9))
def test_a_grant_moves_every_grain_of_any_amount(credit: int, amount: int, live: int, read: int) -> None:
    read = min(live, read)
    books = Books(pool=2**62, credit=credit, live=live, open=read, open_cash=2**62 - 1)
    books.grant_all(amount)
    assert (books.credit, books.pool) == (credit + amount, 2**62 - amount * live)
    assert books.open_cash == 2**62 - 1 + amount * read
    assert all(type(n) is int for n in books.flat().values())


@given(
    credit=NEAR_THE_END,
    weights=st.lists(st.integers(1, 1_000 * MILLION), min_size=2, max_size=2),
    pages=st.integers(1, 3),
)
def test_a_change_of_weights_takes_all_or_nothing_from_the_pool(credit: int, weights: list[int], pages: int) -> None:
    by = (0, pages, *[0] * 6)
    extras = [(0, weight - MILLION, *[0] * 6) for weight in weights]
    books = Books(
        pool=2**62, credit=credit, live=pages, open=pages, known_by=by, live_by=by, open_by=by, extra=extras[0]
    )
    before, old = books.credit_of(1), replace(books)
    more = (credit + credit * extras[1][1] // MILLION - before) * pages
    if books.reweigh(extras[1]):
        assert (books.pool, books.open_cash) == (2**62 - more, more)
        assert more <= 0 or books.pool > -DEBT_MAX
    else:
        assert books == old
        assert more >= 2**62 + DEBT_MAX


@given(credit=NEAR_THE_END, weight=st.integers(1, 1_000 * MILLION), opened=st.booleans())
def test_a_page_that_changes_its_class_pays_or_gets_the_difference_to_the_grain(
    credit: int, weight: int, opened: bool
) -> None:
    books = Books(pool=2**62, credit=credit, live=1, open=int(opened), extra=(0, weight - MILLION, *[0] * 6))
    more = credit * (weight - MILLION) // MILLION
    assert books.reclass(0, 1, live=True, opened=opened) == (more <= 0 or 2**62 - more > -DEBT_MAX)
    if books.live_by[1]:
        assert (books.pool, books.open_cash) == (2**62 - more, more * opened)
        assert books.reclass(1, 0, live=True, opened=opened)
    assert (books.pool, books.open_cash) == (2**62, 0)


@given(open_cash=NEAR_THE_END, opened=st.integers(1, 2**40))
def test_whether_a_grant_is_due_is_decided_by_exact_products(open_cash: int, opened: int) -> None:
    """open_cash * 10^6 passes 2^81."""
    books = Books(pool=2**62, credit=GRANT_GRAINS, live=1, open=opened, open_cash=open_cash)
    assert bool(books.due(RULES)) == (Fraction(open_cash, opened * GRANT_GRAINS) < Fraction(1, 100))


def test_the_bound_near_2_to_the_62_equals_the_bound_of_scaled_down_totals() -> None:
    """Its floats begin after the sums: only the last digits may differ."""
    scale = 2**41
    small = Books(clock=10**6, pool=2**21 - 10**6, credit=1, live=0, open=5, open_cash=10**4, h_gone=10**3, v_gone=500)
    large = replace(small, **{name: getattr(small, name) * scale for name in ("clock", "pool", "open_cash")})
    large = replace(large, h_gone=small.h_gone * scale, v_gone=small.v_gone * scale)
    assert 2**60 < large.clock < 2**62
    bound = large.error_bound(2**62, RULES.q)
    assert bound == pytest.approx(small.error_bound(2**21, RULES.q), rel=1e-12)
    assert large.importance_total(2**62) == small.importance_total(2**21) * scale
    assert isinstance(large.importance_total(2**62), int)


@given(st.builds(Books, **dict.fromkeys(("clock", "pool", "open_cash", "credit", "h_gone"), NEAR_THE_END)))
def test_json_holds_totals_to_the_grain(books: Books) -> None:
    assert json.loads(json.dumps(books.flat())) == books.flat()
