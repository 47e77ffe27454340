"""Cash is whole grains: a read splits it exactly, the books know how far they are off, and refuse to overflow."""

import math
from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opic.cash import (
    BALANCE_LIMIT,
    BOOK_FIELDS,
    CLOCK_LIMIT,
    CONTINUOUS,
    DAY_US,
    GRANT_GRAINS,
    MILLION,
    MINTED_GRAINS,
    Books,
    Rules,
    damping_ppm,
    gone_until_us,
    grants_due_of,
    split,
)
from opic.errors import SettingsError, StoreFull

CASH = st.one_of(st.integers(0, BALANCE_LIMIT - 1), st.integers(0, 3 * MILLION))
LINKS = st.integers(1, 10_000)
QS = st.integers(1, MILLION - 1)
RULES = Rules()


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


# A read splits its cash.


@given(cash=CASH, links=LINKS, q=QS)
@example(cash=BALANCE_LIMIT - 1, links=10_000, q=MILLION - 1)
@example(cash=BALANCE_LIMIT - 1, links=1, q=1)
def test_a_split_neither_makes_nor_loses_a_grain(cash: int, links: int, q: int) -> None:
    out = split(cash, links, q)
    assert out.share * links + out.virtual == cash
    assert out.share >= 0
    assert out.virtual >= 0


@given(cash=CASH, links=LINKS, q=QS)
def test_the_two_part_product_is_the_plain_floor_of_q_times_cash(cash: int, links: int, q: int) -> None:
    leaving = q * cash // MILLION
    share, left_over = divmod(cash - leaving, links)
    out = split(cash, links, q)
    assert (out.share, out.virtual) == (share, leaving + left_over)


@given(cash=CASH, q=QS)
@example(cash=BALANCE_LIMIT - 1, q=MILLION - 1)
def test_no_step_of_the_product_leaves_an_int64(cash: int, q: int) -> None:
    assert (cash // MILLION) * q < 1 << 63
    assert (cash % MILLION) * q < 1 << 63


@given(cash=CASH, links=LINKS, q=QS)
@example(cash=7, links=1, q=150_000)  # No remainder, but flooring q * cash gave the link .05 grains.
def test_rounding_is_the_links_true_deviation_rounded_up(cash: int, links: int, q: int) -> None:
    out = split(cash, links, q)
    exact = Fraction(MILLION - q, MILLION) * cash
    assert out.rounding == math.ceil(abs(out.share * links - exact))


@given(cash=CASH, q=QS)
def test_a_page_without_links_gives_all_to_the_virtual_page_and_rounds_nothing(cash: int, q: int) -> None:
    out = split(cash, 0, q)
    assert (out.share, out.virtual, out.rounding) == (0, cash, 0)


def test_cash_too_small_to_share_goes_to_the_virtual_page_whole() -> None:
    assert split(9, links=10, q=150_000).virtual == 9


# Damping and back-off.


@pytest.mark.parametrize(("damping", "q"), [(0.85, 150_000), (0.5, 500_000), (0.999999, 1), (0.000001, 999_999)])
def test_damping_is_kept_as_the_share_that_leaves_in_parts_of_a_million(damping: float, q: int) -> None:
    assert damping_ppm(damping) == q


@pytest.mark.parametrize("damping", [0.0, 1.0, -0.1, 1.1, 0.99999999, 1e-9])
def test_a_damping_that_shares_all_or_nothing_is_refused_by_its_name(damping: float) -> None:
    with pytest.raises(SettingsError, match="OPIC_DAMPING"):
        damping_ppm(damping)


def test_a_page_that_goes_away_waits_a_day_then_twice_as_long_each_time_up_to_1024_days() -> None:
    waits = [gone_until_us(5, times) - 5 for times in range(1, 14)]
    assert waits == [DAY_US * min(2**i, 1_024) for i in range(13)]


# Totals that are no longer exact are refused.


@pytest.mark.parametrize("name", ["pool", "open_cash", "v_gone"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_balance_of_2_to_the_53_is_refused_and_one_grain_less_is_not(name: str, sign: int) -> None:
    replace(Books(), **{name: sign * (2**53 - 1)}).check()
    with pytest.raises(StoreFull, match=name):
        replace(Books(), **{name: sign * 2**53}).check()


@pytest.mark.parametrize("name", ["clock", "credit"])
def test_a_sum_of_2_to_the_62_that_only_grows_is_refused_and_one_grain_less_is_not(name: str) -> None:
    assert CLOCK_LIMIT == 2**62
    replace(Books(), **{name: 2**62 - 1}).check()
    with pytest.raises(StoreFull, match=name):
        replace(Books(), **{name: 2**62}).check()


def test_a_pool_may_owe() -> None:
    Books(pool=-MINTED_GRAINS).check()


def test_a_double_holds_every_balance_that_the_books_let_pass() -> None:
    for balance in (2**53 - 1, 1 - 2**53):
        assert int(float(balance)) == balance


def test_book_fields_are_the_fields_of_the_books_in_their_order() -> None:
    assert tuple(f.name for f in fields(Books)) == BOOK_FIELDS


# A further grant.


def test_a_further_grant_is_due_once_open_pages_hold_less_than_its_share_of_what_they_were_granted() -> None:
    granted = 10 * GRANT_GRAINS
    threshold = 10 * granted // 100  # Ten open pages, one per cent.
    full = Books(pool=MINTED_GRAINS, credit=granted, live=50, open=10, open_cash=threshold)
    drained = replace(full, open_cash=threshold - 1)
    assert full.grant_due(10_000, GRANT_GRAINS) == 0
    assert drained.grant_due(10_000, GRANT_GRAINS) == GRANT_GRAINS // 100


def test_cash_on_pages_that_were_never_read_holds_no_grant_back() -> None:
    books = Books(pool=MINTED_GRAINS, credit=GRANT_GRAINS, live=10**6, open=1)
    assert books.grant_due(RULES.regrant_ppm, RULES.grant) > 0


def test_nothing_is_granted_before_a_page_was_read() -> None:
    assert Books(pool=MINTED_GRAINS, credit=GRANT_GRAINS, live=9).grant_due(RULES.regrant_ppm, RULES.grant) == 0


def test_regrant_0_never_grants_again() -> None:
    books = Books(pool=MINTED_GRAINS, credit=GRANT_GRAINS, live=9, open=9)
    assert books.grant_due(0, GRANT_GRAINS) == 0


def test_a_pool_that_cannot_pay_every_live_page_waits() -> None:
    amount = GRANT_GRAINS // 100
    books = Books(pool=9 * amount, credit=GRANT_GRAINS, live=9, open=9)
    assert books.grant_due(RULES.regrant_ppm, GRANT_GRAINS) == amount
    assert replace(books, pool=9 * amount - 1).grant_due(RULES.regrant_ppm, GRANT_GRAINS) == 0


# Paid at once.


@given(pool=st.integers(0, 2**46), live=st.integers(0, 50), read=st.integers(0, 50))
def test_paid_at_once_every_live_page_gets_the_same_and_the_remainder_stays(pool: int, live: int, read: int) -> None:
    books = Books(pool=pool, live=live, open=min(read, live), open_cash=7, credit=2**60)
    books.pay(CONTINUOUS)
    paid = books.credit - 2**60
    assert books.pool + paid * live == pool
    assert 0 <= books.pool < live or (live == 0 and books.pool == pool)
    assert books.open_cash == 7 + paid * books.open


def test_a_round_is_a_grant_for_each_live_page_or_all_cash() -> None:
    assert RULES.round_grains(10) == 10 * GRANT_GRAINS
    assert CONTINUOUS.round_grains(10) == CONTINUOUS.minted == 2**46


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
def test_whatever_could_still_move_never_narrows_the_bound(name: str, grains: int, q: int) -> None:
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


def test_settled_and_residual_make_up_the_importance_of_all_live_pages() -> None:
    books = books_after_a_crawl()
    cash_of_live_pages = MINTED_GRAINS - books.pool - books.v_gone
    history_of_live_pages = books.clock - books.h_gone
    assert books.open_cash == 10**10
    assert books.importance_total(MINTED_GRAINS) == cash_of_live_pages + history_of_live_pages
    assert books.settled(MINTED_GRAINS) == books.importance_total(MINTED_GRAINS) - books.open_cash


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
def test_the_bound_holds_whatever_is_on_its_way_between_shards(
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


def test_cash_in_flight_and_grants_under_way_count_as_what_is_still_to_come() -> None:
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


def test_merged_books_add_up_but_for_credit_time_and_rounds() -> None:
    one = Books(version=3, clock=10, rounds=6 << 32, time_us=5, pool=7, net=2, credit=90, live=1, reads=4)
    two = Books(version=4, clock=20, rounds=2 << 32, time_us=3, pool=-9, net=-1, credit=80, live=3, reads=5)
    whole = Books.merged([one, two], RULES)
    assert (whole.version, whole.clock, whole.pool, whole.net, whole.live, whole.reads) == (7, 30, -2, 1, 4, 9)
    assert (whole.credit, whole.time_us) == (90, 5)
    assert whole.rounds == 3 << 32  # Each counts rounds of its own pages.
    assert Books.merged([one, two], CONTINUOUS).rounds == 8 << 32  # Each counts its part of all cash.
    assert Books.merged([Books(), Books()], RULES) == Books()


# By class.


@given(st.builds(Books, clock=st.integers(0, 2**62), extra=st.tuples(st.just(0), *[st.integers(-9, 9)] * 7)))
def test_books_come_back_from_the_numbers_that_a_store_keeps(books: Books) -> None:
    assert Books.unflat(books.flat()) == books


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
    books.pay(Rules())
    rise = [b - a for a, b in zip(before, books.credits(), strict=True)]
    assert 2**62 - books.pool == books.open_cash == sum(r * n for r, n in zip(rise, pages, strict=True))
    assert bool(books.credit > credit) == (
        sum(pages) > 0 and sum(c * n for c, n in zip(before, pages, strict=True)) > 0
    )
