"""Cash is whole grains: a read splits it exactly."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opic.errors import SettingsError
from opic.model.books import BALANCE_LIMIT
from opic.model.cash import (
    CONTINUOUS,
    DAY_US,
    GRANT_GRAINS,
    MILLION,
    CrawlRules,
    damping_ppm,
    gone_until_us,
    split,
)

CASH = st.one_of(
    st.integers(0, BALANCE_LIMIT - 1),
    st.integers(0, 3 * MILLION),
    st.integers(2**53 - 2, 2**53 + 2),  # From here on a double is not exact,
    st.integers(2**62 - 2, 2**62),  # and here is all that is minted.
)
LINKS = st.integers(1, 10_000)
QS = st.integers(1, MILLION - 1)


# A read splits its cash.


@given(cash=CASH, links=LINKS, q=QS)
@example(cash=BALANCE_LIMIT - 1, links=10_000, q=MILLION - 1)
@example(cash=BALANCE_LIMIT - 1, links=1, q=1)
def test_a_split_neither_makes_nor_loses_a_grain(cash: int, links: int, q: int) -> None:
    out = split(cash, links, q)
    assert out.share * links + out.virtual == cash
    assert out.share >= 0
    assert out.virtual >= 0
    assert out.rounding >= 0


@given(cash=CASH, links=st.integers(0, 10_000), q=QS)
def test_a_page_with_negative_cash_takes_back_what_it_would_have_given(cash: int, links: int, q: int) -> None:
    gives, takes = split(cash, links, q), split(-cash, links, q)
    assert (takes.share, takes.virtual, takes.rounding) == (-gives.share, -gives.virtual, gives.rounding)


@given(cash=CASH, links=LINKS, q=QS)
def test_a_split_in_int64_arithmetic_is_the_same(cash: int, links: int, q: int) -> None:
    """As a vectorised or a native implementation has it, which may never pass 2^63 on the way."""
    with np.errstate(over="raise"):
        held, parts, million = np.int64(cash), np.int64(q), np.int64(MILLION)
        leaving = held // million * parts + held % million * parts // million
        share, remainder = divmod(held - leaving, np.int64(links))
        virtual = leaving + remainder
    out = split(cash, links, q)
    assert (int(share), int(virtual)) == (out.share, out.virtual)


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
    assert (cash // MILLION) * q + (cash % MILLION) * q // MILLION <= cash


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
def test_damping_is_stored_as_parts_per_million_that_leave(damping: float, q: int) -> None:
    assert damping_ppm(damping) == q


@pytest.mark.parametrize("damping", [0.0, 1.0, -0.1, 1.1, 0.99999999, 1e-9])
def test_a_damping_that_shares_all_or_nothing_is_refused_by_its_name(damping: float) -> None:
    with pytest.raises(SettingsError, match="OPIC_DAMPING"):
        damping_ppm(damping)


def test_a_page_that_goes_away_waits_a_day_then_twice_as_long_each_time_up_to_1024_days() -> None:
    waits = [gone_until_us(5, times) - 5 for times in range(1, 14)]
    assert waits == [DAY_US * min(2**i, 1_024) for i in range(13)]


def test_a_round_is_a_grant_for_each_live_page_or_all_cash() -> None:
    assert CrawlRules().round_grains(10) == 10 * GRANT_GRAINS
    assert CONTINUOUS.round_grains(10) == CONTINUOUS.minted == 2**46
